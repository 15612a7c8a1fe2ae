"""The registry of local functions and remote servers: life cycle, backends, listing."""

import asyncio
import copy
import dataclasses
import pickle
import sys
from contextlib import AsyncExitStack
from typing import Any

import anyio
import mcp
import pytest
from fastmcp import FastMCP

from toolcrib import App, AuditEvent, Context, ExecutionFailed, Tool, ToolNotFound, ToolResult, new_tool
from toolcrib.errors import (
    AlreadyStarted,
    BackendNotFound,
    InvalidRequest,
    InvalidTool,
    NameCollision,
    NotStarted,
    ServerUnavailable,
    StaleCursor,
)
from toolcrib.fields import String
from toolcrib.gateway.options import GatewayOptions
from toolcrib.registry import BackendConfig, Config, Registry, ToolRegistry
from toolcrib.search.options import SearchOptions
from toolcrib.settings.options import Settings
from toolcrib.state.memory import MemoryStore
from toolcrib.testing import FakeProvider, text_of
from toolcrib.types import Call, CallNext, SearchReply, ServerInfo

pytestmark = pytest.mark.anyio

SEND = new_tool("send_email", "Send an email to a recipient", String("to", "Recipient email", required=True))


async def send_email(to: str) -> str:
    return f"Email sent to {to}"


def weather(name: str = "weather") -> FastMCP:
    server: FastMCP = FastMCP(name)

    @server.tool
    def forecast(city: str) -> str:
        """Forecast the weather of a city."""
        return f"{name}: sunny in {city}"

    return server


def test_a_registry_of_wrong_parts_says_which_one() -> None:
    wrong: Any = Settings()
    with pytest.raises(
        InvalidRequest, match=r"of type Config or None, not Settings\. Such as Config\(settings=Settings"
    ):
        Registry(wrong)
    with pytest.raises(InvalidRequest, match="settings must be of type Settings, not str"):
        Config(settings="toolcrib.json")  # type: ignore[arg-type]  # the wrong type is what is tested
    backend: Any = {"name": "time"}
    with pytest.raises(InvalidRequest, match="backend must be of type BackendConfig, not dict"):
        Registry().register_mcp(backend)


async def test_a_registry_passes_audit_middleware_and_state_on_to_its_app() -> None:
    events: list[AuditEvent] = []
    state = MemoryStore()

    async def shout(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        return await call_next(ctx, dataclasses.replace(call, arguments={"to": call.arguments["to"].upper()}))

    async with Registry(Config(audit=events.append, middleware=(shout,), state=state)) as registry:
        registry.register(SEND, send_email)
        assert await registry.execute("send_email", {"to": "ann"}) == "Email sent to ANN"
        assert registry.app.gateway.state is state
    assert [(event.tool, event.outcome) for event in events] == [("send_email", "ok")]


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


async def test_two_servers_of_one_namespace_are_replicas() -> None:
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


async def test_an_unreachable_server_is_left_out_and_named() -> None:
    registry = Registry()
    registry.register_mcp(BackendConfig(name="gone", url="http://127.0.0.1:1/mcp", max_retries=0))
    with anyio.fail_after(20):
        async with registry:
            with pytest.raises(ServerUnavailable, match="gone"):
                await registry.health_check()
            with pytest.raises(ServerUnavailable, match="gone"):
                await registry.execute("gone:thing")


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (BackendConfig(name=" ", url="http://x/mcp"), "needs a name"),
        (BackendConfig(name="x", url="ftp://x"), "ftp:// is not a backend scheme"),
        (BackendConfig(name="x", url="example.com"), "no scheme"),
        (BackendConfig(name="x", url="http://"), "not a backend scheme"),
        (BackendConfig(name="x"), "no scheme"),
    ],
)
def test_an_invalid_backend_is_refused(backend: BackendConfig, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        Registry().register_mcp(backend)


def test_two_backends_of_one_name_are_refused() -> None:
    registry = Registry()
    registry.register_mcp(BackendConfig(name="x", url="http://x/mcp"))
    with pytest.raises(InvalidRequest, match="There is already"):
        registry.register_mcp(BackendConfig(name="x", url="sse://x/sse"))


async def test_an_error_result_is_an_error_of_execute() -> None:
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
        "from toolcrib.registry import BackendConfig, Registry\n"
        "registry = Registry()\n"
        "registry.register_local_func('ping', 'Pings.', {'type': 'object'}, lambda args: 'pong')\n"
        "registry.register_mcp(BackendConfig(name='parent', url='stdio://'))\n"
        "anyio.run(registry.serve_stdio)\n"
    )
    parameters = mcp.StdioServerParameters(command=sys.executable, args=["-c", program])
    with anyio.fail_after(30):
        async with mcp.Client(parameters) as client:
            assert text_of(await client.call_tool("ping")) == "pong"


async def test_a_client_gets_the_registrys_server_info() -> None:
    registry = Registry(Config(server_info=ServerInfo(name="mine", version="1", instructions="Mind the gap.")))
    async with registry, mcp.Client(registry.app.server) as client:
        assert client.instructions == "Mind the gap."


async def test_all_pages_of_a_list_can_be_read() -> None:
    registry = Registry()
    for number in range(150):
        registry.register_local(Tool(name=f"tool_{number:03}"), lambda request: 1)
    first = await registry.search("", 100)
    second = await registry.search("", 100, cursor=first.cursor)
    assert [len(first.hits), len(second.hits), second.cursor] == [100, 50, None]
    assert len({hit.tool.id for hit in (*first.hits, *second.hits)}) == 150
    with pytest.raises(StaleCursor):
        await registry.search("tool", cursor=first.cursor)


async def test_one_text_as_tags_is_refused() -> None:
    tags: Any
    for tags in ("debug", None, 5):
        with pytest.raises(InvalidTool, match="tags must be a list of strings, not"):
            Registry().register_local_func("echo", "Say it.", {"type": "object"}, lambda request: 1, tags=tags)


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


async def test_with_strict_another_definition_of_a_function_is_refused() -> None:
    registry = Registry()
    for _ in range(2):
        registry.register_local_func("echo", "Say it.", {"type": "object"}, lambda request: 1, strict=True)
    with pytest.raises(NameCollision, match="echo is already registered with another definition"):
        registry.register_local_func("echo", "Sing it.", {"type": "object"}, lambda request: 1, strict=True)


async def test_queries_and_names_that_are_not_strings_are_refused() -> None:
    nothing: Any
    async with Registry() as registry:
        for nothing in (None, 5, ["echo", 5]):
            for ask in (registry.execute, registry.call, registry.get_tool, registry.get_backends):
                with pytest.raises(InvalidRequest, match="tool_id must be a string, not"):
                    await ask(nothing)
            with pytest.raises(InvalidRequest, match="query must be a string or a list of strings, not"):
                await registry.search(nothing)


async def test_a_selector_may_give_one_backend_instead_of_a_list() -> None:
    registry = Registry(Config(backend_selector=lambda backends: backends[-1]))
    registry.register_local_func("look", "", {"type": "object"}, lambda: "here")
    async with registry:
        assert await registry.execute("look") == "here"


@pytest.mark.parametrize("made", [Config(), Settings(), GatewayOptions(), SearchOptions(), BackendConfig(name="a")])
def test_configurations_can_be_copied_pickled_and_read_as_dicts(made: Any) -> None:
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - written here
    assert set(dataclasses.asdict(made)) == {field.name for field in dataclasses.fields(made)}


@pytest.mark.parametrize("make", [App, Registry, ToolRegistry])
async def test_every_door_registers_searches_and_calls_alike(
    make: type[App] | type[Registry] | type[ToolRegistry],
) -> None:
    tool = Tool(name="add", namespace="math", description="Add two numbers.", input_schema={"type": "object"})
    async with AsyncExitStack() as stack:
        door = make()
        if isinstance(door, Registry):
            await stack.enter_async_context(door)
        assert door.register(tool, lambda arguments: arguments["a"] + arguments["b"]).id == "math:add"
        reply = await door.search("sum of two numbers", 1)
        assert isinstance(reply, SearchReply)
        assert (len(reply), [hit.tool.id for hit in reply]) == (1, ["math:add"])
        result = await door.call("math:add", {"a": 1, "b": 2})
        assert result.structured == 3
        door.unregister("math:add")
        with pytest.raises(ToolNotFound):
            await door.call("math:add", {})


async def test_a_registry_reports_changes_before_it_is_started() -> None:
    registry, seen = Registry(), list[int]()
    end = registry.on_change(lambda: seen.append(1))
    registry.register(SEND, send_email)
    assert len(seen) == 1
    registry.add_provider(FakeProvider([]))
    assert len(seen) == 2
    end()
    registry.unregister("send_email")
    assert len(seen) == 2
