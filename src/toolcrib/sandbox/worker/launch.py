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
_WAITING = ("wait4", "waitid", "pidfd_send_signal")
"""For ending the engine's process and learning how it ended; a pidfd exists for that process only."""


def main(program: str, wish: str, memory: int, *, files: bool) -> None:
    """Become that program, confined.

    `wish` says what to do if no filter can be installed: require, try or off. With `files`, the program can open only
    the system's libraries, where the kernel has Landlock.
    """
    os.closerange(3, 1024)
    lockdown.confine()
    lockdown.die_with(os.getppid())
    wanted = {"CORE": 0, "FSIZE": 0, "MEMLOCK": 0, "MSGQUEUE": 0, "NOFILE": _FILES, "AS": memory}
    lockdown.set_limits({name: (value, value) for name, value in wanted.items()})
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


def _install(path: int, arguments: int) -> str:
    if seccomp.missing():
        return "there is no system call filter for this system"
    return seccomp.apply(program(os.uname().machine, os.getpid(), path, arguments))


def program(machine: str, pid: int, path: int, arguments: int) -> bytes:
    """The filter as BPF code, for the process with that id.

    The process may become another program once: `path` and `arguments` are their random addresses in memory now.
    Afterwards the addresses are unknown, and there are too many pairs to try.

    >>> len(program("x86_64", 1, 2, 3)) % 8
    0
    """
    places = ((seccomp.ARG0, path), (seccomp.ARG1, arguments), (seccomp.ARG2, 0))
    return _filter(machine, pid, without=_WAITING, execve=b"".join(_address(*place) for place in places))


def _filter(machine: str, pid: int, *, without: "tuple[str, ...]", execve: bytes = b"") -> bytes:
    """Build a filter without some calls; `execve` checks the arguments of that one."""
    op, allow, refused = seccomp.op, seccomp.op(seccomp.RETURN, seccomp.ALLOW), seccomp.refuse(_EPERM)
    checks = {
        "clone": op(seccomp.LOAD, seccomp.ARG0) + op(seccomp.ANY_BIT, _CLONE_THREAD, 1, 0) + refused + allow,
        "openat": op(seccomp.LOAD, seccomp.ARG2) + op(seccomp.ANY_BIT, _WRITING, 0, 1) + refused + allow,
        "fcntl": seccomp.among(seccomp.ARG1, _OF_DESCRIPTORS, refused),
        "prctl": seccomp.among(seccomp.ARG0, _OF_NAMES, refused),
        "tgkill": seccomp.among(seccomp.ARG0, (pid,), refused),
        "prlimit64": _address(seccomp.ARG0, 0) + _address(seccomp.ARG2, 0) + allow,
        "execve": execve + allow,
    }
    code = seccomp.begin(machine)
    # The x32 calls have the architecture of x86_64, and other numbers for the same calls.
    code += op(seccomp.AT_LEAST, _X32, 0, 1) + op(seccomp.RETURN, seccomp.KILL_PROCESS)
    # Without clone3, libraries fall back to clone, whose flags a filter can read.
    code += op(seccomp.EQUAL, _CLONE3, 0, 1) + seccomp.refuse(_ENOSYS)
    for name, number in seccomp.calls(machine).items():
        if name not in without:
            body = checks.get(name, allow)
            code += op(seccomp.EQUAL, number, 0, len(body) // 8) + body
    return code + refused


def client(machine: str, pid: int) -> bytes:
    """The filter for the process that talks to the engine: it opens no file, and looks nothing up by name.

    >>> len(client("x86_64", 1)) % 8
    0
    """
    return _filter(machine, pid, without=("execve", "openat", "prlimit64", *_BY_NAME))


def _address(offset: int, value: int) -> bytes:
    """Refuse the call unless all 64 bits of the argument match."""
    code = b""
    for place, half in ((offset, value & 0xFFFFFFFF), (offset + 4, value >> 32)):
        code += seccomp.op(seccomp.LOAD, place) + seccomp.op(seccomp.EQUAL, half, 1, 0) + seccomp.refuse(_EPERM)
    return code
