"""Callbacks that may be told from any thread, and are called in the event loop in which they were given."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from toolcrib.protocols import Unsubscribe

logger = logging.getLogger(__name__)


class _Way(threading.local):
    """Where the change that is being told in this thread has been passed on already."""

    passed: frozenset[int] = frozenset()


_way = _Way()


class ThreadSafe:
    """A callback that is called in whichever thread tells, and is bound to no event loop."""

    def __init__(self, callback: Callable[[], None]) -> None:
        """The callback must be safe to call from any thread."""
        self._callback = callback

    def __call__(self) -> None:
        """Call it."""
        self._callback()


class Callbacks:
    """Callbacks without arguments."""

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._lock = threading.Lock()
        self._callbacks: dict[object, tuple[Callable[[], None], asyncio.AbstractEventLoop | None]] = {}

    def add(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call it back from now on, until what this returns is called.

        Given while an event loop runs, it is called in that loop; given without one, or as `ThreadSafe`, in the thread
        that tells.
        """
        place = object()
        with self._lock:
            self._callbacks[place] = (callback, None if isinstance(callback, ThreadSafe) else _running_loop())

        def remove() -> None:
            with self._lock:
                self._callbacks.pop(place, None)

        return remove

    def tell(self) -> None:
        """Tell of a change that was made here. Calls all back; one that raises is logged."""
        self._tell(frozenset())

    def pass_on(self) -> None:
        """Tell of a change that was told by something else; not again, where it began here or has been here already.

        So those that tell each other may stand in a circle.
        """
        if id(self) not in _way.passed:
            self._tell(_way.passed)

    def _tell(self, passed: frozenset[int]) -> None:
        before, _way.passed = _way.passed, passed | {id(self)}
        try:
            self._call_all()
        finally:
            _way.passed = before

    def _call_all(self) -> None:
        with self._lock:
            callbacks = tuple(self._callbacks.values())
        here = _running_loop()
        for callback, loop in callbacks:
            if loop is None or loop is here:
                called(callback)
            else:
                with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody left to tell
                    loop.call_soon_threadsafe(called, callback)


def called(callback: Callable[[], None]) -> None:
    """Call it; where it raises, that is logged."""
    try:
        callback()
    except (Exception, asyncio.CancelledError):
        # It is foreign code, and must not end whoever made the change.
        logger.exception("a listener for changes raised")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


__all__ = ["Callbacks", "ThreadSafe", "called"]
