"""What is to be told to one client, whenever that can be sent."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

import anyio

_LIMIT: Final = 1024

Send = Callable[[str, dict[str, Any]], Awaitable[None]]
"""Sends one notification: its method and params."""


class Outbox:
    """Takes notifications at any time, and sends them in their order while `run` runs."""

    def __init__(self, send: Send) -> None:
        """Nothing waits."""
        self._send = send
        self._waiting: OrderedDict[object, tuple[str, dict[str, Any]]] = OrderedDict()
        self._numbers = count()
        self._filled = anyio.Event()
        self._empty = anyio.Event()
        self._empty.set()
        self._scope = anyio.CancelScope()

    def updated(self, uri: str) -> None:
        """A resource changed; that is told once, however often it did meanwhile."""
        self._put(uri, "notifications/resources/updated", {"uri": uri})

    def said(self, message: dict[str, Any]) -> None:
        """A message for a log. The oldest of what waits gives way to it."""
        self._put(next(self._numbers), "notifications/message", message)

    def _put(self, key: object, method: str, params: dict[str, Any]) -> None:
        self._waiting[key] = (method, params)
        if len(self._waiting) > _LIMIT:
            self._waiting.popitem(last=False)
        self._filled.set()
        if self._empty.is_set():
            self._empty = anyio.Event()

    async def emptied(self) -> None:
        """Wait until all that came was sent."""
        await self._empty.wait()

    async def run(self) -> None:
        """Send until `close`. What cannot be sent, as the client is gone, is dropped."""
        with self._scope:
            while True:
                await self._filled.wait()
                self._filled = anyio.Event()
                while self._waiting:
                    _, (method, params) = self._waiting.popitem(last=False)
                    try:
                        await self._send(method, params)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        self._waiting.clear()
                self._empty.set()

    def close(self) -> None:
        """Send nothing more."""
        self._scope.cancel()
