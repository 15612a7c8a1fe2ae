"""One script in this process, which then ends.

The gateway says what to run in one frame. What the process may still do from then on is the engine's to decide.
"""

import json
import os
from collections.abc import Callable
from typing import Any, Protocol

from . import lockdown, pipes

READY, BEGUN, UNSAFE, NOTE, FAILED = b"r", b"b", b"u", b"n", b"e"
"""The first byte of those frames that are the same for each engine."""


class Engine(Protocol):
    """A language, with all made ready that can be before a script is known. It may be forked until `prepare`."""

    def prepare(self) -> None:
        """Make ready what each process needs for itself."""

    def accept(self, job: dict[str, Any]) -> bytes:
        """Take the job, and run nothing of it; what is to be said with the answer."""

    def lock(self, job: dict[str, Any]) -> str:
        """Give up what is not needed; why the filter could not be had where it is wanted, or an empty text."""

    def run(self, job: dict[str, Any]) -> None:
        """Run the script, and say how it ended."""


def main(make: Callable[[str], Engine], library: str, parent: int) -> None:
    """Be one worker of a pool: get ready, wait for the job, run it. Never returns."""
    lockdown.die_with(parent)
    serve(make(library))


def serve(engine: Engine) -> None:
    """Wait for a job and run it. Never returns."""
    status = 1
    try:
        engine.prepare()
        pipes.write_frame(READY)
        job = json.loads(pipes.read_frame())
        pipes.write_frame(BEGUN + engine.accept(job))
        status = _run(engine, job)
    finally:
        os._exit(status)


def _run(engine: Engine, job: dict[str, Any]) -> int:
    """Run it; the exit status for this process."""
    try:
        if _locked(engine, job):
            engine.run(job)
        pipes.linger()
    except MemoryError:  # Lua's own is a kind of it
        return pipes.OUT_OF_MEMORY
    except (pipes.Closed, OSError):
        return 1
    except BaseException as error:  # noqa: BLE001 - the last frame of a process that ends here
        _last_words(error)
        return 1
    return 0


def _locked(engine: Engine, job: dict[str, Any]) -> bool:
    """Whether the script may run: the filter is in place, or may be missing."""
    wish, reason = job["seccomp"], engine.lock(job)
    if reason:
        pipes.write_frame((UNSAFE if wish == "require" else NOTE) + reason.encode())
    return not reason or wish == "try"


def _last_words(error: BaseException) -> None:
    said = {"kind": "crash", "message": f"{type(error).__name__}: {error}"[:1000], "traceback": "", "stage": "run"}
    try:
        pipes.write_frame(FAILED + json.dumps(said).encode())
        pipes.linger()
    except (OSError, MemoryError):
        return
