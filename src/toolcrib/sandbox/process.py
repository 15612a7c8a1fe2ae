"""Processes that run scripts: start them, or fork them from a prepared one, and end them.

Forking takes about a millisecond instead of twenty, and needs Linux. Where the prepared process cannot be started, or
is lost, workers are started one by one, as on every other system.
"""

import asyncio
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

_log = logging.getLogger(__name__)
BOOT_SCRIPT: Final = Path(__file__).parent / "worker" / "boot.py"
_REAP_CHECKS: Final = 50
_REAP_INTERVAL_S: Final = 0.02
_REAP_TIMEOUT_S: Final = 5.0
"""After SIGKILL only the kernel can cause a delay."""


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """Which engine a process runs."""

    engine: str
    """The module in `worker/` that runs it."""
    library: str
    """How the engine finds its library; each engine has its own format."""


class ProcessHandle(Protocol):
    """A process that can be killed and reaped."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def kill(self) -> None:
        """Kill it now; harmless if it has ended."""

    async def wait(self) -> int | None:
        """Its exit status, negative for a signal, None if unknown. May be called more than once."""

    def abandon(self) -> None:
        """Kill it and release its resources; `wait` will not be called."""


class ScriptProcess:
    """A process that runs one script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: ProcessHandle) -> None:
        self.reader = reader
        self.writer = writer
        self.process = process
        self._closing: asyncio.Task[int | None] | None = None

    @property
    def alive(self) -> bool:
        """False once it closed its pipe."""
        return not self.reader.at_eof()

    async def close(self) -> int | None:
        """Kill and reap the process; returns its exit status. Completes even if the caller is cancelled meanwhile."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> int | None:
        self.process.kill()
        self.writer.transport.abort()
        try:
            return await asyncio.wait_for(self.process.wait(), _REAP_TIMEOUT_S)
        except TimeoutError:
            return None


class ChildProcess:
    """A child of this process, signalled through a pidfd where possible: a reused process id cannot be hit."""

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
        await wait_readable(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        with suppress(ProcessLookupError, PermissionError):  # what it started; its id is not reused before `wait`
            os.killpg(self._child.pid, signal.SIGKILL)
        status = self._child.wait()
        await _reap_group(self._child.pid)
        return status


async def _reap_group(group: int) -> None:
    """Reap processes of a group that this process inherited, as the first process of a container does."""
    for _ in range(_REAP_CHECKS):
        try:
            while os.waitpid(-group, os.WNOHANG)[0]:  # noqa: ASYNC222 - it does not block
                pass
        except ChildProcessError:
            return
        await asyncio.sleep(_REAP_INTERVAL_S)


async def wait_readable(fd: int) -> None:
    """Wait until the descriptor is readable; a pidfd is when its process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def spawn_worker(kind: WorkerKind) -> ScriptProcess:
    """Start a worker process; it may not be ready yet. Raises OSError."""
    arguments = worker_command("worker", kind)
    if sys.platform == "win32":
        return await _spawn_piped_worker(arguments)
    ours, theirs = socket.socketpair()
    with theirs:
        child = ChildProcess(start_process(arguments, theirs.fileno()))
    return await connect_worker(ours, child)


async def connect_worker(sock: socket.socket, process: ProcessHandle) -> ScriptProcess:
    """The worker at the other end of the socket; killed if connecting fails."""
    try:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
    except BaseException:
        sock.close()
        process.abandon()
        raise
    return ScriptProcess(reader, writer, process)


def worker_command(mode: Literal["worker", "zygote"], kind: WorkerKind) -> list[str]:
    """The command for such a process: without site-packages, environment or byte code."""
    return [sys.executable, "-I", "-S", "-B", str(BOOT_SCRIPT), mode, kind.engine, kind.library, str(os.getpid())]


def start_process(arguments: list[str], fd: int) -> "subprocess.Popen[bytes]":
    """Start it with that descriptor as its input and output, and no other descriptor."""
    return subprocess.Popen(  # noqa: S603 - our own interpreter and file
        arguments, stdin=fd, stdout=fd, stderr=subprocess.DEVNULL, env={}, cwd="/", start_new_session=True
    )


async def _spawn_piped_worker(arguments: list[str]) -> ScriptProcess:
    """Start a worker on Windows, where socket pairs cannot be inherited. Untested."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"SYSTEMROOT": os.environ.get("SYSTEMROOT", "")},
    )
    if process.stdin is None or process.stdout is None:
        raise OSError("the child process has no pipes")
    return ScriptProcess(process.stdout, process.stdin, _PipedProcess(process))


class _PipedProcess:
    """A process started by asyncio. Untested."""

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
    """The processor time that the process has used, in seconds; None if the system does not report it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


# -- forking -------------------------------------------------------------------------------------------------------

_ZYGOTE_REPLY: Final = struct.Struct("=cii")
_ENDED_FRAME = b"x"


def zygote_supported() -> bool:
    """Whether this system can fork workers from a prepared process."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open") or not hasattr(socket, "send_fds"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class Zygote:
    """Forks workers from a prepared process."""

    def __init__(self, kind: WorkerKind, *, start_s: float) -> None:
        """The prepared process may take `start_s` seconds to get ready, and so may each worker."""
        self._kind = kind
        self._start_s = start_s
        self._process: ChildProcess | None = None
        self._control: socket.socket | None = None
        self._refused = False
        self._requests: deque[asyncio.Future[_ForkedProcess]] = deque()
        self._children: dict[int, asyncio.Future[int | None]] = {}

    @property
    def pid(self) -> int | None:
        """The id of the prepared process, while there is one."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> bool:
        """Start the prepared process; False if that fails."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)  # noqa: FBT003 - the standard library's
        try:
            with theirs:
                self._process = ChildProcess(start_process(worker_command("zygote", self._kind), theirs.fileno()))
            async with asyncio.timeout(self._start_s):
                await wait_readable(ours.fileno())
            is_ready, problem = bool(ours.recv(_ZYGOTE_REPLY.size)), "it ended at once"
        except (OSError, TimeoutError) as error:
            is_ready, problem = False, str(error)
        except BaseException:
            ours.close()
            await self._end_process()
            raise
        if not is_ready:
            _log.warning("Script processes are started one by one: no prepared process could be started: %s", problem)
            ours.close()
            await self._end_process()
            return False
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_reply)
        return True

    async def make(self) -> ScriptProcess:
        """A new worker: forked if possible, otherwise started from scratch. Raises OSError."""
        if self._control is not None and not self._refused:
            try:
                return await self._fork()
            except OSError as error:
                _log.warning("The prepared script process cannot fork any more: %s", error)
        return await spawn_worker(self._kind)

    async def close(self) -> None:
        """End the prepared process, and with it everything it forked."""
        self._hang_up()
        await self._end_process()

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.wait()

    async def _fork(self) -> ScriptProcess:
        if self._control is None:
            raise OSError("the prepared process is gone")
        ours, theirs = socket.socketpair()
        answer: asyncio.Future[_ForkedProcess] = asyncio.get_running_loop().create_future()
        with theirs:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        self._requests.append(answer)
        try:
            child = await asyncio.wait_for(asyncio.shield(answer), self._start_s)
        except BaseException:
            ours.close()  # a worker whose socket is closed ends by itself
            answer.add_done_callback(_abandon_unclaimed)
            raise
        return await connect_worker(ours, child)

    # -- replies of the prepared process ---------------------------------------------------------------------------

    def _on_reply(self) -> None:
        if self._control is None:
            return
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _ZYGOTE_REPLY.size, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if len(data) != _ZYGOTE_REPLY.size:
            self._hang_up()
            return
        kind, pid, status = _ZYGOTE_REPLY.unpack(data)
        if kind == _ENDED_FRAME:
            future = self._children.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(status)
        elif self._requests:
            self._resolve_request(self._requests.popleft(), pid, fds)

    def _resolve_request(self, request: "asyncio.Future[_ForkedProcess]", pid: int, fds: list[int]) -> None:
        if not fds:
            self._refused = True  # earlier workers depend on it, so it stays alive, but gets no more requests
            request.set_exception(OSError("the prepared process could not fork"))
            return
        self._children[pid] = asyncio.get_running_loop().create_future()
        request.set_result(_ForkedProcess(pid, fds[0], self._children[pid]))

    def _hang_up(self) -> None:
        control, self._control = self._control, None
        if control is None:
            return
        asyncio.get_running_loop().remove_reader(control.fileno())
        control.close()
        for request in self._requests:
            request.set_exception(OSError("the prepared process is gone"))
        self._requests.clear()
        for ended in self._children.values():
            if not ended.done():
                ended.set_result(None)
        self._children.clear()


class _ForkedProcess:
    """A child of the prepared process, which reports how it ended."""

    def __init__(self, pid: int, pidfd: int, ended: "asyncio.Future[int | None]") -> None:
        self._pid = pid
        self._pidfd: int | None = pidfd
        self._ended = ended

    @property
    def pid(self) -> int:
        return self._pid

    def kill(self) -> None:
        if self._pidfd is not None and sys.platform == "linux":
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int | None:
        try:
            return await asyncio.shield(self._ended)
        finally:
            self._close()

    def abandon(self) -> None:
        self.kill()
        self._close()

    def _close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _abandon_unclaimed(answer: "asyncio.Future[_ForkedProcess]") -> None:
    if not answer.cancelled() and answer.exception() is None:
        answer.result().abandon()
