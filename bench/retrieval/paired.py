"""How many times as long as bm25s a search takes: both are asked the same requests in turn, in one process.

`python bench/retrieval/paired.py [--sizes 1000 10000 100000]` needs bm25s. Each request is put to both engines, one
after the other, over several rounds. The least time of each request counts, so other load on the machine hardly
matters. A request is the whole pipeline: reading it, ranking, and hits with scores and matched words; reasons are
computed when they are read. `--profile` prints where our time goes instead.
"""

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Callable, Sequence

from engines import bm25s, shelf
from sets import SAME_TOOLS, found
from speed import SIZES, queries, resampled

from toolcrib.search.evaluation import percentile

ROUNDS = 7
Ask = Callable[[str], object]


def least(engines: Sequence[Ask], texts: Sequence[str], rounds: int) -> list[list[float]]:
    """The least time of each request, in seconds, for each engine."""
    times = [[1e9] * len(texts) for _ in engines]
    for _ in range(rounds):
        for place, text in enumerate(texts):
            for ask, best in zip(engines, times, strict=True):
                begun = time.perf_counter()
                ask(text)
                best[place] = min(best[place], time.perf_counter() - begun)
    return times


def main() -> None:
    """Print the median of each engine and their ratio, for each size."""
    parser = argparse.ArgumentParser(description="Time a search beside bm25s, request by request.")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    sets = [each for each in found() if each.name not in SAME_TOOLS]
    texts = queries(sets)
    for size in arguments.sizes:
        pairs = resampled(sets, size)
        begun = time.process_time()
        own = shelf(pairs)
        build_s = time.process_time() - begun
        if arguments.profile:
            _profile(own.answer, texts, size)
            continue
        gc.collect()
        ours, theirs = (percentile(each, 0.5) for each in least((own.answer, bm25s(pairs)), texts, arguments.rounds))
        print(
            f"{size} tools: p50 {ours * 1e6:.0f} us, bm25s {theirs * 1e6:.0f} us, ratio {ours / theirs:.2f};"
            f" built in {build_s / size * 1e3:.3f} ms of processor time a tool",
            flush=True,
        )


def _profile(ask: Ask, texts: Sequence[str], size: int) -> None:
    for text in texts:
        ask(text)
    profile = cProfile.Profile()
    profile.enable()
    for text in texts * 3:
        ask(text)
    profile.disable()
    print(f"{size} tools, {3 * len(texts)} requests")
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
