"""What a script gave: its value, what it printed, and a trace of its calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from toolcrib.model import JSON

Outcome = Literal["ok", "error", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """One call that a script made, under the names of the tools' owner, not the script's."""

    server: str
    tool: str
    duration_s: float
    """Of the tool itself, in seconds."""
    outcome: Outcome
    error: str = ""
    """What the script was told, where the outcome is an error."""


OnCall = Callable[[CallTrace], None]
"""Told of each call when it has ended; must not wait and must not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptResult:
    """What a script that ended well gave."""

    value: JSON = None
    has_value: bool = False
    """False when the script gave no result at all; a result of null has a value."""
    printed: str = ""
    calls: tuple[CallTrace, ...] = ()
    """In the order in which they ended."""
    unawaited: tuple[str, ...] = ()
    """Calls that were started and never awaited, as the script named them; those still under way were cancelled."""
    warnings: tuple[str, ...] = ()
    """What the author of the script should know."""
    stats: dict[str, Any] = field(default_factory=dict)
    """`wall_s`, `wait_s` (for a process), `cpu_s` where the engine tells, `calls`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCall:
    """A call that can be seen in a script without running it."""

    server: str
    tool: str
    line: int
    known: bool
    """Whether that server has that tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What can be said about a script that was not run."""

    calls: tuple[SeenCall, ...] = ()
    """Those written out as `server.tool`; calls through variables or computed names are not seen."""
    warnings: tuple[str, ...] = ()
