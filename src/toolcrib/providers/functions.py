"""Python functions as tools: `function_tool` makes one, `LocalTools` is the provider of a program's own functions."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from toolcrib.checks import checked
from toolcrib.containment import (
    WorkerThreads,
    contained,
    describe_exception,
    implies_not_run,
    is_nested_call_error,
    loggable,
    nested_failure,
    third_party_code,
    unwrap_group,
)
from toolcrib.errors import (
    AmbiguousName,
    ExecutionFailed,
    InvalidArguments,
    InvalidTool,
    NameCollision,
    ToolcribError,
    ToolNotFound,
)
from toolcrib.names import nearest
from toolcrib.providers.base import CallbackList, Provider
from toolcrib.providers.builder import ToolBuilder, bind_handler, checked_tool
from toolcrib.providers.callable_info import CallableInfo, inspect_callable, parse_docstring
from toolcrib.providers.definitions import invalid_words, validated
from toolcrib.sanitize import quote
from toolcrib.types import BackendKind, Context, Key, Object, Tool, ToolResult, Unsubscribe, Visibility, VisibilityName

logger = logging.getLogger(__name__)
_F = TypeVar("_F", bound=Callable[..., Any])


class ToolRunner(Protocol):
    """Runs the calls of one tool."""

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """Convert the arguments for the function. Raises `InvalidArguments`."""

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: WorkerThreads) -> ToolResult:
        """Call it with these values. Raises what the function raises."""


class ToolOptions(TypedDict, total=False):
    """Keyword options of `function_tool`, which override what the function itself says."""

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
    """A tool made of a function: its definition, and how to run it."""

    tool: Tool
    target: CallableInfo
    to_values: Callable[[Object], Mapping[str, Any]]
    to_result: Callable[[Any], ToolResult]

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """Convert the arguments to the annotated types. Raises `InvalidArguments`."""
        return self.to_values(arguments)

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: WorkerThreads) -> ToolResult:
        """Call the function, and convert what it returns to a result.

        A function that is not async runs in a thread. Raises `ExecutionFailed` for a value that is not JSON or does not
        match the return annotation, and what the function raises.
        """
        return await self.target.run(ctx, values, self.to_result, workers)


def function_tool(
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
    """Make a tool of a function.

    `function` is a sync or async function, a bound method, a partial, a staticmethod, or an object with `__call__`.
    Its parameters become the input schema. A parameter annotated as `Context`, or a first parameter called `ctx`
    without an annotation, receives the request's context and is not part of the schema. Descriptions of the tool and
    its parameters come from the docstring; `Annotated[int, "how many"]` and `Annotated[int, Field(ge=1)]` add to
    them. `**kwargs` takes all other arguments.

    The output schema comes from the return annotation, unless that is text or unstructured; False leaves it out.
    `annotations` are MCP's hints, as wire JSON. Raises `InvalidTool` or `InvalidName`.

    >>> def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.'''
    ...     return a + b
    >>> function_tool(add).tool.input_schema["properties"]
    {'a': {'type': 'integer'}, 'b': {'default': 1, 'type': 'integer'}}
    """
    # Loads pydantic, which gateways without functions do without.
    from toolcrib.providers.function_schema import ParameterModel, ReturnConverter  # noqa: PLC0415 - as above

    known = "" if name is None else _tool_id(namespace, name)
    target = inspect_callable(function, who=known, promises=output_schema is None)
    named = _function_name(target) if name is None else name
    who = _tool_id(namespace, named)
    docstring = parse_docstring(target.documentation)
    parameters = ParameterModel(target, docstring.parameters, who)
    written = output_schema if isinstance(output_schema, Mapping) else None
    returned = ReturnConverter(target.returns if output_schema is None else None, who, written)
    tool = Tool(
        name=named,
        namespace=namespace,
        title=title,
        description=docstring.description if description is None else description,
        input_schema=parameters.schema,
        output_schema=returned.schema,
        annotations=annotations or {},
        icons=tuple(icons or ()),
        keywords=_word_tuple(who, "keywords", keywords),
        tags=_word_tuple(who, "tags", tags),
        visibility=cast("Visibility", visibility),
        version=version,
        meta=meta or {},
    )
    return FunctionTool(tool=validated(tool), target=target, to_values=parameters.values, to_result=returned.result)


def _function_name(target: CallableInfo) -> str:
    if target.name == "<lambda>":
        raise InvalidTool("A lambda has no name.", hint='Give one: name="...".', data={"field": "name"})
    return target.name


def _tool_id(namespace: str, name: str) -> str:
    return f"{namespace}:{name}" if namespace else str(name)


def _word_tuple(who: str, field: str, words: Iterable[str] | None) -> tuple[str, ...]:
    """The words as a tuple; None is empty. A single string is an error, not a list of letters."""
    if isinstance(words, str) or not isinstance(words, Iterable | None):
        raise invalid_words(who, field, words)
    return tuple(words or ())


@dataclass(frozen=True, slots=True)
class _LocalEntry:
    tool: Tool
    runner: ToolRunner


class ToolDecorator(ABC):
    """Has the decorator `tool`, which makes a tool of a function."""

    @property
    @abstractmethod
    def _own_tools(self) -> "LocalTools":
        """Where decorated functions are registered."""

    @overload
    def tool(self, function: _F, /, *, strict: bool = False, **options: Unpack[ToolOptions]) -> _F: ...
    @overload
    def tool(
        self, name: str | None = None, /, *, strict: bool = False, **options: Unpack[ToolOptions]
    ) -> Callable[[_F], _F]: ...
    @checked
    def tool(self, given: Any = None, /, *, strict: bool = False, **options: Unpack[ToolOptions]) -> Any:
        """Register the decorated function: `@app.tool` or `@app.tool("name", tags=(...))`. It stays a plain function.

        Its parameters and docstring become the schema and the descriptions. The options are the fields of `Tool` except
        the input schema, and `strict`, which refuses to replace another definition of the same name. Raises
        `InvalidTool`, `InvalidName` or `NameCollision`.

        >>> tools = LocalTools()
        >>> @tools.tool("double", keywords=("twice",))
        ... def twofold(n: int) -> int:
        ...     return 2 * n
        >>> tools.get("double").keywords, twofold(4)
        (('twice',), 8)
        """
        if isinstance(given, str):
            options["name"] = given

        def register(function: _F) -> _F:
            self._own_tools.register_function(function, strict=strict, **options)
            return function

        return register if given is None or isinstance(given, str) else register(given)


@checked(methods=("register", "register_function", "unregister", "get", "reserve"))
class LocalTools(ToolDecorator, Provider):
    """The functions of this process: a provider of tools in any namespace, and the source of that provider.

    Safe to use from several threads and event loops. A definition is validated before it is registered; an invalid
    one changes nothing.
    """

    kind: Final = BackendKind.LOCAL

    def __init__(self, *, max_threads: int = 40, mask_errors: bool = False) -> None:
        """At most `max_threads` functions that are not async run at once, in threads, per event loop.

        Callers see the message of a handler's exception unless `mask_errors` is set; the log always has it.
        """
        self._lock = threading.Lock()
        self._entries: dict[Key, _LocalEntry] = {}
        self._listed: tuple[Tool, ...] | None = ()
        self._callbacks = CallbackList()
        self._workers = WorkerThreads(max_threads)
        self._mask_errors = mask_errors
        self._reserved: frozenset[str] = frozenset()

    # -- registering -----------------------------------------------------------------------------------------------

    def register(self, tool: Tool | ToolBuilder, handler: Callable[..., Any], *, strict: bool = False) -> Tool:
        """Register a tool with a handwritten schema, or replace the one of its key; return it as it is listed.

        The handler, sync or async, takes the arguments as one dict (a `ToolRequest`) or each by name, with or without a
        leading `ctx`. Missing arguments get the defaults of the schema.

        Raises `InvalidTool` or `InvalidName`, and `NameCollision` for a reserved name or, with `strict`, if another
        definition has the same key.
        """
        own = checked_tool(tool)
        return self._put(own, bind_handler(handler, own), strict=strict)

    def register_function(
        self, function: Callable[..., Any], *, strict: bool = False, **options: Unpack[ToolOptions]
    ) -> Tool:
        """Register a typed function, or replace the tool of its key; the options are those of `function_tool`."""
        made = function_tool(function, **options)
        return self._put(made.tool, made, strict=strict)

    @property
    def _own_tools(self) -> "LocalTools":
        """This provider."""
        return self

    def unregister(self, tool: str | Key) -> None:
        """Remove a tool, by its id or key. Raises `ToolNotFound`, with similar names."""
        with self._lock:
            key = self._key(tool)
            if key is None:
                self._missing(tool)
            del self._entries[key]
            self._listed = None
        self._callbacks.notify()

    # -- what is registered ----------------------------------------------------------------------------------------

    def tools(self) -> tuple[Tool, ...]:
        """All tools, in the order of registration; the same tuple while nothing changes."""
        listed = self._listed
        if listed is None:
            with self._lock:
                listed = self._listed
                if listed is None:  # no other thread was faster
                    listed = self._listed = tuple(entry.tool for entry in self._entries.values())
        return listed

    def get(self, tool: str | Key) -> Tool | None:
        """Get the tool of this id or key."""
        with self._lock:
            key = self._key(tool)
            return None if key is None else self._entries[key].tool

    def providers(self) -> Sequence[Provider]:
        """This provider."""
        return (self,)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each change, in the current event loop, or without one in the thread that made the change.

        A new handler for an equal definition is not a change.
        """
        return self._callbacks.add(callback)

    # -- as a provider ---------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        """All tools; the same tuple and the same objects while nothing changes."""
        return self.tools()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run the tool of this id, or of this name if only one namespace has it.

        Raises `AmbiguousName` if several namespaces have the name; otherwise as `call_key`.
        """
        with self._lock:
            keys = [key for key in (self._key(name),) if key] or [key for key in self._entries if key.name == name]
        if len(keys) > 1:
            ids = sorted(key.id for key in keys)
            raise AmbiguousName(
                f"{quote(name)} is ambiguous: {len(ids)} tools have that name.",
                hint=f"Use one of: {', '.join(ids)}.",
                suggestions=ids,
            )
        return await self.call_key(ctx, keys[0], arguments) if keys else None

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | None:
        """Run the tool of this key.

        Raises `InvalidArguments` before anything runs, and `ExecutionFailed` for any exception of the handler. Errors
        of toolcrib pass, except those that would mean that nothing was run, such as `ServerUnavailable` from a tool
        that the handler called: they become the `data` of an `ExecutionFailed`.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:
            values = entry.runner.values(arguments)
        except ToolcribError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failed(entry.tool, error) from error
        with third_party_code():
            try:
                return await contained(entry.runner.run(ctx, values, self._workers))
            except Exception as error:
                cause = unwrap_group(error)
                if not isinstance(cause, ToolcribError):
                    raise self._failed(entry.tool, error) from error
                # A getter of `ToolRequest` raises InvalidArguments about this call, not about a nested one.
                own = isinstance(cause, InvalidArguments) and not is_nested_call_error(cause)
                if implies_not_run(cause) and not own:
                    raise nested_failure(cause, entry.tool.id) from error
                if cause is error:
                    raise
                raise cause from error

    # -- inside ----------------------------------------------------------------------------------------------------

    def reserve(self, names: Iterable[str]) -> None:
        """Reject tools of these names without a namespace from now on: they belong to meta-tools."""
        self._reserved = frozenset(names)

    def _put(self, tool: Tool, runner: ToolRunner, *, strict: bool) -> Tool:
        if not tool.namespace and tool.name in self._reserved:
            raise NameCollision(
                f"{tool.name} is the name of a meta-tool, so a tool of that name could not be called.",
                hint="Give the tool another name or a namespace.",
            )
        with self._lock:
            before = self._entries.get(tool.key)
            same = before is not None and before.tool == tool
            if before is not None and not same and strict:
                raise NameCollision(
                    f"{tool.id} is already registered with another definition.",
                    hint="Unregister it first, or register without strict to replace it.",
                )
            kept = before.tool if before is not None and same else tool
            self._entries[tool.key] = _LocalEntry(kept, runner)
            if not same:
                self._listed = None
        if not same:
            self._callbacks.notify()
        return kept

    def _key(self, tool: str | Key) -> Key | None:
        """The registered key of this id or key, or None. Call it with the lock held."""
        if isinstance(tool, Key):
            return tool if tool in self._entries else None
        namespace, colon, name = str(tool).partition(":")
        key = Key(namespace, name) if colon else Key("", str(tool))
        return key if key in self._entries else None

    def _missing(self, tool: str | Key) -> NoReturn:
        asked = tool.id if isinstance(tool, Key) else str(tool)
        ids = [entry.tool.id for entry in self._entries.values()]
        close = nearest(asked, ids) or [one for one in ids if one.partition(":")[2] == asked]
        hint = f"Did you mean {' or '.join(close)}?" if close else "No similar tool is registered."
        raise ToolNotFound(f"No tool is called {quote(asked)}.", hint=hint, suggestions=close)

    def _failed(self, tool: Tool, error: BaseException) -> ToolcribError:
        logger.error("%s raised", tool.id, exc_info=loggable(error))
        if self._mask_errors:
            return ExecutionFailed(f"{tool.id} failed.", hint="The log has the cause.")
        return ExecutionFailed(f"{tool.id} failed: {describe_exception(error)}")
