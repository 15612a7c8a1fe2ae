"""Typed Python functions as tools: the signature becomes the schema, the docstring the description."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, cast

from toolcrib.errors import InvalidTool
from toolcrib.model import Object, Tool, ToolResult, Visibility, VisibilityName
from toolcrib.protocols import Context
from toolcrib.providers.docstrings import documentation
from toolcrib.providers.parameters import Parameters
from toolcrib.providers.returned import Returned
from toolcrib.providers.soundness import no_words, sound
from toolcrib.providers.target import Target, target_of
from toolcrib.providers.workers import Workers


class Runner(Protocol):
    """Runs a tool."""

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """The arguments as the function takes them; raises `InvalidArguments`."""

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: Workers) -> ToolResult:
        """The result of a call with these values; raises whatever the function raises."""


class ToolOptions(TypedDict, total=False):
    """What may be said of a function's tool beside what the function says itself; see `tool_of`."""

    name: str | None
    namespace: str
    title: str | None
    description: str | None
    keywords: Iterable[str] | None
    tags: Iterable[str] | None
    visibility: Visibility | VisibilityName
    version: str | None
    annotations: Object | None
    output_schema: Object | Literal[False] | None
    meta: Object | None
    icons: Iterable[Object] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool:
    """A function as a tool: its definition, and the way to run it."""

    tool: Tool
    target: Target
    parameters: Parameters
    returned: Returned

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """The arguments, converted to what the annotations ask for. Raises `InvalidArguments`."""
        return self.parameters.values(arguments)

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: Workers) -> ToolResult:
        """Call the function with these values, and make a result of what it returns.

        A function that is not async runs in a thread. Raises `ExecutionFailed` for what is not JSON or breaks the
        promise of its annotation, and whatever it raises itself.
        """
        return await self.target.run(ctx, values, self.returned.result, workers)


def tool_of(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    namespace: str = "",
    title: str | None = None,
    description: str | None = None,
    keywords: Iterable[str] | None = (),
    tags: Iterable[str] | None = (),
    visibility: Visibility | VisibilityName = Visibility.DISCOVERABLE,
    version: str | None = None,
    annotations: Object | None = None,
    output_schema: Object | Literal[False] | None = None,
    meta: Object | None = None,
    icons: Iterable[Object] | None = (),
) -> FunctionTool:
    """A function as a tool.

    `function` is a function, sync or async, a method of an object, a partial, a staticmethod, or an object with
    `__call__`. Its parameters become the input schema; a parameter annotated `Context`, or a first one called `ctx`
    without an annotation, gets the request's context and is no part of it. The docstring gives the description and
    what each parameter means; `Annotated[int, "how many"]` and `Annotated[int, Field(ge=1)]` say more. `**kwargs`
    takes what else there is.

    The output schema is that of the return annotation where it promises more than text; False leaves it out.
    `annotations` are MCP's hints, as wire JSON. Raises `InvalidTool` or `InvalidName`.

    >>> def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> tool_of(add).tool.input_schema["properties"]
    {'a': {'type': 'integer'}, 'b': {'default': 1, 'type': 'integer'}}
    """
    known = "" if name is None else _who(namespace, name)
    target = target_of(function, who=known, promises=output_schema is None)
    named = _named(target) if name is None else name
    who = _who(namespace, named)
    said = documentation(target.documentation)
    parameters = Parameters(target, said.parameters, who)
    returned = Returned(target.returns if output_schema is None else None, who)
    tool = Tool(
        name=named,
        namespace=namespace,
        title=title,
        description=said.description if description is None else description,
        input_schema=parameters.schema,
        output_schema=output_schema if isinstance(output_schema, Mapping) else returned.schema,
        annotations=annotations or {},
        icons=tuple(icons or ()),
        keywords=_words(who, "keywords", keywords),
        tags=_words(who, "tags", tags),
        visibility=cast("Visibility", visibility),
        version=version,
        meta=meta or {},
    )
    return FunctionTool(tool=sound(tool), target=target, parameters=parameters, returned=returned)


def _named(target: Target) -> str:
    if target.name == "<lambda>":
        raise InvalidTool("A lambda has no name.", hint='Give one: name="...".', data={"field": "name"})
    return target.name


def _who(namespace: str, name: str) -> str:
    return f"{namespace}:{name}" if namespace else str(name)


def _words(who: str, field: str, words: Iterable[str] | None) -> tuple[str, ...]:
    """The words as a tuple; None is none of them. One text is an error, not many words of one letter."""
    if isinstance(words, str) or not isinstance(words, Iterable | None):
        raise no_words(who, field, words)
    return tuple(words or ())
