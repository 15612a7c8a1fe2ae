"""How well each engine ranks: four tracks of each catalog, the main one of every set, and the kinds of requests."""

from collections.abc import Iterator, Sequence
from typing import Any

from engines import OURS, Engine, Search
from intervals import figures, means
from sets import SAME_TOOLS, Set

from toolcrib.search.evaluation import LabelledQuery, Metrics, false_answers, query_tracks, score

TRACKS = ("main", "typo", "ident", "name_typo")

Scores = dict[str, Metrics]
"""The metrics of each request, by its id."""


def measured(
    engines: Sequence[Engine], sets: Sequence[Set], most: int, chosen: Sequence[str] = TRACKS
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Engine, set and its figures, one after the other; `most` queries a track."""
    for each in sets:
        every = query_tracks(each.name, each.names, each.queries, most=most)
        asked = {track: every[track] for track in chosen if track == "main" or each.name not in SAME_TOOLS}
        ours: dict[str, Scores] = {}
        for engine in (engine for engine in engines if engine.ranked):
            search = engine.build(each.pairs)
            scores = {track: scored(search, queries) for track, queries in asked.items()}
            tracks = {track: means([*of.values()]) for track, of in scores.items()}
            tracks["main"] = figures([*scores["main"].values()], beside(scores["main"], ours.get("main", {})))
            cell: dict[str, Any] = {"tools": len(each.pairs), "tracks": tracks}
            if each.kinds:
                cell["kinds"] = by_kind(each.kinds, scores["main"], ours.get("main", {}))
            if each.near_misses:
                cell["near_misses"] = unmarked(engine, each)
            if engine.name == OURS:
                ours = scores
            yield engine.name, each.name, cell


def scored(search: Search, queries: Sequence[LabelledQuery]) -> Scores:
    """The metrics of each query."""
    return {query.id: score(search(query.text), query.relevant) for query in queries}


def beside(scores: Scores, ours: Scores) -> list[Metrics]:
    """Our metrics of the same requests, in their order; none if we were not measured."""
    return [ours[id_] for id_ in scores] if ours else []


def by_kind(kinds: dict[str, str], scores: Scores, ours: Scores) -> dict[str, Any]:
    """The figures of each kind of request."""
    parts: dict[str, Scores] = {}
    for id_, metrics in scores.items():
        parts.setdefault(kinds[id_], {})[id_] = metrics
    return {kind: figures([*part.values()], beside(part, ours)) for kind, part in parts.items()}


def unmarked(engine: Engine, each: Set) -> dict[str, float]:
    """The share of near misses with a hit, and with one that is not marked as weak."""
    rates = false_answers(map(engine.answers(each.pairs), (query.text for query in each.near_misses)))
    return {"queries": len(each.near_misses), "shown": round(rates.shown, 5), "sure": round(rates.sure, 5)}
