"""Give up rights before a script runs: privileges, kernel limits, and access to files (Landlock).

On macOS only the limits exist, and on Windows nothing does; both are untested. Landlock needs Linux 5.13 or later, and
a kernel in which it is enabled. After it the process, and any program it becomes, opens only its own program and the
system's libraries: no home folder, no configuration, no secret of its user.
"""

import ctypes
import os
import struct
import sys
from importlib import import_module
from types import ModuleType

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9
"""Importing `signal` would take longer than everything a worker does with it."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls; the numbers are the same on all machines."""
_VERSION = 1
_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1, 4, 8
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""The number of file rights in each version of Landlock, lowest bits first; later versions add none."""
LIBRARIES = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/nix/store",
    "/gnu/store",
)
"""Where a program's libraries are; missing folders are skipped."""
LIBC = None if sys.platform == "win32" else ctypes.CDLL(None, use_errno=True)
"""Opened once, in the process that workers are forked from."""


def die_with(parent: int) -> None:
    """End this process when its parent ends, or at once if the parent is already gone. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    # The kernel sends nothing for a parent that ended before the call above.
    if os.getppid() != parent:
        os._exit(1)


def confine() -> None:
    """Give up new privileges, and make the process unreadable for other processes of this user. Linux only."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        # Its files in /proc then belong to root, and no process of this user can trace it.
        _prctl(_PR_SET_DUMPABLE, 0)


def adopt() -> None:
    """Become the parent of processes that a child leaves behind. Linux only."""
    if sys.platform.startswith("linux"):
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def limit_always(*, threads: bool = False) -> None:
    """Allow no new files and no processes, and leave nothing behind when this process ends.

    `threads` allows threads, which the kernel counts as processes, and polling two descriptors at once, which the
    kernel checks against the limit for files.
    """
    wanted = {"CORE": 0, "FSIZE": 0, "MEMLOCK": 0, "MSGQUEUE": 0, "NOFILE": 2 if threads else 0}
    if not threads:
        wanted["NPROC"] = 0
    set_limits({name: (value, value) for name, value in wanted.items()})


def limit(*, memory: int, cpu_s: int) -> None:
    """Limit the address space, in bytes, and the processor time, in seconds."""
    # At the first limit the kernel sends SIGXCPU, which can be caught; at the second, SIGKILL.
    set_limits({"AS": (memory, memory), "CPU": (cpu_s, cpu_s + 1)})


def set_limits(wanted: "dict[str, tuple[int, int]]") -> None:
    """Set limits by name, each soft and hard; none where the system lacks them."""
    if sys.platform == "win32":
        return
    resource = import_module("resource")
    for name, value in wanted.items():
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is not None:
            lower(resource, which, value)


def lower(resource: ModuleType, which: int, value: tuple[int, int]) -> None:
    """Set one limit, never above its current hard limit. `resource` is the module, which Windows lacks."""
    hard = resource.getrlimit(which)[1]
    soft, top = (bound if hard < 0 else min(bound, hard) for bound in value)
    resource.setrlimit(which, (soft, top))


def _prctl(option: int, value: int) -> None:
    if LIBC is None or LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


# -- Landlock ------------------------------------------------------------------------------------------------------


def landlock_version() -> int:
    """The Landlock version of this kernel; 0 where there is none."""
    return max(_syscall(_CREATE_RULESET, None, 0, _VERSION), 0) if sys.platform.startswith("linux") else 0


def restrict_files(program: str) -> str:
    """Allow this process only that program, the libraries, and its own `/proc` entry. Needs no_new_privs.

    Returns why it failed, or an empty string.
    """
    known = landlock_version()
    if not known:
        return "this system has no Landlock"
    # What the rules do not name stays allowed, and a kernel refuses rules that name a right it does not know.
    rights = (1 << _RIGHTS.get(known, _RIGHTS[5])) - 1
    ruleset = _syscall(_CREATE_RULESET, struct.pack("=Q", rights), 8, 0)
    if ruleset < 0:
        return f"Landlock made no rules: {os.strerror(ctypes.get_errno())}"
    try:
        for path in (program, *LIBRARIES, f"/proc/{os.getpid()}"):
            _allow(ruleset, path)
        refused = _syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return f"Landlock refused the rules: {os.strerror(ctypes.get_errno())}" if refused else ""


def _allow(ruleset: int, path: str) -> None:
    """Allow reading and executing a file, or everything below a folder."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    is_folder = os.fstat(place).st_mode & 0o170000 == 0o040000  # noqa: PLR2004 - S_IFMT and S_IFDIR, without `stat`
    rights = _EXECUTE | _READ_FILE | (_READ_DIR if is_folder else 0)
    _syscall(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, place), 0)
    os.close(place)


def _syscall(number: int, *arguments: "int | bytes | None") -> int:
    if LIBC is None:
        return -1
    result: int = LIBC.syscall(number, *arguments)
    return result
