"""Awaiting code of others that may end as nothing should: as if it were cancelled, or as if the process were to end."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio

T = TypeVar("T")


class CancelledInside(Exception):
    """Something was cancelled by itself, within a call that nobody cancels."""


class ExitedInside(Exception):
    """Something called `sys.exit()`, within a process that is not its own."""


async def uncancelled(work: Awaitable[T]) -> T:
    """What the work gives.

    Raises `CancelledInside` where it ends as if it were cancelled, and is not, and `ExitedInside` for a `SystemExit`,
    which would end the event loop. A `KeyboardInterrupt` is the user's own, and passes.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        if being_cancelled():
            raise
        raise CancelledInside("something it waited for was cancelled") from error
    except SystemExit as error:
        raise ExitedInside(f"SystemExit: {error}".removesuffix(": ")) from error


def being_cancelled() -> bool:
    """Whether the task that runs now is being cancelled, by itself or by a scope around it."""
    task = asyncio.current_task()
    return (task is not None and task.cancelling() > 0) or anyio.current_effective_deadline() == -float("inf")
