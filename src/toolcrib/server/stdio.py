"""Serve MCP over this process's own stdin and stdout.

Standard output belongs to the protocol: while serving, everything else that writes there goes to standard error.
Lines are bounded, a line that is not a JSON-RPC message gets an error response, and requests received before the end
of input are still answered: with their result or, after a while, with an error that the server is shutting down.
"""

import asyncio
import contextlib
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from toolcrib.protocol.messages import request_id_in
from toolcrib.server.handlers import end_streams
from toolcrib.server.processes.process import SHUTTING_DOWN, wait_for_stop
from toolcrib.server.sdk_workarounds import deferred_parts, spliced, splices_on_stream
from toolcrib.upstream.transports.bounds import Bounds, run_at_once
from toolcrib.upstream.transports.framing import LineSplitter, OversizedLine, parse_line
from toolcrib.upstream.transports.pipes import claim_stdio, release_stdio

logger = logging.getLogger(__name__)

_MAX_LINE_BYTES: Final = 10 * 1024 * 1024
"""The longest message, in bytes."""
_MAX_NODES: Final = 200_000
"""Values and keys in its JSON."""
_CHUNK_BYTES: Final = 256 * 1024
_FLUSH_S: Final = 0.5
"""Time to write the last responses, in seconds, because the client may no longer read."""

Incoming = SessionMessage | Exception


async def serve_stdio(server: Server[Any], *, drain_s: float, stop: anyio.Event | None = None) -> None:
    """Serve one client until it closes stdin, or until `stop` (SIGTERM or SIGINT without it); then finish its requests.

    Raises `AlreadyStarted` while something else in this process uses its stdin and stdout.
    """
    claim_stdio("the server over stdio")
    try:
        async with _claimed_pipes() as (reader, write_fd):
            await serve_pipes(server, reader, write_fd, drain_s=drain_s, stop=stop)
    finally:
        release_stdio()


async def serve_pipes(
    server: Server[Any],
    reader: asyncio.StreamReader,
    write_fd: int,
    *,
    drain_s: float,
    stop: anyio.Event | None,
    max_line_bytes: int = _MAX_LINE_BYTES,
) -> None:
    """Serve one client over a reader and a file descriptor, which is made non-blocking."""
    os.set_blocking(write_fd, False)
    splices_on_stream.set(True)
    read_send, read_receive = anyio.create_memory_object_stream[Incoming](0)
    write_send, write_receive = anyio.create_memory_object_stream[SessionMessage](0)
    wire = _StdioConnection(reader, write_fd, max_line_bytes)
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
                await wire.wait_answered()
            with anyio.move_on_after(_FLUSH_S):
                await wire.refuse_unanswered()


class _StdioConnection:
    """Newline-delimited JSON-RPC over two pipes, with a record of unanswered requests."""

    def __init__(self, reader: asyncio.StreamReader, write_fd: int, limit: int) -> None:
        self._reader = reader
        self._limit = limit
        self._write_fd = write_fd
        self._unanswered: set[str | int] = set()
        self._refused: set[str | int] = set()
        self._idle = anyio.Event()
        self._lock = anyio.Lock()

    async def wait_answered(self) -> None:
        if self._unanswered:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def refuse_unanswered(self) -> None:
        """Answer every unanswered request with an error that the server is shutting down."""
        for request_id in tuple(self._unanswered):
            self._settle(request_id)
            self._refused.add(request_id)
            await self._refuse(mcp_types.CONNECTION_CLOSED, SHUTTING_DOWN, request_id)

    async def read_all(self, sink: MemoryObjectSendStream[Incoming], stop: anyio.Event | None) -> None:
        """Pass on every message until the end of input or the request to stop."""
        async with anyio.create_task_group() as group:

            async def watch(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                await wait_for_stop(stop, task_status=task_status)
                group.cancel_scope.cancel()

            await group.start(watch)
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._read_lines(sink)
            group.cancel_scope.cancel()

    async def _read_lines(self, sink: MemoryObjectSendStream[Incoming]) -> None:
        bounds = Bounds(self._limit, _MAX_NODES, bytes_setting="", nodes_setting="")
        lines = LineSplitter(lambda _head, _tail: bounds)
        while chunk := await self._reader.read(_CHUNK_BYTES):
            for line in lines.feed(chunk):
                await self._receive(line, sink)
        for line in lines.feed(b"\n"):
            await self._receive(line, sink)

    async def _receive(self, line: bytes | OversizedLine, sink: MemoryObjectSendStream[Incoming]) -> None:
        if isinstance(line, OversizedLine):
            await self._receive_oversized(line, sink)
            return
        if not line.strip():
            return
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            await self._refuse(mcp_types.PARSE_ERROR, "The line is not a JSON-RPC message.", request_id_in(line))
            return
        if isinstance(message, mcp_types.JSONRPCRequest):
            self._unanswered.add(message.id)
        elif isinstance(message, mcp_types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._settle((message.params or {}).get("requestId"))
        await sink.send(SessionMessage(message))

    async def _receive_oversized(self, line: OversizedLine, sink: MemoryObjectSendStream[Incoming]) -> None:
        """Reject an oversized request; for an oversized response, fail the server request that it answers."""
        answers = run_at_once(parse_line(line))
        for answer in answers:
            await sink.send(SessionMessage(answer))
        if not answers:
            text = f"The message {line.problem}; send less at once."
            await self._refuse(mcp_types.INVALID_REQUEST, text, request_id_in(line.head, line.tail))

    async def _refuse(self, code: int, text: str, request_id: str | int | None) -> None:
        error = mcp_types.ErrorData(code=code, message=text)
        await self._send(mcp_types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

    async def write_all(self, source: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write every message until the server ends or the client stops reading."""
        with contextlib.suppress(OSError):
            async with source:
                async for item in source:
                    message = item.message
                    if not isinstance(message, (mcp_types.JSONRPCResponse, mcp_types.JSONRPCError)):
                        await self._send(message)
                    elif message.id not in self._refused:  # what the server says of those as it ends comes too late
                        await self._send(message)
                        self._settle(message.id)

    def _settle(self, request_id: object) -> None:
        if isinstance(request_id, (str, int)):
            self._unanswered.discard(request_id)
        if not self._unanswered:
            self._idle.set()

    async def _send(self, message: mcp_types.JSONRPCMessage) -> None:
        left = memoryview(_encode_line(message))
        async with self._lock:
            while left:
                try:
                    left = left[os.write(self._write_fd, left[:_CHUNK_BYTES]) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._write_fd)
                if left:
                    # Let other tasks run while a client reads as fast as this writes.
                    await anyio.lowlevel.checkpoint()


def _encode_line(message: mcp_types.JSONRPCMessage) -> bytes:
    """The encoded message. If encoding fails, a response becomes an error, and any other message is dropped."""
    try:
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        return spliced(data, deferred_parts(message.result)) if isinstance(message, mcp_types.JSONRPCResponse) else data
    except (ValueError, TypeError, RecursionError):
        logger.exception("cannot encode a message as JSON")
    if not isinstance(message, (mcp_types.JSONRPCResponse, mcp_types.JSONRPCError)):
        return b""
    error = mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message="The result cannot be encoded as JSON.")
    return _encode_line(mcp_types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error))


@contextlib.asynccontextmanager
async def _claimed_pipes() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """This process's stdin and stdout, for exclusive use. Meanwhile stdin is empty and stdout goes to stderr."""
    sys.stdout.flush()
    wire_in, wire_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
    transport: asyncio.BaseTransport | None = None
    source = os.fdopen(wire_in, "rb", buffering=0)
    loop = asyncio.get_running_loop()
    try:
        if _is_pollable(wire_in):
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


def _is_pollable(fd: int) -> bool:
    """Whether an event loop can wait for the descriptor. Files and `/dev/null` cannot be polled, and never block."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
