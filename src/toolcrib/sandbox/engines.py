"""Monty's processes, each for one script, the next ones started while this one runs.

Monty's own pool starts a process for a script when its first ones are used up, and the script waits. Here every process
has a pool of its own, which is thrown away with it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Engines:
    """Makes engines, some ahead of time."""

    def __init__(self, make: Callable[[], Any], *, size: int) -> None:
        """`make` gives a Monty pool for one process and one script; `size` of them are kept ready."""
        self._make = make
        self._size = size
        self._ready: deque[Any] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Have the first engine ready, or under way. Raises what Monty raises."""
        self._ready.append(await self._new())
        self._top_up()

    async def acquire(self) -> Any:
        """An engine for the caller alone, who closes it. Raises what Monty raises."""
        engine = self._ready.popleft() if self._ready else await self._new()
        self._top_up()
        return engine

    async def close(self) -> None:
        """End the engines that no script has."""
        self._closed = True
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.wait([self._refill])
        while self._ready:
            await close(self._ready.popleft())

    async def _new(self) -> Any:
        engine = self._make()
        await engine.__aenter__()
        return engine

    def _top_up(self) -> None:
        if not self._closed and (self._refill is None or self._refill.done()):
            self._refill = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        with suppress(Exception):  # the next script meets the same trouble, and tells
            while len(self._ready) < self._size:
                self._ready.append(await self._new())


async def close(engine: Any) -> None:
    """End it, and its process."""
    await engine.__aexit__(None, None, None)
