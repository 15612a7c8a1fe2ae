"""Server settings: the HTTP address, its guards, and static bearer tokens.

Frozen values without heavy imports, so that reading settings does not load the server.
"""

from dataclasses import dataclass
from typing import Final

HEALTH_PATHS: Final = ("/healthz", "/readyz")
"""Paths that need no token; their responses identify no caller."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where the server listens for HTTP, and who may connect."""

    host: str = "127.0.0.1"
    port: int = 8000
    path: str = "/mcp"
    tokens: tuple[Token, ...] = ()
    """Who may connect. Empty means anyone, which is allowed only on a loopback address."""
    allowed_hosts: tuple[str, ...] = ()
    """Host header values accepted in addition to the address itself; `name:*` means any port."""
    allowed_origins: tuple[str, ...] = ()
    """Origin header values accepted in addition to the address itself."""
    max_body_bytes: int = 4 * 1024 * 1024
    """The largest request body, in bytes."""
    keep_alive_s: float = 75
    """How long a connection without a request stays open, in seconds."""
    drain_s: float = 2.5
    """How long running calls may take to finish after SIGTERM, in seconds."""
