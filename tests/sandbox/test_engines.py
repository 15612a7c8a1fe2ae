"""Engines made ahead of time: who asks gets one that is ready, and whoever is left over is ended."""

from typing import Any, Self

import anyio
import pytest

from toolcrib.sandbox import engines


class Made:
    """Stands in for a Monty pool; counts what became of each."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.broken = False

    def make(self) -> Any:
        return _Engine(self)


class _Engine:
    def __init__(self, made: Made) -> None:
        self._made = made

    async def __aenter__(self) -> Self:
        if self._made.broken:
            raise OSError("no process")
        self._made.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._made.closed += 1


async def opened(made: Made, count: int) -> None:
    with anyio.fail_after(5):
        while made.opened < count:
            await anyio.lowlevel.checkpoint()


async def test_the_next_engine_is_made_while_one_is_used() -> None:
    made = Made()
    ready = engines.Engines(made.make, size=2)
    await ready.start()
    await opened(made, 2)
    engine = await ready.acquire()
    await opened(made, 3)
    await engines.close(engine)
    await ready.close()
    assert (made.opened, made.closed) == (3, 3)


async def test_whoever_asks_when_none_can_be_made_is_told_and_it_goes_on_when_it_can() -> None:
    made = Made()
    ready = engines.Engines(made.make, size=1)
    await ready.start()
    made.broken = True
    await engines.close(await ready.acquire())
    with pytest.raises(OSError, match="no process"):
        await ready.acquire()
    made.broken = False
    await engines.close(await ready.acquire())
    await ready.close()
    assert made.opened == made.closed
