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
from mcp.client.subscriptions import SubscriptionLost

from toolcrib.types import Unsubscribe
from toolcrib.upstream.channel import AutoResetEvent, ExchangeError, FailureKind
from toolcrib.upstream.connection import Connection
from toolcrib.wire import is_encodable

logger = logging.getLogger(__name__)


_CONFIRM_TIMEOUT_S: Final = 5.0
"""How long somebody who begins to watch waits for a server of a newer version to agree."""


_NOT_CONFIRMED: Final = "it does not agree to tell of changes of this resource"


@dataclass(frozen=True, slots=True)
class _Subscriber:
    """Somebody who watches a resource."""

    callback: Callable[[str], None]
    use: Callable[[], None]


@dataclass(slots=True)
class _PendingRequest:
    """Somebody is asking the server to tell of a resource."""

    done: anyio.Event = field(default_factory=anyio.Event)
    error: ExchangeError | None = None


class UpstreamSubscriptions:
    """The resources of one server that somebody watches, across its connections."""

    def __init__(self, name: str, retry_s: float) -> None:
        """Of the server of that name; a broken subscription is made again after `retry_s` seconds."""
        self._name = name
        self._retry_s = retry_s
        self._watchers: dict[str, dict[object, _Subscriber]] = {}
        self._session: Connection | None = None
        self._told_of: set[str] = set()
        """What a server of an older version was asked to tell of."""
        self._answers: dict[str, str] = {}
        """What the server said of each resource: nothing where it agreed, or why it does not."""
        self._answered = anyio.Event()
        self._pending: dict[str, _PendingRequest] = {}
        self._changed = AutoResetEvent()
        self._ask_again = False
        self._was_connected = False
        self._folded = UpdateCoalescer(self._tell)

    async def add(self, uri: str, callback: Callable[[str], None], use: Callable[[], None]) -> Unsubscribe:
        """Call back when the resource changed, until what this returns is called; also after a loss, to be safe.

        `use` is called for each connection that serves it, beforehand. Raises `ExchangeError` where the server refuses,
        or does not agree in time.
        """
        place = object()
        self._watchers.setdefault(uri, {})[place] = _Subscriber(callback, use)
        use()

        def remove() -> None:
            watchers = self._watchers.get(uri)
            if watchers is not None and watchers.pop(place, None) is not None and not watchers:
                del self._watchers[uri]
                self._changed.set()

        try:
            await self._agreed_on(uri)
        except BaseException:
            remove()
            raise
        return remove

    async def _agreed_on(self, uri: str) -> None:
        """Until the server tells of it; whoever comes while it is being asked shares the outcome."""
        while (session := self._session) is not None and self._answers.get(uri) != "":
            pending = self._pending.get(uri)
            if pending is None:
                await self._ask(session, uri)
                return
            await pending.done.wait()
            if (error := pending.error) is not None:
                raise ExchangeError(error.kind, error.reason, code=error.code, data=error.data)

    async def _ask(self, session: Connection, uri: str) -> None:
        pending = self._pending[uri] = _PendingRequest()
        try:
            await (self._ask_newer if session.protocol.modern else self._ask_older)(session, uri)
        except ExchangeError as error:
            pending.error = error
            raise
        finally:
            del self._pending[uri]
            pending.done.set()

    async def _ask_older(self, session: Connection, uri: str) -> None:
        self._told_of.add(uri)
        await session.subscribe_resource(uri, on=True)
        if self._session is session:
            self._answers[uri] = ""

    async def _ask_newer(self, session: Connection, uri: str) -> None:
        self._answers.pop(uri, None)
        self._ask_again = True
        self._changed.set()
        with anyio.move_on_after(_CONFIRM_TIMEOUT_S):
            while uri not in self._answers and self._session is session:
                await self._answered.wait()
        refusal = self._answers.get(uri, f"it did not agree within {_CONFIRM_TIMEOUT_S:g} s to tell of changes")
        if refusal and self._session is session:
            raise ExchangeError(FailureKind.ANSWER, refusal)

    def resource_updated(self, uri: str) -> None:
        """The server says that this resource changed; whoever watches it, or one that it is part of, is told."""
        if self._watchers and is_encodable(uri):
            self._folded.add(uri, self._watchers)

    def _tell(self, watched: str, uri: str) -> None:
        for watcher in tuple(self._watchers.get(watched, {}).values()):
            try:
                watcher.callback(uri)
            except Exception:
                # It is foreign code, and must not end the server's own task.
                logger.exception("who watches a resource of %s raised", self._name)

    # -- while there is a connection -------------------------------------------------------------------------------

    def attach(self, session: Connection) -> None:
        """A connection begins; `keep` follows."""
        self._session, self._told_of, self._answers = session, set(), {}
        self._folded.clear()
        for watchers in self._watchers.values():
            for watcher in watchers.values():
                watcher.use()
        session.channel.notifications.on_resource_updated = self.resource_updated

    async def maintain(self, session: Connection) -> None:
        """Have the server tell of what is watched, until the connection ends."""
        try:
            await (self._keep_newer(session) if session.protocol.modern else self._keep_older(session))
        finally:
            self._session, self._was_connected = None, True
            self._answer({})

    async def _keep_older(self, session: Connection) -> None:
        for uri in tuple(self._watchers):
            if uri not in self._told_of:
                self._told_of.add(uri)
                if await self._switch(session, uri, on=True):
                    self._answers[uri] = ""
        if self._was_connected:
            self._tell_all(self._watchers)
        while True:
            await self._changed.wait()
            for uri in self._told_of - self._watchers.keys():
                self._told_of.discard(uri)
                self._answers.pop(uri, None)
                await self._switch(session, uri, on=False)

    async def _switch(self, session: Connection, uri: str, *, on: bool) -> bool:
        """Whether the server took note."""
        try:
            await session.subscribe_resource(uri, on=on)
        except ExchangeError as error:
            logger.info("%s does not take note of who watches a resource: %s", self._name, error.reason)
            return False
        return True

    async def _keep_newer(self, session: Connection) -> None:
        """One subscription for all; a new one stands before the old one ends, so that nothing is missed between."""
        async with anyio.create_task_group() as group:
            standing: anyio.CancelScope | None = None
            while True:
                scope, begun, uris = anyio.CancelScope(), anyio.Event(), frozenset(self._watchers)
                self._ask_again = False
                if uris:
                    group.start_soon(self._listen, session, uris, scope, begun)
                    with anyio.move_on_after(_CONFIRM_TIMEOUT_S):
                        await begun.wait()
                else:
                    begun.set()
                if standing is not None and begun.is_set():
                    standing.cancel()
                while frozenset(self._watchers) == uris and not self._ask_again:
                    await self._changed.wait()
                if not begun.is_set():
                    scope.cancel()
                    continue
                if standing is not None:
                    standing.cancel()
                standing = scope

    async def _listen(
        self, session: Connection, uris: frozenset[str], scope: anyio.CancelScope, begun: anyio.Event
    ) -> None:
        """Listen until the scope is cancelled, or the server refuses; it has begun when that is known."""
        lost = self._was_connected
        with scope:
            while True:
                try:
                    async with session.resource_updates(uris) as subscription:
                        agreed = {uri.rstrip("/") for uri in subscription.honored.resource_subscriptions or ()}
                        self._answer({uri: "" if uri.rstrip("/") in agreed else _NOT_CONFIRMED for uri in uris})
                        begun.set()
                        if lost:
                            self._tell_all(uris)
                        # The link's notices have the events already.
                        async for _ in subscription:
                            pass
                except (SubscriptionLost, TimeoutError):
                    pass
                except ExchangeError as error:
                    if error.kind is FailureKind.ANSWER:
                        logger.info("%s does not tell of changes of its resources: %s", self._name, error.reason)
                        self._answer(dict.fromkeys(uris, error.reason))
                        break
                lost = True
                begun.set()
                await anyio.sleep(self._retry_s)
            begun.set()

    def _answer(self, answers: dict[str, str]) -> None:
        self._answers = answers
        self._answered.set()
        self._answered = anyio.Event()

    def _tell_all(self, uris: Iterable[str]) -> None:
        """Nobody knows what changed while there was no connection."""
        for uri in tuple(uris):
            self._tell(uri, uri)


_WINDOW_S: Final = 0.1


_MAX_REPORTED: Final = 50
"""Watched resources that are told of in one window; the others wait for the next."""


_MAX_COMPARED: Final = 50
"""Notices that are held against what is watched in one window. Of more, all that is watched may have changed."""


class UpdateCoalescer:
    """Of one server. Each watched resource is told of at most once in a window; nothing is lost."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        """`tell` is called with what is watched, and which resource changed: that, or one that is part of it."""
        self._tell = tell
        self._due: dict[str, str] = {}
        self._told: set[str] = set()
        self._noted = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, uri: str, watched: Collection[str]) -> None:
        """The server says that this resource changed, while these are watched."""
        if self._timer is None:
            self._open()
        self._noted += 1
        if self._noted > _MAX_COMPARED:
            if self._noted == _MAX_COMPARED + 1:
                self._due |= {one: one for one in watched}
            return
        for one in tuple(watched):
            if uri == one or uri.startswith(one.rstrip("/") + "/"):
                self._put(one, uri)

    def _put(self, watched: str, uri: str) -> None:
        if watched not in self._told and len(self._told) < _MAX_REPORTED:
            self._told.add(watched)
            self._tell(watched, uri)
        else:
            self._due[watched] = uri if self._due.get(watched, uri) == uri else watched

    def _open(self) -> None:
        self._told, self._noted = set(), 0
        self._timer = asyncio.get_running_loop().call_later(_WINDOW_S, self._close)

    def _close(self) -> None:
        """Tell of what waited, in a window of its own; none where nothing did."""
        self._timer = None
        if not self._due:
            return
        self._open()
        for watched in tuple(islice(self._due, _MAX_REPORTED)):
            self._put(watched, self._due.pop(watched))

    def clear(self) -> None:
        """Of an earlier connection nothing is told any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, {}
