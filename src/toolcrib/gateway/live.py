"""Keeps the snapshot fresh: asks the providers when they say that something changed, and swaps the new one in.

Readers take `snapshot` as it stands. Nothing here runs on the path of a search or a call, but for the wait for what
this process itself has just registered.

While `run` runs, providers are asked in the background. Without it, whoever asks next waits until what changed is in
the snapshot: so a registry works before, and without, being started.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.errors import NotStarted
from toolcrib.gateway.asking import Asking
from toolcrib.gateway.background import Background
from toolcrib.gateway.flights import Flights, Home
from toolcrib.gateway.herald import Herald
from toolcrib.gateway.intake import Intake
from toolcrib.gateway.ledger import Answer, Entry, Ledger, status_of
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.reports import as_taken_in, statuses_of, with_rejected
from toolcrib.gateway.snapshot import SetAside, Snapshot
from toolcrib.model import BackendKind, ServerState, ServerStatus
from toolcrib.protocols import Backend, ProviderSource, Unsubscribe
from toolcrib.providers.callbacks import ThreadSafe, called
from toolcrib.search.semantic import Embedder

_UNSETTLED = (ServerState.CONFIGURED, ServerState.CONNECTING)
_QUIET_S = 0.01
"""Changes that follow each other within this time make one snapshot, in seconds."""
_LONGEST_QUIET_S = 0.2
"""The same at most while servers are still connecting, so that the tools of many are taken in together."""
_OWN_WAIT_S = 1.0
"""How long a request waits for what this process has just registered, in seconds."""


class Live:
    """The current snapshot, and what keeps it so."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions) -> None:
        """Nothing is asked before `run`, or before the first request without it."""
        self._intake = Intake(options)
        self.background = Background(options, get=lambda: self.snapshot, put=self._intake.put, wake=self._wake)
        self._options = options
        self._ledger = Ledger(sources, options)
        self._asking = Asking(self._ledger, self._wake)
        self._herald = Herald()
        self._took_s = 0.0
        """How long the last tools took to be taken in."""
        self._listeners: dict[object, Callable[[], None]] = {}
        self._statuses: tuple[ServerStatus, ...] | None = None
        self._grace_until: float | None = None
        self._lock = threading.RLock()
        self._building = threading.Lock()
        self._flights = Flights()
        self._marks = 0
        """Counts up with each change; what was built up to which, without `run`."""
        self._built = -1
        self._own = self._own_seen = 0
        """The same for what this process registers itself."""
        self._home: Home | None = None
        """Where `run` runs."""
        self._dirty = anyio.Event()
        self._clean = anyio.Event()
        self._changed = anyio.Event()
        self._ends = [
            source.subscribe(ThreadSafe(partial(self._told, place, own=source.kind is not BackendKind.MCP)))
            for place, source in enumerate(sources)
        ]

    # -- the life cycle --------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Refresh until cancelled."""
        self._home = Home.here()
        self._dirty = anyio.Event()
        self._release()
        self._grace_until = anyio.current_time() + self._options.start_grace_s
        self._ledger.force()
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
                    await self.background.tidy(group, self._dirty)
        finally:
            self._home = None
            self._built = -1
            self.background.rest()
            self._release()

    def _quiet_s(self) -> float:
        """How long to wait for more that changes: as long as the last time took, while more servers are to come."""
        if self._own != self._own_seen or not self.connecting():
            return _QUIET_S
        return min(max(_QUIET_S, self._took_s), _LONGEST_QUIET_S)

    def _release(self) -> None:
        """Let everybody go who waits; what they wait for may never come."""
        self._asking.release()
        self._clean.set()
        self._changed.set()
        self._clean, self._changed = anyio.Event(), anyio.Event()

    def close(self) -> None:
        """Hear of no further changes, so that nothing keeps it alive any more; calling it twice is harmless."""
        ends, self._ends = self._ends, []
        for end in ends:
            called(end)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each swap and each change of a status; where it raises, that is logged.

        From the event loop in which `run` runs; without it, from that of the request which found the change.
        """
        place = object()
        self._listeners[place] = callback
        return lambda: (self._listeners.pop(place, None), None)[1]

    def embed_with(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder as soon as all tools are embedded, in the background."""
        self.background.embed_with(embedder)

    @property
    def snapshot(self) -> Snapshot:
        """All tools of this moment."""
        return self._intake.snapshot

    def backends(self) -> list[Backend]:
        """The shared providers, in the order in which they take precedence."""
        return self._ledger.backends()

    # -- changes ---------------------------------------------------------------------------------------------------

    def again(self) -> None:
        """Ask every provider again, whatever it said of how long its list holds. From any thread."""
        with self._lock:
            self._ledger.force()
        self._mark(own=False)

    def doubt(self, backends: Sequence[Backend]) -> None:
        """Ask these providers again, which do not run what they have listed."""
        with self._lock:
            self._ledger.doubt(backends)
        self._mark(own=False)

    def _told(self, source: int, *, own: bool) -> None:
        """Something changed at a source. From any thread."""
        with self._lock:
            self._ledger.tell(source)
        # What is gone is gone at once, for whoever asks next; only what comes may take its time.
        self._mark(own=own or self._ledger.lost(source))

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
        self.background.disturb()
        self._statuses = None
        self._dirty.set()

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait for what this process has just registered itself; without `run`, for everything that changed."""
        home = self._running()
        if home is None:
            if self._built != self._marks or self._ledger.next_due() <= time.monotonic():
                await self._flights.join(lambda: self._marks, self._build_now)
        elif self._own != self._own_seen and home.is_here():
            with anyio.move_on_after(_OWN_WAIT_S):
                while self._own != self._own_seen and self._home is home:
                    await self._changed.wait()

    async def fresh(self) -> None:
        """Wait until all that changed is in the snapshot. Raises `NotStarted` when `run` ends meanwhile."""
        home = self._running()
        if home is None:
            await self.ready()
            return
        await self._clean.wait()
        self._check(home)

    async def idle(self) -> None:
        """Wait until nothing is left to be done, neither of what changed nor in the background.

        Raises `NotStarted` when `run` ends meanwhile.
        """
        home = self._running()
        await self.background.idle()
        self._check(home)

    async def changed(self) -> None:
        """Wait for the next swap. Raises `NotStarted` when `run` ends meanwhile."""
        home = self._running()
        await self._changed.wait()
        self._check(home)

    async def settled(self) -> None:
        """Wait until no server is in its first attempt any more, and the snapshot holds what they offer.

        Raises `NotStarted` when `run` ends meanwhile.
        """
        home = self._running()
        if home is None:
            await self.ready()
            return
        while not self._clean.is_set() or self.connecting():
            await self._changed.wait()
            self._check(home)

    async def grace(self) -> None:
        """Wait like `settled`, but only shortly after the start, and not again once it was so."""
        home = self._running()
        if self._grace_until is None or home is None or not home.is_here():
            return
        if (left := self._grace_until - anyio.current_time()) > 0:
            with anyio.move_on_after(left), contextlib.suppress(NotStarted):
                await self.settled()
        self._grace_until = None

    def _running(self) -> Home | None:
        """Where `run` runs, if it does; not where its loop was closed under it."""
        home = self._home
        return None if home is None or home.loop.is_closed() else home

    def _check(self, home: Home | None) -> None:
        if home is not None and self._home is not home:
            raise NotStarted("The gateway was stopped.", hint="Start it again.")

    def connecting(self) -> bool:
        """Whether some server is still in its first attempt."""
        return any(status.state in _UNSETTLED for status in self.statuses())

    # -- statuses --------------------------------------------------------------------------------------------------

    def statuses(self) -> tuple[ServerStatus, ...]:
        """One status a server, by name, with the definitions that were set aside.

        A server is ready once its tools are in the snapshot. A provider that speaks for no servers has a status where
        it could not list its tools, or some of them were set aside.
        """
        known = self._statuses
        if known is None:
            found = [status for entry in self._ledger.entries() for status in self._statuses_of(entry)]
            known = self._statuses = tuple(sorted(found, key=lambda status: status.name))
        return known

    def set_aside(self) -> tuple[SetAside, ...]:
        """Every definition that was set aside, by the catalog or by the provider itself."""
        told = [
            SetAside(entry.backend, status.namespace or status.name, rejected)
            for entry in self._ledger.entries()
            for status in statuses_of(entry.backend.provider)
            for rejected in status.rejected
        ]
        return (*self.snapshot.rejected, *told)

    def _statuses_of(self, entry: Entry) -> list[ServerStatus]:
        provider = entry.backend.provider
        set_aside = [one for one in self.snapshot.rejected if one.backend is entry.backend]
        told = statuses_of(provider)
        if not told and (entry.problem or set_aside):
            told = (status_of(entry),)
        elif self._running() is not None:  # without `run`, whoever asks waits until the tools are in
            told = as_taken_in(told, self._intake.said.get(id(provider), ()), failed=self._intake.failed)
        return with_rejected(told, set_aside)

    # -- refreshing ------------------------------------------------------------------------------------------------

    async def _refresh(self, group: anyio.abc.TaskGroup) -> None:
        """Ask, wait a little, and take in what was answered; those that are slow are taken in once they answer."""
        with self._lock:
            own, entries = self._own, self._ledger.refreshed()
        await self._asking.begin(group, entries)
        begun = time.monotonic()
        await self._intake.take(self._ledger.offers(), self.background)
        self._took_s = time.monotonic() - begun
        self._statuses = None
        self._herald.tell(self.statuses())
        self._own_seen = own
        if not self._dirty.is_set() and not any(entry.asking for entry in entries):
            self._clean.set()
        self._changed.set()
        self._changed = anyio.Event()
        self._tell()

    async def _watch_expiry(self) -> None:
        """Have a provider asked again once what it said holds no longer."""
        while True:
            if await self._asking.until_due(self._changed):
                changed = self._changed
                self._wake()
                await changed.wait()

    async def _build_now(self) -> None:
        """Ask everybody who must be asked, and build; for who does not let `run` do it."""
        with self._lock:
            marks, own = self._marks, self._own
            entries = [entry for entry in self._ledger.refreshed() if self._ledger.wanted(entry)]
        heard = await self._asking.all(entries)
        if await anyio.to_thread.run_sync(self._commit, marks, own, heard):
            self._herald.tell(self.statuses())
            self._tell()

    def _commit(self, marks: int, own: int, heard: Sequence[tuple[Entry, Answer]]) -> bool:
        """Take in what was heard, unless somebody has taken in something later; whether that was done."""
        with self._building:
            if marks < self._built or self._running() is not None:
                return False
            with self._lock:
                for entry, answer in heard:
                    self._ledger.note(entry, answer)
                offers = self._ledger.offers()
            self._intake.take_now(offers)
            self._built, self._own_seen = marks, own
            self._statuses = None
        return True

    def _tell(self) -> None:
        for listener in tuple(self._listeners.values()):
            called(listener)
