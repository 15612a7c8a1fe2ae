"""Arguments as words: `key=value` gets the type of the property, `key:=json` is JSON, repetition makes a list."""

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.cli.arguments import CallArguments, call_command, parse_words, typed_arguments
from toolcrib.cli.output import UsageError

SCHEMA: dict[str, Any] = {
    "$defs": {"size": {"enum": ["S", "M", 3]}},
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "At most so many."},
        "tags": {"type": "array", "items": {"type": "string"}},
        "ids": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "where": {"type": "object"},
        "size": {"$ref": "#/$defs/size"},
        "mode": {"anyOf": [{"const": "fast"}, {"const": "safe"}, {"type": "null"}]},
        "any": {},
    },
}


def typed(*words: str) -> dict[str, Any]:
    return typed_arguments(parse_words(words), SCHEMA)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=12", "12"),
        ("text=a=b", "a=b"),
        ("text=", ""),
        ("count=12", 12),
        ("count=-3", -3),
        ("count=2.0", 2),
        ("ratio=2", 2),
        ("ratio=1e-3", 0.001),
        ("deep=true", True),
        ("deep=False", False),
        ("note=null", None),
        ("note=5", "5"),
        ("limit=null", None),
        ("limit=5", 5),
        ("tags=a", ["a"]),
        ('tags=["a", "b"]', ["a", "b"]),
        ("ids=1", [1]),
        ("ids:=null", None),
        ('where={"a": 1}', {"a": 1}),
        ("size=M", "M"),
        ("size=3", 3),
        ("mode=fast", "fast"),
        ("mode=null", None),
        ("any=5", 5),
        ("any=five", "five"),
        ('text:="12"', "12"),
        ("count:=[1]", [1]),
    ],
)
def test_a_word_gets_the_type_that_the_schema_says(word: str, value: Any) -> None:
    (found,) = typed(word).values()
    assert (found, type(found)) == (value, type(value))


def test_a_key_given_several_times_makes_a_list() -> None:
    assert typed("tags=a", "tags=b", "ids=1", "ids=2") == {"tags": ["a", "b"], "ids": [1, 2]}


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["count=many"], "count must be integer, not 'many'.", ""),
        (["count=1.5"], "count must be integer, not '1.5'.", ""),
        (["limit=x"], "limit must be integer|null, not 'x'.", "limit: At most so many."),
        (["size=XL"], 'size must be "S"|"M"|3, not \'XL\'.', "size is one of: S, M, 3"),
        (["ids=1", "ids=b"], "ids must be integer, not 'b'.", ""),
        (["where=3"], "where must be object, not '3'.", ""),
        (["text=a", "text=b"], "text is given 2 times, and takes one value.", ""),
        (["cuont=1"], "The tool has no parameter cuont.", "Did you mean count?"),
        (
            ["count:=x"],
            "count is not JSON: Expecting value at character 1.",
            "Write count=TEXT for a string.",
        ),
        (
            ["words"],
            "'words' is not key=value.",
            "Write key=value for a string or a number, key:=JSON for anything else.",
        ),
    ],
)
def test_a_word_that_does_not_fit_names_the_property_and_what_it_takes(
    words: list[str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        typed(*words)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_other_properties_are_for_tools_that_take_them() -> None:
    assert typed_arguments(parse_words(["x=1"]), {"additionalProperties": True}) == {"x": 1}
    more = {"properties": {"a": {}}, "additionalProperties": {"type": "string"}}
    assert typed_arguments(parse_words(["x=1"]), more) == {"x": "1"}


def test_words_come_on_top_of_the_object() -> None:
    assert CallArguments.read('{"count": 1, "text": "a"}', ["count=2"]).for_schema(SCHEMA) == {"count": 2, "text": "a"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "", "a=b", "x:"]), VALUES, max_size=4))
def test_the_command_line_of_a_call_gives_back_its_arguments(arguments: dict[str, Any]) -> None:
    words = shlex.split(call_command("a:b", arguments, SCHEMA))
    assert words[:3] == ["toolcrib", "call", "a:b"]
    given = ("{}", words[3:]) if "--args" not in words[3:4] else (words[4], [])
    assert CallArguments.read(*given).for_schema(SCHEMA) == arguments
