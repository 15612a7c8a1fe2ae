"""Deadlines and retries: limit how long a call takes, and repeat it only when repeating is safe."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import anyio

from toolcrib.errors import CallTimeout, ConnectionLost, ExecutionFailed, ServerUnavailable
from toolcrib.middleware.options import RetryOptions
from toolcrib.types import Call, CallNext, Context, Tool, ToolResult, is_repeatable

_deadline_scope: ContextVar[anyio.CancelScope | None] = ContextVar("toolcrib.deadline", default=None)


def deadline_exceeded() -> bool:
    """Whether the call that is being cancelled ran out of time; False if its caller gave up on it."""
    scope = _deadline_scope.get()
    return scope is not None and scope.cancel_called


class DeadlineMiddleware:
    """Cancels a call that takes longer than `seconds`, with all its attempts."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the call, or raise `CallTimeout` when its time is up."""
        with anyio.move_on_after(self._seconds) as scope:
            token = _deadline_scope.set(scope)
            try:
                return await call_next(ctx, call)
            finally:
                _deadline_scope.reset(token)
        raise CallTimeout(
            f"{call.tool.id} did not answer within {self._seconds:g} s and was cancelled.",
            hint="It may have taken effect: check before you call it again.",
            data={"tool": call.tool.id, "deadline_s": self._seconds},
        )


class RetryMiddleware:
    """Repeats calls that provably never left; after a lost answer, only calls of repeatable tools."""

    def __init__(
        self,
        options: RetryOptions,
        *,
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        """`random` returns 0 up to 1, `sleep` takes seconds."""
        self._options = options
        self._sleep = sleep
        self._random = random

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Return the first answer, or raise the last error."""
        attempt = 1
        while True:
            try:
                return await call_next(ctx, call)
            except (ServerUnavailable, CallTimeout, ConnectionLost) as error:
                pause = self._pause(attempt)
                if attempt >= self._options.attempts or _carries_answer(ctx) or not _is_safe(call.tool, error):
                    raise
                if _too_late(error, pause):
                    raise
            await self._sleep(pause)
            attempt += 1

    def _pause(self, attempt: int) -> float:
        pause = min(self._options.first_s * 2.0 ** min(attempt - 1, 60), self._options.longest_s)
        return pause * (1 - self._options.jitter * self._random())


def _carries_answer(ctx: Context) -> bool:
    """Whether the call carries a person's answer, which must not be used twice."""
    return ctx.input_responses is not None or ctx.request_state is not None


def _is_safe(tool: Tool, error: ExecutionFailed) -> bool:
    return isinstance(error, ServerUnavailable) or is_repeatable(tool)


def _too_late(error: ExecutionFailed, pause: float) -> bool:
    """Whether the next attempt would come before the server is tried again, or after the call's own deadline."""
    if pause < error.data.get("retry_after_s", 0):
        return True
    return anyio.current_time() + pause >= anyio.current_effective_deadline()
