"""How a script fails: the errors of both engines, with the kind, the line and the traceback."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from toolcrib.errors import SandboxUnavailable, ScriptFailed, ScriptLimit, ScriptRefused

Kind = Literal["script", "cpu", "wall", "stall", "memory", "calls", "size", "seccomp", "killed", "crash", "protocol"]
"""script: an error in the script itself. cpu, wall, stall, memory, calls, size: a limit. seccomp: a system call that is
forbidden. killed: the process was ended from outside. crash: it ended by itself. protocol: it wrote nonsense."""

_LIMITS: Final = frozenset({"cpu", "wall", "stall", "memory", "calls", "size"})


class ScriptError(ScriptFailed):
    """A script failed; `kind`, `line` and `traceback` say how and where."""

    @property
    def kind(self) -> Kind:
        """What ended the script."""
        kind: Kind = self.data["kind"]
        return kind

    @property
    def line(self) -> int | None:
        """The line of the script, from 1, where it is known."""
        line: int | None = self.data["line"]
        return line

    @property
    def traceback(self) -> str:
        """Where in the script it happened, a line a call; may be empty."""
        return str(self.data["traceback"])

    @property
    def printed(self) -> str:
        """What the script had printed before."""
        return str(self.data["printed"])


class ScriptOverLimit(ScriptError, ScriptLimit):
    """A script went past a limit; `kind` says which."""

    code = ScriptLimit.code


class ScriptNotRun(ScriptError, ScriptRefused):
    """A script was not run: it is too large, does not parse, or does not pass its checks."""

    code = ScriptRefused.code


def failure(
    kind: Kind,
    message: str,
    *,
    line: int | None = None,
    traceback: str = "",
    printed: str = "",
    hint: str = "",
    suggestions: Sequence[str] = (),
    refused: bool = False,
) -> ScriptError:
    """The error to raise for a script that ended in that way."""
    data: dict[str, Any] = {"kind": kind, "line": line, "traceback": traceback, "printed": printed}
    what = ScriptNotRun if refused else ScriptOverLimit if kind in _LIMITS else ScriptError
    return what(message, hint=hint, suggestions=suggestions, data=data)


def busy(workers: int, waited_s: float) -> SandboxUnavailable:
    """Nothing was run: every place is taken."""
    return SandboxUnavailable(
        f"{workers} scripts are running already, and none ended within {waited_s:g} s.",
        hint="Try again later, or raise sandbox.workers.",
    )
