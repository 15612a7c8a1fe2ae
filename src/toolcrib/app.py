"""The only place where the parts are joined: settings in, a running gateway out."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, Self

import anyio
import anyio.to_thread
from starlette.applications import Starlette

from toolcrib.embedders.cached import Cached
from toolcrib.embedders.load import BUILT_IN, load
from toolcrib.errors import AlreadyStarted, NotStarted, ServerUnavailable, SettingsError
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.states import stands
from toolcrib.model import ServerState
from toolcrib.protocols import Authenticator, Context, Policy
from toolcrib.server.context import LOCAL
from toolcrib.server.http import http_app, serve_http
from toolcrib.server.mcp import make_server
from toolcrib.server.options import HttpOptions
from toolcrib.server.stdio import serve_stdio
from toolcrib.settings.options import Settings
from toolcrib.surfaces.front import Front
from toolcrib.upstream.fleet import Fleet


class App:
    """A gateway over the servers of its settings.

    `async with App(settings) as app` starts them without waiting for any; `settled` waits. Only an embedder that the
    settings name is waited for.
    """

    def __init__(
        self, settings: Settings, *, policy: Policy | None = None, authenticator: Authenticator | None = None
    ) -> None:
        """Nothing is started yet. Raises `SettingsError` for a surface that does not exist, `MissingExtra` for tokens
        that cannot be counted here.
        """
        self.settings = settings
        self.fleet = Fleet(settings.fleet)
        self.gateway = Gateway([self.fleet], policy=policy, options=settings.gateway)
        self.front = Front(self.gateway, settings.surfaces)
        self.server = make_server(self.front)
        self._authenticator = authenticator
        self._running: contextlib.AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        """Start. Raises `ServerUnavailable` when a server that is required cannot be had, and `SettingsError` or
        `MissingExtra` when the embedder cannot.
        """
        if self._running is not None:
            raise AlreadyStarted("The app is running already.")
        stack = contextlib.AsyncExitStack()
        try:
            await stack.enter_async_context(self._live())
            await stack.enter_async_context(self.fleet)
            await self.fleet.apply(self.settings.servers)
            await stack.enter_async_context(self._embedding())
            await self._require()
        except BaseException:
            await stack.aclose()
            raise
        self._running = stack
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop: no new calls, connections closed, children reaped."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    @contextlib.asynccontextmanager
    async def _live(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            await group.start(self.gateway.live.run)
            yield
            group.cancel_scope.cancel()

    @contextlib.asynccontextmanager
    async def _embedding(self) -> AsyncIterator[None]:
        """The gateway compares meanings with what its settings name; servers connect while that is loaded."""
        options = self.settings.gateway
        if options.embedder.strip() == BUILT_IN:
            yield
            return
        with await anyio.to_thread.run_sync(_embedder, options, abandon_on_cancel=True) as embedder:
            self.gateway.embed_with(embedder)
            yield

    async def _require(self) -> None:
        required = {server.name for server in self.settings.servers if server.required}
        if not required:
            return
        await self.fleet.settled()
        for status in self.fleet.statuses():
            if status.name in required and status.state is not ServerState.READY:
                raise ServerUnavailable(
                    f"Server {status.name} is required and {stands(status)}.",
                    hint="Mend it, or set required to false.",
                )

    # -- use -------------------------------------------------------------------------------------------------------

    def local_context(self) -> Context:
        """The context of whoever runs this process."""
        return Context(caller=LOCAL, session="local")

    async def settled(self) -> None:
        """Wait until each server is ready or failed, and its tools can be found."""
        await self.gateway.live.settled()

    # -- serving ---------------------------------------------------------------------------------------------------

    async def serve_stdio(self, *, stop: anyio.Event | None = None) -> None:
        """Serve one client over stdin and stdout until it leaves, or `stop`, or signals where none is given."""
        await self._check()
        await serve_stdio(self.server, drain_s=self.settings.http.drain_s, stop=stop)

    async def serve_http(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        stop: anyio.Event | None = None,
        started: Callable[[str], None] | None = None,
    ) -> None:
        """Serve over HTTP until `stop`, or SIGTERM or SIGINT where none is given. Raises `SettingsError`."""
        app = self.asgi(host, port)
        await self._check()
        await serve_http(app, self._http(host, port), stop=stop, started=started)

    def asgi(self, host: str | None = None, port: int | None = None) -> Starlette:
        """The ASGI app, to be mounted anywhere; run its lifespan. Raises `SettingsError` where a token is needed."""
        if self.settings.http_problem and self._authenticator is None:
            raise SettingsError(self.settings.http_problem)
        return http_app(self.server, self._http(host, port), ready=self._readiness, authenticator=self._authenticator)

    def _http(self, host: str | None, port: int | None) -> HttpOptions:
        own = self.settings.http
        return replace(own, host=own.host if host is None else host, port=own.port if port is None else port)

    async def _check(self) -> None:
        """Refuse to serve names that collide; that takes knowing all of them."""
        if self._running is None:
            raise NotStarted("The app is not running.", hint="Use it inside `async with`.")
        if not self.settings.surfaces.prefix:
            await self.settled()
            await self.front.check_names(self.local_context())

    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        counts: dict[str, int] = {}
        for status in self.fleet.statuses():
            counts[str(status.state)] = counts.get(str(status.state), 0) + 1
        return not self.gateway.live.connecting(), {"servers": counts, "tools": len(self.gateway.live.snapshot.owners)}


def _embedder(options: GatewayOptions) -> Cached:
    """The embedder that the settings name, which remembers what it has seen."""
    try:
        return Cached(load(options.embedder), options.embedder_cache)
    except SettingsError as error:
        raise SettingsError(
            f"toolcrib.search.embedder: {error.message}", hint=error.hint, suggestions=error.suggestions
        ) from error
