"""toolcrib over this process's own stdin and stdout.

Standard output belongs to the protocol: while serving, whatever else writes there goes to standard error. Lines are
bounded, a line that is no JSON-RPC message is answered, and what was asked before the end of input is still answered.
"""

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import anyio.abc
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from toolcrib.server.http import stop_requested
from toolcrib.server.mcp import end_streams
from toolcrib.upstream.own_pipes import claim, release

_MAX_LINE: Final = 64 * 1024 * 1024
"""The longest message, in bytes."""

Incoming = SessionMessage | Exception


async def serve_stdio(server: Server[Any], *, drain_s: float, stop: anyio.Event | None = None) -> None:
    """Serve one client until it closes stdin, or `stop`, or signals where none is given; then answer what is left.

    Raises `AlreadyStarted` while something else in this process has its stdin and stdout.
    """
    claim("the server over stdio")
    try:
        async with _own_pipes() as (reader, write_fd):
            await serve_pipes(server, reader, write_fd, drain_s=drain_s, stop=stop)
    finally:
        release()


async def serve_pipes(
    server: Server[Any], reader: asyncio.StreamReader, write_fd: int, *, drain_s: float, stop: anyio.Event | None
) -> None:
    """Serve one client over a line reader and a file descriptor, which is set not to block."""
    os.set_blocking(write_fd, False)
    read_send, read_receive = anyio.create_memory_object_stream[Incoming](0)
    write_send, write_receive = anyio.create_memory_object_stream[SessionMessage](0)
    wire = _Wire(reader, write_fd)
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await server.run(read_receive, write_send, server.create_initialization_options())
            group.cancel_scope.cancel()

        group.start_soon(run)
        group.start_soon(wire.write_all, write_receive)
        async with read_send:
            await wire.read_all(read_send, stop)
            end_streams(server)
            with anyio.move_on_after(drain_s):
                await wire.all_answered()


class _Wire:
    """Newline-delimited JSON-RPC over two pipes, and what is still unanswered."""

    def __init__(self, reader: asyncio.StreamReader, write_fd: int) -> None:
        self._reader = reader
        self._write_fd = write_fd
        self._unanswered: set[str | int] = set()
        self._idle = anyio.Event()
        self._lock = anyio.Lock()

    async def all_answered(self) -> None:
        if self._unanswered:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def read_all(self, sink: MemoryObjectSendStream[Incoming], stop: anyio.Event | None) -> None:
        """Hand on every message until the end of input or the request to stop."""
        async with anyio.create_task_group() as group:

            async def watch(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                await stop_requested(stop, task_status=task_status)
                group.cancel_scope.cancel()

            await group.start(watch)
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await self._line():
                    await self._take(line, sink)
            group.cancel_scope.cancel()

    async def _line(self) -> bytes:
        """The next line, empty at the end; a line that is too long is answered and skipped."""
        while True:
            try:
                return await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as end:
                return end.partial
            except asyncio.LimitOverrunError as overrun:
                await self._skip(overrun.consumed)
                await self._refuse(mcp_types.INVALID_REQUEST, f"The message is larger than {_MAX_LINE} bytes.")

    async def _skip(self, consumed: int) -> None:
        """Throw away the rest of the line."""
        while True:
            await self._reader.readexactly(consumed)
            try:
                await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as overrun:
                consumed = overrun.consumed
            except asyncio.IncompleteReadError:
                return
            else:
                return

    async def _take(self, line: bytes, sink: MemoryObjectSendStream[Incoming]) -> None:
        if not line.strip():
            return
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            await self._refuse(mcp_types.PARSE_ERROR, "The line is no JSON-RPC message.")
            return
        if isinstance(message, mcp_types.JSONRPCRequest):
            self._unanswered.add(message.id)
        elif isinstance(message, mcp_types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._settle((message.params or {}).get("requestId"))
        await sink.send(SessionMessage(message))

    async def _refuse(self, code: int, text: str) -> None:
        error = mcp_types.ErrorData(code=code, message=text)
        await self._send(mcp_types.JSONRPCError(jsonrpc="2.0", id=None, error=error))

    async def write_all(self, source: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write every message until the server ends, or nobody reads any more."""
        with contextlib.suppress(OSError):
            async with source:
                async for item in source:
                    await self._send(item.message)
                    if isinstance(item.message, (mcp_types.JSONRPCResponse, mcp_types.JSONRPCError)):
                        self._settle(item.message.id)

    def _settle(self, request_id: object) -> None:
        if isinstance(request_id, (str, int)):
            self._unanswered.discard(request_id)
        if not self._unanswered:
            self._idle.set()

    async def _send(self, message: mcp_types.JSONRPCMessage) -> None:
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        async with self._lock:
            while data:
                try:
                    written = os.write(self._write_fd, data)
                except BlockingIOError:
                    await anyio.wait_writable(self._write_fd)
                else:
                    data = data[written:]


@contextlib.asynccontextmanager
async def _own_pipes() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """This process's stdin and stdout, taken away from everything else in it while serving."""
    sys.stdout.flush()
    wire_in, wire_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    transport: asyncio.BaseTransport | None = None
    source = os.fdopen(wire_in, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    try:
        if _can_wait(wire_in):
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
        else:
            reader.feed_data(await asyncio.to_thread(source.read))
            reader.feed_eof()
        yield reader, wire_out
    finally:
        if transport is not None:
            transport.close()
        source.close()
        os.set_blocking(wire_out, True)
        os.dup2(wire_out, 1)
        os.close(wire_out)


def _can_wait(fd: int) -> bool:
    """Whether an event loop can wait for the descriptor. Files and `/dev/null` it cannot; they have an end at once."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
