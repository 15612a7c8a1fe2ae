"""What the second stage of a search reads of each tool, as arrays with one row per tool.

Each row depends on its own tool alone: not on other tools, and not on how rare a word is among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import (
    MAX_NAME_WORDS,
    MAX_SENTENCE_WORDS,
    ToolAnalyzer,
    Vocabulary,
    WordStream,
    row_changes,
)
from toolcrib.search.embedder import Embedder
from toolcrib.search.embedding import ComputedVectors, NoVectors, ToolVectors, tool_text, unknown_rows
from toolcrib.search.intent import TOOL_VERBS
from toolcrib.search.literals import PARAMETER_KINDS
from toolcrib.search.text import STOP_WORDS, WHOLE_NAME, WordMemo, is_unspaced
from toolcrib.search.vectors import (
    COARSE_COMPONENTS,
    QuantizedRows,
    QueryVectors,
    WordPieceTable,
    WordVectorCache,
    default_table,
    dot_products,
    quantize,
    unit_rows,
)
from toolcrib.types import Tool

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Keys = npt.NDArray[np.uint64]
Halves = npt.NDArray[np.float16]
Places = npt.NDArray[np.intp]
_NAME_SHARE = 0.7
"""The weight of the name in the topic vector. Source: tuned in the prototype."""
_BASE_WEIGHT = 0.1
"""Added to the weight of each word in a name or sentence, so that common words count too. Source: the prototype."""
_VERB_WORDS = 3
"""The verb of a name is among so many first words."""
SIMHASH_BITS = 128
_SLICE = 1024
"""Tools whose vectors are computed at once: as floats they take several times the memory of the index."""
WORD_SLOTS = MAX_NAME_WORDS + MAX_SENTENCE_WORDS
_COLUMNS = ("sketch", "slots", "shares", "literals", "verbs")


@dataclass(frozen=True, slots=True)
class EmbeddedTools:
    """The vectors that an embedder gives some tools; without an embedder, vectors of no components."""

    rows: QuantizedRows
    """A row with scale 0 is not known yet."""
    sketch: Keys
    """uint64[2, n]: their SimHash."""

    @classmethod
    def of(cls, rows: QuantizedRows) -> "EmbeddedTools":
        """Add the sketches."""
        return cls(rows, simhash(rows))

    @classmethod
    def unknown(cls, count: int, dim: int) -> "EmbeddedTools":
        """Return the rows of tools that are not embedded yet."""
        return cls(unknown_rows(count, dim), np.zeros((SIMHASH_BITS // 64, count), dtype=np.uint64))

    def take(self, places: Ints) -> "EmbeddedTools":
        """Copy some rows."""
        return EmbeddedTools(self.rows.take(places), np.ascontiguousarray(self.sketch[:, places]))

    def put(self, places: Ints, other: "EmbeddedTools") -> None:
        """Overwrite some rows. Only for rows that are still being built."""
        self.rows.put(places, other.rows)
        self.sketch[:, places] = other.sketch

    def known(self, places: Ints) -> npt.NDArray[np.bool_]:
        """Mark the tools that have a vector and whose text the embedder knows."""
        found: npt.NDArray[np.bool_] = np.any(self.rows.values[places], axis=1)
        return found


@dataclass(frozen=True, slots=True)
class ToolFeatures:
    """The rows of some tools."""

    meaning: QuantizedRows
    """The vector of the whole tool, by the static table."""
    topic: QuantizedRows
    """The same with the name counted once more; zero if the table knows no word."""
    embedded: EmbeddedTools
    sketch: Keys
    """uint64[2, n]: the SimHash of `meaning`."""
    slots: Ints
    """int32[n, 24]: the numbers of the first words of the name, then of the first sentence; -1 for no word."""
    shares: Halves
    """float16[n, 24]: the share of each of these words in the weight of its name or first sentence."""
    literals: npt.NDArray[np.uint16]
    """The kinds of literals that the parameters accept."""
    verbs: npt.NDArray[np.uint32]
    """The kinds of the verbs in the name; 0 for none."""
    pair_keys: Keys
    """The keys of neighbouring stems, sorted: the hash of the first in the high half, that of the second in the low."""
    pair_positions: Ints
    """The tool of each entry of `pair_keys`."""

    @classmethod
    def restore(cls, arrays: Mapping[str, npt.NDArray[Any]], embedded: EmbeddedTools) -> "ToolFeatures":
        """Return the features that `arrays` were taken from, with these vectors of an embedder."""
        meaning = QuantizedRows(arrays["meaning"], arrays["meaning_scales"])
        topic = QuantizedRows(arrays["topic"], arrays["topic_scales"])
        rest = {name: arrays[name] for name in (*_COLUMNS, "pair_keys", "pair_positions")}
        return cls(meaning, topic, embedded, **rest)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All rows except those of an embedder, by name, for `restore`."""
        return {
            "meaning": self.meaning.values,
            "meaning_scales": self.meaning.scales,
            "topic": self.topic.values,
            "topic_scales": self.topic.scales,
            **{name: getattr(self, name) for name in (*_COLUMNS, "pair_keys", "pair_positions")},
        }

    def rearrange(self, order: Ints, size: int) -> "ToolFeatures":
        """Rearrange the rows: `order` has the old position of each new row, or -1 for one to fill in later."""
        place = np.full(size, -1, dtype=np.int32)
        kept = np.flatnonzero(order >= 0)
        place[order[kept]] = kept
        positions = place[self.pair_positions]
        stay = positions >= 0
        return ToolFeatures(
            self.meaning.take(order),
            self.topic.take(order),
            self.embedded.take(order),
            np.ascontiguousarray(self.sketch[:, order]),
            self.slots[order],
            self.shares[order],
            self.literals[order],
            self.verbs[order],
            *_unique_pairs(self.pair_keys[stay], positions[stay]),
        )

    def fill(self, other: "ToolFeatures", places: Ints) -> "ToolFeatures":
        """Fill in the rows of another at the given positions, in its order."""
        for mine, theirs in ((self.meaning, other.meaning), (self.topic, other.topic)):
            mine.put(places, theirs)
        self.embedded.put(places, other.embedded)
        self.sketch[:, places] = other.sketch
        self.slots[places] = other.slots
        self.shares[places] = other.shares
        self.literals[places] = other.literals
        self.verbs[places] = other.verbs
        keys = np.concatenate([self.pair_keys, other.pair_keys])
        positions = np.concatenate([self.pair_positions, places[other.pair_positions]])
        pair_keys, pair_positions = _unique_pairs(keys, positions)
        return replace(self, pair_keys=pair_keys, pair_positions=pair_positions)


@dataclass(frozen=True, slots=True)
class WordFeatures:
    """What the second stage reads of each word: one row per word, and a last row of zeros for no word."""

    coarse: QuantizedRows
    """The leading components of the word's vector, normalized to unit length."""
    stems: Ints
    """The number of the word's stem; -1 for no word."""

    @classmethod
    def restore(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> "WordFeatures":
        """Return the features that `arrays` were taken from."""
        return cls(QuantizedRows(arrays["coarse"], arrays["coarse_scales"]), arrays["stem_numbers"])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All rows by name, for `restore`."""
        return {"coarse": self.coarse.values, "coarse_scales": self.coarse.scales, "stem_numbers": self.stems}


def word_features(vocabulary: Vocabulary, vectors: Floats) -> WordFeatures:
    """Make the rows of all words of a vocabulary from their vectors."""
    coarse = unit_rows(vectors[:, :COARSE_COMPONENTS])
    return WordFeatures(
        coarse=quantize(np.concatenate([coarse, np.zeros((1, coarse.shape[1]), np.float32)])),
        stems=np.append(np.array(vocabulary.word_stems, dtype=np.int32), np.int32(-1)),
    )


def tool_features(
    analysis: ToolAnalyzer,
    vocabulary: Vocabulary,
    english: Sequence[str],
    vectors: Floats,
    weights: Floats,
    embedded: QuantizedRows,
) -> ToolFeatures:
    """Make the rows of analyzed tools, in their order. `embedded` has the vectors of the embedder.

    `english` has an English word for each word of the vocabulary.
    """
    name = analysis.name
    meaning, topic = _tool_vectors(analysis.body, name, vectors)
    hashes = np.array([stem_key(stem) for stem in vocabulary.stems], dtype=np.uint64)
    stems = np.array(vocabulary.word_stems, dtype=np.intp)
    keys, positions = _word_pairs((name, analysis.description), hashes[stems] if len(stems) else hashes)
    slots = np.concatenate(
        [_padded_rows(name, MAX_NAME_WORDS), _padded_rows(analysis.sentence, MAX_SENTENCE_WORDS)], axis=1
    )
    return ToolFeatures(
        meaning=meaning,
        topic=topic,
        embedded=EmbeddedTools.of(embedded),
        sketch=simhash(meaning),
        slots=slots,
        shares=_word_shares(slots, weights),
        literals=_kinds_by_tool(analysis.parameters, english, PARAMETER_KINDS).astype(np.uint16)
        | np.array(analysis.literals, dtype=np.uint16),
        verbs=_kinds_by_tool(name, english, TOOL_VERBS, _VERB_WORDS),
        pair_keys=keys,
        pair_positions=positions,
    )


def stem_key(stem: str) -> int:
    """Hash a stem to 32 bits."""
    return crc32(stem.encode("utf-8", "replace"))


def simhash(rows: QuantizedRows) -> Keys:
    """The signs of 128 random projections of each row: uint64[2, n]. The number of differing bits estimates the angle.

    The projections add and subtract integers, so they are exact. Source: Charikar, STOC 2002.
    """
    dim = rows.values.shape[1]
    found = np.empty((SIMHASH_BITS // 64, len(rows)), dtype=np.uint64)
    for start in range(0, len(rows), _SLICE):
        some = rows.values[start : start + _SLICE].astype(np.float32)
        found[:, start : start + _SLICE] = _pack_signs(some @ _projection(dim) > 0)
    return found


def query_simhash(vectors: QueryVectors) -> Keys:
    """The SimHash of the vectors of a query: uint64[2, vectors]."""
    return _pack_signs(dot_products(vectors.values, _transposed_projection(vectors.values.shape[1])) > 0)


def _pack_signs(signs: npt.NDArray[np.bool_]) -> Keys:
    found: Keys = np.packbits(signs, axis=1, bitorder="little").view(np.uint64).T
    return found


@cache
def _projection(dim: int) -> Floats:
    drawn = np.random.default_rng(seed=dim).integers(0, 2, (dim, SIMHASH_BITS))
    return (2 * drawn - 1).astype(np.float32)


@cache
def _transposed_projection(dim: int) -> Floats:
    """The projections, one per row."""
    return np.ascontiguousarray(_projection(dim).T)


def _tool_vectors(body: WordStream, name: WordStream, vectors: Floats) -> tuple[QuantizedRows, QuantizedRows]:
    """The `meaning` and the `topic` of each tool."""
    size = len(body.lengths)
    meaning, topic = unknown_rows(size, vectors.shape[1]), unknown_rows(size, vectors.shape[1])
    numbers = np.frombuffer(body.numbers, dtype=np.int32) if len(body.numbers) else np.zeros(0, dtype=np.int32)
    lengths, own_lengths = np.array(body.lengths, dtype=np.intp), np.array(name.lengths, dtype=np.intp)
    ends = lengths.cumsum()
    for start in range(0, size, _SLICE):
        some = slice(start, start + _SLICE)
        words = numbers[ends[start] - lengths[start] : ends[some][-1]]
        sums = _vector_sums(words, lengths[some], own_lengths[some], vectors)
        whole, own = unit_rows(sums[:, 0]), unit_rows(sums[:, 1])
        at = np.arange(start, start + len(sums), dtype=np.int32)
        meaning.put(at, quantize(whole))
        topic.put(at, quantize(unit_rows(whole + np.float32(_NAME_SHARE) * own)))
    return meaning, topic


def _vector_sums(numbers: Ints, lengths: Places, own_lengths: Places, vectors: Floats) -> Floats:
    """Add up the vectors of all words of each tool, and of the words of its name: float32[tools, 2, components].

    numbers: the words of all tools, those of the name first; lengths, own_lengths: how many each tool and name has.
    One small matrix product per tool is several times as fast as sums over slices.
    """
    ends = lengths.cumsum()
    place = np.arange(len(numbers)) - np.repeat(ends - lengths, lengths)
    counts = np.ones((2, len(numbers)), dtype=np.float32)
    counts[1][place >= np.repeat(own_lengths, lengths)] = 0
    sums = np.zeros((len(lengths), 2, vectors.shape[1]), dtype=np.float32)
    start = 0
    for row, end in zip(sums, ends.tolist(), strict=True):
        if end > start:
            np.matmul(counts[:, start:end], vectors.take(numbers[start:end], axis=0), out=row)
        start = end
    return sums


def _padded_rows(stream: WordStream, width: int) -> Ints:
    lengths = np.array(stream.lengths, dtype=np.intp)
    rows = np.full((len(lengths), width), -1, dtype=np.int32)
    rows[np.arange(width) < lengths[:, None]] = np.array(stream.numbers, dtype=np.int32)
    return rows


def _word_shares(slots: Ints, weights: Floats) -> Halves:
    """The share of each word in the weight of its name or first sentence."""
    shares = np.append(weights + np.float32(_BASE_WEIGHT), np.float32(0))[slots]
    for slice_ in (slice(0, MAX_NAME_WORDS), slice(MAX_NAME_WORDS, WORD_SLOTS)):
        total = shares[:, slice_].sum(axis=1, keepdims=True)
        shares[:, slice_] /= np.where(total > 0, total, np.float32(1))
    return shares.astype(np.float16)


def _kinds_by_tool(
    stream: WordStream, words: Sequence[str], table: Mapping[str, int], first: int | None = None
) -> npt.NDArray[np.uint32]:
    """Combine the kinds of the words of each tool, or of its first words."""
    kinds = np.array([table.get(word, 0) for word in words], dtype=np.uint32)
    lengths = np.array(stream.lengths, dtype=np.intp)
    found = np.zeros(len(lengths), dtype=np.uint32)
    if not len(stream.numbers):
        return found
    of = np.repeat(np.arange(len(lengths)), lengths)
    numbers = np.array(stream.numbers, dtype=np.intp)
    if first is not None:
        place = np.arange(len(of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        of, numbers = of[place < first], numbers[place < first]
    known = kinds[numbers] > 0
    np.bitwise_or.at(found, of[known], kinds[numbers[known]])
    return found


def _word_pairs(streams: Sequence[WordStream], hashes: Keys) -> tuple[Keys, Ints]:
    keys, positions = [], []
    for stream in streams:
        numbers = np.array(stream.numbers, dtype=np.intp)
        of = np.repeat(np.arange(len(stream.lengths), dtype=np.int32), np.array(stream.lengths, dtype=np.intp))
        beside = of[1:] == of[:-1]
        keys.append(((hashes[numbers[:-1]] << np.uint64(32)) | hashes[numbers[1:]])[beside])
        positions.append(of[1:][beside])
    return _unique_pairs(np.concatenate(keys), np.concatenate(positions))


def _unique_pairs(keys: Any, positions: Any) -> tuple[Keys, Ints]:
    """Keep each pair of a tool once, sorted by key and position."""
    order = np.lexsort((positions, keys))
    keys, positions = keys[order], positions[order]
    new = row_changes(keys, positions)
    return keys[new], positions[new].astype(np.int32)


_MAX_READINGS = 16_384
"""Words whose English readings are cached."""
_STOP_WEIGHT = 0.2
"""The weight of a stop word; other words have weights from 0 to about 9."""


@dataclass(frozen=True, slots=True)
class SemanticModel:
    """The source of vectors: a table for words, and an embedder for whole texts, if there is one."""

    table: WordPieceTable
    embedder: Embedder | None = None
    tools: ToolVectors | None = field(default=None, compare=False)
    """The embedder's vectors of tools. By default they are computed when an index is built."""
    word_vectors: WordVectorCache = field(init=False, repr=False, compare=False)
    """The vectors of the words of queries."""
    readings: WordMemo[str] = field(init=False, repr=False, compare=False)
    """An English word for each word of another language that is written with spaces; empty for other words."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "word_vectors", WordVectorCache(self.table, self.word_weights))
        object.__setattr__(self, "readings", WordMemo(self._english_reading, _MAX_READINGS))
        if self.embedder is not None and self.tools is None:
            object.__setattr__(self, "tools", ComputedVectors(self.embedder))

    def _english_reading(self, word: str) -> str:
        english = () if is_unspaced(word) else self.table.translation(word)
        return english[0] if english else ""

    def without_tools(self) -> "SemanticModel":
        """Return an equal model that knows the vector of no tool."""
        return replace(self, tools=None if self.tools is None else NoVectors(self.tools.dim))

    def compute_features(
        self, analysis: ToolAnalyzer, vocabulary: Vocabulary, tools: Sequence[Tool]
    ) -> tuple[WordFeatures, ToolFeatures]:
        """Compute the features of the words of a vocabulary, and of the analyzed tools in their order."""
        # Whole names are no words of any language: looking them up would take as long as all words together.
        words = ["" if word.startswith(WHOLE_NAME) else word for word in vocabulary.words]
        vectors = self.table.word_vectors(words)
        weights = self.word_weights(words)
        english = [(self.table.translation(word) or (word,))[0] for word in words]
        rows = tool_features(analysis, vocabulary, english, vectors, weights, self.embed_tools(tools))
        return word_features(vocabulary, vectors), rows

    def embed_tools(self, tools: Sequence[Tool]) -> QuantizedRows:
        """The embedder's vectors of some tools, as far as they are known."""
        return unknown_rows(len(tools), 0) if self.tools is None else self.tools.rows([*map(tool_text, tools)])

    def word_weights(self, words: Sequence[str]) -> Floats:
        """The weight of each word, the same in every catalog; stop words have little."""
        found = self.table.word_weights(words)
        found[[word in STOP_WORDS for word in words]] = _STOP_WEIGHT
        return found


@cache
def default_semantic_model() -> SemanticModel:
    """The model that uses only the table in the package."""
    return SemanticModel(default_table())
