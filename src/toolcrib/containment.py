"""Run third-party code without letting it take the process or the request down.

A stray cancellation or `SystemExit` becomes an ordinary exception, and blocking functions run in a bounded number of
threads. Errors of nested calls are kept apart from errors of the call itself: if a nested call did not run, the handler
itself may still have run. Knows nothing of tools or providers.
"""

import asyncio
import contextlib
import logging
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
    StateUnavailable,
    ToolcribError,
)
from toolcrib.sanitize import MAX_ERROR, MAX_RECORD, one_line, shorten

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")


@contextlib.contextmanager
def own_errors_only() -> Iterator[None]:
    """Replace an error of other code, such as an application's own policy, whose message may be private."""
    try:
        yield
    except ToolcribError:
        raise
    except Exception as error:
        logger.exception("a request failed unexpectedly")
        raise ExecutionFailed("Internal error; see the server's log for the cause.") from error


_NOT_RUN_ERRORS: Final = (
    ServerUnavailable,
    RateLimited,
    ApprovalRequired,
    StateUnavailable,
    NotFound,
    AmbiguousName,
    InvalidRequest,
    NotAuthenticated,
    NotStarted,
)
"""Errors that mean that the call was not run."""
_MAX_GROUPED: Final = 5
"""Exceptions of a group that are described."""
_held_slot: ContextVar["_WorkerSlot | None"] = ContextVar("toolcrib_worker_slot", default=None)
"""The slot of the thread that the current code runs in, or that the call was made from."""
_nested_errors: ContextVar["WeakSet[ToolcribError] | None"] = ContextVar("toolcrib_inner_errors", default=None)


class InternalCancellation(Exception):
    """Something that a call waited for was cancelled, but not the call itself."""


class UnexpectedExit(Exception):
    """Code that does not own the process called `sys.exit()`, or raised what no `except Exception` catches."""


async def contained(work: Awaitable[_T]) -> _T:
    """Await third-party code.

    Raises `InternalCancellation` for a cancellation that did not come from outside, and `UnexpectedExit` for a
    `SystemExit` or the panic of a Rust extension, which would end the event loop or the connection. A
    `KeyboardInterrupt` passes: it comes from the user.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise InternalCancellation("something it waited for was cancelled") from error
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if is_being_cancelled() or (isinstance(error, BaseExceptionGroup) and error.subgroup(KeyboardInterrupt)):
            raise
        raise UnexpectedExit(_describe(error)) from error


def is_being_cancelled() -> bool:
    """Whether the current task is being cancelled, itself or by a scope around it."""
    task = asyncio.current_task()
    return (task is not None and task.cancelling() > 0) or anyio.current_effective_deadline() == -float("inf")


def is_own_cancellation(error: BaseException) -> bool:
    """Whether the error really cancels the current task, rather than third-party code passing on its own cancellation.

    Code that cancels the task it runs in cannot be distinguished from the former; use `isolate` where that may happen.
    """
    return isinstance(error, asyncio.CancelledError) and is_being_cancelled()


async def isolate(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run work that involves third-party code in a task of its own, and return its outcome.

    Third-party code may cancel its own task, or await a future that something else cancels. That would end the session
    or the server, so it raises `ExecutionFailed` here instead. Cancelling the caller still cancels the work.
    """
    scope = anyio.CancelScope()

    async def run() -> _T:
        with scope:
            return await work()
        raise asyncio.CancelledError

    # Cheaper than a task group, of which every call would need one.
    task = asyncio.create_task(run())
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    task.add_done_callback(end)
    try:
        await ended
    except asyncio.CancelledError:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            await _settled(task)
        raise
    if task.cancelled():
        logger.error("a request was cancelled internally")
        raise ExecutionFailed("The call was cancelled internally; no client asked for that.")
    return task.result()


async def _settled(task: "asyncio.Task[Any]") -> None:
    """Wait for the end of a task, whatever happens meanwhile and however it ends."""
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # mark it as retrieved


@contextlib.contextmanager
def third_party_code() -> Iterator[None]:
    """Mark a block that runs third-party code: the errors of calls that it makes are recorded as nested."""
    token = _nested_errors.set(WeakSet())
    try:
        yield
    finally:
        _nested_errors.reset(token)


@contextlib.contextmanager
def own_code() -> Iterator[None]:
    """Mark a block that only passes a call on: its errors are those of the outer call."""
    token = _nested_errors.set(None)
    try:
        yield
    finally:
        _nested_errors.reset(token)


def record_call_error(error: ToolcribError) -> None:
    """Record the error of a call for the third-party code that made it, if any."""
    if (errors := _nested_errors.get()) is not None:
        errors.add(error)


def is_nested_call_error(error: BaseException) -> bool:
    """Whether this is the error of a call that the current third-party code made."""
    return isinstance(error, ToolcribError) and error in (_nested_errors.get() or ())


def implies_not_run(error: ToolcribError) -> bool:
    """Whether the error means that the call was not run. Retries and fail-over depend on it."""
    return isinstance(error, _NOT_RUN_ERRORS)


def nested_failure(error: ToolcribError, tool: str) -> ExecutionFailed:
    """Wrap the error of a nested call, so that the outer call counts as run; `data` is the nested error."""
    return ExecutionFailed(
        f"{tool} failed: {error.message}", hint=error.hint, suggestions=error.suggestions, data=error.payload()
    )


def unwrap_group(error: BaseException) -> BaseException:
    """Unwrap exception groups that hold a single exception, as task groups raise them."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def describe_exception(error: BaseException) -> str:
    """Describe an exception on one line of at most 1,000 characters: its type and message; for a group, each of them.

    >>> describe_exception(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))
    "ExceptionGroup: two: ValueError: a; KeyError: 'b'"
    """
    return shorten(_describe(unwrap_group(error)), MAX_ERROR)


def loggable(error: BaseException) -> BaseException:
    """The exception as a log may hold it: for one with a very long message, one of the same name with its beginning.

    >>> len(str(loggable(ValueError("x" * 1_000_000))))
    20000
    """
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a third-party `__str__` may raise
        return error
    if len(message) <= MAX_RECORD:
        return error
    alike: type[Exception] = type(type(error).__name__, (Exception,), {"__module__": type(error).__module__})
    return alike(shorten(message, MAX_RECORD)).with_traceback(error.__traceback__)


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        inner = [_describe(unwrap_group(one)) for one in error.exceptions[:_MAX_GROUPED]]
        more = len(error.exceptions) - len(inner)
        listed = "; ".join([*inner, *([f"and {more} more"] if more else [])])
        return f"{type(error).__name__}: {one_line(error.message)}: {listed}"
    try:
        message = one_line(str(error))
    except Exception:  # noqa: BLE001 - a third-party `__str__` may raise
        message = ""
    if isinstance(error, InternalCancellation | UnexpectedExit):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class WorkerThreads:
    """Runs blocking functions in threads, with the caller's context variables.

    The limit is per event loop. A cancelled caller returns at once, but its function cannot be stopped and keeps its
    slot until it ends, so functions that hang use up the limit instead of the machine. A function that waits for
    another one, as a tool does that calls a tool, lends it its slot if no other is free: otherwise as many functions as
    there are slots could wait for each other forever.
    """

    def __init__(self, limit: int = 40) -> None:
        """Run at most `limit` functions at once, 1 or more."""
        if limit < 1:
            raise ValueError("limit must be 1 or more")
        self._limit = limit
        self._lock = threading.Lock()
        self._limiters: WeakKeyDictionary[Any, tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]] = (
            WeakKeyDictionary()
        )

    async def run(self, function: Callable[[], _R]) -> _R:
        """Run the function in a thread; wait first while the limit is reached."""
        limiter, unlimited = self._of(asyncio.get_running_loop())
        place = _WorkerSlot(limiter)
        lender = _lender(limiter) if limiter.available_tokens < 1 else None
        if lender is not None:
            async with lender.lending:
                return await anyio.to_thread.run_sync(place.call, function, abandon_on_cancel=True, limiter=unlimited)
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
    """One slot of the limit, released by the caller or the thread, whichever is last."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self.limiter = limiter
        self.lending = anyio.Lock()
        """Held while a function runs in this slot that its own function waits for."""
        self.outer: _WorkerSlot | None = None
        """The slot of the function that waits for this one."""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._running = False
        self._left = threading.Event()

    def hold(self, function: Callable[[], _R]) -> _R:
        """Run the function. Called in the thread."""
        with self._lock:
            if self._left.is_set():
                raise RuntimeError("the caller left before the function began")
            self._running = True
        try:
            return self.call(function)
        finally:
            with self._lock:
                self._running = False
                late = self._left.is_set()
            if late:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its limit with it
                    self._loop.call_soon_threadsafe(self.limiter.release_on_behalf_of, self)

    def call(self, function: Callable[[], _R]) -> _R:
        """Run the function, in a thread's own context, as the one that has this slot."""
        self.outer = _held_slot.get()
        _held_slot.set(self)
        return function()

    def leave(self) -> None:
        """Release the slot, now or when the function ends. Called in the event loop."""
        with self._lock:
            self._left.set()
            running = self._running
        if not running:
            self.limiter.release_on_behalf_of(self)


def _lender(limiter: anyio.CapacityLimiter) -> _WorkerSlot | None:
    """The slot of this limit that is held by a function that waits for the current code; None without one."""
    slot = _held_slot.get()
    while slot is not None and slot.limiter is not limiter:
        slot = slot.outer
    return slot
