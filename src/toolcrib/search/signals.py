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
"""Two words with a cosine below this have nothing in common. Source: the prototype."""

SYNONYM_FLAG = 1 << 16
"""Added to the number of a query word when its synonym matched."""

_MAX_VERB_PLACE = 3
"""The verb of a clause is among so many first content words: "first, please find"."""


@dataclass(frozen=True, slots=True)
class QueryMeaning:
    """The meaning of a query: the vectors of its clauses and words, its word pairs and verbs."""

    words: tuple[str, ...]
    """Its content words, each once, with spelling corrected."""
    synonym_stems: tuple[tuple[str, ...], ...]
    """The stems of the synonyms of each word."""
    synonym_weight: float
    """The least similarity of a word and its synonym."""
    vectors: Vectors
    """The vector of each clause."""
    topic_vectors: Vectors
    """The vector of each clause with repeated words counted once."""
    word_vectors: Vectors
    """The short vector of each word."""
    pairs: dict[int, tuple[str, str, float]]
    """Neighbouring words by the key of their stems: the two words, and their weight."""
    verbs: tuple[str, ...]
    """The verbs at the start of its clauses."""
    clause_count: int


def read_meaning(
    query: ParsedQuery, corrected: dict[str, str], model: SemanticModel, lexicon: Lexicon, options: SearchOptions
) -> QueryMeaning:
    """Compute the meaning of a query."""
    clauses: Sequence[Sequence[str]] = query.clauses
    if corrected:
        clauses = [[corrected.get(word, word) for word in clause] for clause in clauses]
    distinct = tuple(dict.fromkeys(chain.from_iterable(clauses)))
    known = model.word_vectors.get(distinct)
    counts = _word_counts(clauses, distinct)
    sums = np.concatenate([np.minimum(counts, 1) @ known.vectors, counts @ known.vectors])
    if model.embedder is None:
        topics, vectors = quantize_unit_vectors(sums).split(len(clauses))
    else:
        topics = quantize_unit_vectors(sums[: len(clauses)])
        vectors = vectors_of(zero_non_finite(model.embedder.embed([*map(" ".join, clauses)])))
    content = [place for place, word in enumerate(distinct) if word not in STOP_WORDS] or list(range(len(distinct)))
    words = tuple([distinct[place] for place in content])
    rows = np.array(content, dtype=np.intp)
    return QueryMeaning(
        words=words,
        synonym_stems=tuple([lexicon.synonym_stems(word) for word in words]),
        synonym_weight=options.synonym_weight,
        vectors=vectors,
        topic_vectors=topics,
        word_vectors=known.coarse.take(rows),
        pairs=_query_pairs(clauses, dict(zip(words, known.weights.take(rows).tolist(), strict=True))),
        verbs=tuple(filter(_verb_kinds, map(_leading_verb, clauses))),
        clause_count=len(clauses),
    )


@dataclass(frozen=True, slots=True)
class CandidateSignals:
    """The signals of some candidates in one part."""

    positions: Ints
    signals: Doubles
    """float64[tools, signals]."""
    nearest_clause: npt.NDArray[np.intp]
    """The clause of the query that each tool is nearest to."""
    likeness: Doubles
    """float64[tools, slots]: how closely the query asks for each word of the name and first sentence, 0 to 1."""
    covered_idf: Doubles
    """float64[terms, tools]: the idf of each term that each tool covers."""


def compute_signals(
    part: SegmentView, number: int, match: LexicalMatch, query: ParsedQuery, meaning: QueryMeaning, positions: Ints
) -> CandidateSignals:
    """Compute the signals of the tools at some positions of a part."""
    segment, count = part.segment, len(positions)
    if not count:
        none = np.zeros(0, dtype=np.intp)
        return CandidateSignals(
            positions, np.zeros((0, len(SIGNALS))), none, np.zeros((0, WORD_SLOTS)), np.zeros((len(match.terms), 0))
        )
    features = segment.features
    rows = CandidateRows(positions, len(segment))
    columns = np.zeros((len(SIGNALS), count))
    near = features.meaning.products(positions, meaning.vectors)
    clause = near.argmax(axis=0)
    covered = match.postings[number].covered_idf(rows, len(match.terms))
    if match.total_idf > 0:
        columns[_COLUMN["coverage"]] = np.ascontiguousarray(covered.T).sum(axis=1) / match.total_idf
    columns[_COLUMN["meaning"]] = near.max(axis=0)
    columns[_COLUMN["topic"]] = features.topic.products(positions, meaning.topic_vectors).max(axis=0)
    likeness = _word_likeness(segment, features.slots[positions], meaning)
    shares = likeness * features.shares[positions]
    columns[_COLUMN["name"]] = shares[:, :MAX_NAME_WORDS].sum(axis=1)
    columns[_COLUMN["sentence"]] = shares[:, MAX_NAME_WORDS:].sum(axis=1)
    if meaning.pairs:
        columns[_COLUMN["phrase"]] = _phrase_signal(segment, rows, meaning)
    if query.literals:
        taken = np.bitwise_count(features.literals[positions] & np.uint16(query.literals))
        columns[_COLUMN["literal"]] = taken / query.literals.bit_count()
    if meaning.verbs:
        verbs = features.verbs[positions]
        asked_for = reduce(or_, map(_verb_kinds, meaning.verbs))
        columns[_COLUMN["verb"]] = np.where(verbs == 0, 0, np.where(verbs & asked_for, 1, -1))
    for item in match.names:
        _, tools = rows.locate(item.expansions[0].tools[number])
        columns[_COLUMN["named" if item.term.is_explicit else "called"], tools] = 1.0
    return CandidateSignals(positions, np.ascontiguousarray(columns.T), clause, likeness, covered)


def is_among(postings: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
    """Mark the positions that are among sorted postings."""
    if not len(postings):
        return np.zeros(len(positions), dtype=np.bool_)
    at = np.minimum(postings.searchsorted(positions), len(postings) - 1)
    same: npt.NDArray[np.bool_] = postings[at] == positions
    return same


def _word_likeness(segment: Segment, slots: Ints, meaning: QueryMeaning) -> Doubles:
    """How closely the query asks for each word of a tool, 0 to 1; 0 for no word."""
    if not meaning.words or not len(slots):
        return np.zeros(slots.shape)
    coarse, words = segment.words.coarse, slots.ravel()
    likeness: Doubles = coarse.unscaled_products(slots, meaning.word_vectors).max(axis=0) * coarse.scales.take(words)
    likeness -= _MIN_WORD_COSINE
    likeness /= 1 - _MIN_WORD_COSINE
    least = np.zeros(len(segment.vocabulary.stems) + 1)  # the last one is of no word
    for stem_number, place in _query_stems(segment, meaning).items():
        least[stem_number] = meaning.synonym_weight if place >= SYNONYM_FLAG else 1.0
    np.maximum(likeness, least.take(segment.words.stems.take(words)), out=likeness)
    return np.minimum(likeness, 1.0, out=likeness).reshape(slots.shape)


def best_query_words(segment: Segment, words: Ints, meaning: QueryMeaning) -> Iterator[tuple[int, str]]:
    """Find the query word, by number, that asks most for each word of a tool, and how: exact, synonym or meaning."""
    nearest = segment.words.coarse.unscaled_products(words[:, None], meaning.word_vectors).argmax(axis=0).tolist()
    known = _query_stems(segment, meaning)
    for stem_number, near in zip(segment.words.stems.take(words).tolist(), nearest, strict=True):
        number = known.get(stem_number, -1)
        if number < 0:
            yield near, "meaning"
        else:
            yield number % SYNONYM_FLAG, "synonym" if number >= SYNONYM_FLAG else "exact"


def _query_stems(segment: Segment, meaning: QueryMeaning) -> dict[int, int]:
    """Map the numbers of the stems that the query asks for to the number of its first word with that stem.

    For the stem of a synonym, `SYNONYM_FLAG` is added.
    """
    numbers = segment.vocabulary.stem_numbers
    places = range(len(meaning.words) - 1, -1, -1)
    stems = {
        numbers[root]: place + SYNONYM_FLAG
        for place in places
        for root in meaning.synonym_stems[place]
        if root in numbers
    }
    for place in places:
        number = numbers.get(stem(meaning.words[place]))
        if number is not None:
            stems[number] = place
    return stems


def _phrase_signal(segment: Segment, rows: CandidateRows, meaning: QueryMeaning) -> Doubles:
    found = [*matching_pairs(segment, meaning)]
    if not found:
        return np.zeros(rows.count)
    at, tools = rows.locate(np.concatenate([positions for _, positions in found]))
    weights = np.array([weight for (_, _, weight), _ in found]).repeat([len(positions) for _, positions in found])
    return np.bincount(tools, weights.take(at), rows.count) / sum([weight for _, _, weight in meaning.pairs.values()])


def matching_pairs(segment: Segment, meaning: QueryMeaning) -> Iterator[tuple[tuple[str, str, float], Ints]]:
    """Yield the neighbouring words of a query that are neighbours in some tool, and the positions of these tools."""
    wanted = np.array([*meaning.pairs], dtype=np.uint64)
    keys = segment.features.pair_keys
    starts, stops = keys.searchsorted(wanted), keys.searchsorted(wanted, side="right")
    for pair, start, stop in zip(meaning.pairs.values(), starts.tolist(), stops.tolist(), strict=True):
        if start < stop:
            yield pair, segment.features.pair_positions[start:stop]


def _word_counts(clauses: Sequence[Sequence[str]], words: Sequence[str]) -> Floats:
    """Count how often each word occurs in each clause."""
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
    """The verb near the start of a clause, or an empty text."""
    left = _MAX_VERB_PLACE
    for word in clause:
        if word not in STOP_WORDS:
            if _verb_kinds(word):
                return word
            left -= 1
            if not left:
                break
    return ""


def matching_verb(meaning: QueryMeaning, verbs: int) -> str:
    """The verb of the query that does what a tool does, or its first verb if none does."""
    return next((head for head in meaning.verbs if _verb_kinds(head) & verbs), meaning.verbs[0])


@lru_cache(maxsize=16_384)
def _verb_kinds(word: str) -> int:
    return VERB_KINDS.get(word, 0) | VERB_KINDS.get(stem(word), 0)
