"""Argument checking through `Schema`: valid arguments pass, invalid ones get help, and broken schemas are refused."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import MappingProxyType
from typing import Any

import pytest
from tests.deadlines import cpu_deadline
from tests.growth import growth

from toolcrib.errors import InvalidArguments, InvalidTool
from toolcrib.schema import ParameterInfo, Schema, example, parameters, signature
from toolcrib.types import Tool

ISSUE = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "body": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}},
        "state": {"enum": ["open", "closed"]},
    },
    "required": ["title"],
}
DRAFT_07 = "http://json-schema.org/draft-07/schema#"


def of(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def refused(schema: dict[str, Any], arguments: Any, who: str = "do") -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        Schema(schema, who).check(arguments)
    return caught.value


def message(schema: dict[str, Any], arguments: Any) -> str:
    return refused(schema, arguments).message.removeprefix("do: ").removesuffix(".")


def broken(schema: Any) -> str:
    with pytest.raises(InvalidTool) as caught:
        Schema(schema, "do")
    return caught.value.message


def test_arguments_that_fit_pass() -> None:
    schema = Schema(ISSUE, "create_issue")
    schema.check({"title": "hi"})
    schema.check({"title": "hi", "labels": ["a"], "state": "open", "else": 1})


def test_an_error_says_what_was_wrong_and_what_is_valid() -> None:
    error = refused(ISSUE, {"labels": "x"}, who="create_issue")
    assert error.message == 'create_issue: "title" is required; "labels" must be array, not string.'
    assert error.hint == (
        'Valid: create_issue(title: string, body?: string, labels?: string[], state?: "open"|"closed")'
    )
    assert error.suggestions == ()


def test_a_misspelt_parameter_is_corrected_even_if_others_are_allowed() -> None:
    error = refused(ISSUE, {"titel": "x"})
    assert error.message == 'do: "title" is required (not "titel").'
    assert error.suggestions == ("title",)


def test_an_unknown_parameter_is_met_with_the_closest_one() -> None:
    error = refused({**ISSUE, "additionalProperties": False}, {"title": "x", "label": ["a"]})
    assert error.message == 'do: "label" is not a parameter, did you mean "labels"?'
    assert error.suggestions == ("labels",)


def test_an_unknown_parameter_like_no_other_is_just_named() -> None:
    assert message(of({"a": {}}, additionalProperties=False), {"zzzzz": 1}) == '"zzzzz" is not a parameter'
    assert message(of({"a": {}}, unevaluatedProperties=False), {"zzzzz": 1}) == '"zzzzz" is not a parameter'


def test_an_unknown_key_inside_a_referenced_object_is_met_with_the_closest_one() -> None:
    colour = {"type": "object", "properties": {"color": {}}, "additionalProperties": False}
    schema = of({"options": {"$ref": "#/$defs/colour"}}, **{"$defs": {"colour": colour}})
    assert message(schema, {"options": {"colour": 1}}) == '"options.colour" is not a parameter, did you mean "color"?'


def test_a_wrong_value_of_an_enum_is_met_with_the_allowed_ones_and_the_closest() -> None:
    error = refused(of({"state": {"enum": ["open", "closed", 3]}}), {"state": "opne"})
    assert error.message == 'do: "state" must be one of "open", "closed", 3, not "opne".'
    assert error.suggestions == ("open",)


def test_a_long_enum_is_not_listed_whole() -> None:
    text = message(of({"a": {"enum": [f"value {number}" for number in range(500)]}}), {"a": "nothing like it at all"})
    assert '"value 9" or 490 others' in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("rule", "value", "text"),
    [
        ({"type": "string"}, 1, "must be string, not integer"),
        ({"type": ["string", "null"]}, 1.5, "must be null or string, not number"),
        ({"type": "integer"}, True, "must be integer, not boolean"),
        ({"type": "integer"}, None, "must be integer, not null"),
        ({"type": "array"}, {}, "must be array, not object"),
        ({"const": "x"}, "y", 'must be "x", not "y"'),
        ({"const": 1}, [], "must be 1, not array"),
        ({"minimum": 3}, 1, "must be at least 3, not 1"),
        ({"maximum": 3}, 4, "must be at most 3, not 4"),
        ({"exclusiveMinimum": 3}, 3, "must be more than 3, not 3"),
        ({"exclusiveMaximum": 3}, 3, "must be less than 3, not 3"),
        ({"multipleOf": 2}, 3, "must be a multiple of 2, not 3"),
        ({"minLength": 1}, "", "must have at least 1 character"),
        ({"maxLength": 2}, "abc", "must have at most 2 characters, not 3"),
        ({"minItems": 2}, [1], "must have at least 2 items, not 1"),
        ({"maxItems": 1}, [1, 2], "must have at most 1 item, not 2"),
        ({"minProperties": 1}, {}, "must have at least 1 property, not 0"),
        ({"maxProperties": 0}, {"b": 1}, "must have at most 0 properties, not 1"),
        ({"uniqueItems": True}, [1, 1], "must not hold the same item twice"),
        ({"contains": {"const": 1}}, [2], "lacks an item that it must hold"),
        ({"pattern": "^[a-z]+$"}, "A", 'must match the pattern "^[a-z]+$", not "A"'),
        ({"not": {"type": "string"}}, "x", 'is not allowed to be so, not "x"'),
        (
            {"oneOf": [{"type": "string"}, {"minLength": 0}]},
            "x",
            "fits several of its alternatives, and must fit only one",
        ),
        ({"propertyNames": {"maxLength": 1}}, {"bc": 1}, "holds a key that is not allowed"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "must be string or null, not integer"),
        ({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}, "x", "must have at least 2 characters"),
        (False, 1, "is not allowed"),
    ],
)
def test_each_rule_is_explained(rule: Any, value: Any, text: str) -> None:
    assert message(of({"a": rule}), {"a": value}) == f'"a" {text}'


def test_draft_07_is_checked_as_draft_07() -> None:
    pair = {"$schema": DRAFT_07, **of({"a": {"items": [{"type": "string"}], "additionalItems": False}})}
    Schema(pair, "do").check({"a": ["x"]})
    assert message(pair, {"a": ["x", 1]}) == '"a" must have at most 1 item, not 2'


def test_a_list_under_items_without_a_dialect_is_read_as_draft_07() -> None:
    pair = of({"a": {"items": [{"type": "string"}]}})
    Schema(pair, "do").check({"a": ["x", 1]})
    assert message(pair, {"a": [1]}) == '"a[0]" must be string, not integer'


def test_dependencies_and_conditions_are_reported_as_missing_parameters() -> None:
    assert message(of({}, dependentRequired={"a": ["b"]}), {"a": 1}) == '"b" is required'
    schema = {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}
    assert message(schema, {}) == '"c" is required'
    assert message(schema, {"a": 1}) == '"b" is required'


def test_alternatives_are_reported_as_alternatives() -> None:
    schema = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert message(schema, {}) == '"a" is required or "b" is required'


def test_a_constant_shows_which_alternative_was_meant() -> None:
    circle = of({"kind": {"const": "circle"}, "radius": {"type": "number"}}, required=["kind", "radius"])
    square = of({"kind": {"const": "square"}, "side": {"type": "number"}}, required=["kind", "side"])
    schema = of({"shape": {"oneOf": [circle, square]}})
    assert message(schema, {"shape": {"kind": "circle"}}) == '"shape.radius" is required'


def test_of_alternatives_that_all_fail_the_nearest_is_reported() -> None:
    near = of({}, required=["a", "b", "c"])
    far = of({}, required=["a", "b", "c", "d", "e"])
    text = message(of({"x": {"anyOf": [near, far]}}), {"x": {}})
    assert text == '"x.a" is required and "x.b" is required and "x.c" is required'


def test_all_violations_are_reported_at_once_but_at_most_five() -> None:
    schema = of({name: {"type": "string"} for name in "abcdefgh"}, required=["z"])
    text = message(schema, dict.fromkeys("abcdefgh", 1))
    assert text.startswith('"z" is required; "a" must be string')
    assert text.endswith("; and 4 more")
    assert text.count("must be string") == 4


@pytest.mark.parametrize("arguments", [None, 1, "x", [], [1], True])
def test_arguments_that_are_not_an_object_are_reported(arguments: Any) -> None:
    assert message(ISSUE, arguments).startswith("the arguments must be object, not ")


@pytest.mark.parametrize("arguments", [{1: 2}, MappingProxyType({}), {"title": {1, 2}}, {"title": object()}])
def test_arguments_that_are_no_json_are_refused_and_not_a_crash(arguments: Any) -> None:
    assert len(str(refused(ISSUE, arguments))) < 500


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "\ud800", "\0", "x" * 1_000_000])
def test_a_strange_value_is_never_echoed_whole(value: Any) -> None:
    error = refused(of({"a": {"type": "array"}, "b": {"const": 1}}), {"a": value, "b": value})
    assert len(error.message) < 400


def test_a_strange_key_is_shown_short_and_printable() -> None:
    error = refused(of({}, additionalProperties=False), {"x" * 100_000: 1, "a\n\x1b[31mb": 2, "": 3})
    assert len(str(error)) < 600
    assert str(error).isprintable()


@pytest.mark.parametrize("key", ["0", "007", "-1", "99999999999999999999"])
def test_a_key_that_is_a_number_is_reported_like_any_other(key: str) -> None:
    error = refused(of({}, additionalProperties={"type": "string"}), {key: None})
    assert "must be string, not null" in error.message


def test_a_broken_schema_under_a_key_that_is_a_number_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidTool, match=r'"strin" is not allowed there'):
        Schema(of({"007": {"type": "strin"}}), "do")


def test_large_arguments_are_refused_fast_by_their_first_fault() -> None:
    schema = Schema(of({"a": {"type": "array", "items": {"type": "string"}}}), "do")
    with cpu_deadline(5), pytest.raises(InvalidArguments) as caught:
        schema.check({"a": [1] * 300_000})
    assert caught.value.message == 'do: "a[0]" must be string, not integer.'


def test_a_deep_path_is_shown_short() -> None:
    node: dict[str, Any] = {"type": "string"}
    value: Any = 1
    for _ in range(40):
        node, value = of({"some_longer_name": node}), {"some_longer_name": value}
    assert len(message(node, value)) < 200


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"next": value}
    return value


CHAIN = of({"next": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": of({"next": {"$ref": "#/$defs/node"}})}})


def test_a_recursive_schema_is_checked_all_the_way_down() -> None:
    Schema(CHAIN, "do").check(nested(50))
    assert message(CHAIN, {"next": {"next": {"next": 3}}}) == '"next.next.next" must be object, not integer'


def test_arguments_nested_without_end_are_left_to_the_server_and_not_a_crash() -> None:
    Schema(CHAIN, "do").check(nested(100_000))
    loop: dict[str, Any] = {}
    loop["next"] = loop
    Schema(CHAIN, "do").check(loop)
    Schema({"type": "object"}, "do").check(nested(100_000))


def test_a_violation_beside_deeply_nested_arguments_is_still_reported() -> None:
    error = refused(of({"a": {"type": "string"}}), {"a": 1, "b": nested(3_000)})
    assert error.hint == "Valid: do(a?: string)"


def laughing(levels: int, **names: str) -> dict[str, Any]:
    """A schema in which each definition refers twice to the one before it."""
    home = names.get("home", "#/$defs/")
    twice = {
        f"d{level}": {"allOf": [{"$ref": f"{home}d{level - 1}"}] * 2, **({"$anchor": f"d{level}"} if names else {})}
        for level in range(1, levels)
    }
    start = {"d0": {"type": "string", **({"$anchor": "d0"} if names else {})}}
    return of({"a": {"$ref": f"{home}d{levels - 1}"}}, **{"$defs": {**start, **twice}})


@pytest.mark.parametrize("schema", [laughing(60), laughing(60, home="#"), laughing(60, home="http://x/y#")])
def test_a_schema_that_would_never_finish_is_left_to_the_server(schema: dict[str, Any]) -> None:
    schema = {"$id": "http://x/y", **schema}
    with cpu_deadline(5):
        Schema(schema, "do").check({"a": "x"})
        assert example(Tool(name="do", input_schema={**schema, "required": ["a"]})) is not None


def test_a_recursion_that_branches_is_checked_only_as_deep_as_it_is_cheap() -> None:
    node = {"type": "object", "allOf": [of({"next": {"$ref": "#/$defs/node"}})] * 2}
    schema = of({"next": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": node}})
    with cpu_deadline(5):
        Schema(schema, "do").check(nested(80))
        assert message(schema, {"next": {"next": 1}}).startswith('"next.next" must be object')


def test_a_reference_in_any_place_counts_for_the_depth() -> None:
    for place in ("items", "additionalProperties", "contains", "not"):
        schema = {"type": "object", "properties": {"a": {place: {"$ref": "#"}, "prefixItems": [{"$ref": "#"}]}}}
        Schema(schema, "do").check(nested(100_000))
    schema = {"type": "object", "patternProperties": {"^n": {"$ref": "#"}}, "dependentSchemas": {"x": {"$ref": "#"}}}
    Schema(schema, "do").check(nested(100_000))


def test_a_hostile_pattern_is_given_up_on() -> None:
    with cpu_deadline(5):
        text = message(of({"a": {"pattern": "^(?=a)(a+)+(?!c)b$"}}), {"a": "a" * 3_000 + "c"})
    assert text.startswith('"a" ')


@pytest.mark.parametrize("pattern", ["[ab]*a[ab]{1000}c", "[ab]*a[ab]{30000}c", "^(?=(a+)+b)(a|aa)+$"])
def test_a_pattern_takes_no_more_time_for_long_arguments(pattern: str) -> None:
    schema = Schema({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}, "t")
    assert growth(lambda text: schema.check({"a": text}), "ab", 100_000) == 0


def test_long_arguments_are_checked_without_patterns() -> None:
    named = {"type": "string", "pattern": "^[a-z]+$"}
    schema = Schema({"type": "object", "properties": {"name": named, "text": {"type": "string"}}}, "t")
    by_name = {"type": "object", "patternProperties": {"^[a-z]+$": {}}, "additionalProperties": False}
    with pytest.raises(InvalidArguments, match="pattern"):
        schema.check({"name": "A", "text": "short"})
    schema.check({"name": "A", "text": "long" * 2_000})
    with pytest.raises(InvalidArguments, match="text"):
        schema.check({"name": "a" * 5_000, "text": 1})
    Schema(by_name, "t").check({"a" * 5_000: 1})


@pytest.mark.parametrize("pattern", [r"^[\w-.]+$", r"^[.-\w]+$"])
def test_a_pattern_that_only_javascript_accepts_is_rewritten(pattern: str) -> None:
    schema = of({"a": {"pattern": pattern}, "b": {"type": "array", "items": [{"pattern": pattern}]}})
    Schema(schema, "do").check({"a": "a-b.c", "b": ["x.y"]})
    assert message(schema, {"a": "!"}).startswith('"a" must match the pattern')


def test_a_pattern_beyond_our_engine_is_left_to_the_server() -> None:
    schema = of({"a": {"pattern": r"^[\s\S]{1,50000}x$"}}, patternProperties={"x{": {"type": "string"}, "y": {}})
    Schema(schema, "do").check({"a": "", "x{": 1})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({}, 'do: the input schema must say "type": "object" at its root.'),
        ({"type": "array"}, 'do: the input schema must say "type": "object" at its root.'),
        ({"type": ["object"]}, 'do: the input schema must say "type": "object" at its root.'),
        (True, "do: the input schema is not an object."),
        (MappingProxyType({"type": "object"}), "do: the input schema is not an object."),
        (
            of({"a": {"type": "objct"}}),
            'do: the input schema is broken at properties.a.type: "objct" is not allowed there.',
        ),
        (of({}, required="a"), 'do: the input schema is broken at required: "a" is not allowed there.'),
        (
            {"type": "object", "properties": []},
            "do: the input schema is broken at properties: [] is not allowed there.",
        ),
        (
            of({"a": {"pattern": "("}}),
            'do: the input schema is broken at properties.a.pattern: "(" is not allowed there.',
        ),
        (
            of({}, patternProperties={"(": {}}),
            'do: the input schema is broken at patternProperties.(: "(" is not allowed there.',
        ),
        (
            of({"a": {"$ref": "#/$defs/b"}}),
            "do: the input schema refers to something it does not hold: Pointer '/$defs/b' does not exist.",
        ),
        (
            {"$schema": "http://example.com/mine", "type": "object"},
            'do: the input schema is written in an unknown dialect, "http://example.com/mine".',
        ),
        ({"type": "object", "description": "\ud800"}, "do: the input schema cannot be read: "),
        (of({"a": {"enum": [object()]}}), "do: the input schema cannot be read: "),
    ],
)
def test_a_broken_schema_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    assert broken(schema).startswith(reason)


def test_a_schema_nested_without_end_is_refused() -> None:
    node: dict[str, Any] = {"type": "object"}
    for _ in range(5_000):
        node = of({"a": node})
    assert broken(node).startswith("do: the input schema cannot be read: ")


def test_a_reference_to_another_document_is_refused_and_nothing_is_fetched() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        uri = f"http://127.0.0.1:{server.server_port}/schema.json"
        assert broken(of({"a": {"$ref": uri}})) == (
            f'do: the input schema refers to another document, "{uri}", and those are not fetched.'
        )
        assert "not fetched" in broken(of({"a": {"$ref": "file:///etc/passwd"}}))
        assert "not fetched" in broken(of({"a": {"$ref": "other.json"}}, **{"$id": uri}))
    finally:
        server.shutdown()
        server.server_close()
    assert asked == []


def test_a_format_is_the_servers_to_judge() -> None:
    Schema(of({"a": {"type": "string", "format": "email"}}), "do").check({"a": "no address"})
    Schema({"$schema": DRAFT_07, **of({"a": {"format": "uri"}})}, "do").check({"a": "no address"})


def test_parameters_are_read_through_references_and_unions() -> None:
    schema = {
        "type": "object",
        "$defs": {
            "Filter": of({"field": {"type": "string"}, "value": {}}, required=["field"], description="A filter.")
        },
        "allOf": [of({"limit": {"type": "integer", "default": 10}})],
        "properties": {
            "filter": {"$ref": "#/$defs/Filter"},
            "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "description": "The day."},
        },
        "required": ["filter"],
    }
    assert parameters(schema) == (
        ParameterInfo(name="filter", type="{field: string, value?: any}", required=True, description="A filter."),
        ParameterInfo(name="when", type="string|null", description="The day."),
        ParameterInfo(name="limit", type="integer", default=10),
    )


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        (True, "any"),
        (False, "never"),
        ({"type": "string"}, "string"),
        ({"type": 3}, "any"),
        ({"type": ["string", 3]}, "string|any"),
        ({"const": {"a": 1}}, "{…}"),
        ({"const": []}, "[]"),
        ({"const": [1]}, "[…]"),
        ({"enum": [None, True, 1.5, "a\nb"]}, r'null|true|1.5|"a\nb"'),
        ({"enum": []}, "any"),
        ({"enum": list(range(9))}, "0|1|2|3|4|5|…"),
        ({"enum": ["x" * 100]}, f'"{"x" * 23}…"'),
        ({"items": {"type": "integer"}}, "integer[]"),
        ({"type": "array"}, "any[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a"|"b")[]'),
        ({"properties": {"my key": {}}}, '{"my key"?: any}'),
        ({"type": "object"}, "object"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}]}, "string"),
        ({"anyOf": [{"anyOf": [{"anyOf": [{"type": "string"}]}]}]}, "any"),
        (
            {"type": "object", "properties": {name: {"type": "string"} for name in "abcdefgh"}},
            "{a?: string, b?: string, c?: string, d?: string, e?: string, … +3 more}",
        ),
        ({"$ref": "#/nowhere"}, "any"),
        ({"$ref": "http://elsewhere"}, "any"),
        ({"$ref": 3}, "any"),
        ({"$ref": "#/properties/a"}, "any"),
        ({"$ref": "#here"}, "boolean"),
        ({"$ref": "#not"}, "any"),
        ({"$ref": "#/$defs/list/0"}, "null"),
        ({"$ref": "#/$defs/list/9"}, "any"),
        ({"$ref": "#/$defs/a~1b%25"}, "integer"),
    ],
)
def test_a_type_reads_at_a_glance(schema: Any, text: str) -> None:
    homes = {
        "$defs": {"x": {"$anchor": "here", "type": "boolean"}, "list": [{"type": "null"}], "a/b%": {"type": "integer"}}
    }
    assert [parameter.type for parameter in parameters(of({"a": schema}, **homes))] == [text]


def test_a_signature_lists_required_parameters_first() -> None:
    tool = Tool(name="create issue", input_schema={**ISSUE, "required": ["labels"]})
    assert signature(tool) == ('create issue(labels: string[], title?: string, body?: string, state?: "open"|"closed")')


def test_a_signature_is_one_bounded_line_whatever_the_schema() -> None:
    properties = {f"parameter_{number}\n": {"type": "string"} for number in range(1_000)}
    text = signature(Tool(name="x\n" * 300, input_schema=of(properties, required=list(properties))))
    assert len(text) <= 400
    assert text.isprintable()
    assert "… +1" in text


@pytest.mark.parametrize(
    "schema", [{"type": "object", "properties": 3, "required": 3}, {"type": "object", "required": [3]}, {}]
)
def test_a_schema_of_nonsense_has_no_parameters(schema: dict[str, Any]) -> None:
    assert parameters(schema) == ()
    assert signature(Tool(name="do", input_schema=schema)) == "do()"
    assert example(Tool(name="do", input_schema=schema)) == {}
