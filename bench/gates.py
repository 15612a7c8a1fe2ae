"""What a change of the protocol engine must keep, in one run: `gates.py [--only NAME ...] [--before PYTHON]`.

Prints a line for each gate: what was found, what is allowed, and whether it is kept. Exits with 1 if one is not. The
kinds are `structure`, `walks`, `start`, `eras`, `conformance` and `overhead`. With `--before`, the interpreter of
another checkout, `overhead` also compares the gateway with the one there, in alternating rounds of one run.
"""

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import load
import overhead
import processes
import start

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
MAX_LINES: Final = 21_964
"""Of the protocol engine: 2,500 fewer than before it was one."""
MAX_WALK: Final = {"execute_tool": (30, 130), "tool_search": (32, 170), "script": (35, 170)}
"""Modules and functions that a request may pass through, by the beginning of its title."""
MAX_FIRST_ANSWER: Final = 0.8
"""Times the wall time until FastMCP's first answer."""
MAX_P50: Final = {"by name": (1.5, 0.8, 0.8), overhead.OLDER: (1.6, 1.1, 1.1)}
"""Times as long as a call of the upstream itself, for each number of callers at once."""
MAX_CPU: Final = 0.5
"""Times the processor time of the SDK's server for a call."""
MAX_GROWTH: Final = 1.05
"""Times the processor time of a call before: the median of rounds, which differ by a few percent."""
START_ROUNDS: Final = 4
OVERHEAD_ROUNDS: Final = 5


@dataclass(frozen=True)
class Gate:
    """One line of the report."""

    name: str
    found: str
    allowed: str
    is_kept: bool

    @classmethod
    def at_most(cls, name: str, found: float, limit: float) -> "Gate":
        """A figure with a limit."""
        return cls(name, f"{found:g}", f"at most {limit:g}", found <= limit)


def structure() -> Iterator[Gate]:
    """What the source should have none of, and the lines of the engine."""
    counts = _json("structure.py")
    limits = {"lines of protocol, server and upstream": MAX_LINES}
    for name, count in counts.items():
        if "modules" in name or "of them" in name:
            yield Gate(name, str(count), "see tests/test_structure.py", is_kept=True)
        else:
            yield Gate.at_most(name, count, limits.get(name, 0))


def walks() -> Iterator[Gate]:
    """How much code a request passes through."""
    for title, (modules, functions, calls) in _json("walk.py").items():
        most = next(limit for name, limit in MAX_WALK.items() if title.startswith(name))
        is_kept = modules <= most[0] and functions <= most[1]
        yield Gate(title, f"{modules} / {functions} in {calls} calls", f"at most {most[0]} / {most[1]}", is_kept)


def first_answer() -> Iterator[Gate]:
    """How soon `toolcrib serve` answers, beside FastMCP."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        environ = {**os.environ, "XDG_STATE_HOME": name, "FASTMCP_CHECK_FOR_UPDATES": "off"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(START_ROUNDS + 1):
            for task, command in start.servers(Path(name)).items():
                wall, _ = start.answered(command, environ)
                best[task] = min(wall, best.get(task, wall))
    peer = best.pop("fastmcp with one tool")
    for task, wall in best.items():
        yield Gate.at_most(f"first answer of {task}, x FastMCP's", round(wall / peer, 2), MAX_FIRST_ANSWER)


def eras() -> Iterator[Gate]:
    """Clients and servers of every era with each other."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/server/test_eras.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    yield Gate("pairs of eras", done.stdout.strip().splitlines()[-1], "all pass", done.returncode == 0)


def conformance() -> Iterator[Gate]:
    """The official suite."""
    sys.path.insert(0, str(ROOT))
    from tests.conformance.run import judge
    from tests.conformance.suite import Outcome, install

    for (subject, revision), outcome in judge(install()).items():
        if subject.endswith("alone"):
            continue
        logins = {name: failed for name, failed in outcome.failed.items() if name.startswith("auth/")}
        others = {name: failed for name, failed in outcome.failed.items() if name not in logins}
        for kind, found in (("", Outcome(others)), (", logins", Outcome(logins))):
            if found.failed:
                names = f" ({', '.join(found.failing)})" if found.failing else ""
                yield Gate(f"conformance, {subject}{kind}, {revision}", f"{found}{names}", "all", not found.failing)


def calls(before: str | None) -> Iterator[Gate]:
    """What a call through the gateway costs, beside the upstream itself and the gateway before."""
    rows: dict[str, dict[int, list[load.Load]]] = {}
    with contextlib.ExitStack() as stack:
        servers = str(overhead.HERE / "servers.py")
        up, pid = stack.enter_context(processes.server(servers, "upstream", str(overhead.TOOLS)))
        subjects = [overhead.Subject("direct", up, pid, "echo", overhead.PLAIN)]
        subjects += overhead.gateways(stack, up, "now")
        subjects += overhead.gateways(stack, up, "before", before) if before else []
        for _ in range(OVERHEAD_ROUNDS):
            for at_once in overhead.AT_ONCE:
                for subject in subjects:
                    cells = rows.setdefault(subject.name, {}).setdefault(at_once, [])
                    cells.append(overhead.measure(subject, at_once))
            subjects.reverse()
    for name in ("execute_tool", "by name", overhead.OLDER):
        for at_once in overhead.AT_ONCE:
            earlier = rows.get(f"before, {name}", {}).get(at_once, [])
            yield from _compared(name, at_once, rows[f"now, {name}"][at_once], rows["direct"][at_once], earlier)


def _compared(
    name: str, at_once: int, now: list[load.Load], direct: list[load.Load], before: list[load.Load]
) -> Iterator[Gate]:
    best, base = functools.reduce(load.Load.better, now), functools.reduce(load.Load.better, direct)
    title = f"{name}, {at_once} at once"
    if name in MAX_P50:
        ratio = round(best.p50_ms / base.p50_ms, 2)
        yield Gate.at_most(f"p50 of a call, {title}, x direct", ratio, MAX_P50[name][overhead.AT_ONCE.index(at_once)])
    yield Gate.at_most(f"CPU of a call, {title}, x the SDK's server", round(best.cpu_ms / base.cpu_ms, 2), MAX_CPU)
    if before:
        growth = statistics.median(one.cpu_ms / other.cpu_ms for one, other in zip(now, before, strict=True))
        yield Gate.at_most(f"CPU of a call, {title}, x before", round(growth, 2), MAX_GROWTH)


def _json(program: str) -> dict[str, Any]:
    """What another benchmark prints."""
    command = [sys.executable, str(HERE / program), "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def main() -> int:
    """Print every gate that was asked for; 1 if one is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds: dict[str, Callable[[], Iterator[Gate]]] = {
        "structure": structure,
        "walks": walks,
        "start": first_answer,
        "eras": eras,
        "conformance": conformance,
    }
    parser.add_argument("--only", nargs="+", choices=[*kinds, "overhead"], default=[*kinds, "overhead"])
    parser.add_argument("--before", metavar="PYTHON", help="the interpreter of a checkout to compare with")
    given = parser.parse_args()
    kinds["overhead"] = functools.partial(calls, given.before)
    is_kept = True
    for kind in given.only:
        for gate in kinds[kind]():
            is_kept &= gate.is_kept
            print(f"{'kept' if gate.is_kept else 'NOT KEPT':10}{gate.name:72} {gate.found}, {gate.allowed}", flush=True)
    return 0 if is_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
