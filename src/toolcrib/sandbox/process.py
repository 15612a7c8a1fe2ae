"""One worker process as the gateway holds it: its pipes, its end, and how it ended."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

BOOT: Final = Path(__file__).parent / "worker" / "boot.py"
_LOOKS: Final = 50
_LOOK_S: Final = 0.02
_REAP_S: Final = 5.0
"""After SIGKILL nothing is left to wait for but the kernel."""


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """Which engine a process is for."""

    engine: Literal["lua", "monty"]
    library: str
    """What the engine needs to find its library, as that engine wants it."""


class End(Protocol):
    """How a process is ended, and what is left of it."""

    @property
    def pid(self) -> int:
        """Its number."""

    def kill(self) -> None:
        """End it now, whatever it does; harmless when it has ended."""

    async def wait(self) -> int | None:
        """Its exit status, negative for a signal, None when nobody knows. May be asked more than once."""

    def abandon(self) -> None:
        """End it, and keep nothing of it; nobody will wait."""


class Worker:
    """A process that runs one script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, end: End) -> None:
        self.reader = reader
        self.writer = writer
        self.end = end
        self._closing: asyncio.Task[int | None] | None = None

    @property
    def alive(self) -> bool:
        """False once it closed its pipe."""
        return not self.reader.at_eof()

    async def close(self) -> int | None:
        """End the process and reap it; its exit status. Goes through even when the caller is cancelled meanwhile."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> int | None:
        self.end.kill()
        self.writer.transport.abort()
        try:
            return await asyncio.wait_for(self.end.wait(), _REAP_S)
        except TimeoutError:
            return None


class Spawned:
    """A child of this process. With a pidfd where the system has one: a signal can then reach no other process."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        self._pidfd: int | None = None
        if sys.platform == "linux":
            with suppress(OSError):
                self._pidfd = os.pidfd_open(child.pid)
        self._ended = asyncio.create_task(self._reap())

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        if self._child.returncode is not None:
            return
        if sys.platform == "linux" and self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        else:
            self._child.kill()

    async def wait(self) -> int | None:
        return await asyncio.shield(self._ended)

    def abandon(self) -> None:
        self.kill()

    async def _reap(self) -> int:
        if self._pidfd is None:
            return await asyncio.to_thread(self._child.wait)
        await readable(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        with suppress(ProcessLookupError, PermissionError):  # what it started; nobody else has its number before `wait`
            os.killpg(self._child.pid, signal.SIGKILL)
        status = self._child.wait()
        await _bury_group(self._child.pid)
        return status


async def _bury_group(group: int) -> None:
    """Reap those of a group that ended and fell to this process, as to the first one of a container."""
    for _ in range(_LOOKS):
        try:
            while os.waitpid(-group, os.WNOHANG)[0]:  # noqa: ASYNC222 - it does not wait
                pass
        except ChildProcessError:
            return
        await asyncio.sleep(_LOOK_S)


async def readable(fd: int) -> None:
    """Wait until something can be read there, or, of a pidfd, until its process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def spawn(kind: WorkerKind) -> Worker:
    """A new worker process, which has not said yet that it is ready. Raises OSError."""
    arguments = command("worker", kind)
    if sys.platform == "win32":
        return await _spawn_piped(arguments)
    ours, theirs = socket.socketpair()
    with theirs:
        end = Spawned(launch(arguments, theirs.fileno()))
    return await connected(ours, end)


async def connected(sock: socket.socket, end: End) -> Worker:
    """The worker behind that socket; when it cannot be had, it is ended."""
    try:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
    except BaseException:
        sock.close()
        end.abandon()
        raise
    return Worker(reader, writer, end)


def command(mode: Literal["worker", "zygote"], kind: WorkerKind) -> list[str]:
    """How such a process is started: without the user's site, paths, environment or byte code."""
    return [sys.executable, "-I", "-S", "-B", str(BOOT), mode, kind.engine, kind.library, str(os.getpid())]


def launch(arguments: list[str], fd: int) -> "subprocess.Popen[bytes]":
    """Start it with that descriptor as its input and output, and nothing else of ours."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter and file
        arguments, stdin=fd, stdout=fd, stderr=subprocess.DEVNULL, env={}, cwd="/", start_new_session=True
    )


async def _spawn_piped(arguments: list[str]) -> Worker:
    """For Windows, which has no socket pairs to inherit. Untested."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"SYSTEMROOT": os.environ.get("SYSTEMROOT", "")},
    )
    if process.stdin is None or process.stdout is None:
        raise OSError("a child is started with two pipes")
    return Worker(process.stdout, process.stdin, _Piped(process))


class _Piped:
    """The end of a process that asyncio started. Untested."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int | None:
        return await self._process.wait()

    def abandon(self) -> None:
        self.kill()


def cpu_seconds(pid: int) -> float | None:
    """The processor time that the process has used, in seconds; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
