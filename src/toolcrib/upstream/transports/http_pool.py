"""Pooled connections to upstream servers: bare ones for calls, and those of `aiohttp` for everything else.

A general HTTP client takes several times as long for a small exchange as the rest of a call. Where `httptools` is
installed, calls therefore bypass it, except through a proxy, and where the server has set cookies for the connection.
"""

import asyncio
import importlib.util
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from http.cookies import SimpleCookie
from ssl import SSLContext
from typing import Any, Final

import aiohappyeyeballs
import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver
from yarl import URL

from toolcrib._version import VERSION
from toolcrib.upstream.redact import bare_url
from toolcrib.upstream.transports.http_connection import CUT_OFF, NOT_HTTP, BadResponse, HttpConnection, PooledResponse

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
_HAPPY_EYEBALLS_S: Final = 0.25
"""How long the first address of a host has, in seconds, until the next one is tried beside it."""
_CONNECTION_HEADERS: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""Headers that the connection writes itself."""
_SKIPPED_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add although httpx2 left them out on purpose."""
USER_AGENT: Final = f"toolcrib/{VERSION}"
"""What every request says it comes from, unless the settings say otherwise: firewalls block requests without it."""
_PROXY_HEADERS: Final = {"User-Agent": USER_AGENT}
_TIMEOUT: Final = httpx2.Timeout(5.0)
FOR_CALLER_KEY: Final = "toolcrib.for_caller"
"""Extension of a request that is sent for a caller."""


class ConnectionPool:
    """As many connections to one host as there are concurrent requests, each kept for a while.

    No connection is used for as long as the server might keep it: what the server says about that counts, and what it
    did with earlier connections.
    """

    def __init__(self, host: str, port: int, ssl_context: SSLContext | None) -> None:
        """With an SSL context, the connections use TLS."""
        self._host = host
        self._port = port
        self._ssl = ssl_context
        self._kept_s = math.inf
        """The shortest time after which the server has closed an idle connection, in seconds."""
        self._idle: deque[HttpConnection] = deque()
        self._open: set[HttpConnection] = set()
        self._cleanup: asyncio.TimerHandle | None = None

    async def exchange(self, request: bytes, *, connect_s: float | None) -> PooledResponse:
        """Send a whole request, and return its response. Raises `httpx2.TransportError`.

        Closes the connection if it is cancelled.
        """
        connection = self._take_idle() or await self._connect(connect_s)
        return await connection.send(request)

    def exchange_idle(self, request: bytes, *, timeout_s: float) -> Awaitable[PooledResponse] | None:
        """The same over a connection that is open already, within a time limit; None if there is none.

        Raises `TimeoutError` as well, unless the response is passed on as a stream before that.
        """
        connection = self._take_idle()
        return None if connection is None else connection.send(request, timeout_s)

    def close(self) -> None:
        """Close every connection."""
        if self._cleanup is not None:
            self._cleanup.cancel()
            self._cleanup = None
        for connection in tuple(self._open):
            connection.close()

    def _take_idle(self) -> HttpConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if now < self._usable_until(connection):
                if not connection.is_closing and not connection.has_input():
                    return connection
                self._learn(connection)
            connection.close()
        return None

    def _usable_until(self, connection: HttpConnection) -> float:
        """Until when an idle connection may be used, by the loop's clock."""
        kept_s = min(connection.kept_s, self._kept_s)
        if kept_s == math.inf:
            return connection.idle_since + KEEP_ALIVE_S
        return connection.idle_since + min(KEEP_ALIVE_S, kept_s - min(_MARGIN_S, kept_s / 2))

    def _learn(self, connection: HttpConnection) -> None:
        """Note for how long the server has kept an idle connection that it closed."""
        idle_s = asyncio.get_running_loop().time() - connection.idle_since
        if idle_s >= _LEAST_LEARNED_S:
            self._kept_s = min(self._kept_s, idle_s)

    async def _connect(self, connect_s: float | None) -> HttpConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_s):
                addresses = await loop.getaddrinfo(
                    self._host, self._port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
                )
                connected = await aiohappyeyeballs.start_connection(
                    addresses,
                    happy_eyeballs_delay=_HAPPY_EYEBALLS_S,
                    interleave=1,
                    socket_factory=keepalive_socket,
                )
                name = None if self._ssl is None else self._host
                _, connection = await loop.create_connection(
                    lambda: HttpConnection(self), sock=connected, ssl=self._ssl, server_hostname=name
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("no connection in time") from error
        except (OSError, ValueError) as error:
            raise httpx2.ConnectError(str(error)) from error
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


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that detects a lost peer; a stream that waits for the server may be silent for hours."""
    family, kind, protocol = address[:3]
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _TCP_IDLE_S)
    return made


# -- everything else, on aiohttp ---------------------------------------------------------------------------------------


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport over aiohttp, with as many pooled connections as there are concurrent requests.

    httpx2's own transport takes about twice the CPU time per request. Redirects and encodings are left to the client.
    Cookies that answer our own requests, such as the first one, are sent with all later ones: load balancers may route
    by them. Those in the response to a caller's request are dropped, because the requests of other callers follow.
    """

    def __init__(
        self,
        ssl_context: SSLContext,
        *,
        proxy: str | None = None,
        resolver: AbstractResolver | None = None,
        keep_cookies: bool = True,
    ) -> None:
        self._ssl = ssl_context
        self._proxy = proxy
        self._resolver = resolver
        self._keeps_cookies = keep_cookies
        self._cookies: _OwnCookies | None = None
        self._session: aiohttp.ClientSession | None = None
        self._pools: dict[tuple[str, str, int], ConnectionPool] = {}
        """By scheme, host and port."""
        self._last: tuple[httpx2.URL, ConnectionPool] | None = None
        """The last URL, and its pool."""
        self._needs_session = proxy is not None or importlib.util.find_spec("httptools") is None
        """Whether every request goes through aiohttp."""

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                ssl=self._ssl,
                keepalive_timeout=KEEP_ALIVE_S,
                socket_factory=keepalive_socket,
                resolver=self._resolver,
            )
            self._cookies = _OwnCookies() if self._keeps_cookies else None
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar() if self._cookies is None else self._cookies,
                auto_decompress=False,
                skip_auto_headers=_SKIPPED_HEADERS,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        self._last = None
        if session is not None:
            await session.close()

    async def exchange(self, url: httpx2.URL, request: bytes, *, connect_s: float | None) -> PooledResponse | None:
        """Send a whole request to the URL's origin, and return its response; None if it has to be sent by aiohttp.

        Raises `httpx2.TransportError`.
        """
        if self._needs_session:
            return None
        return await self._pool(url).exchange(request, connect_s=connect_s)

    def exchange_idle(self, url: httpx2.URL, request: bytes, *, timeout_s: float) -> Awaitable[PooledResponse] | None:
        """The same over a connection that is open already, within a time limit; None if there is none.

        Raises `TimeoutError` as well.
        """
        return None if self._needs_session else self._pool(url).exchange_idle(request, timeout_s=timeout_s)

    def _pool(self, url: httpx2.URL) -> ConnectionPool:
        if self._last is not None and self._last[0] is url:
            return self._last[1]
        port = url.port or (443 if url.scheme == "https" else 80)
        origin = (url.scheme, url.host, port)
        pool = self._pools.get(origin)
        if pool is None:
            host = url.raw_host.decode("ascii")
            pool = self._pools[origin] = ConnectionPool(host, port, self._ssl if url.scheme == "https" else None)
        self._last = url, pool
        return pool

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the response's body is streamed. Raises `httpx2.TransportError`."""
        request.headers.setdefault("user-agent", USER_AGENT)
        try:
            # Cheaper than `items`, which guesses the encoding of all headers for each of them.
            headers = [
                (name.decode(), value.decode())
                for name, value in request.headers.raw
                if name.lower() not in _CONNECTION_HEADERS
            ]
            response = await self._opened().request(
                request.method,
                _parsed_url(str(request.url)),
                data=await request.aread() or None,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
                proxy_headers=_PROXY_HEADERS if self._proxy else None,
                timeout=_timeout(*_limits(request)),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._as_httpx_error(error) from error
        if response.cookies and self._cookies is not None and not request.extensions.get(FOR_CALLER_KEY):
            self._needs_session = True
            self._cookies.keep(response.cookies, response.url)
        return httpx2.Response(response.status, headers=list(response.raw_headers), stream=_ResponseBody(response))

    def _as_httpx_error(self, error: Exception) -> httpx2.TransportError:
        problem = _proxy_problem(error) if self._proxy else ""
        return ProxyFailure(f"the proxy {bare_url(self._proxy or '')} {problem}") if problem else _as_httpx_error(error)


def http_client(
    transport: httpx2.AsyncBaseTransport,
    headers: Mapping[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
) -> httpx2.AsyncClient:
    """Return a client whose requests all use the transport, and nothing of the environment."""
    whole = httpx2.Headers({"user-agent": USER_AGENT})
    whole.update(headers)
    return httpx2.AsyncClient(transport=transport, headers=whole, timeout=timeout or _TIMEOUT, trust_env=False)


class ProxyFailure(httpx2.ProxyError):
    """A proxy gave no connection; the text names the proxy, without its credentials."""


def _proxy_problem(error: Exception) -> str:
    """Say what a proxy did, after its name; empty if the error is not about the proxy."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        if error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            return "requires credentials; write a user and a password into its address"
        return f"refused the connection with HTTP {error.status} {error.message}".rstrip()
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "gave no connection in time"
    if not isinstance(error, aiohttp.ClientProxyConnectionError):
        return ""
    if isinstance(error.os_error, ConnectionRefusedError):
        return "refused the connection"
    is_unknown = isinstance(error.os_error, socket.gaierror) or isinstance(error.__cause__, socket.gaierror)
    return "has a host name that is unknown" if is_unknown else "cannot be reached"


class _OwnCookies(aiohttp.CookieJar):
    """The cookies of a connection. What a response to a caller sets is not among them: others would send it too."""

    def __init__(self) -> None:
        super().__init__(unsafe=True)

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        """Do nothing, as the session does not know whose response it is."""

    def keep(self, cookies: SimpleCookie, url: URL) -> None:
        """Send these cookies from now on."""
        self.update_cookies(cookies, url)


class _ResponseBody(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise _as_httpx_error(error) from error

    async def aclose(self) -> None:
        """Return the connection to the pool, or close it if the body was not read to its end."""
        if self._response.content.at_eof():
            await self._response.release()
        else:
            self._response.close()


def _limits(request: httpx2.Request) -> tuple[float | None, float | None]:
    limits: dict[str, Any] = request.extensions.get("timeout", {})
    return limits.get("connect"), limits.get("read")


@lru_cache(maxsize=64)
def _parsed_url(url: str) -> URL:
    return URL(url, encoded=True)


@lru_cache(maxsize=64)
def _timeout(connect_s: float | None, read_s: float | None) -> aiohttp.ClientTimeout:
    # The whole way: `sock_connect` alone would wait without end for the answer of a proxy, or of a TLS handshake.
    return aiohttp.ClientTimeout(total=None, connect=connect_s, sock_read=read_s)


def _as_httpx_error(error: Exception) -> httpx2.TransportError:
    """Map the error to httpx2's. The mapping keeps the difference between sent and unsent requests."""
    kinds: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
        (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
        (aiohttp.ClientConnectorError, httpx2.ConnectError),
        (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
        (aiohttp.NonHttpUrlClientError, httpx2.UnsupportedProtocol),
        (TimeoutError, httpx2.ReadTimeout),
        (aiohttp.ServerDisconnectedError, httpx2.RemoteProtocolError),
        (ValueError, httpx2.LocalProtocolError),
    )
    if isinstance(error, aiohttp.ClientPayloadError):
        return BadResponse(CUT_OFF)
    if isinstance(error, aiohttp.ClientResponseError):
        return BadResponse(NOT_HTTP)
    for theirs, ours in kinds:
        if isinstance(error, theirs):
            return ours(str(error))
    return httpx2.ReadError(str(error))
