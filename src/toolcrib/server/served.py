"""An MCP server that is offered while what it belongs to runs: over stdio, over HTTP, and within other apps."""

import sys
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc

from toolcrib.errors import SettingsError
from toolcrib.protocols import Authenticator
from toolcrib.server.http import http_app, serve_http
from toolcrib.server.lifetime import Lifetime
from toolcrib.server.mcp import ToolServer
from toolcrib.server.mount import HttpApp
from toolcrib.server.options import HttpOptions
from toolcrib.server.sse import sse_app
from toolcrib.server.stdio import serve_stdio


class Served(Lifetime):
    """Serves what a subclass starts and stops."""

    def __init__(
        self, server: ToolServer, options: HttpOptions, *, authenticator: Authenticator | None, problem: str
    ) -> None:
        """`problem` is why HTTP must not be served without an authenticator; empty where it may be."""
        super().__init__()
        self.server = server
        self._options = options
        self._authenticator = authenticator
        self._problem = problem
        self._mounts: dict[Callable[..., HttpApp], HttpApp] = {}

    @abstractmethod
    def _checked(self) -> AbstractAsyncContextManager[None]:
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
        async with self._checked():
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
        app = self._mounted(sse_app if sse else http_app, self._http(host, port), anywhere=False)
        async with self._checked():
            await serve_http(app, self._http(host, port), stop=stop, started=started)

    def asgi(self, host: str | None = None, port: int | None = None) -> HttpApp:
        """The ASGI app, answering at the path of the settings; its lifespan starts this app where it is not started.

        Raises `SettingsError` where a token is needed.
        """
        return self._mounted(http_app, self._http(host, port), anywhere=False)

    def asgi_mount(self) -> HttpApp:
        """The ASGI app to be mounted at any path of another; it answers while this app runs, or with its lifespan.

        It is the same one each time.
        """
        return self._mounted(http_app, self._options, anywhere=True)

    def sse_mount(self) -> HttpApp:
        """The same for clients that know only the older HTTP with server-sent events."""
        return self._mounted(sse_app, self._options, anywhere=True)

    def _mounted(self, make: Callable[..., HttpApp], options: HttpOptions, *, anywhere: bool) -> HttpApp:
        if self._problem and self._authenticator is None:
            raise SettingsError(self._problem)
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

    def _http(self, host: str | None, port: int | None) -> HttpOptions:
        own = self._options
        return replace(own, host=own.host if host is None else host, port=own.port if port is None else port)

    async def _run_mounts(self, group: anyio.abc.TaskGroup) -> None:
        """Have what was mounted answer until the group ends."""
        for mount in tuple(self._mounts.values()):
            await group.start(mount.run)
