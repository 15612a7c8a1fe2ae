"""The calls of one script: each in a task of its own, traced, and all ended with the script."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from toolcrib.errors import ToolcribError
from toolcrib.model import JSON
from toolcrib.providers.foreign import being_cancelled
from toolcrib.sandbox.result import CallTrace, OnCall, Outcome

_log = logging.getLogger(__name__)

Tools = Mapping[str, Mapping[str, Callable[[dict[str, Any]], Awaitable[JSON] | JSON]]]
"""server -> tool -> function of one dict. It may also return the value itself."""

_CLEAN_UP_S: Final = 2.0
"""How long tools may take to notice that they were cancelled."""


class CallFailed(Exception):
    """The tool raised; the text is for the script."""


class Calls:
    """Runs a script's tool calls."""

    def __init__(self, tools: Tools, on_call: OnCall | None) -> None:
        """`tools` are under their own names."""
        self._tools = tools
        self._on_call = on_call
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False
        self.trace: list[CallTrace] = []
        self.running = 0
        self.changed = time.monotonic()
        """When a call last began or ended."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run that until it ends or the script does; not at all where the script has ended."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._ended:
            task.cancel()
        return task

    async def call(self, server: str, tool: str, arguments: dict[str, Any]) -> JSON:
        """What the tool gives. Raises `CallFailed`."""
        start, outcome, said = time.monotonic(), "cancelled", ""
        self.running += 1
        self.changed = start
        try:
            value = self._tools[server][tool](arguments)
            if inspect.isawaitable(value):
                value = await value
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            outcome, said = "error", "something it waited for was cancelled"
            raise CallFailed(said) from error
        except Exception as error:
            outcome, said = "error", describe(error).removeprefix(f"{server}:{tool} ")  # the script says whose it is
            raise CallFailed(said) from error
        else:
            outcome = "ok"
            return value
        finally:
            self.running -= 1
            self.changed = time.monotonic()
            self._record(server, tool, self.changed - start, outcome, said)

    def _record(self, server: str, tool: str, duration_s: float, outcome: str, said: str) -> None:
        known: Outcome = "ok" if outcome == "ok" else "error" if outcome == "error" else "cancelled"
        trace = CallTrace(server=server, tool=tool, duration_s=duration_s, outcome=known, error=said)
        self.trace.append(trace)
        if self._on_call is None:
            return
        try:
            self._on_call(trace)
        except Exception:  # noqa: BLE001 - their own trouble, not the script's
            _log.exception("Whoever wanted to be told of a script's calls failed")

    def cancel(self) -> None:
        """Cancel what is left."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel what is left, and what may still come, and wait for it; not for ever, as a tool may refuse to stop."""
        self._ended = True
        self.cancel()
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLEAN_UP_S)


def describe(error: Exception) -> str:
    """What a script is told of a tool's error."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - it is not our error, and says nothing
        return type(error).__name__
    return said if isinstance(error, ToolcribError) else said.strip() or type(error).__name__
