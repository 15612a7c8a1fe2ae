"""The first search of a session, right after the gateway starts over stdio with twelve real servers from PyPI.

`python bench/first_search.py` starts `toolcrib serve` for each run, without remembered catalogs, connects like an
agent, and searches at once. A run is right if the first hit is a tool of the expected server, and complete if no server
is missing from the reply. The servers are pinned and started with uvx, which downloads them before the first run.

`--warm` keeps the catalogs between the runs. `--config FILE` uses the servers of another file in the form of
`mcpServers`. `--runs`, `--query` and `--expect SERVER` say what to do. Needs `pip install toolcrib uv`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import anyio
import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client

from toolcrib.cli.demo import find_uvx, uvx_arguments

OLD_SDK = "mcp==1.30.0"
SERVERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "time": (("mcp-server-time==2026.10.19", "mcp==2.3.0"), ()),
    "git": (("mcp-server-git==2026.10.19", "mcp==2.3.0"), ()),
    "fetch": (("mcp-server-fetch==2026.10.24", "mcp==2.3.0"), ()),
    "calculator": (("mcp-server-calculator==0.2.1", OLD_SDK), ()),
    "sqlite": (("mcp-server-sqlite==2025.4.25", OLD_SDK), ("--db-path", "{folder}/bench.db")),
    "math": (("chuk-mcp-math-server==0.3.3", "chuk-mcp-math==0.2.3", "chuk-mcp-server==0.26.1"), ()),
    "editor": (("mcp-text-editor==1.0.2", OLD_SDK), ()),
    "shell": (("cli-mcp-server==0.2.5", OLD_SDK), ()),
    "excel": (("excel-mcp-server==2.2.2",), ("stdio",)),
    "wikipedia": (("wikipedia-mcp==2.0.1",), ("--transport", "stdio")),
    "duckduckgo": (("duckduckgo-mcp-server==0.7.0",), ()),
    "pandoc": (("mcp-pandoc==0.11.1",), ()),
}
"""By name: the package and what is pinned with it, then its arguments."""
TOO_LONG_S = 300.0


@dataclass(frozen=True)
class Run:
    """The answer to one first search."""

    is_right: bool
    is_complete: bool
    seconds: float
    """From the start of the gateway's process to the answer."""
    text: str


def servers_from_pypi(folder: Path) -> dict[str, Any]:
    """The entries of `SERVERS`; downloads what is missing."""
    uvx = find_uvx()
    entries: dict[str, Any] = {}
    for name, (pins, arguments) in SERVERS.items():
        command = uvx_arguments(pins)
        subprocess.run([uvx, *command[:-1], "python", "-c", ""], check=True, stdin=subprocess.DEVNULL)
        own = [one.format(folder=folder) for one in arguments]
        passed = {key: os.environ[key] for key in os.environ if key.startswith(("UV_", "PIP_", "SSL_"))}
        entries[name] = {"command": uvx, "args": ["--offline", *command, *own], "env": passed}
        if name == "shell":
            entries[name]["env"]["ALLOWED_DIR"] = str(folder)
    return entries


async def first_search(config: Path, query: str, expected: str, log: TextIO) -> Run:
    """Start a gateway and search at once."""
    toolcrib = str(Path(sys.executable).with_name("toolcrib"))
    command = StdioServerParameters(command=toolcrib, args=["serve", "--config", str(config)], env=dict(os.environ))
    began = time.monotonic()
    with anyio.fail_after(TOO_LONG_S):
        async with mcp.Client(stdio_client(command, errlog=log), mode="legacy") as client:
            result = await client.call_tool("tool_search", {"query": query})
            took = time.monotonic() - began
    found: Any = result.structured_content
    hits = [hit["name"] for hit in found["hits"]]
    missing = [server["name"] for server in found["servers"] if server["state"] in ("configured", "connecting")]
    failed = [f"{server['name']} {server['state']}: {server['reason']}" for server in found["servers"]]
    is_right = bool(hits) and hits[0].startswith(f"{expected}:")
    return Run(is_right, not missing, took, "; ".join([hits[0] if hits else found["note"], *failed]))


async def main(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="toolcrib-first-search-"))
    log = (folder / "gateway.log").open("w")
    try:
        servers = json.loads(options.config.read_text())["mcpServers"] if options.config else servers_from_pypi(folder)
        state: dict[str, Any] = {"path": str(folder / "state.sqlite")} if options.warm else {"memory": True}
        config = folder / "toolcrib.json"
        config.write_text(json.dumps({"mcpServers": servers, "toolcrib": {"state": state}}))
        if options.warm:
            await first_search(config, options.query, options.expect, log)
        runs = []
        for number in range(options.runs):
            run = await first_search(config, options.query, options.expect, log)
            runs.append(run)
            words = f"{'right' if run.is_right else 'WRONG'}, {'complete' if run.is_complete else 'INCOMPLETE'}"
            print(f"run {number + 1:2}: {words} after {run.seconds:5.1f} s: {run.text}", flush=True)
        took = [run.seconds for run in runs]
        print(
            f"{len(servers)} servers, {'warm' if options.warm else 'cold'}, {options.query!r}: "
            f"right in {sum(run.is_right for run in runs)} and complete in {sum(run.is_complete for run in runs)} of "
            f"{len(runs)} runs; answer after {statistics.median(took):.1f} s (median), {max(took):.1f} s (longest) "
            f"from the start; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
    finally:
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--query", default="what time is it in tokyo")
    parser.add_argument("--expect", default="time", metavar="SERVER")
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--warm", action="store_true", help="keep the catalogs between the runs")
    anyio.run(main, parser.parse_args())
