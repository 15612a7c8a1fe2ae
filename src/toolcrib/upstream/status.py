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
    """Callbacks without arguments."""

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._callbacks: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call it back from now on, until what this returns is called."""
        place = object()
        self._callbacks[place] = callback

        def remove() -> None:
            self._callbacks.pop(place, None)

        return remove

    def notify(self) -> None:
        """Call all back; one that raises is logged."""
        for callback in tuple(self._callbacks.values()):
            try:
                callback()
            except Exception:
                # It is foreign code, and must not end the server's own task.
                logger.exception("a listener of a server raised")


class StatusStore:
    """One server's status. A change is told at once, to listeners and to those who wait."""

    def __init__(self, status: ServerStatus) -> None:
        """The status to begin with."""
        self.status = status
        self.listeners = Listeners()
        self._changed = anyio.Event()

    def update(self, state: ServerState, *, tools_changed: bool = False, **fields: Any) -> None:
        """Change the status; fields are those of `ServerStatus`. Tells if anything is new."""
        old = self.status
        since = old.since if state is old.state else time.time()
        self.status = replace(old, state=state, since=since, **fields)
        if self.status != old or tools_changed:
            self._wake()
            self.listeners.notify()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is tried again after each change."""
        while not condition():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
