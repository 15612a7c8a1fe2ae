"""The distinct strings of some tools: which tools have one, which hold a text, which are close to one."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence, Sized

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import OSA, Indel, Levenshtein

from toolcrib.search.scorers.base import Floats, Places


class Strings:
    """Strings in alphabetical order, numbered from 0, each once, with the positions of the tools that have it."""

    __slots__ = ("_bytes", "_numbers", "_owners", "_positions", "_starts", "known", "lengths")

    def __init__(self, strings: Sequence[Collection[str]]) -> None:
        """`strings` has those of each tool, by position."""
        numbers: dict[str, int] = {}
        flat = [numbers.setdefault(text, len(numbers)) for own in strings for text in own]
        owners = np.repeat(np.arange(len(strings)), _lengths(strings))
        self.known = sorted(numbers)
        """The strings, by number."""
        place = np.empty(len(numbers), dtype=np.intp)
        place[[numbers[text] for text in self.known]] = np.arange(len(numbers))
        size = max(1, len(strings))
        pairs = _distinct(np.sort(place[np.array(flat, dtype=np.intp)] * size + owners))
        self._positions: Places = pairs % size
        self._starts: Places = np.searchsorted(pairs // size, np.arange(len(numbers) + 1))
        self._numbers = {text: number for number, text in enumerate(self.known)}
        self.lengths = _lengths(self.known)
        """Characters of each."""
        encoded = [_encoded(text) for text in self.known]
        self._bytes = np.frombuffer(b"\n".join(encoded), dtype=np.uint8)
        self._owners = np.repeat(np.arange(len(encoded), dtype=np.int32), _lengths(encoded) + 1)
        """The string that each byte is of."""

    def same(self, text: str) -> Places:
        """The number of the string itself, if it is one of them."""
        number = self._numbers.get(text)
        return np.array([] if number is None else [number], dtype=np.intp)

    def starting(self, text: str) -> Places:
        """The numbers of those that begin with the text."""
        first = bisect_left(self.known, text)
        return np.arange(first, bisect_right(self.known, text, lo=first, key=lambda known: known[: len(text)]))

    def holding(self, text: str) -> Places:
        """The numbers of those with the text in them, which has a letter and no line break."""
        first, *rest = _encoded(text)
        at = np.flatnonzero(self._bytes[: max(0, len(self._bytes) - len(rest))] == first)
        for place, byte in enumerate(rest, 1):
            at = at[self._bytes[at + place] == byte]
        return _distinct(self._owners[at].astype(np.intp))

    def tools(self, numbers: Places) -> Places:
        """The tools that have one of the strings; a tool with several comes more than once."""
        return self.spread(numbers, numbers)[0]

    def spread(self, numbers: Places, values: Floats | Places) -> tuple[Places, Floats]:
        """The tools that have one of the strings, and beside each the value of the string."""
        lengths = self._starts[numbers + 1] - self._starts[numbers]
        ends = np.cumsum(lengths)
        size = int(ends[-1]) if len(ends) else 0
        places = np.arange(size) + np.repeat(self._starts[numbers] - ends + lengths, lengths)
        return self._positions[places], np.repeat(values, lengths)


def near(words: Sequence[str], strings: Strings, above: float) -> list[tuple[Places, Floats]]:
    """For each word the numbers of the strings that are like it, and how much: `1 - Levenshtein / longer length`.

    Only what is above the bound. The length is in characters, as the distance is.

    >>> [(found.tolist(), values.round(2).tolist()) for found, values in near(["reprot"], Strings([["report"]]), 0.6)]
    [([0], [0.67])]
    """
    return _near(words, strings, above, Levenshtein.distance)


def slipped(words: Sequence[str], strings: Strings, above: float) -> list[tuple[Places, Floats]]:
    """As `near`, but two neighbours that changed places are one slip: optimal string alignment.

    >>> [values.round(2).tolist() for _, values in slipped(["reprot"], Strings([["report"]]), 0.6)]
    [[0.83]]
    """
    return _near(words, strings, above, OSA.distance)


def ratios(text: str, strings: Strings, least: float) -> tuple[Places, Floats]:
    """The numbers of the strings that are like a text, and how much: `2 * common / (length + length)`.

    `common` is the length of their longest common subsequence. Only what reaches the bound, which is above 0.

    >>> numbers, values = ratios("multipley", Strings([["divide", "multiply"]]), 0.5)
    >>> numbers.tolist(), values.round(3).tolist()
    ([1], [0.941])
    """
    longest = int(strings.lengths.max(initial=0))
    if 2 * longest < least * (len(text) + longest) or not longest:
        return _NOTHING
    values = process.cdist([text], strings.known, scorer=Indel.normalized_similarity, dtype=np.float64)[0]
    numbers = np.flatnonzero(values >= least)
    return numbers, values[numbers]


_NOTHING = (np.array([], dtype=np.intp), np.array([], dtype=np.float64))


def _near(
    words: Sequence[str], strings: Strings, above: float, distance: Callable[..., int]
) -> list[tuple[Places, Floats]]:
    longest = strings.lengths.max(initial=0)
    asked = [word for word in words if longest > above * len(word)]  # a longer word is like none of them
    found = {}
    if asked:
        slips = process.cdist(asked, strings.known, scorer=distance, dtype=np.int32)
        for word, own in zip(asked, slips, strict=True):
            values = 1 - own / np.maximum(strings.lengths, max(1, len(word)))
            numbers = np.flatnonzero(values > above)
            found[word] = (numbers, values[numbers])
    return [found.get(word, _NOTHING) for word in words]


def _lengths(texts: Sequence[Sized]) -> Places:
    return np.fromiter(map(len, texts), dtype=np.intp, count=len(texts))


def _distinct(ascending: Places) -> Places:
    """Each number once."""
    return ascending[np.diff(ascending, prepend=-1) > 0]


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
