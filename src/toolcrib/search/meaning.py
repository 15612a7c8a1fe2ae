"""Where vectors come from: the static table, which is always there, and another embedder where one is set."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from toolcrib.model import Tool
from toolcrib.search.analysis import Analysis, Vocabulary
from toolcrib.search.features import Features, Floats, WordFeatures, features, word_features
from toolcrib.search.semantic import Embedder
from toolcrib.search.table import Table, default_table
from toolcrib.search.text import STOP_WORDS, words
from toolcrib.search.wordrows import WordRows

_MAX_TEXT = 1_200
"""Characters of a tool that another embedder reads."""


_STOP_WEIGHT = 0.2
"""What a stop word counts beside other words, whose weights go from 0 to about 9."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A table for words, and an embedder for whole texts, or None where the table does both."""

    table: Table
    embedder: Embedder | None = None
    rows: WordRows = field(init=False, repr=False, compare=False)
    """What the table says of the words of queries."""

    def __post_init__(self) -> None:
        """Nothing is remembered yet."""
        object.__setattr__(self, "rows", WordRows(self.table, self.weights))

    def of(self, analysis: Analysis, vocabulary: Vocabulary, tools: Sequence[Tool]) -> tuple[WordFeatures, Features]:
        """What the words of a vocabulary mean, and the tools that were read, in the order of reading."""
        vectors = self.table.words(vocabulary.words)
        weights = self.weights(vocabulary.words)
        embedded = None if self.embedder is None else _embedded(self.embedder, tools)
        rows = features(analysis, vocabulary, vectors, weights, embedded)
        return word_features(vocabulary, vectors), rows

    def weights(self, words: Sequence[str]) -> Floats:
        """How telling each word is in any catalog; stop words hardly."""
        found = self.table.weights(words)
        found[[word in STOP_WORDS for word in words]] = _STOP_WEIGHT
        return found


@cache
def default_meaning() -> Meaning:
    """The meaning that the table in the package gives."""
    return Meaning(default_table())


def finite(vectors: Floats) -> Floats:
    """The vectors, with zeros for those that hold what is no number: no signal is better than any."""
    sound = np.isfinite(vectors).all(axis=1, keepdims=True)
    return vectors if sound.all() else np.where(sound, vectors, np.float32(0))


def _embedded(embedder: Embedder, tools: Sequence[Tool]) -> Floats:
    if not tools:
        return np.zeros((0, embedder.dim), dtype=np.float32)
    return finite(embedder.embed([_told(tool) for tool in tools]))


def _told(tool: Tool) -> str:
    """A tool as a text for an embedder."""
    beside = " ".join(filter(None, (tool.namespace, tool.title, *tool.keywords, *tool.tags)))
    return f"{' '.join(words(tool.name))} ({beside}): {tool.description}"[:_MAX_TEXT]
