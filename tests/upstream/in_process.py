"""In-process servers for the tests: as objects, or behind streams."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent

from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.providers.base import ProviderSource
from toolcrib.server.engine import Engine
from toolcrib.server.sdk import SdkServer
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import Tool

Answer = Callable[[str, Mapping[str, Any], Mapping[str, Any]], Awaitable[Any]]
"""Returns a server's answer to a tool's name, its arguments and the request's `_meta`: a text, or a JSON value."""


async def say_again(name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Return the request, as JSON."""
    return {
        "tool": name,
        "arguments": dict(arguments),
        "meta": {k: v for k, v in meta.items() if "/" not in k or "toolcrib" in k},
    }


def sdk_server(*names: str, answer: Answer = say_again, name: str = "inside", **more: Any) -> Server[Any]:
    """A server on the official SDK with tools of these names, `echo` if there are none."""

    async def list_tools(ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        schema = {"type": "object", "properties": {"query": {"type": "string"}, "max_results": {"type": "integer"}}}
        tools = [mcp_types.Tool(name=tool, description=tool, input_schema=schema) for tool in names or ("echo",)]
        return ListToolsResult(tools=tools)

    async def call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        value = await answer(params.name, params.arguments or {}, dict(ctx.meta or {}))
        if isinstance(value, CallToolResult):
            return value
        text = value if isinstance(value, str) else json.dumps(value)
        return CallToolResult(content=[TextContent(type="text", text=text)])

    return Server(name, version="1.0", on_list_tools=list_tools, on_call_tool=call_tool, **more)


@asynccontextmanager
async def gateway_of(*sources: ProviderSource) -> AsyncIterator[Gateway]:
    """A gateway over the sources, with everything they offer in its snapshot."""
    gateway = Gateway(sources, options=GatewayOptions(search_wait_s=0, list_wait_s=0))
    async with anyio.create_task_group() as group:
        await group.start(gateway.refresher.run)
        await gateway.refresher.wait_current()
        yield gateway
        group.cancel_scope.cancel()


@asynccontextmanager
async def toolcrib_of(*tools: Tool, source: ProviderSource | None = None) -> AsyncIterator[Server[Any]]:
    """A toolcrib over these tools, which echo their requests, or over another source."""
    async with gateway_of(FakeSource(FakeProvider(tools)) if source is None else source) as gateway:
        yield server_over(gateway)


def server_over(gateway: Gateway) -> Server[Any]:
    """Its server."""
    return SdkServer(Engine(make_facade(gateway, SurfaceOptions())))
