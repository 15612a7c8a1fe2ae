"""Near-duplicates: tools that say the same, of other servers above all, shown under the best of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from toolcrib.model import Hit
from toolcrib.names import fold
from toolcrib.search.view import View

_ALIKE = 0.9
"""Cosine from which two tools are near-duplicates."""
_ALIKE_BY_NAME = 0.7
"""Cosine from which two tools of the same name are. Source of both: tried on a catalog of 20,000 public tools."""


def grouped(view: View, places: Sequence[tuple[int, int]], hits: Sequence[Hit]) -> list[Hit]:
    """The hits, which stand at those parts and positions, without near-duplicates of better ones, which name them."""
    rows = [view.parts[part].index.features.meaning.floats(np.array([position])) for part, position in places]
    vectors = np.concatenate(rows)
    likeness = (vectors @ vectors.T).tolist()
    names = [fold(hit.tool.name) for hit in hits]
    leaders: dict[int, list[str]] = {}
    for place, hit in enumerate(hits):
        under = next((leader for leader in leaders if likeness[leader][place] >= _edge(names, leader, place)), None)
        if under is None:
            leaders[place] = []
        else:
            leaders[under].append(hit.tool.id)
    return [replace(hits[leader], similar=tuple(ids)) for leader, ids in leaders.items()]


def _edge(names: Sequence[str], one: int, other: int) -> float:
    return _ALIKE_BY_NAME if names[one] == names[other] else _ALIKE
