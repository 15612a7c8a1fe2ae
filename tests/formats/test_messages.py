"""Calls read from messages, and results as text and files, whole or cut to a budget."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.samples import PICTURE, Words, said

from toolcrib.formats.messages import File, Text, joined, make_call, pieces
from toolcrib.types import ToolResult


def shown(*blocks: dict[str, Any], **more: Any) -> list[Text | File]:
    return pieces(ToolResult(content=blocks, **more))


@pytest.mark.parametrize(
    ("block", "piece"),
    [
        ({"type": "text", "text": "noon"}, Text("noon")),
        (PICTURE, File("image/png", "iVBORw0=")),
        ({"type": "audio", "mimeType": "audio/wav", "data": "UklG"}, File("audio/wav", "UklG")),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "hello"}}, Text("hello")),
        (
            {"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA", "mimeType": "application/pdf"}},
            File("application/pdf", "AAAA"),
        ),
        (
            {"type": "resource_link", "uri": "file:///a", "name": "a", "description": "A file."},
            Text("a file:///a A file."),
        ),
        ({"type": "novel", "x": 1}, Text('{"type":"novel","x":1}')),
    ],
)
def test_every_block_has_a_piece(block: dict[str, Any], piece: Text | File) -> None:
    assert shown(block) == [piece]


def test_a_structured_value_is_shown_if_no_text_contains_it() -> None:
    assert shown(structured={"sum": 3}) == [Text('{"sum":3}')]
    assert shown({"type": "text", "text": "three"}, structured={"sum": 3}) == [Text("three")]
    assert shown(PICTURE, structured=[1]) == [Text("[1]"), File("image/png", "iVBORw0=")]


def test_a_result_without_anything_says_so() -> None:
    assert shown() == shown({"type": "text", "text": ""}) == [Text("(no output)")]


def test_a_tool_that_asks_for_more_says_so() -> None:
    assert "asks for more input" in joined(pieces(ToolResult(kind="input_required")))


def test_in_plain_text_a_file_is_described_in_a_note() -> None:
    found = joined(shown({"type": "text", "text": "Here:"}, PICTURE))
    assert found == "Here:\n[image/png, 6 bytes, not shown here]"


def test_a_long_text_loses_its_middle_and_says_how_much() -> None:
    found = joined(pieces(said("first " + "word " * 10_000 + "last"), budget=100, counter=Words()))
    assert found.startswith("first word")
    assert found.endswith("word last")
    assert "characters left out" in found
    assert Words().count(found) <= 100


def test_short_texts_stay_whole_beside_a_long_one() -> None:
    result = ToolResult(content=({"type": "text", "text": "short"}, {"type": "text", "text": "word " * 1_000}))
    first, second = pieces(result, budget=60, counter=Words())
    assert first == Text("short")
    assert isinstance(second, Text)
    assert "left out" in second.text


def test_a_result_within_the_budget_is_not_touched() -> None:
    assert joined(pieces(said("noon"), budget=1_000)) == "noon"


@given(st.lists(st.text(max_size=300), max_size=4), st.integers(-5, 60))
def test_texts_never_cost_much_more_than_the_budget(texts: list[str], budget: int) -> None:
    result = ToolResult(content=tuple({"type": "text", "text": each} for each in texts))
    found = pieces(result, budget=budget, counter=Words())
    assert len(found) == max(1, sum(1 for each in texts if each))
    cost = sum(Words().count(piece.text) for piece in found if isinstance(piece, Text))
    assert cost <= max(budget, 0) + 4 * len(found)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_has_not_is_a_problem_and_no_argument(number: str) -> None:
    read = make_call("1", "add", f'{{"a": {number}}}')
    assert read.arguments == {}
    assert number in read.problem


def test_other_numbers_are_taken_as_they_are() -> None:
    assert make_call("1", "add", '{"a": 1.5, "b": -2, "c": 1e3}').arguments == {"a": 1.5, "b": -2, "c": 1000.0}
