"""Serve MCP over this process's own stdin and stdout.

Standard output belongs to the protocol: while serving, everything else that writes there goes to standard error.
Lines are bounded, a line that is not a JSON-RPC message gets an error response, and requests received before the end
of input are still answered: with their result or, after a while, with an error that the server is shutting down.
"""

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import Final

import anyio
import anyio.abc
import anyio.lowlevel

from toolcrib.protocol.failures import INTERNAL_ERROR, INVALID_REQUEST, RpcError
from toolcrib.protocol.messages import ErrorResponse, request_id_in, response_id_in
from toolcrib.server.duplex import DuplexConnection
from toolcrib.server.engine import Engine
from toolcrib.server.processes.stopping import wait_for_stop
from toolcrib.upstream.transports.bounds import Bounds
from toolcrib.upstream.transports.framing import LineSplitter, OversizedLine
from toolcrib.upstream.transports.pipes import claim_stdio, release_stdio

_MAX_LINE_BYTES: Final = 10 * 1024 * 1024
"""The longest message, in bytes."""
_MAX_NODES: Final = 200_000
"""Values and keys in its JSON."""
_CHUNK_BYTES: Final = 256 * 1024
_FLUSH_S: Final = 0.5
"""Time to write the last responses, in seconds, because the client may no longer read."""


async def serve_stdio(engine: Engine, *, drain_s: float, stop: anyio.Event | None = None) -> None:
    """Serve one client until it closes stdin, or until `stop` (SIGTERM or SIGINT without it); then finish its requests.

    Raises `AlreadyStarted` while something else in this process uses its stdin and stdout.
    """
    claim_stdio("the server over stdio")
    try:
        async with _claimed_pipes() as (reader, write_fd):
            await serve_pipes(engine, reader, write_fd, drain_s=drain_s, stop=stop)
    finally:
        release_stdio()


async def serve_pipes(
    engine: Engine,
    reader: asyncio.StreamReader,
    write_fd: int,
    *,
    drain_s: float,
    stop: anyio.Event | None,
    max_line_bytes: int = _MAX_LINE_BYTES,
) -> None:
    """Serve one client over a reader and a file descriptor, which is made non-blocking."""
    os.set_blocking(write_fd, False)
    connection = DuplexConnection(engine, _LineWriter(write_fd).write)
    async with connection.serving():
        await _read_until(stop, reader, connection, max_line_bytes)
        await connection.drain(drain_s)
        await connection.refuse_rest(_FLUSH_S)


async def _read_until(
    stop: anyio.Event | None, reader: asyncio.StreamReader, connection: DuplexConnection, max_line_bytes: int
) -> None:
    """Pass on every message until the end of input or the request to stop."""
    async with anyio.create_task_group() as group:

        async def watch(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            await wait_for_stop(stop, task_status=task_status)
            group.cancel_scope.cancel()

        await group.start(watch)
        await _read_lines(reader, connection, max_line_bytes)
        group.cancel_scope.cancel()


async def _read_lines(reader: asyncio.StreamReader, connection: DuplexConnection, max_line_bytes: int) -> None:
    bounds = Bounds(max_line_bytes, _MAX_NODES, bytes_setting="", nodes_setting="")
    lines = LineSplitter(lambda _head, _tail: bounds)
    while chunk := await reader.read(_CHUNK_BYTES):
        for line in lines.feed(chunk):
            await _receive(line, connection)
    for line in lines.feed(b"\n"):
        await _receive(line, connection)


async def _receive(line: bytes | OversizedLine, connection: DuplexConnection) -> None:
    if isinstance(line, OversizedLine):
        await _receive_oversized(line, connection)
    elif line.strip():
        await connection.receive(line)


async def _receive_oversized(line: OversizedLine, connection: DuplexConnection) -> None:
    """Reject an oversized request; for an oversized answer, fail the request that it answers."""
    answered = response_id_in(line.head, line.tail)
    if answered is not None:
        error = RpcError(INTERNAL_ERROR, f"The client's answer {line.problem}.")
        await connection.receive_message(ErrorResponse(answered, error))
        return
    error = RpcError(INVALID_REQUEST, f"The message {line.problem}; send less at once.")
    await connection.refuse(error, request_id_in(line.head, line.tail))


class _LineWriter:
    """Writes messages to a pipe, until its other end is closed."""

    def __init__(self, write_fd: int) -> None:
        self._write_fd = write_fd
        self._is_closed = False

    async def write(self, message: bytes) -> None:
        """Write one message. Other tasks run while a client reads slowly, or as fast as this writes."""
        left = memoryview(message + b"\n")
        while left and not self._is_closed:
            try:
                left = left[os.write(self._write_fd, left[:_CHUNK_BYTES]) :]
            except BlockingIOError:
                await anyio.wait_writable(self._write_fd)
            except OSError:
                self._is_closed = True
            if left:
                await anyio.lowlevel.checkpoint()


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
