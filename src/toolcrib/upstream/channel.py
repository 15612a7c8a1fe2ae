"""What every transport provides: a channel to one server, its events, and the errors of an exchange.

Knows nothing of protocol versions, tools or callers; `connection` builds on it.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Protocol, TypeAlias

import anyio
from mcp.client import Transport
from mcp.client._transport import TransportStreams
from mcp.shared.exceptions import MCPError

Streams: TypeAlias = TransportStreams
"""Messages in, messages out."""


class CloseEvent:
    """The end of a connection: it comes once, with the first reason that is given."""

    def __init__(self) -> None:
        """Not ended yet."""
        self.reason = ""
        self.reconnect = False
        """Whether to connect again at once: the server is there, and only lost our session."""
        self._event = anyio.Event()

    def set(self, reason: str, *, reopen: bool = False) -> None:
        """End it; a later reason is ignored."""
        if not self._event.is_set():
            self.reason, self.reconnect = reason, reopen
            self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether it has ended."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Until it has ended."""
        await self._event.wait()


class AutoResetEvent:
    """Wakes the one who waits, once for any number of rings since the last time."""

    def __init__(self) -> None:
        """Silent."""
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the one who waits, or the next one who will."""
        self._event.set()

    def clear(self) -> None:
        """Forget that it rang."""
        if self._event.is_set():
            self._event = anyio.Event()

    async def wait(self) -> None:
        """Until it rings."""
        await self._event.wait()
        self.clear()


_LIST_CHANGED: Final = frozenset({"notifications/prompts/list_changed", "notifications/resources/list_changed"})


class ServerNotifications:
    """What a server says by itself, beside its answers, for those who asked to hear it."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.lists_changed = AutoResetEvent()
        """Rings when its prompts and resources should be listed again."""
        self.on_resource_updated: Callable[[str], object] | None = None
        """Takes the URI of a resource that changed."""
        self.on_log_message: Callable[[Mapping[str, Any]], object] | None = None
        """Takes the params of a message for a log."""

    def dispatch(self, method: Any, params: Mapping[str, Any] | None) -> None:
        """Pass a notice on to whom it is for."""
        if method in _LIST_CHANGED:
            self.lists_changed.set()
        elif params is None:
            return
        elif method == "notifications/resources/updated":
            if self.on_resource_updated is not None and isinstance(uri := params.get("uri"), str):
                self.on_resource_updated(uri)
        elif method == "notifications/message" and self.on_log_message is not None:
            self.on_log_message(params)


def no_stderr() -> str:
    """What a server that has no stderr said there."""
    return ""


ProgressFn: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]


class FastPathUnavailable(Exception):
    """The server wants something that only the session does; nothing ran."""


class FastPath(Protocol):
    """A way for calls past the session."""

    def supports(self, *, modern: bool) -> bool:
        """Whether calls of that protocol era may go this way."""

    async def call(
        self, params: dict[str, Any], headers: Mapping[str, str], *, modern: bool, progress: ProgressFn | None
    ) -> dict[str, Any]:
        """The result of one `tools/call`. Raises `MCPError`, `ExchangeError`, or `FastPathUnavailable` for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Not connected before its transport is entered."""

    transport: Transport
    closed: CloseEvent
    refresh_needed: AutoResetEvent
    """Rings when the tools should be listed again: they changed, or the server may be in trouble."""
    notifications: ServerNotifications = field(default_factory=ServerNotifications)
    fast_path: FastPath | None = None
    stderr_tail: Callable[[], str] = no_stderr
    """The last telling line of the server's stderr."""


class FailureKind(Enum):
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

    def __init__(self, kind: FailureKind, reason: str, *, code: int | None = None, data: Any = None) -> None:
        """`code` and `data` are those of the server's JSON-RPC error."""
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.code = code
        self.data = data


def flatten_errors(error: BaseException) -> Iterator[BaseException]:
    """The error itself, or all that are in its group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from flatten_errors(inner)
    else:
        yield error


def embedded_failure(error: MCPError) -> ExchangeError | None:
    """The failure that a gate made this error of, or None for an error of the server's own."""
    data = error.data
    if isinstance(data, dict) and data.get("mark") == FAILURE_MARK:
        return ExchangeError(FailureKind[data["kind"]], error.message)
    return None


FAILURE_MARK: Final = secrets.token_hex(8)
"""Tells our own error answers from those of a server, which cannot know it."""


NO_MESSAGE: Final = "its answer says that it is JSON, but is no JSON-RPC message; check the url"
