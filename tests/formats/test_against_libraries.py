"""The output of each format fits the types of the provider's own library."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from tests.formats.samples import CLOCK, ODATA, PICTURE, WEATHER, hit, said
from typing_extensions import get_type_hints, is_typeddict

from toolcrib.formats import ToolCall, anthropic, definitions, gemini, openai
from toolcrib.types import ToolResult

TOOLS = [WEATHER, CLOCK, ODATA]
PICTURED = ToolResult(content=({"type": "text", "text": "x"}, PICTURE), is_error=True)


def fits(kind: Any, value: Any) -> bool:
    """Whether a value has the fields of a typed dict: all required ones, and no others."""
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        return (
            isinstance(value, Mapping)
            and kind.__required_keys__ <= value.keys() <= hints.keys()
            and all(fits(hints[name], each) for name, each in value.items())
        )
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, type(int | str)):
        return any(fits(each, value) for each in get_args(kind))
    if get_origin(kind) in (list, Iterable):
        return isinstance(value, list) and all(fits(get_args(kind)[0], each) for each in value)
    if get_origin(kind) is dict:
        return isinstance(value, Mapping)
    return kind in (Any, object) or not isinstance(kind, type) or isinstance(value, kind)


def all_fit(kind: Any, values: list[dict[str, Any]]) -> bool:
    return all(fits(kind, value) for value in values)


def test_the_openai_library_knows_every_shape() -> None:
    pytest.importorskip("openai", reason="the openai library is not installed")
    responses = pytest.importorskip("openai.types.responses")
    chat = pytest.importorskip("openai.types.chat")
    inputs = pytest.importorskip("openai.types.responses.response_input_param")
    for strict in (False, True):
        assert all_fit(chat.ChatCompletionFunctionToolParam, definitions(TOOLS, "openai", strict=strict))
        assert all_fit(responses.FunctionToolParam, definitions(TOOLS, "openai-responses", strict=strict))
    assert fits(chat.ChatCompletionToolMessageParam, openai.tool_message("c1", PICTURED))
    assert fits(chat.ChatCompletionUserMessageParam, openai.image_message(PICTURED))
    assert fits(inputs.FunctionCallOutput, openai.function_call_output("c1", PICTURED))
    assert fits(responses.ToolSearchToolParam, openai.search_tool())
    assert fits(inputs.ResponseInputItemParam, openai.search_output("c1", [hit(WEATHER), hit(CLOCK)]))
    assert all_fit(responses.ToolParam, openai.deferred(TOOLS, always=["now"]))
    assert not fits(responses.ToolSearchToolParam, {**openai.search_tool(), "query": "x"})


def test_the_anthropic_library_knows_every_shape() -> None:
    pytest.importorskip("anthropic", reason="the anthropic library is not installed")
    types = pytest.importorskip("anthropic.types")
    for strict in (False, True):
        assert all_fit(types.ToolParam, definitions(TOOLS, "anthropic", strict=strict))
    request = [anthropic.search_tool(), *anthropic.deferred(TOOLS, always=["now"])]
    assert all_fit(types.ToolParam, request)
    assert fits(types.ToolParam, anthropic.tool(WEATHER, examples=[{"city": "Oslo"}]))
    assert fits(types.ToolResultBlockParam, anthropic.tool_result("t1", PICTURED))
    assert fits(types.ToolResultBlockParam, anthropic.search_result("t1", [hit(WEATHER)]))
    assert not fits(types.ToolReferenceBlockParam, {"type": "tool_reference", "name": "x"})


def test_the_library_of_gemini_knows_every_shape() -> None:
    pytest.importorskip("google.genai", reason="the google-genai library is not installed")
    types = pytest.importorskip("google.genai.types")
    for tool in TOOLS:
        for openapi in (False, True):
            entry = gemini.declaration(tool, openapi=openapi)
            assert types.FunctionDeclaration.model_validate(entry).name == entry["name"]
    part = types.Part.model_validate(gemini.function_response(ToolCall(id="f1", name="now"), PICTURED))
    assert part.function_response.parts
    plain = types.Part.model_validate(gemini.function_response(ToolCall(id="", name="now"), said("noon")))
    assert plain.function_response.response == {"output": "noon"}
