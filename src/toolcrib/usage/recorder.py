"""Count the use of a gateway by day. Calls only add to numbers in memory; a background task saves them."""

import json
import logging
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import anyio
import anyio.to_thread

from toolcrib.errors import StateUnavailable
from toolcrib.gateway.view import View
from toolcrib.gateway.visibility import namespace_counts
from toolcrib.middleware.observers import EndedCall, EndedSearch, ListEntry
from toolcrib.state.base import StateStore, StateTable
from toolcrib.tokens import estimate_tokens
from toolcrib.types import Tool, ToolResult
from toolcrib.usage.counts import (
    DAY_CODEC,
    KEPT_DAYS,
    LATENCY_S,
    MAX_TOOLS,
    OTHER,
    CallCounts,
    DayUsage,
    DefinitionTokens,
    TokenCounts,
    UsageReport,
    day_of,
)

logger = logging.getLogger(__name__)

USAGE_TABLE: Final = "usage"
"""The durable table with the counts of each day, by `day_of`."""
_DAY_S: Final = 86_400
_SAVE_S: Final = 10.0
"""How often `save_regularly` saves, in seconds."""
_CLOSE_S: Final = 2.0
_SUCCESSES: Final = frozenset({"ok", "input_required", "cancelled"})
"""Outcomes that are not errors of a tool."""
_MAX_VIEWS: Final = 1_000
"""Views whose lists are counted until the next time they are saved."""
_SAMPLE_CHARS: Final = 2_048
"""Characters of a text by which its size is estimated."""
_SAMPLE_BLOCKS: Final = 64
"""Content blocks by which the size of a result is estimated."""
_SAMPLE_PARTS: Final = 1_000
"""Parts of structured content without text that are measured."""


def usage_table(state: StateStore) -> StateTable[DayUsage]:
    """The table of the counts of each day."""
    return state.table(USAGE_TABLE, DAY_CODEC, max_entries=KEPT_DAYS + 2, durable=True)


class UsageRecorder:
    """Counts calls, searches and the tokens of definitions; observes a gateway.

    Several processes may count into one store. What is counted while the store is unavailable is saved later.
    """

    def __init__(
        self, state: StateStore, tools: Callable[[], Sequence[Tool]], *, wall: Callable[[], float] = time.time
    ) -> None:
        """`tools` returns those of all callers; `wall` counts seconds since the epoch."""
        self._table = usage_table(state)
        self._tools = tools
        self._wall = wall
        self._today = _UnsavedCounts(int(wall() // _DAY_S))
        self._earlier: list[_UnsavedCounts] = []
        """Days that have ended, and have to be saved."""
        self._unsaved: dict[str, DayUsage] = {}
        """Counts that could not be saved."""
        self._shown: Counter[str] = Counter()
        self._shown_lock = threading.Lock()
        self._definitions, self._meta_definitions = DefinitionTokens(), DefinitionTokens()
        self._saved_tools: Sequence[Tool] = ()
        self._saving = anyio.Lock()
        self._failing = False
        self.since_start: Mapping[str, TokenCounts] = {}
        """The tokens of each namespace since this recorder was made, up to the last time it saved."""
        self.saved_since_start = 0
        """The tokens that were saved in that time."""

    # -- what is counted -------------------------------------------------------------------------------------------

    def call_ended(self, call: EndedCall) -> None:
        """Count a call."""
        pending = self._pending()
        if call.tool is None:
            pending.refused[call.outcome] += 1
        else:
            pending.count_call(call)

    def search_ended(self, search: EndedSearch) -> None:
        """Count a search."""
        self._pending().searches[search.outcome] += 1

    def tools_listed(self, view: View, meta: Sequence[ListEntry], named: Sequence[ListEntry]) -> None:
        """Count a list. What its tools take is computed when it is saved."""
        view = view.base or view
        lists = self._pending().lists
        key = (id(view), len(named))  # clients of one view list more tools if they show apps
        known = lists.get(key)
        lists[key] = _Lists(view, meta, named, 1 if known is None else known.count + 1)
        if len(lists) > _MAX_VIEWS:  # nothing saves them while no background task runs
            del lists[next(iter(lists))]

    def tools_shown(self, tokens: Mapping[str, int]) -> None:
        """Count definitions in a reply, from any thread."""
        with self._shown_lock:
            self._shown.update(tokens)

    def _pending(self) -> "_UnsavedCounts":
        day = int(self._wall() // _DAY_S)
        if day != self._today.day:
            self._close_day(day)
        return self._today

    def _close_day(self, day: int) -> None:
        with self._shown_lock:
            self._today.shown, self._shown = self._shown, Counter()
        self._earlier.append(self._today)
        self._today = _UnsavedCounts(day)

    # -- reports ---------------------------------------------------------------------------------------------------

    async def report(self, days: int = 30) -> UsageReport:
        """Return the counts of the last `days` days, those of this moment included.

        `days` is at most 90. Raises `StateUnavailable` if the store cannot be read.
        """
        await self.save()
        tools = self._tools()
        saved = await self._table.items()
        return await anyio.to_thread.run_sync(
            lambda: UsageReport.make(saved, until=self._wall(), days=days, tools=tools)
        )

    # -- the store -------------------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Add to the store what was counted since the last time. If that fails, a warning is logged once."""
        async with self._saving:
            self._close_day(int(self._wall() // _DAY_S))
            closed, self._earlier = self._earlier, []
            tools = self._tools()
            for day, counts in await anyio.to_thread.run_sync(self._summarize, closed, tools):
                self._unsaved[day] = self._unsaved.get(day, DayUsage()) + counts
                self.since_start = (DayUsage(servers=self.since_start) + counts).servers
                self.saved_since_start += counts.saved
            for day in sorted(self._unsaved):
                await self._save_day(day)
            for day in sorted(self._unsaved)[:-KEPT_DAYS]:
                del self._unsaved[day]

    async def _save_day(self, day: str) -> None:
        counts = self._unsaved[day]
        try:
            with anyio.CancelScope(shield=True):  # or it would be counted twice
                await self._table.update(
                    day, lambda saved: ((saved or DayUsage()) + counts, None), ttl_s=(KEPT_DAYS + 1) * _DAY_S
                )
        except StateUnavailable as error:
            if not self._failing:
                logger.warning("usage could not be saved, and is kept in memory meanwhile: %s", error)
            self._failing = True
        else:
            self._failing = False
            del self._unsaved[day]

    def _summarize(self, closed: Sequence["_UnsavedCounts"], tools: Sequence[Tool]) -> list[tuple[str, DayUsage]]:
        """What was counted on each day; without any use, and with the same tools as before, nothing."""
        now = self._definitions.by_namespace(tools)
        if tools is not self._saved_tools and closed:
            closed[-1].rest = now
            self._saved_tools = tools
        return [
            (day_of(pending.day * _DAY_S), pending.summary(now, self._meta_definitions))
            for pending in closed
            if pending
        ]


async def save_regularly(save: Callable[[], Awaitable[None]]) -> None:
    """Save every few seconds until cancelled, and then once more."""
    try:
        while True:
            await anyio.sleep(_SAVE_S)
            await save()
    finally:
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await save()


@dataclass(frozen=True, slots=True)
class _Lists:
    """Lists of clients that have the same view."""

    view: View
    meta: Sequence[ListEntry]
    named: Sequence[ListEntry]
    """As in the last one."""
    count: int


@dataclass(slots=True)
class _Tally:
    """The calls of one tool, to be changed in place."""

    calls: int = 0
    errors: int = 0
    duration_s: float = 0.0
    result_bytes: int = 0
    result_tokens: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_S) + 1))

    def counts(self) -> CallCounts:
        filled = [place for place, count in enumerate(self.latency) if count]
        return CallCounts(
            calls=self.calls,
            errors=self.errors,
            duration_s=round(self.duration_s, 4),
            result_bytes=self.result_bytes,
            result_tokens=self.result_tokens,
            latency=tuple(self.latency[: filled[-1] + 1]) if filled else (),
        )


@dataclass(slots=True)
class _UnsavedCounts:
    """What was counted on a day and is not saved yet."""

    day: int
    """In days since the epoch."""
    tallies: dict[str, _Tally] = field(default_factory=dict)
    searches: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lists: dict[tuple[int, int], _Lists] = field(default_factory=dict)
    """By the identity of the view."""
    shown: Counter[str] = field(default_factory=Counter)
    rest: Mapping[str, TokenCounts] = field(default_factory=dict)
    """Tools and tokens at rest by namespace, if they are not those that were saved last."""

    def __bool__(self) -> bool:
        return bool(self.tallies or self.searches or self.refused or self.lists or self.shown or self.rest)

    def count_call(self, call: EndedCall) -> None:
        tally = self.tallies.get(call.name)
        if tally is None:
            tally = self.tallies.setdefault(call.name if len(self.tallies) < MAX_TOOLS else OTHER, _Tally())
        tally.calls += 1
        tally.errors += call.outcome not in _SUCCESSES
        tally.duration_s += call.duration_s
        tally.latency[bisect_left(LATENCY_S, call.duration_s)] += 1
        if call.result is not None:
            size, tokens = result_size(call.result)
            tally.result_bytes += size
            tally.result_tokens += tokens

    def summary(self, now: Mapping[str, TokenCounts], meta_definitions: DefinitionTokens) -> DayUsage:
        """The counts; `now` has the tools and tokens at rest by namespace."""
        unlisted: Counter[str] = Counter()
        served = Counter(self.shown)
        list_tokens = 0
        for one in self.lists.values():
            for namespace, tools in namespace_counts(one.view).items():
                if (all_ := now.get(namespace)) is not None:
                    unlisted[namespace] += one.count * round(all_.at_rest * min(1.0, tools / all_.tools))
            list_tokens += one.count * sum(meta_definitions.of(entry.tool for entry in one.meta))
            for entry, tokens in zip(one.named, DefinitionTokens().of(entry.tool for entry in one.named), strict=True):
                served[entry.tool.namespace] += one.count * tokens
        servers = dict(self.rest)
        for namespace in {*unlisted, *served}:
            servers[namespace] = servers.get(namespace, TokenCounts()) + TokenCounts(
                unlisted=unlisted[namespace], served=served[namespace]
            )
        return DayUsage(
            tools={tool: tally.counts() for tool, tally in self.tallies.items()},
            servers=servers,
            searches=self.searches,
            refused=self.refused,
            lists=sum(one.count for one in self.lists.values()),
            list_tokens=list_tokens,
        )


def result_size(result: ToolResult) -> tuple[int, int]:
    """Estimate the bytes and the tokens of a result from samples, so that a large one costs no more than a small one.

    >>> result_size(ToolResult(content=({"type": "text", "text": "a" * 40_000},)))
    (40000, 10000)
    """
    blocks = result.content[:_SAMPLE_BLOCKS]
    if not blocks:
        return _text_size(_sample_json(result.structured)) if result.structured is not None else (0, 0)
    size = tokens = 0
    for block in blocks:
        resource = block.get("resource")
        holder = resource if isinstance(resource, dict) else block
        text, data = holder.get("text"), holder.get("blob", holder.get("data"))
        if isinstance(text, str):
            text_bytes, text_tokens = _text_size(text)
            size, tokens = size + text_bytes, tokens + text_tokens
        if isinstance(data, str):
            size += len(data)
    scale = len(result.content) / len(blocks)
    return round(size * scale), round(tokens * scale)


def _text_size(text: str) -> tuple[int, int]:
    sample = text[:_SAMPLE_CHARS]
    if not sample:
        return 0, 0
    scale = len(text) / len(sample)
    size = len(sample) if sample.isascii() else len(sample.encode(errors="surrogatepass"))
    return round(size * scale), round(estimate_tokens(sample) * scale)


def _sample_json(value: Any) -> str:
    """The beginning of a value as JSON."""
    parts: Iterable[str] = json.JSONEncoder(default=str).iterencode(value)
    return "".join(islice(parts, _SAMPLE_PARTS))
