"""How a search reply spends its budget: which hits show their schema, which shrink, and which are left out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.surfaces.selection import Candidate, Level, choose_levels, shares
from toolcrib.types import Hit, Tool

COSTS = {
    Level.NAME: 12,
    Level.SUMMARY: 35,
    Level.SIGNATURE: 70,
    Level.REQUIRED: 90,
    Level.FULL: 160,
    Level.COMPLETE: 300,
}
LETTERS = dict(zip((None, *Level), "-n.srFC", strict=True))


def hits(*scores: float, query: int = 0) -> list[Hit]:
    return [Hit(tool=Tool(name="x"), score=score, raw=1, query=query) for score in scores]


def shown(
    found: Sequence[Hit],
    budget: int = 800,
    *,
    costs: dict[Level, int] = COSTS,
    round_trip: float | None = 4_000,
    keep_all: bool = False,
) -> str:
    candidates = []
    seen: set[int] = set()
    for hit, share in zip(found, shares(found), strict=True):
        candidates.append(Candidate(share=share, costs=costs, best=hit.query not in seen))
        seen.add(hit.query)
    return "".join(LETTERS[one] for one in choose_levels(candidates, budget, round_trip=round_trip, keep_all=keep_all))


LOW = {level: cost for level, cost in COSTS.items() if level < Level.COMPLETE}


def test_shares_are_odds_that_add_up_to_one_for_each_query() -> None:
    assert shares([*hits(0.75, 0.5), *hits(0.5, query=1)]) == pytest.approx([0.75, 0.25, 1.0])
    assert shares(hits(0.0, 0.0)) == [0.5, 0.5]
    assert shares([]) == []


def test_a_clear_winner_is_shown_in_full_and_the_rest_left_out() -> None:
    assert shown(hits(0.98, 0.04, 0.03, 0.02), costs=LOW) == "F---"


def test_a_near_tie_shows_both_in_full() -> None:
    assert shown(hits(0.9, 0.89, 0.05), costs=LOW)[:2] == "FF"


def test_likely_hits_show_what_a_call_needs_and_unlikely_ones_their_names() -> None:
    assert shown(hits(0.9, 0.5, 0.2, 0.03), costs=LOW) == "Frn-"


def test_the_best_hit_is_shown_in_full_even_if_others_shrink_for_it() -> None:
    assert shown(hits(0.5, 0.5, 0.5), 200, costs=LOW) == "Fnn"


def test_a_best_hit_that_exceeds_the_budget_shows_what_a_call_needs() -> None:
    assert shown(hits(0.9), 100, costs=LOW) == "r"
    assert shown(hits(0.9), 80, costs=LOW) == "s"
    assert shown(hits(0.9), 0, costs=LOW) == "n"


def test_the_best_of_each_query_comes_first() -> None:
    assert shown([*hits(0.9, 0.8), *hits(0.3, 0.2, query=1)], 350, costs=LOW) == "FnFn"


def test_queries_share_the_budget_by_need() -> None:
    clear, unclear = hits(0.97, 0.04, 0.03), hits(0.4, 0.39, 0.38, query=1)
    assert shown([*clear, *unclear], costs=LOW) == "F--FFF"


def test_nothing_is_left_out_if_all_hits_are_asked_for() -> None:
    assert shown(hits(0.98, 0.04, 0.01), costs=LOW, keep_all=True) == "Fnn"


def test_a_request_that_sets_its_budget_gets_it_spent() -> None:
    scores = hits(0.98, 0.04, 0.03)
    assert shown(scores, 20_000, round_trip=None, keep_all=True) == "CCC"
    assert shown(scores, 500, round_trip=None, keep_all=True) == "Crr"


@given(
    budget=st.integers(-10, 900),
    scores=st.lists(st.floats(0, 1), max_size=8),
    economical=st.booleans(),
    keep_all=st.booleans(),
    top=st.sampled_from(Level),
    data=st.data(),
)
def test_the_budget_is_kept_if_names_fit_it(
    budget: int, scores: list[float], economical: bool, keep_all: bool, top: Level, data: st.DataObject
) -> None:
    levels = [level for level in Level if level <= top]
    found = hits(*sorted(scores, reverse=True))
    candidates = [
        Candidate(
            share=share,
            costs=dict(zip(levels, data.draw(st.lists(st.integers(1, 99), min_size=6, max_size=6)), strict=False)),
            best=place == 0,
        )
        for place, share in enumerate(shares(found))
    ]
    chosen = choose_levels(candidates, budget, round_trip=4_000 if economical else None, keep_all=keep_all)
    assert all(level is None or level in levels for level in chosen)
    if keep_all or not chosen:
        assert None not in chosen
    else:
        assert chosen[0] is not None
    spent = sum(one.costs[level] for one, level in zip(candidates, chosen, strict=True) if level is not None)
    least = sum(one.costs[Level.NAME] for one in candidates if keep_all or one.best)
    assert spent <= max(budget, least)


def test_names_grouped_under_a_hit_do_not_make_it_less_worth_naming() -> None:
    best = Candidate(share=0.9, costs={Level.NAME: 10}, best=True)
    grouped = Candidate(share=0.02, costs={Level.NAME: 40}, alone=20)
    assert choose_levels([best, grouped], 800, round_trip=2_500, keep_all=False) == [Level.NAME, Level.NAME]
    assert choose_levels([best, replace(grouped, alone=None)], 800, round_trip=2_500, keep_all=False)[1] is None
