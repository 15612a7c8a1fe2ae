"""Tools as records of bytes: what the ranking reads of each, analysed once and kept anywhere.

A record belongs to one tool. Its words are numbers of a `Dictionary`, so records of any tools of one catalog can be
joined to a segment, which is ranked like one that was built from their definitions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from toolcrib.large.dictionary import Dictionary, WordCounts
from toolcrib.search.analysis import FIELD_COUNT, Ints, Vocabulary, row_changes, sort_occurrences
from toolcrib.search.embedding import unknown_rows
from toolcrib.search.features import (
    SIMHASH_BITS,
    WORD_SLOTS,
    EmbeddedTools,
    SemanticModel,
    ToolFeatures,
    WordFeatures,
    default_semantic_model,
)
from toolcrib.search.options import Field, SearchOptions
from toolcrib.search.segment import Segment
from toolcrib.search.text import WHOLE_NAME
from toolcrib.search.vectors import QuantizedRows, QueryVectors
from toolcrib.types import Key, Tool

_PAIR = np.dtype("<u8")
_WORD = np.dtype([("word", "<i4"), ("field", "u1"), ("count", "<u2")])
"""How often a word occurs in a field; -1 for the whole name."""
_NO_WORD = -1


def row_type(dim: int) -> np.dtype[Any]:
    """The part of a record that has the same size for all tools, with vectors of `dim` components."""
    return np.dtype(
        [
            ("meaning", "i1", (dim,)),
            ("topic", "i1", (dim,)),
            ("meaning_scale", "<f4"),
            ("topic_scale", "<f4"),
            ("sketch", "<u8", (SIMHASH_BITS // 64,)),
            ("slots", "<i4", (WORD_SLOTS,)),
            ("shares", "<f2", (WORD_SLOTS,)),
            ("norms", "<f4", (FIELD_COUNT,)),
            ("verbs", "<u4"),
            ("literals", "<u2"),
        ]
    )


class Record(NamedTuple):
    """What the ranking reads of one tool."""

    id: str
    namespace: str
    whole_name: str
    """The name as one word; empty if it has only one."""
    row: bytes
    """One value of `row_type`."""
    pairs: bytes
    """The keys of neighbouring stems, in ascending order."""
    words: bytes
    """The words of all fields."""

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.id[len(self.namespace) + 1 :] if self.namespace else self.id


@dataclass(frozen=True, slots=True)
class AnalyzedTool:
    """A record, and the weight of each stem in the tool, as in BM25F before saturation."""

    record: Record
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AnalyzedSlice:
    """Some analysed tools with numbers of their own for words; it can be sent to another process."""

    keys: Sequence[Key]
    whole_names: Sequence[str]
    texts: Sequence[str]
    """The words, by number."""
    stems: Sequence[str]
    """The stem of each word."""
    coarse: QuantizedRows
    """The short vector of each word."""
    rows: npt.NDArray[Any]
    """The rows of the tools, with these numbers in `slots`."""
    words: npt.NDArray[Any]
    """The words of all tools, with these numbers."""
    bounds: Sequence[int]
    """Where the words of each tool begin, and where those of the last one end."""
    pairs: Sequence[bytes]
    weights: Sequence[Mapping[str, float]]

    def numbered(self, dictionary: Dictionary) -> list[AnalyzedTool]:
        """Return the tools with the numbers of the dictionary, to which new words are added."""
        numbers = np.append(dictionary.add(self.texts, self.stems, self.coarse), np.int32(_NO_WORD))
        self.rows["slots"] = numbers[self.rows["slots"]]  # -1 is the last one
        self.words["word"] = numbers[self.words["word"]]
        return [
            AnalyzedTool(
                Record(
                    key.id, key.namespace, whole, self.rows[place].tobytes(), pairs, self.words[start:stop].tobytes()
                ),
                weights,
            )
            for place, (key, whole, pairs, weights, (start, stop)) in enumerate(
                zip(self.keys, self.whole_names, self.pairs, self.weights, pairwise(self.bounds), strict=True)
            )
        ]


def analyze(tools: Sequence[Tool], *, model: SemanticModel, options: SearchOptions) -> AnalyzedSlice:
    """Analyse tools. The cost of a call is that of some hundred tools."""
    segment = Segment.build(tools, model=model, options=options)
    vocabulary = segment.vocabulary
    is_whole = [word.startswith(WHOLE_NAME) for word in vocabulary.words]
    places = [place for place, whole in enumerate(is_whole) if not whole]
    numbers = np.full(len(vocabulary.words) + 1, _NO_WORD, dtype=np.int32)
    numbers[places] = np.arange(len(places), dtype=np.int32)
    occurrences = segment.occurrences()
    order = np.argsort(occurrences.positions, kind="stable")
    positions, stems, local = occurrences.positions[order], occurrences.stems[order], occurrences.words[order]
    words = np.zeros(len(order), dtype=_WORD)
    words["word"], words["field"], words["count"] = numbers[local], occurrences.fields[order], occurrences.counts[order]
    whole_names = [""] * len(tools)
    for at in np.flatnonzero(words["word"] < 0).tolist():
        whole_names[positions[at]] = vocabulary.words[local[at]]
    adds = words["count"] * segment.norms[positions, words["field"]]
    named = words["word"] >= 0
    rows = _rows(segment, numbers, model.table.dim)
    return AnalyzedSlice(
        keys=[tool.key for tool in tools],
        whole_names=whole_names,
        texts=[vocabulary.words[place] for place in places],
        stems=[vocabulary.stems[vocabulary.word_stems[place]] for place in places],
        coarse=segment.words.coarse.take(np.array(places, dtype=np.intp)),
        rows=rows,
        words=words,
        bounds=np.searchsorted(positions, np.arange(len(tools) + 1)).tolist(),
        pairs=_pairs(segment, len(tools)),
        weights=_weights(positions[named], stems[named], adds[named], vocabulary.stems, len(tools)),
    )


def _weights(
    positions: Ints, stems: Ints, adds: npt.NDArray[Any], texts: Sequence[str], size: int
) -> list[dict[str, float]]:
    """Add up what each stem of each tool gets; the rows are sorted by tool and stem."""
    if not len(stems):
        return [{} for _ in range(size)]
    first = np.flatnonzero(row_changes(positions, stems))
    names = [texts[stem] for stem in stems[first].tolist()]
    sums = np.add.reduceat(adds, first).tolist()
    bounds = np.searchsorted(positions[first], np.arange(size + 1)).tolist()
    return [dict(zip(names[start:stop], sums[start:stop], strict=True)) for start, stop in pairwise(bounds)]


def _rows(segment: Segment, numbers: Ints, dim: int) -> npt.NDArray[Any]:
    features = segment.features
    rows = np.zeros(len(segment), dtype=row_type(dim))
    rows["meaning"], rows["meaning_scale"] = features.meaning.values, features.meaning.scales
    rows["topic"], rows["topic_scale"] = features.topic.values, features.topic.scales
    rows["sketch"] = features.sketch.T
    rows["slots"] = numbers[features.slots]  # -1 is the last one
    rows["shares"], rows["norms"] = features.shares, segment.norms
    rows["verbs"], rows["literals"] = features.verbs, features.literals
    return rows


def _pairs(segment: Segment, size: int) -> list[bytes]:
    features = segment.features
    order = np.argsort(features.pair_positions, kind="stable")
    bounds = np.searchsorted(features.pair_positions[order], np.arange(size + 1)).tolist()
    keys = features.pair_keys[order].astype(_PAIR)
    return [keys[start:stop].tobytes() for start, stop in pairwise(bounds)]


def cosines(records: Sequence[Record], vectors: QueryVectors, dim: int) -> npt.NDArray[np.float64]:
    """The cosine of each tool and the clause of a query that it is nearest to."""
    rows = np.frombuffer(b"".join([record.row for record in records]), row_type(dim))
    meaning = QuantizedRows(rows["meaning"], rows["meaning_scale"])
    found: npt.NDArray[np.float64] = meaning.products(np.arange(len(rows)), vectors).max(axis=0)
    return found


def join_records(
    records: Sequence[Record],
    dictionary: Dictionary,
    stems: frozenset[str],
    *,
    model: SemanticModel,
    options: SearchOptions,
) -> Segment:
    """Make a segment of some tools. Of their definitions, it has namespaces and names alone.

    Of their words, it counts those of names and those with one of the stems, which may be whole names.
    """
    if not records:
        return Segment.build((), model=model, options=options)
    rows = np.frombuffer(b"".join([record.row for record in records]), row_type(model.table.dim))
    words, positions = _wanted_words(records, dictionary, stems)
    pairs, pair_positions = _concatenated([record.pairs for record in records], _PAIR)
    used = np.unique(np.concatenate([words["word"], rows["slots"].ravel()]))
    used = used[used >= 0]
    vocabulary = _vocabulary(used, dictionary)
    numbers = np.searchsorted(used, words["word"]).astype(np.int32)
    for at in np.flatnonzero(words["word"] < 0).tolist():
        name = records[positions[at]].whole_name
        numbers[at] = vocabulary.number(name, name)
    order = np.argsort(pairs, kind="stable")
    features = ToolFeatures(
        meaning=QuantizedRows(rows["meaning"], rows["meaning_scale"]),
        topic=QuantizedRows(rows["topic"], rows["topic_scale"]),
        embedded=EmbeddedTools.of(unknown_rows(len(records), 0)),
        sketch=np.ascontiguousarray(rows["sketch"].T),
        slots=np.where(rows["slots"] >= 0, np.searchsorted(used, rows["slots"]), _NO_WORD).astype(np.int32),
        shares=rows["shares"],
        literals=rows["literals"],
        verbs=rows["verbs"],
        pair_keys=pairs[order],
        pair_positions=pair_positions[order],
    )
    stems_of_words = np.array(vocabulary.word_stems, dtype=np.int32)[numbers]
    counts = words["count"].astype(np.uint16)
    occurrences = sort_occurrences(stems_of_words, positions, words["field"], numbers, counts)
    known = _word_features(used, vocabulary, dictionary)
    ids = [record.id for record in records]
    tools = _NamedTools(records)
    return Segment(tools, occurrences, rows["norms"], vocabulary, features, known, model, options, ids=ids)


class _NamedTools(Sequence[Tool]):
    """Tools of which only the names are known, made when they are read: most candidates never are."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, place: int) -> Tool: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Tool]: ...
    def __getitem__(self, place: int | slice) -> Tool | Sequence[Tool]:
        if isinstance(place, slice):
            return _NamedTools(self._records[place])
        record = self._records[place]
        return Tool(name=record.name, namespace=record.namespace)


def _wanted_words(
    records: Sequence[Record], dictionary: Dictionary, stems: frozenset[str]
) -> tuple[npt.NDArray[Any], Ints]:
    """The words of the tools that are in their names or have one of the stems, and the position of the tool of each."""
    words, positions = _concatenated([record.words for record in records], _WORD)
    named = np.array([record.whole_name in stems for record in records], dtype=np.bool_)
    numbers = words["word"]
    wanted = dictionary.have_stem(np.maximum(numbers, 0), stems) | (words["field"] == Field.NAME)
    wanted = np.where(numbers < 0, named[positions], wanted)
    return words[wanted], positions[wanted]


def _concatenated(parts: Sequence[bytes], kind: np.dtype[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """The items of all parts, and the number of the part of each."""
    lengths = [len(part) // kind.itemsize for part in parts]
    return np.frombuffer(b"".join(parts), kind), np.repeat(np.arange(len(parts), dtype=np.int32), lengths)


def _vocabulary(used: Ints, dictionary: Dictionary) -> Vocabulary:
    """The words with these numbers, in their order."""
    stems, numbers = np.unique(dictionary.stems_of(used), return_inverse=True)
    words, names = dictionary.words, dictionary.stems
    return Vocabulary.restore(
        [words[number] for number in used.tolist()], [names[number] for number in stems.tolist()], numbers.tolist()
    )


def _word_features(used: Ints, vocabulary: Vocabulary, dictionary: Dictionary) -> WordFeatures:
    coarse = dictionary.coarse(used, len(vocabulary.words) + 1)
    return WordFeatures(coarse=coarse, stems=np.append(np.array(vocabulary.word_stems, dtype=np.int32), np.int32(-1)))


def count_words(records: Sequence[Record], dictionary: Dictionary, dim: int) -> WordCounts:
    """What some tools add to the statistics of the dictionary that their words are numbered by."""
    words, positions = _concatenated([record.words for record in records], _WORD)
    named = words["word"] >= 0
    numbers, positions = words["word"][named], positions[named]
    pairs = np.unique((positions.astype(np.int64) << 32) | dictionary.stems_of(numbers))
    slots = np.frombuffer(b"".join([record.row for record in records]), row_type(dim))["slots"]
    found, uses = np.unique(numbers, return_counts=True)
    stems, tools = np.unique((pairs & 0xFFFFFFFF).astype(np.int32), return_counts=True)
    return WordCounts(found, uses.astype(np.int32), stems, tools.astype(np.int32), slots[slots[:, 1] >= 0, 0])


def weights_of(record: Record, dictionary: Dictionary, dim: int) -> dict[str, float]:
    """The weight of each stem in a tool, as in `AnalyzedTool`."""
    norms = np.frombuffer(record.row, row_type(dim))["norms"][0]
    found: dict[str, float] = {}
    for word, field, count in np.frombuffer(record.words, _WORD).tolist():
        if word >= 0:
            stem = dictionary.stem_of(word)
            found[stem] = found.get(stem, 0.0) + count * float(norms[field])
    return found


def analysis_mark(options: SearchOptions) -> str:
    """A hash of what the records depend on."""
    fields = [asdict(field) for field in options.fields]
    vectors = default_semantic_model().table.word_vectors(["tool", "search", "file"])
    parts = [fields, options.k1, np.rint(vectors * 100).astype(int).tolist()]
    return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
