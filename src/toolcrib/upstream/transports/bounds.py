"""How much one message may hold: measured while it arrives, and parsed piece by piece where much is allowed. No I/O.

A parser cannot be interrupted, and holds the interpreter's lock. So a message is measured by cheap operations on each
chunk, and what is too large for one step of the event loop is never parsed whole.
"""

import asyncio
import codecs
import json
import re
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio.lowlevel

from toolcrib.protocol.messages import TooDeepError, is_larger, value_parts
from toolcrib.upstream.options import ServerOptions
from toolcrib.wire import without_depth

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Work in steps of a few milliseconds, which returns its result at the end."""

_ESCAPE: Final = re.compile(rb"\\.?", re.DOTALL)
_NODE_BYTES: Final = (b"[", b"{", b",", b":")
"""Each begins a value, or ends a key."""
_LIST_FACTOR: Final = 10
"""How many times as many values a list may hold as a result."""
_MAX_BYTES_OF_CHAR: Final = 6
"""Of a control character, which is escaped."""
_SIZE_OF_NODE: Final = 5
"""What `is_larger` counts at least for a node: 16 for an entry, which has at most a comma, a colon and a bracket."""
_WINDOW_BYTES: Final = 128 * 1024
_MAX_ENTRY_CHARS: Final = 1024 * 1024
"""The largest entry of a list that is parsed in steps."""
_STEP_CHARS: Final = 64 * 1024
_SPACE: Final = " \t\n\r"
_LARGE_BYTES: Final = 256 * 1024
"""A message that is longer than this takes turns with others."""
_SHARE_BYTES: Final = 512 * 1024
"""How much of all large messages together is read in one turn of the event loop; takes about half a millisecond."""
_DECODER: Final = json.JSONDecoder()
_turns_of_loop: Final = anyio.lowlevel.RunVar["_Turns"]("toolcrib_turns")


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much one message may hold, and the setting that says so."""

    bytes: int
    nodes: int
    """Values and keys of its JSON."""
    bytes_setting: str = "results.max_bytes"
    nodes_setting: str = "results.max_nodes"
    in_steps: bool = False
    """Whether the message is a list, which is parsed entry by entry if it is long."""

    @property
    def plain_size(self) -> int:
        """A value that is not larger, as `is_larger` measures, breaks no bounds, whatever escapes its text needs."""
        return min(self.bytes // _MAX_BYTES_OF_CHAR, self.nodes * _SIZE_OF_NODE)

    def problem(self, size: int, nodes: int) -> str:
        """Return how a message of this size breaks the bounds; empty if it does not."""
        if size > self.bytes:
            return _problem(f"is larger than {self.bytes:,} bytes", self.bytes_setting)
        return _problem(f"holds more than {self.nodes:,} values", self.nodes_setting) if nodes > self.nodes else ""


def _problem(what: str, setting: str) -> str:
    return f"{what} and was dropped" + (f"; the limit is {setting}" if setting else "")


def result_bounds(options: ServerOptions) -> Bounds:
    """Return the bounds of any message of a server that is not a list."""
    if options.max_message_bytes < options.max_result_bytes:
        return Bounds(options.max_message_bytes, options.max_result_nodes, "max_message_bytes")
    return Bounds(options.max_result_bytes, options.max_result_nodes)


def list_bounds(options: ServerOptions) -> Bounds:
    """Return the bounds of a page of a list, which is parsed in steps."""
    return Bounds(
        options.max_message_bytes, options.max_result_nodes * _LIST_FACTOR, "max_message_bytes", in_steps=True
    )


class Meter:
    """Measures one JSON text chunk by chunk, however it is cut.

    >>> meter = Meter()
    >>> for part in (b'{"a, b": [1, "c', b'[[[', b'"]}'):
    ...     meter.add(part)
    >>> meter.size, meter.nodes
    (21, 4)
    """

    def __init__(self) -> None:
        self.size = 0
        self.nodes = 0
        """Values and keys so far, give or take one for each level."""
        self._in_string = False
        self._escaped = False

    def add(self, chunk: bytes) -> None:
        """Count the next part of the text."""
        self.size += len(chunk)
        if self._escaped and chunk:
            chunk = chunk[1:]
            self._escaped = False
        if b"\\" in chunk:
            self._escaped = (len(chunk) - len(chunk.rstrip(b"\\"))) % 2 == 1
            chunk = _ESCAPE.sub(b"", chunk)
        parts = chunk.split(b'"')
        bare = b"".join(parts[1 if self._in_string else 0 :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self.nodes += sum(map(bare.count, _NODE_BYTES))


def value_problem(value: Any, bounds: Bounds) -> Steps[str]:
    """Return how the JSON text of a value breaks the bounds; empty if it does not. Raises `ValueError`.

    >>> run_at_once(value_problem({"content": "x" * 100}, Bounds(bytes=100, nodes=10)))
    'is larger than 100 bytes and was dropped; the limit is results.max_bytes'
    """
    meter = Meter()
    for part in value_parts(value) if is_larger(value, bounds.plain_size) else ():
        meter.add(part)
        if problem := bounds.problem(meter.size, meter.nodes):
            return problem
        yield
    return ""


def parse_list(text: bytes, parse: Callable[[bytes], Any]) -> Steps[Any]:
    """Parse a response with a list, entry by entry; `parse` parses the parts. Raises `ValueError`.

    >>> from toolcrib.protocol.messages import parse_json
    >>> run_at_once(parse_list(b'{"id": 1, "result": {"tools": [{"name": "a"}, {}], "ttlMs": 0}}', parse_json))
    {'id': 1, 'result': {'tools': [{'name': 'a'}, {}], 'ttlMs': 0}}
    """
    return _ListParser(text, parse).message()


def run_at_once(steps: Steps[_T]) -> _T:
    """Return the result of the steps, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


async def run_in_steps(steps: Steps[_T]) -> _T:
    """Return the result of the steps; other tasks run between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        await anyio.lowlevel.checkpoint()


async def take_turn(read_bytes: int, part_bytes: int) -> None:
    """Wait until the next part may be read of a message of which so many bytes were read, with a part of this size
    last; at once if it is not a large one.

    All large messages that arrive at the same time share each turn of the event loop. So calls with short messages
    wait for some parts, and not for a part of each large message.
    """
    if read_bytes > _LARGE_BYTES:
        await _turns().take(part_bytes)


def _turns() -> "_Turns":
    try:
        return _turns_of_loop.get()
    except LookupError:
        turns = _Turns()
        _turns_of_loop.set(turns)
        return turns


class _Turns:
    """Who may read on in this turn of the event loop, and who waits for the next ones."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._left: int | None = None
        """How many bytes of parts may still be read in this turn; None before the first part."""

    async def take(self, size: int) -> None:
        left = self._begin() if self._left is None else self._left
        if left > 0 and not self._waiting:
            self._left = left - size
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, size))
        await waiter

    def _begin(self) -> int:
        asyncio.get_running_loop().call_soon(self._next_turn)
        return _SHARE_BYTES

    def _next_turn(self) -> None:
        """Let as many read on as the turn has room for; they run before this is called again."""
        left = _SHARE_BYTES
        while self._waiting and left > 0:
            waiter, size = self._waiting.popleft()
            if not waiter.done():  # it may have been cancelled
                waiter.set_result(None)
                left -= size
        self._left = None
        if left < _SHARE_BYTES:
            self._begin()
            self._left = left


class _ListParser:
    """Walks the two outer levels of a response, and leaves each value below them to the parser.

    The standard library's decoder says where a value ends.
    """

    def __init__(self, text: bytes, parse: Callable[[bytes], Any]) -> None:
        self._bytes = text
        self._parse = parse
        self._decoded = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0
        self._since_step = 0

    def message(self) -> Steps[Any]:
        """Parse the whole text."""
        value = yield from self._object(is_result=False)
        if self._peek():
            raise ValueError("there is something after the message")
        return value

    def _object(self, *, is_result: bool) -> Steps[dict[str, Any]]:
        found: dict[str, Any] = {}
        self._take("{")
        while self._peek() != "}":
            if found:
                self._take(",")
            if self._peek() != '"':
                raise ValueError("it is not valid JSON")
            key = self._value()
            self._take(":")
            if self._peek() == "{" and key == "result" and not is_result:
                found[key] = yield from self._object(is_result=True)
            elif self._peek() == "[" and is_result:
                found[key] = yield from self._array()
            else:
                found[key] = self._value()
        self._take("}")
        return found

    def _array(self) -> Steps[list[Any]]:
        found: list[Any] = []
        self._take("[")
        while self._peek() != "]":
            if found:
                self._take(",")
            found.append(self._value(is_entry=True))
            if self._since_step > _STEP_CHARS:
                self._since_step = 0
                yield
        self._take("]")
        return found

    def _value(self, *, is_entry: bool = False) -> Any:
        """Parse the next value whole, with as much of the text as it needs."""
        decoded: Any = None
        self._peek()
        while True:
            try:
                decoded, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise TooDeepError from error
            except ValueError as error:
                end = len(self._text)
                if self._decoded == len(self._bytes):
                    raise ValueError("it is not valid JSON") from error
            # At the end of the window, a number may go on.
            if end < len(self._text) or self._decoded == len(self._bytes):
                break
            if end - self._at > _MAX_ENTRY_CHARS:
                raise ValueError("an entry is too large")
            self._extend()
        try:
            value = self._parse(self._text[self._at : end].encode())
        except TooDeepError:
            if not is_entry or not isinstance(decoded, dict):
                raise
            value = without_depth(decoded)
        self._since_step += end - self._at
        self._at = end
        return value

    def _peek(self) -> str:
        """Return the next character that is no space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if (char := self._text[self._at]) not in _SPACE:
                    return char
                self._at += 1
            if self._decoded == len(self._bytes):
                return ""
            self._extend()

    def _take(self, char: str) -> None:
        if self._peek() != char:
            raise ValueError("it is not valid JSON")
        self._at += 1

    def _extend(self) -> None:
        """Decode more of the text, at least as much as is left of the window, and drop what was parsed."""
        size = max(_WINDOW_BYTES, len(self._text) - self._at)
        part = self._bytes[self._decoded : self._decoded + size]
        self._decoded += len(part)
        more = self._decoder.decode(part, final=self._decoded == len(self._bytes))
        self._text, self._at = self._text[self._at :] + more, 0
