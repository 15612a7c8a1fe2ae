"""Messages over pipes, and this process's own stdin and stdout, which one part of it may use at a time."""

import os
import select
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Lock
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from toolcrib.errors import AlreadyStarted
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports.base import Streams
from toolcrib.upstream.transports.bounds import run_in_steps
from toolcrib.upstream.transports.framing import ExpectedResponses, LineSplitter

_PIPE_CLOSED: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_CHUNK_BYTES: Final = 65536
_ATOMIC_BYTES: Final = getattr(select, "PIPE_BUF", 0)
"""What is written to a pipe whole or not at all; 0 where the system does not promise that."""
_CLOSED_FD: Final = -1
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


@asynccontextmanager
async def parent_stdio() -> AsyncIterator[Streams]:
    """A client transport over stdin and stdout, to a server that started this process or is connected to it by pipes.

    Used as `ServerOptions(name="parent", target=parent_stdio)`. Raises `AlreadyStarted` as `claim_stdio` does.
    """
    with redirected_stdio("a server reached by stdio://") as (wire_in, wire_out):
        async with pipe_transport(PipeReader(wire_in), PipeWriter(wire_out)) as streams:
            yield streams


class PipeWriter:
    """The writing end of a pipe; owns the descriptor and sets it to non-blocking.

    asyncio's pipe transports keep the error of a broken pipe for a later caller; some versions only log it, and the
    message is lost silently. Here the error is raised to the writer.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._is_writing = False

    def send_now(self, data: bytes) -> bool:
        """Write all of it at once; false if that cannot be done, and nothing was written."""
        if self._is_writing or self._fd == _CLOSED_FD or len(data) > _ATOMIC_BYTES:
            return False
        try:
            return os.write(self._fd, data) == len(data)
        except OSError:
            return False

    async def send(self, data: bytes) -> None:
        """Write all of it, for one writer at a time. Raises `OSError`, and `anyio.ClosedResourceError` when closed."""
        left = memoryview(data)
        self._is_writing = True
        try:
            await anyio.lowlevel.checkpoint()
            while left:
                if self._fd == _CLOSED_FD:
                    raise anyio.ClosedResourceError
                try:
                    left = left[os.write(self._fd, left) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._fd)
        finally:
            self._is_writing = False

    def close(self) -> None:
        """Close the descriptor; a waiting `send` raises."""
        fd, self._fd = self._fd, _CLOSED_FD
        if fd != _CLOSED_FD:
            anyio.notify_closing(fd)
            os.close(fd)


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


@asynccontextmanager
async def pipe_transport(reader: PipeReader, writer: PipeWriter) -> AsyncIterator[Streams]:
    """A transport over two pipes, one message per line; other lines are skipped."""
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        expected = ExpectedResponses(ServerOptions(name=""))
        group.start_soon(_read_messages, reader, to_session, expected)
        group.start_soon(_write_messages, writer, from_session, expected)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()
            reader.close()
            writer.close()
            for stream in (incoming, outgoing):
                stream.close()


async def _read_messages(
    reader: PipeReader, sink: MemoryObjectSendStream[SessionMessage | Exception], expected: ExpectedResponses
) -> None:
    lines = LineSplitter(expected.bounds)
    with sink, suppress(*_PIPE_CLOSED):
        while True:
            for line in lines.feed(await reader.receive()):
                for message in await run_in_steps(expected.parse(line)):
                    await sink.send(SessionMessage(message))


async def _write_messages(
    writer: PipeWriter, source: MemoryObjectReceiveStream[SessionMessage], expected: ExpectedResponses
) -> None:
    with source, suppress(*_PIPE_CLOSED):
        async for item in source:
            expected.sent(item.message)
            data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await writer.send(data.encode() + b"\n")
