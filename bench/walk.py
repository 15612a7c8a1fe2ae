"""How much code one request touches: the modules and functions of toolcrib that run for it, in order.

`python bench/walk.py` counts one `execute_tool` over HTTP, one `tool_search` and one call from a Lua script, on a warm
gateway over an in-process MCP server. `--names` also prints them.
"""

import argparse
import asyncio
import json
import logging
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import httpx2
from mcp.server.mcpserver import MCPServer

import toolcrib
from toolcrib import App, Settings

ROOT = Path(toolcrib.__file__).parent
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "walk", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Walk:
    """Collect the toolcrib functions that are entered while it is active, in any thread."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], None] = {}

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)) and not frame.f_code.co_name.startswith("<"):
            self.seen.setdefault((str(Path(file).relative_to(ROOT)), frame.f_code.co_qualname))

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, which the stub does not say

    def report(self, name: str, *, names: bool) -> None:
        modules = {module for module, _ in self.seen}
        print(f"{name:28}{len(modules):5} modules {len(self.seen):5} functions")
        if names:
            for module, function in self.seen:
                print(f"    {module:32} {function}")


def upstream() -> MCPServer:
    server: MCPServer = MCPServer("math")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return server


@asynccontextmanager
async def client(app: App) -> AsyncIterator[httpx2.AsyncClient]:
    mount = app.asgi_mount()
    async with (
        app,
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=mount), base_url="http://127.0.0.1:8000", headers=HEADERS
        ) as http,
    ):
        await app.settled()
        yield http


async def call(http: httpx2.AsyncClient, name: str, arguments: dict[str, Any]) -> None:
    params = {"name": name, "arguments": arguments, "_meta": META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    response = await http.post("/mcp", json=body, headers={"mcp-method": "tools/call", "mcp-name": name})
    answer = response.json() if response.text.startswith("{") else json.loads(response.text.partition("data: ")[2])
    if response.status_code != 200 or answer.get("result", {}).get("isError", True):
        raise SystemExit(f"{name} failed: {response.text}")


async def walk(title: str, work: Callable[[], Awaitable[None]], *, names: bool) -> None:
    for _ in range(3):
        await work()
    with Walk() as steps:
        await work()
        await asyncio.sleep(0.05)
    steps.report(title, names=names)


async def main(*, names: bool) -> None:
    app = App(Settings(), name="walk")
    app.include(upstream(), "math")
    async with client(app) as http:
        arguments = {"name": "math:add", "arguments": {"a": 1, "b": 2}}
        await walk("execute_tool over HTTP", lambda: call(http, "execute_tool", arguments), names=names)
        await walk(
            "tool_search over HTTP", lambda: call(http, "tool_search", {"query": "add two numbers"}), names=names
        )

        async def script() -> None:
            await app.run_script("return math.add{a = 1, b = 2}:await()")

        await walk("a script that calls a tool", script, names=names)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="print the modules and functions")
    asyncio.run(main(names=parser.parse_args().names))
