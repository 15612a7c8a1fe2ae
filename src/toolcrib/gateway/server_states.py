"""What is said of the state of a server. Knows nothing of tools and of who sees them."""

import time
from collections.abc import Iterable
from typing import Final

from toolcrib.types import Filters, ServerState, ServerStatus

NAMESPACE_SEPARATORS = (":", "__", ".", "/")
"""Separators between a namespace and a name."""
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
_STATE_PHRASES: Final = {
    ServerState.CONFIGURED: "was not tried yet",
    ServerState.IDLE: "is not started",
    ServerState.CONNECTING: "is still connecting",
    ServerState.READY: "is ready",
    ServerState.DEGRADED: "is degraded",
    ServerState.NEEDS_LOGIN: "needs a login",
    ServerState.FAILED: "has failed",
}


def namespace_of(status: ServerStatus) -> str:
    """Return the namespace of a server's tools."""
    return status.namespace or status.name


def unready_server(servers: Iterable[ServerStatus], name: str) -> str | None:
    """Return the server with a problem whose namespace the spelling begins with."""
    for status in servers:
        start = namespace_of(status).casefold()
        named = any(name.casefold().startswith(start + separator) for separator in NAMESPACE_SEPARATORS)
        if named and has_problem(status):
            return status.name
    return None


def unavailable_servers(servers: Iterable[ServerStatus], filters: Filters) -> tuple[ServerStatus, ...]:
    """Return the servers whose tools are missing from such a search, or stale."""
    wanted = filters.namespaces
    return tuple(status for status in servers if has_problem(status) and (not wanted or namespace_of(status) in wanted))


def has_problem(status: ServerStatus) -> bool:
    """Whether a user of the server should know its state: its tools are missing or stale, or it offers none.

    A server that is not connected, but whose tools are known from an earlier run, has none.
    """
    if status.state is ServerState.IDLE or (status.is_connecting and status.cached):
        return status.stale
    return status.state is not ServerState.READY or status.stale or bool(status.reason)


def describe_state(status: ServerStatus) -> str:
    """Describe the server's state, its reason and the age of stale tools, as the end of a sentence without a full stop.

    >>> describe_state(ServerStatus(name="git", state=ServerState.FAILED, since=0, reason="exited with code 1"))
    'has failed: exited with code 1'
    >>> describe_state(ServerStatus(name="git", state=ServerState.READY, since=0, reason="connected, but it is empty"))
    'is connected, but it is empty'
    """
    words = _STATE_PHRASES[status.state]
    parts = [f"{words}: {status.reason}" if status.reason else words]
    if status.state is ServerState.READY and status.reason:
        parts = [f"is {status.reason}"]
    if status.stale:
        parts.append(
            "its last known tools are listed" if status.as_of is None else f"its tools are {_age(status.as_of)}"
        )
    return "; ".join(parts)


def _age(moment: float) -> str:
    """Say how old something of that moment is, in seconds since the epoch.

    >>> _age(time.time() - 7300), _age(time.time())
    ('2 hours old', 'less than a minute old')
    """
    passed = time.time() - moment
    for seconds, unit in _UNITS:
        if passed >= seconds:
            count = int(passed // seconds)
            return f"{count} {unit}{'' if count == 1 else 's'} old"
    return "less than a minute old"
