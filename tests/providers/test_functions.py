"""Typed functions as tools."""

import contextvars
import dataclasses
import enum
import functools
import inspect
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional
from uuid import UUID

import anyio
import mcp_types
import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import Doc, TypedDict, Unpack

from toolcrib.errors import ExecutionFailed, InvalidArguments, InvalidName, InvalidTool
from toolcrib.providers.content import unwrap
from toolcrib.providers.functions import LocalTools, function_tool
from toolcrib.schema import Schema, example
from toolcrib.types import Caller, Context, Object, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """Where it is."""

    x: int
    y: int = 0


class Filter(TypedDict, total=False):
    word: str
    limit: int


class Node(BaseModel):
    value: int
    children: "list[Node]" = []


class Person(BaseModel):
    model_config = ConfigDict(title="A person")

    given_name: str = Field(alias="givenName", title="First name")


Meters = NewType("Meters", int)


def tool(function: Callable[..., Any], **options: Any) -> Tool:
    return function_tool(function, **options).tool


def properties(function: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = tool(function).input_schema["properties"]
    return found


async def call(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call the function's tool with arguments that passed its own schema."""
    tools = LocalTools()
    made = tools.register_function(function, name="it")
    Schema(made.input_schema, made.id).check(arguments)
    return unwrap(await run(tools, made, arguments))


async def run(tools: LocalTools, made: Tool, arguments: Object) -> ToolResult:
    with anyio.fail_after(5):
        result = await tools.call_key(ME, made.key, arguments)
    assert result is not None
    return result


async def refused(function: Callable[..., Any], /, **arguments: Any) -> InvalidArguments:
    tools = LocalTools()
    made = tools.register_function(function, name="it")
    with pytest.raises(InvalidArguments) as caught:
        await run(tools, made, arguments)
    return caught.value


# -- schemas -----------------------------------------------------------------------------------------------------------


def test_a_signature_becomes_a_closed_schema_that_requires_what_has_no_default() -> None:
    def search(query: str, limit: int = 10, *, exact: bool = False) -> str:
        """Search for something."""
        return ""

    made = tool(search)
    assert (made.name, made.description, made.visibility) == (
        "search",
        "Search for something.",
        Visibility.DISCOVERABLE,
    )
    assert made.input_schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    assert tool(lambda: None, name="it").input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_schemas_have_no_titles_that_repeat_a_name() -> None:
    def draw(  # type: ignore[no-untyped-def]  # a parameter without annotation is the point
        color: Color,
        kind: Literal["line", "dot"],
        at: Point,
        where: Filter,
        size: int | None = None,
        old: Optional[float] = None,  # noqa: UP045 - the old spelling is the point
        on: date | None = None,
        loose=None,  # noqa: ANN001 - no annotation is the point
    ) -> None: ...

    made = tool(draw).input_schema
    assert made["properties"]["kind"] == {"enum": ["line", "dot"], "type": "string"}
    assert made["properties"]["size"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert made["properties"]["loose"] == {"default": None}
    assert made["$defs"]["Color"] == {"enum": ["red", "blue"], "type": "string"}
    assert made["$defs"]["Point"]["description"] == "Where it is."
    assert "title" not in str(made)


def test_titles_that_were_given_stay() -> None:
    def greet(who: Person, loud: Annotated[bool, Field(title="Loudly")] = False) -> None: ...

    made = tool(greet).input_schema
    assert made["$defs"]["Person"]["title"] == "A person"
    assert made["$defs"]["Person"]["properties"]["givenName"]["title"] == "First name"
    assert made["properties"]["loud"]["title"] == "Loudly"


def test_a_recursive_model_has_a_schema_that_holds_together() -> None:
    def walk(tree: Node) -> Node:
        return tree

    made = tool(walk)
    Schema(made.input_schema, "walk").check({"tree": {"value": 1, "children": [{"value": 2}]}})
    assert made.output_schema is not None
    assert made.output_schema["type"] == "object"
    assert example(made) == {"tree": {"value": 1}}


def test_names_that_pydantic_keeps_for_itself_are_allowed() -> None:
    def odd(schema: int, copy: int, model_config: int, _private: int, json: int) -> int:
        return schema + copy + model_config + _private + json

    assert list(properties(odd)) == ["schema", "copy", "model_config", "_private", "json"]


async def test_names_that_pydantic_keeps_for_itself_reach_the_function() -> None:
    def odd(schema: int, copy: int, model_config: int, _private: int) -> list[int]:
        return [schema, copy, model_config, _private]

    assert await call(odd, schema=1, copy=2, model_config=3, _private=4) == [1, 2, 3, 4]


def test_a_default_that_is_not_json_is_left_out_of_the_schema() -> None:
    sentinel = object()

    def look(at: Any = sentinel) -> None: ...

    assert properties(look) == {"at": {}}


# -- descriptions ------------------------------------------------------------------------------------------------------


def google(a: int, b: int, c: int) -> None:
    """Do it.

    And then more,
    on two lines.

    Args:
        a (int, optional): The first.
        b: The second,
            on two lines: with a colon.

        c (dict[str, int]): The third.

    Returns:
        Nothing: at all.
    """


def numpy(a: int, b: int, c: int) -> None:
    """Do it.

    And then more,
    on two lines.

    Parameters
    ----------
    a : int, optional
        The first.
    b, c : {'x', 'y'}
        The second,
        on two lines: with a colon.

    Returns
    -------
    a
        Nothing.
    """


def sphinx(a: int, b: int, c: int) -> None:
    """Do it.

    And then more,
    on two lines.

    :param a: The first.
    :param int b: The second,
        on two lines: with a colon.
    :type c: int
    :parameter c: The third.

    :returns: Nothing.
    :raises ValueError: a: never
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_docstrings_of_three_styles_describe_the_tool_and_its_parameters(function: Callable[..., Any]) -> None:
    third = "The second, on two lines: with a colon." if function is numpy else "The third."
    assert tool(function).description == "Do it.\n\nAnd then more,\non two lines."
    assert {name: node["description"] for name, node in properties(function).items()} == {
        "a": "The first.",
        "b": "The second, on two lines: with a colon.",
        "c": third,
    }


def test_a_docstring_without_sections_is_taken_as_it_is() -> None:
    def plain(note: str) -> None:
        """Keep a note: short.

        - one
        - two

        >>> plain("x")
        """

    assert tool(plain).description == "Keep a note: short.\n\n- one\n- two"
    assert properties(plain) == {"note": {"type": "string"}}


def test_an_annotation_describes_a_parameter_before_the_docstring_does() -> None:
    def move(
        a: Annotated[int, "How far"],
        b: Annotated[int, Field(ge=1, description="How often")],
        c: Annotated[int, Doc("How fast")],
        d: int = Field(default=4, description="How long", le=9),
    ) -> None:
        """Move.

        Args:
            a: ignored
            b: ignored
            c: ignored
            d: ignored
        """

    assert properties(move) == {
        "a": {"type": "integer", "description": "How far"},
        "b": {"type": "integer", "description": "How often", "minimum": 1},
        "c": {"type": "integer", "description": "How fast"},
        "d": {"type": "integer", "description": "How long", "maximum": 9, "default": 4},
    }


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_a_function_gets_values_of_the_types_it_asked_for() -> None:
    seen: list[Any] = []

    def take(
        *,
        color: Color,
        at: Point,
        tree: Node,
        day: date,
        ident: UUID,
        cost: Decimal,
        where: Path,
        many: set[int],
        far: Meters,
        raw: bytes = b"",
    ) -> None:
        seen.extend([color, at, tree, day, ident, cost, where, many, far, raw])

    await call(
        take,
        color="red",
        at={"x": 1},
        tree={"value": 1, "children": [{"value": 2}]},
        day="2026-01-31",
        ident="00000000-0000-0000-0000-000000000001",
        cost="1.50",
        where="a/b",
        many=[1, 2],
        far=3,
    )
    assert seen == [
        Color.RED,
        Point(1),
        Node(value=1, children=[Node(value=2)]),
        date(2026, 1, 31),
        UUID(int=1),
        Decimal("1.50"),
        Path("a/b"),
        {1, 2},
        3,
        b"",
    ]


async def test_a_strict_model_takes_a_date_written_as_text() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        day: date

    def keep(strict: Strict) -> str:
        return strict.day.isoformat()

    assert await call(keep, strict={"day": "2026-01-31"}) == "2026-01-31"


async def test_absent_arguments_leave_the_functions_own_defaults() -> None:
    sentinel = object()

    def look(at: Any = sentinel, n: int = Field(default=4), xs: Annotated[list[int], Field()] = [7]) -> list[Any]:  # noqa: B006 - the default is the point
        return [at is sentinel, n, xs]

    assert await call(look) == [True, 4, [7]]


async def test_callers_use_the_alias_of_a_parameter() -> None:
    def look(where: Annotated[str, Field(alias="from")] = "here") -> str:
        return where

    assert list(properties(look)) == ["from"]
    assert await call(look, **{"from": "there"}) == "there"


async def test_positional_only_parameters_are_filled_in_by_name_too() -> None:
    def divide(a: int, b: int = 2, /, c: int = 1) -> list[int]:
        return [a, b, c]

    assert await call(divide, a=8) == [8, 2, 1]
    assert await call(divide, a=8, b=4, c=5) == [8, 4, 5]


async def test_whatever_else_there_is_goes_to_kwargs() -> None:
    def log(message: str, **fields: Any) -> dict[str, Any]:
        return {"message": message, **fields}

    def count(**numbers: int) -> dict[str, int]:
        return numbers

    assert tool(log).input_schema["additionalProperties"] is True
    assert tool(count).input_schema["additionalProperties"] == {"type": "integer"}
    assert await call(log, message="hi", p0=1, user="me") == {"message": "hi", "p0": 1, "user": "me"}
    assert '"a"' in (await refused(count, a="x")).message


class Greeter:
    """Greets."""

    greeting = "hi"

    def greet(self, name: str) -> str:
        """Greet someone."""
        return f"{self.greeting} {name}"

    async def __call__(self, name: str) -> str:
        return f"{self.greeting} {name}!"

    @staticmethod
    def shout(name: str) -> str:
        return name.upper()

    @classmethod
    def make(cls, name: str) -> str:
        return f"{cls.__name__} {name}"


def tell(user: str, name: str, times: int = 1) -> list[Any]:
    """Tell someone."""
    return [user, name, times]


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    ("function", "answer", "name", "described"),
    [
        (Greeter().greet, "hi ann", "greet", "Greet someone."),
        (Greeter(), "hi ann!", "Greeter", "Greets."),
        (Greeter.__dict__["shout"], "ANN", "shout", ""),
        (Greeter.make, "Greeter ann", "make", ""),
        (functools.partial(tell, "me"), ["me", "ann", 1], "tell", "Tell someone."),
        (functools.partial(tell, user="you", times=3), ["you", "ann", 3], "tell", "Tell someone."),
        (functools.partial(Greeter()), "hi ann!", "Greeter", "Greets."),
        (wrapped(Greeter().greet), "hi ann", "greet", "Greet someone."),
    ],
)
async def test_anything_that_can_be_called_can_be_a_tool(
    function: Callable[..., Any], answer: Any, name: str, described: str
) -> None:
    made = tool(function)
    assert (made.name, made.description) == (name, described)
    assert made.input_schema["required"] == ["name"]
    assert await call(function, name="ann") == answer


async def test_a_caller_cannot_override_arguments_of_a_partial() -> None:
    def act(user: str, **more: Any) -> list[Any]:
        return [user, more]

    bound = functools.partial(act, user="me")
    assert await call(bound, x=1) == ["me", {"x": 1}]
    assert 'no parameter "user"' in (await refused(bound, user="root")).message
    assert 'no parameter "user"' in (await refused(functools.partial(act, "me"), user="root")).message


# -- the context -------------------------------------------------------------------------------------------------------


def first(ctx, a: int) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001 - no annotation is the point
    return [ctx.caller.id, a]


def last(a: int, *, request: Context) -> Any:
    return [request.caller.id, a]


def optional(a: int, who: Context | None = None) -> Any:
    return [who.caller.id if who else None, a]


def quoted(a: int, who: "Context | None" = None) -> Any:
    return [who.caller.id if who else None, a]


def annotated(who: Annotated[Context, "the request"], /, a: int) -> Any:
    return [who.caller.id, a]


async def asynchronous(ctx: Context, a: int) -> Any:
    return [ctx.caller.id, a]


@pytest.mark.parametrize("function", [first, last, optional, quoted, annotated, asynchronous])
async def test_the_context_is_given_and_is_never_in_the_schema(function: Callable[..., Any]) -> None:
    assert list(properties(function)) == ["a"]
    assert await call(function, a=1) == ["me", 1]


async def test_a_context_that_only_type_checkers_import_is_known_by_its_name() -> None:
    for written in ("Context", "Context | None", "toolcrib.Context"):

        def act(who: Any, a: int) -> Any:
            return [who.caller.id, a]

        alone = types.FunctionType(act.__code__, {"__builtins__": __builtins__}, "act")
        alone.__annotations__ = {"who": written, "a": int}
        assert list(properties(alone)) == ["a"]
        assert await call(alone, a=1) == ["me", 1]


async def test_a_caller_cannot_pass_a_context() -> None:
    def act(ctx: Context, **more: Any) -> str:
        return ctx.caller.id

    assert 'no parameter "ctx"' in (await refused(act, ctx={"caller": {"id": "root"}})).message


# -- invalid arguments -------------------------------------------------------------------------------------------------


async def test_each_wrong_argument_is_named_with_what_would_fit_and_nothing_runs() -> None:
    ran: list[int] = []

    def draw(color: Color, at: Point, size: int | None = None) -> None:
        ran.append(1)

    error = await refused(draw, colour="red", at={"x": "secret", "z": 1}, size="big")
    assert '"color" is missing' in error.message
    assert '"at.x": input should be a valid integer' in error.message
    assert 'no parameter "at.z"' in error.message
    assert '"size": input should be a valid integer' in error.message
    assert 'no parameter "colour"' in error.message
    assert error.suggestions == ("color",)
    assert error.hint.startswith('Valid: it(color: "red"|"blue", at: {x: integer, y?: integer}')
    assert "secret" not in str(error)
    assert ran == []


async def test_the_message_of_a_models_own_validator_is_reported() -> None:
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("it must be even")
            return n

    def keep(even: Even) -> int:
        return even.n

    assert '"even.n": value error, it must be even' in (await refused(keep, even={"n": 3})).message
    assert await call(keep, even={"n": 4}) == 4


async def test_very_many_faults_are_counted() -> None:
    def add(xs: list[int]) -> int:
        return sum(xs)

    error = await refused(add, xs=["a"] * 100)
    assert "and 92 more" in error.message


async def test_arguments_that_are_no_json_are_refused() -> None:
    assert "not JSON" in (await refused(tell, user=object(), name="a")).message


# -- output schemas ----------------------------------------------------------------------------------------------------


class Row(TypedDict):
    id: int


def output(annotation: Any) -> Any:
    def give() -> Any: ...

    give.__annotations__["return"] = annotation
    return tool(give).output_schema


def test_a_return_annotation_of_json_becomes_the_output_schema() -> None:
    closed = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    assert output(Row) == closed
    assert output(list[Row]) == {"$defs": {"Row": closed}, "type": "array", "items": {"$ref": "#/$defs/Row"}}
    assert output(dict[str, int]) == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert output(int) == {"type": "integer"}
    assert output(date) == {"type": "string", "format": "date"}
    assert output(int | list[int])["anyOf"][0] == {"type": "integer"}
    assert output(Person)["properties"]["givenName"] == {"title": "First name", "type": "string"}


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        Any,
        object,
        str,
        bytes,
        Literal["a"],
        str | int,
        Row | None,
        ToolResult,
        mcp_types.CallToolResult,
        mcp_types.TextContent,
        list[mcp_types.TextContent | mcp_types.ImageContent],
        Annotated[str, "text"],
        NewType("Name", str),
        Iterator[int],
        threading.Lock,
        Callable[[], int],
        inspect.Signature.empty,
    ],
)
def test_text_content_and_nothing_promise_no_structured_content(annotation: Any) -> None:
    assert output(annotation) is None


def test_an_unused_return_annotation_may_be_unresolvable() -> None:
    assert tool(unresolved_return, output_schema=False).output_schema is None


def test_the_output_schema_may_be_given_or_left_out() -> None:
    assert tool(tell, output_schema=False).output_schema is None
    assert tool(tell, output_schema={"type": "array"}).output_schema == {"type": "array"}


async def test_structured_content_has_the_names_of_the_output_schema() -> None:
    def find() -> list[Person]:
        return [Person(givenName="Ann")]

    def raw() -> Person:
        return {"given_name": "Ann"}  # type: ignore[return-value]  # a dict of the right shape will do

    assert await call(find) == [{"givenName": "Ann"}]
    assert await call(raw) == {"givenName": "Ann"}


async def test_a_value_that_does_not_match_the_annotation_is_reported_without_the_value() -> None:
    def find() -> Person:
        return {"name": "secret"}  # type: ignore[return-value]  # the wrong shape is the point

    with pytest.raises(ExecutionFailed) as caught:
        await call(find)
    assert (
        caught.value.message
        == "it returned a value that does not match its return annotation: givenName: field required."
    )
    assert "output_schema=False" in caught.value.hint


async def test_a_result_may_be_returned_whatever_the_annotation() -> None:
    def find() -> dict[str, int]:
        return ToolResult(structured={"n": 1})  # type: ignore[return-value]  # a result is always allowed

    def foreign() -> dict[str, int]:
        return mcp_types.CallToolResult(content=[], structured_content={"n": 2})  # type: ignore[return-value]  # as above

    assert await call(find) == {"n": 1}
    assert await call(foreign) == {"n": 2}


async def test_a_promised_value_that_json_cannot_hold_is_refused() -> None:
    def price() -> dict[str, float]:
        return {"eur": float("nan")}

    with pytest.raises(ExecutionFailed, match="number nan at eur"):
        await call(price)


# -- functions that cannot be tools -----------------------------------------------------------------------------------


def variadic(*names: str) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def unresolved(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the missing type is the point


def unresolved_return() -> "Missing": ...  # type: ignore[name-defined]  # noqa: F821 - as above


def opaque(fine: int, lock: threading.Event) -> None: ...


def callback(then: Callable[[int], int]) -> None: ...


def twins(a: Annotated[int, Field(alias="b")], b: int) -> None: ...


def unpacked(**fields: Unpack[Row]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (variadic, r"\*names cannot be passed by name"),
        (generator, "generator"),
        (async_generator, "generator"),
        (unresolved, 'annotation of "a" cannot be resolved: name .Missing'),
        (unresolved_return, "return annotation cannot be resolved"),
        (opaque, 'type of "lock" cannot be used'),
        (callback, 'type of "then" cannot be used'),
        (twins, 'two parameters are called "b"'),
        (unpacked, "Unpack"),
        (Greeter, "is a class"),
        (Greeter.greet, "unbound method"),
        (Greeter.__dict__["make"], "classmethod cannot be called"),
        ("text", "str cannot be called"),
        (lambda: 1, "lambda has no name"),
        (max, "cannot be read"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_the_reason_and_a_remedy(function: Any, said: str) -> None:
    with pytest.raises(InvalidTool, match=said) as caught:
        function_tool(function)
    assert caught.value.hint


def test_options_that_make_no_sense_are_refused() -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"keywords": "mail"}, "keywords must be a list of words"),
        ({"tags": ["a", 1]}, "tags must be non-empty strings"),
        ({"annotations": {"readOnly": True}}, "annotations contain"),
        ({"annotations": {"readOnlyHint": "yes"}}, "readOnlyHint"),
        ({"icons": [{"href": "x"}]}, "icons"),
        ({"meta": {"x": object()}}, "meta cannot be written as JSON"),
        ({"visibility": "seen"}, "visibility must be one of native, discoverable, hidden, not seen"),
        ({"title": ""}, "title"),
        ({"output_schema": {"type": "nope"}}, "the output schema is broken"),
    ]
    for given, said in options:
        with pytest.raises(InvalidTool, match=said):
            function_tool(tell, **given)
    with pytest.raises(InvalidName):
        function_tool(tell, name="a:b")


def test_options_say_the_rest() -> None:
    made = tool(
        tell,
        name="say",
        namespace="people",
        title="Say",
        description="Say it.",
        keywords=["talk"],
        tags=("a",),
        visibility=Visibility.NATIVE,
        version="2",
        annotations={"readOnlyHint": True},
        meta={"k": 1},
        icons=[{"src": "data:,"}],
    )
    assert dataclasses.replace(made, input_schema={}, output_schema=None) == Tool(
        name="say",
        namespace="people",
        title="Say",
        description="Say it.",
        input_schema={},
        annotations={"readOnlyHint": True},
        icons=({"src": "data:,"},),
        keywords=("talk",),
        tags=("a",),
        visibility=Visibility.NATIVE,
        version="2",
        meta={"k": 1},
    )


# -- threads -----------------------------------------------------------------------------------------------------------

USER: contextvars.ContextVar[str] = contextvars.ContextVar("USER", default="nobody")


async def test_a_blocking_function_runs_in_a_thread_with_the_callers_context_variables() -> None:
    def where() -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), USER.get()]

    async def here() -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), USER.get()]

    USER.set("ann")
    assert await call(where) == [False, "ann"]
    assert await call(here) == [True, "ann"]


async def test_a_function_that_gives_an_awaitable_is_awaited() -> None:
    async def later(n: int) -> int:
        return n + 1

    assert await call(functools.partial(wrapped(later)), n=1) == 2
    assert await call(wrapped(later), n=1) == 2
