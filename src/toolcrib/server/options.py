"""Server settings: the HTTP address, its guards, static bearer tokens, and authorization servers.

Frozen values without heavy imports, so that reading settings does not load the server.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from toolcrib.checks import ABOVE_0_S, Count, Delay, Seconds, checked, whole_from
from toolcrib.file_values import InFiles, Text, quoted
from toolcrib.types import LOCAL, Caller

HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths that need no token; their responses identify no caller."""


def caller_problem(caller: str, tenant: str | None) -> str:
    """Why a credential cannot be one of this caller; empty if it can.

    >>> caller_problem("local", None), caller_problem("local", "acme")
    ('cannot be "local", who is the caller at this machine; choose another name, or give it a tenant', '')
    """
    if Caller(id=caller, tenant=tenant).is_local:
        return f'cannot be "{LOCAL.id}", who is the caller at this machine; choose another name, or give it a tenant'
    return ""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A static bearer token and the caller that it identifies."""

    secret: str
    caller: str
    tenant: str | None = None
    scopes: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for a secret that anyone or no one could send, and for the caller at this machine."""
        if not self.secret.strip():
            raise ValueError("secret must not be empty, because anyone could send that")
        if self.secret != self.secret.strip():
            raise ValueError("secret must not begin or end with a space, because no header carries that; strip it")
        if problem := caller_problem(self.caller, self.tenant):
            raise ValueError(f"caller {problem}")

    def __repr__(self) -> str:
        # Never show the secret.
        return f"Token(caller={self.caller!r}, tenant={self.tenant!r}, scopes={sorted(self.scopes)!r})"


def _path_problem(path: str) -> str:
    if path.rstrip("/") in HEALTH_PATHS:
        return f"cannot be {path}, which answers health checks; choose another path, such as /mcp"
    return "" if path.startswith("/") else f'must begin with "/", not {quoted(path)}'


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where the server listens for HTTP, and who may connect."""

    host: Text = "127.0.0.1"
    port: Annotated[int, whole_from(0, 65535)] = 8000
    path: Annotated[Text, InFiles(_path_problem)] = "/mcp"
    tokens: tuple[Token, ...] = ()
    """Who may connect. Empty means anyone, which is allowed only on a loopback address."""
    allowed_hosts: tuple[str, ...] = ()
    """Host header values accepted in addition to the address itself; `name:*` means any port."""
    allowed_origins: tuple[str, ...] = ()
    """Origin header values accepted in addition to the address itself."""
    max_body_bytes: Annotated[Count, InFiles(whole_from(1024))] = 4 * 1024 * 1024
    """The largest request body, in bytes."""
    max_body_nodes: Count = 200_000
    """Values and keys in the JSON of a request."""
    max_head_bytes: Annotated[Count, InFiles(whole_from(1024))] = 64 * 1024
    """The largest head of a request, in bytes: its URL and headers."""
    max_headers: Count = 100
    """Headers of one request."""
    max_url_bytes: Count = 8192
    """The longest URL of a request, in bytes."""
    head_timeout_s: Seconds = 10
    """How long the head of a request may take to arrive, in seconds, from the connection or its first byte."""
    body_timeout_s: Seconds = 30
    """The same for its body."""
    max_pending_bytes: Count = 128 * 1024 * 1024
    """Bodies of requests that have yet to be answered, in bytes."""
    max_pending_bytes_per_caller: Count = 32 * 1024 * 1024
    """Those of one caller, or of one address if no caller has to authenticate."""
    max_unread_bytes: Count = 256 * 1024 * 1024
    """Answers that clients have yet to read, in bytes."""
    max_unread_bytes_per_peer: Count = 64 * 1024 * 1024
    """Those of one address, or of IPv6 one /64 network."""
    max_streams: Count = 4096
    """Open streams of events: those of sessions, and of `subscriptions/listen`."""
    max_streams_per_caller: Count = 512
    """Those of one caller, or of one address if no caller has to authenticate."""
    max_connections: Count = 4096
    """Open connections; fewer if the process may not open so many files."""
    max_connections_per_peer: Count = 1024
    """Open connections from one address, or of IPv6 one /64 network."""
    max_sessions: Count = 10_000
    """Sessions of clients before 2026-07-28."""
    max_sessions_per_caller: Count = 256
    """Those of one caller, or of one address if no caller has to authenticate."""
    session_idle_s: Seconds = 300
    """How long such a session lasts without a request, in seconds; at most a minute before it is used at all."""
    keep_alive_s: Seconds = 75
    """How long a connection without a request stays open, in seconds."""
    replica_url: Text = ""
    """Where other processes that share the state reach this one, such as `http://10.0.0.7:8000`; empty for its own
    address.
    """
    workers: Count = 1
    """Processes that `toolcrib serve` runs for this address; with more than one, another one watches over them."""
    drain_s: Annotated[Delay, InFiles(ABOVE_0_S)] = 2.5
    """How long running calls may take to finish after SIGTERM, in seconds."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies that are believed: their `X-Forwarded-Host`, `-Proto`, `-Prefix` and `-For`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Which of several processes at one address this one is."""

    number: int
    """From 1. While one worker replaces another, both have the same number."""
    count: int
    folder: Path
    """For files of the workers, such as their own sockets; no other user may look into it. It is removed at the end."""
    sockets: Mapping[str, socket.socket]
    """Listening sockets that all workers accept connections from: `http`, and `console` and `metrics` if they are set.
    """

    @property
    def name(self) -> str:
        """What people call it.

        >>> WorkerPlace(number=2, count=4, folder=Path("/run"), sockets={}).name
        'worker 2'
        """
        return f"worker {self.number}"


ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures of tokens that can be verified with a public key alone."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerOptions:
    """An authorization server whose access tokens are accepted, and what their claims mean."""

    issuer: str
    """Its identifier, exactly as the claim `iss` of its tokens has it."""
    path: str = ""
    """The path of the endpoint that its tokens are for, such as `/acme`; empty for the endpoint's own."""
    audience: tuple[str, ...] = ()
    """What tokens must be made for, one of these; empty for the address of the endpoint."""
    jwks_url: str = ""
    """Where its keys are; empty to read it from the issuer's metadata."""
    introspection_url: str = ""
    """Where tokens that are no JWTs are checked (RFC 7662); empty refuses them."""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    """How the gateway authenticates itself there."""
    sign_in: bool = False
    """Whether people can sign in to the console there, with `client_id`."""
    sign_in_scopes: tuple[str, ...] = ("openid",)
    """The scopes to ask for then. With a refresh token, which some issuers give for `offline_access` only, a person is
    signed in for as long as the issuer renews it; without one, until the ID token expires.
    """
    caller_claim: str = "sub"
    tenant: str | None = None
    """The tenant of all its callers. Without `tenant` and `tenant_claim`, the issuer is their tenant."""
    tenant_claim: str = ""
    tenants: tuple[str, ...] = ()
    """The tenants that `tenant_claim` may name, its own; with `*` at the end, those that begin so."""
    scopes_claim: str = ""
    """The claim with scopes; empty for `scope`, else `scp`."""
    roles_claim: str = "roles"
    groups_claim: str = "groups"
    """Claims with names. A name with dots leads into objects, as in `realm_access.roles`."""
    id_tokens: bool = False
    """Whether its ID tokens are accepted too, for issuers whose access tokens only they can read."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class AuthOptions:
    """How callers prove who they are, besides the static tokens of `HttpOptions`."""

    issuers: tuple[IssuerOptions, ...] = ()
    resource: str = ""
    """The address of the endpoint as clients know it, such as `https://tools.example/mcp`, which tokens must be for.

    Empty for the address that a request was sent to, which needs `allowed_hosts` or a loopback address.
    """
    scopes: tuple[str, ...] = ()
    """Scopes that every token of an issuer needs."""
    step_up: bool = False
    """Whether a call that a caller may see but not make is answered with the scopes that it lacks."""
    algorithms: tuple[str, ...] = ALGORITHMS
    """Accepted signatures."""
    leeway_s: Delay = 30
    """By how much the clocks of issuers may differ from this one, in seconds."""
    recheck_s: Seconds = 300
    """How long a verified JWT is taken as verified, in seconds, at most until it expires."""
    introspect_s: Delay = 30
    """The same for a token that was introspected; meanwhile its revocation goes unnoticed."""
    private_hosts: tuple[str, ...] = ()
    """Hosts of issuers that may have private addresses, and be spoken to without TLS."""
    api_keys: bool = False
    """Whether the keys that `toolcrib tokens` made are accepted."""

    @property
    def enabled(self) -> bool:
        """Whether anything but static tokens identifies callers."""
        return bool(self.issuers or self.api_keys)

    def problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield what cannot be used: the field, and what is wrong with it."""
        if self.resource and not _is_web_address(self.resource):
            yield ("resource",), "must be an address such as https://tools.example/mcp, without a query"
        for name in self.algorithms:
            if name not in ALGORITHMS:
                yield ("algorithms",), f"cannot have {name:.20}; the choices are {', '.join(ALGORITHMS)}"
        for place, issuer in enumerate(self.issuers):
            for name, message in self._issuer_problems(issuer):
                yield ("issuers", place, name), message
        yield from self._shared_tenants()
        yield from self._shared_endpoints()

    def _issuer_problems(self, issuer: IssuerOptions) -> Iterator[tuple[str, str]]:
        for name in ("issuer", "jwks_url", "introspection_url"):
            url = getattr(issuer, name)
            if (url or name == "issuer") and not self._may_ask(url):
                yield name, "must be an https address; http needs its host in private_hosts"
        if issuer.path and (not issuer.path.startswith("/") or issuer.path.endswith("/")):
            yield "path", 'must begin with "/" and not end with it, such as /acme'
        if issuer.tenant is not None and issuer.tenant_claim:
            yield "tenant", "cannot be combined with tenant_claim; remove one of them"
        if issuer.tenant_claim and not issuer.tenants:
            yield "tenant_claim", 'needs tenants, the list of those that it may name, such as ["acme", "acme-*"]'
        if any("*" in tenant[:-1] for tenant in issuer.tenants):
            yield "tenants", "may have * at the end of a name only"
        if issuer.sign_in and not issuer.client_id:
            yield "sign_in", "needs client_id, which the issuer knows the console by"
        if issuer.sign_in and "openid" not in issuer.sign_in_scopes:
            yield "sign_in_scopes", 'needs "openid", without which there is no ID token'
        if issuer.introspection_url and not (issuer.client_id and issuer.client_secret):
            yield "introspection_url", "needs client_id and client_secret, which issuers ask for there"

    def _may_ask(self, url: str) -> bool:
        return _is_web_address(url) and (url.startswith("https://") or urlsplit(url).hostname in self.private_hosts)

    def _shared_tenants(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Issuers that could name each other's callers: a caller's id is unique within its issuer only."""
        taken: list[tuple[str, str]] = []
        for place, issuer in enumerate(self.issuers):
            own = issuer.tenants if issuer.tenant_claim else (issuer.tenant or issuer.issuer,)
            for tenant in own:
                if any(owner != issuer.issuer and _overlap(tenant, other) for other, owner in taken):
                    message = f"has callers of the tenant {tenant:.60}, as another issuer has; they could be confused"
                    yield ("issuers", place), message
            taken += [(tenant, issuer.issuer) for tenant in own]

    def _shared_endpoints(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        seen: set[tuple[str, str]] = set()
        opaque: set[str] = set()
        for place, issuer in enumerate(self.issuers):
            if (issuer.issuer, issuer.path) in seen:
                yield ("issuers", place, "issuer"), "is in the list twice, for the same path"
            seen.add((issuer.issuer, issuer.path))
            if issuer.introspection_url and issuer.path in opaque:
                message = "is the second of one path: a token that is no JWT does not say whose it is"
                yield ("issuers", place, "introspection_url"), message
            opaque |= {issuer.path} if issuer.introspection_url else set()


def allows_tenant(tenants: Iterable[str], tenant: str) -> bool:
    """Whether a list of tenants has this one.

    >>> allows_tenant(("acme", "test-*"), "test-7"), allows_tenant(("acme", "test-*"), "acme-7")
    (True, False)
    """
    return any(tenant == one or (one.endswith("*") and tenant.startswith(one[:-1])) for one in tenants)


def _overlap(one: str, other: str) -> bool:
    """Whether a tenant can be named by both.

    >>> _overlap("acme-*", "acme-7"), _overlap("acme-*", "a*"), _overlap("acme-*", "acme")
    (True, True, False)
    """
    return allows_tenant((one,), other.removesuffix("*")) or allows_tenant((other,), one.removesuffix("*"))


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    return usable and plain and parts.scheme in ("http", "https") and bool(parts.hostname)
