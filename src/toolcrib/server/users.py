"""Users whom the authentication of somebody else's server knows, as callers."""

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, principal_components
from starlette.types import Scope

from toolcrib.model import Caller


def caller_of(user: object) -> Caller | None:
    """The caller that a user of the SDK's, or FastMCP's, authentication is; None for anybody else.

    He is the token's subject, whose tenant is the issuer, for whom alone subjects differ. Where the token names no
    issuer, it is `client/subject`, and the client where it names no subject either. A slash within is written `%2F`.
    """
    return _caller(user.access_token) if isinstance(user, AuthenticatedUser) else None


def known_user(scope: Scope | None) -> Caller | None:
    """Whom the server around knows: of this HTTP request, or, without one, of the request that led to it."""
    if scope is not None:
        return caller_of(scope.get("user"))
    token = get_access_token()
    return None if token is None else _caller(token)


def _caller(token: AccessToken) -> Caller | None:
    client, issuer, subject = principal_components(token)
    scopes = frozenset(token.scopes)
    if subject and issuer:
        return Caller(id=subject, tenant=issuer, scopes=scopes)
    if subject and subject != client:
        return Caller(id=f"{_part(client)}/{_part(subject)}", tenant=issuer, scopes=scopes)
    return Caller(id=_part(client), tenant=issuer, scopes=scopes) if client else None


def _part(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")
