"""Middleware that limits calls: rate limits for each caller, deadlines, and retries of what is safe to repeat."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Final, NamedTuple

import anyio

from toolcrib.errors import CallTimeout, ConnectionLost, ExecutionFailed, RateLimited, ServerUnavailable
from toolcrib.gateway.policy import Patterns
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.middleware.options import RateOptions, RetryOptions
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Call, Caller, CallNext, Context, Tool, ToolResult, is_repeatable

MAX_CALLERS: Final = 50_000
"""Callers whose buckets are kept; the one who called longest ago is forgotten first."""


_ROUNDING_S: Final = 1e-6
"""More than the rounding error of the sums below: seconds since the epoch have 0.24 microseconds at best."""


_Buckets = Mapping[str, float]
"""When each bucket of a caller is full again, in seconds since the epoch, by tool; "" is the bucket for all tools."""


_CODEC: Final[StateCodec[_Buckets]] = StateCodec(dict, dict)


class _RateLimit(NamedTuple):
    interval_s: float
    """Between two calls, in the long run."""
    span_s: float
    """How far ahead a burst may be."""

    @classmethod
    def of(cls, rate: RateOptions) -> "_RateLimit":
        return cls(1 / rate.per_second, rate.burst / rate.per_second)


_SEARCHES: Final = "/searches"
"""The bucket for searches and lists; no tool has such an id."""


class RateMiddleware:
    """Refuses calls, searches and lists that come too often, and never delays one."""

    def __init__(
        self,
        rate: RateOptions | None,
        tool_rates: Sequence[tuple[str, RateOptions]],
        state: StateStore,
        *,
        wall: Callable[[], float],
        search_rate: RateOptions | None = None,
        max_callers: int = MAX_CALLERS,
    ) -> None:
        """`wall` counts seconds since the epoch."""
        self._limit = None if rate is None else _RateLimit.of(rate)
        self._tool_limits = [(Patterns((pattern,)), _RateLimit.of(tool_rate)) for pattern, tool_rate in tool_rates]
        self._search_limits = {} if search_rate is None else {_SEARCHES: _RateLimit.of(search_rate)}
        self._wall = wall
        self._buckets = state.table("rates", _CODEC, max_entries=max_callers)
        limits = [*(limit for _, limit in self._tool_limits), self._limit, *self._search_limits.values()]
        self._ttl_s = max((limit.span_s + limit.interval_s for limit in limits if limit is not None), default=0.0)

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the call, or raise `RateLimited`."""
        wait = await self.take(ctx.caller, call.tool.id)
        if wait > 0:
            after = _rounded_up(wait)
            raise RateLimited(
                f"{call.tool.id} was not run: the rate limit is reached.",
                hint=f"Wait {after:g} s before the next call.",
                data={"retry_after_s": after},
            )
        return await call_next(ctx, call)

    async def check_search(self, caller: Caller, action: str) -> None:
        """Count a search or list, or raise `RateLimited`; `action` names it in the error."""
        wait = await self._take(caller, self._search_limits)
        if wait > 0:
            after = _rounded_up(wait)
            raise RateLimited(
                f"{action} was not run: you search and list too often (calls.search_rate).",
                hint=f"Wait {after:g} s before the next one.",
                data={"retry_after_s": after, "limit": "calls.search_rate", "of": "caller"},
            )

    async def take(self, caller: Caller, tool: str) -> float:
        """Count a call and return 0, or count nothing and return the seconds until one would be allowed."""
        return await self._take(caller, self._limits(tool))

    async def _take(self, caller: Caller, limits: Mapping[str, _RateLimit]) -> float:
        if not limits:
            return 0.0
        key = canonical_json(list(caller.key)) or ""
        return await self._buckets.update(key, lambda old: self._taken(old or {}, limits), ttl_s=self._ttl_s)

    def _taken(self, buckets: _Buckets, limits: Mapping[str, _RateLimit]) -> tuple[_Buckets, float]:
        now = self._wall()
        filling = {name: full_at for name, full_at in buckets.items() if full_at > now}
        moved: dict[str, float] = {}
        wait = 0.0
        for name, limit in limits.items():
            # A clock that was set back must not keep a caller out for longer than its burst takes to refill.
            full_at = min(max(filling.get(name, now), now), now + limit.span_s) + limit.interval_s
            wait = max(wait, full_at - now - limit.span_s)
            moved[name] = full_at
        return (filling, wait) if wait > _ROUNDING_S else ({**filling, **moved}, 0.0)

    def _limits(self, tool: str) -> dict[str, _RateLimit]:
        limits = {} if self._limit is None else {"": self._limit}
        for patterns, limit in self._tool_limits:
            if patterns.matches(tool):
                limits[tool] = limit
                break
        return limits


def _rounded_up(wait_s: float) -> float:
    return max(math.ceil(wait_s * 1000) / 1000, 0.001)


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
