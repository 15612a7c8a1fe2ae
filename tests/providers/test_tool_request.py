"""Arguments as a handler reads them."""

from typing import Any

import pytest

from toolcrib.errors import InvalidArguments
from toolcrib.providers.builder import ToolRequest

REQUEST = ToolRequest(
    {"s": "x", "i": 2, "whole": 3.0, "n": 1.5, "b": True, "a": [1], "o": {"k": 1}, "null": None}, tool="t"
)


def test_each_getter_gives_the_value_of_its_type() -> None:
    assert (REQUEST.string("s"), REQUEST.integer("i"), REQUEST.number("n")) == ("x", 2, 1.5)
    assert (REQUEST.boolean("b"), REQUEST.array("a"), REQUEST.object("o")) == (True, [1], {"k": 1})
    assert REQUEST.number("i") == 2
    assert REQUEST.integer("whole") == 3
    assert isinstance(REQUEST.integer("whole"), int)


def test_it_is_a_dict_of_the_arguments() -> None:
    assert REQUEST["s"] == "x"
    assert ToolRequest({"a": 1}) == {"a": 1}
    assert ToolRequest() == {}


def test_a_missing_argument_or_null_is_the_default() -> None:
    assert REQUEST.string("gone", "d") == "d"
    assert REQUEST.integer("null", 4) == 4
    assert REQUEST.array("gone", None) is None


def test_a_missing_argument_without_default_is_named_with_those_like_it() -> None:
    with pytest.raises(InvalidArguments) as caught:
        ToolRequest({"recipient": "a"}, tool="mail:send").string("recipent")
    assert caught.value.message == 'mail:send: "recipent" is missing; it must be string.'
    assert caught.value.suggestions == ("recipient",)
    assert caught.value.data == {"field": "recipent"}


@pytest.mark.parametrize(
    ("getter", "name", "kind"),
    [
        ("string", "i", "integer"),
        ("integer", "n", "number"),
        ("integer", "b", "boolean"),
        ("number", "b", "boolean"),
        ("number", "s", "string"),
        ("boolean", "i", "integer"),
        ("array", "o", "object"),
        ("object", "a", "array"),
        ("string", "null", "null"),
    ],
)
def test_a_wrong_type_is_named_even_where_there_is_a_default(getter: str, name: str, kind: str) -> None:
    read: Any = getattr(REQUEST, getter)
    with pytest.raises(InvalidArguments, match=f'^t: "{name}" must be {getter}, not {kind}.'):
        read(name)
    if kind != "null":
        with pytest.raises(InvalidArguments):
            read(name, None)
