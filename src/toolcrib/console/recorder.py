"""The last calls and searches, in memory, as the console shows them.

Fed by the observer of the gateway. Arguments, results, messages of errors and words of searches are kept only where
the settings allow it, cut to a few thousand characters, and without what looks like a secret.
"""

import hashlib
import json
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from toolcrib.middleware.fingerprint import visible_chars
from toolcrib.middleware.observers import EndedCall, EndedSearch
from toolcrib.sanitize import MAX_NAME, paragraphs
from toolcrib.types import Caller, ToolResult

MINUTES: Final = 60
"""Minutes for which calls are counted."""
MAX_CONTENT_CHARS: Final = 4000
_MAX_HITS: Final = 10
_GOOD: Final = frozenset({"ok", "input_required"})
"""Outcomes that are not errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One attempt at a backend, within a call."""

    backend: str
    offset_s: float
    """After the beginning of the call."""
    duration_s: float
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call, as it ended."""

    number: int
    """Counts calls and searches of this process."""
    request: int
    """The same for everything that one request of a client did."""
    time: float
    """When it began, in seconds since the epoch."""
    caller: str
    tenant: str
    session: str
    """A digest of the session's id; empty without a session."""
    tool: str
    namespace: str
    outcome: str
    duration_s: float
    steps: tuple[Step, ...] = ()
    cached: bool = False
    approval: str = ""
    nested: bool = False
    """Whether another call made it."""
    arguments: str | None = None
    """As JSON; None where the settings keep no content."""
    result: str | None = None
    message: str | None = None
    """What the error says."""
    result_chars: int = 0

    @property
    def failed(self) -> bool:
        """Whether it is counted as an error."""
        return self.outcome not in _GOOD


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSearch:
    """One search, as it ended."""

    number: int
    request: int
    time: float
    caller: str
    tenant: str
    session: str
    outcome: str
    """hit, weak or none."""
    duration_s: float
    hits: tuple[str, ...] = ()
    """The ids of the best ones."""
    total: int = 0
    best: float = 0.0
    """The score of the best hit."""
    queries: tuple[str, ...] | None = None
    """None where the settings keep no content."""


Recorded = RecordedCall | RecordedSearch
RECORDED: Final[TypeAdapter[Recorded]] = TypeAdapter(Annotated[Recorded, Field(union_mode="left_to_right")])
"""Reads and writes them as JSON, for the console of another process: what is no call, which has a tool, is a search."""


@dataclass(frozen=True, slots=True)
class Minute:
    """What happened within one minute."""

    calls: int = 0
    errors: int = 0
    searches: int = 0


class CallRecorder:
    """Keeps the last calls and searches, and counts those of the last hour. Lives in one event loop."""

    def __init__(self, size: int, *, content: bool, wall: Callable[[], float] = time.time) -> None:
        """`size` is how many are kept; `wall` returns seconds since the epoch."""
        self.content = content
        self._wall = wall
        self._kept: deque[Recorded] = deque(maxlen=size)
        self._numbers = count(1)
        self.minute_counts: OrderedDict[int, Counter[str]] = OrderedDict()
        self._by_server: OrderedDict[int, Counter[tuple[str, bool]]] = OrderedDict()
        self.version = 0
        """Grows with each call and search."""

    # -- recording -------------------------------------------------------------------------------------------------

    def call_ended(self, call: EndedCall) -> None:
        """Keep a call."""
        record, began = call.record, self._wall() - call.duration_s
        content: Any = self._content(call) if self.content else {}
        kept = RecordedCall(
            number=next(self._numbers),
            request=call.request,
            time=began,
            **_asker(call.ctx.caller, call.ctx.session),
            tool=call.name[:MAX_NAME],
            namespace="" if call.tool is None else call.tool.namespace,
            outcome=call.outcome,
            duration_s=call.duration_s,
            steps=() if record is None else tuple(_steps(call)),
            cached=record is not None and record.cached,
            approval="" if record is None else record.approval,
            nested=record is not None and record.outer is not None,
            result_chars=0 if call.result is None else visible_chars(call.result),
            **content,
        )
        self._count(kept, "errors" if kept.failed else "", "calls")
        self._by_server.setdefault(self._minute(), Counter())[kept.namespace, kept.failed] += 1
        while len(self._by_server) > MINUTES:
            self._by_server.popitem(last=False)

    def search_ended(self, search: EndedSearch) -> None:
        """Keep a search."""
        hits = search.reply.hits
        kept = RecordedSearch(
            number=next(self._numbers),
            request=search.number,
            time=self._wall() - search.duration_s,
            **_asker(search.ctx.caller, search.ctx.session),
            outcome=search.outcome,
            duration_s=search.duration_s,
            hits=tuple(hit.tool.id for hit in hits[:_MAX_HITS]),
            total=len(hits),
            best=max((hit.score for hit in hits), default=0.0),
            queries=tuple(excerpt(query) for query in search.request.queries) if self.content else None,
        )
        self._count(kept, "searches")

    def _content(self, call: EndedCall) -> dict[str, str | None]:
        return {
            "arguments": excerpt(_as_json(call.arguments)),
            "result": None if call.result is None else excerpt(result_text(call.result)),
            "message": None if call.error is None else excerpt(str(call.error)),
        }

    def _count(self, kept: Recorded, *kinds: str) -> None:
        self._kept.append(kept)
        minute = self.minute_counts.setdefault(self._minute(), Counter())
        minute.update(kind for kind in kinds if kind)
        while len(self.minute_counts) > MINUTES:
            self.minute_counts.popitem(last=False)
        self.version += 1

    def _minute(self) -> int:
        return int(self._wall() // 60)

    # -- reading ---------------------------------------------------------------------------------------------------

    def recent(self) -> Iterator[Recorded]:
        """The calls and searches that are kept, the last one first."""
        return iter(tuple(reversed(self._kept)))

    def of_request(self, number: int) -> list[Recorded]:
        """What one request did, in the order in which it began."""
        return sorted((one for one in self._kept if one.request == number), key=lambda one: (one.time, one.number))

    def search_before(self, call: RecordedCall) -> RecordedSearch | None:
        """The last search of the same caller and session, before the call, that found its tool.

        The call may be one of another process.
        """
        for one in self.recent():
            if (
                isinstance(one, RecordedSearch)
                and one.time <= call.time
                and call.tool in one.hits
                and (one.caller, one.tenant, one.session) == (call.caller, call.tenant, call.session)
            ):
                return one
        return None

    def by_minute(self) -> list[tuple[int, Minute]]:
        """The minutes of the last hour in which something happened, in minutes since the epoch."""
        return [
            (minute, Minute(one["calls"], one["errors"], one["searches"]))
            for minute, one in self.minute_counts.items()
            if minute > self._minute() - MINUTES
        ]

    def calls_by_namespace(self) -> dict[str, tuple[int, int]]:
        """Calls and errors of the last hour by namespace."""
        oldest, found = self._minute() - MINUTES, dict[str, tuple[int, int]]()
        for minute, counts in self._by_server.items():
            if minute > oldest:
                for (namespace, failed), number in counts.items():
                    calls, errors = found.get(namespace, (0, 0))
                    found[namespace] = calls + number, errors + number * failed
        return found


def _asker(caller: Caller, session: str | None) -> dict[str, Any]:
    # The id of a session would give access to it.
    digest = "" if session is None else hashlib.sha256(session.encode("utf-8", "replace")).hexdigest()[:8]
    return {
        "caller": caller.id[:MAX_NAME],
        "tenant": (caller.tenant or "")[:MAX_NAME],
        "session": digest,
    }


def _steps(call: EndedCall) -> Iterator[Step]:
    for attempt in () if call.record is None else call.record.timed:
        yield Step(
            backend=attempt.backend,
            offset_s=max(0.0, attempt.started - call.started),
            duration_s=attempt.duration_s,
            failed=attempt.failed,
        )


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return "(not JSON)"


def result_text(result: ToolResult) -> str:
    """The texts of a result, what its other blocks are and, without any, its structured content.

    >>> result_text(ToolResult(content=({"type": "text", "text": "hi"}, {"type": "image", "mimeType": "image/png"})))
    'hi\\n[image image/png]'
    """
    lines, left = list[str](), MAX_CONTENT_CHARS
    for block in result.content:
        text = block.get("text")
        line = text if isinstance(text, str) else f"[{block.get('type')} {block.get('mimeType', '')}".strip() + "]"
        lines.append(line[: left + 1])
        left -= len(line)
        if left < 0:
            break
    return "\n".join(lines) if lines or result.structured is None else _as_json(result.structured)


def excerpt(text: str, limit: int = MAX_CONTENT_CHARS) -> str:
    """The beginning of a text, without what looks like a secret.

    >>> excerpt("password=hunter2"), excerpt("abcdef", 3)
    ('password=***', 'abc… (6 characters)')
    """
    shown = paragraphs(text, limit + 1)
    return shown if len(text) <= limit else f"{shown} ({len(text):,} characters)"


def filtered(recorded: Sequence[Recorded], *, tool: str = "", caller: str = "", outcome: str = "") -> list[Recorded]:
    """Those whose tool and caller contain the texts, with an outcome: one by name, `failed`, or `search`."""
    return [one for one in recorded if _passes(one, tool.casefold(), caller.casefold(), outcome)]


def _passes(one: Recorded, tool: str, caller: str, outcome: str) -> bool:
    if caller not in f"{one.tenant}/{one.caller}".casefold():
        return False
    if isinstance(one, RecordedSearch):
        return outcome in ("", "search", one.outcome) and (not tool or any(tool in hit.casefold() for hit in one.hits))
    if outcome == "failed":
        return one.failed and tool in one.tool.casefold()
    return outcome in ("", one.outcome) and tool in one.tool.casefold()
