"""Keeps the snapshot fresh: asks the providers when they say that something changed, and swaps the new one in.

Readers take `snapshot` as it stands. Nothing here runs on the path of a search or a call.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.view import EMPTY, Snapshot
from toolcrib.model import Caller, Rejected, ServerState, ServerStatus, Tool
from toolcrib.protocols import Context, ProviderSource, StatusSource, ToolProvider, Unsubscribe

logger = logging.getLogger(__name__)

SYSTEM: Final = Context(caller=Caller(id="toolcrib"))
"""Who asks shared providers for their tools."""

_UNSETTLED = (ServerState.CONFIGURED, ServerState.CONNECTING)
_QUIET_S = 0.01
"""Changes that follow each other within this time make one snapshot, in seconds."""


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

    # -- the life cycle --------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Refresh until cancelled."""
        ends = [source.subscribe(self._mark) for source in self._sources]
        self._grace_until = anyio.current_time() + self._options.start_grace_s
        try:
            self._mark()
            task_status.started()
            while True:
                await self._dirty.wait()
                await anyio.sleep(_QUIET_S)
                self._dirty = anyio.Event()
                await self._refresh()
                if not self._dirty.is_set():
                    self._clean.set()
                self._tell()
        finally:
            for end in ends:
                end()

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back after each swap and each change of a status."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _mark(self) -> None:
        if self._clean.is_set():
            self._clean = anyio.Event()
        self._statuses = None
        self._dirty.set()

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def fresh(self) -> None:
        """Wait until all that changed is in the snapshot."""
        await self._clean.wait()

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
        if not _same(tuple(self._offers.values()), tuple(ordered.values())):
            self._offers = ordered
            asked = [(offer.provider, offer.tools) for offer in ordered.values()]
            try:
                self.snapshot = await anyio.to_thread.run_sync(Snapshot.build, asked, self.snapshot)
            except Exception:
                logger.exception("the new tools could not be taken in; the old ones stay")
            self._statuses = None

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
