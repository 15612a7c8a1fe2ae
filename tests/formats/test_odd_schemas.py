"""Odd input schemas in the formats of model providers: what a provider reads is complete and consistent."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.schema.test_repair import JSON, REPAIRED, VALID, of

from toolcrib.formats.rules import (
    ANTHROPIC,
    ANTHROPIC_STRICT,
    GEMINI,
    GEMINI_OPENAPI,
    OPENAI,
    OPENAI_STRICT,
    SchemaRules,
)
from toolcrib.formats.schema_transform import AdaptedSchema, adapt_schema
from toolcrib.schema import signature
from toolcrib.schema.signature import walk_schema
from toolcrib.schema.validate import compile_schema
from toolcrib.types import Tool

EVERY = [OPENAI, OPENAI_STRICT, ANTHROPIC, ANTHROPIC_STRICT, GEMINI, GEMINI_OPENAPI]
LEAN = [OPENAI_STRICT, ANTHROPIC_STRICT, GEMINI, GEMINI_OPENAPI]
TYPES = {"null", "boolean", "object", "array", "number", "string", "integer"}


def problems(schema: Any) -> Iterator[str]:
    """What a provider with few keywords refuses."""
    for node in walk_schema(schema):
        kinds = node.get("type", [])
        listed = [kinds] if isinstance(kinds, str) else kinds
        lower = {str(kind).lower() for kind in listed}
        if not lower <= TYPES:
            yield f"type {kinds!r}"
        if lower and "object" not in lower and node.keys() & {"properties", "required"}:
            yield f"properties of {kinds}"
        if lower and "array" not in lower and "items" in node:
            yield f"items of {kinds}"
        if node.get("enum") == []:
            yield "an empty enum"
        if not set(node.get("required", ())) <= node.get("properties", {}).keys():
            yield "required names that are not there"


def is_adapted(found: AdaptedSchema, rules: SchemaRules) -> bool:
    """Whether these rules were applied: a schema that cannot be strict has all keywords."""
    return found.strict or not rules.strict


@pytest.mark.parametrize("rules", EVERY)
@pytest.mark.parametrize("case", [*REPAIRED, *VALID])
def test_an_odd_schema_is_adapted_as_its_repaired_form(case: str, rules: SchemaRules) -> None:
    given_schema, expected = REPAIRED[case] if case in REPAIRED else (VALID[case], VALID[case])
    found = adapt_schema(given_schema, rules)
    assert found.schema == adapt_schema(expected, rules).schema
    if not rules.capitals:
        compile_schema(found.schema, "do")


INCONSISTENT: Mapping[str, Any] = {
    "properties of a string": of(a={"type": "string", "properties": {"x": {}}, "required": ["x"]}),
    "items of an integer": of(a={"type": "integer", "items": {"type": "string"}}),
    "required names that are not there": {**of(a={}), "required": ["a", "b"]},
    "only required names that are not there": {**of(a={}), "required": ["b"]},
    "an empty type and enum": of(a={"type": "", "enum": []}),
}


@pytest.mark.parametrize("rules", LEAN)
@pytest.mark.parametrize("case", INCONSISTENT)
def test_what_contradicts_itself_is_left_out(case: str, rules: SchemaRules) -> None:
    found = adapt_schema(INCONSISTENT[case], rules)
    assert not is_adapted(found, rules) or list(problems(found.schema)) == []


@given(JSON, st.sampled_from(LEAN))
def test_no_schema_is_refused_by_a_provider(schema: Any, rules: SchemaRules) -> None:
    found = adapt_schema(of(a=schema), rules)
    assert not is_adapted(found, rules) or list(problems(found.schema)) == []


BY_ID = {
    **of(a={"$ref": "urn:thing"}, b={"$ref": "thing2.json"}, c={"$ref": "urn:list#/items"}, d={"$ref": "#day"}),
    "required": ["a"],
    "$defs": {
        "T": {"$id": "urn:thing", "type": "integer"},
        "U": {"$id": "thing2.json", "type": "string"},
        "L": {"$id": "urn:list", "type": "array", "items": {"type": "boolean"}},
        "D": {"$anchor": "day", "type": "number"},
    },
}


def test_references_by_id_and_anchor_are_in_the_signature() -> None:
    line = signature(Tool(name="do", input_schema=BY_ID))
    assert line == "do(a: integer, b?: string, c?: boolean, d?: number)"


def test_a_reference_relative_to_the_id_of_the_whole_is_resolved() -> None:
    schema = {"$id": "https://example.com/a/tool.json", **of(n={"$ref": "../n.json"})}
    schema["$defs"] = {"N": {"$id": "https://example.com/n.json", "type": "integer"}}
    assert signature(Tool(name="do", input_schema=schema)) == "do(n?: integer)"


@pytest.mark.parametrize("rules", EVERY)
def test_references_by_id_and_anchor_are_written_out(rules: SchemaRules) -> None:
    shown = adapt_schema(BY_ID, rules).schema["properties"]
    kinds = {name: str(part.get("type", part.get("anyOf"))).lower() for name, part in shown.items()}
    expected = {"a": "integer", "b": "string", "c": "boolean", "d": "number"}
    assert all(kind in kinds[name] for name, kind in expected.items())
    assert not any(key in str(shown) for key in ("$ref", "$id", "$anchor"))
