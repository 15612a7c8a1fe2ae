"""toolcrib over HTTP: streamable HTTP in both protocol eras, health endpoints, and the guards in front of them."""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

import anyio
import anyio.abc
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import SettingsError
from toolcrib.protocols import Authenticator
from toolcrib.server.auth import Authenticated, StaticTokens
from toolcrib.server.options import HttpOptions

logger = logging.getLogger(__name__)

Readiness = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether to send traffic, and figures that name nobody."""

_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_HEALTH: Final = ("/healthz", "/readyz")
_PROGRESS: Final = b'"progressToken"'
_WATCH_AFTER_S: Final = 0.1
"""Calls shorter than this are not worth a task that watches whether their client is still there, in seconds."""
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised, not bound


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0"), is_loopback("example.com")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def http_app(
    server: Server[Any], options: HttpOptions, *, ready: Readiness, authenticator: Authenticator | None = None
) -> Starlette:
    """The ASGI app; mount it anywhere, and run its lifespan.

    Raises `SettingsError` when others could reach it and nobody is asked who he is.
    """
    if authenticator is None and options.tokens:
        authenticator = StaticTokens(options.tokens)
    if authenticator is None and not is_loopback(options.host):
        raise SettingsError(
            f"Refusing to serve on {options.host} without a token: anybody who reaches it could call every tool.",
            hint="Set http.tokens in the configuration, or TOOLCRIB_TOKEN, or bind to 127.0.0.1.",
        )
    endpoint = _Endpoint(server, options)
    guarded: ASGIApp = Authenticated(endpoint, authenticator) if authenticator is not None else endpoint

    async def healthz(_: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> JSONResponse:
        is_ready, figures = ready()
        return JSONResponse({"ready": is_ready, **figures}, status_code=200 if is_ready else 503)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with endpoint.running():
            yield

    routes = [
        Route(options.path, endpoint=_Mounted(guarded)),
        Route(_HEALTH[0], healthz),
        Route(_HEALTH[1], readyz),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(_Guard, options=options)
    return app


class _Mounted:
    """An ASGI app as a route endpoint; Starlette takes functions for request handlers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Endpoint:
    """Sends a request to the era it speaks.

    Answers are plain JSON: events cost more, and an SDK client refuses one above 1 MiB. Only who asks for progress, in
    the modern era, gets a stream of events. A modern call ends when its client goes away.
    """

    def __init__(self, server: Server[Any], options: HttpOptions) -> None:
        self._limit = options.max_body_bytes
        self._json = StreamableHTTPSessionManager(server, json_response=True, max_request_body_size=self._limit)
        self._events = StreamableHTTPSessionManager(server, json_response=False, max_request_body_size=self._limit)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._json.run(), self._events.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        version = headers.get("mcp-protocol-version")
        length = headers.get("content-length", "")
        modern = version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS
        if not modern or not length.isdigit() or int(length) > self._limit:
            await self._json.handle_request(scope, receive, send)
            return
        body = await _whole_body(receive)
        if body is None:
            return
        again = _Again(body, receive)
        if _PROGRESS in body and "text/event-stream" in headers.get("accept", ""):
            await self._events.handle_request(scope, again, send)
        else:
            await _while_connected(self._json.handle_request, scope, again, send)


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


class _Guard:
    """ASGI: refuses requests that a foreign web page made a browser send (DNS rebinding, cross-origin)."""

    def __init__(self, app: ASGIApp, options: HttpOptions) -> None:
        self._app = app
        everywhere = options.host in _WILDCARDS
        self._any_host = everywhere and not options.allowed_hosts
        own = {*_LOOPBACK_NAMES} if everywhere or is_loopback(options.host) else set()
        own |= set() if everywhere else {_bracketed(options.host)}
        self._hosts = _lowered((*(f"{name}:*" for name in own), *own, *options.allowed_hosts))
        schemes = ("http", "https")
        self._origins = _lowered(
            (
                *(f"{scheme}://{name}{port}" for scheme in schemes for name in own for port in ("", ":*")),
                *options.allowed_origins,
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope["path"], Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        status, text = problem
        await PlainTextResponse(text, status_code=status)(scope, receive, send)

    def _problem(self, path: str, headers: Headers) -> tuple[int, str] | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # A probe of a container's health comes by its address; it learns nothing that is worth guarding.
        if not self._any_host and path not in _HEALTH and not _matches(host, self._hosts):
            return 421, "Host not allowed; add it to http.allowed_hosts."
        if origin and not _matches(origin, self._origins):
            return 403, "Origin not allowed; add it to http.allowed_origins."
        return None


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _matches(value: str, allowed: frozenset[str]) -> bool:
    """Whether the value is allowed as it stands, or with any port.

    >>> _matches("localhost:80", frozenset({"localhost:*"})), _matches("localhost.evil.com", frozenset({"localhost:*"}))
    (True, False)
    """
    if value in allowed:
        return True
    base, colon, port = value.rpartition(":")
    return bool(colon) and port.isdigit() and f"{base}:*" in allowed


class _InFlight:
    """ASGI: knows the POST requests under way, so that a shutdown can wait for them, and end them when it must."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._scopes: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is under way."""
        await self._idle.wait()

    def end(self) -> None:
        """Answer what is under way with an error."""
        for scope in tuple(self._scopes):
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        answered = False

        async def noted(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        if not self._scopes:
            self._idle = anyio.Event()
        with anyio.CancelScope() as under_way:
            self._scopes.add(under_way)
            try:
                await self._app(scope, receive, noted)
            finally:
                self._scopes.discard(under_way)
                if not self._scopes:
                    self._idle.set()
        if under_way.cancelled_caught and not answered:
            await JSONResponse(_SHUTTING_DOWN, status_code=503)(scope, receive, send)


_SHUTTING_DOWN: Final = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32000, "message": "The server is shutting down; the call was given up."},
}


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the caller: uvicorn would raise them again, past every clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(
    app: Starlette,
    options: HttpOptions,
    *,
    stop: anyio.Event | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve until `stop`, or SIGTERM or SIGINT where none is given; then finish the calls under way, within `drain_s`.

    `started` is told the address, once it is bound.
    """
    counted = _InFlight(app)
    config = uvicorn.Config(
        counted,
        host=options.host,
        port=options.port,
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=round(options.drain_s) + 60,  # we end what is left long before
    )
    server = _Uvicorn(config)
    with listening(options.host, options.port) as sock:
        async with app.router.lifespan_context(app), anyio.create_task_group() as group:
            await group.start(_stop_on_request, server, counted, options.drain_s, stop)
            if started is not None:
                started(f"http://{_bracketed(options.host)}:{sock.getsockname()[1]}{options.path}")
            await server.serve(sockets=[sock])
            group.cancel_scope.cancel()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `SettingsError` where the address cannot be had."""
    # With the protocol left open, asyncio would not switch Nagle's algorithm off: 40 ms an answer.
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise SettingsError(
            f"Cannot listen on {_bracketed(host)}:{port}: {getattr(error, 'strerror', None) or error}.",
            hint="Choose another address with --http HOST:PORT.",
        ) from error
    return sock


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


async def _stop_on_request(
    server: uvicorn.Server,
    counted: _InFlight,
    drain_s: float,
    stop: anyio.Event | None,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    await stop_requested(stop, task_status=task_status)
    server.should_exit = True
    with anyio.move_on_after(drain_s):
        await counted.idle()
    counted.end()
    # Streams that never end by themselves must not hold the shutdown up.
    await anyio.sleep(_LAST_BYTES_S)
    server.force_exit = True


_BACKLOG: Final = 2048
_LAST_BYTES_S: Final = 0.2
"""Time for the last answers to leave, in seconds."""


async def stop_requested(
    stop: anyio.Event | None = None, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Wait for the event, or for SIGTERM or SIGINT where there is none; `started` once neither can be missed."""
    if stop is not None:
        task_status.started()
        await stop.wait()
        return
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            return


__all__ = ["Readiness", "http_app", "is_loopback", "serve_http", "stop_requested"]
