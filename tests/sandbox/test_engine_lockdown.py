"""What a script that escaped from Monty can do behind the launcher: nothing outside its own process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toolcrib.sandbox
from toolcrib.sandbox.worker import launch, lockdown, seccomp

pytestmark = pytest.mark.skipif(bool(seccomp.missing()), reason="this system has no seccomp filter of ours")

PLACE = str(Path(toolcrib.sandbox.__file__).parent)
LOCK = f"""
import ctypes, fcntl, os, resource, signal, socket, sys, threading
sys.path.append({PLACE!r})
from worker import launch, lockdown, seccomp
victim, path = int(sys.argv[1]), sys.argv[2].encode()
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if os.uname().machine not in ("x86_64", "aarch64") or NUMBERS[name] is None:
        raise PermissionError
    if libc.syscall(NUMBERS[name], *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
lockdown.confine()
assert not seccomp.apply(launch.program(os.uname().machine, os.getpid(), 1, 2))
"""
NUMBERS: dict[str, tuple[int, int | None]] = {
    "fchmodat2": (452, 452),
    "utimensat": (280, 88),
    "mknodat": (259, 33),
    "setxattr": (188, 5),
    "fchownat": (260, 54),
    "lchown": (94, None),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tgkill": (234, 131),
    "execve": (59, 221),
}
FORBIDDEN = {
    "signal a thread of another process": "call('tgkill', victim, victim, 9)",
    "queue a signal": "call('rt_sigqueueinfo', victim, 9, ctypes.create_string_buffer(128))",
    "queue a signal to a thread": "call('rt_tgsigqueueinfo', victim, victim, 9, ctypes.create_string_buffer(128))",
    "signal by kill": "os.kill(victim, 9)",
    "have a signal sent by a descriptor": "fcntl.fcntl(1, fcntl.F_SETOWN, victim)",
    "change the limits of another process": "resource.prlimit(victim, resource.RLIMIT_NOFILE, (64, 64))",
    "change its own limits": "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))",
    "slow down another process": "os.setpriority(os.PRIO_PROCESS, victim, 19)",
    "move another process": "os.sched_setaffinity(victim, {0})",
    "empty a file": "os.truncate(path, 0)",
    "write a file": "os.open(path, os.O_WRONLY)",
    "remove a file": "os.unlink(path)",
    "rename a file": "os.rename(path, path + b'2')",
    "change a file's mode": "os.chmod(path, 0o777)",
    "change a file's mode by the newest call": "call('fchmodat2', -100, path, 0o777, 0)",
    "change a file's owner": "call('fchownat', -100, path, os.getuid(), os.getgid(), 0)",
    "change a file's owner by name": "call('lchown', path, os.getuid(), os.getgid())",
    "change a file's times": "call('utimensat', -100, path, None, 0)",
    "change a file's attributes": "call('setxattr', path, b'user.x', b'v', 1, 0)",
    "make a pipe with a name": "call('mknodat', -100, path + b'.pipe', 0o10600, 0)",
    "make a folder": "os.mkdir(path + b'.d')",
    "change its root": "os.chroot('/tmp')",
    "open a socket": "socket.socket()",
    "fork": "os.fork()",
    "become another program": "os.execve('/bin/true', ['true'], {})",
    "become a program by an address": "call('execve', b'/bin/true', None, None)",
    "share memory": "os.memfd_create('x')",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_it_cannot(what: str, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("data")
    before = file.stat()
    place = ["x86_64", "aarch64"].index(os.uname().machine)
    numbers = {name: both[place] for name, both in NUMBERS.items()}
    code = f"NUMBERS = {numbers}\n{LOCK}\ntry:\n    {FORBIDDEN[what]}\nexcept PermissionError:\n    print('refused')"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", code, str(victim.pid), str(file)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        victim.communicate(b"\n")
    assert tried.stdout == b"refused\n", tried.stderr
    assert victim.returncode == 0
    after = file.stat()
    assert (after.st_size, after.st_mode, after.st_mtime_ns) == (4, before.st_mode, before.st_mtime_ns)
    assert [item.name for item in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    "what",
    [
        "os.open('/etc/passwd', os.O_RDONLY)",
        "thread = threading.Thread(target=print); thread.start(); thread.join()",
        "resource.getrlimit(resource.RLIMIT_STACK)",
        "call('tgkill', os.getpid(), threading.get_native_id(), 0)",
    ],
)
def test_an_engine_keeps_the_rights_that_it_needs(what: str) -> None:
    place = ["x86_64", "aarch64"].index(os.uname().machine)
    numbers = {name: both[place] for name, both in NUMBERS.items()}
    code = f"NUMBERS = {numbers}\n{LOCK}\n{what}\nprint('done')"
    tried = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", code, "1", "/"], capture_output=True, timeout=60, check=False
    )
    assert tried.stdout.strip() == b"done", tried.stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_its_filter_refuses_unlisted_calls(machine: str) -> None:
    code = launch.program(machine, 1, 2, 3)
    assert len(code) % 8 == 0
    assert code[-8:] == seccomp.refuse(1)


def read_as_an_engine(path: Path, *, files: bool) -> "subprocess.CompletedProcess[bytes]":
    """Run `cat` on the path, behind the launcher."""
    start = f"import sys\nsys.path.append({PLACE!r})\nfrom worker import launch\n"
    start += f"launch.main({shutil.which('cat')!r}, 'require', 1 << 29, files={files})"
    command = [sys.executable, "-I", "-S", "-B", "-c", start, str(path)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


@pytest.mark.skipif(not lockdown.landlock_version() or not shutil.which("cat"), reason="this kernel has no Landlock")
def test_an_engine_reads_no_file_of_its_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    tried = read_as_an_engine(secret, files=True)
    assert (tried.returncode, tried.stdout) == (1, b"")
    assert read_as_an_engine(Path("/etc/passwd"), files=True).stdout == b""
    assert read_as_an_engine(secret, files=False).stdout == b"token", "the program itself runs there"


def test_a_kernel_without_landlock_restricts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockdown, "landlock_version", lambda: 0)
    assert lockdown.restrict_files("/bin/true") == "this system has no Landlock"
    assert Path(__file__).read_bytes()
