"""The gateway as an OAuth 2.1 protected resource: access tokens to callers, challenges, and metadata (RFC 9728).

Keys and issuers are in `toolcrib.server.auth.issuers`. A token is verified once and remembered by its hash, in a
bounded cache, until it expires or is due for another look.
"""

import asyncio
import hashlib
import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from toolcrib.checks import checked
from toolcrib.errors import InsufficientScope, NotAuthenticated, SettingsError
from toolcrib.server.auth.authentication import (
    METADATA_PATH,
    NO_TOKEN,
    HostRules,
    Identity,
    RequestHead,
    bearer_token,
    insufficient_scope,
    is_loopback,
    path_below_mount,
)
from toolcrib.server.auth.issuers import LOG_IN, Fetch, Issuer, IssuerFetch, KeySet, seconds, unverified_issuer
from toolcrib.server.options import AuthOptions, HttpOptions, IssuerOptions, allows_tenant
from toolcrib.types import Caller

_MAX_REMEMBERED: Final = 10_000
"""Tokens that are remembered per path."""
_MAX_NAMES: Final = 1000
"""Scopes, roles or groups of one token."""
_MAX_ID_CHARS: Final = 256
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_HOST: Final = re.compile(r"[a-z0-9._-]+(:\d{1,5})?|\[[0-9a-f:.]+\](:\d{1,5})?")
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_PUBLIC: Final = {"Access-Control-Allow-Origin": "*", "Cache-Control": "max-age=300"}
_NOT_SERVED: Final = "There is no protected resource at this path."


class RememberedTokens:
    """Identities by the hash of their token, for as long as nothing has to be verified again."""

    def __init__(self, max_entries: int = _MAX_REMEMBERED) -> None:
        self._max_entries = max_entries
        self._entries: dict[tuple[bytes, str], tuple[float, Identity]] = {}

    def get(self, digest: bytes, resource: str, now: float) -> Identity | None:
        """What was remembered for this token at this resource; None if it is due for another look."""
        found = self._entries.get((digest, resource))
        return found[1] if found is not None and found[0] > now else None

    def knows(self, digest: bytes, resource: str) -> bool:
        """Whether the token was valid when it was last looked at."""
        return (digest, resource) in self._entries

    def forget(self, digest: bytes, resource: str) -> None:
        """Forget a token that is valid no longer."""
        self._entries.pop((digest, resource), None)

    def add(self, digest: bytes, resource: str, identity: Identity, until: float) -> None:
        """Remember an identity; the oldest one is forgotten when there are too many."""
        self._entries.pop((digest, resource), None)
        if len(self._entries) >= self._max_entries:
            del self._entries[next(iter(self._entries))]
        self._entries[(digest, resource)] = (until, identity)


@dataclass(slots=True)
class _Realm:
    """The issuers of one path, and the tokens that were verified for it."""

    path: str
    resource: str
    """Its address, without a slash at the end; empty if requests say it."""
    issuers: dict[str, Issuer] = field(default_factory=dict)
    opaque: Issuer | None = None
    """The one that is asked about tokens that are no JWTs."""
    remembered: RememberedTokens = field(default_factory=RememberedTokens)


@checked
class OAuthResource:
    """Authenticator for access tokens of authorization servers.

    Use it by itself, or inside an authenticator of your own whose `challenge` and `routes` return what these do. With
    `authenticate`, which sees headers only, `auth.resource` or the issuers' `audience` must say what tokens are for.

    >>> from toolcrib.server.options import AuthOptions, IssuerOptions
    >>> acme = IssuerOptions(issuer="https://login.example/acme")
    >>> oauth = OAuthResource(AuthOptions(issuers=(acme,), resource="https://tools.example/mcp"))
    >>> oauth.challenge(NotAuthenticated("No bearer token."))
    'Bearer resource_metadata="https://tools.example/.well-known/oauth-protected-resource/mcp"'
    """

    def __init__(
        self,
        auth: AuthOptions,
        http: HttpOptions | None = None,
        *,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Accept tokens of `auth.issuers` for the endpoint that `http` describes. Nothing is read until a token comes.

        `fetch` reads JSON from issuers, instead of HTTP. Raises `SettingsError` for options that cannot be used.
        """
        for at, message in auth.problems():
            raise SettingsError(f"auth.{'.'.join(map(str, at))} {message}.")
        self.auth = auth
        self._address = ExternalAddress(http or HttpOptions())
        self._path = (http or HttpOptions()).path.rstrip("/")
        self._base = auth.resource.rstrip("/").removesuffix(self._path)
        self._clock = clock
        self._checking: dict[tuple[bytes, str], asyncio.Task[Identity]] = {}
        fetch = fetch or IssuerFetch(auth.private_hosts)
        self._realms: dict[str, _Realm] = {}
        for options in auth.issuers:
            path = "" if options.path == self._path else options.path
            fixed = f"{self._base}{path}" if path and self._base else auth.resource.rstrip("/")
            realm = self._realms.setdefault(path, _Realm(path, fixed))
            issuer = Issuer(options, auth, KeySet(options, fetch), fetch)
            realm.issuers[options.issuer] = issuer
            if options.introspection_url:
                realm.opaque = issuer

    # -- tokens ------------------------------------------------------------------------------------------------------

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """The caller of the access token in `authorization`.

        Raises `NotAuthenticated`, `InsufficientScope`, or `ServerUnavailable` if an issuer cannot be asked.
        """
        realm = self._realms.get("")
        if realm is None:
            raise NotAuthenticated("The access token's issuer is not one that is accepted here.", hint=LOG_IN)
        return (await self._identity(bearer_token(headers), realm, self.auth.resource)).caller

    async def identify(self, request: RequestHead) -> Identity:
        """The same for a request, with what is known of its token."""
        scope = request.scope
        token, realm = bearer_token(request.headers), self._realm_of(scope)
        if realm is None:
            raise NotAuthenticated("No access tokens are accepted at this path.")
        return await self._identity(token, realm, self._resource(scope, realm))

    async def _identity(self, token: str, realm: _Realm, resource: str) -> Identity:
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        remembered = realm.remembered.get(digest, resource, self._clock())
        if remembered is not None:
            return remembered
        # Requests that come with the same new token wait for one look at it.
        key = (digest, f"{realm.path} {resource}")
        task = self._checking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._look(token, digest, realm, resource))
            self._checking[key] = task
            task.add_done_callback(lambda done: self._checked(key, done))
        return await asyncio.shield(task)

    def _checked(self, key: tuple[bytes, str], task: "asyncio.Task[Identity]") -> None:
        self._checking.pop(key, None)
        if not task.cancelled():
            task.exception()  # every request that waits raises it; it may be none

    async def _look(self, token: str, digest: bytes, realm: _Realm, resource: str) -> Identity:
        try:
            return await self._check(token, digest, realm, resource)
        except (NotAuthenticated, InsufficientScope):
            realm.remembered.forget(digest, resource)
            raise

    async def _check(self, token: str, digest: bytes, realm: _Realm, resource: str) -> Identity:
        auth, named = self.auth, unverified_issuer(token)
        if named is None:
            if realm.opaque is None:
                raise NotAuthenticated("The bearer token is not valid.", hint=LOG_IN)
            issuer, lasts_s = realm.opaque, auth.introspect_s
            claims = await issuer.introspect(token, is_known=realm.remembered.knows(digest, resource))
        else:
            known = realm.issuers.get(named) if isinstance(named, str) else None
            if known is None:
                raise NotAuthenticated("The access token's issuer is not one that is accepted here.", hint=LOG_IN)
            issuer, lasts_s = known, auth.recheck_s
            claims = await issuer.verify(token)
        _check_audience(claims, issuer.options.audience or (resource,))
        identity = self._to_identity(claims, issuer.options)
        now = self._clock()
        until = min(now + lasts_s, identity.expires if identity.expires is not None else now + lasts_s)
        realm.remembered.add(digest, resource, identity, until)
        return identity

    def _to_identity(self, claims: Mapping[str, Any], options: IssuerOptions) -> Identity:
        caller = claims_to_caller(claims, options)
        if not caller.scopes >= frozenset(self.auth.scopes):
            raise insufficient_scope({*self.auth.scopes, *caller.scopes})
        expires = seconds(claims.get("exp"))
        ends = None if expires is None else expires + self.auth.leeway_s
        return Identity(caller=caller, expires=ends, can_step_up=self.auth.step_up)

    # -- addresses -----------------------------------------------------------------------------------------------------

    def check_hosts(self) -> None:
        """Raise `SettingsError` if a request with another Host header could use tokens that are for other servers."""
        derived = any(not realm.resource and not issuer.options.audience for realm, issuer in self._all())
        if derived and not self._address.is_known:
            raise SettingsError(
                "The address that access tokens must be issued for is not known.",
                hint="Set auth.resource to the address that clients use, such as https://tools.example/mcp.",
            )

    def _all(self) -> Iterator[tuple[_Realm, Issuer]]:
        return ((realm, issuer) for realm in self._realms.values() for issuer in realm.issuers.values())

    def endpoint_paths(self) -> Sequence[str]:
        """Paths of issuers that have one of their own."""
        return tuple(path for path in self._realms if path)

    def _realm_of(self, scope: Scope) -> _Realm | None:
        realm = self._realms.get(path_below_mount(scope).rstrip("/"))
        return self._realms.get("") if realm is None else realm

    def _resource(self, scope: Scope, realm: _Realm) -> str:
        """The address that tokens of a request must be for, without a slash at the end."""
        return realm.resource or f"{self._address.base(scope)}{scope['path']}".rstrip("/")

    def challenge(self, error: NotAuthenticated | InsufficientScope) -> str:
        """The `WWW-Authenticate` header for an error, if `auth.resource` says the address."""
        return self._challenge(error, self.auth.resource)

    def challenge_for(self, scope: Scope, error: NotAuthenticated | InsufficientScope) -> str:
        """The same for the address of a request."""
        realm = self._realm_of(scope)
        slash = "/" if scope["path"].endswith("/") else ""
        return self._challenge(error, "" if realm is None else self._resource(scope, realm) + slash)

    def _challenge(self, error: NotAuthenticated | InsufficientScope, resource: str) -> str:
        parts = []
        if isinstance(error, InsufficientScope):
            parts.append(("error", "insufficient_scope"))
        elif error.message != NO_TOKEN:
            parts.append(("error", "invalid_token"))
        if parts:
            parts.append(("error_description", re.sub(r"[^ !#-\[\]-~]", "'", error.message)))
        if resource:
            parts.append(("resource_metadata", metadata_url(resource)))
        scopes = error.data.get("scopes", ()) if isinstance(error, InsufficientScope) else self.auth.scopes
        if usable := [scope for scope in scopes if _SCOPE.fullmatch(scope)]:
            parts.append(("scope", " ".join(usable)))
        written = ", ".join(f'{name}="{value}"' for name, value in parts)
        return f"Bearer {written}".rstrip()

    def routes(self, mount: str = "") -> Sequence[BaseRoute]:
        """The route of the metadata, at the root of a host: an app that is mounted gives it to the app around it."""

        async def metadata(request: Request) -> Response:
            return self.metadata(request.scope, request.path_params["path"], mount)

        return (Route(f"{METADATA_PATH}{{path:path}}", metadata, methods=["GET"]),)

    def metadata(self, scope: Scope, path: str, mount: str = "") -> Response:
        """The metadata of the resource at a path of the host, or 404; `mount` is where the app is below the host."""
        wanted = path.rstrip("/")
        for realm in sorted(self._realms.values(), key=lambda one: not one.path):
            if realm.resource:
                resource = realm.resource if urlsplit(realm.resource).path.rstrip("/") == wanted else ""
            else:
                resource = self._derived(scope, wanted, realm, mount.rstrip("/"))
            if resource:
                shown = resource + ("/" if path.endswith("/") else "")
                return JSONResponse(self._document(realm, shown), headers=_PUBLIC)
        return JSONResponse({"error": "not_found", "error_description": _NOT_SERVED}, status_code=404)

    def _derived(self, scope: Scope, wanted: str, realm: _Realm, mount: str) -> str:
        """The address of a path, if it is one of this realm's; empty otherwise."""
        base = self._address.base(scope)
        prefix = urlsplit(base).path
        own = f"{prefix}{mount}{realm.path}" if mount or realm.path else f"{prefix}{self._path}"
        below = bool(mount) and not realm.path and wanted.startswith(f"{own}/")
        fits = not scope.get("root_path") and (wanted == own or below)
        return f"{base.removesuffix(prefix)}{wanted}" if fits and base else ""

    def _document(self, realm: _Realm, resource: str) -> dict[str, Any]:
        document: dict[str, Any] = {
            "resource": resource,
            "authorization_servers": list(realm.issuers),
            "bearer_methods_supported": ["header"],
        }
        return {**document, "scopes_supported": list(self.auth.scopes)} if self.auth.scopes else document


def metadata_url(resource: str) -> str:
    """Where the metadata of a resource is.

    >>> metadata_url("https://tools.example/mcp"), metadata_url("https://tools.example/")
    ('https://tools.example/.well-known/oauth-protected-resource/mcp', 'https://tools.example/.well-known/oauth-protected-resource')
    """
    parts = urlsplit(resource)
    return f"{parts.scheme}://{parts.netloc}{METADATA_PATH}{'' if parts.path == '/' else parts.path}"


class ExternalAddress:
    """The address by which clients reach a request's endpoint, as the Host header or a trusted proxy says."""

    def __init__(self, http: HttpOptions) -> None:
        self._networks = tuple(_network(text) for text in http.trusted_proxies)
        self._rules = HostRules(http)
        self.is_known = not self._rules.any_host
        """Whether only certain hosts are accepted."""

    def base(self, scope: Scope) -> str:
        """Scheme, host and the prefix that a proxy removed, without a slash at the end; empty for an unknown host."""
        headers = Headers(scope=scope)
        trusted = self._is_trusted(scope)
        named = _last(headers, "x-forwarded-host") if trusted else ""
        host = named.lower() if named and self._rules.allows(named.lower()) else headers.get("host", "").lower()
        if not _HOST.fullmatch(host) or not self._rules.allows(host):
            return ""
        name, port = host.removesuffix(f":{host.rpartition(':')[2]}"), (scope.get("server") or ("", None))[1]
        if not named and port is not None and is_loopback(name):
            host = f"{name}:{port}"  # other ports of this machine are other servers
        scheme = self.scheme(scope)
        prefix = _last(headers, "x-forwarded-prefix").rstrip("/") if trusted else ""
        if scheme not in _DEFAULT_PORTS or not _PREFIX.fullmatch(prefix):
            return ""
        return f"{scheme}://{host.removesuffix(_DEFAULT_PORTS[scheme])}{prefix}"

    def scheme(self, scope: Scope) -> str:
        """The scheme by which the client reached the first proxy that is trusted, or this server, in lower case."""
        named = _last(Headers(scope=scope), "x-forwarded-proto") if self._is_trusted(scope) else ""
        return (named or str(scope.get("scheme", "http"))).lower()

    def client(self, scope: Scope) -> str:
        """The address of the client, as a trusted proxy says if the request came from one; empty if it is unknown."""
        peer = scope.get("client")
        named = _last(Headers(scope=scope), "x-forwarded-for") if self._is_trusted(scope) else ""
        return named or (str(peer[0]) if peer else "")

    def _is_trusted(self, scope: Scope) -> bool:
        peer = scope.get("client")
        if not self._networks or not peer:
            return False
        try:
            address = ipaddress.ip_address(peer[0].partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise SettingsError(
            f"http.trusted_proxies: {text:.60} is not an address.", hint="Such as 10.0.0.7 or 10.0.0.0/8."
        ) from error


def _last(headers: Headers, name: str) -> str:
    """The last value of a header: what the nearest proxy added."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


# -- claims ------------------------------------------------------------------------------------------------------------


def _check_audience(claims: Mapping[str, Any], accepted: Iterable[str]) -> None:
    given = claims.get("aud")
    audiences = {_normal(one) for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)}
    if audiences.isdisjoint(_normal(one) for one in accepted if one):
        raise NotAuthenticated(
            "The access token was made for another server.",
            hint="Log in for this server; its metadata has its address.",
        )


def _normal(audience: str) -> str:
    """An audience as it is compared: hosts in lower case, and without a slash at the end.

    >>> _normal("HTTPS://Tools.Example/mcp/"), _normal("api://Tools")
    ('https://tools.example/mcp', 'api://Tools')
    """
    try:
        parts = urlsplit(audience) if audience[:4].lower() == "http" else None
    except ValueError:
        parts = None
    if parts is None:
        return audience
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}" + (
        f"?{parts.query}" if parts.query else ""
    )


def claims_to_caller(claims: Mapping[str, Any], options: IssuerOptions) -> Caller:
    """The caller that the claims of a verified token describe. Raises `NotAuthenticated`."""
    scopes = _names(claims, options.scopes_claim) if options.scopes_claim else _standard_scopes(claims)
    return Caller(
        id=_word(claims, options.caller_claim),
        tenant=_tenant(claims, options),
        scopes=scopes,
        issuer=options.issuer,
        roles=_names(claims, options.roles_claim),
        groups=_names(claims, options.groups_claim),
    )


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots between them.

    >>> claim({"https://a.b/roles": ["x"], "realm_access": {"roles": ["y"]}}, "realm_access.roles")
    ['y']
    """
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _names(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """The names in a claim: a list, or one text with spaces."""
    value = claim(claims, name) if name else None
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    return frozenset(word for word in words[:_MAX_NAMES] if isinstance(word, str) and word)


def _standard_scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    return _names(claims, "scope") or _names(claims, "scp")


def _word(claims: Mapping[str, Any], name: str) -> str:
    value = claim(claims, name)
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_ID_CHARS:
        raise NotAuthenticated(f"The access token does not say who its caller is: it has no usable claim {name}.")
    return value


def _tenant(claims: Mapping[str, Any], options: IssuerOptions) -> str:
    """The tenant of a caller; by default its issuer, because ids are unique for one issuer only."""
    if not options.tenant_claim:
        return options.tenant or options.issuer
    tenant = _word(claims, options.tenant_claim)
    if not allows_tenant(options.tenants, tenant):
        raise NotAuthenticated("The access token's tenant is not one that is accepted here.")
    return tenant
