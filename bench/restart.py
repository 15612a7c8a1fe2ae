"""A gateway in front of 160 servers: the first search after a cold start, and after restarts with remembered catalogs.

`python bench/restart.py` serves the definitions of `tests/retrieval/data` as 160 MCP servers from one process, so that
starting servers is not what is measured. If `TOOLCRIB_BENCH_DATA` names a folder with recordings (see `fleet.py`), each
recorded server is one of them instead. Every run is a process of its own; its seconds count from `App.__aenter__` to
the reply of a search that is made at once. `tools` are those that the search had; `cpu_s` is that of the whole process.
"""

import contextlib
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import mcp_types
import uvicorn
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.routing import Mount

import processes

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "tests" / "retrieval" / "data" / "tools.jsonl"
RECORDED = Path(os.environ.get("TOOLCRIB_BENCH_DATA", HERE / "recordings")) / "data" / "real_mcp" / "tools.jsonl.gz"
SERVERS, TOOLS_EACH = 160, 32
RESTARTS = 3


def definitions() -> list[list[dict[str, Any]]]:
    """The tools of each server."""
    if not RECORDED.exists():
        rows = [json.loads(line) for line in SHIPPED.read_text().splitlines()]
        tools = [
            {"name": row["name"], "description": row["description"], "inputSchema": row["parameters"]} for row in rows
        ]
        return [_deal(tools, place) for place in range(SERVERS)]
    servers: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(RECORDED, "rt") as lines:
        for row in map(json.loads, lines):
            if (row["inputSchema"] or {}).get("type") == "object":
                keys = ("name", "title", "description", "inputSchema", "annotations")
                servers.setdefault(row["server"], []).append(
                    {key: row[key] for key in keys if row.get(key) is not None}
                )
    return list(servers.values())


def _deal(tools: Sequence[dict[str, Any]], place: int) -> list[dict[str, Any]]:
    """Other tools for each server, and none of them twice."""
    chosen = {tool["name"]: tool for tool in (tools[(place * 7 + n) % len(tools)] for n in range(TOOLS_EACH))}
    return list(chosen.values())


def serve(port: int) -> None:
    """Serve them all, each at its own path."""
    apps = [_server(tools).streamable_http_app(json_response=True) for tools in definitions()]

    @contextlib.asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    routes = [Mount(f"/{place}", app) for place, app in enumerate(apps)]
    uvicorn.run(Starlette(routes=routes, lifespan=running), host="127.0.0.1", port=port, log_level="error")


def _server(tools: Sequence[Mapping[str, Any]]) -> Server[Any]:
    listed = [mcp_types.Tool.model_validate(tool) for tool in tools]

    async def list_tools(_ctx: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=listed)

    return Server("recorded", on_list_tools=list_tools)


def run_once(config: Path) -> None:
    """Start a gateway, search at once, and print the figures."""
    from toolcrib.app import App
    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)

    async def main() -> dict[str, Any]:
        started = time.perf_counter()
        async with App(settings) as app:
            await app.search("create a pull request")
            return {
                "seconds": round(time.perf_counter() - started, 2),
                "tools": len(app.gateway.refresher.snapshot.catalog),
                "cpu_s": round(time.process_time(), 2),
            }

    print(json.dumps(anyio.run(main)))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        port, config = 8917, Path(folder) / "toolcrib.json"
        entries = {f"s{place}": {"url": f"http://127.0.0.1:{port}/{place}/mcp"} for place in range(len(definitions()))}
        own = {"state": {"path": str(Path(folder) / "state.sqlite")}}
        config.write_text(json.dumps({"mcpServers": entries, "toolcrib": own}))
        servers = subprocess.Popen([sys.executable, __file__, "--serve", str(port)])
        with processes.ending(servers):
            processes.wait_until(servers, lambda: processes.is_open(port))
            print(f"{len(entries)} servers")
            for what in ("cold", *["restart"] * RESTARTS):
                command = [sys.executable, __file__, "--run", str(config)]
                done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=processes.RUN_S)
                print(what, done.stdout.strip() or done.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--run"]:
        run_once(Path(sys.argv[2]))
    else:
        main()
