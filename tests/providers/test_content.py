"""Converting a tool's return value to a result, and a result to a value."""

import enum
import json
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import mcp_types
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import Image
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from toolcrib.errors import ExecutionFailed
from toolcrib.providers.content import (
    audio,
    image,
    resource,
    resource_link,
    several,
    structured,
    text,
    to_result,
    unwrap,
)
from toolcrib.types import ToolResult
from toolcrib.wire import result_to_wire


class Color(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    BIG = "big"


class Person(BaseModel):
    given_name: str = Field(serialization_alias="givenName")
    born: date | None = None


@dataclass
class Point:
    x: int
    tags: set[str] = field(default_factory=set)


@pydantic_dataclass
class Row:
    at: datetime


VALUES = [
    ({"a": 1}, {"a": 1}),
    (MappingProxyType({"a": (1, 2)}), {"a": [1, 2]}),
    (Person(given_name="Ann", born=date(2000, 1, 2)), {"givenName": "Ann", "born": "2000-01-02"}),
    (Point(1, {"b", "a"}), {"x": 1, "tags": ["a", "b"]}),
    (Row(at=datetime(2026, 1, 2, tzinfo=UTC)), {"at": "2026-01-02T00:00:00Z"}),
    ([1, 2.5, None], [1, 2.5, None]),
    ([], []),
    ({}, {}),
    ((1, "a"), [1, "a"]),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"x"}), ["x"]),
    (deque([1]), [1]),
    (7, 7),
    (0, 0),
    (False, False),
    (1.5, 1.5),
    (Color.RED, "red"),
    (Decimal("1.50"), "1.50"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (PurePosixPath("/tmp"), "/tmp"),  # noqa: S108 - only a value
    (timedelta(hours=1), "PT1H"),
    ({Color.RED: 1, date(2026, 1, 2): 2, 3: 4}, {"red": 1, "2026-01-02": 2, "3": 4}),
    (np.int64(3), 3),
    (np.array([[1, 2]]), [[1, 2]]),
    ({"who": [Person(given_name="Ann")]}, {"who": [{"givenName": "Ann", "born": None}]}),
]


@pytest.mark.parametrize(("value", "plain"), VALUES, ids=[type(value).__name__ for value, _ in VALUES])
def test_any_usual_value_is_json_text_and_structured_content(value: Any, plain: Any) -> None:
    result = to_result(value)
    assert result.structured == plain
    assert [block["type"] for block in result.content] == ["text"]
    assert json.loads(result.content[0]["text"]) == plain


def test_json_text_is_compact_and_readable() -> None:
    assert to_result({"a": ["é", 1]}).content[0]["text"] == '{"a":["é",1]}'


def test_text_is_one_text_block_without_structured_content() -> None:
    assert to_result("hello") == ToolResult(content=({"type": "text", "text": "hello"},))
    assert to_result(Size.BIG) == to_result("big")


def test_nothing_is_a_result_without_content() -> None:
    assert to_result(None) == ToolResult()


def test_a_result_stays_the_very_same() -> None:
    result = ToolResult(content=({"type": "text", "text": "x"},), is_error=True)
    assert to_result(result) is result


def test_structured_content_shares_nothing_with_what_was_returned() -> None:
    rows: list[int] = [1]
    result = to_result({"rows": rows})
    rows.append(2)
    assert result.structured == {"rows": [1]}


class Loop:
    def __repr__(self) -> str:
        return "password"


def endless() -> dict[str, Any]:
    held: dict[str, Any] = {}
    held["me"] = held
    return held


def deep(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def anything(value: Any) -> Any:
    return value


def numbers() -> Iterator[int]:
    yield 1


REFUSED = [
    (math.nan, "the number nan", "None"),
    ({"rows": [1, {"price": math.inf}]}, "the number inf at rows[1].price", "None"),
    (b"\x89PNG", "returned bytes", "image("),
    ({"data": b"text"}, "bytes at data", "decode()"),
    (Loop(), "of type Loop", "dataclasses"),
    ([{"x": {"y": Loop()}}], "of type Loop at [0].x.y", "dataclasses"),
    (Point(x=anything(Loop())), "of type Loop at x", "dataclasses"),
    ({"f": open}, "at f", "dataclasses"),
    (Person, "of type ModelMetaclass", "dataclasses"),
    (numbers(), "a generator", "list(...)"),
    (endless(), "circular", "dataclasses"),
    (deep(300), "more than 200 levels", "dataclasses"),
    ("\ud800", "lone surrogate", "errors="),
    ({"name": "\ud800"}, "lone surrogate at name", "errors="),
    ({(1, 2): "a"}, "JSON cannot represent", "dicts"),
]


@pytest.mark.parametrize(("value", "said", "hint"), REFUSED, ids=[said for _, said, _ in REFUSED])
def test_what_json_cannot_hold_is_named_with_its_place_and_a_remedy(value: Any, said: str, hint: str) -> None:
    with pytest.raises(ExecutionFailed) as caught:
        to_result(value, who="files:read")
    assert caught.value.message.startswith("files:read returned ")
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert "password" not in str(caught.value)


BLOCKS = [
    ({"type": "text", "text": "hi"}, {"type": "text", "text": "hi"}),
    (mcp_types.TextContent(text="hi"), {"type": "text", "text": "hi"}),
    (
        mcp_types.ImageContent(data="YQ==", mime_type="image/png"),
        {"type": "image", "data": "YQ==", "mimeType": "image/png"},
    ),
    (
        mcp_types.AudioContent(data="YQ==", mime_type="audio/wav"),
        {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"},
    ),
    (
        mcp_types.ResourceLink(uri="file:///a", name="a", mime_type="text/plain"),
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain"},
    ),
    (
        mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(uri="file:///a", text="x")),
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x"}},
    ),
    (Image(data=b"a", format="png"), {"type": "image", "data": "YQ==", "mimeType": "image/png"}),
]


@pytest.mark.parametrize(("value", "wire"), BLOCKS, ids=[type(value).__name__ for value, _ in BLOCKS])
def test_content_blocks_of_any_make_become_wire_json(value: Any, wire: dict[str, Any]) -> None:
    assert to_result(value) == ToolResult(content=(wire,))
    assert to_result([value, value]).content == (wire, wire)
    assert to_result(["See", value]).content == ({"type": "text", "text": "See"}, wire)


def test_data_that_only_looks_like_a_block_stays_data() -> None:
    lookalikes: list[Any] = [
        {"type": "text", "text": "hi", "author": "me"},
        {"type": "image", "data": "x"},
        {"type": "text", "text": 5},
        {"type": "resource", "resource": {"name": "cpu"}},
        {"content": [], "author": "me"},
        {"content": []},
        {"content": "hello"},
        [{"type": "text", "text": "hi"}, {"other": 1}],
    ]
    for data in lookalikes:
        assert to_result(data).structured == data


def test_a_whole_result_of_the_sdk_is_kept_whole() -> None:
    sdk = mcp_types.CallToolResult(
        content=[mcp_types.TextContent(text="no")],
        structured_content={"a": None},
        is_error=True,
        _meta={"trace": "1"},
    )
    whole = ToolResult(
        content=({"type": "text", "text": "no"},), structured={"a": None}, is_error=True, meta={"trace": "1"}
    )
    assert to_result(sdk) == whole
    wire = {"content": [{"type": "text", "text": "no"}], "structuredContent": {"a": None}, "isError": True}
    assert to_result({**wire, "_meta": {"trace": "1"}}) == whole


def test_a_request_for_more_input_is_kept() -> None:
    result = to_result(mcp_types.InputRequiredResult(request_state="later"))
    assert (result.kind, result.request_state) == ("input_required", "later")
    with pytest.raises(ExecutionFailed, match="more input"):
        unwrap(result)


def test_helpers_make_results_that_every_client_can_read() -> None:
    made = several(
        "Look:",
        image(b"a"),
        audio(b"b"),
        resource("file:///a", "text", "text/plain"),
        resource("file:///b", b"\x00"),
        resource_link("https://example.com", "site", description="A site"),
        {"n": 1},
        structured([1], "one"),
    )
    assert [block["type"] for block in made.content] == [
        "text",
        "image",
        "audio",
        "resource",
        "resource",
        "resource_link",
        "text",
        "text",
    ]
    assert made.structured == [1]
    assert made.content[4]["resource"] == {"uri": "file:///b", "blob": "AA=="}
    assert result_to_wire(made, "2025-11-25")["content"] == list(made.content)


# -- unwrap --------------------------------------------------------------------------------------------------------


def test_a_result_unwraps_to_the_value_a_program_wants() -> None:
    two = ({"type": "text", "text": "a"}, {"type": "text", "text": "b"})
    assert unwrap(structured({"a": 1}, "words")) == {"a": 1}
    assert unwrap(structured(0)) == 0
    assert unwrap(text("a")) == "a"
    assert unwrap(text("")) == ""
    assert unwrap(ToolResult(content=two)) == [*two]
    assert unwrap(image(b"a")) == [{"type": "image", "data": "YQ==", "mimeType": "image/png"}]
    assert unwrap(ToolResult()) is None


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ToolResult(content=({"type": "text", "text": " "}, {"type": "text", "text": "no"}), is_error=True), "no"),
        (ToolResult(structured={"why": "no"}, is_error=True), '{"why":"no"}'),
        (ToolResult(is_error=True), "The tool failed without a reason."),
    ],
)
def test_a_failed_result_is_raised_with_its_own_words(result: ToolResult, said: str) -> None:
    with pytest.raises(ExecutionFailed) as caught:
        unwrap(result)
    assert caught.value.message == said


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain)
def test_whatever_json_a_tool_returns_comes_back_the_same(value: Any) -> None:
    assert unwrap(to_result(value)) == value


@pytest.mark.parametrize("meta", ["boom", [1], 5])
def test_meta_that_is_not_an_object_is_refused(meta: Any) -> None:
    text = {"type": "text", "text": "x"}
    assert to_result({"content": [text], "_meta": meta}) == ToolResult(content=(text,))
    assert to_result({**text, "_meta": meta}).structured == {**text, "_meta": meta}


@dataclass
class Holding:
    counts: dict[Any, str]


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{"x": {1: "a", "1": "b"}}], Holding({1: "a", "1": "b"})])
def test_keys_that_are_the_same_as_text_are_refused(value: Any) -> None:
    with pytest.raises(ExecutionFailed, match='The tool returned an object with two keys that are both "1" as text'):
        to_result(value)


def test_numbers_are_keys_and_may_look_alike_elsewhere() -> None:
    value = {1: {"1": 1e22}, 2: {1: "x"}}
    assert to_result(value).structured == {"1": {"1": 1e22}, "2": {"1": "x"}}
