"""Work that is done once for all who wait for it in one event loop."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import anyio


@dataclass(slots=True, eq=False)
class _Flight:
    begun: int
    """What was to be done when it began, as a count."""
    over: anyio.Event = field(default_factory=anyio.Event)
    arrived: bool = False


class Flights:
    """At most one at a time in each event loop."""

    def __init__(self) -> None:
        """None is under way."""
        self._lock = threading.Lock()
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, _Flight] = WeakKeyDictionary()

    async def join(self, count: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        """Return when the work was done that began at this count or later; by whom makes no difference.

        Where it fails for one who does it, another one who waits does it instead.
        """
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
        try:
            await work()
            own.arrived = True
        finally:
            with self._lock:
                self._flights.pop(loop, None)
            own.over.set()
