"""Keeps the snapshot fresh: asks the providers when they say that something changed, and swaps the new one in.

Readers take `snapshot` as it stands. Nothing here runs on the path of a search or a call.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.steady import Steady, watched
from toolcrib.gateway.view import EMPTY, Snapshot
from toolcrib.model import Caller, Rejected, ServerState, ServerStatus, Tool
from toolcrib.protocols import Context, ProviderSource, StatusSource, ToolProvider, Unsubscribe
from toolcrib.search.index import Index
from toolcrib.search.meaning import Meaning, default_meaning
from toolcrib.search.semantic import Embedder
from toolcrib.search.table import default_table

logger = logging.getLogger(__name__)

SYSTEM: Final = Context(caller=Caller(id="toolcrib"))
"""Who asks shared providers for their tools."""

_UNSETTLED = (ServerState.CONFIGURED, ServerState.CONNECTING)
_QUIET_S = 0.01
"""Changes that follow each other within this time make one snapshot, in seconds."""
_LONGEST = 20
"""How many times the first pause there may be between two attempts to embed."""

_Built = TypeVar("_Built")
_Offered = Sequence[tuple[ToolProvider, Sequence[Tool]]]


@dataclass(frozen=True, slots=True)
class _Offer:
    provider: ToolProvider
    tools: tuple[Tool, ...]


class Live:
    """The current snapshot, and what keeps it so."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions) -> None:
        """Nothing is asked before `run`."""
        self.snapshot: Snapshot = EMPTY
        self._sources = tuple(sources)
        self._options = options
        self._offers: dict[int, _Offer] = {}
        self._dirty = anyio.Event()
        self._clean = anyio.Event()
        self._changed = anyio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._grace_until: float | None = None
        self._statuses: tuple[ServerStatus, ...] | None = None
        self._idle = anyio.Event()
        self._embedder: Embedder | None = None
        self._wanted = default_meaning()
        """What the index is to compare meanings with; another one until all tools are embedded."""
        self._embedded: Index | None = None
        """An index that was made in the background, for the next snapshot."""
        self._embedding = False
        self._again_at = inf
        """When to embed again what could not be embedded; never, when all is well."""
        self._pause_s = options.retry_s

    # -- the life cycle --------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Refresh until cancelled."""
        ends = [source.subscribe(self._mark) for source in self._sources]
        self._grace_until = anyio.current_time() + self._options.start_grace_s
        try:
            self._mark()
            task_status.started()
            async with anyio.create_task_group() as group:
                while True:
                    await self._dirty.wait()
                    await anyio.sleep(_QUIET_S)
                    self._dirty = anyio.Event()
                    await self._refresh()
                    if not self._dirty.is_set():
                        self._clean.set()
                    self._tell()
                    await self._tidy(group)
        finally:
            for end in ends:
                end()

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each swap and each change of a status."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def embed_with(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder as soon as all tools are embedded, in the background."""
        self._pause_s = self._options.retry_s
        self._want(embedder)

    def _want(self, embedder: Embedder) -> None:
        """Have the whole index made anew: no meaning equals one that was made before."""
        self._again_at = inf
        self._embedder = embedder
        self._wanted = Meaning(default_table(), Steady(embedder))
        self._mark()

    def _mark(self) -> None:
        if self._clean.is_set():
            self._clean = anyio.Event()
        if self._idle.is_set():
            self._idle = anyio.Event()
        self._statuses = None
        self._dirty.set()

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def fresh(self) -> None:
        """Wait until all that changed is in the snapshot."""
        await self._clean.wait()

    async def idle(self) -> None:
        """Wait until nothing is left to be done, neither of what changed nor in the background."""
        await self._idle.wait()

    async def changed(self) -> None:
        """Wait for the next swap."""
        await self._changed.wait()

    async def settled(self) -> None:
        """Wait until no server is in its first attempt any more, and the snapshot holds what they offer."""
        while not self._clean.is_set() or self.connecting():
            await self._changed.wait()

    async def grace(self) -> None:
        """Wait like `settled`, but only shortly after the start, and not again once it was so."""
        if self._grace_until is None:
            return
        left = self._grace_until - anyio.current_time()
        if left > 0:
            with anyio.move_on_after(left):
                await self.settled()
        self._grace_until = None

    def connecting(self) -> bool:
        """Whether some server is still in its first attempt."""
        return any(status.state in _UNSETTLED for status in self.statuses())

    # -- statuses --------------------------------------------------------------------------------------------------

    def statuses(self) -> tuple[ServerStatus, ...]:
        """One status a server, by name, with the definitions that the catalog set aside."""
        if self._statuses is None:
            by_namespace: dict[str, list[Rejected]] = {}
            for namespace, rejected in self.snapshot.rejected:
                by_namespace.setdefault(namespace, []).append(rejected)
            self._statuses = tuple(_with_rejected(raw, by_namespace.get(raw.name, ())) for raw in self._raw_statuses())
        return self._statuses

    def _raw_statuses(self) -> list[ServerStatus]:
        found = [
            status
            for source in self._sources
            for provider in source.providers()
            if isinstance(provider, StatusSource)
            for status in provider.statuses()
        ]
        return sorted(found, key=lambda status: status.name)

    # -- refreshing ------------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        providers = [provider for source in self._sources for provider in source.providers()]
        offers: dict[int, _Offer] = {}
        async with anyio.create_task_group() as group:
            for provider in providers:
                group.start_soon(self._ask, provider, offers)
        ordered = {id(provider): offers[id(provider)] for provider in providers}
        made, self._embedded = self._embedded, None
        if made is not None or not _same(tuple(self._offers.values()), tuple(ordered.values())):
            self._offers = ordered
            before = self.snapshot if made is None else replace(self.snapshot, index=made)
            await self._swap([(offer.provider, offer.tools) for offer in ordered.values()], before)

    async def _swap(self, offered: _Offered, before: Snapshot) -> None:
        """Take in what is offered, without holding up the event loop."""
        build = partial(Snapshot.build, offered, before, options=self._options.search)
        try:
            self.snapshot, failed = await anyio.to_thread.run_sync(_watching, build)
        except Exception:
            logger.exception("the new tools could not be taken in; the old ones stay")
            failed = True
        if failed:
            self._plan()
        self._statuses = None

    # -- in the background -----------------------------------------------------------------------------------------

    async def _tidy(self, group: anyio.abc.TaskGroup) -> None:
        """While nothing changes: put the index in order, and embed all tools where that is due."""
        if await self._dirty_within(self._options.idle_s):
            return
        async with anyio.create_task_group() as merging:
            merging.start_soon(self._merge, merging.cancel_scope)
            await self._dirty.wait()
            merging.cancel_scope.cancel()
        if self._dirty.is_set() or self._embedding:
            return
        if self._again_at == inf and self.snapshot.index.meaning != self._wanted:
            self._embedding = True
            group.start_soon(self._embed)
            return
        self._idle.set()
        if self._embedder is not None and not await self._dirty_within(self._again_at - anyio.current_time()):
            self._want(self._embedder)

    async def _embed(self) -> None:
        """Make an index of the present tools with the wanted meaning; changes are taken in meanwhile, without it."""
        wanted = self._wanted
        build = partial(Index.build, self.snapshot.catalog.tools, options=self._options.search, meaning=wanted)
        failed = True
        try:
            index, failed = await anyio.to_thread.run_sync(_watching, build, abandon_on_cancel=True)
        except Exception:
            logger.exception("the tools could not be embedded; the index stays as it is")
        self._embedding = False
        if wanted is self._wanted and failed:
            self._plan()
        elif wanted is self._wanted:
            self._embedded, self._pause_s = index, self._options.retry_s
        self._mark()

    def _plan(self) -> None:
        """Embed all tools again soon; later after each further failure."""
        if self._again_at == inf:
            self._again_at = anyio.current_time() + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._options.retry_s * _LONGEST)

    async def _merge(self, scope: anyio.CancelScope) -> None:
        """Replace the index by one of a single segment. What is seen, and its version, stay as they are."""
        before = self.snapshot
        try:
            merged, failed = await anyio.to_thread.run_sync(_watching, before.index.merged, abandon_on_cancel=True)
        except Exception:
            logger.exception("the index could not be put in order; it stays as it is")
        else:
            # What could not be embedded again has its vectors in the index as it is.
            self.snapshot = before if failed or merged is before.index else replace(before, index=merged)
        scope.cancel()

    async def _dirty_within(self, seconds: float) -> bool:
        """Whether something changes within that time."""
        with anyio.move_on_after(seconds):
            await self._dirty.wait()
        return self._dirty.is_set()

    async def _ask(self, provider: ToolProvider, offers: dict[int, _Offer]) -> None:
        """Fill in the provider's tools; those of last time where it fails."""
        last = self._offers.get(id(provider))
        offers[id(provider)] = last or _Offer(provider, ())
        try:
            with anyio.fail_after(self._options.list_timeout_s):
                offers[id(provider)] = _Offer(provider, tuple(await provider.list_tools(SYSTEM)))
        except Exception:
            logger.warning("%s could not list its tools", type(provider).__name__, exc_info=True)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        for listener in tuple(self._listeners):
            listener()


def _watching(build: Callable[[], _Built]) -> tuple[_Built, bool]:
    """What is built, and whether some tools could not be embedded; those are found by words alone."""
    with watched() as failures:
        built = build()
    return built, bool(failures)


def _same(old: Sequence[_Offer], new: Sequence[_Offer]) -> bool:
    """Whether two rounds offered the very same objects; providers keep a tool object while nothing changes."""
    return len(old) == len(new) and all(_unchanged(a, b) for a, b in zip(old, new, strict=True))


def _unchanged(old: _Offer, new: _Offer) -> bool:
    if old.provider is not new.provider or len(old.tools) != len(new.tools):
        return False
    return all(a is b for a, b in zip(old.tools, new.tools, strict=True))


def _with_rejected(status: ServerStatus, more: Sequence[Rejected]) -> ServerStatus:
    if not more:
        return status
    return replace(status, tools=status.tools - len(more), rejected=(*status.rejected, *more))
