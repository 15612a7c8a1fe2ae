"""A client's connection to the server of the process, in memory."""

import asyncio
from typing import Any

import anyio
import uvicorn
import uvicorn.server

from toolcrib.server.http.strict import WatchedApp
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.process import InFlightRequests, connection_type


class Wire(asyncio.Transport):
    """A client's connection to the server of the process, in memory."""

    def __init__(self, requests: InFlightRequests, options: HttpOptions) -> None:
        super().__init__()
        app = WatchedApp(requests)
        config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, server_header=False)
        config.load()
        make = connection_type(options, requests)
        self.protocol = make(config=config, server_state=uvicorn.server.ServerState(), app_state={}, _loop=None)
        self.received = b""
        self.closed = False
        self.paused = False
        self.arrived = anyio.Event()
        self.protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.received += data
        self.arrived.set()
        self.arrived = anyio.Event()

    def close(self) -> None:
        self.closed = True
        self.arrived.set()

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    async def answer(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """The status, headers and body of the next answer."""
        while (found := self._take()) is None:
            await self.arrived.wait()
        return found

    def _take(self) -> tuple[int, list[tuple[bytes, bytes]], bytes] | None:
        head, ended, rest = self.received.partition(b"\r\n\r\n")
        if not ended:
            return None
        first, *lines = head.split(b"\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
        length = int(dict(headers).get(b"content-length", len(rest)))  # otherwise it ends with the connection
        if len(rest) < length or (b"content-length" not in dict(headers) and not self.closed):
            return None
        self.received = rest[length:]
        return int(first.split()[1]), headers, rest[:length]
