"""A session's memory: what counts, what is forgotten, saving and restoring, and the boost of used tools."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.discovery.support import toolbox

from toolcrib.discovery import Session, SessionStats, ToolSearchEngine
from toolcrib.discovery.session import BoostOptions, ToolUsage, usage_boost
from toolcrib.errors import InvalidRequest


def test_a_success_of_the_last_turn_is_worth_4_4466_and_one_seven_turns_ago_2_8466() -> None:
    session = Session()
    session.record("a")
    assert round(session.boost("a"), 4) == 4.8466
    session.advance_turn()
    assert round(session.boost("a"), 4) == 4.4466
    for _ in range(6):
        session.advance_turn()
    assert round(session.boost("a"), 4) == 2.8466


def test_a_failed_call_never_raises_a_rank() -> None:
    session = Session()
    session.record("a", success=False)
    assert session.boosts() == {}
    session.record("b")
    before = session.boost("b")
    session.record("b", success=False)
    assert session.boost("b") < before


def test_a_failure_does_not_renew_how_recent_a_success_is() -> None:
    renewed, failed = Session(), Session()
    for session in (renewed, failed):
        session.record("a")
        for _ in range(3):
            session.advance_turn()
    renewed.record("a", success=True)
    failed.record("a", success=False)
    assert failed.boost("a") < renewed.boost("a") - 1.0


def test_a_host_that_reports_a_recorded_call_in_the_same_turn_counts_it_once() -> None:
    session = Session()
    session.record("a", by="call")
    session.record("a", by="host")
    assert session.stats("a") == SessionStats(name="a", call_count=1, success_count=1, last_used_turn=0)


def test_a_host_that_reports_more_calls_than_were_recorded_counts_the_rest() -> None:
    session = Session()
    session.record("a", by="call")
    session.record("a", by="call")
    for _ in range(3):
        session.record("a", by="host")
    assert session.stats("a") == SessionStats(name="a", call_count=3, success_count=3)


def test_a_report_in_the_next_turn_is_another_call() -> None:
    session = Session()
    session.record("a", by="call")
    session.advance_turn()
    session.record("a", by="host")
    assert session.stats("a") == SessionStats(name="a", call_count=2, success_count=2, last_used_turn=1)


def test_the_tool_used_longest_ago_is_forgotten_first() -> None:
    session = Session(max_tools=2)
    for tool in ("a", "b", "a", "c"):
        session.record(tool)
    assert {*session.boosts()} == {"a", "c"}
    assert len(session) == 2


def test_a_restored_session_is_the_same() -> None:
    session = Session()
    session.record("a")
    session.advance_turn()
    session.record("b", success=False)
    session.record("b")
    again = Session.from_dict(json.loads(json.dumps(session.to_dict())))
    assert again.to_dict() == session.to_dict()
    assert again.boosts() == session.boosts()


def test_a_smaller_session_restores_what_was_used_last() -> None:
    session = Session()
    for tool in "abc":
        session.record(tool)
    assert {*Session.from_dict(session.to_dict(), max_tools=2).boosts()} == {"b", "c"}


GOOD = {"tool": "a", "calls": 2, "successes": 1, "last_success": 0, "last_used": 1}


@pytest.mark.parametrize(
    ("saved", "named"),
    [
        ({}, "version"),
        ({"version": 2, "turn": 0, "tools": []}, "version"),
        ({"version": 1, "turn": -1, "tools": []}, "turn"),
        ({"version": 1, "turn": "one", "tools": []}, "turn"),
        ({"version": 1, "turn": 1, "tools": [{**GOOD, "calls": "2"}]}, "calls"),
        ({"version": 1, "turn": 1, "tools": [{**GOOD, "extra": 1}]}, "extra"),
        ({"version": 1, "turn": 1, "tools": [{**GOOD, "successes": 3}]}, "contradict"),
        ({"version": 1, "turn": 1, "tools": [{**GOOD, "last_used": 2}]}, "contradict"),
    ],
)
def test_an_invalid_saved_session_is_refused_with_the_field(saved: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        Session.from_dict(saved)


def test_a_session_remembers_at_least_one_tool() -> None:
    with pytest.raises(InvalidRequest, match="max_tools"):
        Session(max_tools=0)


def test_engines_never_share_a_session_unless_they_are_given_one() -> None:
    one: ToolSearchEngine[Any] = ToolSearchEngine()
    other: ToolSearchEngine[Any] = ToolSearchEngine()
    one.record_tool_use("add")
    assert other.get_session_boost("add") == 1.0
    shared: ToolSearchEngine[Any] = ToolSearchEngine(session=one.session)
    assert shared.get_session_boost("add") > 1.0


def test_namespaces_do_not_share_what_was_used() -> None:
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    engine.set_tools([{"name": "math.add"}, {"name": "text.add"}])
    engine.record_tool_use("math.add")
    assert engine.get_session_boost("math:add") > 1.0
    assert engine.get_session_boost("text.add") == 1.0
    found = engine.search("add")
    assert [any("session_boost" in reason for reason in r.match_reasons) for r in found] == [True, False]


def test_any_spelling_of_a_name_records_the_same_tool() -> None:
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    engine.set_tools(toolbox())
    engine.record_tool_use("calculateStd")
    engine.record_tool_use("stats.calculate_std")
    stats = engine.get_session_stats("calculate_std")
    assert stats is not None
    assert (stats.call_count, stats.success_rate) == (2, 1.0)


def test_what_was_recorded_before_the_tools_were_known_counts() -> None:
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    engine.record_tool_use("calculate_std")
    assert engine.get_session_boost("calculate_std") > 1.0
    assert engine.search("calculate", toolbox())[0].name == "calculate_std"
    engine.set_tools(toolbox())
    assert engine.search("calculate")[0].name == "calculate_std"


# -- the boost ---------------------------------------------------------------------------------------------------------


def test_an_unused_tool_gets_no_boost() -> None:
    assert usage_boost(ToolUsage(), turn=7) == 1.0


def test_a_tool_that_only_failed_gets_no_boost() -> None:
    assert usage_boost(ToolUsage(calls=9), turn=1) == 1.0


@pytest.mark.parametrize(("turn", "expected"), [(0, 4.8466), (1, 4.4466), (4, 3.2466), (5, 2.8466), (500, 2.8466)])
def test_the_boost_of_a_success_fades_over_five_turns_to_a_remainder(turn: int, expected: float) -> None:
    assert usage_boost(ToolUsage(calls=1, successes=1, last_success=0), turn) == pytest.approx(expected, abs=1e-4)


def test_failures_lower_the_boost_of_successes() -> None:
    steady, shaky = ToolUsage(calls=4, successes=4), ToolUsage(calls=8, successes=4)
    assert usage_boost(steady, turn=3) > usage_boost(shaky, turn=3) > 1


def test_the_boost_options_can_be_set() -> None:
    assert usage_boost(ToolUsage(calls=1, successes=1), 0, BoostOptions(recency=0, success=0, count=0)) == 1.0


uses = st.integers(1, 10_000).flatmap(
    lambda calls: st.builds(
        ToolUsage, calls=st.just(calls), successes=st.integers(0, calls), last_success=st.integers(0, 10_000)
    )
)


@given(uses, st.integers(0, 10_000))
def test_a_boost_is_at_least_one_and_bounded(use: ToolUsage, turn: int) -> None:
    assert 1.0 <= usage_boost(use, turn) <= 4.5 + 0.5 * 10


@given(uses, st.integers(0, 10_000))
def test_another_success_never_lowers_the_boost(use: ToolUsage, turn: int) -> None:
    more = ToolUsage(calls=use.calls + 1, successes=use.successes + 1, last_success=max(use.last_success, turn))
    assert usage_boost(more, turn) >= usage_boost(use, turn) - 1e-12
