"""Spelling correction against an oracle that compares every word."""

from typing import TypeVar

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcrib.search.spelling import SpellingIndex, max_edits

Value = TypeVar("Value")

relaxed = settings(deadline=None, max_examples=300)

LETTER = st.sampled_from("abz") | st.just("")
ALIKE = st.text("ab", min_size=3, max_size=7)
ODD = st.text("abz1é", max_size=6) | st.just("abcd" * 9)
WORDS = st.tuples(st.lists(ALIKE, min_size=4, max_size=20), st.lists(ODD, max_size=6)).map(
    lambda lists: list(dict.fromkeys(lists[0] + lists[1]))
)


@st.composite
def misspelt(draw: st.DrawFn, words: list[str]) -> str:
    """One of the words, after up to three typos."""
    word = draw(st.sampled_from(words))
    for place, letter, taken in draw(st.lists(st.tuples(st.integers(0, 9), LETTER, st.integers(0, 2)), max_size=3)):
        word = word[:place] + letter + word[place + taken :]
    return word


def one_each(values: st.SearchStrategy[Value], words: list[str]) -> st.SearchStrategy[list[Value]]:
    return st.lists(values, min_size=len(words), max_size=len(words))


def distance(first: str, second: str) -> int:
    """Optimal string alignment, from its table."""
    rows = [list(range(len(second) + 1))]
    for i, a in enumerate(first, 1):
        row = [i]
        for j, b in enumerate(second, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def plain(word: str) -> bool:
    return set(word) <= set("abcdefghijklmnopqrstuvwxyz")


def expected(words: list[str], word: str, allowed: list[bool], weights: list[int]) -> list[tuple[int, int]]:
    """Every allowed word, compared with the query."""
    if not plain(word) or not max_edits(word):
        return []
    numbers = [n for n, known in enumerate(words) if allowed[n] and plain(known) and 3 <= len(known) <= 32]
    ranked = sorted((distance(words[n], word), -weights[n], words[n], n) for n in numbers)
    return [(number, slips) for slips, _, _, number in ranked if slips <= max_edits(word)]


@relaxed
@given(WORDS, st.data())
def test_the_same_words_are_found_as_by_comparing_all(words: list[str], data: st.DataObject) -> None:
    word = data.draw(misspelt(words))
    allowed = data.draw(one_each(st.booleans(), words))
    weights = data.draw(one_each(st.integers(0, 2), words))
    limit = data.draw(st.integers(1, 6))
    found = SpellingIndex(words).near(word, np.array(allowed, dtype=np.bool_), limit, np.array(weights, dtype=np.int64))
    assert found == expected(words, word, allowed, weights)[:limit]


@relaxed
@given(WORDS, st.data())
def test_a_hidden_word_changes_nothing(words: list[str], data: st.DataObject) -> None:
    word = data.draw(misspelt(words))
    allowed = data.draw(one_each(st.booleans(), words))
    seen = [known for known, may in zip(words, allowed, strict=True) if may]
    with_hidden = SpellingIndex(words).near(word, np.array(allowed, dtype=np.bool_))
    assert [words[n] for n, _ in with_hidden] == [seen[n] for n, _ in SpellingIndex(seen).near(word)]
