"""Messages over pipes, and this process's own stdin and stdout, which one part of it may use at a time."""

import os
import select
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from threading import Lock
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread

from toolcrib.errors import AlreadyStarted
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports.duplex import CLOSED, PIPE_CLOSED, DuplexTransport

_CHUNK_BYTES: Final = 65536
_ATOMIC_BYTES: Final = getattr(select, "PIPE_BUF", 0)
"""What is written to a pipe whole or not at all; 0 where the system does not promise that."""
_CLOSED_FD: Final = -1
_MAX_QUEUED: Final = 256
"""Lines queued for a reader that does not read; beyond it, senders wait."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class _StdioOwner:
    """Who uses this process's stdin and stdout."""

    def __init__(self) -> None:
        self.name = ""
        self.lock = Lock()


_STDIO_OWNER: Final = _StdioOwner()


def claim_stdio(what: str) -> None:
    """Reserve this process's stdin and stdout for one part of it; `what` names it in the error for the next one.

    Raises `AlreadyStarted` while another part uses them.
    """
    with _STDIO_OWNER.lock:
        if _STDIO_OWNER.name:
            raise AlreadyStarted(
                f"This process's stdin and stdout are in use by {_STDIO_OWNER.name}; {what} cannot use them too.",
                hint="Give the server its own url or command.",
            )
        _STDIO_OWNER.name = what


def release_stdio() -> None:
    """Release stdin and stdout; harmless if they are not in use."""
    with _STDIO_OWNER.lock:
        _STDIO_OWNER.name = ""


@contextmanager
def redirected_stdio(what: str) -> Iterator[tuple[int, int]]:
    """Yield descriptors of stdin and stdout for the caller to close. Raises as `claim_stdio` does.

    Meanwhile, whatever else in the process prints goes to stderr, and reads from stdin see its end.
    """
    claim_stdio(what)
    try:
        sys.stdout.flush()
        wire_in, wire_out = os.dup(_STDIN), os.dup(_STDOUT)
        before = {_STDIN: os.dup(_STDIN), _STDOUT: os.dup(_STDOUT)}
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, _STDIN)
        os.dup2(_STDERR, _STDOUT)
        os.close(null)
        try:
            yield wire_in, wire_out
        finally:
            sys.stdout.flush()
            os.set_blocking(before[_STDOUT], True)
            for number, kept in before.items():
                os.dup2(kept, number)
                os.close(kept)
    finally:
        release_stdio()


class LineWriter:
    """Writes lines to a pipe, in order: at once if there is room and none waits.

    The others wait for a task of their own. If the task of a request wrote one, half of a line might be the end of it.
    asyncio's pipe transports keep the error of a broken pipe for a later caller; some versions only log it, and the
    message is lost silently. Here the error is raised to the task that writes.
    """

    def __init__(self, fd: int) -> None:
        """Owns the descriptor, and sets it to non-blocking."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._lines: deque[bytes] = deque()
        """What waits, with what is being written first."""
        self._changed = anyio.Event()

    def send_now(self, line: bytes) -> bool:
        """Write a line at once; false if that cannot be done, and nothing was written."""
        if self._lines or self._fd == _CLOSED_FD or len(line) > _ATOMIC_BYTES:
            return False
        try:
            return os.write(self._fd, line) == len(line)
        except OSError:
            return False

    async def send(self, line: bytes) -> None:
        """Have a line written soon; waits while too many wait. Raises `anyio.ClosedResourceError`."""
        while len(self._lines) >= _MAX_QUEUED and self._fd != _CLOSED_FD:
            await self._changed.wait()
        if self._fd == _CLOSED_FD:
            raise anyio.ClosedResourceError
        self._lines.append(line)
        self._wake()

    async def run(self) -> None:
        """Write what waits. Raises `OSError`, and `anyio.ClosedResourceError` when closed."""
        while True:
            while self._lines:
                await self._write(self._lines[0])
                self._lines.popleft()
                self._wake()
            await self._changed.wait()

    async def _write(self, line: bytes) -> None:
        left = memoryview(line)
        await anyio.lowlevel.checkpoint()
        while left:
            if self._fd == _CLOSED_FD:
                raise anyio.ClosedResourceError
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._fd)

    def close(self) -> None:
        """Close the pipe; what waits raises."""
        fd, self._fd = self._fd, _CLOSED_FD
        self._wake()
        if fd != _CLOSED_FD:
            anyio.notify_closing(fd)
            os.close(fd)

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class PipeReader:
    """The reading end of a pipe. Leaves the blocking mode as it is: other processes may share the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._can_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
        """An event loop cannot wait for files and `/dev/null`; reading them never blocks either."""

    async def receive(self) -> bytes:
        """Return what is available, at most 64 KiB.

        Raises `anyio.EndOfStream`, `OSError`, and `anyio.ClosedResourceError`.
        """
        if self._fd == _CLOSED_FD:
            raise anyio.ClosedResourceError
        if self._can_wait:
            await anyio.wait_readable(self._fd)
            chunk = os.read(self._fd, _CHUNK_BYTES)
        else:
            chunk = await anyio.to_thread.run_sync(os.read, self._fd, _CHUNK_BYTES)
        if not chunk:
            raise anyio.EndOfStream
        return chunk

    def close(self) -> None:
        """Close the descriptor; a waiting `receive` raises."""
        fd, self._fd = self._fd, _CLOSED_FD
        if fd != _CLOSED_FD:
            anyio.notify_closing(fd)
            os.close(fd)


class ParentStdio(DuplexTransport):
    """A transport over stdin and stdout, to a server that started this process or is connected to it by pipes.

    Used as `ServerOptions(name="parent", target=ParentStdio)`.
    """

    def __init__(self) -> None:
        super().__init__(ServerOptions(name=""))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        with ExitStack() as stack:
            try:
                wire_in, wire_out = stack.enter_context(redirected_stdio("a server reached by stdio://"))
            except AlreadyStarted as error:
                raise ExchangeError(FailureKind.UNSENT, error.message.rstrip(".")) from error
            reader, self._writer = PipeReader(wire_in), LineWriter(wire_out)
            async with anyio.create_task_group() as group:
                group.start_soon(self._read, reader)
                group.start_soon(self._write)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()
                    reader.close()
                    self._writer.close()

    def _send_now(self, line: bytes) -> bool:
        return self._writer.send_now(line)

    async def _send(self, line: bytes) -> None:
        await self._writer.send(line)

    async def _read(self, reader: PipeReader) -> None:
        with suppress(*PIPE_CLOSED):
            await self._read_lines(reader.receive)
        self.closed.set(CLOSED)
        self._fail_all()

    async def _write(self) -> None:
        with suppress(*PIPE_CLOSED):
            await self._writer.run()
        self.closed.set(CLOSED)
