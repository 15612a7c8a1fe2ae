"""Gives up what a Python engine's process does not need, and becomes that process. Linux and macOS; macOS is untested.

The engine starts by itself after this, so less can be forbidden than in a Lua worker: it may open files for reading and
start threads. It gets no network, no other process, no signals, no tracing, and writes no file.
"""

import os
import sys
from importlib import import_module

from . import lockdown, seccomp

_FILES = 32
_CLONE_THREAD = 0x00010000
_EPERM, _ENOSYS = 1, 38
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND."""

_X86_64_DENIED = {
    "open": 2,
    "socket": 41,
    "connect": 42,
    "accept": 43,
    "sendto": 44,
    "sendmsg": 46,
    "bind": 49,
    "listen": 50,
    "fork": 57,
    "vfork": 58,
    "kill": 62,
    "rename": 82,
    "mkdir": 83,
    "rmdir": 84,
    "creat": 85,
    "link": 86,
    "unlink": 87,
    "symlink": 88,
    "chmod": 90,
    "chown": 92,
    "ptrace": 101,
    "mount": 165,
    "setuid": 105,
    "tkill": 200,
    "io_uring_setup": 425,
    "mkdirat": 258,
    "unlinkat": 263,
    "renameat": 264,
    "linkat": 265,
    "symlinkat": 266,
    "fchmodat": 268,
    "unshare": 272,
    "accept4": 288,
    "sendmmsg": 307,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "bpf": 321,
    "execveat": 322,
    "userfaultfd": 323,
    "renameat2": 316,
    "memfd_create": 319,
    "keyctl": 250,
    "add_key": 248,
    "perf_event_open": 298,
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "openat2": 437,
    "pidfd_getfd": 438,
}
_AARCH64_DENIED = {
    "socket": 198,
    "connect": 203,
    "accept": 202,
    "sendto": 206,
    "sendmsg": 211,
    "bind": 200,
    "listen": 201,
    "kill": 129,
    "ptrace": 117,
    "mount": 40,
    "setuid": 146,
    "tkill": 130,
    "io_uring_setup": 425,
    "mkdirat": 34,
    "unlinkat": 35,
    "renameat": 38,
    "linkat": 37,
    "symlinkat": 36,
    "fchmodat": 53,
    "unshare": 97,
    "accept4": 242,
    "sendmmsg": 269,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "bpf": 280,
    "execveat": 281,
    "userfaultfd": 282,
    "renameat2": 276,
    "memfd_create": 279,
    "keyctl": 219,
    "add_key": 217,
    "perf_event_open": 241,
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "openat2": 437,
    "pidfd_getfd": 438,
}
_MACHINES = {
    "x86_64": (0xC000003E, 56, 257, _X86_64_DENIED),
    "aarch64": (0xC00000B7, 220, 56, _AARCH64_DENIED),
}
"""The audit architecture, the numbers of clone and openat, and what is denied."""
_CLONE3 = 435
_X32 = 0x40000000


def main(program: str, wish: str, memory: int) -> None:
    """Become that program, confined. `wish` is what to do without a filter: require, try or off."""
    os.closerange(3, 1024)
    lockdown.confine()
    _limit(memory)
    reason = "" if wish == "off" else _install()
    if reason and wish == "require":
        sys.exit(reason)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 2)  # what it says there is meant for nobody
    os.execve(program, [program, *sys.argv[1:]], {})  # noqa: S606 - the whole purpose


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


def _install() -> str:
    machine = os.uname().machine
    if not sys.platform.startswith("linux") or machine not in _MACHINES:
        return "there is no system call filter for this system"
    return seccomp.apply(denials(machine))


def denials(machine: str) -> bytes:
    """The filter as BPF code.

    >>> len(denials("x86_64")) % 8
    0
    """
    arch, clone, openat, denied = _MACHINES[machine]
    op, refuse, allow = seccomp.op, seccomp.refuse, seccomp.ALLOW
    code = op(seccomp.LOAD, seccomp.ARCH) + op(seccomp.EQUAL, arch, 1, 0) + op(seccomp.RETURN, seccomp.KILL_PROCESS)
    code += op(seccomp.LOAD, seccomp.NR) + op(seccomp.AT_LEAST, _X32, 0, 1) + op(seccomp.RETURN, seccomp.KILL_PROCESS)
    code += op(seccomp.EQUAL, _CLONE3, 0, 1) + refuse(_ENOSYS)  # the C library then uses clone, whose flags can be seen
    code += op(seccomp.EQUAL, clone, 0, 4) + op(seccomp.LOAD, seccomp.ARG0)
    code += op(seccomp.ANY_BIT, _CLONE_THREAD, 1, 0) + refuse(_EPERM) + op(seccomp.RETURN, allow)
    code += op(seccomp.EQUAL, openat, 0, 4) + op(seccomp.LOAD, seccomp.ARG2)
    code += op(seccomp.ANY_BIT, _WRITING, 0, 1) + refuse(_EPERM) + op(seccomp.RETURN, allow)
    for number in denied.values():
        code += op(seccomp.EQUAL, number, 0, 1) + refuse(_EPERM)
    return code + op(seccomp.RETURN, allow)
