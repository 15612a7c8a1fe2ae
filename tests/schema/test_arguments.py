"""The forms of arguments that models send."""

from typing import Any

import pytest

from toolcrib.errors import InvalidArguments
from toolcrib.schema.arguments import merge_arguments

TITLED: dict[str, Any] = {"type": "object", "properties": {"title": {"type": "string"}, "body": {"type": "string"}}}
OPEN: dict[str, Any] = {"type": "object"}
NESTING: dict[str, Any] = {"type": "object", "properties": {"arguments": {"type": "object"}, "name": {}}}


@pytest.mark.parametrize(
    ("given", "loose", "schema", "meant"),
    [
        ({"title": "hi"}, {}, TITLED, {"title": "hi"}),
        ('{"title": "hi"}', {}, TITLED, {"title": "hi"}),
        (None, {}, TITLED, {}),
        ("", {}, TITLED, {}),
        (None, {"title": "hi"}, TITLED, {"title": "hi"}),
        ({"title": "hi"}, {"body": "x"}, TITLED, {"title": "hi", "body": "x"}),
        ({"arguments": {"title": "hi"}}, {}, TITLED, {"title": "hi"}),
        ({"parameters": {"title": "hi"}}, {}, TITLED, {"title": "hi"}),
        (None, {"anything": 1}, OPEN, {"anything": 1}),
        ({"arguments": {"x": 1}}, {}, NESTING, {"arguments": {"x": 1}}),
        ({"arguments": {"x": 1}}, {}, OPEN, {"arguments": {"x": 1}}),
    ],
)
def test_every_unambiguous_form_means_the_same(given: Any, loose: Any, schema: Any, meant: Any) -> None:
    assert merge_arguments(given, loose, schema, tool="t") == meant


@pytest.mark.parametrize("given", ["{not json", "[1]", "3", [1], 3, True, "[" * 100_000])
def test_arguments_that_are_not_an_object_are_explained(given: Any) -> None:
    with pytest.raises(InvalidArguments, match="t: arguments"):
        merge_arguments(given, {}, TITLED, tool="t")


def test_a_key_beside_the_arguments_that_the_tool_does_not_know_is_named() -> None:
    with pytest.raises(InvalidArguments, match="'reason' cannot be given beside"):
        merge_arguments({"title": "hi"}, {"reason": "because"}, TITLED, tool="t")


def test_a_parameter_given_twice_is_refused_rather_than_guessed() -> None:
    with pytest.raises(InvalidArguments, match="'title'"):
        merge_arguments({"title": "a"}, {"title": "b"}, TITLED, tool="t")
