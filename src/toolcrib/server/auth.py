"""Who is calling: authenticators, and the ASGI layer that asks one."""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Final

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from toolcrib.errors import NotAuthenticated
from toolcrib.model import Caller
from toolcrib.protocols import Authenticator
from toolcrib.server.context import CALLER_KEY
from toolcrib.server.options import Token
from toolcrib.server.refusals import refusal

_SCHEME: Final = "bearer "
_HINT: Final = "Send the header Authorization: Bearer <token>, with a token that this server knows."


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


class Authenticated:
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
            await unknown(error)(scope, receive, send)
            return
        await self._app({**scope, CALLER_KEY: caller, "user": _principal(caller)}, receive, send)


def unknown(error: NotAuthenticated) -> JSONResponse:
    """What somebody unknown is answered."""
    return refusal(401, error, headers={"WWW-Authenticate": 'Bearer realm="toolcrib"'})


def _principal(caller: Caller) -> AuthenticatedUser:
    """The caller as the SDK's transport knows users: it binds a session to the one who opened it."""
    who = json.dumps([caller.tenant, caller.id])
    return AuthenticatedUser(AccessToken(token="", client_id=who, scopes=sorted(caller.scopes)))
