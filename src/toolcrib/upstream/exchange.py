"""What can go wrong in an exchange with a server."""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Any


class Kind(Enum):
    """What it means for the request that it hit."""

    UNSENT = auto()
    """The server was never reached; nothing ran."""
    SESSION = auto()
    """The server does not know the session any more; nothing ran."""
    CLOSED = auto()
    """The connection is gone; whether the request ran is unknown."""
    LOST = auto()
    """This one exchange broke off; whether the request ran is unknown."""
    STATUS = auto()
    """An HTTP status instead of an answer."""
    ANSWER = auto()
    """A JSON-RPC error, or nonsense."""


class ExchangeError(Exception):
    """A request that got no result, before it has a name that a caller may see.

    `reason` is one line without secrets, without a full stop.
    """

    def __init__(self, kind: Kind, reason: str, *, code: int | None = None, data: Any = None) -> None:
        """`code` and `data` are those of the server's JSON-RPC error."""
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.code = code
        self.data = data


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The error itself, or all that are in its group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
