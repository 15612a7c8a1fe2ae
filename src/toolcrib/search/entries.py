"""Which word stands how often in which field of which tool, in plain arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import Analysis, Vocabulary
from toolcrib.search.options import Field, FieldOptions

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

FIELDS = len(Field)

_MAX_COUNT = 0xFFFF


@dataclass(frozen=True, slots=True)
class Entries:
    """One row a word, field and tool; sorted by stem, tool, field."""

    stems: Ints
    positions: Ints
    fields: npt.NDArray[np.uint8]
    words: Ints
    counts: npt.NDArray[np.uint16]

    def moved(self, kept: Mapping[int, int], old_size: int) -> "Entries":
        """The rows of some tools, under new positions. `kept` leads from new to old positions, of `old_size`."""
        place = np.full(old_size, -1, dtype=np.int32)
        place[list(kept.values())] = list(kept)
        positions = place[self.positions]
        stay = positions >= 0
        return Entries(self.stems[stay], positions[stay], self.fields[stay], self.words[stay], self.counts[stay])

    def merged(self, other: "Entries") -> "Entries":
        """The rows of both."""
        return _sorted(
            np.concatenate([self.stems, other.stems]),
            np.concatenate([self.positions, other.positions]),
            np.concatenate([self.fields, other.fields]),
            np.concatenate([self.words, other.words]),
            np.concatenate([self.counts, other.counts]),
        )


def counted(analysis: Analysis, vocabulary: Vocabulary) -> Entries:
    """The rows of freshly read tools."""
    words = np.array(analysis.numbers, dtype=np.int64)
    lengths = np.array(analysis.lengths, dtype=np.int64)
    places = np.array(analysis.positions, dtype=np.int64) * FIELDS + np.array(analysis.fields, dtype=np.int64)
    keys, counts = np.unique((np.repeat(places, lengths) << 32) | words, return_counts=True)
    found = (keys & 0xFFFFFFFF).astype(np.int32)
    places = keys >> 32
    stems = np.array(vocabulary.word_stems, dtype=np.int32)
    return _sorted(
        stems[found],
        (places // FIELDS).astype(np.int32),
        (places % FIELDS).astype(np.uint8),
        found,
        np.minimum(counts, _MAX_COUNT).astype(np.uint16),
    )


def norms(analysis: Analysis, size: int, options: Sequence[FieldOptions]) -> Floats:
    """What one occurrence of a word adds, for each tool and field; 0 for tools that were not read."""
    lengths = np.array(analysis.lengths, dtype=np.float64)
    fields = np.array(analysis.fields, dtype=np.intp)
    weight, b, reference = np.array([(f.weight, f.b, f.reference) for f in options]).T
    adds = np.zeros((size, FIELDS), dtype=np.float32)
    places = np.array(analysis.positions, dtype=np.intp)
    adds[places, fields] = weight[fields] / (1 - b[fields] + b[fields] * lengths / reference[fields])
    return adds


def _sorted(stems: Any, positions: Any, fields: Any, words: Any, counts: Any) -> Entries:
    order = np.argsort((stems.astype(np.int64) << 36) | (positions.astype(np.int64) << 4) | fields, kind="stable")
    return Entries(stems[order], positions[order], fields[order], words[order], counts[order])
