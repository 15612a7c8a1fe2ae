"""Circuit breaker: stops calling a failing backend, then probes it with a single call."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import anyio

from toolcrib.errors import CallTimeout, ConnectionLost, ServerUnavailable
from toolcrib.middleware.limits import deadline_exceeded
from toolcrib.middleware.options import BreakerOptions
from toolcrib.providers.base import display_name
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Call, CallNext, Context, ToolResult

MAX_BACKENDS: Final = 10_000
_FAILURE_ERRORS: Final = (ServerUnavailable, CallTimeout, ConnectionLost)
"""The backend's fault. A tool's own error, or one about the arguments, is an answer."""

_MAX_PROBE_S: Final = 600.0
"""How long a probe keeps others out, in seconds: the process that sent it may have died."""

_CLEANUP_S: Final = 2.0
"""How long a cancelled call may take to record its outcome, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """State of the breaker for one backend."""

    backend: str
    state: Literal["closed", "open", "half_open"]
    """closed: calls go through; open: no call does; half_open: a probe is under way."""
    since: float | None = None
    """When it opened; seconds since the epoch."""
    retry_at: float | None = None
    """When the next probe is let through; seconds since the epoch."""
    failures: int = 0
    """In a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BackendHealth:
    """What is kept of one backend. All moments are seconds since the epoch."""

    recent: tuple[bool, ...] = ()
    """Whether each of the last calls failed."""
    failures: int = 0
    since: float | None = None
    until: float = 0.0
    probe_until: float = 0.0
    turn: int = 0
    """Counts openings and closings: the outcome of a call that began in an earlier turn is out of date."""


def _decode(saved: Any) -> _BackendHealth:
    return _BackendHealth(**{**saved, "recent": tuple(saved["recent"])})


_CODEC: Final[StateCodec[_BackendHealth]] = StateCodec(asdict, _decode)


class CircuitBreaker:
    """Keeps the health of each shared backend in the gateway's state store.

    A call without a backend's name, or to a provider that came with the request, always goes through: other requests
    may bring providers of the same name, which must not suffer for it.
    """

    def __init__(self, options: BreakerOptions, state: StateStore, *, wall: Callable[[], float]) -> None:
        """`wall` counts seconds since the epoch."""
        self._options = options
        self._wall = wall
        self._health = state.table("breakers", _CODEC, max_entries=MAX_BACKENDS, batched=True)
        self._last_known: dict[str, _BackendHealth] = {}

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the call, or raise `ServerUnavailable` while the breaker is open."""
        backend = call.backend
        if not backend or _is_request_provider(ctx, backend):
            return await call_next(ctx, call)
        turn = await self._enter(call)
        failed: bool | None = False
        try:
            return await call_next(ctx, call)
        except _FAILURE_ERRORS:
            failed = True
            raise
        except anyio.get_cancelled_exc_class():
            failed = True if deadline_exceeded() else None
            raise
        finally:
            with anyio.move_on_after(_CLEANUP_S, shield=True):
                await self._leave(backend, turn, failed=failed)

    def states(self) -> tuple[BreakerState, ...]:
        """Return the state of every backend that this process has called, as it last saw it, by name."""
        return tuple(self._state(name, health) for name, health in sorted(self._last_known.items()))

    async def _enter(self, call: Call) -> int:
        """Return the turn of the call. Raises `ServerUnavailable` while the breaker is open."""

        def enter(health: _BackendHealth | None) -> tuple[_BackendHealth, tuple[_BackendHealth, bool]]:
            health = health or _BackendHealth()
            if health.since is None:
                return health, (health, True)
            now = self._wall()
            if now < health.probe_until or self._remaining(health, now) > 0:
                return health, (health, False)
            probing = replace(health, probe_until=now + _MAX_PROBE_S)
            return probing, (probing, True)

        health, may_pass = await self._health.update(call.backend, enter)
        self._note(call.backend, health)
        if not may_pass:
            raise self._refusal(call, health)
        return health.turn

    async def _leave(self, backend: str, turn: int, *, failed: bool | None) -> None:
        """Record an outcome; None for a call whose caller gave up on it, which says nothing about the backend."""

        def leave(health: _BackendHealth | None) -> tuple[_BackendHealth | None, _BackendHealth | None]:
            if health is None or turn != health.turn:
                return health, health
            health = replace(health, probe_until=0.0)
            if failed is not None:
                health = self._after(health, failed=failed)
            return health, health

        health = await self._health.update(backend, leave)
        if health is not None:
            self._note(backend, health)

    def _after(self, health: _BackendHealth, *, failed: bool) -> _BackendHealth:
        recent = (*health.recent, failed)[-self._options.window :]
        health = replace(health, recent=recent, failures=health.failures + 1 if failed else 0)
        if failed and (health.since is not None or self._has_failed_too_often(health)):
            now = self._wall()
            since = now if health.since is None else health.since
            return replace(health, since=since, until=now + self._options.open_s, turn=health.turn + 1)
        if not failed and health.since is not None:
            return replace(health, since=None, turn=health.turn + 1, recent=())
        return health

    def _has_failed_too_often(self, health: _BackendHealth) -> bool:
        if health.failures >= self._options.failures:
            return True
        share = self._options.share
        if share is None or len(health.recent) < self._options.window:
            return False
        return sum(health.recent) >= share * self._options.window

    def _remaining(self, health: _BackendHealth, now: float) -> float:
        """Seconds until the next probe; at most `open_s`, also if the clock was set back."""
        return min(max(health.until - now, 0.0), self._options.open_s)

    def _note(self, backend: str, health: _BackendHealth) -> None:
        self._last_known[backend] = health
        if len(self._last_known) > MAX_BACKENDS:
            self._last_known.pop(next(iter(self._last_known)))

    def _refusal(self, call: Call, health: _BackendHealth) -> ServerUnavailable:
        now = self._wall()
        left = self._remaining(health, now)
        failing = max(now - (health.since or 0.0), 0.0)
        when = f"in {left:.1f} s" if left else "right now, by another call"
        return ServerUnavailable(
            f"{call.tool.id} was not run: {call.backend} has kept failing for {failing:.0f} s.",
            hint=f"It is tried again {when}.",
            data={"server": call.backend, "since": health.since, "retry_after_s": round(left, 3)},
        )

    def _state(self, name: str, health: _BackendHealth) -> BreakerState:
        if health.since is None:
            return BreakerState(backend=name, state="closed", failures=health.failures)
        now = self._wall()
        return BreakerState(
            backend=name,
            state="half_open" if now < health.probe_until else "open",
            since=health.since,
            retry_at=now + self._remaining(health, now),
            failures=health.failures,
        )


def _is_request_provider(ctx: Context, backend: str) -> bool:
    return any(display_name(provider) == backend for provider in (*ctx.overriding, *ctx.providers))
