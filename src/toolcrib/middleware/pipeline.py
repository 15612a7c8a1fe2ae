"""Run an allowed call: through the middleware, to the first backend that takes it."""

import hashlib
import logging
import random as chance
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio

from toolcrib.containment import (
    contained,
    describe_exception,
    implies_not_run,
    is_nested_call_error,
    nested_failure,
    record_call_error,
    third_party_code,
)
from toolcrib.errors import ExecutionFailed, HandlerNotFound, ServerUnavailable, ToolcribError, ToolNotFound
from toolcrib.gateway.policy import AllowAll
from toolcrib.gateway.view import ResolvedTool
from toolcrib.middleware.approval import ApprovalMiddleware, ApprovalTokens
from toolcrib.middleware.audit import AUDIT_LOGGER, AuditMiddleware, AuditSink, log_sink, record_attempt
from toolcrib.middleware.breaker import BreakerState, CircuitBreaker
from toolcrib.middleware.cache import CacheMiddleware
from toolcrib.middleware.options import CallOptions
from toolcrib.middleware.rate import RateMiddleware
from toolcrib.middleware.retry import DeadlineMiddleware, RetryMiddleware
from toolcrib.providers.base import call_by_key
from toolcrib.providers.content import to_result
from toolcrib.types import (
    JSON,
    Backend,
    BackendKind,
    BackendSelector,
    Call,
    CallMiddleware,
    CallNext,
    Context,
    Policy,
    Tool,
    ToolResult,
)

logger = logging.getLogger(__name__)


_NONE_HINT: Final = (
    "From a provider, None means that it has no such tool; where it ran the tool and has nothing to tell, "
    "it must return an empty text."
)


_RANK = {kind: place for place, kind in enumerate(BackendKind)}


def local_first(backends: Sequence[Backend]) -> Sequence[Backend]:
    """Local functions, then providers, then remote servers; within a kind, in the order in which they offered it."""
    return sorted(backends, key=lambda backend: _RANK[backend.kind])


@dataclass(frozen=True, slots=True)
class RoutedCall(Call):
    """A call with those who can run it, in the order in which they are tried."""

    backends: tuple[Backend, ...] = ()
    place: int = 0
    """Of the one whose turn it is."""


class CallPipeline:
    """What every call of a gateway passes."""

    def __init__(
        self,
        options: CallOptions,
        policy: Policy,
        *,
        middleware: Sequence[CallMiddleware] = (),
        selector: BackendSelector | None = None,
        audit: AuditSink | None = None,
        mask_errors: bool = False,
    ) -> None:
        """The first middleware is the outermost. With `mask_errors`, what any provider raises is masked."""
        self._selector = selector
        self._chain = build_stack(options, policy=policy, extra=middleware, failover=_fail_over, audit=audit)
        self._call_next = self._chain(partial(_call_backend, mask_errors=mask_errors))

    async def call(self, ctx: Context, found: ResolvedTool, arguments: dict[str, Any]) -> ToolResult:
        """The result of the call, by the first backend that takes it.

        Another is asked only where one was not available, so that nothing was run. Raises `HandlerNotFound` where
        nobody runs the tool any more, and an `ExecutionFailed`.
        """
        try:
            backends = self._ordered_backends(found)
        except ToolcribError as error:
            self.audit_refused(ctx, found.tool.id, error)
            raise
        try:
            return await self._call_next(
                ctx, RoutedCall(found.tool, arguments, _backend_name(backends[0], found.tool), backends)
            )
        except ToolcribError as error:
            record_call_error(error)
            raise

    def audit_refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Tell the audit, if any, of a call that was refused before it came so far."""
        record_call_error(error)
        self._chain.audit_refused(ctx, tool, error)

    def breaker_states(self) -> tuple[BreakerState, ...]:
        """How the breaker sees each backend, by name; empty without a breaker."""
        return self._chain.breaker_states()

    def _ordered_backends(self, found: ResolvedTool) -> tuple[Backend, ...]:
        if self._selector is not None:
            chosen = _select_backends(self._selector, found)
            if not chosen:
                raise HandlerNotFound(f"{found.tool.id} is listed, but the selector leaves nobody to run it.")
            return chosen
        return found.backends if len(found.backends) == 1 else tuple(local_first(found.backends))


def _select_backends(selector: BackendSelector, found: ResolvedTool) -> tuple[Backend, ...]:
    """What the selector leaves, in its order. Raises `ExecutionFailed` where it fails."""
    try:
        given = selector(found.backends)
        chosen = (given,) if isinstance(given, Backend) else tuple(given)
    except ToolcribError:
        raise
    except Exception as error:
        logger.exception("the selector of backends raised, or gave nothing that can be read")
        raise ExecutionFailed(
            f"{found.tool.id} was not run: the selector of backends failed.", hint="The log has the cause."
        ) from error
    if all(isinstance(backend, Backend) for backend in chosen):
        return chosen
    raise ExecutionFailed(
        f"{found.tool.id} was not run: the selector of backends gave something that is no backend.",
        hint="It must give some of those it was given, in any order.",
    )


def _backend_name(backend: Backend, tool: Tool) -> str:
    """Who runs a call: a function of this process stands for itself alone, whatever becomes of the others."""
    return tool.id if backend.kind is BackendKind.LOCAL else backend.name


async def _fail_over(ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
    """The first backend that takes the call; the next one only where nothing was run."""
    backends = _as_routed(call).backends
    for place, backend in enumerate(backends[:-1]):
        try:
            return await proceed(ctx, replace(_as_routed(call), backend=_backend_name(backend, call.tool), place=place))
        except (ServerUnavailable, HandlerNotFound) as error:
            logger.info("%s cannot run %s, the next one is asked: %s", backend.name, call.tool.id, error.message)
    if len(backends) == 1:
        return await proceed(ctx, call)
    last = replace(_as_routed(call), backend=_backend_name(backends[-1], call.tool), place=len(backends) - 1)
    return await proceed(ctx, last)


async def _call_backend(ctx: Context, call: Call, *, mask_errors: bool) -> ToolResult:
    """What one backend answers. What it says of itself passes, such as that it is not available.

    An error of a tool that it called in its turn, and anything else that it raises, becomes an `ExecutionFailed`:
    with its words where a provider raised it, as those of a function, unless `mask_errors`.
    """
    tool: Tool = call.tool
    routed = _as_routed(call)
    try:
        with third_party_code():
            value = await _backend_value(routed, ctx, tool)
        if value is not None:
            return to_result(value)
    except ToolcribError:
        raise
    except Exception as error:
        logger.exception("the provider of %s raised", tool.id)
        # What goes wrong at a remote server is an error of ours already; anything else is our own fault.
        if mask_errors or routed.backends[routed.place].kind is BackendKind.MCP:
            raise ExecutionFailed(f"{tool.id} failed inside its provider.", hint="Its log has the cause.") from error
        raise ExecutionFailed(f"{tool.id} failed: {describe_exception(error)}") from error
    logger.warning("%s is listed, but its provider does not run it: %s", tool.id, _NONE_HINT)
    raise HandlerNotFound(f"{tool.id} is listed, but its provider does not run it any more.", hint=_NONE_HINT)


async def _backend_value(routed: RoutedCall, ctx: Context, tool: Tool) -> ToolResult | JSON | None:
    """What the backend gives whose turn it is; None where it has no such tool."""
    try:
        return await contained(call_by_key(routed.backends[routed.place].provider, ctx, tool.key, routed.arguments))
    except ToolcribError as error:
        if is_nested_call_error(error) and implies_not_run(error):
            raise nested_failure(error, tool.id) from error
        if isinstance(error, ToolNotFound):
            return None
        raise


def _as_routed(call: Call) -> RoutedCall:
    if isinstance(call, RoutedCall):
        return call
    raise ExecutionFailed(
        f"A middleware made a new call of {call.tool.id}.",
        hint="Change the one it was given, with dataclasses.replace.",
    )


class MiddlewareStack:
    """What stands in the way of every call of one gateway; made once, safe to use from several tasks and threads."""

    def __init__(
        self,
        layers: Sequence[CallMiddleware],
        *,
        audit: AuditMiddleware | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        """The layers from the outside in, of which the audit and the breaker can also be asked."""
        self.layers = tuple(layers)
        self._audit = audit
        self._breaker = breaker

    def __call__(self, last: CallNext) -> CallNext:
        """The whole way of a call that ends in `last`; `last` itself where nothing stands in it."""
        way = last
        for layer in reversed(self.layers):
            way = _wrap(layer, way)
        return way

    def audit_refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Tell the audit, if any, of a call that was refused before it came to the chain."""
        if self._audit is not None:
            self._audit.record_refused(ctx, tool, error)

    def breaker_states(self) -> tuple[BreakerState, ...]:
        """How the breaker sees each backend, by name; empty without a breaker."""
        return self._breaker.states() if self._breaker is not None else ()


def build_stack(
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
) -> MiddlewareStack:
    """The chain of these settings, in the order that the package describes.

    `extra` is the application's own middleware; `failover` may let a call proceed several times, each with another
    `backend`. A sink as `audit` takes the place of the log. `clock` is monotonic and `wall` since the epoch, both in
    seconds; `random` gives 0 up to 1.
    """
    auditing = _build_audit(options, audit, clock, wall)
    breaker = CircuitBreaker(options.breaker, clock=clock, wall=wall) if options.breaker is not None else None
    limited = options.rate is not None or options.tool_rates
    layers: list[CallMiddleware | None] = [
        auditing,
        *map(ContainedMiddleware, extra),
        _build_approval(options, policy, wall),
        CacheMiddleware(options.cache, policy, clock=clock) if options.cache is not None else None,
        RateMiddleware(options.rate, options.tool_rates, clock=clock) if limited else None,
        DeadlineMiddleware(options.deadline_s) if options.deadline_s is not None else None,
        RetryMiddleware(options.retry, sleep=sleep, random=random) if options.retry is not None else None,
        failover,
        breaker,
        record_attempt if auditing is not None else None,
    ]
    return MiddlewareStack([layer for layer in layers if layer is not None], audit=auditing, breaker=breaker)


def _wrap(layer: CallMiddleware, proceed: CallNext) -> CallNext:
    def step(ctx: Context, call: Call) -> Awaitable[ToolResult]:
        return layer(ctx, call, proceed)

    return step


def _build_audit(
    options: CallOptions, sink: AuditSink | None, clock: Callable[[], float], wall: Callable[[], float]
) -> AuditMiddleware | None:
    if sink is None and not options.audit:
        return None
    if sink is None:
        sink = log_sink(options.audit if isinstance(options.audit, str) else AUDIT_LOGGER)
    key = options.approval_key
    shared = hashlib.sha256(b"toolcrib audit " + key.encode()).digest() if key is not None else None
    return AuditMiddleware(sink, clock=clock, wall=wall, key=shared)


def _build_approval(
    options: CallOptions, policy: Policy | None, wall: Callable[[], float]
) -> ApprovalMiddleware | None:
    """The layer, where the settings or a policy may ask for it."""
    if options.approval == "never" and (policy is None or isinstance(policy, AllowAll)):
        return None
    tickets = ApprovalTokens(options.approval_key, expires_s=options.approval_expires_s, wall=wall)
    return ApprovalMiddleware(options, policy, tickets)


class ContainedMiddleware:
    """One middleware, of which nobody knows what it raises and gives."""

    def __init__(self, middleware: CallMiddleware) -> None:
        """Errors of toolcrib pass through it, and from it; anything else it raises becomes an `ExecutionFailed`."""
        self._middleware = middleware

    async def __call__(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """What the middleware answers."""
        with third_party_code():
            try:
                result = await contained(self._middleware(ctx, call, proceed))
            except ToolcribError as error:
                if is_nested_call_error(error) and implies_not_run(error):
                    raise nested_failure(error, call.tool.id) from error
                raise
            except Exception as error:
                logger.exception("a middleware raised in a call of %s", call.tool.id)
                raise ExecutionFailed(
                    f"{call.tool.id} failed in a middleware.", hint="The log has the cause."
                ) from error
        if isinstance(result, ToolResult):
            return result
        raise ExecutionFailed(
            f"{call.tool.id} failed: a middleware gave {type(result).__name__} instead of a result.",
            hint="A middleware returns what `proceed` gives, or a ToolResult of its own.",
        )
