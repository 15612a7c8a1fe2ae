"""The HTTP client underneath: pooled connections, credentials, and failures as error responses.

Secrets (headers, user, password, query) are added in the last step, below everything that logs. A failure becomes an
error response to the request it belongs to; a transport error would end the session of all of them.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import anyio
import anyio.lowlevel
import httpx2
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.protocol.messages import parse_json
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor, bare_url
from toolcrib.upstream.transports.base import FAILURE_MARK, AutoResetEvent, CloseEvent
from toolcrib.upstream.transports.bounds import Bounds, result_bounds
from toolcrib.upstream.transports.framing import message_for_session
from toolcrib.upstream.transports.http_bodies import (
    EVENT_STREAM,
    JSON,
    events_for_session,
    kind_of,
    read_beginning,
    read_bounded,
    with_body,
)
from toolcrib.upstream.transports.http_connection import PooledResponse
from toolcrib.upstream.transports.http_failures import (
    NOT_SENT,
    LoginNeeded,
    describe_endpoint_status,
    describe_status,
    describe_transport_error,
    describe_web_page,
    is_web_page,
    retry_after_s,
    without_token,
)
from toolcrib.upstream.transports.http_pool import FOR_CALLER_KEY, USER_AGENT, AiohttpTransport

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
_ACCEPTED_ENCODINGS: Final = "gzip, deflate"
_NOT_FOLLOWED: Final = "not followed; use that URL as the endpoint if it is the intended server"
_GONE: Final = frozenset({404, 410})
"""Statuses by which a server says that it does not know a session, whatever else it says."""
_ENDED: Final = "its session has ended"
_PING: Final = {"jsonrpc": "2.0", "id": "session-check", "method": "ping"}
_PING_HEADERS: Final = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_PING_TIMEOUT_S: Final = 5.0


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
        self._is_answered = False
        """Whether a request ever got a response."""
        self._is_delivered = False
        """Whether the endpoint of an older server has ever taken a message."""
        self._bounds = result_bounds(options)
        self._notice_timeout_s = fleet.http_notice_timeout_s
        self._redact = redact
        self._closed = closed
        self._refresh_needed = refresh_needed
        self._endpoint = httpx2.URL(bare_url(options.url))
        """Where messages go: the URL of the options, or where that redirects to."""
        self._streamed = False
        self._has_lost_session = False
        self._checking = anyio.Lock()
        self.listening = anyio.Event()
        """Set once the server has answered the request for its stream of messages."""
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
            self._is_answered = True
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
        return answer.status == _OK and (noted.isdisjoint(answer.names) or self._repeats_session(answer))

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
        request = self._with_secrets(httpx2.Request("POST", url, headers={"user-agent": USER_AGENT}))
        pairs = [pair for pair in request.headers.raw if pair[0].lower() != b"content-length"]
        if any(_UNUSUAL.search(name + value) for name, value in pairs):
            return b""
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in pairs)
        return b"POST " + request.url.raw_path + b" HTTP/1.1\r\n" + lines

    def _transport_failure(self, error: httpx2.TransportError) -> httpx2.Response:
        self._refresh_needed.set()
        if isinstance(error, LoginNeeded):
            return self._error(FailureKind.LOGIN, error.reason)
        kind = FailureKind.UNSENT if isinstance(error, NOT_SENT) else FailureKind.LOST
        return self._error(kind, self.describe(error))

    def describe(self, error: httpx2.TransportError) -> str:
        """Explain why a request failed."""
        return describe_transport_error(error, maybe_tls=not self._is_answered and self._url.scheme == "http")

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
            self._lose_session()
        if not request.extensions.get(BOUNDS_KEY):
            response = events_for_session(response, self._bounds)
        return self._without_secrets(response)

    async def _response(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if response.status_code >= httpx2.codes.BAD_REQUEST:
            body = await read_bounded(response, _ERROR_BOUNDS)
            return self._refusal(request, response, body if isinstance(body, bytes) else b"")
        self._is_delivered = True
        self._note_session(request, response)
        if response.has_redirect_location:
            return self._redirect(request, response)
        self._endpoint = request.url
        bounds: Bounds | None = request.extensions.get(BOUNDS_KEY)
        if response.headers.get("content-type", "").lower().startswith(EVENT_STREAM):
            return response if bounds else events_for_session(response, self._bounds, answers=True)
        body = await read_bounded(response, bounds or self._bounds)
        if isinstance(body, str):
            return self._error(FailureKind.ANSWER, f"its response {body}")
        kind = kind_of(body)
        if is_web_page(response.headers) and not kind:
            self._refresh_needed.set()
            return self._error(FailureKind.ANSWER, describe_web_page(body))
        if not bounds:
            body = await _for_session(request, body, kind)
        found = with_body(response, body, kind)
        return events_for_session(found, self._bounds, answers=True) if kind == EVENT_STREAM and not bounds else found

    def _note_session(self, request: httpx2.Request, response: httpx2.Response) -> None:
        if SESSION_HEADER in response.headers:
            self.session_headers = {SESSION_HEADER: response.headers[SESSION_HEADER]}
        if self.session_headers and VERSION_HEADER not in self.session_headers and VERSION_HEADER in request.headers:
            self.session_headers[VERSION_HEADER] = request.headers[VERSION_HEADER]

    def _redirect(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Return a redirect within the origin; any other is an error, which the SDK would also log at each attempt."""
        target = request.url.join(response.headers["location"])
        if same_origin(self._url, target):
            return self._without_secrets(response)
        return self._error(FailureKind.STATUS, f"Redirect to {bare_url(str(target))} {_NOT_FOLLOWED}")

    def _refusal(self, request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
        status, headers = response.status_code, response.headers
        rpc_error = _rpc_error(body)
        if self._is_session_gone(request, status, rpc_error):
            self._lose_session()
            return self._error(FailureKind.SESSION, _ENDED)
        # Bad credentials concern the whole server, whatever the body says.
        if rpc_error is not None and status != httpx2.codes.UNAUTHORIZED:
            return with_body(response, body, JSON)
        if status in _SERVER_STATUSES or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            self._refresh_needed.set()
        if self._one_endpoint:
            reason = describe_status(status, headers, body)
        else:
            reason = describe_endpoint_status(request.url.path, status, headers, body)
        return self._error(FailureKind.STATUS, without_token(request, reason), retry_after_s=retry_after_s(headers))

    def _is_session_gone(self, request: httpx2.Request, status: int, rpc_error: dict[str, Any] | None) -> bool:
        """Whether a status says so by itself; of any other refusal, `has_lost_session` finds out what it means."""
        in_session = SESSION_HEADER in request.headers if self._one_endpoint else self._is_delivered
        return in_session and status in _GONE and (rpc_error or {}).get("code") != METHOD_NOT_FOUND

    async def has_lost_session(self) -> bool:
        """Ask whether the server still knows the session, as what it said to a request suggests that it does not.

        A tool may have sessions of its own. What a server says to a `ping` is about this one.
        """
        async with self._checking:
            if self._has_lost_session or not self.session_headers:
                return self._has_lost_session
            request = httpx2.Request("POST", self._endpoint, headers=self._ping_headers(), json=_PING)
            with anyio.move_on_after(_PING_TIMEOUT_S):
                try:
                    response = await self._inner.handle_async_request(self._with_secrets(request))
                    body = await read_beginning(response, _ERROR_BOUNDS.bytes)
                except httpx2.TransportError:
                    return False
                if self._is_session_gone(request, response.status_code, _rpc_error(body)) or _blames_session(
                    response.status_code, body
                ):
                    self._lose_session()
            return self._has_lost_session

    def _ping_headers(self) -> dict[str, str]:
        return {**_PING_HEADERS, **self.session_headers, "user-agent": USER_AGENT}

    def _lose_session(self) -> None:
        self.session_headers, self._has_lost_session = {}, True
        self._closed.set(_ENDED, reconnect=True)

    def _error(self, kind: FailureKind, reason: str, *, retry_after_s: float = 0.0) -> httpx2.Response:
        data = {"mark": FAILURE_MARK, "kind": kind.name, "retry_after_s": retry_after_s}
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


async def _for_session(request: httpx2.Request, body: bytes, kind: str) -> bytes:
    """Return a whole body as the session reads it."""
    asked = parse_json(await request.aread()) if kind == JSON else {}
    return message_for_session(body, answers=True, request_id=asked.get("id")) or body if kind == JSON else body


def _rpc_error(body: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(body)
    except ValueError:
        return None
    error = value.get("error") if isinstance(value, dict) and "jsonrpc" in value else None
    return error if isinstance(error, dict) else None


def _blames_session(status: int, body: bytes) -> bool:
    """Whether the answer to a ping says that there is no such session."""
    return b"session" in body.lower() and (status >= httpx2.codes.BAD_REQUEST or b'"error"' in body)
