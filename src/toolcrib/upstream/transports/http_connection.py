"""A connection to an upstream server: HTTP/1.1 exchanges, one after the other.

A short JSON response, as most are, is read from its bytes once it is whole; any other one by the parser of
`httptools` or, where that is not installed, of `h11`.
"""

import asyncio
import math
import re
import select
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, Protocol, cast

import h11

from toolcrib.protocol.failures import ExchangeError, FailureKind

Headers = list[tuple[bytes, bytes]]

WHOLE_BYTES: Final = 64 * 1024
"""Longer bodies are passed on as they arrive."""
_JSON: Final = b"application/json"
_PLAIN_HEAD: Final = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9][0-9]) [\t -~]*\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*\r\n)+)\r\n"
)
"""The head of a response in which nothing is open to interpretation."""
_HEAD_END: Final = b"\r\n\r\n"
_SINGLE: Final = frozenset({b"content-length", b"content-type", b"connection"})
"""Headers of which a second one would make the first one doubtful."""
_BODILESS: Final = frozenset({204, 304})
_MAX_HEADS: Final = 256
_MAX_KEPT_BYTES: Final = 2048
"""Of a head that is remembered."""
_MAX_LENGTH_DIGITS: Final = 6
_KEPT_FOR: Final = re.compile(rb"(?:.*,)?[\t ]*timeout[\t ]*=[\t ]*([0-9]{1,9})[\t ]*(?:,.*)?", re.IGNORECASE)
"""A header `Keep-Alive` that says for how many seconds the server keeps the connection."""
_KEEP_ALIVE: Final = b"keep-alive"
_BUFFERED_BYTES: Final = 256 * 1024
"""Of a body that is read more slowly than it arrives, until the server has to wait."""
_HEAD_BYTES: Final = 64 * 1024
_FIRST_FINAL_STATUS: Final = 200
_POLL: Final = getattr(select, "poll", None)
"""None on Windows, where `select` has no limit that matters."""
UNANSWERED: Final = "the connection was closed without an answer"
_CLOSED: Final = "the connection was closed"
BROKEN: Final = "the connection broke off"
_CUT_OFF: Final = "its response was cut off"
NOT_HTTP: Final = "its response is not HTTP"


# -- parsing -----------------------------------------------------------------------------------------------------------


class ResponseParser(Protocol):
    """Parses the response to one request."""

    def feed_data(self, data: bytes) -> None:
        """Read the next part. Raises one of the errors that belong to the parser."""

    def get_status_code(self) -> int:
        """Return the status of the response whose head was read."""

    def should_keep_alive(self) -> bool:
        """Whether the connection can be used again after the response whose head was read."""


class H11Parser:
    """Parses as `httptools` does, for platforms where that is missing."""

    def __init__(self, events: "HttpConnection") -> None:
        self._events = events
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=WHOLE_BYTES)
        # It reads a response only after a request, of which nothing but the method matters.
        self._connection.send(h11.Request(method="POST", target="/", headers=[("host", "-"), ("content-length", "0")]))
        self._connection.send(h11.EndOfMessage())
        self._status = 0

    def feed_data(self, data: bytes) -> None:
        """Read the next part. Raises `h11.RemoteProtocolError`."""
        self._connection.receive_data(data)
        while (event := self._connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            self._take(event)
        is_over = self._connection.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
        if is_over and self._connection.trailing_data[0]:
            raise h11.RemoteProtocolError("there is something after the response")

    def _take(self, event: Any) -> None:
        if isinstance(event, h11.Response):
            self._status = event.status_code
            for name, value in event.headers:
                self._events.on_header(name, value)
            self._events.on_headers_complete()
        elif isinstance(event, h11.Data):
            self._events.on_body(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            self._events.on_message_complete()

    def get_status_code(self) -> int:
        return self._status

    def should_keep_alive(self) -> bool:
        return self._connection.our_state is not h11.MUST_CLOSE


if find_spec("httptools") is None:
    new_parser: Callable[["HttpConnection"], ResponseParser] = H11Parser
    PARSER_ERRORS: tuple[type[Exception], ...] = (h11.RemoteProtocolError,)
else:
    import httptools

    new_parser = httptools.HttpResponseParser
    PARSER_ERRORS = (httptools.HttpParserError, httptools.HttpParserUpgrade)


# -- short JSON responses ----------------------------------------------------------------------------------------------


class PlainHead(NamedTuple):
    """The head of a response that is a JSON message of known length, after which the connection stays open."""

    status: int
    headers: Headers
    names: frozenset[bytes]
    length: int
    kept_s: float


_heads: Final[dict[bytes, PlainHead]] = {}
"""Recent heads: a server repeats itself but for the time of day."""


def read_plain(data: bytes) -> tuple[PlainHead, bytes] | None:
    """Read a response with a short JSON message, of whose body a part may be missing; None for any other."""
    end = data.find(_HEAD_END) + len(_HEAD_END)
    raw = data[:end]
    head = _heads.get(raw)
    if head is None:
        head = _read_head(raw)
        if head is None:
            return None
        if len(raw) <= _MAX_KEPT_BYTES and b"set-cookie" not in head.names:
            if len(_heads) >= _MAX_HEADS:
                _heads.clear()
            _heads[raw] = head
    return (head, data[end:]) if len(data) <= end + head.length else None


def _read_head(raw: bytes) -> PlainHead | None:
    whole = _PLAIN_HEAD.fullmatch(raw)
    if whole is None or int(whole[1]) in _BODILESS:
        return None
    headers: Headers = []
    for line in whole[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip(b" \t")))
    found = dict(headers)
    length = found.get(b"content-length", b"")
    if sum(name in _SINGLE for name, _ in headers) != len(found.keys() & _SINGLE):
        return None
    if b"transfer-encoding" in found or found.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS or int(length) > WHOLE_BYTES:
        return None
    if not found.get(b"content-type", b"").lower().startswith(_JSON):
        return None
    return PlainHead(int(whole[1]), headers, frozenset(found), int(length), kept_s(found.get(_KEEP_ALIVE, b"")))


def kept_s(keep_alive: bytes) -> float:
    """For how long the header says that a server keeps a connection, in seconds; infinity if it does not.

    >>> kept_s(b"timeout=5, max=100"), kept_s(b"max=100")
    (5.0, inf)
    """
    found = _KEPT_FOR.fullmatch(keep_alive)
    return math.inf if found is None else float(found[1])


# -- connections -------------------------------------------------------------------------------------------------------


class ConnectionOwner(Protocol):
    """What keeps connections."""

    def added(self, connection: "HttpConnection") -> None:
        """Note a new connection."""

    def removed(self, connection: "HttpConnection") -> None:
        """Forget a connection that was closed."""

    def release(self, connection: "HttpConnection") -> None:
        """Take a connection back whose exchange has ended."""


class BodySource(Protocol):
    """Where the rest of a response comes from."""

    async def read(self) -> bytes | None:
        """Return the next part of the body; None at its end. Raises `ExchangeError`."""

    async def end_response(self) -> None:
        """Read no more of the response."""


class HttpResponse:
    """A response, and the stream of its body. To be closed."""

    def __init__(
        self,
        source: BodySource,
        status: int,
        headers: Headers,
        body: bytes | None,
        names: frozenset[bytes] | None = None,
    ) -> None:
        self._source = source
        self.names = frozenset(name for name, _ in headers) if names is None else names
        """Those of the headers."""
        self.status = status
        self.headers = headers
        """With names in lower case."""
        self.body = body
        """The whole body of a short JSON response; None if it has to be read from the stream."""
        self._is_closed = body is not None

    def header(self, name: bytes) -> str:
        """Return the first header of this name, which is in lower case; empty if there is none."""
        return next((value for key, value in self.headers if key == name), b"").decode("latin-1")

    @property
    def texts(self) -> dict[str, str]:
        """The headers as text."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self.headers)}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.body is not None:
            yield self.body
            return
        while (chunk := await self._source.read()) is not None:
            yield chunk

    async def aclose(self) -> None:
        """Return the connection to the pool, or close it if the body was not read to its end."""
        if not self._is_closed:  # by the second time, another exchange may have the connection
            self._is_closed = True
            await self._source.end_response()


class HttpConnection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._parser: ResponseParser
        """Made for a response that is not plain."""
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[HttpResponse] | None = None
        """Of the response; None once it is there."""
        self._reader: asyncio.Future[None] | None = None
        """Of the next part of a streamed body."""
        self._is_complete = True
        self._error: ExchangeError | None = None
        self._poll: Callable[[int], Sequence[Any]] | None = None
        """Whether there is something to read, given how long to wait for it; None where `select` has to say so."""
        self._loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        self.kept_s = math.inf
        """How long the server keeps the connection open between two requests, as far as it has said so."""
        self._reset()

    def _reset(self) -> None:
        """Forget what was parsed."""
        self._is_parsing = False
        self._held = b""
        """The beginning of a plain response: many servers send its head and its body separately."""
        self._headers: Headers = []
        self._head_bytes = 0
        self._parts: deque[bytes] = deque()
        self._buffered = 0
        self._has_head = self._has_length = self._is_json = self._is_streaming = self._is_paused = False
        self._keeps_alive = False

    def is_usable(self) -> bool:
        """Whether an idle connection is open, and has got nothing that no request asked for.

        The event loop may not have noticed the end yet, and a call that is sent then would be lost.
        """
        if self._transport is None or self._transport.is_closing():
            return False
        if self._poll is not None:
            return not self._poll(0)
        return not select.select([self._transport.get_extra_info("socket").fileno()], (), (), 0)[0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another base class
        if _POLL is not None:
            poll = _POLL()
            poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
            self._poll = poll.poll
        self._owner.added(self)

    async def send(self, request: bytes) -> HttpResponse:
        """Send a request. Raises `ExchangeError`.

        Closes the connection if it is cancelled.
        """
        if self._transport is None or self._error is not None:
            self.close()
            raise self._error or _lost(_CLOSED)
        self._is_complete = False
        waiter: asyncio.Future[HttpResponse] = self._loop.create_future()
        self._waiter = waiter
        self._transport.write(request)
        try:
            return await waiter
        except BaseException:
            if not _is_whole(waiter):  # after a whole response, another exchange may have the connection
                self.close()
            raise

    async def read(self) -> bytes | None:
        """Return the next part of a body; None at its end. Raises `ExchangeError`."""
        while not self._parts:
            if self._error is not None and not self._is_complete:
                raise self._error
            if self._is_complete:
                return None
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        chunk = self._parts.popleft()
        self._buffered -= len(chunk)
        if self._is_paused and self._buffered < _BUFFERED_BYTES and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    async def end_response(self) -> None:
        """Return a connection to the pool whose response has arrived whole; close it otherwise."""
        if self._is_complete and self._is_open():
            self._release()
        else:
            self.close()

    def close(self) -> None:
        """Close at once; what waits for it fails."""
        self._fail(_lost(_CLOSED))
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        reads_to_end = self._has_head and not self._has_length and not self._is_complete
        if exc is None and reads_to_end:
            self.on_message_complete()
        elif exc is None and not self._is_complete and (self._has_head or self._held):
            self._fail(_lost(_CUT_OFF))
        else:
            self._fail(_lost(UNANSWERED if exc is None else BROKEN))
        self._transport = None
        self._error = self._error or _lost(_CLOSED)
        self._owner.removed(self)

    def data_received(self, data: bytes) -> None:
        if self._is_complete:
            self.close()  # the server speaks out of turn
            return
        if not self._is_parsing:
            plain = read_plain(data := self._held + data)
            if plain is not None:
                head, body = plain
                self._held = b"" if len(body) == head.length else data
                if not self._held:
                    self._take_plain(head, body)
                return
            self._held = b""
            self._is_parsing = True
            self._parser = new_parser(self)
        try:
            self._parser.feed_data(data)
        except PARSER_ERRORS:
            self._fail(_lost(NOT_HTTP))
            self.close()
            return
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self._fail(_lost("the head of its response is too large"))
                self.close()
        elif self._is_read():
            # Only now: a message that is followed by more bytes has failed to parse.
            self._release()

    def _take_plain(self, head: PlainHead, body: bytes) -> None:
        self._is_complete = True
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            self.close()  # it came too late, and its exchange is about to do the same
            return
        waiter.set_result(HttpResponse(self, head.status, head.headers, body, head.names))
        self.kept_s = head.kept_s
        self.idle_since = self._loop.time()
        self._owner.release(self)

    def _is_read(self) -> bool:
        """Whether a response has arrived whole, and was not passed on as a stream."""
        return self._is_complete and not self._is_streaming and self._is_open()

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # -- called by the parser ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        if self._has_head:  # a trailer, of which there may be any number, or the beginning of a second response
            self._keeps_alive = self._keeps_alive and not self._is_complete
            return
        name, value = name.lower(), value.rstrip(b" \t")
        self._headers.append((name, value))
        if name == b"content-type":
            self._is_json = value.lower().startswith(_JSON)
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif name == _KEEP_ALIVE:
            self.kept_s = kept_s(value)

    def on_headers_complete(self) -> None:
        """Return the response, unless its body is worth waiting for."""
        if self._parser.get_status_code() < _FIRST_FINAL_STATUS:
            return
        self._has_head = True
        self._keeps_alive = bool(self._parser.should_keep_alive())
        if not self._is_json:
            self._respond_with_stream()

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(data)
        self._buffered += len(data)
        if self._is_streaming:
            self._wake_reader()
            if self._buffered > _BUFFERED_BYTES and not self._is_paused and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        elif self._buffered > WHOLE_BYTES:
            self._respond_with_stream()

    def on_message_complete(self) -> None:
        """Return a short response, or end the stream of another."""
        if not self._has_head:  # an interim response, such as 103
            self._headers = []
            self._is_json = self._has_length = False
            return
        if self._is_complete:
            self._fail(_lost("it sent a second response"))
            return
        self._is_complete = True
        if self._is_streaming:
            self._wake_reader()
            return
        body = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._respond(body)

    def _respond_with_stream(self) -> None:
        self._is_streaming = True
        self._respond(None)

    def _respond(self, body: bytes | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            self._keeps_alive = False  # it came too late, and its exchange is about to close the connection
        else:
            waiter.set_result(HttpResponse(self, self._parser.get_status_code(), self._headers, body))

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _fail(self, error: ExchangeError) -> None:
        self._error = self._error or error
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        self._wake_reader()

    def _release(self) -> None:
        if self._keeps_alive and self._error is None:
            self._reset()
            self.idle_since = self._loop.time()
            self._owner.release(self)
        else:
            self.close()


def _is_whole(waiter: "asyncio.Future[HttpResponse]") -> bool:
    """Whether a response has come whole, so that its connection was given back."""
    is_there = waiter.done() and not waiter.cancelled() and waiter.exception() is None
    return is_there and waiter.result().body is not None


def _lost(reason: str) -> ExchangeError:
    """Return the error for an exchange of which it is not known whether its request ran."""
    return ExchangeError(FailureKind.LOST, reason)
