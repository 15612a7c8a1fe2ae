"""Options of scripts: how they run, their limits, and their processes. Importing this module loads nothing else."""

from dataclasses import dataclass
from typing import Literal

from toolcrib.checks import Count, Natural, Seconds, checked

KIB = 1024
MIB = 1024 * 1024
Seccomp = Literal["require", "try", "off"]
"""If the kernel's system call filter is missing: refuse to run, or run with a warning. `off` never uses the filter."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one script, each above 0. Exceeding one ends the script, or is an error in it."""

    wall_s: Seconds = 60.0
    """Seconds from the first instruction to the last, including waiting for tools, but not for a person or a model."""
    stall_s: Seconds = 10.0
    """Seconds without any sign of life while no call is running."""
    soft_cpu_s: Seconds = 4.0
    """Seconds of processor time after which the script ends with an error that names the line."""
    cpu_s: Count = 5
    """Whole seconds of processor time after which the kernel ends the process."""
    lua_bytes: Count = 64 * MIB
    """Memory of a script's own values."""
    as_bytes: Count = 512 * MIB
    """Address space of its process."""
    calls: Count = 1000
    """Tool calls in one script."""
    inflight: Count = 16
    """Tool calls at the same time; others wait for their turn."""
    script_bytes: Count = 256 * KIB
    """Size of the source, in UTF-8."""
    out_bytes: Count = MIB
    """Size of a result, and of the arguments of one call, as JSON."""
    depth: Count = 64
    """Nesting of a result or of arguments."""
    nodes: Count = 200_000
    """Number of values in a result, in arguments, or in a tool's response."""
    response_bytes: Count = 4 * MIB
    """Size of one tool's response, as JSON; a larger one is an error of that call."""
    frame_bytes: Count = 4 * MIB
    """Size of one message from the script's process, and of the arguments of all running calls."""
    print_bytes: Count = 64 * KIB
    """Size of printed text; the rest is cut."""
    error_bytes: Count = 4 * KIB
    """Size of an error message; the rest is cut."""

    def __post_init__(self) -> None:
        """Raise ValueError for limits that cannot be enforced."""
        if self.frame_bytes < self.out_bytes + KIB:
            raise ValueError(f"frame_bytes ({self.frame_bytes}) must exceed out_bytes ({self.out_bytes}) by 1024")
        if self.inflight > self.calls:
            object.__setattr__(self, "inflight", self.calls)

    def as_dict(self) -> dict[str, float]:
        """The limits by name."""
        return {name: getattr(self, name) for name in self.__slots__}


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """How scripts' processes are run."""

    seccomp: Seccomp = "require"
    """Whether scripts may run without the system call filter; without it, a hole in the engine leads further."""
    pool: Natural = 2
    """Processes kept ready, each for one script."""
    workers: Count | None = None
    """Scripts at the same time; None means twice the number of processors."""
    queue_wait_s: Seconds = 30.0
    """How long a script may wait for its turn, in seconds."""
    zygote: bool = True
    """Fork processes from a prepared one where the system can (Linux); otherwise start each from scratch."""
    start_s: Seconds = 20.0
    """How long a process may take to get ready, in seconds."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """How scripts run; their limits are `Limits`."""

    levels: Count = 3
    """How deep scripts may be nested: a script, one that it calls, and so on; 1 or more."""
    read_only: bool = False
    """Whether every script sees only tools that are marked as read-only."""
    watch_s: Seconds = 2.0
    """How often the folder of stored scripts is checked for changes, in seconds, above 0."""
