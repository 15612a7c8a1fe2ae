"""What is shown where nothing fits: the tools used most, and those with the shortest names."""

from collections.abc import Mapping, Sequence

import numpy as np

from toolcrib.model import Reason, ScorePart
from toolcrib.search.scorers.base import Bools, Line, Ranked, View, best, kept, positions, scored
from toolcrib.search.scorers.options import PointsOptions


def popular(
    view: View,
    limit: int,
    allowed: Sequence[Bools],
    use: PointsOptions,
    boosts: Mapping[str, float] | None,
    missed: tuple[str, ...],
) -> Ranked:
    """Some allowed tools, each labelled as a fallback: the choice goes by boost, length of the name, id."""
    chosen = _chosen(view, allowed, use.fallback_count, boosts or {})
    scores = [np.zeros(len(part.index)) for part in view.parts]
    for number, place in chosen:
        scores[number][place] = use.fallback_points
    found, total = best(view, scores, allowed, limit, boosts)
    part = ScorePart(name="fallback", value=1.0, weight=use.fallback_points)
    line = Line(Reason(word="", field="", how="fallback"), part, ())
    hits = [scored(one, [line], {}, fallback=True) for one in found]
    return Ranked(hits, total, missed)


def _chosen(view: View, allowed: Sequence[Bools], count: int, boosts: Mapping[str, float]) -> list[tuple[int, int]]:
    """Part and position of the tools to show."""
    found: list[tuple[float, int, str, int, int]] = []
    for number, (part, passes) in enumerate(zip(view.parts, allowed, strict=True)):
        index = part.index
        lengths = kept(index, "name lengths", lambda index: np.array([len(tool.name) for tool in index.tools], np.intp))
        places = np.flatnonzero(passes)
        first = places[np.lexsort((index.ranks[places], lengths[places]))][: count + len(boosts)].tolist()
        at = positions(index)
        used = [at[id_] for id_ in boosts if id_ in at and passes[at[id_]]]
        found += [
            (-boosts.get(index.ids[place], 1.0), int(lengths[place]), index.ids[place], number, place)
            for place in {*first, *used}
        ]
    found.sort()
    return [(number, place) for *_, number, place in found[:count]]
