"""What arbitrary Python can do in a locked-down worker, and so a script that escaped from Lua."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import toolcrib.sandbox
from toolcrib.sandbox.worker import seccomp

pytestmark = pytest.mark.skipif(bool(seccomp.missing()), reason="this system has no seccomp filter of ours")

PLACE = str(Path(toolcrib.sandbox.__file__).parent)
MIB = 1 << 20
LOCK = f"""
import sys, os, ctypes, socket, threading, mmap, signal, time
sys.path.append({PLACE!r})
from worker import lockdown, seccomp
lockdown.limit_always()
lockdown.limit(memory={256 * MIB}, cpu_s=1)
lockdown.confine()
if {{filtered}}:
    assert not seccomp.apply(seccomp.program(os.uname().machine, os.getpid()))
libc = ctypes.CDLL(None)
"""
FORBIDDEN = {
    "open a file": "os.open('/etc/passwd', os.O_RDONLY)",
    "write a file": "os.open('/tmp/x', os.O_WRONLY | os.O_CREAT)",
    "list a folder": "os.listdir('/')",
    "ask about a file": "os.stat('/')",
    "open a socket": "socket.socket()",
    "fork": "os.fork()",
    "start a thread": "threading.Thread(target=print).start()",
    "become a program": "os.execv('/bin/true', ['true'])",
    "signal the parent": "os.kill(os.getppid(), 0)",
    "signal itself by kill": "os.kill(os.getpid(), 0)",
    "trace": "libc.ptrace(0, 0, 0, 0)",
    "read another descriptor": "os.read(2, 1)",
    "write another descriptor": "os.write(0, b'x')",
    "duplicate a descriptor": "os.dup(1)",
    "make a pipe": "os.pipe()",
    "map executable memory": "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)",
    "make memory executable": "libc.mprotect(ctypes.c_void_p(id(libc) & ~4095), 4096, 7)",
    "change its limits": "libc.setrlimit(7, ctypes.create_string_buffer(b'\\xff' * 16))",
    "lift the filter": "libc.prctl(22, 0, 0, 0, 0)",
    "become another user": "os.setuid(0)",
    "sleep": "time.sleep(0.001)",
    "reach the kernel's keys": "libc.syscall(250, 0, 0, 0, 0)",
    "use the older calls": "libc.syscall(0x40000000 + 39)",
}


def attempt(code: str, *, filtered: bool = True) -> "subprocess.CompletedProcess[bytes]":
    program = LOCK.format(filtered=filtered) + code
    return subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, timeout=60, check=False, env={}
    )


@pytest.mark.parametrize("what", FORBIDDEN)
def test_it_cannot(what: str) -> None:
    ended = attempt(f"{FORBIDDEN[what]}\nos.write(1, b'done')")
    assert ended.returncode == -signal.SIGSYS, ended
    assert b"done" not in ended.stdout


def test_it_can_compute_and_write_to_its_pipe() -> None:
    ended = attempt("os.write(1, str(sum(range(1000))).encode())\nos._exit(0)")
    assert (ended.returncode, ended.stdout) == (0, b"499500")


def test_memory_is_limited() -> None:
    ended = attempt(f"try:\n    bytearray({512 * MIB})\nexcept MemoryError:\n    os.write(1, b'no')\nos._exit(0)")
    assert ended.stdout == b"no"


def test_processor_time_is_limited() -> None:
    assert attempt("while True: pass").returncode == -signal.SIGXCPU


def test_the_limits_apply_without_the_filter() -> None:
    ended = attempt("try:\n    os.open('/etc/passwd', 0)\nexcept OSError as e:\n    print(e.errno)", filtered=False)
    assert ended.stdout.strip() == b"24"


def test_a_worker_ends_with_its_parent() -> None:
    code = f"import sys; sys.path.append({PLACE!r}); from worker import lockdown; lockdown.die_with(1 << 22)"
    ended = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], timeout=60, check=False)
    assert ended.returncode == 1, "its parent is not the expected one, so it must end"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_filter_has_whole_instructions_and_kills_by_default(machine: str) -> None:
    code = seccomp.program(machine, os.getpid())
    assert len(code) % 8 == 0
    assert code[-4:] == seccomp.KILL_PROCESS.to_bytes(4, sys.byteorder)
