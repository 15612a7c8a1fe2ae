"""The functions of this process as tools."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar, Unpack, overload

from toolcrib.catalog.misses import quoted
from toolcrib.errors import (
    AmbiguousName,
    ExecutionFailed,
    InvalidArguments,
    NameCollision,
    ToolcribError,
    ToolNotFound,
)
from toolcrib.model import BackendKind, Key, Object, Tool, ToolResult
from toolcrib.protocols import Context, ToolProvider, Unsubscribe
from toolcrib.providers.builder import ToolBuilder
from toolcrib.providers.callbacks import Callbacks
from toolcrib.providers.foreign import (
    cause_of,
    failed_inside,
    left_one_inside,
    misleads,
    run_by_others,
    said,
    uncancelled,
)
from toolcrib.providers.functions import Runner, ToolOptions, tool_of
from toolcrib.providers.handlers import handler_of
from toolcrib.providers.soundness import sound
from toolcrib.providers.workers import Workers
from toolcrib.words import nearest

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    runner: Runner


class LocalTools:
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
        self._entries: dict[Key, _Entry] = {}
        self._listed: tuple[Tool, ...] | None = ()
        self._callbacks = Callbacks()
        self._workers = Workers(max_threads)
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
        own = tool.to_tool() if isinstance(tool, ToolBuilder) else sound(tool)
        return self._put(own, handler_of(handler, own), strict=strict)

    def register_function(
        self, function: Callable[..., Any], *, strict: bool = False, **options: Unpack[ToolOptions]
    ) -> Tool:
        """Add a typed function as a tool, or replace the one of its key; the options are those of `tool_of`."""
        made = tool_of(function, **options)
        return self._put(made.tool, made, strict=strict)

    @overload
    def tool(self, function: F, /, *, strict: bool = False, **options: Unpack[ToolOptions]) -> F: ...
    @overload
    def tool(
        self, name: str | None = None, /, *, strict: bool = False, **options: Unpack[ToolOptions]
    ) -> Callable[[F], F]: ...
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

        def register(function: F) -> F:
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
        self._callbacks.tell()

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

    def providers(self) -> Sequence[ToolProvider]:
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
                f"{quoted(name)} is ambiguous: {len(ids)} tools have that name.",
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
        with run_by_others():
            try:
                return await uncancelled(entry.runner.run(ctx, values, self._workers))
            except Exception as error:
                cause = cause_of(error)
                if not isinstance(cause, ToolcribError):
                    raise self._failed(entry.tool, error) from error
                # What a request's getter finds wrong is about this call, and not about one inside.
                own = isinstance(cause, InvalidArguments) and not left_one_inside(cause)
                if misleads(cause) and not own:
                    raise failed_inside(cause, entry.tool.id) from error
                if cause is error:
                    raise
                raise cause from error

    # -- inside ----------------------------------------------------------------------------------------------------

    def reserve(self, names: Iterable[str]) -> None:
        """Refuse tools of these names that have no namespace, from now on: they are taken by what lists the tools."""
        self._reserved = frozenset(names)

    def _put(self, tool: Tool, runner: Runner, *, strict: bool) -> Tool:
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
            self._entries[tool.key] = _Entry(kept, runner)
            if not same:
                self._listed = None
        if not same:
            self._callbacks.tell()
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
        raise ToolNotFound(f"No tool is called {quoted(asked)}.", hint=hint, suggestions=close)

    def _failed(self, tool: Tool, error: BaseException) -> ToolcribError:
        logger.error("%s raised", tool.id, exc_info=error)
        if self._mask_errors:
            return ExecutionFailed(f"{tool.id} failed.", hint="Its log has the cause.")
        return ExecutionFailed(f"{tool.id} failed: {said(error)}")
