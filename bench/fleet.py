"""Twenty recorded real servers behind one gateway: time to ready, memory, and what killing some costs the others.

Needs recordings of your own, because those of other people's servers cannot be shipped: `TOOLCRIB_BENCH_DATA` names a
folder with `data/real_mcp/tools.jsonl.gz` (one tool per line, as `tools/list` returned it, with its `server`) and
`tools/replay_upstream.py SERVER`, a program that serves the tools of one of these servers over stdio.
"""

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import mcp

import processes

HERE = Path(__file__).parent
DATA = Path(os.environ.get("TOOLCRIB_BENCH_DATA", HERE / "recordings"))
REPLAY = DATA / "tools" / "replay_upstream.py"
WANTED = ("@softeria/ms-365-mcp-server", "chuk-mcp-math-server", "@modelcontextprotocol/server-filesystem")
"""The largest answer, the only paged one, and a small one; the rest are the largest by number of tools."""


def recorded() -> list[tuple[str, int]]:
    """Twenty recorded servers and how many valid tools each has: the wanted ones first, then the largest."""
    import gzip

    counts: dict[str, int] = {}
    with gzip.open(DATA / "data" / "real_mcp" / "tools.jsonl.gz", "rt") as rows:
        for line in rows:
            row = json.loads(line)
            if (row["inputSchema"] or {}).get("type") == "object":
                counts[row["server"]] = counts.get(row["server"], 0) + 1
    wanted = [name for name in WANTED if name in counts]
    rest = sorted((name for name in counts if name not in wanted), key=lambda name: -counts[name])
    return [(name, counts[name]) for name in (*wanted, *rest)[:20]]


def key(package: str) -> str:
    """The package's name as a namespace."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", package).strip("-")


def memory_mb(pid: int) -> float:
    """Resident memory of one process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def children(pid: int) -> dict[str, int]:
    """The gateway's children: recorded package to process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == pid:
                    found[(entry / "cmdline").read_text().split("\0")[2]] = int(entry.name)
    return found


async def everything(client: mcp.Client) -> set[str]:
    """The ids of all tools that an empty query lists."""
    ids: set[str] = set()
    cursor = ""
    while True:
        arguments = {"detail": "summary", "max_results": 100, **({"cursor": cursor} if cursor else {})}
        reply: Any = (await client.call_tool("tool_search", arguments)).structured_content
        if "error" in reply:  # the list changed while it was read
            raise LookupError(reply["error"]["message"])
        ids |= {hit["name"] for hit in reply["hits"]}
        if not (cursor := reply.get("cursor")):
            return ids


async def until(client: mcp.Client, wanted: int) -> float:
    """Seconds until that many tools are listed."""
    begun = time.perf_counter()
    with anyio.fail_after(120):
        while True:
            with contextlib.suppress(mcp.MCPError, LookupError):
                if len(await everything(client)) >= wanted:
                    return time.perf_counter() - begun
            await anyio.sleep(0.1)


async def measure(config: Path, servers: list[tuple[str, int]]) -> None:
    """Start, search, kill, restart."""
    wanted = sum(count for _, count in servers)
    begun = time.perf_counter()
    with processes.gateway(config) as (url, pid):
        async with mcp.Client(url) as client:
            await until(client, wanted)
            print(
                f"{len(servers)} servers with {wanted} tools: all found {time.perf_counter() - begun:.1f} s after start"
            )
            print(f"memory of the gateway: {memory_mb(pid):.0f} MB")
            before = await everything(client)
            victims = dict(list(children(pid).items())[:3])
            for victim in victims.values():
                os.kill(victim, signal.SIGKILL)
            await anyio.sleep(0.2)
            reply: Any = (await client.call_tool("tool_search", {"query": "create an issue"})).structured_content
            print(f"killed {len(victims)}; the next search names {[status['name'] for status in reply['servers']]}")
            assert await everything(client) == before, "tools were lost"
            begun = time.perf_counter()
            with anyio.fail_after(120):
                while len(children(pid)) < len(servers):
                    await anyio.sleep(0.05)
            await until(client, wanted)
            assert await everything(client) == before, "tools were lost"
            print(
                f"none of the {wanted} tools was lost; all servers were back after {time.perf_counter() - begun:.1f} s"
            )
            times = []
            for query in ("create an issue", "send a mail to a colleague", "read a file", "list pull requests") * 25:
                start = time.perf_counter()
                await client.call_tool("tool_search", {"query": query, "detail": "signature"})
                times.append(time.perf_counter() - start)
            print(f"tool_search over HTTP: p50 {sorted(times)[len(times) // 2] * 1e3:.1f} ms")
        begun = time.perf_counter()
    print(f"stopped in {time.perf_counter() - begun:.2f} s")


def main() -> None:
    """Run, or say what is missing."""
    if not REPLAY.exists():
        print(f"skipped: no recorded servers at {REPLAY}")
        return
    servers = recorded()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "toolcrib.json"
        entries = {key(name): {"command": sys.executable, "args": [str(REPLAY), name]} for name, _ in servers}
        config.write_text(json.dumps({"mcpServers": entries}))
        anyio.run(measure, config, servers)


if __name__ == "__main__":
    main()
