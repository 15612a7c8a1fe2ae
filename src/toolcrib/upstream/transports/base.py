"""What every transport provides: a channel to one server, its events, and the errors of an exchange.

Knows nothing of protocol versions, tools or callers; `connection` builds on it.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import anyio
from mcp.client import Transport as SdkTransport
from mcp.client._transport import TransportStreams
from mcp.shared.exceptions import MCPError
from pydantic_core import to_json

from toolcrib.errors import InvalidArguments
from toolcrib.protocol.failures import ExchangeError, FailureKind, RpcError
from toolcrib.protocol.messages import as_result

Streams: TypeAlias = TransportStreams
"""Messages in, messages out."""
_LIST_CHANGED: Final = frozenset({"notifications/prompts/list_changed", "notifications/resources/list_changed"})
CLIENT_NOTIFICATIONS: Final = frozenset({"notifications/message", "notifications/elicitation/complete"})
"""Notifications of a server that concern the client of a request, not the connection."""
TASK_STATUS: Final = "notifications/tasks/status"
FAILURE_MARK: Final = secrets.token_hex(8)
"""Marks our own error responses. Random, so that a server cannot forge one."""
NO_MESSAGE: Final = "its response claims to be JSON but is not a JSON-RPC message; check the url"


INVALID_RESPONSE: Final = "its response does not answer the call"


class CloseEvent:
    """The end of a connection. Set once; the first reason counts."""

    def __init__(self) -> None:
        self.reason = ""
        self.reconnect = False
        """Whether to connect again at once: the server is up, and only lost our session."""
        self._event = anyio.Event()

    def set(self, reason: str, *, reconnect: bool = False) -> None:
        """Mark the connection as closed. Later calls are ignored."""
        if not self._event.is_set():
            self.reason, self.reconnect = reason, reconnect
            self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

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


Message: TypeAlias = dict[str, Any]
"""One JSON-RPC message, parsed and otherwise as it came."""
OnMessage: TypeAlias = Callable[[Message], Awaitable[None]]
"""Takes a message that is not the outcome of a request. Never raises, and returns soon; no further message is read
before.
"""


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request on its way to a server."""

    id: int
    method: str
    params: Message
    data: bytes
    """The whole message, encoded, without a line end."""
    headers: Mapping[str, str]
    """What HTTP sends with it. Requests that need the same headers share one object."""
    modern: bool
    """Whether the version is 2026-07-28 or later, which has no sessions, and no resumed responses."""


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


class Exchange(Protocol):
    """One request under way, for what its server sends before the response."""

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward a progress notification."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification that belongs to this request."""

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request of the server's. Raises `MCPError`."""


class ServerNotifications:
    """Dispatches a server's notifications to their handlers."""

    def __init__(self) -> None:
        self.lists_changed = AutoResetEvent()
        """Set when prompts and resources should be listed again."""
        self.on_resource_updated: Callable[[str], object] | None = None
        """Called with the URI of a resource that changed."""
        self.on_message: Callable[[str, Mapping[str, Any]], object] | None = None
        """Called with the method and params of what concerns a client: `CLIENT_NOTIFICATIONS` and `TASK_STATUS`."""

    def dispatch(self, method: Any, params: Mapping[str, Any] | None) -> None:
        """Pass a notification to its handler; unknown ones are dropped."""
        if method in _LIST_CHANGED:
            self.lists_changed.set()
        elif params is None:
            return
        elif method == "notifications/resources/updated":
            if self.on_resource_updated is not None and isinstance(uri := params.get("uri"), str):
                self.on_resource_updated(uri)
        elif (method in CLIENT_NOTIFICATIONS or method == TASK_STATUS) and self.on_message is not None:
            self.on_message(method, params)


def no_stderr() -> str:
    """The `stderr_tail` of a transport without stderr."""
    return ""


async def no_stream() -> None:
    """The `wait_listening` of a transport that always takes the server's requests."""


class FastPathUnavailable(Exception):
    """The server needs the SDK session for this call. The call did not run."""


ReadRest = Callable[["Exchange | None"], Awaitable[dict[str, Any]]]
"""Reads a response that has begun, with what the server sends before the result, and returns the result."""


class CallProtocol(Protocol):
    """What a fast path has to know of the negotiated version."""

    @property
    def modern(self) -> bool:
        """Whether it has no sessions, as of 2026-07-28."""

    def headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers of a request."""


class FastPath(Protocol):
    """A way to send callers' requests without the SDK session."""

    @property
    def is_usable(self) -> bool:
        """Whether requests can be sent this way now."""

    @property
    def has_streams(self) -> bool:
        """Whether what a server sends before a result arrives with the response, so that it is known whose it is."""

    async def call(
        self,
        method: str,
        params: dict[str, Any],
        headers: Mapping[str, str],
        *,
        modern: bool,
        exchange: Exchange | None,
    ) -> dict[str, Any]:
        """Return the result of one request. Raises `MCPError`, `ExchangeError` or `FastPathUnavailable`."""

    async def call_plain(
        self, params: dict[str, Any], protocol: CallProtocol, timeout_s: float
    ) -> dict[str, Any] | ReadRest | None:
        """Return the result of a `tools/call` whose client gets nothing else, if it comes as one short JSON message.

        Of any other response, return what reads the rest; None if the call has to be sent another way. Raises
        `MCPError`, `ExchangeError`, `InvalidArguments`, and `TimeoutError` if nothing has come within `timeout_s`.
        """


def encode_message(message: Mapping[str, Any]) -> bytes:
    """Encode a message with a caller's arguments. Raises `InvalidArguments` for what is not JSON.

    Further down, it would break the whole connection.
    """
    try:
        data = to_json(message)
        if b"NaN" in data or b"Infinity" in data:
            json.dumps(message, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise InvalidArguments(
            "The arguments cannot be encoded as JSON.",
            hint="Use only strings of valid Unicode, finite numbers, true, false, null, lists and objects.",
        ) from error
    return data


def result_of(message: Any, problem: str = INVALID_RESPONSE) -> dict[str, Any]:
    """Return a response's result. Raises `MCPError` for its error, and `ExchangeError` if it has neither."""
    if isinstance(message, dict):
        if (result := as_result(message)) is not None:
            return result
        if message.get("error"):
            error = RpcError.of(message["error"])
            raise MCPError(error.code, error.message, error.data)
    raise ExchangeError(FailureKind.ANSWER, problem)


async def never_lost() -> bool:
    """The `has_lost_session` of a transport without sessions."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A transport to one server with its events. Not connected until the transport is entered."""

    transport: SdkTransport
    closed: CloseEvent
    refresh_needed: AutoResetEvent
    """Set when the tools should be listed again: they changed, or the server may be in trouble."""
    notifications: ServerNotifications = field(default_factory=ServerNotifications)
    fast_path: FastPath | None = None
    wait_listening: Callable[[], Awaitable[None]] = no_stream
    """Waits until the server can send requests outside of any response, or is known to have no stream for them."""
    has_lost_session: Callable[[], Awaitable[bool]] = never_lost
    """Asks the server whether it still knows the session, and closes the channel if not."""
    stderr_tail: Callable[[], str] = no_stderr
    """Returns the most informative recent line of the server's stderr."""

    def list_again(self) -> None:
        """Have tools, prompts and resources listed again."""
        self.refresh_needed.set()
        self.notifications.lists_changed.set()


def flatten_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the error itself, or the members of its group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from flatten_errors(inner)
    else:
        yield error


def embedded_failure(error: MCPError) -> ExchangeError | None:
    """Return the failure that our HTTP transport encoded in an error response, or None for a server's own error."""
    data = error.data
    if isinstance(data, dict) and data.get("mark") == FAILURE_MARK:
        return ExchangeError(
            FailureKind[data["kind"]], error.message, retry_after_s=float(data.get("retry_after_s", 0.0))
        )
    return None
