"""How a script ended: its result, or the error it failed with, and hints for its author.

The errors are the same for every engine: each has a kind, a line and a traceback.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from toolcrib.errors import ScriptFailed, ScriptLimit, ScriptRefused
from toolcrib.names import nearest
from toolcrib.types import JSON

CallOutcome = Literal["ok", "error", "cancelled"]
FailureKind = Literal[
    "script", "cpu", "wall", "stall", "memory", "calls", "size", "seccomp", "killed", "crash", "protocol"
]
"""script: an error in the script itself. cpu, wall, stall, memory, calls, size: a limit. seccomp: a forbidden system
call. killed: the process was ended from outside. crash: it ended by itself. protocol: it sent an invalid message."""
_LIMIT_KINDS: Final = frozenset({"cpu", "wall", "stall", "memory", "calls", "size"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """One call that a script made, under the tools' original names."""

    server: str
    tool: str
    duration_s: float
    """How long the tool itself took, in seconds."""
    outcome: CallOutcome
    error: str = ""
    """The error that the script got, if the outcome is an error."""


OnCall = Callable[[CallTrace], None]
"""Called after each call; must neither block nor raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """What a script that ended without an error returned."""

    value: JSON = None
    has_value: bool = False
    """False if the script gave no result at all; a result of null counts as a value."""
    printed: str = ""
    calls: tuple[CallTrace, ...] = ()
    """In the order in which they ended."""
    unawaited: tuple[str, ...] = ()
    """Calls that were never awaited, under the script's names; those still running were cancelled."""
    warnings: tuple[str, ...] = ()
    """What the script's author should know."""
    stats: dict[str, Any] = field(default_factory=dict)
    """`wall_s`, `wait_s` (for a process), `calls`, and `cpu_s` if the engine reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call found in a script's source, without running it."""

    server: str
    tool: str
    line: int
    known: bool
    """Whether that server has that tool."""
    problem: str = ""
    """Why its arguments cannot fit the tool's schema, as far as the source shows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What is known of a script without running it."""

    calls: tuple[SeenCall, ...] = ()
    """Calls written as `server.tool`; those through variables or computed names are not found."""
    warnings: tuple[str, ...] = ()


# -- errors --------------------------------------------------------------------------------------------------------


class ScriptError(ScriptFailed):
    """A script failed; `kind`, `line` and `traceback` say how and where."""

    @property
    def kind(self) -> FailureKind:
        """What ended the script."""
        kind: FailureKind = self.data["kind"]
        return kind

    @property
    def line(self) -> int | None:
        """The line in the script, from 1, if it is known."""
        line: int | None = self.data["line"]
        return line

    @property
    def traceback(self) -> str:
        """Where in the script it happened, one line per call; may be empty."""
        return str(self.data["traceback"])

    @property
    def printed(self) -> str:
        """What the script had printed by then."""
        return str(self.data["printed"])


class ScriptOverLimit(ScriptError, ScriptLimit):
    """A script exceeded a limit; `kind` says which."""

    code = ScriptLimit.code


class ScriptNotRun(ScriptError, ScriptRefused):
    """A script was not run: it is too large, does not parse, or does not pass its checks."""

    code = ScriptRefused.code


def script_error(
    kind: FailureKind,
    message: str,
    *,
    line: int | None = None,
    traceback: str = "",
    printed: str = "",
    hint: str = "",
    suggestions: Sequence[str] = (),
    refused: bool = False,
) -> ScriptError:
    """The error for a script that ended in that way."""
    data: dict[str, Any] = {"kind": kind, "line": line, "traceback": traceback, "printed": printed}
    error = ScriptNotRun if refused else ScriptOverLimit if kind in _LIMIT_KINDS else ScriptError
    return error(message, hint=hint, suggestions=suggestions, data=data)


# -- hints ---------------------------------------------------------------------------------------------------------

_UNKNOWN_TOOL = re.compile(r"(?:server|[Mm]odule) ['`]([^'`]*)['`] has no (?:tool|member|attribute) ['`]([^'`]*)['`]")
_UNKNOWN_GLOBAL = re.compile(
    r"^\S+:\d+: (?:attempt to \w+ a nil value \(global '([^']*)'\)|Name `([^`]*)` used when not)"
    r"|^NameError: name '([^']*)' is not defined"
)


def suggestions_for(message: str, servers: Mapping[str, Sequence[str]]) -> list[str]:
    """The closest names, best first, to a name that does not exist. `servers` maps server to tool identifiers.

    >>> suggestions_for("server 'calc' has no tool 'ad'; it has: add, divide", {"calc": ["add", "divide"]})
    ['calc.add']
    """
    no_tool = _UNKNOWN_TOOL.search(message)
    if no_tool:
        server, wanted = no_tool[1], no_tool[2]
        return [f"{server}.{name}" for name in nearest(wanted, servers.get(server, ()))]
    name = unknown_name(message)
    return nearest(name, servers) if name else []


def unknown_name(message: str) -> str:
    """The name that the script uses and that nothing has; empty if that is not what is wrong.

    >>> unknown_name("script:1: attempt to index a nil value (global 'calculator')")
    'calculator'
    """
    found = _UNKNOWN_GLOBAL.search(message)
    return next(filter(None, found.groups()), "") if found else ""
