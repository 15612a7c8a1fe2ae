"""toolcrib over HTTP: the app that speaks streamable HTTP, and the process that serves one."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import anyio
import anyio.abc
import uvicorn
from mcp.server.lowlevel import Server
from mcp_types import CONNECTION_CLOSED
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolcrib.errors import SettingsError
from toolcrib.protocols import Authenticator
from toolcrib.server.endpoint import StreamableHttp
from toolcrib.server.guards import bracketed, is_loopback
from toolcrib.server.mcp import end_streams
from toolcrib.server.mount import HttpApp, Owner, Readiness
from toolcrib.server.options import HttpOptions
from toolcrib.server.refusals import SHUTTING_DOWN


def http_app(
    server: Server[Any],
    options: HttpOptions,
    *,
    ready: Readiness,
    authenticator: Authenticator | None = None,
    anywhere: bool = False,
    owner: Owner | None = None,
) -> HttpApp:
    """The ASGI app over a server; mount it anywhere, and have it run.

    It answers at the options' path; with `anywhere`, at every path below its mount but those of health. Raises
    `SettingsError` when others could reach it and nobody is asked who he is. The lifespan
    runs `owner` around the app.
    """
    return HttpApp(
        StreamableHttp(server, options),
        options,
        ready=ready,
        authenticator=authenticator,
        paths=None if anywhere else (options.path,),
        end_streams=lambda: end_streams(server),
        owner=owner,
    )


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
    "error": {"code": CONNECTION_CLOSED, "message": SHUTTING_DOWN},
}


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the caller: uvicorn would raise them again, past every clean-up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve_http(
    app: HttpApp,
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
        async with app.running(), anyio.create_task_group() as group:
            await group.start(_stop_on_request, server, counted, app, options.drain_s, stop)
            if started is not None:
                started(f"http://{bracketed(options.host)}:{sock.getsockname()[1]}{app.path}")
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
            f"Cannot listen on {bracketed(host)}:{port}: {getattr(error, 'strerror', None) or error}.",
            hint="Choose another address with --http HOST:PORT.",
        ) from error
    return sock


async def _stop_on_request(
    server: uvicorn.Server,
    counted: _InFlight,
    app: HttpApp,
    drain_s: float,
    stop: anyio.Event | None,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    await stop_requested(stop, task_status=task_status)
    server.should_exit = True
    app.end_streams()
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


__all__ = ["HttpApp", "Readiness", "http_app", "is_loopback", "listening", "serve_http", "stop_requested"]
