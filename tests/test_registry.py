"""The two registries: life cycle, remote backends, attaching, and themselves as providers."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp
import mcp_types
import pytest
from fastmcp import FastMCP
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer

from toolcrib import (
    AlreadyStarted,
    BackendConfig,
    BackendNotFound,
    Caller,
    Config,
    Context,
    ExecutionFailed,
    InvalidRequest,
    InvalidTool,
    NameCollision,
    NotStarted,
    Registry,
    ServerInfo,
    ServerUnavailable,
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
NOTES = Path(__file__).parent / "e2e" / "servers" / "notes.py"


async def send_email(to: str) -> str:
    return f"Email sent to {to}"


def weather(name: str = "weather") -> FastMCP:
    server: FastMCP = FastMCP(name)

    @server.tool
    def forecast(city: str) -> str:
        """Forecast the weather of a city."""
        return f"{name}: sunny in {city}"

    return server


def mail() -> ToolRegistry:
    registry = ToolRegistry()
    registry.register_tool(SEND, send_email, "email", "smtp")
    return registry


# -- the registry of local functions and remote servers ------------------------------------------------------------


async def test_local_functions_and_remote_servers_are_executed_by_their_ids() -> None:
    registry = Registry(Config(server_info=ServerInfo(name="mine", version="1.0.0")))
    registry.register_local_func(
        "echo",
        "Echoes back input",
        {"type": "object", "properties": {"message": {"type": "string"}}},
        lambda args: args,
    )
    registry.register_mcp(BackendConfig(name="weather", transport=weather()))
    with pytest.raises(NotStarted):
        await registry.execute("echo", {"message": "hi"})
    with anyio.fail_after(20):
        async with registry:
            assert await registry.execute("echo", {"message": "hi"}) == {"message": "hi"}
            assert await registry.execute("weather:forecast", {"city": "Rome"}) == {"result": "weather: sunny in Rome"}
            assert await registry.list_namespaces() == ("", "weather")
            await registry.health_check()
    with pytest.raises(NotStarted):
        await registry.execute("echo", {"message": "hi"})


async def test_a_registry_can_be_started_again_and_not_twice() -> None:
    registry = Registry()
    registry.register_mcp(BackendConfig(name="weather", transport=weather))
    with anyio.fail_after(20):
        for _ in range(2):
            await registry.start()
            with pytest.raises(AlreadyStarted):
                await registry.start()
            assert (await registry.get_tool("weather:forecast")).name == "forecast"
            await registry.stop()
        await registry.stop()


async def test_another_task_may_stop_what_one_task_started() -> None:
    registry = Registry()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            await registry.start()
            group.start_soon(registry.stop)
    with pytest.raises(NotStarted):
        await registry.health_check()


async def test_servers_come_and_go_while_it_runs() -> None:
    registry = Registry()
    with anyio.fail_after(20):
        async with registry:
            registry.register_mcp(BackendConfig(name="weather", transport=weather))
            assert await registry.execute("weather:forecast", {"city": "Rome"}) == {"result": "weather: sunny in Rome"}
            registry.unregister_mcp("weather")
            await registry.refresh()
            with pytest.raises(ToolNotFound):
                await registry.execute("weather:forecast", {"city": "Rome"})
            with pytest.raises(BackendNotFound):
                registry.unregister_mcp("weather")


async def test_two_servers_of_one_namespace_stand_in_for_each_other() -> None:
    registry = Registry()
    for name in ("one", "two"):
        registry.register_mcp(BackendConfig(name=name, transport=lambda name=name: weather(name), namespace="weather"))
    with anyio.fail_after(20):
        async with registry:
            backends = await registry.get_backends("weather:forecast")
            assert [backend.name for backend in backends] == ["one", "two"]
            registry.unregister_mcp("one")
            await registry.refresh()
            assert await registry.execute("weather:forecast", {"city": "Rome"}) == {"result": "two: sunny in Rome"}


async def test_a_server_that_cannot_be_had_is_left_behind_and_named() -> None:
    registry = Registry()
    registry.register_mcp(BackendConfig(name="gone", url="http://127.0.0.1:1/mcp", max_retries=0))
    with anyio.fail_after(20):
        async with registry:
            with pytest.raises(ServerUnavailable, match="gone"):
                await registry.health_check()
            with pytest.raises(ServerUnavailable, match="gone"):
                await registry.execute("gone:thing")


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (BackendConfig(name=" ", url="http://x/mcp"), "needs a name"),
        (BackendConfig(name="x", url="ftp://x"), "ftp:// is no scheme"),
        (BackendConfig(name="x", url="example.com"), "no scheme"),
        (BackendConfig(name="x", url="http://"), "no scheme of a backend"),
        (BackendConfig(name="x"), "no scheme"),
    ],
)
def test_a_backend_that_cannot_be_is_refused(backend: BackendConfig, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Registry().register_mcp(backend)


def test_two_backends_of_one_name_are_refused() -> None:
    registry = Registry()
    registry.register_mcp(BackendConfig(name="x", url="http://x/mcp"))
    with pytest.raises(InvalidRequest, match="there already"):
        registry.register_mcp(BackendConfig(name="x", url="sse://x/sse"))


async def test_a_tool_that_says_it_failed_is_an_error_of_execute() -> None:
    server: FastMCP = FastMCP("bad")

    @server.tool
    def fail() -> str:
        """Fail."""
        raise ValueError("no luck today")

    registry = Registry()
    registry.register_mcp(BackendConfig(name="bad", transport=server))
    with anyio.fail_after(20):
        async with registry:
            with pytest.raises(ExecutionFailed, match="no luck today"):
                await registry.execute("bad:fail")


async def test_a_client_of_the_registry_is_listed_every_tool() -> None:
    registry = Registry(Config(server_info=ServerInfo(name="mine", version="7")))
    registry.register_local(SEND.in_namespace("mail"), send_email)
    async with registry, mcp.Client(registry.app.server) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["mail__send_email"]
        assert text_of(await client.call_tool("mail__send_email", {"to": "ann"})) == "Email sent to ann"
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("mine", "7")


def test_another_threads_event_loop_is_served_by_the_registrys_own() -> None:
    async def main() -> None:
        registry = Registry()
        registry.register_mcp(BackendConfig(name="weather", transport=weather))
        async with registry:

            async def elsewhere() -> Any:
                return await registry.execute("weather:forecast", {"city": "Rome"})

            with anyio.fail_after(20):
                found = await anyio.to_thread.run_sync(lambda: anyio.run(elsewhere))
            assert found == {"result": "weather: sunny in Rome"}

    anyio.run(main)


async def test_a_backend_over_this_process_own_pipes_is_refused_while_it_serves_over_them() -> None:
    program = (
        "import anyio\n"
        "from toolcrib import BackendConfig, Registry\n"
        "registry = Registry()\n"
        "registry.register_local_func('ping', 'Pings.', {'type': 'object'}, lambda args: 'pong')\n"
        "registry.register_mcp(BackendConfig(name='parent', url='stdio://'))\n"
        "anyio.run(registry.serve_stdio)\n"
    )
    parameters = mcp.StdioServerParameters(command=sys.executable, args=["-c", program])
    with anyio.fail_after(30):
        async with mcp.Client(parameters) as client:
            assert text_of(await client.call_tool("ping")) == "pong"


# -- the registry of searched tools --------------------------------------------------------------------------------


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


# -- what both refuse and tell -------------------------------------------------------------------------------------


async def test_the_name_of_a_meta_tool_is_refused_without_a_namespace() -> None:
    registry = ToolRegistry()
    with pytest.raises(NameCollision, match="tool_search is the name of a meta-tool"):
        registry.register_tool(new_tool("tool_search", "Search"), lambda: "x")
    registry.register_tool(new_tool("tool_search", "Search").in_namespace("own"), lambda: "found")
    assert (await registry.execute("own:tool_search")).content[0]["text"] == "found"


async def test_a_client_is_told_what_the_registry_says_of_itself() -> None:
    registry = Registry(Config(server_info=ServerInfo(name="mine", version="1", instructions="Mind the gap.")))
    async with registry, mcp.Client(registry.app.server) as client:
        assert client.instructions == "Mind the gap."


# -- lists longer than a page ----------------------------------------------------------------------------------------


async def test_all_pages_of_a_list_can_be_had() -> None:
    registry = Registry()
    for number in range(150):
        registry.register_local(Tool(name=f"tool_{number:03}"), lambda request: 1)
    first = await registry.search("", 100)
    second = await registry.search("", 100, cursor=first.cursor)
    assert [len(first.hits), len(second.hits), second.cursor] == [100, 50, None]
    assert len({hit.tool.id for hit in (*first.hits, *second.hits)}) == 150
    with pytest.raises(InvalidRequest, match="A cursor continues a list"):
        await registry.search("tool", cursor=first.cursor)


async def test_a_tool_registry_lists_all_however_many_there_are() -> None:
    registry = ToolRegistry()
    for number in range(250):
        registry.register_tool(Tool(name=f"tool_{number:03}"), lambda request: 1)
    assert len(await registry.search("")) == 250
    assert len(await registry.search("", 130)) == 130
    assert [hit.tool.id for hit in await registry.search("", 2)] == ["tool_000", "tool_001"]


async def test_one_text_as_tags_or_keywords_is_refused() -> None:
    tags: Any
    for tags in ("debug", None, 5):
        with pytest.raises(InvalidTool, match="echo: tags must be words"):
            Registry().register_local_func("echo", "Say it.", {"type": "object"}, lambda request: 1, tags=tags)
    keywords: Any = "abc"
    with pytest.raises(InvalidTool, match="keywords must be words"):
        ToolRegistry().register_tool(Tool(name="echo", keywords=keywords), lambda request: 1, "more")


async def test_a_start_that_is_cancelled_leaves_nothing_running() -> None:
    asked = anyio.Event()

    class Slow(FakeProvider):
        async def list_tools(self, ctx: Context) -> tuple[Tool, ...]:
            asked.set()
            await anyio.sleep_forever()
            return ()

    registry = Registry()
    registry.add_provider(Slow([]))
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(registry.start)
            await asked.wait()
            group.cancel_scope.cancel()
        assert not registry.app.running
        await registry.stop()


def test_a_registry_outlives_the_event_loop_in_which_it_was_started() -> None:
    registry = Registry()
    registry.tool(lambda: "here", name="look")
    for _ in range(2):
        asyncio.run(registry.start())  # which ends everything that still runs in it
        asyncio.run(registry.stop())

        async def used() -> Any:
            async with registry:
                return await registry.execute("look")

        assert asyncio.run(used()) == "here"


async def test_the_app_that_is_served_is_the_same_one_each_time() -> None:
    registry = Registry()
    assert registry.serve_http() is registry.serve_http()
    assert registry.serve_sse() is registry.serve_sse()
    assert registry.serve_http() is not registry.serve_sse()
