"""How long a search takes at 1,000 to 100,000 tools, and how soon one more tool is found."""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from engines import Engine, Search
from memory import taken_mb
from sets import Set

from toolcrib.search.engine import search
from toolcrib.search.evaluation import SEED, percentile
from toolcrib.search.index import Index
from toolcrib.types import SearchRequest, Tool

SIZES = (1_000, 10_000, 100_000)
QUERIES = 200
CELL_S = 20.0
"""An engine is asked no more queries of a catalog once this time has passed; ten at least."""

MEMORY_SIZE = 10_000
"""The largest catalog whose memory is measured, since the index is built once more for it."""

_ADDED = 5


def resampled(sets: Sequence[Set], size: int) -> list[tuple[str, Tool]]:
    """So many tools out of the sets, over and over, mixed; each time under another name."""
    pool = [tool for each in sets for tool in each.file.tools]
    random.Random(SEED).shuffle(pool)
    pairs: dict[str, Tool] = {}
    round_ = 0
    while len(pairs) < size:
        round_ += 1
        for tool in pool[: size - len(pairs)]:
            name, number = tool.name if round_ == 1 else f"{tool.name}_{round_}", round_
            while (renamed := replace(tool, name=name)).id in pairs:
                number += 1
                name = f"{tool.name}_again_{number}"
            pairs[renamed.id] = renamed
    return list(pairs.items())


def queries(sets: Sequence[Set]) -> list[str]:
    """The same 200 queries of all sets every time."""
    texts = [query.text for each in sets for query in each.queries]
    return random.Random(SEED).sample(texts, min(QUERIES, len(texts)))


def measured(
    engines: Sequence[Engine], sets: Sequence[Set], sizes: Sequence[int], cell_s: float
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Size, engine and its times, one after the other."""
    texts = queries(sets)
    for size in sizes:
        pairs = resampled(sets, size)
        for engine in engines:
            if size <= engine.most:
                gc.collect()
                figures = timed(engine, pairs, texts, cell_s)
                if size <= MEMORY_SIZE:
                    figures["memory_mb"] = taken_mb(engine, pairs)
                yield size, engine.name, figures


def timed(engine: Engine, pairs: Sequence[tuple[str, Tool]], texts: Sequence[str], cell_s: float) -> dict[str, Any]:
    """Build time in seconds; p50 and p95 of a search in microseconds, of the best of three rounds where time allows."""
    engine.build(pairs[:2])  # what it imports is not its index
    begun = time.perf_counter()
    ask = engine.build(pairs)
    build_s = time.perf_counter() - begun
    end = time.perf_counter() + cell_s
    rounds = [_round(ask, texts, end)]
    while len(rounds) < 3 and time.perf_counter() < end:
        times = _round(ask, texts, end)
        rounds += [times] if len(times) == len(texts) else []
    best = min(rounds, key=lambda times: percentile(times, 0.5))
    return {
        "build_s": round(build_s, 4),
        "queries": len(best),
        "p50_us": round(percentile(best, 0.5) * 1e6, 1),
        "p95_us": round(percentile(best, 0.95) * 1e6, 1),
    }


def _round(ask: Search, texts: Sequence[str], end: float) -> list[float]:
    """How long each search took, in seconds; no more once it is late, but ten at least, after one that warms up."""
    times: list[float] = []
    ask(texts[-1])
    for text in texts:
        if len(times) >= 10 and time.perf_counter() > end:
            break
        begun = time.perf_counter()
        ask(text)
        times.append(time.perf_counter() - begun)
    return times


def added(sets: Sequence[Set], size: int) -> dict[str, Any]:
    """One tool more in an index of so many: milliseconds until it is there, and until it is found; the median of 5."""
    tools = [tool for _, tool in resampled(sets, size)]
    index = Index.build(tools)
    search(index, SearchRequest(queries=("warm up",)))
    there, found = [], []
    for number in range(_ADDED):
        name = f"calibrate_zeppelin_{number}"
        tool = Tool(name=name, namespace="airship", description="Calibrate the zeppelin's altimeter.")
        begun = time.perf_counter()
        index = index.updated([tool])
        there.append(time.perf_counter() - begun)
        hits = search(index, SearchRequest(queries=(name,), limit=1)).hits
        found.append(time.perf_counter() - begun)
        assert hits[0].tool.name == name, "the new tool was not found"
    return {
        "tools": size,
        "there_ms": round(percentile(there, 0.5) * 1e3, 2),
        "found_ms": round(percentile(found, 0.5) * 1e3, 2),
    }
