"""Audit: record who called which tool, how the call ended and how long it took; never its content.

The layers below add to the record of the current call through a context variable. The record decides nothing, and does
not exist while auditing is off.
"""

import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

import anyio.to_thread

from toolcrib.errors import ToolcribError
from toolcrib.middleware.fingerprint import canonical_json, digest, result_digest, visible_chars
from toolcrib.types import Call, CallNext, Context, ToolResult

logger = logging.getLogger(__name__)

AUDIT_LOGGER: Final = "toolcrib.audit"

_MAX_NAME_CHARS: Final = 200
_SESSION_CHARS: Final = 12
_DIGESTED_AT_ONCE: Final = 100_000
"""Characters of a result whose digest takes so little time that it may be made in the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One call, search or list, as it ended."""

    time: float
    """When it arrived; seconds since the epoch."""
    caller: str
    tenant: str | None = None
    session: str | None = None
    """A digest of the session's id: the id itself would give access to the session."""
    action: str = "call"
    """call, search, describe, or the method of another MCP request, such as tools/list."""
    tool: str
    """The canonical id; if no tool was found, the name that was asked for. Empty for what is about no single tool."""
    backend: str = ""
    """The backend that was called, or would have been."""
    outcome: str
    """ok, tool_error (the tool's own), input_required, cancelled, internal_error, or the code of an error."""
    duration_s: float = 0.0
    arguments: str = ""
    """A keyed digest, from which nothing can be guessed; equal for equal arguments."""
    request_chars: int = 0
    """The length of the arguments as JSON."""
    result: str | None = None
    """A keyed digest of the result, only where an audit file is written."""
    result_chars: int = 0
    """The length of the result's texts and data."""
    attempts: int = 0
    """How often a backend was called; 0 for a call that was refused or answered from the cache."""
    cached: bool = False
    approval: str = ""
    """asked, agreed, or why not; empty if no approval was needed."""

    def to_object(self) -> dict[str, str | float | bool]:
        """Return the fields that are neither None nor empty."""
        values = {name: value for name in _EVENT_FIELDS if (value := getattr(self, name)) not in (None, "")}
        return values | {"duration_s": round(self.duration_s, 6)}

    def to_json(self) -> str:
        """Return the event as one line of JSON, without the fields that are None."""
        values = {name: value for name in _EVENT_FIELDS if (value := getattr(self, name)) is not None}
        return json.dumps(values | {"duration_s": round(self.duration_s, 6)})


_EVENT_FIELDS: Final = tuple(field.name for field in fields(AuditEvent))

AuditSink = Callable[[AuditEvent], None]
"""Takes events. It runs in the event loop, so it must not block."""


def log_sink(name: str = AUDIT_LOGGER) -> AuditSink:
    """Return a sink that logs each event as one line of JSON. Sets the logger to INFO if it has no level."""
    log = logging.getLogger(name)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)

    def write(event: AuditEvent) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("%s", event.to_json())

    return write


def digest_key(key: str) -> bytes:
    """The key of the digests of a log that is signed with this key."""
    return hashlib.sha256(b"toolcrib audit digests " + key.encode()).digest()


class Attempt(NamedTuple):
    """One attempt at a backend."""

    backend: str
    started: float
    """By the clock of the pipeline, in seconds."""
    duration_s: float
    failed: bool


@dataclass(slots=True, eq=False)
class AuditRecord:
    """What the layers below the audit report about the current call."""

    attempts: int = 0
    backend: str = ""
    """The backend that was called last."""
    cached: bool = False
    approval: str = ""
    timed: list[Attempt] = field(default_factory=list)
    """The attempts that have ended."""
    outer: "AuditRecord | None" = None
    """The call that this one was made by, such as that of a stored script."""
    request: int = 0
    """The number of the request that it belongs to, if an observer wants it."""


CURRENT_RECORD: ContextVar[AuditRecord | None] = ContextVar("toolcrib.audit", default=None)


def record_approval(outcome: str) -> None:
    """Record the outcome of asking a person."""
    if (record := CURRENT_RECORD.get()) is not None:
        record.approval = outcome


def record_cache_hit() -> None:
    """Record that the call was answered from the cache."""
    if (record := CURRENT_RECORD.get()) is not None:
        record.cached = True


class AuditMiddleware:
    """The outermost layer. A sink that raises breaks no call; the failure is logged once until it works again."""

    def __init__(
        self,
        sink: AuditSink,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        key: bytes | None = None,
        digest_results: bool = False,
        require: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`clock` is monotonic, `wall` since the epoch, both in seconds; `key` keys the digests, 16 to 64 bytes.

        `require` raises an error before a call that could not be recorded.
        """
        self._require = require
        self._sink = sink
        self._digest_results = digest_results
        self._clock = clock
        self._wall = wall
        self._key = key or os.urandom(32)
        self._failing = False

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Run the call and report how it ended."""
        if self._require is not None:
            await self._require()
        record, came, started = AuditRecord(outer=CURRENT_RECORD.get()), self._wall(), self._clock()
        token = CURRENT_RECORD.set(record)
        outcome, size, found = "cancelled", 0, ""
        try:
            result = await call_next(ctx, call)
            outcome, size = outcome_of(result), visible_chars(result)
            if self._digest_results:
                found = await self._digest(result, size)
        except ToolcribError as error:
            outcome = error.code
            raise
        except Exception:
            outcome = "internal_error"
            raise
        else:
            return result
        finally:
            CURRENT_RECORD.reset(token)
            took = self._clock() - started
            event = self._event(ctx, call, record, outcome=outcome, came=came, took=took, size=size)
            self._emit(replace(event, result=found) if found else event)

    async def _digest(self, result: ToolResult, size: int) -> str:
        if size <= _DIGESTED_AT_ONCE:
            return result_digest(result, self._key)
        return await anyio.to_thread.run_sync(result_digest, result, self._key)

    def record_refused(self, ctx: Context, tool: str, error: ToolcribError) -> None:
        """Report a call that was refused before it came this far: no such tool, not allowed, wrong arguments."""
        self._emit(self._short_event(ctx, "call", tool, outcome=error.code, came=self._wall()))

    def begin(self, ctx: Context, action: str, tool: str) -> Callable[[str], None]:
        """Note when a search or list begins. Returns what reports its outcome when it ends."""
        came, started = self._wall(), self._clock()

        def end(outcome: str) -> None:
            event = self._short_event(ctx, action, tool, outcome=outcome, came=came)
            self._emit(replace(event, duration_s=self._clock() - started))

        return end

    def _short_event(self, ctx: Context, action: str, tool: str, *, outcome: str, came: float) -> AuditEvent:
        return AuditEvent(
            time=came,
            caller=ctx.caller.id,
            tenant=ctx.caller.tenant,
            session=self._session(ctx),
            action=action,
            tool=tool[:_MAX_NAME_CHARS],
            outcome=outcome,
        )

    def _event(
        self, ctx: Context, call: Call, record: AuditRecord, *, outcome: str, came: float, took: float, size: int
    ) -> AuditEvent:
        text = canonical_json(call.arguments)
        return AuditEvent(
            time=came,
            caller=ctx.caller.id,
            tenant=ctx.caller.tenant,
            session=self._session(ctx),
            tool=call.tool.id,
            backend=record.backend or call.backend,
            outcome=outcome,
            duration_s=took,
            arguments="" if text is None else digest(text, self._key),
            request_chars=len(text or ""),
            result_chars=size,
            attempts=record.attempts,
            cached=record.cached,
            approval=record.approval,
        )

    def _session(self, ctx: Context) -> str | None:
        return None if ctx.session is None else digest(ctx.session, self._key)[:_SESSION_CHARS]

    def _emit(self, event: AuditEvent) -> None:
        try:
            self._sink(event)
        except Exception:
            if not self._failing:
                logger.exception("the audit sink failed; further failures are not logged until it works again")
            self._failing = True
        else:
            self._failing = False


def outcome_of(result: ToolResult) -> str:
    """The outcome of a call that returned a result."""
    if result.kind == "input_required":
        return result.kind
    return "tool_error" if result.is_error else "ok"
