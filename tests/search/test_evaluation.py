"""The metrics of a search."""

from collections.abc import Sequence
from itertools import count
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.search.evaluation import (
    LabelledQuery,
    Metrics,
    ShownAnswer,
    evaluate,
    false_answers,
    lost_answers,
    mean,
    misspell,
    percentile,
    query_tracks,
    score,
)

IDS = st.text("abcdefghijklmno", min_size=1, max_size=1)


def query(text: str, *relevant: str) -> LabelledQuery:
    return LabelledQuery(id=text, text=text, relevant=frozenset(relevant))


# -- one ranking -------------------------------------------------------------------------------------------------------


def test_a_right_tool_first_is_a_perfect_answer() -> None:
    assert score(["a", "b"], frozenset("a")) == Metrics(recall_1=1, recall_5=1, recall_10=1, mrr_10=1, ndcg_10=1)


def test_recall_is_the_share_of_all_right_tools() -> None:
    figures = score(["a", "x", "b", "y", "z", "c"], frozenset("abcd"))
    assert (figures.recall_1, figures.recall_5, figures.recall_10) == (1 / 4, 2 / 4, 3 / 4)


def test_a_right_tool_at_a_lower_rank_gains_less() -> None:
    assert score(["x", "y", "a"], frozenset("a")) == Metrics(recall_5=1, recall_10=1, mrr_10=1 / 3, ndcg_10=1 / log2(4))


def test_hits_after_the_tenth_do_not_count() -> None:
    assert score([*"bcdefghijk", "a"], frozenset("a")) == Metrics()


def test_ten_right_tools_of_many_are_a_perfect_ranking() -> None:
    figures = score([f"t{number}" for number in range(10)], frozenset(f"t{number}" for number in range(40)))
    assert figures.ndcg_10 == pytest.approx(1)
    assert figures.recall_10 == 1 / 4


def test_a_repeated_id_counts_once_and_takes_no_rank() -> None:
    assert score(["b", "b", "b", "a", "a"], frozenset("a")) == score(["b", "a"], frozenset("a"))


@given(st.lists(IDS, max_size=14), st.frozensets(IDS, max_size=12))
def test_every_metric_is_between_0_and_1(ranking: list[str], relevant: frozenset[str]) -> None:
    figures = score(ranking, relevant)
    assert all(0 <= value <= 1 + 1e-12 for value in figures.as_dict().values())
    assert figures.recall_1 <= figures.recall_5 <= figures.recall_10
    assert (figures.mrr_10 > 0) == (figures.ndcg_10 > 0) == (figures.recall_10 > 0)


@given(st.lists(IDS, min_size=1, max_size=10, unique=True), st.frozensets(IDS, min_size=1, max_size=12))
def test_no_order_is_better_than_the_right_tools_first(ranking: list[str], relevant: frozenset[str]) -> None:
    best = sorted(ranking, key=lambda id_: id_ not in relevant)
    assert score(ranking, relevant).ndcg_10 <= score(best, relevant).ndcg_10 + 1e-12


# -- many --------------------------------------------------------------------------------------------------------------


def test_an_evaluation_is_the_mean_over_its_queries() -> None:
    answers = {"one": ["a"], "two": ["b", "a"], "three": []}
    report = evaluate(answers.__getitem__, [query("one", "a"), query("two", "a"), query("three", "a")])
    assert report.queries == 3
    assert (report.metrics.recall_1, report.metrics.recall_5) == (1 / 3, 2 / 3)
    assert report.metrics.mrr_10 == pytest.approx((1 + 1 / 2) / 3)


def test_each_search_is_timed_with_the_clock() -> None:
    ticks = count()
    report = evaluate(lambda _: [], [query("one", "a"), query("two", "a")], clock=lambda: float(next(ticks)))
    assert (report.p50_s, report.p95_s) == (1, 1)


def test_no_queries_give_zeros_and_no_error() -> None:
    report = evaluate(lambda _: [], [])
    assert (report.metrics, report.queries, report.p50_s) == (Metrics(), 0, 0)
    assert mean([]) == Metrics()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values_and_enough_are_not_above_it(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


# -- queries that no tool fits -----------------------------------------------------------------------------------------


def test_any_hit_for_an_unanswerable_query_is_a_false_answer() -> None:
    rates = false_answers(
        [ShownAnswer(shown=("a",), sure=("a",)), ShownAnswer(shown=("a",)), ShownAnswer(), ShownAnswer()]
    )
    assert (rates.shown, rates.sure) == (2 / 4, 1 / 4)


def test_an_answer_is_lost_if_its_tool_is_near_the_top_and_withheld() -> None:
    rates = lost_answers(
        [
            (query("withheld", "a"), ["b", "a"], ShownAnswer()),
            (query("called weak", "a"), ["a"], ShownAnswer(shown=("a",))),
            (query("kept", "a"), ["a"], ShownAnswer(shown=("a",), sure=("a",))),
            (query("never found", "a"), ["b", "c"], ShownAnswer()),
            (query("far down", "a"), [*"bcdef", "a"], ShownAnswer()),
        ]
    )
    assert (rates.shown, rates.sure) == (1 / 5, 2 / 5)


def test_no_queries_lose_nothing() -> None:
    assert false_answers([]) == lost_answers([])


# -- the tracks --------------------------------------------------------------------------------------------------------

TOOLS = [
    ("git:1", "git_log"),
    ("hub:1", "listPullRequests"),
    ("hub:2", "list_pull_requests"),
    ("time", "now"),
    ("disk", "read-file"),
]


def texts(queries: Sequence[LabelledQuery]) -> dict[str, set[str]]:
    return {each.text: set(each.relevant) for each in queries}


def test_identifiers_are_written_in_the_other_style_and_all_namesakes_are_right() -> None:
    assert texts(query_tracks("set", TOOLS, [])["ident"]) == {
        "gitLog": {"git:1"},
        "list_pull_requests": {"hub:1", "hub:2"},
        "readFile": {"disk"},
    }


def test_names_of_one_word_and_common_names_are_not_used() -> None:
    tools = [*TOOLS, *((f"s{number}", "get_item") for number in range(6))]
    assert len(query_tracks("set", tools, [])["ident"]) == 3


def test_the_name_typo_track_has_one_typo_per_name() -> None:
    queries = query_tracks("set", TOOLS, [])["name_typo"]
    assert [each.relevant for each in queries] == [each.relevant for each in query_tracks("set", TOOLS, [])["ident"]]
    assert [each.text for each in queries if each.text == each.id] == ["git log"]  # too short for one


def test_the_tracks_depend_only_on_the_set() -> None:
    queries = [query(f"show number {number} please", "git:1") for number in range(50)]
    assert query_tracks("set", TOOLS, queries, most=20) == query_tracks("set", TOOLS, queries, most=20)
    assert (
        query_tracks("set", TOOLS, queries, most=20)["main"] != query_tracks("other", TOOLS, queries, most=20)["main"]
    )
    assert {name: len(asked) for name, asked in query_tracks("set", TOOLS, queries, most=4).items()} == {
        "main": 4,
        "typo": 4,
        "ident": 2,
        "name_typo": 2,
    }


def test_the_typo_track_has_the_same_queries_and_answers() -> None:
    queries = [query("show the commits", "git:1"), query("up", "time")]
    got = query_tracks("set", TOOLS, queries)
    assert got["main"] == tuple(queries)
    assert [(each.id, each.relevant) for each in got["typo"]] == [(each.id, each.relevant) for each in queries]
    assert got["typo"][0].text != "show the commits"
    assert got["typo"][1].text == "up"


@given(st.from_regex(r"[A-Za-z ]{0,30}", fullmatch=True), st.text(max_size=5))
def test_a_typo_changes_one_long_word_by_one_letter(text: str, seed: str) -> None:
    before, after = text.split(" "), misspell(text, seed).split(" ")
    assert len(before) == len(after)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == (1 if any(len(word) > 3 for word in before) else 0)
    for old, new in changed:
        assert len(old) > 3
        assert abs(len(old) - len(new)) <= 1
        assert misspell(text, seed) == misspell(text, seed)
