"""The official conformance suite, as `make conformance` runs it."""

import json

import pytest
from tests.conformance.run import EXPECTED, judge, unexpected
from tests.conformance.suite import REQUIREMENTS, Outcome, install


@pytest.mark.slow
@pytest.mark.network
def test_the_conformance_suite_finds_no_failures_but_the_known_ones() -> None:
    outcomes = judge(install())
    assert all(len(outcomes["fixture alone", revision].failed) > 0 for revision in REQUIREMENTS)
    assert list(unexpected(outcomes, json.loads(EXPECTED.read_text()))) == []


def test_a_new_failure_and_an_old_one_that_passes_are_both_reported() -> None:
    outcomes = {("it", "2025-11-25"): Outcome({"ping": ("no pong",), "tools-list": ()})}
    assert list(unexpected(outcomes, {"it, 2025-11-25": ["ping"]})) == []
    assert list(unexpected(outcomes, {"it, 2025-11-25": ["tools-list"]})) == [
        "it, 2025-11-25: ping fails: no pong",
        "it, 2025-11-25: tools-list passes: take it out of expected_failures.json",
    ]
