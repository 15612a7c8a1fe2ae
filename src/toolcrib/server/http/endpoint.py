"""Streamable HTTP with and without sessions.

Decides which of the SDK's transports answers a request, and for how long.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import InvalidRequest, NotStarted
from toolcrib.server.auth.authentication import CALLER_KEY, OWN_CREDENTIAL_KEY, extra_paths
from toolcrib.server.context import body_too_large, error_response
from toolcrib.server.direct import DirectMethods, RequestHead
from toolcrib.server.engine import Engine
from toolcrib.server.exchange import SESSION_HEADER
from toolcrib.server.front import cancel_on_disconnect
from toolcrib.server.handlers import BACK_CHANNEL_KEY, EVENTS_KEY, ToolServer
from toolcrib.server.http.app import HttpApp, LifespanContext, Readiness
from toolcrib.server.http.budgets import LISTEN_METHOD, read_length
from toolcrib.server.http.sessions import SessionManager
from toolcrib.server.options import HttpOptions
from toolcrib.server.plain_connection import PlainRequest
from toolcrib.server.processes.replicas import ReplicaEndpoint, Replicas
from toolcrib.server.sdk_workarounds import SPLICES_KEY, Splicer
from toolcrib.server.session_calls import BODY_KEY, SessionCalls, unsupported_sdk
from toolcrib.state.base import StateStore
from toolcrib.types import LOCAL, Authenticator, Caller, Object
from toolcrib.upstream.transports.bounds import Meter

logger = logging.getLogger(__name__)

_STREAM_MARKERS: Final = (b'"progressToken"', f'"{LOG_LEVEL_META_KEY}"'.encode())
"""A request that contains one of these may want notifications before its response."""


_LAST_EVENT_ID: Final = b"last-event-id"


_EVENT_STREAM: Final = "text/event-stream"


_EVENT_HEADERS: Final = {"content-type": _EVENT_STREAM, "cache-control": "no-cache, no-transform"}


_ACCEPTED: Final = 202


_INVALID_ID: Final = InvalidRequest(
    "The id of a request must be a string or a whole number; nothing was run.",
    hint="Leave the id out to send a notification.",
)


_CHECKED_BYTES: Final = 64 * 1024
"""The body of a larger message is not kept: one without a valid id is then taken for a notification."""


def http_app(
    engine: Engine,
    options: HttpOptions,
    *,
    ready: Readiness,
    authenticator: Authenticator | None = None,
    anywhere: bool = False,
    owner: LifespanContext | None = None,
    routes: Sequence[BaseRoute] = (),
    state: StateStore | None = None,
) -> HttpApp:
    """The ASGI app for an engine, to serve by itself or mount in another app.

    It answers at the options' path; with `anywhere`, at every path below its mount except the health endpoints. Its
    lifespan runs `owner` around the app. Raises `SettingsError` when other machines could reach it and nothing
    authenticates them.
    """
    replicas = None if state is None or not state.shared else Replicas(state, options)
    server = ToolServer(engine)
    direct = DirectMethods(server, replica=None if replicas is None else replicas.id)
    endpoint = StreamableHttpEndpoint(server, options, replicas, direct)
    paths = (options.path, *extra_paths(authenticator))
    return HttpApp(
        endpoint if replicas is None else ReplicaEndpoint(endpoint, replicas, options),
        options,
        listening=(lambda *_: None) if replicas is None else replicas.listening,
        ready=ready,
        authenticator=authenticator,
        paths=None if anywhere else paths,
        end_streams=engine.end_streams,
        owner=owner,
        routes=routes,
        direct=direct,
        sessions=endpoint.read_session_request if replicas is None else None,
        refused=engine.report_refusal,
        count_refusal=engine.count_refusal,
    )


class StreamableHttpEndpoint:
    """Passes each request to the SDK transport of its protocol era.

    Responses are plain JSON, because event streams cost more and SDK clients reject an event above 1 MiB. Only modern
    requests for progress, log messages or change notifications get an event stream, and a session's requests that
    have progress to report. A modern call is cancelled when its client disconnects.
    """

    def __init__(
        self,
        server: ToolServer,
        options: HttpOptions,
        replicas: Replicas | None = None,
        direct: DirectMethods | None = None,
    ) -> None:
        """`replicas` are the processes that serve the same address, if there may be others.

        `direct` answers what it can without the SDK's transports.
        """
        self._server = server
        self._direct = direct
        self._options = options
        self._replicas = replicas
        self._managers: tuple[SessionManager, StreamableHTTPSessionManager] | None = None
        self._open_streams: Counter[str] = Counter()
        """By session: how many streams are open on which the server can send requests to the client."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold sessions, which end with this context."""
        limit = self._options.max_body_bytes
        calls = None
        if why := unsupported_sdk():
            logger.warning("%s", why)
        else:
            calls = SessionCalls(self._server)
        plain = SessionManager(
            self._server,
            self._options,
            self._replicas,
            self._server.dormant,
            calls,
            report=self._server.engine.report_refusal,
        )
        events = StreamableHTTPSessionManager(self._server, json_response=False, max_request_body_size=limit)
        async with plain.run(), events.run():
            self._managers = (plain, events)
            try:
                yield
            finally:
                self._managers = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises `NotStarted` outside of `running`."""
        if self._managers is None:
            raise NotStarted("The server is not running.")
        plain, events = self._managers
        headers = Headers(scope=scope)
        version = headers.get("mcp-protocol-version")
        if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._serve_session(plain.handle_request, scope, receive, send)
            return
        body = await read_body(self._options, scope, receive, send)
        if body is None:
            return
        replay = ReplayBody(body, receive)
        direct = None if self._direct is None else self._direct.app(scope, body)
        if direct is not None:
            await cancel_on_disconnect(direct, scope, replay, send)
            return
        splicer = Splicer(send)
        if headers.get("mcp-method") == LISTEN_METHOD:
            await plain.handle_stateless(scope, replay, send)
            return
        scope = {**scope, SPLICES_KEY: splicer.splices}
        if any(key in body for key in _STREAM_MARKERS) and _EVENT_STREAM in headers.get("accept", ""):
            await events.handle_request(scope, replay, splicer)
        else:
            await cancel_on_disconnect(plain.handle_stateless, scope, replay, splicer)

    def read_session_request(self, head: RequestHead, caller: Caller, body: bytes) -> PlainRequest | None:
        """Read a request of a session that needs none of the app's layers; None for any other."""
        session, scope = head.session or "", {**head.scope, BODY_KEY: body}
        if self._managers is None:
            return None
        more: dict[str, Any] = {
            SPLICES_KEY: {},
            BACK_CHANNEL_KEY: lambda: self._open_streams[session] > 0,
        }
        if caller is not LOCAL:
            more |= {CALLER_KEY: caller, OWN_CREDENTIAL_KEY: True}
        answer = self._managers[0].read_plain(session, caller, {**scope, **more})
        return None if answer is None else PlainRequest(answer, ends_with_connection=False)

    def end_session_streams(self) -> None:
        """End the streams of sessions; the sessions stay."""
        if self._managers is not None:
            self._managers[0].end_streams()

    async def _serve_session(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of a session, and count the streams on which its client accepts server requests."""
        headers = Headers(scope=scope)
        session = headers.get(SESSION_HEADER, "")
        if scope["method"] == "GET":
            await self._serve_stream(app, session, scope, receive, send)
            return
        body = await read_body(self._options, scope, receive, send)
        if body is None:
            return
        request = _SessionRequest(scope, ReplayBody(body, receive), send, session, body)
        splicer = Splicer(request.respond)
        more: dict[str, Any] = {
            BACK_CHANNEL_KEY: lambda: self._open_streams[session] > 0,
            SPLICES_KEY: splicer.splices,
            BODY_KEY: body,
        }
        if _EVENT_STREAM in headers.get("accept", ""):
            more[EVENTS_KEY] = request.notify
        await app({**scope, **more}, request.receive, splicer)

    async def _serve_stream(self, app: ASGIApp, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream of a session. Nothing is kept to repeat, so `Last-Event-ID` changes nothing."""
        headers = [pair for pair in scope["headers"] if pair[0].lower() != _LAST_EVENT_ID]
        opened = False

        async def send_counted(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] == 200:  # noqa: PLR2004 - OK
                opened = True
                self._open_streams[session] += 1
            await send(message)

        try:
            await app({**scope, "headers": headers}, receive, send_counted)
        finally:
            if opened:
                self._open_streams[session] -= 1
                if not self._open_streams[session]:
                    del self._open_streams[session]


class _SessionRequest:
    """One POST of a session. It is answered with JSON or, if it sent notifications first, with a stream of events."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, session: str, body: bytes) -> None:
        self._scope = scope
        self.receive = receive
        self._send = send
        self._session = session
        self._body = body if len(body) <= _CHECKED_BYTES else b""
        self._parts: list[bytes] = []
        """Of a response that becomes an event."""
        self._lock = anyio.Lock(fast_acquire=True)
        self._streams = False
        self._answered = False
        self._refused = False

    async def notify(self, notification: Object) -> None:
        """Send a JSON-RPC notification before the response; a later one is dropped."""
        async with self._lock:
            if self._answered:
                return
            if not self._streams:
                self._streams = True
                headers = {**_EVENT_HEADERS, SESSION_HEADER: self._session}
                raw = [(name.encode(), value.encode()) for name, value in headers.items()]
                await self._send({"type": "http.response.start", "status": 200, "headers": raw})
            await self._send({"type": "http.response.body", "body": _event(to_json(notification)), "more_body": True})

    async def respond(self, message: Message) -> None:
        """ASGI `send` for the response."""
        if self._refused:
            return
        self._answered = True
        if message["type"] == "http.response.start" and message["status"] == _ACCEPTED and self._is_malformed_request():
            self._refused = True
            await error_response(400, _INVALID_ID)(self._scope, self.receive, self._send)
        elif not self._streams:
            await self._send(message)
        elif message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))
            if not message.get("more_body"):
                async with self._lock:
                    await self._send({"type": message["type"], "body": _event(b"".join(self._parts))})

    def _is_malformed_request(self) -> bool:
        """Whether a message that the SDK took for a notification has an id, as only a request has."""
        if b'"id"' not in self._body or b'"method"' not in self._body:
            return False
        message = from_json(self._body, cache_strings="keys")
        return isinstance(message, dict) and {"id", "method"} <= message.keys()


def _event(data: bytes) -> bytes:
    """A server-sent event with a JSON-RPC message."""
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


async def read_body(options: HttpOptions, scope: Scope, receive: Receive, send: Send) -> bytes | None:
    """The body; None if the client disconnected first, or if the body is too large, which has been answered.

    The SDK would parse it whole, and log a traceback for each client that leaves.
    """
    length = read_length(next((value for name, value in scope["headers"] if name == b"content-length"), b""))
    if length is not None and length > options.max_body_bytes:
        await error_response(413, body_too_large(options))(scope, receive, send)
        return None
    parts, meter = list[bytes](), Meter()
    most = min(options.max_body_bytes, options.max_body_nodes)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        if not parts and not message.get("more_body") and len(part) <= most:
            return part  # it cannot hold too many values
        parts.append(part)
        meter.add(part)
        if meter.size > options.max_body_bytes or meter.nodes > options.max_body_nodes:
            await error_response(413, body_too_large(options, meter.size))(scope, receive, send)
            return None
        if not message.get("more_body"):
            return b"".join(parts)


class ReplayBody:
    """ASGI `receive` that returns an already read body first, then what the client sends next."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}
