"""A server that records what reaches its app, and clients that send it bytes and count its answers."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterable, MutableMapping
from typing import Any, NamedTuple

import anyio
import anyio.abc
import anyio.lowlevel
import h11
import httpx2

from toolcrib.server.asgi import AsgiApp
from toolcrib.server.http.requests import Answer, AsgiRequest, HttpRequest
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.process import serve_http

LAST = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""A request after whose answer the connection ends."""


class Request(NamedTuple):
    """A request as the app sees it."""

    method: str
    target: str
    body: bytes


class Reply(NamedTuple):
    """An answer as a client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes


class RecordingApp(AsgiApp):
    """Answers each request with what it has seen of it."""

    def __init__(self, options: HttpOptions | None = None) -> None:
        self.direct_paths = frozenset({"/outer", "/a", "/"})
        self.options = options or HttpOptions(port=0)
        self.path = "/mcp"
        self.end_streams = lambda: None
        self.listening = lambda *_: None
        self.requests: list[Request] = []
        self.largest_part = 0
        """Of the bodies, in bytes."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await self.serve(AsgiRequest(scope, receive, send))

    async def serve(self, request: HttpRequest) -> None:
        body, more = b"", True
        while more:
            if (found := await request.read_part()) is None:
                return
            part, more = found
            body += part
            self.largest_part = max(self.largest_part, len(part))
        scope = request.scope
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        seen = Request(scope["method"], (scope["raw_path"] + query).decode("latin-1"), body)
        self.requests.append(seen)
        content = json.dumps([seen.method, seen.target, body.decode("latin-1")]).encode()
        await request.respond(Answer(405 if seen.method == "CONNECT" else 200, content))

    def end_session_streams(self) -> None:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        raise NotImplementedError

    def run_soon(self, group: anyio.abc.TaskGroup) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def served(app: AsgiApp) -> AsyncIterator[str]:
    """Serve the app, and yield its URL."""
    stop, bound, addresses = anyio.Event(), anyio.Event(), list[str]()

    def started(address: str) -> None:
        addresses.append(address)
        bound.set()

    async with anyio.create_task_group() as group:

        async def serve() -> None:
            await serve_http(app, app.options, stop=stop, started=started, flush_s=0)

        group.start_soon(serve)
        await bound.wait()
        try:
            yield addresses[0]
        finally:
            stop.set()


async def exchange(url: str, parts: Iterable[bytes]) -> list[Reply]:
    """All answers to these bytes, each part of which arrives by itself. Nothing more is sent after them."""
    address = httpx2.URL(url)
    loop = asyncio.get_running_loop()
    received = b""
    with socket.create_connection((address.host, address.port or 80)) as client:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # the server may close the connection before all was sent
            for part in parts:
                await loop.sock_sendall(client, part)
                for _ in range(3):  # turns in which the server reads it
                    await anyio.lowlevel.checkpoint()
            client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(client, 1 << 16):
                received += data
    return read_answers(received)


def read_answers(received: bytes) -> list[Reply]:
    """The answers in what a client has received to GET or POST requests."""
    answers: list[Reply] = []
    while received:
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method="GET", target="/", headers=[("host", "localhost")]))
        connection.send(h11.EndOfMessage())
        connection.receive_data(received)
        connection.receive_data(b"")
        head, body = None, b""
        while type(event := connection.next_event()) is not h11.EndOfMessage:
            if isinstance(event, h11.InformationalResponse) and not connection.trailing_data[0]:
                return answers  # the connection has ended before the answer
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert head is not None
        headers = {name.decode(): value.decode() for name, value in head.headers}
        answers.append(Reply(head.status_code, headers, body))
        received = connection.trailing_data[0]
    return answers
