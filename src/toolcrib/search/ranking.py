"""The default ranking: select candidates by words and meaning, order them by their signals, and calibrate scores.

The first stage picks a few tools out of all that a caller sees; the second orders these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from heapq import nsmallest
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.names import fold
from toolcrib.search.features import SIMHASH_BITS, query_simhash
from toolcrib.search.index import Bools, IndexView
from toolcrib.search.lexical import LexicalMatch, match_terms
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Calibration, SearchOptions, SignalWeights
from toolcrib.search.signals import SIGNALS, CandidateSignals, QueryFeatures, compute_signals, is_among, query_features
from toolcrib.search.text import ParsedQuery
from toolcrib.types import Hit

Doubles = npt.NDArray[np.float64]

_MAX_REPEATS = 4
"""Better tools for the same part of a request that count."""

_MAX_NEEDS = 4
"""Parts of a query beyond which more make no difference."""

_NAMED_PROBABILITY = 0.9
"""The least probability of an answer to a query that spells a tool's whole name."""


class RankedTool(NamedTuple):
    """A tool that was found."""

    raw: float
    score: float
    part: int
    row: int
    """Its row in what was judged of its part."""
    boost: float
    """What its use in the session adds to raw."""
    repeated: int
    """How many better tools, up to 4, are there for the same part of the request."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one query found."""

    found: tuple[RankedTool, ...]
    """Best first: raw descending, then id ascending."""
    total: int
    """How many tools there were before the limit."""
    probability: float
    """That anything here fits, 0 to 1."""
    met: LexicalMatch
    sense: QueryFeatures
    judged: tuple[CandidateSignals, ...]
    """For each part."""

    def places(self) -> list[tuple[int, int]]:
        """Part and position of each tool that was found."""
        return [(hit.part, int(self.judged[hit.part].positions[hit.row])) for hit in self.found]


def rank(
    view: IndexView,
    query: ParsedQuery,
    limit: int,
    allowed: Sequence[Bools],
    options: SearchOptions,
    lexicon: Lexicon,
    boosts: Mapping[str, float] | None = None,
) -> Ranking:
    """The best tools for a query, of those allowed in each part. Allowed tools must be seen ones.

    `boosts` leads from ids to multipliers of the odds, 1 or more.
    """
    meaning = view.parts[0].index.meaning
    met = match_terms(view, query, meaning.table, lexicon, options)
    understood = query_features(query, met.corrected, meaning, lexicon, options)
    chosen = select_candidates(view, met, understood, allowed, max(options.candidates, limit), options)
    judged = tuple(
        compute_signals(part, number, met, query, understood, positions)
        for number, (part, positions) in enumerate(zip(view.parts, chosen.positions, strict=True))
    )
    order = _order(view, judged, understood, options, boosts or {})
    if not order.places:
        return Ranking((), 0, 0.0, met, understood, judged)
    # Whether anything fits is told by what was asked: use in the session moves tools up, and lowers no other.
    unmoved = _order(view, judged, understood, options, {}) if order.boost else order
    probability = _probability(view, unmoved, judged, understood, options.calibration)
    found = _calibrate(order, limit, probability, unmoved.raw[unmoved.places[0]], options.calibration)
    return Ranking(found, max(chosen.total, len(order.places)), probability, met, understood, judged)


@lru_cache(maxsize=64)
def weight_vector(options: SignalWeights) -> Doubles:
    """The weights in the order of the signals' columns."""
    weights = np.array([getattr(options, name) for name in SIGNALS])
    weights.flags.writeable = False
    return weights


class _Ordering(NamedTuple):
    """The judged tools in their final order."""

    places: list[int]
    """Numbers over all parts, in the order of judging, best first."""
    raw: list[float]
    """By number, as the rest is."""
    part: list[int]
    row: list[int]
    boost: dict[int, float]
    repeated: dict[int, int]


def _order(
    view: IndexView,
    judged: Sequence[CandidateSignals],
    sense: QueryFeatures,
    options: SearchOptions,
    boosts: Mapping[str, float],
) -> _Ordering:
    weights = weight_vector(options.weights)
    raw: list[float] = []
    part: list[int] = []
    row: list[int] = []
    ranks: list[Any] = []
    for number, judgement in enumerate(judged):
        raw += (judgement.signals * weights).sum(axis=1).tolist()
        part += [number] * len(judgement.positions)
        row += range(len(judgement.positions))
        index = view.parts[number].index
        ranks += (
            index.ranks[judgement.positions].tolist()
            if len(judged) == 1
            else [index.ids[position] for position in judgement.positions.tolist()]
        )
    boost = _apply_boosts(view, judged, raw, boosts) if boosts else {}
    places = _sort_by_raw(raw, ranks)
    repeated: dict[int, int] = {}
    if sense.clauses > 1:
        clauses = [clause for judgement in judged for clause in judgement.clause.tolist()]
        repeated = _count_repeats(places, clauses)
        final = [value - options.same_need * repeated.get(place, 0) for place, value in enumerate(raw)]
        places = _sort_by_raw(final, ranks)
    else:
        final = raw
    return _Ordering(places, final, part, row, boost, repeated)


def _sort_by_raw(raw: Sequence[float], ranks: Sequence[Any]) -> list[int]:
    """The places by raw, the highest first, then by rank."""
    keys = [(-value, rank) for value, rank in zip(raw, ranks, strict=True)]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _apply_boosts(
    view: IndexView, judged: Sequence[CandidateSignals], raw: list[float], boosts: Mapping[str, float]
) -> dict[int, float]:
    """Add what the session adds: the logarithm of the multiplier, since raw is on a scale of log-odds."""
    added: dict[int, float] = {}
    place = 0
    for number, judgement in enumerate(judged):
        ids = view.parts[number].index.ids
        for position in judgement.positions.tolist():
            multiplier = boosts.get(ids[position], 1.0)
            if multiplier > 1:
                added[place] = log(multiplier)
                raw[place] += added[place]
            place += 1
    return added


def _count_repeats(places: Sequence[int], clauses: Sequence[int]) -> dict[int, int]:
    """How many better tools answer the same part of a request: each part is to have its turn."""
    before: dict[int, int] = {}
    repeated = {}
    for place in places:
        clause = clauses[place]
        repeated[place] = min(before.get(clause, 0), _MAX_REPEATS)
        before[clause] = before.get(clause, 0) + 1
    return repeated


def _probability(
    view: IndexView, order: _Ordering, judged: Sequence[CandidateSignals], sense: QueryFeatures, by: Calibration
) -> float:
    """That anything fits, as the best hit shows it."""
    first = order.places[0]
    odds = (
        by.raw * order.raw[first]
        + by.size * log(max(1, view.count))
        + by.clauses * min(sense.clauses, _MAX_NEEDS)
        + by.offset
    )
    spelt = judged[order.part[first]].signals[order.row[first], _NAMED_COLUMN] > 0
    return max(_logistic(odds), _NAMED_PROBABILITY) if spelt else _logistic(odds)


_NAMED_COLUMN = SIGNALS.index("named")


def _calibrate(order: _Ordering, limit: int, probability: float, top: float, by: Calibration) -> tuple[RankedTool, ...]:
    """The best tools, with the probability that each fits; `top` is the raw that `probability` is of."""
    bounded = min(max(probability, 1e-9), 1 - 1e-9)
    odds = by.hit * log(bounded / (1 - bounded)) + by.hit_offset
    return tuple(
        RankedTool(
            order.raw[place],
            _logistic(odds + by.distance * (top - order.raw[place])),
            order.part[place],
            order.row[place],
            order.boost.get(place, 0.0),
            order.repeated.get(place, 0),
        )
        for place in order.places[:limit]
    )


def _logistic(x: float) -> float:
    return 1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x))


Floats = npt.NDArray[np.float32]

Reals = npt.NDArray[np.floating[Any]]

Ints = npt.NDArray[np.int32]

Keys = npt.NDArray[np.uint64]

Places = npt.NDArray[np.intp]

_MIN_SEMANTIC_COSINE = 0.25
"""Cosine above which a tool that shares no word with a query is worth a look."""

_MAX_NAMED = 256
"""Tools called by their whole names that always go on; of more, such as thousands of one name, the best."""

_SAMPLE_STRIDE = 8
"""One value in so many is a sample."""

_SIMHASH_COSINES = np.cos(np.pi * np.arange(SIMHASH_BITS + 1) / SIMHASH_BITS).astype(np.float32)
"""The cosine that so many different signs of two sketches tell. Source: Charikar, STOC 2002."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tools that go on."""

    positions: tuple[Ints, ...]
    """For each part, sorted."""
    total: int
    """How many tools met a word of the query."""


def select_candidates(
    view: IndexView,
    met: LexicalMatch,
    sense: QueryFeatures,
    allowed: Sequence[Bools],
    count: int,
    options: SearchOptions,
) -> Candidates:
    """The tools with the most of `lexical / max(lexical) + 1.3 * cosine`, of those allowed, and up to 256 named ones.

    Of many tools only the sketches are compared, and the cosine is worked out for those that are best by them.
    Source of the formula: the prototype, which tried it beside reciprocal rank fusion and others.
    """
    share = _lexical_scale(view, met)
    positions = _preselect(view, met, sense, allowed, share, options)
    if met.names:
        named = [_named_tools(view, met, number, passes) for number, passes in enumerate(allowed)]
        positions = [_union(at, more) for at, more in zip(positions, named, strict=True)]
    bases = []
    for number, (part, score) in enumerate(zip(view.parts, met.scores, strict=True)):
        scores = score[positions[number]]
        near = part.index.features.meaning.products(positions[number], sense.meaning).max(axis=0)
        stay = (scores > 0) | (near >= _MIN_SEMANTIC_COSINE)
        positions[number] = positions[number][stay]
        bases.append((share * scores + options.semantic_share * near)[stay])
    best = _top(view, positions, bases, count)
    if met.names:
        if sum(map(len, named)) > _MAX_NAMED:
            first = _top(view, positions, bases, max(_MAX_NAMED, count))
            named = [more[is_among(at, more)] for at, more in zip(first, named, strict=True)]
        best = [_union(at, more) for at, more in zip(best, named, strict=True)]
    total = sum(
        int(np.count_nonzero(score if part.whole and passes is part.seen else score[passes]))
        for part, score, passes in zip(view.parts, met.scores, allowed, strict=True)
    )
    return Candidates(tuple(best), total)


def _lexical_scale(view: IndexView, met: LexicalMatch) -> float:
    """One over the highest lexical score that the caller can see."""
    top = 0.0
    for part, score in zip(view.parts, met.scores, strict=True):
        if len(score):
            top = max(top, float(score.max() if part.whole else score.max(initial=0.0, where=part.seen)))
    return 1 / top if top > 0 else 0.0


def _preselect(
    view: IndexView,
    met: LexicalMatch,
    sense: QueryFeatures,
    allowed: Sequence[Bools],
    share: float,
    options: SearchOptions,
) -> list[Ints]:
    """The allowed tools that are best by their words and sketches."""
    whole = [part.whole and passes is part.seen for part, passes in zip(view.parts, allowed, strict=True)]
    places = [
        part.places if passes is part.seen else passes.nonzero()[0].astype(np.int32)
        for part, passes in zip(view.parts, allowed, strict=True)
    ]
    if sum(map(len, places)) <= options.preselected:
        return places
    # Two vectors of zeros have the same sketch: that nothing is known of either is no likeness.
    wanted = query_simhash(sense.meaning)[:, sense.meaning.values.any(axis=1)]
    bases = []
    for part, score, at, all_ in zip(view.parts, met.scores, places, whole, strict=True):
        base = _estimate_cosines(part.index.features.sketch, wanted)
        base *= np.float32(options.semantic_share)
        base += share * score
        bases.append(base if all_ else base[at])
    return _top(view, places, bases, options.preselected)


def _union(positions: Ints, more: Ints) -> Ints:
    """Sorted positions, and more of them."""
    missing = more[~is_among(positions, more)]
    return np.sort(np.concatenate([positions, missing])) if len(missing) else positions


def _estimate_cosines(sketch: Keys, wanted: Keys) -> Floats:
    """The cosine of each tool with the nearest clause, as the sketches tell it."""
    if not wanted.size:
        return np.zeros(sketch.shape[1], dtype=np.float32)
    differ = reduce(np.minimum, (_count_differences(sketch, first, second) for first, second in wanted.T))
    return _SIMHASH_COSINES.take(differ)


def _count_differences(sketch: Keys, first: np.uint64, second: np.uint64) -> npt.NDArray[np.uint8]:
    differ: npt.NDArray[np.uint8] = np.bitwise_count(sketch[0] ^ first)
    differ += np.bitwise_count(sketch[1] ^ second)
    return differ


def _named_tools(view: IndexView, met: LexicalMatch, number: int, allowed: Bools) -> Ints:
    """The allowed tools of a part that the query calls by their whole names."""
    found = [np.zeros(0, dtype=np.int32)]
    for item in met.names:
        start, stop = item.ways[0].spans[number]
        at = view.parts[number].index.positions[start:stop]
        found.append(at[allowed[at]])
    return found[0] if len(found) == 1 else np.unique(np.concatenate(found))


def _kth_highest(values: Reals, count: int) -> float:
    """The `count`-th highest of more values than that.

    Of many, those below the `count`-th highest of a sample are dropped first: it is no higher than what is looked for.
    """
    sample = values[::_SAMPLE_STRIDE]
    if len(sample) > count * _SAMPLE_STRIDE:
        values = values[values >= _kth_highest(sample, count)]
    return float(np.partition(values, len(values) - count)[len(values) - count])


def _top(view: IndexView, positions: Sequence[Ints], bases: Sequence[Reals], count: int) -> list[Ints]:
    """The `count` tools with the highest base over all parts; where there are more, ties go by id."""
    everything: Reals = bases[0] if len(bases) == 1 else np.concatenate(bases)
    if len(everything) <= count:
        return list(positions)
    edge = _kth_highest(everything, count)
    above = [(base > edge).nonzero()[0] for base in bases]
    tied = [(base == edge).nonzero()[0] for base in bases]
    left = count - sum(map(len, above))
    if sum(map(len, tied)) > left:
        tied = _first_by_id(view, positions, tied, left)
    return [at[np.sort(np.concatenate([over, level]))] for at, over, level in zip(positions, above, tied, strict=True)]


def _first_by_id(view: IndexView, positions: Sequence[Ints], tied: Sequence[Places], count: int) -> list[Places]:
    """Of some places among the positions of each part, the `count` first by the ids of their tools."""
    ranks = [part.index.ranks[at[places]] for part, at, places in zip(view.parts, positions, tied, strict=True)]
    few = [
        places[np.argpartition(order, count)[:count]] if len(places) > count else places
        for places, order in zip(tied, ranks, strict=True)
    ]
    if len(few) == 1:
        return few
    found = (
        (part.index.ids[at[place]], number, place)
        for number, (part, at, places) in enumerate(zip(view.parts, positions, few, strict=True))
        for place in places.tolist()
    )
    first = nsmallest(count, found)
    return [np.array([place for _, n, place in first if n == number], dtype=np.intp) for number in range(len(few))]


_DUPLICATE_COSINE = 0.9
"""Cosine from which two tools are near-duplicates."""

_SAME_NAME_COSINE = 0.7
"""Cosine from which two tools of the same name are. Source of both: tried on a catalog of 20,000 public tools."""


def group_duplicates(view: IndexView, places: Sequence[tuple[int, int]], hits: Sequence[Hit]) -> list[Hit]:
    """The hits, which stand at those parts and positions, without near-duplicates of better ones, which name them."""
    rows = [view.parts[part].index.features.meaning.floats(np.array([position])) for part, position in places]
    vectors = np.concatenate(rows)
    likeness = (vectors @ vectors.T).tolist()
    names = [fold(hit.tool.name) for hit in hits]
    leaders: dict[int, list[str]] = {}
    for place, hit in enumerate(hits):
        under = next(
            (leader for leader in leaders if likeness[leader][place] >= _duplicate_threshold(names, leader, place)),
            None,
        )
        if under is None:
            leaders[place] = []
        else:
            leaders[under].append(hit.tool.id)
    return [replace(hits[leader], similar=tuple(ids)) for leader, ids in leaders.items()]


def _duplicate_threshold(names: Sequence[str], one: int, other: int) -> float:
    return _SAME_NAME_COSINE if names[one] == names[other] else _DUPLICATE_COSINE
