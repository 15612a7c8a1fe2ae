"""Streamable HTTP with and without sessions, the older HTTP+SSE transport, and the process that serves both.

Decides which of the SDK's transports answers a request and for how long; binds the socket and drains requests on
shutdown.
"""

import asyncio
import contextlib
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import anyio
import anyio.abc
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CONNECTION_CLOSED, LOG_LEVEL_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic_core import from_json, to_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import InvalidRequest, NotStarted, SettingsError
from toolcrib.server.asgi import LISTEN_METHOD, HttpApp, LifespanContext, Readiness, body_too_large, error_response
from toolcrib.server.auth import extra_paths, url_host
from toolcrib.server.connections import bounded_protocol
from toolcrib.server.context import BACK_CHANNEL_KEY, EVENTS_KEY, SESSION_HEADER
from toolcrib.server.direct import DirectMethods
from toolcrib.server.handlers import ToolServer, end_streams
from toolcrib.server.lifespan import AsgiApp
from toolcrib.server.options import HttpOptions
from toolcrib.server.replicas import ReplicaEndpoint, Replicas
from toolcrib.server.sdk_workarounds import SPLICES_KEY, Splicer
from toolcrib.server.sessions import SessionManager
from toolcrib.state.base import StateStore
from toolcrib.types import Authenticator, Object
from toolcrib.upstream.bounds import Meter

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
_WATCH_AFTER_S: Final = 0.1
"""How long a call runs, in seconds, before it is worth a task that watches for its client's disconnect."""


_CANCEL_KEY: Final = "toolcrib.cancel"
"""ASGI scope key: the cancel scope of a whole request, where something outside has one."""


_BACKLOG: Final = 2048
_ACCEPTED_AT_ONCE: Final = 64
"""Connections that asyncio accepts in one turn."""
_RESTART_S: Final = 5
"""When a client that is turned away by the shutdown may find the server again."""


FLUSH_S: Final = 0.2
"""How long clients have to read the last responses at shutdown, in seconds."""


SHUTTING_DOWN: Final = "The server is shutting down; the call was cancelled."
"""Message for requests that are still unanswered at shutdown, sent with the JSON-RPC code `CONNECTION_CLOSED`."""

_SHUTDOWN_ERROR: Final = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": CONNECTION_CLOSED, "message": SHUTTING_DOWN},
}


def http_app(
    server: Server[Any],
    options: HttpOptions,
    *,
    ready: Readiness,
    authenticator: Authenticator | None = None,
    anywhere: bool = False,
    owner: LifespanContext | None = None,
    routes: Sequence[BaseRoute] = (),
    state: StateStore | None = None,
) -> HttpApp:
    """The ASGI app for a server, to serve by itself or mount in another app.

    It answers at the options' path; with `anywhere`, at every path below its mount except the health endpoints. Its
    lifespan runs `owner` around the app. Raises `SettingsError` when other machines could reach it and nothing
    authenticates them.
    """
    replicas = None if state is None or not state.shared else Replicas(state, options)
    endpoint = StreamableHttpEndpoint(server, options, replicas)
    return HttpApp(
        endpoint if replicas is None else ReplicaEndpoint(endpoint, replicas, options),
        options,
        listening=(lambda _host, _port: None) if replicas is None else replicas.listening,
        ready=ready,
        authenticator=authenticator,
        paths=None if anywhere else (options.path, *extra_paths(authenticator)),
        end_streams=lambda: end_streams(server),
        owner=owner,
        routes=routes,
    )


class StreamableHttpEndpoint:
    """Passes each request to the SDK transport of its protocol era.

    Responses are plain JSON, because event streams cost more and SDK clients reject an event above 1 MiB. Only modern
    requests for progress, log messages or change notifications get an event stream, and a session's requests that
    have progress to report. A modern call is cancelled when its client disconnects.
    """

    def __init__(self, server: Server[Any], options: HttpOptions, replicas: Replicas | None = None) -> None:
        """`replicas` are the processes that serve the same address, if there may be others."""
        self._server = server
        self._direct = DirectMethods(server) if isinstance(server, ToolServer) else None
        self._options = options
        self._replicas = replicas
        self._managers: tuple[SessionManager, StreamableHTTPSessionManager] | None = None
        self._open_streams: Counter[str] = Counter()
        """By session: how many streams are open on which the server can send requests to the client."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold sessions, which end with this context."""
        limit = self._options.max_body_bytes
        plain = SessionManager(self._server, self._options, self._replicas)
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
        body = await _read_body(self._options, scope, receive, send)
        if body is None:
            return
        replay = _ReplayBody(body, receive)
        direct = None if self._direct is None else self._direct.app(scope, body)
        if direct is not None:
            await _cancel_on_disconnect(direct, scope, replay, send)
            return
        splicer = Splicer(send)
        if headers.get("mcp-method") == LISTEN_METHOD:
            await plain.handle_stateless(scope, replay, send)
            return
        scope = {**scope, SPLICES_KEY: splicer.splices}
        if any(key in body for key in _STREAM_MARKERS) and _EVENT_STREAM in headers.get("accept", ""):
            await events.handle_request(scope, replay, splicer)
        else:
            await _cancel_on_disconnect(plain.handle_stateless, scope, replay, splicer)

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
        body = await _read_body(self._options, scope, receive, send)
        if body is None:
            return
        request = _SessionRequest(scope, _ReplayBody(body, receive), send, session, body)
        splicer = Splicer(request.respond)
        more: dict[str, Any] = {BACK_CHANNEL_KEY: lambda: self._open_streams[session] > 0, SPLICES_KEY: splicer.splices}
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


async def _read_body(options: HttpOptions, scope: Scope, receive: Receive, send: Send) -> bytes | None:
    """The body; None if the client disconnected first, or if the body is too large, which has been answered.

    The SDK would parse it whole, and log a traceback for each client that leaves.
    """
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if length.isdigit() and int(length) > options.max_body_bytes:
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


class _ReplayBody:
    """ASGI `receive` that returns an already read body first, then what the client sends next."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


async def _cancel_on_disconnect(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request, and cancel it when its client disconnects. Watches only requests that take a while."""
    shared: anyio.CancelScope | None = scope.get(_CANCEL_KEY)
    if shared is None:
        with anyio.CancelScope() as serving:
            await _watched(app, scope, receive, send, serving)
    else:
        await _watched(app, scope, receive, send, shared)


async def _watched(app: ASGIApp, scope: Scope, receive: Receive, send: Send, serving: anyio.CancelScope) -> None:
    loop = asyncio.get_running_loop()
    watch: asyncio.Task[None] | None = None

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        serving.cancel()

    def start_watching() -> None:
        nonlocal watch
        watch = loop.create_task(wait_for_disconnect())

    timer = loop.call_later(_WATCH_AFTER_S, start_watching)
    try:
        await app(scope, receive, send)
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()


# -- the process -----------------------------------------------------------------------------------------------------


class _InFlightRequests:
    """ASGI middleware: tracks running POST requests, so that a shutdown can wait for them and cancel the rest."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._scopes: set[anyio.CancelScope] = set()
        self._idle: anyio.Event | None = None
        """Set when no request is running; None until that is waited for."""

    async def wait_idle(self) -> None:
        """Wait until no request is running."""
        while self._scopes:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def cancel_all(self) -> None:
        """Cancel running requests; each is answered with an error."""
        for scope in tuple(self._scopes):
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        answered = False

        async def send_tracked(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        with anyio.CancelScope() as running:
            self._scopes.add(running)
            try:
                await self._app({**scope, _CANCEL_KEY: running}, receive, send_tracked)
            finally:
                self._scopes.discard(running)
                if self._idle is not None and not self._scopes:
                    self._idle.set()
                    self._idle = None
        if running.cancelled_caught and not answered:
            headers = {"Retry-After": str(_RESTART_S)}
            await JSONResponse(_SHUTDOWN_ERROR, status_code=503, headers=headers)(scope, receive, send)


class _UvicornServer(uvicorn.Server):
    """Leaves signals to the caller. Uvicorn would raise them again before the clean-up is done."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(
    app: AsgiApp,
    options: HttpOptions,
    *,
    stop: anyio.Event | None = None,
    started: Callable[[str], None] | None = None,
    flush_s: float = FLUSH_S,
) -> None:
    """Serve until `stop`, or until SIGTERM or SIGINT where none is given; then finish running calls within `drain_s`.

    Calls `started` with the URL once the socket is bound. After the last call, clients have `flush_s` seconds to read
    their responses.
    """
    in_flight = _InFlightRequests(app)
    config = uvicorn.Config(
        in_flight,
        host=options.host,
        port=options.port,
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        http=bounded_protocol(options),
        backlog=_BACKLOG if _accepts_one_by_one() else _ACCEPTED_AT_ONCE,
        timeout_keep_alive=max(1, round(options.keep_alive_s)),
        timeout_graceful_shutdown=round(options.drain_s) + 60,  # _stop_on_request ends everything long before
    )
    server = _UvicornServer(config)
    with bind_socket(options.host, options.port) as sock:
        app.listening(options.host, sock.getsockname()[1])
        async with app.running(), anyio.create_task_group() as group:
            await group.start(_stop_on_request, server, in_flight, app, options.drain_s, flush_s, stop)
            if started is not None:
                started(f"http://{url_host(options.host)}:{sock.getsockname()[1]}{app.path}")
            await server.serve(sockets=[sock])
            group.cancel_scope.cancel()


def _accepts_one_by_one() -> bool:
    """Whether the event loop accepts one connection in each turn, as uvloop does; asyncio accepts all that wait."""
    return type(asyncio.get_running_loop()).__module__.startswith("uvloop")


class _ListeningSocket(socket.socket):
    """Lets as many connections wait as before when asyncio, which has one number for both, wants to accept fewer."""

    def listen(self, backlog: int = _BACKLOG, /) -> None:
        super().listen(max(backlog, _BACKLOG))


def bind_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `SettingsError` where the address cannot be used."""
    # Name the protocol: asyncio disables Nagle's algorithm, which costs 40 ms a response, only on TCP sockets.
    sock = _ListeningSocket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen()
    except (OSError, OverflowError) as error:
        sock.close()
        raise SettingsError(
            f"Cannot listen on {url_host(host)}:{port}: {getattr(error, 'strerror', None) or error}.",
            hint="Choose another address with --http HOST:PORT.",
        ) from error
    return sock


async def _stop_on_request(
    server: uvicorn.Server,
    in_flight: _InFlightRequests,
    app: AsgiApp,
    drain_s: float,
    flush_s: float,
    stop: anyio.Event | None,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    await wait_for_stop(stop, task_status=task_status)
    server.should_exit = True
    app.end_streams()
    with anyio.move_on_after(drain_s):
        await in_flight.wait_idle()
    in_flight.cancel_all()
    # Streams that never end by themselves must not delay the shutdown.
    await anyio.sleep(flush_s)
    server.force_exit = True


async def wait_for_stop(
    stop: anyio.Event | None = None, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Wait for the event, or for SIGTERM or SIGINT without one. Reports `started` once neither can be missed."""
    if stop is not None:
        task_status.started()
        await stop.wait()
        return
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            return


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
    routes: Sequence[BaseRoute] = (),
    state: StateStore | None = None,  # noqa: ARG001 - a connection of this transport belongs to one process
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
        routes=routes,
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
            body = await _read_body(self._options, scope, receive, send)
            if body is not None:
                await transport.handle_post_message(scope, _ReplayBody(body, receive), send)
        elif scope["method"] != "GET":
            answer = PlainTextResponse("Method Not Allowed", status_code=405, headers={"Allow": "GET, POST"})
            await answer(scope, receive, send)
        elif len(self._streams) >= _MAX_STREAMS:
            await PlainTextResponse("Too many open streams", status_code=503)(scope, receive, send)
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
