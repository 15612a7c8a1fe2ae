"""Subscriptions to single resources of a server, kept across reconnects.

Older servers take `resources/subscribe`; newer ones take one subscription stream for all resources.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import anyio

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.types import Unsubscribe
from toolcrib.upstream.connection import ServerConnection, Subscription
from toolcrib.upstream.transports.base import AutoResetEvent
from toolcrib.wire import is_encodable

logger = logging.getLogger(__name__)

_CONFIRM_TIMEOUT_S: Final = 5.0
"""How long a new subscriber waits for a server of a newer version to confirm."""
_NOT_CONFIRMED: Final = "it does not support subscriptions to this resource"
_WINDOW_S: Final = 0.1
_MAX_REPORTED: Final = 50
"""Resources reported per window; the others wait for the next one."""
_MAX_COMPARED: Final = 50
"""Notifications compared with the subscriptions per window. Beyond it, everything may have changed."""


@dataclass(frozen=True, slots=True)
class _Subscriber:
    callback: Callable[[str], None]
    use: Callable[[], None]


@dataclass(slots=True)
class _PendingRequest:
    """A subscription request under way."""

    done: anyio.Event = field(default_factory=anyio.Event)
    error: ExchangeError | None = None


class UpstreamSubscriptions:
    """Subscriptions to resources of one server, across its connections."""

    def __init__(self, name: str, retry_s: float) -> None:
        """A broken subscription is made again after `retry_s` seconds."""
        self._name = name
        self._retry_s = retry_s
        self._subscribers: dict[str, dict[object, _Subscriber]] = {}
        self._connection: ServerConnection | None = None
        self._requested: set[str] = set()
        """Resources that a server of an older version was asked about."""
        self._answers: dict[str, str] = {}
        """The server's answer for each resource: empty if it agreed, else the reason."""
        self._answers_changed = anyio.Event()
        self._pending: dict[str, _PendingRequest] = {}
        self._changed = AutoResetEvent()
        self._restart = False
        self._was_connected = False
        self._folded = UpdateCoalescer(self._report)

    async def add(self, uri: str, callback: Callable[[str], None], use: Callable[[], None]) -> Unsubscribe:
        """Call back when the resource changed, until the returned function is called; also after a reconnect, to be
        safe.

        `use` is called for each connection that serves the subscription, beforehand. Raises `ExchangeError` if the
        server refuses or does not confirm in time.
        """
        place = object()
        self._subscribers.setdefault(uri, {})[place] = _Subscriber(callback, use)
        use()

        def remove() -> None:
            subscribers = self._subscribers.get(uri)
            if subscribers is not None and subscribers.pop(place, None) is not None and not subscribers:
                del self._subscribers[uri]
                self._changed.set()

        try:
            await self._wait_confirmed(uri)
        except BaseException:
            remove()
            raise
        return remove

    async def _wait_confirmed(self, uri: str) -> None:
        """Wait until the server has agreed; concurrent subscribers share one request and its outcome."""
        while (connection := self._connection) is not None and self._answers.get(uri) != "":
            pending = self._pending.get(uri)
            if pending is None:
                await self._request(connection, uri)
                return
            await pending.done.wait()
            if (error := pending.error) is not None:
                raise ExchangeError(error.kind, error.reason, answer=error.answer)

    async def _request(self, connection: ServerConnection, uri: str) -> None:
        pending = self._pending[uri] = _PendingRequest()
        try:
            await (self._request_newer if connection.protocol.modern else self._request_older)(connection, uri)
        except ExchangeError as error:
            pending.error = error
            raise
        finally:
            del self._pending[uri]
            pending.done.set()

    async def _request_older(self, connection: ServerConnection, uri: str) -> None:
        self._requested.add(uri)
        await connection.subscribe_resource(uri, on=True)
        if self._connection is connection:
            self._answers[uri] = ""

    async def _request_newer(self, connection: ServerConnection, uri: str) -> None:
        self._answers.pop(uri, None)
        self._restart = True
        self._changed.set()
        with anyio.move_on_after(_CONFIRM_TIMEOUT_S):
            while uri not in self._answers and self._connection is connection:
                await self._answers_changed.wait()
        refusal = self._answers.get(uri, f"it did not confirm the subscription within {_CONFIRM_TIMEOUT_S:g} s")
        if refusal and self._connection is connection:
            raise ExchangeError(FailureKind.ANSWER, refusal)

    def resource_updated(self, uri: str) -> None:
        """Handle a server's notification; subscribers of the resource, or of one above it, are called."""
        if self._subscribers and is_encodable(uri):
            self._folded.add(uri, self._subscribers)

    def _report(self, watched: str, uri: str) -> None:
        for subscriber in tuple(self._subscribers.get(watched, {}).values()):
            try:
                subscriber.callback(uri)
            except Exception:
                # Third-party code must not end the server's own task.
                logger.exception("a subscriber to a resource of %s raised", self._name)

    # -- while there is a connection -------------------------------------------------------------------------------

    def attach(self, connection: ServerConnection) -> None:
        """Start with a new connection; `maintain` follows."""
        self._connection, self._requested, self._answers = connection, set(), {}
        self._folded.clear()
        for subscribers in self._subscribers.values():
            for subscriber in subscribers.values():
                subscriber.use()
        connection.on_resource_updated = self.resource_updated

    async def maintain(self, connection: ServerConnection) -> None:
        """Keep the server subscribed to what is wanted, until the connection ends."""
        try:
            await (self._maintain_newer(connection) if connection.protocol.modern else self._maintain_older(connection))
        finally:
            self._connection, self._was_connected = None, True
            self._answer({})

    async def _maintain_older(self, connection: ServerConnection) -> None:
        for uri in tuple(self._subscribers):
            if uri not in self._requested:
                self._requested.add(uri)
                if await self._switch(connection, uri, on=True):
                    self._answers[uri] = ""
        if self._was_connected:
            self._report_all(self._subscribers)
        while True:
            await self._changed.wait()
            for uri in self._requested - self._subscribers.keys():
                self._requested.discard(uri)
                self._answers.pop(uri, None)
                await self._switch(connection, uri, on=False)

    async def _switch(self, connection: ServerConnection, uri: str, *, on: bool) -> bool:
        """Subscribe or unsubscribe. Returns whether the server accepted."""
        try:
            await connection.subscribe_resource(uri, on=on)
        except ExchangeError as error:
            logger.info("%s does not accept a resource subscription: %s", self._name, error.reason)
            return False
        return True

    async def _maintain_newer(self, connection: ServerConnection) -> None:
        """Use one stream for all resources. A new stream is open before the old one ends, so that no change is
        missed.
        """
        async with anyio.create_task_group() as group:
            current: anyio.CancelScope | None = None
            while True:
                scope, started, uris = anyio.CancelScope(), anyio.Event(), frozenset(self._subscribers)
                self._restart = False
                if uris:
                    group.start_soon(self._listen, connection, uris, scope, started)
                    with anyio.move_on_after(_CONFIRM_TIMEOUT_S):
                        await started.wait()
                else:
                    started.set()
                if current is not None and started.is_set():
                    current.cancel()
                while frozenset(self._subscribers) == uris and not self._restart:
                    await self._changed.wait()
                if not started.is_set():
                    scope.cancel()
                    continue
                if current is not None:
                    current.cancel()
                current = scope

    async def _listen(
        self, connection: ServerConnection, uris: frozenset[str], scope: anyio.CancelScope, started: anyio.Event
    ) -> None:
        """Follow one stream until the scope is cancelled or the server refuses. Sets `started` once that is known."""
        lost = self._was_connected
        with scope:
            while True:
                try:
                    async with connection.subscribed({"resourceSubscriptions": sorted(uris)}) as subscription:
                        agreed = _agreed_uris(subscription)
                        self._answer({uri: "" if uri.rstrip("/") in agreed else _NOT_CONFIRMED for uri in uris})
                        started.set()
                        if lost:
                            self._report_all(uris)
                        await subscription.wait_ended()
                except ExchangeError as error:
                    if error.kind is FailureKind.ANSWER:
                        logger.info("%s does not report changes of its resources: %s", self._name, error.reason)
                        self._answer(dict.fromkeys(uris, error.reason))
                        break
                lost = True
                started.set()
                await anyio.sleep(self._retry_s)
            started.set()

    def _answer(self, answers: dict[str, str]) -> None:
        self._answers = answers
        self._answers_changed.set()
        self._answers_changed = anyio.Event()

    def _report_all(self, uris: Iterable[str]) -> None:
        """Report every resource: what changed without a connection is unknown."""
        for uri in tuple(uris):
            self._report(uri, uri)


def _agreed_uris(subscription: Subscription) -> set[str]:
    found = subscription.agreed.get("resourceSubscriptions")
    return {uri.rstrip("/") for uri in found if isinstance(uri, str)} if isinstance(found, list) else set()


class UpdateCoalescer:
    """Coalesces a server's resource updates, so that a flood of them stays cheap. Nothing is lost.

    Each subscribed resource is reported at most once per window.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        """`report` is called with the subscribed URI and the URI that changed: the same one, or one below it."""
        self._report = report
        self._due: dict[str, str] = {}
        self._reported: set[str] = set()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, uri: str, watched: Collection[str]) -> None:
        """Add an update of `uri`, given the subscribed URIs."""
        if self._timer is None:
            self._open()
        self._count += 1
        if self._count > _MAX_COMPARED:
            if self._count == _MAX_COMPARED + 1:
                self._due |= {one: one for one in watched}
            return
        for one in tuple(watched):
            if uri == one or uri.startswith(one.rstrip("/") + "/"):
                self._put(one, uri)

    def _put(self, watched: str, uri: str) -> None:
        if watched not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(watched)
            self._report(watched, uri)
        else:
            self._due[watched] = uri if self._due.get(watched, uri) == uri else watched

    def _open(self) -> None:
        self._reported, self._count = set(), 0
        self._timer = asyncio.get_running_loop().call_later(_WINDOW_S, self._close)

    def _close(self) -> None:
        """Report what waited, in a window of its own."""
        self._timer = None
        if not self._due:
            return
        self._open()
        for watched in tuple(islice(self._due, _MAX_REPORTED)):
            self._put(watched, self._due.pop(watched))

    def clear(self) -> None:
        """Drop the updates of an earlier connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, {}
