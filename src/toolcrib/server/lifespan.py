"""Start and stop an app, and serve it while it runs: over stdio, over HTTP, and mounted in other apps.

Any task may start or stop it. It lives in one event loop, and calls from other loops are forwarded there.
"""

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Self, TypeVar
from weakref import WeakSet

import anyio
import anyio.abc

from toolcrib.checks import checked
from toolcrib.containment import InternalCancellation, contained, record_call_error
from toolcrib.errors import AlreadyStarted, InvalidRequest, NotStarted, SettingsError, ToolcribError, check_type
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.options import AuthOptions, HttpOptions, Token
from toolcrib.state.base import StateStore
from toolcrib.types import Authenticator

_T = TypeVar("_T")
_Transport = Literal["http", "sse"]


class Lifecycle(ABC):
    """Starts and stops a subclass, whose resources open in `__aenter__` and close in `__aexit__`."""

    def __init__(self) -> None:
        self._stack: contextlib.AsyncExitStack | None = None
        """Open resources; None while stopped."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._runner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._starting = False

    @property
    def running(self) -> bool:
        """Whether it has started and not stopped."""
        return self._stack is not None

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *_: object) -> None: ...

    async def start(self) -> None:
        """Start in a background task, so that any task may stop it. Raises as `async with` does.

        Raises `NotStarted` if it is stopped before it has started.
        """
        self._discard_closed_loop()
        if self._stack is not None or self._starting or self._runner is not None:
            raise AlreadyStarted("The app is running already.")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stopping = self._stopping = asyncio.Event()
        self._runner = asyncio.create_task(self._run_until_stopped(ready, stopping))
        try:
            await asyncio.shield(ready)
        except BaseException:
            await self.stop()
            if ready.done():
                ready.exception()  # mark it as retrieved: a cancelled caller has no use for it
            raise

    async def stop(self) -> None:
        """Stop what `start` started or is starting; does nothing if it is not started. Callable from any event loop.

        Raises `NotStarted` if the event loop in which it was started is not running, so that nothing can be closed.
        """
        self._discard_closed_loop()
        runner = self._runner
        if runner is None:
            return
        home = runner.get_loop()
        if home is asyncio.get_running_loop():
            await self._stop_runner(runner)
        elif home.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._stop_runner(runner), home))
        else:
            raise NotStarted(
                "The event loop in which the app was started is not running.", hint="Stop the app in that loop."
            )

    async def _stop_runner(self, runner: asyncio.Task[None]) -> None:
        """Stop the background task; cancel it if it has not started yet."""
        if self._runner is runner:
            self._runner = None
            self._stopping.set()
            if self._stack is None:
                runner.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([runner])
        if not runner.cancelled() and (error := runner.exception()) is not None:
            raise error

    def _discard_closed_loop(self) -> None:
        """Reset state whose event loop was closed."""
        if self._loop is not None and self._loop.is_closed():
            self._stack = self._loop = self._group = None
        runner = self._runner
        if runner is not None and (runner.get_loop().is_closed() or runner.cancelled()):
            self._runner, self._starting = None, False

    async def _run_until_stopped(self, ready: "asyncio.Future[None]", stopping: asyncio.Event) -> None:
        try:
            async with self:
                ready.set_result(None)
                await stopping.wait()
        except BaseException as error:
            if ready.done():
                raise
            if not isinstance(error, Exception):
                ready.set_exception(NotStarted("The app was stopped before it had started."))
                raise
            ready.set_exception(error)

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Run for the duration of this context, or until stopped if it was running already."""
        if self.running:
            yield
            return
        async with self:
            yield

    async def _in_app_loop(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run the work in the app's event loop, from any event loop."""
        self._discard_closed_loop()
        home = self._loop
        try:
            if home is None or home is asyncio.get_running_loop():
                return await work()
            return await contained(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), home)))
        except InternalCancellation as error:
            raise NotStarted("The app was stopped during the call.", hint="Start it and try again.") from error
        except ToolcribError as error:
            record_call_error(error)
            raise


class ServableApp(Lifecycle):
    """Serves a subclass over stdio and HTTP while it runs."""

    engine: Any
    """The `Engine`; untyped, because that type takes long to import."""

    def __init__(
        self, options: HttpOptions, *, authenticator: Authenticator | None, problem: str, auth: AuthOptions
    ) -> None:
        """`problem` is why serving HTTP without an authenticator is refused; empty if it is allowed."""
        super().__init__()
        self._options = options
        self._auth = auth
        self._authenticator = authenticator
        self._http_problem = problem
        self._credentials: Any = None
        """The `Credentials` of the options, once HTTP is served with them."""
        self._watching: anyio.abc.TaskGroup | None = None
        """The task group in which revoked keys are watched for."""
        self._is_open = False
        """Whether HTTP is served to clients without any authentication."""
        self._mounts: dict[_Transport, AsgiApp] = {}
        self._http_apps: WeakSet[AsgiApp] = WeakSet()
        """All that were made, mounts among them."""

    @abstractmethod
    def _warn_of_own_handlers(self) -> None:
        """Log what a program has added to the SDK's server and is not served."""

    @abstractmethod
    def _watch_collisions(self) -> AbstractAsyncContextManager[None]:
        """Context for serving; raises if the app must not be served, now or after later changes."""

    @abstractmethod
    def _state_store(self) -> StateStore:
        """Where API keys are, and what other processes that serve the same address share."""

    @abstractmethod
    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether to send traffic, and figures that identify no caller."""

    def run(self, address: str | None = None, *, host: str | None = None, port: int | None = None) -> None:
        """Serve until interrupted. Starts its own event loop.

        Without arguments, serves over stdio. With an address, such as `"127.0.0.1:8000"`, or with a host or a port,
        serves over HTTP; the settings have what is not given. Raises `SettingsError`, and `InvalidRequest` where an
        event loop is running already.
        """
        if address is not None:
            check_type(address, str, "The address", 'Use "127.0.0.1:8000", or port=8000.')
            if host is not None or port is not None:
                raise SettingsError("The address is given twice.", hint='Use "127.0.0.1:8000", or host= and port=.')
            host, _, digits = address.rpartition(":")
            if not digits.isdecimal():
                raise SettingsError(f"{address!r} is not an address.", hint='Use the form "127.0.0.1:8000".')
            host, port = host or None, int(digits)
        with contextlib.suppress(RuntimeError):  # there is none, as it should be
            asyncio.get_running_loop()
            raise InvalidRequest(
                "run() starts an event loop, and one is running already.", hint="Await serve_stdio() or serve_http()."
            )
        anyio.run(self._run, host, port)

    async def _run(self, host: str | None, port: int | None) -> None:
        async with self.started():
            if host is None and port is None:
                await self.serve_stdio()
                return
            await self.serve_http(host, port, started=lambda url: print(f"Serving {url}", file=sys.stderr))  # noqa: T201 - runs as a program

    async def serve_stdio(self, *, stop: anyio.Event | None = None) -> None:
        """Serve one client over stdin and stdout until it disconnects, `stop`, or SIGTERM or SIGINT without it."""
        from toolcrib.server.stdio import serve_stdio

        async with self._watch_collisions():
            self._warn_of_own_handlers()
            await serve_stdio(self.engine, drain_s=self._options.drain_s, stop=stop)

    async def serve_http(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        sse: bool = False,
        stop: anyio.Event | None = None,
        started: Callable[[str], None] | None = None,
        shared: Any = None,
    ) -> None:
        """Serve over HTTP until `stop`, or SIGTERM or SIGINT where none is given. Raises `SettingsError`.

        With `sse`, serve the older HTTP+SSE transport at `/sse` instead. `shared` is a
        `toolcrib.server.processes.process.SharedAddress` to accept connections from.
        """
        from toolcrib.server.processes.process import serve_http

        app = self._http_app("sse" if sse else "http", self._http_options(host, port), anywhere=False)
        async with self._watch_collisions():
            await serve_http(app, self._http_options(host, port), stop=stop, started=started, shared=shared)

    def asgi(self, host: str | None = None, port: int | None = None) -> AsgiApp:
        """The ASGI app, which answers at the path of the settings. Its lifespan starts this app if necessary.

        Raises `SettingsError` if the address needs a token and there is none.
        """
        return self._http_app("http", self._http_options(host, port), anywhere=False)

    def asgi_mount(self) -> AsgiApp:
        """The ASGI app to mount at any path of another app. It answers while this app or its own lifespan runs.

        Returns the same object each time.
        """
        return self._http_app("http", self._options, anywhere=True)

    def sse_mount(self) -> AsgiApp:
        """The same for the older HTTP+SSE transport."""
        return self._http_app("sse", self._options, anywhere=True)

    def _http_app(self, transport: _Transport, options: HttpOptions, *, anywhere: bool) -> AsgiApp:
        if self._http_problem and self._authenticator is None:
            raise SettingsError(self._http_problem)
        if anywhere and transport in self._mounts:
            return self._mounts[transport]
        from toolcrib.server.http.endpoint import http_app
        from toolcrib.server.http.sse import sse_app

        authenticator = self._authenticator or self._own_authenticator()
        self._is_open |= authenticator is None
        self._warn_of_own_handlers()
        make = sse_app if transport == "sse" else http_app
        mount: AsgiApp = make(
            self.engine,
            options,
            ready=self._readiness,
            authenticator=authenticator,
            anywhere=anywhere,
            owner=self.started,
            routes=self._login_routes(),
            state=self._state_store(),
        )
        self._http_apps.add(mount)
        if anywhere:
            self._mounts[transport] = mount
            if self._group is not None:
                mount.run_soon(self._group)
        return mount

    def _login_routes(self) -> Sequence[Any]:
        """Starlette routes to serve without authentication, to which browsers come back after a login."""
        return ()

    @checked
    def auth_routes(self, mount: str = "") -> Sequence[Any]:
        """Starlette routes of the metadata that OAuth clients look for at the root of a host.

        Add them to the app that mounts this one; `mount` is where.
        """
        authenticator = self._authenticator or self._own_authenticator()
        routes = getattr(authenticator, "routes", None)
        return () if routes is None else tuple(routes(mount) if authenticator is self._credentials else routes())

    def _own_authenticator(self) -> Authenticator | None:
        """The authenticator for what the settings accept; None if they accept anyone."""
        if self._credentials is None and (self._options.tokens or self._auth.enabled):
            from toolcrib.server.auth.authentication import Credentials

            self._credentials = Credentials(self._options.tokens, **self._more_credentials(self._auth))
        own: Authenticator | None = self._credentials
        return own

    def _more_credentials(self, auth: AuthOptions) -> dict[str, Any]:
        """What identifies callers beside static tokens. Raises `SettingsError` for options that cannot be used."""
        more: dict[str, Any] = {}
        if auth.issuers:
            from toolcrib.server.auth.oauth import OAuthResource

            more["oauth"] = OAuthResource(auth, self._options)
            more["oauth"].check_hosts()
        if auth.api_keys:
            more["keys"] = self._api_keys
        return more

    @cached_property
    def _api_keys(self) -> Any:
        """The API keys in the app's state."""
        from toolcrib.server.auth.api_keys import ApiKeys

        return ApiKeys(self._state_store())

    async def _watch_keys(self) -> None:
        """While the app runs, end open streams when an API key is revoked."""
        if self._auth.api_keys and self._group is not None and self._watching is not self._group:
            self._watching = self._group
            await self._group.start(self._api_keys.watch, self.end_authenticated_streams)

    def _check_tokens(self, options: HttpOptions, auth: AuthOptions, problem: str) -> None:
        """Raise `SettingsError` if the credentials of the options cannot replace those in use."""
        if self._authenticator is None and problem and not self._http_problem:
            raise SettingsError(problem, hint="The previous tokens stay valid.")
        if self._is_open and (options.tokens or auth.enabled):
            raise SettingsError(
                "Clients without a token are served, which cannot be changed while they are connected.",
                hint="Restart toolcrib to require tokens.",
            )
        if self._credentials is not None:
            self._more_credentials(auth)

    def _replace_tokens(self, tokens: tuple[Token, ...], auth: AuthOptions) -> None:
        """Accept other credentials. Streams end, so that no stream outlives its token; clients open them again."""
        self._options, self._auth = replace(self._options, tokens=tokens), auth
        if self._credentials is not None:
            self._credentials.replace(tokens, **self._more_credentials(auth))
            self.end_authenticated_streams()

    def end_authenticated_streams(self) -> None:
        """End the open streams, which clients open again with a credential that is valid then."""
        self.engine.end_streams()
        for app in tuple(self._http_apps):
            app.end_session_streams()

    def _http_options(self, host: str | None, port: int | None) -> HttpOptions:
        own = self._options
        return replace(own, host=own.host if host is None else host, port=own.port if port is None else port)

    async def _run_mounts(self, group: anyio.abc.TaskGroup) -> None:
        """Run mounted apps in the task group, and watch for revoked keys."""
        await self._watch_keys()
        for mount in tuple(self._mounts.values()):
            await group.start(mount.run)
