"""Authenticate callers of the HTTP server.

Holds the bearer-token authenticator, the ASGI middleware that runs an authenticator, and the mapping from users of
the SDK's or FastMCP's own authentication to callers. Knows nothing of MCP requests.
"""

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Final

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, principal_components
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib.errors import NotAuthenticated, SettingsError
from toolcrib.server.error_responses import error_response
from toolcrib.server.options import HttpOptions, Token
from toolcrib.types import Authenticator, Caller

_SCHEME: Final = "bearer "


_TOKEN_HINT: Final = "Send the header Authorization: Bearer <token>, with a token that this server knows."


class StaticTokens:
    """A fixed set of bearer tokens. How long a look-up takes does not depend on the secrets."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        """Keeps digests only."""
        self._callers = [
            (_digest(token.secret), Caller(id=token.caller, tenant=token.tenant, scopes=token.scopes))
            for token in tokens
        ]

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """The caller whose token the `authorization` header carries. Raises `NotAuthenticated`."""
        given = headers.get("authorization", "")
        if given[: len(_SCHEME)].lower() != _SCHEME:
            raise NotAuthenticated("No bearer token.", hint=_TOKEN_HINT)
        digest = _digest(given[len(_SCHEME) :].strip())
        found: Caller | None = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise NotAuthenticated("The bearer token is not valid.", hint=_TOKEN_HINT)
        return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class AuthenticationMiddleware:
    """ASGI: lets a request through with its caller in the scope, or answers 401."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        """Wrap an ASGI app."""
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._authenticator.authenticate(Headers(scope=scope))
        except NotAuthenticated as error:
            await unauthorized(error)(scope, receive, send)
            return
        await self._app({**scope, CALLER_KEY: caller, "user": _sdk_user(caller)}, receive, send)


def unauthorized(error: NotAuthenticated) -> JSONResponse:
    """What somebody unknown is answered."""
    return error_response(401, error, headers={"WWW-Authenticate": 'Bearer realm="toolcrib"'})


def _sdk_user(caller: Caller) -> AuthenticatedUser:
    """The caller as the SDK's transport knows users: it binds a session to the one who opened it."""
    who = json.dumps([caller.tenant, caller.id])
    return AuthenticatedUser(AccessToken(token="", client_id=who, scopes=sorted(caller.scopes)))


def caller_of_user(user: object) -> Caller | None:
    """The caller that a user of the SDK's, or FastMCP's, authentication is; None for anybody else.

    He is the token's subject, whose tenant is the issuer, for whom alone subjects differ. Where the token names no
    issuer, it is `client/subject`, and the client where it names no subject either. A slash within is written `%2F`.
    """
    return _caller_of_token(user.access_token) if isinstance(user, AuthenticatedUser) else None


def sdk_caller(scope: Scope | None) -> Caller | None:
    """Whom the server around knows: of this HTTP request, or, without one, of the request that led to it."""
    if scope is not None:
        return caller_of_user(scope.get("user"))
    token = get_access_token()
    return None if token is None else _caller_of_token(token)


def _caller_of_token(token: AccessToken) -> Caller | None:
    client, issuer, subject = principal_components(token)
    scopes = frozenset(token.scopes)
    if subject and issuer:
        return Caller(id=subject, tenant=issuer, scopes=scopes)
    if subject and subject != client:
        return Caller(id=f"{_escape(client)}/{_escape(subject)}", tenant=issuer, scopes=scopes)
    return Caller(id=_escape(client), tenant=issuer, scopes=scopes) if client else None


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


CALLER_KEY: Final = "toolcrib.caller"
"""Where the authentication leaves the caller in the ASGI scope."""


def require_authentication(app: ASGIApp, options: HttpOptions, authenticator: Authenticator | None) -> ASGIApp:
    """The app, behind whoever is to be asked for the caller.

    Raises `SettingsError` when others could reach it and nobody is asked who he is.
    """
    if authenticator is None and options.tokens:
        authenticator = StaticTokens(options.tokens)
    if authenticator is None and not is_loopback(options.host):
        raise SettingsError(
            f"Refusing to serve on {options.host} without a token: anybody who reaches it could call every tool.",
            hint="Set http.tokens in the configuration, or TOOLCRIB_TOKEN, or bind to 127.0.0.1.",
        )
    return app if authenticator is None else AuthenticationMiddleware(app, authenticator)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0"), is_loopback("example.com")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
