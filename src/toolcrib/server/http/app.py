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
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import anyio
import anyio.abc
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
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
    ToolcribError,
)
from toolcrib.protocol.failures import METHOD_NOT_FOUND
from toolcrib.providers.adapters import adapt
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.auth.authentication import (
    HostRules,
    Identity,
    RequestAuthenticator,
    StaticTokens,
    authenticator_routes,
    check_not_local,
    choose_authenticator,
    insufficient_scope,
    is_from_elsewhere,
    path_below_mount,
    sdk_caller,
)
from toolcrib.server.engine import Engine
from toolcrib.server.http.budgets import RequestBudgets
from toolcrib.server.http.errors import error_response, forbidden, unauthorized
from toolcrib.server.http.requests import (
    OVERRIDING_KEY,
    PROVIDERS_KEY,
    Answer,
    AsgiRequest,
    HttpRequest,
    RefusedError,
    read_body,
)
from toolcrib.server.options import HEALTH_PATHS, HttpOptions
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
_NOT_IDENTIFIED: Final = ToolcribError(
    "The server could not find out who sent the request; nothing was run.", hint="Its log has the reason."
)
_TWO_LENGTHS: Final = InvalidRequest(
    "The request has both Content-Length and Transfer-Encoding; nothing was run.", hint="Send one of the two."
)
_NOT_RUNNING: Final = NotStarted(
    "The server is not running.",
    hint="Start the app it belongs to (`async with app`), or run the lifespan of the mounted app.",
)


Listening = Callable[[str, int, Path | None], None]
"""Gets host and port at which an app is served by itself, and the path of its own socket if it shares that address."""


class Endpoint(Protocol):
    """Answers the requests of one protocol while it runs."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Hold what outlives a request, such as sessions. May be entered again after it ended."""

    async def answer(self, request: HttpRequest, body: bytes) -> Answer | None:
        """Answer one request; None if that has been done already. Raises `NotStarted`.

        If a stream of events has begun, the answer is its last one.
        """


class HttpApp(AsgiApp):
    """An endpoint behind its middleware, beside health endpoints.

    It answers requests while it runs: by its lifespan, which an ASGI server runs; by `async with app.running()`, where
    it is mounted in an app that has its own lifespan; or by `run` in a task group. Otherwise it answers 503.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        engine: Engine,
        options: HttpOptions,
        *,
        ready: Readiness,
        authenticator: Authenticator | None = None,
        paths: tuple[str, ...] | None = None,
        listening: Listening = lambda *_: None,
        owner: LifespanContext | None = None,
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        """`paths` are the endpoint's, below the mount; None gives it every path but those of health and authentication.

        `listening` is called with the address at which the app is served by itself; `owner` runs around the lifespan.
        `routes` are served without authentication. Raises `SettingsError` when other machines could reach the app and
        nothing authenticates them.
        """
        self.options = options
        self.path = paths[0] if paths else options.path
        """Where clients connect when the app is served by itself."""
        self.end_streams = engine.end_streams
        self.listening = listening
        self.count_refusal = engine.count_refusal
        self._endpoint = endpoint
        self._report_refusal = engine.report_refusal
        self._owner = owner or contextlib.nullcontext
        self._ready = ready
        self._streams: set[anyio.CancelScope] = set()
        """Requests by GET under way."""
        self._is_running = False
        self._starting: anyio.Event | None = None
        authenticator = choose_authenticator(options, authenticator)
        self.routes = (
            *routes,
            Route(HEALTH_PATHS[0], self._healthz),
            Route(HEALTH_PATHS[1], self._readyz),
            *authenticator_routes(authenticator),
        )
        """What is served without authentication."""
        self._authenticator = authenticator
        self._request_authenticator = authenticator if isinstance(authenticator, RequestAuthenticator) else None
        self._budgets = RequestBudgets(options)
        self._unmetered_bytes = min(options.max_body_bytes, options.max_body_nodes)
        """Of a body that cannot hold too many values."""
        self._guard = HostOriginMiddleware(
            _RouteMiddleware(self._serve_asgi, self.routes, self._lifespan, paths),
            options,
            is_open=authenticator is None,
        )
        self.direct_paths = without_routes(paths or (), self.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan."""
        if self._starting is not None:
            await self._starting.wait()
        await self._guard(scope, receive, send)

    async def _serve_asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = AsgiRequest(scope, receive, send)
        if request.head.method != "GET":
            await self._answer(request)
            return
        while not request.has_begun:  # what has changed while its sender was identified is looked at again
            with anyio.CancelScope() as stream:
                self._streams.add(stream)
                try:
                    await self._answer(request)
                    return
                finally:
                    self._streams.discard(stream)
        await request.end()

    def end_session_streams(self) -> None:
        """End the event streams that clients have opened with a GET, and open again if they still may."""
        for stream in self._streams:
            stream.cancel()

    async def serve(self, request: HttpRequest) -> None:
        """Answer a POST to one of the `direct_paths`, which did not come over ASGI."""
        if self._starting is not None:
            await self._starting.wait()
        # What the guard refuses, it refuses for the head; only strangers differ by their addresses.
        if not request.head.is_allowed or (self._guard.is_open and is_from_elsewhere(request.client)):
            refused = self._guard.refusal(request.scope)
            if refused is not None:
                await request.respond(Answer.of(refused))
                return
            request.head.is_allowed = True
        await self._answer(request)

    async def _answer(self, request: HttpRequest) -> None:
        """Answer a request at one of the endpoint's paths."""
        try:
            try:
                if self._authenticator is not None:
                    await self._identify(self._authenticator, request)
                identity = request.identity
                if identity is None or identity.expires is None or not request.head.listens:
                    answer = await self._answer_caller(request)
                else:
                    answer = await self._answer_until(identity.expires, request)
            except RefusedError as refused:
                answer = refused.answer
            except RateLimited as error:
                self._report_refusal(request.caller, request.head.method, error)
                answer = Answer.of(error_response(503 if error.data.get("of") == "all" else 429, error))
            if answer is not None:
                await request.respond(answer)
        finally:
            self._budgets.give_back(request)

    async def _identify(self, authenticator: Authenticator, request: HttpRequest) -> None:
        """Find out who has sent a request. Raises `RefusedError`."""
        try:
            if self._request_authenticator is not None:
                identity = await self._request_authenticator.identify(request)
            else:
                caller = await authenticator.authenticate(Headers(raw=request.head.scope["headers"]))
                identity = Identity(caller=caller, is_own=isinstance(authenticator, StaticTokens))
            check_not_local(identity.caller)
        except NotAuthenticated as error:
            response = unauthorized(error, authenticator, request.scope)
            raise RefusedError(Answer.of(response)) from error
        except InsufficientScope as error:
            raise RefusedError(Answer.of(forbidden(error, authenticator, request.scope))) from error
        except (ServerUnavailable, StateUnavailable) as error:
            response = error_response(503, error, headers={"Retry-After": "10"})
            raise RefusedError(Answer.of(response)) from error
        except RateLimited:
            raise
        except Exception as error:
            logger.exception("the authenticator failed, so a request was refused")
            raise RefusedError(Answer.of(error_response(500, _NOT_IDENTIFIED))) from error
        request.identity, request.caller = identity, identity.caller
        if identity.can_step_up and request.head.method == "POST":
            request.lacking = set()

    async def _answer_until(self, expires: float, request: HttpRequest) -> Answer | None:
        """Answer a request by a stream, which does not outlive the token of its sender."""
        with anyio.move_on_after(max(0.0, expires - time.time())):
            return await self._answer_caller(request)
        if request.has_begun:
            await request.end()
        return None

    async def _answer_caller(self, request: HttpRequest) -> Answer | None:
        """Answer a request whose sender is known. Raises `RefusedError`, and `RateLimited` if there is no room."""
        self._budgets.take(request)
        if _RESOLVERS_KEY in request.head.scope:
            await _add_providers(request)
        body = request.body
        if body is None or len(body) > self._unmetered_bytes:
            body = await read_body(request, self.options, self._budgets.count)
        try:
            answer = await self._endpoint.answer(request, body)
        except NotStarted:
            return Answer.of(error_response(503, _NOT_RUNNING, headers={"Retry-After": "1"}))
        if request.lacking and self._authenticator is not None and not request.has_begun:
            # A new token needs the scopes of this one too.
            error = insufficient_scope(request.lacking | request.caller.scopes)
            return Answer.of(forbidden(error, self._authenticator, request.scope))
        return answer

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
        self._direct = without_routes(paths or (), routes)
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


def without_routes(paths: Sequence[str], routes: Sequence[BaseRoute]) -> frozenset[str]:
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
        self.is_open = is_open
        self._hosts = HostRules(options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/"):
            scope = _in_origin_form(scope)
        refused = self.refusal(scope) if scope["type"] == "http" else None
        await (refused or self._app)(scope, receive, send)

    def refusal(self, scope: Scope) -> Response | None:
        """The response to a request that is refused; None for any other."""
        problem = self._problem(scope)
        if problem is None:
            return None
        status, error = problem
        # Where the request ends may be in doubt, so nothing may follow it.
        closing = {"Connection": "close"} if error is _TWO_LENGTHS else None
        return error_response(status, error, headers=closing)

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
        is_guarded = self.is_open and not is_health and not self._hosts.is_named(host)
        is_stranger = is_guarded and is_from_elsewhere(scope.get("client")) and sdk_caller(scope) is None
        return (403, _OPEN) if is_stranger else None

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
        found = await _resolved(partial(self._resolve, Request(scope)))
        if isinstance(found, Response):
            await found(scope, receive, send)
        else:
            await self._app({**scope, self._key: (*scope.get(self._key, ()), *found)}, receive, send)


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


async def _add_providers(request: HttpRequest) -> None:
    """Run the resolvers that `CallerProviders` left in the scope. Raises `RefusedError`."""
    for resolve, key in request.scope[_RESOLVERS_KEY]:
        scope = request.scope
        found = await _resolved(partial(resolve, request.caller, Request(scope)))
        if isinstance(found, Response):
            raise RefusedError(Answer.of(found))
        request.scope = {**scope, key: (*scope.get(key, ()), *found)}


async def _resolved(resolve: Callable[[], object | Awaitable[object]]) -> tuple[ToolProvider, ...] | Response:
    """The providers that `resolve` returns for a request, or the response where it fails."""
    try:
        return await contained(_adapted(resolve))
    except NotAuthenticated as error:
        return unauthorized(error)
    except RateLimited as error:
        return error_response(429, error)
    except Exception:
        logger.exception("cannot resolve the providers of a request")
        return error_response(500, ExecutionFailed(_RESOLVE_FAILED))


async def _adapted(resolve: Callable[[], object | Awaitable[object]]) -> tuple[ToolProvider, ...]:
    found = resolve()
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        return ()
    return tuple(adapt(provider) for provider in (found if isinstance(found, (list, tuple)) else (found,)))
