"""The gateway's settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How the gateway lists, searches and waits."""

    default_limit: int = 10
    """Hits a query without a limit of its own, 1..max_limit."""
    max_limit: int = 100
    """The most hits a query may ask for."""
    page_size: int = 100
    """Tools a page of a listing."""
    start_grace_s: float = 3.0
    """How long after the start a list or search waits for servers that are still connecting, in seconds."""
    call_grace_s: float = 15.0
    """How long a call waits for its server's first connection, in seconds."""
    list_timeout_s: float = 10.0
    """How long a provider may take to list its tools, in seconds."""
