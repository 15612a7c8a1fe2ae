"""Run third-party code without letting it take the process or the request down.

Awaiting it turns a stray cancellation or `SystemExit` into an ordinary exception, blocking functions run in a bounded
number of threads, and errors of nested calls are kept apart from errors of the call itself: a handler may call other
tools, and that one of those was not run does not mean that the handler was not. Knows nothing of tools or providers.
"""

import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import anyio
import anyio.to_thread

from toolcrib.errors import (
    AmbiguousName,
    ApprovalRequired,
    ExecutionFailed,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    NotStarted,
    RateLimited,
    ServerUnavailable,
    ToolcribError,
)

_T = TypeVar("_T")


class InternalCancellation(Exception):
    """Something was cancelled by itself, within a call that nobody cancels."""


class UnexpectedExit(Exception):
    """Something called `sys.exit()`, within a process that is not its own."""


async def contained(work: Awaitable[_T]) -> _T:
    """What the work gives.

    Raises `InternalCancellation` if it ends as if it were cancelled, and is not, and `UnexpectedExit` for a `SystemExit`,
    which would end the event loop. A `KeyboardInterrupt` is the user's own, and passes.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise InternalCancellation("something it waited for was cancelled") from error
    except SystemExit as error:
        raise UnexpectedExit(f"SystemExit: {error}".removesuffix(": ")) from error


def is_being_cancelled() -> bool:
    """Whether the task that runs now is being cancelled, by itself or by a scope around it."""
    task = asyncio.current_task()
    return (task is not None and task.cancelling() > 0) or anyio.current_effective_deadline() == -float("inf")


_NOT_RUN_ERRORS: Final = (
    ServerUnavailable,
    RateLimited,
    ApprovalRequired,
    NotFound,
    AmbiguousName,
    InvalidRequest,
    NotAuthenticated,
    NotStarted,
)
"""Errors that say of the call they end that nothing was run."""


_MAX_DESCRIPTION: Final = 1_000
"""Characters of what an exception says that are told."""


_MAX_GROUPED: Final = 5
"""Exceptions of a group that are told."""


_nested_errors: ContextVar["WeakSet[ToolcribError] | None"] = ContextVar("toolcrib_inner_errors", default=None)


@contextlib.contextmanager
def third_party_code() -> Iterator[None]:
    """Inside, code of others runs, and it is noted with which errors the calls end that this code makes."""
    token = _nested_errors.set(WeakSet())
    try:
        yield
    finally:
        _nested_errors.reset(token)


@contextlib.contextmanager
def own_code() -> Iterator[None]:
    """Inside, a call is only passed on: its errors are those of the call that led to it."""
    token = _nested_errors.set(None)
    try:
        yield
    finally:
        _nested_errors.reset(token)


def record_call_error(error: ToolcribError) -> None:
    """Note that a call ended with this error, for the code around that made it."""
    if (errors := _nested_errors.get()) is not None:
        errors.add(error)


def is_nested_call_error(error: BaseException) -> bool:
    """Whether a call that the code of others made, which runs now, ended with this error."""
    return isinstance(error, ToolcribError) and error in (_nested_errors.get() or ())


def implies_not_run(error: ToolcribError) -> bool:
    """Whether an error, taken for one of a call that was run, would say that it was not."""
    return isinstance(error, _NOT_RUN_ERRORS)


def nested_failure(error: ToolcribError, tool: str) -> ExecutionFailed:
    """The failure of a call that was run, and in which this error came up; `data` is that error."""
    return ExecutionFailed(
        f"{tool} failed: {error.message}", hint=error.hint, suggestions=error.suggestions, data=error.payload()
    )


def unwrap_group(error: BaseException) -> BaseException:
    """The one exception inside a group of one, which is what a task group raises."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def describe_exception(error: BaseException) -> str:
    """What an exception says, with its type, on one line of at most 1,000 characters; of a group, what each one says.

    >>> describe_exception(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))
    "ExceptionGroup: two: ValueError: a; KeyError: 'b'"
    """
    told = _describe(unwrap_group(error))
    return told if len(told) <= _MAX_DESCRIPTION else f"{told[:_MAX_DESCRIPTION]}…"


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        inner = [_describe(unwrap_group(one)) for one in error.exceptions[:_MAX_GROUPED]]
        more = len(error.exceptions) - len(inner)
        listed = "; ".join([*inner, *([f"and {more} more"] if more else [])])
        return f"{type(error).__name__}: {error.message}: {listed}"
    try:
        words = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception of others may fail to say anything
        words = ""
    if isinstance(error, InternalCancellation | UnexpectedExit):
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


_R = TypeVar("_R")


class WorkerThreads:
    """Runs blocking functions, with the caller's context variables, in threads of their own.

    The limit holds for each event loop. A caller that is cancelled leaves at once; the function cannot be stopped and
    keeps its place until it ends, so that functions that hang use up the limit instead of the machine.
    """

    def __init__(self, limit: int = 40) -> None:
        """`limit` is how many functions may run at once, 1 or more."""
        if limit < 1:
            raise ValueError("limit must be 1 or more")
        self._limit = limit
        self._lock = threading.Lock()
        self._limiters: WeakKeyDictionary[Any, tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]] = (
            WeakKeyDictionary()
        )

    async def run(self, function: Callable[[], _R]) -> _R:
        """What the function returns; what it raises is raised. Waits while the limit is reached."""
        limiter, unlimited = self._of(asyncio.get_running_loop())
        place = _WorkerSlot(limiter)
        await limiter.acquire_on_behalf_of(place)
        try:
            return await anyio.to_thread.run_sync(place.hold, function, abandon_on_cancel=True, limiter=unlimited)
        finally:
            place.leave()

    def _of(self, loop: asyncio.AbstractEventLoop) -> tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]:
        with self._lock:
            found = self._limiters.get(loop)
            if found is None:
                found = self._limiters[loop] = (anyio.CapacityLimiter(self._limit), anyio.CapacityLimiter(math.inf))
            return found


class _WorkerSlot:
    """One place of the limit: given back by whoever is last, the caller or the thread."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._running = False
        self._left = threading.Event()

    def hold(self, function: Callable[[], _R]) -> _R:
        """Run the function; in the thread."""
        with self._lock:
            if self._left.is_set():
                raise RuntimeError("the caller left before the function began")
            self._running = True
        try:
            return function()
        finally:
            with self._lock:
                self._running = False
                late = self._left.is_set()
            if late:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its limit with it
                    self._loop.call_soon_threadsafe(self._limiter.release_on_behalf_of, self)

    def leave(self) -> None:
        """Give the place back, now or when the function ends; in the event loop."""
        with self._lock:
            self._left.set()
            running = self._running
        if not running:
            self._limiter.release_on_behalf_of(self)
