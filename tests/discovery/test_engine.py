"""The engine: exact names, limits, lists given to a search, threads."""

import copy
import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.discovery.support import toolbox

from toolcrib.discovery import PastRequests, SearchResult, ToolSearchEngine
from toolcrib.errors import AmbiguousName, InvalidRequest
from toolcrib.search.options import Scorer, SearchOptions

SCORERS: tuple[Scorer, ...] = ("hybrid", "tiers", "bm25", "points")
DICTS = [{"name": "create_invoice", "description": "Make a bill."}, {"name": "send_mail", "description": "Send it."}]


def make(*tools: Any, **more: Any) -> ToolSearchEngine[Any]:
    engine: ToolSearchEngine[Any] = ToolSearchEngine(**more)
    engine.set_tools(tools or toolbox())
    return engine


def test_a_least_score_that_no_hit_can_have_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_score is 5, but the scores of 'hybrid' are at most 1"):
        make().search("add", min_score=5)
    first = make({"name": "normal_cdf"}, scorer="points").search("normal_cdf", min_score=5)[0]
    assert (first.score, "whole_name:'normal cdf'" in first.match_reasons) == (30.0, True)


def test_recorded_requests_lead_to_the_tool_that_was_used_and_can_be_saved() -> None:
    engine = make(*DICTS, past=PastRequests())
    assert [found.name for found in engine.search("zyzzyva tonight")] == []
    for _ in range(5):
        engine.record_request("zyzzyva tonight", "createInvoice")
    first = engine.search("zyzzyva tonight")[0]
    assert first.name == "create_invoice"
    assert "past requests:'tonight'" in first.match_reasons
    assert engine.past is not None
    restored = make(*DICTS, past=PastRequests.from_dict(engine.past.to_dict()))
    assert restored.search("zyzzyva tonight")[0].score == first.score


def test_an_engine_without_a_past_keeps_no_requests() -> None:
    engine = make(*DICTS)
    engine.record_request("zyzzyva tonight", "create_invoice")
    assert engine.past is None
    assert engine.search("zyzzyva tonight") == []


def test_a_spelling_never_leaves_the_namespace_it_names() -> None:
    engine = make({"name": "add", "namespace": "math"}, {"name": "join", "namespace": "text"})
    for spelling in ("wrong.add", "wrong:add", "text.add", "text/add", "text__add"):
        assert engine.find_exact(spelling) is None


def test_an_ambiguous_name_is_refused_with_the_candidates() -> None:
    engine = make({"name": "add", "namespace": "math"}, {"name": "add", "namespace": "text"})
    with pytest.raises(AmbiguousName) as caught:
        engine.find_exact("add")
    assert caught.value.suggestions == ("math.add", "text.add")
    for name in caught.value.suggestions:
        assert engine.find_exact(name) is not None


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize(("limit", "count"), [(0, 0), (-1, 0), (1, 1), (1_000_000, 11)])
def test_a_limit_bounds_the_results(scorer: Scorer, limit: int, count: int) -> None:
    assert len(make(scorer=scorer).search("", limit=limit)) == count


@pytest.mark.parametrize("limit", ["ten", 1.5, None, True])
def test_a_limit_that_is_not_a_whole_number_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        make().search("add", limit=limit)


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("query", ["", "   ", "?!", "x" * 100_000, "add " * 25_000, "\x00", "\ud800", "加法"])
def test_any_text_may_be_searched(scorer: Scorer, query: str) -> None:
    assert len(make(scorer=scorer).search(query)) <= 10


def test_a_query_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="query"):
        make().search(None)  # type: ignore[arg-type]  # the wrong type is what is tested


def test_an_unknown_scorer_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="hybrid"):
        ToolSearchEngine(scorer="best")  # type: ignore[arg-type]  # the wrong type is what is tested


@pytest.mark.parametrize("scorer", SCORERS)
def test_without_tools_nothing_is_found(scorer: Scorer) -> None:
    engine: ToolSearchEngine[Any] = ToolSearchEngine(scorer=scorer)
    assert engine.search("add") == []
    engine.set_tools([])
    assert engine.search("") == []
    assert engine.find_exact("add") is None


@pytest.mark.parametrize("scorer", ["hybrid", "tiers", "bm25"])
def test_nothing_is_shown_if_nothing_matches(scorer: Scorer) -> None:
    assert make(scorer=scorer).search("xyzzy") == []


def test_popular_tools_can_be_the_fallback() -> None:
    found = make(options=SearchOptions(fallback="popular")).search("xyzzy", limit=2)
    assert [(r.name, r.match_reasons, r.fallback) for r in found] == [
        ("add", ["fallback"], True),
        ("sqrt", ["fallback"], True),
    ]


def test_a_search_without_words_lists_all_tools_by_id() -> None:
    assert [r.parsed.id for r in make().search("", limit=3) if r.parsed] == [
        "files:read_file",
        "files:write_file",
        "math:add",
    ]


@pytest.mark.parametrize("scorer", ["hybrid", "tiers", "bm25"])
def test_scores_are_from_0_to_1_and_must_exceed_the_minimum(scorer: Scorer) -> None:
    engine = make(scorer=scorer)
    found = engine.search("calculate the mean of a number")
    assert all(0.0 < r.score <= 1.0 for r in found)
    assert [r.score for r in found] == sorted((r.score for r in found), reverse=True)
    least = found[1].score
    assert [r.score for r in engine.search("calculate the mean of a number", min_score=least)] == [
        r.score for r in found if r.score > least
    ]


def test_a_list_given_to_a_search_is_searched_instead_and_read_once() -> None:
    engine = make()
    (first,) = engine.search("invoice", DICTS)
    (again,) = engine.search("invoice", [*DICTS])
    assert first.tool is DICTS[0]
    assert first.parsed is again.parsed
    assert engine.search("invoice") == []


def test_a_list_that_has_changed_is_read_again() -> None:
    engine, tools = make(), [*DICTS]
    engine.search("invoice", tools)
    tools.append({"name": "pay_invoice"})
    assert {r.name for r in engine.search("invoice", tools)} == {"create_invoice", "pay_invoice"}


def test_setting_tools_again_sees_what_changed_in_them() -> None:
    tool = {"name": "zz", "description": "Old."}
    engine = make(tool)
    tool["description"] = "Sends invoices."
    engine.set_tools([tool])
    assert [r.description for r in engine.search("invoice")] == ["Sends invoices."]


def test_a_result_can_be_copied_replaced_and_pickled() -> None:
    (found,) = make(*DICTS).search("invoice")
    kept = pickle.loads(pickle.dumps(found))  # noqa: S301 - its own
    for other in (copy.copy(found), kept, dataclasses.replace(found)):
        assert (other.tool, other.score, other.match_reasons) == (found.tool, found.score, found.match_reasons)
    raised = dataclasses.replace(found, score=2.0, match_reasons=["mine"])
    assert (raised.score, raised.match_reasons, raised.name) == (2.0, ["mine"], "create_invoice")
    found.match_reasons.append("more")
    assert found.match_reasons[-1] == "more"
    assert isinstance(found, SearchResult)


def test_substituted_words_are_among_the_reasons() -> None:
    reasons = make(scorer="bm25").search("average")[0].match_reasons
    assert "meant:'average'->'mean'" in reasons


def test_many_threads_may_search_while_tools_and_session_change() -> None:
    engine = make()
    boxes = [toolbox(), toolbox()[:5]]

    def work(number: int) -> bool:
        if number % 5 == 0:
            engine.set_tools(boxes[number % 2])
        engine.record_tool_use("add", success=number % 2 == 0)
        engine.advance_turn()
        return engine.search("add two numbers", boxes[0] if number % 3 else None)[0].name == "add"

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))
    stats = engine.get_session_stats("add")
    assert stats is not None
    assert stats.call_count == 60
