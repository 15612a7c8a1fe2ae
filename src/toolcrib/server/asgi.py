"""The ASGI app around an MCP endpoint: routing, guards, authentication and request providers.

Serve it by itself or mount it in another app. It does not know which transport its endpoint speaks.
"""

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.abc
from mcp_types import METHOD_NOT_FOUND
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from toolcrib.containment import contained
from toolcrib.errors import ExecutionFailed, InvalidRequest, NotAuthenticated, NotFound
from toolcrib.providers.adapters import adapt
from toolcrib.server.auth import (
    AuthenticationMiddleware,
    authenticator_routes,
    choose_authenticator,
    is_loopback,
    unauthorized,
)
from toolcrib.server.context import OVERRIDING_KEY, PROVIDERS_KEY, capture_request_scope, request_caller
from toolcrib.server.error_responses import ErrorMiddleware, error_response
from toolcrib.server.lifespan import AsgiApp
from toolcrib.server.options import HttpOptions
from toolcrib.types import Authenticator, Caller, ToolProvider

logger = logging.getLogger(__name__)

Readiness = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether to send traffic, and figures that identify no caller."""

LifespanContext = Callable[[], AbstractAsyncContextManager[None]]
"""Runs the app behind an endpoint, unless it is running already."""

ResolveProviders = Callable[[Request], object | Awaitable[object]]
"""Returns the providers of a request: one, a list in order of precedence, or None.

A provider is anything that `toolcrib.providers.adapters.adapt` accepts.
"""

ResolveCallerProviders = Callable[[Caller, Request], object | Awaitable[object]]
"""Returns the providers of a request by this caller."""

HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths that need no token; their responses identify no caller."""

_WELL_KNOWN: Final = "/.well-known/"
_NO_ENDPOINT: Final = NotFound("There is no MCP endpoint at this path.", hint="Check the path; by default it is /mcp.")
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_MAX_SHOWN: Final = 100
"""Characters of a rejected header that an error repeats."""
_RESOLVE_FAILED: Final = "The tools of this request could not be resolved; see the server's log for the cause."
_RESOLVERS_KEY: Final = "toolcrib.caller_resolvers"
"""ASGI scope key: pairs of a `ResolveCallerProviders` to run after authentication, and the scope key for its result."""


class Endpoint(Protocol):
    """Answers the requests of one protocol while it runs."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Hold what outlives a request, such as sessions. May be entered again after it ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""


class HttpApp(AsgiApp):
    """An endpoint behind its middleware, beside health endpoints.

    It answers requests while it runs: by its lifespan, which an ASGI server runs; by `async with app.running()`, where
    it is mounted in an app that has its own lifespan; or by `run` in a task group. Otherwise it answers 503.
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
        """`paths` are the endpoint's, below the mount; None gives it every path but those of health and authentication.

        `end_streams` ends responses that never end by themselves; `owner` runs around the lifespan. Raises
        `SettingsError` when other machines could reach the app and nothing authenticates them.
        """
        self.options = options
        self.path = paths[0] if paths else options.path
        """Where clients connect when the app is served by itself."""
        self.end_streams = end_streams
        self._endpoint = endpoint
        self._owner = owner or contextlib.nullcontext
        self._ready = ready
        self._is_running = False
        authenticator = choose_authenticator(options, authenticator)
        routes = [
            Route(HEALTH_PATHS[0], self._healthz),
            Route(HEALTH_PATHS[1], self._readyz),
            *authenticator_routes(authenticator),
        ]
        middleware = [  # outermost first
            Middleware(_RequestScopeMiddleware),
            Middleware(HostOriginMiddleware, options),
            Middleware(_router, routes, self._lifespan),
            Middleware(_PathMiddleware, paths),
            Middleware(AuthenticationMiddleware, authenticator),
            Middleware(CallerProviderMiddleware),
            Middleware(ErrorMiddleware, max_body_bytes=options.max_body_bytes),
        ]
        app: ASGIApp = endpoint
        for cls, args, kwargs in reversed(middleware):
            app = cls(app, *args, **kwargs)
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan."""
        await self._app(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests. May be nested; only the outermost context owns the sessions."""
        if self._is_running:
            yield
            return
        self._is_running = True
        try:
            async with self._endpoint.running():
                yield
        finally:
            self._is_running = False

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until cancelled."""
        async with self.running():
            task_status.started()
            await anyio.sleep_forever()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        async with self._owner(), self.running():
            yield

    async def _healthz(self, _: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    async def _readyz(self, _: Request) -> JSONResponse:
        is_ready, figures = self._ready()
        is_ready = is_ready and self._is_running
        return JSONResponse({"ready": is_ready, **figures}, status_code=200 if is_ready else 503)


def _router(app: ASGIApp, routes: Sequence[BaseRoute], lifespan: Callable[[Any], Any]) -> Router:
    """Serves the routes and the lifespan, and passes everything else on."""
    return Router(routes, default=app, redirect_slashes=False, lifespan=lifespan)


class _RequestScopeMiddleware:
    """ASGI middleware: takes the context variables of the request's task along in the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(capture_request_scope(scope) if scope["type"] == "http" else scope, receive, send)


class _PathMiddleware:
    """ASGI middleware: answers 404 outside the endpoint's paths, and closes websockets."""

    def __init__(self, app: ASGIApp, paths: tuple[str, ...] | None) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
        elif self._serves(path_below_mount(scope)):
            await self._app(scope, receive, send)
        else:
            await error_response(404, _NO_ENDPOINT, code=METHOD_NOT_FOUND)(scope, receive, send)

    def _serves(self, path: str) -> bool:
        if self._paths is None:
            # Clients look for an authorization server there, and take any response but 404 for one.
            return not path.startswith(_WELL_KNOWN)
        return path in self._paths or path.rstrip("/") in self._paths


class HostOriginMiddleware:
    """ASGI middleware: rejects requests that a foreign web page made a browser send (DNS rebinding, cross-origin)."""

    def __init__(self, app: ASGIApp, options: HttpOptions) -> None:
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
        problem = self._problem(path_below_mount(scope), Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        status, error = problem
        await error_response(status, error)(scope, receive, send)

    def _problem(self, path: str, headers: Headers) -> tuple[int, InvalidRequest] | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        # Health probes of a container use its address as the host; their responses hold nothing worth guarding.
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


def url_host(host: str) -> str:
    """The host in the form that URLs use.

    >>> url_host("::1"), url_host("localhost")
    ('[::1]', 'localhost')
    """
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def path_below_mount(scope: Scope) -> str:
    """The path of a request relative to where the app is mounted.

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
    """Whether the value is allowed literally, or with any port.

    >>> _matches("localhost:80", frozenset({"localhost:*"})), _matches("localhost.evil.com", frozenset({"localhost:*"}))
    (True, False)
    """
    if value in allowed:
        return True
    base, colon, port = value.rpartition(":")
    return bool(colon) and port.isdigit() and f"{base}:*" in allowed


class RequestProviders:
    """ASGI middleware: adds providers whose tools exist for this request only, beside those of other middleware.

    Put it around toolcrib's ASGI app, or into the middleware of the app that mounts it. When `resolve` raises, the
    response is 500, or 401 for `NotAuthenticated`.

    >>> async def app(scope, receive, send): ...
    >>> mine = RequestProviders(app, lambda request: None)
    """

    def __init__(self, app: ASGIApp, resolve: ResolveProviders, *, override: bool = False) -> None:
        """With `override`, these tools take precedence over shared ones of the same name.

        `resolve` is called once a request, as a function or a coroutine function; it sees the request's head, not its
        body. It runs before toolcrib's authentication and has to authenticate callers itself; see `CallerProviders`.
        """
        self._app = app
        self._resolve = resolve
        self._key = OVERRIDING_KEY if override else PROVIDERS_KEY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _ProviderInjector(self._app, partial(self._resolve, Request(scope)), self._key)(scope, receive, send)


class CallerProviders:
    """ASGI middleware: the same for providers that depend on the caller, with `resolve` called after authentication.

    Put it where `RequestProviders` would go, around toolcrib's ASGI app. That app authenticates the request and then
    calls `resolve`, so rejected requests and those for other paths never get that far.

    >>> async def app(scope, receive, send): ...
    >>> mine = CallerProviders(app, lambda caller, request: None)
    """

    def __init__(self, app: ASGIApp, resolve: ResolveCallerProviders, *, override: bool = False) -> None:
        """With `override`, these tools take precedence over shared ones of the same name.

        `resolve` is called with the caller and the request's head, as a function or a coroutine function. Without
        authentication, the caller is the one named `local`.
        """
        self._app = app
        self._resolver = (resolve, OVERRIDING_KEY if override else PROVIDERS_KEY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, _RESOLVERS_KEY: (*scope.get(_RESOLVERS_KEY, ()), self._resolver)}, receive, send)


class CallerProviderMiddleware:
    """ASGI middleware, inside authentication: runs the resolvers that `CallerProviders` left in the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        for resolve, key in reversed(scope.get(_RESOLVERS_KEY, ())):
            app = _ProviderInjector(app, partial(resolve, request_caller(scope), Request(scope)), key)
        await app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class _ProviderInjector:
    """Serves one request with the providers that `resolve` returns for it."""

    app: ASGIApp
    resolve: Callable[[], object | Awaitable[object]]
    key: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = await contained(self._resolved())
        except NotAuthenticated as error:
            await unauthorized(error)(scope, receive, send)
        except Exception:
            logger.exception("cannot resolve the providers of a request")
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
