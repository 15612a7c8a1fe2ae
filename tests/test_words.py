"""The nearest words."""

from hypothesis import given
from hypothesis import strategies as st

from toolcrib.names import nearest, similarities


def test_the_nearest_word_comes_first_and_ties_are_alphabetical() -> None:
    assert nearest("lists", ["listz", "lista", "lists_all", "delete", "list"]) == ["list", "lista", "listz"]


def test_nothing_alike_is_nothing() -> None:
    assert nearest("weather", ["commit", "branch"]) == []
    assert nearest("", ["commit"]) == []
    assert nearest("commit", []) == []
    assert nearest("commit", ["commit"], limit=0) == []


def test_a_lower_cutoff_lets_more_through() -> None:
    assert nearest("colour", ["color"], cutoff=95) == []
    assert nearest("colour", ["color"], cutoff=80) == ["color"]


def test_likeness_tells_places_of_equal_candidates_apart() -> None:
    assert similarities("ab", ["ab", "x", "ab"]) == {0: 100.0, 2: 100.0}


@given(st.text(), st.lists(st.text()), st.integers(0, 5))
def test_the_order_of_the_candidates_does_not_matter(word: str, candidates: list[str], limit: int) -> None:
    found = nearest(word, candidates, limit=limit, cutoff=30)
    assert found == nearest(word, reversed(candidates), limit=limit, cutoff=30)
    assert len(found) <= limit
    assert set(found) <= set(candidates)
