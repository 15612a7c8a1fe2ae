"""How long a request may take.

A deadline is judged only after what has arrived was read: a process that was stopped, or whose event loop was held up,
finds results beside a deadline that has passed meanwhile, and they count.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import takewhile
from types import TracebackType
from typing import Final, Self

_MAX_READ_S: Final = 1.0
"""How long, at most, what has arrived is read after a deadline."""


class SharedTimer:
    """One timer for deadlines of the same length, which pass in the order in which they began.

    A call needs a deadline and hardly ever meets it, and a timer of its own costs more than the rest of the deadline.
    """

    def __init__(self) -> None:
        self.waiting: dict[Deadline, None] = {}
        """Those whose blocks have not ended."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where the timer runs; None without one."""

    def start(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        """Run from now on; the first deadline passes at this time."""
        self.loop = loop
        loop.call_at(at, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for deadline in tuple(takewhile(lambda one: one.at <= now, self.waiting)):
            del self.waiting[deadline]
            deadline.expire()
        first = next(iter(self.waiting), None)
        if first is None:
            self.loop = None
        else:
            loop.call_at(first.at, self._expire, loop)


class Deadline:
    """Ends the block that it is entered around, with `TimeoutError`, for one task.

    Passes some time after the block began or last reported progress, and later for good. The time in which a person
    answers a question does not count. Cheaper than a scope of anyio, because a call needs one. Cancels the task
    natively, as `asyncio.timeout` does.
    """

    # Most calls need none of these, so that they are not set for each.
    _task: "asyncio.Task[object] | None" = None
    """The task inside of the block."""
    _timer: asyncio.TimerHandle | None = None
    """None outside of the block, while the time does not run, and with a shared timer."""
    _cancelling = 0
    _is_read = False
    """Whether what had arrived at the deadline was read."""
    _failure: BaseException | None = None
    _pauses = 0
    """How many questions wait for an answer."""
    _paused_at = 0.0
    is_extended = False
    """Whether the block has reported progress."""

    def __init__(self, seconds: float, most_s: float = 0.0, shared: SharedTimer | None = None) -> None:
        """The time begins when it is entered, and is `most_s` at most, however often it is extended; an infinite time
        never passes. `shared` is for deadlines of this length alone.
        """
        self._seconds = seconds
        self._more_s = most_s - seconds
        """How much later it may still become."""
        self._shared = shared
        self.at = 0.0
        """When it passes, on the event loop's clock."""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        if task is not None and (cancelling := task.cancelling()):
            self._cancelling = cancelling
        self.at = at = loop.time() + self._seconds
        if self._shared is None:
            self._run(at)
        else:
            self._shared.waiting[self] = None
            if self._shared.loop is not loop:
                self._shared.start(loop, at)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._shared is None or self._timer is not None:
            self._stop()
        else:
            self._shared.waiting.pop(self, None)
        if self._failure is None or task is None:
            return
        # The task may have been cancelled from outside too, and that has to be passed on.
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._failure from error

    def end(self, failure: BaseException) -> None:
        """End the block with this error; ignored outside of it."""
        if self._task is not None and self._failure is None:
            self._failure = failure
            self._task.cancel()

    def _run(self, at: float) -> None:
        """Have the block end at this time, by a timer of its own."""
        self.at, self._is_read = at, False
        if at < math.inf:
            self._timer = asyncio.get_running_loop().call_at(at, self.expire)

    def _stop(self) -> None:
        """Let the time run no longer."""
        if self._shared is not None:
            self._shared.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expire(self) -> None:
        """End the block, unless what has arrived does so first."""
        loop = asyncio.get_running_loop()
        if self._is_read:
            self.end(TimeoutError())
            return
        # After the event loop was held up, this runs before the tasks that read what has arrived meanwhile. They get as
        # long as the loop was late.
        self._is_read = True
        late_s = loop.time() - self.at
        self._timer = loop.call_later(min(late_s, _MAX_READ_S), self.expire)

    @property
    def is_last(self) -> bool:
        """Whether no progress gives the block more time."""
        return self._more_s <= 0

    def extend(self) -> None:
        """Begin the time without progress again."""
        if self._task is not None and not self._pauses and not self.is_last:
            self.is_extended = True
            later_s = asyncio.get_running_loop().time() + self._seconds - self.at
            added_s = min(later_s, self._more_s)
            self._more_s -= added_s
            self._stop()
            self._run(self.at + added_s)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop inside the block, and continue with the time that was left."""
        self._pause()
        try:
            yield
        finally:
            self._resume()

    def _pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = asyncio.get_running_loop().time()
            self._stop()

    def _resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            passed_s = asyncio.get_running_loop().time() - self._paused_at
            if self._task is not None:
                self._stop()
                self._run(self.at + passed_s)


def paused(limit: Deadline | None) -> AbstractContextManager[None]:
    """Stop a deadline inside the block, if there is one."""
    return nullcontext() if limit is None else limit.paused()
