"""The cost of paging through a long `tools/list`: CPU time over HTTP without a socket.

`python bench/listing.py [tools]`; the client reads nothing but the cursors.
"""

import sys
import time
from typing import Any

import anyio
import httpx2

from toolcrib.server.engine import Engine
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import Tool, Visibility

URL = "http://localhost/mcp"
JSON = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}
RUNS = 5


def tool(number: int) -> Tool:
    about = {"type": "string", "description": "What it is about, in a few words"}
    schema = {"type": "object", "properties": {f"p{place}": about for place in range(5)}, "required": ["p0"]}
    return Tool(
        name=f"tool_{number}",
        namespace=f"server{number % 50}",
        description="Does something useful with the thing that it is given, " * 3,
        input_schema=schema,
        annotations={"readOnlyHint": True},
        visibility=Visibility.NATIVE,
    )


def request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def walk(http: httpx2.AsyncClient, headers: dict[str, str], more: dict[str, Any]) -> tuple[int, int]:
    """Pages and bytes of the whole list."""
    params, pages, size = dict(more), 0, 0
    while True:
        body = (await http.post(URL, headers=headers, json=request("tools/list", params))).content
        pages, size = pages + 1, size + len(body)
        _, found, rest = body.partition(b'"nextCursor":"')
        if not found:
            assert b'"result"' in body
            return pages, size
        params = {**more, "cursor": rest.partition(b'"')[0].decode()}


async def opened(http: httpx2.AsyncClient) -> dict[str, str]:
    answer = await http.post(URL, json=request("initialize", CLIENT))
    return {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}


async def main(count: int) -> None:
    async with running(FakeSource(FakeProvider([tool(number) for number in range(count)]))) as gateway:
        server = Engine(make_facade(gateway, SurfaceOptions(surfaces=("direct",))))
        app = http_app(server, HttpOptions(), ready=lambda: (True, {}))
        transport = httpx2.ASGITransport(app=app)
        async with app.running(), httpx2.AsyncClient(transport=transport, headers=JSON, timeout=60) as http:
            modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
            for era, headers, more in (("2026-07-28", modern, {"_meta": META}), ("2025-11-25", await opened(http), {})):
                began = time.process_time()
                await walk(http, headers, more)
                first, began = time.process_time() - began, time.process_time()
                for _ in range(RUNS):
                    pages, size = await walk(http, headers, more)
                each = (time.process_time() - began) / RUNS
                print(f"{era}: {count:,} tools, {pages} pages, {size / 1e6:.1f} MB: {each * 1000:.0f} ms CPU a walk,")
                print(f"            {first * 1000:.0f} ms the first one")


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
