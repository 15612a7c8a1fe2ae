"""The search playground: what a caller would find, why, what it costs, and what another setting would change.

A rehearsed search is a real one, with the caller's policy, past and embedder, except that nothing learns of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, get_args

from toolcrib.console.parts import ConsolePage, Visit, whole
from toolcrib.errors import InvalidRequest
from toolcrib.providers.content import json_text
from toolcrib.sanitize import echo
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.surfaces.reply import TOKENS_META, ReplyRenderer
from toolcrib.surfaces.selection import Level
from toolcrib.tokens import counter
from toolcrib.types import Caller, Context, Hit, SearchReply, SearchRequest

SCORERS: Final[tuple[str, ...]] = get_args(Scorer)
_WIDE: Final = 25
"""Hits that are computed, to show which ones the marks withhold."""
_LEVELS: Final = {
    Level.NAME: "its name only",
    Level.SUMMARY: "a summary",
    Level.SIGNATURE: "its signature",
    Level.REQUIRED: "required parameters",
    Level.FULL: "its schema",
    Level.COMPLETE: "all of it",
}
_SELF: Final = ""
_OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One choice of settings."""

    scorer: str
    limit: str
    """Empty for that of the settings."""
    budget: str
    weak_below: str

    def options(self, usual: SearchOptions) -> SearchOptions:
        """The settings with this choice. Raises `InvalidRequest`."""
        if self.scorer not in SCORERS:
            raise InvalidRequest(f"There is no scorer {echo(self.scorer)}.", hint=f"There are {', '.join(SCORERS)}.")
        weak = _number(self.weak_below, "The mark of weak hits", 0.0, 1.0)
        changes: dict[str, Any] = {"scorer": self.scorer}
        if self.scorer != "hybrid":
            changes["k1"] = SearchOptions().k1
        if weak is not None:
            changes |= {"weak_below": weak, "nothing_below": min(usual.nothing_below, weak)}
        return replace(usual, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of a score."""

    name: str
    value: float
    weight: float

    @property
    def gain(self) -> float:
        """What it adds."""
        return self.value * self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownHit:
    """A hit with its arithmetic."""

    rank: int
    hit: Hit
    terms: Sequence[Term]
    """The largest gain first, without those that add nothing."""
    top: float
    """The largest gain of any hit, as the scale of the bars."""
    level: str
    """How much of it the reply shows; empty if it is left out to save tokens."""
    before: int | None = None
    """Its rank with the other settings; None if it is not a hit there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A tool that the ranking has, and the reply has not."""

    hit: Hit
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A search with one choice of settings."""

    variant: Variant
    reply: SearchReply
    hits: Sequence[ShownHit]
    withheld: Sequence[Withheld]
    tokens: Mapping[str, Any]
    """`reply` and `full`: those of the text, and of all whole definitions."""
    text: str
    """What the agent reads, as JSON with line breaks."""
    notes: Sequence[str]


async def show(visit: Visit) -> ConsolePage:
    """The playground, with the results of a query if there is one."""
    query = visit.query.get("q", "").strip()
    caller, usual = _caller(visit), visit.parts.gateway.options.search
    first = _variant(visit.query, "", usual)
    second = _variant(visit.query, "b_", usual) if visit.query.get("b") else None
    outcomes: list[Outcome] = []
    if query:
        ctx = visit.context(caller)
        outcomes.append(await _run(visit, ctx, query, first))
        if second is not None:
            outcomes.append(_compared(await _run(visit, ctx, query, second), outcomes[0]))
    values = {
        "title": "Search playground",
        "query": query,
        "callers": _known_callers(visit),
        "who": visit.query.get("who", _SELF),
        "caller": caller,
        "first": first,
        "second": second or replace(first, scorer="bm25" if first.scorer == "hybrid" else "hybrid"),
        "compares": second is not None,
        "scorers": SCORERS,
        "usual": usual,
        "outcomes": outcomes,
        "unmatched": outcomes[0].reply.unmatched if outcomes else (),
        "words": _words(query, outcomes[0].reply) if outcomes else (),
    }
    return ConsolePage("search.html", values)


def _variant(query: Mapping[str, str], prefix: str, usual: SearchOptions) -> Variant:
    return Variant(
        scorer=query.get(f"{prefix}scorer") or usual.scorer,
        limit=query.get(f"{prefix}limit", "").strip(),
        budget=query.get(f"{prefix}budget", "").strip(),
        weak_below=query.get(f"{prefix}weak", "").strip(),
    )


def _known_callers(visit: Visit) -> list[Caller]:
    """The callers of the settings' tokens, each once."""
    tokens = visit.parts.settings().http.tokens
    found = {Caller(id=one.caller, tenant=one.tenant, scopes=one.scopes): None for one in tokens}
    return [caller for caller in found if caller != visit.caller]


def _caller(visit: Visit) -> Caller:
    """Whose view to search. Raises `InvalidRequest`."""
    who = visit.query.get("who", _SELF)
    if who == _SELF:
        return visit.caller
    if who == _OTHER:
        scopes = frozenset(visit.query.get("scopes", "").replace(",", " ").split())
        name = visit.query.get("caller", "").strip() or "someone"
        return Caller(id=name, tenant=visit.query.get("tenant", "").strip() or None, scopes=scopes)
    known = _known_callers(visit)
    if 0 <= (place := whole(who)) < len(known):
        return known[place]
    raise InvalidRequest("There is no such caller.", hint="Choose one of the list.")


async def _run(visit: Visit, ctx: Context, query: str, variant: Variant) -> Outcome:
    parts = visit.parts
    surfaces, options = parts.settings().surfaces, variant.options(parts.gateway.options.search)
    limit = _number(variant.limit, "The limit", 1, options.max_limit)
    budget = _number(variant.budget, "The budget", 0, 100_000)
    spent = surfaces.reply_tokens if budget is None else int(budget)
    request = SearchRequest(
        queries=(query,),
        limit=None if limit is None else int(limit),
        budget=spent or None,
        explain=True,
        group=parts.gateway.options.group,
    )
    reply = await parts.gateway.rehearse(ctx, request, options)
    everything = await parts.gateway.rehearse(
        ctx,
        replace(request, limit=max(_WIDE, len(reply.hits))),
        replace(options, nothing_below=0.0, short_below=0.0),
    )
    renderer = ReplyRenderer(counter(surfaces.tokens))
    plain = replace(request, explain=False)
    economical = budget is None
    render, queue = partial(renderer.render, reply, plain, economical=economical), parts.gateway.admission.queue
    result = await renderer.run(reply.hits, render, economical=economical, queue=queue, caller=ctx.caller)
    levels = renderer.levels(reply, plain, economical=economical)
    blocks = [str(block.get("text", "")) for block in result.content]
    return Outcome(
        variant=variant,
        reply=reply,
        hits=_shown(reply.hits, [_LEVELS[level] if level is not None else "" for level in levels]),
        withheld=_withheld(reply, everything, options),
        tokens=result.meta[TOKENS_META],
        text=_pretty(blocks[0]) if blocks else "",
        notes=blocks[1:],
    )


def _shown(hits: Sequence[Hit], levels: Sequence[str]) -> list[ShownHit]:
    terms = [
        sorted(
            (
                Term(name=part.name, value=part.value, weight=part.weight)
                for part in hit.parts
                if part.value * part.weight
            ),
            key=lambda term: -abs(term.gain),
        )
        for hit in hits
    ]
    top = max((abs(term.gain) for some in terms for term in some), default=1.0)
    return [
        ShownHit(rank=place, hit=hit, terms=some, top=top, level=level)
        for place, (hit, some, level) in enumerate(zip(hits, terms, levels, strict=True), start=1)
    ]


def _withheld(reply: SearchReply, everything: SearchReply, options: SearchOptions) -> list[Withheld]:
    shown = {hit.tool.key for hit in reply.hits}
    best = max((hit.score for hit in everything.hits), default=0.0)
    found = []
    for hit in everything.hits:
        if hit.tool.key in shown:
            continue
        if best < options.nothing_below:
            why = f"the best score is below nothing_below, {options.nothing_below:g}"
        elif best < options.short_below:
            why = f"the best score is below short_below, {options.short_below:g}: the list is short"
        else:
            why = "beyond the limit"
        found.append(Withheld(hit=hit, why=why))
    return found


def _compared(outcome: Outcome, other: Outcome) -> Outcome:
    """The outcome with the ranks that its hits have in the other one."""
    ranks = {one.hit.tool.key: one.rank for one in other.hits}
    return replace(outcome, hits=[replace(one, before=ranks.get(one.hit.tool.key)) for one in outcome.hits])


def _words(query: str, reply: SearchReply) -> list[tuple[str, str]]:
    """The words of the query, each as `matched` by a hit, `unmatched` by all tools in view, or neither."""
    missing = {word.casefold() for word in reply.unmatched}
    covered = {word.casefold() for hit in reply.hits for word in hit.matched}
    plain = [(word, word.strip(".,;:!?\"'()").casefold()) for word in query.split()]
    return [
        (word, "unmatched" if bare in missing else "matched" if bare in covered else "plain") for word, bare in plain
    ]


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def _number(text: str, what: str, least: float, most: float) -> float | None:
    """The number in a field; None if it is empty. Raises `InvalidRequest`."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise InvalidRequest(f"{what} is a number from {least:g} to {most:g}, not {json_text(text[:40])}.")
    return value
