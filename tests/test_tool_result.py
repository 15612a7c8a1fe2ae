"""What a program reads from the result of a call."""

from typing import Any

import pytest

from toolcrib import App, ExecutionFailed, ToolResult
from toolcrib.errors import ToolFailed

pytestmark = pytest.mark.anyio


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("result", "words", "data"),
    [
        (ToolResult(), "", None),
        (ToolResult(content=(text("noon"),)), "noon", None),
        (ToolResult(content=(text("a"), IMAGE, text("b"))), "a\nb", None),
        (ToolResult(content=(text('{"n": 1}'),)), '{"n": 1}', {"n": 1}),
        (ToolResult(content=(text("8"),)), "8", 8),
        (ToolResult(content=(text("NaN"),)), "NaN", None),
        (ToolResult(content=(text("[" * 100_000),)), "[" * 100_000, None),
        (ToolResult(content=(text("1"), text("2"))), "1\n2", None),
        (ToolResult(content=(IMAGE,)), "", None),
        (ToolResult(content=(text("one"),), structured={"n": 1}), "one", {"n": 1}),
        (ToolResult(content=({"type": "text", "text": 5},)), "", None),
    ],
)
def test_a_result_has_the_joined_text_and_the_value(result: ToolResult, words: str, data: Any) -> None:
    assert (result.text, result.data) == (words, data)
    assert result.raise_for_error() is result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ToolResult(is_error=True, content=(text(" No such city.\n"),)), "No such city."),
        (ToolResult(is_error=True, structured={"why": "no"}), '{"why":"no"}'),
        (ToolResult(is_error=True, content=(IMAGE,)), "The tool failed without a reason."),
    ],
)
def test_a_failed_result_raises_its_own_words(result: ToolResult, message: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        result.raise_for_error()
    assert (str(caught.value), caught.value.code) == (message, "tool_failed")


def test_a_result_that_asks_for_input_is_no_value() -> None:
    with pytest.raises(ExecutionFailed, match="needs more input"):
        ToolResult(kind="input_required").raise_for_error()


async def test_the_value_of_a_call_is_one_expression() -> None:
    app = App()

    @app.tool
    def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    assert (await app.call("add", {"a": 3, "b": 5})).raise_for_error().data == {"sum": 8}
