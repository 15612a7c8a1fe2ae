"""The default ranking: words and meaning find some tools, a second look orders them, a score says how sure it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.search.candidates import candidates
from toolcrib.search.lexical import Met, meet
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import Calibration, SearchOptions, Weights
from toolcrib.search.query import Query
from toolcrib.search.segment import Bools
from toolcrib.search.signals import NAMES, Judged, Sense, judge, sense
from toolcrib.search.view import View

Doubles = npt.NDArray[np.float64]

_SAME = 4
"""Better tools for the same part of a request that count."""

_NEEDS = 4
"""Parts of a query beyond which more make no difference."""

_CERTAIN = 0.9
"""The least probability of an answer to a query that spells a tool's whole name."""


class Found(NamedTuple):
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

    found: tuple[Found, ...]
    """Best first: raw descending, then id ascending."""
    total: int
    """How many tools there were before the limit."""
    probability: float
    """That anything here fits, 0 to 1."""
    met: Met
    sense: Sense
    judged: tuple[Judged, ...]
    """For each part."""

    def places(self) -> list[tuple[int, int]]:
        """Part and position of each tool that was found."""
        return [(hit.part, int(self.judged[hit.part].positions[hit.row])) for hit in self.found]


def rank(
    view: View,
    query: Query,
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
    met = meet(view, query, meaning.table, lexicon, options)
    understood = sense(query, met.corrected, meaning, lexicon, options)
    chosen = candidates(view, met, understood, allowed, max(options.candidates, limit), options)
    judged = tuple(
        judge(part, number, met, query, understood, positions)
        for number, (part, positions) in enumerate(zip(view.parts, chosen.positions, strict=True))
    )
    order = _ordered(view, judged, understood, options, boosts or {})
    if not order.places:
        return Ranking((), 0, 0.0, met, understood, judged)
    # Whether anything fits is told by what was asked: use in the session moves tools up, and lowers no other.
    unmoved = _ordered(view, judged, understood, options, {}) if order.boost else order
    probability = _probability(view, unmoved, judged, understood, options.calibration)
    found = _scored(order, limit, probability, unmoved.raw[unmoved.places[0]], options.calibration)
    return Ranking(found, max(chosen.total, len(order.places)), probability, met, understood, judged)


@lru_cache(maxsize=64)
def weights_of(options: Weights) -> Doubles:
    """The weights in the order of the signals' columns."""
    weights = np.array([getattr(options, name) for name in NAMES])
    weights.flags.writeable = False
    return weights


class _Order(NamedTuple):
    """The judged tools in their final order."""

    places: list[int]
    """Numbers over all parts, in the order of judging, best first."""
    raw: list[float]
    """By number, as the rest is."""
    part: list[int]
    row: list[int]
    boost: dict[int, float]
    repeated: dict[int, int]


def _ordered(
    view: View, judged: Sequence[Judged], sense: Sense, options: SearchOptions, boosts: Mapping[str, float]
) -> _Order:
    weights = weights_of(options.weights)
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
    boost = _boosted(view, judged, raw, boosts) if boosts else {}
    places = _sorted(raw, ranks)
    repeated: dict[int, int] = {}
    if sense.clauses > 1:
        clauses = [clause for judgement in judged for clause in judgement.clause.tolist()]
        repeated = _repeated(places, clauses)
        final = [value - options.same_need * repeated.get(place, 0) for place, value in enumerate(raw)]
        places = _sorted(final, ranks)
    else:
        final = raw
    return _Order(places, final, part, row, boost, repeated)


def _sorted(raw: Sequence[float], ranks: Sequence[Any]) -> list[int]:
    """The places by raw, the highest first, then by rank."""
    keys = [(-value, rank) for value, rank in zip(raw, ranks, strict=True)]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _boosted(view: View, judged: Sequence[Judged], raw: list[float], boosts: Mapping[str, float]) -> dict[int, float]:
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


def _repeated(places: Sequence[int], clauses: Sequence[int]) -> dict[int, int]:
    """How many better tools answer the same part of a request: each part is to have its turn."""
    before: dict[int, int] = {}
    repeated = {}
    for place in places:
        clause = clauses[place]
        repeated[place] = min(before.get(clause, 0), _SAME)
        before[clause] = before.get(clause, 0) + 1
    return repeated


def _probability(view: View, order: _Order, judged: Sequence[Judged], sense: Sense, by: Calibration) -> float:
    """That anything fits, as the best hit shows it."""
    first = order.places[0]
    odds = (
        by.raw * order.raw[first]
        + by.size * log(max(1, view.count))
        + by.clauses * min(sense.clauses, _NEEDS)
        + by.offset
    )
    spelt = judged[order.part[first]].signals[order.row[first], _NAMED] > 0
    return max(_logistic(odds), _CERTAIN) if spelt else _logistic(odds)


_NAMED = NAMES.index("named")


def _scored(order: _Order, limit: int, probability: float, top: float, by: Calibration) -> tuple[Found, ...]:
    """The best tools, with the probability that each fits; `top` is the raw that `probability` is of."""
    bounded = min(max(probability, 1e-9), 1 - 1e-9)
    odds = by.hit * log(bounded / (1 - bounded)) + by.hit_offset
    return tuple(
        Found(
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
