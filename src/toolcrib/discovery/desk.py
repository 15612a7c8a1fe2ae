"""The meta-tools' port over a host's own tools: fetched once, found by the engine, run by the host."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Generic, TypeVar

import anyio

from toolcrib.cancelled import CancelledInside, uncancelled
from toolcrib.discovery.arguments import settle
from toolcrib.discovery.engine import ToolSearchEngine
from toolcrib.discovery.envelope import MAX_SIZE, Answer, answered, failed, told
from toolcrib.discovery.loading import Loading
from toolcrib.discovery.metatools import Listing
from toolcrib.discovery.results import SearchResult
from toolcrib.discovery.toolset import Known, ToolSet
from toolcrib.errors import AmbiguousName, CallTimeout, ExecutionFailed, InvalidRequest, ToolNotFound
from toolcrib.formats.openai import chat_tool
from toolcrib.model import Object

logger = logging.getLogger(__name__)

T = TypeVar("T")

Results = list[SearchResult[T]]
"""What the filter takes and gives."""

_LISTED: Final = 200
"""Characters of a description in a list."""
_FOUND: Final = 500
"""Characters of a description in a search."""
_MANY: Final = 200
"""Tools from which on they are read in a thread; fewer take some tens of milliseconds."""
_MORE: Final = 4
"""How many times more than asked for is found where a filter may take some away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskOptions:
    """How long a host's functions may take, and how much they may return."""

    load_timeout_s: float = 30.0
    """For all tools."""
    call_timeout_s: float | None = 300.0
    """For one call; None waits for ever."""
    max_result: int = MAX_SIZE
    """Characters of a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Generic[T]):
    """What the host's code does."""

    load: Callable[[], Awaitable[Sequence[T]]]
    run: Callable[[str, dict[str, Any]], Awaitable[Any]]
    keep: Callable[[Results[T]], Results[T]] | None
    """The filter; None where there is none."""


class Desk(Generic[T]):
    """Implements `ToolPort` for one host."""

    def __init__(self, host: Host[T], engine: ToolSearchEngine[T], options: DeskOptions) -> None:
        """Nothing is fetched before it is needed."""
        self._host = host
        self._engine = engine
        self._options = options
        self._loading: Loading[ToolSet[T]] = Loading(engine.use)

    def forget(self) -> None:
        """The tools have changed: fetch them again when they are next needed."""
        self._loading.forget()

    async def list(self, limit: int) -> Listing:
        """The first tools, in the order of the host."""
        toolset = await self.tools()
        if self._host.keep is None:
            shown = [_plain_result(known) for known in toolset.listed[:limit]]
            return Listing(entries=[_entry(toolset, result, _LISTED) for result in shown], total=len(toolset.listed))
        kept = self._kept(_plain_results(toolset))
        entries = [_entry(toolset, result, _LISTED) for result in kept[:limit]]
        return Listing(entries=entries, total=len(kept))

    async def find(self, query: str, limit: int) -> Sequence[Object]:
        """The tools that fit, best first, as the filter leaves them."""
        toolset = await self.tools()
        wanted = limit if self._host.keep is None else limit * _MORE
        found = self._engine.search_in(toolset, query, wanted)
        kept = self._kept(found)
        if len(kept) < limit and len(found) == wanted:
            kept = self._kept(self._engine.search_in(toolset, query, max(wanted, len(toolset))))
        return [
            {
                **_entry(toolset, result, _FOUND),
                "score": round(result.score, 4),
                "match_reasons": list(result.match_reasons),
            }
            for result in kept[:limit]
        ]

    async def schema(self, name: str) -> Object:
        """The definition of a tool, under the name to call it by."""
        toolset = await self.tools()
        known = self._known(toolset, name)
        return chat_tool(known.tool, name=toolset.call_name(known))

    async def call(self, name: str, given: Any, loose: Object) -> Answer:
        """Check the arguments, have the host run the tool, and remember how it went."""
        toolset = await self.tools()
        known = self._known(toolset, name)
        called = toolset.call_name(known)
        arguments = settle(given, loose, known.tool.input_schema, tool=called)
        toolset.check(known, arguments)
        try:
            value = await _within(self._options.call_timeout_s, partial(self._host.run, called, arguments))
            answer = answered(value, self._options.max_result)
        except Exception as error:  # noqa: BLE001 - a host's tool may raise anything; the model reads the reason
            answer = failed(error)
        self._engine.session.record(known.id, answer["success"], by="call")
        return answer

    async def tools(self) -> ToolSet[T]:
        """All tools, fetched once; several who wait at the same time in one event loop wait for one fetch.

        Raises `ExecutionFailed` with the host's reason, and `CallTimeout`.
        """
        kept = self._loading.kept
        return kept if kept is not None else await self._loading.get(self._load)

    async def _load(self) -> ToolSet[T]:
        return await self._read(await self._fetched())

    async def _read(self, tools: Sequence[T]) -> ToolSet[T]:
        """The tools with their index. Many are not read and indexed where that would hold up the event loop.

        Tools of the host's own classes are read here all the same: what their attributes do may belong to the loop.
        """
        if len(tools) < _MANY:
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
            tools = await _within(self._options.load_timeout_s, self._host.load)
        except CallTimeout as error:
            raise CallTimeout(f"The tools could not be loaded: {error.message}", hint="Try again later.") from error
        except Exception as error:
            raise ExecutionFailed(
                f"The tools could not be loaded: {told(error).rstrip('.')}.",
                hint="This is a failure of the source of the tools, not an empty list; try again later.",
            ) from error
        if tools is None or isinstance(tools, (str, bytes, Mapping)) or not hasattr(tools, "__iter__"):
            raise ExecutionFailed(
                f"The tools could not be loaded: get_all_tools returned {type(tools).__name__} instead of a list.",
                hint="Return list(tools.values())." if isinstance(tools, Mapping) else "Return a list of tools.",
            )
        return list(tools)

    def _known(self, toolset: ToolSet[T], name: Any) -> Known[T]:
        """The tool of that name, among those that the filter leaves: any other looks as if it did not exist."""
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest("tool_name must be the name of a tool.", hint="search_tools finds names.")
        if self._host.keep is None:
            return toolset.find(name)
        try:
            known = toolset.find(name)
            if self._kept([_plain_result(known)]):
                return known
        except (ToolNotFound, AmbiguousName):
            pass  # what is said of it must come from the tools that are left
        ids = {id(result.tool) for result in self._kept(_plain_results(toolset))}
        return toolset.find(name, toolset.mask([one for one in toolset.known if id(one.original) in ids]))

    def _kept(self, results: Results[T]) -> Results[T]:
        """The results that the host's filter leaves. Raises `ExecutionFailed` where it fails: nothing is shown then."""
        if self._host.keep is None:
            return results
        try:
            kept: Any = self._host.keep(results)
            return [result for result in kept if isinstance(result, SearchResult)]
        except Exception as error:
            # What it says may be about what it hides.
            logger.exception("filter_search_results failed, so that nothing is shown")
            raise ExecutionFailed(
                f"filter_search_results failed ({type(error).__name__}).",
                hint="It must return a list of results; the log has the cause.",
            ) from error


async def _within(seconds: float | None, run: Callable[[], Any]) -> Any:
    """What a host's function gives, awaited where it is to be awaited.

    Raises `CallTimeout`, and `ExecutionFailed` where something inside was cancelled, and not what waits for it.
    """
    done: list[Any] = [None]
    try:
        with anyio.move_on_after(seconds):
            done = [await uncancelled(_awaited(run)), None]
    except CancelledInside as error:
        raise ExecutionFailed(f"{error}.") from error
    if len(done) == 1:
        raise CallTimeout(f"no answer within {seconds:g} s.")
    return done[0]


async def _awaited(run: Callable[[], Any]) -> Any:
    value = run()
    return await value if isawaitable(value) else value


def _plain_result(known: Known[T]) -> SearchResult[T]:
    return SearchResult(known.original, 1.0, [], 1.0, known=known)


def _plain_results(toolset: ToolSet[T]) -> list[SearchResult[T]]:
    return [_plain_result(known) for known in toolset.listed]


def _entry(toolset: ToolSet[T], result: SearchResult[T], most: int) -> dict[str, Any]:
    name = toolset.call_name(result.known) if result.known else result.name
    description = " ".join((result.description or "").split())
    shown = description if len(description) <= most else f"{description[: most - 1]}…"
    return {"name": name, "namespace": result.namespace, "description": shown}
