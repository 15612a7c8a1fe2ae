"""What one core carries: toolcrib as 1 and 2 workers and as 1, 2 and 3 replicas, and the cost model that follows.

`capacity.py [--seconds 5] [--rounds 2]`. Each deployment is driven with checked calls, searches and sessions. The CPU
of all its processes gives the cost of each; a mixed load then says how well the sum of these costs predicts another
one. Redis operations are counted by Redis itself. Needs `redis-server`; without it, replicas are left out.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import overhead
import processes
from fleet import memory_mb
from mcp_client import Caller, text_of
from mixed_load import cpu_s, process_tree

HERE: Final = Path(__file__).parent
_AT_ONCE: Final = 16
_TOOLS: Final = (50, 10_050)
"""Of the upstream, for the memory a tool takes."""
_MIXED: Final = {"call": 14, "search": 4, "session": 2}
_QUERIES: Final = ("echo a text", "the tool number four", "repeat what I say", "tool other_17")
_RATES: Final = (10, 1_000, 100_000)
"""Calls a second for which the cores are printed."""
_START_S: Final = 90


@dataclass(frozen=True)
class Deployment:
    """Running gateways that answer as one."""

    name: str
    urls: tuple[str, ...]
    pids: tuple[int, ...]
    redis: str = ""

    def cpu_s(self) -> float:
        """CPU of all its processes, in seconds."""
        return sum(cpu_s(pid) for pid in self.pids)

    def memory_mb(self) -> float:
        """Resident memory of all its processes; pages that they share count in each."""
        return sum(memory_mb(entry) for pid in self.pids for entry in process_tree(pid))

    def redis_operations(self) -> int:
        """Commands that Redis has processed so far."""
        if not self.redis:
            return 0
        import redis

        with contextlib.closing(redis.Redis.from_url(self.redis)) as client:
            statistics: Any = client.info("commandstats")
        return sum(row["calls"] for name, row in statistics.items() if name != "cmdstat_info")


@dataclass(frozen=True)
class Cost:
    """One kind of work under full load."""

    per_s: float
    cpu_ms: float
    redis: float
    """Redis operations each."""


class Client:
    """A client of each era over one gateway, whose answers are checked."""

    def __init__(self, url: str, numbers: Iterator[int]) -> None:
        self._url = url
        self._numbers = numbers
        self._modern = Caller(url, modern=True, headers={"Authorization": f"Bearer {overhead.TOKEN}"})

    async def call(self) -> None:
        """Call a tool by `execute_tool`."""
        await self._echo(self._modern)

    async def search(self) -> None:
        """Search the tools."""
        number = next(self._numbers)
        query = f"{_QUERIES[number % len(_QUERIES)]} {number}"
        answer = await self._modern.call("tool_search", {"query": query})
        text = text_of(answer)
        if text is None or ("other_" not in text and "echo" not in text):
            raise RuntimeError(f"a wrong answer to a search for {query!r}: {str(answer)[:900]}")

    async def session(self) -> None:
        """Open a session of the older era, call a tool in it, and delete it."""
        older = Caller(self._url, modern=False, headers={"Authorization": f"Bearer {overhead.TOKEN}"})
        try:
            await self._echo(older)
            await older.delete()
        finally:
            older.close()

    def close(self) -> None:
        """Close the connection."""
        self._modern.close()

    async def _echo(self, caller: Caller) -> None:
        text = f"number {next(self._numbers)}"
        answer = await caller.call("execute_tool", {"name": "up:echo", "arguments": {"text": text}})
        if text_of(answer) != text:
            raise RuntimeError(f"a wrong answer to a call: {str(answer)[:300]}")


def kind_of(number: int) -> str:
    """The kind of work of a mixed load whose turn it is."""
    turn = number * 7 % sum(_MIXED.values())
    for kind, share in _MIXED.items():
        turn -= share
        if turn < 0:
            return kind
    raise AssertionError


async def drive(deployment: Deployment, kind: str, seconds: float) -> tuple[Cost, dict[str, int]]:
    """Do one kind of work, or the mix, from all clients for a while; also return how often each was done."""
    numbers = count(time.time_ns() % 10**12)
    done = dict.fromkeys(_MIXED, 0)
    cpu, operations, begun = deployment.cpu_s(), deployment.redis_operations(), time.perf_counter()

    async def work(number: int) -> None:
        client = Client(deployment.urls[number % len(deployment.urls)], numbers)
        turn = number
        try:
            while time.perf_counter() < begun + seconds:
                what = kind_of(turn) if kind == "mixed" else kind
                turn += 1
                step: Callable[[], Awaitable[None]] = getattr(client, what)
                await step()
                done[what] += 1
        finally:
            client.close()

    await asyncio.gather(*(work(number) for number in range(_AT_ONCE)))
    wall, total = time.perf_counter() - begun, sum(done.values())
    cost = Cost(
        per_s=total / wall,
        cpu_ms=(deployment.cpu_s() - cpu) / total * 1e3,
        redis=(deployment.redis_operations() - operations) / total,
    )
    return cost, done


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """A Redis that keeps what it acknowledged within a second."""
    port = _port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "yes"]
        process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        with processes.ending(process):
            processes.wait_until(process, lambda: processes.is_open(port))
            yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def deployed(name: str, upstream: str, *, workers: int = 1, replicas: int = 1, redis: str = "") -> Iterator[Deployment]:
    """Gateways over one server, with a token, whose state is in Redis or in a file."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "token").write_text(overhead.TOKEN)
        state: Any = (
            {"url": redis, "prefix": name.replace(" ", "-")} if redis else {"path": str(folder / "state.sqlite")}
        )
        serving = {"tokens": [{"caller": "bench", "file": str(folder / "token")}], "max_connections_per_peer": 4000}
        section = {"surfaces": ["search"], "state": state, "http": serving}
        config = folder / "toolcrib.json"
        config.write_text(json.dumps({"mcpServers": {"up": {"url": upstream}}, "toolcrib": section}))
        ports, pids = [_port() for _ in range(replicas)], []
        for port in ports:
            command = [sys.executable, "-m", "toolcrib.cli.main", "serve", "--config", str(config)]
            command += ["--http", f"127.0.0.1:{port}", *(["--workers", str(workers)] if workers > 1 else [])]
            log = folder / f"{port}.log"
            with log.open("w") as errors:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
            stack.enter_context(processes.ending(process))
            processes.wait_until(process, functools.partial(processes.is_ok, port, "/readyz"), log=log)
            pids.append(process.pid)
        urls = tuple(f"http://127.0.0.1:{port}/mcp" for port in ports)
        yield Deployment(name, urls, tuple(pids), redis)


async def measured(deployment: Deployment, seconds: float, rounds: int) -> dict[str, Cost]:
    """Measure each kind and the mix, and print them; of several rounds the cheapest counts."""
    await drive(deployment, "mixed", min(seconds, 2))
    best: dict[str, Cost] = {}
    predicted = 0.0
    for kind in (*_MIXED, "mixed"):
        for _ in range(rounds):
            cost, done = await drive(deployment, kind, seconds)
            if kind not in best or cost.cpu_ms < best[kind].cpu_ms:
                best[kind] = cost
                if kind == "mixed":
                    predicted = sum(best[each].cpu_ms * times for each, times in done.items()) / sum(done.values())
    for kind, cost in best.items():
        line = f"{deployment.name:12}{kind:9}{cost.per_s:10.0f}{cost.cpu_ms:9.2f}{cost.redis:8.1f}"
        if kind == "mixed":
            line += f"   the model says {predicted:.2f} ({predicted / cost.cpu_ms - 1:+.0%})"
        print(line, flush=True)
    return best


def bytes_a_tool() -> float:
    """Resident memory that each of ten thousand more tools takes, definitions and index, in bytes."""
    sizes = []
    for tools in _TOOLS:
        with contextlib.ExitStack() as stack:
            upstream, _ = stack.enter_context(processes.server(str(HERE / "servers.py"), "plain", str(tools)))
            deployment = stack.enter_context(deployed("memory", upstream))
            _until_listed(deployment, tools)
            asyncio.run(drive(deployment, "search", 2))
            sizes.append(deployment.memory_mb())
    return (sizes[1] - sizes[0]) * 2**20 / (_TOOLS[1] - _TOOLS[0])


def _until_listed(deployment: Deployment, tools: int) -> None:
    async def ask() -> str:
        caller = Caller(deployment.urls[0], modern=True, headers={"Authorization": f"Bearer {overhead.TOKEN}"})
        try:
            return text_of(await caller.call("tool_search", {"query": f"other_{tools - 2}"})) or ""
        finally:
            caller.close()

    deadline = time.monotonic() + _START_S
    while f"other_{tools - 2}" not in asyncio.run(ask()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the {tools} tools were not listed")
        time.sleep(0.5)


def redis_limit(url: str) -> float:
    """SET operations a second that redis-benchmark gets from this Redis with 50 clients, without pipelining."""
    port = url.rpartition(":")[2].partition("/")[0]
    command = ["redis-benchmark", "-p", port, "-t", "set", "-n", "100000", "-q", "--csv"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=processes.RUN_S).stdout
    found = re.search(r'"SET[^"]*","([\d.]+)"', output)
    return float(found[1]) if found else 0.0


def outlook(one: dict[str, Cost], shared: dict[str, Cost] | None, limit: float) -> None:
    """Print the cores, and the Redis operations, that rates of calls need by the model."""
    print("\nby the model, for calls alone (searches and sessions as measured, one in five and one in fifty calls):")
    for rate in _RATES:
        cost = one if shared is None or rate <= _RATES[0] else shared
        busy = rate * (cost["call"].cpu_ms + cost["search"].cpu_ms / 5 + cost["session"].cpu_ms / 50) / 1e3
        line = f"{rate:8,} calls a second: {busy:8.1f} cores busy"
        if cost is shared:
            operations = rate * (cost["call"].redis + cost["search"].redis / 5 + cost["session"].redis / 50)
            line += f", {operations:10,.0f} Redis operations a second ({operations / limit:.2f} of one Redis here)"
        print(line)


def main() -> None:
    """Measure the deployments one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(f"{_AT_ONCE} clients, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    print(f"{'':21}{'a second':>10}{'CPU ms':>9}{'Redis':>8}")
    single: dict[str, Cost] = {}
    shared: dict[str, Cost] | None = None
    limit = 0.0
    with processes.server(str(HERE / "servers.py"), "plain", "50") as (upstream, _):
        for workers in (1, 2):
            name = "1 process" if workers == 1 else f"{workers} workers"
            with deployed(name, upstream, workers=workers) as deployment:
                costs = asyncio.run(measured(deployment, options.seconds, options.rounds))
                single = single or costs
        if shutil.which("redis-server") is None:
            print("redis-server is not installed: replicas are left out")
        else:
            with redis_server() as redis:
                limit = redis_limit(redis)
                print(f"redis-benchmark: {limit:,.0f} SET a second")
                for replicas in (1, 2, 3):
                    with deployed(f"{replicas} replicas", upstream, replicas=replicas, redis=redis) as deployment:
                        shared = asyncio.run(measured(deployment, options.seconds, options.rounds))
    print(f"memory: {bytes_a_tool():,.0f} bytes a tool of a process, with its definition")
    outlook(single, shared, limit)


if __name__ == "__main__":
    main()
