"""What the table says of the words of queries, one row a word: remembered, since queries share most of their words."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from toolcrib.search.features import COARSE
from toolcrib.search.quantized import Floats, Query, directions
from toolcrib.search.table import Table

_REMEMBERED = 2048
"""Words whose rows are remembered; more than one query has."""


class Said(NamedTuple):
    """What is said of some words, in their order."""

    vectors: Floats
    """float32[words, components]."""
    weights: Floats
    """How telling each is; above 0."""
    coarse: Query
    """The leading components of the vectors, at unit length."""

    def take(self, places: Sequence[int]) -> "Said":
        """A copy of some rows."""
        at = np.array(places, dtype=np.intp)
        return Said(self.vectors.take(at, axis=0), self.weights.take(at), self.coarse.take(at))


class WordRows:
    """Rows that are worked out when a word is first asked for. May be asked from several threads at once."""

    def __init__(self, table: Table, weights: Callable[[Sequence[str]], Floats]) -> None:
        """The rows of a table; `weights` tells how telling words are."""
        self._table = table
        self._weights = weights
        self._kept = _Kept(table.dim)

    def of(self, words: Sequence[str]) -> Said:
        """What is said of some words, each once."""
        kept = self._kept
        try:
            return kept.rows.take([kept.places[word] for word in words])
        except KeyError:
            return self._added(words)

    def _added(self, words: Sequence[str]) -> Said:
        kept = self._kept
        missing = [word for word in words if word not in kept.places]
        if kept.add(missing, self._worked_out(missing)):
            return kept.rows.take([kept.places[word] for word in words])
        self._kept = _Kept(self._table.dim)
        return self._worked_out(words)

    def _worked_out(self, words: Sequence[str]) -> Said:
        vectors = self._table.words(words)
        return Said(vectors, self._weights(words), directions(vectors[:, :COARSE]))


class _Kept:
    """Rows that only grow: those whose place is told never change."""

    __slots__ = ("_next", "places", "rows")

    def __init__(self, dim: int) -> None:
        self.places: dict[str, int] = {}
        self._next = count()
        short = min(dim, COARSE)
        coarse = Query(np.zeros((_REMEMBERED, short), np.float32), np.zeros(_REMEMBERED))
        self.rows = Said(np.zeros((_REMEMBERED, dim), np.float32), np.zeros(_REMEMBERED, np.float32), coarse)

    def add(self, words: Sequence[str], said: Said) -> bool:
        """The rows of more words, as far as there is room; whether there was.

        Each row is taken by one thread alone, and told when it is filled: two threads may add the same word.
        """
        for at, word in enumerate(words):
            place = next(self._next)
            if place >= _REMEMBERED:
                return False
            self.rows.vectors[place], self.rows.weights[place] = said.vectors[at], said.weights[at]
            self.rows.coarse.values[place] = said.coarse.values[at]
            self.rows.coarse.scales[place] = said.coarse.scales[at]
            self.places[word] = place
        return True
