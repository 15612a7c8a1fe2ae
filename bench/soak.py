"""Mixed load over HTTP for ten minutes: whether the gateway's memory grows with the number of calls.

Sixteen callers search, call tools by name and by `execute_tool`, and run scripts, in both protocol eras. A caller of
the older era deletes most of its sessions after a few calls, and leaves some behind. Prints the memory once per
interval, and its slope after the warm-up.

`soak.py [--seconds 600] [--goal 50] [--left-behind 0.02] [--seed 1]`; exits with 1 if the slope is above the goal.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import processes
from fleet import memory_mb
from mcp_client import Caller, text_of
from upstreams import right_answer

_CALLERS: Final = 16
_SESSION_CALLS: Final = 8
"""The calls of one session, on average."""
_WARM_UP: Final = 0.25
"""The share of the time that does not count."""
_SAMPLES: Final = 40
_KINDS: Final = {"search": 3, "by name": 4, "execute_tool": 4, "script": 1}
"""How often each kind of request is made, relative to the others."""
_SERVER: Final = Path(__file__).parent / "upstreams.py"


@dataclass
class Totals:
    """What was done so far."""

    calls: Counter[str] = field(default_factory=Counter)
    deleted: int = 0
    left_behind: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """The memory after a number of calls."""

    calls: int
    memory_mb: float


def request(kind: str, chance: random.Random) -> tuple[str, dict[str, Any], str]:
    """Return one request of a kind, and what its answer must contain."""
    server, number, nonce = f"s{chance.randrange(3)}", chance.randrange(10**9), str(chance.random())
    arguments = {"number": number, "nonce": nonce}
    if kind == "search":
        return "tool_search", {"query": f"works on a number for {server}, case {number}"}, "work"
    if kind == "by name":
        return f"{server}__work", arguments, right_answer(server, number, nonce)
    if kind == "execute_tool":
        return "execute_tool", {"name": f"{server}:work", "arguments": arguments}, right_answer(server, number, nonce)
    script = f'return {server}.work({{number = {number}, nonce = "{nonce}"}}):await()'
    return "execute", {"script": script}, right_answer(server, number, nonce)


async def work(url: str, chance: random.Random, totals: Totals, until: float, left_behind: float) -> None:
    """Be one caller until the time is over; every session of it is a new one."""
    while time.monotonic() < until:
        modern = chance.random() < 0.5
        caller = Caller(url, modern=modern)
        for _ in range(chance.randint(1, 2 * _SESSION_CALLS)):
            kind = chance.choices(list(_KINDS), list(_KINDS.values()))[0]
            tool, arguments, wanted = request(kind, chance)
            answer = await caller.call(tool, arguments)
            totals.calls[kind] += 1
            if wanted not in (text_of(answer) or ""):
                totals.wrong.append(f"{tool} {arguments}: {str(answer)[:300]}")
        if not modern and chance.random() < left_behind:
            totals.left_behind += 1
        elif not modern:
            await caller.delete()
            totals.deleted += 1
        caller.close()


async def sample(pid: int, totals: Totals, seconds: float) -> list[Sample]:
    """Note the memory in equal intervals."""
    samples, begun = [], time.monotonic()
    for number in range(1, _SAMPLES + 1):
        await asyncio.sleep(max(0.0, begun + seconds * number / _SAMPLES - time.monotonic()))
        samples.append(Sample(totals.calls.total(), memory_mb(pid)))
        if number % 4 == 0:
            print(f"{samples[-1].calls:9,} calls  {samples[-1].memory_mb:7.1f} MB", flush=True)
    return samples


def slope_kb(samples: list[Sample]) -> float:
    """Return the growth of memory a thousand calls after the warm-up, in KB, by least squares."""
    counted = samples[round(len(samples) * _WARM_UP) :]
    fit = statistics.linear_regression([one.calls / 1000 for one in counted], [one.memory_mb for one in counted])
    return fit.slope * 1024


async def soak(url: str, pid: int, seconds: float, left_behind: float, seed: int) -> tuple[Totals, list[Sample]]:
    """Run the load, and sample the memory."""
    totals, until = Totals(), time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(_CALLERS):
            group.create_task(work(url, random.Random(f"{seed}/{number}"), totals, until, left_behind))
        samples = await sample(pid, totals, seconds)
    return totals, samples


def main() -> int:
    """Run the soak, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--goal", type=float, default=50, help="KB a thousand calls")
    parser.add_argument("--left-behind", type=float, default=0.02, help="the share of sessions that are never deleted")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "toolcrib.json"
        servers = {
            f"s{number}": {"command": sys.executable, "args": [str(_SERVER), "stdio", f"s{number}", "", "", ""]}
            for number in range(3)
        }
        own = {"surfaces": ["search", "progressive"], "state": {"memory": True}}
        config.write_text(json.dumps({"mcpServers": servers, "toolcrib": own}))
        with processes.gateway(config) as (url, pid):
            print(f"at the start  {memory_mb(pid):13.1f} MB")
            totals, samples = asyncio.run(soak(url, pid, options.seconds, options.left_behind, options.seed))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(totals.calls.items()))
    print(f"{totals.calls.total():,} calls ({kinds}); {totals.deleted:,} sessions deleted, {totals.left_behind} left")
    slope = slope_kb(samples)
    print(f"growth after the warm-up: {slope:.1f} KB a 1,000 calls; the goal is {options.goal:g}")
    print(f"wrong answers: {len(totals.wrong)}", *totals.wrong[:5], sep="\n  ")
    return int(slope > options.goal or bool(totals.wrong))


if __name__ == "__main__":
    raise SystemExit(main())
