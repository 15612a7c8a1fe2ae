"""Correcting misspelt words."""

import numpy as np
import pytest

from toolcrib.search.spelling import SpellingIndex, is_correctable, max_edits
from toolcrib.search.vectors import WordPieceTable

WORDS = ["weather", "whether", "wheat", "issue", "tissue", "repository", "api", "apis", "größe", "utf8", "Issue", "ab"]


def meant(word: str, *, limit: int = 4) -> list[tuple[str, int]]:
    spelling = SpellingIndex(WORDS)
    return [(spelling.words[number], distance) for number, distance in spelling.near(word, limit=limit)]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("isue", [("issue", 1)]),
        ("issuee", [("issue", 1)]),
        ("isseu", [("issue", 1)]),
        ("issoe", [("issue", 1)]),
        ("issue", [("issue", 0), ("tissue", 1)]),
        ("wether", [("weather", 1), ("whether", 1)]),
        ("repozitry", [("repository", 2)]),
        ("erpositroy", [("repository", 2)]),
    ],
)
def test_an_edit_of_each_kind_finds_the_word(typed: str, words: list[tuple[str, int]]) -> None:
    assert meant(typed) == words


@pytest.mark.parametrize(
    "typed", ["", "ap", "apo", "isxxe", "Isue", "größ", "utf9", "issue1", "repo sitory", "天気", "a" * 99]
)
def test_short_or_distant_words_and_other_letters_find_nothing(typed: str) -> None:
    assert meant(typed) == []


def test_two_edits_are_allowed_only_in_long_words() -> None:
    assert [max_edits("x" * letters) for letters in range(10)] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert SpellingIndex(["issues", "weather"]).near("isssue") == []
    assert SpellingIndex(["issues", "weather"]).near("wwweather") == [(1, 2)]


def test_a_word_of_four_letters_can_find_one_of_three() -> None:
    assert meant("appi") == [("api", 1)]


def test_ties_go_to_the_higher_weight_and_then_the_alphabet() -> None:
    spelling = SpellingIndex(["carts", "cards", "carbs", "carrs"])
    assert [number for number, _ in spelling.near("carxs")] == [2, 1, 3, 0]
    assert [number for number, _ in spelling.near("carxs", weights=np.array([5, 1, 1, 9]))] == [3, 0, 2, 1]
    assert spelling.near("cards", weights=np.array([5, 1, 1, 9]), limit=2) == [(1, 0), (3, 1)]


@pytest.mark.parametrize("kind", [np.uint32, np.int64, np.float32])
def test_weights_can_have_any_number_type(kind: type) -> None:
    spelling = SpellingIndex(["carts", "cards"])
    assert spelling.near("carxs", weights=np.array([2, 1], dtype=kind)) == [(0, 1), (1, 1)]


def test_words_that_are_not_allowed_are_ignored() -> None:
    spelling = SpellingIndex(["carts", "cards", "carbs"])
    assert spelling.near("cards", np.array([True, False, True])) == [(2, 1), (0, 1)]
    assert spelling.near("cards", np.zeros(3, dtype=np.bool_)) == []


def test_the_limit_holds() -> None:
    assert meant("wether", limit=1) == [("weather", 1)]
    assert meant("wether", limit=0) == []


def test_no_words_find_nothing() -> None:
    assert SpellingIndex([]).near("wether") == []


@pytest.mark.parametrize(
    ("word", "may_be"),
    [
        ("wether", True),
        ("invoce", True),
        ("weather", False),
        ("would", False),
        ("api", False),
        ("abcd1", False),
        ("größe", False),
        ("Wether", False),
        ("", False),
    ],
)
def test_only_unknown_plain_words_of_four_letters_are_correctable(word: str, *, may_be: bool) -> None:
    assert is_correctable(word, WordPieceTable.load()) is may_be
