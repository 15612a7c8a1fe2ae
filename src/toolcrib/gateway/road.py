"""The way of a call that is allowed: through what stands in it, to the first of those who can run the tool."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from toolcrib.errors import ExecutionFailed, HandlerNotFound, ServerUnavailable, ToolcribError, ToolNotFound
from toolcrib.gateway.calls.audit import AuditSink
from toolcrib.gateway.calls.breaker import BreakerState
from toolcrib.gateway.calls.chain import chain
from toolcrib.gateway.calls.options import CallOptions
from toolcrib.gateway.view import Found
from toolcrib.model import JSON, BackendKind, Tool, ToolResult
from toolcrib.protocols import Backend, BackendSelector, Call, CallMiddleware, Context, Policy, Proceed
from toolcrib.providers.foreign import (
    failed_inside,
    left_a_call,
    left_one_inside,
    misleads,
    run_by_others,
    said,
    uncancelled,
)
from toolcrib.providers.keyed import run
from toolcrib.providers.results import to_result

logger = logging.getLogger(__name__)

_NOTHING: Final = (
    "From a provider, None means that it has no such tool; where it ran the tool and has nothing to tell, "
    "it must return an empty text."
)
_RANK = {kind: place for place, kind in enumerate(BackendKind)}


def local_first(backends: Sequence[Backend]) -> Sequence[Backend]:
    """Local functions, then providers, then remote servers; within a kind, in the order in which they offered it."""
    return sorted(backends, key=lambda backend: _RANK[backend.kind])


@dataclass(frozen=True, slots=True)
class Routed(Call):
    """A call with those who can run it, in the order in which they are tried."""

    backends: tuple[Backend, ...] = ()
    place: int = 0
    """Of the one whose turn it is."""


class Road:
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
        self._chain = chain(options, policy=policy, extra=middleware, failover=_fail_over, audit=audit)
        self._way = self._chain(partial(_ask, mask_errors=mask_errors))

    async def travel(self, ctx: Context, found: Found, arguments: dict[str, Any]) -> ToolResult:
        """The result of the call, by the first backend that takes it.

        Another is asked only where one was not available, so that nothing was run. Raises `HandlerNotFound` where
        nobody runs the tool any more, and an `ExecutionFailed`.
        """
        try:
            backends = self._order(found)
        except ToolcribError as error:
            self.refused(ctx, found.tool.id, error)
            raise
        try:
            return await self._way(ctx, Routed(found.tool, arguments, _name(backends[0], found.tool), backends))
        except ToolcribError as error:
            left_a_call(error)
            raise

    def refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Tell the audit, if any, of a call that was refused before it came so far."""
        left_a_call(error)
        self._chain.refused(ctx, tool, error)

    def states(self) -> tuple[BreakerState, ...]:
        """How the breaker sees each backend, by name; empty without a breaker."""
        return self._chain.states()

    def _order(self, found: Found) -> tuple[Backend, ...]:
        if self._selector is not None:
            chosen = _chosen(self._selector, found)
            if not chosen:
                raise HandlerNotFound(f"{found.tool.id} is listed, but the selector leaves nobody to run it.")
            return chosen
        return found.backends if len(found.backends) == 1 else tuple(local_first(found.backends))


def _chosen(selector: BackendSelector, found: Found) -> tuple[Backend, ...]:
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


def _name(backend: Backend, tool: Tool) -> str:
    """Who runs a call: a function of this process stands for itself alone, whatever becomes of the others."""
    return tool.id if backend.kind is BackendKind.LOCAL else backend.name


async def _fail_over(ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
    """The first backend that takes the call; the next one only where nothing was run."""
    backends = _routed(call).backends
    for place, backend in enumerate(backends[:-1]):
        try:
            return await proceed(ctx, replace(_routed(call), backend=_name(backend, call.tool), place=place))
        except (ServerUnavailable, HandlerNotFound) as error:
            logger.info("%s cannot run %s, the next one is asked: %s", backend.name, call.tool.id, error.message)
    if len(backends) == 1:
        return await proceed(ctx, call)
    last = replace(_routed(call), backend=_name(backends[-1], call.tool), place=len(backends) - 1)
    return await proceed(ctx, last)


async def _ask(ctx: Context, call: Call, *, mask_errors: bool) -> ToolResult:
    """What one backend answers. What it says of itself passes, such as that it is not available.

    An error of a tool that it called in its turn, and anything else that it raises, becomes an `ExecutionFailed`:
    with its words where a provider raised it, as those of a function, unless `mask_errors`.
    """
    tool: Tool = call.tool
    routed = _routed(call)
    try:
        with run_by_others():
            value = await _answer(routed, ctx, tool)
        if value is not None:
            return to_result(value)
    except ToolcribError:
        raise
    except Exception as error:
        logger.exception("the provider of %s raised", tool.id)
        # What goes wrong at a remote server is an error of ours already; anything else is our own fault.
        if mask_errors or routed.backends[routed.place].kind is BackendKind.MCP:
            raise ExecutionFailed(f"{tool.id} failed inside its provider.", hint="Its log has the cause.") from error
        raise ExecutionFailed(f"{tool.id} failed: {said(error)}") from error
    logger.warning("%s is listed, but its provider does not run it: %s", tool.id, _NOTHING)
    raise HandlerNotFound(f"{tool.id} is listed, but its provider does not run it any more.", hint=_NOTHING)


async def _answer(routed: Routed, ctx: Context, tool: Tool) -> ToolResult | JSON | None:
    """What the backend gives whose turn it is; None where it has no such tool."""
    try:
        return await uncancelled(run(routed.backends[routed.place].provider, ctx, tool.key, routed.arguments))
    except ToolcribError as error:
        if left_one_inside(error) and misleads(error):
            raise failed_inside(error, tool.id) from error
        if isinstance(error, ToolNotFound):
            return None
        raise


def _routed(call: Call) -> Routed:
    if isinstance(call, Routed):
        return call
    raise ExecutionFailed(
        f"A middleware made a new call of {call.tool.id}.",
        hint="Change the one it was given, with dataclasses.replace.",
    )
