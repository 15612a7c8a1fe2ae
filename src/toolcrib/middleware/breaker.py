"""Circuit breaker: stops calling a failing backend, then probes it with a single call."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import anyio

from toolcrib.errors import CallTimeout, ConnectionLost, ServerUnavailable
from toolcrib.middleware.options import BreakerOptions
from toolcrib.middleware.retry import deadline_exceeded
from toolcrib.providers.base import display_name
from toolcrib.types import Call, CallNext, Context, ToolResult

MAX_BACKENDS: Final = 10_000


_FAILURE_ERRORS: Final = (ServerUnavailable, CallTimeout, ConnectionLost)
"""What is the backend's fault; a tool's own error, or one about the arguments, is an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """How one backend stands."""

    backend: str
    state: Literal["closed", "open", "half_open"]
    """closed: calls go through; open: none does; half_open: one is under way to see."""
    since: float | None = None
    """When it opened; seconds since the epoch."""
    retry_at: float | None = None
    """When a call is let through; seconds since the epoch."""
    failures: int = 0
    """In a row."""


@dataclass(slots=True)
class _BackendHealth:
    """The state of one backend, as it is kept."""

    recent: deque[bool]
    """Whether each of the last calls failed."""
    failures: int = 0
    since: float | None = None
    until: float = 0.0
    """Monotonic."""
    probing: bool = False
    turn: int = 0
    """Counts up whenever it opens or closes; outcomes of calls that began in an earlier turn are old news."""


class CircuitBreaker:
    """One line for each shared backend.

    A call without a backend's name, or by a provider that came with its request, always goes through: the requests of
    others may bring providers of the same name, which are not to blame.
    """

    def __init__(self, options: BreakerOptions, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        """`clock` is monotonic, `wall` since the epoch, both in seconds."""
        self._options = options
        self._clock = clock
        self._wall = wall
        self._backends: OrderedDict[str, _BackendHealth] = OrderedDict()
        self._lock = threading.Lock()

    async def __call__(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """Let the call proceed, or raise `ServerUnavailable` while its backend is left in peace."""
        if not call.backend or _is_request_provider(ctx, call.backend):
            return await proceed(ctx, call)
        line, turn = self._enter(call)
        failed: bool | None = False
        try:
            return await proceed(ctx, call)
        except _FAILURE_ERRORS:
            failed = True
            raise
        except anyio.get_cancelled_exc_class():
            failed = True if deadline_exceeded() else None
            raise
        finally:
            self._leave(line, turn, failed=failed)

    def states(self) -> tuple[BreakerState, ...]:
        """Every backend that was called, by name."""
        with self._lock:
            return tuple(self._state(name, line) for name, line in sorted(self._backends.items()))

    def _enter(self, call: Call) -> tuple[_BackendHealth, int]:
        with self._lock:
            line = self._health(call.backend)
            if line.since is None:
                return line, line.turn
            if line.probing or self._clock() < line.until:
                raise self._refusal(call, line)
            line.probing = True
            return line, line.turn

    def _leave(self, line: _BackendHealth, turn: int, *, failed: bool | None) -> None:
        """Count an outcome; None for a call whose caller gave up on it, which says nothing about the backend."""
        with self._lock:
            if turn != line.turn:
                return
            line.probing = False
            if failed is None:
                return
            line.recent.append(failed)
            line.failures = line.failures + 1 if failed else 0
            if failed and (line.since is not None or self._too_many(line)):
                self._open(line)
            elif not failed and line.since is not None:
                line.since, line.turn = None, line.turn + 1
                line.recent.clear()

    def _too_many(self, line: _BackendHealth) -> bool:
        if line.failures >= self._options.failures:
            return True
        share = self._options.share
        if share is None or len(line.recent) < self._options.window:
            return False
        return sum(line.recent) >= share * self._options.window

    def _open(self, line: _BackendHealth) -> None:
        line.since = self._wall() if line.since is None else line.since
        line.until = self._clock() + self._options.open_s
        line.turn += 1

    def _health(self, backend: str) -> _BackendHealth:
        line = self._backends.get(backend)
        if line is None:
            line = self._backends[backend] = _BackendHealth(recent=deque(maxlen=self._options.window))
            if len(self._backends) > MAX_BACKENDS:
                self._backends.popitem(last=False)
        return line

    def _refusal(self, call: Call, line: _BackendHealth) -> ServerUnavailable:
        left = max(line.until - self._clock(), 0.0)
        failing = max(self._wall() - (line.since or 0.0), 0.0)
        when = f"in {left:.1f} s" if left else "at this moment, by another call"
        return ServerUnavailable(
            f"{call.tool.id} was not run: {call.backend} has kept failing for {failing:.0f} s.",
            hint=f"It is tried again {when}.",
            data={"server": call.backend, "since": line.since, "retry_after_s": round(left, 3)},
        )

    def _state(self, name: str, line: _BackendHealth) -> BreakerState:
        if line.since is None:
            return BreakerState(backend=name, state="closed", failures=line.failures)
        left = line.until - self._clock()
        return BreakerState(
            backend=name,
            state="half_open" if line.probing else "open",
            since=line.since,
            retry_at=self._wall() + max(left, 0.0),
            failures=line.failures,
        )


def _is_request_provider(ctx: Context, backend: str) -> bool:
    return any(display_name(provider) == backend for provider in (*ctx.overriding, *ctx.providers))
