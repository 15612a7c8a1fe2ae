"""What a gateway adds to `tools/call`: toolcrib and the fastmcp proxy, against the upstream itself, in one run."""

import asyncio
import contextlib
import functools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import load
import processes

HERE = Path(__file__).parent
AT_ONCE = (1, 16, 64)
PAYLOAD = "x" * 64
PLAIN = {"text": PAYLOAD}
OLDER = "older session"
TOOLS = 50
TOKEN = "of-the-benchmark"  # noqa: S105 - of a server that runs for a minute
AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n"


@contextlib.contextmanager
def toolcrib(
    upstream: str, surface: str, *, python: str = sys.executable, **settings: Any
) -> Iterator[tuple[str, int]]:
    """toolcrib in front of the upstream, with a token and everything else it does by default."""
    with tempfile.TemporaryDirectory() as folder:
        (secret := Path(folder) / "token").write_text(TOKEN)
        tokens = {"tokens": [{"caller": "bench", "file": str(secret)}]}
        section = {"surfaces": [surface], "state": {"path": f"{folder}/state.sqlite"}, "http": tokens, **settings}
        config = Path(folder) / "toolcrib.json"
        config.write_text(json.dumps({"mcpServers": {"up": {"url": upstream}}, "toolcrib": section}))
        with processes.gateway(config, python) as started:
            yield started


@dataclass(frozen=True)
class Subject:
    """One way to reach the tool."""

    name: str
    url: str
    pid: int
    tool: str
    arguments: dict[str, Any]
    headers: str = ""
    in_session: bool = False
    calls: int = 1000
    rounds: int = 3

    def message(self) -> bytes:
        """The call to send."""
        make = load.session_request if self.in_session else load.request
        return make(self.url, self.tool, self.arguments, self.headers)


def started(stack: contextlib.ExitStack) -> list[Subject]:
    """Every subject, running."""
    servers = str(HERE / "servers.py")
    up, up_pid = stack.enter_context(processes.server(servers, "upstream", str(TOOLS)))
    peer, peer_pid = stack.enter_context(processes.server(servers, "fastmcp-connected", up))
    slow, slow_pid = stack.enter_context(processes.server(servers, "fastmcp-default", up))
    return [
        Subject("direct", up, up_pid, "echo", PLAIN),
        Subject(f"direct, {OLDER}", up, up_pid, "echo", PLAIN, in_session=True),
        *gateways(stack, up, "toolcrib"),
        Subject("fastmcp proxy, connected", peer, peer_pid, "echo", PLAIN, calls=300),
        Subject("fastmcp proxy, default", slow, slow_pid, "echo", PLAIN, calls=64, rounds=1),
    ]


def gateways(stack: contextlib.ExitStack, up: str, name: str, python: str = sys.executable) -> list[Subject]:
    """Two gateways in front of the upstream, and the three ways to call through them."""
    search, search_pid = stack.enter_context(toolcrib(up, "search", python=python))
    direct, direct_pid = stack.enter_context(toolcrib(up, "direct", python=python))
    execute = {"name": "up:echo", "arguments": PLAIN}
    return [
        Subject(f"{name}, execute_tool", search, search_pid, "execute_tool", execute, headers=AUTHORIZATION),
        Subject(f"{name}, by name", direct, direct_pid, "up__echo", PLAIN, headers=AUTHORIZATION),
        Subject(f"{name}, {OLDER}", direct, direct_pid, "up__echo", PLAIN, AUTHORIZATION, in_session=True),
    ]


def measure(subject: Subject, at_once: int) -> load.Load:
    """One cell, after a warm-up."""
    run = functools.partial(load.run, subject.url, subject.message(), expect=PAYLOAD.encode(), at_once=at_once)

    async def both() -> load.Load:
        await run(calls=max(at_once, subject.calls // 10))
        return await run(calls=max(subject.calls, at_once), pid=subject.pid)

    return asyncio.run(both())


def main() -> None:
    """Measure the subjects in turn, several rounds, and keep the best of each cell."""
    rows: dict[str, dict[int, load.Load]] = {}
    with contextlib.ExitStack() as stack:
        subjects = started(stack)
        for number in range(max(subject.rounds for subject in subjects)):
            for subject in (subject for subject in subjects if number < subject.rounds):
                print(f"round {number + 1}: {subject.name}", file=sys.stderr)
                for at_once in AT_ONCE:
                    cell = measure(subject, at_once)
                    best = rows.setdefault(subject.name, {}).get(at_once)
                    rows[subject.name][at_once] = cell if best is None else best.better(cell)
    report(rows)


def report(rows: dict[str, dict[int, load.Load]]) -> None:
    """Print the table, and keep the figures."""
    direct = rows["direct"]
    print(f"\ntools/call, HTTP upstream with {TOOLS} tools; {platform.machine()}, Python {platform.python_version()}")
    print("p50, p99 and CPU of the subject's own process a call in ms, and each as a ratio to direct")
    print("load average:", *(f"{part:.1f}" for part in os.getloadavg()), end="\n\n")
    print(f"{'':26}" + "".join(f"{f'{at_once} at once':>45}" for at_once in AT_ONCE))
    print(f"{'':26}" + f"{'p50':>9}{'ratio':>7}{'p99':>8}{'ratio':>7}{'cpu':>7}{'ratio':>7}" * len(AT_ONCE))
    for name, cells in rows.items():
        line = f"{name:26}"
        for at_once in AT_ONCE:
            cell, base = cells[at_once], direct[at_once]
            line += f"{cell.p50_ms:9.2f}{cell.p50_ms / base.p50_ms:7.2f}{cell.p99_ms:8.2f}"
            line += f"{cell.p99_ms / base.p99_ms:7.1f}{cell.cpu_ms:7.2f}{cell.cpu_ms / base.cpu_ms:7.2f}"
        print(line)
    figures = {name: {str(at_once): asdict(cell) for at_once, cell in cells.items()} for name, cells in rows.items()}
    for file, is_older in (("overhead.json", False), ("overhead_older.json", True)):
        chosen = {name: cells for name, cells in figures.items() if name.endswith(OLDER) is is_older}
        (HERE / "results" / file).write_text(json.dumps(chosen, indent=2) + "\n")


if __name__ == "__main__":
    main()
