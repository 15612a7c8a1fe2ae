"""The compact form of input schemas: what it leaves out, what it keeps, and that it allows the same calls."""

import json
from typing import Any

import pytest

from toolcrib.schema import Schema
from toolcrib.schema.compact import BRIEF_CHARS, MAX_ENUM, compact, cut_sentences, required_part


def obj(properties: dict[str, Any], *needed: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(needed)} if needed else {}), **more}


def field(node: dict[str, Any], *, brief: bool = False, **more: Any) -> Any:
    """The compact form of one property."""
    return compact(obj({"field_name": node}, **more), brief=brief)["properties"]["field_name"]


# -- noise ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"title": "Arguments"},
        {"additionalProperties": False},
        {"additionalProperties": True},
        {"additionalProperties": {}},
        {"$comment": "generated"},
        {"required": []},
        {"$defs": {"unused": {"type": "string"}}},
    ],
)
def test_what_a_model_does_not_need_is_left_out(noise: dict[str, Any]) -> None:
    plain = obj({"a": {"type": "string"}})
    assert compact({**plain, **noise}) == plain


def test_a_title_stays_if_it_is_the_only_description() -> None:
    assert field({"type": "string", "title": "Field Name"}) == {"type": "string"}
    assert field({"type": "string", "title": "The other", "description": "What"}) == {
        "type": "string",
        "description": "What",
    }
    assert field({"type": "string", "title": "ISO country"}) == {"type": "string", "title": "ISO country"}


def test_a_property_may_be_called_like_a_keyword() -> None:
    keywords = obj({"title": {"type": "string"}, "$schema": {"type": "string"}, "default": {"type": "null"}}, "title")
    assert compact(keywords) == keywords


def test_a_null_default_goes_and_others_stay() -> None:
    assert field({"type": "integer", "default": None}) == {"type": "integer"}
    assert field({"type": "integer", "default": 0}) == {"type": "integer", "default": 0}


def test_a_union_with_null_becomes_a_list_of_types() -> None:
    null = {"type": "null"}
    assert field({"anyOf": [{"type": "integer", "minimum": 1}, null], "description": "D"}) == {
        "type": ["integer", "null"],
        "minimum": 1,
        "description": "D",
    }
    assert field({"anyOf": [{"type": "string", "enum": ["a"]}, null]}) == {
        "type": ["string", "null"],
        "enum": ["a", None],
    }
    kept = {"anyOf": [{"type": "string", "not": {"const": "x"}}, null]}
    assert field(kept) == kept


def test_a_pattern_beside_a_standard_format_is_left_out() -> None:
    assert field({"type": "string", "format": "date", "pattern": r"^\d+"}) == {"type": "string", "format": "date"}
    odd = {"type": "string", "format": "ticket", "pattern": r"^T\d+$"}
    assert field(odd) == odd


def test_bounds_of_a_safe_integer_are_left_out() -> None:
    most = 2**53 - 1
    assert field({"type": "integer", "minimum": -most, "maximum": most}) == {"type": "integer"}
    assert field({"type": "integer", "minimum": 0, "maximum": most}) == {"type": "integer", "minimum": 0}


def test_rules_that_tell_alternatives_apart_stay() -> None:
    closed = obj({"a": {"type": "string"}}, additionalProperties=False)
    union = {"oneOf": [closed, obj({"b": {"type": "string"}}, additionalProperties=False)]}
    assert field(union) == union
    assert field(closed) == obj({"a": {"type": "string"}})


def test_an_object_without_properties_stays_closed() -> None:
    assert field({"type": "object", "additionalProperties": False}) == {"type": "object", "additionalProperties": False}


def test_unevaluated_keywords_keep_what_they_depend_on() -> None:
    schema = obj({"a": {"type": "object", "additionalProperties": True}}, unevaluatedProperties=False)
    assert compact(schema) == schema


# -- references ----------------------------------------------------------------------


def test_a_definition_used_once_is_inlined() -> None:
    place = obj({"city": {"type": "string", "title": "City"}}, "city", title="Place", additionalProperties=False)
    assert compact(
        obj({"to": {"$ref": "#/$defs/Place", "description": "Where"}}, **{"$defs": {"Place": place}})
    ) == obj({"to": {**obj({"city": {"type": "string"}}, "city"), "title": "Place", "description": "Where"}})


@pytest.mark.parametrize("home", ["$defs", "definitions"])
def test_a_definition_used_twice_stays_one_unless_it_is_small(home: str) -> None:
    large = obj({name: {"type": "string", "description": "Words"} for name in "abc"})
    small = {"type": "string"}
    twice = {name: {"$ref": f"#/{home}/{kind}"} for name, kind in (("a", "L"), ("b", "L"), ("c", "S"), ("d", "S"))}
    made = compact(obj(twice, **{home: {"L": large, "S": small}}))
    assert made[home] == {"L": large}
    assert made["properties"] == {**twice, "c": small, "d": small}


def test_recursive_definitions_stay() -> None:
    node = obj({"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}})
    schema = obj({"root": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}})
    assert compact(schema) == schema
    itself = obj({"inner": {"$ref": "#"}, "name": {"type": "string"}})
    assert compact(itself) == itself


def test_a_reference_into_a_property_still_finds_it() -> None:
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema = obj({"a": nullable, "b": {"$ref": "#/properties/a/anyOf/0"}})
    assert compact({**schema, "additionalProperties": False}) == schema


def test_a_schema_that_means_something_else_in_another_draft_keeps_its_draft() -> None:
    old = {"$schema": "http://json-schema.org/draft-07/schema#"}
    tuples = {**old, **obj({"pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}})}
    assert compact(tuples) == tuples


def test_a_reference_beside_other_rules_stays() -> None:
    schema = obj({"a": {"$ref": "#/$defs/A", "minLength": 2}}, **{"$defs": {"A": {"type": "string"}}})
    assert compact(schema) == schema


def test_a_broken_schema_does_not_stop_the_reply() -> None:
    broken: list[dict[str, Any]] = [
        {"properties": 3},
        {"$ref": 5},
        {"$ref": {}},
        {"$defs": [], "definitions": None},
        {"anyOf": {}},
        {"enum": 4},
    ]
    for schema in ({"type": "object", **one} for one in broken):
        assert json.dumps(compact(schema, brief=True))
        assert json.dumps(required_part(schema))


def test_a_deep_schema_is_left_as_it_is_below_a_depth() -> None:
    node: dict[str, Any] = {"type": "string", "title": "Leaf"}
    for _ in range(300):
        node = {"type": "array", "items": node}
    assert "Leaf" in json.dumps(field(node))


# -- brief ----------------------------------------------------------------------


def test_brief_cuts_long_descriptions_at_the_end_of_a_sentence() -> None:
    long = "The id of the channel. " * 20
    described = field({"type": "string", "description": long}, brief=True)["description"]
    assert described.endswith("channel.")
    assert len(described) <= BRIEF_CHARS
    assert field({"type": "string", "description": long})["description"] == long


def test_brief_folds_long_enums_and_says_how_many_values_there_are() -> None:
    codes = [f"code{number}" for number in range(MAX_ENUM + 1)]
    assert field({"enum": codes[:-1]}, brief=True) == {"enum": codes[:-1]}
    assert field({"enum": codes, "description": "A code."}, brief=True) == {
        "type": "string",
        "description": "A code. One of 25 values: code0, code1, code2, code3, code4, code5, code6, code7, ...",
    }
    assert field({"enum": codes}) == {"enum": codes}


@pytest.mark.parametrize(
    ("text", "limit", "wanted"),
    [
        ("One. Two. Three.", 100, "One. Two. Three."),
        ("One is here. Two is here. Three is here.", 30, "One is here. Two is here."),
        ("Version 1.2.3 of e.g. this thing is long", 30, "Version 1.2.3 of e.g. this ..."),
        ("A. " + "b" * 60, 30, "A. ..."),
        ("x" * 60, 30, "x" * 26 + " ..."),
        ("First part\n\nSecond part that is long", 20, "First part"),
    ],
)
def test_text_is_cut_between_sentences_or_else_words(text: str, limit: int, wanted: str) -> None:
    assert cut_sentences(text, limit) == wanted


# -- the required part ----------------------------------------------------------------------


def test_the_required_part_has_what_a_call_must_have_and_names_the_rest() -> None:
    a, b = {"type": "string"}, {"$ref": "#/$defs/B"}
    whole = obj({"a": a, "b": b, "c": b}, "a", **{"$defs": {"B": {"type": "object", "properties": {"x": a}}}})
    assert required_part(whole) == (obj({"a": a}, "a"), ("b", "c"))
    assert required_part(obj({"a": a}, "a")) == (obj({"a": a}, "a"), ())


def test_what_an_alternative_requires_is_part_of_it() -> None:
    text = {"type": "string"}
    either = obj({"id": text, "name": text, "page": text}, anyOf=[{"required": ["id"]}, {"required": ["name"]}])
    part, left_out = required_part(either)
    assert left_out == ("page",)
    Schema(part, "t").check({"name": "x"})


def test_a_schema_that_requires_nothing_shows_its_first_properties() -> None:
    nodes = {name: {"type": "string"} for name in "abcde"}
    part, left_out = required_part(obj(nodes))
    assert (list(part["properties"]), left_out) == (["a", "b", "c"], ("d", "e"))
