"""Threads for functions that block: so many at once, and no more."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

T = TypeVar("T")


class Workers:
    """Runs blocking functions, with the caller's context variables, in threads of their own.

    The limit holds for each event loop. A caller that is cancelled leaves at once; the function cannot be stopped and
    keeps its place until it ends, so that functions that hang use up the limit instead of the machine.
    """

    def __init__(self, limit: int = 40) -> None:
        """`limit` is how many functions may run at once, 1 or more."""
        if limit < 1:
            raise ValueError("limit must be 1 or more")
        self._limit = limit
        self._lock = threading.Lock()
        self._limiters: WeakKeyDictionary[Any, tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]] = (
            WeakKeyDictionary()
        )

    async def run(self, function: Callable[[], T]) -> T:
        """What the function returns; what it raises is raised. Waits while the limit is reached."""
        limiter, unlimited = self._of(asyncio.get_running_loop())
        place = _Place(limiter)
        await limiter.acquire_on_behalf_of(place)
        try:
            return await anyio.to_thread.run_sync(place.hold, function, abandon_on_cancel=True, limiter=unlimited)
        finally:
            place.leave()

    def _of(self, loop: asyncio.AbstractEventLoop) -> tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]:
        with self._lock:
            found = self._limiters.get(loop)
            if found is None:
                found = self._limiters[loop] = (anyio.CapacityLimiter(self._limit), anyio.CapacityLimiter(math.inf))
            return found


class _Place:
    """One place of the limit: given back by whoever is last, the caller or the thread."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._running = False
        self._left = threading.Event()

    def hold(self, function: Callable[[], T]) -> T:
        """Run the function; in the thread."""
        with self._lock:
            if self._left.is_set():
                raise RuntimeError("the caller left before the function began")
            self._running = True
        try:
            return function()
        finally:
            with self._lock:
                self._running = False
                late = self._left.is_set()
            if late:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its limit with it
                    self._loop.call_soon_threadsafe(self._limiter.release_on_behalf_of, self)

    def leave(self) -> None:
        """Give the place back, now or when the function ends; in the event loop."""
        with self._lock:
            self._left.set()
            running = self._running
        if not running:
            self._limiter.release_on_behalf_of(self)
