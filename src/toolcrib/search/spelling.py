"""Find the known words that a misspelt one may stand for."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rapidfuzz import process
from rapidfuzz.distance import OSA

from toolcrib.search.text import STOP_WORDS
from toolcrib.search.vectors import WordPieceTable

Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64] | npt.NDArray[np.int32]
_SHORTEST, _LONGEST = 3, 32
"""The lengths of words that can be corrections."""
_MIN_CORRECTED = 4
"""Shorter words are not corrected: one letter is too large a part of them."""
_MIN_TWO_EDITS = 7
"""Words of at least so many letters may have two edits."""
_LETTER_BITS = 26
"""The low bits of a mark say which letters a word has; the next 32 give its length in unary."""
_EXCLUDED_MARK = np.uint64(0xFC00_0000_0000_0000)
"""The mark of an excluded word: six bits that no other word has, which is more than two edits can change."""


class SpellingIndex:
    """Finds known words close to a misspelt one. Words of 3 to 32 letters a to z can be found."""

    __slots__ = ("_marks", "words")

    def __init__(self, words: Sequence[str]) -> None:
        """The number of a word is its index in `words`."""
        self.words: tuple[str, ...] = tuple(words)
        """All words, including those that cannot be found."""
        self._marks = _letter_marks(self.words)

    def near(
        self, word: str, allowed: npt.NDArray[np.bool_] | None = None, limit: int = 4, weights: Numbers | None = None
    ) -> list[tuple[int, int]]:
        """Find the words that this one may stand for: their numbers and distances, the nearest first.

        The distance counts letters left out, inserted and replaced, and swapped neighbours (optimal string alignment).
        It is at most `max_edits(word)`. Ties go to the word with the higher weight, then to the first in the alphabet.
        allowed, weights: one entry per number; words that are not allowed are ignored.

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


def max_edits(word: str) -> int:
    """How many edits a word may have: 0 below 4 letters, 1 up to 6, else 2.

    >>> max_edits("api"), max_edits("isue"), max_edits("repositry")
    (0, 1, 2)
    """
    return 0 if len(word) < _MIN_CORRECTED else 1 + (len(word) >= _MIN_TWO_EDITS)


def is_correctable(word: str, table: WordPieceTable) -> bool:
    """Whether an unknown word may be misspelt: at least four letters a to z, no stop word, and not in the table.

    >>> table = WordPieceTable.load()
    >>> [word for word in ("wether", "weather", "would", "utf8", "api", "größe") if is_correctable(word, table)]
    ['wether']
    """
    return len(word) >= _MIN_CORRECTED and _is_plain(word) and word not in STOP_WORDS and not table.knows(word)


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha() and word.islower()


def _letter_mark(word: str) -> int:
    """Encode the letters of a plain word and its length as bits.

    An inserted or omitted letter changes at most two bits, a replaced one two, a swap none: words `d` edits apart
    differ in at most `2 * d` bits. Counting bits leaves few words for the exact comparison.
    """
    letters = 0
    for letter in set(word):
        letters |= 1 << (ord(letter) - ord("a"))
    return letters | ((1 << len(word)) - 1) << _LETTER_BITS


def _letter_marks(words: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Compute the marks of many words: uint64[n]."""
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
