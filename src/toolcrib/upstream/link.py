"""A way to one server: the transport that leads there, how the connection ended, and what the server said meanwhile."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import anyio
from mcp.client import Transport

# Only a type; the SDK gives it no public name.
from mcp.client._transport import TransportStreams

Streams: TypeAlias = TransportStreams
"""Messages in, messages out."""


class End:
    """The end of a connection: it comes once, with the first reason that is given."""

    def __init__(self) -> None:
        """Not ended yet."""
        self.reason = ""
        self.reopen = False
        """Whether to connect again at once: the server is there, and only lost our session."""
        self._event = anyio.Event()

    def come(self, reason: str, *, reopen: bool = False) -> None:
        """End it; a later reason is ignored."""
        if not self._event.is_set():
            self.reason, self.reopen = reason, reopen
            self._event.set()

    @property
    def has_come(self) -> bool:
        """Whether it has ended."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Until it has ended."""
        await self._event.wait()


class Bell:
    """Wakes the one who waits, once for any number of rings since the last time."""

    def __init__(self) -> None:
        """Silent."""
        self._event = anyio.Event()

    def ring(self) -> None:
        """Wake the one who waits, or the next one who will."""
        self._event.set()

    def hush(self) -> None:
        """Forget that it rang."""
        if self._event.is_set():
            self._event = anyio.Event()

    async def wait(self) -> None:
        """Until it rings."""
        await self._event.wait()
        self.hush()


_REVISED: Final = frozenset({"notifications/prompts/list_changed", "notifications/resources/list_changed"})


class Notices:
    """What a server says by itself, beside its answers, for those who asked to hear it."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.revised = Bell()
        """Rings when its prompts and resources should be listed again."""
        self.updated: Callable[[str], object] | None = None
        """Takes the URI of a resource that changed."""
        self.said: Callable[[Mapping[str, Any]], object] | None = None
        """Takes the params of a message for a log."""

    def hear(self, method: Any, params: Mapping[str, Any] | None) -> None:
        """Pass a notice on to whom it is for."""
        if method in _REVISED:
            self.revised.ring()
        elif params is None:
            return
        elif method == "notifications/resources/updated":
            if self.updated is not None and isinstance(uri := params.get("uri"), str):
                self.updated(uri)
        elif method == "notifications/message" and self.said is not None:
            self.said(params)


def nothing() -> str:
    """What a server that has no stderr said there."""
    return ""


ProgressFn: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]


class Unsuited(Exception):
    """The server wants something that only the session does; nothing ran."""


class Shortcut(Protocol):
    """A way for calls past the session."""

    def suits(self, *, modern: bool) -> bool:
        """Whether calls of that protocol era may go this way."""

    async def call(
        self, params: dict[str, Any], headers: Mapping[str, str], *, modern: bool, progress: ProgressFn | None
    ) -> dict[str, Any]:
        """The result of one `tools/call`. Raises `MCPError`, `ExchangeError`, or `Unsuited` for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Not connected before its transport is entered."""

    transport: Transport
    end: End
    doubt: Bell
    """Rings when the tools should be listed again: they changed, or the server may be in trouble."""
    notices: Notices = field(default_factory=Notices)
    shortcut: Shortcut | None = None
    last_words: Callable[[], str] = nothing
    """The last telling line of the server's stderr."""
