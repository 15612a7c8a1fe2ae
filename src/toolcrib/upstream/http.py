"""Streamable HTTP: the SDK's transport over our HTTP client, and a direct path for tool calls.

The SDK's session costs more than all the rest of a call, so that calls are sent as single POSTs beside it. Opening,
listing and subscriptions stay with the session.
"""

import itertools
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND
from pydantic_core import to_json

from toolcrib._version import VERSION
from toolcrib.upstream.channel import (
    NO_MESSAGE,
    AutoResetEvent,
    Channel,
    CloseEvent,
    ExchangeError,
    FailureKind,
    FastPathUnavailable,
    ProgressFn,
    ServerNotifications,
    Streams,
)
from toolcrib.upstream.framing import parse_json
from toolcrib.upstream.http_transport import SESSION_HEADER, AiohttpTransport, AuthTransport
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url

_IO_TIMEOUT_S: Final = 30.0
"""To write a request, or to wait for a free connection."""
_DELETE_TIMEOUT_S: Final = 1.0
"""For the server to accept the end of its session."""
_CERTIFICATE_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_EVENT_STREAM: Final = "text/event-stream"
_INVALID_RESPONSE: Final = "its response does not answer the call"
_METHOD_NOT_FOUND: Final = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
_MAX_CONTENT_TYPE: Final = 80
_CANCEL_TIMEOUT_S: Final = 1.0
"""For a server to accept a cancellation, in seconds."""


def auth_transport(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, closed: CloseEvent, refresh_needed: AutoResetEvent
) -> AuthTransport:
    """Return the transport to the options' URL. Raises `ExchangeError` if there can be none."""
    try:
        url = httpx2.URL(options.url)
    except httpx2.InvalidURL as error:
        raise ExchangeError(FailureKind.UNSENT, f"its url is not valid: {redact(str(error))}") from error
    return AuthTransport(
        AiohttpTransport(_ssl_context(), proxy=_proxy(url)), options, fleet, redact, closed, refresh_needed
    )


def _ssl_context() -> ssl.SSLContext:
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
    return httpx2.create_ssl_context()


def _proxy(url: httpx2.URL) -> str | None:
    """Return the proxy that the environment names for the URL's host, if any."""
    proxies = {} if proxy_bypass(url.host) else getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise ExchangeError(FailureKind.UNSENT, "the proxy in the environment is not supported")
    return proxy


def http_client(transport: AuthTransport, fleet: FleetOptions) -> httpx2.AsyncClient:
    """Return a client whose requests all use the transport. It has no read timeout: each call has its own deadline."""
    timeout = httpx2.Timeout(_IO_TIMEOUT_S, connect=fleet.http_connect_timeout_s, read=None)
    agent = {"user-agent": f"toolcrib/{VERSION}"}
    return httpx2.AsyncClient(transport=transport, timeout=timeout, headers=agent, trust_env=False)


def open_channel(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Channel:
    """Return a channel to a streamable HTTP endpoint. Nothing is sent before the session starts."""
    closed, refresh_needed, notifications = CloseEvent(), AutoResetEvent(), ServerNotifications()
    direct_caller = DirectCaller(options, fleet, refresh_needed.set, notifications)
    transport = _streamable(options, fleet, redact, closed, refresh_needed, direct_caller)
    return Channel(
        transport=transport,
        closed=closed,
        refresh_needed=refresh_needed,
        notifications=notifications,
        fast_path=direct_caller,
    )


class DirectCaller:
    """Sends tool calls as single POSTs. Safe to use from several tasks while a transport is open."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        list_changed: Callable[[], None],
        notifications: ServerNotifications | None = None,
    ) -> None:
        """`list_changed` is called if the server reports a changed tool list within a response; `notifications`
        gets the rest.
        """
        self._url = httpx2.URL("")
        self._limit = options.max_message_bytes
        self._timeout = {"connect": fleet.http_connect_timeout_s, "read": None, "write": None, "pool": None}
        self._list_changed = list_changed
        self._notifications = notifications or ServerNotifications()
        self._transport: AuthTransport | None = None
        self._ids = itertools.count(1)
        self._redirected = False

    def open(self, transport: AuthTransport, url: str) -> None:
        self._transport, self._url = transport, httpx2.URL(url)

    def close(self) -> None:
        self._transport = None

    def supports(self, *, modern: bool) -> bool:
        """False after a redirect, and for an older server that responds with streams, which only the session can
        resume.
        """
        return self._transport is not None and not self._redirected and (modern or self._transport.plain)

    async def call(
        self, params: dict[str, Any], headers: Mapping[str, str], *, modern: bool, progress: ProgressFn | None
    ) -> dict[str, Any]:
        """Return the result of one `tools/call`. Raises `MCPError`, `ExchangeError` or `FastPathUnavailable`."""
        request_id = f"call-{next(self._ids)}"
        if progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        try:
            response = await self._post(message, headers)
            try:
                return await self._read_response(response, request_id, headers, progress)
            finally:
                await response.aclose()
        except anyio.get_cancelled_exc_class():
            if not modern:  # in modern versions, closing the request cancels it
                await self._cancel(request_id, headers)
            raise

    async def _post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> httpx2.Response:
        transport = self._transport
        if transport is None:
            raise ExchangeError(FailureKind.CLOSED, "the connection was closed")
        session = transport.session_headers.get(SESSION_HEADER)
        all_headers = {**_HEADERS, **headers, **({SESSION_HEADER: session} if session else {})}
        request = httpx2.Request(
            "POST", self._url, headers=all_headers, content=to_json(message), extensions={"timeout": self._timeout}
        )
        response = await transport.handle_async_request(request)
        response.request = request
        return response

    async def _read_response(
        self, response: httpx2.Response, request_id: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> dict[str, Any]:
        if response.has_redirect_location:
            self._redirected = True
            raise FastPathUnavailable
        kind = response.headers.get("content-type", "").lower()
        if kind.startswith(_EVENT_STREAM):
            return await self._read_stream(response, request_id, headers, progress)
        if not kind.startswith(_HEADERS["content-type"]):
            raise ExchangeError(FailureKind.ANSWER, f"Unexpected content type: {kind[:_MAX_CONTENT_TYPE] or 'none'}")
        try:
            return _result_of(parse_json(await response.aread()), response.status_code)
        except ValueError as error:
            raise ExchangeError(FailureKind.ANSWER, NO_MESSAGE) from error

    async def _read_stream(
        self, response: httpx2.Response, request_id: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> dict[str, Any]:
        try:
            async for event in httpx2.EventSource(response, max_event_size=self._limit):
                message = parse_json(event.data.encode()) if event.data else None
                if not isinstance(message, dict):
                    continue
                if message.get("id") == request_id and "method" not in message:
                    return _result_of(message, response.status_code)
                await self._handle_message(message, request_id, headers, progress)
        except ValueError as error:
            raise ExchangeError(FailureKind.ANSWER, _INVALID_RESPONSE) from error
        except (httpx2.SSEError, httpx2.TransportError) as error:
            raise ExchangeError(FailureKind.LOST, "the connection broke off") from error
        raise ExchangeError(FailureKind.LOST, "the connection broke off")

    async def _handle_message(
        self, message: dict[str, Any], request_id: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> None:
        """Handle what a server sends before its response."""
        method, params = message.get("method"), message.get("params")
        if method == "notifications/tools/list_changed":
            self._list_changed()
        elif method == "notifications/progress" and progress is not None and isinstance(params, dict):
            if params.get("progressToken") == request_id and isinstance(done := params.get("progress"), (int, float)):
                total, text = params.get("total"), params.get("message")
                await progress(
                    done, total if isinstance(total, (int, float)) else None, text if isinstance(text, str) else None
                )
        elif method is not None and "id" in message:
            answer = {"result": {}} if method == "ping" else {"error": _METHOD_NOT_FOUND}
            response = await self._post({"jsonrpc": "2.0", "id": message["id"], **answer}, headers)
            await response.aclose()
        elif isinstance(params, dict) or params is None:
            self._notifications.dispatch(method, params)

    async def _cancel(self, request_id: str, headers: Mapping[str, str]) -> None:
        params = {"requestId": request_id, "reason": "caller cancelled"}
        with anyio.move_on_after(_CANCEL_TIMEOUT_S, shield=True):
            response = await self._post(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, headers
            )
            await response.aclose()


@asynccontextmanager
async def _streamable(
    options: ServerOptions,
    fleet: FleetOptions,
    redact: Redactor,
    closed: CloseEvent,
    refresh_needed: AutoResetEvent,
    direct_caller: DirectCaller,
) -> AsyncIterator[Streams]:
    transport = auth_transport(options, fleet, redact, closed, refresh_needed)
    url = bare_url(options.url)
    async with http_client(transport, fleet) as client:
        try:
            async with streamable_http_client(
                url, http_client=client, terminate_on_close=False, max_sse_event_size=options.max_message_bytes
            ) as streams:
                direct_caller.open(transport, url)
                yield streams
        finally:
            direct_caller.close()
            await _end_session(client, url, transport)


async def _end_session(client: httpx2.AsyncClient, url: str, transport: AuthTransport) -> None:
    """Tell the server that its session has ended, as a courtesy; briefly, even when cancelled."""
    if transport.session_headers:
        with anyio.move_on_after(_DELETE_TIMEOUT_S, shield=True), suppress(httpx2.HTTPError):
            await client.delete(url, headers=transport.session_headers, follow_redirects=True)


def _result_of(message: Any, status: int) -> dict[str, Any]:
    """Return a response's result. Raises `MCPError` for its error."""
    if isinstance(message, dict):
        result, error = message.get("result"), message.get("error")
        if isinstance(result, dict):
            return result
        if isinstance(error, dict):
            code, text = error.get("code"), error.get("message")
            raise MCPError(
                code if isinstance(code, int) else INTERNAL_ERROR, str(text or "no message"), error.get("data")
            )
    raise ExchangeError(
        FailureKind.ANSWER, _INVALID_RESPONSE if status == httpx2.codes.OK else f"it returned HTTP {status}"
    )
