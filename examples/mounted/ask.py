"""A web client and an MCP client of the same app, without sockets."""

import anyio
import httpx2
from main import lifespan, web
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    """Ask both."""
    transport = httpx2.ASGITransport(app=web)
    async with lifespan(web), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        print((await http.get("/orders/a1")).json())
        async with Client(streamable_http_client("http://localhost/mcp/", http_client=http)) as client:
            print([tool.name for tool in (await client.list_tools()).tools])
            result = await client.call_tool(
                "execute_tool", {"name": "orders:order_status", "arguments": {"order": "a1"}}
            )
            print(result.content[0].text)
            found = await client.call_tool("tool_search", {"query": "how many are left in stock", "max_results": 1})
            print([tool["name"] for tool in found.structured_content["hits"]])


anyio.run(main)
