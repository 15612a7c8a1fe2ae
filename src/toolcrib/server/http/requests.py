"""One HTTP request and the way back to its client, whichever server received it.

An MCP endpoint answers `HttpRequest`s. `AsgiRequest` is that of an ASGI server; a request that this process has read
from the bytes of a connection is a `reader.PlainRequest`.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toolcrib.errors import InvalidRequest
from toolcrib.protocol.headers import METHOD_HEADER, SESSION_HEADER, VERSION_HEADER, repeated_header
from toolcrib.protocol.versions import HANDSHAKE_VERSIONS
from toolcrib.server.exchange import HttpHead, http_head
from toolcrib.server.http.errors import body_too_large, error_response
from toolcrib.server.options import HttpOptions
from toolcrib.types import LOCAL, Caller
from toolcrib.upstream.transports.bounds import Meter

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


ACCEPTED: Final = Answer(HTTPStatus.ACCEPTED)
NOT_ACCEPTED: Final = Answer.of(error_response(406, _NOT_ACCEPTED))


class HttpRequest(ABC):
    """A request whose head has been read, and what its client gets for it."""

    scope: Scope
    """As ASGI has it; what is learned of the request later goes into a copy."""
    memo: dict[Any, Any]
    """What follows from the head alone; shared by requests with the same one."""
    own_head: bool | None = None
    """Whether its credential is toolcrib's own; None if more than that and the head decides what is known of it."""
    caller: Caller = LOCAL
    """Who has sent it, once that is known."""
    has_begun = False
    """Whether a part of the response has been sent."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return str(self.scope["method"])

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers, by lower-case name. Of one that comes twice, the first line counts."""
        return read_headers(self.scope["headers"])

    @cached_property
    def length(self) -> int | None:
        """The length of the body that the head declares, in bytes; None for one of unknown length."""
        return read_length(next((value for name, value in self.scope["headers"] if name == b"content-length"), b""))

    @abstractmethod
    async def read_part(self) -> tuple[bytes, bool] | None:
        """The next part of the body, and whether more follows; None if the client has left."""

    @abstractmethod
    async def respond(self, answer: Answer) -> None:
        """Send a whole response."""

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
    def ending_with_client(self) -> contextlib.AbstractContextManager[None]:
        """Cancel what is done inside when the client disconnects."""

    async def finish(self, answer: Answer) -> None:
        """Send a whole response, or its body as the last event if a stream of events has begun."""
        if self.has_begun:
            await self.send_event(answer.body)
            await self.end()
        else:
            await self.respond(answer)

    async def start_events(self, lines: Lines = ()) -> None:
        """Begin a response that is a stream of events."""
        await self.start(200, (*_STREAM_LINES, *lines))

    async def send_event(self, data: bytes) -> None:
        """Send a JSON-RPC message on the stream."""
        await self.write(b"event: message\r\ndata: %b\r\n\r\n" % data)


def read_headers(lines: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers of a request by lower-case name. Of one that comes twice, the first line counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(tuple(lines))}


def read_length(value: bytes) -> int | None:
    """The length that a head declares, in bytes; None if that is no number.

    >>> read_length(b"007"), read_length(b"9" * 5_000) == 10**18 - 1, read_length(b"-7")
    (7, True, None)
    """
    return int(value.lstrip(b"0")[:_LENGTH_DIGITS] or b"0") if value.isdigit() else None


async def read_body(request: HttpRequest, options: HttpOptions, count: Callable[[int], None]) -> bytes | Answer | None:
    """The body; None if the client left first, and an answer if the body is too large. `count` gets each part's size.

    A parser cannot be interrupted, so what holds too many values must not reach it.
    """
    if request.length is not None and request.length > options.max_body_bytes:
        return Answer.of(error_response(413, body_too_large(options)))
    parts, meter = list[bytes](), None
    while (found := await request.read_part()) is not None:
        part, more = found
        count(len(part))
        if meter is None:
            if not more and len(part) <= options.max_body_bytes and len(part) <= options.max_body_nodes:
                return part  # it cannot hold too many values
            meter = Meter()
        parts.append(part)
        meter.add(part)
        if meter.size > options.max_body_bytes or meter.nodes > options.max_body_nodes:
            return Answer.of(error_response(413, body_too_large(options, meter.size)))
        if not more:
            return b"".join(parts)
    return None


# -- heads -----------------------------------------------------------------------------------------------------------


class HeadFacts(NamedTuple):
    """What decides, of the head of a request, how it is answered."""

    is_older: bool
    """Whether it belongs to a session, or opens one."""
    takes_json: bool
    takes_events: bool
    is_json: bool
    session_id: str | None
    listens: bool
    """Whether the response is a stream that does not end by itself."""
    repeated: str | None
    """A header that must not come twice and does."""

    @property
    def problem(self) -> Answer | None:
        """Why a POST cannot be answered; None if it can."""
        if not self.is_json:
            return Answer.of(error_response(400, _NO_JSON))
        return None if self.takes_json else NOT_ACCEPTED


def method_not_allowed(*allowed: str) -> Answer:
    """The answer to a request with another HTTP method."""
    return Answer.of(error_response(405, _NO_METHOD, headers={"Allow": ", ".join(allowed)}))


def read_head(request: HttpRequest) -> HeadFacts:
    """Read the head of a request."""
    known: HeadFacts | None = request.memo.get("facts")
    if known is None:
        headers = request.headers
        version, (takes_json, takes_events) = headers.get(VERSION_HEADER), _accepted(headers.get("accept", ""))
        known = request.memo["facts"] = HeadFacts(
            is_older=version is None or version in HANDSHAKE_VERSIONS,
            takes_json=takes_json,
            takes_events=takes_events,
            is_json=headers.get("content-type", "").lower().startswith(_JSON),
            session_id=headers.get(SESSION_HEADER),
            listens=request.method == "GET" or headers.get(METHOD_HEADER) == LISTEN_METHOD,
            repeated=repeated_header((name.decode("latin-1"), "") for name, _ in request.scope["headers"]),
        )
    return known


@lru_cache(maxsize=64)
def _accepted(accept: str) -> tuple[bool, bool]:
    """Whether an `Accept` header allows JSON, and a stream of events.

    >>> _accepted("application/json;q=0.9, text/*"), _accepted("text/event-stream"), _accepted("text/html")
    ((True, True), (False, True), (False, False))
    """
    types = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return not types.isdisjoint({"*/*", "application/*", _JSON}), not types.isdisjoint({"*/*", "text/*", _EVENT_STREAM})


def head_of(request: HttpRequest) -> HttpHead:
    """What the head of a request says to those who answer it."""
    if request.own_head is not None:
        known: HttpHead | None = request.memo.get(request.own_head)
        if known is None:
            known = request.memo[request.own_head] = http_head(request.scope)
        return known
    return http_head(request.scope)


# -- requests of ASGI servers ----------------------------------------------------------------------------------------


class AsgiRequest(HttpRequest):
    """A request as an ASGI server passes it on."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.memo = {}
        self._receive = receive
        self._send = send

    async def read_part(self) -> tuple[bytes, bool] | None:
        """The next part of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            return None
        return message.get("body", b""), bool(message.get("more_body"))

    async def respond(self, answer: Answer) -> None:
        """Send a whole response."""
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

    @contextlib.contextmanager
    def ending_with_client(self) -> Iterator[None]:
        """Cancel what is done inside when the client disconnects; the whole body must have been read."""
        with anyio.CancelScope() as scope:
            watch = _DisconnectWatch(scope, self._receive)
            try:
                yield
            finally:
                watch.end()


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
