"""What goes wrong within a request is that request's failure: nothing of the inside is told, and nothing else ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import mcp_types
from mcp.shared.exceptions import MCPError

from toolcrib.errors import AmbiguousName, ExecutionFailed, InvalidRequest, NotFound, ToolcribError
from toolcrib.providers.foreign import being_cancelled
from toolcrib.surfaces.results import told

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def isolated(work: Callable[[], Awaitable[T]]) -> T:
    """The outcome of work in which foreign code takes part.

    Where that code is cancelled by something of its own, such as a future that was given up, or cancels its own task,
    this raises `ExecutionFailed`: a cancellation that nobody asked for would end the session, or the server. Whoever
    cancels the caller of this cancels the work.
    """
    outcome: list[T] = []
    failures: list[Exception] = []

    async def run() -> None:
        try:
            outcome.append(await work())
        except Exception as error:  # noqa: BLE001 - raised again below, not as a group
            failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    if failures:
        raise failures.pop()
    if not outcome:
        logger.error("a request was cancelled from within")
        raise ExecutionFailed("It was cancelled from within, by nobody's request.")
    return outcome.pop()


def is_own_cancellation(error: BaseException) -> bool:
    """Whether the current task is really being cancelled by that error, and not foreign code by something of its own.

    Code that cancels the task it runs in looks like the first; where it may come, use `isolated`.
    """
    return isinstance(error, asyncio.CancelledError) and being_cancelled()


async def guarded(work: Awaitable[T]) -> T:
    """The work's outcome; its errors as JSON-RPC errors that tell nothing of the inside."""
    try:
        return await work
    except ToolcribError as error:
        raise MCPError(_rpc_code(error), told(error), error.payload()) from error
    except MCPError:
        raise
    except Exception as error:
        logger.exception("a request failed inside")
        raise MCPError(mcp_types.INTERNAL_ERROR, "Internal error; the server's log has the cause.") from error


def _rpc_code(error: ToolcribError) -> int:
    teachable = isinstance(error, (NotFound, AmbiguousName, InvalidRequest))
    return mcp_types.INVALID_PARAMS if teachable else mcp_types.INTERNAL_ERROR
