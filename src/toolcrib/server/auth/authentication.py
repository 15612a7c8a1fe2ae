"""Authenticate callers of the HTTP server.

Holds the authenticator of static tokens, the one that joins it with other credentials, the rules for hosts, and the
mapping between callers and users of the SDK's or FastMCP's own authentication. Knows nothing of MCP requests.
"""

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from toolcrib.checks import checked
from toolcrib.errors import InsufficientScope, NotAuthenticated, SettingsError
from toolcrib.server.options import HttpOptions, Token
from toolcrib.types import LOCAL, Authenticator, AuthenticatorWithRoutes, Caller

CALLER_KEY: Final = "toolcrib.caller"
"""ASGI scope key under which authentication leaves the caller."""
NO_TOKEN: Final = "No bearer token."  # noqa: S105 - a message
"""The message of the error for a request without credentials."""
CHALLENGE: Final = 'Bearer realm="toolcrib"'
"""The `WWW-Authenticate` header of a 401 response, unless the authenticator has its own."""
METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
"""Followed by the path of the resource (RFC 9728)."""
_NOT_VALID: Final = "The bearer token is not valid."
_SCHEME: Final = "bearer"
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - recognised, not bound
_HINT: Final = "Send the header Authorization: Bearer <token>, with a token that this server knows."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller, and what is known of the credential that it showed."""

    caller: Caller
    expires: float | None = None
    """When the credential expires, in seconds since the epoch; None if it does not."""
    is_own: bool = False
    """Whether the credential is toolcrib's own: a token of the settings, or an API key."""
    can_step_up: bool = False
    """Whether the caller can get a token with more scopes."""


@checked(methods=("replace",))
class StaticTokens:
    """Authenticator for a fixed set of bearer tokens. Look-up time does not depend on the secrets."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._identities: dict[bytes, Identity] = {}
        """By the digests of the tokens, so that no secret stays in memory here."""
        self.replace(tokens)

    def replace(self, tokens: Sequence[Token]) -> None:
        """Accept these tokens from now on, and no others."""
        self._identities = {
            token_digest(token.secret): Identity(
                caller=Caller(id=token.caller, tenant=token.tenant, scopes=token.scopes), is_own=True
            )
            for token in tokens
        }

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """The caller whose token the `authorization` header carries. Raises `NotAuthenticated`."""
        found = self.identity(bearer_token(headers))
        if found is None:
            raise NotAuthenticated(_NOT_VALID, hint=_HINT)
        return found.caller

    def identity(self, secret: str) -> Identity | None:
        """Whose token this is, or None."""
        return self._identities.get(token_digest(secret)) if self._identities else None


def check_not_local(caller: Caller) -> Caller:
    """The caller of a credential. Raises `NotAuthenticated` for one that would pass for `LOCAL`, who
    may do what only someone at this machine may; an authenticator that means it returns `LOCAL` itself.
    """
    if caller.id == LOCAL.id and caller.is_local and caller is not LOCAL:
        raise NotAuthenticated(
            f'The id "{LOCAL.id}" is that of the caller at this machine.',
            hint="Give the caller another id, or a tenant.",
        )
    return caller


def bearer_token(headers: Mapping[str, str]) -> str:
    """The token of the `authorization` header. Raises `NotAuthenticated` without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if not token or scheme.lower() != _SCHEME:
        raise NotAuthenticated(NO_TOKEN, hint=_HINT)
    return token


class RequestHead(Protocol):
    """What an authenticator sees of a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name."""

    @property
    def scope(self) -> Scope:
        """As ASGI has it."""


@runtime_checkable
class RequestAuthenticator(Authenticator, Protocol):
    """An authenticator that looks at more than the headers: where the request was sent, and through which proxy."""

    async def identify(self, request: RequestHead) -> Identity:
        """Raise like `authenticate`, and `InsufficientScope` or `ServerUnavailable`."""

    def challenge_for(self, scope: Scope, error: NotAuthenticated | InsufficientScope) -> str:
        """The `WWW-Authenticate` header of the response to this request."""

    def endpoint_paths(self) -> Sequence[str]:
        """Paths that are to be served in addition to the endpoint's own."""


@runtime_checkable
class ProtectedResource(RequestAuthenticator, Protocol):
    """An authenticator whose callers get their tokens from authorization servers."""

    def metadata(self, scope: Scope, path: str, mount: str) -> Response:
        """The metadata of the resource at a path of the host, or 404; `mount` is where the app is below the host."""


def token_digest(secret: str) -> bytes:
    """What is kept of a token in place of the token itself."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class OtherCredentials(Protocol):
    """Accepts credentials of one more kind, such as API keys."""

    def recognizes(self, secret: str) -> bool:
        """Whether the credential is of this kind, valid or not."""

    async def identity(self, secret: str) -> Identity:
        """The caller with this credential. Raises `NotAuthenticated`, or `StateUnavailable`."""


class Credentials:
    """Authenticator for everything that the settings accept: static tokens, keys, and tokens of issuers."""

    def __init__(
        self,
        tokens: Sequence[Token],
        *,
        keys: OtherCredentials | None = None,
        oauth: ProtectedResource | None = None,
    ) -> None:
        self._tokens = StaticTokens(tokens)
        self._keys = keys
        self._oauth = oauth

    def replace(
        self,
        tokens: Sequence[Token],
        *,
        keys: OtherCredentials | None = None,
        oauth: ProtectedResource | None = None,
    ) -> None:
        """Accept these from now on, and no others."""
        self._tokens.replace(tokens)
        self._keys, self._oauth = keys, oauth

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a request of which only the headers are known."""
        own = self._tokens.identity(secret := bearer_token(headers)) or await self._of_key(secret)
        if own is not None:
            return own.caller
        if self._oauth is None:
            raise NotAuthenticated(_NOT_VALID, hint=_HINT)
        return await self._oauth.authenticate(headers)

    async def identify(self, request: RequestHead) -> Identity:
        """The caller of a request. Raises `NotAuthenticated`, `InsufficientScope`, `ServerUnavailable`."""
        own = self._tokens.identity(secret := bearer_token(request.headers)) or await self._of_key(secret)
        if own is not None:
            return own
        if self._oauth is None:
            raise NotAuthenticated(_NOT_VALID, hint=_HINT)
        return await self._oauth.identify(request)

    async def _of_key(self, secret: str) -> Identity | None:
        is_key = self._keys is not None and self._keys.recognizes(secret)
        return await self._keys.identity(secret) if is_key and self._keys is not None else None

    def challenge_for(self, scope: Scope, error: NotAuthenticated | InsufficientScope) -> str:
        """The challenge, which leads to the issuers where there are any."""
        return CHALLENGE if self._oauth is None else self._oauth.challenge_for(scope, error)

    def endpoint_paths(self) -> Sequence[str]:
        """Paths of issuers that have one of their own."""
        return () if self._oauth is None else self._oauth.endpoint_paths()

    def routes(self, mount: str = "") -> Sequence[BaseRoute]:
        """The metadata of the issuers, wherever the settings have some by then."""

        async def metadata(request: Request) -> Response:
            oauth = self._oauth
            if oauth is None:
                return JSONResponse({"error": "not_found"}, status_code=404)
            return oauth.metadata(request.scope, request.path_params["path"], mount)

        return (Route(f"{METADATA_PATH}{{path:path}}", metadata, methods=["GET"]),)


def insufficient_scope(scopes: Iterable[str]) -> InsufficientScope:
    """The error for a token that needs all of these scopes."""
    needed = sorted(set(scopes))
    return InsufficientScope(
        "The access token lacks a scope that is needed.",
        hint=f"Log in again, and agree to: {', '.join(needed)}.",
        data={"scopes": needed},
    )


def extra_paths(authenticator: Authenticator | None) -> Sequence[str]:
    """Paths that the authenticator wants served beside the endpoint's own."""
    return authenticator.endpoint_paths() if isinstance(authenticator, RequestAuthenticator) else ()


def choose_authenticator(options: HttpOptions, authenticator: Authenticator | None) -> Authenticator | None:
    """The given authenticator, else one for the options' tokens; None where only this machine can connect.

    Raises `SettingsError` when other machines could reach the server and nothing authenticates them.
    """
    if authenticator is None and options.tokens:
        return StaticTokens(options.tokens)
    if authenticator is None and not is_loopback(options.host):
        raise SettingsError(
            f"Refusing to serve on {options.host} without a token: anyone who can reach it could call every tool.",
            hint="Set http.tokens or auth.issuers in the settings, or TOOLCRIB_TOKEN, or bind to 127.0.0.1.",
        )
    return authenticator


def authenticator_routes(authenticator: Authenticator | None) -> Sequence[BaseRoute]:
    """The routes that the authenticator wants served without authentication, such as OAuth metadata."""
    return tuple(authenticator.routes()) if isinstance(authenticator, AuthenticatorWithRoutes) else ()


def caller_of_user(user: object) -> Caller | None:
    """The caller for a user of the SDK's or FastMCP's authentication; None for any other object.

    The id is the token's subject and the tenant its issuer, because subjects are unique per issuer only. Without an
    issuer the id is `client/subject`, and without a subject the client, or `local/` for one named `local`. A slash
    within a part is written `%2F`.
    """
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser  # noqa: PLC0415 - takes long to import

    return _caller_of_token(user.access_token) if isinstance(user, AuthenticatedUser) else None


def sdk_caller(scope: Scope | None) -> Caller | None:
    """The caller that the surrounding server authenticated: for this HTTP request or, without a scope, for the
    request that led to this code.
    """
    if scope is not None:
        return None if (user := scope.get("user")) is None else caller_of_user(user)
    from mcp.server.auth.middleware.auth_context import get_access_token  # noqa: PLC0415 - as above

    token = get_access_token()
    return None if token is None else _caller_of_token(token)


def sdk_credential(scope: Scope) -> object:
    """What alone may use a session that a request opens, as the surrounding server says; None if it does not."""
    if (user := scope.get("user")) is None:
        return None
    from mcp.server.auth.middleware.bearer_auth import (  # noqa: PLC0415 - as above
        AuthenticatedUser,
        authorization_context,
    )

    return authorization_context(user) if isinstance(user, AuthenticatedUser) else None


def _caller_of_token(token: Any) -> Caller | None:
    from mcp.server.auth.provider import principal_components  # noqa: PLC0415 - as above

    client, issuer, subject = principal_components(token)
    scopes = frozenset(token.scopes)
    if subject and issuer:
        return Caller(id=subject, tenant=issuer, scopes=scopes, issuer=issuer)
    if subject and subject != client:
        return Caller(id=f"{_escape(client)}/{_escape(subject)}", tenant=issuer, scopes=scopes)
    found = Caller(id=_escape(client), tenant=issuer, scopes=scopes) if client else None
    return replace(found, id=f"{found.id}/") if found is not None and found.is_local else found


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


def is_from_elsewhere(client: tuple[str, int] | None) -> bool:
    """Whether a request of this client comes from another machine. A socket in the file system has no address.

    >>> [is_from_elsewhere((host, 1)) for host in ("127.0.0.2", "::1", "::ffff:127.0.0.1", "", "10.0.0.7")]
    [False, False, False, False, True]
    """
    return client is not None and _is_of_another_machine(client[0])


@lru_cache(maxsize=1024)
def _is_of_another_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return not (mapped or address).is_loopback


class HostRules:
    """Which Host and Origin headers are accepted."""

    def __init__(self, options: HttpOptions) -> None:
        everywhere = options.host in _WILDCARDS
        self.any_host = everywhere and not options.allowed_hosts
        own = {*_LOOPBACK_NAMES} if everywhere or is_loopback(options.host) else set()
        own |= set() if everywhere else {url_host(options.host)}
        self._allowed = _lower_all(options.allowed_hosts)
        self._hosts = _lower_all((*(f"{name}:*" for name in own), *own)) | self._allowed
        self._own = _lower_all(own)
        self._origins = _lower_all(options.allowed_origins)

    def allows(self, host: str) -> bool:
        """Whether requests to this host, in lower case, are served."""
        return self.any_host or _matches(host, self._hosts)

    def is_named(self, host: str) -> bool:
        """Whether the settings themselves name the host, which is in lower case."""
        return _matches(host, self._allowed)

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether pages of this origin may send requests to the host; both are in lower case."""
        return _matches(origin, self._origins) or self._is_own_origin(origin, host)

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this server itself sent the request: other ports of this machine are other sites."""
        scheme, _, address = origin.partition("://")
        name = address if address in self._own else address.rpartition(":")[0]
        return scheme in ("http", "https") and address == host and name in self._own


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
