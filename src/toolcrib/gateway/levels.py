"""How deep scripts stand in one another, told by the task that asks: whatever context a tool makes for its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final


class _Running:
    """A script, as long as it runs, and the one around it."""

    def __init__(self, level: int, around: "_Running | None") -> None:
        self.level = level
        self.around = around
        self.over = False


_INNERMOST: Final[ContextVar[_Running | None]] = ContextVar("toolcrib_script", default=None)


def level_of() -> int:
    """How many scripts stand around whoever asks; one that a task has outlived is not counted."""
    running = _innermost()
    return 0 if running is None else running.level


@contextmanager
def deeper(level: int) -> Iterator[None]:
    """A script of that level, from 0, is run."""
    running = _Running(level + 1, _innermost())
    token = _INNERMOST.set(running)
    try:
        yield
    finally:
        running.over = True
        _INNERMOST.reset(token)


def _innermost() -> _Running | None:
    running = _INNERMOST.get()
    while running is not None and running.over:
        running = running.around
    return running
