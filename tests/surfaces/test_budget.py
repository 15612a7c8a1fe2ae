"""Which hits show less when a reply must be short."""

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.surfaces.reply import Costs, fit_details
from toolcrib.types import Detail, Hit, Tool

COST: Costs = {"full": 100, "signature": 30, "summary": 10}
DETAILS: tuple[Detail, ...] = get_args(Detail)
LETTERS = {"full": "F", "signature": "s", "summary": "."}


def hits(*queries: int, detail: Detail = "full") -> list[Hit]:
    return [Hit(tool=Tool(name="x"), score=0.5, raw=1, query=query, detail=detail) for query in queries]


def shown(found: Sequence[Hit], budget: int, costs: Sequence[Costs] | None = None) -> str:
    return "".join(LETTERS[detail] for detail in fit_details(found, costs or [COST] * len(found), budget))


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        (400, "FFFF"),
        (399, "FFFs"),
        (260, "FFss"),
        (190, "Fsss"),
        (170, "Fss."),
        (130, "F..."),
        (129, "ssss"),
        (100, "sss."),
        (40, "...."),
        (0, "...."),
    ],
)
def test_the_best_hits_stay_whole_and_the_worst_show_less_first(budget: int, wanted: str) -> None:
    assert shown(hits(0, 0, 0, 0), budget) == wanted


def test_the_best_of_each_query_stays_whole_longest() -> None:
    assert shown(hits(0, 0, 1, 1), 260) == "FsFs"
    assert shown(hits(0, 0, 1, 1), 220) == "F.F."
    assert shown(hits(0, 0, 0, 1, 1, 1), 460) == "FFsFFs"


def test_a_best_hit_that_can_never_fit_takes_nothing_from_the_others() -> None:
    huge: Costs = {"full": 1000, "signature": 30, "summary": 10}
    assert shown(hits(0, 0, 0), 90, [huge, COST, COST]) == "sss"


@given(
    budget=st.integers(-10, 500),
    asked=st.sampled_from(DETAILS),
    queries=st.lists(st.integers(0, 2), max_size=8).map(sorted),
    data=st.data(),
)
def test_no_hit_shows_more_than_was_asked_and_the_budget_is_kept_where_it_can_be(
    budget: int, asked: Detail, queries: list[int], data: st.DataObject
) -> None:
    sizes = [sorted(data.draw(st.lists(st.integers(1, 99), min_size=3, max_size=3))) for _ in queries]
    costs: list[Costs] = [dict(zip(DETAILS, size, strict=True)) for size in sizes]
    details = fit_details(hits(*queries, detail=asked), costs, budget)
    assert all(DETAILS.index(detail) <= DETAILS.index(asked) for detail in details)
    total = sum(cost[detail] for cost, detail in zip(costs, details, strict=True))
    assert total <= budget or set(details) <= {"summary"}
