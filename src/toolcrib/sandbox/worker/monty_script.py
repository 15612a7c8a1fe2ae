"""One Python script: it is fed to Monty, its calls go to the gateway, and its end is told.

Monty stops at each call, name and `await` that it cannot answer by itself, and goes on with what it is given.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from . import bound, pipes
from .diagnostics import refusals
from .monty_calls import Calls, InterpreterGone

_FILE = "script"
_CHECK_S = 0.05
_TRACE_LINES = 40
_KILLED = "the script's process was ended from outside"
_INPUT = re.compile(r'File "<python-input-\d+>"')
"""The script, and all that was fed before it, as Monty names them."""


class Session:
    """A session of Monty's, opened and tried before the script is known."""

    def __init__(self, monty: Any, pool: Any, job: Mapping[str, Any]) -> None:
        """`job` has `limits`, `check` and `stub`: what a session depends on."""
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
        """Whether it is one for such a job."""
        return self._key == _key(job)

    def warm(self) -> None:
        """Go once through all that a script does: the first time takes five times as long as the second."""
        snapshot = self.feed.feed_start("await _()", external_lookup={"_": _asked_for}, skip_type_check=True)
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
        """End it."""
        self._context.__exit__(None, None, None)


def _key(job: Mapping[str, Any]) -> tuple[float, int, int, str]:
    limits = job["limits"]
    seconds = _CHECK_S if job["check"] else min(limits["soft_cpu_s"], limits["cpu_s"])
    return seconds, limits["lua_bytes"], 20 * limits["calls"] + 10_000, job["stub"]


class Script:
    """A script in a session of Monty's."""

    def __init__(self, session: Session, job: Mapping[str, Any], watched: int | None) -> None:
        """Nothing of the script is run. `watched` is a descriptor of the interpreter's process, where there is one."""
        self._monty = session.monty
        self._session = session.feed
        self._modules = session.modules
        self._job = job
        self._limits = job["limits"]
        self._servers = job["servers"]
        self._calls = Calls(job["servers"], job["limits"], watched)
        self._result: list[object] = []
        self._room = self._limits["print_bytes"]
        self._cut = False

    def run(self) -> None:
        """Run it, or only look at it, and say how it ended."""
        try:
            if self._job["check"]:
                self._check()
            else:
                self._done(self._drive(self._started()))
        except _Refused as error:
            self._failed("script", error.message, line=error.line, stage="syntax")
        except _OverLimit as error:
            self._failed(error.kind, error.message, line=error.line)
        except bound.OutOfBounds as error:
            self._failed("script", str(error))
        except self._monty.MontySyntaxError as error:
            self._told(error, "script", stage="syntax")
        except self._monty.MontyCrashedError as error:
            self._failed(*self._crash(error))
        except InterpreterGone:
            self._failed("killed", _KILLED)
        except self._monty.MontyError as error:
            self._told(error, _kind(str(error)))

    # -- feeding ---------------------------------------------------------------------------------------------------

    def _started(self) -> Any:
        """The first place at which the script stops."""
        checked, names = self._job["checked"], ", ".join(server["name"] for server in self._servers)
        self._modules.update({server["name"]: self._module(server) for server in self._servers})
        if names:
            self._session.feed_run(f"import {names}", skip_type_check=not checked)
        own = {"external_lookup": {"result": _asked_for, "call_tool": _asked_for}, "print_callback": self._print}
        try:
            return self._session.feed_start(self._job["source"], **own, skip_type_check=not checked)
        except self._monty.MontyTypingError as error:
            found = refusals(str(error), [server["name"] for server in self._servers])
            if found:
                message = "\n".join(f"{_FILE}:{item.line}: {item.message}" for item in found[:5])
                raise _Refused(message, found[0].line) from None
        return self._session.feed_start(self._job["source"], **own, skip_type_check=True)

    def _module(self, server: Mapping[str, Any]) -> Any:
        functions = {tool["name"]: _asked_for for tool in server["tools"]}
        return self._monty.ExternalModule(functions, stubs=server["stub"])

    def _check(self) -> None:
        """What comes before the first call is run, briefly: that is how Monty parses."""
        try:
            self._started()
        except self._monty.MontySyntaxError:
            raise
        except self._monty.MontyError:
            pass  # it parses; how it would fail is not what was asked
        self._end(has_value=False, unawaited=())

    # -- driving ---------------------------------------------------------------------------------------------------

    def _drive(self, snapshot: Any) -> object:
        """The script's value."""
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
        """What a call gives at once; None where Monty knows by itself."""
        name = call.function_name
        if call.is_os_function:
            return self._calls.slept(name, call.call_id, call.args)
        if name == "result":
            return self._keep(call.args, call.kwargs)
        if not self._calls.knows(name):
            return None  # Monty asks for whatever is called and not there
        if self._calls.made == self._limits["calls"]:
            message = f"the script made more than {self._limits['calls']} tool calls"
            raise _OverLimit("calls", message, self._line(call.position))
        self._calls.make(name, call.call_id, call.args, call.kwargs)
        if self._calls.waiting_bytes > self._limits["lua_bytes"]:
            message = f"the calls that wait for their turn hold more than {self._limits['lua_bytes']} bytes"
            raise _OverLimit("memory", message, self._line(call.position))
        return {"future": ...}

    def _keep(self, values: tuple[object, ...], named: dict[str, object]) -> dict[str, Any]:
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
            pipes.write_frame(b"p" + kept)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _done(self, value: object) -> None:
        chosen = self._result[0] if self._result else value
        has_value = bool(self._result) or value is not None
        text = bound.encoded(chosen, "result", self._limits, self._calls.open)
        if has_value:
            pipes.write_frame(b"v" + text)
        self._end(has_value=has_value, unawaited=self._calls.unawaited())

    def _end(self, *, has_value: bool, unawaited: tuple[str, ...]) -> None:
        said = {"has_value": has_value, "unawaited": unawaited, "cut": self._cut}
        pipes.write_frame(b"d" + json.dumps(said).encode())

    def _told(self, error: Any, kind: str, *, stage: str = "run") -> None:
        frames = error.traceback() if hasattr(error, "traceback") else []
        line = int(frames[-1].line) if frames else None
        self._failed(kind, str(error), line=line, traceback=self._trace(error), stage=stage)

    def _failed(
        self, kind: str, message: str, *, line: int | None = None, traceback: str = "", stage: str = "run"
    ) -> None:
        said = {
            "kind": kind,
            "message": _short(message, self._limits["error_bytes"]),
            "line": line,
            "traceback": traceback,
            "stage": stage,
        }
        pipes.write_frame(b"e" + json.dumps(said, ensure_ascii=False).encode(errors="replace"))

    def _trace(self, error: Any) -> str:
        lines = error.display().splitlines() if hasattr(error, "display") else []
        if len(lines) > _TRACE_LINES:
            half = _TRACE_LINES // 2
            lines = [*lines[:half], "  ...", *lines[-half:]]
        most = 2 * self._limits["error_bytes"] // (_TRACE_LINES + 2)
        return _INPUT.sub(f'File "{_FILE}"', "\n".join(_short(line, most) for line in lines))

    def _crash(self, error: Any) -> tuple[str, str]:
        said = str(error)
        if getattr(error, "timed_out", False) or "SIGXCPU" in said or "signal: 24" in said:
            return "cpu", f"the script used more than {self._limits['cpu_s']} seconds of processor time"
        if "SIGKILL" in said or "signal: 9" in said:
            return "killed", _KILLED
        return "crash", f"the script's process crashed: {said[:300]}"


class _Refused(Exception):
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


def _asked_for(**_arguments: object) -> None:
    """Stands for each function of the host: Monty stops where it is called."""


def _short(text: str, limit: int) -> str:
    data = text[: limit + 1].encode(errors="replace")
    return data.decode() if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"


def _kind(message: str) -> str:
    if message.startswith("TimeoutError: feed time limit exceeded"):
        return "cpu"
    if message.startswith("MemoryError"):
        return "memory"
    return "calls" if message.startswith("RuntimeError: suspension limit") else "script"
