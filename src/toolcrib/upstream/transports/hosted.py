"""Servers whose program runs in another process for several workers: the other end of `program_host`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import anyio.abc

from toolcrib.errors import StateUnavailable
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.duplex import PIPE_CLOSED, DuplexTransport
from toolcrib.upstream.transports.program_host import write_spec

_CHUNK_BYTES: Final = 64 * 1024
_HOST_ENDED: Final = "the process that runs it for all workers has ended"


class HostedTransport(DuplexTransport):
    """A program of the host, which starts it for the first worker that asks for it."""

    def __init__(self, options: ServerOptions, fleet: FleetOptions, redact: Redactor) -> None:
        super().__init__(options)
        self._options = options
        self._find_programs = fleet.find_programs
        self._redact = redact
        self._sending = anyio.Lock()
        self._begun = anyio.Event()
        """Set when the program runs, or cannot."""

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Raises `ExchangeError` if the host cannot be reached, or cannot start the program."""
        self._stream, credential = await self._connect()
        async with self._stream, anyio.create_task_group() as group:
            group.start_soon(self._read)
            hello = {"credential": credential, "program": write_spec(self._options)}
            await self._send(json.dumps(hello).encode() + b"\n")
            await self._begun.wait()
            if self.closed.is_set:
                raise ExchangeError(FailureKind.UNSENT, self.closed.reason)
            try:
                yield
            finally:
                self.closed.set("stopped")
                group.cancel_scope.cancel()

    async def _connect(self) -> tuple[anyio.abc.SocketStream, str]:
        if self._find_programs is None:
            raise ExchangeError(FailureKind.UNSENT, "there is no process that runs programs")
        try:
            path, credential = await self._find_programs()
            return await anyio.connect_unix(path), credential
        except (OSError, StateUnavailable) as error:
            raise ExchangeError(FailureKind.UNSENT, self._redact(f"{_HOST_ENDED}: {error}")) from error

    async def _read(self) -> None:
        async def receive() -> bytes:
            return await self._stream.receive(_CHUNK_BYTES)

        with suppress(*PIPE_CLOSED):
            await self._read_lines(receive)
        self.closed.set(_HOST_ENDED)
        self._begun.set()
        self._fail_all()

    async def _send(self, line: bytes) -> None:
        with suppress(*PIPE_CLOSED):  # then the reader sees the end, too
            async with self._sending:
                await self._stream.send(line)

    def _skipped(self, line: bytes) -> None:
        """Read what the host itself says, which is no message: no program can say it."""
        if line.startswith(b'{"closed"'):
            self.closed.set(str(json.loads(line)["closed"]))
        self._begun.set()
