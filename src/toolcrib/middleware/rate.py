"""Rate limits: a token bucket for each caller, kept as a single number.

The number is the moment at which the bucket is full again (the generic cell rate algorithm, ITU-T I.371): a call moves
it on by one interval, and is refused if that would put it further ahead than the burst allows.

"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from toolcrib.errors import RateLimited
from toolcrib.gateway.policy import Patterns
from toolcrib.middleware.options import RateOptions
from toolcrib.types import Call, Caller, CallNext, Context, ToolResult

MAX_BUCKETS: Final = 50_000
"""Callers, and pairs of caller and tool, that are remembered; who called longest ago is forgotten first."""


_ROUNDING_S: Final = 1e-9
"""What rounding may add up to."""


_BucketKey = tuple[str | None, str, str]


class _RateLimit(NamedTuple):
    """A rate, as it is reckoned with."""

    interval_s: float
    """Between two calls, in the long run."""
    span_s: float
    """How far ahead a burst may be."""

    @classmethod
    def of(cls, rate: RateOptions) -> "_RateLimit":
        return cls(1 / rate.per_second, rate.burst / rate.per_second)


class RateMiddleware:
    """Refuses calls that come too often; it never makes one wait."""

    def __init__(
        self,
        rate: RateOptions | None,
        tool_rates: Sequence[tuple[str, RateOptions]] = (),
        *,
        clock: Callable[[], float],
        max_buckets: int = MAX_BUCKETS,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._limit = None if rate is None else _RateLimit.of(rate)
        self._tool_limits = [(Patterns((pattern,)), _RateLimit.of(tool_rate)) for pattern, tool_rate in tool_rates]
        self._clock = clock
        self._max = max_buckets
        self._full_at: OrderedDict[_BucketKey, float] = OrderedDict()
        self._lock = threading.Lock()

    async def __call__(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """Let the call proceed, or raise `RateLimited`."""
        wait = self.take(ctx.caller, call.tool.id)
        if wait > 0:
            after = max(math.ceil(wait * 1000) / 1000, 0.001)
            raise RateLimited(
                f"{call.tool.id} was not run: too many calls in too short a time.",
                hint=f"Wait {after:g} s before the next call.",
                data={"retry_after_s": after},
            )
        return await proceed(ctx, call)

    def take(self, caller: Caller, tool: str) -> float:
        """Count a call and give 0, or count nothing and give the seconds until one would be allowed."""
        limits = self._limits(caller, tool)
        now = self._clock()
        moved: list[tuple[_BucketKey, float]] = []
        wait = 0.0
        with self._lock:
            for key, limit in limits:
                full_at = max(self._full_at.get(key, now), now) + limit.interval_s
                wait = max(wait, full_at - now - limit.span_s)
                moved.append((key, full_at))
            if wait > _ROUNDING_S:
                return wait
            for key, full_at in moved:
                self._remember(key, full_at)
        return 0.0

    def _limits(self, caller: Caller, tool: str) -> list[tuple[_BucketKey, _RateLimit]]:
        limits = [] if self._limit is None else [((caller.tenant, caller.id, ""), self._limit)]
        for patterns, limit in self._tool_limits:
            if patterns.matches(tool):
                limits.append(((caller.tenant, caller.id, tool), limit))
                break
        return limits

    def _remember(self, key: _BucketKey, full_at: float) -> None:
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        if len(self._full_at) > self._max:
            self._full_at.popitem(last=False)
