"""Run one Python script with Monty: its client is in this process, its interpreter in a confined one below.

The interpreter is never trusted: the values that it sends become bounded JSON here, so that nothing it produces reaches
the gateway directly. Monty stops at each call, name and `await` that it cannot resolve by itself, and continues with
what it is given.
"""

import json
import os
import re
import struct
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from . import launch, lockdown, seccomp, serve
from .monty_calls import InterpreterGone, MontyCalls, OutOfBounds, encode_bounded
from .monty_check import needs_checker, refusals

_PID = struct.Struct(">I")
_GRACE_S = 1
_USED_LATER = ("decimal", "uuid", "zoneinfo", "fractions", "ipaddress", "encodings.idna")
"""Modules that the client imports when it meets such a value, when no file can be opened any more."""
_FILE = "script"
_CHECK_S = 0.05
_TRACE_LINES = 40
_KILLED = "the script's process was ended from outside"
_INPUT = re.compile(r'File "<python-input-\d+>"')
"""How Monty names the script, and everything fed before it."""


class MontyEngine:
    """Monty's client, imported; the interpreter starts in `prepare`."""

    def __init__(self, library: str) -> None:
        """`library` is JSON: folders to import from (`paths`), the interpreter's `program`, and the `usual` job."""
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
        self._session: MontySession | None = None
        self._script: MontyScript | None = None
        self._pid: int | None = None
        self._filter = b""

    def prepare(self) -> None:
        """Build the filter and start the interpreter, with a session for the usual job."""
        lockdown.confine()  # before there are other threads
        self._filter = seccomp.build(launch.client)
        self._pool = self._monty.Monty(
            binary_path=self._program,
            min_processes=1,
            max_processes=1,
            max_checkouts_per_worker=2,
            feed_duration_limit_grace=_GRACE_S,
        )
        self._pool.__enter__()
        self._session = MontySession(self._monty, self._pool, self._usual)
        self._session.warm()

    def accept(self, job: dict[str, Any]) -> bytes:
        """Take the job; returns the id of the interpreter's process."""
        if self._session is None or not self._session.fits(job):
            self._session = self._new_session(job)
        elif not self._session.is_alive():
            raise ProcessLookupError("the interpreter ended while it waited")
        self._pid = self._session.feed.worker_pid
        self._script = MontyScript(self._session, job, self._open_pidfd())
        return _PID.pack(self._pid or 0)

    def _new_session(self, job: dict[str, Any]) -> "MontySession":
        """A session for that job, in the same process; the session before it has run nothing."""
        if self._session is not None:
            self._session.close()
        return MontySession(self._monty, self._pool, job)

    def _open_pidfd(self) -> int | None:
        """A descriptor that becomes readable when the interpreter ends; None where there is none."""
        if sys.platform != "linux" or not self._pid:
            return None
        try:
            return os.pidfd_open(self._pid)
        except OSError:
            return None

    def lock(self, job: dict[str, Any]) -> str:
        """Limit both processes, and install the filter of this one; the interpreter has had its own from the start."""
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
        del job
        if self._script is not None:
            self._script.run()


class MontySession:
    """A session of Monty's, opened and warmed up before the script is known."""

    def __init__(self, monty: Any, pool: Any, job: Mapping[str, Any]) -> None:
        """A session depends on the `limits`, `check` and `stub` of a job."""
        self.modules: dict[str, Any] = {}
        self._key = _key(job)
        seconds, memory, suspensions, stub = self._key
        self._context = pool.checkout(
            script_name=_FILE,
            limits={"max_feed_duration_secs": seconds, "max_memory": memory, "max_suspensions": suspensions},
            type_check=True,
            type_check_stubs=stub,
            type_check_format="concise",
            external_modules=self.modules,
        )
        self.monty = monty
        self.feed = self._context.__enter__()

    def fits(self, job: Mapping[str, Any]) -> bool:
        """Whether this session suits the job."""
        return self._key == _key(job)

    def warm(self) -> None:
        """Do once what scripts do: the first time takes five times as long as the second."""
        snapshot = self.feed.feed_start("await _()", external_lookup={"_": _host_function}, skip_type_check=True)
        snapshot = snapshot.resume_auto() if isinstance(snapshot, self.monty.NameLookupSnapshot) else snapshot
        snapshot = snapshot.resume({"future": ...})
        snapshot.resume({snapshot.pending_call_ids[0]: {"return_value": None}})

    def is_alive(self) -> bool:
        """Whether the interpreter answers."""
        try:
            self.feed.feed_run("None", skip_type_check=True)
        except self.monty.MontyError:
            return False
        return True

    def close(self) -> None:
        """End the session."""
        self._context.__exit__(None, None, None)


def _key(job: Mapping[str, Any]) -> tuple[float, int, int, str]:
    limits = job["limits"]
    seconds = _CHECK_S if job["check"] else min(limits["soft_cpu_s"], limits["cpu_s"])
    return seconds, limits["lua_bytes"], 20 * limits["calls"] + 10_000, job["stub"]


class MontyScript:
    """A script in a session."""

    def __init__(self, session: MontySession, job: Mapping[str, Any], pidfd: int | None) -> None:
        """`pidfd` becomes readable when the interpreter ends, where the system has that."""
        self._monty = session.monty
        self._session = session.feed
        self._modules = session.modules
        self._job = job
        self._limits = job["limits"]
        self._servers = job["servers"]
        self._calls = MontyCalls(job["servers"], job["limits"], pidfd)
        self._result: list[object] = []
        self._room = self._limits["print_bytes"]
        self._cut = False

    def run(self) -> None:
        """Run the script, or only check it, and report how it ended."""
        try:
            if self._job["check"]:
                self._check()
            else:
                self._finish(self._drive(self._start()))
        except _CheckFailed as error:
            self._fail("script", error.message, line=error.line, stage="syntax")
        except _OverLimit as error:
            self._fail(error.kind, error.message, line=error.line)
        except OutOfBounds as error:
            self._fail("script", str(error))
        except self._monty.MontySyntaxError as error:
            self._fail_with(error, "script", stage="syntax")
        except self._monty.MontyCrashedError as error:
            self._fail(*self._crash(error))
        except InterpreterGone:
            self._fail("killed", _KILLED)
        except self._monty.MontyError as error:
            self._fail_with(error, _failure_kind(str(error)))

    # -- feeding ---------------------------------------------------------------------------------------------------

    def _start(self) -> Any:
        """Start the script; returns the first place where it stops."""
        checked, names = self._is_checked(), ", ".join(server["name"] for server in self._servers)
        self._modules.update({server["name"]: self._module(server) for server in self._servers})
        if names:
            self._session.feed_run(f"import {names}", skip_type_check=not checked)
        own = {
            "external_lookup": {"result": _host_function, "call_tool": _host_function},
            "print_callback": self._print,
        }
        try:
            return self._session.feed_start(self._job["source"], **own, skip_type_check=not checked)
        except self._monty.MontyTypingError as error:
            found = refusals(str(error), [server["name"] for server in self._servers])
            if found:
                message = "\n".join(f"{_FILE}:{item.line}: {item.message}" for item in found[:5])
                raise _CheckFailed(message, found[0].line) from None
        return self._session.feed_start(self._job["source"], **own, skip_type_check=True)

    def _is_checked(self) -> bool:
        """Whether the type checker looks at the script: always in a check, else where it might refuse something."""
        checked: bool = self._job["checked"]
        return checked and (self._job["check"] or needs_checker(self._job["source"], self._servers))

    def _module(self, server: Mapping[str, Any]) -> Any:
        functions = {tool["name"]: _host_function for tool in server["tools"]}
        return self._monty.ExternalModule(functions, stubs=server["stub"])

    def _check(self) -> None:
        """Run what comes before the first call, briefly: Monty has no other way to parse a script."""
        try:
            self._start()
        except self._monty.MontySyntaxError:
            raise
        except self._monty.MontyError:
            pass  # it parses, and a check does not ask how it would fail
        self._end(has_value=False, unawaited=())

    # -- driving ---------------------------------------------------------------------------------------------------

    def _drive(self, snapshot: Any) -> object:
        """Answer the script until it is complete; returns its value."""
        monty = self._monty
        while not isinstance(snapshot, monty.MontyComplete):
            if isinstance(snapshot, monty.FutureSnapshot):
                snapshot = snapshot.resume(self._calls.settled(snapshot.pending_call_ids))
            elif isinstance(snapshot, monty.FunctionSnapshot):
                answer = self._answer(snapshot)
                snapshot = snapshot.resume_auto() if answer is None else snapshot.resume(answer)
            else:
                snapshot = snapshot.resume_auto()
        value: object = snapshot.output
        return value

    def _answer(self, call: Any) -> dict[str, Any] | None:
        """What a call returns immediately; None if Monty resolves the name itself."""
        name = call.function_name
        if call.is_os_function:
            return self._calls.sleep(name, call.call_id, call.args)
        if name == "result":
            return self._keep_result(call.args, call.kwargs)
        if not self._calls.knows(name):
            return None  # Monty asks about every undefined name that is called
        if self._calls.made == self._limits["calls"]:
            message = f"the script made more than {self._limits['calls']} tool calls"
            raise _OverLimit("calls", message, self._line(call.position))
        self._calls.make(name, call.call_id, call.args, call.kwargs)
        if self._calls.waiting_bytes > self._limits["lua_bytes"]:
            message = f"the calls that wait for their turn hold more than {self._limits['lua_bytes']} bytes"
            raise _OverLimit("memory", message, self._line(call.position))
        return {"future": ...}

    def _keep_result(self, values: tuple[object, ...], named: dict[str, object]) -> dict[str, Any]:
        given = [*values, *named.values()]
        if len(given) > 1 or named.keys() - {"value"}:
            return {"exc_type": "TypeError", "message": "result() takes one value"}
        self._result[:] = given or [None]
        return {"return_value": None}

    def _line(self, position: Any) -> int | None:
        source: bytes = self._job["source"].encode()
        return source[: position.start].count(b"\n") + 1 if position.filename.startswith("<python-input") else None

    def _print(self, _stream: str, text: str) -> None:
        data = text[: self._room + 1].encode(errors="replace")
        self._cut = self._cut or len(data) > self._room
        kept = data[: self._room].decode(errors="ignore").encode()
        self._room = 0 if self._cut else self._room - len(kept)
        if kept:
            serve.write_frame(b"p" + kept)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _finish(self, value: object) -> None:
        chosen = self._result[0] if self._result else value
        has_value = bool(self._result) or value is not None
        text = encode_bounded(chosen, "result", self._limits, self._calls.open)
        if has_value:
            serve.write_frame(b"v" + text)
        self._end(has_value=has_value, unawaited=self._calls.unawaited())

    def _end(self, *, has_value: bool, unawaited: tuple[str, ...]) -> None:
        details = {"has_value": has_value, "unawaited": unawaited, "cut": self._cut}
        serve.write_frame(b"d" + json.dumps(details).encode())

    def _fail_with(self, error: Any, kind: str, *, stage: str = "run") -> None:
        frames = error.traceback() if hasattr(error, "traceback") else []
        line = int(frames[-1].line) if frames else None
        message = str(error)
        if kind == "cpu":
            message = f"the script computed for more than {self._job['limits']['soft_cpu_s']} seconds of processor time"
        self._fail(kind, message, line=line, traceback=self._trace(error), stage=stage)

    def _fail(
        self, kind: str, message: str, *, line: int | None = None, traceback: str = "", stage: str = "run"
    ) -> None:
        details = {
            "kind": kind,
            "message": _truncate(message, self._limits["error_bytes"]),
            "line": line,
            "traceback": traceback,
            "stage": stage,
        }
        serve.write_frame(b"e" + json.dumps(details, ensure_ascii=False).encode(errors="replace"))

    def _trace(self, error: Any) -> str:
        lines = error.display().splitlines() if hasattr(error, "display") else []
        if len(lines) > _TRACE_LINES:
            half = _TRACE_LINES // 2
            lines = [*lines[:half], "  ...", *lines[-half:]]
        most = 2 * self._limits["error_bytes"] // (_TRACE_LINES + 2)
        return _INPUT.sub(f'File "{_FILE}"', "\n".join(_truncate(line, most) for line in lines))

    def _crash(self, error: Any) -> tuple[str, str]:
        text = str(error)
        if getattr(error, "timed_out", False) or "SIGXCPU" in text or "signal: 24" in text:
            return "cpu", f"the script used more than {self._limits['cpu_s']} seconds of processor time"
        if "SIGKILL" in text or "signal: 9" in text:
            return "killed", _KILLED
        return "crash", f"the script's process crashed: {text[:300]}"


class _CheckFailed(Exception):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class _OverLimit(Exception):
    def __init__(self, kind: str, message: str, line: int | None) -> None:
        super().__init__()
        self.kind = kind
        self.message = message
        self.line = line


def _host_function(**_arguments: object) -> None:
    """Placeholder for every function of the host: Monty stops where one is called."""


def _truncate(text: str, limit: int) -> str:
    data = text[: limit + 1].encode(errors="replace")
    return data.decode() if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"


def _failure_kind(message: str) -> str:
    if message.startswith("TimeoutError: feed time limit exceeded"):
        return "cpu"
    if message.startswith("MemoryError"):
        return "memory"
    return "calls" if message.startswith("RuntimeError: suspension limit") else "script"
