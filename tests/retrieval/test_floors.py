"""The quality of the search on a set that was not used for tuning: floors a little below the measured values."""

from functools import cache

import pytest
from tests.retrieval.loading import Case, answerable, cases, tools

from toolcrib.search.engine import search
from toolcrib.search.evaluation import Metrics, mean, score
from toolcrib.search.index import Index
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.types import SearchReply, SearchRequest

DEFAULTS = SearchOptions()
UNMARKED = SearchOptions(nothing_below=0.0, weak_below=0.0)

FLOORS = {
    "terse": (0.40, 0.55, 0.53),
    "sentence": (0.17, 0.44, 0.34),
    "long": (0.12, 0.47, 0.34),
    "two_needs": (0.19, 0.56, 0.55),
    "typo": (0.67, 0.90, 0.82),
    "name": (0.95, 0.99, 0.99),
}
"""Recall at 1, recall at 5 and nDCG at 10, by kind of query."""


@cache
def index() -> Index:
    return Index.build(tools())


@cache
def ask(query: str, options: SearchOptions = DEFAULTS) -> SearchReply:
    return search(index(), SearchRequest(queries=(query,), limit=10, detail="summary"), options=options)


def measured(some: tuple[Case, ...], options: SearchOptions = DEFAULTS) -> Metrics:
    return mean([score([hit.tool.id for hit in ask(case.query, options).hits], case.relevant) for case in some])


@pytest.mark.parametrize("kind", FLOORS)
def test_each_kind_of_query_finds_its_tools_as_often_as_before(kind: str) -> None:
    found = measured(cases(kind))
    recall_1, recall_5, ndcg = FLOORS[kind]
    assert found.recall_1 >= recall_1
    assert found.recall_5 >= recall_5
    assert found.ndcg_10 >= ndcg


def test_the_thresholds_withhold_only_a_small_part() -> None:
    assert measured(answerable(), UNMARKED).recall_5 >= 0.60
    assert measured(answerable()).recall_5 >= 0.60


@pytest.mark.parametrize("scorer", ["tiers", "bm25", "points"])
def test_the_default_ranking_finds_more_than_the_others(scorer: Scorer) -> None:
    other = measured(answerable(), SearchOptions(scorer=scorer))
    ours = measured(answerable())
    assert ours.recall_5 > other.recall_5
    assert ours.ndcg_10 > other.ndcg_10


def test_hardly_any_unanswerable_query_gets_a_sure_answer() -> None:
    replies = [ask(case.query) for case in cases("unanswerable")]
    assert sum(bool(reply.hits) and not reply.hits[0].weak for reply in replies) <= 1


def test_right_answers_are_marked_as_weak_less_often_than_near_misses() -> None:
    def sure(kind: tuple[Case, ...]) -> float:
        return sum(bool(ask(case.query).hits) and not ask(case.query).hits[0].weak for case in kind) / len(kind)

    assert sure(cases("name")) == 1.0
    assert sure(cases("typo")) > sure(cases("near_miss"))
