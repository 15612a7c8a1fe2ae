"""What a gateway adds to `tools/call`: toolcrib and the fastmcp proxy, against the upstream itself, in one run."""

import asyncio
import contextlib
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import load

HERE = Path(__file__).parent
AT_ONCE = (1, 16, 64)
ROUNDS = 3
TOOLS = 50


@contextlib.contextmanager
def server(*command: str) -> Iterator[tuple[str, int]]:
    """A started server: its address and process id."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stream = process.stderr if "toolcrib" in " ".join(command) else process.stdout
    assert stream is not None
    try:
        for line in stream:
            if address := re.search(r"http://\S+/mcp", line):
                yield address[0], process.pid
                return
        raise RuntimeError(f"{command} did not start")
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def toolcrib(upstream: str, surface: str) -> Iterator[tuple[str, int]]:
    """toolcrib in front of the upstream, with a token and everything else it does by default."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "toolcrib.json"
        config.write_text(json.dumps({"mcpServers": {"up": {"url": upstream}}, "toolcrib": {"surfaces": [surface]}}))
        with server("-m", "toolcrib.cli.main", "serve", "--http", "127.0.0.1:0", "--config", str(config)) as started:
            yield started


async def measure(url: str, pid: int, message: bytes, expect: bytes, at_once: int, calls: int) -> load.Load:
    """One cell, after a warm-up."""
    await load.run(url, message, expect=expect, at_once=at_once, calls=max(20, calls // 10))
    return await load.run(url, message, expect=expect, at_once=at_once, calls=calls, pid=pid)


def main() -> None:
    """Measure each subject in turn, several rounds, and keep the best of each cell."""
    payload = "x" * 64
    rows: dict[str, dict[int, load.Load]] = {}
    with contextlib.ExitStack() as stack:
        upstream, upstream_pid = stack.enter_context(server(str(HERE / "servers.py"), "upstream", str(TOOLS)))
        subjects = {"direct": (upstream, upstream_pid, "echo", {"text": payload}, 1000)}
        url, pid = stack.enter_context(toolcrib(upstream, "search"))
        arguments = {"name": "up:echo", "arguments": {"text": payload}}
        subjects["toolcrib, execute_tool"] = (url, pid, "execute_tool", arguments, 1000)
        url, pid = stack.enter_context(toolcrib(upstream, "direct"))
        subjects["toolcrib, by name"] = (url, pid, "up__echo", {"text": payload}, 1000)
        url, pid = stack.enter_context(server(str(HERE / "servers.py"), "fastmcp-connected", upstream))
        subjects["fastmcp proxy, connected"] = (url, pid, "echo", {"text": payload}, 400)
        url, pid = stack.enter_context(server(str(HERE / "servers.py"), "fastmcp-default", upstream))
        subjects["fastmcp proxy, default"] = (url, pid, "echo", {"text": payload}, 150)
        for _ in range(ROUNDS):
            for name, (url, pid, tool, arguments, calls) in subjects.items():
                message = load.request(url, tool, arguments)
                for at_once in AT_ONCE:
                    cell = asyncio.run(measure(url, pid, message, payload.encode(), at_once, max(calls, at_once * 3)))
                    best = rows.setdefault(name, {}).get(at_once)
                    if best is None or cell.p50_ms < best.p50_ms:
                        rows[name][at_once] = cell
    report(rows)


def report(rows: dict[str, dict[int, load.Load]]) -> None:
    """Print the table, and keep the figures."""
    direct = rows["direct"]
    print(f"\ntools/call, HTTP upstream with {TOOLS} tools; {platform.machine()}, Python {platform.python_version()}")
    print("p50 and p99 in ms, and as ratios to direct; CPU of the gateway's own process a call\n")
    print(f"{'':26}" + "".join(f"{f'{at_once} at once':>38}" for at_once in AT_ONCE))
    print(f"{'':26}" + f"{'p50':>9}{'ratio':>7}{'p99':>8}{'ratio':>7}{'cpu':>7}" * len(AT_ONCE))
    for name, cells in rows.items():
        line = f"{name:26}"
        for at_once in AT_ONCE:
            cell, base = cells[at_once], direct[at_once]
            line += f"{cell.p50_ms:9.2f}{cell.p50_ms / base.p50_ms:7.1f}{cell.p99_ms:8.2f}"
            line += f"{cell.p99_ms / base.p99_ms:7.1f}{cell.cpu_ms:7.2f}"
        print(line)
    figures = {name: {str(at_once): asdict(cell) for at_once, cell in cells.items()} for name, cells in rows.items()}
    (HERE / "results" / "overhead.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
