"""HTTP+SSE transport of protocol version 2024-11-05, for clients that support nothing newer.

A GET opens the event stream, and POSTs carry the client's messages.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from toolcrib.errors import NotStarted
from toolcrib.server.asgi import HttpApp, LifespanContext, Readiness
from toolcrib.server.handlers import end_streams
from toolcrib.server.options import HttpOptions
from toolcrib.types import Authenticator

STREAM_PATH: Final = "/sse"
_MESSAGES_PATH: Final = "/messages/"
_MAX_STREAMS: Final = 10_000


def sse_app(
    server: Server[Any],
    options: HttpOptions,
    *,
    ready: Readiness,
    authenticator: Authenticator | None = None,
    anywhere: bool = False,
    owner: LifespanContext | None = None,
) -> HttpApp:
    """The ASGI app for a server and its old clients, to serve by itself or mount in another app.

    Clients connect to `/sse` below its mount; with `anywhere`, to every path except the health endpoints. Its lifespan
    runs `owner` around the app. Raises `SettingsError` when other machines could reach it and nothing authenticates
    them.
    """
    return HttpApp(
        SseEndpoint(server, options),
        options,
        ready=ready,
        authenticator=authenticator,
        paths=None if anywhere else (STREAM_PATH, _MESSAGES_PATH),
        end_streams=lambda: end_streams(server),
        owner=owner,
    )


class SseEndpoint:
    """Answers a GET with an event stream, and POSTs to the address that the stream's first event names."""

    def __init__(self, server: Server[Any], options: HttpOptions) -> None:
        self._server = server
        self._limit = options.max_body_bytes
        self._transport: SseServerTransport | None = None
        self._streams: set[anyio.CancelScope] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold streams, which end with this context."""
        self._transport = SseServerTransport(_MESSAGES_PATH, max_request_body_size=self._limit)
        try:
            yield
        finally:
            self._transport = None
            for stream in tuple(self._streams):
                stream.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises `NotStarted` outside of `running`."""
        transport = self._transport
        if transport is None:
            raise NotStarted("The server is not running.")
        if scope["method"] == "POST":
            await transport.handle_post_message(scope, receive, send)
        elif scope["method"] != "GET":
            answer = PlainTextResponse("Method Not Allowed", status_code=405, headers={"Allow": "GET, POST"})
            await answer(scope, receive, send)
        elif len(self._streams) >= _MAX_STREAMS:
            await PlainTextResponse("Too many open streams", status_code=503)(scope, receive, send)
        else:
            await self._stream(transport, scope, receive, send)

    async def _stream(self, transport: SseServerTransport, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a session for as long as its stream is open."""
        async with transport.connect_sse(scope, receive, send) as (incoming, outgoing):
            with anyio.CancelScope() as stream:
                self._streams.add(stream)
                try:
                    # A cancelled session closes its streams, which ends the response cleanly.
                    await self._server.run(incoming, outgoing, self._server.create_initialization_options())
                finally:
                    self._streams.discard(stream)
