"""The files that remain: a program and the system's libraries. Linux 5.13 and later, where Landlock is enabled.

After this the process, and whatever it becomes, opens nothing else: no home, no configuration, no secret of its user.
"""

import ctypes
import os
import struct
import sys

from . import lockdown

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls; the numbers are the same on all machines."""
_VERSION = 1
_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1, 4, 8
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights a version of Landlock knows, the lowest bits first; later versions know no others of files."""
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
"""Where a program's libraries lie; what is missing is passed over."""


def version() -> int:
    """Of Landlock in this kernel; 0 where there is none."""
    return max(_call(_CREATE_RULESET, None, 0, _VERSION), 0) if sys.platform.startswith("linux") else 0


def restrict(program: str) -> str:
    """Leave this process that program, the libraries, and what the kernel tells of itself; why not, or an empty text.

    Needs no_new_privs.
    """
    known = version()
    if not known:
        return "this system has no Landlock"
    rights = (1 << _RIGHTS.get(known, _RIGHTS[5])) - 1
    ruleset = _call(_CREATE_RULESET, struct.pack("=Q", rights), 8, 0)
    if ruleset < 0:
        return f"Landlock made no rules: {os.strerror(ctypes.get_errno())}"
    try:
        for path in (program, *LIBRARIES, f"/proc/{os.getpid()}"):
            _allow(ruleset, path)
        refused = _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return f"Landlock refused the rules: {os.strerror(ctypes.get_errno())}" if refused else ""


def _allow(ruleset: int, path: str) -> None:
    """Read and execute what lies there, whatever it is."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    is_folder = os.fstat(place).st_mode & 0o170000 == 0o040000  # noqa: PLR2004 - S_IFMT and S_IFDIR, without `stat`
    rights = _EXECUTE | _READ_FILE | (_READ_DIR if is_folder else 0)
    _call(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, place), 0)
    os.close(place)


def _call(number: int, *arguments: "int | bytes | None") -> int:
    if lockdown.LIBC is None:
        return -1
    result: int = lockdown.LIBC.syscall(number, *arguments)
    return result
