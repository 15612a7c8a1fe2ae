"""Schemas as each provider accepts them: every rule, with its input and output."""

import json
from typing import Any

import pytest

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

EVERY = [OPENAI, OPENAI_STRICT, ANTHROPIC, ANTHROPIC_STRICT, GEMINI, GEMINI_OPENAPI]
STRICT = [OPENAI_STRICT, ANTHROPIC_STRICT]


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def part(found: AdaptedSchema, name: str = "a") -> Any:
    return found.schema["properties"][name]


# -- references ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", EVERY)
def test_a_reference_is_written_out(rules: SchemaRules) -> None:
    found = adapt_schema(of({"a": {"$ref": "#/$defs/day"}}, **{"$defs": {"day": {"type": "string"}}}), rules)
    assert "$" not in json.dumps(found.schema)
    assert "string" in str(part(found)["type"]).lower()


def test_keywords_beside_a_reference_override_the_definition() -> None:
    schema = of({"a": {"$ref": "#/$defs/day", "description": "Mine."}}, **{"$defs": {"day": {"description": "Its."}}})
    assert part(adapt_schema(schema, OPENAI)) == {"description": "Mine."}


NODE = of({"value": {"type": "string"}, "next": {"$ref": "#/$defs/node"}}, required=["value"])
CHAIN = of({"a": {"$ref": "#/$defs/node"}}, required=["a"], **{"$defs": {"node": NODE}})


@pytest.mark.parametrize("rules", [OPENAI, ANTHROPIC])
def test_a_recursive_definition_is_kept_if_the_provider_accepts_it(rules: SchemaRules) -> None:
    found = adapt_schema(CHAIN, rules)
    assert part(found) == {"$ref": "#/$defs/node"}
    assert found.schema["$defs"] == {"node": NODE}
    assert found.notes == ()


def test_in_strict_mode_a_definition_that_refers_to_itself_is_closed_like_any_other() -> None:
    found = adapt_schema(CHAIN, OPENAI_STRICT)
    node = found.schema["$defs"]["node"]
    assert (found.strict, node["additionalProperties"], node["required"]) == (True, False, ["value", "next"])
    assert node["properties"]["next"] == {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    assert found.restore({"a": {"value": "x", "next": {"value": "y", "next": None}}}) == {
        "a": {"value": "x", "next": {"value": "y"}}
    }


@pytest.mark.parametrize("rules", [GEMINI, GEMINI_OPENAPI])
def test_without_recursion_the_inner_part_is_left_open_and_described(rules: SchemaRules) -> None:
    found = adapt_schema(CHAIN, rules)
    inner = part(found)["properties"]["next"]
    assert inner["type"].lower() == "object"
    assert "same again" in inner["description"]
    assert any("refers to itself" in note for note in found.notes)


def test_a_schema_that_refers_to_itself_cannot_be_strict_for_anthropic() -> None:
    found = adapt_schema(CHAIN, ANTHROPIC_STRICT)
    assert not found.strict
    assert found.schema == adapt_schema(CHAIN, ANTHROPIC).schema


def test_a_schema_may_refer_to_its_whole_self() -> None:
    found = adapt_schema(of({"a": {"type": "array", "items": {"$ref": "#"}}}), OPENAI)
    assert part(found)["items"] == {"$ref": "#/$defs/root"}
    assert found.schema["$defs"]["root"]["properties"] == found.schema["properties"]


@pytest.mark.parametrize("reference", ["#/$defs/none", "https://example.com/day.json", 7])
def test_a_reference_that_leads_nowhere_is_left_open_and_says_so(reference: Any) -> None:
    found = adapt_schema(of({"a": {"$ref": reference}}), OPENAI)
    assert (part(found), len(found.notes)) == ({}, 1)


@pytest.mark.parametrize("rules", EVERY)
def test_definitions_that_would_grow_without_end_are_cut(rules: SchemaRules) -> None:
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, 40):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = of({"a": below, "b": below})
    found = adapt_schema(of({"a": {"$ref": "#/$defs/d39"}}, **{"$defs": defs}), rules)
    assert len(json.dumps(found.schema)) < 3_000_000
    assert any("too large" in note for note in found.notes)


# -- the top -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", EVERY)
def test_no_alternatives_stand_at_the_top(rules: SchemaRules) -> None:
    schema = of(
        {"route": {"type": "string"}, "file": {"type": "string"}},
        anyOf=[{"required": ["route"]}, {"required": ["file"]}],
    )
    found = adapt_schema(schema, rules)
    assert not found.schema.keys() & {"anyOf", "oneOf", "allOf"}
    assert list(found.schema["properties"]) == ["route", "file"]
    assert found.hint == "Needs one of: route; file."


def test_alternative_objects_become_one_with_the_common_required_properties() -> None:
    email = of({"kind": {"const": "email"}, "to": {"type": "string"}}, required=["kind", "to"])
    phone = of({"kind": {"const": "phone"}, "number": {"type": "string"}}, required=["kind", "number"])
    found = adapt_schema({"oneOf": [email, phone], "description": "Sends."}, ANTHROPIC)
    assert found.schema == {
        "type": "object",
        "properties": {
            "kind": {"enum": ["email", "phone"], "type": "string"},
            "to": {"type": "string"},
            "number": {"type": "string"},
        },
        "required": ["kind"],
        "description": "Sends.",
    }
    assert found.hint == "Needs one of: kind='email' and to; kind='phone' and number."


def test_a_property_that_alternatives_tell_differently_may_be_either() -> None:
    found = adapt_schema({"anyOf": [of({"a": {"type": "string"}}), of({"a": {"type": "integer"}})]}, OPENAI)
    assert part(found) == {"anyOf": [{"type": "string"}, {"type": "integer"}]}


def test_schemas_that_all_hold_at_the_top_become_one() -> None:
    schema = {
        "allOf": [of({"a": {"type": "string"}}, required=["a"]), of({"b": {"type": "integer"}}, required=["b"])],
    }
    found = adapt_schema(schema, ANTHROPIC)
    assert found.schema == of({"a": {"type": "string"}, "b": {"type": "integer"}}, required=["a", "b"])
    assert found.notes == ()


@pytest.mark.parametrize("key", ["not", "enum", "const"])
@pytest.mark.parametrize("rules", EVERY)
def test_rules_that_are_refused_at_the_top_are_left_out(rules: SchemaRules, key: str) -> None:
    rule = [{"a": "x"}] if key == "enum" else {"required": ["b"]}
    found = adapt_schema(of({"a": {"type": "string"}}, **{key: rule}), rules)
    assert key not in found.schema
    assert found.notes


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": ["object", "null"]}, {"properties": 3}])
@pytest.mark.parametrize("rules", [OPENAI, ANTHROPIC, GEMINI])
def test_a_tool_without_arguments_has_an_object_without_properties(schema: dict[str, Any], rules: SchemaRules) -> None:
    assert adapt_schema(schema, rules).schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize("rules", STRICT)
def test_a_tool_without_arguments_can_be_strict(rules: SchemaRules) -> None:
    found = adapt_schema({"type": "object"}, rules)
    assert found.strict
    assert found.schema["additionalProperties"] is False


# -- strict --------------------------------------------------------------------------------------------------------


def test_strict_for_openai_closes_every_object_and_requires_every_property() -> None:
    schema = of({"a": {"type": "string"}, "b": of({"c": {"type": "integer"}})}, required=["a"])
    found = adapt_schema(schema, OPENAI_STRICT)
    assert found.strict
    assert found.schema == {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {
                "type": ["object", "null"],
                "properties": {"c": {"type": ["integer", "null"]}},
                "additionalProperties": False,
                "required": ["c"],
            },
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert found.restore({"a": "x", "b": {"c": None}}) == {"a": "x", "b": {}}
    assert found.restore({"a": "x", "b": None}) == {"a": "x"}


def test_strict_for_anthropic_closes_every_object_and_keeps_optional_properties() -> None:
    found = adapt_schema(of({"a": {"type": "string"}, "b": {"type": "integer"}}, required=["a"]), ANTHROPIC_STRICT)
    assert found.schema == of(
        {"a": {"type": "string"}, "b": {"type": "integer"}}, required=["a"], additionalProperties=False
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"enum": ["x", "y"]}, {"type": ["string", "null"], "enum": ["x", "y", None]}),
        ({"const": 1}, {"type": ["integer", "null"], "enum": [1, None]}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, None),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, None),
    ],
)
def test_optional_properties_may_be_null(before: Any, after: Any) -> None:
    found = adapt_schema(of({"a": before}), OPENAI_STRICT)
    assert found.strict
    if after is not None:
        assert part(found) == after
    else:
        assert {"type": "null"} in part(found)["anyOf"]
    assert found.restore({"a": None}) == {}


def test_null_and_absent_are_not_confused_where_they_differ() -> None:
    found = adapt_schema(of({"assignee": {"type": ["string", "null"]}}), OPENAI_STRICT)
    assert not found.strict
    assert found.reason == "for 'assignee', null and nothing may not mean the same"
    assert found.restore({"assignee": None}) == {"assignee": None}


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ({"type": "object"}, "'a' accepts properties of any name"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "'a' accepts properties of any name"),
        (of({"b": {"type": "string"}}, additionalProperties=True), "'a' accepts properties of any name"),
        ({"type": "object", "patternProperties": {"^x": {}}}, "'a' accepts properties of any name"),
        ({}, "'a' has no type"),
        (True, "'a' has no type"),
        ({"type": "array"}, "the items of 'a' have no single type"),
        ({"type": "array", "items": {}}, "the items of 'a' has no type"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "the items of 'a' have no single type"),
        (of({}, required=["z"], additionalProperties=False), "'a' requires 'z' but does not define it"),
    ],
)
@pytest.mark.parametrize("rules", STRICT)
def test_a_schema_that_cannot_be_strict_says_why(rules: SchemaRules, before: Any, reason: str) -> None:
    found = adapt_schema(of({"a": before}), rules)
    assert (found.strict, found.reason) == (False, reason)
    assert found.schema == adapt_schema(of({"a": before}), rules.otherwise or rules).schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (of({f"p{i}": {"type": "string"} for i in range(5_001)}), "5,001 properties"),
        (of({"a": {"enum": [f"v{i}" for i in range(1_001)]}}, required=["a"]), "1,001 enum values"),
        (of({"a" * 120_001: {"type": "string"}}), "characters of names"),
    ],
)
def test_a_schema_past_the_limits_of_openai_is_not_strict(schema: dict[str, Any], reason: str) -> None:
    assert reason in adapt_schema(schema, OPENAI_STRICT).reason


def test_objects_nested_deeper_than_ten_levels_are_not_strict() -> None:
    def deep(levels: int) -> dict[str, Any]:
        return of({"a": deep(levels - 1) if levels > 1 else {"type": "string"}}, required=["a"])

    assert adapt_schema(deep(10), OPENAI_STRICT).strict
    assert "11 levels" in adapt_schema(deep(11), OPENAI_STRICT).reason


def test_anthropic_takes_24_optional_arguments_and_16_of_several_types_in_strict_mode() -> None:
    optional = {f"p{i}": {"type": "string"} for i in range(25)}
    assert "25 optional" in adapt_schema(of(optional), ANTHROPIC_STRICT).reason
    unions = {f"p{i}": {"type": ["string", "integer"]} for i in range(17)}
    assert "17 arguments of several types" in adapt_schema(of(unions, required=list(unions)), ANTHROPIC_STRICT).reason


# -- single keywords -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "before", "after"),
    [
        (OPENAI, {"allOf": [{"type": "string"}, {"minLength": 1}]}, {"type": "string", "minLength": 1}),
        (OPENAI, {"type": "array"}, {"type": "array", "items": {}}),
        (OPENAI, {"type": "string", "format": "odd"}, {"type": "string", "format": "odd"}),
        (OPENAI, {"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        (OPENAI_STRICT, {"type": "string", "minLength": 2}, {"type": "string", "description": "(minLength: 2)"}),
        (
            OPENAI_STRICT,
            {"type": "string", "maxLength": 9, "description": "A name."},
            {"type": "string", "description": "A name. (maxLength: 9)"},
        ),
        (OPENAI_STRICT, {"type": "string", "default": "x"}, {"type": "string", "description": '(default: "x")'}),
        (OPENAI_STRICT, {"type": "string", "format": "uri"}, {"type": "string", "description": '(format: "uri")'}),
        (OPENAI_STRICT, {"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        (OPENAI_STRICT, {"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^a"}),
        (
            OPENAI_STRICT,
            {"type": "string", "pattern": "(?=a)"},
            {"type": "string", "description": '(pattern: "(?=a)")'},
        ),
        (OPENAI_STRICT, {"oneOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}]}),
        (OPENAI_STRICT, {"const": "x"}, {"type": "string", "const": "x"}),
        (ANTHROPIC, {"type": "array", "items": [{}], "additionalItems": False}, None),
        (ANTHROPIC, {"type": "integer", "minimum": 1, "exclusiveMinimum": True}, None),
        (ANTHROPIC_STRICT, {"type": "integer", "minimum": 1}, {"type": "integer", "description": "(minimum: 1)"}),
        (
            ANTHROPIC_STRICT,
            {"type": "array", "items": {"type": "string"}, "minItems": 2},
            {"type": "array", "items": {"type": "string"}, "description": "(minItems: 2)"},
        ),
        (
            ANTHROPIC_STRICT,
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
        ),
        (GEMINI, {"const": "x"}, {"type": "string", "enum": ["x"]}),
        (GEMINI, {"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        (GEMINI, {"type": "string", "pattern": "^a"}, {"type": "string", "description": '(pattern: "^a")'}),
        (GEMINI, {"type": "object", "propertyNames": {"pattern": "^a"}}, None),
        (GEMINI, {"type": "boolean", "enum": [True]}, {"type": "boolean", "description": "(enum: [true])"}),
        (
            GEMINI,
            {"type": ["string", "null"], "enum": ["x", None]},
            {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]},
        ),
        (GEMINI, {"type": "array", "prefixItems": [{}]}, {"type": "array", "prefixItems": [{}]}),
        (GEMINI_OPENAPI, {"type": "integer", "enum": [1, 2]}, {"type": "INTEGER", "enum": ["1", "2"]}),
        (GEMINI_OPENAPI, {"type": ["string", "null"]}, {"type": "STRING", "nullable": True}),
        (
            GEMINI_OPENAPI,
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            {"type": "STRING", "nullable": True},
        ),
        (
            GEMINI_OPENAPI,
            {"type": ["string", "integer"]},
            {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]},
        ),
        (
            GEMINI_OPENAPI,
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
            {"type": "ARRAY", "items": {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]}},
        ),
        (GEMINI_OPENAPI, of({}, additionalProperties=False), {"type": "OBJECT", "properties": {}}),
    ],
)
def test_a_keyword_becomes_one_that_the_provider_reads(rules: SchemaRules, before: Any, after: Any) -> None:
    found = part(adapt_schema(of({"a": before}, required=["a"]), rules))
    if after is None:
        assert not found.keys() & {"additionalItems", "propertyNames"}
        assert not isinstance(found.get("items"), list)
        assert not isinstance(found.get("exclusiveMinimum"), bool)
    else:
        assert found == after


@pytest.mark.parametrize("rules", EVERY)
def test_names_of_drafts_and_anchors_are_left_out(rules: SchemaRules) -> None:
    schema = of({"id": {"type": "string", "$comment": "x"}}, **{"$schema": "http://x", "$id": "http://y", "id": "z"})
    found = adapt_schema(schema, rules)
    assert found.schema.keys() <= {"type", "properties", "required", "additionalProperties"}
    assert list(found.schema["properties"]) == ["id"]


def test_rules_that_become_looser_are_noted_and_words_are_not() -> None:
    assert adapt_schema(of({"a": {"type": "string", "minLength": 1}}), GEMINI).notes
    assert adapt_schema(of({"a": {"type": "string", "title": "A", "examples": ["x"], "x-ui": 1}}), GEMINI).notes == ()


def test_arguments_with_names_that_are_refused_are_renamed_and_named_back() -> None:
    schema = of(
        {"$filter": {"type": "string"}, "filter": {"type": "string"}, "filter[name]": {}, "é" * 70: {}},
        required=["$filter"],
    )
    found = adapt_schema(schema, ANTHROPIC)
    assert list(found.schema["properties"]) == ["filter_2", "filter", "filter_name", "argument"]
    assert found.schema["required"] == ["filter_2"]
    assert found.restore({"filter_2": "a", "filter": "b", "argument": 1}) == {
        "$filter": "a",
        "filter": "b",
        "é" * 70: 1,
    }


@pytest.mark.parametrize("rules", EVERY)
@pytest.mark.parametrize(
    "schema", [{"properties": {"a": 3}}, {"anyOf": 3}, {"allOf": [3]}, {"required": 3}, {"type": 3}]
)
def test_an_invalid_schema_is_adapted_anyway(rules: SchemaRules, schema: dict[str, Any]) -> None:
    assert adapt_schema(schema, rules).schema["type"].lower() == "object"


def test_a_schema_is_never_changed_in_place() -> None:
    schema = {**CHAIN, "anyOf": [{"required": ["a"]}]}
    before = json.dumps(schema)
    for rules in EVERY:
        adapt_schema(schema, rules)
    assert json.dumps(schema) == before


def test_arguments_nested_without_end_come_back_as_they_are() -> None:
    value: dict[str, Any] = {"value": "x", "next": None}
    for _ in range(50_000):
        value = {"value": "x", "next": value}
    assert adapt_schema(CHAIN, OPENAI_STRICT).restore({"a": value})["a"]["value"] == "x"


def test_an_object_of_several_kinds_loses_the_nulls_of_its_own_kind_only() -> None:
    one = of({"kind": {"const": "one"}, "x": {"type": "string"}}, required=["kind"])
    two = of({"kind": {"const": "two"}, "x": {"type": ["string", "null"]}}, required=["kind", "x"])
    found = adapt_schema(of({"a": {"anyOf": [one, two]}}, required=["a"]), OPENAI_STRICT)
    assert found.restore({"a": {"kind": "one", "x": None}}) == {"a": {"kind": "one"}}
    assert found.restore({"a": {"kind": "two", "x": None}}) == {"a": {"kind": "two", "x": None}}


def test_placeholder_nulls_are_removed_inside_nested_unions() -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"at": {"anyOf": [{"anyOf": [point]}, {"type": "string"}]}}}
    assert adapt_schema(schema, OPENAI_STRICT).restore({"at": {"x": 1, "y": None}}) == {"at": {"x": 1}}


def test_a_schema_that_is_only_a_reference_to_itself_is_not_strict() -> None:
    adapted = adapt_schema({"$ref": "#"}, OPENAI_STRICT)
    assert (adapted.strict, adapted.schema["type"]) == (False, "object")


def test_unions_that_refer_to_each_other_end() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}},
    }
    adapted = adapt_schema(schema, OPENAI_STRICT)
    assert adapted.restore({"a": {"b": None}}) == {"a": {"b": None}}
