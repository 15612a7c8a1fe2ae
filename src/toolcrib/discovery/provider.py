"""A base class that gives a model five meta-tools over any number of tools of a host.

The host's tools are fetched once and cached; the engine searches them, and the host runs them.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import anyio

from toolcrib.checks import checked
from toolcrib.containment import InternalCancellation, contained
from toolcrib.discovery.engine import ToolSearchEngine
from toolcrib.discovery.envelope import MAX_SIZE, Envelope, failure, to_envelope, typed_reason
from toolcrib.discovery.guards import Guard, GuardOptions
from toolcrib.discovery.host_tools import (
    LIST_LIMIT,
    MAX_FOUND,
    META_TOOLS,
    SEARCH_LIMIT,
    MetaTools,
    ToolPage,
    clamp_limit,
    get_schemas,
    is_meta_tool,
)
from toolcrib.discovery.results import SearchResult
from toolcrib.discovery.tool_reader import ParsedTool, ToolSet, default_name, default_namespace
from toolcrib.errors import AmbiguousName, CallTimeout, ExecutionFailed, InvalidRequest, ToolcribError, ToolNotFound
from toolcrib.formats.definitions import Format, definitions
from toolcrib.formats.openai import chat_tool
from toolcrib.schema.arguments import merge_arguments
from toolcrib.search.options import Scorer
from toolcrib.types import Object, Rejected

T = TypeVar("T")
logger = logging.getLogger(__name__)
V = TypeVar("V")

_MAX_LIMIT: Final = 1_000_000
Results = list[SearchResult[T]]
_LIST_DESCRIPTION: Final = 200
"""Characters of a description in a list."""
_SEARCH_DESCRIPTION: Final = 500
"""Characters of a description in a search."""
_THREAD_THRESHOLD: Final = 200
"""From this many tools on, they are read in a thread; fewer take some tens of milliseconds."""
_FILTER_MARGIN: Final = 4
"""How many times the limit is searched for if a filter may remove results."""


class _SetByInit:
    """Placeholder for what `BaseDynamicToolProvider.__init__` creates; reading it explains a missing
    `super().__init__()`.
    """

    def __get__(self, owner: object | None, kind: type) -> Any:
        if owner is None:
            return self
        raise InvalidRequest(
            f"{kind.__name__} is not ready: its __init__ does not call the base class's.",
            hint="Call super().__init__() in it.",
        )


def _set_by_init() -> Any:
    """The placeholder, typed as whatever replaces it."""
    return _SetByInit()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFunctions(Generic[T]):
    """The functions of the host."""

    load: Callable[[], Awaitable[Sequence[T]]]
    run: Callable[[str, dict[str, Any]], Awaitable[Any]]
    filter: Callable[[Results[T]], Results[T]] | None
    """Filters results; None without a filter."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class HostToolOptions:
    """How long a host's functions may take, and how much they may return."""

    load_timeout_s: float = 30.0
    """To load all tools."""
    call_timeout_s: float | None = 300.0
    """For one call; None means no limit."""
    max_result: int = MAX_SIZE
    """Maximum size of a result, in characters."""


class HostToolPort(Generic[T]):
    """Implements `ToolPort` for one host: its tools are fetched once, found by the engine, and run by the host."""

    def __init__(self, host: HostFunctions[T], engine: ToolSearchEngine[T], options: HostToolOptions) -> None:
        self._host = host
        self._engine = engine
        self._options = options
        self._loading: AsyncCached[ToolSet[T]] = AsyncCached(engine.use)

    def invalidate(self) -> None:
        """Fetch the tools again on next use, because they have changed."""
        self._loading.invalidate()

    async def list(self, limit: int) -> ToolPage:
        """Return the first tools, in the order of the host."""
        toolset = await self.tools()
        if self._host.filter is None:
            shown = [_plain_result(known) for known in toolset.listed[:limit]]
            return ToolPage(
                entries=[_entry(toolset, result, _LIST_DESCRIPTION) for result in shown], total=len(toolset.listed)
            )
        kept = self._filtered(_plain_results(toolset))
        entries = [_entry(toolset, result, _LIST_DESCRIPTION) for result in kept[:limit]]
        return ToolPage(entries=entries, total=len(kept))

    async def find(self, query: str | Sequence[str], limit: int) -> Sequence[Object]:
        """Return the tools that match and pass the filter, best first."""
        toolset = await self.tools()
        wanted = limit if self._host.filter is None else limit * _FILTER_MARGIN
        found = self._engine.search_in(toolset, query, wanted)
        kept = self._filtered(found)
        if len(kept) < limit and len(found) == wanted:
            kept = self._filtered(self._engine.search_in(toolset, query, max(wanted, len(toolset))))
        return [
            {
                **_entry(toolset, result, _SEARCH_DESCRIPTION),
                "score": round(result.score, 4),
                "match_reasons": list(result.match_reasons),
            }
            for result in kept[:limit]
        ]

    async def schema(self, name: str) -> Object:
        """Return a tool's definition, under the name to call it by."""
        toolset = await self.tools()
        known = self._visible_tool(toolset, name)
        return chat_tool(known.tool, name=toolset.call_name(known))

    async def call(self, name: str, given: Any, loose: Object) -> Envelope:
        """Validate the arguments, have the host run the tool, and record the outcome."""
        toolset = await self.tools()
        known = self._visible_tool(toolset, name)
        called = toolset.call_name(known)
        arguments = merge_arguments(given, loose, known.tool.input_schema, tool=called)
        toolset.check(known, arguments)
        try:
            value = await _with_timeout(self._options.call_timeout_s, partial(self._host.run, called, arguments))
            answer = to_envelope(value, self._options.max_result)
        except Exception as error:  # noqa: BLE001 - a host's tool may raise anything; the model reads the reason
            answer = failure(error)
        self._engine.session.record(known.id, answer["success"], by="call")
        return answer

    async def tools(self) -> ToolSet[T]:
        """Return all tools, fetched once; concurrent callers in one event loop share one fetch.

        Raises `ExecutionFailed` with the host's reason, and `CallTimeout`.
        """
        kept = self._loading.value
        return kept if kept is not None else await self._loading.get(self._load)

    async def _load(self) -> ToolSet[T]:
        return await self._read(await self._fetched())

    async def _read(self, tools: Sequence[T]) -> ToolSet[T]:
        """Return the tools with their index. Many tools are read and indexed in a thread, to keep the event loop free.

        Tools of the host's own classes are always read here: their attributes may belong to the loop.
        """
        if len(tools) < _THREAD_THRESHOLD:
            return self._indexed(tools)
        if self._engine.is_plain(tools):
            return await anyio.to_thread.run_sync(self._indexed, tools, abandon_on_cancel=True)
        toolset = self._engine.read(tools)
        await anyio.to_thread.run_sync(getattr, toolset, "index", abandon_on_cancel=True)
        return toolset

    def _indexed(self, tools: Sequence[T]) -> ToolSet[T]:
        toolset = self._engine.read(tools)
        if len(toolset):
            _ = toolset.index
        return toolset

    async def _fetched(self) -> Sequence[T]:
        try:
            tools = await _with_timeout(self._options.load_timeout_s, self._host.load)
        except CallTimeout as error:
            raise CallTimeout(f"The tools could not be loaded: {error.message}", hint="Try again later.") from error
        except Exception as error:
            raise ExecutionFailed(
                f"The tools could not be loaded: {typed_reason(error).rstrip('.')}.",
                hint="The source of the tools failed; the list is not empty. Try again later.",
            ) from error
        if tools is None or isinstance(tools, (str, bytes, Mapping)) or not hasattr(tools, "__iter__"):
            raise ExecutionFailed(
                f"The tools could not be loaded: get_all_tools returned {type(tools).__name__} instead of a list.",
                hint="Return list(tools.values())." if isinstance(tools, Mapping) else "Return a list of tools.",
            )
        return list(tools)

    def _visible_tool(self, toolset: ToolSet[T], name: Any) -> ParsedTool[T]:
        """Return the tool of that name, if the filter leaves it: any other looks as if it did not exist."""
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest("tool_name must be the name of a tool.", hint="search_tools finds names.")
        if self._host.filter is None:
            return toolset.find(name)
        try:
            known = toolset.find(name)
            if self._filtered([_plain_result(known)]):
                return known
        except (ToolNotFound, AmbiguousName):
            pass  # errors must only mention tools that pass the filter
        ids = {id(result.tool) for result in self._filtered(_plain_results(toolset))}
        return toolset.find(name, toolset.mask([one for one in toolset.tools if id(one.original) in ids]))

    def _filtered(self, results: Results[T]) -> Results[T]:
        """Apply the host's filter. Raises `ExecutionFailed` if it fails: nothing is shown then."""
        if self._host.filter is None:
            return results
        try:
            kept: Any = self._host.filter(results)
            return [result for result in kept if isinstance(result, SearchResult)]
        except Exception as error:
            # The exception may mention what the filter hides.
            logger.exception("filter_search_results failed; nothing is shown")
            raise ExecutionFailed(
                f"filter_search_results failed ({type(error).__name__}).",
                hint="It must return a list of results; the log has the cause.",
            ) from error


@checked(methods=("get_dynamic_tools", "call_many"))
class BaseDynamicToolProvider(ABC, Generic[T]):
    """Five meta-tools over the tools of a subclass, which says what the tools are and how to run one.

    `list_tools` and `search_tools` return lists and raise `ToolcribError`; everything else responds with the envelope
    `{"success": True, "result": ...}` or `{"success": False, "error": ...}` and raises nothing, even if the source of
    the tools is down. Calls are recorded for later searches; the host marks the beginning of a turn with
    `provider.engine.advance_turn()`. Tools are fetched once, until `invalidate_cache`.
    """

    engine: ToolSearchEngine[T] = _set_by_init()
    """Searches the tools, and holds the session."""
    _toolcrib_port: HostToolPort[T] = _set_by_init()
    _toolcrib_meta: MetaTools = _set_by_init()

    def __init__(
        self,
        *,
        scorer: Scorer = "hybrid",
        engine: ToolSearchEngine[T] | None = None,
        options: HostToolOptions | None = None,
        guards: GuardOptions | None = None,
    ) -> None:
        """Create a provider with its own engine, and so its own session, unless one is given.

        A given engine reads names with its own `name_of` and `namespace_of`. `guards` say when to note that the model
        goes in circles; they apply to `execute_dynamic_tool` and `call_many`.
        """
        self.engine = engine or ToolSearchEngine(
            scorer,
            name_of=self.get_tool_name if self._toolcrib_overrides("get_tool_name") else default_name,
            namespace_of=self.get_tool_namespace
            if self._toolcrib_overrides("get_tool_namespace")
            else default_namespace,
        )
        is_filtered = self._toolcrib_overrides("filter_search_results")
        host: HostFunctions[T] = HostFunctions(
            load=self.get_all_tools,
            run=self.execute_tool,
            filter=self.filter_search_results if is_filtered else None,
        )
        # Unlikely names in a subclass: the reference documentation's own subclasses have _tools and _find_tool.
        self._toolcrib_port = HostToolPort(host, self.engine, options or HostToolOptions())
        self._toolcrib_meta = MetaTools(self._toolcrib_port, guard=Guard(guards), turn=lambda: self.engine.session.turn)

    def _toolcrib_overrides(self, hook: str) -> bool:
        """Whether the subclass overrides a hook."""
        return getattr(type(self), hook) is not getattr(BaseDynamicToolProvider, hook) or hook in vars(self)

    @abstractmethod
    async def get_all_tools(self) -> list[T]:
        """Return all tools, in any order. Called once, and again after `invalidate_cache` or a failure."""

    @abstractmethod
    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a tool. Return `{"success": True, "result": ...}`, or `{"success": False, "error": ...}`.

        The name is that of `get_tool_name`, prefixed with the namespace and a dot if another tool has the same one. Any
        other return value is taken as the result, an exception as the error.
        """

    def filter_search_results(self, results: list[SearchResult[T]]) -> list[SearchResult[T]]:
        """Return the results that may be shown. Override to hide tools: from lists, searches, schemas and calls alike.

        In lists, schemas and calls, each tool comes as a result with score 1.0. A tool that is left out looks as if it
        did not exist. If the override raises, nothing is shown.
        """
        return results

    def get_tool_name(self, tool: T) -> str:
        """Return the name of a tool. Override it if the tools keep it elsewhere."""
        return default_name(tool)

    def get_tool_namespace(self, tool: T) -> str:
        """Return the namespace of a tool; by default, also the part of the name before the last dot."""
        return default_namespace(tool)

    def get_dynamic_tools(self, format: Format = "openai") -> list[dict[str, Any]]:  # noqa: A002 - what hosts call it
        """Return the definitions of the meta-tools for the model. Raises `InvalidRequest` for an unknown format."""
        return definitions(META_TOOLS, format)

    def is_dynamic_tool(self, tool_name: str) -> bool:
        """Whether a name is that of a meta-tool."""
        return is_meta_tool(tool_name)

    def invalidate_cache(self) -> None:
        """Fetch the tools again on next use, because they have changed."""
        self._toolcrib_port.invalidate()

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """The tools that cannot be used, and why; empty before they are fetched."""
        return self.engine.rejected

    async def list_tools(self, limit: int = LIST_LIMIT) -> list[dict[str, Any]]:
        """Return the first tools: name, namespace and description of each, in the order of `get_all_tools`.

        Raises `ExecutionFailed` if they cannot be loaded, and `InvalidRequest` for a limit that is not a number.
        """
        return [dict(entry) for entry in (await self._toolcrib_port.list(clamp_limit(limit, _MAX_LIMIT))).entries]

    async def search_tools(self, query: str | Sequence[str], limit: int = SEARCH_LIMIT) -> list[dict[str, Any]]:
        """Return the tools that match, best first: name, namespace, description, score and match_reasons of each.

        Several queries are one need in other words. The list is empty if nothing matches. Raises as `list_tools` does.
        """
        return [dict(entry) for entry in await self._toolcrib_port.find(query, clamp_limit(limit, MAX_FOUND))]

    async def get_tool_schema(self, tool_name: str) -> dict[str, Any]:
        """Return how to call a tool: `{"type": "function", "function": {"name", "description", "parameters"}}`.

        Without such a tool: `{"success": False, "error": ..., "suggestions": [...]}`.
        """
        try:
            return dict(await self._toolcrib_port.schema(tool_name))
        except ToolcribError as error:
            return failure(error)

    async def get_tool_schemas(self, tool_names: Sequence[str]) -> dict[str, Any]:
        """Return how to call several tools: `{"success", "schemas", "errors": [{"tool_name", "error"}], "count"}`."""
        try:
            return await get_schemas(self._toolcrib_port, [tool_names] if isinstance(tool_names, str) else tool_names)
        except ToolcribError as error:
            return failure(error)

    async def call_tool(self, tool_name: str, arguments: dict[str, Any] | str | None = None) -> Envelope:
        """Call a tool by its name in any spelling, with its arguments as a dict or as JSON text.

        Arguments that do not match its schema get an error that says what would; nothing runs then.
        """
        try:
            return await self._toolcrib_port.call(tool_name, arguments, {})
        except ToolcribError as error:
            return failure(error)

    async def call_many(self, calls: Iterable[Any]) -> list[Envelope]:
        """Run independent calls concurrently, at most eight at a time; responses are in order. A failure affects no
        other call.

        A call is what the meta-tool `call_tool` takes, or a pair of name and arguments.
        """
        asked = list(calls)
        try:
            meta = self._toolcrib_meta
        except ToolcribError as error:
            return [failure(error) for _ in asked]
        return await meta.call_many(asked)

    async def execute_dynamic_tool(self, tool_name: str, arguments: dict[str, Any] | str | None = None) -> Envelope:
        """Run a meta-tool as the model requested; the response is always an envelope."""
        try:
            meta = self._toolcrib_meta
        except ToolcribError as error:
            return failure(error)
        return await meta.run(tool_name, arguments)


async def _with_timeout(seconds: float | None, run: Callable[[], Any]) -> Any:
    """Return the result of a host's function, awaited if necessary.

    Raises `CallTimeout`, and `ExecutionFailed` if something inside was cancelled rather than the caller.
    """
    done: list[Any] = [None]
    try:
        with anyio.move_on_after(seconds):
            done = [await contained(_maybe_await(run)), None]
    except InternalCancellation as error:
        raise ExecutionFailed(f"{error}.") from error
    if len(done) == 1:
        raise CallTimeout(f"no response within {seconds:g} s.")
    return done[0]


async def _maybe_await(run: Callable[[], Any]) -> Any:
    value = run()
    return await value if isawaitable(value) else value


def _plain_result(known: ParsedTool[T]) -> SearchResult[T]:
    return SearchResult(known.original, 1.0, [], 1.0, parsed=known)


def _plain_results(toolset: ToolSet[T]) -> list[SearchResult[T]]:
    return [_plain_result(known) for known in toolset.listed]


def _entry(toolset: ToolSet[T], result: SearchResult[T], most: int) -> dict[str, Any]:
    name = toolset.call_name(result.parsed) if result.parsed else result.name
    description = " ".join((result.description or "").split())
    shown = description if len(description) <= most else f"{description[: most - 1]}…"
    return {"name": name, "namespace": result.namespace, "description": shown}


@dataclass(slots=True, eq=False)
class _Fetch(Generic[V]):
    generation: int
    """How often the value had been invalidated when the fetch began."""
    owner: "asyncio.Task[Any] | None"
    done: anyio.Event = field(default_factory=anyio.Event)
    result: V | None = None
    """None if it failed or was cancelled."""


class AsyncCached(Generic[V]):
    """A value that is fetched when needed: once for all waiting tasks of an event loop, then cached for all loops.

    Safe to use from several threads, each with its own event loop; they do not wait for each other.
    """

    def __init__(self, use: Callable[[V], None]) -> None:
        """`use` is called with each value that is newer than the last; it must be quick."""
        self._use = use
        self._lock = threading.Lock()
        self._value: V | None = None
        self._generation = 0
        self._used_generation = -1
        self._fetch_under_ways: WeakKeyDictionary[asyncio.AbstractEventLoop, _Fetch[V]] = WeakKeyDictionary()

    @property
    def value(self) -> V | None:
        """The value, if it is cached."""
        return self._value

    def invalidate(self) -> None:
        """Fetch the value again on next use; later callers ignore a fetch that is already under way."""
        with self._lock:
            self._generation += 1
            self._value = None

    async def get(self, fetch: Callable[[], Awaitable[V]]) -> V:
        """Return the value. If a fetch fails, one caller gets the error and another waiting one tries again.

        Raises what the fetch raises, and `ExecutionFailed` if the fetch itself asks for the value.
        """
        loop, task, needed = asyncio.get_running_loop(), asyncio.current_task(), self._generation
        while True:
            with self._lock:
                if self._value is not None:
                    return self._value
                fetch_under_way = self._fetch_under_ways.get(loop)
                if fetch_under_way is None:
                    own = self._fetch_under_ways[loop] = _Fetch(self._generation, task)
                    break
            if fetch_under_way.owner is task:
                raise ExecutionFailed(
                    "The function that loads the tools asked for them itself.", hint="Return the tools instead."
                )
            await fetch_under_way.done.wait()
            if fetch_under_way.result is not None and fetch_under_way.generation >= needed:
                return fetch_under_way.result
        try:
            own.result = self._store(await fetch(), own.generation)
            return own.result
        finally:
            with self._lock:
                self._fetch_under_ways.pop(loop, None)
            own.done.set()

    def _store(self, value: V, generation: int) -> V:
        """Cache the value, unless it is out of date; another loop may have been faster."""
        with self._lock:
            if generation == self._generation:
                if self._value is not None:
                    return self._value
                self._value = value
            if generation > self._used_generation:
                self._used_generation = generation
                self._use(value)
            return value
