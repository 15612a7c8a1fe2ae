"""Messages of Anthropic: definitions, calls, results, and a custom tool search."""

from types import SimpleNamespace

import pytest
from tests.formats.samples import CLOCK, FREE, ODATA, PICTURE, WEATHER, hit, said

from toolcrib.errors import InvalidArguments, ToolNotFound
from toolcrib.formats import Names, anthropic
from toolcrib.types import Tool, ToolResult


def test_a_tool_has_a_name_a_description_and_a_schema() -> None:
    assert anthropic.tool(WEATHER) == {
        "name": "weather__get_forecast",
        "description": "The forecast for a city.",
        "input_schema": WEATHER.input_schema,
    }


def test_a_tool_may_be_strict_and_deferred() -> None:
    entry = anthropic.tool(WEATHER, strict=True, deferred=True)
    assert (entry["strict"], entry["defer_loading"]) == (True, True)
    assert entry["input_schema"]["additionalProperties"] is False
    assert entry["input_schema"]["required"] == ["city"]
    assert "strict" not in anthropic.tool(FREE, strict=True)


def test_examples_stand_in_the_definition_and_must_fit() -> None:
    assert anthropic.tool(WEATHER, examples=[{"city": "Oslo"}])["input_examples"] == [{"city": "Oslo"}]
    with pytest.raises(InvalidArguments, match="An example of weather:get_forecast"):
        anthropic.tool(WEATHER, examples=[{"town": "Oslo"}])


def test_rules_removed_from_the_schema_are_in_the_description() -> None:
    tool = Tool(name="f", description="Does.", input_schema={"anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
    assert anthropic.tool(tool)["description"] == "Does.\nNeeds one of: a; b."


def test_no_more_tools_are_strict_than_one_request_takes() -> None:
    tools = [Tool(name=f"t{i}") for i in range(30)]
    assert [entry.get("strict", False) for entry in anthropic.request_tools(tools, strict=True)] == [True] * 20 + [
        False
    ] * 10
    half = {f"p{i}": {"type": "string"} for i in range(13)}
    two = [Tool(name=f"t{i}", input_schema={"type": "object", "properties": half}) for i in range(2)]
    assert [entry.get("strict", False) for entry in anthropic.request_tools(two, strict=True)] == [True, False]


def test_calls_are_read_from_json_and_from_objects() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "now", "input": {"zone": "CET"}}
    message = {"role": "assistant", "content": [{"type": "text", "text": "I look."}, block]}
    objects = SimpleNamespace(content=[SimpleNamespace(type="text", text="I look."), SimpleNamespace(**block)])
    assert anthropic.calls(message) == anthropic.calls(objects) == anthropic.calls([block])
    (call,) = anthropic.calls(message)
    assert (call.id, call.name, call.arguments) == ("t1", "now", {"zone": "CET"})


def test_a_result_has_text_pictures_and_documents_and_says_whether_it_is_an_error() -> None:
    pdf = {"type": "resource", "resource": {"uri": "x", "mimeType": "application/pdf", "blob": "JVBE"}}
    tiff = {"type": "image", "mimeType": "image/tiff", "data": "AAAA"}
    block = anthropic.tool_result("t1", ToolResult(content=({"type": "text", "text": "x"}, PICTURE, pdf, tiff)))
    assert block == {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [
            {"type": "text", "text": "x"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}},
            {"type": "text", "text": "[image/tiff, 3 bytes, not shown here]"},
        ],
    }
    assert anthropic.tool_result("t1", said("no", is_error=True))["is_error"] is True
    assert anthropic.tool_result("t1", ToolResult(kind="input_required"))["is_error"] is True


def test_a_search_of_ones_own_is_listed_with_the_tools_that_wait_for_it() -> None:
    names = Names()
    request = [anthropic.search_tool(), *anthropic.deferred([WEATHER, CLOCK], always=["now"], names=names)]
    assert [(entry["name"], entry.get("defer_loading", False)) for entry in request] == [
        ("search_tools", False),
        ("now", False),
        ("weather__get_forecast", True),
    ]
    assert names.tool("weather__get_forecast") is WEATHER


def test_what_was_found_is_answered_as_references_each_tool_once() -> None:
    assert anthropic.search_result("t1", [hit(WEATHER), hit(CLOCK), hit(WEATHER)]) == {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [
            {"type": "tool_reference", "tool_name": "weather__get_forecast"},
            {"type": "tool_reference", "tool_name": "now"},
        ],
    }


def test_a_tool_that_the_request_does_not_define_is_never_referred_to() -> None:
    names = Names([WEATHER])
    assert anthropic.references([hit(ODATA), hit(WEATHER)], names=names) == [
        {"type": "tool_reference", "tool_name": "weather__get_forecast"}
    ]


def test_a_search_without_a_hit_is_answered_in_words() -> None:
    assert anthropic.search_result("t1", [])["content"] == [{"type": "text", "text": "No tool fits. Try other words."}]


def test_an_id_that_is_to_be_listed_always_must_be_that_of_a_tool() -> None:
    with pytest.raises(ToolNotFound, match="'then'"):
        anthropic.deferred([CLOCK], always=["then"])
