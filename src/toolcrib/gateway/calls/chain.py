"""The layers that the settings ask for, put around a call in their order."""

import hashlib
import random as chance
import time
from collections.abc import Awaitable, Callable, Sequence

import anyio

from toolcrib.errors import ToolcribError
from toolcrib.gateway.calls.approval import Approval
from toolcrib.gateway.calls.audit import AUDIT_LOGGER, Audit, AuditSink, log_sink
from toolcrib.gateway.calls.breaker import Breaker, BreakerState
from toolcrib.gateway.calls.cache import ResultCache
from toolcrib.gateway.calls.deadline import Deadline
from toolcrib.gateway.calls.guarded import Guarded
from toolcrib.gateway.calls.options import CallOptions
from toolcrib.gateway.calls.rate import RateLimit
from toolcrib.gateway.calls.retry import Retry
from toolcrib.gateway.calls.tickets import Tickets
from toolcrib.gateway.calls.trail import counted
from toolcrib.gateway.policy import AllowAll
from toolcrib.model import ToolResult
from toolcrib.protocols import Call, CallMiddleware, Context, Policy, Proceed


class Chain:
    """What stands in the way of every call of one gateway; made once, safe to use from several tasks and threads."""

    def __init__(
        self, layers: Sequence[CallMiddleware], *, audit: Audit | None = None, breaker: Breaker | None = None
    ) -> None:
        """The layers from the outside in, of which the audit and the breaker can also be asked."""
        self.layers = tuple(layers)
        self._audit = audit
        self._breaker = breaker

    def __call__(self, last: Proceed) -> Proceed:
        """The whole way of a call that ends in `last`; `last` itself where nothing stands in it."""
        way = last
        for layer in reversed(self.layers):
            way = _before(layer, way)
        return way

    def refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Tell the audit, if any, of a call that was refused before it came to the chain."""
        if self._audit is not None:
            self._audit.refused(ctx, tool, error)

    def states(self) -> tuple[BreakerState, ...]:
        """How the breaker sees each backend, by name; empty without a breaker."""
        return self._breaker.states() if self._breaker is not None else ()


def chain(
    options: CallOptions,
    *,
    policy: Policy | None = None,
    extra: Sequence[CallMiddleware] = (),
    failover: CallMiddleware | None = None,
    audit: AuditSink | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    random: Callable[[], float] = chance.random,
) -> Chain:
    """The chain of these settings, in the order that the package describes.

    `extra` is the application's own middleware; `failover` may let a call proceed several times, each with another
    `backend`. A sink as `audit` takes the place of the log. `clock` is monotonic and `wall` since the epoch, both in
    seconds; `random` gives 0 up to 1.
    """
    auditing = _audit(options, audit, clock, wall)
    breaker = Breaker(options.breaker, clock=clock, wall=wall) if options.breaker is not None else None
    limited = options.rate is not None or options.tool_rates
    layers: list[CallMiddleware | None] = [
        auditing,
        *map(Guarded, extra),
        _approval(options, policy, wall),
        ResultCache(options.cache, policy, clock=clock) if options.cache is not None else None,
        RateLimit(options.rate, options.tool_rates, clock=clock) if limited else None,
        Deadline(options.deadline_s) if options.deadline_s is not None else None,
        Retry(options.retry, sleep=sleep, random=random) if options.retry is not None else None,
        failover,
        breaker,
        counted if auditing is not None else None,
    ]
    return Chain([layer for layer in layers if layer is not None], audit=auditing, breaker=breaker)


def _before(layer: CallMiddleware, proceed: Proceed) -> Proceed:
    def step(ctx: Context, call: Call) -> Awaitable[ToolResult]:
        return layer(ctx, call, proceed)

    return step


def _audit(
    options: CallOptions, sink: AuditSink | None, clock: Callable[[], float], wall: Callable[[], float]
) -> Audit | None:
    if sink is None and not options.audit:
        return None
    if sink is None:
        sink = log_sink(options.audit if isinstance(options.audit, str) else AUDIT_LOGGER)
    key = options.approval_key
    shared = hashlib.sha256(b"toolcrib audit " + key.encode()).digest() if key is not None else None
    return Audit(sink, clock=clock, wall=wall, key=shared)


def _approval(options: CallOptions, policy: Policy | None, wall: Callable[[], float]) -> Approval | None:
    """The layer, where the settings or a policy may ask for it."""
    if options.approval == "never" and (policy is None or isinstance(policy, AllowAll)):
        return None
    tickets = Tickets(options.approval_key, expires_s=options.approval_expires_s, wall=wall)
    return Approval(options, policy, tickets)
