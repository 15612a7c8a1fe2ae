"""Clients built on mcp 2.x: the SDK in one of its modes, and FastMCP. Called like `frameworks.py`."""

import asyncio
import json
import sys
from typing import Any

Step = tuple[str, dict[str, Any]]


async def sdk(mode: str, server: dict[str, Any], steps: list[Step]) -> list[str]:
    from mcp import Client, StdioServerParameters

    where: Any = server.get("url")
    if where is None:
        command, *arguments = server["command"]
        where = StdioServerParameters(command=command, args=arguments, env=server["env"])
    async with Client(where, mode=mode) as client:
        return await _call_all(client, await client.list_tools(), steps)


async def fastmcp(_: str, server: dict[str, Any], steps: list[Step]) -> list[str]:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    where: Any = server.get("url")
    if where is None:
        command, *arguments = server["command"]
        where = StdioTransport(command, arguments, env=server["env"])
    async with Client(where) as client:
        return await _call_all(client, await client.list_tools(), steps)


async def _call_all(client: Any, listed: Any, steps: list[Step]) -> list[str]:
    names = {tool.name for tool in getattr(listed, "tools", listed)}
    assert names >= {name for name, _ in steps}, names
    return [await _text(client, name, arguments) for name, arguments in steps]


async def _text(client: Any, name: str, arguments: dict[str, Any]) -> str:
    try:
        result = await client.call_tool(name, arguments)
    except Exception as error:  # noqa: BLE001 - what the client shows of an error
        return f"{type(error).__name__}: {error}"
    return str(result.content[0].text)


if __name__ == "__main__":
    name, _, mode = sys.argv[1].partition(":")
    run = {"sdk": sdk, "fastmcp": fastmcp}[name]
    texts = asyncio.run(run(mode, json.loads(sys.argv[2]), [tuple(step) for step in json.loads(sys.argv[3])]))
    print(json.dumps(texts))
