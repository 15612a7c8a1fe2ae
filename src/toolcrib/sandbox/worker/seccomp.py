"""System call filter: the kernel kills the process on every call that a running script does not need.

Reads come from fd 0 only, writes go to fds 1 and 2 only, memory cannot be made executable, and signals reach only the
process itself. Linux on x86_64 and aarch64; the table for aarch64 follows the kernel's headers and is untested.
"""

import ctypes
import os
import struct
import sys
from collections.abc import Callable

from . import lockdown

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_SET_MODE_FILTER = 1
_ALL_THREADS = 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}
"""The `seccomp` system call, which can filter all threads of a process; prctl cannot."""
KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
NR, ARCH, ARG0, ARG1, ARG2 = 0, 4, 16, 24, 32
"""Offsets in `struct seccomp_data`. For arguments it is the low half: the kernel ignores the rest of an int."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_PROT_EXEC = 4

_X86_64: dict[str, int] = {
    "read": 0,
    "write": 1,
    "mmap": 9,
    "mprotect": 10,
    "munmap": 11,
    "brk": 12,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "sched_yield": 24,
    "mremap": 25,
    "madvise": 28,
    "getpid": 39,
    "exit": 60,
    "gettimeofday": 96,
    "getrusage": 98,
    "times": 100,
    "sigaltstack": 131,
    "gettid": 186,
    "time": 201,
    "futex": 202,
    "restart_syscall": 219,
    "clock_gettime": 228,
    "exit_group": 231,
    "tgkill": 234,
    "getrandom": 318,
}
_AARCH64: dict[str, int] = {
    "read": 63,
    "write": 64,
    "mmap": 222,
    "mprotect": 226,
    "munmap": 215,
    "brk": 214,
    "rt_sigprocmask": 135,
    "rt_sigreturn": 139,
    "sched_yield": 124,
    "mremap": 216,
    "madvise": 233,
    "getpid": 172,
    "exit": 93,
    "gettimeofday": 169,
    "getrusage": 165,
    "times": 153,
    "sigaltstack": 132,
    "gettid": 178,
    "futex": 98,
    "restart_syscall": 128,
    "clock_gettime": 113,
    "exit_group": 94,
    "tgkill": 131,
    "getrandom": 278,
}
_MACHINES: dict[str, tuple[int, dict[str, int]]] = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}


def missing() -> str:
    """Why this system has no filter, as far as is known without trying; empty if it has one."""
    if not sys.platform.startswith("linux"):
        return f"seccomp exists on Linux only, this is {sys.platform}"
    if os.uname().machine not in _MACHINES:
        return f"there is no seccomp filter for {os.uname().machine}"
    return ""


def build(make: "Callable[[str, int], bytes]") -> bytes:
    """Build the filter for this process with `make(machine, pid)`; empty where the system has none."""
    return b"" if missing() else make(os.uname().machine, os.getpid())


def apply(code: bytes, *, threads: bool = False) -> str:
    """Install the filter for good; returns why it failed, or an empty string. Needs no_new_privs.

    With `threads` it also applies to threads that are already running.
    """
    if not code or lockdown.LIBC is None:
        return missing()
    buffer = ctypes.create_string_buffer(code, len(code))
    prog = ctypes.c_char_p(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)))
    if threads:
        number = _SECCOMP[os.uname().machine]
        refused = lockdown.LIBC.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, prog)
    else:
        refused = lockdown.LIBC.prctl(_PR_SET_SECCOMP, _MODE_FILTER, prog, 0, 0)
    return f"the kernel refused the seccomp filter: {os.strerror(ctypes.get_errno())}" if refused else ""


def program(machine: str, pid: int) -> bytes:
    """The filter as BPF code, eight bytes per instruction.

    >>> len(program("x86_64", 1)) % 8
    0
    """
    arch, calls = _MACHINES[machine]
    checks: dict[str, bytes] = {
        "read": _argument(ARG0, _among(0)),
        "write": _argument(ARG0, _among(1, 2)),
        "mmap": _argument(ARG2, _without(_PROT_EXEC)),
        "mprotect": _argument(ARG2, _without(_PROT_EXEC)),
        "tgkill": _argument(ARG0, _among(pid)),
    }
    # A process can also make calls of another architecture, in which the numbers mean other calls.
    code = op(LOAD, ARCH) + op(EQUAL, arch, 1, 0) + op(RETURN, KILL_PROCESS) + op(LOAD, NR)
    for name, number in calls.items():
        body = checks.get(name) or op(RETURN, ALLOW)
        code += op(EQUAL, number, 0, len(body) // 8) + body
    return code + op(RETURN, KILL_PROCESS)


def refuse(errno: int) -> bytes:
    """The instruction that fails a call with that error."""
    return op(RETURN, _ERRNO | errno)


def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One BPF instruction; jumps are relative to the next one."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _argument(offset: int, check: bytes) -> bytes:
    return op(LOAD, offset) + check


def _among(*values: int) -> bytes:
    tests = b"".join(op(EQUAL, value, len(values) - place, 0) for place, value in enumerate(values))
    return tests + op(RETURN, KILL_PROCESS) + op(RETURN, ALLOW)


def _without(bits: int) -> bytes:
    return op(ANY_BIT, bits, 0, 1) + op(RETURN, KILL_PROCESS) + op(RETURN, ALLOW)
