"""Run one script in this process, and then exit.

The gateway sends what to run in one frame: four bytes of length, most significant first, then the body. From then on
the engine decides what the process may still do.
"""

import json
import os
import struct
from collections.abc import Callable
from typing import Any, Protocol

from . import lockdown

STDIN, STDOUT = 0, 1
LENGTH = struct.Struct(">I")
READY, BEGUN, UNSAFE, NOTE, FAILED = b"r", b"b", b"u", b"n", b"e"
"""The first byte of the frames that every engine sends."""
OUT_OF_MEMORY = 77
"""The exit status of a worker in which Python, not the script, ran out of memory."""
OUT_OF_TIME = 78
"""The exit status of a worker that had no room left to report that its script computed for too long."""
_CHUNK = 1 << 16


class WorkerEngine(Protocol):
    """An engine, set up as far as possible without a script. The process may be forked until `prepare`."""

    def prepare(self) -> None:
        """Set up what each process needs for itself."""

    def accept(self, job: dict[str, Any]) -> bytes:
        """Take the job without running any of it; returns what to append to the answer."""

    def lock(self, job: dict[str, Any]) -> str:
        """Give up what is not needed. Returns why the filter could not be installed, or an empty string."""

    def run(self, job: dict[str, Any]) -> None:
        """Run the script, and report how it ended."""


# -- frames --------------------------------------------------------------------------------------------------------

_buffer = bytearray()
"""Bytes read beyond the last frame."""


class Closed(Exception):
    """The other side closed its end."""


def read_frame() -> bytes:
    """The body of the next frame. Raises `Closed` at the end."""
    _fill(LENGTH.size)
    end = LENGTH.size + LENGTH.unpack_from(_buffer)[0]
    _fill(end)
    body = bytes(memoryview(_buffer)[LENGTH.size : end])
    del _buffer[:end]
    return body


def has_frame() -> bool:
    """Whether the next frame has arrived in full."""
    return len(_buffer) >= LENGTH.size and len(_buffer) >= LENGTH.size + LENGTH.unpack_from(_buffer)[0]


def write_frame(body: bytes) -> None:
    """Send one frame. Raises OSError when the other side is gone."""
    data = LENGTH.pack(len(body)) + body
    sent = os.write(STDOUT, data)
    while sent < len(data):
        sent += os.write(STDOUT, memoryview(data)[sent:])


def linger() -> None:
    """Wait to be killed: closing the socket with an answer unread would discard our own last frame."""
    while os.read(STDIN, _CHUNK):
        pass


def _fill(size: int) -> None:
    while len(_buffer) < size:
        part = os.read(STDIN, max(_CHUNK, size - len(_buffer)))
        if not part:
            raise Closed
        _buffer.extend(part)


# -- the worker ----------------------------------------------------------------------------------------------------


def main(make: Callable[[str], WorkerEngine], library: str, parent: int) -> None:
    """Be one worker of a pool: get ready, wait for the job, run it. Never returns."""
    lockdown.die_with(parent)
    serve(make(library))


def serve(engine: WorkerEngine) -> None:
    """Wait for a job and run it. Never returns."""
    status = 1
    try:
        engine.prepare()
        write_frame(READY)
        job = json.loads(read_frame())
        write_frame(BEGUN + engine.accept(job))
        status = _run(engine, job)
    finally:
        os._exit(status)


def _run(engine: WorkerEngine, job: dict[str, Any]) -> int:
    """Run the job; returns the exit status for this process."""
    try:
        if _lock(engine, job):
            engine.run(job)
        linger()
    except MemoryError:  # the base class of Lua's own
        return OUT_OF_MEMORY
    except (Closed, OSError):
        return 1
    except BaseException as error:  # noqa: BLE001 - this process ends here
        _report_crash(error)
        return 1
    return 0


def _lock(engine: WorkerEngine, job: dict[str, Any]) -> bool:
    """Whether the script may run: the filter is installed, or the job does not require it."""
    wish, reason = job["seccomp"], engine.lock(job)
    if reason:
        write_frame((UNSAFE if wish == "require" else NOTE) + reason.encode())
    return not reason or wish == "try"


def _report_crash(error: BaseException) -> None:
    details = {"kind": "crash", "message": f"{type(error).__name__}: {error}"[:1000], "traceback": "", "stage": "run"}
    try:
        write_frame(FAILED + json.dumps(details).encode())
        linger()
    except (OSError, MemoryError):
        return
