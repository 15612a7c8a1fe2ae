"""Schemas of any shape: examples that fit, messages that stay short, and no crash."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolcrib.errors import ToolcribError
from toolcrib.schema import Schema, example, parameters, signature
from toolcrib.schema.example import sample_text
from toolcrib.types import Tool

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text(max_size=5)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
NAMES = st.sampled_from(["a", "b", "url", "e mail", "é"])


def with_title(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "description": "words"}


@st.composite
def bounded(draw: st.DrawFn, low: str, high: str, most: int = 6) -> dict[str, Any]:
    least = draw(st.integers(0, most))
    chosen: dict[str, Any] = {low: least, high: draw(st.integers(least, most + 2))}
    return {key: value for key, value in chosen.items() if draw(st.booleans())}


NUMBERS = st.one_of(
    st.builds(lambda kind: {"type": kind}, st.sampled_from(["integer", "number"])),
    st.builds(
        lambda low, size, kind, step: {
            "type": kind,
            "minimum": low,
            "maximum": low + size * (step or 1),
            **({"multipleOf": step} if step else {}),
        },
        st.integers(-10, 10),
        st.integers(1, 5),
        st.sampled_from(["integer", "number"]),
        st.sampled_from([None, 2, 3]),
    ),
    st.builds(
        lambda low, size: {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + size},
        st.integers(-9, 9),
        st.floats(0.01, 3),
    ),
    st.builds(lambda low: {"type": "integer", "exclusiveMinimum": low}, st.integers(-9, 9)),
    st.builds(lambda high: {"type": "integer", "exclusiveMaximum": high}, st.integers(-9, 9)),
)
STRINGS = st.one_of(
    st.builds(lambda bounds: {"type": "string", **bounds}, bounded("minLength", "maxLength")),
    st.builds(
        lambda form: {"type": "string", "format": form}, st.sampled_from(["date", "date-time", "uuid", "email", "odd"])
    ),
    st.builds(
        lambda pattern: {"type": "string", "pattern": pattern},
        st.sampled_from(
            [
                r"^[a-z]{2,4}$",
                r"^\d{4}-\d{2}$",
                r"^(open|closed)$",
                r"^#[0-9a-fA-F]{6}$",
                r"^[^/]+/[^/]+$",
                r"^v?\d+(\.\d+)*$",
            ]
        ),
    ),
)
LEAVES = st.one_of(
    st.just({}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda value: {"const": value}, JSON),
    st.builds(lambda values: {"enum": values}, st.lists(JSON, min_size=1, max_size=4)),
    NUMBERS,
    STRINGS,
)

SOMETIMES: st.SearchStrategy[Any] = st.booleans()
EXTRAS: st.SearchStrategy[Any] = st.sampled_from([False, True, {"type": "string"}])


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    found = draw(st.dictionaries(NAMES, inner, max_size=4))
    needed = draw(st.lists(st.sampled_from(sorted(found)), unique=True)) if found else []
    schema: dict[str, Any] = {"type": "object", "properties": found, "required": needed}
    if draw(SOMETIMES):
        schema["additionalProperties"] = draw(EXTRAS)
    if found and draw(SOMETIMES):
        schema["minProperties"] = draw(st.integers(0, len(found)))
    return schema


def arrays(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda items, bounds: {"type": "array", "items": items, **bounds}, inner, bounded("minItems", "maxItems", 3)
    )


def grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        objects(inner),
        arrays(inner),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3)),
    )


SCHEMAS = objects(st.recursive(LEAVES, grown, max_leaves=8))
"""Schemas that some arguments fit."""

ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "required",
                    "enum",
                    "$ref",
                    "allOf",
                    "anyOf",
                    "pattern",
                    "a",
                    "$id",
                    "minimum",
                    "default",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
"""What a server may send as a schema."""

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(SCHEMAS)
def test_an_example_fits_its_schema(schema: dict[str, Any]) -> None:
    made = example(Tool(name="do", input_schema=schema))
    Schema(schema, "do").check(made)
    assert set(schema["required"]) <= set(made)


@relaxed
@given(SCHEMAS, JSON)
def test_an_error_is_short_and_on_one_line_whatever_the_arguments(schema: dict[str, Any], arguments: Any) -> None:
    error = refusal(lambda: Schema(schema, "do").check(arguments))
    assert len(error.message) <= 801
    assert error.message.isprintable()
    assert error.hint.startswith("Valid: do(") or not error.message


def refusal(run: Callable[[], object]) -> ToolcribError:
    """The error message, or an empty one if there is no error."""
    try:
        run()
    except ToolcribError as error:
        return error
    return ToolcribError("")


@relaxed
@given(ANYTHING)
def test_any_definition_is_either_refused_or_usable(definition: Any) -> None:
    root = definition if isinstance(definition, dict) else {"properties": definition}
    schema = {**root, "type": "object"}
    tool = Tool(name="do", input_schema=schema)
    assert len(signature(tool)) <= 400
    parameters(schema)
    json.dumps(example(tool))
    error = refusal(lambda: Schema(schema, "do").check({"a": [1, {"a": "b"}]}))
    assert len(error.message) <= 801


SHAPES: dict[str, dict[str, Any]] = {
    "nullable": {
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "null"}, {"type": "integer"}]}},
        "required": ["a"],
    },
    "definitions": {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "required": ["place"],
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {
                    "lat": {"type": "number", "minimum": -90, "maximum": 90},
                    "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": True},
                },
                "required": ["lat", "tags"],
            }
        },
    },
    "discriminated": {
        "type": "object",
        "properties": {
            "shape": {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
                        "required": ["kind", "r"],
                    },
                    {"type": "object", "properties": {"kind": {"const": "square"}}, "required": ["kind"]},
                ]
            }
        },
        "required": ["shape"],
    },
    "one of two": {
        "type": "object",
        "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        "oneOf": [{"required": ["id"]}, {"required": ["name"]}],
    },
    "condition": {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "x": {"type": "integer"}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"required": ["x"]},
    },
    "dependency": {
        "type": "object",
        "properties": {"user": {"type": "string"}, "password": {"type": "string"}},
        "required": ["user"],
        "dependentRequired": {"user": ["password"]},
    },
    "bad default": {"type": "object", "properties": {"n": {"type": "integer", "default": "none"}}, "required": ["n"]},
    "bad example": {
        "type": "object",
        "properties": {"n": {"type": "integer", "examples": ["five"], "example": "x"}},
        "required": ["n"],
    },
    "good example": {
        "type": "object",
        "properties": {"n": {"type": "string", "pattern": r"(?<=x)\bq", "examples": ["x q"]}},
    },
    "draft-07 pair": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"range": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "minItems": 2}},
        "required": ["range"],
    },
    "pair": {
        "type": "object",
        "properties": {
            "range": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"const": "x"}],
                "items": False,
                "minItems": 2,
            }
        },
        "required": ["range"],
    },
    "contains": {
        "type": "object",
        "properties": {"a": {"type": "array", "contains": {"const": 7}, "minContains": 2}},
        "required": ["a"],
    },
    "free keys": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    "all of": {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string", "minLength": 30}}, "required": ["b"]},
        ],
    },
    "recursive": {
        "type": "object",
        "properties": {"filter": {"$ref": "#/$defs/F"}},
        "required": ["filter"],
        "$defs": {
            "F": {
                "type": "object",
                "properties": {"and": {"type": "array", "items": {"$ref": "#/$defs/F"}}, "field": {"type": "string"}},
                "required": ["field"],
            }
        },
    },
    "types": {
        "type": "object",
        "properties": {
            "a": {"type": ["null", "array"], "items": {"type": "boolean"}, "minItems": 2, "uniqueItems": True}
        },
        "required": ["a"],
    },
    "untyped": {
        "type": "object",
        "properties": {"o": {"required": ["x"]}, "l": {"minItems": 1}, "n": {"minimum": 7}},
        "required": ["o", "l", "n"],
    },
    "second branch": {
        "type": "object",
        "anyOf": [
            {"properties": {"a": False}, "required": ["a"]},
            {"properties": {"b": {"const": 3}}, "required": ["b"]},
        ],
    },
    "fine steps": {
        "type": "object",
        "properties": {
            "p": {"type": "number", "minimum": 0.1, "maximum": 0.2},
            "q": {"multipleOf": 0.01, "exclusiveMinimum": 0, "type": "number", "maximum": 0.5},
        },
        "required": ["p", "q"],
    },
    "draft-04 bound": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "exclusiveMinimum": True}},
        "required": ["n"],
    },
    "two bounds": {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 3, "exclusiveMinimum": 5, "maximum": 9, "exclusiveMaximum": 7}
        },
        "required": ["n"],
    },
    "many": {
        "type": "object",
        "properties": {
            str(n): {"type": "array", "items": {"type": "object", "properties": {"x": {}}, "required": ["x"]}}
            for n in range(90)
        },
        "required": [str(n) for n in range(90)],
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_example_fits_the_shapes_that_servers_use(shape: str) -> None:
    Schema(SHAPES[shape], "do").check(example(Tool(name="do", input_schema=SHAPES[shape])))


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "object", "properties": {"n": False}, "required": ["n"]}, {"n": "n"}),
        (
            {"type": "object", "properties": {"n": {"type": "string", "pattern": "^(?!)$"}}, "required": ["n"]},
            {"n": ""},
        ),
        ({"type": "object", "properties": {"n": {"enum": []}}, "required": ["n"]}, {"n": "n"}),
        (
            {"type": "object", "if": {}, "then": {"required": ["n"], "properties": {"m": {}}, "minProperties": 9}},
            {"n": "n"},
        ),
        ({"type": "object", "properties": {"n": {"type": "odd"}}, "required": ["n"]}, {}),
        ({"type": "object", "properties": {"n": {"minimum": 10**400}}, "required": ["n"]}, {"n": 1}),
        (
            {"type": "object", "properties": {"n": {"minimum": 1e308, "type": "number"}}, "required": ["n"]},
            {"n": 1e308},
        ),
    ],
)
def test_an_example_that_cannot_be_valid_still_has_the_required_properties(
    schema: dict[str, Any], made: dict[str, Any]
) -> None:
    assert set(example(Tool(name="do", input_schema=schema))) == set(made)


def test_an_example_of_a_broken_schema_is_empty() -> None:
    assert example(Tool(name="do", input_schema={"type": "nonsense"})) == {}


def test_an_example_is_the_callers_to_change() -> None:
    tool = Tool(name="do", input_schema={"type": "object", "properties": {"a": {"default": [1]}}, "required": ["a"]})
    example(tool)["a"].append(2)
    assert example(tool) == {"a": [1]}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", ""),
        ("abc", "abc"),
        (r"^\w+@\w+\.com$", "a@a.com"),
        (r"a{2}b{1,3}c?d*e+", "aabe"),
        (r"(?:x|y)(?P<n>z)(?<m>w)", "xzw"),
        (r"(?=a)(?!b)ab", "ab"),
        (r"[^a-z]", "1"),
        (r"[]x]", "x"),
        (r"[\d\]]", "1"),
        (r"\.\/\n\bA", "./\nA"),
        (r"a+?b{2}+", "abb"),
        (".", "a"),
    ],
)
def test_a_text_is_made_for_a_pattern(pattern: str, text: str) -> None:
    assert sample_text(pattern) == text


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "[a", "a{500}", "(?i)a", "*a", "\\", "\\p{L}", "[z-a]", "(" * 50, "(a", "x" * 500, "[^\\s\\S]"],
)
def test_a_pattern_that_is_not_understood_gives_nothing(pattern: str) -> None:
    assert sample_text(pattern) is None


@given(st.text(st.sampled_from(r"ab[]()|*+?{}^$\d,1-."), max_size=15))
def test_any_pattern_gives_a_text_or_nothing(pattern: str) -> None:
    made = sample_text(pattern, 2)
    assert made is None or len(made) <= 1_000
