"""Limits of one script, and options of the processes that run scripts. Importing this module loads nothing else."""

from dataclasses import dataclass
from typing import Literal

KIB = 1024


MIB = 1024 * 1024


Seccomp = Literal["require", "try", "off"]
"""What to do where the kernel's system call filter cannot be had: refuse to run, run with a warning, never use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one script may use. Every field is above 0; what goes past one ends the script, or is an error in it."""

    wall_s: float = 60.0
    """From the first instruction to the last, waiting for tools included, in seconds."""
    stall_s: float = 10.0
    """Without a sign of life while no call is under way, in seconds."""
    soft_cpu_s: float = 4.0
    """Processor time after which the script is ended with the line it is in, in seconds."""
    cpu_s: int = 5
    """Processor time after which the kernel ends the process, in whole seconds."""
    lua_bytes: int = 64 * MIB
    """Memory of a script's own values."""
    as_bytes: int = 512 * MIB
    """Address space of its process."""
    calls: int = 1000
    """Tool calls in one script."""
    inflight: int = 16
    """Tool calls at the same time; more wait for their turn."""
    script_bytes: int = 256 * KIB
    """Of source, in UTF-8."""
    out_bytes: int = MIB
    """Of a result, and of the arguments of one call, as JSON."""
    depth: int = 64
    """How deep a result or arguments may be nested."""
    nodes: int = 200_000
    """How many values a result or arguments may hold."""
    response_bytes: int = 4 * MIB
    """Of one tool's answer, as JSON; a larger one is an error of that call."""
    frame_bytes: int = 4 * MIB
    """Of one message from the script's process, and of the arguments of all calls under way."""
    print_bytes: int = 64 * KIB
    """Of printed text; the rest is cut."""
    error_bytes: int = 4 * KIB
    """Of an error's message; the rest is cut."""

    def __post_init__(self) -> None:
        """Raises ValueError for a limit that nothing could keep."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} must be above 0, and is {value!r}")
        if self.frame_bytes < self.out_bytes + KIB:
            raise ValueError(f"frame_bytes ({self.frame_bytes}) must exceed out_bytes ({self.out_bytes}) by 1024")
        if self.inflight > self.calls:
            object.__setattr__(self, "inflight", self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """How scripts' processes are kept."""

    seccomp: Seccomp = "require"
    """Whether a script may run without the system call filter; without it a hole in the engine leads further."""
    pool: int = 2
    """Processes kept ready, each for one script."""
    workers: int | None = None
    """Scripts at the same time; None means twice the processors."""
    queue_wait_s: float = 30.0
    """How long a script may wait for its turn, in seconds."""
    zygote: bool = True
    """Fork processes from a prepared one where that is possible (Linux); otherwise each is started anew."""
    start_s: float = 20.0
    """How long a process may take to get ready, in seconds."""
