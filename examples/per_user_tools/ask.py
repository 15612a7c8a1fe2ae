"""The lists that clients with different tokens get, without sockets."""

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from server import http, mount


async def listed(token: str, **headers: str) -> list[str]:
    """The names in `tools/list`."""
    transport = httpx2.ASGITransport(app=http)
    web = httpx2.AsyncClient(transport=transport, headers={"authorization": f"Bearer {token}", **headers})
    async with web, Client(streamable_http_client("http://localhost/mcp", http_client=web)) as client:
        return [tool.name for tool in (await client.list_tools()).tools]


async def main() -> None:
    """Ann, Bob, and Ann's own gateway, which asks for everything."""
    async with mount.running():
        print("ann:", *await listed("anns-token"))
        print("bob:", *await listed("bobs-token"))
        print("all of ann:", *await listed("anns-token", **{"x-mcp-show-all": "true"}))


anyio.run(main)
