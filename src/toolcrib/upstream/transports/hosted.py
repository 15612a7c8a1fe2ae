"""Servers whose program runs in another process for several workers: the other end of `program_host`."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import anyio.abc
from mcp.shared.message import SessionMessage

from toolcrib.errors import StateUnavailable
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import AutoResetEvent, Channel, CloseEvent, Streams
from toolcrib.upstream.transports.bounds import run_in_steps, take_turn
from toolcrib.upstream.transports.framing import ExpectedResponses, LineSplitter, OversizedLine
from toolcrib.upstream.transports.program_host import write_spec

_MAX_QUEUED: Final = 256
_CHUNK_BYTES: Final = 64 * 1024
_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)
_HOST_ENDED: Final = "the process that runs it for all workers has ended"


def open_channel(options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> Channel:
    """Return a channel to a program of the host, which starts it for the first worker that asks for it."""
    if fleet.find_programs is None:
        raise ExchangeError(FailureKind.UNSENT, "there is no process that runs programs")
    closed = CloseEvent()
    return Channel(
        transport=_hosted_transport(options, redact, closed, fleet.find_programs),
        closed=closed,
        refresh_needed=AutoResetEvent(),
    )


@asynccontextmanager
async def _hosted_transport(
    options: ServerOptions,
    redact: Redactor,
    closed: CloseEvent,
    find: Callable[[], Awaitable[tuple[str, str]]],
) -> AsyncIterator[Streams]:
    """Raises `ExchangeError` if the host cannot be reached, or cannot start the program."""
    try:
        path, credential = await find()
        stream = await anyio.connect_unix(path)
    except (OSError, StateUnavailable) as error:
        raise ExchangeError(FailureKind.UNSENT, redact(f"{_HOST_ENDED}: {error}")) from error
    async with stream, anyio.create_task_group() as group:
        hello = {"credential": credential, "program": write_spec(options)}
        connection = _HostedConnection(stream, options, closed)
        try:
            await connection.begin(json.dumps(hello).encode() + b"\n")
            group.start_soon(connection.read)
            group.start_soon(connection.write)
            yield connection.incoming, connection.outgoing
        finally:
            closed.set("stopped")
            connection.close()
            group.cancel_scope.cancel()


class _HostedConnection:
    """The messages between a session and a program of the host."""

    def __init__(self, stream: anyio.abc.SocketStream, options: ServerOptions, closed: CloseEvent) -> None:
        self._stream = stream
        self._closed = closed
        self._expected = ExpectedResponses(options)
        self._lines = LineSplitter(self._expected.bounds)
        self._first: list[bytes | OversizedLine] = []
        self._to_session, self.incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.outgoing, self._from_session = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)

    async def begin(self, hello: bytes) -> None:
        """Ask for the program, and wait until it runs. Raises `ExchangeError`."""
        try:
            await self._stream.send(hello)
            while not self._first:
                self._first = self._lines.feed(await self._stream.receive(_CHUNK_BYTES))
        except _GONE as error:
            raise ExchangeError(FailureKind.UNSENT, _HOST_ENDED) from error
        reason = _closed_reason(self._first.pop(0))
        if reason:
            raise ExchangeError(FailureKind.UNSENT, reason)

    async def read(self) -> None:
        """Pass what the program sends to the session."""
        with suppress(*_GONE):
            done = self._first
            while True:
                for line in done:
                    if reason := _closed_reason(line):
                        self._closed.set(reason)
                        continue
                    for message in await run_in_steps(self._expected.parse(line)):
                        await self._to_session.send(SessionMessage(message))
                chunk = await self._stream.receive(_CHUNK_BYTES)
                done = self._lines.feed(chunk)
                await take_turn(self._lines.pending_bytes, len(chunk))
        self._closed.set(_HOST_ENDED)
        self._to_session.close()

    async def write(self) -> None:
        """Send the session's messages to the program."""
        with suppress(*_GONE):
            async for item in self._from_session:
                self._expected.sent(item.message)
                data = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._stream.send(data.encode() + b"\n")

    def close(self) -> None:
        for end in (self.incoming, self.outgoing, self._from_session, self._to_session):
            end.close()


def _closed_reason(line: bytes | OversizedLine) -> str:
    """Why the host has closed the connection; empty for any other line."""
    if not isinstance(line, bytes) or not line.startswith(b'{"closed"'):
        return ""
    message: dict[str, Any] = json.loads(line)
    return str(message["closed"])
