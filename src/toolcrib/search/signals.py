"""The second stage: compute the signals of each candidate.

Every signal is 0 to 1, except `verb`, which is -1 to 1, and `meaning`, `topic` and `embedding`, which are cosines.
Source of the set of signals: a research prototype, which kept a signal only if leaving it out lost on sets it had not
seen. Here the weight of a tool's word comes from the static table and is the same in every catalog.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, reduce
from itertools import chain, pairwise
from operator import and_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.search.analysis import MAX_NAME_WORDS
from toolcrib.search.embedder import Embedder
from toolcrib.search.embedding import MAX_REQUEST, zero_non_finite
from toolcrib.search.features import WORD_SLOTS, SemanticModel, stem_key
from toolcrib.search.index import SegmentView
from toolcrib.search.intent import Intent, read_intent
from toolcrib.search.lexical import CandidateRows, LexicalMatch
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions, SignalWeights
from toolcrib.search.past import PastMatch
from toolcrib.search.segment import Segment
from toolcrib.search.text import STOP_WORDS, TOKEN, ParsedQuery, WordMemo, stem
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
_MEANING_OF_COVERAGE = 0.8
"""Where the meaning of words is unknown, a cosine is taken to be so many times the coverage."""
_DESCRIBED_OBJECT = 0.7
"""What the object of a request counts in the first sentence of the description, relative to the name."""


class QueryMeaning(NamedTuple):
    """The meaning of a query: the vectors of its clauses and words, its word pairs and verbs."""

    words: tuple[str, ...]
    """Its content words, each once, with spelling corrected."""
    stems: tuple[str, ...]
    """The stem of each word."""
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
    intents: tuple[Intent, ...]
    """What its clauses want done; only those with a verb."""
    objects: tuple[int, ...]
    """The numbers of the words that they are about."""
    clause_count: int
    embedded: Vectors | None
    """The embedder's vector of the whole query; None without an embedder, or if it knows nothing about the query."""
    unread: float
    """The share of its words whose meaning is unknown, since they are in another language."""


def read_meaning(
    query: ParsedQuery,
    match: LexicalMatch,
    model: SemanticModel,
    lexicon: Lexicon,
    options: SearchOptions,
    embedded: Mapping[str, Floats] | None = None,
) -> QueryMeaning:
    """Compute the meaning of a query. A word that no tool has is read as its synonym, except for what is to be done.

    `embedded` has the embedder's vectors by `request_text`; None computes the vector here.
    """
    clauses = _replace_words(_without_words(query.clauses, match.fillers), match.corrected)
    english = _english_readings(clauses, model)
    intents = [*map(read_intent, _replace_words(clauses, english))]
    objects = {one for intent in intents for one in intent.objects}
    if english or match.replaced:
        written = [word for clause in clauses for word in clause if english.get(word, word) in objects]
        objects = {match.replaced.get(word, word) for word in written}
    clauses = _replace_words(clauses, match.replaced)
    distinct = [*dict.fromkeys(chain.from_iterable(clauses))]
    content = [place for place, word in enumerate(distinct) if word not in STOP_WORDS] or range(len(distinct))
    words = tuple([distinct[place] for place in content])
    stems, keys = zip(*map(_ROOTS.__getitem__, words), strict=True) if words else ((), ())
    known = model.word_vectors.get(distinct, content)
    topics, vectors = _clause_vectors(clauses, distinct, known.vectors)
    unread = 0.0 if query.text.isascii() or not words else _unread_share(known.vectors[[*content]])
    return QueryMeaning(
        words=words,
        stems=stems,
        synonym_stems=tuple(map(lexicon.stems_of_synonyms, words)),
        synonym_weight=options.synonym_weight,
        vectors=vectors,
        topic_vectors=topics,
        word_vectors=known.coarse,
        pairs=_query_pairs(clauses, words, keys, known.weights),
        intents=tuple([intent for intent in intents if intent.verb]),
        objects=tuple([words.index(word) for word in words if word in objects]),
        clause_count=len(clauses),
        unread=max(0.5 if match.fillers else 0.0, unread),
        embedded=None if model.embedder is None else _embed_query(request_text(query, match), model.embedder, embedded),
    )


def _english_readings(clauses: Sequence[Sequence[str]], model: SemanticModel) -> dict[str, str]:
    """An English word for each word of another language, where words are separated by spaces.

    Elsewhere the order of the words says little about what is to be done to what.
    """
    readings = model.readings
    return {word: english for clause in clauses for word in clause if (english := readings[word])}


def request_text(query: ParsedQuery, match: LexicalMatch) -> str:
    """The text of a query for an embedder: as typed, with spelling corrected."""
    text = query.text[:MAX_REQUEST]
    if not match.corrected:
        return text
    return TOKEN.sub(lambda found: match.corrected.get(found.group().lower(), found.group()), text)


def _embed_query(text: str, embedder: Embedder, embedded: Mapping[str, Floats] | None) -> Vectors | None:
    found = embedder.embed([text])[0] if embedded is None else embedded.get(text)
    if found is None:
        return None
    vectors = zero_non_finite(found[None, :])
    return vectors_of(vectors) if vectors.any() else None


def _unread_share(vectors: Floats) -> float:
    """The share of words in another script than the table's; vectors of words in it are never 0."""
    return float(1 - vectors.any(axis=1).mean())


def _without_words(clauses: Sequence[Sequence[str]], words: frozenset[str]) -> Sequence[Sequence[str]]:
    """Leave some words out, unless no others remain."""
    if not words:
        return clauses
    left = [[word for word in clause if word not in words] for clause in clauses]
    return [clause for clause in left if clause] or clauses


def _replace_words(clauses: Sequence[Sequence[str]], by: Mapping[str, str]) -> Sequence[Sequence[str]]:
    return [[by.get(word, word) for word in clause] for clause in clauses] if by else clauses


class CandidateSignals(NamedTuple):
    """The signals of some candidates in one part."""

    positions: Ints
    signals: Doubles
    """float64[tools, signals]."""
    nearest_clause: npt.NDArray[np.intp]
    """The clause of the query that each tool is nearest to."""
    likeness: Doubles
    """float64[tools, slots]: how closely the query asks for each word of the name and first sentence, 0 to 1."""
    objects: Doubles | None
    """The same for the objects of the query alone, less in the first sentence; None for a query without any."""
    covered_idf: Doubles
    """float64[tools, terms]: the idf of each term that each tool covers."""


def compute_signals(
    part: SegmentView,
    number: int,
    match: LexicalMatch,
    query: ParsedQuery,
    meaning: QueryMeaning,
    positions: Ints,
    near: Doubles,
    past: PastMatch | None = None,
) -> CandidateSignals:
    """Compute the signals of the tools at some positions of a part.

    near: float64[clauses, tools], the cosines of the query's clauses and these tools.
    """
    segment, count = part.segment, len(positions)
    if not count:
        none, no_slots = np.zeros(0, dtype=np.intp), np.zeros((0, WORD_SLOTS))
        covered = np.zeros((0, len(match.terms)))
        return CandidateSignals(positions, np.zeros((0, len(SIGNALS))), none, no_slots, None, covered)
    features = segment.features
    rows = CandidateRows(positions, len(segment))
    columns = np.zeros((len(SIGNALS), count))
    covered = match.postings[number].covered_idf(rows)
    if match.total_idf > 0:
        np.divide(np.add.reduce(covered, axis=1), match.total_idf, out=columns[_COLUMN["coverage"]])
    np.maximum.reduce(near, axis=0, out=columns[_COLUMN["meaning"]])
    if meaning.embedded is not None:
        columns[_COLUMN["embedding"]] = _embedding_signal(
            part, positions, meaning.embedded, columns[_COLUMN["meaning"]]
        )
    topics = features.topic.products(positions, meaning.topic_vectors)
    np.maximum.reduce(topics, axis=0, out=columns[_COLUMN["topic"]])
    if meaning.unread:
        _raise_unread(columns, meaning.unread)
    if past is not None:
        columns[_COLUMN["past"]] = past.values(number, positions)
    slots = _slot_words(segment, positions)
    likeness, *about = _word_likeness(segment, slots, count, meaning)
    shares = features.shares.take(positions, axis=0).astype(np.float64)
    shares *= likeness
    np.add.reduce(shares[:, :MAX_NAME_WORDS], axis=1, out=columns[_COLUMN["name"]])
    np.add.reduce(shares[:, MAX_NAME_WORDS:], axis=1, out=columns[_COLUMN["sentence"]])
    if meaning.pairs:
        columns[_COLUMN["phrase"]] = _phrase_signal(segment, rows, meaning)
    if query.literals:
        taken = np.bitwise_count(features.literals[positions] & np.uint16(query.literals))
        columns[_COLUMN["literal"]] = taken / query.literals.bit_count()
    if meaning.intents:
        columns[_COLUMN["verb"]] = _verb_signal(segment, features.verbs.take(positions).tolist(), slots, meaning)
    for asked in about:
        asked[:, MAX_NAME_WORDS:] *= _DESCRIBED_OBJECT
        np.maximum.reduce(asked, axis=1, out=columns[_COLUMN["object"]])
    for item in match.names:
        _, tools = rows.locate(item.expansions[0].tools[number])
        columns[_COLUMN["named" if item.term.is_explicit else "called"], tools] = 1.0
    clause = near.argmax(axis=0) if len(near) > 1 else np.zeros(count, dtype=np.intp)
    objects = about[0] if about else None
    return CandidateSignals(positions, np.ascontiguousarray(columns.T), clause, likeness, objects, covered)


def _raise_unread(columns: Doubles, share: float) -> None:
    """Guess what the words of a query whose meaning is unknown would add: float64[signals, tools]."""
    for name in ("meaning", "topic"):
        guess = _MEANING_OF_COVERAGE * columns[_COLUMN["coverage"]] - columns[_COLUMN[name]]
        columns[_COLUMN[name]] += share * np.maximum(guess, 0.0)


_USUAL_RATIO = 0.6
"""The cosine of an embedder relative to that of the static table, over the candidates of eight labelled sets."""


def _embedding_signal(part: SegmentView, positions: Ints, query: Vectors, meaning: Doubles) -> Doubles:
    """The cosine of the embedder. A tool without a vector gets the usual value for its `meaning`."""
    tools, model = part.segment.features.embedded, part.segment.model.tools
    known = tools.known(positions)
    found = meaning * _USUAL_RATIO
    if model is not None and known.any():
        found[known] = model.scale.apply(tools.rows.products(positions[known], query)[0])
    return found


def is_among(postings: Ints, positions: Ints) -> npt.NDArray[np.bool_]:
    """Mark the positions that are among sorted postings."""
    if not len(postings):
        return np.zeros(len(positions), dtype=np.bool_)
    at = np.minimum(postings.searchsorted(positions), len(postings) - 1)
    same: npt.NDArray[np.bool_] = postings[at] == positions
    return same


class _SlotWords(NamedTuple):
    """The words in the slots of some tools, one after the other: int[words]."""

    at: npt.NDArray[np.intp]
    """Where each word is in the flattened `slots` of the tools."""
    words: Ints
    stems: Ints


def _slot_words(segment: Segment, positions: Ints) -> _SlotWords:
    slots = segment.features.slots.take(positions, axis=0).ravel()
    at = (slots >= 0).nonzero()[0]
    words = slots.take(at)
    return _SlotWords(at, words, segment.words.stems.take(words))


def _word_likeness(segment: Segment, slots: _SlotWords, count: int, meaning: QueryMeaning) -> Doubles:
    """How closely the query asks for each word of a tool, 0 to 1: float64[groups, tools, slots].

    The first group has all words of the query, the second its objects, if it has any.
    """
    groups = 2 if meaning.objects else 1
    likeness = np.zeros((groups, count * WORD_SLOTS))
    if meaning.words and len(slots.at):
        coarse = segment.words.coarse
        products = coarse.unscaled_products(slots.words, meaning.word_vectors)
        closest = np.empty((groups, len(slots.at)))
        np.maximum.reduce(products, axis=0, out=closest[0])
        if meaning.objects:
            np.maximum.reduce(products.take(meaning.objects, axis=0), axis=0, out=closest[1])
        closest *= (coarse.scales.take(slots.words) / (1 - _MIN_WORD_COSINE)).astype(np.float64)
        closest -= _MIN_WORD_COSINE / (1 - _MIN_WORD_COSINE)
        np.maximum(closest, _least_likeness(segment, slots.stems, meaning), out=closest)
        likeness[:, slots.at] = np.minimum(closest, 1.0, out=closest)
    return likeness.reshape(groups, count, WORD_SLOTS)


def _least_likeness(segment: Segment, stems: Ints, meaning: QueryMeaning) -> Doubles:
    """How much the query asks for words with these stems by equal stems and synonyms: float64[groups, words]."""
    numbers, known = segment.vocabulary.stem_numbers, _synonym_numbers(segment)
    alike = [known[roots] for roots in meaning.synonym_stems]
    kinds = dict.fromkeys(chain.from_iterable(alike), _SYNONYM)
    for place in meaning.objects:
        kinds.update(dict.fromkeys(alike[place], _SYNONYM_OF_OBJECT))
    own = [numbers[root] for root in meaning.stems if root in numbers]
    kinds.update({one: _SAME if kinds.get(one) != _SYNONYM_OF_OBJECT else _SAME_AND_SYNONYM_OF_OBJECT for one in own})
    for root in [meaning.stems[place] for place in meaning.objects]:
        if root in numbers:
            kinds[numbers[root]] = _SAME_AS_OBJECT
    rows = np.zeros(len(numbers), dtype=np.uint8)
    rows[[*kinds]] = np.frombuffer(bytes(kinds.values()), dtype=np.uint8)
    table = _likeness_of_kinds(meaning.synonym_weight)
    return (table if meaning.objects else table[:1]).take(rows.take(stems), axis=1)


_SYNONYM, _SYNONYM_OF_OBJECT, _SAME, _SAME_AND_SYNONYM_OF_OBJECT, _SAME_AS_OBJECT = range(1, 6)
"""What a word of a tool is to the words of a query, and to its objects among them; 0 for nothing."""


@lru_cache(maxsize=16)
def _likeness_of_kinds(synonym_weight: float) -> Doubles:
    """The least likeness of such words and all words of the query, then its objects: float64[2, kinds]."""
    weight = synonym_weight
    table = np.array([[0.0, weight, weight, 1.0, 1.0, 1.0], [0.0, 0.0, weight, 0.0, weight, 1.0]])
    table.flags.writeable = False
    return table


class _SynonymNumbers(dict[tuple[str, ...], tuple[int, ...]]):
    """The numbers of the stems in a segment that are the synonyms of a word, computed on first use."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        super().__init__()
        self._numbers = numbers

    def __missing__(self, roots: tuple[str, ...]) -> tuple[int, ...]:
        if len(self) >= _MAX_SYNONYMS:
            self.clear()
        found = self[roots] = tuple([self._numbers[root] for root in roots if root in self._numbers])
        return found


def _synonym_numbers(segment: Segment) -> _SynonymNumbers:
    """Those of a segment, cached."""
    if "synonym numbers" not in segment.word_memo:
        segment.word_memo["synonym numbers"] = _SynonymNumbers(segment.vocabulary.stem_numbers)
    known: _SynonymNumbers = segment.word_memo["synonym numbers"]
    return known


_MAX_SYNONYMS = 2048
"""Words whose synonyms are cached for each segment."""


def _verb_signal(segment: Segment, named: Sequence[int], slots: _SlotWords, meaning: QueryMeaning) -> list[float]:
    """1 if a tool does what some clause wants done, -1 if its name says something else, 0 if neither is known.

    Less than -1 for a tool that is called what is to be undone, as `git_add` is for "undo git add".
    `named` has the kinds of the verbs in the name of each tool.
    """
    found = [-1.0 if kinds else 0.0 for kinds in named]
    asked = 0
    for intent in meaning.intents:
        asked |= intent.kinds
        number = segment.vocabulary.stem_numbers.get(stem(intent.verb))
        if number is not None:
            at = [divmod(place, WORD_SLOTS) for place in slots.at[slots.stems == number].tolist()]
            for tool, place in at:
                if place >= MAX_NAME_WORDS:
                    found[tool] = 0.5
            for tool, place in at:
                if place < MAX_NAME_WORDS and not named[tool]:
                    found[tool] = 1.0
    contrary = reduce(and_, [intent.contrary for intent in meaning.intents])
    found = [
        1.0 if kinds & asked else _CONTRARY if kinds and not kinds & ~contrary else value
        for kinds, value in zip(named, found, strict=True)
    ]
    undone = {stem(word) for intent in meaning.intents for word in intent.undone}
    return _lower_undone(segment, found, slots, undone) if undone else found


def _lower_undone(segment: Segment, found: list[float], slots: _SlotWords, undone: set[str]) -> list[float]:
    """Lower the signal of the tools whose name has only words that are to be undone."""
    numbers = {segment.vocabulary.stem_numbers.get(word, -1) for word in undone}
    names: dict[int, set[int]] = {}
    for place, number in zip(slots.at.tolist(), slots.stems.tolist(), strict=True):
        tool, slot = divmod(place, WORD_SLOTS)
        if slot < MAX_NAME_WORDS:
            names.setdefault(tool, set()).add(number)
    return [_UNDONE if tool in names and names[tool] <= numbers else value for tool, value in enumerate(found)]


_CONTRARY = -3.0
"""The signal of a tool that only changes things, for a question, or only reads, for an order to change something."""

_UNDONE = -9.0
"""The signal of a tool that does what is to be undone; it outweighs that its name and description fit. Set by hand."""


def best_query_words(segment: Segment, words: Ints, meaning: QueryMeaning) -> Iterator[tuple[int, str]]:
    """Find the query word, by number, that asks most for each word of a tool, and how: exact, synonym or meaning."""
    nearest = segment.words.coarse.unscaled_products(words, meaning.word_vectors).argmax(axis=0).tolist()
    numbers = segment.vocabulary.stem_numbers
    known: dict[int, tuple[int, str]] = {}
    for roots, how in ((meaning.synonym_stems, "synonym"), ([(root,) for root in meaning.stems], "exact")):
        for place in reversed(range(len(roots))):  # the first word with a stem wins
            known.update({numbers[root]: (place, how) for root in roots[place] if root in numbers})
    for stem_number, near in zip(segment.words.stems.take(words).tolist(), nearest, strict=True):
        yield known.get(stem_number, (near, "meaning"))


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


def _clause_vectors(clauses: Sequence[Sequence[str]], words: Sequence[str], vectors: Floats) -> tuple[Vectors, Vectors]:
    """The vector of each clause with every word counted once, then with each counted as often as it occurs.

    vectors: float32[words, components].
    """
    if len(clauses) == 1 and len(clauses[0]) == len(words):
        same = quantize_unit_vectors(np.ones((1, len(words)), dtype=np.float32) @ vectors)
        return same, same
    number = dict(zip(words, range(len(words)), strict=True))
    often = False
    counts = []
    for clause in clauses:
        row = [0.0] * len(words)
        for word in clause:
            row[number[word]] += 1
        often = often or len(clause) > len(row) - row.count(0.0)
        counts.append(row)
    times = np.array(counts, dtype=np.float32)
    if not often:
        same = quantize_unit_vectors(times @ vectors)
        return same, same
    sums = np.empty((2 * len(clauses), vectors.shape[1]), dtype=np.float32)
    np.matmul(np.minimum(times, 1), vectors, out=sums[: len(clauses)])
    np.matmul(times, vectors, out=sums[len(clauses) :])
    return quantize_unit_vectors(sums).split(len(clauses))


def _query_pairs(
    clauses: Sequence[Sequence[str]], words: Sequence[str], keys: Sequence[int], weights: Sequence[float]
) -> dict[int, tuple[str, str, float]]:
    """The pairs of neighbouring words by their keys. `words` are those that count, with those of stems and weights."""
    known = dict(zip(words, zip(words, keys, weights, strict=True), strict=True))
    counted = [known[word] for clause in clauses for word in clause if word in known]
    return {
        key << 32 | next_key: (first, second, weight + next_weight)
        for (first, key, weight), (second, next_key, next_weight) in pairwise(counted)
    }


def _root(word: str) -> tuple[str, int]:
    """The stem of a word, and the key of the stem."""
    root = word if word.isdigit() else stem(word)
    return root, stem_key(root)


_ROOTS = WordMemo(_root, 16_384)


def matching_verb(meaning: QueryMeaning, kinds: int) -> str:
    """The verb of the query that does what a tool does, or its first verb if none does."""
    return next((intent.verb for intent in meaning.intents if intent.kinds & kinds), meaning.intents[0].verb)
