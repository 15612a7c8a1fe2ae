"""Deadlines and retries: limit how long a call takes, and repeat it only when repeating is safe."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import anyio

from toolcrib.errors import CallTimeout, ConnectionLost, ExecutionFailed, ServerUnavailable
from toolcrib.middleware.options import RetryOptions
from toolcrib.types import Call, CallNext, Context, Tool, ToolResult, is_repeatable


class RetryMiddleware:
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

    async def __call__(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """The first answer, or the last error."""
        attempt = 1
        while True:
            try:
                return await proceed(ctx, call)
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
    """The call carries a person's answer, which must not be spent twice."""
    return ctx.input_responses is not None or ctx.request_state is not None


def _is_safe(tool: Tool, error: ExecutionFailed) -> bool:
    return isinstance(error, ServerUnavailable) or is_repeatable(tool)


def _too_late(error: ExecutionFailed, pause: float) -> bool:
    """The next attempt would come before the server is tried again, or after the call's own deadline."""
    if pause < error.data.get("retry_after_s", 0):
        return True
    return anyio.current_time() + pause >= anyio.current_effective_deadline()


_deadline_scope: ContextVar[anyio.CancelScope | None] = ContextVar("toolcrib.deadline", default=None)


def deadline_exceeded() -> bool:
    """Whether the call that is being cancelled here has used up its time; False where its caller gave up on it."""
    scope = _deadline_scope.get()
    return scope is not None and scope.cancel_called


class DeadlineMiddleware:
    """Cancels what takes too long."""

    def __init__(self, seconds: float) -> None:
        """`seconds` for the call with all its attempts; above 0."""
        self._seconds = seconds

    async def __call__(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """Let the call proceed, or raise `CallTimeout` when its time is up."""
        with anyio.move_on_after(self._seconds) as scope:
            token = _deadline_scope.set(scope)
            try:
                return await proceed(ctx, call)
            finally:
                _deadline_scope.reset(token)
        raise CallTimeout(
            f"{call.tool.id} did not answer within {self._seconds:g} s and was given up.",
            hint="Whether it took effect is unknown: look before calling it again.",
            data={"tool": call.tool.id, "deadline_s": self._seconds},
        )
