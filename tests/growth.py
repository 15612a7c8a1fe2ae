"""How the cost of reading a text grows with its length."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

FLOOR_S: Final = 0.02
"""Processor time below which growth is noise."""
MAX_GROWTH: Final = 3.0
"""Times as much processor time that a text of twice the length may take."""


def growth(work: Callable[[str], object], unit: str, length: int = 20_000, *, start: str = "") -> float:
    """How many times as much processor time the work takes for a text of twice the length; 0 if it takes hardly any.

    The text is the start, and then the unit, repeated.
    """
    long = _cost_s(work, start + repeated(unit, 2 * length))
    if long < FLOOR_S:
        return 0.0
    for _ in range(3):  # what else the machine does can only add to a measurement
        found = long / max(_cost_s(work, start + repeated(unit, length)), FLOOR_S / MAX_GROWTH)
        if found <= MAX_GROWTH:
            return found
        long = min(long, _cost_s(work, start + repeated(unit, 2 * length)))
    return found


def repeated(unit: str, length: int) -> str:
    """So many characters of the unit, again and again."""
    return (unit * (length // len(unit) + 1))[:length]


class Cost:
    """What a measured block took."""

    seconds = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure the processor time that this thread spends in the block, without the garbage collector.

    A full run of the collector takes time in the size of the whole test process, often more than the block.
    """
    cost, was_on = Cost(), gc.isenabled()
    gc.disable()
    start = time.thread_time()
    try:
        yield cost
    finally:
        cost.seconds = time.thread_time() - start
        if was_on:
            gc.enable()


def _cost_s(work: Callable[[str], object], text: str) -> float:
    with measured() as cost:
        work(text)
    return cost.seconds
