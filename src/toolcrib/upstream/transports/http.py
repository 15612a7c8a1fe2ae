"""Streamable HTTP: the SDK's transport over our HTTP client, and a direct path for callers' requests.

The SDK's session costs more than all the rest of a call, and does not say to which request a message on a stream
belongs. Calls are therefore sent as single POSTs beside it. Opening, listing and subscriptions stay with the session.
"""

import itertools
import os
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from pydantic_core import to_json

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.protocol.messages import NESTED_TOO_DEEP, TooDeepError, is_outcome, parse_json, response_in
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url
from toolcrib.upstream.transports.base import (
    CLIENT_NOTIFICATIONS,
    INVALID_RESPONSE,
    NO_MESSAGE,
    AutoResetEvent,
    CallProtocol,
    Channel,
    CloseEvent,
    Exchange,
    FastPathUnavailable,
    ReadRest,
    ServerNotifications,
    Streams,
    encode_message,
    result_of,
)
from toolcrib.upstream.transports.bounds import (
    LIST_METHODS,
    Bounds,
    list_bounds,
    result_bounds,
    run_in_steps,
    take_turn,
)
from toolcrib.upstream.transports.framing import EventParser, ServerEvent, parse_in_steps
from toolcrib.upstream.transports.http_bodies import EVENT_STREAM, JSON, byte_chunks
from toolcrib.upstream.transports.http_pool import AiohttpTransport, http_client
from toolcrib.upstream.transports.http_transport import AuthTransport
from toolcrib.wire import CLIENT_CAPABILITIES

_MAX_CALL_HEADERS: Final = 256
_IO_TIMEOUT_S: Final = 30.0
"""To write a request, or to wait for a free connection."""
_DELETE_TIMEOUT_S: Final = 1.0
"""For the server to accept the end of its session."""
_CERTIFICATE_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_OTHER_REQUEST: Final = "its response answers another request"
_UNREADABLE_EVENT: Final = "its response holds an event that is not a JSON-RPC message, and no result"
_METHOD_NOT_FOUND: Final = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
_MAX_CONTENT_TYPE: Final = 80
_RESUME_AFTER_S: Final = 1.0
"""Before the rest of an interrupted stream is asked for, unless the server says when."""
_END_S: Final = 0.02
"""How long to wait for the end of a stream after its result."""
_MAX_RESUME_AFTER_S: Final = 30.0
_MAX_RESUMES: Final = 3
"""Attempts to resume a stream that bring nothing new."""
_CANCEL_TIMEOUT_S: Final = 1.0
"""For a server to accept a cancellation, in seconds."""


WithTokens = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]
"""Wraps a transport so that its requests carry access tokens."""


def auth_transport(
    options: ServerOptions,
    fleet: FleetOptions,
    redact: Redactor,
    closed: CloseEvent,
    refresh_needed: AutoResetEvent,
    with_tokens: WithTokens | None = None,
) -> AuthTransport:
    """Return the transport to the options' URL. Raises `ExchangeError` if there can be none."""
    try:
        url = httpx2.URL(options.url)
    except httpx2.InvalidURL as error:
        raise ExchangeError(FailureKind.UNSENT, f"its url is not valid: {redact(str(error))}") from error
    inner: httpx2.AsyncBaseTransport = AiohttpTransport(ssl_context(), proxy=proxy_of(url))
    inner = inner if with_tokens is None else with_tokens(inner)
    return AuthTransport(inner, options, fleet, redact, closed, refresh_needed)


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
    return httpx2.create_ssl_context()


def proxy_of(url: httpx2.URL) -> str | None:
    """Return the proxy that the environment names for the URL's host, if any."""
    proxies = {} if proxy_bypass(url.host) else getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy is not None and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        raise ExchangeError(FailureKind.UNSENT, "the proxy in the environment is not supported")
    return proxy


def session_client(transport: AuthTransport, fleet: FleetOptions) -> httpx2.AsyncClient:
    """Return a client for a session. It has no read timeout: each call has its own deadline."""
    return http_client(
        transport, timeout=httpx2.Timeout(_IO_TIMEOUT_S, connect=fleet.http_connect_timeout_s, read=None)
    )


def open_channel(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, with_tokens: WithTokens | None = None
) -> Channel:
    """Return a channel to a streamable HTTP endpoint. Nothing is sent before the session starts."""
    closed, refresh_needed, notifications = CloseEvent(), AutoResetEvent(), ServerNotifications()
    direct_caller = DirectCaller(options, refresh_needed.set, notifications)
    connect = partial(auth_transport, options, fleet, redact, closed, refresh_needed, with_tokens)
    transport = _streamable(options, fleet, connect, direct_caller)
    return Channel(
        transport=transport,
        closed=closed,
        refresh_needed=refresh_needed,
        notifications=notifications,
        fast_path=direct_caller,
        wait_listening=direct_caller.wait_listening,
        has_lost_session=direct_caller.has_lost_session,
    )


class DirectCaller:
    """Sends callers' requests as single POSTs. Safe to use from several tasks while a transport is open.

    Whatever a server sends on the stream of a response belongs to that request, and goes to its `Exchange`.
    """

    def __init__(
        self,
        options: ServerOptions,
        list_changed: Callable[[], None],
        notifications: ServerNotifications | None = None,
    ) -> None:
        """`list_changed` is called if the server reports a changed tool list within a response; `notifications`
        gets what concerns no request.
        """
        self._url = httpx2.URL("")
        self._result_bounds, self._list_bounds = result_bounds(options), list_bounds(options)
        self._list_changed = list_changed
        self._notifications = notifications or ServerNotifications()
        self._transport: AuthTransport | None = None
        self._ids = itertools.count(1)
        self._redirected = False
        self._call_headers: dict[str, dict[str, str]] = {}
        """The headers of recent calls, by the name of the tool."""

    def open(self, transport: AuthTransport, url: str) -> None:
        self._transport, self._url = transport, httpx2.URL(url)
        self._call_headers.clear()

    def close(self) -> None:
        self._transport = None

    async def wait_listening(self) -> None:
        """Wait until the server has answered the request for its stream of messages."""
        if self._transport is not None:
            await self._transport.listening.wait()

    async def has_lost_session(self) -> bool:
        """Ask whether the server still knows the session."""
        return self._transport is not None and await self._transport.has_lost_session()

    has_streams = True

    @property
    def is_usable(self) -> bool:
        """Whether requests can be sent this way; not after a redirect."""
        return self._transport is not None and not self._redirected

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        headers: Mapping[str, str],
        *,
        modern: bool,
        exchange: Exchange | None,
    ) -> dict[str, Any]:
        """Return the result of one request. Raises `MCPError`, `ExchangeError` or `FastPathUnavailable`."""
        request_id = f"call-{next(self._ids)}"
        if exchange is not None:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": request_id}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        bounds = self._list_bounds if method in LIST_METHODS else self._result_bounds
        try:
            response = await self._open_transport().post(self._url, {**_HEADERS, **headers}, to_json(message), bounds)
            return await self._read(response, request_id, headers, bounds, modern=modern, exchange=exchange)
        except anyio.get_cancelled_exc_class():
            if not modern:  # in modern versions, closing the request cancels it
                await self._cancel(request_id, headers)
            raise

    async def call_plain(
        self, params: dict[str, Any], protocol: CallProtocol, timeout_s: float
    ) -> dict[str, Any] | ReadRest | None:
        """Return the result of a `tools/call` whose client gets nothing else, if it comes as one short JSON message.

        Of any other response, return what reads the rest; None if the call has to be sent another way. Raises
        `MCPError`, `ExchangeError`, `InvalidArguments`, and `TimeoutError` if nothing has come within `timeout_s`.
        """
        request_id = f"call-{next(self._ids)}"
        content = encode_message({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})
        headers = self._call_headers.get(params["name"])
        if headers is None:
            if len(self._call_headers) >= _MAX_CALL_HEADERS:
                self._call_headers.clear()
            headers = {**_HEADERS, **protocol.headers("tools/call", params)}
            self._call_headers[params["name"]] = headers
        transport, bounds = self._open_transport(), self._result_bounds
        try:
            response = await transport.post_idle(self._url, headers, content, bounds, timeout_s, modern=protocol.modern)
        except (TimeoutError, anyio.get_cancelled_exc_class()):
            if not protocol.modern:
                await self._cancel(request_id, headers)
            raise
        if response is None:
            return None
        if isinstance(response, bytes):
            try:
                return result_of(response_in(parse_json(response)))
            except ValueError as error:
                raise _unreadable(error) from error

        async def read_rest(exchange: Exchange | None) -> dict[str, Any]:
            try:
                return await self._read(
                    response, request_id, headers, bounds, modern=protocol.modern, exchange=exchange
                )
            except anyio.get_cancelled_exc_class():
                if not protocol.modern:
                    await self._cancel(request_id, headers)
                raise

        return read_rest

    async def _read(
        self,
        response: bytes | httpx2.Response,
        request_id: str,
        headers: Mapping[str, str],
        bounds: Bounds,
        *,
        modern: bool,
        exchange: Exchange | None,
    ) -> dict[str, Any]:
        """Return the result in a response, of which the transport has read the beginning or all."""
        if isinstance(response, bytes):
            return await _read_message(response, httpx2.codes.OK, bounds)
        if response.has_redirect_location:
            self._redirected = True
            await response.aclose()
            raise FastPathUnavailable
        kind = response.headers.get("content-type", "").lower()
        if kind.startswith(EVENT_STREAM):
            stream = _ResponseStream(self, request_id, headers, exchange, bounds, resumable=not modern)
            return await stream.read(response)
        return await _read_json(response, kind, bounds)

    async def _post(
        self, message: Mapping[str, Any], headers: Mapping[str, str], bounds: Bounds | None = None
    ) -> httpx2.Response:
        return await self._send("POST", {**_HEADERS, **headers}, to_json(message), bounds)

    async def resume(self, last_event_id: str, headers: Mapping[str, str]) -> httpx2.Response:
        """Ask a server of an older version for the rest of a stream. Raises `httpx2.TransportError`."""
        return await self._send("GET", {**headers, "accept": EVENT_STREAM, "last-event-id": last_event_id})

    async def _send(
        self, method: str, headers: Mapping[str, str], content: bytes = b"", bounds: Bounds | None = None
    ) -> httpx2.Response:
        return await self._open_transport().send(method, self._url, headers, content, bounds or self._result_bounds)

    def _open_transport(self) -> AuthTransport:
        if self._transport is None:
            raise ExchangeError(FailureKind.CLOSED, "the connection was closed")
        return self._transport

    async def handle(
        self, message: dict[str, Any], request_id: str, headers: Mapping[str, str], exchange: Exchange | None
    ) -> None:
        """Handle what a server sends before its response."""
        method, params = message.get("method"), message.get("params")
        if method is not None and "id" in message:
            answer = await _answer(method, params if isinstance(params, dict) else {}, exchange)
            response = await self._post({"jsonrpc": "2.0", "id": message["id"], **answer}, headers)
            await response.aclose()
        elif method == "notifications/tools/list_changed":
            self._list_changed()
        elif method == "notifications/progress":
            if exchange is not None and isinstance(params, dict) and params.get("progressToken") == request_id:
                await _forward_progress(params, exchange)
        elif exchange is not None and method in CLIENT_NOTIFICATIONS and isinstance(params, dict):
            await exchange.notify(method, params)
        elif isinstance(params, dict) or params is None:
            self._notifications.dispatch(method, params)

    async def _cancel(self, request_id: str, headers: Mapping[str, str]) -> None:
        params = {"requestId": request_id, "reason": "caller cancelled"}
        with anyio.move_on_after(_CANCEL_TIMEOUT_S, shield=True), suppress(ExchangeError):
            response = await self._post(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, headers
            )
            await response.aclose()


_BeginAnswer = Callable[[dict[str, Any]], None]


class _ResponseStream:
    """The response to one request as a stream of events, which a server of an older version may interrupt."""

    def __init__(
        self,
        caller: DirectCaller,
        request_id: str,
        headers: Mapping[str, str],
        exchange: Exchange | None,
        bounds: Bounds,
        *,
        resumable: bool,
    ) -> None:
        self._caller = caller
        self._bounds = bounds
        self._request_id = request_id
        self._headers = headers
        self._exchange = exchange
        self._resumable = resumable
        self._last_event_id = ""
        self._retry_s = _RESUME_AFTER_S
        self._problem = ""
        """What came in place of the result, if anything did."""

    async def read(self, response: httpx2.Response) -> dict[str, Any]:
        """Return the result. Raises `MCPError` or `ExchangeError`."""
        failures = 0
        while True:
            received = self._last_event_id
            messages = _Messages(response, self._bounds)
            try:
                result = await self._read_messages(messages)
                await messages.drain()
            except ValueError as error:  # it is nested too deep
                raise _unreadable(error) from error
            finally:
                self._last_event_id = messages.last_event_id or self._last_event_id
                self._retry_s = self._retry_s if messages.retry_s is None else messages.retry_s
                self._problem = messages.problem or self._problem
                await messages.close()
            if result is not None:
                return result
            failures = 0 if self._last_event_id != received else failures + 1
            response = await self._resumed(failures)

    async def _read_messages(self, messages: "_Messages", begin: _BeginAnswer | None = None) -> dict[str, Any] | None:
        """Return the result; None if the stream ended without it. `begin` starts to answer a question."""
        while (message := await messages.next()) is not None:
            if is_outcome(message):
                if message.get("id") in (self._request_id, None):  # it can answer no other request
                    return result_of(message)
                self._problem = _OTHER_REQUEST
            elif "id" not in message or "method" not in message:
                await self._handle(message)
            elif begin is not None:
                begin(message)
            else:
                return await self._read_with_group(message, messages)
        return None

    async def _read_with_group(self, question: dict[str, Any], messages: "_Messages") -> dict[str, Any] | None:
        result: dict[str, Any] | None = None
        failure: Exception | None = None

        async def handle(message: dict[str, Any]) -> None:
            nonlocal failure
            try:
                await self._handle(message)
            except ExchangeError as error:
                failure = error
                group.cancel_scope.cancel()

        def begin(message: dict[str, Any]) -> None:
            group.start_soon(handle, message)

        async with anyio.create_task_group() as group:
            begin(question)
            try:
                result = await self._read_messages(messages, begin)
            except (MCPError, ExchangeError, ValueError) as error:
                failure = error
            if result is not None or failure is not None:
                group.cancel_scope.cancel()
        if failure is not None and result is None:
            raise failure
        return result

    async def _handle(self, message: dict[str, Any]) -> None:
        await self._caller.handle(message, self._request_id, self._headers, self._exchange)

    async def _resumed(self, failures: int) -> httpx2.Response:
        """The rest of the response. Raises `ExchangeError` if the server cannot or does not continue it."""
        lost = ExchangeError(FailureKind.LOST, self._problem or "the connection broke off")
        while self._resumable and self._last_event_id and failures < _MAX_RESUMES:
            await anyio.sleep(min(self._retry_s, _MAX_RESUME_AFTER_S))
            try:
                response = await self._caller.resume(self._last_event_id, self._headers)
            except httpx2.TransportError:
                failures += 1
                continue
            if response.status_code == httpx2.codes.OK:
                return response
            await response.aclose()
            failures += 1
        raise lost


class _Messages:
    """The messages on one stream of events."""

    def __init__(self, response: httpx2.Response, bounds: Bounds) -> None:
        self._response = response
        self._chunks = aiter(byte_chunks(response))
        self._parser = EventParser(bounds)
        self._bounds = bounds
        self._waiting: deque[dict[str, Any]] = deque()
        self._ended = False
        self.problem = ""
        """What was wrong with an event that could not be read."""
        self.last_event_id = ""
        self.retry_s: float | None = None

    async def next(self) -> dict[str, Any] | None:
        """Return the next message; None when the stream has ended or broken off. Raises `ExchangeError`."""
        while not self._waiting and not self._ended:
            await self._read()
        return self._waiting.popleft() if self._waiting else None

    async def _read(self) -> None:
        chunk = b""
        try:
            chunk = await anext(self._chunks)
            events = list(self._parser.feed(chunk))
        except StopAsyncIteration:
            self._ended, events = True, list(self._parser.end())
        except httpx2.TransportError:
            self._ended = True
            return
        except OverflowError as error:
            raise ExchangeError(FailureKind.ANSWER, f"its response {error}") from error
        await take_turn(self._parser.pending_bytes, len(chunk))
        await self._take(events)

    async def _take(self, events: Iterable[ServerEvent]) -> None:
        for event in events:
            self.last_event_id = event.id or self.last_event_id
            self.retry_s = self.retry_s if event.retry_s is None else event.retry_s
            if not event.data:
                continue
            try:
                message = await run_in_steps(parse_in_steps(event.data, is_list=self._bounds.in_steps))
            except TooDeepError:
                raise
            except ValueError:  # what follows it may still be the result
                self.problem = self.problem if self._ended else _UNREADABLE_EVENT
                continue
            message = response_in(message)
            if isinstance(message, dict):
                self._waiting.append(message)

    async def drain(self) -> None:
        """Wait for the end of the stream, which usually follows the result: only then is its connection free."""
        with anyio.move_on_after(_END_S), suppress(httpx2.TransportError):
            while not self._ended:
                self._ended = await anext(self._chunks, None) is None

    async def close(self) -> None:
        """Close the stream, also when cancelled: that is what cancels a request of 2026-07-28."""
        if self._ended:
            await self._response.aclose()
            return
        with anyio.CancelScope(shield=True):
            if isinstance(self._chunks, AsyncGenerator):
                await self._chunks.aclose()
            await self._response.aclose()


async def _read_json(response: httpx2.Response, kind: str, bounds: Bounds) -> dict[str, Any]:
    try:
        if not kind.startswith(JSON):
            raise ExchangeError(FailureKind.ANSWER, f"Unexpected content type: {kind[:_MAX_CONTENT_TYPE] or 'none'}")
        return await _read_message(await response.aread(), response.status_code, bounds)
    finally:
        await response.aclose()


async def _read_message(body: bytes, status: int, bounds: Bounds) -> dict[str, Any]:
    try:
        message = await run_in_steps(parse_in_steps(body, is_list=bounds.in_steps))
        return result_of(response_in(message), _problem_of(status))
    except ValueError as error:
        raise _unreadable(error) from error


def _unreadable(error: ValueError) -> ExchangeError:
    reason = f"its response {NESTED_TOO_DEEP}" if isinstance(error, TooDeepError) else NO_MESSAGE
    return ExchangeError(FailureKind.ANSWER, reason)


async def _answer(method: str, params: Mapping[str, Any], exchange: Exchange | None) -> dict[str, Any]:
    """The result or error with which to answer a request of a server."""
    if method == "ping":
        return {"result": {}}
    if exchange is None or method not in CLIENT_CAPABILITIES:
        return {"error": _METHOD_NOT_FOUND}
    try:
        return {"result": await exchange.answer(method, params)}
    except MCPError as error:
        return {"error": error.error.model_dump(exclude_none=True)}


async def _forward_progress(params: Mapping[str, Any], exchange: Exchange) -> None:
    done, total, text = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(done, (int, float)):
        await exchange.progress(
            done, total if isinstance(total, (int, float)) else None, text if isinstance(text, str) else None
        )


@asynccontextmanager
async def _streamable(
    options: ServerOptions, fleet: FleetOptions, connect: Callable[[], AuthTransport], direct_caller: DirectCaller
) -> AsyncIterator[Streams]:
    transport = connect()
    url = bare_url(options.url)
    async with session_client(transport, fleet) as client:
        try:
            async with streamable_http_client(
                url, http_client=client, terminate_on_close=False, max_sse_event_size=result_bounds(options).bytes
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


def _problem_of(status: int) -> str:
    """What is wrong with a response of this status that has no result."""
    return INVALID_RESPONSE if status == httpx2.codes.OK else f"it returned HTTP {status}"
