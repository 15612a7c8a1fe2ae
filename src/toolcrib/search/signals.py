"""The second stage: what speaks for each of the few tools that reached it.

Every signal is 0 to 1, but `verb`, which is -1 to 1, and `meaning` and `topic`, which are cosines.
Source of the set of signals: a research prototype, where each was kept because leaving it out lost on sets it had not
seen. Here the words of a tool weigh what the static table says, the same in every catalog.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import chain, islice, pairwise
from operator import or_

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import NAME_WORDS
from toolcrib.search.features import COARSE, pair_key
from toolcrib.search.kinds import VERBS
from toolcrib.search.lexical import Met
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
    stems: dict[str, int]
    """Their stems, and the first word of each, by place; then those of their synonyms, the place and `SYNONYM`."""
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
    vectors, weights = meaning.table.words(known), meaning.weights(known)
    counts = _counts(clauses, known)
    sums = np.concatenate([np.minimum(counts, 1) @ vectors, counts @ vectors])
    if meaning.embedder is None:
        topic, texts = directions(sums).split(len(clauses))
    else:
        topic = directions(sums[: len(clauses)])
        texts = vectors_of(finite(meaning.embedder.embed([*map(" ".join, clauses)])))
    telling = [place for place, word in enumerate(known) if word not in STOP_WORDS] or list(range(len(known)))
    words = tuple([known[place] for place in telling])
    return Sense(
        words=words,
        stems=_stems(words, lexicon),
        synonym=options.synonym_weight,
        meaning=texts,
        topic=topic,
        coarse=directions(vectors[telling, :COARSE]),
        pairs=_pairs(clauses, dict(zip(words, weights[telling].tolist(), strict=True))),
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
    index = part.index
    rows = index.features
    found = np.zeros((len(positions), len(NAMES)))
    near = rows.meaning.products(positions, sense.meaning)
    clause = near.argmax(axis=1)
    covered = met.postings[number].covered(positions, len(index), len(met.known))
    if met.total > 0:
        found[:, _AT["coverage"]] = np.ascontiguousarray(covered.T).sum(axis=1) / met.total
    found[:, _AT["meaning"]] = near[np.arange(len(near)), clause]
    found[:, _AT["topic"]] = rows.topic.products(positions, sense.topic).max(axis=1)
    likeness = _likeness(index, rows.slots[positions], sense)
    shares = likeness * rows.shares[positions]
    found[:, _AT["name"]] = shares[:, :NAME_WORDS].sum(axis=1)
    found[:, _AT["sentence"]] = shares[:, NAME_WORDS:].sum(axis=1)
    if sense.pairs:
        found[:, _AT["phrase"]] = _phrases(index, positions, sense)
    if query.literals:
        taken = np.bitwise_count(rows.literals[positions] & np.uint16(query.literals))
        found[:, _AT["literal"]] = taken / query.literals.bit_count()
    if sense.heads:
        verbs = rows.verbs[positions]
        asked_for = reduce(or_, map(_verb, sense.heads))
        found[:, _AT["verb"]] = np.where(verbs == 0, 0, np.where(verbs & asked_for, 1, -1))
    for item in met.names:
        start, stop = item.ways[0].spans[number]
        column = found[:, _AT["named" if item.term.spelt else "called"]]
        column[has(index.positions[start:stop], positions)] = 1.0
    return Judged(positions, found, clause, likeness, covered)


def has(postings: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
    """Which of the positions are among some postings, which are sorted."""
    if not len(postings):
        return np.zeros(len(positions), dtype=np.bool_)
    at = np.minimum(postings.searchsorted(positions), len(postings) - 1)
    same: npt.NDArray[np.bool_] = postings[at] == positions
    return same


def _likeness(index: Segment, slots: Ints, sense: Sense) -> Doubles:
    """How much of each word of a tool the query asks for."""
    taken = slots >= 0
    words = slots[taken]
    likeness = np.zeros(slots.shape)
    if sense.words and len(words):
        cosines = index.words.coarse.whole(words, sense.coarse).max(axis=1) * index.words.coarse.scales.take(words)
        cosines -= _UNLIKE
        cosines /= 1 - _UNLIKE
        met = _met(index, words, sense)
        np.maximum(cosines, sense.synonym, out=cosines, where=met >= SYNONYM)
        cosines[(met >= 0) & (met < SYNONYM)] = 1.0
        likeness[taken] = np.clip(cosines, 0.0, 1.0, out=cosines)
    return likeness


def asking(index: Segment, words: Ints, sense: Sense) -> Iterator[tuple[int, str]]:
    """The word of the query, by its place, that asks most for each word of a tool, and how: exact, synonym, meaning."""
    nearest = index.words.coarse.whole(words, sense.coarse).argmax(axis=1).tolist()
    for met, near in zip(_met(index, words, sense).tolist(), nearest, strict=True):
        if met < 0:
            yield near, "meaning"
        else:
            yield met % SYNONYM, "synonym" if met >= SYNONYM else "exact"


def _stems(words: Sequence[str], lexicon: Lexicon) -> dict[str, int]:
    places = range(len(words) - 1, -1, -1)
    related = {root: place + SYNONYM for place in places for root in lexicon.stems(words[place])}
    return related | {stem(words[place]): place for place in places}


def _met(index: Segment, words: Ints, sense: Sense) -> npt.NDArray[np.intp]:
    """What `Sense.stems` has for each word of a tool; -1 where nothing."""
    known = index.vocabulary.stem_numbers
    found = sorted((known[root], place) for root, place in sense.stems.items() if root in known)
    if not found:
        return np.full(len(words), -1)
    numbers, places = np.array(found, dtype=np.intp).T
    stems = index.words.stems.take(words)
    at = np.minimum(numbers.searchsorted(stems), len(numbers) - 1)
    return np.where(numbers[at] == stems, places[at], -1)


def _phrases(index: Segment, positions: Ints, sense: Sense) -> Doubles:
    found = np.zeros(len(positions))
    for (_, _, weight), at in phrases(index, sense):
        found += weight * has(at, positions)
    return found / sum(weight for _, _, weight in sense.pairs.values())


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
    counts = np.zeros((len(clauses), len(words)), dtype=np.float32)
    number = {word: place for place, word in enumerate(words)}
    for row, clause in enumerate(clauses):
        for word in clause:
            counts[row, number[word]] += 1
    return counts


def _pairs(clauses: Sequence[Sequence[str]], weight: Mapping[str, float]) -> dict[int, tuple[str, str, float]]:
    words = [word for clause in clauses for word in clause if word in weight]
    found = {}
    for first, second in pairwise(words):
        found[pair_key(stem(first), stem(second))] = (first, second, weight[first] + weight[second])
    return found


def _head(clause: Sequence[str]) -> str:
    """The verb that a clause begins with, or nearly so."""
    telling = islice((word for word in clause if word not in STOP_WORDS), _HEAD_WORDS)
    return next(filter(_verb, telling), "")


def head_for(sense: Sense, verbs: int) -> str:
    """The verb of the query that does what a tool does; its first one where none does."""
    return next((head for head in sense.heads if _verb(head) & verbs), sense.heads[0])


def _verb(word: str) -> int:
    return VERBS.get(word, 0) | VERBS.get(stem(word), 0)
