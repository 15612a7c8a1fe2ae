"""Fit the weights, the calibration and the thresholds of the ranking on judged sets. Every set counts the same."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from toolcrib.search.evaluation import DEPTH
from toolcrib.search.options import Calibration, SearchOptions, SignalWeights
from toolcrib.search.signals import SIGNALS
from training.ranking_sets import Doubles, JudgedSet, Judgement

SHIPPED: Final = SearchOptions()

BY_HAND: Final = {
    "weights.named": "a name spelt as one word, `createIssue`, means that tool; the sets have few such queries",
    "weights.embedding": "0 without an embedder",
    "weights.past": "found by `bench/retrieval`, with half the requests of each set as the past",
    "embedding_weights": "found by a search with all-MiniLM-L6-v2 over these sets and tests/retrieval/hard",
    "uncovered_embedding": "tried in steps of 1 with that model, on these sets and tests/retrieval/hard",
    "embedding_calibration": "fitted as `calibration`, with that model; the offset 0.1 higher",
    "calibration.size": "minus half of calibration.raw: a free fit learns the few catalog sizes by heart",
    "calibration.least_count": "no set is small enough to say; a catalog of one tool fits no better than one of 30",
    "same_need": "that every need of a request gets its turn is a choice; the sets do not label an order of needs",
    "k1": "the usual value of BM25",
    "fields": "tuned on six public sets; the results are flat: half or double moves nDCG@10 by 0.5 of 100",
    "semantic_share": "only chooses the candidates; the results are flat between 0.7 and 1.7",
    "preselected": "bounds the work",
    "candidates": "bounds the work; with 100 the results are the same",
    "spelling_weights": "the sets have few misspelt queries",
    "synonym_weight": "below a corrected spelling; a synonym is a weaker sign than the word itself",
}
"""Values that are not fitted, and why."""

FITTED_WEIGHTS: Final = tuple(name for name in SIGNALS if f"weights.{name}" not in BY_HAND)
FITTED_CALIBRATION: Final = ("raw", "offset", "distance")
FITTED_THRESHOLDS: Final = ("nothing_below", "weak_below")

WITH_EMBEDDER: Final = replace(SHIPPED, weights=SHIPPED.embedding_weights, calibration=SHIPPED.embedding_calibration)
"""The shipped options for a request that an embedder has a vector for, in the fields that are fitted."""

_NAMED: Final = SIGNALS.index("named")
_RIDGE: Final = 1e-3
"""Times the squared weights. Keeps the weight of a signal finite if it hardly occurs."""
_MAX_STEPS: Final = 500
_TOLERANCE: Final = 1e-8
_MAX_LOST: Final = 0.01
"""The share of right answers that `nothing_below` may withhold."""
_NOTICED: Final = 5
"""A right tool counts as found if it is among so many."""
_MARKS: Final = np.arange(1, 100) / 100


def fitted_weights(shipped: SearchOptions) -> Sequence[str]:
    """The weights that are fitted: that of `embedding` only if the search has an embedder."""
    return (*FITTED_WEIGHTS, "embedding") if shipped.weights.embedding else FITTED_WEIGHTS


def fit(sets: Sequence[JudgedSet], shipped: SearchOptions = SHIPPED) -> SearchOptions:
    """The shipped options with weights, calibration and thresholds fitted on these sets."""
    weights = fit_weights(sets, shipped)
    calibration = fit_calibration(sets, weights, shipped)
    nothing, weak = fit_thresholds(sets, weights, calibration)
    return replace(shipped, weights=weights, calibration=calibration, nothing_below=nothing, weak_below=weak)


def fit_weights(sets: Sequence[JudgedSet], shipped: SearchOptions = SHIPPED) -> SignalWeights:
    """Minimize a listwise softmax loss: each right tool against the wrong candidates of its query.

    No weight is below 0; each is rounded to 0.1.
    """
    names = fitted_weights(shipped)
    batches = [batch for each in sets if len((batch := _Batch.of(each.own)).signals)]
    if not batches:
        return shipped.weights
    start = np.array([getattr(shipped.weights, name) for name in names])
    found = _minimize(lambda weights: _mean_loss(weights, batches, names), start)
    named = zip(names, found.tolist(), strict=True)
    return replace(shipped.weights, **{name: round(value, 1) for name, value in named})


def fit_calibration(sets: Sequence[JudgedSet], weights: SignalWeights, shipped: SearchOptions = SHIPPED) -> Calibration:
    """Fit the logistic function of the best hits, then how it falls with the distance from the best."""
    vector = _vector(weights)
    best = [row for each in sets for row in _weighted([*_best_rows(each, vector)])]
    raw, offset = _logistic_fit(best, (shipped.calibration.raw, 0.0))
    found = replace(shipped.calibration, raw=round(raw, 2), size=round(-raw / 2, 2), offset=round(offset, 2))
    hits = [row for each in sets for row in _weighted([*_hit_rows(each, vector, found)])]
    _, distance, _ = _logistic_fit(hits, (1.0, found.distance, 0.0))
    return replace(found, distance=round(distance, 2))


def fit_thresholds(sets: Sequence[JudgedSet], weights: SignalWeights, calibration: Calibration) -> tuple[float, float]:
    """The values of `nothing_below` and `weak_below`, in hundredths.

    The first is the highest mark that withholds at most 1 % of the right answers that are among the first five. The
    second separates answerable queries from others best: the highest mean of both shares on the right side.
    """
    vector = _vector(weights)
    lost, separated = [], []
    for each in sets:
        answerable = np.array([_probability(each, one, vector, calibration) for one in each.own])
        foreign = np.array([_probability(each, one, vector, calibration) for one in each.foreign])
        found = answerable[[_is_found(one, vector) for one in each.own]] if each.own else answerable
        if len(found):
            lost.append((found < _MARKS[:, None]).mean(axis=1))
        if len(answerable) and len(foreign):
            separated.append((answerable >= _MARKS[:, None]).mean(axis=1) + (foreign < _MARKS[:, None]).mean(axis=1))
    allowed = _MARKS[np.mean(lost, axis=0) <= _MAX_LOST] if lost else _MARKS[:0]
    nothing = float(allowed.max(initial=0.0))
    weak = float(_MARKS[np.mean(separated, axis=0).argmax()]) if separated else SHIPPED.weak_below
    return nothing, max(nothing, weak)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The judgements of one set, padded to one width."""

    signals: Doubles
    """float64[queries, width, signals]."""
    relevant: npt.NDArray[np.bool_]
    """bool[queries, width]."""
    wrong: npt.NDArray[np.bool_]
    """bool[queries, width]; the padding is neither."""

    @classmethod
    def of(cls, judgements: Sequence[Judgement]) -> "_Batch":
        """Only queries with both a right and a wrong candidate say anything about the weights."""
        useful = [one for one in judgements if one.relevant.any() and not one.relevant.all()]
        width = max((len(one.relevant) for one in useful), default=0)
        signals = np.zeros((len(useful), width, len(SIGNALS)))
        relevant, wrong = np.zeros((2, len(useful), width), dtype=np.bool_)
        for row, one in enumerate(useful):
            size = len(one.relevant)
            signals[row, :size], relevant[row, :size], wrong[row, :size] = one.signals, one.relevant, ~one.relevant
        return cls(signals, relevant, wrong)


def _mean_loss(
    weights: Doubles, batches: Sequence[_Batch], names: Sequence[str] = FITTED_WEIGHTS
) -> tuple[float, Doubles]:
    """The mean loss over the sets, and its gradient."""
    columns = [SIGNALS.index(name) for name in names]
    losses, gradients = zip(*(_loss(weights, batch, columns) for batch in batches), strict=True)
    loss = float(np.mean(losses)) + _RIDGE * float(weights @ weights)
    return loss, np.mean(gradients, axis=0) + 2 * _RIDGE * weights


def _loss(weights: Doubles, batch: _Batch, columns: Sequence[int]) -> tuple[float, Doubles]:
    """The mean of `ln(e^right + sum of e^wrong) - right` over the right tools of a query, then over the queries."""
    scores = batch.signals[:, :, columns] @ weights + batch.signals[:, :, _NAMED] * SHIPPED.weights.named
    used = batch.relevant | batch.wrong
    scores -= np.where(used, scores, -np.inf).max(axis=1, keepdims=True)
    powers = np.where(used, np.exp(scores), 0.0)
    wrong = (powers * batch.wrong).sum(axis=1, keepdims=True)
    totals = np.where(batch.relevant, powers + wrong, 1.0)
    share = batch.relevant / batch.relevant.sum(axis=1, keepdims=True)
    loss = (share * (np.log(totals) - scores)).sum() / len(scores)
    slopes = share * (powers / totals - 1) + batch.wrong * powers * (share / totals).sum(axis=1, keepdims=True)
    gradient: Doubles = np.einsum("qc,qcs->s", slopes, batch.signals[:, :, columns]) / len(scores)
    return float(loss), gradient


def _minimize(function: Callable[[Doubles], tuple[float, Doubles]], start: Doubles) -> Doubles:
    """The lowest point with no coordinate below 0, by accelerated projected gradient descent with restarts.

    Source: Beck and Teboulle, 2009; O'Donoghue and Candès, 2015, for the restarts.
    """
    point = ahead = np.maximum(start, 0.0)
    best, momentum, step = function(point)[0], 1.0, 1.0
    for _ in range(_MAX_STEPS):
        value, slope = function(ahead)
        while True:
            moved = np.maximum(ahead - step * slope, 0.0)
            change = moved - ahead
            reached = function(moved)[0]
            if reached <= value + float(slope @ change) + float(change @ change) / (2 * step):
                break
            step /= 2
        if reached > best and momentum > 1:
            ahead, momentum = point, 1.0
            continue
        grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / grown * (moved - point)
        done = best - reached <= _TOLERANCE
        point, best, momentum, step = moved, min(best, reached), float(grown), step * 1.5
        if done:
            break
    return point


_Row = tuple[tuple[float, ...], bool]
"""The inputs of a logistic function, the last one being 1, and its label."""


def _best_rows(each: JudgedSet, weights: Doubles) -> Iterator[_Row]:
    """One row for each query. One that spells a whole name is left out: its probability has a floor of its own."""
    size = 0.5 * float(np.log(max(SHIPPED.calibration.least_count, len(each.source.tools))))
    for one in (*each.own, *each.foreign):
        if len(one.signals) and not one.signals[:, _NAMED].any():
            raw = one.signals @ weights
            yield (float(raw.max()) - size, 1.0), bool(one.relevant[raw.argmax()])


def _hit_rows(each: JudgedSet, weights: Doubles, calibration: Calibration) -> Iterator[_Row]:
    """One row for each of the ten best tools of the answerable queries."""
    for one in each.own:
        if len(one.signals):
            probability = _probability(each, one, weights, calibration)
            odds = float(np.log(probability / (1 - probability)))
            raw = one.signals @ weights
            for place in np.argsort(-raw, kind="stable")[:DEPTH].tolist():
                yield (odds, float(raw.max() - raw[place]), 1.0), bool(one.relevant[place])


def _weighted(rows: Sequence[_Row]) -> Iterator[tuple[_Row, float]]:
    """Rows with weights that add up to 1."""
    return ((row, 1 / len(rows)) for row in rows)


def _logistic_fit(rows: Sequence[tuple[_Row, float]], default: tuple[float, ...]) -> tuple[float, ...]:
    """The coefficients of the logistic function that fits the rows best, by Newton's method with a small ridge."""
    if len({label for (_, label), _ in rows}) < 2:  # noqa: PLR2004 - both labels are needed
        return default
    inputs = np.array([features for (features, _), _ in rows])
    labels = np.array([label for (_, label), _ in rows], dtype=np.float64)
    shares = np.array([share for _, share in rows])
    found = np.zeros(inputs.shape[1])
    ridge = 1e-4 * np.eye(len(found))
    for _ in range(50):
        guess = _logistic(inputs @ found)
        slope = inputs.T @ (shares * (guess - labels)) + ridge @ found
        bend = (inputs * (shares * guess * (1 - guess))[:, None]).T @ inputs + ridge
        change = np.linalg.solve(bend, slope)
        found -= change
        if float(np.abs(change).max()) < _TOLERANCE:
            break
    return tuple(found.tolist())


def _probability(each: JudgedSet, one: Judgement, weights: Doubles, by: Calibration) -> float:
    """The probability that anything fits a query, without the minimum for explicit names."""
    if not len(one.signals):
        return 1e-9
    size = np.log(max(by.least_count, len(each.source.tools)))
    odds = by.raw * (one.signals @ weights).max() + by.size * size
    return float(np.clip(_logistic(np.asarray(odds + by.offset)), 1e-9, 1 - 1e-9))


def _is_found(one: Judgement, weights: Doubles) -> bool:
    """Whether a right tool is among the first five."""
    order = np.argsort(-(one.signals @ weights), kind="stable")[:_NOTICED]
    return bool(one.relevant[order].any())


def _vector(weights: SignalWeights) -> Doubles:
    return np.array([getattr(weights, name) for name in SIGNALS])


def _logistic(odds: Doubles) -> Doubles:
    probability: Doubles = 0.5 * (1 + np.tanh(0.5 * odds))
    return probability
