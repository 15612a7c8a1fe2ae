"""Server settings: the HTTP address, its guards, and static bearer tokens.

Frozen values without heavy imports, so that reading settings does not load the server.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A static bearer token and whom it stands for."""

    secret: str
    caller: str
    tenant: str | None = None
    scopes: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        """The token without its secret."""
        return f"Token(caller={self.caller!r}, tenant={self.tenant!r}, scopes={sorted(self.scopes)!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How the server is reached over HTTP."""

    host: str = "127.0.0.1"
    port: int = 8000
    path: str = "/mcp"
    tokens: tuple[Token, ...] = ()
    """Who may connect; empty means anybody, which only a loopback address allows."""
    allowed_hosts: tuple[str, ...] = ()
    """Host header values taken beside the address itself; `name:*` means any port."""
    allowed_origins: tuple[str, ...] = ()
    """Origin header values taken beside the address itself."""
    max_body_bytes: int = 4 * 1024 * 1024
    """The largest request body, in bytes."""
    drain_s: float = 2.5
    """How long calls under way may take to finish after SIGTERM, in seconds."""
