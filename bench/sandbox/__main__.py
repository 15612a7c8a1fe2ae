"""Untrusted scripts, beside fastmcp's code mode: `run.py sandbox`.

A warm script (nothing called; one tool called), 1,000 calls one after the other, 100 calls of 100 ms at once, and the
memory of a worker. All subjects take turns, so that a busy machine is equally busy for all.
"""

import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import memory  # noqa: E402 - of this benchmark
from subjects import EXPECTED, SUBJECTS, Run, Subject, Tools  # noqa: E402 - as above

RESULTS = HERE.parent / "results" / "sandbox.json"
ROUNDS = {"none": 60, "one": 60, "twenty": 40, "sequence": 5, "together": 5}
TITLES = {
    "none": "a script that calls nothing",
    "one": "a script that calls one tool",
    "twenty": "20 calls, one by one",
    "one, in a row": "one tool, scripts in a row",
    "sequence": "1,000 calls, one by one",
    "together": "100 calls of 100 ms at once",
}
IN_A_ROW = 30
REST_S = 0.06
"""Between scripts, for the next worker to get ready."""
BASE = "fastmcp code mode, engine"

Cell = Mapping[str, float]


def cell(times: list[float]) -> Cell:
    """Minimum and median of some seconds, in milliseconds."""
    return {"min_ms": round(min(times) * 1e3, 2), "median_ms": round(statistics.median(times) * 1e3, 2)}


async def timed(run: Run, subject: Subject, name: str) -> float:
    """Seconds for that script, whose value is checked."""
    begun = time.perf_counter()
    value = await run(subject.scripts[name])
    took_s = time.perf_counter() - begun
    found = value["result"] if isinstance(value, dict) else value
    assert found == EXPECTED[name], (subject.name, name, value)
    return took_s


async def times() -> dict[str, dict[str, Cell]]:
    """By script and subject."""
    found: dict[str, dict[str, Cell]] = {}
    async with AsyncExitStack() as stack:
        running = [(each, await stack.enter_async_context(each.open(Tools()))) for each in SUBJECTS]
        for name, rounds in ROUNDS.items():
            taken: dict[str, list[float]] = {each.name: [] for each in SUBJECTS}
            for number in range(rounds + 1):
                for each, run in running:
                    await asyncio.sleep(REST_S)
                    took_s = await timed(run, each, name)
                    if number:  # the first warms up
                        taken[each.name].append(took_s)
            found[name] = {subject: cell(seconds) for subject, seconds in taken.items()}
        found["one, in a row"] = {
            each.name: cell([await timed(run, each, "one") for _ in range(IN_A_ROW)]) for each, run in running
        }
    return found


async def held(subject: Subject) -> dict[str, Any]:
    """Memory of a worker that waits for a script, and of one whose script waits for a tool; in MiB."""
    before, tools = memory.own(), Tools()
    async with subject.open(tools) as run:
        await asyncio.sleep(0.5)
        idle = memory.own() - before
        prepared = {pid for pid in memory.children() & idle if memory.below(pid)}
        task = asyncio.create_task(run(subject.scripts["held"]))
        await tools.arrived.wait()
        await asyncio.sleep(0.5)
        waiting = memory.held((memory.own() - before) - prepared)
        figures = {
            "an idle worker": memory.held(idle - prepared),
            "what they are forked from": memory.held(prepared),
            "a worker of those idle or in a script": waiting,
        }
        tools.let_go.set()
        await task
    return {
        name: None
        if found is None
        else {
            "workers": found.workers,
            "pss_mib": round(found.pss / 2**20, 2),
            "uss_mib": round(found.uss / 2**20, 2),
        }
        for name, found in figures.items()
    }


def show_times(found: Mapping[str, Mapping[str, Cell]]) -> None:
    """Print the times, with ratios to the peer."""
    for name, title in TITLES.items():
        print(f"\n{title:32}{'min ms':>10}{'ratio':>8}{'median ms':>12}{'ratio':>8}")
        base = found[name][BASE]
        for subject, one in found[name].items():
            ratios = [one[key] / base[key] for key in ("min_ms", "median_ms")]
            print(f"  {subject:30}{one['min_ms']:10.2f}{ratios[0]:8.2f}{one['median_ms']:12.2f}{ratios[1]:8.2f}")


def show_memory(found: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"\n{'memory of a worker, all its processes, MiB':62}{'how many':>9}{'PSS':>8}{'USS':>8}")
    for subject, kinds in found.items():
        for kind, one in kinds.items():
            if one is not None:
                print(f"  {subject:28}{kind:32}{one['workers']:9}{one['pss_mib']:8.2f}{one['uss_mib']:8.2f}")
    if not any(one for kinds in found.values() for one in kinds.values()):
        print("  not known: it is read from /proc, and by root alone")


def main() -> None:
    """Measure, print, and keep the figures."""
    machine = (
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} processors"
    )
    versions = {name: version(name) for name in ("toolcrib", "fastmcp", "lupa", "pydantic-monty")}
    print(f"{machine}; {', '.join(f'{name} {one}' for name, one in versions.items())}")
    busy = os.getloadavg()[0]
    found = asyncio.run(times())
    show_times(found)
    sizes = {each.name: asyncio.run(held(each)) for each in SUBJECTS}
    show_memory(sizes)
    figures = {"machine": machine, "load_before": round(busy, 1), "versions": versions, "times": found, "memory": sizes}
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\nratios are to the {BASE}; load average before: {busy:.1f}")


if __name__ == "__main__":
    main()
