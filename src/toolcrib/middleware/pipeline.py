"""Run a permitted call through the middleware and on to the first backend that accepts it."""

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
    loggable,
    nested_failure,
    record_call_error,
    third_party_code,
)
from toolcrib.errors import ExecutionFailed, HandlerNotFound, ServerUnavailable, ToolcribError, ToolNotFound
from toolcrib.gateway.policy import AllowAll, ReplaceablePolicy
from toolcrib.gateway.view import ResolvedTool
from toolcrib.middleware.admission import Admission, CountRefusal
from toolcrib.middleware.approval import ApprovalDesk, ApprovalMiddleware, ApprovalTokens
from toolcrib.middleware.audit import AUDIT_LOGGER, AuditMiddleware, AuditSink, digest_key, log_sink
from toolcrib.middleware.audit_file import AuditFile
from toolcrib.middleware.breaker import BreakerState, CircuitBreaker
from toolcrib.middleware.cache import CacheMiddleware
from toolcrib.middleware.limits import DeadlineMiddleware, RateMiddleware, RetryMiddleware
from toolcrib.middleware.observers import AttemptMiddleware, CallObserver, ObserverMiddleware
from toolcrib.middleware.options import CallOptions
from toolcrib.providers.base import Backend, BackendSelector, find_tool
from toolcrib.providers.content import copy_json, to_result
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.tracing import TRACING
from toolcrib.types import BackendKind, Call, CallMiddleware, CallNext, Context, Policy, Tool, ToolResult

logger = logging.getLogger(__name__)

_NONE_HINT: Final = (
    "A provider returns None only for a tool that it does not have; a tool that ran and has nothing to say "
    "must return an empty text."
)
_LOOK_S: Final = 3.0
"""How long a provider that returned None may take to say whether it still has the tool, in seconds."""


@dataclass(frozen=True, slots=True)
class RoutedCall(Call):
    """A call with the backends that can run it, in the order in which they are tried."""

    backends: tuple[Backend, ...] = ()
    place: int = 0
    """Index of the current backend."""


class CallPipeline:
    """What every call of a gateway goes through. Composed once."""

    def __init__(
        self,
        options: CallOptions,
        policy: ReplaceablePolicy,
        *,
        middleware: Sequence[CallMiddleware] = (),
        selector: BackendSelector | None = None,
        audit: AuditSink | None = None,
        observer: CallObserver | None = None,
        mask_errors: bool = False,
        state: StateStore | None = None,
        desk: ApprovalDesk | None = None,
        refused: CountRefusal | None = None,
    ) -> None:
        """The first middleware is the outermost. `mask_errors` hides the messages of exceptions from callers.

        `refused` counts the searches and lists that `admission` refuses.
        """
        self._selector = selector
        self._mask_errors = mask_errors
        self._stack = build_stack(
            options, policy=policy, extra=middleware, audit=audit, observer=observer, state=state, desk=desk
        )
        self.admission = self._stack.admission(options, refused)
        """What searches and lists pass, which are no calls."""
        self._attempt = self._stack.around_attempt(self._call_backend)
        self._call_next = self._stack.around_call(self._try_backends)
        self._policy = policy
        self._may_ask = options.approval != "never"
        self._call_unasked = self._stack.around_call(self._try_backends, approval=False)
        """The same for calls to which no person needs to agree."""

    async def call(self, ctx: Context, resolved: ResolvedTool, arguments: dict[str, Any]) -> ToolResult:
        """Return the result of the first backend that takes the call.

        The next backend is tried only if nothing was run. Raises `HandlerNotFound` if no backend runs the tool any
        more, and `ExecutionFailed`.
        """
        backends = resolved.backends
        try:
            if self._selector is not None:
                backends = _select_backends(self._selector, resolved)
        except ToolcribError as error:
            self.audit_refused(ctx, resolved.tool.id, error)
            raise
        call = RoutedCall(resolved.tool, arguments, _backend_name(backends[0], resolved.tool), backends)
        # A call that is repeated may carry the token of an approval that is no longer needed.
        asks = self._may_ask or not self._policy.allows_everything or ctx.request_state is not None
        call_next = self._call_next if asks else self._call_unasked
        try:
            if TRACING.is_on:
                with TRACING.call(resolved.tool.id):
                    return await call_next(ctx, call)
            return await call_next(ctx, call)
        except ToolcribError as error:
            record_call_error(error)
            raise

    def audit_refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Report a call to the audit, if there is one, that was refused before it entered the pipeline."""
        record_call_error(error)
        self._stack.audit_refused(ctx, tool, error)

    def breaker_states(self) -> tuple[BreakerState, ...]:
        """Return the breaker's view of each backend, by name; empty without a breaker."""
        return self._stack.breaker_states()

    def _try_backends(self, ctx: Context, call: Call) -> Awaitable[ToolResult]:
        """Call the backends in order; go on to the next one only if nothing was run."""
        if isinstance(call, RoutedCall) and len(call.backends) == 1:
            return self._attempt(ctx, call)
        return self._fail_over(ctx, call)

    async def _fail_over(self, ctx: Context, call: Call) -> ToolResult:
        if not isinstance(call, RoutedCall):
            raise ExecutionFailed(
                f"A middleware made a new call of {call.tool.id}.",
                hint="Change the call it was given with dataclasses.replace.",
            )
        last = len(call.backends) - 1
        for place, backend in enumerate(call.backends):
            try:
                return await self._attempt(ctx, replace(call, backend=_backend_name(backend, call.tool), place=place))
            except (ServerUnavailable, HandlerNotFound) as error:
                if place == last:
                    raise
                logger.info("%s cannot run %s, trying the next backend: %s", backend.name, call.tool.id, error.message)
        raise AssertionError("a call has one backend or more")

    async def _call_backend(self, ctx: Context, call: Call) -> ToolResult:
        """Return the answer of the current backend. Errors about the backend itself pass, such as `ServerUnavailable`.

        An error of a nested call, and any other exception, becomes `ExecutionFailed`. It repeats the exception's
        message if a provider of this process raised it, unless `mask_errors` is set.
        """
        assert isinstance(call, RoutedCall)  # noqa: S101 - `_try_backends` has checked it
        tool, backend = call.tool, call.backends[call.place]
        is_remote = backend.kind is BackendKind.MCP
        arguments = call.arguments if is_remote else copy_json(call.arguments)
        disowned = False
        try:
            if backend.provider.runs_elsewhere:
                try:
                    value = await backend.provider.call_key(ctx, tool.key, arguments)
                except ToolNotFound:
                    value, disowned = None, True
            else:
                with third_party_code():
                    try:
                        value = await contained(backend.provider.call_key(ctx, tool.key, arguments))
                    except ToolcribError as error:
                        if is_nested_call_error(error) and implies_not_run(error):
                            raise nested_failure(error, tool.id) from error
                        if not isinstance(error, ToolNotFound):
                            raise
                        value, disowned = None, True
            if value is not None:
                return value if isinstance(value, ToolResult) else to_result(value)
        except ToolcribError:
            raise
        except Exception as error:
            logger.exception("the provider of %s raised an exception", tool.id, exc_info=loggable(error))
            # A remote server's failure is already one of our errors; any other exception there is a bug of ours.
            if self._mask_errors or is_remote:
                raise ExecutionFailed(
                    f"{tool.id} failed inside its provider.", hint="Its log has the cause."
                ) from error
            raise ExecutionFailed(f"{tool.id} failed: {describe_exception(error)}") from error
        if backend.kind is BackendKind.PROVIDER and not disowned and await _still_has(backend, ctx, tool):
            logger.warning("%s was called, and its provider returned None although it has it: %s", tool.id, _NONE_HINT)
            raise ExecutionFailed(
                f"{tool.id} was called, but its provider returned no result. It may have taken effect.",
                hint="Check that before you call it again.",
            )
        logger.warning("%s is listed, but its provider does not run it: %s", tool.id, _NONE_HINT)
        raise HandlerNotFound(f"{tool.id} is listed, but its provider no longer runs it.", hint=_NONE_HINT)


async def _still_has(backend: Backend, ctx: Context, tool: Tool) -> bool:
    """Whether a provider that returned None has the tool all the same, and so may have run it; True if unknown."""
    try:
        with anyio.move_on_after(_LOOK_S):
            return await contained(find_tool(backend.provider, ctx, tool.key)) is not None
    except Exception:  # noqa: BLE001 - third-party code
        return True
    return True


def _select_backends(selector: BackendSelector, resolved: ResolvedTool) -> tuple[Backend, ...]:
    """Return what the selector leaves, in its order. Raises `HandlerNotFound`, or `ExecutionFailed` if it fails."""
    try:
        selected = selector(resolved.backends)
        backends = (selected,) if isinstance(selected, Backend) else tuple(selected)
    except ToolcribError:
        raise
    except Exception as error:
        logger.exception("the backend selector raised an exception, or returned something that cannot be read")
        raise ExecutionFailed(
            f"{resolved.tool.id} was not run: the backend selector failed.", hint="The log has the cause."
        ) from error
    if not backends:
        raise HandlerNotFound(f"{resolved.tool.id} is listed, but the selector left no backend to run it.")
    if all(isinstance(backend, Backend) for backend in backends):
        return backends
    raise ExecutionFailed(
        f"{resolved.tool.id} was not run: the backend selector returned something that is not a backend.",
        hint="It must return some of the backends it was given, in any order.",
    )


def _backend_name(backend: Backend, tool: Tool) -> str:
    """Name the backend of a call. Each local function is a backend of its own: others may fail independently."""
    return tool.id if backend.kind is BackendKind.LOCAL else backend.name


class ContainedMiddleware:
    """Middleware of the application. Errors of toolcrib pass; any other exception becomes `ExecutionFailed`."""

    def __init__(self, middleware: CallMiddleware) -> None:
        self._middleware = middleware

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the middleware. Raises `ExecutionFailed` if it raises an exception or returns no result."""
        with third_party_code():
            try:
                result = await contained(self._middleware(ctx, call, call_next))
            except ToolcribError as error:
                if is_nested_call_error(error) and implies_not_run(error):
                    raise nested_failure(error, call.tool.id) from error
                raise
            except Exception as error:
                logger.exception("a middleware raised an exception in a call of %s", call.tool.id)
                raise ExecutionFailed(
                    f"{call.tool.id} failed in a middleware.", hint="The log has the cause."
                ) from error
        if isinstance(result, ToolResult):
            return result
        raise ExecutionFailed(
            f"{call.tool.id} failed: a middleware returned {type(result).__name__} instead of a result.",
            hint="A middleware returns what `call_next` returns, or a ToolResult of its own.",
        )


class MiddlewareStack:
    """The middleware of one gateway, from the outside in: around a whole call, and around each attempt at a backend."""

    def __init__(
        self,
        call_layers: Sequence[CallMiddleware],
        attempt_layers: Sequence[CallMiddleware],
        *,
        audit: AuditMiddleware | None = None,
        observer: ObserverMiddleware | None = None,
        breaker: CircuitBreaker | None = None,
        rates: RateMiddleware | None = None,
    ) -> None:
        self._rates = rates
        self._call_layers = tuple(call_layers)
        self._attempt_layers = tuple(attempt_layers)
        self._audit = audit
        self._observer = observer
        self._breaker = breaker

    def around_call(self, last: CallNext, *, approval: bool = True) -> CallNext:
        """Wrap `last` in the layers that see a call once; without `approval`, in all but the one that asks people."""
        layers = [layer for layer in self._call_layers if approval or not isinstance(layer, ApprovalMiddleware)]
        return _compose(layers, last)

    def around_attempt(self, last: CallNext) -> CallNext:
        """Wrap `last` in the layers that see each attempt at a backend."""
        return _compose(self._attempt_layers, last)

    def admission(self, options: CallOptions, refused: CountRefusal | None = None) -> Admission:
        """What searches and lists pass, with the same audit and rates."""
        return Admission(options, rates=self._rates, audit=self._audit, refused=refused)

    def audit_refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Report a call to the audit, if there is one, that was refused before it came to the stack."""
        if self._audit is not None:
            self._audit.record_refused(ctx, tool, error)
        if self._observer is not None:
            self._observer.record_refused(ctx, tool, error)

    def breaker_states(self) -> tuple[BreakerState, ...]:
        """Return the breaker's view of each backend, by name; empty without a breaker."""
        return self._breaker.states() if self._breaker is not None else ()


def build_stack(
    options: CallOptions,
    *,
    policy: Policy | None = None,
    extra: Sequence[CallMiddleware] = (),
    audit: AuditSink | None = None,
    observer: CallObserver | None = None,
    state: StateStore | None = None,
    desk: ApprovalDesk | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    random: Callable[[], float] = chance.random,
) -> MiddlewareStack:
    """Build the stack of these options, in the order that the package describes.

    `extra` is the application's own middleware. An `audit` sink replaces the log; an `observer` learns of each call.
    At the `desk`, people approve calls. `state` holds what several processes share, by default in memory. `clock` is
    monotonic and `wall` since the epoch, both in seconds; `random` returns 0 up to 1.
    """
    state = state or MemoryStore(clock=clock)
    auditing = _build_audit(options, audit, clock, wall)
    observing = None if observer is None else ObserverMiddleware(observer, clock, audited=auditing is not None)
    breaker = None if options.breaker is None else CircuitBreaker(options.breaker, state, wall=wall)
    rates, searches = None, options.limit_of_searches
    if options.rate is not None or options.tool_rates or searches is not None:
        rates = RateMiddleware(options.rate, options.tool_rates, state, wall=wall, search_rate=searches)
    call_layers: list[CallMiddleware | None] = [
        auditing,
        observing,
        *map(ContainedMiddleware, extra),
        _build_approval(options, policy, state, wall, desk),
        CacheMiddleware(options.cache, policy, state) if options.cache is not None else None,
        rates if options.rate is not None or options.tool_rates else None,
        DeadlineMiddleware(options.deadline_s) if options.deadline_s is not None else None,
        RetryMiddleware(options.retry, sleep=sleep, random=random) if options.retry is not None else None,
    ]
    attempt_layers: list[CallMiddleware | None] = [breaker, AttemptMiddleware(clock) if auditing or observing else None]
    return MiddlewareStack(
        [layer for layer in call_layers if layer is not None],
        [layer for layer in attempt_layers if layer is not None],
        audit=auditing,
        observer=observing,
        breaker=breaker,
        rates=rates,
    )


def _compose(layers: Sequence[CallMiddleware], last: CallNext) -> CallNext:
    for layer in reversed(layers):
        last = partial(layer, call_next=last)
    return last


def _build_audit(
    options: CallOptions, sink: AuditSink | None, clock: Callable[[], float], wall: Callable[[], float]
) -> AuditMiddleware | None:
    if sink is None and not options.audit:
        return None
    if sink is None:
        sink = log_sink(options.audit if isinstance(options.audit, str) else AUDIT_LOGGER)
    key = options.approval_key
    shared = hashlib.sha256(b"toolcrib audit " + key.encode()).digest() if key is not None else None
    file = options.audit_file
    if file is not None and file.key is not None:
        shared = digest_key(file.key)
    return AuditMiddleware(
        sink,
        clock=clock,
        wall=wall,
        key=shared,
        digest_results=file is not None,
        require=sink.require if isinstance(sink, AuditFile) and sink.options.required else None,
    )


def _build_approval(
    options: CallOptions,
    policy: Policy | None,
    state: StateStore,
    wall: Callable[[], float],
    desk: ApprovalDesk | None,
) -> ApprovalMiddleware | None:
    """Build the approval layer if the options or the policy may ask for approval."""
    if options.approval == "never" and (policy is None or isinstance(policy, AllowAll)):
        return None
    tokens = ApprovalTokens(options.approval_key, state, expires_s=options.approval_expires_s, wall=wall)
    return ApprovalMiddleware(options, policy, tokens, desk)
