"""A way to one server: the transport that leads there, how the connection ended, and what the server said meanwhile."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

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
    shortcut: Shortcut | None = None
    last_words: Callable[[], str] = nothing
    """The last telling line of the server's stderr."""
