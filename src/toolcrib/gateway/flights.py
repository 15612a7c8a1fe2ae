"""Event loops as places: where something runs, and work that is done once for all who wait for it in one of them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import anyio


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """One run: the event loop and the thread in which it is."""

    loop: asyncio.AbstractEventLoop
    thread: int

    @classmethod
    def here(cls) -> "Home":
        """The loop that runs now, as the place of another run."""
        return cls(asyncio.get_running_loop(), threading.get_ident())

    def is_here(self) -> bool:
        """Whether this thread is the one."""
        return threading.get_ident() == self.thread


@dataclass(slots=True, eq=False)
class _Flight:
    begun: int
    """What was to be done when it began, as a count."""
    over: anyio.Event = field(default_factory=anyio.Event)
    arrived: bool = False


_aboard: ContextVar[tuple["Flights", ...]] = ContextVar("toolcrib_flights", default=())
"""Whose work led to what runs now."""


class Flights:
    """At most one at a time in each event loop."""

    def __init__(self) -> None:
        """None is under way."""
        self._lock = threading.Lock()
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, _Flight] = WeakKeyDictionary()

    async def join(self, count: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        """Return when the work was done that began at this count or later; by whom makes no difference.

        Where it fails for one who does it, another one who waits does it instead. Work that leads back here, as by
        registries that provide each other, is done at once: it would wait for itself.
        """
        if self in _aboard.get():
            await work()
            return
        needed, loop = count(), asyncio.get_running_loop()
        while True:
            with self._lock:
                flight = self._flights.get(loop)
                if flight is None:
                    own = self._flights[loop] = _Flight(count())
                    break
            await flight.over.wait()
            if flight.arrived and flight.begun >= needed:
                return
        token = _aboard.set((*_aboard.get(), self))
        try:
            await work()
            own.arrived = True
        finally:
            _aboard.reset(token)
            with self._lock:
                self._flights.pop(loop, None)
            own.over.set()
