"""An ASGI app to be served by itself, or mounted anywhere in another one."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

import anyio
import anyio.abc
from mcp_types import METHOD_NOT_FOUND
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from toolcrib.errors import NotFound, NotStarted
from toolcrib.protocols import Authenticator
from toolcrib.server.context import captured
from toolcrib.server.guards import HEALTH, Guard, authenticated, below_mount
from toolcrib.server.middleware import AskedLater
from toolcrib.server.options import HttpOptions
from toolcrib.server.refusals import Explained, refusal

Readiness = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether to send traffic, and figures that name nobody."""

Owner = Callable[[], AbstractAsyncContextManager[None]]
"""Runs what the app stands for, unless it runs already."""

_WELL_KNOWN: Final = "/.well-known/"
_ELSEWHERE: Final = NotFound("There is no MCP endpoint at this path.", hint="Check the path; by default it is /mcp.")


class Endpoint(Protocol):
    """What answers the requests of a protocol while it runs."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Hold what outlives a request; may be entered again after it was left."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""


class HttpApp:
    """An endpoint behind its guards, with health endpoints beside it.

    It answers while somebody runs it: by its lifespan, which a server runs; by `async with app.running()`, where it is
    mounted in an app that keeps its own lifespan; or by `run` in a task group. Otherwise it answers 503.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: HttpOptions,
        *,
        ready: Readiness,
        authenticator: Authenticator | None = None,
        paths: tuple[str, ...] | None = None,
        end_streams: Callable[[], None] = lambda: None,
        owner: Owner | None = None,
    ) -> None:
        """`paths` are those of the endpoint, below the mount; None leaves it every path but those of health.

        `end_streams` ends answers that never end by themselves; `owner` runs around the lifespan. Raises
        `SettingsError` when others could reach the app and nobody is asked who he is.
        """
        self.options = options
        self.path = paths[0] if paths else options.path
        """Where clients connect, when it is served by itself."""
        self.end_streams = end_streams
        self._endpoint = endpoint
        self._explained = Explained(endpoint, max_body_bytes=options.max_body_bytes)
        self._owner = owner or contextlib.nullcontext
        self._paths = paths
        self._ready = ready
        self._owned = False
        self._guarded = authenticated(AskedLater(self._serve), options, authenticator)
        routes = [Route(HEALTH[0], self._healthz), Route(HEALTH[1], self._readyz)]
        router = Router(routes, default=self._at_path, redirect_slashes=False, lifespan=self._lifespan)
        self._app: ASGIApp = Guard(router, options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan."""
        await self._app(captured(scope) if scope["type"] == "http" else scope, receive, send)

    # -- the life cycle --------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests. Where several run it, it is the first that counts: when that one ends, sessions end."""
        if self._owned:
            yield
            return
        self._owned = True
        try:
            async with self._endpoint.running():
                yield
        finally:
            self._owned = False

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until cancelled."""
        async with self.running():
            task_status.started()
            await anyio.sleep_forever()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        async with self._owner(), self.running():
            yield

    # -- requests --------------------------------------------------------------------------------------------------

    async def _at_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever is no health endpoint."""
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
        elif self._is_ours(below_mount(scope)):
            await self._guarded(scope, receive, send)
        else:
            await refusal(404, _ELSEWHERE, code=METHOD_NOT_FOUND)(scope, receive, send)

    def _is_ours(self, path: str) -> bool:
        # Clients ask here for an authorization server, and take anything but 404 for one.
        if self._paths is None:
            return not path.startswith(_WELL_KNOWN)
        return path in self._paths or path.rstrip("/") in self._paths

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._explained(scope, receive, send)
        except NotStarted:
            await _not_running()(scope, receive, send)

    async def _healthz(self, _: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    async def _readyz(self, _: Request) -> JSONResponse:
        is_ready, figures = self._ready()
        is_ready = is_ready and self._owned
        return JSONResponse({"ready": is_ready, **figures}, status_code=200 if is_ready else 503)


_HINT: Final = "Start the app it belongs to (`async with app`), or run the lifespan of what is mounted."


def _not_running() -> Response:
    error = NotStarted("The server is not running.", hint=_HINT)
    return refusal(503, error, headers={"Retry-After": "1"})
