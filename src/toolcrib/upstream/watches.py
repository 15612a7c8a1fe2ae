"""Changes of single resources of a server: who wants to hear of them, and having the server tell."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import anyio
from mcp.client.subscriptions import SubscriptionLost

from toolcrib.protocols import Unsubscribe
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.folded import Folded
from toolcrib.upstream.link import Bell
from toolcrib.upstream.session import Session
from toolcrib.wire import is_encodable

logger = logging.getLogger(__name__)

_AGREE_S: Final = 5.0
"""How long somebody who begins to watch waits for a server of a newer version to agree."""
_NOT_AGREED: Final = "it does not agree to tell of changes of this resource"


@dataclass(frozen=True, slots=True)
class _Watcher:
    """Somebody who watches a resource."""

    callback: Callable[[str], None]
    use: Callable[[], None]


@dataclass(slots=True)
class _Pending:
    """Somebody is asking the server to tell of a resource."""

    done: anyio.Event = field(default_factory=anyio.Event)
    error: ExchangeError | None = None


class Watches:
    """The resources of one server that somebody watches, across its connections."""

    def __init__(self, name: str, retry_s: float) -> None:
        """Of the server of that name; a broken subscription is made again after `retry_s` seconds."""
        self._name = name
        self._retry_s = retry_s
        self._watchers: dict[str, dict[object, _Watcher]] = {}
        self._session: Session | None = None
        self._told_of: set[str] = set()
        """What a server of an older version was asked to tell of."""
        self._answers: dict[str, str] = {}
        """What the server said of each resource: nothing where it agreed, or why it does not."""
        self._answered = anyio.Event()
        self._pending: dict[str, _Pending] = {}
        self._changed = Bell()
        self._ask_again = False
        self._was_connected = False
        self._folded = Folded(self._tell)

    async def add(self, uri: str, callback: Callable[[str], None], use: Callable[[], None]) -> Unsubscribe:
        """Call back when the resource changed, until what this returns is called; also after a loss, to be safe.

        `use` is called for each connection that serves it, beforehand. Raises `ExchangeError` where the server refuses,
        or does not agree in time.
        """
        place = object()
        self._watchers.setdefault(uri, {})[place] = _Watcher(callback, use)
        use()

        def remove() -> None:
            watchers = self._watchers.get(uri)
            if watchers is not None and watchers.pop(place, None) is not None and not watchers:
                del self._watchers[uri]
                self._changed.ring()

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

    async def _ask(self, session: Session, uri: str) -> None:
        pending = self._pending[uri] = _Pending()
        try:
            await (self._ask_newer if session.envelope.modern else self._ask_older)(session, uri)
        except ExchangeError as error:
            pending.error = error
            raise
        finally:
            del self._pending[uri]
            pending.done.set()

    async def _ask_older(self, session: Session, uri: str) -> None:
        self._told_of.add(uri)
        await session.watch(uri, on=True)
        if self._session is session:
            self._answers[uri] = ""

    async def _ask_newer(self, session: Session, uri: str) -> None:
        self._answers.pop(uri, None)
        self._ask_again = True
        self._changed.ring()
        with anyio.move_on_after(_AGREE_S):
            while uri not in self._answers and self._session is session:
                await self._answered.wait()
        refusal = self._answers.get(uri, f"it did not agree within {_AGREE_S:g} s to tell of changes")
        if refusal and self._session is session:
            raise ExchangeError(Kind.ANSWER, refusal)

    def note(self, uri: str) -> None:
        """The server says that this resource changed; whoever watches it, or one that it is part of, is told."""
        if self._watchers and is_encodable(uri):
            self._folded.note(uri, self._watchers)

    def _tell(self, watched: str, uri: str) -> None:
        for watcher in tuple(self._watchers.get(watched, {}).values()):
            try:
                watcher.callback(uri)
            except Exception:
                # It is foreign code, and must not end the server's own task.
                logger.exception("who watches a resource of %s raised", self._name)

    # -- while there is a connection -------------------------------------------------------------------------------

    def begin(self, session: Session) -> None:
        """A connection begins; `keep` follows."""
        self._session, self._told_of, self._answers = session, set(), {}
        self._folded.forget()
        for watchers in self._watchers.values():
            for watcher in watchers.values():
                watcher.use()
        session.link.notices.updated = self.note

    async def keep(self, session: Session) -> None:
        """Have the server tell of what is watched, until the connection ends."""
        try:
            await (self._keep_newer(session) if session.envelope.modern else self._keep_older(session))
        finally:
            self._session, self._was_connected = None, True
            self._answer({})

    async def _keep_older(self, session: Session) -> None:
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

    async def _switch(self, session: Session, uri: str, *, on: bool) -> bool:
        """Whether the server took note."""
        try:
            await session.watch(uri, on=on)
        except ExchangeError as error:
            logger.info("%s does not take note of who watches a resource: %s", self._name, error.reason)
            return False
        return True

    async def _keep_newer(self, session: Session) -> None:
        """One subscription for all; a new one stands before the old one ends, so that nothing is missed between."""
        async with anyio.create_task_group() as group:
            standing: anyio.CancelScope | None = None
            while True:
                scope, begun, uris = anyio.CancelScope(), anyio.Event(), frozenset(self._watchers)
                self._ask_again = False
                if uris:
                    group.start_soon(self._listen, session, uris, scope, begun)
                    with anyio.move_on_after(_AGREE_S):
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
        self, session: Session, uris: frozenset[str], scope: anyio.CancelScope, begun: anyio.Event
    ) -> None:
        """Listen until the scope is cancelled, or the server refuses; it has begun when that is known."""
        lost = self._was_connected
        with scope:
            while True:
                try:
                    async with session.watching(uris) as subscription:
                        agreed = {uri.rstrip("/") for uri in subscription.honored.resource_subscriptions or ()}
                        self._answer({uri: "" if uri.rstrip("/") in agreed else _NOT_AGREED for uri in uris})
                        begun.set()
                        if lost:
                            self._tell_all(uris)
                        # The link's notices have the events already.
                        async for _ in subscription:
                            pass
                except (SubscriptionLost, TimeoutError):
                    pass
                except ExchangeError as error:
                    if error.kind is Kind.ANSWER:
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
