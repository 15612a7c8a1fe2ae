"""Tools that a caller used in earlier sessions: what ranking them higher gains for them, and costs for others.

A caller with 30 tools is simulated: five earlier sessions, each of eight requests for tools of the caller, some of them
chosen more often than others. Judged are requests of the set, as many for tools that the caller used before as for
tools that they never used.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sets import HELD_OUT, LARGE, Set

from toolcrib.cli.files import FileSearch, without_thresholds
from toolcrib.gateway.sessions import UsedTools
from toolcrib.search.engine import search
from toolcrib.search.evaluation import DEPTH, SEED, LabelledQuery, score
from toolcrib.search.options import SearchOptions
from toolcrib.types import SearchRequest

TOOLS, SESSIONS, REQUESTS = 30, 5, 8
ROUNDS = 4
MOST = 80
"""Requests of each kind that are judged in a round."""
CASES = ("used before", "not used before", "half of each")


def measured(sets: Sequence[Set]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Case, set, and nDCG@10 without and with what the caller used, over a few callers."""
    for each in sets:
        if each.name in (HELD_OUT, LARGE[1]):  # as in the stage `past`
            continue
        shelf = FileSearch(each.file, without_thresholds(SearchOptions()))
        rounds = [_round(each, shelf, number) for number in range(ROUNDS)]
        for case in CASES:
            figures = [one[case] for one in rounds]
            yield case, each.name, {name: sum(one[name] for one in figures) / ROUNDS for name in figures[0]}


def _round(each: Set, shelf: FileSearch, number: int) -> dict[str, dict[str, float]]:
    chance = random.Random(f"{SEED}-used-{each.name}-{number}")
    tools = dict(each.pairs)
    right = sorted({id_ for query in each.queries for id_ in query.relevant})
    own = chance.sample(right, min(TOOLS, len(right) // 2))
    used, ids = UsedTools(), set[str]()
    for session in range(SESSIONS):
        for id_ in set(chance.choices(own, [1 / (1 + place) for place in range(len(own))], k=REQUESTS)):
            used = used.with_use(tools[id_].id, session * 86_400.0)
            ids.add(id_)
    queries = list(each.queries)
    chance.shuffle(queries)
    for_used = [query for query in queries if query.relevant & ids][:MOST]
    others = [query for query in queries if not query.relevant & ids][: len(for_used)]
    boosts = used.boosts(SESSIONS * 86_400.0)
    found = {
        case: {"without": _ndcg(shelf, judged, {}), "with": _ndcg(shelf, judged, boosts)}
        for case, judged in (("used before", for_used), ("not used before", others))
    }
    both = {name: sum(figures[name] for figures in found.values()) / len(found) for name in ("without", "with")}
    return {**found, "half of each": both}


def _ndcg(shelf: FileSearch, queries: Sequence[LabelledQuery], boosts: Mapping[str, float]) -> float:
    total = 0.0
    for query in queries:
        request = SearchRequest(queries=(query.text,), limit=DEPTH, detail="summary")
        hits = search(shelf.index, request, options=shelf.options, boosts=boosts).hits
        total += score([shelf.file.id_of(hit.tool) for hit in hits], query.relevant).ndcg_10
    return total / max(1, len(queries))
