"""One script's conversation with its worker: calls and answers, printed text, and how the script ended.

The worker is never trusted, since a script may have taken it over: a message that no worker sends ends the process.

Both sides send frames: four bytes of length, most significant first, then the body. To the worker goes the job, as
JSON, then the answers: four bytes of the call's number, one byte 1 or 0 for success, then the value as JSON or the
error as text. From the worker come, by the first byte of the body:

    r   ready                                             b   job received; 4 bytes may give the computing process
    n   a warning, as text                                p   printed bytes
    u   refuses to run: the reason, as text               s   sleeping: for how many milliseconds (4 bytes)
    c   a call: number (4 bytes), server (2), tool (2),   v   the value, as JSON
        then the arguments as JSON                        d   done: JSON
                                                          e   failed: JSON

Bytes, nesting and number of values are checked before JSON from a worker becomes Python objects.
"""

import asyncio
import logging
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from toolcrib.errors import SandboxUnavailable
from toolcrib.sandbox.calls import CallFailed, Pauses, ScriptCalls, fix_empty_arrays
from toolcrib.sandbox.frames import (
    CALL_HEADER,
    LENGTH,
    PID,
    SLEEP,
    AnswerTooLarge,
    ProtocolError,
    dumps,
    encode_frame,
    is_small,
    load_object,
    loads,
    max_frame_sizes,
    measure_answer,
    read_frame,
    read_json,
)
from toolcrib.sandbox.languages import ScriptLanguage, ServerNames, hint_for
from toolcrib.sandbox.limits import Limits
from toolcrib.sandbox.process import ScriptProcess, cpu_seconds
from toolcrib.sandbox.result import FailureKind, ScriptError, ScriptResult, script_error, suggestions_for
from toolcrib.types import JSON, Object

ANSWER_HEADER: Final = struct.Struct(">IB")
_log = logging.getLogger(__name__)
_EXITS: Final[Mapping[int, FailureKind]] = {0: "protocol", 77: "memory", 78: "cpu"}
"""What the exit status of a worker means; see `worker/serve.py`."""
_MAX_DETAIL_NODES: Final = 100
"""Values in the details of the end, besides the names of calls."""
_FRAMES_PER_TURN: Final = 64
"""After so many frames other tasks get a turn."""
_MAX_SLEEPS_PER_S: Final = 10
"""More than any worker of ours reports, which is one."""
_MAX_LINE: Final = 1 << 20
_BUSY_CPU_SHARE: Final = 0.05
"""A silent process that uses more of the time than this is computing; its processor limit will end it."""
_FAILURE_MESSAGES: Final[dict[FailureKind, str]] = {
    "cpu": "the script used more processor time than it may: {limits.soft_cpu_s:g} seconds, or {limits.cpu_s:g} "
    "where it cannot be interrupted",
    "wall": "the script did not end within {limits.wall_s:g} seconds",
    "stall": "the script gave no sign of life for {limits.stall_s:g} seconds",
    "memory": "the script used more memory than its process may have",
    "calls": "the script made more than {limits.calls} tool calls",
    "seccomp": "the script's process tried a forbidden system call and was ended",
    "killed": "the script's process was ended from outside",
    "crash": "the script's process crashed",
    "protocol": "the script's process broke the protocol and was ended",
}


class WorkerLost(Exception):
    """The worker was lost before it took the job: nothing ran, so another worker can take it."""


class _WallLimit:
    """Calls back after so many seconds, those in pauses not counted."""

    def __init__(self, seconds: float, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._left_s = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._left_s, self._callback)

    def pause(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._left_s = self._timer.when() - self._loop.time()
            self._timer = None

    async def resume(self) -> None:
        """Let the clock run on."""
        self._start()


class Conversation:
    """Everything exchanged with one worker, from the job to the end."""

    def __init__(
        self,
        worker: ScriptProcess,
        calls: ScriptCalls,
        limits: Limits,
        servers: Mapping[str, ServerNames],
        schemas: Mapping[str, Mapping[str, Object]],
        *,
        language: ScriptLanguage,
        source: str,
        pauses: Pauses,
    ) -> None:
        """`schemas` are input schemas by server and tool, under their original names; any may be missing."""
        self._pauses = pauses
        self._worker = worker
        self._language = language
        self._source = source
        self._computing_pid = worker.process.pid
        self._calls = calls
        self._limits = limits
        self._suggestable = {name: list(names.tools) for name, names in servers.items()}
        self._servers = [(names.original, list(names.tools.items())) for names in servers.values()]
        self._schemas = schemas if language.confuses_empty else {}
        self._printed = bytearray()
        self._pending: dict[int, int] = {}
        self._started = 0
        self._sent = 0
        self._sleep_count = 0
        self._answers: deque[int] = deque()
        self._sending = asyncio.Lock()
        self._value: JSON = None
        self._has_value = False
        self._warnings: list[str] = []
        self._verdict: FailureKind | None = None
        self._last_activity = 0.0
        self._has_job = False

    async def run(self, job: bytes) -> ScriptResult:
        """Send the job and handle frames until the end. Raises `ScriptError`, `SandboxUnavailable` and `WorkerLost`."""
        wall = _WallLimit(self._limits.wall_s, partial(self._kill, "wall"))
        self._last_activity = time.monotonic()
        stall = self._calls.spawn(self._watch_for_stall())
        try:
            self._sent = len(job) + LENGTH.size
            self._worker.writer.write(encode_frame(job))
            with self._pauses.affect(wall):
                return await self._listen()
        except ProtocolError as error:
            _log.warning("A script's process broke the protocol: %s", error)
            await self._worker.close()
            raise self._failure(self._verdict or "protocol") from error
        except EOFError:
            if not self._has_job and self._verdict is None:
                raise WorkerLost from None
            raise self._failure(self._verdict or _kind_of_exit(await self._worker.close(), self._language)) from None
        finally:
            wall.pause()
            stall.cancel()

    # -- frames ----------------------------------------------------------------------------------------------------

    async def _listen(self) -> ScriptResult:
        allowed, count = max_frame_sizes(self._limits), 0
        while True:
            count += 1
            kind, body = await read_frame(self._worker.reader, allowed)
            if count % _FRAMES_PER_TURN == 0:  # frames that have arrived are read without suspending
                await asyncio.sleep(0)
            if self._verdict is not None:
                raise EOFError
            self._last_activity = time.monotonic()
            if (kind == b"b") is self._has_job:
                raise ProtocolError(f"a frame of kind {kind!r} out of turn")
            if kind == b"d":
                return self._finish(await read_json(body, self._details))
            await self._handle(kind, body)

    async def _handle(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"b":
                self._has_job = True
                if len(body) == PID.size:
                    self._computing_pid = PID.unpack(body)[0]
            case b"c":
                await self._start_call(body)
            case b"p":
                self._print(body)
            case b"s":
                self._extend_for_sleep(body)
            case b"n":
                self._warn(f"The sandbox is weaker than it should be: {body.decode(errors='replace')}.")
            case b"u":
                raise _not_confined(body.decode(errors="replace"))
            case b"v":
                await self._keep_value(body)
            case b"e":
                raise self._failed(await read_json(body, self._details))
            case _:
                raise ProtocolError(f"a frame of kind {kind!r} in the middle")

    def _print(self, body: bytes) -> None:
        if not body or len(self._printed) + len(body) > self._limits.print_bytes:
            raise ProtocolError("printed text that is empty, or more than is allowed")
        self._printed += body

    def _extend_for_sleep(self, body: bytes) -> None:
        """A sleeping script is silent, but has not stalled."""
        self._sleep_count += 1
        if len(body) != SLEEP.size or self._sleep_count > _MAX_SLEEPS_PER_S * (self._limits.wall_s + 1):
            raise ProtocolError("a sleep of no length, or too many")
        self._last_activity += min(SLEEP.unpack(body)[0] / 1000, self._limits.wall_s)

    def _warn(self, text: str) -> None:
        if self._warnings:
            raise ProtocolError("more than one warning")
        self._warnings.append(text)
        _log.warning("%s", text)

    async def _keep_value(self, body: bytes) -> None:
        if self._has_value:
            raise ProtocolError("more than one value")
        self._value = await read_json(body, partial(loads, nodes=self._limits.nodes))
        self._has_value = True

    # -- calls -----------------------------------------------------------------------------------------------------

    async def _start_call(self, body: bytes) -> None:
        if len(body) < CALL_HEADER.size:
            raise ProtocolError("half a call")
        number, server, tool = CALL_HEADER.unpack_from(body)
        text = body[CALL_HEADER.size :]
        self._check_call(number, len(text))
        try:
            original, tools = self._servers[server]
            _, name = tools[tool]
        except IndexError:
            raise ProtocolError(f"a call to tool {tool} of server {server}") from None
        schema = self._schemas.get(original, {}).get(name)
        arguments = await read_json(text, partial(_parse_arguments, nodes=self._limits.nodes, schema=schema))
        if self._verdict is not None:
            raise EOFError
        self._pending[number] = len(text)
        self._started = number
        self._calls.spawn(self._answer(number, original, name, arguments))

    def _check_call(self, number: int, size: int) -> None:
        """Check what every worker of ours does: count its calls, and limit how many run at once."""
        limits = self._limits
        if number > limits.calls:
            self._kill("calls")
            raise EOFError
        if number != self._started + 1:
            raise ProtocolError(f"call {number} out of turn")
        if len(self._pending) + self._unread_answers() >= limits.inflight:
            raise ProtocolError(f"more than {limits.inflight} calls at once")
        if self._pending and sum(self._pending.values()) + size > limits.frame_bytes:
            raise ProtocolError("too many bytes of arguments at once")

    async def _answer(self, number: int, server: str, tool: str, arguments: dict[str, Any]) -> None:
        limits = self._limits
        try:
            value = await self._calls.call(server, tool, arguments)
            if not await is_small(value):
                async with self._sending:
                    await measure_answer(value, most=limits.response_bytes, values=limits.nodes)
                    self._reply(number, ok=True, body=self._encode(value))
                    self._last_activity = time.monotonic()
                    await self._worker.writer.drain()
                return
            ok, body = True, self._encode(value)
        except CallFailed as error:
            ok, body = False, self._truncate(str(error))
        except AnswerTooLarge as error:
            ok, body = False, f"its answer is larger than {error}".encode()
        except ConnectionError:
            return
        except Exception:  # noqa: BLE001 - the value is the tool's, and reading it may raise anything
            ok, body = False, b"its answer cannot be represented in JSON"
        self._reply(number, ok=ok, body=body)

    def _encode(self, value: JSON) -> bytes:
        """The answer as JSON, escapes included. Raises `AnswerTooLarge`, and as `dumps` does."""
        body = dumps(value)
        if len(body) > self._limits.response_bytes:
            raise AnswerTooLarge(f"{self._limits.response_bytes} bytes")
        return body

    def _reply(self, number: int, *, ok: bool, body: bytes) -> None:
        """Send an answer. Until it has left the buffer, it counts as a running call."""
        self._pending.pop(number)
        answer = encode_frame(ANSWER_HEADER.pack(number, ok) + body)
        self._sent += len(answer)
        self._answers.append(self._sent)
        with suppress(ConnectionError):
            self._worker.writer.write(answer)

    def _unread_answers(self) -> int:
        """How many answers are still in our buffer. The worker has not read them, so they count as running calls."""
        gone = self._sent - self._worker.writer.transport.get_write_buffer_size()
        while self._answers and self._answers[0] <= gone:
            self._answers.popleft()
        return len(self._answers)

    def _truncate(self, text: str) -> bytes:
        data = text.encode(errors="replace")
        limit = self._limits.error_bytes
        return data if len(data) <= limit else data[:limit].decode(errors="ignore").encode() + "…".encode()

    # -- the end ---------------------------------------------------------------------------------------------------

    def _details(self, text: bytes) -> dict[str, Any]:
        return load_object(text, nodes=_MAX_DETAIL_NODES + self._limits.calls)

    def _finish(self, details: dict[str, Any]) -> ScriptResult:
        if (details.get("has_value") is True) != self._has_value:
            raise ProtocolError("a value that was not sent")
        unawaited = _string_list(details.get("unawaited"))
        warnings = [f"{name} was called and never awaited; {self._language.await_hint}." for name in unawaited[:10]]
        if details.get("cut") is True:
            warnings.append(f"Printed text was cut after {self._limits.print_bytes} bytes.")
        return ScriptResult(
            value=self._value,
            has_value=self._has_value,
            printed=self._printed_text(),
            unawaited=unawaited,
            warnings=(*self._warnings, *warnings),
            stats=_reported_stats(details.get("cpu_s")),
        )

    def _failed(self, details: dict[str, Any]) -> ScriptError:
        kind, message, trace = (details.get(name) for name in ("kind", "message", "traceback"))
        line = _line_number(details.get("line"))
        if (
            not isinstance(message, str)
            or not isinstance(trace, str)
            or kind not in ("script", "memory", "cpu", "calls", "killed", "crash")
        ):
            raise ProtocolError("an error without its parts")
        return script_error(
            kind,
            message,
            line=line,
            traceback=trace,
            printed=self._printed_text(),
            hint=hint_for(message, self._source, self._language),
            suggestions=suggestions_for(message, self._suggestable),
            refused=details.get("stage") == "syntax",
        )

    def _failure(self, kind: FailureKind) -> ScriptError:
        return script_error(kind, _FAILURE_MESSAGES[kind].format(limits=self._limits), printed=self._printed_text())

    def _printed_text(self) -> str:
        return self._printed.decode(errors="replace")

    def _kill(self, kind: FailureKind) -> None:
        """End the worker; the script's error will have that kind."""
        if self._verdict is None:
            self._verdict = kind
            self._worker.process.kill()

    async def _watch_for_stall(self) -> None:
        """End a worker that is silent, waits for no call and does not compute."""
        limit, cpu = self._limits.stall_s, 0.0
        while True:
            quiet_s = time.monotonic() - max(self._last_activity, self._calls.changed)
            if self._calls.running or quiet_s < limit:
                await asyncio.sleep(limit if self._calls.running else limit - quiet_s)
                continue
            used = cpu_seconds(self._computing_pid)
            if used is None or used - cpu < _BUSY_CPU_SHARE * limit:
                self._kill("stall")
                return
            cpu, self._last_activity = used, time.monotonic()


def _parse_arguments(text: bytes, *, nodes: int, schema: Object | None) -> dict[str, Any]:
    given = load_object(text, nodes=nodes)
    return given if schema is None else fix_empty_arrays(given, schema)


def _kind_of_exit(status: int | None, language: ScriptLanguage) -> FailureKind:
    """What it means that a process ended without a last frame."""
    if status is None:
        return "killed"
    if status >= 0:
        return _EXITS.get(status, "crash")
    if sys.platform == "win32":
        return "crash"
    kinds: dict[int, FailureKind] = {
        signal.SIGXCPU: "cpu",
        signal.SIGSYS: "seccomp",
        signal.SIGKILL: "killed",
        signal.SIGTERM: "killed",
        signal.SIGINT: "killed",
        signal.SIGABRT: "memory" if language.aborts_without_memory else "crash",
    }
    return kinds.get(-status, "crash")


def _not_confined(reason: str) -> SandboxUnavailable:
    return SandboxUnavailable(
        f"Scripts are not run here: {reason}.",
        hint='Set sandbox.seccomp to "try" to run them with the other protections and a warning, or to "off".',
    )


def _string_list(value: JSON) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ProtocolError("not a list of strings")
    return tuple(value)


def _reported_stats(cpu_s: JSON) -> dict[str, Any]:
    """The processor time that the worker reports, if it is plausible."""
    return {"cpu_s": float(cpu_s)} if isinstance(cpu_s, int | float) and 0 <= cpu_s <= _MAX_LINE else {}


def _line_number(value: JSON) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MAX_LINE
    return value if known else None
