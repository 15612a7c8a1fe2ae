"""The second stage: compute the signals of each candidate.

Every signal is 0 to 1, except `verb`, which is -1 to 1, and `meaning` and `topic`, which are cosines.
Source of the set of signals: a research prototype, which kept a signal only if leaving it out lost on sets it had not
seen. Here the weight of a tool's word comes from the static table and is the same in every catalog.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, reduce
from itertools import chain, pairwise
from operator import or_

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import MAX_NAME_WORDS
from toolcrib.search.features import WORD_SLOTS, SemanticModel, pair_key, stem_key, zero_non_finite
from toolcrib.search.index import Segment, SegmentView
from toolcrib.search.lexical import CandidateRows, LexicalMatch
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions, SignalWeights
from toolcrib.search.text import STOP_WORDS, VERB_KINDS, ParsedQuery, stem
from toolcrib.search.vectors import QueryVectors as Vectors
from toolcrib.search.vectors import quantize_query as vectors_of
from toolcrib.search.vectors import quantize_unit_vectors

Doubles = npt.NDArray[np.float64]

Floats = npt.NDArray[np.float32]

Ints = npt.NDArray[np.int32]

SIGNALS = tuple(item.name for item in fields(SignalWeights))
"""The signals, in the order of columns."""

_COLUMN = {name: place for place, name in enumerate(SIGNALS)}

_MIN_WORD_COSINE = 0.3
"""Cosine of two words below which they have nothing in common. Source: the prototype."""

SYNONYM_FLAG = 1 << 16
"""Added to the place of a word whose synonym is meant."""

_MAX_VERB_PLACE = 3
"""Telling words of a clause, from its start, among which its verb is looked for: "first, please find"."""


@dataclass(frozen=True, slots=True)
class QueryFeatures:
    """What a query means."""

    words: tuple[str, ...]
    """Its telling words, each once, misspelt ones corrected."""
    related: tuple[tuple[str, ...], ...]
    """For each, the stems of its synonyms."""
    synonym: float
    """How much a word asks for its synonyms, at least."""
    meaning: Vectors
    """A vector for each clause."""
    topic: Vectors
    """The same, each word counting once."""
    coarse: Vectors
    """A short vector for each word."""
    pairs: dict[int, tuple[str, str, float]]
    """Neighbouring stems: what stands for them, the two words, and what they weigh."""
    heads: tuple[str, ...]
    """The verbs that its clauses begin with."""
    clauses: int


def query_features(
    query: ParsedQuery, corrected: dict[str, str], meaning: SemanticModel, lexicon: Lexicon, options: SearchOptions
) -> QueryFeatures:
    """Read the meaning of a query."""
    clauses: Sequence[Sequence[str]] = query.clauses
    if corrected:
        clauses = [[corrected.get(word, word) for word in clause] for clause in clauses]
    known = tuple(dict.fromkeys(chain.from_iterable(clauses)))
    said = meaning.rows.of(known)
    counts = _word_counts(clauses, known)
    sums = np.concatenate([np.minimum(counts, 1) @ said.vectors, counts @ said.vectors])
    if meaning.embedder is None:
        topic, texts = quantize_unit_vectors(sums).split(len(clauses))
    else:
        topic = quantize_unit_vectors(sums[: len(clauses)])
        texts = vectors_of(zero_non_finite(meaning.embedder.embed([*map(" ".join, clauses)])))
    telling = [place for place, word in enumerate(known) if word not in STOP_WORDS] or list(range(len(known)))
    words = tuple([known[place] for place in telling])
    rows = np.array(telling, dtype=np.intp)
    return QueryFeatures(
        words=words,
        related=tuple([lexicon.stems(word) for word in words]),
        synonym=options.synonym_weight,
        meaning=texts,
        topic=topic,
        coarse=said.coarse.take(rows),
        pairs=_query_pairs(clauses, dict(zip(words, said.weights.take(rows).tolist(), strict=True))),
        heads=tuple(filter(_verb_kinds, map(_leading_verb, clauses))),
        clauses=len(clauses),
    )


@dataclass(frozen=True, slots=True)
class CandidateSignals:
    """The signals of some tools of one part."""

    positions: Ints
    signals: Doubles
    """float64[tools, signals]."""
    clause: npt.NDArray[np.intp]
    """The part of the query that each tool is nearest to."""
    likeness: Doubles
    """float64[tools, slots]: how much of each word of name and first sentence the query asks for, 0 to 1."""
    covered: Doubles
    """float64[terms, tools]: the idf of each term that each tool has, as far as it counts."""


def compute_signals(
    part: SegmentView, number: int, met: LexicalMatch, query: ParsedQuery, sense: QueryFeatures, positions: Ints
) -> CandidateSignals:
    """The signals of the tools at some positions of a part."""
    index, count = part.index, len(positions)
    if not count:
        none = np.zeros(0, dtype=np.intp)
        return CandidateSignals(
            positions, np.zeros((0, len(SIGNALS))), none, np.zeros((0, WORD_SLOTS)), np.zeros((len(met.known), 0))
        )
    features = index.features
    rows = CandidateRows(positions, len(index))
    columns = np.zeros((len(SIGNALS), count))
    near = features.meaning.products(positions, sense.meaning)
    clause = near.argmax(axis=0)
    covered = met.postings[number].covered(rows, len(met.known))
    if met.total > 0:
        columns[_COLUMN["coverage"]] = np.ascontiguousarray(covered.T).sum(axis=1) / met.total
    columns[_COLUMN["meaning"]] = near.max(axis=0)
    columns[_COLUMN["topic"]] = features.topic.products(positions, sense.topic).max(axis=0)
    likeness = _word_likeness(index, features.slots[positions], sense)
    shares = likeness * features.shares[positions]
    columns[_COLUMN["name"]] = shares[:, :MAX_NAME_WORDS].sum(axis=1)
    columns[_COLUMN["sentence"]] = shares[:, MAX_NAME_WORDS:].sum(axis=1)
    if sense.pairs:
        columns[_COLUMN["phrase"]] = _phrase_signal(index, rows, sense)
    if query.literals:
        taken = np.bitwise_count(features.literals[positions] & np.uint16(query.literals))
        columns[_COLUMN["literal"]] = taken / query.literals.bit_count()
    if sense.heads:
        verbs = features.verbs[positions]
        asked_for = reduce(or_, map(_verb_kinds, sense.heads))
        columns[_COLUMN["verb"]] = np.where(verbs == 0, 0, np.where(verbs & asked_for, 1, -1))
    for item in met.names:
        _, tools = rows.among(item.ways[0].tools[number])
        columns[_COLUMN["named" if item.term.spelt else "called"], tools] = 1.0
    return CandidateSignals(positions, np.ascontiguousarray(columns.T), clause, likeness, covered)


def is_among(postings: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
    """Which of the positions are among some postings, which are sorted."""
    if not len(postings):
        return np.zeros(len(positions), dtype=np.bool_)
    at = np.minimum(postings.searchsorted(positions), len(postings) - 1)
    same: npt.NDArray[np.bool_] = postings[at] == positions
    return same


def _word_likeness(index: Segment, slots: Ints, sense: QueryFeatures) -> Doubles:
    """How much of each word of a tool the query asks for; 0 where there is no word."""
    if not sense.words or not len(slots):
        return np.zeros(slots.shape)
    coarse, words = index.words.coarse, slots.ravel()
    likeness: Doubles = coarse.whole(slots, sense.coarse).max(axis=0) * coarse.scales.take(words)
    likeness -= _MIN_WORD_COSINE
    likeness /= 1 - _MIN_WORD_COSINE
    least = np.zeros(len(index.vocabulary.stems) + 1)  # the last one is of no word
    for stem_number, place in _query_stems(index, sense).items():
        least[stem_number] = sense.synonym if place >= SYNONYM_FLAG else 1.0
    np.maximum(likeness, least.take(index.words.stems.take(words)), out=likeness)
    return np.minimum(likeness, 1.0, out=likeness).reshape(slots.shape)


def best_query_words(index: Segment, words: Ints, sense: QueryFeatures) -> Iterator[tuple[int, str]]:
    """The word of the query, by its place, that asks most for each word of a tool, and how: exact, synonym, meaning."""
    nearest = index.words.coarse.whole(words[:, None], sense.coarse).argmax(axis=0).tolist()
    known = _query_stems(index, sense)
    for stem_number, near in zip(index.words.stems.take(words).tolist(), nearest, strict=True):
        met = known.get(stem_number, -1)
        if met < 0:
            yield near, "meaning"
        else:
            yield met % SYNONYM_FLAG, "synonym" if met >= SYNONYM_FLAG else "exact"


def _query_stems(index: Segment, sense: QueryFeatures) -> dict[int, int]:
    """The numbers of the stems that are asked for, and the first word of the query that asks for each, by place.

    For those of its synonyms, the place and `SYNONYM`.
    """
    numbers = index.vocabulary.stem_numbers
    places = range(len(sense.words) - 1, -1, -1)
    found = {
        numbers[root]: place + SYNONYM_FLAG for place in places for root in sense.related[place] if root in numbers
    }
    for place in places:
        number = numbers.get(stem(sense.words[place]))
        if number is not None:
            found[number] = place
    return found


def _phrase_signal(index: Segment, rows: CandidateRows, sense: QueryFeatures) -> Doubles:
    met = [*matching_pairs(index, sense)]
    if not met:
        return np.zeros(rows.count)
    at, tools = rows.among(np.concatenate([positions for _, positions in met]))
    weights = np.array([weight for (_, _, weight), _ in met]).repeat([len(positions) for _, positions in met])
    return np.bincount(tools, weights.take(at), rows.count) / sum([weight for _, _, weight in sense.pairs.values()])


def matching_pairs(index: Segment, sense: QueryFeatures) -> Iterator[tuple[tuple[str, str, float], Ints]]:
    """The neighbouring words of a query that are neighbours in some tool, and those tools."""
    wanted = np.array([*sense.pairs], dtype=np.uint64)
    keys = index.features.pair_keys
    starts, stops = keys.searchsorted(wanted), keys.searchsorted(wanted, side="right")
    for pair, start, stop in zip(sense.pairs.values(), starts.tolist(), stops.tolist(), strict=True):
        if start < stop:
            yield pair, index.features.pair_positions[start:stop]


def _word_counts(clauses: Sequence[Sequence[str]], words: Sequence[str]) -> Floats:
    """How often each word stands in each clause."""
    number = {word: place for place, word in enumerate(words)}
    counts = [[0] * len(words) for _ in clauses]
    for row, clause in zip(counts, clauses, strict=True):
        for word in clause:
            row[number[word]] += 1
    return np.array(counts, dtype=np.float32)


def _query_pairs(clauses: Sequence[Sequence[str]], weight: Mapping[str, float]) -> dict[int, tuple[str, str, float]]:
    words = [word for clause in clauses for word in clause if word in weight]
    keys = {word: stem_key(stem(word)) for word in weight}
    return {
        pair_key(keys[first], keys[second]): (first, second, weight[first] + weight[second])
        for first, second in pairwise(words)
    }


def _leading_verb(clause: Sequence[str]) -> str:
    """The verb that a clause begins with, or nearly so."""
    left = _MAX_VERB_PLACE
    for word in clause:
        if word not in STOP_WORDS:
            if _verb_kinds(word):
                return word
            left -= 1
            if not left:
                break
    return ""


def matching_verb(sense: QueryFeatures, verbs: int) -> str:
    """The verb of the query that does what a tool does; its first one where none does."""
    return next((head for head in sense.heads if _verb_kinds(head) & verbs), sense.heads[0])


@lru_cache(maxsize=16_384)
def _verb_kinds(word: str) -> int:
    return VERB_KINDS.get(word, 0) | VERB_KINDS.get(stem(word), 0)
