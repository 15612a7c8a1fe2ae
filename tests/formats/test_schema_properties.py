"""Schemas of any shape: what a model produces fits the tool, and a model can produce what the tool accepts."""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from toolcrib.formats.rules import ANTHROPIC, ANTHROPIC_STRICT, GEMINI, OPENAI, OPENAI_STRICT, SchemaRules
from toolcrib.formats.schema_transform import adapt_schema

JSON_SCHEMA = [OPENAI, OPENAI_STRICT, ANTHROPIC, ANTHROPIC_STRICT, GEMINI]
KEYS = st.sampled_from(["a", "b", "url", "$top", "e mail"])
SLOW = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)

SCALARS = st.one_of(
    st.sampled_from([{"type": "string"}, {"type": "boolean"}, {"type": "number"}, {"type": "null"}]),
    st.builds(lambda low: {"type": "integer", "minimum": low}, st.integers(-5, 5)),
    st.builds(lambda size: {"type": "string", "minLength": size}, st.integers(0, 3)),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from(["x", "y", 1]), min_size=1, unique=True)),
    st.builds(lambda value: {"const": value}, st.sampled_from(["x", 2, True])),
    st.builds(lambda kinds: {"type": kinds}, st.just(["string", "null"])),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(KEYS, inner, min_size=1, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    closed = {"additionalProperties": False} if draw(st.booleans()) else {}
    return {"type": "object", "properties": properties, "required": required, **closed}


def wider(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        objects(inner),
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 1)),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=2)),
    )


PARTS = st.recursive(SCALARS, wider, max_leaves=5)
NODE = {"type": "object", "properties": {"v": {"type": "string"}, "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    top = draw(objects(PARTS | st.just({"$ref": "#/$defs/node"})))
    return {**top, "$defs": {"node": NODE}}


@st.composite
def values(draw: st.DrawFn, schema: Any, root: dict[str, Any], depth: int = 4) -> Any:
    """A value of the schema, with declared properties only."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "anyOf" in schema:
        return draw(values(draw(st.sampled_from(schema["anyOf"][:: 1 if depth > 0 else -1])), root, depth - 1))
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = draw(st.sampled_from(kinds)) if depth > 0 else kinds[-1]
    if kind == "object":
        required = schema.get("required", [])
        chosen = {k: v for k, v in schema["properties"].items() if k in required or (depth > 0 and draw(st.booleans()))}
        return {name: draw(values(part, root, depth - 1)) for name, part in chosen.items()}
    if kind == "array":
        least = schema.get("minItems", 0)
        return [draw(values(schema["items"], root, depth - 1)) for _ in range(draw(st.integers(least, 2)))]
    return draw(_scalar(kind, schema))


def _scalar(kind: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return {
        "string": st.text("ab", min_size=schema.get("minLength", 0), max_size=5),
        "integer": st.integers(schema.get("minimum", -9), 9),
        "number": st.integers(-9, 9) | st.floats(-9, 9),
        "boolean": st.booleans(),
        "null": st.none(),
    }[kind]


def filled(value: Any, schema: Any, root: dict[str, Any]) -> Any:
    """The value as a model writes it in strict mode: null for each absent property."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        for branch in schema["anyOf"]:
            said = filled(value, branch, root)
            if jsonschema_rs.is_valid({**branch, "$defs": root.get("$defs", {})}, said):
                return said
        return value
    if isinstance(value, list):
        return [filled(item, schema.get("items", {}), root) for item in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    return {name: filled(value[name], part, root) if name in value else None for name, part in known.items()}


@pytest.mark.parametrize("rules", JSON_SCHEMA)
@given(data=st.data())
@SLOW
def test_what_fits_the_adapted_schema_fits_the_tool(rules: SchemaRules, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    adapted = adapt_schema(schema, rules)
    assume(not adapted.notes)
    given_by_model = data.draw(values(adapted.schema, adapted.schema))
    assert jsonschema_rs.is_valid(adapted.schema, given_by_model)
    assert jsonschema_rs.is_valid(schema, adapted.restore(given_by_model))


@pytest.mark.parametrize("rules", JSON_SCHEMA)
@given(data=st.data())
@SLOW
def test_the_adapted_schema_can_express_everything_that_the_tool_accepts(
    rules: SchemaRules, data: st.DataObject
) -> None:
    schema = data.draw(schemas())
    wanted = data.draw(values(schema, schema))
    adapted = adapt_schema(schema, rules)
    new = {theirs: mine for mine, theirs in adapted.renamed.items()}
    said = {new.get(name, name): value for name, value in wanted.items()}
    if adapted.before is not None:
        said = filled(said, adapted.schema, adapted.schema)
    assert jsonschema_rs.is_valid(adapted.schema, said)
    if adapted.before is None:
        assert adapted.restore(said) == wanted
    else:
        assert jsonschema_rs.is_valid(schema, adapted.restore(said))


@pytest.mark.parametrize("rules", [OPENAI_STRICT, ANTHROPIC_STRICT])
@given(schema=schemas())
@SLOW
def test_a_strict_schema_has_no_open_object_and_no_keyword_that_is_not_taken(
    rules: SchemaRules, schema: dict[str, Any]
) -> None:
    adapted = adapt_schema(schema, rules)
    assume(adapted.strict)
    assert [node for node in _nodes(adapted.schema) if not _is_strict(node, rules)] == []


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    parts = [*node.get("properties", {}).values(), *node.get("anyOf", []), *node.get("$defs", {}).values()]
    for part in [*parts, node["items"]] if "items" in node else parts:
        yield from _nodes(part)


def _is_strict(node: dict[str, Any], rules: SchemaRules) -> bool:
    if not node.keys() <= (rules.keywords or frozenset()):
        return False
    if "object" not in str(node.get("type")):
        return True
    complete = not rules.all_required or node["required"] == list(node["properties"])
    return node["additionalProperties"] is False and complete


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["string", "object", "#", "#/$defs/a", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "$ref",
                    "$defs",
                    "required",
                    "enum",
                    "const",
                    "a",
                    "additionalProperties",
                    "not",
                    "prefixItems",
                    "nullable",
                    "minimum",
                    "exclusiveMinimum",
                    "default",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("rules", JSON_SCHEMA)
@given(
    schema=st.dictionaries(st.sampled_from(["type", "properties", "anyOf", "allOf", "$ref", "$defs", "items"]), JUNK)
)
@SLOW
def test_whatever_comes_as_a_schema_becomes_an_object(rules: SchemaRules, schema: dict[str, Any]) -> None:
    adapted = adapt_schema(schema, rules)
    assert adapted.schema["type"] == "object"
    assert not adapted.schema.keys() & {"anyOf", "oneOf", "allOf"}
