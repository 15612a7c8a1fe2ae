"""Authenticate callers of the HTTP server.

Holds the bearer-token authenticator, and the mapping between callers and users of the SDK's or FastMCP's own
authentication. Knows nothing of MCP requests.
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
from starlette.routing import BaseRoute
from starlette.types import Scope

from toolcrib.checks import checked
from toolcrib.errors import NotAuthenticated, SettingsError
from toolcrib.server.options import HttpOptions, Token
from toolcrib.types import Authenticator, AuthenticatorWithRoutes, Caller

CALLER_KEY: Final = "toolcrib.caller"
"""ASGI scope key under which authentication leaves the caller."""

_SCHEME: Final = "bearer "
_HINT: Final = "Send the header Authorization: Bearer <token>, with a token that this server knows."


@checked(methods=("replace",))
class StaticTokens:
    """Authenticator for a fixed set of bearer tokens. Look-up time does not depend on the secrets."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._callers: list[tuple[bytes, Caller]] = []
        self.replace(tokens)

    def replace(self, tokens: Sequence[Token]) -> None:
        """Accept these tokens from now on, and no others."""
        # Digests only, so that no secret stays in memory here.
        self._callers = [
            (_digest(token.secret), Caller(id=token.caller, tenant=token.tenant, scopes=token.scopes))
            for token in tokens
        ]

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """The caller whose token the `authorization` header carries. Raises `NotAuthenticated`."""
        given = headers.get("authorization", "")
        if given[: len(_SCHEME)].lower() != _SCHEME:
            raise NotAuthenticated("No bearer token.", hint=_HINT)
        digest = _digest(given[len(_SCHEME) :].strip())
        found: Caller | None = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise NotAuthenticated("The bearer token is not valid.", hint=_HINT)
        return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def choose_authenticator(options: HttpOptions, authenticator: Authenticator | None) -> Authenticator | None:
    """The given authenticator, else one for the options' tokens; None where only this machine can connect.

    Raises `SettingsError` when other machines could reach the server and nothing authenticates them.
    """
    if authenticator is None and options.tokens:
        return StaticTokens(options.tokens)
    if authenticator is None and not is_loopback(options.host):
        raise SettingsError(
            f"Refusing to serve on {options.host} without a token: anyone who can reach it could call every tool.",
            hint="Set http.tokens in the configuration, or TOOLCRIB_TOKEN, or bind to 127.0.0.1.",
        )
    return authenticator


def authenticator_routes(authenticator: Authenticator | None) -> Sequence[BaseRoute]:
    """The routes that the authenticator wants served without authentication, such as OAuth metadata."""
    return tuple(authenticator.routes()) if isinstance(authenticator, AuthenticatorWithRoutes) else ()


def sdk_user(caller: Caller) -> AuthenticatedUser:
    """The caller as a user of the SDK, whose transport binds each session to the user that opened it."""
    identity = json.dumps([caller.tenant, caller.id])
    return AuthenticatedUser(AccessToken(token="", client_id=identity, scopes=sorted(caller.scopes)))


def caller_of_user(user: object) -> Caller | None:
    """The caller for a user of the SDK's or FastMCP's authentication; None for any other object.

    The id is the token's subject and the tenant its issuer, because subjects are unique per issuer only. Without an
    issuer the id is `client/subject`, and without a subject the client. A slash within a part is written `%2F`.
    """
    return _caller_of_token(user.access_token) if isinstance(user, AuthenticatedUser) else None


def sdk_caller(scope: Scope | None) -> Caller | None:
    """The caller that the surrounding server authenticated: for this HTTP request or, without a scope, for the
    request that led to this code.
    """
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0"), is_loopback("example.com")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
