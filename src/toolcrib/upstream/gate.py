"""The last step of each HTTP request to one server.

What is secret (headers, user, password, query) is added here, below everything that logs. Every failure becomes an
answer to the one request that it hit: a transport error would otherwise end the session of all of them.
"""

import base64
import re
import secrets
from typing import Any, Final
from urllib.parse import unquote

import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND
from pydantic_core import from_json

from toolcrib.upstream import reasons
from toolcrib.upstream.exchange import ExchangeError, Kind
from toolcrib.upstream.lines import readable
from toolcrib.upstream.link import Bell, End
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor

SESSION_HEADER: Final = "mcp-session-id"
VERSION_HEADER: Final = "mcp-protocol-version"
_SHOW_ALL: Final = {b"x-mcp-show-all": b"true"}
"""Has a server that hides tools list them all."""
_MARK: Final = secrets.token_hex(8)
"""Tells our own error answers from those of a server, which cannot know it."""
_NOT_OURS: Final = frozenset({"accept", "connection", "content-length", "content-type", "transfer-encoding"})
"""Headers that belong to the protocol, whatever the options say."""
_TROUBLE: Final = frozenset({401, 403, 404, 405, 410})
"""Statuses that speak of the server as a whole, not of one request; so do those from 500 on."""
_NOTICE: Final = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2.0"\s*,\s*"method"')
"""How a message without id begins; one with an id has it before the method."""
_ERROR_BODY_BYTES: Final = 65536
_UNSENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)


def marked(error: MCPError) -> ExchangeError | None:
    """The failure that a gate made this error of, or None for an error of the server's own."""
    data = error.data
    if isinstance(data, dict) and data.get("mark") == _MARK:
        return ExchangeError(Kind[data["kind"]], error.message)
    return None


class Gate(httpx2.AsyncBaseTransport):
    """Passes requests on to another transport."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        options: ServerOptions,
        fleet: FleetOptions,
        redact: Redactor,
        end: End,
        doubt: Bell,
    ) -> None:
        """`end` comes when the server forgets the session; `doubt` rings when it may be in trouble."""
        self._inner = inner
        self._url = httpx2.URL(options.url)
        self._query = self._url.query
        self._headers = {**_secret_headers(options, self._url), **(_SHOW_ALL if options.show_all else {})}
        self._one_endpoint = options.transport == "http"
        self._limit = options.max_message_bytes
        self._notice_timeout_s = fleet.http_notice_timeout_s
        self._redact = redact
        self._end = end
        self._doubt = doubt
        self._streamed = False
        self.plain = False
        """Whether its last answer was one JSON message, not a stream."""
        self.session_headers: dict[str, str] = {}
        """What names the session to the server; empty where there is none."""

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The server's answer to a POST, or an error answer in its place. Raises only for other methods."""
        if request.method == "POST" and _NOTICE.match(await request.aread()):
            # The SDK sends these one after the other, and nothing else meanwhile.
            patience = {**request.extensions.get("timeout", {}), "read": self._notice_timeout_s}
            request.extensions = {**request.extensions, "timeout": patience}
        try:
            response = await self._inner.handle_async_request(self._dressed(request))
            if request.method != "POST":
                return self._noted(request, response)
            return await self._answer(request, response)
        except httpx2.TransportError as error:
            self._doubt.ring()
            if request.method != "POST":
                raise
            kind = Kind.UNSENT if isinstance(error, _UNSENT) else Kind.LOST
            return self._error(kind, reasons.of_error(error))

    def _dressed(self, request: httpx2.Request) -> httpx2.Request:
        """A copy with the secrets, for the configured origin alone."""
        url = request.url
        if not (self._headers or self._query) or not _same_origin(self._url, url):
            return request
        if self._query and not url.query and (self._one_endpoint or url.path == self._url.path):
            url = url.copy_with(query=self._query)
        headers = [pair for pair in request.headers.raw if pair[0].lower() not in self._headers]
        headers += self._headers.items()
        return httpx2.Request(
            request.method, url, headers=headers, stream=request.stream, extensions=request.extensions
        )

    def _undressed(self, response: httpx2.Response) -> httpx2.Response:
        """Without the secrets in a redirect that repeats them; they are added again on the way out."""
        location = response.headers.get("location")
        if location is not None and self._query:
            response.headers["location"] = location.removesuffix(f"?{self._query.decode()}")
        return response

    def _noted(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Learn from a stream of server messages: one that was open and is unknown now tells that the session is."""
        if request.method == "GET" and response.status_code == httpx2.codes.OK:
            self._streamed = True
        elif request.method == "GET" and response.status_code == httpx2.codes.NOT_FOUND and self._streamed:
            self._session_lost()
        return self._undressed(response)

    async def _answer(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        if response.status_code >= httpx2.codes.BAD_REQUEST:
            body = await _read(response, _ERROR_BODY_BYTES)
            return self._refusal(request, response, body or b"")
        if SESSION_HEADER in response.headers:
            self.session_headers = {SESSION_HEADER: response.headers[SESSION_HEADER]}
        if self.session_headers and VERSION_HEADER in request.headers:
            self.session_headers[VERSION_HEADER] = request.headers[VERSION_HEADER]
        self.plain = response.headers.get("content-type", "").lower().startswith("application/json")
        if not self.plain:
            return self._undressed(response)
        body = await _read(response, self._limit)
        if body is None:
            return self._error(Kind.ANSWER, f"its answer is larger than {self._limit:,} bytes and was dropped")
        return _whole(response, readable(body))

    def _refusal(self, request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
        status = response.status_code
        rpc_error = _rpc_error(body)
        if SESSION_HEADER in request.headers and _tells_session_lost(status, rpc_error):
            self._session_lost()
            return self._error(Kind.SESSION, "its session has ended")
        # Who is unknown is unknown to all of the server, however the refusal is worded.
        if rpc_error is not None and status != httpx2.codes.UNAUTHORIZED:
            return _whole(response, body)
        if status in _TROUBLE or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            self._doubt.ring()
        return self._error(Kind.STATUS, reasons.of_status(status, response.headers, body))

    def _session_lost(self) -> None:
        self.session_headers = {}
        self._end.come("its session has ended", reopen=True)

    def _error(self, kind: Kind, reason: str) -> httpx2.Response:
        data = {"mark": _MARK, "kind": kind.name}
        error = {"code": CONNECTION_CLOSED, "message": self._redact(reason), "data": data}
        return httpx2.Response(httpx2.codes.BAD_GATEWAY, json={"jsonrpc": "2.0", "id": None, "error": error})


def _same_origin(url: httpx2.URL, other: httpx2.URL) -> bool:
    """Whether both lead to one server; https in place of http on the usual ports counts."""
    upgraded = (url.scheme, url.port, other.scheme, other.port) == ("http", None, "https", None)
    return url.host == other.host and (upgraded or (url.scheme, url.port) == (other.scheme, other.port))


def _secret_headers(options: ServerOptions, url: httpx2.URL) -> dict[bytes, bytes]:
    """By lower-case name, encoded as HTTP wants them."""
    headers = {}
    if url.userinfo:
        pair = f"{unquote(url.username)}:{unquote(url.password)}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    for name, value in options.headers.items():
        if name.lower() not in _NOT_OURS and not name.lower().startswith("mcp-"):
            headers[name.lower()] = value
    return dict(httpx2.Headers(headers).raw)


async def _read(response: httpx2.Response, limit: int) -> bytes | None:
    """The whole body, decoded; None where it is larger than the limit."""
    stream = response.stream
    if not isinstance(stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport answers with an asynchronous stream")
    # The bare stream where it will do: the way through the response costs more than all the rest of a gate.
    chunks = response.aiter_bytes() if "content-encoding" in response.headers else stream
    parts, size = [], 0
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                return None
            parts.append(chunk)
    finally:
        await stream.aclose()
    return b"".join(parts)


def _whole(response: httpx2.Response, body: bytes) -> httpx2.Response:
    """The response, with the body that was read from it."""
    if "content-encoding" not in response.headers:
        response.stream = httpx2.ByteStream(body)
        return response
    headers = response.headers.copy()
    for name in ("content-encoding", "content-length", "transfer-encoding"):
        headers.pop(name, None)
    return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)


def _rpc_error(body: bytes) -> dict[str, Any] | None:
    try:
        value = from_json(body)
    except ValueError:
        return None
    error = value.get("error") if isinstance(value, dict) and "jsonrpc" in value else None
    return error if isinstance(error, dict) else None


def _tells_session_lost(status: int, error: dict[str, Any] | None) -> bool:
    """404 by the specification; 400 that speaks of the session by many servers in the wild."""
    if status == httpx2.codes.NOT_FOUND:
        return error is None or error.get("code") != METHOD_NOT_FOUND
    return status == httpx2.codes.BAD_REQUEST and error is not None and "session" in str(error.get("message")).lower()
