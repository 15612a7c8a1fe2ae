"""Calls of one Python script: which are running, which wait for their turn, and their answers.

Arguments and results leave Monty as real Python objects, and become JSON here, within the limits.
"""

import json
import re
import select
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from . import serve

_CALL = struct.Struct(">IHH")
_ANSWER = struct.Struct(">IB")
_SLEEP = struct.Struct(">I")
_MAX_ANSWER_DEPTH = 200
"""How deep an answer may be nested, as for every engine."""
_FUTURE = re.compile(r"<coroutine external_future\((\d{1,9})\)>")
_FUNCTION = re.compile(r"<function '[^']{1,100}' (?:at 0x[0-9a-f]{1,16}|external)>|<built-in function [\w.]{1,100}>")
_MAX_INTEGER_BITS = 4096
"""Larger integers are rejected: no other JSON parser is likely to read them."""


class InterpreterGone(Exception):
    """The interpreter ended, so nothing waits for an answer."""


class MontyCalls:
    """Sends calls, as many at once as the limits allow, and keeps the answers until Monty asks for them."""

    def __init__(
        self, servers: Sequence[Mapping[str, Any]], limits: Mapping[str, Any], pidfd: int | None = None
    ) -> None:
        """`servers` have `name`, `original` and `tools`, which have `name` and `original`.

        `pidfd` becomes readable when the interpreter ends.
        """
        self._servers = servers
        self._limits = limits
        self._places = {
            f"{server['name']}.{tool['name']}": (place, at)
            for place, server in enumerate(servers)
            for at, tool in enumerate(server["tools"])
        }
        self._labels: dict[int, str] = {}
        self.open: dict[int, str] = {}
        """Calls that were not awaited yet, under the script's names, by Monty's number."""
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._running: dict[int, tuple[int, int]] = {}
        self._bytes = 0
        self._sent = 0
        self._settled: dict[int, dict[str, Any]] = {}
        self._due: dict[int, float] = {}
        self._poll = select.poll()
        self._poll.register(serve.STDIN, select.POLLIN)
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)
        self._sleep_reported_s = 0.0
        self.waiting_bytes = 0
        """Size of the calls that wait for their turn."""
        self.made = 0
        """How many calls the script has made."""

    def knows(self, name: str) -> bool:
        """Whether the name is a tool, or `call_tool`."""
        return name == "call_tool" or name in self._places

    def make(self, name: str, number: int, values: tuple[object, ...], named: dict[str, object]) -> None:
        """Make a call, under Monty's number for it. Errors in it are raised where the script awaits it."""
        self.made += 1
        try:
            label, place, arguments = self._resolve(name, values, named)
            text = encode_bounded(arguments, label, self._limits, self.open)
            self._labels[number] = self.open[number] = label
        except (AttributeError, TypeError) as error:
            self.open[number] = name
            self._settled[number] = _raised(type(error).__name__, str(error))
            return
        except OutOfBounds as error:
            self.open[number] = label
            self._settled[number] = _raised("RuntimeError", str(error))
            return
        self._waiting.append((number, _CALL.pack(0, *place) + text))
        self.waiting_bytes += len(text)
        self._send()

    def sleep(self, name: str, number: int, values: tuple[object, ...]) -> dict[str, Any] | None:
        """Sleep, or start to; None for any other request to the operating system."""
        if name not in ("system.sleep", "system.async_sleep"):
            return None
        seconds = values[0] if values else None
        if not isinstance(seconds, int | float) or not seconds >= 0:
            return _raised("ValueError", "sleep needs a number of seconds, 0 or more")
        seconds = min(seconds, self._limits["wall_s"])
        if name == "system.async_sleep":
            self._due[number] = time.monotonic() + seconds
            return {"future": ...}
        self._report_sleep(seconds)
        time.sleep(seconds)
        return {"return_value": None}

    def settled(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The outcomes of those calls that have ended, at least one. Raises `InterpreterGone`."""
        while True:
            self._end_sleeps()
            found = {number: self._settled.pop(number) for number in numbers if number in self._settled}
            if found:
                for number in found:
                    self.open.pop(number, None)
                return found
            self._wait()

    def unawaited(self) -> tuple[str, ...]:
        """The calls without an answer, under the script's names."""
        return tuple(sorted(self._labels.values()))

    # -- resolving names -------------------------------------------------------------------------------------------

    def _resolve(
        self, name: str, values: tuple[object, ...], named: dict[str, object]
    ) -> tuple[str, tuple[int, int], object]:
        """A call's label, its place and its arguments. Raises `AttributeError` and `TypeError` for the script."""
        if name == "call_tool":
            given = [*values, *[named.pop(word) for word in ("server", "tool")[len(values) :] if word in named]]
            if len(given) != 2 or not all(isinstance(value, str) for value in given):  # noqa: PLR2004 - server, tool
                raise TypeError("call_tool takes a server and a tool, and named arguments")
            label, place = self._find_tool(str(given[0]), str(given[1]))
            return label, place, named
        if name not in self._places:
            raise AttributeError(f"there is no function {name!r}")
        if len(values) == 1 and not named and isinstance(values[0], dict):
            return name, self._places[name], values[0]
        if values:
            raise TypeError(f"{name} takes named arguments, such as {name}(name=value)")
        return name, self._places[name], named

    def _find_tool(self, server: str, tool: str) -> tuple[str, tuple[int, int]]:
        for place, known in enumerate(self._servers):
            if server not in (known["name"], known["original"]):
                continue
            for spelling in ("name", "original"):
                for at, item in enumerate(known["tools"]):
                    if item[spelling] == tool:
                        return f"{known['name']}.{tool}", (place, at)
            tools = ", ".join(item["name"] for item in known["tools"])
            raise AttributeError(f"server {server!r} has no tool {tool!r}; it has: {tools}")
        servers = ", ".join(known["name"] for known in self._servers)
        raise AttributeError(f"there is no server {server!r}; there are: {servers}")

    # -- sending and receiving -------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send waiting calls, as far as the limits allow."""
        while self._waiting and len(self._running) < self._limits["inflight"]:
            number, body = self._waiting[0]
            if self._running and self._bytes + len(body) > self._limits["frame_bytes"]:
                return
            self._waiting.popleft()
            self.waiting_bytes -= len(body) - _CALL.size
            self._sent += 1
            self._running[self._sent] = (number, len(body))
            self._bytes += len(body)
            serve.write_frame(b"c" + _CALL.pack(self._sent, *_CALL.unpack_from(body)[1:]) + body[_CALL.size :])

    def _end_sleeps(self) -> None:
        """Settle the sleeps that are over."""
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._settled[number] = {"return_value": None}

    def _wait(self) -> None:
        """Wait for an answer or the end of a sleep, then read all answers that have arrived."""
        if not self._due and not self._running:
            raise RuntimeError("the script waits for nothing")
        if not serve.has_frame():
            left_s = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            if left_s is not None and not self._running:
                self._report_sleep(left_s)
            ready = [fd for fd, _ in self._poll.poll(None if left_s is None else left_s * 1000)]
            if not ready:
                return
            if serve.STDIN not in ready:
                raise InterpreterGone
        self._receive()
        while serve.has_frame():
            self._receive()

    def _report_sleep(self, seconds: float) -> None:
        """Report a sleep, at most once a second, so that the script does not count as stalled."""
        now = time.monotonic()
        if seconds >= 1 or now - self._sleep_reported_s >= 1:
            self._sleep_reported_s = now
            serve.write_frame(b"s" + _SLEEP.pack(int(seconds * 1000) + 1))

    def _receive(self) -> None:
        body = serve.read_frame()
        sent, ok = _ANSWER.unpack_from(body)
        number, size = self._running.pop(sent)
        self._bytes -= size
        text = body[_ANSWER.size :]
        label = self._labels.pop(number)
        self._settled[number] = _value(text, label) if ok else _failure(text, label)
        self._send()


def _value(text: bytes, label: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError:
        value, deep = None, True
    except ValueError:  # the gateway sends no other invalid JSON
        return _raised("RuntimeError", f"{label}: its answer holds a number with too many digits")
    else:
        deep = (
            text.count(b"[") + text.count(b"{") > _MAX_ANSWER_DEPTH
            and _depth_of(value, _MAX_ANSWER_DEPTH) > _MAX_ANSWER_DEPTH
        )
    if deep:
        return _raised("RuntimeError", f"{label}: its answer is nested too deep")
    return {"return_value": value}


def _failure(text: bytes, label: str) -> dict[str, Any]:
    return _raised("RuntimeError", f"{label}: {text.decode(errors='replace')}")


def _raised(kind: str, message: str) -> dict[str, Any]:
    return {"exc_type": kind, "message": message}


# -- bounded JSON --------------------------------------------------------------------------------------------------


class OutOfBounds(ValueError):
    """The value is too large, too deep, or not representable in JSON; the message begins with its path."""


def encode_bounded(value: object, root: str, limits: Mapping[str, int], calls: Mapping[int, str]) -> bytes:
    """The value as JSON. Raises `OutOfBounds`; a value shared a million times counts a million times.

    `calls` are the calls that were not awaited, by number: a value must not contain one.
    """
    copier = _BoundedCopy(root, limits, calls)
    text = json.dumps(copier.copy(value, ()), ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > limits["out_bytes"]:
        raise copier.too_large()
    return text


def _depth_of(value: object, most: int) -> int:
    """The nesting depth of plain JSON, counted no further than one level past `most`."""
    depth, level = 0, [value]
    while level and depth <= most:
        within: list[object] = []
        for item in level:
            if isinstance(item, dict):
                within.extend(item.values())
            elif isinstance(item, list):
                within.extend(item)
        if not within:
            break
        depth, level = depth + 1, within
    return depth


class _BoundedCopy:
    def __init__(self, root: str, limits: Mapping[str, int], calls: Mapping[int, str]) -> None:
        self._root = root
        self._calls = calls
        self._limits = limits
        self._nodes = 0
        self._bytes = 0

    def copy(self, value: object, path: tuple[str | int, ...]) -> Any:
        self._nodes += 1
        if self._nodes > self._limits["nodes"]:
            raise OutOfBounds(f"{self._root} is larger than {self._limits['nodes']} values")
        if value is None or isinstance(value, bool):
            self._count(4)
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int | float):
            return self._number(value, path)
        if len(path) >= self._limits["depth"] and isinstance(value, list | tuple | Mapping):
            raise self._wrong(path, f"is nested deeper than {self._limits['depth']} levels")
        if isinstance(value, Mapping):
            return {self._key(key, path): self.copy(item, (*path, str(key)[:60])) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, (*path, place)) for place, item in enumerate(value)]
        raise self._wrong(path, f"is {_type_name(value)}, which JSON cannot carry{_advice(value)}")

    def _text(self, value: str, path: tuple[str | int, ...]) -> str:
        if len(value) > self._limits["out_bytes"]:  # checked before encoding it
            raise self.too_large()
        if value.startswith("<"):
            self._check_repr(value, path)
        try:
            self._count(len(value.encode()) + 2)
        except UnicodeEncodeError:
            raise self._wrong(path, "is not valid Unicode; base64-encode binary data") from None
        return str(value)

    def _check_repr(self, value: str, path: tuple[str | int, ...]) -> None:
        """Refuse texts that stand for a call or a function: Monty sends what JSON cannot carry as its `repr`."""
        call = _FUTURE.fullmatch(value)
        if call and int(call[1]) in self._calls:
            raise self._wrong(
                path, f"is the call {self._calls[int(call[1])]}, which was not awaited; put await before it"
            )
        if _FUNCTION.fullmatch(value):
            raise self._wrong(path, "is a function or an object, which JSON cannot carry")

    def _number(self, value: float, path: tuple[str | int, ...]) -> int | float:
        if isinstance(value, int):
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise self._wrong(path, "is a number with too many digits; make it a string")
            self._count(value.bit_length() // 3 + 1)
            return int(value)
        if not isfinite(value):
            raise self._wrong(path, f"is {value}, which JSON cannot carry")
        self._count(16)
        return float(value)

    def _key(self, key: object, path: tuple[str | int, ...]) -> str:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise self._wrong(path, f"has a key that is a {type(key).__name__}; keys must be strings")
        if isinstance(key, int):
            return str(self._number(key, path))
        return self._text(key, path)

    def _count(self, size: int) -> None:
        self._bytes += size + 1
        if self._bytes > self._limits["out_bytes"]:
            raise self.too_large()

    def too_large(self) -> OutOfBounds:
        """The error for a value with too many bytes."""
        return OutOfBounds(f"{self._root} is larger than {self._limits['out_bytes']} bytes")

    def _wrong(self, path: tuple[str | int, ...], what: str) -> OutOfBounds:
        shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[:12])
        return OutOfBounds(f"{self._root}{shown}{'...' if len(path) > 12 else ''} {what}")  # noqa: PLR2004


def _advice(value: object) -> str:
    if isinstance(value, set | frozenset):
        return "; make it a list"
    if isinstance(value, bytes):
        return "; base64-encode binary data"
    return ""


def _type_name(value: object) -> str:
    """The value's type, without revealing the engine's own types."""
    name = type(value).__name__
    return "a function or an object" if name.startswith("Monty") else f"a {name}"
