"""What a caller feels while another one asks too much: searches, unfinished bodies, and sessions.

    neighbours.py [--seconds 5] [--rounds 3] [--python OTHER/bin/python]

A gateway with 500 tools and two callers serves one of them a call every ten milliseconds, first alone, then beside the
other one, whose traffic comes from a process of its own. Prints p50 and p99 of these calls, their ratios, and the
memory of the gateway. `--python` serves with the toolcrib of another environment. Exits with 1 if the median of the
ratios of p50 is above 2.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import load

MAX_RATIO: Final = 2.0
PACE_S: Final = 0.01
TOOLS: Final = 500
WORDS: Final = 60_000
MB: Final = 1_000_000
QUIET: Final = "Authorization: Bearer quiet-secret\r\n"
LOUD: Final = "Authorization: Bearer loud-secret\r\n"


# -- the gateway -----------------------------------------------------------------------------------------------------


async def serve() -> None:
    """Serve until the end of standard input's process; prints the address."""
    from toolcrib import App, Settings
    from toolcrib.options import HttpOptions, SurfaceOptions, Token

    words = made_words(2_000)
    tokens = tuple(Token(secret=f"{name}-secret", caller=name) for name in ("quiet", "loud"))
    surfaces = SurfaceOptions(surfaces=("search", "direct"))
    app = App(Settings(http=HttpOptions(port=0, tokens=tokens), surfaces=surfaces))
    for number in range(TOOLS):
        text = " ".join(random.choices(words, k=20))
        app.tool(f"tool_{number}", description=text)(lambda: "done")
    async with app:
        await app.serve_http(started=lambda url: print(url, flush=True))


def made_words(count: int) -> list[str]:
    """Words that do not change from run to run."""
    random.seed(7)
    return ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(3, 9))) for _ in range(count)]


@contextlib.contextmanager
def gateway(python: str) -> Iterator[tuple[str, int]]:
    """A running gateway: its address and process."""
    process = subprocess.Popen([python, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def memory_mb(pid: int) -> float:
    """The resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1000


# -- the loud caller -------------------------------------------------------------------------------------------------


async def ask_forever(url: str, message: Callable[[], bytes]) -> None:
    """Send one message after the other, whatever the answers are."""
    parts = urlsplit(url)
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, RuntimeError):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            with contextlib.closing(writer):
                while True:
                    writer.write(message())
                    await load.answer(reader)
        await asyncio.sleep(PACE_S)


async def search_flood(url: str) -> None:
    """Eight connections that search for 60,000 words each."""
    query = " ".join(made_words(WORDS))
    message = load.request(url, "tool_search", {"query": query}, LOUD)
    await asyncio.gather(*(ask_forever(url, lambda: message) for _ in range(8)))


async def list_flood(url: str) -> None:
    """Eight connections that list every tool."""
    head, _, body = load.request(url, "tool_0", {}, LOUD).partition(b"\r\n\r\n")
    asked = json.loads(body)
    listing = json.dumps({**asked, "method": "tools/list", "params": {"_meta": asked["params"]["_meta"]}}).encode()
    kept = [line for line in head.split(b"\r\n") if not line.startswith((b"Mcp-Name", b"Content-Length"))]
    lines = b"\r\n".join([*kept, b"Content-Length: %d" % len(listing), b"", b""])
    message = lines.replace(b"tools/call", b"tools/list") + listing
    await asyncio.gather(*(ask_forever(url, lambda: message) for _ in range(8)))


async def body_flood(url: str) -> None:
    """400 connections with one half of a body of 4 MB each."""
    parts = urlsplit(url)
    head = load.request(url, "tool_0", {}, LOUD).partition(b"Content-Length")[0]
    part = head + b"Content-Length: 4000000\r\n\r\n" + b"x" * 2_000_000

    async def hold() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
                with contextlib.closing(writer):
                    writer.write(part)
                    await reader.read()
            await asyncio.sleep(1)

    await asyncio.gather(*(hold() for _ in range(400)))


async def session_flood(url: str) -> None:
    """1,000 sessions, and a call in each of them now and then."""
    messages = await asyncio.gather(
        *(asyncio.to_thread(load.session_request, url, "tool_0", {}, LOUD) for _ in range(1_000))
    )
    turns = iter(lambda: random.choice(messages), None)

    async def call() -> None:
        parts = urlsplit(url)
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, RuntimeError):
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
                with contextlib.closing(writer):
                    while True:
                        writer.write(next(turns))
                        await load.answer(reader)
                        await asyncio.sleep(PACE_S)

    await asyncio.gather(call(), call())


FLOODS: Final[dict[str, Callable[[str], Awaitable[None]]]] = {
    "searches": search_flood,
    "lists": list_flood,
    "half bodies": body_flood,
    "1,000 sessions": session_flood,
}


# -- the quiet caller ------------------------------------------------------------------------------------------------


async def call_at_pace(url: str, seconds: float) -> list[float]:
    """How long calls take, in milliseconds, one every hundredth of a second."""
    parts = urlsplit(url)
    message = load.request(url, "tool_1", {}, QUIET)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    times: list[float] = []
    end = time.perf_counter() + seconds
    with contextlib.closing(writer):
        while time.perf_counter() < end:
            start = time.perf_counter()
            writer.write(message)
            await load.answer(reader)
            times.append((time.perf_counter() - start) * 1e3)
            await asyncio.sleep(PACE_S)
    return sorted(times)


def _figures(times: list[float]) -> tuple[float, float]:
    return statistics.median(times), times[int(len(times) * 0.99)]


def measure(name: str, python: str, seconds: float) -> float:
    """Print one row, and return the ratio of p50."""
    with gateway(python) as (url, pid):
        asyncio.run(call_at_pace(url, 0.5))
        alone, idle_mb = _figures(asyncio.run(call_at_pace(url, seconds))), memory_mb(pid)
        flood = subprocess.Popen([sys.executable, __file__, "flood", name, url])
        try:
            time.sleep(4 if "sessions" in name else 2)
            beside, full_mb = _figures(asyncio.run(call_at_pace(url, seconds))), memory_mb(pid)
        finally:
            flood.kill()
            flood.wait()
        time.sleep(2)
        left_mb = memory_mb(pid)
    ratios = beside[0] / alone[0], beside[1] / alone[1]
    print(
        f"| {name} | {alone[0]:.1f} / {alone[1]:.1f} | {beside[0]:.1f} / {beside[1]:.1f} "
        f"| {ratios[0]:.1f} / {ratios[1]:.1f} | {idle_mb:.0f} | {full_mb:.0f} | {left_mb:.0f} |",
        flush=True,
    )
    return ratios[0]


def main() -> int:
    """Run all floods, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each part is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that serves")
    parser.add_argument("--only", default="", help="floods whose names have this text")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n")
    print("| flood | alone, p50 / p99 ms | beside | ratios | MB before | MB meanwhile | MB after |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name in FLOODS:
            if options.only in name:
                ratios.setdefault(name, []).append(measure(name, options.python, options.seconds))
    missed = {name: statistics.median(found) for name, found in ratios.items() if statistics.median(found) > MAX_RATIO}
    print("\n" + ("\n".join(f"MISSED: {name}: {ratio:.1f} times the p50" for name, ratio in missed.items()) or "Met."))
    return 1 if missed else 0


ROLES: Final[dict[str, Callable[..., Any]]] = {
    "serve": lambda: asyncio.run(serve()),
    "flood": lambda name, url: asyncio.run(FLOODS[name](url)),  # type: ignore[arg-type]  # coroutine functions
}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ROLES:
        ROLES[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(main())
