"""The default ranking: select candidates by words and meaning, order them by their signals, and calibrate scores.

The first stage picks a few tools out of all that a caller sees; the second orders these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from heapq import nsmallest
from math import exp, inf, log
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from toolcrib.search.features import SIMHASH_BITS, query_simhash
from toolcrib.search.index import IndexView
from toolcrib.search.lexical import LexicalMatch, match_terms
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Calibration, SearchOptions, SignalWeights
from toolcrib.search.past import PastMatch, PastRequests
from toolcrib.search.segment import Bools
from toolcrib.search.signals import SIGNALS, CandidateSignals, QueryMeaning, compute_signals, is_among, read_meaning
from toolcrib.search.text import ParsedQuery
from toolcrib.search.vectors import QueryVectors as Vectors

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Reals = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int32]
Keys = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]
P = TypeVar("P", Ints, Places)
_MAX_REPEATS = 4
"""At most so many better tools for the same clause count."""
_DECIMALS = 9
"""Decimals of `raw` that count, so that the order in which addends were added up decides no tie."""
NAMED_PROBABILITY = 0.9
"""The least probability of a tool whose whole name the query spells as one token."""


class RankedTool(NamedTuple):
    """One tool of a ranking."""

    raw: float
    score: float
    part: int
    row: int
    """Its row among the candidates of its part."""
    boost: float
    """What the use of the tool in the session adds to `raw`."""
    repeats: int
    """How many better tools there are for the same clause, at most 4."""


class Ranking(NamedTuple):
    """The result of the default ranking for one query."""

    tools: tuple[RankedTool, ...]
    """Best first: by `raw`, descending, then by id."""
    total: int
    """How many tools matched before the limit."""
    probability: float
    """The probability that the best tool is right, 0 to 1, without boosts."""
    match: LexicalMatch
    meaning: QueryMeaning
    candidates: tuple[CandidateSignals, ...]
    """For each part."""
    weights: SignalWeights
    """The weights of the signals in `raw`."""
    past: PastMatch | None = None
    """What the query has in common with past requests; None for nothing."""
    first: Callable[[int], tuple[RankedTool, ...]] = lambda _: ()
    """So many of the tools that were compared, best first."""

    def unmatched(self, query: ParsedQuery) -> tuple[str, ...]:
        """The words of the query that match nothing: neither a tool nor its past."""
        words = self.match.unmatched
        return words if self.past is None else self.past.unmatched(query, words)

    def places(self) -> list[tuple[int, int]]:
        """Part and position of each tool that was found."""
        positions = [each.positions.tolist() for each in self.candidates]
        return [(hit.part, positions[hit.part][hit.row]) for hit in self.tools]


class ReadQuery(NamedTuple):
    """What the words of a query match in a view, and its meaning."""

    match: LexicalMatch
    meaning: QueryMeaning


def rank(
    view: IndexView,
    query: ParsedQuery,
    limit: int,
    allowed: Sequence[Bools],
    options: SearchOptions,
    lexicon: Lexicon,
    boosts: Mapping[str, float] | None = None,
    embedded: Mapping[str, Floats] | None = None,
    *,
    past: PastRequests | None = None,
    read: ReadQuery | None = None,
) -> Ranking:
    """Rank the allowed tools of each part, which must be visible ones.

    `boosts` maps ids of tools to multipliers of their odds, 1 or more; `embedded` maps texts to the vectors of an
    embedder, as in `read_meaning`; `past` has the requests after which tools were used. `read` is the query if it was
    read before.
    """
    match, meaning = read or _read_query(view, query, options, lexicon, embedded)
    asked = None if past is None else past.match(view, query, match)
    chosen = select_candidates(view, match, meaning, allowed, max(options.candidates, limit), options, asked)
    candidates = tuple(
        [
            compute_signals(part, number, match, query, meaning, positions, near, asked)
            for number, (part, positions, near) in enumerate(
                zip(view.parts, chosen.positions, chosen.cosines, strict=True)
            )
        ]
    )
    weights, calibration = options.weights, options.calibration
    if meaning.embedded is not None:
        weights, calibration = _embedding_weights(view, match, options), options.embedding_calibration
    order = _order(view, candidates, meaning, weights, options.same_need, boosts or {})
    if not order.places:
        return Ranking((), 0, 0.0, match, meaning, candidates, weights, asked)
    # Boosts move tools up, but lower no other tool's score.
    unmoved = _order(view, candidates, meaning, weights, options.same_need, {}) if order.boost else order
    probability = _probability(view, unmoved, candidates, calibration)
    first = partial(_calibrate, order, probability, unmoved.raw[unmoved.places[0]], calibration)
    total = max(chosen.total, len(order.places))
    return Ranking(first(limit), total, probability, match, meaning, candidates, weights, asked, first)


def _read_query(
    view: IndexView, query: ParsedQuery, options: SearchOptions, lexicon: Lexicon, embedded: Mapping[str, Floats] | None
) -> ReadQuery:
    model = view.parts[0].segment.model
    match = match_terms(view, query, model.table, lexicon, options)
    return ReadQuery(match, read_meaning(query, match, model, lexicon, options, embedded))


def _embedding_weights(view: IndexView, match: LexicalMatch, options: SearchOptions) -> SignalWeights:
    """The weights with an embedder: its cosine counts more the less of the request any visible tool covers."""
    best = max([found.most_covered(part.visible) for part, found in zip(view.parts, match.postings, strict=True)])
    weights, covered = options.embedding_weights, best / match.total_idf if match.total_idf > 0 else 0.0
    more = options.uncovered_embedding * max(0.0, 1 - 2 * covered)
    return replace(weights, embedding=round(weights.embedding + more, 3)) if more else weights


@lru_cache(maxsize=64)
def weight_vector(options: SignalWeights) -> Doubles:
    """The weights in the order of `SIGNALS`."""
    weights = np.array([getattr(options, name) for name in SIGNALS])
    weights.flags.writeable = False
    return weights


class _Ordering(NamedTuple):
    """The candidates in their final order, numbered over all parts."""

    places: list[int]
    """The numbers, best first."""
    raw: list[float]
    """By number, like the fields below."""
    part: list[int]
    row: list[int]
    boost: dict[int, float]
    repeated: dict[int, int]


def _order(
    view: IndexView,
    candidates: Sequence[CandidateSignals],
    meaning: QueryMeaning,
    weights: SignalWeights,
    same_need: float,
    boosts: Mapping[str, float],
) -> _Ordering:
    factors = weight_vector(weights)
    raw: list[float] = []
    part: list[int] = []
    row: list[int] = []
    for number, judgement in enumerate(candidates):
        raw += np.add.reduce(judgement.signals * factors, axis=1).round(_DECIMALS).tolist()
        part += [number] * len(judgement.positions)
        row += range(len(judgement.positions))
    ranks = _id_ranks(view, candidates)
    boost = _apply_boosts(view, candidates, raw, boosts) if boosts else {}
    places = _sort_by_raw(raw, ranks)
    repeated: dict[int, int] = {}
    if meaning.clause_count > 1:
        clauses = [clause for judgement in candidates for clause in judgement.nearest_clause.tolist()]
        repeated = _count_repeats(places, clauses)
        final = [value - same_need * repeated.get(place, 0) for place, value in enumerate(raw)]
        places = _sort_by_raw(final, ranks)
    else:
        final = raw
    return _Ordering(places, final, part, row, boost, repeated)


def _id_ranks(view: IndexView, candidates: Sequence[CandidateSignals]) -> Ints:
    """The ranks of the candidates by id, those of all parts together."""
    if len(candidates) == 1:
        return view.parts[0].segment.id_ranks[candidates[0].positions]
    ids = [
        part.segment.ids[position]
        for part, judgement in zip(view.parts, candidates, strict=True)
        for position in judgement.positions.tolist()
    ]
    rank = {id_: place for place, id_ in enumerate(sorted(ids))}
    return np.array([rank[id_] for id_ in ids], dtype=np.int32)


def _sort_by_raw(raw: Sequence[float], ranks: Ints) -> list[int]:
    """Sort numbers by `raw`, the highest first, then by rank."""
    order: list[int] = np.lexsort((ranks, -np.array(raw))).tolist()
    return order


def _apply_boosts(
    view: IndexView, candidates: Sequence[CandidateSignals], raw: list[float], boosts: Mapping[str, float]
) -> dict[int, float]:
    """Add the logarithm of each boost to `raw`, which is on a scale of log-odds."""
    added: dict[int, float] = {}
    place = 0
    for number, judgement in enumerate(candidates):
        ids = view.parts[number].segment.ids
        for position in judgement.positions.tolist():
            multiplier = boosts.get(ids[position], 1.0)
            if multiplier > 1:
                added[place] = log(multiplier)
                raw[place] += added[place]
            place += 1
    return added


def _count_repeats(places: Sequence[int], clauses: Sequence[int]) -> dict[int, int]:
    """Count how many better tools answer the same clause, so that each clause gets its turn."""
    before = [0] * (1 + max(clauses, default=0))
    repeated = {}
    for place in places:
        count = before[clauses[place]]
        if count:
            repeated[place] = count
        before[clauses[place]] = count + 1 if count < _MAX_REPEATS else count
    return repeated


def _probability(view: IndexView, order: _Ordering, candidates: Sequence[CandidateSignals], by: Calibration) -> float:
    """The probability that the best tool is right."""
    first = order.places[0]
    found = _logistic(by.raw * order.raw[first] + by.size * log(max(by.least_count, view.count)) + by.offset)
    spelt = candidates[order.part[first]].signals[order.row[first], _NAMED_COLUMN] > 0
    return max(found, NAMED_PROBABILITY) if spelt else found


_NAMED_COLUMN = SIGNALS.index("named")


def _calibrate(order: _Ordering, probability: float, top: float, by: Calibration, limit: int) -> tuple[RankedTool, ...]:
    """Give each of the best tools its score. `top` is the `raw` that `probability` was computed from."""
    bounded = min(max(probability, 1e-9), 1 - 1e-9)
    odds = log(bounded / (1 - bounded))
    _, raw, part, row, boost, repeated = order
    return tuple(
        [
            RankedTool(
                raw[place],
                _logistic(odds + by.distance * (top - raw[place])),
                part[place],
                row[place],
                boost.get(place, 0.0),
                repeated.get(place, 0),
            )
            for place in order.places[:limit]
        ]
    )


def rescore(raw: float, best: RankedTool, by: Calibration) -> float:
    """The score of a hit beside the best one, which another reading of the query may have found."""
    bounded = min(max(best.score, 1e-9), 1 - 1e-9)
    return _logistic(log(bounded / (1 - bounded)) + by.distance * (best.raw - raw))


def _logistic(x: float) -> float:
    if x >= 0:
        return 1 / (1 + exp(-x))
    odds = exp(x)
    return odds / (1 + odds)


_MIN_SEMANTIC_COSINE = 0.25
"""A tool that shares no word with the query needs at least this cosine."""
_MAX_NAMED = 256
"""Tools whose whole name is in the query are always candidates, up to so many: thousands may share one name."""
_SAMPLE_STRIDE = 8
"""A sample takes one value in so many."""
_SIMHASH_COSINES = np.cos(np.pi * np.arange(SIMHASH_BITS + 1) / SIMHASH_BITS).astype(np.float32)
"""The cosine estimated from the number of differing signs of two sketches. Source: Charikar, STOC 2002."""


class Candidates(NamedTuple):
    """The tools that reach the second stage."""

    positions: tuple[Ints, ...]
    """For each part, in ascending order."""
    total: int
    """How many tools match a word of the query."""
    cosines: tuple[Doubles, ...]
    """For each part, the cosines of the query's clauses and these tools: float64[clauses, tools]."""


def select_candidates(
    view: IndexView,
    match: LexicalMatch,
    meaning: QueryMeaning,
    allowed: Sequence[Bools],
    count: int,
    options: SearchOptions,
    past: PastMatch | None = None,
) -> Candidates:
    """Select the allowed tools with the highest `lexical / max(lexical) + 1.3 * cosine`, and up to 256 named ones.

    With an embedder, as many tools that are nearest to the query by its vectors are added, and so are those whose past
    requests fit best. Among many tools the cosine
    is estimated from sketches, and computed exactly only for the best.
    Source of the formula: the prototype, which compared it with reciprocal rank fusion and others.
    """
    matching, share = _matching_tools(view, match, allowed)
    positions = _preselect(view, match, meaning, allowed, matching, share, options)
    if match.names:
        named = [_named_tools(view, match, number, passes) for number, passes in enumerate(allowed)]
        positions = [_union(at, more) for at, more in zip(positions, named, strict=True)]
    bases, cosines = [], []
    for number, (part, score) in enumerate(zip(view.parts, match.scores, strict=True)):
        scores = score.take(positions[number])
        products = part.segment.features.meaning.products(positions[number], meaning.vectors)
        near = products[0] if len(products) == 1 else np.maximum.reduce(products, axis=0)
        base = share * scores + options.semantic_share * near
        stay = ((scores > 0) | (near >= _MIN_SEMANTIC_COSINE)).nonzero()[0]
        if len(stay) < len(base):
            positions[number], base, products = (
                positions[number].take(stay),
                base.take(stay),
                products.take(stay, axis=1),
            )
        bases.append(base)
        cosines.append(products)
    places = _top_places(view, positions, bases, count)
    chosen = [at.take(place) for at, place in zip(positions, places, strict=True)]
    best = chosen
    if match.names:
        if sum(map(len, named)) > _MAX_NAMED:
            first = _top(view, positions, bases, max(_MAX_NAMED, count))
            named = [more[is_among(at, more)] for at, more in zip(first, named, strict=True)]
        best = [_union(at, more) for at, more in zip(best, named, strict=True)]
    if meaning.embedded is not None:
        nearest = _nearest_embedded(view, meaning.embedded, allowed, count)
        best = [_union(at, more) for at, more in zip(best, nearest, strict=True)]
    if past is not None:
        best = [_union(at, more) for at, more in zip(best, past.best(allowed, count), strict=True)]
    known = [
        # A union returns what it adds nothing to.
        near.take(place, axis=1) if at is before else part.segment.features.meaning.products(at, meaning.vectors)
        for part, near, place, at, before in zip(view.parts, cosines, places, best, chosen, strict=True)
    ]
    return Candidates(tuple(best), sum([len(each.places) for each in matching]), tuple(known))


_MAX_EXACT = 2048
"""Tools whose cosine with an embedder's vector is computed exactly: those with the most similar sketches."""


def _nearest_embedded(view: IndexView, query: Vectors, allowed: Sequence[Bools], count: int) -> list[Ints]:
    """Find the allowed tools that are nearest to a query by the vectors of the embedder."""
    tools = [part.segment.features.embedded for part in view.parts]
    places = [
        np.flatnonzero(passes & (each.rows.scales > 0)).astype(np.int32)
        for each, passes in zip(tools, allowed, strict=True)
    ]
    if sum(map(len, places)) > _MAX_EXACT:
        wanted = query_simhash(query)
        estimates = [estimate_cosines(each.sketch, wanted)[at] for each, at in zip(tools, places, strict=True)]
        places = _top(view, places, estimates, _MAX_EXACT)
    cosines = [each.rows.products(at, query)[0] for each, at in zip(tools, places, strict=True)]
    return _top(view, places, cosines, count)


class _MatchingTools(NamedTuple):
    """The allowed tools of a part that match a word of the query."""

    places: Places
    """In ascending order."""
    scores: Doubles


def _matching_tools(
    view: IndexView, match: LexicalMatch, allowed: Sequence[Bools]
) -> tuple[list[_MatchingTools], float]:
    """The tools of each part that match, and one over the highest lexical score of a visible tool."""
    found = []
    top = 0.0
    for part, score, passes in zip(view.parts, match.scores, allowed, strict=True):
        places = (score > 0).nonzero()[0]
        if not part.is_whole:
            places = places[part.visible.take(places)]
        scores = score.take(places)
        if len(places):
            top = max(top, float(np.maximum.reduce(scores)))
        if passes is not part.visible:
            kept = passes.take(places).nonzero()[0]
            places, scores = places.take(kept), scores.take(kept)
        found.append(_MatchingTools(places, scores))
    return found, 1 / top if top > 0 else 0.0


def _preselect(
    view: IndexView,
    match: LexicalMatch,
    meaning: QueryMeaning,
    allowed: Sequence[Bools],
    matching: Sequence[_MatchingTools],
    share: float,
    options: SearchOptions,
) -> list[Ints]:
    """Select the allowed tools that are best by words and sketches."""
    positions = [
        part.positions if passes is part.visible else passes.nonzero()[0].astype(np.int32)
        for part, passes in zip(view.parts, allowed, strict=True)
    ]
    count = sum(map(len, positions))
    if count <= options.preselected:
        return positions
    wanted = _query_sketch(meaning.vectors)
    by_distance = _weighted_cosines(options.semantic_share) if wanted.size else _NO_COSINES
    distances = [_sketch_distances(part.segment.features.sketch, wanted) for part in view.parts]
    if count > _MAX_COMPARED:
        positions = _promising_tools(distances, by_distance, allowed, matching, share, options.preselected)
    bases = [
        _bases(by_distance, distance.take(at), share, score.take(at))
        for at, distance, score in zip(positions, distances, match.scores, strict=True)
    ]
    return _top(view, positions, bases, options.preselected)


_MAX_COMPARED = 2048
"""Among more tools than these, those that cannot be among the best are left out first."""
_NO_COSINES = np.zeros(1)


@lru_cache(maxsize=16)
def _weighted_cosines(semantic_share: float) -> Doubles:
    """What a tool gets for its sketch, by the number of bits that differ; falls with it. In the precision of floats."""
    weighted = (_SIMHASH_COSINES * np.float32(semantic_share)).astype(np.float64)
    weighted.flags.writeable = False
    return weighted


def _bases(by_distance: Doubles, distances: Bytes, share: float, scores: Doubles) -> Floats:
    """What tools get for their sketches and their words."""
    found = by_distance.take(distances)
    found += share * scores
    return found.astype(np.float32)


def _promising_tools(
    distances: Sequence[Bytes],
    by_distance: Doubles,
    allowed: Sequence[Bools],
    matching: Sequence[_MatchingTools],
    share: float,
    count: int,
) -> list[Ints]:
    """The allowed tools that may be among the best `count` by words and sketches: all of these, and few others.

    The best of those that match a word set a lower bound. Few sketches reach it alone.
    """
    bases = [
        _bases(by_distance, distance.take(places), share, scores)
        for distance, (places, scores) in zip(distances, matching, strict=True)
    ]
    everything = bases[0] if len(bases) == 1 else np.concatenate(bases)
    edge = _kth_highest(everything, count) if len(everything) > count else -inf
    farthest = int(np.count_nonzero(by_distance >= edge)) - 1
    found = []
    for distance, passes, (places, _), base in zip(distances, allowed, matching, bases, strict=True):
        promising = (distance <= farthest) & passes if farthest >= 0 else np.zeros(len(distance), dtype=np.bool_)
        promising[places[base >= edge]] = True
        found.append(promising.nonzero()[0].astype(np.int32))
    return found


def _query_sketch(vectors: Vectors) -> Keys:
    """The sketches of a query's clauses, without those of zero vectors.

    All zero vectors have the same sketch, but knowing nothing about two texts does not make them similar.
    """
    found = query_simhash(vectors)
    return found[:, vectors.values.any(axis=1)] if vectors.has_zeros else found


def _union(positions: Ints, more: Ints) -> Ints:
    """Add positions to sorted positions; the same object if all of them are there."""
    missing = more[~is_among(positions, more)]
    return np.sort(np.concatenate([positions, missing])) if len(missing) else positions


def estimate_cosines(sketch: Keys, wanted: Keys) -> Floats:
    """Estimate the cosine of each tool and its nearest clause from the sketches."""
    if not wanted.size:
        return np.zeros(sketch.shape[1], dtype=np.float32)
    found: Floats = _SIMHASH_COSINES.take(_sketch_distances(sketch, wanted))
    return found


def _sketch_distances(sketch: Keys, wanted: Keys) -> Bytes:
    """How many bits of each tool's sketch differ from those of its nearest clause; 0 without any clause."""
    if not wanted.size:
        return np.zeros(sketch.shape[1], dtype=np.uint8)
    first, second = np.bitwise_count(sketch[:, None, :] ^ wanted[:, :, None])  # uint8[clauses, tools] each
    first += second
    found: Bytes = first[0] if len(first) == 1 else np.minimum.reduce(first, axis=0)
    return found


def _named_tools(view: IndexView, match: LexicalMatch, number: int, allowed: Bools) -> Ints:
    """The allowed tools of a part whose whole name is in the query."""
    found = [np.zeros(0, dtype=np.int32)]
    for item in match.names:
        start, stop = item.expansions[0].spans[number]
        at = view.parts[number].segment.positions[start:stop]
        found.append(at[allowed[at]])
    return found[0] if len(found) == 1 else np.unique(np.concatenate(found))


def _kth_highest(values: Reals, count: int) -> float:
    """Find the `count`-th highest of more values than that.

    The `count`-th highest of a sample is a lower bound, so values below it are dropped first.
    """
    sample = values[::_SAMPLE_STRIDE]
    if len(sample) > count * _SAMPLE_STRIDE:
        values = values[values >= _kth_highest(sample, count)]
    place = len(values) - count
    ordered = values.copy()
    ordered.partition(place)
    return float(ordered[place])


def _top(view: IndexView, positions: Sequence[P], bases: Sequence[Reals], count: int) -> list[P]:
    """Select the `count` tools with the highest base over all parts; ties are broken by id."""
    places = _top_places(view, positions, bases, count)
    return [at.take(place) for at, place in zip(positions, places, strict=True)]


def _top_places(view: IndexView, positions: Sequence[P], bases: Sequence[Reals], count: int) -> list[Places]:
    """The places of these tools among the positions, in ascending order."""
    everything: Reals = bases[0] if len(bases) == 1 else np.concatenate(bases)
    if len(everything) <= count:
        return [np.arange(len(base)) for base in bases]
    edge = _kth_highest(everything, count)
    chosen = [(base >= edge).nonzero()[0] for base in bases]
    if sum(map(len, chosen)) > count:
        above = [(base > edge).nonzero()[0] for base in bases]
        tied = [(base == edge).nonzero()[0] for base in bases]
        tied = _first_by_id(view, positions, tied, count - sum(map(len, above)))
        chosen = [np.sort(np.concatenate([over, level])) for over, level in zip(above, tied, strict=True)]
    return chosen


def _first_by_id(view: IndexView, positions: Sequence[P], tied: Sequence[Places], count: int) -> list[Places]:
    """Select the `count` places whose tools come first by id."""
    ranks = [part.segment.id_ranks[at[places]] for part, at, places in zip(view.parts, positions, tied, strict=True)]
    few = [
        places[np.argpartition(order, count)[:count]] if len(places) > count else places
        for places, order in zip(tied, ranks, strict=True)
    ]
    if len(few) == 1:
        return few
    found = (
        (part.segment.ids[at[place]], number, place)
        for number, (part, at, places) in enumerate(zip(view.parts, positions, few, strict=True))
        for place in places.tolist()
    )
    first = nsmallest(count, found)
    return [np.array([place for _, n, place in first if n == number], dtype=np.intp) for number in range(len(few))]
