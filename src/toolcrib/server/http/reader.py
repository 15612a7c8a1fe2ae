"""Reads MCP requests from the bytes of a connection, and writes their answers.

A client usually sends a POST as one piece or two, whose head leaves nothing open, and waits for the answer. Such
requests are read here, one after the other. What begins with anything else is handed over to the strict parser, with
the whole connection, and stays there: nothing is parsed by two parsers that may disagree.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from starlette.types import Scope

from toolcrib.server.http.connections import Connection, Reader
from toolcrib.server.http.requests import JSON_LINE, SHUTDOWN_ANSWER, Answer, Head, HttpRequest, Lines

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_POST: Final = b"POST "
_HEAD_END: Final = b"\r\n\r\n"
_SPLIT_END_BYTES: Final = 3
"""The most of the end of a head that may have come before the rest of it."""
_MAX_HEADS: Final = 1024
_MAX_KEPT_HEAD_BYTES: Final = 4096
"""Of a head that is remembered."""
_SMALL_BODY_BYTES: Final = 16 * 1024
"""A body up to this size is awaited before its request is looked at, as it is usually sent right after its head."""
_MAX_BUFFERED_BYTES: Final = 64 * 1024
"""Of a larger body, how much is read before something asks for it."""
_MAX_JOINED_BYTES: Final = 64 * 1024
"""Of an answer that is written together with its head."""
_JSON_LINES: Final = b"%b: %b\r\n" % JSON_LINE
_CLOSING: Final = b"connection: close\r\n"
_HEAD: Final = re.compile(
    rb"(?:GET|POST|PUT|PATCH|DELETE|OPTIONS|HEAD) /(?!/)[!\"$-~]* HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*\r\n)*\r\n"
)
_FRAMING: Final = re.compile(
    rb"\n(content-length|host|transfer-encoding|(?:proxy-)?connection|upgrade|expect):[\t ]*([^\r]*)", re.IGNORECASE
)
"""The headers that say where a request ends, whose it is, or that its connection is to become another one."""
_BLANK_LINES: Final = re.compile(rb"(?:\r\n)+")
_ANY_HEAD_END: Final = re.compile(rb"\n\r?\n")
_PLAIN_CONNECTIONS: Final = (b"keep-alive", b"close")
_MAX_LENGTH_DIGITS: Final = 15


class Running(Protocol):
    """A POST that is being answered, in a task of its own."""

    task: "asyncio.Task[None] | None"
    is_refused: bool
    """Whether the shutdown has cancelled it."""


class Serving(Protocol):
    """What answers the requests."""

    paths: frozenset[str]
    """Where they are answered; requests for other paths are for the ASGI app."""
    is_retiring: bool
    """Whether every answer asks its client to close the connection."""
    running: set[Running]
    """Requests under way."""
    serve: Callable[[HttpRequest], Awaitable[None]]
    """Answers a request. Raises nothing that its client could cause."""

    def ended(self, running: Running) -> None:
        """Note that a request is under way no longer."""


class Heads:
    """Reads heads, and remembers recent ones: a client sends the same head again and again."""

    def __init__(self, paths: Collection[str], max_bytes: int) -> None:
        """`paths` are those of which requests are read; a head may have so many bytes."""
        self._max_bytes = max_bytes
        self._paths = frozenset(path.encode() for path in paths)
        self._known: dict[bytes, Head] = {}
        """By their bytes."""

    def read(self, data: bytes) -> Head | None:
        """The head that the data begins with; None for a request that is not read here, or if the head is not whole."""
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if end < len(_HEAD_END) or end > _MAX_KEPT_HEAD_BYTES:
            return self._parse(data)
        known = self._known.get(data[:end])
        if known is None and (known := self._parse(data)) is not None:
            if len(self._known) >= _MAX_HEADS:
                self._known.clear()
            self._known[data[:end]] = known
        return known

    def _parse(self, data: bytes) -> Head | None:
        if not data.startswith(_POST) or data[len(_POST) :].partition(b" ")[0] not in self._paths:
            return None
        found = frame(data)
        if found is None or found.head > self._max_bytes:
            return None
        first, *lines = data[: found.head - len(_HEAD_END)].split(b"\r\n")
        path = first.split(b" ")[1]
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": "POST",
            "path": path.decode(),
            "raw_path": path,
            "root_path": "",
            "query_string": b"",
            "headers": [
                (name.lower(), value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)
            ],
        }
        return Head(scope, found.head, found.body)


class PlainReader:
    """Reads the plain requests of one connection, and answers them in order."""

    def __init__(
        self, connection: Connection, serving: Serving, heads: Heads, hand_over: Callable[[Connection], Reader]
    ) -> None:
        """`hand_over` makes the reader of anything else."""
        self._connection = connection
        self._serving = serving
        self._heads = heads
        self._hand_over = hand_over
        self._held = bytearray()
        """What has come of a request that has yet to be read."""
        self._wanted = 0
        """The bytes of the request that is held; 0 until its head has come."""
        self._request: PlainRequest | None = None
        """What is being answered."""
        self._later = b""
        """What has come while a request is being answered."""
        self._ignored = 0
        """The bytes to come of a body that nothing has read."""
        self._is_last = False
        """Whether to close the connection after the answer."""
        self._writable: asyncio.Event | None = None
        """Set once the client has read most of what was written; None if it has."""
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._defaults: list[tuple[bytes, bytes]] | None = None
        self._start = b""
        """How answers begin with these default headers."""

    # -- what comes ----------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        if self._request is not None:
            rest = self._request.feed(data)
            if rest:
                self._connection.set_reading(wanted=False)
                self._later += rest
            return
        if self._ignored:
            part, data = data[: self._ignored], data[self._ignored :]
            self._ignored -= len(part)
            if not data:
                return
        if self._held:
            self._read_held(data)
        else:
            self._read(data)

    def _read_held(self, more: bytes) -> None:
        """Read the request that is held, once all that was missing has come."""
        start = max(0, len(self._held) - _SPLIT_END_BYTES)
        self._held += more
        if len(self._held) < self._wanted:
            return
        if not self._wanted and head_size(self._held, start) is None:
            self._check_size(len(self._held))
            return
        whole, self._wanted = bytes(self._held), 0
        self._held.clear()
        self._read(whole)

    def _read(self, data: bytes) -> None:
        """Read what begins with a request."""
        if data.startswith(b"\r\n"):
            rest = bytearray(data)
            skip_blank_lines(rest)
            if not (data := bytes(rest)):
                return
        head = self._heads.read(data)
        if head is None:
            self._read_unusual(data)
            return
        connection, whole = self._connection, head.size + head.body_bytes
        if len(data) < whole and head.body_bytes <= _SMALL_BODY_BYTES:
            self._hold(data, connection.limits.options.body_timeout_s)
            self._wanted = whole
            return
        if len(data) > whole:
            self._later = data[whole:]
            connection.set_reading(wanted=False)
        if len(data) < whole:
            connection.set_deadline(connection.limits.options.body_timeout_s)
        elif connection.deadline is not None:
            connection.set_deadline(None)
        request = self._request = PlainRequest(self, connection, head, data[head.size : whole])
        request.task = connection.loop.create_task(self._answer(request))

    def _read_unusual(self, data: bytes) -> None:
        """Wait for the rest of a head, refuse one that is too large, and leave any other to the strict parser."""
        size = head_size(data)
        if not self._check_size(len(data) if size is None else size):
            return
        if size is None and (data == b"\r" or data[:1].isupper()):
            self._hold(data, self._connection.limits.options.head_timeout_s)
            return
        self._cease()
        self._connection.set_deadline(None)
        reader = self._connection.reader = self._hand_over(self._connection)
        reader.data_received(data)

    def _check_size(self, size: int) -> bool:
        """Refuse a head of this size if it is too large; returns whether it is not."""
        if size <= self._connection.limits.options.max_head_bytes:
            return True
        self._connection.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return False

    def _hold(self, data: bytes, seconds: float) -> None:
        self._held += data
        self._connection.set_deadline(seconds)

    async def _answer(self, request: "PlainRequest") -> None:
        serving = self._serving
        serving.running.add(request)
        try:
            await serving.serve(request)
            if self._request is request and not self._connection.is_closing:
                logger.error("a request was not answered")
                self._connection.close()
        except asyncio.CancelledError:
            if not request.is_refused or request.task is None:
                self._connection.close()
                raise
            request.task.uncancel()
            await (request.end() if request.has_begun else request.respond(SHUTDOWN_ANSWER))
        except Exception:
            logger.exception("a request failed unexpectedly")
            self._connection.close()
        finally:
            serving.ended(request)

    # -- answers -------------------------------------------------------------------------------------------------------

    async def writable(self) -> bool:
        """Wait until the client has read most of what was written. Returns whether it is still there."""
        while self._writable is not None and not self._connection.is_closing:
            await self._writable.wait()
        return not self._connection.is_closing

    def begin_answer(self, answer: Answer, *, in_chunks: bool = False) -> bytes:
        """The head of an answer, whose body may come in chunks."""
        status, body, lines = answer
        defaults = self._connection.server_state.default_headers
        if defaults is not self._defaults:  # uvicorn replaces them every second, for the date
            self._defaults = defaults
            self._start = b"".join(b"%b: %b\r\n" % pair for pair in defaults)
        self._is_last = (
            self._is_last or self._serving.is_retiring or (self._request is not None and self._request.head.closes)
        )
        reason = b"200 OK" if status == 200 else _reason(status)  # noqa: PLR2004 - as nearly always
        size = b"transfer-encoding: chunked" if in_chunks else b"content-length: %d" % len(body)
        own = _JSON_LINES if lines == (JSON_LINE,) else b"".join(b"%b: %b\r\n" % line for line in lines)
        closing = _CLOSING if self._is_last else b""
        return b"HTTP/1.1 %b\r\n%b%b\r\n%b%b\r\n" % (reason, self._start, size, own, closing)

    def answered(self, request: "PlainRequest") -> None:
        """Go on after an answer."""
        connection = self._connection
        if self._request is not request or connection.is_closing:
            return
        if self._is_last or self._serving.is_retiring:
            connection.close()
            return
        self._request = None
        self._ignored = request.missing  # its deadline stays
        self._idle_since = connection.loop.time()
        if self._idle_timer is None:
            self._idle_timer = connection.loop.call_later(connection.limits.options.keep_alive_s, self._close_idle)
        if self._later:
            data, self._later = self._later, b""
            connection.set_reading(wanted=True)
            self.data_received(data)
        elif connection.sends_no_more:
            connection.close()
        elif not connection.is_reading:
            connection.set_reading(wanted=True)

    def _close_idle(self) -> None:
        """Close a connection that has been idle for long enough. One timer serves for many requests."""
        loop, self._idle_timer = self._connection.loop, None
        left = self._idle_since + self._connection.limits.options.keep_alive_s - loop.time()
        if self._request is not None or self._held or self._connection.is_closing:
            return
        if left > 0:
            self._idle_timer = loop.call_later(left, self._close_idle)
        else:
            self._connection.close()

    # -- the connection ------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether an answer is due that needs nothing more of the client."""
        return self._request is not None and not self._request.missing

    @property
    def can_be_probed(self) -> bool:
        """Whether the answer has yet to begin."""
        return self._request is not None and not self._request.has_begun

    @property
    def is_cut_off(self) -> bool:
        """Whether a request waits for bytes that are missing."""
        return False

    def eof_received(self) -> None:
        """Close the connection after the last answer."""
        self._is_last = self._is_last or not self._later

    def deadline_passed(self) -> None:
        """Say that the request came too late, unless its answer has begun."""
        if self._held or (self.can_be_probed and not self.is_due):
            self._connection.refuse(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self._connection.close()

    def shutdown(self) -> None:
        """Close the connection, after the answer that is due."""
        if self._request is None and not self._wanted:
            self._connection.close()
        else:
            self._is_last = True

    def pause_writing(self) -> None:
        """Let answers wait."""
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """Let them go on."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        """Cancel a request that ends with its connection."""
        self._cease()
        self.resume_writing()
        if self._request is not None:
            self._request.client_left()
            if self._request.ends_with_client and self._request.task is not None:
                self._request.task.cancel()

    def _cease(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None


class PlainRequest(HttpRequest):
    """A request that was read from a connection."""

    def __init__(self, reader: PlainReader, connection: Connection, head: Head, body: bytes) -> None:
        """`body` is what has come of it."""
        self.head = head
        self.headers = head.headers
        self.client = connection.client
        self.missing = head.body_bytes - len(body)
        """The bytes of the body that have yet to come."""
        self.body = None if self.missing else body
        self.task: asyncio.Task[None] | None = None
        self.is_refused = False
        self.ends_with_client = False
        self._is_streaming = False
        """Whether the body of the response is being sent in parts."""
        self._reader = reader
        self._connection = connection
        self._parts = [body]
        self._buffered = len(body)
        self._waiting: asyncio.Future[None] | None = None
        self._has_left = False

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the body, and return the rest."""
        if not self.missing:
            return data
        part, rest = data[: self.missing], data[self.missing :]
        self._parts.append(part)
        self._buffered += len(part)
        self.missing -= len(part)
        if not self.missing:
            self._connection.set_deadline(None)
        if self._waiting is not None:
            self._wake()
        elif self._buffered > _MAX_BUFFERED_BYTES:
            self._connection.set_reading(wanted=False)
        return rest

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None

    def client_left(self) -> None:
        """Learn that nothing more comes, and that no answer arrives."""
        self._has_left = True
        self._wake()

    async def read_part(self) -> tuple[bytes, bool] | None:
        """What has come of the body since the last part."""
        while not self._buffered and self.missing and not self._has_left:
            self._connection.set_reading(wanted=True)
            self._waiting = self._connection.loop.create_future()
            await self._waiting
        if self._has_left:
            return None
        part = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._buffered = [], 0
        return part, self.missing > 0

    @cached_property
    def scope(self) -> Scope:
        """As ASGI has it."""
        return {**self.head.scope, "client": self.client, "server": self._connection.server}

    async def respond(self, answer: Answer) -> None:
        """Send a whole response, or its body as the last event if a stream of events has begun."""
        reader, connection = self._reader, self._connection
        if (connection.write_paused or connection.is_closing) and not await reader.writable():
            return
        if self.has_begun:  # perhaps while this has waited
            await self.send_event(answer.body)
            await self.end()
            return
        self.has_begun = True
        head = reader.begin_answer(answer)
        if len(answer.body) <= _MAX_JOINED_BYTES:
            connection.transport.write(head + answer.body)
        else:
            connection.transport.write(head)
            connection.transport.write(answer.body)
        reader.answered(self)

    async def start(self, status: int, lines: Lines) -> None:
        """Begin a response whose body comes in parts."""
        if await self._reader.writable():
            self.has_begun = self._is_streaming = True
            head = self._reader.begin_answer(Answer(status, lines=lines), in_chunks=True)
            self._connection.transport.write(head)

    async def write(self, data: bytes) -> None:
        """Send a part of it."""
        if data and await self._reader.writable() and self._is_streaming:
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """End it, unless that has been done."""
        if await self._reader.writable() and self._is_streaming:
            self._is_streaming = False
            self._connection.transport.write(b"0\r\n\r\n")
            self._reader.answered(self)

    async def until_left(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Await the work, which is cancelled when the client disconnects, and with it all that answers the request.

        Nothing is run for a client that has left already.
        """
        if self._has_left:
            work.close()
            return None
        self.ends_with_client = True
        try:
            return await work
        finally:
            self.ends_with_client = False


def _reason(status: int) -> bytes:
    return f"{int(status)} {HTTPStatus(status).phrase}".encode()


# -- where a request ends ----------------------------------------------------------------------------------------------

# Parsers disagree about heads with an upgrade, two lengths, chunks or a bare line feed. Where a proxy and the server
# behind it disagree about the end of a request, the server takes the rest of it for another client's request. A head
# that is unusual in any way therefore has no frame here, and is left to the strict parser.


class Frame(NamedTuple):
    """The sizes of the parts of a request, in bytes."""

    head: int
    body: int


def skip_blank_lines(data: bytearray) -> None:
    """Drop the line ends that the data begins with: clients may send them after a body (RFC 9112, 2.2)."""
    if found := _BLANK_LINES.match(data):
        del data[: found.end()]


def head_size(data: bytes | bytearray, start: int = 0) -> int | None:
    r"""The size of the head that the data begins with, as any parser may see it; None if its end is not after `start`.

    >>> head_size(b"GET / HTTP/1.1\r\n\r\n{}"), head_size(b"GET / HTTP/1.1\n\n"), head_size(b"GET / HTTP/1.1\r\n")
    (18, 16, None)
    """
    found = _ANY_HEAD_END.search(data, start)
    return None if found is None else found.end()


def frame(data: bytes) -> Frame | None:
    r"""The frame of the request that the data begins with; None if anything about its head is unusual.

    >>> frame(b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET /")
    Frame(head=50, body=2)
    >>> frame(b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nUpgrade: h2c\r\n\r\n{}") is None
    True
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    length: int | None = None
    hosts, has_connection = 0, False
    for name, value in _FRAMING.findall(head[0]):
        kind = name.lower()
        if kind == b"content-length" and length is None and value.isdigit() and len(value) <= _MAX_LENGTH_DIGITS:
            length = int(value)
        elif kind == b"host":
            hosts += 1
        elif kind == b"connection" and not has_connection and value.lower() in _PLAIN_CONNECTIONS:
            has_connection = True
        else:
            return None
    # Of blanks at the end of a value, parsers make different things.
    if hosts != 1 or b" \r\n" in head[0] or b"\t\r\n" in head[0]:
        return None
    return Frame(head.end(), length or 0)
