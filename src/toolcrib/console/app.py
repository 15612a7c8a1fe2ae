"""The console: an ASGI app with pages that show people what a gateway does.

Every response forbids scripts and styles from elsewhere, frames, and caching. Every page needs a session, and every
POST proves that it comes from one of our own pages. No route takes a command, a path or an address of a server.
"""

import contextlib
import hashlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal
from urllib.parse import quote

import anyio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, Router

from toolcrib._version import VERSION
from toolcrib.console import approvals, calls, figures, overview, playground, tools
from toolcrib.console import usage as usage_pages
from toolcrib.console.approvals import ConsoleDesk
from toolcrib.console.parts import ConsolePage, ConsoleParts, Handler, Visit, read_form
from toolcrib.console.processes import Processes
from toolcrib.console.recorder import CallRecorder
from toolcrib.console.sign_in import ATTEMPT_S, ConsoleSession, ConsoleSessions, OidcSignIn, proves
from toolcrib.errors import InvalidRequest, NotFound, RateLimited, SettingsError, ToolcribError, missing_extra
from toolcrib.gateway.gateway import Gateway
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.auth.authentication import choose_authenticator, is_loopback
from toolcrib.server.auth.oauth import ExternalAddress
from toolcrib.server.http.app import HostOriginMiddleware
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.process import SharedAddress, serve_http
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateStore
from toolcrib.state.coordination import Peers
from toolcrib.surfaces.facade import ToolFacade
from toolcrib.types import Authenticator, ServerStatus
from toolcrib.usage.recorder import UsageRecorder
from toolcrib.usage.zero_hits import ZeroHitRecorder

logger = logging.getLogger(__name__)

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "x-frame-options": "DENY",
}
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SIGN_IN: Final = "/sign-in"
_URL_CHARS: Final = ":/%#?=@[]!$&'()*+,;"
_CALLBACK: Final = "/sign-in/callback"
_ATTEMPT_COOKIE: Final = "toolcrib_sign_in"
_MENU: Final = (
    ("/", "Overview"),
    ("/search", "Search"),
    ("/tools", "Tools"),
    ("/calls", "Calls"),
    ("/approvals", "Approvals"),
    ("/zero-hits", "Zero hits"),
    ("/usage", "Usage"),
)
_LOOK_S: Final = 1.0
"""How often an open page learns of changes, in seconds."""
_PING_LOOKS: Final = 15
_MAX_STREAMS: Final = 100
_PORTS: Final = 20
"""Ports that are tried, from the one in the settings on, where another console has the first."""
_STOP_S: Final = 2.0
_UNKNOWN: Final = NotFound("There is no such page.", hint="The menu has all pages.")
_FORGED: Final = InvalidRequest("The form is not from this session; nothing was done.", hint="Load the page again.")


def make_hooks(settings: Settings, state: StateStore) -> tuple[CallRecorder, ConsoleDesk]:
    """What a gateway with a console needs: an observer of its calls, and a desk at which calls wait for a person."""
    recorder = CallRecorder(settings.console.calls, content=settings.console.content)
    return recorder, ConsoleDesk(state, settings.gateway.calls.approval_wait_s)


def make_console(
    *,
    gateway: Gateway,
    facade: ToolFacade,
    recorder: CallRecorder,
    desk: ConsoleDesk,
    usage: UsageRecorder | None,
    zero_hits: ZeroHitRecorder | None,
    statuses: Callable[[], Sequence[ServerStatus]],
    peers: Peers,
    settings: Callable[[], Settings],
    settings_problem: Callable[[], str],
    authenticator: Authenticator | None,
    problem: str,
    listener: socket.socket | None = None,
) -> "Console":
    """The console of an app, at the address of its settings, for all `peers`.

    `problem` is why no caller can be authenticated, and `settings_problem` why changed settings are not in use.
    A `listener` is a socket at which several processes serve it.

    Raises `SettingsError` if other machines could reach it and nothing authenticates them, and `MissingExtra`.
    """
    own = settings()
    if problem:
        raise SettingsError(f"The console cannot be served: {problem}.", hint="Set what is missing.")
    host, _, port = own.console.address.rpartition(":")
    options = replace(own.http, host=host.strip("[]"), port=int(port), path="/", drain_s=0)

    async def save() -> None:
        for counts in (usage, zero_hits):
            if counts is not None:
                await counts.save()

    parts = ConsoleParts(
        options=own.console,
        gateway=gateway,
        facade=facade,
        recorder=recorder,
        desk=desk,
        usage=usage,
        zero_hits=zero_hits,
        statuses=statuses,
        processes=Processes(peers, recorder, statuses, settings, problem=settings_problem, save=save),
        settings=settings,
    )
    oidc = OidcSignIn(own.auth, gateway.state)
    sessions = ConsoleSessions(
        gateway.state,
        choose_authenticator(options, authenticator),
        own.console.scope,
        tokens=lambda: settings().http.tokens,
        issuers=lambda: [one.issuer for one in settings().auth.issuers if one.sign_in],
        only_tokens=not own.auth.enabled,
        renew=oidc.renew,
        lasts_s=own.console.session_s,
    )
    return Console(parts, sessions, options, oidc, listener=listener)


class Console(AsgiApp):
    """The pages of one gateway, to serve at an address of their own or to mount in another app."""

    path = "/"

    def __init__(
        self,
        parts: ConsoleParts,
        sessions: ConsoleSessions,
        options: HttpOptions,
        oidc: OidcSignIn,
        *,
        listener: socket.socket | None = None,
    ) -> None:
        """Raises `MissingExtra` if the template library is not installed."""
        self.options = options
        self._shared = None if listener is None else SharedAddress(sock=listener)
        self.parts = parts
        self._sessions = sessions
        self._oidc = oidc
        self._address = ExternalAddress(options)
        self._templates = _load_templates()
        self._static = {name: _StaticFile(name) for name in ("console.css", "console.js", "icon.svg")}
        self._templates.globals["assets"] = {name: f"{name}?{one.tag}" for name, one in self._static.items()}
        self._closing = anyio.Event()
        self._streams = 0
        self.url = ""
        """Where it is served, while it is."""
        gets: dict[str, Handler] = {
            "/": overview.show,
            "/servers/{name:path}": overview.show_server,
            "/change/{name:path}": overview.show_change,
            "/search": playground.show,
            "/tools": tools.show,
            "/tools/{id:path}": tools.show_tool,
            "/calls": calls.show,
            "/calls/{number}": calls.show_request,
            "/approvals": approvals.show,
            "/zero-hits": usage_pages.show_zero_hits,
            "/usage": usage_pages.show,
        }
        posts: dict[str, Handler] = {"/tools/{id:path}": tools.call, "/approvals": approvals.decide}
        routes = [
            Route("/static/{name}", self._serve_static, methods=["GET"]),
            Route(_SIGN_IN, self._show_sign_in, methods=["GET"]),
            Route(_SIGN_IN, self._sign_in, methods=["POST"]),
            Route(f"{_SIGN_IN}/at", self._begin_oidc, methods=["GET"]),
            Route(_CALLBACK, self._finish_oidc, methods=["GET"]),
            Route("/sign-out", self._visited(self._sign_out), methods=["POST"]),
            Route("/events", self._visited(self._events), methods=["GET"]),
            *(Route(path, self._visited(handler), methods=["GET"]) for path, handler in gets.items()),
            *(Route(path, self._visited(handler), methods=["POST"]) for path, handler in posts.items()),
        ]
        router = Router(routes, default=self._not_found, redirect_slashes=False)
        self._app = HostOriginMiddleware(_with_headers(router), options, is_open=not sessions.needs_token)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one request."""
        await self._app(scope, receive, send)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Nothing of its own runs."""
        yield

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer requests until cancelled."""
        task_status.started()
        await anyio.sleep_forever()

    def run_soon(self, group: anyio.abc.TaskGroup) -> None:
        """Nothing of its own has to be started."""

    def end_streams(self) -> None:
        """End the event streams of open pages."""
        self._closing.set()

    def listening(self, host: str, port: int, _: Path | None) -> None:
        """Nothing has to know where it is served."""

    def end_session_streams(self) -> None:
        """Streams end with the next look at the session."""

    @contextlib.asynccontextmanager
    async def served(self, group: anyio.abc.TaskGroup) -> AsyncIterator[None]:
        """Serve at the address of the options inside the context. Raises `SettingsError` if it cannot be used."""
        self._sessions.check()
        self._closing, stop, stopped = anyio.Event(), anyio.Event(), anyio.Event()
        await group.start(self._serve, stop, stopped)
        try:
            yield
        finally:
            stop.set()
            with anyio.move_on_after(_STOP_S, shield=True):
                await stopped.wait()
            self.url = ""

    async def _serve(self, stop: anyio.Event, stopped: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        def started(url: str) -> None:
            self.url = url
            logger.info("the console is at %s", url)
            task_status.started()

        can_move = self.options.port and self._shared is None and is_loopback(self.options.host)
        tries = _PORTS if can_move else 1
        try:
            for place in range(tries):
                own = replace(self.options, port=self.options.port + place)
                try:
                    await serve_http(self, own, stop=stop, started=started, flush_s=0, shared=self._shared)
                except SettingsError as error:
                    if self.url or place == tries - 1:
                        error.hint = "Choose another address with --console HOST:PORT."
                        raise
                else:
                    return
        finally:
            stopped.set()

    # -- requests --------------------------------------------------------------------------------------------------

    def _visited(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page, for those who have a session."""

        async def endpoint(request: Request) -> Response:
            cookie, session = None, await self._sessions.find(request.cookies.get(_cookie_name(request)))
            if session is None and request.method == "GET" and (opened := await self._sessions.open_local()):
                cookie, session = opened
            if session is None:
                return self._turn_away(request)
            response = await self._answer(handler, request, session)
            if cookie is not None:
                self._open_session(request, response, cookie)
            return response

        return endpoint

    async def _answer(self, handler: Handler, request: Request, session: ConsoleSession) -> Response:
        try:
            form = await read_form(request) if request.method == "POST" else {}
            if request.method == "POST" and not proves(session, form, request.headers.get("x-csrf-token")):
                return await self._error(request, session, 403, _FORGED)
            answer = await handler(Visit(parts=self.parts, request=request, session=session, form=form))
        except NotFound as error:
            return await self._error(request, session, 404, error)
        except ToolcribError as error:
            return await self._error(request, session, 400, error)
        return answer if isinstance(answer, Response) else await self._render(request, session, answer)

    async def _render(self, request: Request, session: ConsoleSession | None, page: ConsolePage) -> Response:
        waiting = len(await self.parts.desk.waiting()) if session is not None else 0
        values = {
            "base": request.scope.get("root_path", ""),
            "here": request.url.path.removeprefix(request.scope.get("root_path", "")),
            "session": session,
            "can_sign_out": self._sessions.needs_token,
            "version": VERSION,
            "hide": self.parts.hide,
            "menu": _MENU,
            "waiting": waiting,
            **page.values,
        }
        text = self._templates.get_template(page.template).render(values)
        return Response(text, status_code=page.status, media_type="text/html")

    async def _error(
        self, request: Request, session: ConsoleSession | None, status: int, error: ToolcribError
    ) -> Response:
        return await self._render(
            request, session, ConsolePage("error.html", {"error": error, "title": "Not done"}, status)
        )

    def _turn_away(self, request: Request) -> Response:
        """Ask for a token, and come back to the page afterwards; a script of ours or a form gets an error instead."""
        if request.method != "GET" or request.headers.get("accept", "").startswith("text/event-stream"):
            return PlainTextResponse("Sign in first.", status_code=401)
        base = request.scope.get("root_path", "")
        here = request.url.path.removeprefix(base) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{base}{_SIGN_IN}?next={figures.segment(here)}", status_code=303)

    async def _not_found(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        session = await self._sessions.find(request.cookies.get(_cookie_name(request)))
        response = await self._error(request, session, 404, _UNKNOWN)
        await response(scope, receive, send)

    # -- signing in ------------------------------------------------------------------------------------------------

    async def _show_sign_in(self, request: Request) -> Response:
        if not self._sessions.needs_token:
            return RedirectResponse(f"{request.scope.get('root_path', '')}/", status_code=303)
        return await self._sign_in_page(request, "", 200)

    async def _sign_in(self, request: Request) -> Response:
        """Exchange a token for a cookie. Needs no proof: it changes nothing for someone who has no session."""
        try:
            form = await read_form(request)
            cookie, _ = await self._sessions.sign_in(form.get("token", ""), self._address.client(request.scope))
        except ToolcribError as error:
            return await self._sign_in_page(request, str(error), _sign_in_status(error))
        response = RedirectResponse(_local_page(request, form.get("next", "/")), status_code=303)
        self._open_session(request, response, cookie)
        return response

    async def _begin_oidc(self, request: Request) -> Response:
        """Lead the person to an issuer; a cookie makes sure that the same browser comes back."""
        base = self._address.base(request.scope)
        redirect_uri = f"{base}{request.scope.get('root_path', '')}{_CALLBACK}"
        asked = request.query_params
        try:
            url, attempt = await self._oidc.begin(asked.get("issuer", ""), redirect_uri, asked.get("next", "/"))
        except ToolcribError as error:
            return await self._sign_in_page(request, str(error), 401)
        response = RedirectResponse(url, status_code=303)
        # Not strict: the issuer's page leads back here.
        self._set_cookie(request, response, _ATTEMPT_COOKIE, attempt, lasts_s=ATTEMPT_S, samesite="lax")
        return response

    async def _finish_oidc(self, request: Request) -> Response:
        try:
            cookie = request.cookies.get(_ATTEMPT_COOKIE, "")
            peer = self._address.client(request.scope)
            person, wanted = await self._oidc.finish(request.query_params, cookie, peer)
            session, _ = await self._sessions.sign_in_as(person)
        except ToolcribError as error:
            return await self._sign_in_page(request, str(error), _sign_in_status(error))
        # A redirect would still be part of the issuer's navigation, on which browsers send no strict cookie.
        values = {"title": "Signed in", "next": _local_page(request, wanted)}
        response = await self._render(request, None, ConsolePage("signed_in.html", values))
        response.headers["refresh"] = f"0; url={quote(values['next'], safe=_URL_CHARS)}"
        self._open_session(request, response, session)
        response.delete_cookie(_ATTEMPT_COOKIE, path=_cookie_path(request))
        return response

    def _open_session(self, request: Request, response: Response, cookie: str) -> None:
        self._set_cookie(request, response, _cookie_name(request), cookie, lasts_s=self.parts.options.session_s)

    def _set_cookie(
        self,
        request: Request,
        response: Response,
        name: str,
        value: str,
        *,
        lasts_s: float,
        samesite: Literal["lax", "strict"] = "strict",
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=int(lasts_s),
            path=_cookie_path(request),
            secure=self._address.scheme(request.scope) == "https",
            httponly=True,
            samesite=samesite,
        )

    async def _sign_in_page(self, request: Request, problem: str, status: int) -> Response:
        wanted = request.query_params.get("next", "/")
        values: dict[str, Any] = {
            "title": "Sign in",
            "problem": problem,
            "next": wanted,
            "scope": self.parts.options.scope,
        }
        values["issuers"] = self._oidc.issuers
        return await self._render(request, None, ConsolePage("sign_in.html", values, status))

    async def _sign_out(self, visit: Visit) -> Response:
        await self._sessions.sign_out(visit.session)
        response = RedirectResponse(f"{visit.request.scope.get('root_path', '')}{_SIGN_IN}", status_code=303)
        response.delete_cookie(_cookie_name(visit.request), path=_cookie_path(visit.request))
        return response

    # -- what is not a page ----------------------------------------------------------------------------------------

    async def _serve_static(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            return PlainTextResponse("Not found", status_code=404)
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers={"etag": found.etag})
        # "no-cache" lets a browser keep the file, and ask each time whether it has changed.
        headers = {"etag": found.etag, "cache-control": "no-cache"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    async def _events(self, visit: Visit) -> Response:
        """Send an open page the names of what has changed, as server-sent events; the page then loads it."""
        if self._streams >= _MAX_STREAMS:
            return PlainTextResponse("Too many open pages", status_code=503)
        return StreamingResponse(self._changes(visit), media_type="text/event-stream")

    async def _changes(self, visit: Visit) -> AsyncIterator[str]:
        self._streams += 1
        seen, looks = await self._versions(), 0
        cookie = visit.request.cookies.get(_cookie_name(visit.request))
        try:
            yield "retry: 3000\n\n"
            while not self._closing.is_set():
                with anyio.move_on_after(_LOOK_S):
                    await self._closing.wait()
                now = await self._versions()
                for topic in (name for name, value in now.items() if value != seen[name]):
                    yield f"event: {topic}\ndata: {now[topic]}\n\n"
                seen, looks = now, looks + 1
                # Only a write shows that a page was closed, and proxies end streams in which nothing moves.
                if looks % _PING_LOOKS == 0:
                    if self._sessions.needs_token and await self._sessions.find(cookie) is None:
                        return
                    yield ": still here\n\n"
        finally:
            self._streams -= 1

    async def _versions(self) -> dict[str, int]:
        """A number for each topic, which changes when the topic does."""
        return {
            **await self.parts.processes.versions(),
            "approvals": hash(tuple(one.id for one in await self.parts.desk.waiting())),
        }


class _StaticFile:
    """A script, style sheet or picture of the package."""

    def __init__(self, name: str) -> None:
        self.content = (files("toolcrib.console") / "static" / name).read_bytes()
        self.tag = hashlib.sha256(self.content).hexdigest()[:12]
        self.etag = f'"{self.tag}"'
        self.media_type = _TYPES[PurePosixPath(name).suffix]


def _load_templates() -> Any:
    try:
        import jinja2  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise missing_extra("jinja2", "toolcrib[console]", needed_by="The console") from error
    from markupsafe import Markup  # noqa: PLC0415 - the same

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("toolcrib.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("ago", "duration", "number", "percent", "clock", "iso", "segment"):
        environment.filters[name] = getattr(figures, name)
    for name in ("columns", "bar", "span"):
        environment.globals[name] = _marked(getattr(figures, name), Markup)
    environment.globals["with_query"] = figures.with_query
    return environment


def _marked(draw: Callable[..., str], markup: Callable[[str], Any]) -> Callable[..., Any]:
    """A function whose text is markup, and is not escaped."""
    return lambda *values, **named: markup(draw(*values, **named))


def _sign_in_status(error: ToolcribError) -> int:
    return 429 if isinstance(error, RateLimited) else 401


def _cookie_name(request: Request) -> str:
    """A name of this port's own: browsers send the cookies of a host to all its ports."""
    return f"toolcrib_console_{request.url.port or 0}"


def _cookie_path(request: Request) -> str:
    """Where the console is below its host: other apps there get none of its cookies."""
    return request.scope.get("root_path", "") or "/"


def _local_page(request: Request, wanted: str) -> str:
    """A page of the console, and never one elsewhere."""
    # Browsers leave tabs and line ends out of an address, and take a backslash for a slash.
    local = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return f"{request.scope.get('root_path', '')}{wanted if local else '/'}"


def _with_headers(app: Any) -> Any:
    """Add the security headers to every response; pages are never stored."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        async def send_safe(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = [(name, value) for name, value in message["headers"] if name not in _OWN]
                names = {name for name, _ in given}
                added = [] if b"cache-control" in names else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*given, *_RAW_HEADERS, *added]}
            await send(message)

        await app(scope, receive, send_safe)

    return run


_RAW_HEADERS: Final = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_OWN: Final = frozenset(name for name, _ in _RAW_HEADERS)
