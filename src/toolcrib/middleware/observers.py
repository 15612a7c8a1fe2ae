"""Observers: what counts or shows calls and searches learns of each one when it ends.

Metrics and the console's list of calls are observers. They see the caller, the arguments and the result, and decide
themselves what they keep of them. Without an observer, none of this runs.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

from toolcrib.errors import ToolcribError
from toolcrib.gateway.view import View
from toolcrib.middleware.audit import CURRENT_RECORD, Attempt, AuditRecord, outcome_of
from toolcrib.types import Call, CallNext, Context, Object, SearchReply, SearchRequest, Tool, ToolResult

logger = logging.getLogger(__name__)

_REQUEST_MEMO: Final = "observers.request"
_REQUESTS: Final = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCall:
    """A call as it ended."""

    ctx: Context
    tool: Tool | None
    """None if the caller sees no such tool."""
    name: str
    """The canonical id, or the name that was asked for."""
    arguments: Object = field(default_factory=dict)
    """As they were sent to the backend; empty for a call that was refused before."""
    outcome: str
    """As in `AuditEvent`."""
    started: float = 0.0
    """By the clock of the pipeline, in seconds; 0 for a call that was refused before it started."""
    duration_s: float = 0.0
    result: ToolResult | None = None
    error: ToolcribError | None = None
    """Why there is no result; also None for a call that was cancelled, or that failed with an exception of ours."""
    record: AuditRecord | None = None
    """What the layers below reported; None for a call that was refused before."""
    request: int = 0
    """The same number for all calls and searches of one request, such as those of a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSearch:
    """A search with words as it ended; a list of all tools is none."""

    ctx: Context
    request: SearchRequest
    reply: SearchReply
    started: float
    """By `time.monotonic`."""
    duration_s: float
    number: int
    """That of the request it belongs to, as `EndedCall.request`."""

    @property
    def outcome(self) -> str:
        """`hit`, `weak` if all hits are marked as weak, or `none`."""
        hits = self.reply.hits
        return "none" if not hits else "weak" if all(hit.weak for hit in hits) else "hit"


class CallObserver(Protocol):
    """Learns of calls. Runs in the event loop, so it must not block, and it must not raise."""

    def call_ended(self, call: EndedCall) -> None:
        """A call ended, or was refused."""


class GatewayObserver(CallObserver, Protocol):
    """Learns of calls and searches."""

    def search_ended(self, search: EndedSearch) -> None:
        """A search ended."""


class ListEntry(Protocol):
    """A tool as a client lists it."""

    @property
    def tool(self) -> Tool: ...


class DefinitionObserver(Protocol):
    """Learns which definitions of tools clients get. It must not block, and it must not raise."""

    def tools_listed(self, view: View, meta: Sequence[ListEntry], named: Sequence[ListEntry]) -> None:
        """A client that has this view asked for its list: the meta-tools, and the tools that it lists by name."""

    def tools_shown(self, tokens: Mapping[str, int]) -> None:
        """A reply showed definitions of tools, of so many tokens in each namespace. May run in any thread."""


class Observers:
    """Several observers as one; one that raises is logged and keeps the others from nothing."""

    def __init__(self, observers: Sequence[GatewayObserver]) -> None:
        self._observers = tuple(observers)

    @classmethod
    def of(cls, *observers: GatewayObserver | None) -> GatewayObserver | None:
        """Return those that are not None as one; None if there are none."""
        present = [observer for observer in observers if observer is not None]
        return cls(present) if len(present) > 1 else present[0] if present else None

    def call_ended(self, call: EndedCall) -> None:
        """Pass it to all."""
        for observer in self._observers:
            _safely(observer.call_ended, call)

    def search_ended(self, search: EndedSearch) -> None:
        """Pass it to all."""
        for observer in self._observers:
            _safely(observer.search_ended, search)


def _safely(report: Callable[[Any], None], event: object) -> None:
    try:
        report(event)
    except Exception:
        logger.exception("an observer of calls failed")


def request_number(ctx: Context) -> int:
    """Return the number of the request that a context belongs to; a call inside another one has the number of that."""
    number = None if ctx.memo is None else ctx.memo.get(_REQUEST_MEMO)
    if number is None:
        record = CURRENT_RECORD.get()
        while record is not None and not record.request:
            record = record.outer
        number = next(_REQUESTS) if record is None else record.request
        if ctx.memo is not None:
            ctx.memo[_REQUEST_MEMO] = number
    return int(number)


class ObserverMiddleware:
    """Reports the end of each call to an observer."""

    def __init__(self, observer: CallObserver, clock: Callable[[], float], *, audited: bool) -> None:
        """`clock` is monotonic, in seconds; `audited` is whether an `AuditMiddleware` is the layer outside of this."""
        self._observer = observer
        self._audited = audited
        self._clock = clock

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the call and report how it ended."""
        number = request_number(ctx)
        record = CURRENT_RECORD.get() if self._audited else None
        token = None
        if record is None:
            record = AuditRecord(outer=CURRENT_RECORD.get())
            token = CURRENT_RECORD.set(record)
        record.request, started = number, self._clock()
        outcome, result, failure = "cancelled", None, None
        try:
            result = await call_next(ctx, call)
            outcome = outcome_of(result)
        except ToolcribError as error:
            outcome, failure = error.code, error
            raise
        except Exception:
            outcome = "internal_error"
            raise
        else:
            return result
        finally:
            if token is not None:
                CURRENT_RECORD.reset(token)
            self._observer.call_ended(
                EndedCall(
                    ctx=ctx,
                    tool=call.tool,
                    name=call.tool.id,
                    arguments=call.arguments,
                    outcome=outcome,
                    started=started,
                    duration_s=self._clock() - started,
                    result=result,
                    error=failure,
                    record=record,
                    request=number,
                )
            )

    def record_refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Report a call that was refused before it came this far."""
        self._observer.call_ended(
            EndedCall(ctx=ctx, tool=None, name=tool, outcome=error.code, error=error, request=request_number(ctx))
        )


class AttemptMiddleware:
    """The innermost layer of an audited or observed call: records each attempt at a backend, and how long it took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the attempt."""
        record = CURRENT_RECORD.get()
        if record is None:
            return await call_next(ctx, call)
        started = self._clock()
        record.attempts += 1
        record.backend = call.backend
        failed = True
        try:
            result = await call_next(ctx, call)
            failed = result.is_error
        finally:
            record.timed.append(Attempt(call.backend, started, self._clock() - started, failed=failed))
        return result
