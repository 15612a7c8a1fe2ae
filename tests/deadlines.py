"""A deadline for work that no event loop can end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def cpu_deadline(seconds: float) -> Iterator[None]:
    """Fail the block once it has used that much processor time, however busy the machine is."""

    def fail(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds:g} s of processor time")

    earlier = signal.signal(signal.SIGPROF, fail)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier)
