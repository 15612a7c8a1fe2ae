"""A server's state, in words."""

from typing import Final

from toolcrib.model import ServerState, ServerStatus

_WORDS: Final = {
    ServerState.CONFIGURED: "was not tried yet",
    ServerState.CONNECTING: "is still connecting",
    ServerState.READY: "is ready",
    ServerState.DEGRADED: "is degraded",
    ServerState.FAILED: "has failed",
}


def stands(status: ServerStatus) -> str:
    """Where the server stands and why, as the end of a sentence about it, without a full stop.

    >>> stands(ServerStatus(name="git", state=ServerState.FAILED, since=0, reason="exited with code 1"))
    'has failed: exited with code 1'
    """
    words = _WORDS[status.state]
    return f"{words}: {status.reason}" if status.reason else words
