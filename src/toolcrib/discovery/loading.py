"""A value that is fetched when it is needed: once for all who wait for it in an event loop, then kept for all loops."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import anyio

from toolcrib.errors import ExecutionFailed

V = TypeVar("V")


@dataclass(slots=True, eq=False)
class _Flight(Generic[V]):
    generation: int
    """How often the value had been forgotten when the fetch began."""
    owner: "asyncio.Task[Any] | None"
    over: anyio.Event = field(default_factory=anyio.Event)
    gave: V | None = None
    """None where it failed, or was cancelled."""


class Loading(Generic[V]):
    """Holds the value. Safe to use from several threads, each with an event loop of its own: none waits for another."""

    def __init__(self, use: Callable[[V], None]) -> None:
        """`use` is told each value that is newer than the one before; it must be quick."""
        self._use = use
        self._lock = threading.Lock()
        self._kept: V | None = None
        self._generation = 0
        self._told = -1
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, _Flight[V]] = WeakKeyDictionary()

    @property
    def kept(self) -> V | None:
        """The value, where it is there."""
        return self._kept

    def forget(self) -> None:
        """Fetch the value again when it is next needed; a fetch under way no longer counts for those who come later."""
        with self._lock:
            self._generation += 1
            self._kept = None

    async def get(self, fetch: Callable[[], Awaitable[V]]) -> V:
        """The value. Where a fetch fails, its error goes to one, and another one who waits tries again.

        Raises what the fetch raises, and `ExecutionFailed` where the fetch itself asks for the value.
        """
        loop, task, needed = asyncio.get_running_loop(), asyncio.current_task(), self._generation
        while True:
            with self._lock:
                if self._kept is not None:
                    return self._kept
                flight = self._flights.get(loop)
                if flight is None:
                    own = self._flights[loop] = _Flight(self._generation, task)
                    break
            if flight.owner is task:
                raise ExecutionFailed("What loads the tools asked for them itself.", hint="Return the tools instead.")
            await flight.over.wait()
            if flight.gave is not None and flight.generation >= needed:
                return flight.gave
        try:
            own.gave = self._arrived(await fetch(), own.generation)
            return own.gave
        finally:
            with self._lock:
                self._flights.pop(loop, None)
            own.over.set()

    def _arrived(self, value: V, generation: int) -> V:
        """Keep it, unless it is out of date; another loop may have been quicker."""
        with self._lock:
            if generation == self._generation:
                if self._kept is not None:
                    return self._kept
                self._kept = value
            if generation > self._told:
                self._told = generation
                self._use(value)
            return value
