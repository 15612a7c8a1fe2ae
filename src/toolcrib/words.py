"""The nearest words: what somebody may have meant."""

from collections.abc import Iterable, Sequence

from rapidfuzz import fuzz, process

CUTOFF = 70.0
"""How alike two words must be, 0 to 100, to be offered as a guess."""

_MAX_CHARS = 120
"""Longer words are compared by their beginning: nobody mistypes more than this, and the cost stays bounded."""


def nearest(word: str, candidates: Iterable[str], *, limit: int = 3, cutoff: float = CUTOFF) -> list[str]:
    """The candidates most like the word, the best first, ties in alphabetical order.

    The word itself counts as a candidate like any other. Case matters.

    >>> nearest("serach", ["delete", "search", "sketch"])
    ['search']
    """
    if limit < 1 or not word:
        return []
    words = sorted(set(candidates))
    found = sorted(likeness(word, words, cutoff=cutoff).items(), key=lambda pair: (-pair[1], pair[0]))
    return [words[place] for place, _ in found[:limit]]


def likeness(word: str, candidates: Sequence[str], *, cutoff: float = CUTOFF) -> dict[int, float]:
    """How alike the word and each candidate are, by place, for those at or above the cutoff.

    Likeness is the share of characters that stay when one is turned into the other by inserting and deleting,
    0 to 100: `100 * 2 * common / (len(a) + len(b))`, `common` being their longest common subsequence.

    >>> likeness("abcd", ["abed", "wxyz"])
    {0: 75.0}
    """
    found = process.extract(word[:_MAX_CHARS], candidates, scorer=fuzz.ratio, score_cutoff=cutoff, limit=None)
    return {place: score for _, score, place in found}
