"""One query answered, by whichever ranking is set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolcrib.model import Hit, SearchRequest
from toolcrib.search.grouping import grouped
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.nearest import nearest_ids
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.search.query import Query
from toolcrib.search.ranking import Ranking, rank
from toolcrib.search.reasons import Reasons, Told, arithmetic, explained, matched
from toolcrib.search.scorers import bm25, points, tiers
from toolcrib.search.scorers.base import Rank, Scored
from toolcrib.search.scorers.popular import popular
from toolcrib.search.segment import Bools
from toolcrib.search.view import View

_TWINS = 8
"""Tools that are found for each group that is shown."""
_MANY = 256
"""The most tools that are found for groups: one group may swallow them all."""


@dataclass(frozen=True, slots=True)
class Task:
    """All that the queries of one request share."""

    view: View
    allowed: Sequence[Bools]
    """For each part, the tools that may be found."""
    limit: int
    request: SearchRequest
    options: SearchOptions
    lexicon: Lexicon
    boosts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one query found."""

    hits: Sequence[Hit]
    total: int
    unmatched: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()


_RANKS: Mapping[Scorer, Rank] = {"tiers": tiers.rank, "bm25": bm25.rank, "points": points.rank}
_SCORES = {"tiers": tiers.score, "bm25": bm25.score, "points": points.score}


def answered(task: Task, text: str, query: Query, place: int) -> Answer:
    """The best tools for a query that has words; `place` is its place among the queries of the request."""
    if task.options.scorer == "hybrid":
        return _hybrid(task, query, place)
    options = task.options.scorers
    found = _RANKS[task.options.scorer](task.view, text, _wanted(task), task.allowed, options, task.boosts)
    if not found.hits:
        return Answer((), 0, found.unmatched, nearest_ids(task.view, query, task.allowed))
    score = _SCORES[task.options.scorer]
    hits = [_other(task, hit, score(hit.raw, options), place) for hit in found.hits]
    places = [(hit.part, hit.position) for hit in found.hits]
    return Answer(_grouped(task, places, hits), found.total, found.unmatched)


def _hybrid(task: Task, query: Query, place: int) -> Answer:
    options = task.options
    ranking = rank(task.view, query, _wanted(task), task.allowed, options, task.lexicon, task.boosts)
    if not ranking.found or ranking.probability < options.nothing_below:
        return _nothing(task, query, place, ranking.met.unmatched)
    places = ranking.places()
    hits = _hits(task, query, ranking, places, place)
    return Answer(_grouped(task, places, hits), ranking.total, ranking.met.unmatched)


def _nothing(task: Task, query: Query, place: int, unmatched: tuple[str, ...]) -> Answer:
    nearest = nearest_ids(task.view, query, task.allowed)
    if task.options.fallback != "popular":
        return Answer((), 0, unmatched, nearest)
    shown = popular(task.view, task.limit, task.allowed, task.options.scorers.points, task.boosts, unmatched)
    return Answer([_other(task, hit, 0.0, place) for hit in shown.hits], shown.total, unmatched, nearest)


def _grouped(task: Task, places: Sequence[tuple[int, int]], hits: list[Hit]) -> list[Hit]:
    return grouped(task.view, places, hits)[: task.limit] if task.request.group else hits


def _wanted(task: Task) -> int:
    """How many tools to find: where near-duplicates go under one, more than are shown."""
    return max(task.options.candidates, min(_MANY, _TWINS * task.limit)) if task.request.group else task.limit


def _hits(task: Task, query: Query, ranking: Ranking, places: Sequence[tuple[int, int]], place: int) -> list[Hit]:
    view, detail, options = task.view, task.request.detail, task.options
    told = Told(lambda: explained(view, query, ranking, options))
    weak = ranking.probability < options.weak_below
    hits = []
    rows = zip(ranking.found, places, matched(query, ranking), strict=True)
    for number, (found, (part, position), words) in enumerate(rows):
        index = view.parts[part].index
        hits.append(
            Hit(
                tool=index.tools[position],
                score=found.score,
                raw=found.raw,
                reasons=Reasons(told, number),
                matched=words,
                signature="" if detail == "summary" else index.signature(position),
                query=place,
                detail=detail,
                weak=weak,
                parts=arithmetic(found, ranking.judged[part], options) if task.request.explain else (),
            )
        )
    return hits


def _other(task: Task, hit: Scored, score: float, place: int) -> Hit:
    """A hit of one of the other rankings."""
    index, detail = task.view.parts[hit.part].index, task.request.detail
    return Hit(
        tool=index.tools[hit.position],
        score=score,
        raw=hit.raw,
        reasons=hit.reasons,
        matched=hit.matched,
        signature="" if detail == "summary" else index.signature(hit.position),
        query=place,
        detail=detail,
        fallback=hit.fallback,
        parts=hit.parts if task.request.explain else (),
    )
