"""Keeps the snapshot fresh: asks the providers when they say that something changed, and swaps the new one in.

Readers take `snapshot` as it stands. Nothing here runs on the path of a search or a call, but for the wait for what
this process itself has just registered.

While `run` runs, providers are asked in the background. Without it, whoever asks next waits until what changed is in
the snapshot: so a registry works before, and without, being started.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.gateway.background import Background, watching
from toolcrib.gateway.ledger import Answer, Entry, Ledger
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import EMPTY, Offer, Snapshot
from toolcrib.model import BackendKind, Caller, Rejected, ServerState, ServerStatus
from toolcrib.protocols import Backend, Context, ProviderSource, StatusSource, Unsubscribe
from toolcrib.search.semantic import Embedder

logger = logging.getLogger(__name__)

SYSTEM: Final = Context(caller=Caller(id="toolcrib"))
"""Who asks shared providers for their tools."""

_UNSETTLED = (ServerState.CONFIGURED, ServerState.CONNECTING)
_QUIET_S = 0.01
"""Changes that follow each other within this time make one snapshot, in seconds."""
_PATIENCE_S = 0.1
"""How long the others' tools wait for a provider that is slow to list its own, in seconds."""
_OWN_WAIT_S = 1.0
"""How long a request waits for what this process has just registered, in seconds."""


class Live:
    """The current snapshot, and what keeps it so."""

    def __init__(self, sources: Sequence[ProviderSource], options: GatewayOptions) -> None:
        """Nothing is asked before `run`, or before the first request without it."""
        self.snapshot: Snapshot = EMPTY
        self.background = Background(options, get=lambda: self.snapshot, put=self._put, wake=self._wake)
        self._sources = tuple(sources)
        self._options = options
        self._ledger = Ledger(sources, options)
        self._offers: tuple[Offer, ...] = ()
        self._listeners: list[Callable[[], None]] = []
        self._statuses: tuple[ServerStatus, ...] | None = None
        self._grace_until: float | None = None
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._marks = 0
        """Counts up with each change; what was built up to which, without `run`."""
        self._built = -1
        self._own = self._own_seen = 0
        """The same for what this process registers itself."""
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None
        """The loop, and its thread, in which `run` runs."""
        self._ask_all = True
        self._dirty = anyio.Event()
        self._clean = anyio.Event()
        self._changed = anyio.Event()
        self._answered = anyio.Event()
        for source in self._sources:
            source.subscribe(partial(self._mark, source.kind))

    # -- the life cycle --------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Refresh until cancelled."""
        self._home = (asyncio.get_running_loop(), threading.get_ident())
        self._dirty, self._clean, self._changed = anyio.Event(), anyio.Event(), anyio.Event()
        self._grace_until = anyio.current_time() + self._options.start_grace_s
        self._ask_all = True
        self._own += 1  # whoever asks first waits for the first round
        self._wake()
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_expiry)
                while True:
                    await self._dirty.wait()
                    await anyio.sleep(_QUIET_S)
                    self._dirty = anyio.Event()
                    await self._refresh(group)
                    await self.background.tidy(group, self._dirty)
        finally:
            self._home = None
            self._built = -1

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each swap and each change of a status."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def embed_with(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder as soon as all tools are embedded, in the background."""
        self.background.embed_with(embedder)

    def _put(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def backends(self) -> list[Backend]:
        """The shared providers, in the order in which they take precedence."""
        return self._ledger.backends()

    # -- changes ---------------------------------------------------------------------------------------------------

    def again(self) -> None:
        """Ask every provider again, whatever it said of how long its list holds."""
        self._mark()

    def _mark(self, kind: BackendKind = BackendKind.MCP) -> None:
        """Something changed. From any thread."""
        with self._lock:
            self._marks += 1
            self._own += kind is not BackendKind.MCP
        self._statuses = None
        self._ask_all = True
        home = self._home
        if home is None:
            return
        loop, thread = home
        if threading.get_ident() == thread:
            self._wake()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._clean.is_set():
            self._clean = anyio.Event()
        self.background.disturb()
        self._statuses = None
        self._dirty.set()

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait for what this process has just registered itself; without `run`, for everything that changed."""
        if self._home is None:
            if self._built != self._marks or self._ledger.next_due() <= time.monotonic():
                await self._build_now()
        elif self._own != self._own_seen and self._home[1] == threading.get_ident():
            with anyio.move_on_after(_OWN_WAIT_S):
                while self._own != self._own_seen:
                    await self._changed.wait()

    async def fresh(self) -> None:
        """Wait until all that changed is in the snapshot."""
        if self._home is None:
            await self.ready()
        else:
            await self._clean.wait()

    async def idle(self) -> None:
        """Wait until nothing is left to be done, neither of what changed nor in the background."""
        await self.background.idle()

    async def changed(self) -> None:
        """Wait for the next swap."""
        await self._changed.wait()

    async def settled(self) -> None:
        """Wait until no server is in its first attempt any more, and the snapshot holds what they offer."""
        if self._home is None:
            await self.ready()
            return
        while not self._clean.is_set() or self.connecting():
            await self._changed.wait()

    async def grace(self) -> None:
        """Wait like `settled`, but only shortly after the start, and not again once it was so."""
        if self._grace_until is None or self._home is None or self._home[1] != threading.get_ident():
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
        known = self._statuses
        if known is None:
            by_namespace: dict[str, list[Rejected]] = {}
            for namespace, rejected in self.snapshot.rejected:
                by_namespace.setdefault(namespace, []).append(rejected)
            known = tuple(
                _with_rejected(raw, by_namespace.get(raw.namespace or raw.name, ())) for raw in self._raw_statuses()
            )
            self._statuses = known
        return known

    def _raw_statuses(self) -> list[ServerStatus]:
        found = [
            status
            for source in self._sources
            for provider in source.providers()
            if isinstance(provider, StatusSource)
            for status in provider.statuses()
        ]
        return sorted((*found, *self._ledger.troubles()), key=lambda status: status.name)

    # -- refreshing ------------------------------------------------------------------------------------------------

    async def _refresh(self, group: anyio.abc.TaskGroup) -> None:
        """Ask, wait a little, and take in what was answered; those that are slow are taken in once they answer."""
        own, ask_all, self._ask_all = self._own, self._ask_all, False
        entries = self._ledger.refreshed()
        asked = [entry for entry in entries if ask_all or entry.due <= time.monotonic()]
        for entry in asked:
            if entry.asking:
                entry.again = True
            else:
                entry.asking = True
                group.start_soon(self._ask, entry)
        with anyio.move_on_after(_PATIENCE_S):
            while any(entry.asking for entry in asked):
                await self._answered.wait()
        late = [entry for entry in asked if entry.asking]
        await self._take(self._ledger.offers())
        for entry in late:
            group.start_soon(self._until_answered, entry)
        self._own_seen = own
        if not self._dirty.is_set() and not late:
            self._clean.set()
        self._tell()

    async def _ask(self, entry: Entry) -> None:
        entry.again = True
        while entry.again:
            entry.again = False
            self._ledger.note(entry, await self._ledger.ask(entry, SYSTEM))
        entry.asking = False
        self._answered.set()
        self._answered = anyio.Event()

    async def _until_answered(self, entry: Entry) -> None:
        while entry.asking:
            await self._answered.wait()
        self._wake()

    async def _watch_expiry(self) -> None:
        """Have a provider asked again once what it said holds no longer."""
        while True:
            left = self._ledger.next_due() - time.monotonic()
            with anyio.move_on_after(max(0.0, left)) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                changed = self._changed
                self._wake()
                await changed.wait()

    async def _take(self, offers: tuple[Offer, ...]) -> None:
        """Take in what is offered, without holding up the event loop."""
        made = self.background.taken()
        if made is None and _same(self._offers, offers):
            self._statuses = None
            return
        self._offers = offers
        before = self.snapshot if made is None else replace(self.snapshot, index=made)
        build = partial(Snapshot.build, offers, before, options=self._options.search)
        try:
            self.snapshot, failed = await anyio.to_thread.run_sync(watching, build)
        except Exception:
            logger.exception("the new tools could not be taken in; the old ones stay")
            failed = True
        if failed:
            self.background.plan()
        self._statuses = None

    async def _build_now(self) -> None:
        """Ask everybody who must be asked, and build; for who does not let `run` do it."""
        with self._lock:
            marks, own = self._marks, self._own
            entries = self._ledger.refreshed()
            if marks == self._built:
                entries = [entry for entry in entries if entry.due <= time.monotonic()]
        answers: list[Answer | None] = [None] * len(entries)

        async def ask(place: int) -> None:
            answers[place] = await self._ledger.ask(entries[place], SYSTEM)

        async with anyio.create_task_group() as group:
            for place in range(len(entries)):
                group.start_soon(ask, place)
        heard = [(entry, answer) for entry, answer in zip(entries, answers, strict=True) if answer is not None]
        await anyio.to_thread.run_sync(self._commit, marks, own, heard)

    def _commit(self, marks: int, own: int, heard: Sequence[tuple[Entry, Answer]]) -> None:
        """Take in what was heard, unless somebody has taken in something later."""
        with self._building:
            if marks < self._built or self._home is not None:
                return
            with self._lock:
                for entry, answer in heard:
                    self._ledger.note(entry, answer)
                offers = self._ledger.offers()
            if not _same(self._offers, offers):
                self.snapshot = Snapshot.build(offers, self.snapshot, options=self._options.search)
            self._offers, self._built, self._own_seen = offers, marks, own
            self._statuses = None
        for listener in tuple(self._listeners):
            listener()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        for listener in tuple(self._listeners):
            listener()


def _same(old: Sequence[Offer], new: Sequence[Offer]) -> bool:
    """Whether two rounds offered the very same objects; providers keep a tool object while nothing changes."""
    return len(old) == len(new) and all(_unchanged(a, b) for a, b in zip(old, new, strict=True))


def _unchanged(old: Offer, new: Offer) -> bool:
    if old.backend is not new.backend or len(old.tools) != len(new.tools):
        return False
    return old.tools is new.tools or all(a is b for a, b in zip(old.tools, new.tools, strict=True))


def _with_rejected(status: ServerStatus, more: Sequence[Rejected]) -> ServerStatus:
    if not more:
        return status
    return replace(status, tools=max(0, status.tools - len(more)), rejected=(*status.rejected, *more))
