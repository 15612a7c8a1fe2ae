"""What metrics cost a call, and traces that are compiled in but off: processor time, in alternating runs of gateways.

Each pair of runs gives one ratio; the interval of their median comes from 10,000 resamples of the pairs.
"""

import asyncio
import contextlib
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import load
import overhead

PAIRS = 12
CALLS = 1_500
AT_ONCE = 4
WITHOUT_TRACES = """
import contextlib
import toolcrib.tracing as tracing
nothing = contextlib.nullcontext()
tracing.Tracing.call = tracing.Tracing.request = tracing.Tracing.search = lambda *_: nothing
tracing.Tracing.is_on = False
"""


@contextlib.contextmanager
def gateway(upstream: str, *, before: str = "", **telemetry: object) -> Iterator[tuple[str, int]]:
    """A gateway with these settings, which runs some code first."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(before)
        path = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (folder if before else "", path) if part)
        try:
            with overhead.toolcrib(upstream, "direct", telemetry=telemetry) as started:
                yield started
        finally:
            os.environ["PYTHONPATH"] = path


def cpu_ms(url: str, pid: int, calls: int = CALLS) -> float:
    """Processor time of a call through a gateway."""
    message = load.request(url, "up__echo", {"text": overhead.PAYLOAD}, overhead.AUTHORIZATION)
    expect = overhead.PAYLOAD.encode()
    return asyncio.run(load.run(url, message, expect=expect, at_once=AT_ONCE, calls=calls, pid=pid)).cpu_ms


def compare(name: str, one: tuple[str, int], other: tuple[str, int]) -> None:
    """Print how much more a call costs at one gateway than at the other."""
    for each in (one, other):
        cpu_ms(*each, calls=CALLS // 3)
    ratios, times = [], []
    for number in range(PAIRS):
        first = cpu_ms(*(one if number % 2 else other))
        second = cpu_ms(*(other if number % 2 else one))
        mine, base = (first, second) if number % 2 else (second, first)
        ratios.append(mine / base)
        times.append((mine, base))
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(ratios, k=PAIRS)) for _ in range(10_000))
    low, high = medians[250] - 1, medians[-250] - 1
    mine, base = (statistics.median(part) for part in zip(*times, strict=True))
    found = statistics.median(ratios) - 1
    print(f"{name:42}{base:8.3f}{mine:8.3f}{found:+9.1%}   95 % of {low:+.1%} to {high:+.1%}", flush=True)


def main() -> None:
    """Measure both."""
    chosen = sys.argv[1:] or ["metrics", "traces"]
    print(f"CPU a call in ms, {PAIRS} pairs of {CALLS} calls; load average {os.getloadavg()[0]:.1f}")
    print(f"{'':42}{'without':>8}{'with':>8}{'more':>9}")
    with contextlib.ExitStack() as stack:
        up, _ = stack.enter_context(overhead.server(str(Path(__file__).parent / "servers.py"), "upstream", "50"))
        plain = stack.enter_context(gateway(up))
        if "metrics" in chosen:
            with gateway(up, metrics="127.0.0.1:0") as metered:
                compare("telemetry.metrics on", metered, plain)
        if "traces" in chosen:
            with gateway(up, before=WITHOUT_TRACES) as bare:
                compare("traces off, against no code for traces", plain, bare)


if __name__ == "__main__":
    main()
