"""Twenty-seven servers behind one gateway, twenty-two of them faulty: what their faults cost the others.

Thirty callers call good and faulty servers, and search. Every answer follows from its arguments and is checked. The
same calls of the good servers also go to a second gateway that has only those, at the same time. In the middle third
of the time, no file of the gateway can grow, as on a full disk. Then the faults end, and the gateway has to heal
without a call. At last it gets SIGTERM during calls.

`faults.py [--seconds 120] [--callers 30] [--seed 1] [--short] [--no-times]`; exits with 1 if a goal is missed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import processes
from fleet import memory_mb
from mcp_client import Caller, LostAnswer, text_of
from upstreams import right_answer

_STDIO: Final = ("kill", "exit", "hang-list", "hang-call", "flood", "huge", "broken", "wrong-id")
_HTTP: Final = (
    *("kill", "hang-list", "hang-call", "trickle", "flood", "huge", "bomb", "broken", "wrong-id", "close"),
    *("401", "429", "503", "redirect"),
)
"""22 faulty servers beside five good ones; every second one of HTTP speaks 2026-07-28."""
_SHORT: Final = frozenset({"kill", "hang-call", "broken", "wrong-id", "close", "503"})
_TIMEOUTS: Final = {"start": 10, "list": 5, "call": 5}
_ANSWER_S: Final = 15.0
"""When a call counts as lost: its timeout, a wait for the server's return, and some room."""
_KILL_EVERY_S: Final = 2.0
_PAUSE_S: Final = 0.4
"""Between two requests of a caller, on average."""
_SEARCH_SHARE: Final = 0.1
_HEAL_S: Final = 60.0
_P99_RATIO: Final = 1.5
_HEAL_GOAL_S: Final = 30.0
_GROWTH_MB: Final = 15.0
"""Between the second and the last quarter of the time with faults."""
_STOP_GOAL_S: Final = 10.0
"""From SIGTERM to the end of the process: running calls have 2.5 s, and its programs 5 s."""
_NOT_RUN: Final = "Nothing was run"
_UPSTREAMS: Final = Path(__file__).parent / "upstreams.py"


@dataclass(frozen=True)
class Server:
    """One upstream server."""

    name: str
    fault: str
    http: bool


@dataclass
class Tally:
    """What the callers saw."""

    right: Counter[str] = field(default_factory=Counter)
    """By server, as are the errors."""
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, Counter[str]] = field(default_factory=dict)
    """The errors of each server, without figures."""
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    not_run: set[str] = field(default_factory=set)
    """The calls of which an error says that nothing was run."""
    times: dict[str, list[float]] = field(default_factory=lambda: {"disturbed": [], "undisturbed": []})

    def error(self, server: Server, nonce: str, answer: dict[str, Any]) -> None:
        """Note an error, which is right for a faulty server and a lost call for a good one."""
        text = json.dumps(answer.get("error") or answer["result"]["content"])
        if _NOT_RUN in text:
            self.not_run.add(nonce)
        if not server.fault:
            self.lost.append(f"{server.name}: {text[:500]}")
        self.errors[server.name] += 1
        self.texts.setdefault(server.name, Counter())[re.sub(r"[0-9.]+", "#", text)[:200]] += 1


@dataclass(frozen=True)
class Resources:
    """What the gateway uses at one time."""

    memory_mb: float
    descriptors: int
    processes: int


def servers(*, short: bool) -> list[Server]:
    """Return the good servers, and one for each fault and transport."""
    good = [Server("good", "", http=False)]
    good += [Server(f"good-{number}-{era}", "", http=True) for number in range(2) for era in ("older", "modern")]
    faulty = [Server(f"program-{fault}", fault, http=False) for fault in _STDIO]
    eras = ("older", "modern")
    faulty += [Server(f"web-{fault}-{eras[place % 2]}", fault, http=True) for place, fault in enumerate(_HTTP)]
    faulty = [server for server in faulty if not short or server.fault in _SHORT]
    return [*good, *faulty]


def resources(pid: int) -> Resources:
    """Return what the process uses now, its children included in the processes only."""
    return Resources(memory_mb(pid), len(list(Path(f"/proc/{pid}/fd").iterdir())), len(children(pid)))


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


# -- the load ----------------------------------------------------------------------------------------------------------


class Load:
    """The callers, and what they saw."""

    def __init__(self, disturbed: str, undisturbed: str, known: Sequence[Server], seed: int) -> None:
        self._urls = {"disturbed": disturbed, "undisturbed": undisturbed}
        self._good = [server for server in known if not server.fault]
        self._faulty = [server for server in known if server.fault]
        self._seed = seed
        self.tally = Tally()

    async def warm_up(self) -> None:
        """Call each good server through both gateways, and search: what is loaded at its first use is not measured."""
        chance = random.Random(f"{self._seed}/warm-up")
        for url in self._urls.values():
            for modern in (True, False):
                caller = Caller(url, modern=modern)
                for server in self._good:
                    await self.call(caller, server, chance)
                    await self._search(caller, server)
                caller.close()

    async def run(self, callers: int, until: float) -> None:
        """Run the callers: each has one request to good servers and one to faulty ones under way."""
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(self._use_good(number, until))
                group.create_task(self._use_faulty(number, until))

    async def _use_good(self, number: int, until: float) -> None:
        chance = random.Random(f"{self._seed}/good/{number}")
        callers = {name: Caller(url, modern=number % 3 > 0) for name, url in self._urls.items()}
        while time.monotonic() < until:
            server, gateways = chance.choice(self._good), list(callers)
            chance.shuffle(gateways)
            for name in gateways:
                begun = time.perf_counter()
                await self.call(callers[name], server, chance)
                self.tally.times[name].append(time.perf_counter() - begun)
            if chance.random() < _SEARCH_SHARE:
                await self._search(callers["disturbed"], chance.choice(self._good))
            await asyncio.sleep(chance.uniform(0, 2 * _PAUSE_S))

    async def _use_faulty(self, number: int, until: float) -> None:
        chance = random.Random(f"{self._seed}/faulty/{number}")
        caller = Caller(self._urls["disturbed"], modern=number % 3 > 0)
        while time.monotonic() < until:
            await self.call(caller, chance.choice(self._faulty), chance)
            await asyncio.sleep(chance.uniform(0, 2 * _PAUSE_S))

    async def call(self, caller: Caller, server: Server, chance: random.Random) -> bool:
        """Make one call, and check its answer. Returns whether it succeeded."""
        number, nonce = chance.randrange(10**9), f"{chance.randrange(10**15)}"
        arguments = {"number": number, "nonce": nonce}
        by_name = chance.random() < 0.5
        tool = f"{server.name}__work" if by_name else "execute_tool"
        given = arguments if by_name else {"name": f"{server.name}:work", "arguments": arguments}
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await caller.call(tool, given)
        except (LostAnswer, TimeoutError) as error:
            self.tally.lost.append(f"{server.name}: {type(error).__name__} {error}")
            return False
        text = text_of(answer)
        if text == right_answer(server.name, number, nonce):
            self.tally.right[server.name] += 1
            return True
        if text is not None:
            self.tally.wrong.append(f"{server.name} {arguments}: {str(answer)[:500]}")
        else:
            self.tally.error(server, nonce, answer)
        return False

    async def _search(self, caller: Caller, server: Server) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await caller.call("tool_search", {"query": f"work on a number for {server.name}"})
        except (LostAnswer, TimeoutError) as error:
            self.tally.lost.append(f"search: {type(error).__name__} {error}")
            return
        if f"{server.name}:work" not in json.dumps(answer):
            self.tally.wrong.append(f"a search for {server.name}: {str(answer)[:500]}")


async def kill(folder: Path, until: float) -> None:
    """Kill the programs that are to be killed, again and again."""
    while time.monotonic() < until:
        await asyncio.sleep(_KILL_EVERY_S)
        _kill_once(folder)


def _kill_once(folder: Path) -> None:
    for file in folder.glob("*.pid"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(file.read_text()), signal.SIGKILL)


async def fill_disk(pid: int, seconds: float) -> None:
    """Let no file of the process grow in the middle third of the time."""
    await asyncio.sleep(seconds / 3)
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, most))
    await asyncio.sleep(seconds / 3)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


async def stop(url: str, pid: int, known: Sequence[Server]) -> tuple[float, int, list[str]]:
    """Send SIGTERM while good servers are called. Returns how long the process and its programs took to end, how many
    calls were answered after the signal, and wrong answers.
    """
    answered, wrong = 0, list[str]()
    good = [server for server in known if not server.fault]
    programs = children(pid)
    is_stopping = False

    async def call(number: int) -> None:
        nonlocal answered
        caller = Caller(url, modern=True)
        with contextlib.suppress(OSError, LostAnswer, asyncio.IncompleteReadError):  # from when it does not listen
            for turn in range(10_000):
                server, nonce = good[number % len(good)], f"stop {number} {turn}"
                answer = await caller.call(f"{server.name}__work", {"number": number, "nonce": nonce})
                text = text_of(answer)
                if text not in (None, right_answer(server.name, number, nonce)):
                    wrong.append(str(answer)[:500])
                answered += is_stopping
        caller.close()

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(call(number))
        await asyncio.sleep(1)
        begun, is_stopping = time.monotonic(), True
        os.kill(pid, signal.SIGTERM)
        while any(_is_running(one) for one in (pid, *programs)) and time.monotonic() < begun + 30:
            await asyncio.sleep(0.02)
        took_s = time.monotonic() - begun
    return took_s, answered, wrong


def children(pid: int) -> list[int]:
    """The processes that this one has started."""
    return [child for child, parent in _parents().items() if parent == pid]


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def watch(pid: int, until: float) -> list[Resources]:
    """Note what the gateway uses, every half second."""
    found = []
    while time.monotonic() < until:
        found.append(resources(pid))
        await asyncio.sleep(0.5)
    return found


async def heal(url: str, wanted: Sequence[Server]) -> dict[str, float]:
    """Return how many seconds each server took to be ready again, without a call; those that are not are missing."""
    caller, begun, healed = Caller(url, modern=True), time.monotonic(), dict[str, float]()
    while len(healed) < len(wanted) and time.monotonic() < begun + _HEAL_S:
        answer = await caller.call("list-servers", {})
        for server in answer["result"]["structuredContent"]["servers"]:
            if server["state"] != "ready" or server.get("stale"):
                healed.pop(server["name"], None)
            else:
                healed.setdefault(server["name"], time.monotonic() - begun)
        await asyncio.sleep(0.25)
    caller.close()
    return healed


async def started(url: str, wanted: int) -> None:
    """Wait until no server is starting any longer."""
    caller = Caller(url, modern=True)
    async with asyncio.timeout(60):
        while True:
            answer = await caller.call("list-servers", {})
            states = [server["state"] for server in answer["result"]["structuredContent"]["servers"]]
            if len(states) == wanted and not {"connecting", "configured"} & set(states):
                break
            await asyncio.sleep(0.2)
    caller.close()


# -- the report --------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Everything that was measured."""

    tally: Tally
    before: Resources
    during: list[Resources]
    after: Resources
    stop_s: float
    """From SIGTERM to the end of the process and its programs."""
    answered: int
    """Calls that were answered after SIGTERM."""
    healed: dict[str, float]
    twice: list[str]
    misreported: list[str]
    log_lines: int


def runs(folder: Path) -> Counter[str]:
    """How often each call was run by its server."""
    return Counter(line for file in folder.glob("*.runs") for line in file.read_text().splitlines())


def percentile(times: Sequence[float], share: float) -> float:
    """A percentile in milliseconds; 0 without any times."""
    return sorted(times)[int(len(times) * share)] * 1e3 if times else 0.0


def report(outcome: Outcome, known: Sequence[Server], *, with_times: bool) -> list[str]:
    """Print the figures. Returns the goals that are missed."""
    tally, during = outcome.tally, outcome.during
    print(f"{sum(tally.right.values()):,} right answers, {sum(tally.errors.values()):,} errors of faulty servers")
    for server in known:
        if server.fault:
            right, errors = tally.right[server.name], tally.errors[server.name]
            common = tally.texts.get(server.name, Counter()).most_common(1)
            print(f"  {server.name:24}{right:5} right{errors:6} errors  {common[0][0][:150] if common else ''}")
    for name, found in (
        ("lost", tally.lost),
        ("wrong", tally.wrong),
        ("run twice", outcome.twice),
        ("run, though reported as not run", outcome.misreported),
    ):
        print(f"{name}: {len(found)}", *found[:5], sep="\n    ")
    p99 = {}
    for name, times in tally.times.items():
        p50, p99[name] = percentile(times, 0.5), percentile(times, 0.99)
        print(f"good servers, {name:12} {len(times):7,} calls  p50 {p50:6.1f} ms  p99 {p99[name]:6.1f} ms")
    ratio = p99["disturbed"] / max(p99["undisturbed"], 0.001)
    print(f"p99 beside the undisturbed gateway: {ratio:.2f} times")
    quarter = max(1, len(during) // 4)
    early, late = (
        sorted(one.memory_mb for one in part)[len(part) // 2]
        for part in (during[quarter : 2 * quarter] or during, during[-quarter:])
    )
    peak = max(one.memory_mb for one in during)
    print(
        f"memory: {outcome.before.memory_mb:.0f} MB before, {early:.0f} and {late:.0f} MB in the second and last",
        end=" ",
    )
    print(f"quarter, at most {peak:.0f} MB, {outcome.after.memory_mb:.0f} MB after")
    for name in ("descriptors", "processes"):
        first, most, last = (
            getattr(outcome.before, name),
            max(getattr(one, name) for one in during),
            getattr(outcome.after, name),
        )
        print(f"{name}: {first} before, at most {most}, {last} after")
    slowest = sorted(outcome.healed.items(), key=lambda pair: -pair[1])[:3]
    names = ", ".join(f"{one} {time_s:.1f} s" for one, time_s in slowest)
    print(f"healed: {len(outcome.healed)} of {len(known)}; the slowest: {names}")
    print(f"stopped {outcome.stop_s:.1f} s after SIGTERM, and answered {outcome.answered} calls meanwhile")
    print(f"lines in the log: {outcome.log_lines:,}")
    programs = sum(not server.http for server in known)
    missing = sorted({server.name for server in known} - outcome.healed.keys())
    timed = [
        (ratio <= _P99_RATIO, f"p99 at most {_P99_RATIO} times the undisturbed one"),
        (late - early <= _GROWTH_MB, f"memory grows by at most {_GROWTH_MB:g} MB"),
        (outcome.stop_s <= _STOP_GOAL_S, f"ended within {_STOP_GOAL_S:g} s of SIGTERM, with its programs"),
        (max(outcome.healed.values(), default=0.0) <= _HEAL_GOAL_S, f"all healed in {_HEAL_GOAL_S:g} s"),
    ]
    goals = [
        (not tally.lost, "no call is lost"),
        (not tally.wrong, "no answer is wrong"),
        (not outcome.twice, "no call runs twice"),
        (not outcome.misreported, "no call runs that is reported as not run"),
        (not missing, f"all servers heal, unlike {', '.join(missing)}"),
        (outcome.after.processes <= programs, "no process is left over"),
        (outcome.after.descriptors <= outcome.before.descriptors + 4 * len(known), "no descriptor is left over"),
        *(timed if with_times else ()),
    ]
    return [text for met, text in goals if not met]


# -- the run -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def web_servers(known: Sequence[Server], folder: Path, seed: int, *, faulty: bool) -> Iterator[dict[str, str]]:
    """Start the good or the faulty HTTP servers in one process: their URLs by name."""
    wanted = [f"{server.name}:{server.fault}" for server in known if server.http and bool(server.fault) is faulty]
    command = [sys.executable, str(_UPSTREAMS), "http", str(folder), str(seed), *wanted]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with processes.ending(process):
        yield dict(tuple(processes.read_line(process).split()) for _ in wanted)


def write_config(file: Path, chosen: Sequence[Server], urls: dict[str, str], folder: Path, seed: int) -> Path:
    """Write the configuration of a gateway for these servers."""
    entries: dict[str, Any] = {}
    for server in chosen:
        program = [str(_UPSTREAMS), "stdio", server.name, server.fault, str(folder), str(seed)]
        local = {"command": sys.executable, "args": ["-S", "-E", *program]}
        entries[server.name] = {"url": urls[server.name]} if server.http else local
    state = {"path": str(file.with_suffix(".db"))}
    own = {"surfaces": ["search", "progressive"], "state": state, "timeouts": _TIMEOUTS}
    file.write_text(json.dumps({"mcpServers": entries, "toolcrib": own}))
    return file


async def measure(urls: tuple[str, str], pid: int, known: Sequence[Server], folder: Path, options: Any) -> Outcome:
    """Run the load, end the faults, and wait until all has healed."""
    for url, chosen in zip(urls, (known, [server for server in known if not server.fault]), strict=True):
        await started(url, len(chosen))
    load = Load(*urls, known, options.seed)
    await load.warm_up()
    before, until = resources(pid), time.monotonic() + options.seconds
    async with asyncio.TaskGroup() as group:
        during = group.create_task(watch(pid, until))
        group.create_task(kill(folder, until))
        group.create_task(fill_disk(pid, options.seconds))
        group.create_task(load.run(options.callers, until))
    (folder / "healed").touch()
    healed = await heal(urls[0], known)
    caller = Caller(urls[0], modern=True)
    for server in known:
        if not await load.call(caller, server, random.Random(server.name)):
            healed.pop(server.name, None)
    caller.close()
    await asyncio.sleep(1)
    after = resources(pid)
    stop_s, answered, wrong = await stop(urls[0], pid, known)
    load.tally.wrong.extend(wrong)
    ran = runs(folder)
    return Outcome(
        tally=load.tally,
        before=before,
        during=during.result(),
        after=after,
        stop_s=stop_s,
        answered=answered,
        healed=healed,
        twice=[nonce for nonce, count in ran.items() if count > 1],
        misreported=sorted(load.tally.not_run & ran.keys()),
        log_lines=len((folder / "disturbed.log").read_text().splitlines()),
    )


def main() -> int:
    """Start everything, measure, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--callers", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="with fewer servers")
    parser.add_argument("--no-times", action="store_true", help="without the goals that depend on the machine")
    parser.add_argument("--log", type=Path, help="where to keep the gateway's log")
    options = parser.parse_args()
    known = servers(short=options.short)
    good = [server for server in known if not server.fault]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = stack.enter_context(web_servers(known, folder, options.seed, faulty=False))
        urls |= stack.enter_context(web_servers(known, folder, options.seed, faulty=True))
        first = write_config(folder / "disturbed.json", known, urls, folder, options.seed)
        second = write_config(folder / "undisturbed.json", good, urls, folder, options.seed)
        undisturbed, _ = stack.enter_context(processes.gateway(second))
        disturbed, pid = stack.enter_context(processes.gateway(first))
        faulty = len(known) - len(good)
        print(f"{len(known)} servers, {faulty} of them faulty; {options.callers} callers; seed {options.seed}")
        outcome = asyncio.run(measure((disturbed, undisturbed), pid, known, folder, options))
        if options.log is not None:
            options.log.write_text((folder / "disturbed.log").read_text())
    missed = report(outcome, known, with_times=not options.no_times)
    print(*(f"missed: {goal}" for goal in missed or ["nothing"]), sep="\n")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
