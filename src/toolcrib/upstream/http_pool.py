"""Pooled connections to upstream servers: plain HTTP/1.1 exchanges for calls, and `aiohttp` for everything else.

A general HTTP client takes several times as long for a small exchange as the rest of a call. Where `httptools` is
installed, calls therefore bypass it, except through a proxy, and where the server has set cookies for the connection.
"""

import asyncio
import importlib.util
import select
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import lru_cache
from http.cookies import SimpleCookie
from ssl import SSLContext
from typing import Any, Final, cast

import aiohappyeyeballs
import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver
from yarl import URL

KEEP_ALIVE_S: Final = 30.0
"""How long an idle connection is kept, in seconds."""
_TCP_IDLE_S: Final = 60
"""Seconds until a silent connection is probed."""
_HAPPY_EYEBALLS_S: Final = 0.25
"""How long the first address of a host has, in seconds, until the next one is tried beside it."""
_WHOLE_BYTES: Final = 64 * 1024
"""Longer bodies are passed on as they arrive."""
_BUFFERED_BYTES: Final = 256 * 1024
"""Of a body that is read more slowly than it arrives, until the server has to wait."""
_HEAD_BYTES: Final = 64 * 1024
_JSON: Final = b"application/json"
_CONNECTION_HEADERS: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""Headers that the connection writes itself."""
_SKIPPED_HEADERS: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add although httpx2 left them out on purpose."""
_FIRST_FINAL_STATUS: Final = 200
FOR_CALLER_KEY: Final = "toolcrib.for_caller"
"""Extension of a request that is sent for a caller."""
_POLL: Final = getattr(select, "poll", None)
"""None on Windows, where `select` has no limit that matters."""

Headers = list[tuple[bytes, bytes]]


class PooledResponse(httpx2.AsyncByteStream):
    """A response, and the stream of its body."""

    def __init__(self, connection: "_Connection", status: int, headers: Headers, body: bytes | None) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers
        """With names in lower case."""
        self.body = body
        """The whole body of a short JSON response; None if it has to be read from the stream."""
        self._is_closed = body is not None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.body is not None:
            yield self.body
            return
        while (chunk := await self._connection.read()) is not None:
            yield chunk

    async def aclose(self) -> None:
        """Return the connection to the pool, or close it if the body was not read to its end."""
        if not self._is_closed:  # by the second time, another exchange may have the connection
            self._is_closed = True
            self._connection.end_response()


class ConnectionPool:
    """As many connections to one host as there are concurrent requests, each kept for a while."""

    def __init__(self, host: str, port: int, ssl_context: SSLContext | None) -> None:
        """With an SSL context, the connections use TLS."""
        self._host = host
        self._port = port
        self._ssl = ssl_context
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._cleanup: asyncio.TimerHandle | None = None

    async def exchange(self, request: bytes, *, connect_s: float | None) -> PooledResponse:
        """Send a whole request, and return its response. Raises `httpx2.TransportError`.

        Closes the connection if it is cancelled.
        """
        connection = self._take_idle() or await self._connect(connect_s)
        return await connection.send(request)

    def exchange_idle(self, request: bytes, *, timeout_s: float) -> "Awaitable[PooledResponse] | None":
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

    def _take_idle(self) -> "_Connection | None":
        oldest = asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > oldest and not connection.is_closing and not connection.has_input():
                return connection
            connection.close()
        return None

    async def _connect(self, connect_s: float | None) -> "_Connection":
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
                    lambda: _Connection(self), sock=connected, ssl=self._ssl, server_hostname=name
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout("no connection in time") from error
        except (OSError, ValueError) as error:
            raise httpx2.ConnectError(str(error)) from error
        return connection

    def added(self, connection: "_Connection") -> None:
        """Note a new connection."""
        self._open.add(connection)

    def removed(self, connection: "_Connection") -> None:
        """Forget a connection that was closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def release(self, connection: "_Connection") -> None:
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


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, pool: ConnectionPool) -> None:
        import httptools  # noqa: PLC0415 - optional

        self._new_parser = httptools.HttpResponseParser
        self._parser_errors = (httptools.HttpParserError, httptools.HttpParserUpgrade)
        self._parser: Any = None
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[PooledResponse] | None = None
        """Of the response; None once it is there."""
        self._reader: asyncio.Future[None] | None = None
        """Of the next part of a streamed body."""
        self._is_complete = True
        self._error: httpx2.TransportError | None = None
        self._poll: Callable[[int], Sequence[Any]] | None = None
        """Whether there is something to read, given how long to wait for it; None where `select` has to say so."""
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._headers: Headers = []
        self._head_bytes = 0
        self._parts: deque[bytes] = deque()
        self._buffered = 0
        self._has_head = self._has_length = self._is_json = self._is_streaming = self._is_paused = False
        self._keeps_alive = False

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def has_input(self) -> bool:
        """Whether an idle connection was closed by the server, or got something that no request asked for.

        The event loop may not have noticed yet, and a call that is sent then would be lost.
        """
        if self._transport is None:
            return True
        if self._poll is not None:
            return bool(self._poll(0))
        return bool(select.select([self._transport.get_extra_info("socket").fileno()], (), (), 0)[0])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base class
        if _POLL is not None:
            poll = _POLL()
            poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
            self._poll = poll.poll
        self._pool.added(self)

    async def send(self, request: bytes, timeout_s: float | None = None) -> PooledResponse:
        """Send a request. Raises `httpx2.TransportError`, and `TimeoutError` where there is a limit.

        Closes the connection if it is cancelled, and at the limit.
        """
        if self._transport is None or self._error is not None:
            self.close()
            raise self._error or httpx2.RemoteProtocolError("the connection was closed")
        self._reset()
        self._parser = self._new_parser(self)
        self._is_complete = False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[PooledResponse] = loop.create_future()
        self._waiter = waiter
        self._transport.write(request)
        limit = None if timeout_s is None else loop.call_later(timeout_s, _expire, waiter)
        try:
            return await waiter
        except BaseException:
            if not _is_whole(waiter):  # after a whole response, another exchange may have the connection
                self.close()
            raise
        finally:
            if limit is not None:
                limit.cancel()

    async def read(self) -> bytes | None:
        """Return the next part of a body; None at its end. Raises `httpx2.TransportError`."""
        while not self._parts:
            if self._error is not None and not self._is_complete:
                raise self._error
            if self._is_complete:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        chunk = self._parts.popleft()
        self._buffered -= len(chunk)
        if self._is_paused and self._buffered < _BUFFERED_BYTES and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    def end_response(self) -> None:
        """Return a connection to the pool whose body was read; close it otherwise."""
        if self._is_complete and not self._parts and not self.is_closing:
            self._release()
        else:
            self.close()

    def close(self) -> None:
        """Close at once; what waits for it fails."""
        self._fail(httpx2.RemoteProtocolError("the connection was closed"))
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        reads_to_end = self._has_head and not self._has_length and not self._is_complete
        if exc is None and reads_to_end:
            self.on_message_complete()
        elif exc is None:
            self._fail(httpx2.RemoteProtocolError("the connection was closed without an answer"))
        else:
            self._fail(httpx2.ReadError(str(exc)))
        self._transport = None
        self._error = self._error or httpx2.RemoteProtocolError("the connection was closed")
        self._pool.removed(self)

    def data_received(self, data: bytes) -> None:
        if self._is_complete:
            self.close()  # the server speaks out of turn
            return
        try:
            self._parser.feed_data(data)
        except self._parser_errors as error:
            self._fail(httpx2.RemoteProtocolError(f"its response is not HTTP: {error}"))
            self.close()
            return
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self._fail(httpx2.RemoteProtocolError("the head of its response is too large"))
                self.close()
        elif self._is_read():
            # Only now: a message that is followed by more bytes has failed to parse.
            self._release()

    def _is_read(self) -> bool:
        """Whether a response has arrived whole, and was not passed on as a stream."""
        return self._is_complete and not self._is_streaming and not self.is_closing

    # -- called by the parser ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        if self._has_head:  # a trailer, of which there may be any number, or the beginning of a second response
            self._keeps_alive = self._keeps_alive and not self._is_complete
            return
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-type":
            self._is_json = value.lower().startswith(_JSON)
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        """Return the response, unless its body is worth waiting for."""
        if self._parser.get_status_code() < _FIRST_FINAL_STATUS:
            return
        self._has_head = True
        self._keeps_alive = bool(self._parser.should_keep_alive())
        if not self._is_json:
            self._respond_with_stream()

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(data)
        self._buffered += len(data)
        if self._is_streaming:
            self._wake_reader()
            if self._buffered > _BUFFERED_BYTES and not self._is_paused and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        elif self._buffered > _WHOLE_BYTES:
            self._respond_with_stream()

    def on_message_complete(self) -> None:
        """Return a short response, or end the stream of another."""
        if not self._has_head:  # an interim response, such as 103
            self._headers = []
            self._is_json = self._has_length = False
            return
        if self._is_complete:
            self._fail(httpx2.RemoteProtocolError("it sent a second response"))
            return
        self._is_complete = True
        if self._is_streaming:
            self._wake_reader()
            return
        body = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._respond(body)

    def _respond_with_stream(self) -> None:
        self._is_streaming = True
        self._respond(None)

    def _respond(self, body: bytes | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(PooledResponse(self, self._parser.get_status_code(), self._headers, body))

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _fail(self, error: httpx2.TransportError) -> None:
        self._error = self._error or error
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        self._wake_reader()

    def _release(self) -> None:
        if self._keeps_alive and self._error is None:
            self.idle_since = asyncio.get_running_loop().time()
            self._pool.release(self)
        else:
            self.close()


def _expire(waiter: "asyncio.Future[PooledResponse]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


def _is_whole(waiter: "asyncio.Future[PooledResponse]") -> bool:
    """Whether a response has come whole, so that its connection was given back."""
    is_there = waiter.done() and not waiter.cancelled() and waiter.exception() is None
    return is_there and waiter.result().body is not None


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
                timeout=_timeout(*_limits(request)),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _as_httpx_error(error) from error
        if response.cookies and self._cookies is not None and not request.extensions.get(FOR_CALLER_KEY):
            self._needs_session = True
            self._cookies.keep(response.cookies, response.url)
        return httpx2.Response(response.status, headers=list(response.raw_headers), stream=_ResponseBody(response))


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
    return aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=read_s)


def _as_httpx_error(error: Exception) -> httpx2.TransportError:
    """Map the error to httpx2's. The mapping keeps the difference between sent and unsent requests."""
    kinds: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
        (aiohttp.ClientHttpProxyError, httpx2.ProxyError),
        (aiohttp.ClientProxyConnectionError, httpx2.ProxyError),
        (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
        (aiohttp.ClientConnectorError, httpx2.ConnectError),
        (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
        (aiohttp.NonHttpUrlClientError, httpx2.UnsupportedProtocol),
        (TimeoutError, httpx2.ReadTimeout),
        (aiohttp.ServerDisconnectedError, httpx2.RemoteProtocolError),
        (aiohttp.ClientPayloadError, httpx2.RemoteProtocolError),
        (aiohttp.ClientResponseError, httpx2.RemoteProtocolError),
        (ValueError, httpx2.LocalProtocolError),
    )
    for theirs, ours in kinds:
        if isinstance(error, theirs):
            return ours(str(error))
    return httpx2.ReadError(str(error))
