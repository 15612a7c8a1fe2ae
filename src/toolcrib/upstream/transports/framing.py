"""JSON-RPC messages from a stream of bytes, one per line, and events from an event stream. No I/O.

A line that is not a message is skipped. A message that is invalid or too large, but shows which request it answers,
becomes an error response to that request, so that its caller does not wait for the deadline.
"""

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from toolcrib.protocol.calling import same_id
from toolcrib.protocol.messages import (
    KEPT_BYTES,
    MESSAGE_START,
    NESTED_TOO_DEEP,
    RequestId,
    TooDeepError,
    parse_json,
    response_id_in,
)
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports.base import Message
from toolcrib.upstream.transports.bounds import (
    Bounds,
    Meter,
    Steps,
    list_bounds,
    parse_list,
    result_bounds,
)

_MAX_LISTS: Final = 64
"""Unanswered requests for lists that are remembered."""
_WHOLE_BYTES: Final = 256 * 1024
"""Shorter texts are parsed at once."""
_LIST_CHANGED: Final = b"/list_changed"
_NOTICE_BYTES: Final = 300
"""The length of a notification of a changed list, at most."""
FLOOD_PAUSE_S: Final = 0.005
"""Pause after a part of a flood: its sender waits on a full pipe instead of taking all our CPU time."""
_FLOOD_MESSAGES: Final = 50
_FLOOD_MESSAGE_S: Final = 0.0001
"""About what one message costs."""


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """The two ends of a line that was longer than the limit."""

    head: bytes
    tail: bytes
    problem: str = field(default="", compare=False)
    """How it breaks the bounds, after "the message"."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A response that cannot be read, to a request that is certain."""

    request_id: int | str
    reason: str


_Message = TypeVar("_Message", bytes, bytes | OversizedLine)


BoundsOfLine = Callable[[bytes, bytes | None], Bounds]
"""Returns what a line may hold that begins and ends so; the end is None as long as the line is incomplete."""


class LineSplitter:
    """Splits chunks into lines in linear time, holding at most one incomplete line within its bounds."""

    def __init__(self, bounds: BoundsOfLine) -> None:
        self._bounds = bounds
        self._parts: list[bytes] = []
        self._meter = Meter()
        self._lost: OversizedLine | None = None

    @property
    def is_between(self) -> bool:
        """Whether the next chunk begins with a line."""
        return not self._parts and self._lost is None

    @property
    def overflowing(self) -> bool:
        """Whether the incomplete line is already too long."""
        return self._lost is not None

    @property
    def pending_bytes(self) -> int:
        """How much of the incomplete line has arrived; 0 once it is too long."""
        return 0 if self.overflowing else self._meter.size

    def feed(self, chunk: bytes) -> list[bytes | OversizedLine]:
        """Return the lines that the chunk completes, without line ends."""
        *whole, rest = chunk.split(b"\n")
        done = [self._finish(part) for part in whole]
        self._keep(rest)
        return done

    def _keep(self, part: bytes) -> None:
        if self._lost is not None:
            head = (self._lost.head + part[:KEPT_BYTES])[:KEPT_BYTES]
            self._lost = OversizedLine(head, (self._lost.tail + part)[-KEPT_BYTES:], self._lost.problem)
        elif part:
            self._parts.append(part)
            self._meter.add(part)
            self._lose(self._bounds(self._parts[0][:KEPT_BYTES], None))

    def _lose(self, bounds: Bounds) -> None:
        """Keep only the ends of the line if it breaks the bounds."""
        problem = bounds.problem(self._meter.size, self._meter.nodes)
        if problem:
            head, tail = _first_bytes(self._parts), _last_bytes(self._parts)
            self._lost, self._parts = OversizedLine(head, tail, problem), []

    def _finish(self, part: bytes) -> bytes | OversizedLine:
        if not self._parts and self._lost is None:
            bounds = self._bounds(part[:KEPT_BYTES], part[-KEPT_BYTES:])
            if len(part) <= min(bounds.bytes, bounds.nodes):
                return part  # it cannot hold too many values
        self._keep(part)
        line = self._lost or b"".join(self._parts)
        if isinstance(line, bytes):
            self._lose(self._bounds(line[:KEPT_BYTES], line[-KEPT_BYTES:]))
            line = self._lost or line
        self._parts, self._meter, self._lost = [], Meter(), None
        return line


class ExpectedResponses:
    """What the lines of a server may hold. More for lists that it was asked for, which are parsed in steps."""

    def __init__(self, options: ServerOptions) -> None:
        self._result, self._list = result_bounds(options), list_bounds(options)
        self.plain_bytes = min(self._result.bytes, self._result.nodes)
        """A line that is not longer breaks no bounds."""
        self._lists: dict[RequestId | None, None] = {}

    def add_list(self, request_id: RequestId) -> None:
        """Note a request for a list."""
        self._lists[request_id] = None
        if len(self._lists) > _MAX_LISTS:
            del self._lists[next(iter(self._lists))]

    def remove_list(self, request_id: RequestId) -> None:
        """Note that nothing waits for a list any more."""
        self._lists.pop(request_id, None)

    def bounds(self, head: bytes, tail: bytes | None) -> Bounds:
        """A `BoundsOfLine`."""
        if not self._lists:
            return self._result
        found = response_id_in(head, tail or b"")
        is_list = found in self._lists if found is not None else tail is None
        return self._list if is_list else self._result

    def bounds_of(self, message: Message) -> Bounds:
        """What a message may hold that comes as a value, and not as text."""
        is_list = bool(self._lists) and "method" not in message and same_id(message.get("id")) in self._lists
        return self._list if is_list else self._result

    def read(self, line: bytes | OversizedLine) -> Steps[list[Message | Unreadable]]:
        """Return the messages in a line."""
        ends = (line[:KEPT_BYTES], line[-KEPT_BYTES:]) if isinstance(line, bytes) else (line.head, line.tail)
        return (yield from read_line(line, is_list=bool(self._lists) and self.bounds(*ends).in_steps))


def without_repeats(messages: list[_Message]) -> list[_Message]:
    """Drop notifications of changed lists that come again among the messages: the last one says as much.

    >>> changed = b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}'
    >>> without_repeats([changed, b"{}", changed, b"{}"]) == [b"{}", changed, b"{}"]
    True
    """
    if len(messages) == 1:  # most often, and hashing a long one takes long
        return messages
    last = {message: place for place, message in enumerate(messages) if _is_short(message)}
    last = {message: place for message, place in last.items() if _is_list_changed(message)}
    if not last:
        return messages
    return [
        message for place, message in enumerate(messages) if not _is_short(message) or last.get(message, place) == place
    ]


def flood_pause_s(arrived: int, kept: int) -> float:
    """How long to wait after messages that came at once, in seconds, so that a flood leaves time for other servers.

    >>> flood_pause_s(20, 20), flood_pause_s(1000, 1), flood_pause_s(1000, 1000)
    (0.0, 0.005, 0.1)
    """
    if kept > _FLOOD_MESSAGES:
        return kept * _FLOOD_MESSAGE_S
    return FLOOD_PAUSE_S if arrived > _FLOOD_MESSAGES else 0.0


def _is_short(message: bytes | OversizedLine) -> bool:
    return isinstance(message, bytes) and len(message) <= _NOTICE_BYTES


def _is_list_changed(message: bytes | OversizedLine) -> bool:
    """Whether a short message is such a notification, and not one with an id that contains the words."""
    return isinstance(message, bytes) and _LIST_CHANGED in message and b'"id"' not in message


def _first_bytes(parts: list[bytes]) -> bytes:
    """The beginning of a line, without joining its parts, which may take longer than reading them."""
    found = b""
    for part in parts:
        found += part[: KEPT_BYTES - len(found)]
        if len(found) == KEPT_BYTES:
            break
    return found


def _last_bytes(parts: list[bytes]) -> bytes:
    found = b""
    for part in reversed(parts):
        found = part[-KEPT_BYTES:] + found
        if len(found) >= KEPT_BYTES:
            break
    return found[-KEPT_BYTES:]


def parse_short(line: bytes | OversizedLine) -> Message | None:
    """Return the one message in a line of usual length; None for any other, which `read_line` looks at."""
    if not isinstance(line, bytes) or len(line) > _WHOLE_BYTES or line[:1] != b"{":
        return None
    try:
        message = parse_json(line)
    except ValueError:
        return None
    return message if _is_message(message) else None


def read_line(line: bytes | OversizedLine, *, is_list: bool = False) -> Steps[list[Message | Unreadable]]:
    """Return the messages in one line: one, several for a batch, none for anything else."""
    if isinstance(line, OversizedLine):
        return _unreadable(line.head, line.tail, f"its response {line.problem}")
    line = line.removeprefix(codecs.BOM_UTF8)
    if line[:64].lstrip()[:1] not in (b"{", b"["):
        start = line.find(MESSAGE_START)
        return (yield from read_line(line[start:], is_list=is_list)) if start >= 0 else []
    try:
        value = yield from parse_in_steps(line, is_list=is_list)
    except ValueError as error:
        problem = NESTED_TOO_DEEP if isinstance(error, TooDeepError) else "is not valid JSON"
        return _unreadable(line[:KEPT_BYTES], line[-KEPT_BYTES:], f"its response {problem}")
    return [item for item in (value if isinstance(value, list) else [value]) if _is_message(item)]


def _is_message(item: Any) -> bool:
    """Whether a JSON value is a message; more lenient than the schema where the meaning is clear."""
    if not isinstance(item, dict):
        return False
    return same_id(item.get("id")) is not None or isinstance(item.get("method"), str)


def _unreadable(head: bytes, tail: bytes, reason: str) -> list[Message | Unreadable]:
    """Return the response that a broken line was; nothing if it is not certain which request it answers."""
    found = response_id_in(head, tail)
    return [] if found is None else [Unreadable(found, reason)]


def parse_in_steps(text: bytes, *, is_list: bool) -> Steps[Any]:
    """Parse a message as `parse_json` does, but a list that is long, or nested too deep, entry by entry.

    Raises `ValueError`.
    """
    if len(text) <= _WHOLE_BYTES:
        try:
            return parse_json(text)
        except TooDeepError:
            if not is_list:
                raise
    yield  # after the reader has put the parts together
    if is_list:
        return (yield from parse_list(text, parse_json))
    value = parse_json(text)
    yield
    return value


_MAX_RETRY_DIGITS: Final = 9
"""Of a time to wait, in milliseconds; one with more says nothing, and might not even be a number to Python."""


class ServerEvent(NamedTuple):
    """One event of an event stream."""

    data: bytes
    """Its data lines, joined by line feeds."""
    id: str
    retry_s: float | None
    """When to connect again, if the event says so."""


class LineEnds:
    """Turns all line ends of an event stream into line feeds."""

    def __init__(self) -> None:
        self._after_return = False
        """Whether the last byte was a carriage return, to which a line feed may still belong."""

    def normalized(self, chunk: bytes) -> bytes:
        """Return the next part of the stream."""
        if self._after_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        if b"\r" not in chunk:
            return chunk
        self._after_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class EventParser:
    """Splits an event stream into events; httpx2 decodes each line on its own, at several times the cost.

    >>> list(EventParser(Bounds(100, 10)).feed(b"id: 7\\r\\ndata: {}\\r\\n\\r\\nretry: 50\\n\\nda"))
    [ServerEvent(data=b'{}', id='7', retry_s=None), ServerEvent(data=b'', id='', retry_s=0.05)]
    """

    def __init__(self, bounds: Bounds) -> None:
        """`bounds` is how much one event may hold."""
        self._bounds = bounds
        self._meter = Meter()
        self._buffer = bytearray()
        self._line_ends = LineEnds()

    @property
    def pending_bytes(self) -> int:
        """How much of the incomplete event has arrived."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Yield the events that the chunk completes. Raises `OverflowError` for one beyond the bounds."""
        chunk = self._line_ends.normalized(chunk)
        # An end may have begun with the last byte before this chunk.
        start = max(0, len(self._buffer) - 1)
        self._buffer += chunk
        completed = False
        while (end := self._buffer.find(b"\n\n", start)) >= 0:
            with memoryview(self._buffer) as view:
                block = bytes(view[:end])
            if end > self._bounds.nodes:  # otherwise it cannot hold too many values
                self._meter.add(block[self._meter.size :])
            self._check_size(end)
            del self._buffer[: end + 2]
            start, completed, self._meter = 0, True, Meter()
            yield _read_event(block)
        self._meter.add(bytes(self._buffer) if completed else chunk)
        self._check_size(len(self._buffer))

    def end(self) -> Iterator[ServerEvent]:
        """Yield what the end of the stream completes, or cuts: some servers leave out the last blank line.

        Its id does not count, as the rest of a cut event could not be asked for.
        """
        block = bytes(self._buffer).strip(b"\n")
        self._buffer.clear()
        if block:
            yield _read_event(block)._replace(id="")

    def _check_size(self, size: int) -> None:
        if problem := self._bounds.problem(size, self._meter.nodes):
            raise OverflowError(problem)


def _read_event(block: bytes) -> ServerEvent:
    data: list[bytes] = []
    last_id, retry_s = "", None
    start, size = 0, len(block)
    while start <= size:  # without `split`, which would copy a large event once more
        end = block.find(b"\n", start)
        end = size if end < 0 else end
        colon = block.find(b":", start, end)
        colon = end if colon < 0 else colon
        name = block[start:colon]
        value = block[colon + (2 if block[colon + 1 : colon + 2] == b" " else 1) : end]
        start = end + 1
        if name == b"data":
            data.append(value)
        elif name == b"id" and b"\0" not in value:
            last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            retry_s = int(value) / 1000
    return ServerEvent(b"\n".join(data), last_id, retry_s)
