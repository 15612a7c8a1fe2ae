"""What a worker gives up before it runs a script: limits of the kernel, and the right to ever get more.

On macOS the limits are set and the rest does not exist; on Windows there is nothing to set. Both are untested.
"""

import ctypes
import os
import sys
from importlib import import_module

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9
"""To import `signal` would take longer than all that a worker does with it."""

LIBC = None if sys.platform == "win32" else ctypes.CDLL(None, use_errno=True)
"""Opened once, in the process that the others are forked from."""


def die_with(parent: int) -> None:
    """End this process when its parent ends, and at once when the parent is gone already. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def confine() -> None:
    """No new privileges, and no other process of this user may look inside. Linux only."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _prctl(_PR_SET_DUMPABLE, 0)


def adopt() -> None:
    """Whatever a child of this process leaves behind becomes a child of this one. Linux only."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def limit_always(*, threads: bool = False) -> None:
    """No files, no processes, nothing that is left when this process ends.

    With `threads` there may be more of those, which the kernel counts as it counts processes, and it can wait for two
    descriptors at a time, which the kernel counts as it counts files; two are open already.
    """
    wanted = {"CORE": 0, "FSIZE": 0, "MEMLOCK": 0, "MSGQUEUE": 0, "NOFILE": 2 if threads else 0}
    if not threads:
        wanted["NPROC"] = 0
    _set({name: (value, value) for name, value in wanted.items()})


def limit(*, memory: int, cpu_s: int) -> None:
    """Bound the address space, in bytes, and the processor time, in seconds."""
    _set({"AS": (memory, memory), "CPU": (cpu_s, cpu_s + 1)})


def _set(wanted: "dict[str, tuple[int, int]]") -> None:
    if sys.platform == "win32":
        return
    resource = import_module("resource")
    for name, value in wanted.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None:
            lower(resource, which, value)


def lower(resource: object, which: int, value: tuple[int, int]) -> None:
    """Never above what is set already."""
    hard = resource.getrlimit(which)[1]  # type: ignore[attr-defined]  # imported by name: Windows has none
    soft, top = (bound if hard < 0 else min(bound, hard) for bound in value)
    resource.setrlimit(which, (soft, top))  # type: ignore[attr-defined]  # as above


def _prctl(option: int, value: int) -> None:
    if LIBC is None or LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
