"""The calls of one Python script: which are under way, which wait for their turn, and what came back."""

import json
import select
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from . import bound, pipes

_CALL = struct.Struct(">IHH")
_ANSWER = struct.Struct(">IB")
_SLEEP = struct.Struct(">I")
_DEEPEST = 200
"""How deep an answer may be nested, as for every engine."""


class InterpreterGone(Exception):
    """Nobody is left to wait for an answer."""


class Calls:
    """Sends calls, as many at a time as is allowed, and keeps the answers until Monty wants them."""

    def __init__(
        self, servers: Sequence[Mapping[str, Any]], limits: Mapping[str, Any], watched: int | None = None
    ) -> None:
        """`servers` have `name`, `original` and `tools`, which have `name` and `original`.

        `watched` can be read once nobody is left to wait for an answer.
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
        """The calls whose answer nobody waited for yet, as the script named them, by Monty's number."""
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._under_way: dict[int, tuple[int, int]] = {}
        self._bytes = 0
        self._sent = 0
        self._settled: dict[int, dict[str, Any]] = {}
        self._due: dict[int, float] = {}
        self._poll = select.poll()
        self._poll.register(pipes.STDIN, select.POLLIN)
        self._watched = watched
        if watched is not None:
            self._poll.register(watched, select.POLLIN)
        self._said_s = 0.0
        self.waiting_bytes = 0
        """Of the calls that wait for their turn."""
        self.made = 0
        """How many calls the script has made."""

    def knows(self, name: str) -> bool:
        """Whether that is something of ours that a script may call."""
        return name == "call_tool" or name in self._places

    def make(self, name: str, number: int, values: tuple[object, ...], named: dict[str, object]) -> None:
        """Make a call, under Monty's number for it. What is wrong with it is told to whoever awaits it."""
        self.made += 1
        try:
            label, place, arguments = self._meant(name, values, named)
            text = bound.encoded(arguments, label, self._limits, self.open)
            self._labels[number] = self.open[number] = label
        except (AttributeError, TypeError) as error:
            self.open[number] = name
            self._settled[number] = _raised(type(error).__name__, str(error))
            return
        except bound.OutOfBounds as error:
            self.open[number] = label
            self._settled[number] = _raised("RuntimeError", str(error))
            return
        self._waiting.append((number, _CALL.pack(0, *place) + text))
        self.waiting_bytes += len(text)
        self._send()

    def slept(self, name: str, number: int, values: tuple[object, ...]) -> dict[str, Any] | None:
        """Sleep, or begin to; None when it is something else that is asked of the system."""
        if name not in ("system.sleep", "system.async_sleep"):
            return None
        seconds = values[0] if values else None
        if not isinstance(seconds, int | float) or not seconds >= 0:
            return _raised("ValueError", "sleep needs a number of seconds, 0 or more")
        seconds = min(seconds, self._limits["wall_s"])
        if name == "system.async_sleep":
            self._due[number] = time.monotonic() + seconds
            return {"future": ...}
        self._tell_of_sleep(seconds)
        time.sleep(seconds)
        return {"return_value": None}

    def settled(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What those calls gave that have ended, at least one of them. Raises `InterpreterGone`."""
        while True:
            self._wake()
            found = {number: self._settled.pop(number) for number in numbers if number in self._settled}
            if found:
                for number in found:
                    self.open.pop(number, None)
                return found
            self._wait()

    def unawaited(self) -> tuple[str, ...]:
        """The calls that are not answered yet, as the script named them."""
        return tuple(sorted(self._labels.values()))

    # -- what is meant ---------------------------------------------------------------------------------------------

    def _meant(
        self, name: str, values: tuple[object, ...], named: dict[str, object]
    ) -> tuple[str, tuple[int, int], object]:
        """Its label, its place and its arguments. Raises `AttributeError` and `TypeError` for the script."""
        if name == "call_tool":
            given = [*values, *[named.pop(word) for word in ("server", "tool")[len(values) :] if word in named]]
            if len(given) != 2 or not all(isinstance(value, str) for value in given):  # noqa: PLR2004 - server, tool
                raise TypeError("call_tool takes a server and a tool, and named arguments")
            label, place = self._named(str(given[0]), str(given[1]))
            return label, place, named
        if name not in self._places:
            raise AttributeError(f"there is no function {name!r}")
        if len(values) == 1 and not named and isinstance(values[0], dict):
            return name, self._places[name], values[0]
        if values:
            raise TypeError(f"{name} takes named arguments, such as {name}(name=value)")
        return name, self._places[name], named

    def _named(self, server: str, tool: str) -> tuple[str, tuple[int, int]]:
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

    # -- sending and hearing ---------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send those whose turn it is."""
        while self._waiting and len(self._under_way) < self._limits["inflight"]:
            number, body = self._waiting[0]
            if self._under_way and self._bytes + len(body) > self._limits["inflight_bytes"]:
                return
            self._waiting.popleft()
            self.waiting_bytes -= len(body) - _CALL.size
            self._sent += 1
            self._under_way[self._sent] = (number, len(body))
            self._bytes += len(body)
            pipes.write_frame(b"c" + _CALL.pack(self._sent, *_CALL.unpack_from(body)[1:]) + body[_CALL.size :])

    def _wake(self) -> None:
        """End the sleeps that are over."""
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._settled[number] = {"return_value": None}

    def _wait(self) -> None:
        """Until an answer comes, or the next sleep is over; then hear all that is there."""
        if not self._due and not self._under_way:
            raise RuntimeError("the script waits for nothing")
        if not pipes.has_frame():
            left_s = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            if left_s is not None and not self._under_way:
                self._tell_of_sleep(left_s)
            ready = [fd for fd, _ in self._poll.poll(None if left_s is None else left_s * 1000)]
            if not ready:
                return
            if pipes.STDIN not in ready:
                raise InterpreterGone
        self._hear()
        while pipes.has_frame():
            self._hear()

    def _tell_of_sleep(self, seconds: float) -> None:
        """So that nobody takes it for a script that hangs; not more often than once a second."""
        now = time.monotonic()
        if seconds >= 1 or now - self._said_s >= 1:
            self._said_s = now
            pipes.write_frame(b"s" + _SLEEP.pack(int(seconds * 1000) + 1))

    def _hear(self) -> None:
        body = pipes.read_frame()
        sent, ok = _ANSWER.unpack_from(body)
        number, size = self._under_way.pop(sent)
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
    except ValueError:  # all else is what the gateway never sends
        return _raised("RuntimeError", f"{label}: its answer holds a number with too many digits")
    else:
        deep = text.count(b"[") + text.count(b"{") > _DEEPEST and bound.depth_of(value, _DEEPEST) > _DEEPEST
    if deep:
        return _raised("RuntimeError", f"{label}: its answer is nested too deep")
    return {"return_value": value}


def _failure(text: bytes, label: str) -> dict[str, Any]:
    return _raised("RuntimeError", f"{label}: {text.decode(errors='replace')}")


def _raised(kind: str, message: str) -> dict[str, Any]:
    return {"exc_type": kind, "message": message}
