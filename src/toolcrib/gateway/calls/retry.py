"""Tries a call again, where nothing can happen twice that must happen once."""

from collections.abc import Awaitable, Callable

import anyio

from toolcrib.errors import CallTimeout, ConnectionLost, ExecutionFailed, ServerUnavailable
from toolcrib.gateway.calls.hints import repeatable
from toolcrib.gateway.calls.options import RetryOptions
from toolcrib.model import Tool, ToolResult
from toolcrib.protocols import Call, Context, Proceed


class Retry:
    """Repeats what provably never left; after a lost answer, only what the tool says may be repeated."""

    def __init__(
        self,
        options: RetryOptions,
        *,
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        """`random` gives 0 up to 1, `sleep` takes seconds."""
        self._options = options
        self._sleep = sleep
        self._random = random

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        """The first answer, or the last error."""
        attempt = 1
        while True:
            try:
                return await proceed(ctx, call)
            except (ServerUnavailable, CallTimeout, ConnectionLost) as error:
                pause = self._pause(attempt)
                if attempt >= self._options.attempts or _in_dialogue(ctx) or not _safe(call.tool, error):
                    raise
                if _too_late(error, pause):
                    raise
            await self._sleep(pause)
            attempt += 1

    def _pause(self, attempt: int) -> float:
        pause = min(self._options.first_s * 2.0 ** min(attempt - 1, 60), self._options.longest_s)
        return pause * (1 - self._options.jitter * self._random())


def _in_dialogue(ctx: Context) -> bool:
    """The call carries a person's answer, which must not be spent twice."""
    return ctx.input_responses is not None or ctx.request_state is not None


def _safe(tool: Tool, error: ExecutionFailed) -> bool:
    return isinstance(error, ServerUnavailable) or repeatable(tool)


def _too_late(error: ExecutionFailed, pause: float) -> bool:
    """The next attempt would come before the server is tried again, or after the call's own deadline."""
    if pause < error.data.get("retry_after_s", 0):
        return True
    return anyio.current_time() + pause >= anyio.current_effective_deadline()
