"""The pages of usage and of searches without hits: what is used, what never is, what was asked for in vain.

For a search in vain, the page proposes a keyword or a synonym, and shows what it would change before anyone writes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio.to_thread

from toolcrib.console.pages import ConsolePage, Visit, whole
from toolcrib.console.proposals import Kind, Sought, propose
from toolcrib.errors import StateUnavailable
from toolcrib.types import Tool
from toolcrib.usage.counts import CallCounts, DayUsage, TokenCounts
from toolcrib.usage.zero_hits import ZeroHit

RANGES: Final = (7, 30, 90)
_ROWS: Final = 100
_TRIED: Final = 40
"""Searches whose rank is compared before and after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """The counts of a tool or a server."""

    name: str
    counts: CallCounts
    tokens: TokenCounts | None = None

    @property
    def result_tokens(self) -> int:
        """Those of a result, on average."""
        return round(self.counts.result_tokens / self.counts.calls) if self.counts.calls else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A group of searches without hits, with what could be done."""

    number: int
    """Names the group within the page."""
    tenant: str
    group: ZeroHit
    phrase: str
    tool: str
    """The tool that sessions called next, else the best weak hit; empty if there is neither."""
    sure: bool
    """Whether sessions called it."""


# -- usage -----------------------------------------------------------------------------------------------------------


async def show(visit: Visit) -> ConsolePage:
    """The counts of the last days."""
    recorder = visit.parts.usage
    if recorder is None:
        return ConsolePage("usage.html", {"title": "Usage", "report": None, "problem": ""})
    text = visit.query.get("days", "")
    days = asked if (asked := whole(text)) in RANGES else 30
    try:
        await visit.parts.processes.save_counts()
        report = await recorder.report(days)
    except StateUnavailable as error:
        return ConsolePage("usage.html", {"title": "Usage", "report": None, "problem": str(error)})
    total = report.total
    calls = total.calls()
    by_day = _by_day(report.days, days)
    values = {
        "title": "Usage",
        "report": report,
        "problem": "",
        "days": days,
        "ranges": RANGES,
        "calls": calls,
        "labels": [day for day, _ in by_day],
        "by_day": [one.calls().calls for _, one in by_day],
        "errors_by_day": [one.calls().errors for _, one in by_day],
        "saved_by_day": [max(0, one.saved) for _, one in by_day],
        "searches": total.searches,
        "asked": sum(total.searches.values()),
        "refused": sorted(total.refused.items(), key=lambda pair: -pair[1]),
        "servers": _servers(total),
        "tools": _tools(total)[:_ROWS],
        "unused": report.unused[:_ROWS],
        "more_unused": len(report.unused) - _ROWS,
        "latency": _latency(calls),
    }
    return ConsolePage("usage.html", values)


def _by_day(known: Mapping[str, DayUsage], days: int) -> list[tuple[str, DayUsage]]:
    today = datetime.now(UTC).date()
    dates = [(today - timedelta(days=back)).isoformat() for back in range(days - 1, -1, -1)]
    return [(day, known.get(day, DayUsage())) for day in dates]


def _servers(total: DayUsage) -> list[UsageRow]:
    calls = total.calls_by_server()
    names = sorted({*calls, *total.servers})
    rows = [
        UsageRow(name=name, counts=calls.get(name, CallCounts()), tokens=total.servers.get(name, TokenCounts()))
        for name in names
    ]
    return sorted(rows, key=lambda row: (-row.counts.calls, row.name))


def _tools(total: DayUsage) -> list[UsageRow]:
    rows = [UsageRow(name=name, counts=counts) for name, counts in total.tools.items()]
    return sorted(rows, key=lambda row: (-row.counts.calls, row.name))


def _latency(calls: CallCounts) -> list[tuple[str, float | None]]:
    return [(name, calls.quantile_s(share)) for name, share in (("half", 0.5), ("95 %", 0.95), ("99 %", 0.99))]


# -- searches without hits -------------------------------------------------------------------------------------------


async def show_zero_hits(visit: Visit) -> ConsolePage:
    """The groups of searches without hits and, for one that is chosen, a keyword and what it changes."""
    recorder = visit.parts.zero_hits
    if recorder is None:
        return ConsolePage("zero_hits.html", {"title": "Zero hits", "groups": None, "problem": "", "chosen": None})
    try:
        await visit.parts.processes.save_counts()
        found = await recorder.queries()
    except StateUnavailable as error:
        problem = {"title": "Zero hits", "groups": None, "problem": str(error), "chosen": None}
        return ConsolePage("zero_hits.html", problem)
    view = await visit.parts.gateway.view(visit.context())
    tools = {tool.id: tool for tool in view.tools()}
    groups = list(_asked(found, tools))
    text = visit.query.get("group", "")
    chosen = groups[place] if 0 <= (place := whole(text)) < len(groups) else None
    tool = visit.query.get("tool", "") or (chosen.tool if chosen is not None else "")
    kind: Kind = "synonym" if visit.query.get("as") == "synonym" else "keyword"
    values: dict[str, Any] = {
        "title": "Zero hits",
        "groups": groups[:_ROWS],
        "problem": "",
        "chosen": chosen,
        "tool": tool,
        "kind": kind,
        "choices": _choices(chosen) if chosen is not None else (),
        "proposal": None,
    }
    if chosen is not None and tool in tools:
        options = visit.parts.gateway.options
        others = (Sought(one.phrase, one.tool) for one in groups if one.tool)
        sought = tuple(dict.fromkeys((Sought(chosen.phrase, tool), *others)))[:_TRIED]
        values["proposal"] = await anyio.to_thread.run_sync(
            propose, kind, tuple(tools.values()), sought, options.search, options.synonyms
        )
    return ConsolePage("zero_hits.html", values)


def _asked(found: Mapping[str | None, Sequence[ZeroHit]], tools: Mapping[str, Tool]) -> Iterable[Asked]:
    rows = [(tenant or "", group) for tenant, groups in found.items() for group in groups]
    rows.sort(key=lambda row: (-row[1].count, -row[1].last))
    for number, (tenant, group) in enumerate(rows):
        called = [tool for tool in group.called if tool in tools]
        best = [tool for tool in group.best if tool in tools]
        yield Asked(
            number=number,
            tenant=tenant,
            group=group,
            phrase=" ".join(group.words),
            tool=next(iter((*called, *best)), ""),
            sure=bool(called),
        )


def _choices(asked: Asked) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*asked.group.called, *asked.group.best)))
