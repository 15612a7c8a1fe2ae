"""Shapes of results: what they reveal, and what they never reveal."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.middleware.support import immediate

from toolcrib.gateway.result_shapes import ResultShapes
from toolcrib.schema.shape import shape_of
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Caller, Context, Tool, ToolResult

SECRET = "s3cret-value"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.just(SECRET),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from([*"abcdef", "a b"]), inner),
    max_leaves=40,
)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (None, "null"),
        ([], "[]"),
        ({}, "{}"),
        ([1, "a"], "(integer | string)[]"),
        ([{"a": 1}, {"a": 1.5, "b": None}], "{ a: integer | number, b?: null }[]"),
        ({f"user {n}": {"age": n} for n in range(3)}, "{ [key]: { age: integer } }"),
        ({f"u{n}": True for n in range(40)}, "{ [key]: boolean }"),
    ],
)
def test_a_shape_is_types_and_names_of_fields(value: Any, shape: str) -> None:
    assert shape_of(value) == shape


@given(JSON)
def test_a_shape_is_bounded_and_holds_no_value(value: Any) -> None:
    shape = shape_of(value)
    assert 0 < len(shape) <= 600
    assert SECRET not in shape
    assert "\n" not in shape


def test_names_that_may_be_data_are_not_kept() -> None:
    assert SECRET not in shape_of({f"{SECRET} {n}": 1 for n in range(3)})


def test_only_so_many_shapes_are_kept_and_only_of_what_succeeded() -> None:
    shapes = ResultShapes(MemoryStore(), max_shapes=2)
    ctx = Context(caller=Caller(id="me"))
    tools = [Tool(name=name) for name in "abc"]
    immediate(shapes.record(ctx, tools[0], ToolResult(structured={"x": 1})))
    assert immediate(shapes.get(ctx, tools[0])) == ""  # no surface shows shapes yet
    shapes.enabled = True
    for tool in tools:
        immediate(shapes.record(ctx, tool, ToolResult(structured={"x": 1})))
    immediate(shapes.record(ctx, tools[2], ToolResult(is_error=True)))
    assert [immediate(shapes.get(ctx, tool)) for tool in tools] == ["", "{ x: integer }", "{ x: integer }"]
