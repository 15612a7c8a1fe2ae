"""The words of an index as they stand, without stems: which word stands how often in which field of which tool."""

from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import Vocabulary
from toolcrib.search.entries import FIELDS, Entries
from toolcrib.search.options import Field
from toolcrib.search.scorers.base import Floats, Places, Segment, kept
from toolcrib.search.scorers.strings import Strings


class Rows:
    """One row a word, tool and field, in that order."""

    __slots__ = ("_numbers", "_starts", "counts", "fields", "lengths", "positions", "vocabulary", "words")

    def __init__(self, entries: Entries, vocabulary: Vocabulary, size: int) -> None:
        """The words of that many tools."""
        chosen = np.flatnonzero(entries.fields != Field.WHOLE_NAME)
        cells = entries.positions[chosen].astype(np.intp) * FIELDS + entries.fields[chosen]
        order = np.lexsort((cells, entries.words[chosen]))
        chosen, cells = chosen[order], cells[order]
        self.positions: Places = cells // FIELDS
        self.fields: Places = cells % FIELDS
        self.counts = entries.counts[chosen].astype(np.float64)
        lengths: Any = np.bincount(cells, weights=self.counts, minlength=size * FIELDS)
        self.lengths: Floats = lengths.reshape(size, FIELDS)
        """How many words each field of each tool has."""
        self.vocabulary = vocabulary.words
        """The words, by number."""
        self._numbers = vocabulary.word_numbers
        self.words: npt.NDArray[np.int32] = entries.words[chosen]
        self._starts: list[int] = np.searchsorted(self.words, np.arange(len(self.vocabulary) + 1)).tolist()

    def of(self, word: str) -> slice:
        """The rows of a word."""
        number = self._numbers.get(word)
        return slice(0, 0) if number is None else slice(self._starts[number], self._starts[number + 1])

    def strings(self, field: Field) -> Strings:
        """The words of one field."""
        own: list[list[str]] = [[] for _ in range(len(self.lengths))]
        chosen = np.flatnonzero(self.fields == field)
        for position, number in zip(self.positions[chosen].tolist(), self.words[chosen].tolist(), strict=True):
            own[position].append(self.vocabulary[number])
        return Strings(own)


def rows(index: Segment) -> Rows:
    """The rows of an index, worked out once."""
    return kept(index, "rows", lambda index: Rows(index.entries(), index.vocabulary, len(index)))


def field_words(index: Segment, field: Field) -> Strings:
    """The words of one field of an index, worked out once."""
    return kept(index, ("strings", field), lambda index: rows(index).strings(field))
