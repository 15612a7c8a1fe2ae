"""Changes of single resources of a server: who wants to hear of them, and having the server tell."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

import anyio
import anyio.abc
from mcp.client.subscriptions import SubscriptionLost

from toolcrib.protocols import Unsubscribe
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.link import Bell
from toolcrib.upstream.session import Session

logger = logging.getLogger(__name__)

_AGREE_S: Final = 5.0
"""How long somebody who begins to watch waits for a server of a newer version to agree."""


class Watches:
    """The resources of one server that somebody watches, across its connections."""

    def __init__(self, name: str, retry_s: float) -> None:
        """Of the server of that name; a broken subscription is made again after `retry_s` seconds."""
        self._name = name
        self._retry_s = retry_s
        self._watchers: dict[str, dict[object, Callable[[str], None]]] = {}
        self._session: Session | None = None
        self._told_of: set[str] = set()
        """What the server was asked to tell of."""
        self._changed = Bell()
        self._agreed = anyio.Event()
        self._was_connected = False

    async def add(self, uri: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call back when the resource changed, until what this returns is called; also after a loss, to be safe.

        Raises `ExchangeError` where the server refuses.
        """
        place = object()
        is_new = uri not in self._watchers
        self._watchers.setdefault(uri, {})[place] = callback

        def remove() -> None:
            watchers = self._watchers.get(uri)
            if watchers is not None and watchers.pop(place, None) is not None and not watchers:
                del self._watchers[uri]
                self._changed.ring()

        if is_new and self._session is not None:
            try:
                await self._begin(self._session, uri)
            except BaseException:
                remove()
                raise
        return remove

    async def _begin(self, session: Session, uri: str) -> None:
        if not session.envelope.modern:
            self._told_of.add(uri)
            await session.watch(uri, on=True)
            return
        self._changed.ring()
        with anyio.move_on_after(_AGREE_S):
            while uri not in self._told_of and self._session is session:
                await self._agreed.wait()

    def note(self, uri: str) -> None:
        """The server says that this resource changed; whoever watches it, or one that it is part of, is told."""
        for watched in tuple(self._watchers):
            if uri == watched or uri.startswith(watched.rstrip("/") + "/"):
                self._tell(watched, uri)

    def _tell(self, watched: str, uri: str) -> None:
        for callback in tuple(self._watchers.get(watched, {}).values()):
            try:
                callback(uri)
            except Exception:
                # It is foreign code, and must not end the server's own task.
                logger.exception("who watches a resource of %s raised", self._name)

    # -- while there is a connection -------------------------------------------------------------------------------

    def begin(self, session: Session) -> None:
        """A connection begins; `keep` follows."""
        self._session, self._told_of = session, set()
        session.link.notices.updated = self.note

    async def keep(self, session: Session) -> None:
        """Have the server tell of what is watched, until the connection ends."""
        try:
            await (self._keep_newer(session) if session.envelope.modern else self._keep_older(session))
        finally:
            self._session, self._was_connected = None, True
            self._agree(())

    async def _keep_older(self, session: Session) -> None:
        for uri in tuple(self._watchers):
            if uri not in self._told_of:
                self._told_of.add(uri)
                await self._switch(session, uri, on=True)
        if self._was_connected:
            self._tell_all(self._watchers)
        while True:
            await self._changed.wait()
            for uri in self._told_of - self._watchers.keys():
                self._told_of.discard(uri)
                await self._switch(session, uri, on=False)

    async def _switch(self, session: Session, uri: str, *, on: bool) -> None:
        try:
            await session.watch(uri, on=on)
        except ExchangeError as error:
            logger.info("%s does not take note of who watches a resource: %s", self._name, error.reason)

    async def _keep_newer(self, session: Session) -> None:
        """One subscription for all; a new one stands before the old one ends, so that nothing is missed between."""
        async with anyio.create_task_group() as group:
            before: anyio.CancelScope | None = None
            while True:
                scope, uris = anyio.CancelScope(), frozenset(self._watchers)
                if uris:
                    await group.start(self._listen, session, uris, scope)
                if before is not None:
                    before.cancel()
                before = scope
                while frozenset(self._watchers) == uris:
                    await self._changed.wait()

    async def _listen(
        self,
        session: Session,
        uris: frozenset[str],
        scope: anyio.CancelScope,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Listen until the scope is cancelled, or the server refuses; it has begun when that is known."""
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun:
                begun = True
                task_status.started()

        lost = self._was_connected
        with scope:
            while True:
                try:
                    async with session.watching(uris) as subscription:
                        self._agree(uris)
                        begin()
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
                        break
                lost = True
                begin()
                await anyio.sleep(self._retry_s)
            self._agree(uris)
            begin()

    def _agree(self, uris: Iterable[str]) -> None:
        self._told_of = set(uris)
        self._agreed.set()
        self._agreed = anyio.Event()

    def _tell_all(self, uris: Iterable[str]) -> None:
        """Nobody knows what changed while there was no connection."""
        for uri in tuple(uris):
            self._tell(uri, uri)
