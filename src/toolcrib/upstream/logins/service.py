"""The logins of a gateway's servers: whose tokens a request carries, and logins that wait for a person.

A person logs in in a browser, which then comes back with the authorization server's answer: to a port of this machine
that is open only meanwhile or, with a public URL, to any process that serves it.
"""

import asyncio
import logging
import secrets
import shlex
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
from mcp.shared.auth import AuthorizationCodeResult

from toolcrib.errors import ExecutionFailed, InvalidRequest, LoginRequired, NotStarted, ServerUnavailable, ToolcribError
from toolcrib.protocol.failures import ExchangeError
from toolcrib.state.base import StateStore
from toolcrib.types import Caller, Context, Object
from toolcrib.upstream.logins.flows import LoginFailed
from toolcrib.upstream.logins.oauth import ServerCredentials, StoredLogin
from toolcrib.upstream.logins.vault import LoginPage, LoginVault, caller_of, login_key, principal_of
from toolcrib.upstream.options import LoginOptions, OAuthClientOptions, ServerOptions

logger = logging.getLogger(__name__)

CALLBACK_PATH: Final = "/oauth/callback"
PAGE_PATH: Final = "/oauth/login"
"""Followed by a ticket: where a person confirms that a login is for the caller that they are."""
METADATA_PATH: Final = "/oauth/client.json"
"""Where authorization servers read who the gateway is."""
_MAX_PRINCIPALS: Final = 1000
"""Callers of one server whose tokens are kept in memory; those of the others are read from the vault again."""
_MAX_PENDING: Final = 100
"""Logins that wait for a person at the same time."""
_POLL_S: Final = 1.0
"""How often to look whether another process has received an answer."""
_VAULT_POLL_S: Final = 2.0
"""How often to look whether another process has stored a login that is missing."""
_MIN_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0
"""Between two looks at whether a login must be refreshed."""
_TICKET_BYTES: Final = 24
_HEAD_BYTES: Final = 16 * 1024
_HEAD_TIMEOUT_S: Final = 5.0
_PAGES: Final = {
    True: "You are logged in. You can close this page and go back to your agent.",
    False: "This login is not known, or has ended. Go back to your agent and try again.",
}
PAGE_HEADERS: Final = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def login_command(login: StoredLogin) -> str:
    """Return the command with which an operator logs in."""
    words, caller = ["toolcrib", "login", login.options.name], caller_of(login.principal)
    if caller is not None:
        named = {"--caller": caller.id, "--tenant": caller.tenant, "--issuer": caller.issuer}
        words += [word for pair in named.items() if pair[1] for word in pair if word]
    return shlex.join(words)


def page(*, known: bool) -> str:
    """Return the page that a browser shows after a login."""
    return f"<!doctype html><title>toolcrib</title><p>{_PAGES[known]}</p>"


@dataclass(eq=False, slots=True)
class PendingLogin:
    """A login that waits for a person."""

    server: str
    url: str = field(default="", repr=False)
    """The address of the login page."""
    failure: str = ""
    ready: anyio.Event = field(default_factory=anyio.Event)
    """Set when the address is known, or the login has failed before."""
    done: anyio.Event = field(default_factory=anyio.Event)
    answered: anyio.Event = field(default_factory=anyio.Event)
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the authorization server answers."""
    principal: str = ""
    """Whose login it is, if they have to confirm that it is theirs before."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def answer(self, parameters: Mapping[str, str]) -> None:
        """Go on with what the authorization server answers."""
        self.parameters = parameters
        self.answered.set()


def _result_in(parameters: Mapping[str, str]) -> AuthorizationCodeResult:
    """Read what an authorization server says in the address to which it sends a browser back. Raises `LoginFailed` for
    a refusal.
    """
    if "code" not in parameters:
        why = parameters.get("error", "")
        reason = "the login was declined" if why == "access_denied" else "the authorization server refused it"
        raise LoginFailed(f"{reason} ({why[:100]})" if why.isidentifier() and why != "access_denied" else reason)
    return AuthorizationCodeResult.model_validate({name: parameters.get(name) for name in ("code", "state", "iss")})


class LoginService:
    """The credentials for all servers of a gateway, and the logins under way."""

    def __init__(self, state: StateStore, options: LoginOptions) -> None:
        self.options = options
        self.vault = LoginVault(state, options)
        self.start_soon: Callable[..., object] | None = None
        """Starts a task that lasts as long as the gateway; None before it runs."""
        self._credentials: OrderedDict[str, tuple[ServerOptions, ServerCredentials]] = OrderedDict()
        self._pending: dict[str, PendingLogin] = {}
        self._asked: dict[str, PendingLogin] = {}
        """By `state`: those that have a login page."""
        self._listener: asyncio.Server | None = None
        has_document = options.client_metadata and options.public_url.startswith("https://")
        self._metadata_url = f"{options.public_url.rstrip('/')}{METADATA_PATH}" if has_document else ""

    # -- credentials -----------------------------------------------------------------------------------------------

    def credentials(self, options: ServerOptions, caller: Caller | None = None) -> ServerCredentials | None:
        """Return where the tokens for a server come from; None if it needs none. Those of a caller are their own if
        the options say so; without a caller, they are those that list the tools.
        """
        auth = options.auth
        if auth is None:
            return None
        has_own = caller is not None and auth.for_each_caller and not caller.is_local
        principal = principal_of(caller) if caller is not None and has_own else ""
        rights = auth.rights(caller.scopes) if caller is not None and has_own else ""
        place = login_key(options, f"{principal}{rights}")
        known, found = self._credentials.get(place, (None, None))
        if found is None or known != options:
            found = self._make(options, auth, principal)
            self._credentials[place] = (options, found)
            if len(self._credentials) > _MAX_PRINCIPALS:
                self._credentials.popitem(last=False)
        self._credentials.move_to_end(place)
        return found

    def _make(self, options: ServerOptions, auth: OAuthClientOptions, principal: str) -> ServerCredentials:
        if auth.grant == "authorization_code":
            if self._metadata_url and not (auth.client_id or auth.client_metadata_url):
                auth = replace(auth, client_metadata_url=self._metadata_url)
            return StoredLogin(options, auth, self.vault, principal)
        from toolcrib.upstream.logins.grants import make_credentials

        return make_credentials(options, auth, principal)

    def present(self, ctx: Context, options: ServerOptions) -> None:
        """Take the caller's own token over, for a server whose tokens depend on it. The local caller has none: it uses
        what lists the tools.
        """
        if options.auth is not None and options.auth.uses_callers_token and not ctx.caller.is_local:
            credentials: Any = self.credentials(options, ctx.caller)
            credentials.present(ctx.token, ctx.caller.issuer)

    async def maintain(self, options: ServerOptions) -> None:
        """Refresh the shared login of a server before it expires, until cancelled."""
        login = self.credentials(options)
        while isinstance(login, StoredLogin):
            try:
                await login.token()
                pause_s = login.until_refresh_s
            except ExchangeError as error:  # it is reported by the requests that it concerns
                logger.debug("%s: its login cannot be refreshed: %s", options.name, error)
                pause_s = _MAX_PAUSE_S
            with anyio.move_on_after(min(max(pause_s, _MIN_PAUSE_S), _MAX_PAUSE_S)):
                await login.changed.wait()

    async def wait_login(self, options: ServerOptions) -> None:
        """Wait for a shared login of the server that this process does not know yet."""
        login = self.credentials(options)
        if not isinstance(login, StoredLogin):
            await anyio.sleep(_MAX_PAUSE_S)
            return
        refused = login.refused
        while login.logged_in_at in (0.0, refused):
            with anyio.move_on_after(_VAULT_POLL_S):
                await login.changed.wait()
            with suppress(ExchangeError):
                await login.reload()

    # -- logins under way ------------------------------------------------------------------------------------------

    async def require(
        self, ctx: Context, options: ServerOptions, reason: str, *, shared: bool = False
    ) -> ExecutionFailed:
        """Return the error for a request that needs a login, begun for its caller if they may log in.

        With `shared`, it is the one that lists the tools which is missing.

        A login that all callers share is for the operator: a caller of several would lend them their own account, or
        work in one that is not theirs without knowing.
        """
        login = self.credentials(options, None if shared else ctx.caller)
        about: dict[str, Any] = {"server": options.name, "reason": reason}
        message = f'The server "{options.name}" is not available: {reason}.'
        if not isinstance(login, StoredLogin):
            return ServerUnavailable(message, hint="Nothing was run. Check its `auth` settings.", data=about)
        if not ctx.caller.is_local and (not login.principal or not self.options.public_url):
            hint = f"Nothing was run. The operator of this gateway can log in with `{login_command(login)}`."
            return LoginRequired(message, hint=hint, data=about)
        try:
            pending = await self.begin(login, confirmed=bool(login.principal))
        except ToolcribError as error:
            return LoginRequired(message, hint=f"Nothing was run. {error}", data=about)
        if not pending.url or pending.done.is_set():
            why = pending.failure or "it has just ended"
            return LoginRequired(message, hint=f"Nothing was run. A login cannot be offered: {why}.", data=about)
        hint = f"Nothing was run. Open {pending.url} in a browser, log in, and call again."
        return LoginRequired(message, hint=hint, data={**about, "url": pending.url})

    async def wait_ended(self, ctx: Context, options: ServerOptions, timeout_s: float) -> None:
        """Wait until no login of the caller at the server is under way, for `timeout_s` seconds at most."""
        login = self.credentials(options, ctx.caller)
        pending = self._pending.get(login.key) if isinstance(login, StoredLogin) else None
        if pending is not None:
            with anyio.move_on_after(timeout_s):
                await pending.done.wait()

    async def begin(self, login: StoredLogin, *, confirmed: bool = False) -> PendingLogin:
        """Start a login, unless one is under way, and return it once its address is known. With `confirmed`, that is
        the address of a page of the gateway, where the person first confirms that the login is for them.

        Raises `NotStarted`, and `InvalidRequest` if too many logins wait already.
        """
        pending = self._pending.get(login.key)
        if pending is None:
            if self.start_soon is None:
                raise NotStarted("The gateway is not running.", hint="Start it, or use `toolcrib login`.")
            if len(self._pending) >= _MAX_PENDING:
                raise InvalidRequest("Too many logins wait for a person.", hint="Try again in a few minutes.")
            owner = login.principal if confirmed else ""
            pending = self._pending[login.key] = PendingLogin(login.options.name, principal=owner)
            self.start_soon(self._run, pending, login)
        await pending.ready.wait()
        return pending

    async def _run(self, pending: PendingLogin, login: StoredLogin) -> None:
        try:
            with pending.scope:
                with anyio.move_on_after(self.options.wait_s) as limit:
                    await login.log_in(await self._redirect(), partial(self._ask, pending))
                    logger.info("%s: a login was stored", pending.server)
                if limit.cancelled_caught:
                    pending.failure = "there was no answer in time"
        except LoginFailed as error:
            pending.failure = error.reason
        except ToolcribError as error:
            pending.failure = error.message.rstrip(".")
        except ExchangeError as error:
            pending.failure = error.reason
        except OSError as error:
            pending.failure = f"no port can be opened for the answer: {error.strerror or error}"
        finally:
            if pending.failure:
                logger.warning("%s: the login failed: %s", pending.server, pending.failure)
            elif pending.scope.cancelled_caught:
                pending.failure = "it was stopped"
            self._pending.pop(login.key, None)
            pending.ready.set()
            pending.done.set()
            if not self._pending:
                self._close_listener()

    async def _ask(self, pending: PendingLogin, url: str) -> AuthorizationCodeResult:
        """Publish the address of the login page, and wait for the answer."""
        state = dict(parse_qsl(urlsplit(url).query)).get("state", "")
        self._asked[state] = pending
        try:
            pending.url = url
            if self.options.public_url:
                await self.vault.expect_answer(state, self.options.wait_s, confirmed=bool(pending.principal))
            if pending.principal:
                shown = LoginPage(server=pending.server, principal=pending.principal, url=url, state=state)
                pending.url = await self._page(shown)
            pending.ready.set()
            async with anyio.create_task_group() as group:
                if self.options.public_url:
                    group.start_soon(self._poll, state, pending)
                await pending.answered.wait()
                group.cancel_scope.cancel()
            return _result_in(pending.parameters)
        finally:
            # Each state is good for one answer.
            self._asked.pop(state, None)

    async def _page(self, shown: LoginPage) -> str:
        """Return the address of a page that leads to the login page."""
        ticket = secrets.token_urlsafe(_TICKET_BYTES)
        await self.vault.offer_page(ticket, shown, self.options.wait_s)
        return f"{self.options.public_url.rstrip('/')}{PAGE_PATH}/{ticket}"

    async def confirm(self, shown: LoginPage, browser: str) -> str:
        """Return the address of the login page, from which only this browser may come back; empty if the login has
        ended.
        """
        return shown.url if await self.vault.confirm(shown, browser, self.options.wait_s) else ""

    async def _poll(self, state: str, pending: PendingLogin) -> None:
        """Wait for an answer that another process receives."""
        while True:
            await anyio.sleep(_POLL_S)
            found = await self.vault.take_answer(state)
            if found is not None:
                pending.answer(found)

    async def deliver(self, parameters: Mapping[str, str], browser: str = "") -> bool:
        """Take the parameters over with which a browser came back, and its cookie. Returns whether a login waits for
        them, from this browser.
        """
        state = parameters.get("state", "")
        pending = self._asked.get(state)
        if self.options.public_url:
            is_expected = bool(state) and await self.vault.give_answer(state, parameters, browser)
            if is_expected and pending is not None and (found := await self.vault.take_answer(state)) is not None:
                pending.answer(found)
            return is_expected
        if pending is not None and not pending.answered.is_set():
            pending.answer(parameters)
        return pending is not None

    def client_metadata(self) -> Object | None:
        """Return the document by which authorization servers know this gateway; None if it has no address for it."""
        if not self._metadata_url:
            return None
        return {
            "client_id": self._metadata_url,
            "client_name": "toolcrib",
            "client_uri": self.options.public_url,
            "application_type": "web",
            "redirect_uris": [f"{self.options.public_url.rstrip('/')}{CALLBACK_PATH}"],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }

    def close(self) -> None:
        """Give up the logins under way."""
        self.start_soon = None
        for pending in tuple(self._pending.values()):
            pending.scope.cancel()
        self._close_listener()

    # -- the port on this machine ----------------------------------------------------------------------------------

    async def _redirect(self) -> str:
        """Return where browsers come back to."""
        if self.options.public_url:
            return self.options.public_url.rstrip("/") + CALLBACK_PATH
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._serve, "127.0.0.1", self.options.callback_port, limit=_HEAD_BYTES
            )
        port = self._listener.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}{CALLBACK_PATH}"

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a browser."""
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, _, rest = head.partition(" ")
                target = urlsplit(rest.partition(" ")[0])
                known = False
                if method == "GET" and target.path == CALLBACK_PATH:
                    known = await self.deliver(dict(parse_qsl(target.query)))
                writer.write(_http_response(known=known))
                await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


def _http_response(*, known: bool) -> bytes:
    body = page(known=known).encode()
    headers = {**PAGE_HEADERS, "content-length": str(len(body)), "connection": "close"}
    lines = [
        f"HTTP/1.1 {'200 OK' if known else '404 Not Found'}",
        *(f"{key}: {value}" for key, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
