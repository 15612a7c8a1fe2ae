"""Keep the snapshot current: poll providers that report a change, build a new snapshot and swap it in.

Searches and calls read the current snapshot; they wait only for tools that this process has just registered itself.
While `CatalogRefresher.run` runs, providers are polled in the background of the event loop it runs in, and changes
reported by other threads are passed to that loop. Without `run`, the next request after a change polls the providers
and waits for them: a program that only registers functions may search and call them from several threads, each with an
event loop of its own, and never starts anything.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.errors import NotStarted, ToolcribError
from toolcrib.gateway.disk_catalog import DiskCatalog
from toolcrib.gateway.indexing import IndexMaintenance, SnapshotBuilder
from toolcrib.gateway.keywords import Describe, Keywords, ToolDescriber, ToolKeywords
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.provider_state import (
    ProviderRegistry,
    ProviderState,
    provider_statuses,
    status_of_state,
    statuses_for_snapshot,
    with_rejected,
)
from toolcrib.gateway.snapshot import ProviderTools, RejectedDefinition, Snapshot
from toolcrib.providers.base import Backend, ProviderSource, ThreadSafeCallback, call_logged
from toolcrib.sanitize import listing
from toolcrib.search.embedder import Embedder
from toolcrib.search.lexicon import Lexicon
from toolcrib.state.base import StateStore
from toolcrib.state.saved_index import SavedIndex
from toolcrib.types import BackendKind, Caller, Context, Rejected, ServerState, ServerStatus, Unsubscribe

logger = logging.getLogger(__name__)

SYSTEM_CONTEXT: Final = Context(caller=Caller(id="toolcrib"))
"""The context in which shared providers list their tools."""

_DEBOUNCE_S: Final = 0.01
"""Changes within this time go into one snapshot, in seconds."""

_MAX_DEBOUNCE_S: Final = 0.2
"""The longest such time while servers are still connecting, so that many servers' tools go into one snapshot."""

_LOCAL_WAIT_S: Final = 1.0
"""How long requests wait for a provider of this process that has just reported a change, in seconds."""

_SNAPSHOT_WAIT_S: Final = 10.0
"""How long they wait for a snapshot with what this process has listed, in seconds: a first search that finds nothing,
because the machine is busy, would be wrong.
"""

_POLL_WAIT_S: Final = 0.1
"""How long the tools of other providers wait for a slow one, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopRef:
    """One run of the refresher: its event loop and its thread."""

    loop: asyncio.AbstractEventLoop
    thread: int

    @classmethod
    def here(cls) -> "LoopRef":
        """Return a new reference to the running loop."""
        return cls(asyncio.get_running_loop(), threading.get_ident())

    def is_here(self) -> bool:
        """Whether the current thread is that of the loop."""
        return threading.get_ident() == self.thread


class CatalogRefresher:
    """Holds the current snapshot and keeps it up to date."""

    def __init__(
        self, sources: Sequence[ProviderSource], options: GatewayOptions, saved: SavedIndex | None = None
    ) -> None:
        """Nothing is polled before `run`, or before the first request without it. `saved` keeps the search index."""
        self.builder = SnapshotBuilder(options, saved)
        """What holds the current snapshot."""
        self._on_disk = _disk_catalog(options)
        self.maintenance = IndexMaintenance(
            options,
            saved,
            is_connecting=self.is_connecting,
            get=lambda: self.snapshot,
            put=self.builder.replace,
            wake=self._wake,
            wake_from_thread=self._wake_from_thread,
        )
        self._options = options
        self.keywords = ToolKeywords(options.keywords)
        """What is added to the keywords of tools."""
        self._registry = ProviderRegistry(sources, options, self.keywords)
        self._poller = ProviderPoller(self._registry, self._wake)
        self._status_logger = StatusLogger()
        self._last_build_s = 0.0
        self._listeners: dict[object, Callable[[], None]] = {}
        self._statuses: tuple[ServerStatus, ...] | None = None
        self._lock = threading.Lock()
        """Guards the counts below and those of the registry: changes are reported from any thread."""
        self._changes = 0
        self._applied = -1
        """Up to which change the snapshot is current, without `run`."""
        self._local_changes = self._local_applied = 0
        """The same for what this process registers itself."""
        self._flights = SingleFlight()
        self._home: LoopRef | None = None
        """Where `run` runs."""
        self._dirty = anyio.Event()
        self._clean = anyio.Event()
        self._changed = anyio.Event()
        self._subscriptions = [
            source.subscribe(
                ThreadSafeCallback(partial(self._source_changed, place, local=source.kind is not BackendKind.MCP))
            )
            for place, source in enumerate(sources)
        ]

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Refresh until cancelled."""
        self._home = LoopRef.here()
        self._dirty = anyio.Event()
        self._release_waiters()
        with self._lock:
            self._registry.force_all()
            self._local_changes += 1  # so that the first request waits for the first round
        self._wake()
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_expiry)
                while True:
                    await self._dirty.wait()
                    await anyio.sleep(self._debounce_s())
                    self._dirty = anyio.Event()
                    await self._refresh(group)
                    self._announce()
                    self._notify_listeners()
                    await self.maintenance.tidy(group, self._dirty)
        finally:
            self._home = None
            self._applied = -1
            self.maintenance.stop()
            if self._on_disk is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._on_disk.close)
            self._release_waiters()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _debounce_s(self) -> float:
        """Return how long to wait for more changes: as long as the last build while servers are connecting."""
        if self._local_changes != self._local_applied or not self.is_connecting():
            return _DEBOUNCE_S
        return min(max(_DEBOUNCE_S, self._last_build_s), _MAX_DEBOUNCE_S)

    def _release_waiters(self) -> None:
        """Wake everything that waits: what it waits for may never come."""
        self._poller.reset()
        self._clean.set()
        self._changed.set()
        self._clean, self._changed = anyio.Event(), anyio.Event()

    def close(self) -> None:
        """Unsubscribe from the sources, so that they no longer keep this alive; calling it twice is harmless."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for unsubscribe in subscriptions:
            call_logged(unsubscribe)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each swap and each change of a status; exceptions are logged.

        The callback runs in the event loop of `run`; without it, in that of the request which found the change.
        """
        place = object()
        self._listeners[place] = callback
        return lambda: (self._listeners.pop(place, None), None)[1]

    def use_embedder(self, embedder: Embedder, tools: Embedder | None = None) -> None:
        """Compare meanings with this embedder as well; `tools` embeds tools in the background, by default the same."""
        self.maintenance.use_embedder(embedder, tools)

    @property
    def snapshot(self) -> Snapshot:
        """The current snapshot."""
        return self.builder.snapshot

    def backends(self) -> list[Backend]:
        """Return the shared providers in order of precedence."""
        found = self._registry.backends()
        return found if self._on_disk is None else [*found, self._on_disk.backend]

    def use_keywords(self, listed: Keywords) -> None:
        """Add these keywords to the tools from now on, by id. Thread-safe."""
        self.keywords.replace_listed(listed)
        self._record_change(local=False)

    async def describe_tools(self, describe: Describe, state: StateStore, *, name: str = "") -> None:
        """Let a hook describe the tools, until cancelled; what it gave is kept in the state."""
        describer = ToolDescriber(describe, self.keywords, state, name=name)
        with contextlib.suppress(NotStarted):  # the refresh ended first
            await describer.run(
                self._registry.listed_tools, lambda: self._record_change(local=False), self.wait_changed
            )

    # -- changes ---------------------------------------------------------------------------------------------------

    def force_refresh(self) -> None:
        """Poll every provider again, however long its list is valid. Thread-safe."""
        with self._lock:
            self._registry.force_all()
        self._record_change(local=False)

    def invalidate(self, backends: Sequence[Backend]) -> None:
        """Poll these providers again, because they do not run what they listed. Thread-safe."""
        with self._lock:
            self._registry.invalidate(backends)
        self._record_change(local=False)

    def doubt(self) -> bool:
        """Poll providers again that may have a tool that they did not list; return whether there are any. Thread-safe.

        `wait_current` then waits for them.
        """
        home = self._running()
        with self._lock:
            found = (home is None or home.is_here()) and self._registry.doubt()
        if found:
            self._record_change(local=False)
        return found

    def _source_changed(self, source: int, *, local: bool) -> None:
        """Record a change of a source. Thread-safe."""
        with self._lock:
            self._registry.source_changed(source)
        # The next request must not see tools that are gone; new tools of a server may take a moment.
        self._record_change(local=local or self._registry.has_lost_provider(source))

    def _record_change(self, *, local: bool) -> None:
        with self._lock:
            self._changes += 1
            self._local_changes += local
        self._statuses = None
        self._wake_from_thread()

    def _wake_from_thread(self) -> None:
        """Start another refresh from any thread, if `run` runs."""
        home = self._running()
        if home is not None and home.is_here():
            self._wake()
        elif home is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                home.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._clean.is_set():
            self._clean = anyio.Event()
        self.maintenance.mark_busy()
        self._statuses = None
        self._dirty.set()

    # -- waiting ---------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether `wait_ready` would return at once."""
        home = self._home
        return home is not None and self._local_changes == self._local_applied and not home.loop.is_closed()

    async def wait_ready(self) -> None:
        """Wait for what this process has just registered itself; without `run`, for every change."""
        home = self._home
        if home is None or home.loop.is_closed():
            changes = self._changes
            await self._flights.run(lambda: self._is_current(changes), self._refresh_now)
        elif self._local_changes != self._local_applied and home.is_here():
            wanted = self._local_changes  # and none that comes later, or steady changes would keep a request for ever
            with anyio.move_on_after(_SNAPSHOT_WAIT_S):
                while self._local_applied < wanted and self._home is home:
                    await self._changed.wait()

    async def wait_current(self) -> None:
        """Wait until every change is in the snapshot. Raises `NotStarted` if `run` ends meanwhile."""
        home = self._running()
        if home is None:
            await self.wait_ready()
            return
        await self._clean.wait()
        self._check_running(home)

    async def wait_idle(self) -> None:
        """Wait until no change and no background work is left. Raises `NotStarted` if `run` ends meanwhile."""
        home = self._running()
        await self.maintenance.wait_idle()
        self._check_running(home)

    async def wait_changed(self) -> None:
        """Wait for the next swap. Raises `NotStarted` if `run` ends meanwhile."""
        home = self._running()
        await self._changed.wait()
        self._check_running(home)

    async def wait_settled(self) -> None:
        """Wait until every server is ready or has failed, and the snapshot holds its tools.

        Raises `NotStarted` if `run` ends meanwhile.
        """
        home = self._running()
        if home is None:
            await self.wait_ready()
            return
        while not self._clean.is_set() or self.is_connecting():
            await self._changed.wait()
            self._check_running(home)

    def runs_here(self) -> bool:
        """Whether `run` runs in the current thread, so that its changes can be waited for."""
        home = self._running()
        return home is not None and home.is_here()

    def _running(self) -> LoopRef | None:
        """Return where `run` runs; None if it does not run, or its loop was closed."""
        home = self._home
        return None if home is None or home.loop.is_closed() else home

    def _check_running(self, home: LoopRef | None) -> None:
        if home is not None and self._home is not home:
            raise NotStarted("The gateway was stopped.", hint="Start it again.")

    def is_connecting(self) -> bool:
        """Whether some server is still in its first attempt to connect."""
        return any(status.is_connecting for status in self.statuses())

    # -- statuses --------------------------------------------------------------------------------------------------

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return the status of each server, by name, with the definitions that were rejected.

        A server is ready once its tools are in the snapshot. A provider without servers of its own has a status if it
        could not list its tools, or some of them were rejected.
        """
        known = self._statuses
        if known is None:
            found = [status for state in self._registry.states() for status in self._statuses_of(state)]
            known = self._statuses = tuple(sorted(found, key=lambda status: status.name))
        return known

    def rejected_definitions(self) -> tuple[RejectedDefinition, ...]:
        """Return every definition that was rejected, by the catalog or by the provider itself."""
        by_provider = [
            RejectedDefinition(state.backend, status.namespace or status.name, rejected)
            for state in self._registry.states()
            for status in provider_statuses(state.backend.provider)
            for rejected in status.rejected
        ]
        return (*self.snapshot.rejected, *by_provider)

    def _statuses_of(self, state: ProviderState) -> list[ServerStatus]:
        provider = state.backend.provider
        rejected = [one for one in self.snapshot.rejected if one.backend is state.backend]
        marked = [one for one in self.snapshot.marked if one.backend is state.backend]
        statuses = provider_statuses(provider)
        if not statuses and (state.problem or rejected or marked):
            statuses = (status_of_state(state),)
        elif self._running() is not None:  # without `run`, a request waits until the tools are in the snapshot
            statuses = statuses_for_snapshot(
                statuses, self.builder.statuses.get(id(provider), ()), failed=self.builder.failed
            )
        return with_rejected(statuses, rejected, marked)

    # -- refreshing ------------------------------------------------------------------------------------------------

    async def _refresh(self, group: anyio.abc.TaskGroup | None) -> int:
        """Poll the providers that are due, build a snapshot, and return the change that it includes.

        Providers are polled in `group`, and those that are slow get into a later snapshot. Without a group, wait for
        all of them.
        """
        with self._lock:
            changes, local = self._changes, self._local_changes
            states = self._registry.reload()
        if group is None:
            await self._poller.poll_all(states)
        else:
            await self._poller.poll_due(group, states)
        began = time.monotonic()
        await self.builder.build(await self._listed(states), self.maintenance, version=changes)
        self._last_build_s = time.monotonic() - began
        self._statuses = None
        self._status_logger.log_changes(self.statuses())
        if group is not None and any(state.polling and state.backend.kind is not BackendKind.MCP for state in states):
            group.start_soon(self._stop_waiting, local)
        else:
            self._local_applied = max(self._local_applied, local)
        if group is not None and not self._dirty.is_set() and not any(state.polling for state in states):
            self._clean.set()
        return changes

    async def _stop_waiting(self, local: int) -> None:
        """Let requests go on without the providers of this process that have not answered after a while."""
        await anyio.sleep(_LOCAL_WAIT_S)
        self._local_applied = max(self._local_applied, local)
        self._announce()

    async def _listed(self, states: Sequence[ProviderState]) -> tuple[ProviderTools, ...]:
        """What the providers list, for the snapshot; the tools that are searched on disk are put there instead."""
        offers = self._registry.provider_tools()
        if self._on_disk is None:
            return offers
        settled = not self.is_connecting() and not any(state.polling for state in states)
        try:
            return await anyio.to_thread.run_sync(partial(self._on_disk.take, offers, settled=settled))
        except ToolcribError:
            logger.exception("the tools could not be put on disk")
            return tuple(replace(offer, tools=()) for offer in offers)

    async def _refresh_now(self) -> None:
        """Refresh in the event loop of a request, because `run` does not run."""
        changes = await self._refresh(None)
        with self._lock:
            self._applied = max(self._applied, changes)
        self._notify_listeners()

    def _is_current(self, changes: int) -> bool:
        return self._applied >= changes and self._registry.next_due() > time.monotonic()

    async def _watch_expiry(self) -> None:
        """Wake the refresh when a provider's list expires."""
        while True:
            if await self._poller.until_due(self._changed):
                changed = self._changed
                self._wake()
                await changed.wait()

    def _notify_listeners(self) -> None:
        for listener in tuple(self._listeners.values()):
            call_logged(listener)


def _disk_catalog(options: GatewayOptions) -> DiskCatalog | None:
    """The catalog on disk that the options ask for. Raises `MissingExtra`."""
    if options.engine == "memory" or options.index is None:
        return None
    lexicon = Lexicon.default().with_pairs(options.synonyms) if options.synonyms else None
    return DiskCatalog(options.index, options.search, lexicon)


class ProviderPoller:
    """Polls the providers of a registry for their tools."""

    def __init__(self, registry: ProviderRegistry, wake: Callable[[], None]) -> None:
        """`wake` is called when a provider answers after the snapshot was built without it."""
        self._registry = registry
        self._wake = wake
        self._answered = anyio.Event()

    async def poll_due(self, group: anyio.abc.TaskGroup, states: Sequence[ProviderState]) -> None:
        """Poll the providers that are due; return when they have answered, or after a short while."""
        polled = [state for state in states if not state.polling and self._registry.is_due(state)]
        for state in polled:
            state.polling = True
            group.start_soon(self._poll, state)
        with anyio.move_on_after(_POLL_WAIT_S):
            while any(state.polling for state in polled):
                await self._answered.wait()
        for state in states:
            state.late = state.polling

    async def poll_all(self, states: Sequence[ProviderState]) -> None:
        """Poll the providers that are due, and wait for all of them."""
        async with anyio.create_task_group() as group:
            for state in states:
                if self._registry.is_due(state):
                    group.start_soon(self._registry.poll, state, SYSTEM_CONTEXT)

    async def _poll(self, state: ProviderState) -> None:
        """Poll until no change was reported meanwhile."""
        try:
            await self._registry.poll(state, SYSTEM_CONTEXT)
            while self._registry.has_changed(state):
                await self._registry.poll(state, SYSTEM_CONTEXT)
        finally:
            late, state.polling, state.late = state.late, False, False
            self._answered.set()
            self._answered = anyio.Event()
            if late:
                self._wake()

    async def until_due(self, event: anyio.Event) -> bool:
        """Wait until some provider's list expires, or for the event; return whether a list expired."""
        left = self._registry.next_due() - time.monotonic()
        with anyio.move_on_after(max(0.0, left)) as waiting:
            await event.wait()
        return waiting.cancelled_caught

    def reset(self) -> None:
        """Forget the polls under way, because their task group has ended."""
        self._registry.reset()
        self._answered.set()
        self._answered = anyio.Event()


_joined_flights: ContextVar[tuple["SingleFlight", ...]] = ContextVar("toolcrib_flights", default=())
"""The flights whose work the current code is part of."""


class SingleFlight:
    """Lets the concurrent tasks of an event loop share one run of the same work."""

    def __init__(self) -> None:
        self._ends: WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Event] = WeakKeyDictionary()

    async def run(self, is_done: Callable[[], bool], work: Callable[[], Awaitable[None]]) -> None:
        """Return once `is_done`: wait for work that is under way, then do it here if it is still needed.

        Work that leads back here runs again at once, because it would wait for itself: registries may provide each
        other.
        """
        if self in _joined_flights.get():
            await work()
            return
        loop = asyncio.get_running_loop()
        while not is_done():
            if (end := self._ends.get(loop)) is not None:
                await end.wait()
                continue
            own = self._ends[loop] = anyio.Event()
            token = _joined_flights.set((*_joined_flights.get(), self))
            try:
                await work()
                return
            finally:
                _joined_flights.reset(token)
                self._ends.pop(loop, None)
                own.set()


_MAX_REASON_CHARS: Final = 200


class StatusLogger:
    """Logs what changed about the servers since the last time."""

    def __init__(self) -> None:
        self._last: dict[str, ServerStatus] = {}

    def log_changes(self, statuses: Sequence[ServerStatus]) -> None:
        """Log each server that became ready, and each with other rejected tools than before."""
        last, self._last = self._last, {status.name: status for status in statuses}
        for status in statuses:
            before = last.get(status.name)
            if status.transport != "local" and _is_ready(status) and not _is_ready(before):
                protocol = f", protocol {status.protocol}" if status.protocol else ""
                logger.info("%s is ready: %d tools%s", status.name, status.tools, protocol)
            if status.rejected and (before is None or before.rejected != status.rejected):
                logger.warning("%s: %s", status.name, rejected_summary(status.rejected))
            remarks = [one for one in status.marked if one.state in ("repaired", "unchecked")]
            if remarks and (before is None or not {*remarks} <= {*before.marked}):
                logger.warning("%s: %s", status.name, rejected_summary(remarks, "used with a remark"))


def _is_ready(status: ServerStatus | None) -> bool:
    return status is not None and status.state is ServerState.READY


def rejected_summary(rejected: Sequence[Rejected], what: str = "rejected") -> str:
    """Say in one line what was rejected and why.

    >>> rejected_summary([Rejected(tool="a", reason="it has no schema.")])
    '1 tool was rejected: a (it has no schema)'
    """
    count = "1 tool was" if len(rejected) == 1 else f"{len(rejected)} tools were"
    return f"{count} {what}: {listing((f'{one.tool} ({_one_line(one.text)})' for one in rejected), 3)}"


def _one_line(reason: str) -> str:
    line = " ".join(reason.split()).rstrip(".")
    return line if len(line) <= _MAX_REASON_CHARS else f"{line[: _MAX_REASON_CHARS - 1]}…"
