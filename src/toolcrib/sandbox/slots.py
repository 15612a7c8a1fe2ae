"""How many scripts may run at once."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from toolcrib.sandbox.failures import busy
from toolcrib.sandbox.limits import SandboxOptions


class Slots:
    """Places for scripts; whoever comes later waits, but not for ever."""

    def __init__(self, options: SandboxOptions) -> None:
        self.count = options.workers or 2 * (os.cpu_count() or 1)
        self._free = asyncio.Semaphore(self.count)
        self._wait_s = options.queue_wait_s

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place while the block runs. Raises `SandboxUnavailable` when none got free in time."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise busy(self.count, self._wait_s) from None
        try:
            yield
        finally:
            self._free.release()
