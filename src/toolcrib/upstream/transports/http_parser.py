"""Reads responses from bytes: short JSON ones at once, and any other with the parser of a library. No I/O."""

import math
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, Protocol

import h11

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


class ParserEvents(Protocol):
    """What a parser calls while it reads a response."""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""

    def on_headers_complete(self) -> None:
        """Note the end of the head."""

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""

    def on_message_complete(self) -> None:
        """Note the end of the response."""


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

    def __init__(self, events: ParserEvents) -> None:
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
    new_parser: Callable[[ParserEvents], ResponseParser] = H11Parser
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
