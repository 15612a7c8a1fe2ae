"""Shared by the tests of the reference documents: clients, in memory and over ASGI."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types
from mcp.client.streamable_http import streamable_http_client
from starlette.types import ASGIApp

from toolcrib import Caller, Context, Settings, ToolProvider
from toolcrib.options import GatewayOptions, SearchOptions
from toolcrib.registry import ToolRegistry

ME = Context(caller=Caller(id="me"))
TIERS = Settings(gateway=GatewayOptions(search=SearchOptions(scorer="tiers")))
META = ["tool_search", "execute_tool"]


@contextlib.asynccontextmanager
async def over_http(
    app: ASGIApp, headers: Mapping[str, str] | None = None, *, path: str = "/mcp", query: str = "", **client: Any
) -> AsyncIterator[mcp.Client]:
    """An MCP client of an ASGI app, without a socket, in the era whose answers need no stream."""
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://localhost:8000", headers=dict(headers or {})
    ) as http:
        reach = streamable_http_client(f"http://localhost:8000{path}{query}", http_client=http)
        async with mcp.Client(reach, mode="2026-07-28", **client) as connected:
            yield connected


async def names(client: mcp.Client) -> list[str]:
    """The names in `tools/list`, bypassing the client's cache."""
    return [tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools]


async def call(client: mcp.Client, name: str, arguments: Mapping[str, Any] | None = None) -> mcp_types.CallToolResult:
    """The result of a call."""
    result = await client.call_tool(name, dict(arguments or {}))
    assert isinstance(result, mcp_types.CallToolResult)
    return result


async def hits(client: mcp.Client, query: str, **more: Any) -> list[dict[str, Any]]:
    """The reply of `tool_search`: the JSON array in its first text block."""
    (first, *_) = (await call(client, "tool_search", {"query": query, **more})).content
    assert isinstance(first, mcp_types.TextContent)
    found: list[dict[str, Any]] = json.loads(first.text)
    return found


async def found(client: mcp.Client, query: str, **more: Any) -> list[str]:
    """The names in the reply of `tool_search`."""
    return [hit["name"] for hit in await hits(client, query, **more)]


async def execute(client: mcp.Client, name: str, /, **arguments: Any) -> mcp_types.CallToolResult:
    """The result of `execute_tool`."""
    return await call(client, "execute_tool", {"name": name, "arguments": arguments})


def text_in(result: mcp_types.CallToolResult) -> str:
    """The text blocks of a result, joined."""
    return "\n".join(block.text for block in result.content if isinstance(block, mcp_types.TextContent))


async def scores(registry: ToolRegistry, query: str) -> dict[str, float]:
    """Id to score, best first."""
    return {hit.tool.id: round(hit.score, 3) for hit in await registry.search(query)}


async def ids(provider: ToolProvider, ctx: Context = ME) -> list[str]:
    """The ids of the tools that a provider lists."""
    return [tool.id for tool in await provider.list_tools(ctx)]


async def until(true: Callable[[], bool]) -> None:
    """Wait a few seconds at most for a condition."""
    with anyio.fail_after(5):
        while not true():  # noqa: ASYNC110 - what other tasks of the library did has no event
            await anyio.sleep(0.01)
