"""Function declarations, calls and responses of Gemini."""

from types import SimpleNamespace

from tests.formats.samples import CLOCK, PICTURE, WEATHER, said

from toolcrib.formats import ToolCall, gemini
from toolcrib.types import ToolResult

CALL = ToolCall(id="f1", name="now")


def test_a_declaration_has_its_arguments_as_json_schema() -> None:
    assert gemini.declaration(WEATHER) == {
        "name": "weather__get_forecast",
        "description": "The forecast for a city.",
        "parametersJsonSchema": WEATHER.input_schema,
    }


def test_or_in_the_older_form() -> None:
    assert gemini.declaration(WEATHER, openapi=True)["parameters"] == {
        "type": "OBJECT",
        "properties": {"city": {"type": "STRING"}, "days": {"type": "INTEGER"}},
        "required": ["city"],
    }


def test_a_tool_without_arguments_declares_none() -> None:
    assert gemini.declaration(CLOCK) == {"name": "now", "description": "The time."}


def test_calls_are_read_from_json_and_from_objects() -> None:
    parts = [{"text": "I look."}, {"functionCall": {"id": "f1", "name": "now", "args": {"zone": "CET"}}}]
    objects = SimpleNamespace(
        parts=[
            SimpleNamespace(text="I look.", function_call=None),
            SimpleNamespace(function_call=SimpleNamespace(id="f1", name="now", args={"zone": "CET"})),
        ]
    )
    assert gemini.calls({"role": "model", "parts": parts}) == gemini.calls(objects) == gemini.calls(parts)
    (call,) = gemini.calls(parts)
    assert (call.id, call.name, call.arguments) == ("f1", "now", {"zone": "CET"})


def test_a_response_has_the_output_or_the_error() -> None:
    assert gemini.function_response(CALL, said("noon")) == {
        "functionResponse": {"id": "f1", "name": "now", "response": {"output": "noon"}}
    }
    failed = gemini.function_response(CALL, said("no clock", is_error=True))
    assert failed["functionResponse"]["response"] == {"error": "no clock"}


def test_a_structured_value_is_unchanged_if_nothing_must_be_cut() -> None:
    result = ToolResult(structured={"hour": 12})
    assert gemini.function_response(CALL, result)["functionResponse"]["response"] == {"output": {"hour": 12}}
    cut = gemini.function_response(CALL, result, budget=100)
    assert cut["functionResponse"]["response"] == {"output": '{"hour":12}'}


def test_pictures_are_parts_of_the_response_or_notes() -> None:
    result = ToolResult(content=({"type": "text", "text": "A map:"}, PICTURE))
    response = gemini.function_response(CALL, result)["functionResponse"]
    assert response["response"] == {"output": "A map:"}
    assert response["parts"] == [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0="}}]
    noted = gemini.function_response(CALL, result, files=False)["functionResponse"]
    assert noted["response"] == {"output": "A map:\n[image/png, 6 bytes, not shown here]"}
    assert "parts" not in noted
