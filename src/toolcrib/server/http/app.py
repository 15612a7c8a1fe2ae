"""The ASGI app around an MCP endpoint: routing, guards, authentication and request providers.

Serve it by itself or mount it in another app. It does not know which transport its endpoint speaks. A rejected request
gets a JSON-RPC error, because SDK clients show its message whatever the HTTP status, and ignore any other body.
"""

import contextlib
import inspect
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import anyio
import anyio.abc
from mcp_types import METHOD_NOT_FOUND
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from toolcrib.checks import checked
from toolcrib.containment import contained
from toolcrib.errors import (
    ExecutionFailed,
    InsufficientScope,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    NotStarted,
    RateLimited,
    ServerUnavailable,
    StateUnavailable,
)
from toolcrib.middleware.admission import CountRefusal
from toolcrib.providers.adapters import adapt
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.auth.authentication import (
    CALLER_KEY,
    OWN_CREDENTIAL_KEY,
    STEP_UP_KEY,
    HostRules,
    Identity,
    RequestAuthenticator,
    StaticTokens,
    StepUp,
    authenticator_routes,
    check_not_local,
    choose_authenticator,
    is_from_elsewhere,
    path_below_mount,
    sdk_caller,
    sdk_user,
)
from toolcrib.server.context import body_too_large, error_response, forbidden, unauthorized
from toolcrib.server.direct import DirectMethods
from toolcrib.server.exchange import OVERRIDING_KEY, PROVIDERS_KEY, capture_request_scope, request_caller
from toolcrib.server.front import Front, ReadSessionRequest, cancellable
from toolcrib.server.handlers import REFUSALS_KEY
from toolcrib.server.http.budgets import LISTEN_METHOD, BudgetMiddleware, ReportRefusal
from toolcrib.server.options import HEALTH_PATHS, HttpOptions
from toolcrib.server.plain_connection import Awaited, PlainRequest
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

_WELL_KNOWN: Final = "/.well-known/"
_NO_ENDPOINT: Final = NotFound("There is no MCP endpoint at this path.", hint="Check the path; by default it is /mcp.")
_ABSOLUTE_TARGET: Final = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE)
_MAX_SHOWN: Final = 100
"""Characters of a rejected header that an error repeats."""
_RESOLVE_FAILED: Final = "The tools of this request could not be resolved; see the server's log for the cause."
_RESOLVERS_KEY: Final = "toolcrib.caller_resolvers"
"""ASGI scope key: pairs of a `ResolveCallerProviders` to run after authentication, and the scope key for its result."""

_BAD_REQUEST: Final = 400
_BODY_HEADERS: Final = frozenset({"content-length", "content-type"})
_JSON: Final = "application/json"
_VALIDATION_DUMP: Final = b'"message":"Validation error: '
"""Marks a response in which the SDK lists every validation rule that a message breaks."""
_WRONG_CONTENT_TYPE: Final = b"Invalid Content-Type header"
_NOT_A_MESSAGE: Final = InvalidRequest(
    "The body is not a JSON-RPC message.",
    hint='Send one object, such as {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}.',
)
_TWO_LENGTHS: Final = InvalidRequest(
    "The request has both Content-Length and Transfer-Encoding; nothing was run.", hint="Send one of the two."
)
_NOT_RUNNING: Final = NotStarted(
    "The server is not running.",
    hint="Start the app it belongs to (`async with app`), or run the lifespan of the mounted app.",
)
_ERRORS: Final = {
    _BAD_REQUEST: InvalidRequest("The request does not declare a JSON body.", hint=f"Send Content-Type: {_JSON}."),
    405: InvalidRequest("This address does not support that HTTP method.", hint="Send MCP requests by POST."),
    406: InvalidRequest(
        "The Accept header allows no response format of this server.", hint=f"Send Accept: {_JSON}, text/event-stream."
    ),
}


class Endpoint(Protocol):
    """Answers the requests of one protocol while it runs."""

    def end_session_streams(self) -> None:
        """End the event streams of sessions, which clients open again."""

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
        listening: Callable[[str, int, Path | None], None] = lambda *_: None,
        owner: LifespanContext | None = None,
        routes: Sequence[BaseRoute] = (),
        direct: DirectMethods | None = None,
        sessions: ReadSessionRequest | None = None,
        refused: ReportRefusal | None = None,
        count_refusal: CountRefusal | None = None,
    ) -> None:
        """`paths` are the endpoint's, below the mount; None gives it every path but those of health and authentication.

        `end_streams` ends responses that never end by themselves; `listening` is called with the address at which the
        app is served by itself; `owner` runs around the lifespan. `routes` are served without authentication;
        `direct` answers what needs no layer, and `sessions` reads the same of sessions. `refused` learns of requests
        that their caller has no room for, and `count_refusal` of connections, by the setting. Raises `SettingsError`
        when other machines could reach the app and nothing authenticates them.
        """
        self.options = options
        self.path = paths[0] if paths else options.path
        """Where clients connect when the app is served by itself."""
        self.end_streams = end_streams
        self.end_session_streams = endpoint.end_session_streams
        self.listening = listening
        self.count_refusal = count_refusal
        self._endpoint = endpoint
        self._owner = owner or contextlib.nullcontext
        self._ready = ready
        self._is_running = False
        self._starting: anyio.Event | None = None
        authenticator = choose_authenticator(options, authenticator)
        open_routes = [
            *routes,
            Route(HEALTH_PATHS[0], self._healthz),
            Route(HEALTH_PATHS[1], self._readyz),
            *authenticator_routes(authenticator),
        ]
        middleware = [  # outermost first
            Middleware(_RequestScopeMiddleware),
            Middleware(HostOriginMiddleware, options, is_open=authenticator is None),
            Middleware(_RouteMiddleware, open_routes, self._lifespan, paths),
            Middleware(AuthenticationMiddleware, authenticator),
            Middleware(BudgetMiddleware, options, refused),
            Middleware(CallerProviderMiddleware),
            Middleware(ErrorMiddleware, options),
        ]
        app: ASGIApp = endpoint
        for cls, args, kwargs in reversed(middleware):
            app = cls(app, *args, **kwargs)
        self._app = app
        self._front: Front | None = None
        if direct is not None:
            taken = _without_routes(paths or (), open_routes)
            self._front = Front(direct, options, authenticator, taken, sessions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan."""
        if self._starting is not None:
            await self._starting.wait()
        await cancellable(self._app, scope, receive, send)

    def read_plain(self, data: bytes) -> PlainRequest | Awaited | None:
        """Read a whole request that needs none of the layers; see `AsgiApp`."""
        return self._front.read(data) if self._front is not None and self._is_running else None

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
        try:
            async with self.running():
                self._started()
                task_status.started()
                await anyio.sleep_forever()
        finally:
            self._started()

    def run_soon(self, group: anyio.abc.TaskGroup) -> None:
        """Answer requests until the task group is cancelled; those that come before it has started wait for that."""
        self._starting = anyio.Event()
        group.start_soon(self.run)

    def _started(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.set()

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


class _RequestScopeMiddleware:
    """ASGI middleware: takes the context variables of the request's task along in the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(capture_request_scope(scope) if scope["type"] == "http" else scope, receive, send)


class _RouteMiddleware:
    """ASGI middleware: serves the routes and the lifespan, and passes on requests at the endpoint's paths.

    Answers 404 elsewhere, and closes websockets.
    """

    def __init__(
        self, app: ASGIApp, routes: Sequence[BaseRoute], lifespan: Callable[[Any], Any], paths: tuple[str, ...] | None
    ) -> None:
        self._app = app
        self._paths = paths
        self.routes = tuple(routes)
        self._router = Router(routes, default=self._endpoint, redirect_slashes=False, lifespan=lifespan)
        self._direct = _without_routes(paths or (), routes)
        """The endpoint's paths that no route has."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_direct = scope["type"] == "http" and path_below_mount(scope) in self._direct
        await (self._app if is_direct else self._router)(scope, receive, send)

    async def _endpoint(self, scope: Scope, receive: Receive, send: Send) -> None:
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


def _without_routes(paths: Sequence[str], routes: Sequence[BaseRoute]) -> frozenset[str]:
    """Those of the paths to which no route leads."""
    scopes = [{"type": "http", "method": "POST", "path": path, "headers": []} for path in paths]
    return frozenset(
        str(scope["path"]) for scope in scopes if all(route.matches(scope)[0] is Match.NONE for route in routes)
    )


class HostOriginMiddleware:
    """ASGI middleware: rejects requests that a foreign web page made a browser send (DNS rebinding, cross-origin).

    An app that `is_open`, because nothing authenticates its callers, is for this machine alone. The server around it
    may listen at any address, and a client writes what it likes into the Host header; so requests of other machines
    are rejected too, unless the settings name the host or the app around this one has authenticated the caller.
    """

    def __init__(self, app: ASGIApp, options: HttpOptions, *, is_open: bool = False) -> None:
        self._app = app
        self._options = options
        self._is_open = is_open
        self._hosts = HostRules(options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/"):
            scope = _in_origin_form(scope)
        problem = self._problem(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        status, error = problem
        # Where the request ends may be in doubt, so nothing may follow it.
        closing = {"Connection": "close"} if error is _TWO_LENGTHS else None
        await error_response(status, error, headers=closing)(scope, receive, send)

    def _problem(self, scope: Scope) -> tuple[int, InvalidRequest] | None:
        if (problem := self._size_problem(scope)) is not None:
            return problem
        headers = scope["headers"]
        names = [name for name, _ in headers]
        if b"transfer-encoding" in names and b"content-length" in names:
            return _BAD_REQUEST, _TWO_LENGTHS
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) > 1:
            return _BAD_REQUEST, InvalidRequest("The request has two Host headers; nothing was run.")
        host = b"".join(hosts).decode("latin-1").lower()
        origin = next((value for name, value in headers if name == b"origin"), b"").decode("latin-1").lower()
        # Health probes of a container use its address as the host; their responses hold nothing worth guarding.
        is_health = path_below_mount(scope) in HEALTH_PATHS
        if not is_health and not self._hosts.allows(host):
            return 421, _not_allowed("Host", host, "http.allowed_hosts")
        if origin and not self._hosts.allows_origin(origin, host):
            return 403, _not_allowed("Origin", origin, "http.allowed_origins")
        return None if is_health else self._stranger_problem(scope, host)

    def _stranger_problem(self, scope: Scope, host: str) -> tuple[int, InvalidRequest] | None:
        if not self._is_open or self._hosts.is_named(host) or not is_from_elsewhere(scope):
            return None
        return (403, _OPEN) if sdk_caller(scope) is None else None

    def _size_problem(self, scope: Scope) -> tuple[int, InvalidRequest] | None:
        options, headers = self._options, scope["headers"]
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string", b"")) > options.max_url_bytes:
            return 414, _too_much(f"URL is longer than {options.max_url_bytes:,} bytes", "http.max_url_bytes")
        if len(headers) > options.max_headers:
            return 431, _too_much(f"request has more than {options.max_headers:,} headers", "http.max_headers")
        if sum(len(name) + len(value) for name, value in headers) > options.max_head_bytes:
            return 431, _too_much(f"headers are larger than {options.max_head_bytes:,} bytes", "http.max_head_bytes")
        return None


_OPEN: Final = InvalidRequest(
    "Nothing authenticates callers here, so requests of other machines are refused; nothing was run.",
    hint="Set http.tokens or auth.issuers in the server's settings. If the app around it authenticates callers, name "
    "its host in http.allowed_hosts.",
)


def _too_much(what: str, setting: str) -> InvalidRequest:
    return InvalidRequest(f"The {what}; nothing was run.", hint=f"Send less, or raise {setting} in the settings.")


def _in_origin_form(scope: Scope) -> Scope:
    """The scope of a request whose target is a whole URL; its authority replaces the Host header (RFC 9112, 3.2.2)."""
    whole = _ABSOLUTE_TARGET.fullmatch(scope.get("raw_path") or b"")
    if whole is None:
        return scope
    authority, raw_path = whole[1], whole[2] or b"/"
    headers = [(b"host", authority), *(pair for pair in scope["headers"] if pair[0] != b"host")]
    return {**scope, "path": unquote(raw_path.decode("latin-1")), "raw_path": raw_path, "headers": headers}


def _not_allowed(header: str, value: str, setting: str) -> InvalidRequest:
    shown = value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}..."
    return InvalidRequest(
        f'{header} "{shown}" is not allowed here; nothing was run.',
        hint=f"Use the server's own address, or add it to {setting} in the server's settings.",
    )


@checked
class RequestProviders:
    """ASGI middleware: adds providers whose tools exist for this request only, beside those of other middleware.

    Put it around toolcrib's ASGI app, or into the middleware of the app that mounts it. When `resolve` raises, the
    response is 500, 401 for `NotAuthenticated`, or 429 for `RateLimited`.

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


@checked
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
        except RateLimited as error:
            await error_response(429, error)(scope, receive, send)
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


# -- authentication and errors ---------------------------------------------------------------------------------------


class AuthenticationMiddleware:
    """ASGI middleware: puts the caller into the scope, or answers 401, 403 or 503."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator | None) -> None:
        """Without an authenticator, every request passes."""
        self._app = app
        self._authenticator = authenticator
        self._identify = authenticator.identify if isinstance(authenticator, RequestAuthenticator) else self._plain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        authenticator = self._authenticator
        if authenticator is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            identity = await self._identify(scope)
            check_not_local(identity.caller)
        except NotAuthenticated as error:
            await unauthorized(error, authenticator, scope)(scope, receive, send)
        except InsufficientScope as error:
            await forbidden(error, authenticator, scope)(scope, receive, send)
        except (ServerUnavailable, StateUnavailable) as error:
            await error_response(503, error, headers={"Retry-After": "10"})(scope, receive, send)
        else:
            await self._serve(identity, scope, receive, send)

    async def _plain(self, scope: Scope) -> Identity:
        assert self._authenticator is not None  # noqa: S101 - without one, nothing asks
        caller = await self._authenticator.authenticate(Headers(scope=scope))
        return Identity(caller=caller, is_own=isinstance(self._authenticator, StaticTokens))

    async def _serve(self, identity: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        caller = identity.caller
        known = {**scope, CALLER_KEY: caller, "user": sdk_user(caller), OWN_CREDENTIAL_KEY: identity.is_own}
        if identity.can_step_up and scope["method"] == "POST":
            known[STEP_UP_KEY] = step_up = StepUp(caller)
            send = self._stepping_up(step_up, scope, receive, send)
        if identity.expires is None or not _is_stream(scope):
            await self._app(known, receive, send)
            return
        # No stream outlives its token.
        response = _StreamResponse(send)
        with anyio.move_on_after(max(0.0, identity.expires - time.time())):
            await self._app(known, receive, response.send)
        await response.finish()

    def _stepping_up(self, step_up: StepUp, scope: Scope, receive: Receive, send: Send) -> Send:
        """ASGI `send` that answers 403 in place of a call that lacked scopes, if the response has not begun."""
        begun = replaced = False

        async def send_or_ask(message: Message) -> None:
            nonlocal begun, replaced
            if not begun and step_up.error is not None and self._authenticator is not None:
                replaced = True
                await forbidden(step_up.error, self._authenticator, scope)(scope, receive, send)
            begun = True
            if not replaced:
                await send(message)

        return send_or_ask


def _is_stream(scope: Scope) -> bool:
    """Whether the response is a stream that does not end by itself."""
    return scope["method"] == "GET" or Headers(scope=scope).get("mcp-method") == LISTEN_METHOD


class _StreamResponse:
    """A response that ends properly when what sends it is cancelled."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = False

    async def send(self, message: Message) -> None:
        """ASGI `send`."""
        self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))
        await self._send(message)

    async def finish(self) -> None:
        """End a response that was begun and not ended."""
        if self._is_open:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class ErrorMiddleware:
    """ASGI middleware: replaces terse rejections by the SDK's transports with errors that say what would work.

    Also answers 503 while the endpoint is not running.
    """

    def __init__(self, app: ASGIApp, options: HttpOptions) -> None:
        self._app = app
        self._errors = {**_ERRORS, 413: body_too_large(options)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        refusals: list[tuple[int, dict[str, str]]] = []

        async def send_explained(message: Message) -> None:
            nonlocal start
            if refusals and message["type"] == "http.response.start":
                status, more = refusals[0]
                lines = [(name.lower().encode(), value.encode()) for name, value in more.items()]
                await send({**message, "status": status, "headers": [*message["headers"], *lines]})
                return
            if message["type"] == "http.response.start" and message["status"] in self._errors:
                start = message  # the body decides whether to replace this response
                return
            if start is not None:
                head, start = start, None
                error = self._replacement(head, message.get("body", b""))
                if error is not None:
                    await error_response(head["status"], error, headers=_other_headers(head))(scope, receive, send)
                    return
                await send(head)
            await send(message)

        try:
            await self._app({**scope, REFUSALS_KEY: refusals}, receive, send_explained)
        except NotStarted:
            await error_response(503, _NOT_RUNNING, headers={"Retry-After": "1"})(scope, receive, send)

    def _replacement(self, head: Message, body: bytes) -> InvalidRequest | None:
        """The error to send instead of a response; None where the response is clear enough."""
        if Headers(raw=list(head["headers"])).get("content-type", "").startswith(_JSON):
            return _NOT_A_MESSAGE if _VALIDATION_DUMP in body else None
        if head["status"] == _BAD_REQUEST and body != _WRONG_CONTENT_TYPE:
            return None
        return self._errors[head["status"]]


def _other_headers(head: Message) -> dict[str, str]:
    """The headers that do not describe the replaced body."""
    given = Headers(raw=list(head["headers"]))
    return {name: value for name, value in given.items() if name not in _BODY_HEADERS}
