"""The process that serves HTTP: accepts connections, and drains requests when it stops or hands over to another one.

Listening sockets are bound here, handed to worker processes, and taken over by them.
"""

import asyncio
import contextlib
import copy
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import LOGGING_CONFIG

from toolcrib.errors import SettingsError
from toolcrib.middleware.admission import CountRefusal
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.auth.authentication import url_host
from toolcrib.server.http.connections import Connection, ConnectionLimits, RepeatedWarnings
from toolcrib.server.http.reader import Heads, PlainReader, Running, Serving
from toolcrib.server.http.requests import SHUTDOWN_ANSWER, AsgiRequest, HttpRequest
from toolcrib.server.http.strict import StrictReader, WatchedApp
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.stopping import wait_for_stop

_ACCEPTED_AT_ONCE: Final = 64
"""Connections that asyncio accepts in one turn."""
_HAND_OVER_S: Final = 2.0
"""How long clients may use their open connections once more after others accept new ones, in seconds."""
_POLL_S: Final = 0.05
FLUSH_S: Final = 0.2
"""How long clients have to read the last responses at shutdown, in seconds."""

_BACKLOG: Final = 2048
"""Connections that may wait to be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAddress:
    """An address from which several processes accept connections."""

    sock: socket.socket
    """It listens already, and stays open in the process that bound it."""
    own_path: Path | None = None
    """A Unix-domain socket at which the other processes reach this one; made and removed by the server."""
    retired: anyio.Event = field(default_factory=anyio.Event)
    """To be set when another process takes over: then no connection is accepted any more, and each open one is closed
    with its next response. After a short while the server stops.
    """


class InFlightRequests:
    """Tracks running POST requests of an app, so that a shutdown can wait for them and cancel the rest."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self.paths = app.direct_paths
        """Where POSTs need no ASGI."""
        self.serve: Callable[[HttpRequest], Awaitable[None]] = app.serve
        """Answers a request that did not come over ASGI."""
        self.running: set[Running] = set()
        self.is_retiring = False
        """Whether every response asks its client to close the connection: another process accepts the next one."""
        self._idle: anyio.Event | None = None
        """Set when no request is running; None until that is waited for."""

    async def wait_idle(self) -> None:
        """Wait until no request is running."""
        while self.running:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def cancel_all(self) -> None:
        """Cancel running requests; each is answered with an error."""
        for running in self.running:
            if running.task is not None and not running.is_refused:
                running.is_refused = True
                running.task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request as an ASGI app."""
        if self.is_retiring and scope["type"] == "http":
            send = _closing(send)
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        running, has_begun = _AsgiRunning(asyncio.current_task()), False

        async def send_noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        self.running.add(running)
        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if not running.is_refused or running.task is None:
                raise
            running.task.uncancel()
            if not has_begun:
                await AsgiRequest(scope, receive, send).respond(SHUTDOWN_ANSWER)
        finally:
            self.ended(running)

    def ended(self, running: Running) -> None:
        """Note that a request is running no longer."""
        self.running.discard(running)
        if self._idle is not None and not self.running:
            self._idle.set()
            self._idle = None


@dataclass(slots=True, eq=False)
class _AsgiRunning:
    """One that came over ASGI."""

    task: "asyncio.Task[Any] | None"
    is_refused: bool = False


def _closing(send: Send) -> Send:
    """ASGI `send` that asks the client to close the connection after the response."""

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_last


class _HttpServer(uvicorn.Server):
    """Leaves signals to the caller, as uvicorn would raise them again before the clean-up is done."""

    def __init__(self, config: uvicorn.Config, own_path: Path | None) -> None:
        """`own_path` is where to listen besides the sockets."""
        super().__init__(config)
        self._own_path = own_path

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self._own_path is None:
            return
        config = self.config

        def protocol() -> asyncio.Protocol:
            make: Any = config.http_protocol_class
            made: asyncio.Protocol = make(
                config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
            )
            return made

        loop = asyncio.get_running_loop()
        own = await loop.create_unix_server(protocol, sock=_bind_path(self._own_path), backlog=config.backlog)
        self.servers.append(own)

    def stop_accepting(self) -> None:
        """Accept no connections from clients any more; those of other processes still come."""
        self.servers[0].close()

    @property
    def is_idle(self) -> bool:
        """Whether no connection is open."""
        return not self.server_state.connections


def connection_type(options: HttpOptions, serving: Serving, count_refusal: CountRefusal | None = None) -> Any:
    """What makes uvicorn's protocol for each connection. `count_refusal` counts refused ones, by the setting."""
    limits, heads = ConnectionLimits(options, count_refusal), Heads(serving.paths, options.max_head_bytes)

    def first_reader(connection: Connection) -> PlainReader:
        return PlainReader(connection, serving, heads, StrictReader)

    return partial(Connection, limits, first_reader)


async def serve_http(
    app: AsgiApp,
    options: HttpOptions,
    *,
    stop: anyio.Event | None = None,
    started: Callable[[str], None] | None = None,
    flush_s: float = FLUSH_S,
    shared: SharedAddress | None = None,
) -> None:
    """Serve until `stop`, or until SIGTERM or SIGINT where none is given; then finish running calls within `drain_s`.

    Calls `started` with the URL once the socket is bound. After the last call, clients have `flush_s` seconds to read
    their responses. With `shared`, connections are accepted from that address instead of the one of the options.
    """
    in_flight = InFlightRequests(app)
    config = uvicorn.Config(
        WatchedApp(in_flight),
        host=options.host,
        port=options.port,
        lifespan="off",
        log_level="warning",
        log_config=_logging_config(),
        access_log=False,
        proxy_headers=False,
        server_header=False,
        http=connection_type(options, in_flight, app.count_refusal),
        ws="none",  # a request for a websocket is answered as if it did not ask for one
        h11_max_incomplete_event_size=2 * options.max_head_bytes,  # smaller ones are refused by the protocol
        backlog=_backlog(is_shared=shared is not None),
        timeout_keep_alive=max(1, round(options.keep_alive_s)),
        timeout_graceful_shutdown=round(options.drain_s) + 60,  # _stop_on_request ends everything long before
    )
    own_path = None if shared is None else shared.own_path
    server = _HttpServer(config, own_path)
    with bind_socket(options.host, options.port) if shared is None else shared.sock as sock:
        port = sock.getsockname()[1]
        app.listening(options.host, port, own_path)
        async with app.running(), anyio.create_task_group() as group:
            if shared is not None:
                stop = stop or anyio.Event()
                group.start_soon(_hand_over, server, in_flight, app, shared.retired, stop)
            await group.start(_stop_on_request, server, in_flight, app, options.drain_s, flush_s, stop)
            if started is not None:
                started(f"http://{url_host(options.host)}:{port}{app.path}")
            try:
                await server.serve(sockets=[sock])
            finally:
                if own_path is not None:
                    own_path.unlink(missing_ok=True)
            group.cancel_scope.cancel()


def _logging_config() -> dict[str, Any]:
    """uvicorn's own, with few lines for many requests that are wrong in the same way."""
    config = copy.deepcopy(LOGGING_CONFIG)
    config["filters"] = {"repeated": {"()": RepeatedWarnings}}
    config["handlers"]["default"]["filters"] = ["repeated"]
    return config


def _backlog(*, is_shared: bool) -> int:
    """How many connections uvicorn is to accept in one turn, or to let wait.

    uvloop accepts one in each turn. asyncio accepts as many as may wait, and has one number for both; of a shared
    address each process takes one, and leaves the next one to the others.
    """
    if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        return _BACKLOG
    return 1 if is_shared else _ACCEPTED_AT_ONCE


async def _hand_over(
    server: _HttpServer, in_flight: InFlightRequests, app: AsgiApp, retired: anyio.Event, stop: anyio.Event
) -> None:
    """Once retired, leave new connections to other processes, and stop when the open ones have ended."""
    await retired.wait()
    server.stop_accepting()
    in_flight.is_retiring = True
    app.end_streams()
    with anyio.move_on_after(_HAND_OVER_S):
        while not server.is_idle:  # noqa: ASYNC110 - uvicorn has no event for it
            await anyio.sleep(_POLL_S)
    stop.set()


async def _stop_on_request(
    server: uvicorn.Server,
    in_flight: InFlightRequests,
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


# -- listening sockets -------------------------------------------------------------------------------------------------


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
            f"Cannot listen on {_shown(host)}:{port}: {getattr(error, 'strerror', None) or error}.",
            hint="Choose another address with --http HOST:PORT.",
        ) from error
    return sock


def _bind_path(path: Path) -> socket.socket:
    """A listening Unix-domain socket, which only this user can connect to: the folder has to be private.

    The path must not exist.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def adopt_socket(descriptor: int) -> socket.socket:
    """A listening socket that another process bound, by its descriptor."""
    sock = _ListeningSocket(fileno=descriptor)
    sock.set_inheritable(False)
    return sock


def descriptors(sockets: Mapping[str, socket.socket]) -> dict[str, int]:
    """The descriptors of sockets by name, for a process that is to adopt them."""
    return {name: sock.fileno() for name, sock in sockets.items()}


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
