"""What metrics cost a call, and traces that are compiled in but off: processor time, in alternating runs.

What is compared runs in one process, because two equal processes differ by a per cent or so for as long as they live:
two gateways, of which one has metrics, or one gateway whose functions are exchanged, while nothing runs, for the same
ones compiled without the lines for traces. Runs are short and come in pairs, in turns the one or the other first, so
that whatever else the machine does affects both. A run is measured by the nanoseconds that the kernel counts for the
threads of the process, which is started again for each of a few rounds. Other programs only ever add to them, by
emptying caches, so the estimate compares the means of the fastest third of the runs of each kind. Its interval is that
of resamples of rounds and of the pairs in them.
`python bench/telemetry.py none` compares two equal gateways, and shows what the method can resolve.
"""

import ast
import asyncio
import contextlib
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from urllib.parse import urlsplit

import anyio

import load
import overhead
import processes

ROUNDS = 4
PAIRS = 220
"""In each round."""
CALLS = 24
WARM_UP = 50
"""Runs of each kind before the first pair."""
AT_ONCE = 4
RESAMPLES = 2_000
FASTEST = 1 / 3
METRICS = {"metrics": "127.0.0.1:0"}
KINDS: Mapping[str, tuple[str, Sequence[Mapping[str, object]]]] = {
    "metrics": ("telemetry.metrics on", ({}, METRICS)),
    "traces": ("traces off, against no code for traces", ({},)),
    "none": ("no difference", ({}, {})),
}
"""What is compared: its name, and the settings of the gateways in one process."""


# -- the process with the gateways -------------------------------------------------------------------------------------


def serve(upstream: str, kind: str) -> None:
    """Serve the gateways, print their addresses, and compile traces in or out for each line of standard input."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [dict(one) for one in KINDS[kind][1]]
        anyio.run(_serve, upstream, settings, Path(folder), backend_options={"use_uvloop": True})


async def _serve(upstream: str, gateways: Sequence[dict[str, object]], folder: Path) -> None:
    from toolcrib.app import App
    from toolcrib.settings.loader import load_settings

    (secret := folder / "token").write_text(overhead.TOKEN)
    async with contextlib.AsyncExitStack() as stack:
        tasks, urls = [], []
        for number, telemetry in enumerate(gateways):
            section = {
                "surfaces": ["direct"],
                "state": {"path": str(folder / f"{number}.sqlite")},
                "http": {"tokens": [{"caller": "bench", "file": str(secret)}], "keep_alive": 60},
                "telemetry": telemetry,
            }
            (config := folder / f"{number}.json").write_text(
                json.dumps({"mcpServers": {"up": {"url": upstream}}, "toolcrib": section})
            )
            app = await stack.enter_async_context(App(load_settings(config)))
            url = asyncio.get_running_loop().create_future()
            tasks.append(asyncio.create_task(app.serve_http("127.0.0.1", 0, started=url.set_result)))
            urls.append(await url)
        print(json.dumps(urls), flush=True)
        threading.Thread(target=_switch, args=[_traced_functions()], daemon=True).start()
        await asyncio.gather(*tasks)


def _switch(functions: Sequence[tuple[FunctionType, CodeType, CodeType]]) -> None:
    for line in sys.stdin:
        for function, with_traces, without in functions:
            function.__code__ = with_traces if line.strip() == "in" else without
        print(f"{len(functions)} functions", flush=True)


class _WithoutTraces(ast.NodeTransformer):
    """Takes the lines for traces out of a module."""

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        return node.body if all("TRACING." in ast.unparse(item) for item in node.items) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return (
            ast.copy_location(ast.parse("False", mode="eval").body, node)
            if ast.unparse(node) == "TRACING.is_on"
            else node
        )


def _traced_functions() -> list[tuple[FunctionType, CodeType, CodeType]]:
    """The functions of toolcrib that have lines for traces, with their code as it is and without those lines."""
    files = {str(one.__file__) for one in list(sys.modules.values()) if "TRACING" in getattr(one, "__dict__", ())}
    stripped = {
        (name, code.co_qualname, code.co_firstlineno): code
        for name in files
        for code in _codes(compile(_WithoutTraces().visit(ast.parse(Path(name).read_text())), name, "exec"))
    }
    found = []
    for function in gc.get_objects():
        if not isinstance(function, FunctionType) or function.__code__.co_filename not in files:
            continue
        code = function.__code__
        other = stripped.get((code.co_filename, code.co_qualname, code.co_firstlineno))
        if other is not None and "TRACING" in code.co_names and "TRACING" not in other.co_names:
            found.append((function, code, other))
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


# -- measuring ---------------------------------------------------------------------------------------------------------


class Process:
    """The process with the gateways."""

    def __init__(self, upstream: str, kind: str) -> None:
        command = [sys.executable, __file__, "serve", upstream, kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._urls = json.loads(processes.read_line(self._process))
        except BaseException:
            self.close()
            raise
        self._kind = kind

    def choose(self, number: int) -> str:
        """Make ready for a run of the base, 0, or of what costs more, 1; returns where to send calls."""
        if self._kind == "traces":
            assert self._process.stdin is not None
            self._process.stdin.write("in\n" if number else "out\n")
            self._process.stdin.flush()
            if processes.read_line(self._process).startswith("0 "):
                raise RuntimeError("no function has lines for traces")
            return str(self._urls[0])
        return str(self._urls[number])

    def spent_ns(self) -> int:
        """User and system time of the threads, in nanoseconds."""
        found = 0
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += int((task / "schedstat").read_text().split()[0])
        return found

    async def pairs(self) -> list[tuple[float, float]]:
        """The times of a call in milliseconds without and with what is compared, once both are warm."""
        async with contextlib.AsyncExitStack() as stack:
            callers = {url: await Caller.open(url, stack) for url in self._urls}

            async def run(number: int) -> float:
                caller = callers[self.choose(number)]
                before = self.spent_ns()
                await caller.run()
                return (self.spent_ns() - before) / CALLS / 1e6

            for number in range(2 * WARM_UP):
                await run(number % 2)
            found = []
            for pair in range(PAIRS):
                times = {number: await run(number) for number in ((0, 1) if pair % 2 else (1, 0))}
                found.append((times[0], times[1]))
            return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(10)


class Caller:
    """Connections to a gateway, which stay open."""

    def __init__(self, url: str, streams: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self._message = load.request(url, "up__echo", {"text": overhead.PAYLOAD}, overhead.AUTHORIZATION)
        self._streams = streams

    @classmethod
    async def open(cls, url: str, stack: contextlib.AsyncExitStack) -> "Caller":
        """Connect, until the stack is closed."""
        parts = urlsplit(url)
        streams = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(AT_ONCE)]
        for _, writer in streams:
            stack.callback(writer.close)
        return cls(url, streams)

    async def run(self) -> None:
        """Make some calls over each connection."""
        await asyncio.gather(*(self._calls(*stream) for stream in self._streams))

    async def _calls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(CALLS // AT_ONCE):
            writer.write(self._message)
            if overhead.PAYLOAD.encode() not in await load.answer(reader):
                raise RuntimeError("unexpected answer")


def fastest(times: Sequence[float]) -> float:
    """The mean of the shortest times."""
    return statistics.fmean(sorted(times)[: round(len(times) * FASTEST)])


def more(rounds: Sequence[Sequence[tuple[float, float]]]) -> float:
    """How much more a call costs, as a share: the mean of the rounds, since each is another process."""
    return statistics.fmean(
        fastest([one[1] for one in pairs]) / fastest([one[0] for one in pairs]) - 1 for pairs in rounds
    )


def interval(rounds: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """95 % of the resampled estimates."""
    chance = random.Random(1)
    found = sorted(
        more([chance.choices(pairs, k=len(pairs)) for pairs in chance.choices(rounds, k=len(rounds))])
        for _ in range(RESAMPLES)
    )
    return found[RESAMPLES // 40], found[-RESAMPLES // 40]


def compare(upstream: str, kind: str) -> None:
    """Print how much more a call costs with what the kind names."""
    rounds, began = list[list[tuple[float, float]]](), time.perf_counter()
    for _ in range(ROUNDS):
        with contextlib.closing(Process(upstream, kind)) as process:
            rounds.append(asyncio.run(process.pairs()))
        print(f"  round {len(rounds)}: {more(rounds[-1:]):+.2%}", file=sys.stderr, flush=True)
    low, high = interval(rounds)
    without, with_ = (
        statistics.fmean(fastest([pair[place] for pair in pairs]) for pairs in rounds) for place in (0, 1)
    )
    print(
        f"{KINDS[kind][0]:42}{without:8.3f}{with_:8.3f}{more(rounds):+9.2%}   95 % of {low:+.2%} to {high:+.2%}"
        f"   {time.perf_counter() - began:.0f} s, load average {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    """Measure what the arguments name; by default metrics and traces."""
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
        return
    os.environ["PYTHONHASHSEED"] = "0"  # or each process would lay out its tables differently
    print(f"CPU a call in ms, {ROUNDS} rounds of {PAIRS} pairs of {CALLS} calls")
    print(f"{'':42}{'without':>8}{'with':>8}{'more':>9}")
    with processes.server(str(Path(__file__).parent / "servers.py"), "plain", "50") as (up, _):
        for kind in sys.argv[1:] or ["metrics", "traces"]:
            compare(up, kind)


if __name__ == "__main__":
    main()
