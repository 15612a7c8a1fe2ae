"""Streamable HTTP: the SDK's transport over our HTTP client, and a direct path for tool calls.

The SDK's session costs more than all the rest of a call, so that calls are sent as single POSTs beside it. Opening,
listing and subscriptions stay with the session.
"""

import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cached_property
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
"""For the server to take note that its session is over."""


class HttpNetwork:
    """What the HTTP servers of a fleet share."""

    @cached_property
    def ssl_context(self) -> ssl.SSLContext:
        """Made once, when it is first needed: it costs 15 ms and more."""
        return httpx2.create_ssl_context()

    def transport(
        self, options: ServerOptions, fleet: FleetOptions, redact: Redactor, end: CloseEvent, doubt: AutoResetEvent
    ) -> AuthTransport:
        """The way to the options' URL. Raises `ExchangeError` when there can be none."""
        try:
            url = httpx2.URL(options.url)
        except httpx2.InvalidURL as error:
            raise ExchangeError(FailureKind.UNSENT, f"its url is not valid: {redact(str(error))}") from error
        return AuthTransport(self._connections(url), options, fleet, redact, end, doubt)

    def _connections(self, url: httpx2.URL) -> httpx2.AsyncBaseTransport:
        """To the URL's host, through the proxy that the environment names for it."""
        proxies = {} if proxy_bypass(url.host) else getproxies()
        proxy = proxies.get(url.scheme) or proxies.get("all")
        if proxy is not None and "://" not in proxy:
            proxy = f"http://{proxy}"
        if proxy is not None and not proxy.startswith(("http://", "https://")):
            raise ExchangeError(FailureKind.UNSENT, "the proxy that the environment names cannot be used")
        return AiohttpTransport(self.ssl_context, proxy=proxy)


def http_client(gate: AuthTransport, fleet: FleetOptions) -> httpx2.AsyncClient:
    """A client whose every request passes the gate. It waits for answers without limit: each call has its own."""
    timeout = httpx2.Timeout(_IO_TIMEOUT_S, connect=fleet.http_connect_timeout_s, read=None)
    agent = {"user-agent": f"toolcrib/{VERSION}"}
    return httpx2.AsyncClient(transport=gate, timeout=timeout, headers=agent, trust_env=False)


def http_channel(options: ServerOptions, fleet: FleetOptions, network: HttpNetwork, redact: Redactor) -> Channel:
    """A link to a streamable HTTP endpoint; nothing is sent before the session speaks."""
    end, doubt, notices = CloseEvent(), AutoResetEvent(), ServerNotifications()
    posts = DirectCaller(options, fleet, doubt.set, notices)
    transport = _streamable(options, fleet, network, redact, end, doubt, posts)
    return Channel(transport=transport, closed=end, refresh_needed=doubt, notifications=notices, fast_path=posts)


class DirectCaller:
    """May be used from any task, side by side; only while a gate is open."""

    def __init__(
        self,
        options: ServerOptions,
        fleet: FleetOptions,
        list_changed: Callable[[], None],
        notices: ServerNotifications | None = None,
    ) -> None:
        """`list_changed` is called for a server that says so in the middle of an answer; `notices` hear the rest."""
        self._url = httpx2.URL("")
        self._limit = options.max_message_bytes
        self._timeout = {"connect": fleet.http_connect_timeout_s, "read": None, "write": None, "pool": None}
        self._list_changed = list_changed
        self._notices = notices or ServerNotifications()
        self._gate: AuthTransport | None = None
        self._numbers = itertools.count(1)
        self._redirected = False

    def open(self, gate: AuthTransport, url: str) -> None:
        """Use this gate from now on."""
        self._gate, self._url = gate, httpx2.URL(url)

    def close(self) -> None:
        """The gate is closed."""
        self._gate = None

    def supports(self, *, modern: bool) -> bool:
        """Not after a redirect, and not for an older server that answers with streams: the session resumes those."""
        return self._gate is not None and not self._redirected and (modern or self._gate.plain)

    async def call(
        self, params: dict[str, Any], headers: Mapping[str, str], *, modern: bool, progress: ProgressFn | None
    ) -> dict[str, Any]:
        """The result of one `tools/call`. Raises `MCPError`, `ExchangeError`, or `FastPathUnavailable` for good."""
        number = f"call-{next(self._numbers)}"
        if progress is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": number}}
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        try:
            response = await self._post(message, headers)
            try:
                return await self._answer(response, number, headers, progress)
            finally:
                await response.aclose()
        except anyio.get_cancelled_exc_class():
            if not modern:  # there, the end of the request is the message
                await self._cancel(number, headers)
            raise

    async def _post(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> httpx2.Response:
        gate = self._gate
        if gate is None:
            raise ExchangeError(FailureKind.CLOSED, "the connection was closed")
        session = gate.session_headers.get(SESSION_HEADER)
        dressed = {**_HEADERS, **headers, **({SESSION_HEADER: session} if session else {})}
        request = httpx2.Request(
            "POST", self._url, headers=dressed, content=to_json(message), extensions={"timeout": self._timeout}
        )
        response = await gate.handle_async_request(request)
        response.request = request
        return response

    async def _answer(
        self, response: httpx2.Response, number: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> dict[str, Any]:
        if response.has_redirect_location:
            self._redirected = True
            raise FastPathUnavailable
        kind = response.headers.get("content-type", "").lower()
        if kind.startswith(_EVENT_STREAM):
            return await self._streamed(response, number, headers, progress)
        if not kind.startswith(_HEADERS["content-type"]):
            raise ExchangeError(FailureKind.ANSWER, f"Unexpected content type: {kind[:_MAX_CONTENT_TYPE] or 'none'}")
        try:
            return _result_of(parse_json(await response.aread()), response.status_code)
        except ValueError as error:
            raise ExchangeError(FailureKind.ANSWER, NO_MESSAGE) from error

    async def _streamed(
        self, response: httpx2.Response, number: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> dict[str, Any]:
        try:
            async for event in httpx2.EventSource(response, max_event_size=self._limit):
                message = parse_json(event.data.encode()) if event.data else None
                if not isinstance(message, dict):
                    continue
                if message.get("id") == number and "method" not in message:
                    return _result_of(message, response.status_code)
                await self._heard(message, number, headers, progress)
        except ValueError as error:
            raise ExchangeError(FailureKind.ANSWER, _INVALID_RESPONSE) from error
        except (httpx2.SSEError, httpx2.TransportError) as error:
            raise ExchangeError(FailureKind.LOST, "the connection broke off") from error
        raise ExchangeError(FailureKind.LOST, "the connection broke off")

    async def _heard(
        self, message: dict[str, Any], number: str, headers: Mapping[str, str], progress: ProgressFn | None
    ) -> None:
        """What a server says before it answers."""
        method, params = message.get("method"), message.get("params")
        if method == "notifications/tools/list_changed":
            self._list_changed()
        elif method == "notifications/progress" and progress is not None and isinstance(params, dict):
            if params.get("progressToken") == number and isinstance(done := params.get("progress"), (int, float)):
                total, text = params.get("total"), params.get("message")
                await progress(
                    done, total if isinstance(total, (int, float)) else None, text if isinstance(text, str) else None
                )
        elif method is not None and "id" in message:
            answer = {"result": {}} if method == "ping" else {"error": _METHOD_NOT_FOUND}
            noted = await self._post({"jsonrpc": "2.0", "id": message["id"], **answer}, headers)
            await noted.aclose()
        elif isinstance(params, dict) or params is None:
            self._notices.dispatch(method, params)

    async def _cancel(self, number: str, headers: Mapping[str, str]) -> None:
        params = {"requestId": number, "reason": "caller cancelled"}
        with anyio.move_on_after(_CANCEL_TIMEOUT_S, shield=True):
            noted = await self._post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, headers)
            await noted.aclose()


@asynccontextmanager
async def _streamable(
    options: ServerOptions,
    fleet: FleetOptions,
    network: HttpNetwork,
    redact: Redactor,
    end: CloseEvent,
    doubt: AutoResetEvent,
    posts: DirectCaller,
) -> AsyncIterator[Streams]:
    gate = network.transport(options, fleet, redact, end, doubt)
    url = bare_url(options.url)
    async with http_client(gate, fleet) as client:
        try:
            async with streamable_http_client(
                url, http_client=client, terminate_on_close=False, max_sse_event_size=options.max_message_bytes
            ) as streams:
                posts.open(gate, url)
                yield streams
        finally:
            posts.close()
            await _end_session(client, url, gate)


async def _end_session(client: httpx2.AsyncClient, url: str, gate: AuthTransport) -> None:
    """Tell the server that its session is over, for politeness; briefly, also when we are cancelled."""
    if gate.session_headers:
        with anyio.move_on_after(_DELETE_TIMEOUT_S, shield=True), suppress(httpx2.HTTPError):
            await client.delete(url, headers=gate.session_headers, follow_redirects=True)


_HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


_EVENT_STREAM: Final = "text/event-stream"


_INVALID_RESPONSE: Final = "its answer is no answer to the call"


_METHOD_NOT_FOUND: Final = {"code": METHOD_NOT_FOUND, "message": "Method not found"}


_MAX_CONTENT_TYPE: Final = 80


_CANCEL_TIMEOUT_S: Final = 1.0
"""For a server to take note that nobody waits for a call any more, in seconds."""


def _result_of(message: Any, status: int) -> dict[str, Any]:
    """A response's result. Raises `MCPError` for its error."""
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
        FailureKind.ANSWER, _INVALID_RESPONSE if status == httpx2.codes.OK else f"it answered with HTTP {status}"
    )
