"""What every transport provides: exchanges with one server over one connection, and the events of that connection.

Knows nothing of protocol versions, tools or callers; `connection` builds on it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import anyio

from toolcrib.protocol.calling import OutgoingRequest
from toolcrib.protocol.failures import ExchangeError, FailureKind, RpcError
from toolcrib.protocol.messages import as_result

NO_MESSAGE: Final = "its response claims to be JSON but is not a JSON-RPC message; check the url"
INVALID_RESPONSE: Final = "its response has neither a result nor an error"

Message: TypeAlias = dict[str, Any]
"""One JSON-RPC message, parsed and otherwise as it came."""
OnMessage: TypeAlias = Callable[[Message], Awaitable[None]]
"""Takes a message that is not the outcome of a request. Never raises, and returns soon; no further message is read
before.
"""


class CloseEvent:
    """The end of a connection. Set once; the first reason counts."""

    def __init__(self) -> None:
        self.reason = ""
        self.reconnect = False
        """Whether to connect again at once: the server is up, and only lost our session."""
        self.is_set = False
        self.on_set: Callable[[], object] | None = None
        """Called when it is set."""
        self._event = anyio.Event()

    def set(self, reason: str, *, reconnect: bool = False) -> None:
        """Mark the connection as closed. Later calls are ignored."""
        if not self.is_set:
            self.is_set, self.reason, self.reconnect = True, reason, reconnect
            self._event.set()
            if self.on_set is not None:
                self.on_set()

    async def wait(self) -> None:
        await self._event.wait()


class AutoResetEvent:
    """Wakes one waiting task, once for any number of `set` calls since its last wait."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the waiting task, or the next one to wait."""
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():
            self._event = anyio.Event()

    async def wait(self) -> None:
        """Wait until set, then clear."""
        await self._event.wait()
        self.clear()


class Transport(Protocol):
    """One way to one server, for one connection. Not connected until `opened` is entered."""

    closed: CloseEvent
    """Set by the transport when the connection has ended, and by its users to end it."""
    refresh_needed: AutoResetEvent
    """Set when the tools should be listed again: they changed, or the server may be in trouble."""
    has_response_streams: bool
    """Whether what a server sends before an outcome comes with the response, so that it is known whose it is.

    Then closing the response cancels a request of 2026-07-28 or later.
    """

    @property
    def has_session(self) -> bool:
        """Whether the server knows which connection a request belongs to; over HTTP, whether it has named a session."""

    def opened(self, receive: OnMessage) -> AbstractAsyncContextManager[None]:
        """Connect, and disconnect on leaving. Raises `ExchangeError`.

        `receive` gets each message that comes outside of the response to a request.
        """

    async def exchange(self, request: OutgoingRequest, on_message: OnMessage) -> Message:
        """Send a request, and return its outcome, a message with a `result` or an `error`.

        `on_message` gets what comes before it on the response's own stream. Raises `ExchangeError`. If it is
        cancelled, it stops to wait at once, and does not tell the server, unless the end of the response does.
        """

    async def post(self, message: Message, headers: Mapping[str, str]) -> None:
        """Send a notification, or the answer to a question of the server. Raises `ExchangeError`.

        After `notifications/initialized`, the server may send messages outside of any response.
        """

    async def wait_listening(self) -> None:
        """Wait until the server can send requests outside of any response, or is known to have no stream for them."""

    async def has_lost_session(self) -> bool:
        """Ask the server whether it still knows the session; if it does not, `closed` is set."""

    def stderr_tail(self) -> str:
        """Return the most informative recent line of the server's stderr."""


def result_of(message: Message) -> dict[str, Any]:
    """Return the result in an outcome. Raises `RpcError` for its error, and `ExchangeError` if it has neither."""
    result = message.get("result")
    if type(result) is dict:
        return result
    result = as_result(message)
    if result is not None:
        return result
    error = message.get("error")
    if isinstance(error, dict) or (isinstance(error, str) and error):
        raise RpcError.of(error)
    raise ExchangeError(FailureKind.ANSWER, INVALID_RESPONSE)


def flatten_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the error itself, or the members of its group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from flatten_errors(inner)
    else:
        yield error
