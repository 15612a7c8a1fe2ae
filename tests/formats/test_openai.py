"""Chat Completions and Responses of OpenAI: definitions, calls, results and tool search."""

from types import SimpleNamespace

import pytest
from tests.formats.samples import CLOCK, FREE, ODATA, PICTURE, WEATHER, hit, said

from toolcrib.errors import ToolNotFound
from toolcrib.formats import Names, openai
from toolcrib.types import ToolResult


def test_a_tool_of_chat_completions_is_a_function_with_parameters() -> None:
    assert openai.chat_tool(WEATHER) == {
        "type": "function",
        "function": {
            "name": "weather__get_forecast",
            "description": "The forecast for a city.",
            "parameters": WEATHER.input_schema,
        },
    }


def test_a_tool_of_responses_is_flat_and_always_says_whether_it_is_strict() -> None:
    assert openai.responses_tool(CLOCK, name="clock") == {
        "type": "function",
        "name": "clock",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }


def test_a_strict_tool_says_so_and_one_that_cannot_be_does_not() -> None:
    function = openai.chat_tool(WEATHER, strict=True)["function"]
    assert function["strict"] is True
    assert function["parameters"]["required"] == ["city", "days"]
    assert "strict" not in openai.chat_tool(FREE, strict=True)["function"]
    assert openai.responses_tool(FREE, strict=True)["strict"] is False


def test_calls_of_chat_completions_are_read_from_json_and_from_objects() -> None:
    function = {"name": "weather__get_forecast", "arguments": '{"city": "Oslo"}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    objects = SimpleNamespace(tool_calls=[SimpleNamespace(id="c1", function=SimpleNamespace(**function))])
    assert openai.chat_calls(message) == openai.chat_calls(objects)
    (call,) = openai.chat_calls(message)
    assert (call.id, call.name, call.arguments, call.problem) == ("c1", "weather__get_forecast", {"city": "Oslo"}, "")
    assert openai.chat_calls({"role": "assistant", "content": "Hello."}) == ()


@pytest.mark.parametrize(
    ("arguments", "problem"), [('{"city": ', "not JSON"), ("[1]", "not an object"), ("3", "not an")]
)
def test_arguments_that_cannot_be_read_are_a_problem_and_not_a_crash(arguments: str, problem: str) -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "a", "arguments": arguments}
    (call,) = openai.responses_calls([item])
    assert call.arguments == {}
    assert problem in call.problem


def test_calls_of_responses_are_its_function_calls_only() -> None:
    output = [
        {"type": "reasoning", "id": "r1"},
        {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": ""},
        {"type": "tool_search_call", "call_id": "s1", "execution": "client", "arguments": {"query": "time"}},
    ]
    (call,) = openai.responses_calls({"output": output})
    assert (call.id, call.name, call.arguments, call.problem) == ("c1", "clock", {}, "")


def test_a_result_is_a_message_of_the_tool_and_its_pictures_one_of_the_user() -> None:
    result = ToolResult(content=({"type": "text", "text": "A map:"}, PICTURE))
    message = openai.tool_message("c1", result)
    assert message == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "A map:\n[image/png, 6 bytes, not shown here]",
    }
    assert openai.image_message(said("x"), result) == {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}],
    }
    assert openai.image_message(said("x")) is None


def test_an_error_says_that_it_is_one() -> None:
    assert openai.tool_message("c1", said("no such city", is_error=True))["content"] == "Error: no such city"
    assert openai.function_call_output("c1", said("Error: no", is_error=True))["output"] == "Error: no"


def test_an_output_of_responses_is_a_text_or_a_list_with_pictures_and_documents() -> None:
    assert openai.function_call_output("c1", said("noon")) == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": "noon",
    }
    pdf = {"type": "resource", "resource": {"uri": "x", "mimeType": "application/pdf", "blob": "JVBE"}}
    sound = {"type": "audio", "mimeType": "audio/wav", "data": "UklG"}
    result = ToolResult(content=({"type": "text", "text": "Map"}, PICTURE, pdf, sound), is_error=True)
    assert openai.function_call_output("c1", result)["output"] == [
        {"type": "input_text", "text": "Error:"},
        {"type": "input_text", "text": "Map"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0="},
        {"type": "input_file", "filename": "result.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        {"type": "input_text", "text": "[audio/wav, 3 bytes, not shown here]"},
    ]


def test_a_budget_cuts_the_result() -> None:
    message = openai.tool_message("c1", said("word " * 10_000), budget=50)
    assert len(message["content"]) < 200


def test_a_search_that_this_side_answers_loads_the_definitions_of_what_was_found() -> None:
    assert openai.search_tool()["execution"] == "client"
    output = [
        {
            "type": "tool_search_call",
            "id": "ts1",
            "call_id": "s1",
            "execution": "client",
            "arguments": {"query": "rain"},
        }
    ]
    (search,) = openai.search_calls({"output": output})
    assert (search.id, search.arguments) == ("s1", {"query": "rain"})

    names = Names()
    answer = openai.search_output(search.id, [hit(WEATHER), hit(CLOCK), hit(WEATHER)], names=names)
    assert {key: answer[key] for key in ("type", "execution", "call_id", "status")} == {
        "type": "tool_search_output",
        "execution": "client",
        "call_id": "s1",
        "status": "completed",
    }
    assert [(tool["name"], tool["defer_loading"]) for tool in answer["tools"]] == [
        ("weather__get_forecast", True),
        ("now", True),
    ]
    assert names.tool("weather__get_forecast") is WEATHER


def test_searches_that_the_provider_runs_are_not_ours() -> None:
    assert openai.search_calls([{"type": "tool_search_call", "id": "x", "execution": "server", "arguments": {}}]) == ()


def test_for_the_providers_own_search_tools_are_deferred_under_their_namespaces() -> None:
    names = Names()
    entries = openai.deferred([WEATHER, CLOCK, ODATA], always=["now"], names=names, about={"files": "Your files."})
    assert [entry["type"] for entry in entries] == ["function", "namespace", "namespace", "tool_search"]
    assert "defer_loading" not in entries[0]
    assert entries[1]["description"] == "Tools of weather: get_forecast."
    assert entries[2]["description"] == "Your files."
    assert entries[2]["tools"][0]["defer_loading"] is True
    assert names.tool(entries[2]["tools"][0]["name"]) is ODATA


def test_an_id_that_is_to_be_listed_always_must_be_that_of_a_tool() -> None:
    with pytest.raises(ToolNotFound, match="weather:get_forecasts") as caught:
        openai.deferred([WEATHER], always=["weather:get_forecasts"])
    assert caught.value.suggestions == ("weather:get_forecast",)
