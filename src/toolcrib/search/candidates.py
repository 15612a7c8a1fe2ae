"""The first stage: the few tools worth a second look, out of all that a caller sees."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import nsmallest
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.search.features import SKETCH_BITS, query_sketches
from toolcrib.search.lexical import Met
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import Bools
from toolcrib.search.signals import Sense, has
from toolcrib.search.view import View

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Reals = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int32]
Keys = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

_ALIKE = 0.25
"""Cosine above which a tool that shares no word with a query is worth a look."""

_MOST_NAMED = 256
"""Tools called by their whole names that always go on; of more, such as thousands of one name, the best."""

_STRIDE = 8
"""One value in so many is a sample."""

_COSINES = np.cos(np.pi * np.arange(SKETCH_BITS + 1) / SKETCH_BITS).astype(np.float32)
"""The cosine that so many different signs of two sketches tell. Source: Charikar, STOC 2002."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tools that go on."""

    positions: tuple[Ints, ...]
    """For each part, sorted."""
    total: int
    """How many tools met a word of the query."""


def candidates(
    view: View, met: Met, sense: Sense, allowed: Sequence[Bools], count: int, options: SearchOptions
) -> Candidates:
    """The tools with the most of `lexical / max(lexical) + 1.3 * cosine`, of those allowed, and up to 256 named ones.

    Of many tools only the sketches are compared, and the cosine is worked out for those that are best by them.
    Source of the formula: the prototype, which tried it beside reciprocal rank fusion and others.
    """
    share = _share(view, met)
    positions = _preselected(view, met, sense, allowed, share, options)
    if met.names:
        named = [_named(view, met, number, passes) for number, passes in enumerate(allowed)]
        positions = [_joined(at, more) for at, more in zip(positions, named, strict=True)]
    bases = []
    for number, (part, score) in enumerate(zip(view.parts, met.scores, strict=True)):
        scores = score[positions[number]]
        near = part.index.features.meaning.products(positions[number], sense.meaning).max(axis=0)
        stay = (scores > 0) | (near >= _ALIKE)
        positions[number] = positions[number][stay]
        bases.append((share * scores + options.semantic_share * near)[stay])
    best = _best(view, positions, bases, count)
    if met.names:
        if sum(map(len, named)) > _MOST_NAMED:
            first = _best(view, positions, bases, max(_MOST_NAMED, count))
            named = [more[has(at, more)] for at, more in zip(first, named, strict=True)]
        best = [_joined(at, more) for at, more in zip(best, named, strict=True)]
    total = sum(
        int(np.count_nonzero(score if part.whole and passes is part.seen else score[passes]))
        for part, score, passes in zip(view.parts, met.scores, allowed, strict=True)
    )
    return Candidates(tuple(best), total)


def _share(view: View, met: Met) -> float:
    """One over the highest lexical score that the caller can see."""
    top = 0.0
    for part, score in zip(view.parts, met.scores, strict=True):
        if len(score):
            top = max(top, float(score.max() if part.whole else score.max(initial=0.0, where=part.seen)))
    return 1 / top if top > 0 else 0.0


def _preselected(
    view: View, met: Met, sense: Sense, allowed: Sequence[Bools], share: float, options: SearchOptions
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
    wanted = query_sketches(sense.meaning)[:, sense.meaning.values.any(axis=1)]
    bases = []
    for part, score, at, all_ in zip(view.parts, met.scores, places, whole, strict=True):
        base = _estimates(part.index.features.sketch, wanted)
        base *= np.float32(options.semantic_share)
        base += share * score
        bases.append(base if all_ else base[at])
    return _best(view, places, bases, options.preselected)


def _joined(positions: Ints, more: Ints) -> Ints:
    """Sorted positions, and more of them."""
    missing = more[~has(positions, more)]
    return np.sort(np.concatenate([positions, missing])) if len(missing) else positions


def _estimates(sketch: Keys, wanted: Keys) -> Floats:
    """The cosine of each tool with the nearest clause, as the sketches tell it."""
    if not wanted.size:
        return np.zeros(sketch.shape[1], dtype=np.float32)
    differ = reduce(np.minimum, (_differences(sketch, first, second) for first, second in wanted.T))
    return _COSINES.take(differ)


def _differences(sketch: Keys, first: np.uint64, second: np.uint64) -> npt.NDArray[np.uint8]:
    differ: npt.NDArray[np.uint8] = np.bitwise_count(sketch[0] ^ first)
    differ += np.bitwise_count(sketch[1] ^ second)
    return differ


def _named(view: View, met: Met, number: int, allowed: Bools) -> Ints:
    """The allowed tools of a part that the query calls by their whole names."""
    found = [np.zeros(0, dtype=np.int32)]
    for item in met.names:
        start, stop = item.ways[0].spans[number]
        at = view.parts[number].index.positions[start:stop]
        found.append(at[allowed[at]])
    return found[0] if len(found) == 1 else np.unique(np.concatenate(found))


def _edge(values: Reals, count: int) -> float:
    """The `count`-th highest of more values than that.

    Of many, those below the `count`-th highest of a sample are dropped first: it is no higher than what is looked for.
    """
    sample = values[::_STRIDE]
    if len(sample) > count * _STRIDE:
        values = values[values >= _edge(sample, count)]
    return float(np.partition(values, len(values) - count)[len(values) - count])


def _best(view: View, positions: Sequence[Ints], bases: Sequence[Reals], count: int) -> list[Ints]:
    """The `count` tools with the highest base over all parts; where there are more, ties go by id."""
    everything: Reals = bases[0] if len(bases) == 1 else np.concatenate(bases)
    if len(everything) <= count:
        return list(positions)
    edge = _edge(everything, count)
    above = [(base > edge).nonzero()[0] for base in bases]
    tied = [(base == edge).nonzero()[0] for base in bases]
    left = count - sum(map(len, above))
    if sum(map(len, tied)) > left:
        tied = _first(view, positions, tied, left)
    return [at[np.sort(np.concatenate([over, level]))] for at, over, level in zip(positions, above, tied, strict=True)]


def _first(view: View, positions: Sequence[Ints], tied: Sequence[Places], count: int) -> list[Places]:
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
