"""The HTTP+SSE transport of 2024-11-05, for old clients."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import anyio
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from toolcrib.errors import NotStarted
from toolcrib.server.engine import Engine
from toolcrib.server.handlers import ToolServer
from toolcrib.server.http.app import HttpApp, LifespanContext, Readiness
from toolcrib.server.http.endpoint import ReplayBody, read_body
from toolcrib.server.options import HttpOptions
from toolcrib.state.base import StateStore
from toolcrib.types import Authenticator

STREAM_PATH: Final = "/sse"


_MESSAGES_PATH: Final = "/messages/"


def sse_app(
    engine: Engine,
    options: HttpOptions,
    *,
    ready: Readiness,
    authenticator: Authenticator | None = None,
    anywhere: bool = False,
    owner: LifespanContext | None = None,
    routes: Sequence[BaseRoute] = (),
    state: StateStore | None = None,  # noqa: ARG001 - a connection of this transport belongs to one process
) -> HttpApp:
    """The ASGI app for an engine and its old clients, to serve by itself or mount in another app.

    Clients connect to `/sse` below its mount; with `anywhere`, to every path except the health endpoints. Its lifespan
    runs `owner` around the app. Raises `SettingsError` when other machines could reach it and nothing authenticates
    them.
    """
    return HttpApp(
        SseEndpoint(ToolServer(engine), options),
        options,
        ready=ready,
        authenticator=authenticator,
        paths=None if anywhere else (STREAM_PATH, _MESSAGES_PATH),
        end_streams=engine.end_streams,
        owner=owner,
        routes=routes,
        refused=engine.report_refusal,
        count_refusal=engine.count_refusal,
    )


class SseEndpoint:
    """Answers a GET with an event stream, and POSTs to the address that the stream's first event names."""

    def __init__(self, server: Server[Any], options: HttpOptions) -> None:
        self._server = server
        self._options = options
        self._transport: SseServerTransport | None = None
        self._streams: set[anyio.CancelScope] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold streams, which end with this context."""
        self._transport = SseServerTransport(_MESSAGES_PATH, max_request_body_size=self._options.max_body_bytes)
        try:
            yield
        finally:
            self._transport = None
            self.end_session_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises `NotStarted` outside of `running`."""
        transport = self._transport
        if transport is None:
            raise NotStarted("The server is not running.")
        if scope["method"] == "POST":
            body = await read_body(self._options, scope, receive, send)
            if body is not None:
                await transport.handle_post_message(scope, ReplayBody(body, receive), send)
        elif scope["method"] != "GET":
            answer = PlainTextResponse("Method Not Allowed", status_code=405, headers={"Allow": "GET, POST"})
            await answer(scope, receive, send)
        else:
            await self._stream(transport, scope, receive, send)

    def end_session_streams(self) -> None:
        """End every stream, and its session with it."""
        for stream in tuple(self._streams):
            stream.cancel()

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
