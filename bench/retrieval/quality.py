"""How well each engine ranks: four tracks of every set."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from engines import Engine
from sets import Set

from toolcrib.search.evaluation import evaluate, query_tracks


def measured(engines: Sequence[Engine], sets: Sequence[Set], most: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Engine, set and its figures, one after the other; `most` queries a track."""
    for each in sets:
        asked = query_tracks(each.name, each.names, each.queries, most=most)
        for engine in (engine for engine in engines if engine.ranked):
            engine.build(each.pairs[:2])  # what it imports is not its index
            begun = time.perf_counter()
            search = engine.build(each.pairs)
            build_s = time.perf_counter() - begun
            figures: dict[str, Any] = {"tools": len(each.pairs), "build_s": round(build_s, 4), "tracks": {}}
            for track, queries in asked.items():
                report = evaluate(search, queries, clock=time.perf_counter)
                shares = {name: round(value, 5) for name, value in report.metrics.as_dict().items()}
                figures["tracks"][track] = {"queries": report.queries, **shares, "p50_us": round(report.p50_s * 1e6, 1)}
            yield engine.name, each.name, figures
