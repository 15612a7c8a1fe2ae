"""Input schemas that others wrote: used as they are if they are valid, repaired where that is clear, never a reason to
lose a tool that arguments can fit.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.growth import measured

from toolcrib.errors import InvalidArguments, InvalidTool
from toolcrib.schema.repair import ReadSchema, read_schema
from toolcrib.schema.validate import compile_schema

DRAFT_04 = "http://json-schema.org/draft-04/schema#"


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def read(schema: Any) -> ReadSchema:
    return read_schema(schema, "do")


REPAIRED: Mapping[str, tuple[Any, Any]] = {
    "nothing": (None, {"type": "object"}),
    "true": (True, {"type": "object"}),
    "an empty list of PHP": ([], {"type": "object"}),
    "no type": ({"properties": {"a": {}}}, of(a={})),
    "another spelling of the type": ({"type": "Object"}, {"type": "object"}),
    "a type among others": ({"type": ["object", "null"]}, {"type": "object"}),
    "properties that are a list": ({"type": "object", "properties": []}, {"type": "object"}),
    "properties that are null": ({"type": "object", "properties": None}, {"type": "object"}),
    "required that is null": ({**of(a={}), "required": None}, of(a={})),
    "required that is false": (of(a={"type": "string", "required": False}), of(a={"type": "string"})),
    "required on a property": (
        of(a={"type": "string", "required": True}),
        {**of(a={"type": "string"}), "required": ["a"]},
    ),
    "required names twice": ({**of(a={}), "required": ["a", "a", 3]}, {**of(a={}), "required": ["a"]}),
    "types of Python": (of(a={"type": "str"}, b={"type": "dict"}), of(a={"type": "string"}, b={"type": "object"})),
    "types that mean nothing": (of(a={"type": "date"}, b={"type": ""}, c={"type": []}), of(a={}, b={}, c={})),
    "one of several types that means nothing": (of(a={"type": ["string", "date"]}), of(a={})),
    "an empty enum": (of(a={"type": 3, "enum": []}), of(a={})),
    "a type in place of a schema": (of(a="string", b=None), of(a={"type": "string"}, b={"type": "null"})),
    "a pattern that nobody can read": (of(a={"pattern": "("}), of(a={})),
    "names by a pattern that nobody can read": (
        {"type": "object", "patternProperties": {"(": {}, "^a": {}}},
        {"type": "object", "patternProperties": {"^a": {}}},
    ),
    "a reference to nothing": (of(a={"$ref": "#/$defs/Nope", "title": "A"}), of(a={"title": "A"})),
    "texts that are null": (of(a={"description": None, "title": None, "default": None}), of(a={"default": None})),
    "bounds that are texts": (of(a={"minimum": "1", "maxLength": -1, "multipleOf": 0}), of(a={})),
    "exclusive bounds of draft-04": (of(a={"minimum": 1, "exclusiveMinimum": True}), of(a={"exclusiveMinimum": 1})),
    "an unknown dialect": ({"$schema": "https://example.com/mine", **of(a={})}, of(a={})),
    "draft-04 with required on a property": (
        {"$schema": DRAFT_04, **of(a={"minimum": 0, "exclusiveMinimum": True, "required": True})},
        {"$schema": DRAFT_04, **of(a={"minimum": 0, "exclusiveMinimum": True}), "required": ["a"]},
    ),
    "an empty union": (of(a={"anyOf": []}), of(a={})),
}


@pytest.mark.parametrize("case", REPAIRED)
def test_what_has_one_meaning_is_repaired(case: str) -> None:
    given_schema, expected = REPAIRED[case]
    before = copy.deepcopy(given_schema)
    found = read(given_schema)
    assert found.schema == expected
    assert found.remark.startswith("its input schema was repaired: ")
    assert given_schema == before
    compile_schema(found.schema, "do")


VALID: Mapping[str, Any] = {
    "no parameters": {"type": "object"},
    "a pattern for JavaScript": of(a={"pattern": r"^(?<year>\d{4})(?!-00)-\p{L}\/$"}),
    "tuples of draft-07": of(a={"items": [{"type": "integer"}], "additionalItems": False}),
    "draft-04": {"$schema": DRAFT_04, **of(a={"minimum": 0, "exclusiveMinimum": True})},
    "nullable of OpenAPI": of(a={"type": "string", "nullable": True}),
    "a recursive tree": {**of(a={"$ref": "#/$defs/N"}), "$defs": {"N": {"items": {"$ref": "#/$defs/N"}}}},
    "a loop of references": {**of(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"$ref": "#/$defs/A"}}},
    "references by id": {**of(a={"$ref": "urn:thing"}), "$defs": {"T": {"$id": "urn:thing", "type": "integer"}}},
}


@pytest.mark.parametrize("case", VALID)
def test_a_valid_schema_stays_the_same_object(case: str) -> None:
    found = read(VALID[case])
    assert found.schema is VALID[case]
    assert found.remark == ""


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": ["string", "null"]}, "string", 3, False, [1], {"type": "array"}]
)
def test_a_root_that_no_arguments_can_fit_is_rejected(schema: Any) -> None:
    with pytest.raises(InvalidTool, match=r"^do: .* must be an object\.$"):
        read(schema)


def test_arguments_are_checked_by_the_repaired_schema() -> None:
    found = read({"properties": {"n": {"type": "int", "required": True}}})
    found.check.check({"n": 1})
    for wrong in ({}, {"n": "x"}):
        with pytest.raises(InvalidArguments):
            found.check.check(wrong)


def test_only_what_another_document_says_is_left_to_the_server() -> None:
    schema = {**of(a={"$ref": "https://example.invalid/s.json#/x"}, n={"type": "integer"}), "required": ["n"]}
    found = read(schema)
    assert found.schema is schema
    assert "left to its server" in found.remark
    assert "https://example.invalid/s.json" in found.remark
    found.check.check({"a": object, "n": 1} | {"a": [1]})
    with pytest.raises(InvalidArguments):
        found.check.check({"n": "x"})


def test_a_number_too_large_for_a_float_costs_no_tool() -> None:
    huge = 10**400
    assert read(of(a={"type": "int", "minLength": huge, "minimum": huge, "multipleOf": -huge})).schema == of(
        a={"type": "integer", "minLength": huge, "minimum": huge}
    )


@pytest.mark.parametrize("keyword", ["properties", "$defs", "dependencies", "patternProperties", "not"])
def test_a_name_that_is_no_string_is_rejected_with_a_reason(keyword: str) -> None:
    with pytest.raises(InvalidTool, match="names in its input schema must be strings"):
        read({"type": "object", keyword: {1: {"type": "int"}}})


def test_what_is_noted_of_a_deep_and_wide_schema_is_not_much_longer_than_the_schema() -> None:
    schema = of(**{f"p{i}": {"type": "date"} for i in range(100)})
    for _ in range(50):
        schema = of(**{"q" * 60: schema})
    assert max(map(len, read(schema).repairs)) < 250
    assert len(read(schema).repairs) == 100


def test_many_repairs_are_counted() -> None:
    assert read(of(**{f"p{i}": {"type": "str"} for i in range(9)})).remark.endswith("and 4 more")


KEYWORDS = (
    *("type", "properties", "required", "items", "enum", "anyOf", "$ref", "$defs", "pattern", "minimum", "$id", "a"),
    *("exclusiveMinimum", "minLength", "not", "dependencies", "$schema", "description", "patternProperties"),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "string", "str", "object", "#", "#/x", "(", 10**400, -(10**400), float("inf"), 1e308]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_anything_is_used_or_rejected_with_a_reason(schema: Any) -> None:
    before = copy.deepcopy(schema)
    try:
        found = read(schema)
    except InvalidTool:
        return
    finally:
        assert schema == before
    assert found.schema["type"] == "object"
    assert (found.schema is schema) == (not found.repairs)
    again = read(found.schema)
    assert again.schema == found.schema
    assert again.repairs == ()


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "str"}
    for _ in range(depth):
        schema = of(a=schema)
    return schema


def test_a_schema_nested_ten_thousand_levels_deep_is_rejected_with_a_reason() -> None:
    with pytest.raises(InvalidTool, match="nested too deep"):
        read(nested(10_000))


GROWING: Mapping[str, Callable[[int], Any]] = {
    "properties": lambda n: of(**{f"p{i}": {"type": "str"} for i in range(n)}),
    "values of an enum": lambda n: of(a={"type": "str", "enum": [f"v{i}" for i in range(n)]}),
    "alternatives": lambda n: of(a={"type": "str", "anyOf": [{"const": i} for i in range(n)]}),
    "patterns": lambda n: of(**{f"p{i}": {"pattern": "^("} for i in range(n)}),
    "a long pattern": lambda n: of(a={"pattern": "(a|b)*" * n, "type": "str"}),
    "dangling references": lambda n: of(**{f"p{i}": {"$ref": f"#q{i}"} for i in range(n)}),
    "references by anchor": lambda n: {
        **of(**{f"p{i}": {"$ref": f"#a{i}", "type": "str"} for i in range(n)}),
        "$defs": {f"d{i}": {"$anchor": f"a{i}"} for i in range(n)},
    },
    "references by id": lambda n: {
        **of(**{f"p{i}": {"$ref": f"urn:{i}", "type": "str"} for i in range(n)}),
        "$defs": {f"d{i}": {"$id": f"urn:{i}"} for i in range(n)},
    },
}


@pytest.mark.parametrize("kind", GROWING)
def test_the_time_grows_with_the_size(kind: str) -> None:
    def cost_of(size: int) -> float:
        times = []
        for _ in range(3):
            schema = GROWING[kind](size)
            with measured() as cost:
                read(schema)
            times.append(cost.seconds)
        return min(times)

    assert cost_of(4_000) <= 3 * cost_of(2_000) + 0.01
