"""The boost of a tool for its use in a session."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.discovery.session import BoostOptions, ToolUsage, usage_boost


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
