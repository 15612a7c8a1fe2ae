"""Start and stop an app, and serve it while it runs: over stdio, over HTTP, and mounted in other apps.

Any task may start or stop it. It lives in one event loop, and calls from other loops are forwarded there.
"""

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Self, TypeVar

import anyio
import anyio.abc

from toolcrib.containment import InternalCancellation, contained, record_call_error
from toolcrib.errors import AlreadyStarted, NotStarted, SettingsError, ToolcribError
from toolcrib.server.asgi import HttpApp
from toolcrib.server.handlers import ToolServer
from toolcrib.server.http import http_app, serve_http
from toolcrib.server.options import HttpOptions
from toolcrib.server.sse import sse_app
from toolcrib.server.stdio import serve_stdio
from toolcrib.types import Authenticator

_T = TypeVar("_T")


class Lifecycle(ABC):
    """Starts and stops what a subclass opens in `__aenter__` and closes in `__aexit__`."""

    def __init__(self) -> None:
        """Not started."""
        self._stack: contextlib.AsyncExitStack | None = None
        """What is open; None while it does not run."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._runner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._starting = False

    @property
    def running(self) -> bool:
        """Whether it is started, and not stopped."""
        return self._stack is not None

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Start."""

    @abstractmethod
    async def __aexit__(self, *_: object) -> None:
        """Stop."""

    async def start(self) -> None:
        """Start, in a task of its own, so that any task may stop it. Raises as `async with` does.

        Raises `NotStarted` where somebody stops it before it has started.
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
                ready.exception()  # whoever was cancelled while he waited has no use for it
            raise

    async def stop(self) -> None:
        """Stop what `start` started, or is about to; does nothing when it is not started. From any event loop.

        Raises `NotStarted` where the event loop in which it was started stands still, so that nothing can be closed.
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
                "The event loop in which the app was started does not run.", hint="Stop the app in that loop."
            )

    async def _stop_runner(self, runner: asyncio.Task[None]) -> None:
        """Have it end; at once where it has not started yet."""
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
        """Forget what ended with its event loop."""
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
        """Running inside, and left as it was."""
        if self.running:
            yield
            return
        async with self:
            yield

    async def _in_app_loop(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do it in the event loop in which connections live, from whichever loop this is asked for."""
        self._discard_closed_loop()
        home = self._loop
        try:
            if home is None or home is asyncio.get_running_loop():
                return await work()
            return await contained(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), home)))
        except InternalCancellation as error:
            raise NotStarted("The app was stopped meanwhile.", hint="Start it, and ask again.") from error
        except ToolcribError as error:
            record_call_error(error)
            raise


class ServableApp(Lifecycle):
    """Serves what a subclass starts and stops."""

    def __init__(
        self, server: ToolServer, options: HttpOptions, *, authenticator: Authenticator | None, problem: str
    ) -> None:
        """`problem` is why HTTP must not be served without an authenticator; empty where it may be."""
        super().__init__()
        self.server = server
        self._options = options
        self._authenticator = authenticator
        self._http_problem = problem
        self._mounts: dict[Callable[..., HttpApp], HttpApp] = {}

    @abstractmethod
    def _watch_collisions(self) -> AbstractAsyncContextManager[None]:
        """While it is served; raises where it must not be served as it stands, or as it turns out to be."""

    @abstractmethod
    def _readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether to send traffic, and figures that name nobody."""

    def run(self, address: str | None = None) -> None:
        """Serve until interrupted, on stdin and stdout, or over HTTP at `host:port`; for the end of a program."""
        anyio.run(self._run, address)

    async def _run(self, address: str | None) -> None:
        async with self.started():
            if address is None:
                await self.serve_stdio()
                return
            host, _, port = address.rpartition(":")
            if not port.isdecimal():
                raise SettingsError(f"{address!r} is no address.", hint='Such as "127.0.0.1:8000".')
            await self.serve_http(host or None, int(port), started=lambda url: print(f"Serving {url}", file=sys.stderr))  # noqa: T201 - a program's own word

    async def serve_stdio(self, *, stop: anyio.Event | None = None) -> None:
        """Serve one client over stdin and stdout until it leaves, or `stop`, or signals where none is given."""
        async with self._watch_collisions():
            await serve_stdio(self.server, drain_s=self._options.drain_s, stop=stop)

    async def serve_http(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        sse: bool = False,
        stop: anyio.Event | None = None,
        started: Callable[[str], None] | None = None,
    ) -> None:
        """Serve over HTTP until `stop`, or SIGTERM or SIGINT where none is given. Raises `SettingsError`.

        With `sse`, for clients that know only the older HTTP with server-sent events, at `/sse`.
        """
        app = self._http_app(sse_app if sse else http_app, self._http_options(host, port), anywhere=False)
        async with self._watch_collisions():
            await serve_http(app, self._http_options(host, port), stop=stop, started=started)

    def asgi(self, host: str | None = None, port: int | None = None) -> HttpApp:
        """The ASGI app, answering at the path of the settings; its lifespan starts this app where it is not started.

        Raises `SettingsError` where a token is needed.
        """
        return self._http_app(http_app, self._http_options(host, port), anywhere=False)

    def asgi_mount(self) -> HttpApp:
        """The ASGI app to be mounted at any path of another; it answers while this app runs, or with its lifespan.

        It is the same one each time.
        """
        return self._http_app(http_app, self._options, anywhere=True)

    def sse_mount(self) -> HttpApp:
        """The same for clients that know only the older HTTP with server-sent events."""
        return self._http_app(sse_app, self._options, anywhere=True)

    def _http_app(self, make: Callable[..., HttpApp], options: HttpOptions, *, anywhere: bool) -> HttpApp:
        if self._http_problem and self._authenticator is None:
            raise SettingsError(self._http_problem)
        if anywhere and make in self._mounts:
            return self._mounts[make]
        mount = make(
            self.server,
            options,
            ready=self._readiness,
            authenticator=self._authenticator,
            anywhere=anywhere,
            owner=self.started,
        )
        if anywhere:
            self._mounts[make] = mount
            if self._group is not None:
                self._group.start_soon(mount.run)
        return mount

    def _http_options(self, host: str | None, port: int | None) -> HttpOptions:
        own = self._options
        return replace(own, host=own.host if host is None else host, port=own.port if port is None else port)

    async def _run_mounts(self, group: anyio.abc.TaskGroup) -> None:
        """Have what was mounted answer until the group ends."""
        for mount in tuple(self._mounts.values()):
            await group.start(mount.run)
