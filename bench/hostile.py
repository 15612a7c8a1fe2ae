"""Hostile scripts, twice in a row on a busy machine: how each ends, and how long the event loop was blocked.

    hostile.py [FOLDER ...] [--rounds 2] [--idle] [--only TEXT]

Our own scripts are in `tests/sandbox/hostile`. Other sets are folders with `lua` and `python` in them, named here, in
the environment variable TOOLCRIB_HOSTILE, or beside the project. The first line of a script
says how it has to end: `expect: ok:JSON`, `expect: error:KIND|KIND:TEXT`, `expect: any`. Another end makes the exit
status 1.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.sandbox.conftest import Servers  # noqa: E402 - the doubles that the scripts call

from toolcrib.errors import ToolcribError  # noqa: E402 - after the path
from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions, ScriptError  # noqa: E402 - as above

Box = LuaSandbox | PythonSandbox

OWN = ROOT / "tests" / "sandbox" / "hostile"
VARIABLE = "TOOLCRIB_HOSTILE"
ENGINES: dict[str, type[Box]] = {"lua": LuaSandbox, "python": PythonSandbox}
LIMITS = Limits(wall_s=15, stall_s=8, soft_cpu_s=2, cpu_s=3)
QUICK = Limits(wall_s=10, stall_s=8, soft_cpu_s=0.4, cpu_s=1)
WAITING_S = 1.0
"""Of our own scripts that do nothing but wait."""
AT_ONCE = 3
TICK_S = 0.002
REST_S = 3.0
KINDS = {
    "timeout": {"cpu", "wall"},
    "error": {"script", "calls", "size"},
    "syntax": {"script"},
    "abort": {"crash"},
}
"""What Monty calls an end, in other sets, and what it is here."""


@dataclass(frozen=True)
class Script:
    """One file, and the set that it belongs to."""

    path: Path
    own: bool

    @property
    def parts(self) -> tuple[str, str]:
        """The expected outcome, and the script."""
        first, _, source = self.path.read_text(encoding="utf-8").partition("\n")
        return first.partition("expect: ")[2].strip(), source

    @property
    def limits(self) -> Limits:
        if not self.own:
            return LIMITS
        return replace(QUICK, wall_s=WAITING_S) if self.path.name.startswith("wait_") else QUICK


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    what: str
    value: Any
    said: str = ""

    def __str__(self) -> str:
        return f"{self.what}:{json.dumps(self.value)[:60] if self.what == 'ok' else self.value}:{self.said[:150]}"


def is_as_expected(expected: str, outcome: Outcome) -> bool:
    """Whether the first line of the script allows that outcome."""
    if expected == "any" or expected.startswith(("ok|error", "error|ok")):
        return outcome.what in ("ok", "error")
    if expected.startswith("ok:"):
        return outcome.what == "ok" and bool(outcome.value == json.loads(expected[3:]))
    wanted = expected.partition(" (")[0].removeprefix("error").removeprefix(":")
    kinds, _, text = wanted.partition(":")
    allowed = {kind for name in kinds.split("|") if name for kind in KINDS.get(name, {name})}
    return outcome.what == "error" and (not allowed or outcome.value in allowed) and text in outcome.said


class Stalls:
    """The longest time between two turns of the event loop: on the clock, and in processor time of its thread."""

    def __init__(self) -> None:
        self.clock = self.cpu = 0.0

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            clock, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            self.clock = max(self.clock, time.perf_counter() - clock - TICK_S)
            self.cpu = max(self.cpu, time.thread_time() - cpu)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator["Stalls"]:
        """Measure while the block runs."""
        task = asyncio.create_task(self.watch())
        try:
            yield self
        finally:
            task.cancel()

    def __str__(self) -> str:
        return f"{self.clock * 1e3:7.1f} ms on the clock, {self.cpu * 1e3:6.1f} ms of its own computing"


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Processes that compute for ever."""
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def ended(box: Box, script: Script, gate: asyncio.Semaphore) -> Outcome:
    """Run the script, and return its outcome."""
    async with gate:
        try:
            result = await box.run(script.parts[1], Servers().tools(), limits=script.limits)
        except ScriptError as error:
            return Outcome("error", error.kind, str(error))
        except ToolcribError as error:
            return Outcome("refused", error.code, str(error))
    return Outcome("ok", result.value)


async def run_round(language: str, scripts: list[Script]) -> int:
    """Run all scripts of one language; returns how many ended otherwise than expected."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with ENGINES[language](options=SandboxOptions(workers=AT_ONCE)) as box:
        async with Stalls().watched() as rest:
            await asyncio.sleep(REST_S)
        begun = time.perf_counter()
        async with Stalls().watched() as stalls:
            outcomes = await asyncio.gather(*(ended(box, script, gate) for script in scripts))
        took_s = time.perf_counter() - begun
        sound = (await box.run("1" if language == "python" else "return 1", {})).value == 1
    wrong = 0
    for own in (True, False):
        ends = [pair for pair in zip(scripts, outcomes, strict=True) if pair[0].own is own]
        bad = [(script, end) for script, end in ends if not is_as_expected(script.parts[0], end)]
        wrong += len(bad)
        if ends:
            print(f"  {language:8}{'own' if own else 'other':8}{len(ends) - len(bad):14}{len(bad):10}", flush=True)
        for script, end in bad:
            print(f"    {script.path.name}: expected {script.parts[0]!r}, got {end}", flush=True)
    print(f"    {took_s:.0f} s; longest stall of the event loop {stalls}")
    print(f"    {'':5}of which without any script under the same load {rest}")
    print(f"    a script afterwards: {'as ever' if sound else 'NOT RUN'}", flush=True)
    return wrong + (not sound)


def sets(named: list[str]) -> list[tuple[Path, bool]]:
    """The folders to run, ours first; prints which are skipped."""
    folders = [(OWN, True)]
    others = [Path(name) for name in named or filter(None, [os.environ.get(VARIABLE)])]
    for folder in others:
        if not folder.is_dir():
            raise SystemExit(f"{folder} is not a folder.")
        folders.append((folder, False))
    if not others:
        print(f"For more scripts, name their folder as an argument or in {VARIABLE}.")
    return folders


async def main() -> int:
    """Run everything, print it, and say whether all was as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help="sets of scripts beside our own")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--idle", action="store_true", help="without other processes that compute")
    parser.add_argument("--only", default="", help="scripts whose names contain this")
    options = parser.parse_args()
    folders = sets(options.folders)
    wrong = 0
    busy = 0 if options.idle else os.cpu_count() or 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{AT_ONCE} scripts at once, {busy} other processes that compute")
    with load(busy):
        for number in range(1, options.rounds + 1):
            print(f"round {number:<10}{'':8}{'as expected':>12}{'not':>10}")
            for language in ENGINES:
                found = [
                    Script(path, own)
                    for folder, own in folders
                    for path in sorted((folder / language).glob("*"))
                    if path.is_file() and options.only in path.name
                ]
                wrong += await run_round(language, found) if found else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"this process held {before / 1024:.0f} MiB before, and {peak / 1024:.0f} MiB at most")
    print("everything ended as expected" if not wrong else f"{wrong} did not end as expected")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
