"""The registry of searched tools: attached to servers, and itself a provider."""

from typing import Any

import anyio
import mcp
import mcp_types
import pytest
from fastmcp import FastMCP
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from toolcrib import (
    Caller,
    Context,
    InvalidRequest,
    InvalidTool,
    NameCollision,
    String,
    Tool,
    ToolNotFound,
    ToolRegistry,
    new_tool,
    with_show_all,
    with_tool_providers,
)
from toolcrib.testing import FakeProvider, text_of

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
SEND = new_tool("send_email", "Send an email to a recipient", String("to", "Recipient email", required=True))


async def send_email(to: str) -> str:
    return f"Email sent to {to}"


def mail() -> ToolRegistry:
    registry = ToolRegistry()
    registry.register_tool(SEND, send_email, "email", "smtp")
    return registry


def low_level() -> Server[Any]:
    async def list_tools(ctx: Any, params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[mcp_types.Tool(name="own", input_schema={"type": "object"})])

    async def call_tool(ctx: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text=f"own {params.name}")])

    return Server("own", on_list_tools=list_tools, on_call_tool=call_tool)


def mcp_server() -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("own")

    @server.tool()
    def own() -> str:
        """The server's own."""
        return "own own"

    return server


def fast_mcp() -> FastMCP:
    server: FastMCP = FastMCP("own")

    @server.tool
    def own() -> str:
        """The server's own."""
        return "own own"

    return server


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("make", [low_level, mcp_server, fast_mcp])
async def test_an_attached_registry_adds_two_tools_to_a_server_and_leaves_its_own_alone(make: Any, mode: str) -> None:
    server, registry = make(), mail()
    registry.attach(server)
    registry.attach(server)
    with anyio.fail_after(20):
        async with mcp.Client(getattr(server, "_mcp_server", server), mode=mode) as client:
            names = sorted(tool.name for tool in (await client.list_tools()).tools)
            assert names == ["execute_tool", "own", "tool_search"]
            assert text_of(await client.call_tool("own", {})) == "own own"
            assert "send_email" in text_of(await client.call_tool("tool_search", {"query": "email"}))
            sent = await client.call_tool("execute_tool", {"name": "send_email", "arguments": {"to": "ann"}})
            assert text_of(sent) == "Email sent to ann"
            assert text_of(await client.call_tool("send_email", {"to": "bob"})) == "Email sent to bob"


async def test_a_second_registry_on_one_server_is_refused() -> None:
    server = low_level()
    mail().attach(server)
    with pytest.raises(NameCollision):
        mail().attach(server)
    with pytest.raises(InvalidRequest, match="no server that tools can be attached to"):
        mail().attach(object())


async def test_a_tool_registered_after_attaching_is_found() -> None:
    server, registry = low_level(), ToolRegistry()
    registry.attach(server)
    async with mcp.Client(server, mode="legacy") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["own"]
        registry.register_tool(SEND, send_email)
        assert len((await client.list_tools()).tools) == 3


async def test_show_all_lists_every_tool_of_an_attached_registry() -> None:
    server, registry = low_level(), mail()
    registry.attach(server)
    with with_show_all():
        async with mcp.Client(server) as client:
            assert sorted(tool.name for tool in (await client.list_tools()).tools) == ["own", "send_email"]


async def test_a_registry_in_its_own_request_never_asks_itself_for_ever() -> None:
    registry = mail()
    with anyio.fail_after(5), with_tool_providers(registry):
        assert [hit.tool.name for hit in await registry.search("email")] == ["send_email"]
        assert (await registry.execute("send_email", {"to": "ann"})).content[0]["text"] == "Email sent to ann"
        with pytest.raises(ToolNotFound):
            await registry.execute("nothing")


async def test_two_registries_that_provide_each_other_end() -> None:
    one, two = mail(), ToolRegistry()
    two.register_tool(new_tool("print_page", "Print a page"), lambda: "printed")
    one.add_provider(two)
    two.add_provider(one)
    with anyio.fail_after(5):
        for registry in (one, two):
            assert {hit.tool.name for hit in await registry.search()} == {"send_email", "print_page"}
            assert (await registry.execute("print_page")).content[0]["text"] == "printed"
            with pytest.raises(ToolNotFound):
                await registry.execute("nothing")


async def test_a_registry_is_a_provider_of_its_own_tools_only() -> None:
    registry, guest = mail(), FakeProvider([Tool(name="guest")])
    ctx = ME.with_providers(guest)
    assert [tool.name for tool in await registry.list_tools(ctx)] == ["send_email"]
    assert await registry.get_tool(ctx, "guest") is None
    assert await registry.call_tool(ctx, "guest", {}) is None
    sent = await registry.call_tool(ctx, "send_email", {"to": "ann"})
    assert sent is not None
    assert sent.content[0]["text"] == "Email sent to ann"


async def test_the_name_of_a_meta_tool_is_refused_without_a_namespace() -> None:
    registry = ToolRegistry()
    with pytest.raises(NameCollision, match="tool_search is the name of a meta-tool"):
        registry.register_tool(new_tool("tool_search", "Search"), lambda: "x")
    registry.register_tool(new_tool("tool_search", "Search").in_namespace("own"), lambda: "found")
    assert (await registry.execute("own:tool_search")).content[0]["text"] == "found"


async def test_a_tool_registry_lists_all_however_many_there_are() -> None:
    registry = ToolRegistry()
    for number in range(250):
        registry.register_tool(Tool(name=f"tool_{number:03}"), lambda request: 1)
    assert len(await registry.search("")) == 250
    assert len(await registry.search("", 130)) == 130
    assert [hit.tool.id for hit in await registry.search("", 2)] == ["tool_000", "tool_001"]


async def test_one_text_as_keywords_is_refused() -> None:
    keywords: Any = "abc"
    with pytest.raises(InvalidTool, match="keywords must be words"):
        ToolRegistry().register_tool(Tool(name="echo", keywords=keywords), lambda request: 1, "more")
