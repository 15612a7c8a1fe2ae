"""The registry of searched tools: attached to servers, and used as a provider."""

from collections.abc import Callable
from typing import Any

import anyio
import mcp
import mcp_types
import pytest
from fastmcp import FastMCP
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from toolcrib import (
    App,
    Caller,
    Context,
    ExecutionFailed,
    Tool,
    ToolNotFound,
    new_tool,
    with_show_all,
    with_tool_providers,
)
from toolcrib.errors import InvalidRequest, InvalidTool, NameCollision
from toolcrib.fields import String
from toolcrib.providers.adapters import adapt
from toolcrib.registry import Registry, ToolRegistry
from toolcrib.settings.options import LocalOptions, Settings
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
    with pytest.raises(InvalidRequest, match="not a server that tools can be attached to"):
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


async def test_a_registry_in_its_own_request_does_not_recurse() -> None:
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


async def test_a_tool_registry_lists_all_tools() -> None:
    registry = ToolRegistry()
    for number in range(250):
        registry.register_tool(Tool(name=f"tool_{number:03}"), lambda request: 1)
    assert len(await registry.search("")) == 250
    assert len(await registry.search("", 130)) == 130
    assert [hit.tool.id for hit in await registry.search("", 2)] == ["tool_000", "tool_001"]


async def test_one_text_as_keywords_is_refused() -> None:
    keywords: Any = "abc"
    with pytest.raises(InvalidTool, match="keywords must be a list, not str"):
        ToolRegistry().register_tool(Tool(name="echo", keywords=keywords), lambda request: 1, "more")


async def test_with_strict_another_definition_of_a_tool_is_refused() -> None:
    registry = mail()
    registry.register_tool(SEND, send_email, "email", "smtp", strict=True)
    with pytest.raises(NameCollision, match="send_email is already registered with another definition"):
        registry.register_tool(new_tool("send_email", "Another one"), lambda: "x", strict=True)
    assert len(await registry.search()) == 1


async def test_registries_in_a_circle_do_not_recurse(caplog: pytest.LogCaptureFixture) -> None:
    one, other = ToolRegistry(), ToolRegistry()
    one.add_provider(other)
    other.add_provider(one)
    one.add_provider(one)
    with anyio.fail_after(5):
        for name in ("lamp", "door"):
            one.register_tool(new_tool(name, "A thing"), lambda: "done")
            assert [tool.name for tool in await other.list_tools(ME)].count(name) == 1
            assert (await other.execute(name)).content[0]["text"] == "done"
        other.register_tool(new_tool("wall", "A thing"), lambda: "stands")
        assert (await one.execute("wall")).content[0]["text"] == "stands"
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["tool_search", "execute_tool"])
async def test_a_server_with_a_tool_of_a_meta_tools_name_is_refused(name: str) -> None:
    server: MCPServer[Any] = MCPServer("own")
    server.tool(name=name)(lambda: "its own")
    with pytest.raises(NameCollision, match=f"The server has a tool called {name}") as caught:
        mail().attach(server)
    assert "include" in caught.value.hint
    async with mcp.Client(server) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [name]


async def test_a_meta_tool_that_a_server_hides_only_later_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    late, other = mcp_server(), FastMCP("other")
    other.tool(name="tool_search")(lambda: "its own")
    for server in (late, other):
        mail().attach(server)
    late.tool(name="tool_search")(lambda: "its own")
    for server in (late, other):
        caplog.clear()
        low: Any = server if isinstance(server, MCPServer) else server._mcp_server
        async with mcp.Client(low) as client:
            for _ in range(2):
                assert [tool.name for tool in (await client.list_tools()).tools].count("tool_search") == 1
        messages = [record.getMessage() for record in caplog.records if record.name == "toolcrib.server.attach"]
        assert len(messages) == 1
        assert messages[0].startswith("the server has a tool called tool_search of its own")


@pytest.mark.parametrize("way", ["shared", "request"])
async def test_errors_of_a_provider_are_reported_unless_masked(way: str) -> None:
    class Locked:
        async def list_tools(self, ctx: Context) -> list[Tool]:
            return [Tool(name="admin_panel")]

        async def call_tool(self, ctx: Context, name: str, arguments: Any) -> Any:
            raise PermissionError("access denied")

    for masked, reason in (
        (False, r"^admin_panel failed: PermissionError: access denied$"),
        (True, r"^admin_panel failed inside its provider\. Its log has the cause\.$"),
    ):
        registry = ToolRegistry(Settings(local=LocalOptions(mask_errors=masked)))
        ctx = ME
        if way == "shared":
            registry.add_provider(Locked())
        else:
            ctx = ME.with_providers(adapt(Locked()))
        with pytest.raises(ExecutionFailed, match=reason):
            await registry.execute("admin_panel", ctx=ctx)


@pytest.mark.parametrize("make", [ToolRegistry, Registry, App])
async def test_an_empty_cursor_is_none(make: Callable[[], ToolRegistry | Registry | App]) -> None:
    registry = make()
    registry.register(SEND, send_email)
    with anyio.fail_after(5):
        assert [hit.tool.name for hit in await registry.search("", cursor="")] == ["send_email"]
        assert [hit.tool.name for hit in await registry.search("email", cursor="")] == ["send_email"]


async def test_all_tools_are_listed_while_others_are_registered() -> None:
    registry = ToolRegistry()
    for number in range(250):
        registry.register(Tool(name=f"tool_{number}"), send_nothing)
    tools = iter(range(10_000))

    class Restless(FakeProvider):
        """Asked for each page, it registers one more tool."""

        async def find_tools(self, ctx: Context, request: object) -> list[Any]:
            return []

        async def list_tools(self, ctx: Context) -> list[Tool]:
            registry.register(Tool(name=f"more_{next(tools)}"), send_nothing)
            return []

    ctx = ME.with_providers(Restless([]))
    with anyio.fail_after(20):
        reply = await registry.search("", ctx=ctx)
        assert len(reply.hits) >= 250
        assert len((await registry.search("", 120, ctx=ctx)).hits) == 120


def send_nothing() -> None:
    """Do nothing."""
