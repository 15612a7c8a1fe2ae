"""The second stage: what speaks for each of the few tools that reached it.

Every signal is 0 to 1, but `verb`, which is -1 to 1, and `meaning` and `topic`, which are cosines.
Source of the set of signals: a research prototype, where each was kept because leaving it out lost on sets it had not
seen. Here the words of a tool weigh what the static table says, the same in every catalog.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, reduce
from itertools import chain, pairwise
from operator import or_

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import NAME_WORDS
from toolcrib.search.features import SLOTS, pair_key, stem_key
from toolcrib.search.kinds import VERBS
from toolcrib.search.lexical import Met, Rows
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.meaning import Meaning, finite
from toolcrib.search.options import SearchOptions, Weights
from toolcrib.search.quantized import Query as Vectors
from toolcrib.search.quantized import directions
from toolcrib.search.quantized import query as vectors_of
from toolcrib.search.query import Query
from toolcrib.search.segment import Segment
from toolcrib.search.text import STOP_WORDS, stem
from toolcrib.search.view import Part

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

NAMES = tuple(item.name for item in fields(Weights))
"""The signals, in the order of columns."""
_AT = {name: place for place, name in enumerate(NAMES)}

_UNLIKE = 0.3
"""Cosine of two words below which they have nothing in common. Source: the prototype."""

SYNONYM = 1 << 16
"""Added to the place of a word whose synonym is meant."""

_HEAD_WORDS = 3
"""Telling words of a clause, from its start, among which its verb is looked for: "first, please find"."""


@dataclass(frozen=True, slots=True)
class Sense:
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


def sense(query: Query, corrected: dict[str, str], meaning: Meaning, lexicon: Lexicon, options: SearchOptions) -> Sense:
    """Read the meaning of a query."""
    clauses: Sequence[Sequence[str]] = query.clauses
    if corrected:
        clauses = [[corrected.get(word, word) for word in clause] for clause in clauses]
    known = tuple(dict.fromkeys(chain.from_iterable(clauses)))
    said = meaning.rows.of(known)
    counts = _counts(clauses, known)
    sums = np.concatenate([np.minimum(counts, 1) @ said.vectors, counts @ said.vectors])
    if meaning.embedder is None:
        topic, texts = directions(sums).split(len(clauses))
    else:
        topic = directions(sums[: len(clauses)])
        texts = vectors_of(finite(meaning.embedder.embed([*map(" ".join, clauses)])))
    telling = [place for place, word in enumerate(known) if word not in STOP_WORDS] or list(range(len(known)))
    words = tuple([known[place] for place in telling])
    rows = np.array(telling, dtype=np.intp)
    return Sense(
        words=words,
        related=tuple([lexicon.stems(word) for word in words]),
        synonym=options.synonym_weight,
        meaning=texts,
        topic=topic,
        coarse=said.coarse.take(rows),
        pairs=_pairs(clauses, dict(zip(words, said.weights.take(rows).tolist(), strict=True))),
        heads=tuple(filter(_verb, map(_head, clauses))),
        clauses=len(clauses),
    )


@dataclass(frozen=True, slots=True)
class Judged:
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


def judge(part: Part, number: int, met: Met, query: Query, sense: Sense, positions: Ints) -> Judged:
    """The signals of the tools at some positions of a part."""
    index, count = part.index, len(positions)
    if not count:
        none = np.zeros(0, dtype=np.intp)
        return Judged(positions, np.zeros((0, len(NAMES))), none, np.zeros((0, SLOTS)), np.zeros((len(met.known), 0)))
    features = index.features
    rows = Rows(positions, len(index))
    columns = np.zeros((len(NAMES), count))
    near = features.meaning.products(positions, sense.meaning)
    clause = near.argmax(axis=0)
    covered = met.postings[number].covered(rows, len(met.known))
    if met.total > 0:
        columns[_AT["coverage"]] = np.ascontiguousarray(covered.T).sum(axis=1) / met.total
    columns[_AT["meaning"]] = near.max(axis=0)
    columns[_AT["topic"]] = features.topic.products(positions, sense.topic).max(axis=0)
    likeness = _likeness(index, features.slots[positions], sense)
    shares = likeness * features.shares[positions]
    columns[_AT["name"]] = shares[:, :NAME_WORDS].sum(axis=1)
    columns[_AT["sentence"]] = shares[:, NAME_WORDS:].sum(axis=1)
    if sense.pairs:
        columns[_AT["phrase"]] = _phrases(index, rows, sense)
    if query.literals:
        taken = np.bitwise_count(features.literals[positions] & np.uint16(query.literals))
        columns[_AT["literal"]] = taken / query.literals.bit_count()
    if sense.heads:
        verbs = features.verbs[positions]
        asked_for = reduce(or_, map(_verb, sense.heads))
        columns[_AT["verb"]] = np.where(verbs == 0, 0, np.where(verbs & asked_for, 1, -1))
    for item in met.names:
        _, tools = rows.among(item.ways[0].tools[number])
        columns[_AT["named" if item.term.spelt else "called"], tools] = 1.0
    return Judged(positions, np.ascontiguousarray(columns.T), clause, likeness, covered)


def has(postings: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
    """Which of the positions are among some postings, which are sorted."""
    if not len(postings):
        return np.zeros(len(positions), dtype=np.bool_)
    at = np.minimum(postings.searchsorted(positions), len(postings) - 1)
    same: npt.NDArray[np.bool_] = postings[at] == positions
    return same


def _likeness(index: Segment, slots: Ints, sense: Sense) -> Doubles:
    """How much of each word of a tool the query asks for; 0 where there is no word."""
    if not sense.words or not len(slots):
        return np.zeros(slots.shape)
    coarse, words = index.words.coarse, slots.ravel()
    likeness: Doubles = coarse.whole(slots, sense.coarse).max(axis=0) * coarse.scales.take(words)
    likeness -= _UNLIKE
    likeness /= 1 - _UNLIKE
    least = np.zeros(len(index.vocabulary.stems) + 1)  # the last one is of no word
    for stem_number, place in _known(index, sense).items():
        least[stem_number] = sense.synonym if place >= SYNONYM else 1.0
    np.maximum(likeness, least.take(index.words.stems.take(words)), out=likeness)
    return np.minimum(likeness, 1.0, out=likeness).reshape(slots.shape)


def asking(index: Segment, words: Ints, sense: Sense) -> Iterator[tuple[int, str]]:
    """The word of the query, by its place, that asks most for each word of a tool, and how: exact, synonym, meaning."""
    nearest = index.words.coarse.whole(words[:, None], sense.coarse).argmax(axis=0).tolist()
    known = _known(index, sense)
    for stem_number, near in zip(index.words.stems.take(words).tolist(), nearest, strict=True):
        met = known.get(stem_number, -1)
        if met < 0:
            yield near, "meaning"
        else:
            yield met % SYNONYM, "synonym" if met >= SYNONYM else "exact"


def _known(index: Segment, sense: Sense) -> dict[int, int]:
    """The numbers of the stems that are asked for, and the first word of the query that asks for each, by place.

    For those of its synonyms, the place and `SYNONYM`.
    """
    numbers = index.vocabulary.stem_numbers
    places = range(len(sense.words) - 1, -1, -1)
    found = {numbers[root]: place + SYNONYM for place in places for root in sense.related[place] if root in numbers}
    for place in places:
        number = numbers.get(stem(sense.words[place]))
        if number is not None:
            found[number] = place
    return found


def _phrases(index: Segment, rows: Rows, sense: Sense) -> Doubles:
    met = [*phrases(index, sense)]
    if not met:
        return np.zeros(rows.count)
    at, tools = rows.among(np.concatenate([positions for _, positions in met]))
    weights = np.array([weight for (_, _, weight), _ in met]).repeat([len(positions) for _, positions in met])
    return np.bincount(tools, weights.take(at), rows.count) / sum([weight for _, _, weight in sense.pairs.values()])


def phrases(index: Segment, sense: Sense) -> Iterator[tuple[tuple[str, str, float], Ints]]:
    """The neighbouring words of a query that are neighbours in some tool, and those tools."""
    wanted = np.array([*sense.pairs], dtype=np.uint64)
    keys = index.features.pair_keys
    starts, stops = keys.searchsorted(wanted), keys.searchsorted(wanted, side="right")
    for pair, start, stop in zip(sense.pairs.values(), starts.tolist(), stops.tolist(), strict=True):
        if start < stop:
            yield pair, index.features.pair_positions[start:stop]


def _counts(clauses: Sequence[Sequence[str]], words: Sequence[str]) -> Floats:
    """How often each word stands in each clause."""
    number = {word: place for place, word in enumerate(words)}
    counts = [[0] * len(words) for _ in clauses]
    for row, clause in zip(counts, clauses, strict=True):
        for word in clause:
            row[number[word]] += 1
    return np.array(counts, dtype=np.float32)


def _pairs(clauses: Sequence[Sequence[str]], weight: Mapping[str, float]) -> dict[int, tuple[str, str, float]]:
    words = [word for clause in clauses for word in clause if word in weight]
    keys = {word: stem_key(stem(word)) for word in weight}
    return {
        pair_key(keys[first], keys[second]): (first, second, weight[first] + weight[second])
        for first, second in pairwise(words)
    }


def _head(clause: Sequence[str]) -> str:
    """The verb that a clause begins with, or nearly so."""
    left = _HEAD_WORDS
    for word in clause:
        if word not in STOP_WORDS:
            if _verb(word):
                return word
            left -= 1
            if not left:
                break
    return ""


def head_for(sense: Sense, verbs: int) -> str:
    """The verb of the query that does what a tool does; its first one where none does."""
    return next((head for head in sense.heads if _verb(head) & verbs), sense.heads[0])


@lru_cache(maxsize=16_384)
def _verb(word: str) -> int:
    return VERBS.get(word, 0) | VERBS.get(stem(word), 0)
