"""The HTTP client for servers behind a proxy: the transport of `httpx2`, which knows how proxies are asked."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.redact import bare_url
from toolcrib.upstream.transports.http_client import KEEP_ALIVE_S, USER_AGENT, RequestHead, ssl_context
from toolcrib.upstream.transports.http_connection import BROKEN, NOT_HTTP, HttpResponse
from toolcrib.upstream.transports.http_failures import INVALID_REQUEST, NO_DATA, describe_connect_error

_SENDING: Final = "http11.send_request_headers.started"
_NEEDS_CREDENTIALS: Final = "407"


class ProxiedClient:
    """An `HttpClient` whose requests go through a proxy. It keeps no cookies."""

    def __init__(self, proxy: str) -> None:
        self._name = f"the proxy {bare_url(proxy)}"
        self._transport = httpx2.AsyncHTTPTransport(
            verify=ssl_context(),
            trust_env=False,
            limits=httpx2.Limits(keepalive_expiry=KEEP_ALIVE_S),
            proxy=httpx2.Proxy(proxy, headers={"user-agent": USER_AGENT}, ssl_context=_proxy_context(proxy)),
        )

    async def send(
        self,
        head: RequestHead,
        content: bytes = b"",
        *,
        connect_s: float | None,
        timeout_s: float | None = None,
        keeps_cookies: bool = False,  # noqa: ARG002 - of the protocol
    ) -> HttpResponse:
        """Send a request, and return its response."""
        sending = _Sending(self._name)
        extensions = {"timeout": dict.fromkeys(("connect", "read", "write", "pool")), "trace": sending.trace}
        async with sending.limited(connect_s, timeout_s):
            request = httpx2.Request(
                head.method, head.url.text, headers=list(head.headers), content=content, extensions=extensions
            )
            response = await self._transport.handle_async_request(request)
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        return HttpResponse(_ProxiedBody(response, sending), response.status_code, headers, None)

    def send_idle(self, head: RequestHead, content: bytes) -> Awaitable[HttpResponse] | None:  # noqa: ARG002 - of the protocol
        """Return None: which connections are open is not known."""
        return None

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()


def _proxy_context(proxy: str) -> ssl.SSLContext | None:
    return ssl_context() if proxy.startswith("https:") else None


class _Sending:
    """How far a request has come: a proxy that is silent is noticed in time, and a slow server is waited for."""

    def __init__(self, proxy: str) -> None:
        self._proxy = proxy
        self._is_sent = False
        self._timeout_s: float | None = None
        self._limit = asyncio.timeout(None)

    @asynccontextmanager
    async def limited(self, connect_s: float | None, timeout_s: float | None) -> AsyncIterator[None]:
        """Limit the time until the request is sent, and then until the response begins. Raises `ExchangeError`."""
        self._timeout_s = timeout_s
        self._limit = asyncio.timeout(connect_s)
        with_limit = self._limit
        try:
            async with with_limit:
                yield
        except TimeoutError as error:
            raise self.failure(error) from error
        except (httpx2.HTTPError, ValueError) as error:
            raise self.failure(error) from error

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Note that the request itself is being sent, and not one for a connection."""
        if event == _SENDING and info["request"].method != b"CONNECT":
            self._is_sent = True
            loop = asyncio.get_running_loop()
            self._limit.reschedule(None if self._timeout_s is None else loop.time() + self._timeout_s)

    def failure(self, error: Exception) -> ExchangeError:
        """Return the error of the exchange."""
        if self._is_sent:
            return ExchangeError(FailureKind.LOST, _describe_loss(error))
        if isinstance(error, (httpx2.LocalProtocolError, httpx2.InvalidURL, ValueError)):
            return ExchangeError(FailureKind.UNSENT, INVALID_REQUEST)
        cause = _deepest_cause(error)
        if isinstance(cause, ssl.SSLError):
            return ExchangeError(FailureKind.UNSENT, describe_connect_error(cause))
        return ExchangeError(FailureKind.UNSENT, f"{self._proxy} {_proxy_problem(error, cause)}")


def _proxy_problem(error: Exception, cause: BaseException) -> str:
    """Say what a proxy did, after its name."""
    if isinstance(error, httpx2.ProxyError):
        if str(error).startswith(_NEEDS_CREDENTIALS):
            return "requires credentials; write a user and a password into its address"
        return f"refused the connection with HTTP {error}".rstrip()
    if isinstance(error, TimeoutError):
        return "gave no connection in time"
    if isinstance(cause, ConnectionRefusedError):
        return "refused the connection"
    return "has a host name that is unknown" if isinstance(cause, socket.gaierror) else "cannot be reached"


def _describe_loss(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return NO_DATA
    return NOT_HTTP if isinstance(error, httpx2.ProtocolError) else BROKEN


def _deepest_cause(error: BaseException) -> BaseException:
    """Return the error underneath: that of the first address where several were tried."""
    while True:
        inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
        if inner is None:
            return error
        error = inner


class _ProxiedBody:
    """The body of a response that came through a proxy."""

    def __init__(self, response: httpx2.Response, sending: _Sending) -> None:
        self._response = response
        self._sending = sending
        self._chunks = response.stream.__aiter__() if isinstance(response.stream, httpx2.AsyncByteStream) else None

    async def read(self) -> bytes | None:
        """Return the next part; None at the end. Raises `ExchangeError`."""
        if self._chunks is None:
            return None
        try:
            return await anext(self._chunks, None)
        except httpx2.HTTPError as error:
            raise self._sending.failure(error) from error

    async def end_response(self) -> None:
        """Return the connection to the pool, or close it."""
        await self._response.aclose()
