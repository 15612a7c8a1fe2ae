"""The compact form of a schema allows the same calls, whatever the schema."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from toolcrib.errors import ToolcribError
from toolcrib.schema import Schema, example
from toolcrib.schema.compact import compact, required_part
from toolcrib.schema.signature import resolve
from toolcrib.types import Tool

NAMES = st.sampled_from(["a", "b", "title", "page_size"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["x", "open", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
NOISE: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "title": st.sampled_from(["A", "Page Size", "Something"]),
        "description": st.sampled_from(["Words.", "More words."]),
        "default": st.none() | st.integers(0, 2),
        "$comment": st.just("generated"),
    },
)
LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.sampled_from(["string", "integer", "boolean", "null", "object", "array"]).map(lambda kind: {"type": kind}),
    st.builds(lambda low: {"type": "integer", "minimum": low, "maximum": 2**53 - 1}, st.integers(-2, 2)),
    st.builds(lambda values: {"enum": values}, st.lists(VALUES, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, VALUES),
    st.sampled_from(["D", "E", "Node"]).map(lambda name: {"$ref": f"#/$defs/{name}"}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    found = draw(st.dictionaries(NAMES, inner, max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": found}
    some: st.SearchStrategy[Any] = st.booleans()
    if found and draw(some):
        schema["required"] = draw(st.lists(st.sampled_from(sorted(found)), unique=True))
    schema |= draw(st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "string"}}]))
    return {**schema, **draw(NOISE)}


def grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    branches = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        objects(inner),
        st.builds(lambda items, noise: {"type": "array", "items": items, **noise}, inner, NOISE),
        st.builds(lambda kind, parts: {kind: parts}, st.sampled_from(["anyOf", "oneOf", "allOf"]), branches),
        st.builds(lambda part, noise: {"anyOf": [part, {"type": "null"}], **noise}, inner, NOISE),
        st.builds(lambda part: {"not": part}, inner),
        st.builds(lambda part, noise: {**part, **noise}, inner, NOISE),
    )


PARTS = st.recursive(LEAVES, grown, max_leaves=6)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """An input schema with definitions: one that leads to itself, and two that may be used never, once or often."""
    node = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Node"}, "b": draw(LEAVES)}}
    names = st.sampled_from([{}, {"$schema": "https://json-schema.org/draft/2020-12/schema"}])
    leaf = {"type": "string"}
    return {
        **draw(names),
        **draw(objects(PARTS)),
        "$defs": {"Node": node, "D": draw(objects(PARTS.filter(lambda part: "#/$defs/D" not in str(part)))), "E": leaf},
    }


@st.composite
def fitting(draw: st.DrawFn, node: Any, root: dict[str, Any], depth: int = 0) -> Any:
    """A value that probably fits a schema."""
    if not isinstance(node, Mapping) or depth > 5 or draw(st.integers(0, 9)) == 0:
        return draw(VALUES)
    whole = resolve(node, root)
    for key in ("anyOf", "oneOf", "allOf"):
        if branches := node.get(key, whole.get(key)):
            branch = draw(st.sampled_from(branches))
            if not (key != "anyOf" and isinstance(branch, Mapping) and "properties" in whole):
                return draw(fitting(branch, root, depth + 1))
    if "const" in whole or "enum" in whole:
        return whole.get("const", draw(st.sampled_from(whole.get("enum", [None]))))
    kinds = whole.get("type", ["string", "object"])
    kind = draw(st.sampled_from(kinds)) if isinstance(kinds, list) else kinds
    if kind == "object":
        known = whole.get("properties", {})
        names = draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else []
        shown = dict.fromkeys([*whole.get("required", ()), *names])
        return {name: draw(fitting(known.get(name, {}), root, depth + 1)) for name in shown}
    if kind == "array":
        return draw(st.lists(fitting(whole.get("items", {}), root, depth + 1), max_size=2))
    simple: dict[str, st.SearchStrategy[Any]] = {
        "string": st.sampled_from(["x", "open"]),
        "integer": st.integers(-3, 3),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return draw(simple[kind])


def is_valid(schema: dict[str, Any], arguments: Any) -> bool:
    try:
        Schema(schema, "do").check(arguments)
    except ToolcribError:
        return False
    return True


def declared(value: Any, schemas: list[Any], root: dict[str, Any]) -> Any:
    """The value without the keys that no schema for it declares."""
    parts = [part for schema in schemas for part in applying(schema, root, 8)]
    if isinstance(value, list):
        return [declared(one, [part.get("items", {}) for part in parts], root) for one in value]
    if not isinstance(value, dict):
        return value
    known = {name for part in parts for name in part.get("properties", {})}
    closed = any(part.get("additionalProperties") is False and "properties" in part for part in parts)
    return {
        key: declared(one, [part["properties"][key] for part in parts if key in part.get("properties", {})], root)
        for key, one in value.items()
        if key in known or not closed
    }


def applying(schema: Any, root: dict[str, Any], depth: int) -> list[Mapping[str, Any]]:
    """The schema and its references and alternatives, all of which may apply to one value."""
    if not isinstance(schema, Mapping) or depth < 0:
        return []
    whole = resolve(schema, root)
    branches = [branch for key in ("anyOf", "oneOf", "allOf") for branch in schema.get(key, ())]
    branches += [branch for key in ("anyOf", "oneOf") for branch in whole.get(key, ())]
    negated = [schema["not"]] if "not" in schema else []
    return [whole, *(part for branch in (*branches, *negated) for part in applying(branch, root, depth - 1))]


OPEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
OTHER: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "string"}}}
CLOSED: dict[str, Any] = {"additionalProperties": False}
NODES: tuple[dict[str, Any], ...] = (
    {"type": "string"},
    {"type": "string", "title": "X"},
    {"type": "integer", "minimum": 2},
    {"type": "string", "enum": ["x", "y"]},
    {"type": "string", "const": "x"},
    {"type": ["string", "null"]},
    {"type": "string", "not": {"const": "x"}},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", **CLOSED},
    {**OPEN, **CLOSED},
    {**OTHER, **CLOSED, "required": ["b"]},
    {"$ref": "#/$defs/D"},
    {"$ref": "#/$defs/D", "description": "Words."},
    {"$ref": "#/$defs/D", "enum": ["x"]},
    {"$ref": "#/$defs/Node"},
)
"""Schemas in which a compact form could go wrong."""
WRAPPED: Mapping[str, Callable[[Any, Any], Any]] = {
    "as it is": lambda one, _: one,
    "in a union": lambda one, other: {"anyOf": [one, other]},
    "in one of": lambda one, other: {"oneOf": [one, other]},
    "in all of": lambda one, other: {"allOf": [one, other]},
    "negated": lambda one, other: {"anyOf": [{"not": one}, other]},
    "or null": lambda one, other: {"anyOf": [one, {"type": "null"}], "default": None, "title": str(other)[:9]},
    "null first": lambda one, _: {"anyOf": [{"type": "null"}, one], "description": "Words."},
    "in a list": lambda one, other: {"type": "array", "items": {"anyOf": [one, other]}},
    "under a condition": lambda one, other: {"if": one, "then": other},
}
SOME_VALUES: tuple[Any, ...] = (
    *(None, "x", "z", 1, 3, {}, [], ["x"], [{"a": "x"}], [None]),
    *({"a": "x"}, {"b": "x"}, {"a": "x", "b": "x"}, {"a": 1}, {"a": {"a": "x"}}),
)


@pytest.mark.parametrize("way", WRAPPED)
@pytest.mark.parametrize("definition", [{"type": "string"}, {**OPEN, **CLOSED}], ids=["text", "object"])
def test_every_value_is_valid_for_the_compact_form_exactly_if_it_is_for_the_original(
    way: str, definition: dict[str, Any]
) -> None:
    node = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Node"}}}
    for one, other in product(NODES, repeat=2):
        schema = {"type": "object", "properties": {"a": WRAPPED[way](one, other)}}
        schema["$defs"] = {"D": definition, "Node": node}
        original, made = (jsonschema_rs.validator_for(each) for each in (schema, compact(schema)))
        for value in SOME_VALUES:
            arguments = {"a": value}
            assert made.is_valid(arguments) or not original.is_valid(arguments), (schema, arguments)
            usual = declared(arguments, [schema], schema)
            assert made.is_valid(usual) == original.is_valid(usual), (schema, usual)


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@relaxed
@given(schemas(), st.data(), st.booleans())
def test_arguments_are_valid_for_the_compact_form_exactly_if_they_are_for_the_original(
    schema: dict[str, Any], data: st.DataObject, brief: bool
) -> None:
    made = compact(schema, brief=brief)
    for _ in range(2):
        arguments = data.draw(fitting(schema, schema).filter(lambda value: isinstance(value, dict)))
        if is_valid(schema, arguments):
            assert is_valid(made, arguments)
        usual = declared(arguments, [schema], schema)
        assert is_valid(made, usual) == is_valid(schema, usual)


@relaxed
@given(schemas())
def test_what_fits_the_original_example_fits_the_required_part(schema: dict[str, Any]) -> None:
    arguments = example(Tool(name="do", input_schema=schema))
    assume(is_valid(schema, arguments))
    part, left_out = required_part(compact(schema, brief=True))
    assert is_valid(part, arguments)
    assert not set(left_out) & set(part["properties"])


@relaxed
@given(schemas(), st.booleans())
def test_the_compact_form_is_never_larger(schema: dict[str, Any], brief: bool) -> None:
    assert len(str(compact(schema, brief=brief))) <= len(str(schema))
