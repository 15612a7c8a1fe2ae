"""Streamable HTTP in both protocol eras: which of the SDK's transports answers a request, and for how long."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import NotStarted
from toolcrib.server.client import BACK_CHANNEL_KEY
from toolcrib.server.context import SESSION_HEADER
from toolcrib.server.lean import PARTS_KEY, Filling
from toolcrib.server.options import HttpOptions

_NOTIFIED: Final = (b'"progressToken"', f'"{LOG_LEVEL_META_KEY}"'.encode())
"""What a request holds whose client wants to hear something before the answer."""
_LISTEN: Final = "subscriptions/listen"
_LIST: Final = "tools/list"
_WATCH_AFTER_S: Final = 0.1
"""Calls shorter than this are not worth a task that watches whether their client is still there, in seconds."""


class StreamableHttp:
    """Sends a request to the era it speaks.

    Answers are plain JSON: events cost more, and an SDK client refuses one above 1 MiB. Only who asks for progress or
    messages of a log, in the modern era, gets a stream of events, and who listens for changes. A modern call ends when
    its client goes away.
    """

    def __init__(self, server: Server[Any], options: HttpOptions) -> None:
        """Serves nothing before `running`."""
        self._server = server
        self._limit = options.max_body_bytes
        self._managers: tuple[StreamableHTTPSessionManager, StreamableHTTPSessionManager] | None = None
        self._standing: Counter[str] = Counter()
        """How many streams are open by which a server reaches the client of a session."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold sessions, which end with this context."""
        plain = StreamableHTTPSessionManager(self._server, json_response=True, max_request_body_size=self._limit)
        events = StreamableHTTPSessionManager(self._server, json_response=False, max_request_body_size=self._limit)
        async with plain.run(), events.run():
            self._managers = (plain, events)
            try:
                yield
            finally:
                self._managers = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if self._managers is None:
            raise NotStarted("The server is not running.")
        plain, events = self._managers
        headers = Headers(scope=scope)
        version = headers.get("mcp-protocol-version")
        if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._serve_session(plain.handle_request, scope, receive, send)
            return
        length = headers.get("content-length", "")
        if headers.get("mcp-method") == _LISTEN or not length.isdigit() or int(length) > self._limit:
            await plain.handle_request(scope, receive, send)
            return
        body = await _whole_body(receive)
        if body is None:
            return
        again = _Again(body, receive)
        if any(key in body for key in _NOTIFIED) and "text/event-stream" in headers.get("accept", ""):
            await events.handle_request(scope, again, send)
        else:
            if headers.get("mcp-method") == _LIST:
                filling = Filling(send)
                scope, send = {**scope, PARTS_KEY: filling.parts}, filling
            await _while_connected(plain.handle_request, scope, again, send)

    async def _serve_session(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of a session, and know whether its client holds a stream open for what the server asks."""
        session = Headers(scope=scope).get(SESSION_HEADER, "")
        if scope["method"] != "GET":
            filling = Filling(send)
            own = {BACK_CHANNEL_KEY: lambda: self._standing[session] > 0, PARTS_KEY: filling.parts}
            await app({**scope, **own}, receive, filling)
            return
        opened = False

        async def noted(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] == 200:  # noqa: PLR2004 - OK
                opened = True
                self._standing[session] += 1
            await send(message)

        try:
            await app(scope, receive, noted)
        finally:
            if opened:
                self._standing -= Counter({session: 1})


async def _whole_body(receive: Receive) -> bytes | None:
    """The body, which the HTTP server keeps to its announced length; None when the client left first."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


class _Again:
    """ASGI `receive`: the body once more, then what really comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


async def _while_connected(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request, but give it up when its client leaves. Only a request that takes a while is watched."""
    loop = asyncio.get_running_loop()
    watch: asyncio.Task[None] | None = None
    with anyio.CancelScope() as serving:

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            serving.cancel()

        def begin() -> None:
            nonlocal watch
            watch = loop.create_task(until_gone())

        timer = loop.call_later(_WATCH_AFTER_S, begin)
        try:
            await app(scope, receive, send)
        finally:
            timer.cancel()
            if watch is not None:
                watch.cancel()
