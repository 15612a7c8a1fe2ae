"""Spelling correction: which known words an unknown word may stand for.

Knows words, and nothing about tools or scores.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rapidfuzz import process
from rapidfuzz.distance import OSA

from toolcrib.search.text import STOP_WORDS
from toolcrib.search.vectors import WordPieceTable

Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64] | npt.NDArray[np.int32]


_SHORTEST, _LONGEST = 3, 32
"""Letters of a word that may be meant."""


_MIN_CORRECTED = 4
"""Letters of a word that may be corrected: in a shorter one, one letter is too much of it."""


_MIN_TWO_EDITS = 7
"""Letters of a word in which two slips are allowed."""


_LETTER_BITS = 26
"""Bits of a mark that tell which letters a word has; the next 32 tell its length, one for each letter."""


_EXCLUDED_MARK = np.uint64(0xFC00_0000_0000_0000)
"""The mark of a word that takes no part: six bits that no other word has, which is more than two slips can change."""


def max_edits(word: str) -> int:
    """How many slips a word of this length may have: 0 below 4 letters, 1 up to 6, else 2.

    >>> max_edits("api"), max_edits("isue"), max_edits("repositry")
    (0, 1, 2)
    """
    return 0 if len(word) < _MIN_CORRECTED else 1 + (len(word) >= _MIN_TWO_EDITS)


def is_correctable(word: str, table: WordPieceTable) -> bool:
    """Whether an unknown word may be a misspelt one: four letters a to z or more, neither prose nor known to the table.

    >>> table = WordPieceTable.load()
    >>> [word for word in ("wether", "weather", "would", "utf8", "api", "größe") if is_correctable(word, table)]
    ['wether']
    """
    return len(word) >= _MIN_CORRECTED and _is_plain(word) and word not in STOP_WORDS and not table.knows(word)


class SpellingIndex:
    """Words that may be meant, by number; those of 3 to 32 letters a to z take part."""

    __slots__ = ("_marks", "words")

    def __init__(self, words: Sequence[str]) -> None:
        """The number of a word is its place."""
        self.words: tuple[str, ...] = tuple(words)
        """All words, also those that take no part."""
        self._marks = _letter_marks(self.words)

    def near(
        self,
        word: str,
        allowed: npt.NDArray[np.bool_] | None = None,
        limit: int = 4,
        weights: Numbers | None = None,
    ) -> list[tuple[int, int]]:
        """The numbers of words that this one may be meant for, each with its distance: the nearest first.

        Distance counts letters left out, put in, replaced, and neighbours swapped (optimal string alignment), and is at
        most `reach(word)`. Among equals the weightier word comes first, then the one first in the alphabet.
        allowed, weights: one for each number; a word that is not allowed does not exist.

        >>> spelling = SpellingIndex(["issue", "tissue", "weather", "create"])
        >>> spelling.near("isseu"), spelling.near("waether"), spelling.near("issues")
        ([(0, 1)], [(2, 1)], [(0, 1)])
        """
        slips = max_edits(word)
        if not slips or limit < 1 or not _is_plain(word) or len(word) > _LONGEST + slips:
            return []
        numbers = np.flatnonzero(np.bitwise_count(self._marks ^ np.uint64(_letter_mark(word))) <= 2 * slips)
        if allowed is not None:
            numbers = numbers[allowed[numbers]]
        places = numbers.tolist()
        choices = [self.words[place] for place in places]
        close = process.extract(word, choices, scorer=OSA.distance, score_cutoff=slips, limit=None)
        found = [(int(distance), choice, places[place]) for choice, distance, place in close]
        if weights is None:
            found.sort()
        else:
            found.sort(key=lambda item: (item[0], -float(weights[item[2]]), *item[1:]))
        return [(number, distance) for distance, _, number in found[:limit]]


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha() and word.islower()


def _letter_mark(word: str) -> int:
    """Which letters a plain word has, and how many, one bit for each.

    A letter put in or left out changes at most two bits, a replaced one two, swapped ones none: words that are `d`
    slips apart differ in at most `2 * d` bits. Counting bits finds the few words that are worth a comparison.
    """
    letters = 0
    for letter in set(word):
        letters |= 1 << (ord(letter) - ord("a"))
    return letters | ((1 << len(word)) - 1) << _LETTER_BITS


def _letter_marks(words: Sequence[str]) -> npt.NDArray[np.uint64]:
    """The marks of many words: uint64[n]."""
    marks = np.full(len(words), _EXCLUDED_MARK)
    part = [place for place, word in enumerate(words) if _SHORTEST <= len(word) <= _LONGEST and _is_plain(word)]
    if not part:
        return marks
    one = np.uint64(1)
    lengths = np.array([len(words[place]) for place in part], dtype=np.uint64)
    letters = np.frombuffer("".join([words[place] for place in part]).encode(), dtype=np.uint8) - np.uint8(ord("a"))
    starts = np.cumsum(lengths, dtype=np.intp) - lengths.astype(np.intp)
    bits = np.bitwise_or.reduceat(one << letters.astype(np.uint64), starts)
    marks[part] = bits | ((one << lengths) - one) << np.uint64(_LETTER_BITS)
    return marks
