"""Hostile messages: how long one of them holds the event loop, what it costs in memory, and what other callers feel.

    hostile_messages.py [--only TEXT] [--seconds 5]

A gateway of its own serves a healthy server and a hostile one, whose answers are as large as they can be. For each
case the hostile traffic goes on for some seconds, with a tenth of a second between two messages, while another process
calls the healthy server; the same calls without the traffic come right before. Exits with 1 if a goal is missed.

A stall is the longest time between two turns of a task in the gateway that asks for one every 2 ms: by the clock, and
in processor time of the loop's thread, which depends little on what else the machine does.
"""

import argparse
import asyncio
import contextlib
import gzip
import importlib.util
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

import anyio  # noqa: E402 - after the path

import load  # noqa: E402 - after the path

FAST = importlib.util.find_spec("uvloop") is not None
"""`toolcrib serve` uses uvloop where it is installed."""

MAX_STALL_MS = 50
MAX_MEMORY_MB = 250
MAX_P99 = 3.0
P99_FLOOR_MS = 10.0
"""A p99 up to this is fine whatever the undisturbed one is: below it, the machine's own noise decides."""
BEAT_S = 0.002
PACE_S = 0.01
PAUSE_S = 0.1
MB = 1_000_000
TOOL = "execute_tool"

Attack = Callable[["Bench"], Awaitable[None]]


# -- the servers behind the gateway ----------------------------------------------------------------------------------


def text(size: int) -> bytes:
    """A result with one block of text."""
    return b'{"content":[{"type":"text","text":"' + b"x" * size + b'"}]}'


def blocks(count: int) -> bytes:
    """A result of many small blocks."""
    return b'{"content":[' + b",".join([b'{"type":"text","text":"x"}'] * count) + b"]}"


def mixed(count: int) -> bytes:
    """The same with blocks that have to be validated."""
    block = b'{"type":"text","text":"x","annotations":{"priority":1}}'
    return b'{"content":[' + b",".join([block] * count) + b"]}"


def structure(size: int) -> bytes:
    """A result with so many bytes of small values."""
    return b'{"content":[],"structuredContent":{"rows":[' + b'{"a":[1,"b"]},' * (size // 14) + b"0]}}"


def nodes(count: int) -> bytes:
    """The same by the number of values and keys."""
    return b'{"content":[],"structuredContent":{"rows":[' + b"[]," * (count // 2) + b"0]}}"


def word(size: int) -> bytes:
    """One word of base64."""
    return (b"QUJDREVGR0hJ" * (size // 12 + 1))[:size]


def error(size: int) -> bytes:
    """A JSON-RPC error whose message is one word."""
    return b'{"code":-32603,"message":"decode failed: ' + word(size) + b'"}'


def failed(size: int) -> bytes:
    """The same as a result of the tool."""
    return b'{"isError":true,"content":[{"type":"text","text":"decode failed: ' + word(size) + b'"}]}'


ANSWERS: dict[str, Callable[[], bytes]] = {
    "ok": lambda: text(2),
    "blocks": lambda: blocks(900_000),
    "structure": lambda: structure(50 * MB),
    "text": lambda: text(60 * MB),
    "gzip": lambda: gzip.compress(text(1000 * MB), 1),
    "text10": lambda: text(10 * MB),
    "blocks10k": lambda: mixed(10_000),
    "nodes": lambda: nodes(199_000),
    "error16k": lambda: error(16_000),
    "error60m": lambda: error(60 * MB),
    "failed16k": lambda: failed(16_000),
    "log16k": lambda: text(2),
    "progress16k": lambda: text(2),
    "stderr16k": lambda: text(2),
}
_made: dict[str, bytes] = {}


def made(name: str) -> bytes:
    """An answer, made once."""
    if name not in _made:
        _made[name] = ANSWERS[name]()
    return _made[name]


def result_of(message: dict[str, Any]) -> tuple[str, bytes]:
    """The name of the answer to a request, and its result as JSON."""
    if message["method"] == "initialize":
        info = {"serverInfo": {"name": "bench", "version": "1"}, "capabilities": {"tools": {}}}
        return "", json.dumps({"protocolVersion": "2025-06-18", **info}).encode()
    if message["method"] == "tools/list":
        return "", json.dumps(
            {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ANSWERS]}
        ).encode()
    if message["method"] == "tools/call":
        name = message["params"]["name"]
        return name, b"" if name == "gzip" else made(name)
    return "", b""


def member(name: str) -> bytes:
    """The member of a message that holds the answer."""
    return b',"error":' if name.startswith("error") else b',"result":'


def said_before(message: dict[str, Any]) -> bytes:
    """The notifications before an answer: ten messages with one word each."""
    name = message.get("params", {}).get("name", "")
    if name == "log16k":
        params = b'{"level":"warning","data":"payload ' + word(16_000) + b'"}'
        return b'{"jsonrpc":"2.0","method":"notifications/message","params":' + params + b"}\n"
    token = message.get("params", {}).get("_meta", {}).get("progressToken")
    if name == "progress16k" and token is not None:
        params = b'{"progressToken":' + json.dumps(token).encode() + b',"progress":1,"message":"' + word(16_000) + b'"}'
        return b'{"jsonrpc":"2.0","method":"notifications/progress","params":' + params + b"}\n"
    return b""


async def serve_upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, events: bool) -> None:
    """One connection of an HTTP server that answers as `ANSWERS` say."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = next((int(line[15:]) for line in head.splitlines() if line.startswith("content-length:")), 0)
            message = json.loads(await reader.readexactly(length)) if length else {}
            if head.startswith("get"):
                writer.write(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
                continue
            if "id" not in message:
                writer.write(b"HTTP/1.1 202 OK\r\nContent-Length: 0\r\n\r\n")
                continue
            name, result = result_of(message)
            begin = b'{"jsonrpc":"2.0","id":' + json.dumps(message["id"]).encode() + member(name)
            if not result and not name:
                refusal = b',"error":{"code":-32601,"message":"no"}}'
                body, kind = [begin.removesuffix(b',"result":') + refusal], b"application/json"
            elif name == "gzip":
                body, kind = [gzip.compress(begin, 1), made("gzip"), gzip.compress(b"}", 1)], b"application/json"
                kind += b"\r\nContent-Encoding: gzip"
            elif events and name:
                body, kind = [b"data: ", begin, result, b"}\n\n"], b"text/event-stream"
            else:
                body, kind = [begin, result, b"}"], b"application/json"
            size = sum(map(len, body))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, size))
            for part in body:
                view = memoryview(part)
                for start in range(0, len(part), 1 << 18):
                    writer.write(view[start : start + (1 << 18)])
                    await writer.drain()
    writer.close()


async def run_upstream() -> None:
    """Serve JSON and events on two ports, which are printed."""
    servers = [
        await asyncio.start_server(partial(serve_upstream, events=events), "127.0.0.1", 0) for events in (False, True)
    ]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


def run_stdio() -> None:
    """The same answers over pipes."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        name, result = result_of(message)
        begin = b'{"jsonrpc":"2.0","id":' + json.dumps(message["id"]).encode()
        if result or name:
            sys.stdout.buffer.write(said_before(message) * 10)
            if name == "stderr16k":
                sys.stderr.buffer.write((b"Error: " + word(16_000) + b"\n") * 10)
                sys.stderr.buffer.flush()
            sys.stdout.buffer.writelines((begin, member(name), result, b"}\n"))
        else:
            sys.stdout.buffer.write(begin + b',"error":{"code":-32601,"message":"no"}}\n')
        sys.stdout.buffer.flush()


# -- the gateway -----------------------------------------------------------------------------------------------------


class Pulse:
    """The longest pauses of an event loop."""

    def __init__(self) -> None:
        self.wall_ms = self.cpu_ms = 0.0

    async def run(self) -> None:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(BEAT_S)
            self.wall_ms = max(self.wall_ms, (time.perf_counter() - wall - BEAT_S) * 1000)
            self.cpu_ms = max(self.cpu_ms, (time.thread_time() - cpu) * 1000)


async def run_gateway(hostile: str, events: str, healthy: str) -> None:
    """Serve over HTTP; print the address, and at each line of input what was measured since the last one."""
    from toolcrib.app import App
    from toolcrib.cli.serve import _freeze_memory
    from toolcrib.settings.options import Settings
    from toolcrib.surfaces.options import SurfaceOptions
    from toolcrib.upstream.options import ServerOptions

    servers = (
        ServerOptions(name="plain", url=hostile),
        ServerOptions(name="events", url=events),
        ServerOptions(name="pipe", command=sys.executable, args=(__file__, "stdio")),
        ServerOptions(name="healthy", url=healthy),
    )
    pulse, stop = Pulse(), asyncio.Event()
    app = App(Settings(servers=servers, surfaces=SurfaceOptions(surfaces=("search", "progressive"))))

    long = f"decode failed: {word(60 * MB).decode()}"

    @app.tool
    def boom16k() -> str:
        """Raise an error."""
        raise ValueError(f"decode failed: {word(16_000).decode()}")

    @app.tool
    def boom60m() -> str:
        """Raise a long error."""
        raise ValueError(long)

    async with app:
        await app.settled()
        bound = asyncio.Event()

        def started(url: str) -> None:
            print(url, flush=True)
            bound.set()

        serving = asyncio.create_task(app.serve_http("127.0.0.1", 0, started=started))
        await bound.wait()  # `toolcrib serve` has loaded all of the server too when it freezes its memory
        beating = asyncio.create_task(pulse.run())
        freezing = asyncio.create_task(_freeze_memory(app))
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

        async def report() -> None:
            while await lines.readline():
                print(json.dumps({"wall_ms": pulse.wall_ms, "cpu_ms": pulse.cpu_ms}), flush=True)
                pulse.wall_ms = pulse.cpu_ms = 0.0
            stop.set()

        reporting = asyncio.create_task(report())
        await asyncio.wait([serving, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        for task in (beating, freezing, reporting, serving):
            task.cancel()


# -- other callers ---------------------------------------------------------------------------------------------------


async def run_caller(url: str, seconds: float) -> None:
    """Call the healthy server at an even pace, and print how long each call took."""
    message = load.request(url, TOOL, {"name": "healthy:ok", "arguments": {}})
    reader, writer = await asyncio.open_connection("127.0.0.1", load.urlsplit(url).port)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        writer.write(message)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.decode().lower().splitlines() if line.startswith("content-length:")
        )
        assert b'"xx"' in await reader.readexactly(length)
        times.append((time.perf_counter() - start) * 1000)
        await asyncio.sleep(max(0.0, PACE_S - (time.perf_counter() - start)))
    print(json.dumps(times))


# -- the attacks -----------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """A running gateway under attack."""

    url: str
    process: asyncio.subprocess.Process
    refusal: str = ""

    @property
    def port(self) -> int:
        return load.urlsplit(self.url).port or 0

    async def call(self, tool: str, arguments: dict[str, Any]) -> bytes:
        """The body of the answer to one call."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        writer.write(load.request(self.url, tool, arguments))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.decode().lower().splitlines() if line.startswith("content-length:")
        )
        body = await reader.readexactly(length)
        writer.close()
        return body

    async def send(self, *parts: bytes, wait_s: float = 2.0) -> bytes:
        """Send bytes over a connection of its own, as far as the gateway takes them; return what it answered."""
        answer = b""
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            with contextlib.suppress(OSError):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
            async with asyncio.timeout(wait_s):
                answer = await reader.read(65536)
            writer.close()
        return answer


def answers(name: str) -> Attack:
    """Calls that are answered so."""

    async def attack(bench: Bench) -> None:
        body = await bench.call(TOOL, {"name": name, "arguments": {}})
        bench.refusal = body[:400].decode(errors="replace") if len(body) < 4096 else f"{len(body):,} bytes"

    return attack


async def script(bench: Bench) -> None:
    """A script whose 16 calls at once are each answered with 60 MB."""
    code = "local calls = {} for i = 1, 16 do calls[i] = plain.text{} end return await_all(calls)"
    bench.refusal = (await bench.call("execute", {"language": "lua", "code": code}))[:400].decode(errors="replace")


HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def endless_header(bench: Bench) -> None:
    """One header of 100 MB."""
    bench.refusal = (await bench.send(HEAD, b"X: ", *[b"a" * MB] * 100))[:40].decode()


async def many_headers(bench: Bench) -> None:
    """Headers of 100 MB in all."""
    bench.refusal = (await bench.send(HEAD, *[b"X-Y: 12345\r\n" * 80_000] * 100))[:40].decode()


async def long_url(bench: Bench) -> None:
    """A URL of 100 MB."""
    bench.refusal = (await bench.send(b"GET /", *[b"a" * MB] * 100))[:40].decode()


async def slow_heads(bench: Bench) -> None:
    """500 heads that never end, and 1,500 connections that say nothing."""
    await asyncio.gather(*(bench.send(HEAD if n < 500 else b"", wait_s=1) for n in range(2000)))


async def half_bodies(bench: Bench) -> None:
    """500 bodies of 40 KB that stop half-way."""
    part = HEAD + b"MCP-Protocol-Version: 2025-11-25\r\nContent-Length: 40000\r\n\r\n" + b"x" * 20_000
    await asyncio.gather(*(bench.send(part, wait_s=1) for _ in range(500)))


async def dense_body(bench: Bench) -> None:
    """A body of 4 MB that is nothing but values."""
    value = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"[]," * 1_300_000 + b"0]}}"
    length = b"MCP-Protocol-Version: 2026-07-28\r\nContent-Length: %d\r\n\r\n" % len(value)
    bench.refusal = (await bench.send(HEAD, length, value))[:40].decode()


async def sessions(bench: Bench) -> None:
    """2,000 sessions of one caller; five times in 10,000."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    accept = b"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
    for _ in range(2000):
        writer.write(HEAD + accept + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.decode().lower().splitlines() if line.startswith("content-length:")
        )
        await reader.readexactly(length)
        bench.refusal = head[:15].decode()
    writer.close()


CASES: dict[str, Attack] = {
    "900,000 blocks, JSON": answers("plain:blocks"),
    "900,000 blocks, events": answers("events:blocks"),
    "900,000 blocks, stdio": answers("pipe:blocks"),
    "50 MB of structure, JSON": answers("plain:structure"),
    "50 MB of structure, events": answers("events:structure"),
    "50 MB of structure, stdio": answers("pipe:structure"),
    "60 MB of text, JSON": answers("plain:text"),
    "60 MB of text, events": answers("events:text"),
    "60 MB of text, stdio": answers("pipe:text"),
    "1 GB of text, compressed": answers("plain:gzip"),
    "16 x 60 MB into a script": script,
    "error of 16 KB in one word, JSON": answers("plain:error16k"),
    "error of 16 KB in one word, events": answers("events:error16k"),
    "error of 16 KB in one word, stdio": answers("pipe:error16k"),
    "error of 60 MB in one word, stdio": answers("pipe:error60m"),
    "failed result of 16 KB in one word": answers("pipe:failed16k"),
    "10 log messages of 16 KB in one word": answers("pipe:log16k"),
    "10 progress messages of 16 KB in one word": answers("pipe:progress16k"),
    "10 lines of stderr of 16 KB in one word": answers("pipe:stderr16k"),
    "exception of a function of 16 KB in one word": answers("boom16k"),
    "exception of a function of 60 MB in one word": answers("boom60m"),
    "allowed: 10 MB of text": answers("plain:text10"),
    "allowed: 10 MB of text, stdio": answers("pipe:text10"),
    "allowed: 10,000 blocks": answers("plain:blocks10k"),
    "allowed: 199,000 values": answers("plain:nodes"),
    "header of 100 MB": endless_header,
    "headers, 100 MB": many_headers,
    "URL of 100 MB": long_url,
    "500 slow heads, 1,500 silent": slow_heads,
    "500 half bodies": half_bodies,
    "body of 1,300,000 values": dense_body,
    "2,000 sessions, one caller": sessions,
}


# -- measuring -------------------------------------------------------------------------------------------------------


def memory_mb(pid: int, field: str) -> float:
    """`VmRSS` or `VmHWM` of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1000


def forget_peak(pid: int) -> None:
    """Measure `VmHWM` from here on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def spawn(*args: str) -> asyncio.subprocess.Process:
    """This file in a process of its own, in one of its roles."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, __file__, *args, stdin=pipe, stdout=pipe)


async def line_of(process: asyncio.subprocess.Process) -> str:
    """The next line that the process prints."""
    assert process.stdout is not None
    async with asyncio.timeout(120):
        return (await process.stdout.readline()).decode().strip()


async def others(url: str, seconds: float) -> tuple[float, float]:
    """The p50 and p99 of other callers' calls, in milliseconds."""
    process = await spawn("caller", url, str(seconds))
    assert process.stdout is not None
    async with asyncio.timeout(seconds + 120):
        times = sorted(json.loads(await process.stdout.read()))
    return statistics.median(times), times[int(len(times) * 0.99)]


async def pulse(gateway: asyncio.subprocess.Process) -> dict[str, float]:
    """The gateway's longest stalls since the last time."""
    assert gateway.stdin is not None
    gateway.stdin.write(b"\n")
    found: dict[str, float] = json.loads(await line_of(gateway))
    return found


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    """A gateway in front of the hostile server and a healthy one."""
    hostile, healthy = await spawn("upstream"), await spawn("upstream")
    ports, other = json.loads(await line_of(hostile)), json.loads(await line_of(healthy))
    urls = [f"http://127.0.0.1:{port}/mcp" for port in (*ports, other[0])]
    gateway = await spawn("gateway", *urls)
    try:
        yield Bench(await line_of(gateway), gateway)
    finally:
        for process in (gateway, hostile, healthy):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def measure(name: str, attack: Attack, seconds: float) -> list[str]:
    """Print one row, and return the goals that it misses."""
    async with running() as bench:
        pid = bench.process.pid
        await others(bench.url, 0.5)
        quiet = await others(bench.url, seconds)
        await asyncio.wait_for(attack(bench), 60)  # makes the answers; not measured
        await asyncio.sleep(0.5)
        idle_mb = memory_mb(pid, "VmRSS")
        forget_peak(pid)
        await pulse(bench.process)
        calling = asyncio.create_task(others(bench.url, seconds))
        await asyncio.sleep(0.3)
        attacks, worst_s, took = 0, 0.0, time.perf_counter()
        while time.perf_counter() - took < seconds or not attacks:
            begin = time.perf_counter()
            await asyncio.wait_for(attack(bench), 120)
            worst_s = max(worst_s, time.perf_counter() - begin)
            attacks += 1
            await asyncio.sleep(PAUSE_S)
        beat = await pulse(bench.process)
        p50, p99 = await calling
        peak_mb = memory_mb(pid, "VmHWM") - idle_mb
        begin = time.perf_counter()
        bench.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                await bench.process.wait()
        ended_s = time.perf_counter() - begin
    missed = []
    if beat["cpu_ms"] > MAX_STALL_MS:
        missed.append(f"{name}: the loop was held for {beat['cpu_ms']:.0f} ms, more than {MAX_STALL_MS}")
    if peak_mb > MAX_MEMORY_MB:
        missed.append(f"{name}: memory rose by {peak_mb:.0f} MB, more than {MAX_MEMORY_MB}")
    if p99 > max(MAX_P99 * quiet[1], P99_FLOOR_MS):
        missed.append(f"{name}: p99 of others {p99:.1f} ms, more than {MAX_P99:g} times {quiet[1]:.1f}")
    print(
        f"| {name} | {beat['cpu_ms']:.0f} | {beat['wall_ms']:.0f} | {peak_mb:.0f} | {quiet[0]:.1f} / {quiet[1]:.1f} "
        f"| {p50:.1f} / {p99:.1f} | {worst_s:.1f} | {ended_s:.1f} |",
        flush=True,
    )
    print(f"    {attacks} times; the last: {bench.refusal[:240]!r}", file=sys.stderr, flush=True)
    return missed


async def main() -> int:
    """Run all cases, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names have this text")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each case goes on")
    options = parser.parse_args()
    print(f"{os.cpu_count()} x {_processor()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| case | stall, CPU ms | stall, ms | MB above idle | others before, p50 / p99 ms | others meanwhile "
        "| longest attack, s | SIGTERM, s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    missed: list[str] = []
    for name, attack in CASES.items():
        if options.only.lower() in name.lower():
            missed += await measure(name, attack, options.seconds)
    print("\n" + ("\n".join(f"MISSED: {one}" for one in missed) or "All goals are met."))
    return 1 if missed else 0


def _processor() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


ROLES: dict[str, Callable[..., Any]] = {
    "upstream": lambda: asyncio.run(run_upstream()),
    "stdio": run_stdio,
    "gateway": lambda *urls: anyio.run(run_gateway, *urls, backend_options={"use_uvloop": FAST}),
    "caller": lambda url, seconds: asyncio.run(run_caller(url, float(seconds))),
}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ROLES:
        ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(asyncio.run(main()))
