"""Monty for one Python script: its client in this process, its interpreter in another one below, which is confined.

What a script gives arrives here as real objects, and goes on as bounded JSON: nothing that Monty sends reaches the
gateway, whatever its process has become.
"""

import json
import os
import struct
import sys
from importlib import import_module
from typing import Any

from . import launch, lockdown, seccomp
from .monty_script import Script, Session

_PID = struct.Struct(">I")
_GRACE_S = 1
_USED_LATER = ("decimal", "uuid", "zoneinfo", "fractions", "ipaddress", "encodings.idna")
"""What the client may ask for when it meets such a value, at a time when no file can be opened any more."""


class Engine:
    """Monty's client loaded and nothing started yet."""

    def __init__(self, library: str) -> None:
        """`library` is JSON: the folders to import from, the program of the interpreter, and what most jobs have."""
        given = json.loads(library)
        before = list(sys.path)
        sys.path.extend(given["paths"])
        self._monty = import_module("pydantic_monty")
        for name in _USED_LATER:
            import_module(name)
        sys.path[:] = before
        self._program = given["program"]
        self._usual = given["usual"]
        self._pool: Any = None
        self._session: Session | None = None
        self._script: Script | None = None
        self._pid: int | None = None
        self._filter = b""

    def prepare(self) -> None:
        """Start the interpreter."""
        lockdown.confine()  # before there are other threads
        self._filter = seccomp.made(launch.client)
        self._pool = self._monty.Monty(
            binary_path=self._program,
            min_processes=1,
            max_processes=1,
            max_checkouts_per_worker=2,
            feed_duration_limit_grace=_GRACE_S,
        )
        self._pool.__enter__()
        self._session = Session(self._monty, self._pool, self._usual)
        self._session.warm()

    def accept(self, job: dict[str, Any]) -> bytes:
        """Take the job; the number of the interpreter's process."""
        if self._session is None or not self._session.fits(job):
            self._session = self._again(job)
        elif not self._session.is_alive():
            raise ProcessLookupError("the interpreter ended while it waited")
        self._pid = self._session.feed.worker_pid
        self._script = Script(self._session, job, self._watched())
        return _PID.pack(self._pid or 0)

    def _again(self, job: dict[str, Any]) -> Session:
        """A session for that job, in the process of the one before, which has run nothing."""
        if self._session is not None:
            self._session.close()
        return Session(self._monty, self._pool, job)

    def _watched(self) -> int | None:
        """What can be read once the interpreter has ended; None where the system has nothing like it."""
        if sys.platform != "linux" or not self._pid:
            return None
        try:
            return os.pidfd_open(self._pid)
        except OSError:
            return None

    def lock(self, job: dict[str, Any]) -> str:
        """Bound both processes; the interpreter's is behind its filter since it began, this one goes behind its own."""
        if sys.platform == "win32":
            return seccomp.missing()
        limits, resource = job["limits"], import_module("resource")
        if sys.platform == "linux" and self._pid:
            resource.prlimit(
                self._pid, resource.RLIMIT_CPU, (limits["cpu_s"] + _GRACE_S, limits["cpu_s"] + _GRACE_S + 1)
            )
        lockdown.limit_always(threads=True)
        lockdown.limit(memory=limits["as_bytes"], cpu_s=limits["cpu_s"] + _GRACE_S)
        return "" if job["seccomp"] == "off" else seccomp.apply(self._filter, threads=True)

    def run(self, job: dict[str, Any]) -> None:
        """Run the script."""
        del job
        if self._script is not None:
            self._script.run()
