"""One HTTP request and the way back to its client, whichever server received it.

An MCP endpoint answers `HttpRequest`s. `AsgiRequest` is that of an ASGI server; a request that this process has read
from the bytes of a connection is a `reader.PlainRequest`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toolcrib.errors import InvalidRequest
from toolcrib.protocol.failures import CONNECTION_CLOSED, RpcError
from toolcrib.protocol.headers import SESSION_HEADER, RoutingHeaders, repeated_header
from toolcrib.protocol.messages import encode_error
from toolcrib.protocol.versions import HANDSHAKE_VERSIONS
from toolcrib.providers.request_scope import SHOW_ALL_HEADER, SHOW_ALL_PARAMETER, show_all_from_request
from toolcrib.server.auth.authentication import CALLER_KEY, Identity, sdk_caller, sdk_credential
from toolcrib.server.exchange import HttpHead
from toolcrib.server.http.errors import body_too_large, error_response
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.stopping import SHUTTING_DOWN
from toolcrib.types import LOCAL, Caller
from toolcrib.upstream.transports.bounds import Meter

_T = TypeVar("_T")

PROVIDERS_KEY: Final = "toolcrib.providers"
"""ASGI scope key: a tuple of providers that come with this request."""
OVERRIDING_KEY: Final = "toolcrib.overriding"
"""ASGI scope key: the same for providers that take precedence over shared ones."""

Owner = tuple[str | None, str | None, str]
"""Whose use is counted: the key of a caller, or an address."""
Lines = tuple[tuple[bytes, bytes], ...]
"""Headers, their names in lower case."""
_JSON: Final = "application/json"
_EVENT_STREAM: Final = "text/event-stream"
JSON_LINE: Final = (b"content-type", _JSON.encode())
_STREAM_LINES: Final = (
    (b"content-type", _EVENT_STREAM.encode()),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_WATCH_AFTER_S: Final = 0.1
"""How long a call runs, in seconds, before it is worth a task that watches for its client's disconnect."""
_RESTART_S: Final = 5
"""When a client that is turned away by the shutdown may find the server again."""
LISTEN_METHOD: Final = "subscriptions/listen"
_LENGTH_DIGITS: Final = 18
"""Of a length; one with more is too large anyway, and takes long to be read."""
_NO_JSON: Final = InvalidRequest("The request does not declare a JSON body.", hint=f"Send Content-Type: {_JSON}.")
_NOT_ACCEPTED: Final = InvalidRequest(
    "The Accept header allows no response format of this server.", hint=f"Send Accept: {_JSON}, {_EVENT_STREAM}."
)
_NO_METHOD: Final = InvalidRequest("This address does not support that HTTP method.", hint="Send MCP requests by POST.")


class Answer(NamedTuple):
    """A whole response."""

    status: int
    body: bytes = b""
    lines: Lines = (JSON_LINE,)
    """Its headers but the length."""

    @classmethod
    def of(cls, response: Response) -> "Answer":
        """The answer that a response of Starlette is."""
        lines = tuple(line for line in response.raw_headers if line[0] != b"content-length")
        return cls(response.status_code, bytes(response.body), lines)


ACCEPTED: Final = Answer(202)
NOT_ACCEPTED: Final = Answer.of(error_response(406, _NOT_ACCEPTED))
SHUTDOWN_ANSWER: Final = Answer(
    503,
    encode_error(None, RpcError(CONNECTION_CLOSED, SHUTTING_DOWN)),
    (JSON_LINE, (b"retry-after", b"%d" % _RESTART_S)),
)
_NOT_DECLARED: Final = Answer.of(error_response(400, _NO_JSON))


class RefusedError(Exception):
    """A request of which nothing is run."""

    def __init__(self, answer: Answer | None) -> None:
        super().__init__()
        self.answer = answer
        """What the client gets; None if it has left."""


class Head:
    """What the head of a request says, read once for all requests with the same one."""

    __slots__ = (
        "body_bytes",
        "closes",
        "headers",
        "http",
        "is_allowed",
        "is_older",
        "length",
        "listens",
        "method",
        "problem",
        "repeated",
        "routing",
        "scope",
        "session_id",
        "size",
        "takes_events",
    )

    def __init__(self, scope: Scope, size: int = 0, body_bytes: int = 0) -> None:
        """`size` is that of its bytes, and `body_bytes` that of the body, where they were read here."""
        pairs: Lines = scope["headers"]
        headers = read_headers(pairs)
        routing = RoutingHeaders.of(headers)
        takes_json, takes_events = _accepted(headers.get("accept", ""))
        self.scope = scope
        """As ASGI has it."""
        self.size = size
        self.body_bytes = body_bytes
        self.method: str = scope["method"]
        self.headers = headers
        """By lower-case name. Of one that comes twice, the first line counts."""
        self.length = read_length(headers.get("content-length", ""))
        """The length of the body that it declares, in bytes; None for one of unknown length."""
        self.closes = any(name == b"connection" and value.lower() == b"close" for name, value in pairs)
        """Whether it asks for an end of the connection."""
        self.is_older = routing.version is None or routing.version in HANDSHAKE_VERSIONS
        """Whether it belongs to a session, or opens one."""
        self.routing = routing
        self.repeated = repeated_header((name.decode("latin-1"), "") for name, _ in pairs)
        """A header that must not come twice and does."""
        self.session_id = headers.get(SESSION_HEADER)
        self.listens = self.method == "GET" or routing.method == LISTEN_METHOD
        """Whether the response is a stream that does not end by itself."""
        self.takes_events = takes_events
        is_json = headers.get("content-type", "").lower().startswith(_JSON)
        self.problem = (None if takes_json else NOT_ACCEPTED) if is_json else _NOT_DECLARED
        """Why a POST cannot be answered; None if it can."""
        self.is_allowed = False
        """Whether the app's guard lets such requests pass, at least those of this machine."""
        self.http: dict[bool, HttpHead] = {}
        """The same for those who answer the request, by whether its credential is toolcrib's own."""


class HttpRequest(ABC):
    """A request whose head has been read, what is known of its sender, and what its client gets for it."""

    head: Head
    headers: dict[str, str]
    """Those of the head."""
    body: bytes | None = None
    """The whole body, if it has come already."""
    client: tuple[str, int] | None = None
    """The other end of the connection; None for a socket in the file system."""
    identity: Identity | None = None
    """Who has sent it, once that is known; None if nothing authenticates senders."""
    caller: Caller = LOCAL
    lacking: set[str] | None = None
    """Takes the scopes that it lacks, if its client can get them."""
    replica = ""
    """The id of this process, if others may serve the same address."""
    owner: Owner = (None, None, "")
    """Whose use it counts as."""
    counted_bytes = 0
    """Of its body."""
    is_counted_stream = False
    has_begun = False
    """Whether a part of the response has been sent."""

    @cached_property
    def scope(self) -> Scope:
        """As ASGI has it."""
        return self.head.scope

    @property
    def http(self) -> HttpHead:
        """What its head says to those who answer it."""
        is_own = self.identity is not None and self.identity.is_own
        known = self.head.http.get(is_own)
        if known is None or self.lacking is not None:
            known = http_head(self.scope, is_own=is_own, replica=self.replica, lacking=self.lacking)
            if self.lacking is None:
                self.head.http[is_own] = known
        return known

    @property
    def credential(self) -> object:
        """What alone may use a session that it opens; None where nothing authenticates callers."""
        is_named = self.identity is not None or self.head.scope.get(CALLER_KEY) is not None
        return self.caller.key if is_named else sdk_credential(self.head.scope)

    @abstractmethod
    async def read_part(self) -> tuple[bytes, bool] | None:
        """The next part of the body, and whether more follows; None if the client has left."""

    @abstractmethod
    async def respond(self, answer: Answer) -> None:
        """Send a whole response, or its body as the last event if a stream of events has begun."""

    @abstractmethod
    async def start(self, status: int, lines: Lines) -> None:
        """Begin a response whose body comes in parts."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send a part of it, once the client has read most of what came before."""

    @abstractmethod
    async def end(self) -> None:
        """End it."""

    @abstractmethod
    async def until_left(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Await the work, which is cancelled when the client disconnects; None if that happens."""

    async def start_events(self, lines: Lines = ()) -> None:
        """Begin a response that is a stream of events."""
        await self.start(200, (*_STREAM_LINES, *lines))

    async def send_event(self, data: bytes) -> None:
        """Send a JSON-RPC message on the stream."""
        await self.write(b"event: message\r\ndata: %b\r\n\r\n" % data)


def read_headers(lines: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers of a request by lower-case name. Of one that comes twice, the first line counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(tuple(lines))}


def read_length(value: str) -> int | None:
    """The length that a head declares, in bytes; None if that is no number.

    >>> read_length("007"), read_length("9" * 5_000) == 10**18 - 1, read_length("-7")
    (7, True, None)
    """
    is_number = value.isascii() and value.isdigit()
    return int(value.lstrip("0")[:_LENGTH_DIGITS] or "0") if is_number else None


async def read_body(request: HttpRequest, options: HttpOptions, count: Callable[[HttpRequest, int], None]) -> bytes:
    """The body. `count` gets the size of each part. Raises `RefusedError`.

    A parser cannot be interrupted, so what holds too many values must not reach it.
    """
    if request.head.length is not None and request.head.length > options.max_body_bytes:
        raise RefusedError(Answer.of(error_response(413, body_too_large(options))))
    parts, meter = list[bytes](), Meter()
    while (found := await request.read_part()) is not None:
        part, more = found
        count(request, len(part))
        parts.append(part)
        meter.add(part)
        if meter.size > options.max_body_bytes or meter.nodes > options.max_body_nodes:
            raise RefusedError(Answer.of(error_response(413, body_too_large(options, meter.size))))
        if not more:
            return b"".join(parts)
    raise RefusedError(None)


def method_not_allowed(*allowed: str) -> Answer:
    """The answer to a request with another HTTP method."""
    return Answer.of(error_response(405, _NO_METHOD, headers={"Allow": ", ".join(allowed)}))


@lru_cache(maxsize=64)
def _accepted(accept: str) -> tuple[bool, bool]:
    """Whether an `Accept` header allows JSON, and a stream of events.

    >>> _accepted("application/json;q=0.9, text/*"), _accepted("text/event-stream"), _accepted("text/html")
    ((True, True), (False, True), (False, False))
    """
    types = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return not types.isdisjoint({"*/*", "application/*", _JSON}), not types.isdisjoint({"*/*", "text/*", _EVENT_STREAM})


def http_head(scope: Scope, *, is_own: bool = False, replica: str = "", lacking: set[str] | None = None) -> HttpHead:
    """What the scope of an ASGI request says; `is_own` if its credential is one that only this server knows."""
    # Of a header that comes twice, the first one counts.
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
    return HttpHead(
        headers=headers,
        show_all=_asked_to_show_all(scope, headers),
        token="" if is_own else _bearer_token(headers),
        providers=tuple(scope.get(PROVIDERS_KEY, ())),
        overriding=tuple(scope.get(OVERRIDING_KEY, ())),
        replica=replica,
        lacking=lacking,
    )


def _asked_to_show_all(scope: Scope, headers: Mapping[str, str]) -> bool | None:
    """Whether header or query ask to list every tool; None if they say nothing about it."""
    says = SHOW_ALL_HEADER in headers or SHOW_ALL_PARAMETER.encode() in scope.get("query_string", b"")
    return show_all_from_request(scope) if says else None


def _bearer_token(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def request_caller(scope: Scope | None) -> Caller:
    """The caller that toolcrib's authentication found, else the surrounding server's; `LOCAL` without either.

    Without a scope, the surrounding server's is that of the current task.
    """
    caller: Caller | None = scope.get(CALLER_KEY) if scope is not None else None
    return caller or sdk_caller(scope) or LOCAL


# -- requests of ASGI servers ----------------------------------------------------------------------------------------


class AsgiRequest(HttpRequest):
    """A request as an ASGI server passes it on."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.head = Head(scope)
        self.headers = self.head.headers
        self.body = None if self.head.method == "POST" else b""
        self.client = scope.get("client")
        self.caller = request_caller(scope)

    async def read_part(self) -> tuple[bytes, bool] | None:
        """The next part of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            return None
        return message.get("body", b""), bool(message.get("more_body"))

    async def respond(self, answer: Answer) -> None:
        """Send a whole response, or its body as the last event if a stream of events has begun."""
        if self.has_begun:
            await self.send_event(answer.body)
            await self.end()
            return
        length = (b"content-length", b"%d" % len(answer.body))
        await self.start(answer.status, (*answer.lines, length))
        await self._send({"type": "http.response.body", "body": answer.body})

    async def start(self, status: int, lines: Lines) -> None:
        """Begin a response whose body comes in parts."""
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(lines)})

    async def write(self, data: bytes) -> None:
        """Send a part of it."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End it."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def until_left(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Await the work, which is cancelled when the client disconnects; the whole body must have been read."""
        with anyio.CancelScope() as scope:
            watch = _DisconnectWatch(scope, self._receive)
            try:
                return await work
            finally:
                watch.end()
        return None


class _DisconnectWatch:
    """Cancels a request when its client disconnects. Watches only requests that take a while."""

    __slots__ = ("_receive", "_scope", "_task", "_timer")

    def __init__(self, scope: anyio.CancelScope, receive: Callable[[], Awaitable[Any]]) -> None:
        self._scope = scope
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_WATCH_AFTER_S, self._start)

    def end(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._scope.cancel()
