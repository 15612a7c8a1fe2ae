"""What metrics cost a call, and traces that are compiled in but off: processor time, in alternating runs of gateways.

Runs are short and come in pairs, one of each gateway, in turns the one or the other first, so that whatever else the
machine does affects both. A run is measured by the nanoseconds that the kernel counts for the threads of the gateway.
Gateways are started again for each of a few rounds, because two equal processes differ by a per cent or so for as long
as they live. The estimate is the mean of the middle three fifths of the pairs' ratios; its interval is that of 10,000
resamples of rounds and of the pairs in them. `python bench/telemetry.py none` compares equal gateways, and shows what
the method can resolve.
"""

import asyncio
import contextlib
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import load
import overhead

ROUNDS = 5
PAIRS = 24
"""In each round."""
CALLS = 250
AT_ONCE = 4
RESAMPLES = 10_000
TRIM = 0.2
"""The share of pairs that is left out at each end."""
WITHOUT_TRACES = """
import contextlib
import toolcrib.tracing as tracing
nothing = contextlib.nullcontext()
tracing.Tracing.call = tracing.Tracing.request = tracing.Tracing.search = lambda *_: nothing
tracing.Tracing.is_on = False
"""
Gateway = tuple[str, int]


@contextlib.contextmanager
def gateway(upstream: str, *, before: str = "", **telemetry: object) -> Iterator[Gateway]:
    """A gateway with these settings, which runs some code first."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(before)
        path = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (folder, path) if part)
        try:
            with overhead.toolcrib(upstream, "direct", telemetry=telemetry) as started:
                yield started
        finally:
            os.environ["PYTHONPATH"] = path


def spent_ns(pid: int) -> int:
    """User and system time of the threads of a process, in nanoseconds."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += int((task / "schedstat").read_text().split()[0])
    return found


async def cpu_ms(url: str, pid: int, calls: int = CALLS) -> float:
    """Processor time of a call through a gateway."""
    message = load.request(url, "up__echo", {"text": overhead.PAYLOAD}, overhead.AUTHORIZATION)
    before = spent_ns(pid)
    await load.run(url, message, expect=overhead.PAYLOAD.encode(), at_once=AT_ONCE, calls=calls)
    return (spent_ns(pid) - before) / calls / 1e6


async def pairs(mine: Gateway, base: Gateway) -> list[tuple[float, float]]:
    """The times of a call at both gateways, once both are warm."""
    for each in (mine, base):
        await cpu_ms(*each, calls=6 * CALLS)
    found = []
    for number in range(PAIRS):
        order = (mine, base) if number % 2 else (base, mine)
        first, second = [await cpu_ms(*one) for one in order]
        found.append((first, second) if number % 2 else (second, first))
    return found


def trimmed(values: Sequence[float]) -> float:
    """The mean of the values in the middle."""
    cut = int(len(values) * TRIM)
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def interval(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % of the resampled estimates."""
    chance = random.Random(1)
    found = []
    for _ in range(RESAMPLES):
        values: list[float] = []
        for chosen in chance.choices(rounds, k=len(rounds)):
            values += chance.choices(chosen, k=len(chosen))
        found.append(trimmed(values))
    found.sort()
    return found[RESAMPLES // 40], found[-RESAMPLES // 40]


def compare(name: str, upstream: str, *, before: str = "", mine: dict[str, object], base: dict[str, object]) -> None:
    """Print how much more a call costs at one gateway than at the other. `before` is run by the second one."""
    rounds, times, began = list[list[float]](), list[tuple[float, float]](), time.perf_counter()
    for _ in range(ROUNDS):
        with gateway(upstream, **mine) as one, gateway(upstream, before=before, **base) as other:
            found = asyncio.run(pairs(one, other))
        times += found
        rounds.append([math.log(first / second) for first, second in found])
    low, high = interval(rounds)
    with_, without = (trimmed(part) for part in zip(*times, strict=True))
    more = trimmed([ratio for one in rounds for ratio in one])
    each = ", ".join(f"{math.expm1(trimmed(one)):+.1%}" for one in rounds)
    print(
        f"{name:42}{without:8.3f}{with_:8.3f}{math.expm1(more):+9.1%}   95 % of {math.expm1(low):+.1%} to "
        f"{math.expm1(high):+.1%}   rounds: {each}   {time.perf_counter() - began:.0f} s",
        flush=True,
    )


def main() -> None:
    """Measure what the arguments name; by default both."""
    chosen = sys.argv[1:] or ["metrics", "traces"]
    os.environ["PYTHONHASHSEED"] = "0"  # or each process would lay out its tables differently
    print(f"CPU a call in ms, {ROUNDS} rounds of {PAIRS} pairs of {CALLS} calls; load average {os.getloadavg()[0]:.1f}")
    print(f"{'':42}{'without':>8}{'with':>8}{'more':>9}")
    with overhead.server(str(Path(__file__).parent / "servers.py"), "upstream", "50") as (up, _):
        if "metrics" in chosen:
            compare("telemetry.metrics on", up, mine={"metrics": "127.0.0.1:0"}, base={})
        if "traces" in chosen:
            compare("traces off, against no code for traces", up, before=WITHOUT_TRACES, mine={}, base={})
        if "none" in chosen:
            compare("no difference", up, mine={}, base={})


if __name__ == "__main__":
    main()
