"""Python functions as tools: `function_tool` makes one, `LocalTools` is the provider of a program's own functions."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from toolcrib.catalog.catalog import quote
from toolcrib.containment import (
    WorkerThreads,
    contained,
    describe_exception,
    implies_not_run,
    is_nested_call_error,
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
from toolcrib.providers.base import CallbackList
from toolcrib.providers.builder import ToolBuilder, bind_handler
from toolcrib.providers.callable_info import CallableInfo, inspect_callable, parse_docstring
from toolcrib.providers.definitions import invalid_words, validated
from toolcrib.providers.function_schema import ParameterModel, ReturnConverter
from toolcrib.types import (
    BackendKind,
    Context,
    Key,
    Object,
    Provider,
    Tool,
    ToolResult,
    Unsubscribe,
    Visibility,
    VisibilityName,
)


class ToolRunner(Protocol):
    """Runs a tool."""

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """The arguments as the function takes them; raises `InvalidArguments`."""

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: WorkerThreads) -> ToolResult:
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
    target: CallableInfo
    parameters: ParameterModel
    returned: ReturnConverter

    def values(self, arguments: Object) -> Mapping[str, Any]:
        """The arguments, converted to what the annotations ask for. Raises `InvalidArguments`."""
        return self.parameters.values(arguments)

    async def run(self, ctx: Context, values: Mapping[str, Any], workers: WorkerThreads) -> ToolResult:
        """Call the function with these values, and make a result of what it returns.

        A function that is not async runs in a thread. Raises `ExecutionFailed` for what is not JSON or breaks the
        promise of its annotation, and whatever it raises itself.
        """
        return await self.target.run(ctx, values, self.returned.result, workers)


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
    >>> function_tool(add).tool.input_schema["properties"]
    {'a': {'type': 'integer'}, 'b': {'default': 1, 'type': 'integer'}}
    """
    known = "" if name is None else _tool_id(namespace, name)
    target = inspect_callable(function, who=known, promises=output_schema is None)
    named = _function_name(target) if name is None else name
    who = _tool_id(namespace, named)
    said = parse_docstring(target.documentation)
    parameters = ParameterModel(target, said.parameters, who)
    returned = ReturnConverter(target.returns if output_schema is None else None, who)
    tool = Tool(
        name=named,
        namespace=namespace,
        title=title,
        description=said.description if description is None else description,
        input_schema=parameters.schema,
        output_schema=output_schema if isinstance(output_schema, Mapping) else returned.schema,
        annotations=annotations or {},
        icons=tuple(icons or ()),
        keywords=_word_tuple(who, "keywords", keywords),
        tags=_word_tuple(who, "tags", tags),
        visibility=cast("Visibility", visibility),
        version=version,
        meta=meta or {},
    )
    return FunctionTool(tool=validated(tool), target=target, parameters=parameters, returned=returned)


def _function_name(target: CallableInfo) -> str:
    if target.name == "<lambda>":
        raise InvalidTool("A lambda has no name.", hint='Give one: name="...".', data={"field": "name"})
    return target.name


def _tool_id(namespace: str, name: str) -> str:
    return f"{namespace}:{name}" if namespace else str(name)


def _word_tuple(who: str, field: str, words: Iterable[str] | None) -> tuple[str, ...]:
    """The words as a tuple; None is none of them. One text is an error, not many words of one letter."""
    if isinstance(words, str) or not isinstance(words, Iterable | None):
        raise invalid_words(who, field, words)
    return tuple(words or ())


logger = logging.getLogger(__name__)


_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _LocalEntry:
    tool: Tool
    runner: ToolRunner


class LocalTools(Provider):
    """The functions of this process: a provider of tools of any namespaces, and the source that offers it.

    Everything may be done from several threads and event loops at once. A definition is checked before it is taken;
    one that cannot be used changes nothing.
    """

    kind: Final = BackendKind.LOCAL

    def __init__(self, *, max_threads: int = 40, mask_errors: bool = False) -> None:
        """Nothing is registered yet.

        `max_threads` is how many functions that are not async may run at once, in threads, for each event loop. What
        an exception of a handler says is told to the caller, unless `mask_errors`; the log has it in any case.
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
        """Add a tool whose schema is written by hand, or replace the one of its key.

        The handler, sync or async, takes the arguments as one dict (a `ToolRequest`), or each by its name, with or
        without a leading `ctx`; which of them is decided now. Absent arguments take the defaults of the schema.

        With `strict`, another definition under the same key is refused with `NameCollision`. Raises `InvalidTool` or
        `InvalidName` otherwise. Gives the tool as it is listed. A name that is reserved is a `NameCollision` too.
        """
        own = tool.to_tool() if isinstance(tool, ToolBuilder) else validated(tool)
        return self._put(own, bind_handler(handler, own), strict=strict)

    def register_function(
        self, function: Callable[..., Any], *, strict: bool = False, **options: Unpack[ToolOptions]
    ) -> Tool:
        """Add a typed function as a tool, or replace the one of its key; the options are those of `tool_of`."""
        made = function_tool(function, **options)
        return self._put(made.tool, made, strict=strict)

    @overload
    def tool(self, function: _F, /, *, strict: bool = False, **options: Unpack[ToolOptions]) -> _F: ...
    @overload
    def tool(
        self, name: str | None = None, /, *, strict: bool = False, **options: Unpack[ToolOptions]
    ) -> Callable[[_F], _F]: ...
    def tool(self, given: Any = None, /, *, strict: bool = False, **options: Unpack[ToolOptions]) -> Any:
        """Register the decorated function, which stays as it is; with a name, and with the options of `tool_of`.

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
            self.register_function(function, strict=strict, **options)
            return function

        return register if given is None or isinstance(given, str) else register(given)

    def unregister(self, tool: str | Key) -> None:
        """Take a tool away, by its id or its key. Raises `ToolNotFound`, with close names."""
        with self._lock:
            key = self._key(tool)
            if key is None:
                self._missing(tool)
            del self._entries[key]
            self._listed = None
        self._callbacks.notify()

    # -- what there is ---------------------------------------------------------------------------------------------

    def tools(self) -> tuple[Tool, ...]:
        """Every tool, in the order of registering; the same tuple while nothing changes."""
        listed = self._listed
        if listed is None:
            with self._lock:
                listed = self._listed
                if listed is None:  # nobody else was quicker
                    listed = self._listed = tuple(entry.tool for entry in self._entries.values())
        return listed

    def get(self, tool: str | Key) -> Tool | None:
        """The tool of that id or key, or None."""
        with self._lock:
            key = self._key(tool)
            return None if key is None else self._entries[key].tool

    def providers(self) -> Sequence[Provider]:
        """This one."""
        return (self,)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each change, in the event loop that runs now.

        Given where none runs, it is called in the thread that makes the change. A new handler under an equal
        definition is no change.
        """
        return self._callbacks.add(callback)

    # -- as a provider ---------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's signature
        """Every tool; the same tuple, and the same objects, while nothing changes."""
        return self.tools()

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run the tool of that id, or of that name where it is the only one; None when there is none.

        Raises `AmbiguousName` when several namespaces have the name; otherwise as `call_key`.
        """
        with self._lock:
            keys = [key for key in (self._key(name),) if key] or [key for key in self._entries if key.name == name]
        if len(keys) > 1:
            ids = sorted(f"{key.namespace}:{key.name}" for key in keys)
            raise AmbiguousName(
                f"{quote(name)} is ambiguous: {len(ids)} tools have that name.",
                hint=f"Use one of: {', '.join(ids)}.",
                suggestions=ids,
            )
        return await self.call_key(ctx, keys[0], arguments) if keys else None

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | None:
        """Run the tool of that key; None when there is none.

        Raises `InvalidArguments` before anything runs, and `ExecutionFailed` for whatever the handler raises. Errors
        of toolcrib pass as they are, but for those that would say that nothing was run, such as `ServerUnavailable`
        of a tool that the handler called: they become the `data` of an `ExecutionFailed`.
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
                # What a request's getter finds wrong is about this call, and not about one inside.
                own = isinstance(cause, InvalidArguments) and not is_nested_call_error(cause)
                if implies_not_run(cause) and not own:
                    raise nested_failure(cause, entry.tool.id) from error
                if cause is error:
                    raise
                raise cause from error

    # -- inside ----------------------------------------------------------------------------------------------------

    def reserve(self, names: Iterable[str]) -> None:
        """Refuse tools of these names that have no namespace, from now on: they are taken by what lists the tools."""
        self._reserved = frozenset(names)

    def _put(self, tool: Tool, runner: ToolRunner, *, strict: bool) -> Tool:
        if not tool.namespace and tool.name in self._reserved:
            raise NameCollision(
                f"{tool.name} is the name of a meta-tool, so that nobody could call a tool of that name.",
                hint="Give the tool another name, or a namespace.",
            )
        with self._lock:
            before = self._entries.get(tool.key)
            same = before is not None and before.tool == tool
            if before is not None and not same and strict:
                raise NameCollision(
                    f"{tool.id} is registered already, with another definition.",
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
        """The key of that id, or the key itself; None where nothing is registered under it. Under the lock."""
        if isinstance(tool, Key):
            return tool if tool in self._entries else None
        namespace, colon, name = str(tool).partition(":")
        key = Key(namespace, name) if colon else Key("", str(tool))
        return key if key in self._entries else None

    def _missing(self, tool: str | Key) -> NoReturn:
        asked = f"{tool.namespace}:{tool.name}" if isinstance(tool, Key) and tool.namespace else tool
        asked = asked.name if isinstance(asked, Key) else str(asked)
        ids = [entry.tool.id for entry in self._entries.values()]
        close = nearest(asked, ids) or [one for one in ids if one.partition(":")[2] == asked]
        hint = f"Did you mean {' or '.join(close)}?" if close else "Nothing like it is registered."
        raise ToolNotFound(f"No tool is called {quote(asked)}.", hint=hint, suggestions=close)

    def _failed(self, tool: Tool, error: BaseException) -> ToolcribError:
        logger.error("%s raised", tool.id, exc_info=error)
        if self._mask_errors:
            return ExecutionFailed(f"{tool.id} failed.", hint="Its log has the cause.")
        return ExecutionFailed(f"{tool.id} failed: {describe_exception(error)}")
