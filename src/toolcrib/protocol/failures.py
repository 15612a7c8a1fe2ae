"""How a request fails: with an error that the other side answers, or without any answer.

`RpcError` is an answer, whichever side gives it. `ExchangeError` says why none came.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CONNECTION_CLOSED: Final = -32000
"""Of this side only: the connection closed before a response arrived, or the server shuts down."""
REQUEST_TIMEOUT: Final = -32001
"""Of this side only: no response arrived in time."""
HEADER_MISMATCH: Final = -32020
MISSING_CLIENT_CAPABILITY: Final = -32021
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022


class RpcError(Exception):
    """A JSON-RPC error: what either side answers in place of a result.

    >>> RpcError(METHOD_NOT_FOUND, "Method not found", "tools/cal").to_wire()
    {'code': -32601, 'message': 'Method not found', 'data': 'tools/cal'}
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        """None for an error without data."""

    def __repr__(self) -> str:
        return f"RpcError({self.code}, {self.message!r}, {self.data!r})"

    def to_wire(self) -> dict[str, Any]:
        """Return the `error` of a response."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error

    @classmethod
    def of(cls, error: Any) -> "RpcError":
        """Read the `error` of a response, which some servers send as a bare text or without its parts.

        >>> RpcError.of("no such table"), RpcError.of({"code": "E42"})
        (RpcError(-32603, 'no such table', None), RpcError(-32603, 'The error has no message.', None))
        """
        if isinstance(error, str) and error:
            return cls(INTERNAL_ERROR, error)
        if not isinstance(error, Mapping):
            return cls(INTERNAL_ERROR, "The response has neither a result nor an error.")
        code, message = error.get("code"), error.get("message")
        known = code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR
        return cls(known, message if isinstance(message, str) else "The error has no message.", error.get("data"))


class FailureKind(Enum):
    """What a failed exchange means for its request."""

    UNSENT = auto()
    """The server was never reached; nothing ran."""
    LOGIN = auto()
    """The server needs a login first; nothing ran."""
    SESSION = auto()
    """The server no longer knows the session; nothing ran."""
    CLOSED = auto()
    """The connection is closed. Whether the request ran is unknown."""
    LOST = auto()
    """This exchange broke off. Whether the request ran is unknown."""
    TIMED_OUT = auto()
    """No answer came in time. Whether the request ran is unknown."""
    STATUS = auto()
    """An HTTP error status instead of a response."""
    ANSWER = auto()
    """A JSON-RPC error, or an invalid response."""


class ExchangeError(Exception):
    """A request that got no result, before it is mapped to an error that callers see.

    `reason` is one line without secrets and without a full stop.
    """

    def __init__(
        self, kind: FailureKind, reason: str, *, answer: RpcError | None = None, retry_after_s: float = 0.0
    ) -> None:
        """`answer` is the server's JSON-RPC error; `retry_after_s` is how long it asks to wait."""
        super().__init__(reason)
        self.answer = answer
        self.retry_after_s = retry_after_s
        self.kind = kind
        self.reason = reason

    @property
    def code(self) -> int | None:
        """The code of the server's JSON-RPC error."""
        return None if self.answer is None else self.answer.code

    @property
    def data(self) -> Any:
        """The data of the server's JSON-RPC error."""
        return None if self.answer is None else self.answer.data


def is_login_needed(error: BaseException) -> bool:
    """Whether the error says that a person must log in first."""
    return isinstance(error, ExchangeError) and error.kind is FailureKind.LOGIN
