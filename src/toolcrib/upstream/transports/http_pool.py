"""Pooled connections to one host, with those to a host of several addresses opened as in RFC 8305."""

import asyncio
import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from ssl import SSLContext
from typing import Any, Final

import anyio

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.transports.http_connection import HttpConnection
from toolcrib.upstream.transports.http_failures import NOT_IN_TIME, describe_connect_error

KEEP_ALIVE_S: Final = 30.0
"""How long an idle connection is kept, in seconds."""
_MARGIN_S: Final = 1.0
"""How long before the server closes an idle connection no request is sent on it any more, in seconds; at most half of
the time that the server keeps it. A request that meets the end of its connection gets no answer.
"""
_LEAST_LEARNED_S: Final = 1.0
"""A connection that was closed sooner was not closed for being idle."""
_TCP_IDLE_S: Final = 60
"""Seconds until a silent connection is probed."""
_HEAD_START_S: Final = 0.25
"""How long an address of a host has, in seconds, until the next one is tried beside it."""

_Address = tuple[Any, ...]
"""As `getaddrinfo` returns it."""
AddressCheck = Callable[[str, str], None]
"""Raises `ExchangeError` if a connection to the host must not go to this address."""


class ConnectionPool:
    """As many connections to one host as there are concurrent requests, each kept for a while.

    No connection is used for as long as the server might keep it: what the server says about that counts, and what it
    did with earlier connections.
    """

    def __init__(
        self,
        host: str,
        port: int,
        ssl_context: SSLContext | None,
        *,
        unix_path: str | None = None,
        check: AddressCheck | None = None,
    ) -> None:
        """With an SSL context, the connections use TLS; with `unix_path`, they go to that socket."""
        self._host = host
        self._port = port
        self._ssl = ssl_context
        self._unix_path = unix_path
        self._check = check
        self._kept_s = math.inf
        """The shortest time after which the server has closed an idle connection, in seconds."""
        self._idle: deque[HttpConnection] = deque()
        self._open: set[HttpConnection] = set()
        self._cleanup: asyncio.TimerHandle | None = None

    async def connect(self, connect_s: float | None) -> HttpConnection:
        """Open a connection. Raises `ExchangeError`."""
        try:
            async with asyncio.timeout(connect_s):
                return await self._open_connection()
        except TimeoutError as error:
            raise ExchangeError(FailureKind.UNSENT, NOT_IN_TIME) from error
        except (OSError, ValueError) as error:
            raise ExchangeError(FailureKind.UNSENT, describe_connect_error(error)) from error

    def take_idle(self) -> HttpConnection | None:
        """Return a connection that is open already; None if there is none."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            kept_s = min(connection.kept_s, self._kept_s)
            usable_s = min(KEEP_ALIVE_S, kept_s - min(_MARGIN_S, kept_s / 2))
            if now < connection.idle_since + usable_s:
                if connection.is_usable():
                    return connection
                self._learn(connection)
            connection.close()
        return None

    def close(self) -> None:
        """Close every connection."""
        if self._cleanup is not None:
            self._cleanup.cancel()
            self._cleanup = None
        for connection in tuple(self._open):
            connection.close()

    def _learn(self, connection: HttpConnection) -> None:
        """Note for how long the server has kept an idle connection that it closed."""
        idle_s = asyncio.get_running_loop().time() - connection.idle_since
        if idle_s >= _LEAST_LEARNED_S:
            self._kept_s = min(self._kept_s, idle_s)

    async def _open_connection(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        if self._unix_path is not None:
            _, connection = await loop.create_unix_connection(lambda: HttpConnection(self), self._unix_path)
            return connection
        addresses = await _resolve(self._host, self._port)
        if self._check is not None:
            for address in addresses:
                self._check(self._host, str(address[4][0]))
        connected = await _connect_first(addresses)
        name = None if self._ssl is None else self._host
        _, connection = await loop.create_connection(
            lambda: HttpConnection(self), sock=connected, ssl=self._ssl, server_hostname=name
        )
        return connection

    def added(self, connection: HttpConnection) -> None:
        """Note a new connection."""
        self._open.add(connection)

    def removed(self, connection: HttpConnection) -> None:
        """Forget a connection that was closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            self._learn(connection)

    def release(self, connection: HttpConnection) -> None:
        """Take a connection back whose exchange has ended."""
        self._idle.append(connection)
        if self._cleanup is None:
            self._cleanup = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_idle)

    def _close_idle(self) -> None:
        loop, self._cleanup = asyncio.get_running_loop(), None
        while self._idle and self._idle[0].idle_since <= loop.time() - KEEP_ALIVE_S:
            self._idle.popleft().close()
        if self._idle:
            self._cleanup = loop.call_at(self._idle[0].idle_since + KEEP_ALIVE_S, self._close_idle)


# -- opening a connection ----------------------------------------------------------------------------------------------


async def _resolve(host: str, port: int) -> list[_Address]:
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)


async def _connect_first(addresses: Sequence[_Address]) -> socket.socket:
    """Return a socket that is connected to the first of the addresses which answers. Raises `OSError`.

    `asyncio` does this by itself, but not in every event loop: `uvloop` has no parameter for it.
    """
    errors = list[OSError]()
    found: socket.socket | None = None

    async def attempt(address: _Address, failed: anyio.Event) -> None:
        nonlocal found
        try:
            connected = await _connect_to(address)
        except OSError as error:
            errors.append(error)
            failed.set()
            return
        if found is None:
            found = connected
            group.cancel_scope.cancel()
        else:
            connected.close()

    try:
        async with anyio.create_task_group() as group:
            for address in _by_turns(addresses):
                failed = anyio.Event()
                group.start_soon(attempt, address, failed)
                with anyio.move_on_after(_HEAD_START_S):
                    await failed.wait()
    except BaseException:  # it was cancelled just then
        if found is not None:
            found.close()
        raise
    if found is not None:
        return found
    raise next((error for error in errors if isinstance(error, ConnectionRefusedError)), errors[0])


async def _connect_to(address: _Address) -> socket.socket:
    family, kind, protocol, _, place = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    try:
        # A stream that waits for its server may be silent for hours: a lost peer has to be noticed.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _TCP_IDLE_S)
        made.settimeout(0)
        await asyncio.get_running_loop().sock_connect(made, place)
    except BaseException:
        made.close()
        raise
    return made


def _by_turns(addresses: Sequence[_Address]) -> list[_Address]:
    """Return the addresses with those of both families in turn, beginning with the preferred one."""
    first = [one for one in addresses if one[0] == addresses[0][0]]
    others = [one for one in addresses if one[0] != addresses[0][0]]
    return [one for one in chain.from_iterable(zip_longest(first, others)) if one is not None]
