"""Server settings: the HTTP address, its guards, and static bearer tokens.

Frozen values without heavy imports, so that reading settings does not load the server.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from toolcrib.checks import checked
from toolcrib.ranges import Count, Delay, Seconds, whole_from

HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths that need no token; their responses identify no caller."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A static bearer token and the caller that it identifies."""

    secret: str
    caller: str
    tenant: str | None = None
    scopes: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        # Never show the secret.
        return f"Token(caller={self.caller!r}, tenant={self.tenant!r}, scopes={sorted(self.scopes)!r})"


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where the server listens for HTTP, and who may connect."""

    host: str = "127.0.0.1"
    port: Annotated[int, whole_from(0, 65535)] = 8000
    path: str = "/mcp"
    tokens: tuple[Token, ...] = ()
    """Who may connect. Empty means anyone, which is allowed only on a loopback address."""
    allowed_hosts: tuple[str, ...] = ()
    """Host header values accepted in addition to the address itself; `name:*` means any port."""
    allowed_origins: tuple[str, ...] = ()
    """Origin header values accepted in addition to the address itself."""
    max_body_bytes: Count = 4 * 1024 * 1024
    """The largest request body, in bytes."""
    max_body_nodes: Count = 200_000
    """Values and keys in the JSON of a request."""
    max_head_bytes: Count = 64 * 1024
    """The largest head of a request, in bytes: its URL and headers."""
    max_headers: Count = 100
    """Headers of one request."""
    max_url_bytes: Count = 8192
    """The longest URL of a request, in bytes."""
    head_timeout_s: Seconds = 10
    """How long the head of a request may take to arrive, in seconds, from the connection or its first byte."""
    body_timeout_s: Seconds = 30
    """The same for its body."""
    max_connections: Count = 4096
    """Open connections; fewer if the process may not open so many files."""
    max_connections_per_peer: Count = 1024
    """Open connections from one address."""
    max_sessions: Count = 10_000
    """Sessions of clients before 2026-07-28."""
    max_sessions_per_caller: Count = 256
    """Those of one caller, or of one address if no caller has to authenticate."""
    session_idle_s: Seconds = 300
    """How long such a session lasts without a request, in seconds; at most a minute before it is used at all."""
    keep_alive_s: Seconds = 75
    """How long a connection without a request stays open, in seconds."""
    drain_s: Delay = 2.5
    """How long running calls may take to finish after SIGTERM, in seconds."""
