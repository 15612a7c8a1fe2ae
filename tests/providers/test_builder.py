"""Tools that are built step by step, and the requests that their handlers read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.errors import InvalidArguments, InvalidName, InvalidTool
from toolcrib.fields import Array, Boolean, Integer, Number, Object, Parameter, String
from toolcrib.providers.builder import ToolRequest, new_tool
from toolcrib.schema import Schema
from toolcrib.types import Visibility

SEND = new_tool(
    "send_email",
    "Send an   email\n\tto a recipient",
    String("to", "Recipient   email", required=True),
    String("subject", "Email subject", required=True),
    Object("headers", "More headers"),
)


def test_a_tool_is_native_unless_it_is_declared_discoverable() -> None:
    found = SEND.discoverable("email", "smtp").to_tool()
    assert SEND.to_tool().visibility is Visibility.NATIVE
    assert (found.visibility, found.keywords) == (Visibility.DISCOVERABLE, ("email", "smtp"))
    assert SEND.hidden().to_tool().visibility is Visibility.HIDDEN


def test_the_schema_is_closed_and_lists_required_parameters() -> None:
    assert SEND.to_tool().input_schema == {
        "type": "object",
        "properties": {
            "to": {"type": "string", "description": "Recipient email"},
            "subject": {"type": "string", "description": "Email subject"},
            "headers": {"type": "object", "additionalProperties": True, "description": "More headers"},
        },
        "additionalProperties": False,
        "required": ["to", "subject"],
    }
    assert "required" not in new_tool("ping").to_tool().input_schema


def test_white_space_in_a_description_is_collapsed() -> None:
    assert SEND.to_tool().description == "Send an email to a recipient"


def test_every_kind_of_parameter_becomes_its_schema() -> None:
    tool = new_tool(
        "all",
        "",
        String("s", enum=["a", "b"], default="a", min_length=1, max_length=9, pattern="^[ab]", format="email"),
        Integer("i", minimum=1, maximum=9, multiple_of=1),
        Number("n", default=0.5),
        Boolean("b", default=False),
        Array("plain"),
        Array("words", "", "string", min_items=1, max_items=3, unique=True, default=("a",)),
        Array("rows", "", Object("row", "", Integer("id"))),
        Array("raw", "", {"type": "null"}),
        Object("o", "", Array("deep", "", Integer("x"), required=True), required=True),
    ).to_tool()
    assert tool.input_schema["properties"] == {
        "s": {
            "type": "string",
            "minLength": 1,
            "maxLength": 9,
            "pattern": "^[ab]",
            "format": "email",
            "enum": ["a", "b"],
            "default": "a",
        },
        "i": {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 1},
        "n": {"type": "number", "default": 0.5},
        "b": {"type": "boolean", "default": False},
        "plain": {"type": "array"},
        "words": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": 3,
            "uniqueItems": True,
            "default": ["a"],
        },
        "rows": {
            "type": "array",
            "items": {"type": "object", "properties": {"id": {"type": "integer"}}, "additionalProperties": False},
        },
        "raw": {"type": "array", "items": {"type": "null"}},
        "o": {
            "type": "object",
            "properties": {"deep": {"type": "array", "items": {"type": "integer"}}},
            "additionalProperties": False,
            "required": ["deep"],
        },
    }


def test_each_step_gives_a_new_builder_and_leaves_the_old_one() -> None:
    full = (
        SEND.in_namespace("mail")
        .titled("Send")
        .tagged("a")
        .tagged("b")
        .versioned("2.0.0")
        .annotated(read_only=False, destructive=True)
        .annotated(idempotent=False, open_world=True)
        .returns(Integer("count", required=True))
    )
    tool = full.to_tool()
    assert (tool.id, tool.title, tool.tags, tool.version) == ("mail:send_email", "Send", ("a", "b"), "2.0.0")
    assert tool.annotations == {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": False,
        "openWorldHint": True,
    }
    assert tool.output_schema == {
        "type": "object",
        "properties": {"count": {"type": "integer"}},
        "additionalProperties": False,
        "required": ["count"],
    }
    assert full.returns({"type": "array"}).to_tool().output_schema == {"type": "array"}
    assert SEND.to_tool().annotations == {}


def test_to_mcp_tool_is_the_same_as_to_tool() -> None:
    assert SEND.to_mcp_tool() == SEND.to_tool()


def anything(value: Any) -> Any:
    return value


BROKEN = [
    (lambda: String(""), "name"),
    (lambda: String("two words"), "two words"),
    (lambda: String("x" * 65), "name"),
    (lambda: String("é"), "name is not allowed"),
    (lambda: String("s", anything(5)), "description must be a string"),
    (lambda: String("s", enum=[]), "enum"),
    (lambda: String("s", enum=anything("abc")), "enum"),
    (lambda: String("s", enum=["a", "a"]), "twice"),
    (lambda: String("s", enum=anything(["a", 1])), "enum must be a list of strings"),
    (lambda: String("s", enum=["a"], default="b"), "default holds a value that does not fit"),
    (lambda: String("s", required=True, default="b"), "default contradicts"),
    (lambda: String("s", min_length=3, max_length=2), "between 3 and 2"),
    (lambda: String("s", min_length=-1), "below 0"),
    (lambda: String("s", pattern="("), "pattern"),
    (lambda: Integer("i", default=anything("1")), "default"),
    (lambda: Integer("i", minimum=5, maximum=1), "between 5 and 1"),
    (lambda: Integer("i", minimum=5, default=1), "default"),
    (lambda: Number("n", multiple_of=0), "multipleOf"),
    (lambda: Boolean("b", default=anything("yes")), "default"),
    (lambda: Array("a", "", anything("text")), "items must be one of string"),
    (lambda: Array("a", "", "string", default=anything([1])), "default"),
    (lambda: Array("a", "", {"type": "nope"}), "nope"),
    (lambda: Object("o", "", String("x"), String("x")), '"x" twice'),
    (lambda: new_tool("t", "", String("x"), Integer("x")), '"x" twice'),
    (lambda: new_tool("t", "", anything("x")), "not str"),
    (lambda: new_tool(anything(5)), "name must be a string"),
    (SEND.returns, "returns takes"),
    (lambda: SEND.returns({"type": "nope"}).to_tool(), "output schema"),
    (lambda: SEND.discoverable("").to_tool(), "keywords must be non-empty strings"),
    (lambda: SEND.titled(" ").to_tool(), "title must be a string"),
    (lambda: SEND.annotated(read_only=anything("yes")).to_tool(), "read_only must be True or False"),
]


@pytest.mark.parametrize(("make", "said"), BROKEN, ids=[said for _, said in BROKEN])
def test_what_cannot_be_is_refused_with_its_field(make: Any, said: str) -> None:
    with pytest.raises(InvalidTool) as caught:
        make()
    assert said in caught.value.message


def test_a_name_that_breaks_the_rules_is_refused() -> None:
    with pytest.raises(InvalidName):
        new_tool(" ")
    with pytest.raises(InvalidName):
        SEND.in_namespace("a:b").to_tool()


# -- properties --------------------------------------------------------------------------------------------------------

names = st.text("abcdefgh_-.XYZ019", min_size=1, max_size=12)


def pairs(names: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Parameter, Any, Any]]:
    """A parameter, a value that fits it, and one that does not."""
    return st.one_of(
        st.builds(lambda n, r, v: (String(n, required=r), v, 1), names, st.booleans(), st.text(max_size=5)),
        st.builds(lambda n, v: (String(n, enum=["a", "b"]), v, "c"), names, st.sampled_from("ab")),
        st.builds(lambda n, v: (String(n, min_length=2, max_length=4), v, "x"), names, st.text(min_size=2, max_size=4)),
        st.builds(lambda n, r, v: (Integer(n, minimum=-5, required=r), v, -6), names, st.booleans(), st.integers(-5)),
        st.builds(lambda n, v: (Number(n, maximum=1), v, 1.5), names, st.floats(max_value=1, allow_infinity=False)),
        st.builds(lambda n, v: (Boolean(n, required=True), v, 0), names, st.booleans()),
        st.builds(lambda n, v: (Array(n, "", "integer"), v, ["a"]), names, st.lists(st.integers(), max_size=3)),
        st.builds(
            lambda n, v: (Object(n, "", Integer("k", required=True)), {"k": v}, {"k": v, "z": 1}), names, st.integers()
        ),
        st.builds(lambda n, v: (Object(n), v, []), names, st.dictionaries(st.text(), st.integers(), max_size=2)),
    )


@given(st.lists(pairs(names), max_size=6, unique_by=lambda pair: pair[0].name), st.data())
def test_a_built_schema_accepts_exactly_the_declared_values(
    chosen: list[tuple[Parameter, Any, Any]], data: st.DataObject
) -> None:
    tool = new_tool("t", "", *(parameter for parameter, _, _ in chosen)).to_tool()
    schema = Schema(tool.input_schema, tool.id)
    left_out = {p.name for p, _, _ in chosen if not p.required and data.draw(st.booleans())}
    fitting = {p.name: good for p, good, _ in chosen if p.name not in left_out}
    schema.check(fitting)
    wrong = [{**fitting, p.name: bad} for p, _, bad in chosen]
    wrong += [{k: v for k, v in fitting.items() if k != p.name} for p, _, _ in chosen if p.required]
    for arguments in [*wrong, {**fitting, "unknown parameter": 1}]:
        with pytest.raises(InvalidArguments):
            schema.check(arguments)


# -- requests ----------------------------------------------------------------------------------------------------------


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
def test_a_wrong_type_is_reported_even_if_there_is_a_default(getter: str, name: str, kind: str) -> None:
    read: Any = getattr(REQUEST, getter)
    with pytest.raises(InvalidArguments, match=f'^t: "{name}" must be {getter}, not {kind}.'):
        read(name)
    if kind != "null":
        with pytest.raises(InvalidArguments):
            read(name, None)
