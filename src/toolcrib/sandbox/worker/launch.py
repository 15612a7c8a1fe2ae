"""Give up what a Python engine does not need, then become its process. Linux and macOS; macOS is untested.

The engine starts after this, so it keeps more rights than a Lua worker: it may open files for reading, map code and
start threads. On Linux every system call that is not listed here fails: no network, no other process or program, no
signals except to itself, no tracing, and no file is written, or changed by name. Where the kernel has Landlock, the
engine reads only the system's libraries.
"""

import ctypes
import os
import struct
import sys
from importlib import import_module

from . import lockdown, seccomp

_FILES = 32
_CLONE_THREAD = 0x00010000
_CLONE3 = 435
_X32 = 0x40000000
_EPERM, _ENOSYS = 1, 38
_READ_WRITE = 3
_PRIVATE = {"linux": 0x22, "darwin": 0x1002}
"""MAP_PRIVATE and MAP_ANONYMOUS."""
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND."""
_OF_DESCRIPTORS = (0, 1, 2, 3, 4, 1030)
"""Allowed fcntl commands: duplicating, and flags. Not F_SETOWN, which sends signals."""
_OF_NAMES = (15, 16, 0x53564D41)
"""Allowed prctl options: naming a thread, and naming memory."""

_BY_NAME = ("stat", "lstat", "access", "readlink", "newfstatat", "readlinkat", "faccessat", "faccessat2", "statx")
"""Calls that inspect files without opening them."""

_WAITING = {
    "x86_64": {"wait4": 61, "waitid": 247, "pidfd_send_signal": 424},
    "aarch64": {"wait4": 260, "waitid": 95, "pidfd_send_signal": 424},
}
"""For ending the engine's process and learning how it ended; a pidfd exists for that process only."""

_X86_64 = {
    "read": 0,
    "write": 1,
    "close": 3,
    "stat": 4,
    "fstat": 5,
    "lstat": 6,
    "poll": 7,
    "lseek": 8,
    "mmap": 9,
    "mprotect": 10,
    "munmap": 11,
    "brk": 12,
    "rt_sigaction": 13,
    "rt_sigprocmask": 14,
    "rt_sigreturn": 15,
    "pread64": 17,
    "readv": 19,
    "writev": 20,
    "access": 21,
    "sched_yield": 24,
    "mremap": 25,
    "mincore": 27,
    "madvise": 28,
    "dup": 32,
    "dup2": 33,
    "nanosleep": 35,
    "getpid": 39,
    "exit": 60,
    "uname": 63,
    "getcwd": 79,
    "readlink": 89,
    "gettimeofday": 96,
    "getrlimit": 97,
    "getrusage": 98,
    "sysinfo": 99,
    "times": 100,
    "getuid": 102,
    "getgid": 104,
    "geteuid": 107,
    "getegid": 108,
    "getppid": 110,
    "sigaltstack": 131,
    "arch_prctl": 158,
    "gettid": 186,
    "time": 201,
    "futex": 202,
    "sched_getaffinity": 204,
    "getdents64": 217,
    "set_tid_address": 218,
    "restart_syscall": 219,
    "clock_gettime": 228,
    "clock_getres": 229,
    "clock_nanosleep": 230,
    "exit_group": 231,
    "epoll_wait": 232,
    "epoll_ctl": 233,
    "newfstatat": 262,
    "readlinkat": 267,
    "faccessat": 269,
    "ppoll": 271,
    "set_robust_list": 273,
    "epoll_pwait": 281,
    "eventfd2": 290,
    "epoll_create1": 291,
    "dup3": 292,
    "pipe2": 293,
    "getrandom": 318,
    "membarrier": 324,
    "statx": 332,
    "rseq": 334,
    "faccessat2": 439,
    "execve": 59,
    "clone": 56,
    "fcntl": 72,
    "prctl": 157,
    "tgkill": 234,
    "openat": 257,
    "prlimit64": 302,
}
_AARCH64 = {
    "read": 63,
    "write": 64,
    "close": 57,
    "fstat": 80,
    "lseek": 62,
    "mmap": 222,
    "mprotect": 226,
    "munmap": 215,
    "brk": 214,
    "rt_sigaction": 134,
    "rt_sigprocmask": 135,
    "rt_sigreturn": 139,
    "pread64": 67,
    "readv": 65,
    "writev": 66,
    "sched_yield": 124,
    "mremap": 216,
    "mincore": 232,
    "madvise": 233,
    "dup": 23,
    "nanosleep": 101,
    "getpid": 172,
    "exit": 93,
    "uname": 160,
    "getcwd": 17,
    "gettimeofday": 169,
    "getrlimit": 163,
    "getrusage": 165,
    "sysinfo": 179,
    "times": 153,
    "getuid": 174,
    "getgid": 176,
    "geteuid": 175,
    "getegid": 177,
    "getppid": 173,
    "sigaltstack": 132,
    "gettid": 178,
    "futex": 98,
    "sched_getaffinity": 123,
    "getdents64": 61,
    "set_tid_address": 96,
    "restart_syscall": 128,
    "clock_gettime": 113,
    "clock_getres": 114,
    "clock_nanosleep": 115,
    "exit_group": 94,
    "epoll_ctl": 21,
    "newfstatat": 79,
    "readlinkat": 78,
    "faccessat": 48,
    "ppoll": 73,
    "set_robust_list": 99,
    "epoll_pwait": 22,
    "eventfd2": 19,
    "epoll_create1": 20,
    "dup3": 24,
    "pipe2": 59,
    "getrandom": 278,
    "membarrier": 283,
    "statx": 291,
    "rseq": 293,
    "faccessat2": 439,
    "execve": 221,
    "clone": 220,
    "fcntl": 25,
    "prctl": 167,
    "tgkill": 131,
    "openat": 56,
    "prlimit64": 261,
}
_MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
"""The audit architecture, and the numbers of the calls that are left; every other call fails."""


def main(program: str, wish: str, memory: int, *, files: bool) -> None:
    """Become that program, confined.

    `wish` says what to do if no filter can be installed: require, try or off. With `files`, the program can open only
    the system's libraries, where the kernel has Landlock.
    """
    os.closerange(3, 1024)
    lockdown.confine()
    lockdown.die_with(os.getppid())
    _limit(memory)
    nowhere = os.open(os.devnull, os.O_RDONLY)  # after Landlock it could not be opened
    words = [ctypes.create_string_buffer(os.fsencode(word)) for word in (program, *sys.argv[1:])]
    path = _hidden(words[0].raw)
    arguments = _hidden(b"".join(struct.pack("P", place) for place in (*map(ctypes.addressof, words), 0)))
    if files:
        lockdown.restrict_files(program)
    reason = "" if wish == "off" else _install(path, arguments)
    if reason and wish == "require":
        sys.exit(reason)
    os.dup2(nowhere, 2)  # nothing reads its standard error
    if lockdown.LIBC is not None:  # `os.execve` would pass copies, at addresses that the filter refuses
        lockdown.LIBC.execve(ctypes.c_void_p(path), ctypes.c_void_p(arguments), None)
    sys.exit(1)


def _hidden(data: bytes) -> int:
    """Copy the data to an address that cannot be guessed, and return it."""
    if lockdown.LIBC is None:
        raise OSError("this system has no C library to call")
    lockdown.LIBC.mmap.restype = ctypes.c_void_p
    wish = ctypes.c_void_p((1 << 32) + (int.from_bytes(os.urandom(8)) % (1 << 34) << 12))
    place = lockdown.LIBC.mmap(
        wish, ctypes.c_size_t(len(data)), _READ_WRITE, _PRIVATE[sys.platform], -1, ctypes.c_size_t(0)
    )
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no memory could be mapped")
    ctypes.memmove(place, data, len(data))
    return int(place)


def _limit(memory: int) -> None:
    resource = import_module("resource")
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_NOFILE": _FILES,
        "RLIMIT_AS": memory,
    }
    for name, value in wanted.items():
        which = getattr(resource, name, None)
        if which is not None:
            lockdown.lower(resource, which, (value, value))


def _install(path: int, arguments: int) -> str:
    machine = os.uname().machine
    if not sys.platform.startswith("linux") or machine not in _MACHINES:
        return "there is no system call filter for this system"
    return seccomp.apply(program(machine, os.getpid(), path, arguments))


def program(machine: str, pid: int, path: int, arguments: int) -> bytes:
    """The filter as BPF code, for the process with that id.

    The process may become another program once: `path` and `arguments` are their random addresses in memory now.
    Afterwards the addresses are unknown, and there are too many pairs to try.

    >>> len(program("x86_64", 1, 2, 3)) % 8
    0
    """
    places = ((seccomp.ARG0, path), (seccomp.ARG1, arguments), (seccomp.ARG2, 0))
    more = {"execve": b"".join(_address(*place) for place in places)}
    return _filter(machine, pid, more=more)


def _filter(
    machine: str,
    pid: int,
    *,
    without: "tuple[str, ...]" = (),
    also: "dict[str, int] | None" = None,
    more: "dict[str, bytes] | None" = None,
) -> bytes:
    """Build a filter without some calls and with others; `more` has further checks of arguments, by call."""
    arch, calls = _MACHINES[machine]
    op, allow, refused = seccomp.op, seccomp.op(seccomp.RETURN, seccomp.ALLOW), seccomp.refuse(_EPERM)
    checks = {
        "clone": op(seccomp.LOAD, seccomp.ARG0) + op(seccomp.ANY_BIT, _CLONE_THREAD, 1, 0) + refused + allow,
        "openat": op(seccomp.LOAD, seccomp.ARG2) + op(seccomp.ANY_BIT, _WRITING, 0, 1) + refused + allow,
        "fcntl": _among(seccomp.ARG1, _OF_DESCRIPTORS),
        "prctl": _among(seccomp.ARG0, _OF_NAMES),
        "tgkill": _among(seccomp.ARG0, (pid,)),
        "prlimit64": _address(seccomp.ARG0, 0) + _address(seccomp.ARG2, 0) + allow,
        **{name: check + allow for name, check in (more or {}).items()},
    }
    code = op(seccomp.LOAD, seccomp.ARCH) + op(seccomp.EQUAL, arch, 1, 0) + op(seccomp.RETURN, seccomp.KILL_PROCESS)
    # The x32 calls have the architecture of x86_64, and other numbers for the same calls.
    code += op(seccomp.LOAD, seccomp.NR) + op(seccomp.AT_LEAST, _X32, 0, 1) + op(seccomp.RETURN, seccomp.KILL_PROCESS)
    code += op(seccomp.EQUAL, _CLONE3, 0, 1) + seccomp.refuse(
        _ENOSYS
    )  # libraries then fall back to clone, whose flags a filter can read
    for name, number in {**calls, **(also or {})}.items():
        if name not in without:
            body = checks.get(name, allow)
            code += op(seccomp.EQUAL, number, 0, len(body) // 8) + body
    return code + refused


def client(machine: str, pid: int) -> bytes:
    """The filter for the process that talks to the engine: it opens no file, and looks nothing up by name.

    >>> len(client("x86_64", 1)) % 8
    0
    """
    return _filter(machine, pid, without=("execve", "openat", "prlimit64", *_BY_NAME), also=_WAITING[machine])


def _among(offset: int, values: "tuple[int, ...]") -> bytes:
    """Allow the call only if the argument is one of these."""
    tests = [seccomp.op(seccomp.EQUAL, value, len(values) - place, 0) for place, value in enumerate(values)]
    allow = seccomp.op(seccomp.RETURN, seccomp.ALLOW)
    return seccomp.op(seccomp.LOAD, offset) + b"".join(tests) + seccomp.refuse(_EPERM) + allow


def _address(offset: int, value: int) -> bytes:
    """Refuse the call unless all 64 bits of the argument match."""
    code = b""
    for place, half in ((offset, value & 0xFFFFFFFF), (offset + 4, value >> 32)):
        code += seccomp.op(seccomp.LOAD, place) + seccomp.op(seccomp.EQUAL, half, 1, 0) + seccomp.refuse(_EPERM)
    return code
