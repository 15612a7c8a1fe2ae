"""Workers kept ready, each for one script."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from toolcrib.errors import SandboxUnavailable
from toolcrib.sandbox.frames import ProtocolError, read_frame
from toolcrib.sandbox.process import Worker


async def until_ready(start: Callable[[], Awaitable[Worker]], within_s: float) -> Worker:
    """Start a worker and wait for its first word. Raises `SandboxUnavailable`."""
    try:
        worker = await start()
    except OSError as error:
        raise SandboxUnavailable(f"A script's process could not be started: {error.strerror or error}.") from error
    try:
        await asyncio.wait_for(read_frame(worker.reader, {ord("r"): 1}), within_s)
    except (TimeoutError, EOFError, ProtocolError) as error:
        status = await worker.close()
        raise SandboxUnavailable(
            f"A script's process did not get ready (exit status {status}).",
            hint="Check that Python and the engine's library can be read by this user, and that memory is left.",
        ) from error
    except BaseException:
        await worker.close()
        raise
    return worker


class Pool:
    """Makes workers, some ahead of time."""

    def __init__(self, make: Callable[[], Awaitable[Worker]], *, size: int, start_s: float) -> None:
        """`make` starts a worker, which may take `start_s` to get ready; `size` of them are kept ready."""
        self._make = make
        self._size = size
        self._start_s = start_s
        self._ready: deque[Worker] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Have the first worker ready. Raises `SandboxUnavailable`."""
        self._ready.append(await self._new())
        self.top_up()

    async def acquire(self) -> Worker:
        """A ready worker, for the caller alone, who closes it. Raises `SandboxUnavailable`."""
        while self._ready:
            worker = self._ready.popleft()
            if worker.alive:
                break
            await worker.close()
        else:
            worker = await self._new()
        if not self._ready:
            self.top_up()
        return worker

    async def close(self) -> None:
        """End the workers that no script has."""
        self._closed = True
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.wait([self._refill])
        while self._ready:
            await self._ready.popleft().close()

    @property
    def idle(self) -> tuple[int, ...]:
        """The processes that wait for a script."""
        return tuple(worker.end.pid for worker in self._ready)

    async def _new(self) -> Worker:
        return await until_ready(self._make, self._start_s)

    def top_up(self) -> None:
        """Have as many ready as there should be, soon. Best when nobody waits: a start takes what a script needs."""
        if not self._closed and (self._refill is None or self._refill.done()):
            self._refill = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        """All that are missing at the same time; on trouble none, as the next script meets the same, and tells."""
        while (missing := self._size - len(self._ready)) > 0:
            ends = await asyncio.gather(*(self._add() for _ in range(missing)), return_exceptions=True)
            if any(ends):
                return

    async def _add(self) -> None:
        self._ready.append(await self._new())
