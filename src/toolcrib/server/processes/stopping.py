"""When a server stops, and what its clients learn then."""

import signal
from typing import Final

import anyio
import anyio.abc

SHUTTING_DOWN: Final = "The server is shutting down; the call was cancelled."
"""Message for requests that are still unanswered at shutdown, sent with the JSON-RPC code `CONNECTION_CLOSED`."""


async def wait_for_stop(
    stop: anyio.Event | None = None, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Wait for the event, or for SIGTERM or SIGINT without one. Reports `started` once neither can be missed."""
    if stop is not None:
        task_status.started()
        await stop.wait()
        return
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            return
