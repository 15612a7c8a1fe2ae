"""The status of a server, and callbacks for those who follow it."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio

from toolcrib.types import ServerState, ServerStatus, Unsubscribe

logger = logging.getLogger(__name__)


class Listeners:
    """A set of callbacks without arguments."""

    def __init__(self) -> None:
        self._callbacks: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> Unsubscribe:
        """Add a callback. Returns a function that removes it."""
        place = object()
        self._callbacks[place] = callback

        def remove() -> None:
            self._callbacks.pop(place, None)

        return remove

    def notify(self) -> None:
        """Call every callback; exceptions are logged."""
        for callback in tuple(self._callbacks.values()):
            try:
                callback()
            except Exception:
                # Third-party code must not end the server's own task.
                logger.exception("a listener of a server raised")


class StatusStore:
    """Holds one server's status, and notifies listeners and waiting tasks of each change."""

    def __init__(self, status: ServerStatus) -> None:
        self.status = status
        self.listeners = Listeners()
        self._changed = anyio.Event()

    def update(self, state: ServerState, *, tools_changed: bool = False, **fields: Any) -> None:
        """Change the status, with fields of `ServerStatus`. Notifies if anything is new."""
        old = self.status
        since = old.since if state is old.state else time.time()
        self.status = replace(old, state=state, since=since, **fields)
        if self.status != old or tools_changed:
            self._wake()
            self.listeners.notify()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked again after each change."""
        while not condition():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
