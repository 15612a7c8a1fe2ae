"""Access tokens for requests to one server: toolcrib as an OAuth client.

Tokens outlive a process, and are refreshed early and by one process at a time. `toolcrib.upstream.logins.flows` has the
flows, which may wait for a person.
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from typing import Final

import anyio

from toolcrib.errors import StateUnavailable, ToolcribError
from toolcrib.protocol.headers import SESSION_HEADER, VERSION_HEADER
from toolcrib.protocol.messages import encode_request
from toolcrib.protocol.negotiation import CLIENT_INFO
from toolcrib.protocol.versions import LATEST_HANDSHAKE
from toolcrib.sanitize import MAX_REASON, one_line
from toolcrib.types import Object
from toolcrib.upstream.guarded_fetch import REQUEST_TIMEOUT_S
from toolcrib.upstream.logins.flows import Ask, Challenge, LoginFailed, OAuthClient, PersonFlow, TokenRefused
from toolcrib.upstream.logins.vault import Login, LoginRejected, LoginVault, login_key
from toolcrib.upstream.options import FleetOptions, OAuthClientOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import AutoResetEvent
from toolcrib.upstream.transports.http_bodies import discard
from toolcrib.upstream.transports.http_requests import (
    LoginNeeded,
    NoAccessToken,
    Refusal,
    ServerRequests,
    refusal_in,
)

logger = logging.getLogger(__name__)

_BAD_REQUEST: Final = 400
_UNAUTHORIZED: Final = 401
_REFRESH_TIMEOUT_S: Final = 15.0
"""For a refresh with all its redirects; shorter than the lease under which it runs."""
_MAX_CHALLENGE: Final = 4096
_FINAL_ERRORS: Final = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
"""Answers to a refresh after which the same request would fail again."""
_NEW_CLIENT: Final = "invalid_client"
_NOT_LOGGED_IN: Final = "it needs a login"


def _challenge(refusal: Refusal) -> Challenge | None:
    """Return the challenge in a refusal: any 401, and a 403 for lack of scopes."""
    challenge = Challenge(refusal.status, refusal.www_authenticate[:_MAX_CHALLENGE], refusal.version)
    # A server that does not know the probe may want every right for it.
    if refusal.status != _UNAUTHORIZED and (refusal.is_probe or challenge.error != "insufficient_scope"):
        return None
    return challenge


async def first_challenge(options: ServerOptions) -> Challenge:
    """Return what the server answers to a request without a token, if it refuses it; else a challenge that says
    nothing. Raises `ExchangeError`.
    """
    headers = {VERSION_HEADER: LATEST_HANDSHAKE}
    start = {"protocolVersion": LATEST_HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT_INFO}
    requests = ServerRequests(options, FleetOptions(), Redactor(options), None, AutoResetEvent())
    session = None
    try:
        with anyio.move_on_after(REQUEST_TIMEOUT_S):
            # Some servers let everybody begin, and ask for a token when the tools are listed.
            for method, params in (("initialize", start), ("tools/list", {})):
                message = encode_request(1, method, params)
                reply = await requests.send("POST", requests.url, headers, message, session=session)
                await discard(reply.response)
                if reply.response.status >= _BAD_REQUEST:
                    found = _challenge(refusal_in(reply.response, headers))
                    if found is not None:
                        return found
                session = reply.response.header(SESSION_HEADER.encode()) or session
    finally:
        with anyio.CancelScope(shield=True):
            await requests.aclose()
    return Challenge()


# -- credentials -------------------------------------------------------------------------------------------------------


class ServerCredentials(ABC):
    """Where the access tokens of one principal for one server come from."""

    @abstractmethod
    async def token(self) -> str | None:
        """Return a token that has not expired, refreshed if need be; None to try without. Raises `LoginNeeded`, and
        `NoAccessToken` if there should be one but cannot be now.
        """

    async def after(self, refusal: Refusal, used: str | None) -> str | None:
        """Return a token that should satisfy the server, which refused the used one; None if there is no better one, or
        the refusal is about something else. Raises `LoginNeeded` if a person must log in first.
        """
        challenge = _challenge(refusal)
        return None if challenge is None else await self.answer(challenge, used)

    @abstractmethod
    async def answer(self, challenge: Challenge, used: str | None) -> str | None:
        """Return a token that should satisfy the server, which refused the used one; None if there is no better one.

        Raises `LoginNeeded` if a person must log in first.
        """


class StoredLogin(ServerCredentials):
    """A person's login, kept in the vault."""

    def __init__(
        self, options: ServerOptions, auth: OAuthClientOptions, vault: LoginVault, principal: str = ""
    ) -> None:
        self.options = options
        self.principal = principal
        self.key = login_key(options, principal)
        self.challenge = Challenge()
        """The last one that only a person could answer."""
        self.changed = anyio.Event()
        """Set, and replaced, when there is a new login."""
        self.refused = 0.0
        """`logged_in_at` when it was last found that a person must log in: a login that differs may be tried."""
        self._auth = auth
        self._vault = vault
        self._login: Login | None = None
        self._loaded = False
        self._lock = anyio.Lock()
        self._rejected_after_refresh = ""
        """A token that was new when the server refused it."""
        self._stepped_up: set[str] = set()
        """The scopes for which a person has logged in again."""

    @property
    def logged_in_at(self) -> float:
        """When the login was made that this process knows; 0 without one that can be used."""
        login = self._login
        return 0.0 if login is None or login.problem else login.logged_in_at

    @property
    def until_refresh_s(self) -> float:
        """How long until the login is to be refreshed, in seconds."""
        login = self._login
        if login is None or login.problem or login.refresh_at is None:
            return math.inf
        return login.refresh_at - time.time()

    def _flow(self, known: Login | None = None) -> PersonFlow:
        return PersonFlow(OAuthClient(self.options, self._auth), known, self.principal)

    async def token(self) -> str | None:
        login = self._login
        now = time.time()
        if login is not None and login.is_valid(now) and not login.needs_refresh(now):
            return login.access_token
        if login is not None and login.is_valid(now) and self._lock.locked():
            return login.access_token  # another task refreshes it right now
        async with self._lock:
            login = await self.current()
            if login is None:
                return None
            if login.problem:
                raise self._needed(f"{_NOT_LOGGED_IN}: {login.problem}")
            if login.needs_refresh(time.time()) and login.refresh_token:
                login = await self._refresh(login)
            return login.access_token if login is not None else None

    async def current(self) -> Login | None:
        """Return the login as this process knows it, read from the vault if it has expired here. Raises
        `NoAccessToken` if the vault cannot be read.
        """
        login = self._login
        if self._loaded and login is not None and login.is_valid(time.time()) and not login.needs_refresh(time.time()):
            return login
        return await self.reload()

    async def reload(self) -> Login | None:
        """Read the login from the vault, where another process may have stored a newer one."""
        try:
            login = await self._vault.load(self.key)
        except (StateUnavailable, ToolcribError) as error:
            raise NoAccessToken(error.message.rstrip(".")) from error
        self._loaded = True
        self._adopt(login)
        return login

    def _adopt(self, login: Login | None) -> None:
        before, self._login = self._login, login
        if login is not None and not login.problem and (before is None or before.logged_in_at != login.logged_in_at):
            self.changed.set()
            self.changed = anyio.Event()

    async def _refresh(self, login: Login, *, is_needed: bool = False) -> Login | None:
        """Return the refreshed login; the same one if that failed and it is still valid, unless the server refused it.

        Raises `LoginNeeded` and `NoAccessToken`.
        """
        try:
            fresh = await self._vault.refresh(self.key, login, self._fetch)
        except LoginRejected as error:
            self._login = replace(login, problem=str(error))
            raise self._needed(f"{_NOT_LOGGED_IN}: {error}") from error
        except (LoginFailed, ToolcribError) as error:
            if login.is_valid(time.time()) and not is_needed:
                return login
            reason = error.reason if isinstance(error, LoginFailed) else error.message.rstrip(".")
            raise NoAccessToken(f"its login could not be refreshed: {reason}") from error
        self._adopt(fresh)
        return fresh

    async def _fetch(self, login: Login) -> Object:
        """Get new tokens for the refresh token. Raises `LoginRejected` or `LoginFailed`."""
        try:
            with anyio.fail_after(_REFRESH_TIMEOUT_S):
                return await self._flow().refresh(login)
        except TimeoutError as error:
            raise LoginFailed("its authorization server did not answer with tokens in time") from error
        except TokenRefused as error:
            if error.code in _FINAL_ERRORS:
                raise LoginRejected(f"its authorization server has ended the last one ({error.code})") from error
            raise LoginFailed(f"its authorization server returned HTTP {error.status}") from error

    async def answer(self, challenge: Challenge, used: str | None) -> str | None:
        async with self._lock:
            login = await self.reload()
            if login is not None and not login.problem and login.access_token != used and login.is_valid(time.time()):
                return login.access_token
            if challenge.is_step_up:
                self._step_up(challenge, login)
                return None
            can_refresh = login is not None and not login.problem and bool(login.refresh_token)
            if login is not None and can_refresh and used != self._rejected_after_refresh:
                fresh = await self._refresh(login, is_needed=True)
                if fresh is not None and fresh.access_token != used:
                    self._rejected_after_refresh = fresh.access_token
                    return fresh.access_token
            self.challenge = challenge
            if login is None:
                raise self._needed(_NOT_LOGGED_IN)
            if not login.problem:
                with suppress(StateUnavailable):
                    await self._vault.mark(self.key, login, refused_at=time.time())
            raise self._needed(f"{_NOT_LOGGED_IN}: it does not accept the last one")

    def _needed(self, reason: str) -> LoginNeeded:
        self.refused = self.logged_in_at
        return LoginNeeded(reason)

    def _step_up(self, challenge: Challenge, login: Login | None) -> None:
        """Have a person log in again for more scopes, once for each set of them."""
        wanted = challenge.scope
        has_all = login is not None and bool(wanted) and set(wanted.split()) <= set(login.scope.split())
        if has_all or wanted in self._stepped_up:
            return
        self.challenge = challenge
        rights = one_line(wanted, MAX_REASON) or "it does not say which"
        raise self._needed(f"{_NOT_LOGGED_IN} with more rights: {rights}")

    async def log_in(self, redirect: str, ask: Ask) -> Login:
        """Have a person log in, and store the login. Raises `LoginFailed` or `ToolcribError`."""
        known = await self._vault.load(self.key)
        challenge = self.challenge
        if known is not None and _NEW_CLIENT in known.problem:
            known = replace(known, client={})
        login = await self._flow(known).log_in(challenge, redirect, ask)
        await self._vault.save(self.key, login)
        if challenge.is_step_up:
            self._stepped_up.add(challenge.scope)
        self.challenge = Challenge()
        self._loaded = True
        self._adopt(login)
        return login

    async def log_out(self) -> bool:
        """Delete the login; returns whether the authorization server has revoked it."""
        login = await self._vault.load(self.key)
        await self._vault.delete(self.key)
        self._login = None
        if login is None:
            return False
        try:
            return await self._flow().revoke(login)
        except LoginFailed as error:
            logger.info("%s: the login was not revoked: %s", self.options.name, error.reason)
            return False
