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
_NUMBERS = """
    mmap 9/222, mprotect 10/226, munmap 11/215, brk 12/214, mremap 25/216, mincore 27/232, madvise 28/233,
    membarrier 324/283,
    read 0/63, write 1/64, close 3/57, stat 4/-, fstat 5/80, lstat 6/-, lseek 8/62, pread64 17/67, readv 19/65,
    writev 20/66, access 21/-, dup 32/23, dup2 33/-, dup3 292/24, getcwd 79/17, readlink 89/-, getdents64 217/61,
    newfstatat 262/79, readlinkat 267/78, faccessat 269/48, faccessat2 439/439, statx 332/291, pipe2 293/59,
    openat 257/56, fcntl 72/25,
    poll 7/-, ppoll 271/73, epoll_wait 232/-, epoll_ctl 233/21, epoll_pwait 281/22, eventfd2 290/19,
    epoll_create1 291/20, futex 202/98, wait4 61/260, waitid 247/95, nanosleep 35/101, clock_nanosleep 230/115,
    rt_sigaction 13/134, rt_sigprocmask 14/135, rt_sigreturn 15/139, sigaltstack 131/132, restart_syscall 219/128,
    tgkill 234/131, pidfd_send_signal 424/424,
    sched_yield 24/124, sched_getaffinity 204/123, getpid 39/172, getppid 110/173, gettid 186/178, getuid 102/174,
    getgid 104/176, geteuid 107/175, getegid 108/177, set_tid_address 218/96, set_robust_list 273/99, rseq 334/293,
    arch_prctl 158/-, prctl 157/167, prlimit64 302/261, getrlimit 97/163, clone 56/220, execve 59/221, exit 60/93,
    exit_group 231/94,
    gettimeofday 96/169, time 201/-, times 100/153, clock_gettime 228/113, clock_getres 229/114, getrusage 98/165,
    sysinfo 99/179, uname 63/160, getrandom 318/278
"""
"""The system calls that some filter allows: their numbers on x86_64 and on aarch64, which lacks some of them."""
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEEDED = """
    mmap mprotect munmap brk mremap madvise read write futex rt_sigprocmask rt_sigreturn sigaltstack
    restart_syscall tgkill sched_yield getpid gettid exit exit_group gettimeofday time times clock_gettime
    getrusage getrandom
"""
"""The calls of a running Lua script."""


def missing() -> str:
    """Why this system has no filter, as far as is known without trying; empty if it has one."""
    if not sys.platform.startswith("linux"):
        return f"seccomp exists on Linux only, this is {sys.platform}"
    if os.uname().machine not in _ARCHITECTURES:
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
    checks: dict[str, bytes] = {
        "read": among(ARG0, (0,)),
        "write": among(ARG0, (1, 2)),
        "mmap": _without(ARG2, _PROT_EXEC),
        "mprotect": _without(ARG2, _PROT_EXEC),
        "tgkill": among(ARG0, (pid,)),
    }
    needed, code = _NEEDED.split(), begin(machine)
    for name, number in calls(machine).items():
        if name in needed:
            body = checks.get(name, op(RETURN, ALLOW))
            code += op(EQUAL, number, 0, len(body) // 8) + body
    return code + op(RETURN, KILL_PROCESS)


def calls(machine: str) -> "dict[str, int]":
    """The numbers of system calls on such a machine, by name."""
    place = list(_ARCHITECTURES).index(machine)
    named = (entry.split() for entry in _NUMBERS.split(","))
    found = {name: numbers.split("/")[place] for name, numbers in named}
    return {name: int(number) for name, number in found.items() if number != "-"}


def begin(machine: str) -> bytes:
    """Kill a process that makes a call of another architecture, in which the numbers mean other calls."""
    code = op(LOAD, ARCH) + op(EQUAL, _ARCHITECTURES[machine], 1, 0) + op(RETURN, KILL_PROCESS)
    return code + op(LOAD, NR)


def refuse(errno: int) -> bytes:
    """The instruction that fails a call with that error."""
    return op(RETURN, _ERRNO | errno)


def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One BPF instruction; jumps are relative to the next one."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def among(offset: int, values: "tuple[int, ...]", refused: "bytes | None" = None) -> bytes:
    """Allow the call only if the argument is one of these; otherwise do what is given, or kill the process."""
    tests = b"".join(op(EQUAL, value, len(values) - place, 0) for place, value in enumerate(values))
    return op(LOAD, offset) + tests + (refused or op(RETURN, KILL_PROCESS)) + op(RETURN, ALLOW)


def _without(offset: int, bits: int) -> bytes:
    """Allow the call only if the argument has none of these bits."""
    return op(LOAD, offset) + op(ANY_BIT, bits, 0, 1) + op(RETURN, KILL_PROCESS) + op(RETURN, ALLOW)
