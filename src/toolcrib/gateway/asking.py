"""Asks the shared providers for their tools, and waits a while for those that are slow."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import anyio.abc

from toolcrib.gateway.ledger import Answer, Entry, Ledger
from toolcrib.model import Caller
from toolcrib.protocols import Context

SYSTEM: Final = Context(caller=Caller(id="toolcrib"))
"""Who asks shared providers for their tools."""

_PATIENCE_S = 0.1
"""How long the others' tools wait for a provider that is slow to list its own, in seconds."""


class Asking:
    """Asks the providers of a ledger."""

    def __init__(self, ledger: Ledger, wake: Callable[[], None]) -> None:
        """`wake` is called when a provider answers for whom nobody waits any more."""
        self._ledger = ledger
        self._wake = wake
        self._answered = anyio.Event()

    async def begin(self, group: anyio.abc.TaskGroup, entries: Sequence[Entry]) -> None:
        """Ask those that must be asked; return when they have answered, or after a short while."""
        asked = [entry for entry in entries if not entry.asking and self._ledger.wanted(entry)]
        for entry in asked:
            entry.asking = True
            group.start_soon(self._ask, entry)
        with anyio.move_on_after(_PATIENCE_S):
            while any(entry.asking for entry in asked):
                await self._answered.wait()
        for entry in entries:
            entry.late = entry.asking

    async def _ask(self, entry: Entry) -> None:
        """Ask until it has answered to all that was told."""
        try:
            while True:
                self._ledger.note(entry, await self._ledger.ask(entry, SYSTEM))
                if not self._ledger.told(entry):
                    break
        finally:
            late, entry.asking, entry.late = entry.late, False, False
            self._answered.set()
            self._answered = anyio.Event()
            if late:
                self._wake()

    async def all(self, entries: Sequence[Entry]) -> list[tuple[Entry, Answer]]:
        """What each of them says, when all have answered."""
        heard: list[tuple[Entry, Answer]] = []

        async def ask(entry: Entry) -> None:
            heard.append((entry, await self._ledger.ask(entry, SYSTEM)))

        async with anyio.create_task_group() as group:
            for entry in entries:
                group.start_soon(ask, entry)
        return heard

    async def until_due(self, event: anyio.Event) -> bool:
        """Wait until what some provider said holds no longer, or for the event; whether it was the former."""
        left = self._ledger.next_due() - time.monotonic()
        with anyio.move_on_after(max(0.0, left)) as waiting:
            await event.wait()
        return waiting.cancelled_caught

    def release(self) -> None:
        """Nobody is asked any more."""
        self._ledger.rest()
        self._answered.set()
        self._answered = anyio.Event()
