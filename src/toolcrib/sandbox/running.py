"""The scripts that a sandbox runs now, which end when it does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from toolcrib.errors import SandboxUnavailable

_END_S: Final = 5.0
"""How long the end of a script may take: a tool that ends the sandbox it was called from waits for itself."""


class Running:
    """Scripts under way."""

    def __init__(self) -> None:
        self._ends: dict[asyncio.Timeout, asyncio.Event] = {}

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Inside, a script runs. Raises `SandboxUnavailable` when the sandbox ended meanwhile."""
        leave = asyncio.timeout(None)
        try:
            async with leave:
                self._ends[leave] = asyncio.Event()
                try:
                    yield
                finally:
                    self._ends.pop(leave).set()
        except TimeoutError as error:
            if not leave.expired():
                raise
            raise SandboxUnavailable("The sandbox was closed while the script ran.") from error

    async def end(self) -> None:
        """End every script, and wait until its process and its calls have ended."""
        ends = [asyncio.ensure_future(ended.wait()) for ended in self._ends.values()]
        for leave in self._ends:
            if leave.when() is None:
                leave.reschedule(asyncio.get_running_loop().time())
        if ends:
            _, late = await asyncio.wait(ends, timeout=_END_S)
            for waiting in late:
                waiting.cancel()
