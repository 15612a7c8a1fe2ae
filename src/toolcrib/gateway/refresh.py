"""Keep the snapshot current: poll providers that report a change, build a new snapshot and swap it in.

Searches and calls read the current snapshot; they wait only for tools that this process has just registered itself.
While `CatalogRefresher.run` runs, providers are polled in the background. Without it, the next request after a change
polls them and waits, so a registry also works before it is started.

"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.errors import NotStarted
from toolcrib.gateway.indexing import IndexMaintenance, SnapshotBuilder
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.provider_state import (
    PollResult,
    ProviderRegistry,
    ProviderState,
    provider_statuses,
    status_of_state,
    statuses_for_snapshot,
    with_rejected,
)
from toolcrib.gateway.snapshot import RejectedDefinition, Snapshot
from toolcrib.providers.base import ThreadSafeCallback, call_logged
from toolcrib.search.vectors import Embedder
from toolcrib.types import (
    Backend,
    BackendKind,
    Caller,
    Context,
    ProviderSource,
    Rejected,
    ServerState,
    ServerStatus,
    Unsubscribe,
)

_UNSETTLED_STATES = (ServerState.CONFIGURED, ServerState.CONNECTING)


_DEBOUNCE_S = 0.01
"""Changes that follow each other within this time make one snapshot, in seconds."""


_MAX_DEBOUNCE_S = 0.2
"""The same at most while servers are still connecting, so that the tools of many are taken in together."""


_LOCAL_WAIT_S = 1.0
"""How long a request waits for what this process has just registered, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class LoopRef:
    """One run: the event loop and the thread in which it is."""

    loop: asyncio.AbstractEventLoop
    thread: int

    @classmethod
    def here(cls) -> "LoopRef":
        """The loop that runs now, as the place of another run."""
        return cls(asyncio.get_running_loop(), threading.get_ident())

    def is_here(self) -> bool:
        """Whether this thread is the one."""
        return threading.get_ident() == self.thread


class CatalogRefresher:
    """The current snapshot, and what keeps it so."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions) -> None:
        """Nothing is asked before `run`, or before the first request without it."""
        self._builder = SnapshotBuilder(options)
        self.maintenance = IndexMaintenance(
            options, get=lambda: self.snapshot, put=self._builder.replace, wake=self._wake
        )
        self._options = options
        self._registry = ProviderRegistry(sources, options)
        self._poller = ProviderPoller(self._registry, self._wake)
        self._status_logger = StatusLogger()
        self._took_s = 0.0
        """How long the last tools took to be taken in."""
        self._listeners: dict[object, Callable[[], None]] = {}
        self._statuses: tuple[ServerStatus, ...] | None = None
        self._grace_until: float | None = None
        self._lock = threading.RLock()
        self._building = threading.Lock()
        self._flights = SingleFlight()
        self._marks = 0
        """Counts up with each change; what was built up to which, without `run`."""
        self._built = -1
        self._own = self._own_seen = 0
        """The same for what this process registers itself."""
        self._home: LoopRef | None = None
        """Where `run` runs."""
        self._dirty = anyio.Event()
        self._clean = anyio.Event()
        self._changed = anyio.Event()
        self._ends = [
            source.subscribe(
                ThreadSafeCallback(partial(self._source_changed, place, own=source.kind is not BackendKind.MCP))
            )
            for place, source in enumerate(sources)
        ]

    # -- the life cycle --------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Refresh until cancelled."""
        self._home = LoopRef.here()
        self._dirty = anyio.Event()
        self._release()
        self._grace_until = anyio.current_time() + self._options.start_grace_s
        self._registry.force_all()
        self._own += 1  # whoever asks first waits for the first round
        self._wake()
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_expiry)
                while True:
                    await self._dirty.wait()
                    await anyio.sleep(self._quiet_s())
                    self._dirty = anyio.Event()
                    await self._refresh(group)
                    await self.maintenance.tidy(group, self._dirty)
        finally:
            self._home = None
            self._built = -1
            self.maintenance.stop()
            self._release()

    def _quiet_s(self) -> float:
        """How long to wait for more that changes: as long as the last time took, while more servers are to come."""
        if self._own != self._own_seen or not self.is_connecting():
            return _DEBOUNCE_S
        return min(max(_DEBOUNCE_S, self._took_s), _MAX_DEBOUNCE_S)

    def _release(self) -> None:
        """Let everybody go who waits; what they wait for may never come."""
        self._poller.reset()
        self._clean.set()
        self._changed.set()
        self._clean, self._changed = anyio.Event(), anyio.Event()

    def close(self) -> None:
        """Hear of no further changes, so that nothing keeps it alive any more; calling it twice is harmless."""
        ends, self._ends = self._ends, []
        for end in ends:
            call_logged(end)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each swap and each change of a status; where it raises, that is logged.

        From the event loop in which `run` runs; without it, from that of the request which found the change.
        """
        place = object()
        self._listeners[place] = callback
        return lambda: (self._listeners.pop(place, None), None)[1]

    def use_embedder(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder as soon as all tools are embedded, in the background."""
        self.maintenance.use_embedder(embedder)

    @property
    def snapshot(self) -> Snapshot:
        """All tools of this moment."""
        return self._builder.snapshot

    def backends(self) -> list[Backend]:
        """The shared providers, in the order in which they take precedence."""
        return self._registry.backends()

    # -- changes ---------------------------------------------------------------------------------------------------

    def force_refresh(self) -> None:
        """Ask every provider again, whatever it said of how long its list holds. From any thread."""
        with self._lock:
            self._registry.force_all()
        self._mark(own=False)

    def invalidate(self, backends: Sequence[Backend]) -> None:
        """Ask these providers again, which do not run what they have listed."""
        with self._lock:
            self._registry.invalidate(backends)
        self._mark(own=False)

    def _source_changed(self, source: int, *, own: bool) -> None:
        """Something changed at a source. From any thread."""
        with self._lock:
            self._registry.source_changed(source)
        # What is gone is gone at once, for whoever asks next; only what comes may take its time.
        self._mark(own=own or self._registry.has_lost_provider(source))

    def _mark(self, *, own: bool) -> None:
        with self._lock:
            self._marks += 1
            self._own += own
        self._statuses = None
        home = self._running()
        if home is not None and home.is_here():
            self._wake()
        elif home is not None:
            with contextlib.suppress(RuntimeError):  # a loop that was closed has nothing left to refresh
                home.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._clean.is_set():
            self._clean = anyio.Event()
        self.maintenance.mark_busy()
        self._statuses = None
        self._dirty.set()

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def wait_ready(self) -> None:
        """Wait for what this process has just registered itself; without `run`, for everything that changed."""
        home = self._running()
        if home is None:
            if self._built != self._marks or self._registry.next_due() <= time.monotonic():
                await self._flights.join(lambda: self._marks, self._build_now)
        elif self._own != self._own_seen and home.is_here():
            with anyio.move_on_after(_LOCAL_WAIT_S):
                while self._own != self._own_seen and self._home is home:
                    await self._changed.wait()

    async def wait_current(self) -> None:
        """Wait until all that changed is in the snapshot. Raises `NotStarted` when `run` ends meanwhile."""
        home = self._running()
        if home is None:
            await self.wait_ready()
            return
        await self._clean.wait()
        self._check(home)

    async def wait_idle(self) -> None:
        """Wait until nothing is left to be done, neither of what changed nor in the background.

        Raises `NotStarted` when `run` ends meanwhile.
        """
        home = self._running()
        await self.maintenance.wait_idle()
        self._check(home)

    async def wait_changed(self) -> None:
        """Wait for the next swap. Raises `NotStarted` when `run` ends meanwhile."""
        home = self._running()
        await self._changed.wait()
        self._check(home)

    async def wait_settled(self) -> None:
        """Wait until no server is in its first attempt any more, and the snapshot holds what they offer.

        Raises `NotStarted` when `run` ends meanwhile.
        """
        home = self._running()
        if home is None:
            await self.wait_ready()
            return
        while not self._clean.is_set() or self.is_connecting():
            await self._changed.wait()
            self._check(home)

    async def wait_startup(self) -> None:
        """Wait like `settled`, but only shortly after the start, and not again once it was so."""
        home = self._running()
        if self._grace_until is None or home is None or not home.is_here():
            return
        if (left := self._grace_until - anyio.current_time()) > 0:
            with anyio.move_on_after(left), contextlib.suppress(NotStarted):
                await self.wait_settled()
        self._grace_until = None

    def _running(self) -> LoopRef | None:
        """Where `run` runs, if it does; not where its loop was closed under it."""
        home = self._home
        return None if home is None or home.loop.is_closed() else home

    def _check(self, home: LoopRef | None) -> None:
        if home is not None and self._home is not home:
            raise NotStarted("The gateway was stopped.", hint="Start it again.")

    def is_connecting(self) -> bool:
        """Whether some server is still in its first attempt."""
        return any(status.state in _UNSETTLED_STATES for status in self.statuses())

    # -- statuses --------------------------------------------------------------------------------------------------

    def statuses(self) -> tuple[ServerStatus, ...]:
        """One status a server, by name, with the definitions that were set aside.

        A server is ready once its tools are in the snapshot. A provider that speaks for no servers has a status where
        it could not list its tools, or some of them were set aside.
        """
        known = self._statuses
        if known is None:
            found = [status for entry in self._registry.states() for status in self._statuses_of(entry)]
            known = self._statuses = tuple(sorted(found, key=lambda status: status.name))
        return known

    def rejected_definitions(self) -> tuple[RejectedDefinition, ...]:
        """Every definition that was set aside, by the catalog or by the provider itself."""
        told = [
            RejectedDefinition(entry.backend, status.namespace or status.name, rejected)
            for entry in self._registry.states()
            for status in provider_statuses(entry.backend.provider)
            for rejected in status.rejected
        ]
        return (*self.snapshot.rejected, *told)

    def _statuses_of(self, entry: ProviderState) -> list[ServerStatus]:
        provider = entry.backend.provider
        set_aside = [one for one in self.snapshot.rejected if one.backend is entry.backend]
        told = provider_statuses(provider)
        if not told and (entry.problem or set_aside):
            told = (status_of_state(entry),)
        elif self._running() is not None:  # without `run`, whoever asks waits until the tools are in
            told = statuses_for_snapshot(
                told, self._builder.statuses.get(id(provider), ()), failed=self._builder.failed
            )
        return with_rejected(told, set_aside)

    # -- refreshing ------------------------------------------------------------------------------------------------

    async def _refresh(self, group: anyio.abc.TaskGroup) -> None:
        """Ask, wait a little, and take in what was answered; those that are slow are taken in once they answer."""
        with self._lock:
            own, entries = self._own, self._registry.reload()
        await self._poller.poll_due(group, entries)
        begun = time.monotonic()
        await self._builder.build(self._registry.provider_tools(), self.maintenance)
        self._took_s = time.monotonic() - begun
        self._statuses = None
        self._status_logger.log_changes(self.statuses())
        self._own_seen = own
        if not self._dirty.is_set() and not any(entry.polling for entry in entries):
            self._clean.set()
        self._changed.set()
        self._changed = anyio.Event()
        self._notify_listeners()

    async def _watch_expiry(self) -> None:
        """Have a provider asked again once what it said holds no longer."""
        while True:
            if await self._poller.until_due(self._changed):
                changed = self._changed
                self._wake()
                await changed.wait()

    async def _build_now(self) -> None:
        """Ask everybody who must be asked, and build; for who does not let `run` do it."""
        with self._lock:
            marks, own = self._marks, self._own
            entries = [entry for entry in self._registry.reload() if self._registry.is_due(entry)]
        heard = await self._poller.poll_all(entries)
        if await anyio.to_thread.run_sync(self._commit, marks, own, heard):
            self._status_logger.log_changes(self.statuses())
            self._notify_listeners()

    def _commit(self, marks: int, own: int, heard: Sequence[tuple[ProviderState, PollResult]]) -> bool:
        """Take in what was heard, unless somebody has taken in something later; whether that was done."""
        with self._building:
            if marks < self._built or self._running() is not None:
                return False
            with self._lock:
                for entry, answer in heard:
                    self._registry.record(entry, answer)
                offers = self._registry.provider_tools()
            self._builder.build_now(offers)
            self._built, self._own_seen = marks, own
            self._statuses = None
        return True

    def _notify_listeners(self) -> None:
        for listener in tuple(self._listeners.values()):
            call_logged(listener)


SYSTEM_CONTEXT: Final = Context(caller=Caller(id="toolcrib"))
"""Who asks shared providers for their tools."""


_POLL_WAIT_S = 0.1
"""How long the others' tools wait for a provider that is slow to list its own, in seconds."""


class ProviderPoller:
    """Asks the providers of a ledger."""

    def __init__(self, ledger: ProviderRegistry, wake: Callable[[], None]) -> None:
        """`wake` is called when a provider answers for whom nobody waits any more."""
        self._ledger = ledger
        self._wake = wake
        self._answered = anyio.Event()

    async def poll_due(self, group: anyio.abc.TaskGroup, entries: Sequence[ProviderState]) -> None:
        """Ask those that must be asked; return when they have answered, or after a short while."""
        asked = [entry for entry in entries if not entry.polling and self._ledger.is_due(entry)]
        for entry in asked:
            entry.polling = True
            group.start_soon(self._poll, entry)
        with anyio.move_on_after(_POLL_WAIT_S):
            while any(entry.polling for entry in asked):
                await self._answered.wait()
        for entry in entries:
            entry.late = entry.polling

    async def _poll(self, entry: ProviderState) -> None:
        """Ask until it has answered to all that was told."""
        try:
            while True:
                self._ledger.record(entry, await self._ledger.poll(entry, SYSTEM_CONTEXT))
                if not self._ledger.has_changed(entry):
                    break
        finally:
            late, entry.polling, entry.late = entry.late, False, False
            self._answered.set()
            self._answered = anyio.Event()
            if late:
                self._wake()

    async def poll_all(self, entries: Sequence[ProviderState]) -> list[tuple[ProviderState, PollResult]]:
        """What each of them says, when all have answered."""
        heard: list[tuple[ProviderState, PollResult]] = []

        async def ask(entry: ProviderState) -> None:
            heard.append((entry, await self._ledger.poll(entry, SYSTEM_CONTEXT)))

        async with anyio.create_task_group() as group:
            for entry in entries:
                group.start_soon(ask, entry)
        return heard

    async def until_due(self, event: anyio.Event) -> bool:
        """Wait until what some provider said holds no longer, or for the event; whether it was the former."""
        left = self._ledger.next_due() - time.monotonic()
        with anyio.move_on_after(max(0.0, left)) as waiting:
            await event.wait()
        return waiting.cancelled_caught

    def reset(self) -> None:
        """Nobody is asked any more."""
        self._ledger.reset()
        self._answered.set()
        self._answered = anyio.Event()


logger = logging.getLogger(__name__)


_MAX_NAMED: Final = 3
"""Tools set aside that are named; the others are counted."""


_MAX_REASON_CHARS: Final = 200
"""Characters of a reason."""


class StatusLogger:
    """Tells what is new since it was told last."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self._last: dict[str, ServerStatus] = {}

    def log_changes(self, statuses: Sequence[ServerStatus]) -> None:
        """Log each server that has become ready, and each whose tools were set aside, once."""
        last, self._last = self._last, {status.name: status for status in statuses}
        for status in statuses:
            before = last.get(status.name)
            if status.transport != "local" and _is_ready(status) and not _is_ready(before):
                spoken = f", protocol {status.protocol}" if status.protocol else ""
                logger.info("%s is ready: %d tools%s", status.name, status.tools, spoken)
            if status.rejected and (before is None or before.rejected != status.rejected):
                logger.warning("%s: %s", status.name, rejected_summary(status.rejected))


def _is_ready(status: ServerStatus | None) -> bool:
    return status is not None and status.state is ServerState.READY


def rejected_summary(rejected: Sequence[Rejected]) -> str:
    """What was set aside and why, on one line.

    >>> rejected_summary([Rejected(tool="a", reason="it has no schema.")])
    '1 tool was set aside: a (it has no schema)'
    """
    count = "1 tool was" if len(rejected) == 1 else f"{len(rejected)} tools were"
    shown = [f"{one.tool} ({_one_line(one.reason)})" for one in rejected[:_MAX_NAMED]]
    more = [f"and {len(rejected) - _MAX_NAMED} more"] if len(rejected) > _MAX_NAMED else []
    return f"{count} set aside: {', '.join([*shown, *more])}"


def _one_line(reason: str) -> str:
    line = " ".join(reason.split()).rstrip(".")
    return line if len(line) <= _MAX_REASON_CHARS else f"{line[: _MAX_REASON_CHARS - 1]}…"


@dataclass(slots=True, eq=False)
class _LoopFlight:
    begun: int
    """What was to be done when it began, as a count."""
    over: anyio.Event = field(default_factory=anyio.Event)
    arrived: bool = False


_joined_flights: ContextVar[tuple["SingleFlight", ...]] = ContextVar("toolcrib_flights", default=())
"""Whose work led to what runs now."""


class SingleFlight:
    """At most one at a time in each event loop."""

    def __init__(self) -> None:
        """None is under way."""
        self._lock = threading.Lock()
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopFlight] = WeakKeyDictionary()

    async def join(self, count: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        """Return when the work was done that began at this count or later; by whom makes no difference.

        Where it fails for one who does it, another one who waits does it instead. Work that leads back here, as by
        registries that provide each other, is done at once: it would wait for itself.
        """
        if self in _joined_flights.get():
            await work()
            return
        needed, loop = count(), asyncio.get_running_loop()
        while True:
            with self._lock:
                flight = self._flights.get(loop)
                if flight is None:
                    own = self._flights[loop] = _LoopFlight(count())
                    break
            await flight.over.wait()
            if flight.arrived and flight.begun >= needed:
                return
        token = _joined_flights.set((*_joined_flights.get(), self))
        try:
            await work()
            own.arrived = True
        finally:
            _joined_flights.reset(token)
            with self._lock:
                self._flights.pop(loop, None)
            own.over.set()
