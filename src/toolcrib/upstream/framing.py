"""JSON-RPC messages from a stream of bytes, one per line, and events from an event stream. No I/O.

A line that is not a message is skipped. A message that is invalid or too large, but shows which request it answers,
becomes an error response to that request, so that its caller does not wait for the deadline.
"""

import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mcp_types import (
    INTERNAL_ERROR,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from pydantic_core import from_json

_KEPT_BYTES: Final = 512
"""How much of each end of an oversized line is kept; enough to see its id."""
_ID: Final = rb'"id"\s*:\s*(?:(?P<number>-?\d{1,18})|"(?P<text>[^"\\]{1,64})")'
_VERSION: Final = rb'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME: Final = rb'"(?:result|error)"'
# Matches only where the id is certainly a response's: right before its outcome, or at the end after it.
_ID_FIRST: Final = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*,\s*" + _OUTCOME)
_OUTCOME_FIRST: Final = re.compile(rb"\s*\{\s*" + _OUTCOME)
_ID_LAST: Final = re.compile(_VERSION + rb"\s*,\s*" + _ID + rb"\s*\}\s*\Z")
_METHOD: Final = rb'"method"\s*:\s*"[^"\\]{1,200}"'
# The same for a request: an id before anything nested, next to a key that only requests have.
_BEFORE: Final = rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?"
_REQUEST_ID_FIRST: Final = re.compile(_BEFORE + _ID + rb"\s*,\s*(?:" + _VERSION + rb'\s*,\s*)?"(?:method|params)"')
_REQUEST_ID_SECOND: Final = re.compile(
    _BEFORE + _METHOD + rb"\s*,\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*[,}]"
)
_REQUEST_FIRST: Final = re.compile(_BEFORE + rb'"(?:method|params)"')
_BEGINNING: Final = b'{"jsonrpc"'
# Matches each escape in turn, so that the end of an escaped backslash never starts another escape.
_HIGH: Final = rb"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = re.compile(
    rb"\\(?:" + _HIGH + rb"\\" + _LOW + rb"|(?P<half>" + _HIGH + rb"|" + _LOW + rb")|.)", re.DOTALL
)
_NO_GC_BYTES: Final = 256 * 1024
"""Larger texts are parsed without the garbage collector, which would scan everything created so far again and again."""


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """The two ends of a line that was longer than the limit."""

    head: bytes
    tail: bytes


class LineSplitter:
    """Splits chunks into lines in linear time, holding at most `limit` bytes of an incomplete line."""

    def __init__(self, limit: int) -> None:
        """`limit` is the longest line, in bytes."""
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._lost: OversizedLine | None = None

    @property
    def overflowing(self) -> bool:
        """Whether the incomplete line is already too long."""
        return self._lost is not None

    def feed(self, chunk: bytes) -> list[bytes | OversizedLine]:
        """Return the lines that the chunk completes, without line ends."""
        *whole, rest = chunk.split(b"\n")
        done = [self._finish(part) for part in whole[:1]]
        done += [line if len(line) <= self._limit else self._cut(line) for line in whole[1:]]
        self._keep(rest)
        return done

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._lost is not None:
            head = (self._lost.head + part[:_KEPT_BYTES])[:_KEPT_BYTES]
            self._lost = OversizedLine(head, (self._lost.tail + part)[-_KEPT_BYTES:])
            return
        self._parts.append(part)
        if self._size > self._limit:
            self._lost = self._cut(b"".join(self._parts))
            self._parts = []

    def _finish(self, part: bytes) -> bytes | OversizedLine:
        self._keep(part)
        line = self._lost or b"".join(self._parts)
        self._parts, self._size, self._lost = [], 0, None
        return line

    def _cut(self, line: bytes) -> OversizedLine:
        return OversizedLine(line[:_KEPT_BYTES], line[-_KEPT_BYTES:])


def parse_line(line: bytes | OversizedLine, limit: int) -> list[JSONRPCMessage]:
    """Return the messages in one line: one, several for a batch, none for anything else."""
    if isinstance(line, OversizedLine):
        return _error_response(line.head, line.tail, f"The response is larger than {limit:,} bytes and was dropped.")
    if line[:64].lstrip()[:1] not in (b"{", b"["):
        start = line.find(_BEGINNING)
        return parse_line(line[start:], limit) if start >= 0 else []
    try:
        value = parse_json(line)
    except ValueError:
        return _error_response(line[:_KEPT_BYTES], line[-_KEPT_BYTES:], "The response is not valid JSON.")
    return list(_messages(value))


def parse_json(text: bytes) -> Any:
    """Parse a JSON text. Unpaired surrogates, which would make it invalid, become replacement characters.

    Raises `ValueError`.

    >>> parse_json(rb'["\\ud83d", "\\ud83e\\udd80", "\\\\ud83d"]') == ["\\ufffd", "\\U0001f980", "\\\\ud83d"]
    True
    """
    try:
        return _load_json(text)
    except ValueError:
        if not _may_hold_surrogates(text):
            raise
    return _load_json(_replace_surrogates(text))


def repair_json(text: bytes) -> bytes:
    """Replace unpaired surrogates in a JSON text that is invalid because of them. The length stays the same."""
    if _may_hold_surrogates(text):
        try:
            _load_json(text)
        except ValueError:
            return _replace_surrogates(text)
    return text


def _may_hold_surrogates(text: bytes) -> bool:
    return b"\\ud" in text or b"\\uD" in text


def _replace_surrogates(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: found[0] if found["half"] is None else rb"\ufffd", text)


def _load_json(text: bytes) -> Any:
    if len(text) < _NO_GC_BYTES or not gc.isenabled():
        return from_json(text)
    gc.disable()
    try:
        return from_json(text)
    finally:
        gc.enable()


def request_id_in(line: bytes | OversizedLine) -> int | str | None:
    """Return the id of the request that the broken line was meant to be; None if that is not certain.

    >>> request_id_in(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {broken')
    7
    """
    head, tail = (
        (line.head, line.tail) if isinstance(line, OversizedLine) else (line[:_KEPT_BYTES], line[-_KEPT_BYTES:])
    )
    found = _REQUEST_ID_FIRST.match(head) or _REQUEST_ID_SECOND.match(head)
    found = found or (_REQUEST_FIRST.match(head) and _ID_LAST.search(tail))
    return _id_of(found) if found else None


def _messages(value: Any) -> Iterator[JSONRPCMessage]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and (message := _message(item)) is not None:
            yield message


def _message(item: dict[str, Any]) -> JSONRPCMessage | None:
    """Return the message, or None. More lenient than the schema where the meaning is clear."""
    request_id = _request_id(item.get("id"))
    method, params = item.get("method"), item.get("params")
    if isinstance(method, str):
        params = params if isinstance(params, dict) else None
        if request_id is None:
            return JSONRPCNotification(jsonrpc="2.0", method=method, params=params)
        return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=params)
    if request_id is None:
        return None
    if isinstance(result := item.get("result"), dict):
        return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=_error(item.get("error")))


def _request_id(value: Any) -> int | str | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _error(raw: Any) -> ErrorData:
    if not isinstance(raw, dict):
        return ErrorData(code=INTERNAL_ERROR, message="The response has neither a result nor an error.")
    code, message = raw.get("code"), raw.get("message")
    return ErrorData(
        code=code if isinstance(code, int) else INTERNAL_ERROR,
        message=message if isinstance(message, str) else "The error has no message.",
        data=raw.get("data"),
    )


def _error_response(head: bytes, tail: bytes, message: str) -> list[JSONRPCMessage]:
    """Return an error response to the request that a broken line answered; nothing if that is not certain."""
    found = _ID_FIRST.match(head) or (_OUTCOME_FIRST.match(head) and _ID_LAST.search(tail))
    if not found:
        return []
    return [JSONRPCError(jsonrpc="2.0", id=_id_of(found), error=ErrorData(code=PARSE_ERROR, message=message))]


def _id_of(found: re.Match[bytes]) -> int | str:
    number, text = found["number"], found["text"]
    return int(number) if number is not None else str(text, errors="replace")


class ServerEvent(NamedTuple):
    """One event of an event stream."""

    data: bytes
    """Its data lines, joined by line feeds."""
    id: str
    retry_s: float | None
    """When to connect again, if the event says so."""


class EventParser:
    """Splits an event stream into events; httpx2 decodes each line on its own, at several times the cost.

    >>> list(EventParser(100).feed(b"id: 7\\r\\ndata: {}\\r\\n\\r\\nretry: 50\\n\\nda"))
    [ServerEvent(data=b'{}', id='7', retry_s=None), ServerEvent(data=b'', id='', retry_s=0.05)]
    """

    def __init__(self, limit: int) -> None:
        """`limit` is the size of the largest event, in bytes."""
        self._limit = limit
        self._buffer = bytearray()
        self._held = b""
        """A carriage return at the end of a chunk, whose line feed may follow."""

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Yield the events that the chunk completes. Raises `OverflowError` for one beyond the limit."""
        chunk = self._held + chunk
        self._held = b""
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):
                chunk, self._held = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        # An end may have begun with the last byte before this chunk.
        start = max(0, len(self._buffer) - 1)
        self._buffer += chunk
        while (end := self._buffer.find(b"\n\n", start)) >= 0:
            block = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            start = 0
            self._check_size(len(block))
            yield _read_event(block)
        self._check_size(len(self._buffer))

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise OverflowError


def _read_event(block: bytes) -> ServerEvent:
    data: list[bytes] = []
    last_id, retry_s = "", None
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"id" and b"\0" not in value:
            last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit():
            retry_s = int(value) / 1000
    return ServerEvent(b"\n".join(data), last_id, retry_s)
