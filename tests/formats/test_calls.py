"""Arguments as they come in a model's message."""

import pytest

from toolcrib.formats.messages import make_call


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_has_not_is_a_problem_and_no_argument(number: str) -> None:
    read = make_call("1", "add", f'{{"a": {number}}}')
    assert read.arguments == {}
    assert number in read.problem


def test_other_numbers_are_taken_as_they_are() -> None:
    assert make_call("1", "add", '{"a": 1.5, "b": -2, "c": 1e3}').arguments == {"a": 1.5, "b": -2, "c": 1000.0}
