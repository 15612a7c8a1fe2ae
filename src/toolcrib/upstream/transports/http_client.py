"""The HTTP client for everything that is sent to servers: exchanges over pooled connections, or through a proxy.

Redirects, credentials and encodings are left to its users.
"""

import asyncio
import math
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from functools import cached_property, lru_cache
from http.client import HTTPResponse
from http.cookiejar import CookieJar
from itertools import chain, zip_longest
from pathlib import Path
from ssl import SSLContext
from typing import Any, Final, Protocol, cast
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import Request

import anyio

from toolcrib._version import VERSION
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.transports.http_connection import HttpConnection, HttpResponse
from toolcrib.upstream.transports.http_failures import INVALID_REQUEST, NO_DATA, NOT_IN_TIME, describe_connect_error

USER_AGENT: Final = f"toolcrib/{VERSION}"
"""What every request says it comes from, unless the settings say otherwise: firewalls block requests without it."""
_PORTS: Final = {"http": 80, "https": 443}
_CERTIFICATE_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_PATH_CHARS: Final = "/%:@!$&'()*+,;=~"
_QUERY_CHARS: Final = f"{_PATH_CHARS}?"
_SET_COOKIE: Final = b"set-cookie"
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
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


# -- addresses ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HttpUrl:
    """An address of a server, in the form in which it is connected to and asked."""

    scheme: str
    host: str
    """In lower case and ASCII; an IPv6 address without brackets."""
    port: int
    path: str
    query: str = ""
    user: str = ""
    password: str = ""

    @classmethod
    def parse(cls, text: str) -> "HttpUrl":
        """Read an address. Raises `ValueError`, whose text says what is wrong.

        >>> HttpUrl.parse("HTTP://me@Example.com:8080/a b?c#d").target
        '/a%20b?c'
        """
        parts = urlsplit(text)
        if parts.scheme not in _PORTS:
            raise UnsupportedScheme("the url must begin with http:// or https://")
        place = parts.netloc.rpartition("@")[2]
        port = place.rpartition(":")[2] if ":" in place.rpartition("]")[2] else ""
        if port and not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise ValueError(f"Invalid port: {port!r}")
        host = _ascii_host(parts.hostname or "")
        return cls(
            scheme=parts.scheme,
            host=host,
            port=int(port) if port else _PORTS[parts.scheme],
            path=quote(parts.path or "/", safe=_PATH_CHARS),
            query=quote(parts.query, safe=_QUERY_CHARS),
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
        )

    @cached_property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The host, with the port if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """What a request names: the path and the query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def text(self) -> str:
        """The address without credentials and fragment."""
        return f"{self.scheme}://{self.authority}{self.target}"

    def join(self, location: str) -> "HttpUrl":
        """Resolve a reference, such as that of a redirect. Raises `ValueError`."""
        return HttpUrl.parse(urljoin(self.text, location))

    def shares_origin(self, other: "HttpUrl") -> bool:
        """Whether both have the same origin; https instead of http on the default ports counts."""
        is_upgrade = self.origin == ("http", self.host, 80) and other.origin == ("https", self.host, 443)
        return self.origin == other.origin or is_upgrade


class UnsupportedScheme(ValueError):
    """An address that is not one of HTTP."""


def _ascii_host(host: str) -> str:
    if not host.isascii():
        import httpx2  # noqa: PLC0415 - it knows international names, which are rare, and takes long to load

        try:
            host = httpx2.URL(scheme="http", host=host).raw_host.decode("ascii")
        except httpx2.InvalidURL as error:
            raise ValueError(f"Invalid host: {host!r}") from error
    if not host or re.search(r"[\s/\\?#@<>^|%]", host.partition("%")[0]):
        raise ValueError(f"Invalid host: {host!r}")
    return host


# -- requests ----------------------------------------------------------------------------------------------------------

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RequestHead:
    """What comes before the body of a request, but for its length."""

    method: str
    url: HttpUrl
    headers: Pairs

    @classmethod
    def of(cls, method: str, url: HttpUrl, headers: Iterable[tuple[str, str]]) -> "RequestHead":
        """Return the head with the headers that every request has. Of two of the same name, the later one counts."""
        found = {"host": url.authority, "user-agent": USER_AGENT}
        for name, value in headers:
            found[name.lower()] = value
        return cls(method, url, tuple(found.items()))

    def adding(self, name: str, value: str) -> "RequestHead":
        """Return the head with another header."""
        return replace(self, headers=(*self.headers, (name, value)))

    @cached_property
    def data(self) -> bytes:
        """The head as it is sent. Raises `ExchangeError` for what HTTP does not allow."""
        try:
            pairs = [(name.encode("ascii"), value.encode("latin-1")) for name, value in self.headers]
            first = f"{self.method} {self.url.target} HTTP/1.1\r\n".encode("ascii")
        except UnicodeEncodeError as error:
            raise ExchangeError(FailureKind.UNSENT, INVALID_REQUEST) from error
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in pairs):
            raise ExchangeError(FailureKind.UNSENT, INVALID_REQUEST)
        return first + b"".join(name + b": " + value + b"\r\n" for name, value in pairs)

    def with_body(self, content: bytes) -> bytes:
        """Return the whole request."""
        if not content and self.method != "POST":
            return self.data + b"\r\n"
        return b"%bcontent-length: %d\r\n\r\n%b" % (self.data, len(content), content)


# -- pools -------------------------------------------------------------------------------------------------------------


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


# -- clients -----------------------------------------------------------------------------------------------------------


class HttpClient(Protocol):
    """Sends requests. To be closed."""

    async def send(
        self,
        head: RequestHead,
        content: bytes = b"",
        *,
        connect_s: float | None,
        timeout_s: float | None = None,
        keeps_cookies: bool = False,
    ) -> HttpResponse:
        """Send a request, and return the response, which is to be closed. Raises `ExchangeError`, also if no response
        has begun within `timeout_s`.
        """

    def send_idle(self, head: RequestHead, content: bytes) -> Awaitable[HttpResponse] | None:
        """The same over a connection that is open already; None if there is none."""

    async def aclose(self) -> None:
        """Close every connection."""


class DirectClient:
    """An `HttpClient` that connects to servers itself.

    With `keeps_cookies`, the cookies in a response are sent with all later requests: load balancers may route by them.
    Those in the response to a caller's request are not kept, because the requests of other callers follow.
    """

    def __init__(self, *, unix_path: str | None = None, check: AddressCheck | None = None) -> None:
        """`check` is called with each address of a host before it is connected to."""
        self._unix_path = unix_path
        self._check = check
        self._pools: dict[tuple[str, str, int], ConnectionPool] = {}
        self._cookies: _OwnCookies | None = None

    async def send(
        self,
        head: RequestHead,
        content: bytes = b"",
        *,
        connect_s: float | None,
        timeout_s: float | None = None,
        keeps_cookies: bool = False,
    ) -> HttpResponse:
        """Send a request, and return its response."""
        request = self._with_cookies(head).with_body(content)
        pool = self._pool(head.url)
        try:
            async with asyncio.timeout(timeout_s):
                connection = pool.take_idle() or await pool.connect(connect_s)
                response = await connection.send(request)
        except TimeoutError as error:
            raise ExchangeError(FailureKind.LOST, NO_DATA) from error
        if keeps_cookies and _SET_COOKIE in response.names:
            self._keep_cookies(head.url, response)
        return response

    def send_idle(self, head: RequestHead, content: bytes) -> Awaitable[HttpResponse] | None:
        """Send a request over a connection that is open already; None if there is none."""
        pool = self._pools.get(head.url.origin)
        connection = None if pool is None else pool.take_idle()
        if connection is None:
            return None
        return connection.send((head if self._cookies is None else self._with_cookies(head)).with_body(content))

    async def aclose(self) -> None:
        """Close every connection."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, url: HttpUrl) -> ConnectionPool:
        pool = self._pools.get(url.origin)
        if pool is None:
            context = ssl_context() if url.scheme == "https" else None
            pool = ConnectionPool(url.host, url.port, context, unix_path=self._unix_path, check=self._check)
            self._pools[url.origin] = pool
        return pool

    def _with_cookies(self, head: RequestHead) -> RequestHead:
        cookie = "" if self._cookies is None else self._cookies.header(head.url)
        return head.adding("cookie", cookie) if cookie else head

    def _keep_cookies(self, url: HttpUrl, response: HttpResponse) -> None:
        self._cookies = self._cookies or _OwnCookies()
        self._cookies.keep(url, response)


class _OwnCookies:
    """The cookies of one client, by the rules of the standard library."""

    def __init__(self) -> None:
        self._jar = CookieJar()

    def keep(self, url: HttpUrl, response: HttpResponse) -> None:
        """Take over those that the response to a request sets."""
        message = Message()
        for name, value in response.headers:
            if name == _SET_COOKIE:
                message.add_header("set-cookie", value.decode("latin-1"))
        answer = cast("HTTPResponse", _WithInfo(message))  # nothing else of a response is read
        self._jar.extract_cookies(answer, Request(url.text))  # noqa: S310 - it is not opened

    def header(self, url: HttpUrl) -> str:
        """Return the value of the header `Cookie` of a request; empty if it has none."""
        request = Request(url.text)  # noqa: S310 - it is not opened
        self._jar.add_cookie_header(request)
        return request.get_header("Cookie") or ""


@dataclass(frozen=True, slots=True)
class _WithInfo:
    message: Message

    def info(self) -> Message:
        return self.message


# -- certificates ------------------------------------------------------------------------------------------------------


def ssl_context() -> ssl.SSLContext:
    """Return the context for the certificates that the environment names, as they are on disk now."""
    return _shared_ssl_context(tuple(_file_version(os.environ.get(name)) for name in _CERTIFICATE_VARIABLES))


def _file_version(path: str | None) -> tuple[str | None, int]:
    try:
        return path, Path(path).stat().st_mtime_ns if path else 0
    except OSError:
        return path, 0


@lru_cache(maxsize=4)
def _shared_ssl_context(certificates: tuple[tuple[str | None, int], ...]) -> ssl.SSLContext:  # noqa: ARG001 - the key
    """Return the context that all servers share: creating one takes 15 ms and more."""
    import httpx2  # noqa: PLC0415 - it knows where each system keeps its certificates, and takes long to load

    return httpx2.create_ssl_context()
