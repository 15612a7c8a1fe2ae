"""The HTTP client underneath: pooled connections, credentials, and failures as error responses.

Secrets (headers, user, password, query) are added in the last step, below everything that logs. A failure becomes an
error response to the request it belongs to; a transport error would end the session of all of them.
"""

import base64
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import anyio
import anyio.lowlevel
import httpx2
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND
from pydantic_core import from_json

from toolcrib.sanitize import MASK
from toolcrib.upstream.bounds import Bounds, Meter, result_bounds, take_turn
from toolcrib.upstream.channel import FAILURE_MARK, AutoResetEvent, CloseEvent, ExchangeError, FailureKind
from toolcrib.upstream.framing import flood_pause_s, repair_json, without_repeats
from toolcrib.upstream.http_connection import PooledResponse
from toolcrib.upstream.http_pool import FOR_CALLER_KEY, AiohttpTransport
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url

BOUNDS_KEY: Final = "toolcrib.bounds"
"""Extension of a request: what its response may hold. The parser of such a response repairs surrogates."""
SESSION_HEADER: Final = "mcp-session-id"
VERSION_HEADER: Final = "mcp-protocol-version"
_SHOW_ALL_HEADER: Final = {b"x-mcp-show-all": b"true"}
"""Asks a server that hides tools to list them all."""
_PROTOCOL_HEADERS: Final = frozenset({"accept", "connection", "content-length", "content-type", "transfer-encoding"})
"""Headers that belong to the protocol; those in the options are ignored."""
_SERVER_STATUSES: Final = frozenset({401, 403, 404, 405, 410})
"""Statuses that concern the server as a whole, not one request; so do those from 500 on."""
_NOTIFICATION: Final = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2.0"\s*,\s*"method"')
"""How a message without id begins; in one with an id, the id comes before the method."""
_ERROR_BOUNDS: Final = Bounds(65536, 65536)
"""Of the body of an error."""
_UNUSUAL: Final = re.compile(rb"[^\x20-\x7e]")
"""What a header must not hold to be written as it is."""
_OK: Final = 200
_CONTENT_ENCODING: Final = frozenset({b"content-encoding"})
_MAX_HEADS: Final = 256
_SESSION: Final = SESSION_HEADER.encode()
_NOTED_HEADERS: Final = frozenset({_SESSION, b"content-encoding"})
_ENCODINGS: Final = ("gzip", "x-gzip", "deflate")
_ACCEPTED_ENCODINGS: Final = "gzip, deflate"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_INFLATED_BYTES: Final = 256 * 1024
_EVENT_ENDS: Final = (b"\n\n", b"\r\r", b"\r\n\r\n")
_EVENT_END: Final = re.compile(b"|".join(_EVENT_ENDS))
_EVENT_END_BYTES: Final = 4
"""The longest end."""
_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)
_ADVICE: Final = {
    401: "its credentials are missing or were rejected; check the headers",
    403: "these credentials do not give access to it; check the headers",
    404: 'there is no MCP endpoint at this path; check the url, or set type "sse" for an older server',
    405: 'this path does not accept MCP requests; check the url, or set type "sse" for an older server',
    407: "the proxy requires credentials",
}
_NO_STREAM: Final = 'there is no event stream of an older server at this path; check the url, or set type "http"'
_ADVICE_SSE: Final = {**_ADVICE, **dict.fromkeys((400, 404, 405, 406), _NO_STREAM)}
_NOT_FOLLOWED: Final = "not followed; use that URL as the endpoint if it is the intended server"
_TITLE: Final = re.compile(rb"<title[^>]*>(?P<title>[^<]*)<", re.IGNORECASE)
_MAX_TITLE: Final = 80
_MESSAGE_KEYS: Final = ("error_description", "message", "detail", "error")
_ERROR_TEXTS: Final = (
    (httpx2.ConnectTimeout, "no connection in time"),
    (httpx2.PoolTimeout, "no free connection in time"),
    (httpx2.TimeoutException, "no data in time"),
    (httpx2.ProxyError, "the proxy refused the connection"),
    (httpx2.ConnectError, "no connection; the host cannot be reached"),
    (httpx2.RemoteProtocolError, "the connection was closed without an answer"),
    (httpx2.LocalProtocolError, "the url or a header contains a character that HTTP does not allow"),
    (httpx2.UnsupportedProtocol, "the url must begin with http:// or https://"),
)


class NoAccessToken(httpx2.ConnectError):
    """A request was not sent because there is no access token for it."""

    def __init__(self, reason: str) -> None:
        """`reason` is one line without a full stop."""
        super().__init__(reason)
        self.reason = reason


class LoginNeeded(NoAccessToken):
    """A request was not sent, or not accepted, because there is no login that allows it. Nothing ran."""


class AuthTransport(httpx2.AsyncBaseTransport):
    """Adds credentials to requests, and turns failures into error responses."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        options: ServerOptions,
        fleet: FleetOptions,
        redact: Redactor,
        closed: CloseEvent,
        refresh_needed: AutoResetEvent,
    ) -> None:
        """`closed` is set when the server forgets the session, `refresh_needed` when it may be in trouble."""
        self._inner = inner
        self._url = httpx2.URL(options.url)
        self._query = self._url.query
        self._headers = {**_secret_headers(options, self._url), **(_SHOW_ALL_HEADER if options.show_all else {})}
        self._one_endpoint = options.transport == "http"
        self._bounds = result_bounds(options)
        self._notice_timeout_s = fleet.http_notice_timeout_s
        self._redact = redact
        self._closed = closed
        self._refresh_needed = refresh_needed
        self._streamed = False
        self.listening = anyio.Event()
        """Set once the server has answered the request for its stream of messages."""
        self.plain = False
        """Whether the last response was a single JSON message, not a stream."""
        self.session_headers: dict[str, str] = {}
        """The headers that identify the session to the server; empty without one."""
        self._pooled = inner if isinstance(inner, AiohttpTransport) else None
        self._timeout = {"connect": fleet.http_connect_timeout_s, "read": None, "write": None, "pool": None}
        self._head: bytes | None = None
        """The beginning of each POST to the endpoint; empty if it needs a general client."""
        self._heads: dict[tuple[str | None, ...], bytes] = {}
        """The heads of recent calls but for their lengths, by session and the values of the headers."""

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response to a POST, or an error response in its place. Raises only for other methods."""
        if request.method == "POST" and _NOTIFICATION.match(await request.aread()):
            # The SDK sends notifications one by one, and nothing else meanwhile.
            patience = {**request.extensions.get("timeout", {}), "read": self._notice_timeout_s}
            request.extensions = {**request.extensions, "timeout": patience}
        try:
            response = await self._inner.handle_async_request(self._with_secrets(request))
            if request.method == "GET":
                self.listening.set()
            if request.method != "POST":
                return self._note_get(request, response)
            return await self._response(request, response)
        except httpx2.TransportError as error:
            if request.method != "POST":
                self._refresh_needed.set()
                raise
            return self._transport_failure(error)

    async def send(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], content: bytes, bounds: Bounds
    ) -> httpx2.Response:
        """Send a request of a caller's, within the session if there is one. Raises as `handle_async_request` does."""
        request = self._request(method, url, self._in_session(headers), content, bounds)
        response = await self.handle_async_request(request)
        response.request = request
        return response

    def _in_session(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        session = self.session_headers.get(SESSION_HEADER)
        return {**headers, SESSION_HEADER: session} if session else headers

    def _request(
        self, method: str, url: httpx2.URL, headers: Mapping[str, str], content: bytes, bounds: Bounds
    ) -> httpx2.Request:
        extensions = {"timeout": self._timeout, BOUNDS_KEY: bounds, FOR_CALLER_KEY: True}
        # A request with content computes headers that the connection writes in any case.
        return httpx2.Request(method, url, headers=headers, stream=httpx2.ByteStream(content), extensions=extensions)

    async def post(
        self, url: httpx2.URL, headers: Mapping[str, str], content: bytes, bounds: Bounds
    ) -> bytes | httpx2.Response:
        """The same for a POST to the endpoint; of a short JSON response within the bounds, only the body."""
        headers = self._in_session(headers)
        head = self._post_head(url, headers)
        if head is None or self._pooled is None:
            return await self.send("POST", url, headers, content, bounds)
        try:
            whole = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(content), content)
            answer = await self._pooled.exchange(url, whole, connect_s=self._timeout["connect"])
            if answer is None:
                return await self.send("POST", url, headers, content, bounds)
            return await self._read(answer, url, headers, content, bounds)
        except httpx2.TransportError as error:  # also in the middle of a body
            return self._transport_failure(error)

    async def post_idle(
        self,
        url: httpx2.URL,
        headers: Mapping[str, str],
        content: bytes,
        bounds: Bounds,
        timeout_s: float,
        *,
        modern: bool,
    ) -> bytes | httpx2.Response | None:
        """The same over a connection that is open already; None if there is none.

        In a `modern` version there are no sessions, although some servers name a new one in each response. Raises
        `TimeoutError` if nothing has come within the limit.
        """
        if self._pooled is None:
            return None
        key = (self.session_headers.get(SESSION_HEADER), *headers.values())
        head = self._heads.get(key)
        if head is None:
            headers = self._in_session(headers)
            if (head := self._post_head(url, headers)) is None:
                return None
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[key] = head
        exchange = self._pooled.exchange_idle(
            url, b"%bcontent-length: %d\r\n\r\n%b" % (head, len(content), content), timeout_s=timeout_s
        )
        if exchange is None:
            return None
        try:
            answer = await exchange
            if modern and self._is_whole(answer, bounds, _CONTENT_ENCODING):
                return answer.body
            return await self._read(answer, url, self._in_session(headers), content, bounds)
        except httpx2.TransportError as error:
            return self._transport_failure(error)

    async def _read(
        self, answer: PooledResponse, url: httpx2.URL, headers: Mapping[str, str], content: bytes, bounds: Bounds
    ) -> bytes | httpx2.Response:
        """What `post` returns for an answer. Raises `httpx2.TransportError`."""
        if self._is_whole(answer, bounds, _NOTED_HEADERS):
            return answer.body or b""
        request = self._request("POST", url, headers, content, bounds)
        found = await self._response(request, httpx2.Response(answer.status, headers=answer.headers, stream=answer))
        found.request = request
        return found

    def _is_whole(self, answer: PooledResponse, bounds: Bounds, noted: frozenset[bytes]) -> bool:
        """Whether nothing but the body of a response matters, which is there and within the bounds."""
        if answer.body is None or len(answer.body) > min(bounds.nodes, bounds.bytes):
            return False
        self.plain = answer.status == _OK and (noted.isdisjoint(answer.names) or self._repeats_session(answer))
        return self.plain

    def _repeats_session(self, answer: PooledResponse) -> bool:
        """Whether all that there is to note of a response is the session that is known already."""
        if not _CONTENT_ENCODING.isdisjoint(answer.names) or VERSION_HEADER not in self.session_headers:
            return False
        known = self.session_headers.get(SESSION_HEADER, "").encode()
        return all(value == known for name, value in answer.headers if name == _SESSION)

    def _post_head(self, url: httpx2.URL, headers: Mapping[str, str]) -> bytes | None:
        """The head of such a POST but for its length; None if it cannot be written as it is."""
        if self._head is None:
            self._head = self._common_head(url)
        if not self._head:
            return None
        lines = [f"{name}: {value}\r\n" for name, value in headers.items() if name.encode() not in self._headers]
        text = "".join(lines)
        if text.count("\n") != len(lines) or text.count("\r") != len(lines) or "\0" in text or not text.isascii():
            return None
        return self._head + text.encode()

    def _common_head(self, url: httpx2.URL) -> bytes:
        request = self._with_secrets(httpx2.Request("POST", url))
        pairs = [pair for pair in request.headers.raw if pair[0].lower() != b"content-length"]
        if any(_UNUSUAL.search(name + value) for name, value in pairs):
            return b""
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in pairs)
        return b"POST " + request.url.raw_path + b" HTTP/1.1\r\n" + lines

    def _transport_failure(self, error: httpx2.TransportError) -> httpx2.Response:
        self._refresh_needed.set()
        if isinstance(error, LoginNeeded):
            return self._error(FailureKind.LOGIN, error.reason)
        kind = FailureKind.UNSENT if isinstance(error, _NOT_SENT) else FailureKind.LOST
        return self._error(kind, describe_transport_error(error))

    def _with_secrets(self, request: httpx2.Request) -> httpx2.Request:
        """Return a copy with the secrets, for the configured origin only."""
        url = request.url
        if "accept-encoding" in request.headers:
            request.headers["accept-encoding"] = _ACCEPTED_ENCODINGS
        if not (self._headers or self._query) or not same_origin(self._url, url):
            return request
        if self._query and not url.query and (self._one_endpoint or url.path == self._url.path):
            url = url.copy_with(query=self._query)
        headers = [pair for pair in request.headers.raw if pair[0].lower() not in self._headers]
        headers += self._headers.items()
        return httpx2.Request(
            request.method, url, headers=headers, stream=request.stream, extensions=request.extensions
        )

    def _without_secrets(self, response: httpx2.Response) -> httpx2.Response:
        """Remove secrets that a redirect repeats; they are added again to the next request."""
        location = response.headers.get("location")
        if location is not None and self._query:
            response.headers["location"] = location.removesuffix(f"?{self._query.decode()}")
        return response

    def _note_get(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Learn from the stream of server messages: if it was open and is now unknown, so is the session."""
        if request.method == "GET" and response.status_code == httpx2.codes.OK:
            self._streamed = True
        elif request.method == "GET" and response.status_code == httpx2.codes.NOT_FOUND and self._streamed:
            self._session_lost()
        if not request.extensions.get(BOUNDS_KEY):
            response = _with_bounded_events(response, self._bounds)
        return self._without_secrets(response)

    async def _response(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if response.status_code >= httpx2.codes.BAD_REQUEST:
            body = await read_bounded(response, _ERROR_BOUNDS)
            return self._refusal(request, response, body if isinstance(body, bytes) else b"")
        if SESSION_HEADER in response.headers:
            self.session_headers = {SESSION_HEADER: response.headers[SESSION_HEADER]}
        if self.session_headers and VERSION_HEADER not in self.session_headers and VERSION_HEADER in request.headers:
            self.session_headers[VERSION_HEADER] = request.headers[VERSION_HEADER]
        self.plain = response.headers.get("content-type", "").lower().startswith("application/json")
        if response.has_redirect_location:
            return self._redirect(request, response)
        if not self.plain and _is_web_page(response.headers):
            self._refresh_needed.set()
            body = await read_bounded(response, _ERROR_BOUNDS)
            return self._error(FailureKind.ANSWER, _describe_web_page(body if isinstance(body, bytes) else b""))
        bounds: Bounds | None = request.extensions.get(BOUNDS_KEY)
        if not self.plain:
            return self._without_secrets(response if bounds else _with_bounded_events(response, self._bounds))
        body = await read_bounded(response, bounds or self._bounds)
        if isinstance(body, str):
            return self._error(FailureKind.ANSWER, f"its response {body}")
        return _with_body(response, body if bounds else repair_json(body))

    def _redirect(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Return a redirect within the origin; any other is an error, which the SDK would also log at each attempt."""
        target = request.url.join(response.headers["location"])
        if same_origin(self._url, target):
            return self._without_secrets(response)
        return self._error(FailureKind.STATUS, f"Redirect to {bare_url(str(target))} {_NOT_FOLLOWED}")

    def _refusal(self, request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
        status = response.status_code
        rpc_error = _rpc_error(body)
        if SESSION_HEADER in request.headers and _is_session_lost(status, rpc_error):
            self._session_lost()
            return self._error(FailureKind.SESSION, "its session has ended")
        # Bad credentials concern the whole server, whatever the body says.
        if rpc_error is not None and status != httpx2.codes.UNAUTHORIZED:
            return _with_body(response, body)
        if status in _SERVER_STATUSES or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            self._refresh_needed.set()
        return self._error(FailureKind.STATUS, without_token(request, describe_status(status, response.headers, body)))

    def _session_lost(self) -> None:
        self.session_headers = {}
        self._closed.set("its session has ended", reconnect=True)

    def _error(self, kind: FailureKind, reason: str) -> httpx2.Response:
        data = {"mark": FAILURE_MARK, "kind": kind.name}
        error = {"code": CONNECTION_CLOSED, "message": self._redact(reason), "data": data}
        return httpx2.Response(httpx2.codes.BAD_GATEWAY, json={"jsonrpc": "2.0", "id": None, "error": error})


def same_origin(url: httpx2.URL, other: httpx2.URL) -> bool:
    """Whether both URLs have the same origin; https instead of http on the default ports counts."""
    upgraded = (url.scheme, url.port, other.scheme, other.port) == ("http", None, "https", None)
    return url.host == other.host and (upgraded or (url.scheme, url.port) == (other.scheme, other.port))


def _secret_headers(options: ServerOptions, url: httpx2.URL) -> dict[bytes, bytes]:
    """Return the secret headers by lower-case name, encoded for HTTP. Raises `ExchangeError` if that is impossible."""
    headers = {}
    if url.userinfo:
        pair = f"{unquote(url.username)}:{unquote(url.password)}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    for name, value in options.headers.items():
        if not (name + value).isascii():
            raise ExchangeError(FailureKind.UNSENT, f'the header "{name}" holds a character that no header can have')
        if name.lower() not in _PROTOCOL_HEADERS and not name.lower().startswith("mcp-"):
            headers[name.lower()] = value
    return dict(httpx2.Headers(headers).raw)


async def read_bounded(response: httpx2.Response, bounds: Bounds) -> bytes | str:
    """Read the whole body, decoded; return how it breaks the bounds if it does."""
    parts, meter = list[bytes](), Meter()
    try:
        async for chunk in byte_chunks(response):
            parts.append(chunk)
            if len(parts) == 1 and len(chunk) <= bounds.nodes:
                continue  # most bodies are one small chunk, whose values need not be counted
            for part in parts if not meter.size else (chunk,):
                meter.add(part)
            if problem := bounds.problem(meter.size, meter.nodes):
                return problem
            await take_turn(meter.size, len(chunk))
    finally:
        await _stream_of(response).aclose()
    return b"".join(parts)


def byte_chunks(response: httpx2.Response) -> AsyncIterable[bytes]:
    """The body as it arrives, decoded."""
    # The bare stream: reading through the response costs more than everything else here.
    stream = _stream_of(response)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    return stream if encoding in ("", "identity") else _inflated(stream, encoding)


async def _inflated(stream: httpx2.AsyncByteStream, encoding: str) -> AsyncIterator[bytes]:
    """Decode a compressed body in small parts: a few bytes can hold gigabytes. Raises `httpx2.RemoteProtocolError`."""
    if encoding not in _ENCODINGS:
        raise httpx2.RemoteProtocolError("it sent an encoding that was not asked for")
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        async for chunk in stream:
            left = chunk
            while left:
                part = inflater.decompress(left, _INFLATED_BYTES)
                if part:
                    yield part
                    await anyio.lowlevel.checkpoint()
                left = inflater.unconsumed_tail
                if inflater.eof and inflater.unused_data:
                    left, inflater = inflater.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)
        while part := inflater.decompress(inflater.unconsumed_tail, _INFLATED_BYTES):
            yield part
    except zlib.error as error:
        raise httpx2.RemoteProtocolError("its compressed response cannot be decoded") from error


class _BoundedEvents(httpx2.AsyncByteStream):
    """A stream of events that ends where one of them breaks the bounds, and in which a flood costs little."""

    def __init__(self, response: httpx2.Response, bounds: Bounds) -> None:
        self._response = response
        self._bounds = bounds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        meter, before = Meter(), b""
        async for chunk in byte_chunks(self._response):
            # An event's end may be cut, with its first bytes in the chunk before.
            text = before + chunk
            start = _end_of_events(text) - len(before)
            meter = Meter() if start > 0 else meter
            meter.add(chunk[max(0, start) :])
            before = text[1 - _EVENT_END_BYTES :]
            if self._bounds.problem(meter.size, meter.nodes):
                return
            await take_turn(meter.size, len(chunk))
            events = _EVENT_END.split(chunk)
            # The first and the last one may be parts of an event.
            kept = [*events[:1], *without_repeats(events[1:-1]), *events[1:][-1:]]
            yield chunk if len(kept) == len(events) else b"\n\n".join(kept)
            await anyio.sleep(flood_pause_s(len(events), len(kept)))

    async def aclose(self) -> None:
        await _stream_of(self._response).aclose()


def _end_of_events(text: bytes) -> int:
    """Return where the last whole event ends; 0 if there is none."""
    return max((place + len(end) for end in _EVENT_ENDS if (place := text.rfind(end)) >= 0), default=0)


def _with_bounded_events(response: httpx2.Response, bounds: Bounds) -> httpx2.Response:
    """Return a response for the SDK, which parses the events."""
    return httpx2.Response(
        response.status_code,
        headers=_decoded_headers(response),
        stream=_BoundedEvents(response, bounds),
        extensions=response.extensions,
    )


def _stream_of(response: httpx2.Response) -> httpx2.AsyncByteStream:
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport must return an asynchronous stream")
    return response.stream


def _with_body(response: httpx2.Response, body: bytes) -> httpx2.Response:
    """Return the response with the body that was read from it."""
    if "content-encoding" not in response.headers:
        response.stream = httpx2.ByteStream(body)
        return response
    headers = _decoded_headers(response)
    return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)


def _decoded_headers(response: httpx2.Response) -> httpx2.Headers:
    """The headers of a response whose body is decoded."""
    headers = response.headers.copy()
    if "content-encoding" in headers:
        for name in ("content-encoding", "content-length", "transfer-encoding"):
            headers.pop(name, None)
    return headers


def _rpc_error(body: bytes) -> dict[str, Any] | None:
    try:
        value = from_json(body, cache_strings="keys")
    except ValueError:
        return None
    error = value.get("error") if isinstance(value, dict) and "jsonrpc" in value else None
    return error if isinstance(error, dict) else None


def _is_session_lost(status: int, error: dict[str, Any] | None) -> bool:
    """404 by the specification; many servers use 400 with a message about the session."""
    if status == httpx2.codes.NOT_FOUND:
        return error is None or error.get("code") != METHOD_NOT_FOUND
    return status == httpx2.codes.BAD_REQUEST and error is not None and "session" in str(error.get("message")).lower()


def without_token(request: httpx2.Request, text: str) -> str:
    """Return what a server says, without the access token of the request."""
    token = request.headers.get("authorization", "").partition(" ")[2]
    return text.replace(token, MASK) if token else text


def describe_status(status: int, headers: httpx2.Headers, body: bytes, *, sse: bool = False) -> str:
    """Explain an HTTP error status; `sse` if the older transport was tried.

    >>> describe_status(429, httpx2.Headers({"retry-after": "30"}), b"")
    'HTTP 429 Too Many Requests, retry after 30'
    """
    try:
        text = f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        text = f"HTTP {status}"
    if (after := headers.get("retry-after")) is not None:
        text += f", retry after {after}"
    if _is_web_page(headers) and status not in _ADVICE:
        return f"{text}: {_describe_web_page(body)}"
    detail = _body_message(body)
    advice = (_ADVICE_SSE if sse else _ADVICE).get(status, "")
    return ": ".join(part for part in (text, advice) if part) + (f' (its message: "{detail}")' if detail else "")


def _is_web_page(headers: httpx2.Headers) -> bool:
    return headers.get("content-type", "").lower().startswith("text/html")


def _describe_web_page(body: bytes) -> str:
    """Explain an answer that is a page for people, by its title.

    >>> _describe_web_page(b"<html><title>Sign in</title>")
    'a web page ("Sign in") came back, not an MCP message; check the url'
    """
    found = _TITLE.search(body)
    title = " ".join(found["title"].decode(errors="replace").split()) if found else ""
    page = f'a web page ("{title[:_MAX_TITLE]}")' if title else "a web page"
    return f"{page} came back, not an MCP message; check the url"


def _body_message(body: bytes) -> str:
    """Return the explanation in a JSON body, if it has one in a usual place."""
    try:
        value: Any = from_json(body, cache_strings="keys")
    except ValueError:
        return ""
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        value = value["error"]
    if not isinstance(value, dict):
        return ""
    return next((value[key] for key in _MESSAGE_KEYS if isinstance(value.get(key), str)), "")


def describe_transport_error(error: httpx2.TransportError) -> str:
    """Explain a transport error by its deepest known cause.

    >>> describe_transport_error(httpx2.ReadError(""))
    'the connection broke off'
    """
    for cause in _causes(error):
        if isinstance(cause, NoAccessToken):
            return cause.reason
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "no TLS connection; check that the url begins with the right scheme"
        if isinstance(cause, socket.gaierror):
            return "its host name is unknown; check the url"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
    return next((text for kind, text in _ERROR_TEXTS if isinstance(error, kind)), "the connection broke off")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, deepest last."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        cause = left.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        left += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            left += cause.exceptions
