"""The ASGI app around an MCP endpoint: routing, guards, authentication and request providers.

Serve it by itself or mount it in another app. It does not know which transport its endpoint speaks.
"""

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.abc
from mcp_types import METHOD_NOT_FOUND
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from toolcrib.containment import contained
from toolcrib.errors import ExecutionFailed, InvalidRequest, NotAuthenticated, NotFound, NotStarted
from toolcrib.gateway.sessions import LOCAL
from toolcrib.providers.adapters import adapt
from toolcrib.server.auth import CALLER_KEY, is_loopback, require_authentication, sdk_caller, unauthorized
from toolcrib.server.context import OVERRIDING_KEY, PROVIDERS_KEY, capture_request_scope
from toolcrib.server.error_responses import ErrorMiddleware, error_response
from toolcrib.server.options import HttpOptions
from toolcrib.types import Authenticator, Caller, ToolProvider

Readiness = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether to send traffic, and figures that name nobody."""


LifespanContext = Callable[[], AbstractAsyncContextManager[None]]
"""Runs what the app stands for, unless it runs already."""


_WELL_KNOWN: Final = "/.well-known/"


_NO_ENDPOINT: Final = NotFound("There is no MCP endpoint at this path.", hint="Check the path; by default it is /mcp.")


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
        owner: LifespanContext | None = None,
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
        self._explained = ErrorMiddleware(endpoint, max_body_bytes=options.max_body_bytes)
        self._owner = owner or contextlib.nullcontext
        self._paths = paths
        self._ready = ready
        self._owned = False
        self._guarded = require_authentication(CallerProviderMiddleware(self._serve), options, authenticator)
        routes = [Route(HEALTH_PATHS[0], self._healthz), Route(HEALTH_PATHS[1], self._readyz)]
        router = Router(routes, default=self._dispatch, redirect_slashes=False, lifespan=self._lifespan)
        self._app: ASGIApp = HostOriginMiddleware(router, options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan."""
        await self._app(capture_request_scope(scope) if scope["type"] == "http" else scope, receive, send)

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

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever is no health endpoint."""
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
        elif self._handles(path_below_mount(scope)):
            await self._guarded(scope, receive, send)
        else:
            await error_response(404, _NO_ENDPOINT, code=METHOD_NOT_FOUND)(scope, receive, send)

    def _handles(self, path: str) -> bool:
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


_NOT_RUNNING_HINT: Final = "Start the app it belongs to (`async with app`), or run the lifespan of what is mounted."


def _not_running() -> Response:
    error = NotStarted("The server is not running.", hint=_NOT_RUNNING_HINT)
    return error_response(503, error, headers={"Retry-After": "1"})


HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths that need no token and name nobody."""


_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


_MAX_SHOWN: Final = 100


_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised, not bound


def url_host(host: str) -> str:
    """The host as it stands in a URL.

    >>> url_host("::1"), url_host("localhost")
    ('[::1]', 'localhost')
    """
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class HostOriginMiddleware:
    """ASGI: refuses requests that a foreign web page made a browser send (DNS rebinding, cross-origin)."""

    def __init__(self, app: ASGIApp, options: HttpOptions) -> None:
        """Wrap an ASGI app."""
        self._app = app
        everywhere = options.host in _WILDCARDS
        self._any_host = everywhere and not options.allowed_hosts
        own = {*_LOOPBACK_NAMES} if everywhere or is_loopback(options.host) else set()
        own |= set() if everywhere else {url_host(options.host)}
        self._hosts = _lower_all((*(f"{name}:*" for name in own), *own, *options.allowed_hosts))
        schemes = ("http", "https")
        self._origins = _lower_all(
            (
                *(f"{scheme}://{name}{port}" for scheme in schemes for name in own for port in ("", ":*")),
                *options.allowed_origins,
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        problem = self._problem(path_below_mount(scope), Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        status, error = problem
        await error_response(status, error)(scope, receive, send)

    def _problem(self, path: str, headers: Headers) -> tuple[int, InvalidRequest] | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # A probe of a container's health comes by its address; it learns nothing that is worth guarding.
        if not self._any_host and path not in HEALTH_PATHS and not _matches(host, self._hosts):
            return 421, _not_allowed("Host", host, "http.allowed_hosts")
        if origin and not _matches(origin, self._origins):
            return 403, _not_allowed("Origin", origin, "http.allowed_origins")
        return None


def _not_allowed(header: str, value: str, setting: str) -> InvalidRequest:
    shown = value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}..."
    return InvalidRequest(
        f'{header} "{shown}" is not allowed here; nothing was run.',
        hint=f"Use the server's own address, or add it to {setting} in the server's settings.",
    )


def path_below_mount(scope: Scope) -> str:
    """The path of a request below the place where the app is mounted.

    >>> path_below_mount({"path": "/tools/healthz", "root_path": "/tools"}), path_below_mount({"path": "/toolshed"})
    ('/healthz', '/toolshed')
    """
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    if not root:
        return path
    if path == root:
        return "/"
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _lower_all(names: Iterable[str]) -> frozenset[str]:
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


logger = logging.getLogger(__name__)


ResolveProviders = Callable[[Request], object | Awaitable[object]]
"""The providers of a request: one, a list of several in the order in which they take precedence, or None.

Whatever `toolcrib.providers.adapters.adapt` takes is a provider.
"""


ResolveCallerProviders = Callable[[Caller, Request], object | Awaitable[object]]
"""The same, for the caller who sends it."""


_RESOLVE_FAILED: Final = "The tools of this request could not be had; the server's log has the cause."


_RESOLVERS_KEY: Final = "toolcrib.later"
"""What is to be asked once it is known who calls: pairs of a `ResolveFor` and a key of the scope."""


class RequestProviders:
    """Adds providers to a request: their tools are there for it alone, beside those of other middleware.

    Put it around toolcrib's ASGI app, or into the middleware of the app in which that is mounted. Where `resolve`
    raises, the request is answered with 500, or with 401 for `NotAuthenticated`.

    >>> async def app(scope, receive, send): ...
    >>> mine = RequestProviders(app, lambda request: None)
    """

    def __init__(self, app: ASGIApp, resolve: ResolveProviders, *, override: bool = False) -> None:
        """Wrap an ASGI app. With `override`, these tools stand before shared ones of the same name.

        `resolve` is called once a request, plainly or as a coroutine; it sees the head of the request, not its body.
        It stands outside of toolcrib's authentication, and must itself know who calls; see `CallerProviders`.
        """
        self._app = app
        self._resolve = resolve
        self._key = OVERRIDING_KEY if override else PROVIDERS_KEY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _ProviderInjector(self._app, partial(self._resolve, Request(scope)), self._key)(scope, receive, send)


class CallerProviders:
    """The same for providers that depend on who calls: `resolve` is asked after the authentication.

    Put it where `RequestProviders` would stand, with toolcrib's own ASGI app inside: that one authenticates the request
    and then asks, so that a request which is refused, or is none of its own, never gets so far.

    >>> async def app(scope, receive, send): ...
    >>> mine = CallerProviders(app, lambda caller, request: None)
    """

    def __init__(self, app: ASGIApp, resolve: ResolveCallerProviders, *, override: bool = False) -> None:
        """Wrap an ASGI app. With `override`, these tools stand before shared ones of the same name.

        `resolve` is called with the caller and the head of the request, plainly or as a coroutine. Where nobody is
        asked who he is, the caller is the one called `local`.
        """
        self._app = app
        self._later = (resolve, OVERRIDING_KEY if override else PROVIDERS_KEY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        await self._app({**scope, _RESOLVERS_KEY: (*scope.get(_RESOLVERS_KEY, ()), self._later)}, receive, send)


class CallerProviderMiddleware:
    """ASGI, inside of the authentication: has those asked who wait for it."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an ASGI app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        app = self._app
        for resolve, key in reversed(scope.get(_RESOLVERS_KEY, ())):
            app = _ProviderInjector(app, partial(resolve, _scope_caller(scope), Request(scope)), key)
        await app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _ProviderInjector:
    """ASGI: one request, with the providers that somebody gives for it."""

    app: ASGIApp
    resolve: Callable[[], object | Awaitable[object]]
    key: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = await contained(self._resolved())
        except NotAuthenticated as error:
            await unauthorized(error)(scope, receive, send)
        except Exception:
            logger.exception("the providers of a request could not be resolved")
            await error_response(500, ExecutionFailed(_RESOLVE_FAILED))(scope, receive, send)
        else:
            await self.app({**scope, self.key: (*scope.get(self.key, ()), *found)}, receive, send)

    async def _resolved(self) -> tuple[ToolProvider, ...]:
        found = self.resolve()
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            return ()
        return tuple(adapt(provider) for provider in (found if isinstance(found, (list, tuple)) else (found,)))


def _scope_caller(scope: Scope) -> Caller:
    caller: Caller | None = scope.get(CALLER_KEY)
    return caller or sdk_caller(scope) or LOCAL
