"""HTTP connections to one server, kept open and shared by its requests: aiohttp behind httpx2's transport interface.

httpx2's own transport takes about twice the processor time a request.
"""

import socket
from collections.abc import AsyncIterator
from functools import lru_cache
from ssl import SSLContext
from typing import Any, Final

import aiohttp
import httpx2
from yarl import URL

_KEEP_ALIVE_S: Final = 30.0
_IDLE_S: Final = 60
"""Until a silent connection is probed, in seconds."""
_OURS: Final = frozenset({"connection", "content-length", "transfer-encoding"})
"""Headers that the connection writes itself."""
_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add where httpx2 left them out on purpose."""


class Connections(httpx2.AsyncBaseTransport):
    """As many connections as there are requests at once. Redirects and encodings are left to the client.

    Cookies are kept here, so that all requests show the same ones: a load balancer may tell replicas apart by them.
    """

    def __init__(self, ssl_context: SSLContext, *, proxy: str | None = None) -> None:
        """Nothing is opened before the first request."""
        self._ssl = ssl_context
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, ssl=self._ssl, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=_watched_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.CookieJar(unsafe=True),
                auto_decompress=False,
                skip_auto_headers=_AUTOMATIC,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; the response's body comes as it is read. Raises `httpx2.TransportError`."""
        headers = [(name, value) for name, value in request.headers.items() if name not in _OURS]
        try:
            response = await self._opened().request(
                request.method,
                URL(str(request.url), encoded=True),
                data=await request.aread() or None,
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
                timeout=_timeout(*_limits(request)),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _translated(error) from error
        return httpx2.Response(response.status, headers=list(response.raw_headers), stream=_Body(response))


class _Body(httpx2.AsyncByteStream):
    """A response's body."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        """Give the connection back, or cut it where the body was not read to its end."""
        if self._response.content.at_eof():
            await self._response.release()
        else:
            self._response.close()


def _watched_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices a peer that is gone; a stream that waits for the server may be silent for hours."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    return made


def _limits(request: httpx2.Request) -> tuple[float | None, float | None]:
    limits: dict[str, Any] = request.extensions.get("timeout", {})
    return limits.get("connect"), limits.get("read")


@lru_cache(maxsize=64)
def _timeout(connect_s: float | None, read_s: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=read_s)


def _translated(error: Exception) -> httpx2.TransportError:
    """The error as httpx2 would have raised it. What tells whether the request was sent is kept."""
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
