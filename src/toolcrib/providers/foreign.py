"""Code of others that is awaited in a call: what of its errors says something about the call itself, and what does not.

A handler may call tools in its turn. That one of those was not run does not mean that the handler was not: whoever
tries a call again, or has another backend run it, must not take the inner error for the outer one.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final
from weakref import WeakSet

from toolcrib.cancelled import CancelledInside, ExitedInside, being_cancelled, uncancelled
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

_OF_ITS_OWN_CALL: Final = (
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

_MAX_CAUSE: Final = 1_000
"""Characters of what an exception says that are told."""
_MAX_INNER: Final = 5
"""Exceptions of a group that are told."""

_inner: ContextVar["WeakSet[ToolcribError] | None"] = ContextVar("toolcrib_inner_errors", default=None)


@contextlib.contextmanager
def run_by_others() -> Iterator[None]:
    """Inside, code of others runs, and it is noted with which errors the calls end that this code makes."""
    token = _inner.set(WeakSet())
    try:
        yield
    finally:
        _inner.reset(token)


@contextlib.contextmanager
def run_by_us() -> Iterator[None]:
    """Inside, a call is only passed on: its errors are those of the call that led to it."""
    token = _inner.set(None)
    try:
        yield
    finally:
        _inner.reset(token)


def left_a_call(error: ToolcribError) -> None:
    """Note that a call ended with this error, for the code around that made it."""
    if (errors := _inner.get()) is not None:
        errors.add(error)


def left_one_inside(error: BaseException) -> bool:
    """Whether a call that the code of others made, which runs now, ended with this error."""
    return isinstance(error, ToolcribError) and error in (_inner.get() or ())


def misleads(error: ToolcribError) -> bool:
    """Whether an error, taken for one of a call that was run, would say that it was not."""
    return isinstance(error, _OF_ITS_OWN_CALL)


def failed_inside(error: ToolcribError, tool: str) -> ExecutionFailed:
    """The failure of a call that was run, and in which this error came up; `data` is that error."""
    return ExecutionFailed(
        f"{tool} failed: {error.message}", hint=error.hint, suggestions=error.suggestions, data=error.payload()
    )


def cause_of(error: BaseException) -> BaseException:
    """The one exception inside a group of one, which is what a task group raises."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def said(error: BaseException) -> str:
    """What an exception says, with its type, on one line of at most 1,000 characters; of a group, what each one says.

    >>> said(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))
    "ExceptionGroup: two: ValueError: a; KeyError: 'b'"
    """
    told = _told(cause_of(error))
    return told if len(told) <= _MAX_CAUSE else f"{told[:_MAX_CAUSE]}…"


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        inner = [_told(cause_of(one)) for one in error.exceptions[:_MAX_INNER]]
        more = len(error.exceptions) - len(inner)
        listed = "; ".join([*inner, *([f"and {more} more"] if more else [])])
        return f"{type(error).__name__}: {error.message}: {listed}"
    try:
        words = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception of others may fail to say anything
        words = ""
    if isinstance(error, CancelledInside | ExitedInside):
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


__all__ = [
    "CancelledInside",
    "ExitedInside",
    "being_cancelled",
    "cause_of",
    "failed_inside",
    "left_a_call",
    "left_one_inside",
    "misleads",
    "run_by_others",
    "run_by_us",
    "said",
    "uncancelled",
]
