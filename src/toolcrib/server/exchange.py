"""One request of a client, whichever way it came: what handlers read of it, and how they reach its client meanwhile.

A transport makes an `Exchange` of each message, and `Engine` answers it. What a transport knows beyond the message,
such as the caller and the headers, is in the fields; how it reaches the client before the response is its `Channel`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from toolcrib.protocol.failures import INVALID_REQUEST, RpcError
from toolcrib.protocol.messages import RequestId
from toolcrib.protocol.serving import ServerSession
from toolcrib.protocol.versions import is_modern
from toolcrib.types import LOCAL, Caller, Object, ToolProvider


class Channel(Protocol):
    """How a server reaches the client of a request besides the response.

    That of a request is valid until the response; that of a notification, as long as its session.
    """

    @property
    def can_ask(self) -> bool:
        """Whether the client can be sent a request now, as before version 2026-07-28."""

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:
        """Send a request, and return its result. Raises `RpcError` for an error, or without a way to the client."""

    async def notify(self, method: str, params: Object) -> None:
        """Send a notification; drops it without a way to the client."""


class ResponseOnly:
    """The channel of a client that gets nothing but the response."""

    can_ask = False

    async def ask(self, method: str, params: Object, timeout_s: float) -> Object:  # noqa: ARG002 - of the protocol
        """Raise `RpcError`."""
        raise RpcError(INVALID_REQUEST, f"The client cannot be sent {method} now: only a response reaches it.")

    async def notify(self, method: str, params: Object) -> None:
        """Drop the notification."""


RESPONSE_ONLY: Final[Channel] = ResponseOnly()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHead:
    """What the head of an HTTP request says, and what middleware has added to it. Safe to share between requests."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""
    show_all: bool | None = None
    """Whether to list every tool by name; None leaves it to the message."""
    token: str = ""
    """The caller's bearer token, for servers that take it; empty for a credential that only this server knows."""
    providers: tuple[ToolProvider, ...] = ()
    """Providers of this request only."""
    overriding: tuple[ToolProvider, ...] = ()
    """The same, whose tools take precedence over shared ones."""
    replica: str = ""
    """The id of this process, if others may serve the same address."""
    lacking: set[str] | None = None
    """Takes the scopes that the request lacks, if its client can get them."""


NO_HEAD: Final = HttpHead()


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request, or one notification, of a client."""

    method: str
    params: Mapping[str, Any]
    """As they came; empty if the message has none."""
    id: RequestId | None = None
    """None for a notification."""
    version: str
    """The protocol version of the request, whose envelope has been read, or before 2026-07-28 of its session."""
    caller: Caller = LOCAL
    session_id: str | None = None
    """The name of the client's session or connection; None for a request that belongs to none."""
    session: ServerSession | None = None
    """What is known of the session; None for a request of 2026-07-28 or later."""
    capabilities: Object = field(default_factory=dict)
    """What the client declared."""
    head: HttpHead = NO_HEAD
    """What the HTTP request says that it came by; nothing for a message that came in another way."""
    channel: Channel = RESPONSE_ONLY

    meta: Mapping[str, Any] = field(init=False)
    """The message's `_meta`; empty without one."""
    is_modern: bool = field(init=False)
    """Whether it is of 2026-07-28 or later."""

    def __post_init__(self) -> None:
        meta = self.params.get("_meta")
        self.meta = meta if type(meta) is dict or isinstance(meta, Mapping) else {}
        self.is_modern = is_modern(self.version)

    def ask_for_scopes(self, scopes: frozenset[str]) -> None:
        """Have the request answered with the scopes that it lacks, if its client can get them."""
        if self.head.lacking is not None:
            self.head.lacking.update(scopes)
