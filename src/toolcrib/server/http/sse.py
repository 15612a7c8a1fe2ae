"""The HTTP+SSE transport of 2024-11-05, for old clients: a stream of events, and POSTs to the address that it names."""

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlencode
from uuid import uuid4

from starlette.datastructures import QueryParams
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute

from toolcrib.errors import NotStarted
from toolcrib.protocol.messages import InvalidMessage, decode
from toolcrib.server.duplex import DuplexConnection, Sender
from toolcrib.server.engine import Engine
from toolcrib.server.http.app import HttpApp, LifespanContext, Readiness
from toolcrib.server.http.requests import Answer, HttpRequest, method_not_allowed
from toolcrib.server.http.streams import EventStream
from toolcrib.server.options import HttpOptions
from toolcrib.state.base import StateStore
from toolcrib.types import Authenticator

logger = logging.getLogger(__name__)

STREAM_PATH: Final = "/sse"
_MESSAGES_PATH: Final = "/messages/"
_ID_PARAMETER: Final = "session_id"


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer.of(PlainTextResponse(text, status_code=status))


_ACCEPTED: Final = _text(HTTPStatus.ACCEPTED, "Accepted")
_NO_ID: Final = _text(HTTPStatus.BAD_REQUEST, f"{_ID_PARAMETER} is required")
_NOT_FOUND: Final = _text(HTTPStatus.NOT_FOUND, "Could not find session")
_NO_MESSAGE: Final = _text(HTTPStatus.BAD_REQUEST, "Could not parse message")


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
    """The ASGI app for a server and its old clients, to serve by itself or mount in another app.

    Clients connect to `/sse` below its mount; with `anywhere`, to every path except the health endpoints. Its lifespan
    runs `owner` around the app. Raises `SettingsError` when other machines could reach it and nothing authenticates
    them.
    """
    return HttpApp(
        SseEndpoint(engine),
        engine,
        options,
        ready=ready,
        authenticator=authenticator,
        paths=None if anywhere else (STREAM_PATH, _MESSAGES_PATH),
        owner=owner,
        routes=routes,
    )


@dataclass(slots=True, eq=False)
class _Session:
    """A client whose stream is open."""

    connection: DuplexConnection
    credential: object
    """Who alone may send messages for it."""
    stream: EventStream


class SseEndpoint:
    """Answers a GET with an event stream, and POSTs to the address that the stream's first event names."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_running = False
        self._sessions: dict[str, _Session] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold streams, which end with this context."""
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            for session in self._sessions.values():
                session.stream.ended.set()

    async def answer(self, request: HttpRequest, body: bytes) -> Answer | None:
        """Answer one request. Raises `NotStarted` outside of `running`."""
        if not self._is_running:
            raise NotStarted("The server is not running.")
        if request.head.method == "POST":
            return await self._receive(request, body)
        return await self._stream(request) if request.head.method == "GET" else method_not_allowed("GET", "POST")

    async def _stream(self, request: HttpRequest) -> Answer | None:
        """Serve a session for as long as its stream is open."""
        session_id, stream = uuid4().hex, EventStream(request)
        connection = DuplexConnection(self._engine, stream.send, name=session_id, caller=request.caller)
        self._sessions[session_id] = _Session(connection, request.credential, stream)
        try:
            await request.until_left(self._serve(request, connection, stream))
        finally:
            del self._sessions[session_id]
            stream.close()
        await request.end()
        return None

    async def _serve(self, request: HttpRequest, connection: DuplexConnection, stream: EventStream) -> None:
        inbox = quote(str(request.scope.get("root_path", "")).rstrip("/") + _MESSAGES_PATH)
        query = urlencode({_ID_PARAMETER: connection.session.id})
        await stream.open()
        await request.write(f"event: endpoint\r\ndata: {inbox}?{query}\r\n\r\n".encode())
        async with connection.serving():
            await stream.ended.wait()

    async def _receive(self, request: HttpRequest, body: bytes) -> Answer | None:
        session_id = QueryParams(request.scope.get("query_string", b"")).get(_ID_PARAMETER)
        if session_id is None:
            return _NO_ID
        session = self._sessions.get(session_id)
        if session is None or session.credential != request.credential:
            return _NOT_FOUND
        try:
            message = decode(body)
        except InvalidMessage:
            return _NO_MESSAGE
        await request.respond(_ACCEPTED)
        # A later token of the same caller may have other scopes than that of the stream.
        await session.connection.receive_message(message, Sender(request.caller, request.http))
        return None
