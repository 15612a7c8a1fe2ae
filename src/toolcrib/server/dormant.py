"""Lets a session outlive its connection: what belongs to it ends with the session, not with the connection.

The side that opens and closes connections says which sessions become dormant; the side that keeps things for a session
says whether it would lose any, and how the session ends. Neither knows the other.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp.server.connection import Connection
from mcp.shared.exceptions import NoBackChannelError

MayRest = Callable[[], bool]
"""Whether a session would lose nothing without its connection."""
EndSession = Callable[[], Awaitable[None]]


class DormantSessions:
    """The sessions of a server that have a connection, and those that have none until they need one.

    Each connection has a mark, since a dormant session must not keep its last one in memory.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[object, MayRest]] = {}
        """The mark of each session's connection."""
        self._closing: set[object] = set()
        """The marks of connections that are being closed while their session goes on."""
        self._dormant: dict[str, tuple[object, EndSession | None]] = {}
        """The mark of each dormant session's last connection and, once that is closed, what ends the session."""

    def begun(self, session_id: str, end: EndSession) -> None:
        """Note a session that begins without a connection, and what ends it."""
        self._dormant[session_id] = object(), end

    def opened(self, session_id: str, mark: object, may_rest: MayRest) -> None:
        """Note that a session has a connection."""
        self._open[session_id] = mark, may_rest

    async def closed(self, session_id: str, mark: object, end: EndSession) -> None:
        """Note that a connection is closed, and end its session unless that goes on."""
        if self._open.get(session_id, (None,))[0] is mark:
            del self._open[session_id]
        if mark not in self._closing:
            await end()
            return
        self._closing.discard(mark)
        if self._dormant.get(session_id, (None,))[0] is mark:
            self._dormant[session_id] = mark, end

    def may_rest(self, session_id: str) -> bool:
        """Whether the session would lose nothing without its connection."""
        return session_id in self._open and self._open[session_id][1]()

    def rest(self, session_id: str) -> None:
        """Let the session go on when its connection is closed, which the caller does next."""
        mark, _ = self._open.pop(session_id)
        self._closing.add(mark)
        self._dormant[session_id] = mark, None

    def wake(self, session_id: str) -> EndSession | None:
        """Note that a dormant session gets a connection again; return what ends it if that fails."""
        return self._dormant.pop(session_id, (None, None))[1]

    async def end(self, session_id: str) -> None:
        """End a dormant session."""
        mark, end = self._dormant.pop(session_id, (None, None))
        self._closing.discard(mark)
        if end is not None:
            await end()


class DormantChannel:
    """The way to the client of a session without a connection: that of the connection which it may have got meanwhile.

    It is in the place of a dispatcher of the SDK.
    """

    def __init__(self, connected: Callable[[], Connection | None]) -> None:
        """`connected` returns the session's connection, if it has one by now."""
        self._connected = connected
        self._in_flight: dict[Any, Any] = {}
        """The client's requests that are under way, by their ids, as the SDK's dispatcher has them."""
        self.end_session: EndSession | None = None
        """What ends the session, once it is open."""

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: Any = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Send a request to the client. Raises `NoBackChannelError` without a connection."""
        connection = self._connected()
        if connection is None:
            raise NoBackChannelError(method)
        return await connection.outbound.send_raw_request(method, params, opts)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: Any = None, *, _related_request_id: Any = None
    ) -> None:
        """Send a notification, unless it could only be sent on the response to a request, which is JSON."""
        connection = self._connected()
        if connection is not None and _related_request_id is None:
            await connection.outbound.notify(method, params, opts)
