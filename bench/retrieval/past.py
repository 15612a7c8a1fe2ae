"""Past requests as a field: half the requests of each set as the past, and the other half judged with and without it.

A past of 5 or 20 % of the tools is simulated in two ways: the requests up to the one with which so many tools have a
past, as in the first days of a gateway; and all of the half, of tools chosen at random, while the others' are lost.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from sets import HELD_OUT, LARGE, Set

from toolcrib.cli.files import FileSearch, without_thresholds
from toolcrib.search.engine import search
from toolcrib.search.evaluation import DEPTH, SEED, LabelledQuery, score
from toolcrib.search.options import PastOptions, SearchOptions
from toolcrib.search.past import PastRequests
from toolcrib.types import SearchRequest

CASES = {
    "half": (1.0, False),
    "until 20 % have one": (0.2, False),
    "until 5 %": (0.05, False),
    "20 % at random": (0.2, True),
    "5 % at random": (0.05, True),
}
"""The largest share of tools with a past, and whether they are chosen at random."""

ROUNDS = 3
MOST = 600
"""Requests of a set, half of which are judged."""

UNBOUNDED = PastOptions(tools=100_000)


def measured(sets: Sequence[Set]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Case, set, and the means over a few ways to choose the past, one after the other."""
    for each in sets:
        if each.name in (HELD_OUT, LARGE[1]):  # not for development, and the same requests as another set
            continue
        shelf = FileSearch(each.file, without_thresholds(SearchOptions()))
        for case, (share, chosen) in CASES.items():
            rounds = [_round(each, shelf, share, number, chosen=chosen) for number in range(ROUNDS)]
            yield case, each.name, {name: sum(one[name] for one in rounds) / ROUNDS for name in rounds[0]}


def _round(each: Set, shelf: FileSearch, share: float, number: int, *, chosen: bool) -> dict[str, float]:
    chance = random.Random(f"{SEED}-{each.name}-{number}")
    queries = list(each.queries)
    chance.shuffle(queries)
    queries = queries[:MOST]
    before, judged = queries[: len(queries) // 2], queries[len(queries) // 2 :]
    past = _past(each, before, share, chance if chosen else None)
    return {
        "tools": len(past) / len(each.pairs),
        "without": _ndcg(shelf, judged, None),
        "with": _ndcg(shelf, judged, past),
    }


def _past(each: Set, queries: Sequence[LabelledQuery], share: float, chance: random.Random | None) -> PastRequests:
    tools = dict(each.pairs)
    most = max(1, round(share * len(tools)))
    used = sorted({id_ for query in queries for id_ in query.relevant})
    kept = set(used if chance is None else chance.sample(used, min(most, len(used))))
    past = PastRequests(UNBOUNDED)
    for query in queries:
        for id_ in sorted(query.relevant & kept):
            past = past.with_request(query.text, tools[id_].id)
        if len(past) >= most and chance is None and share < 1:
            break
    return past


def _ndcg(shelf: FileSearch, queries: Sequence[LabelledQuery], past: PastRequests | None) -> float:
    total = 0.0
    for query in queries:
        request = SearchRequest(queries=(query.text,), limit=DEPTH, detail="summary")
        hits = search(shelf.index, request, options=shelf.options, past=past).hits
        total += score([shelf.file.id_of(hit.tool) for hit in hits], query.relevant).ndcg_10
    return total / len(queries)
