"""The pages of usage and of searches without hits: what is used, what never is, what was asked for in vain.

For a search in vain, the page proposes a keyword or a synonym, and shows what it would change before anyone writes it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import anyio.to_thread

from toolcrib.console.figures import duration, number
from toolcrib.console.parts import ConsolePage, Visit, whole
from toolcrib.errors import StateUnavailable
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.text import split_words, stem
from toolcrib.types import Hit, SearchReply, SearchRequest, Tool
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
class Chart:
    """One value for each day."""

    title: str
    values: Sequence[float]
    highest: str
    """The largest of them, as text."""


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
        "charts": _charts([one for _, one in by_day]),
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


def _charts(days: Sequence[DayUsage]) -> list[Chart]:
    """The charts beside that of calls."""
    calls = [one.calls() for one in days]
    times = [one.quantile_s(0.95) or 0.0 for one in calls]
    sizes = [round(one.result_tokens / one.calls) if one.calls else 0 for one in calls]
    saved = [max(0, one.saved) for one in days]
    return [
        Chart(title="95 % of the calls within", values=times, highest=duration(max(times))),
        Chart(title="Tokens a result", values=sizes, highest=number(max(sizes))),
        Chart(title="Tokens saved", values=saved, highest=number(max(saved))),
    ]


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
    for place, (tenant, group) in enumerate(rows):
        called = [tool for tool in group.called if tool in tools]
        best = [tool for tool in group.best if tool in tools]
        yield Asked(
            number=place,
            tenant=tenant,
            group=group,
            phrase=" ".join(group.words),
            tool=next(iter((*called, *best)), ""),
            sure=bool(called),
        )


def _choices(asked: Asked) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*asked.group.called, *asked.group.best)))


Kind = Literal["keyword", "synonym"]
Synonyms = Sequence[tuple[str, tuple[str, ...]]]

_DEPTH: Final = 20
_MAX_WORDS: Final = 4
"""Words of a search, and of a tool, that are tried as synonyms of each other."""
_MIN_CHARS: Final = 3


@dataclass(frozen=True, slots=True)
class Sought:
    """A search, and the tool that it should find."""

    phrase: str
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChange:
    """What a proposal changes for one search."""

    phrase: str
    tool: str
    before: Hit | None
    before_rank: int | None
    after: Hit | None
    after_rank: int | None

    @property
    def gain(self) -> int:
        """How many places the tool comes earlier; above 0 also if it is not weak any more."""
        was, now = self.before_rank or _DEPTH + 1, self.after_rank or _DEPTH + 1
        if was == now:
            return int(bool(self.before and self.after and self.before.weak and not self.after.weak))
        return was - now

    @property
    def verdict(self) -> str:
        """better, worse or same."""
        return "better" if self.gain > 0 else "worse" if self.gain < 0 else "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Lines to add to a file, and what they change."""

    kind: Kind
    line: str
    changes: tuple[RankChange, ...]


def propose(
    kind: Kind, tools: Sequence[Tool], sought: Sequence[Sought], options: SearchOptions, synonyms: Synonyms = ()
) -> Proposal | None:
    """Propose what makes the first search find its tool, and show what that changes for all of them.

    `synonyms` are those of the settings. None if no synonym helps. Takes about a second for thousands of tools.
    """
    tool = next((one for one in tools if one.id == sought[0].tool), None)
    if tool is None:
        return None
    rehearsal = _Rehearsal(tools, options, synonyms)
    return _keyword(rehearsal, tool, sought) if kind == "keyword" else _synonym(rehearsal, tool, sought)


class _Rehearsal:
    """Searches without counting them."""

    def __init__(self, tools: Sequence[Tool], options: SearchOptions, synonyms: Synonyms) -> None:
        self.tools = tools
        self.synonyms = dict(synonyms)
        self._options = options
        self._index = Index.build(tools, options=options)

    def find(self, phrase: str) -> SearchReply:
        return self._finder(self._index, self.synonyms)(phrase)

    def changes(
        self, sought: Sequence[Sought], *, tools: Sequence[Tool] | None = None, synonyms: Mapping[str, tuple[str, ...]]
    ) -> tuple[RankChange, ...]:
        """What other tools or synonyms change."""
        index = self._index if tools is None else Index.build(tools, options=self._options)
        after = self._finder(index, synonyms)
        found = []
        for one in sought:
            was, was_rank = _rank(self.find(one.phrase), one.tool)
            now, now_rank = _rank(after(one.phrase), one.tool)
            change = RankChange(
                phrase=one.phrase, tool=one.tool, before=was, before_rank=was_rank, after=now, after_rank=now_rank
            )
            found.append(change)
        return tuple(found)

    def _finder(self, index: Index, synonyms: Mapping[str, tuple[str, ...]]) -> Callable[[str], SearchReply]:
        lexicon = Lexicon.default().with_pairs(synonyms.items()) if synonyms else None

        def find(phrase: str) -> SearchReply:
            request = SearchRequest(queries=(phrase,), limit=_DEPTH)
            return search(index, request, options=self._options, lexicon=lexicon)

        return find


def _rank(reply: SearchReply, tool: str) -> tuple[Hit | None, int | None]:
    for place, hit in enumerate(reply.hits, start=1):
        if hit.tool.id == tool and not hit.fallback:
            return hit, place
    return None, None


def _keyword(rehearsal: _Rehearsal, tool: Tool, sought: Sequence[Sought]) -> Proposal:
    phrase = sought[0].phrase
    tools = [replace(one, keywords=(*one.keywords, phrase)) if one is tool else one for one in rehearsal.tools]
    line = f"{json.dumps(tool.id)} = {json.dumps([phrase], ensure_ascii=False)}"
    changes = rehearsal.changes(sought, tools=tools, synonyms=rehearsal.synonyms)
    return Proposal(kind="keyword", line=line, changes=changes)


def _synonym(rehearsal: _Rehearsal, tool: Tool, sought: Sequence[Sought]) -> Proposal | None:
    """The word of the search and the word of the tool's name that, as synonyms, help this search most."""
    first, best = sought[0], None
    for word, other in _pairs(tool, first.phrase, rehearsal.find(first.phrase).unmatched):
        synonyms = {**rehearsal.synonyms, word: (*rehearsal.synonyms.get(word, ()), other)}
        (change,) = rehearsal.changes([first], synonyms=synonyms)
        score = (change.gain, 0.0 if change.after is None else change.after.score)
        if change.gain > 0 and (best is None or score > best[0]):
            best = score, word, synonyms
    if best is None:
        return None
    _, word, synonyms = best
    line = f"[toolcrib.search.synonyms]\n{_key(word)} = {json.dumps(synonyms[word], ensure_ascii=False)}"
    return Proposal(kind="synonym", line=line, changes=rehearsal.changes(sought, synonyms=synonyms))


def _pairs(tool: Tool, phrase: str, unmatched: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Words of the search, those that match no tool first, with words of the tool's name."""
    asked = [word for word in dict.fromkeys((*unmatched, *split_words(phrase.lower()))) if len(word) >= _MIN_CHARS]
    known = {stem(word) for word in asked}
    named = dict.fromkeys(word for word in split_words(f"{tool.name} {tool.title}".lower()) if len(word) >= _MIN_CHARS)
    others = [word for word in named if stem(word) not in known and not word.isdigit()]
    for word in asked[:_MAX_WORDS]:
        for other in others[:_MAX_WORDS]:
            yield word, other


def _key(word: str) -> str:
    """A word as a key in TOML."""
    return word if word.isascii() and word.isalnum() else json.dumps(word, ensure_ascii=False)
