"""Servers given as objects: in-process servers and custom transports."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import anyio
import pytest
from fastmcp import FastMCP
from mcp import StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.shared.memory import create_client_server_memory_streams
from tests.upstream.in_process import sdk_server
from tests.upstream.support import CTX, FAST, MARK, READY, SERVERS, call, call_json, fleet_of, names, server_of, until

from toolcrib.errors import ServerUnavailable
from toolcrib.types import ServerState
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import ServerOptions

ONCE = replace(FAST, backoff_first_s=1000, backoff_max_s=2000)


def fastmcp_server() -> FastMCP[Any]:
    """One with a tool."""
    server: FastMCP[Any] = FastMCP("weather")

    @server.tool
    def forecast(city: str) -> str:
        """Tell tomorrow's weather."""
        return f"rain in {city}"

    return server


def mcp_server() -> MCPServer:
    """One of the SDK's own frame."""
    server = MCPServer("weather")

    @server.tool()
    def forecast(city: str) -> str:
        """Tell tomorrow's weather."""
        return f"rain in {city}"

    return server


@pytest.mark.parametrize("make", [fastmcp_server, mcp_server])
@pytest.mark.parametrize("as_function", [False, True])
async def test_a_server_object_of_a_framework_takes_one_line(make: Any, as_function: bool) -> None:
    async with server_of(ServerOptions(name="weather", target=make if as_function else make())) as server:
        assert names(server) == ["forecast"]
        result = await call(server, "forecast", city="Ulm")
        assert result.content[0]["text"] == "rain in Ulm"
        assert server.status.state is READY
        assert server.status.transport == ("custom" if as_function else "memory")


async def test_a_server_object_that_serves_http_too_keeps_its_sessions() -> None:
    served = mcp_server()
    served.streamable_http_app()
    manager = served.session_manager
    async with server_of(ServerOptions(name="weather", target=served)) as server:
        assert names(server) == ["forecast"]
    assert served.session_manager is manager


async def test_a_server_of_the_sdk_is_reached_in_process_with_raw_results() -> None:
    async with server_of(ServerOptions(name="inside", target=sdk_server())) as server:
        assert await call_json(server, "echo", n=1) == {"tool": "echo", "arguments": {"n": 1}, "meta": {}}
        assert (server.status.info.name, server.status.transport) == ("inside", "memory")


async def test_a_bad_tool_of_a_server_object_is_set_aside_alone() -> None:
    async with server_of(ServerOptions(name="inside", target=sdk_server("echo", "echo", "more"))) as server:
        assert names(server) == ["echo", "more"]
        assert [bad.tool for bad in server.status.rejected] == ["echo"]


async def test_the_lifespan_of_a_server_object_is_run_with_its_connection() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[dict[str, Any]]:
        events.append("up")
        yield {}
        await anyio.lowlevel.checkpoint()
        events.append("down")

    async with server_of(ServerOptions(name="inside", target=sdk_server(lifespan=lifespan))):
        assert events == ["up"]
    assert events == ["up", "down"]


async def test_a_server_object_that_cannot_start_fails_with_the_reason() -> None:
    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[dict[str, Any]]:
        if server is not None:
            raise LookupError("there is no database")
        yield {}

    async with server_of(ServerOptions(name="inside", target=sdk_server(lifespan=lifespan)), ONCE) as server:
        assert server.status.state is ServerState.FAILED
        assert server.status.reason == "its task ended with LookupError: there is no database"


class Mortal(Server[Any]):
    """A server whose task can be made to die."""

    def __init__(self, inner: Server[Any]) -> None:
        super().__init__("mortal", on_list_tools=None)
        self.inner = inner
        self.runs = 0
        self.die = anyio.Event()

    async def run(self, *args: Any, **more: Any) -> None:
        self.runs += 1
        self.die = anyio.Event()
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                await self.inner.run(*args)
                group.cancel_scope.cancel()

            group.start_soon(serve)
            await self.die.wait()
            raise LookupError("the disk is full")


async def test_a_server_object_whose_task_dies_is_degraded_with_the_reason_and_comes_back() -> None:
    mortal = Mortal(sdk_server())
    async with server_of(ServerOptions(name="inside", target=mortal)) as server:
        seen: list[tuple[str, str]] = []
        server.subscribe(lambda: seen.append((server.status.state.value, server.status.reason)))
        mortal.die.set()
        await until(server, lambda: server.status.state is READY and bool(seen))
        assert seen[0] == ("degraded", "its task ended with LookupError: the disk is full")
        assert mortal.runs == 2
        assert (await call_json(server, "echo"))["tool"] == "echo"


async def test_a_function_makes_a_new_server_for_each_connection() -> None:
    made: list[Mortal] = []

    def make() -> Mortal:
        made.append(Mortal(sdk_server(f"echo{len(made)}")))
        return made[-1]

    async with server_of(ServerOptions(name="inside", target=make)) as server:
        assert names(server) == ["echo0"]
        made[0].die.set()
        await until(server, lambda: names(server) == ["echo1"])
        assert len(made) == 2


async def test_context_variables_of_a_request_do_not_reach_a_server_object() -> None:
    token: ContextVar[str] = ContextVar("token", default="none")

    async def answer(name: str, arguments: Any, meta: Any) -> str:
        return token.get()

    async with server_of(ServerOptions(name="inside", target=sdk_server(answer=answer))) as server:
        token.set("secret")
        assert (await call(server, "echo")).content[0]["text"] == "none"


async def test_a_child_may_be_given_as_the_parameters_of_the_sdk() -> None:
    env = {MARK: str(os.getpid())}
    given = StdioServerParameters(command=sys.executable, args=[str(SERVERS / "sdk.py")], env=env)
    async with fleet_of(
        ServerOptions(name="plain", target=given), ServerOptions(name="made", target=lambda: given)
    ) as fleet:
        assert [(s.state, s.transport) for s in fleet.statuses()] == [(READY, "custom"), (READY, "stdio")]
        assert (await call(fleet.server("made"), "echo", a=1)).content[0]["text"] == "{'a': 1}"


async def test_secrets_in_the_parameters_of_a_child_stay_secret() -> None:
    program = "import os, sys; sys.exit('bad token ' + os.environ['TOKEN'])"
    env = {MARK: str(os.getpid()), "TOKEN": "tiger-tiger"}
    given = StdioServerParameters(command=sys.executable, args=["-I", "-S", "-c", program], env=env)
    for target in (given, lambda: given):
        async with server_of(ServerOptions(name="plain", target=target), ONCE) as server:
            assert server.status.reason == "exited with code 1: bad token ***"


@asynccontextmanager
async def transport() -> AsyncIterator[Any]:
    """An SDK transport to a server of this process."""
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as group:
        server = sdk_server()
        group.start_soon(server.run, *theirs, server.create_initialization_options())
        yield ours
        group.cancel_scope.cancel()


async def test_a_custom_transport_is_used_as_it_is() -> None:
    async with fleet_of(
        ServerOptions(name="made", target=transport), ServerOptions(name="given", target=transport())
    ) as fleet:
        assert [(s.state, s.transport) for s in fleet.statuses()] == [(READY, "custom")] * 2
        assert (await call_json(fleet.server("given"), "echo"))["tool"] == "echo"


async def test_a_single_use_transport_is_explained() -> None:
    given = transport()
    async with server_of(ServerOptions(name="given", target=given)):
        pass
    async with server_of(ServerOptions(name="given", target=given), ONCE) as server:
        assert server.status.state is ServerState.FAILED
        assert "pass a function that creates one" in server.status.reason


@pytest.mark.parametrize("target", [3, lambda: None, "http://localhost/mcp"])
async def test_a_target_that_is_not_a_server_fails_with_the_reason(target: object) -> None:
    async with server_of(ServerOptions(name="odd", target=target), ONCE) as server:
        assert server.status.reason == "its target is not a server, a transport, or a function that returns one"
        with pytest.raises(ServerUnavailable):
            await server.call_tool(CTX, "echo", {})


async def test_two_servers_may_back_the_same_tools_under_one_namespace() -> None:
    first = ServerOptions(name="north", namespace="weather", target=sdk_server(name="n"))
    second = ServerOptions(name="south", namespace="weather", target=sdk_server(name="s"))
    async with fleet_of(first, second, ServerOptions(name="other", target=sdk_server())) as fleet:
        assert [(s.name, s.namespace) for s in fleet.statuses()] == [
            ("north", "weather"),
            ("other", ""),
            ("south", "weather"),
        ]
        ids = [tool.id for server in fleet.providers() for tool in server.tools]
        assert ids == ["weather:echo", "other:echo", "weather:echo"]
        assert (await call_json(fleet.server("south"), "echo"))["tool"] == "echo"


async def test_a_server_object_is_left_alone_while_its_options_stay_the_same() -> None:
    target = sdk_server()
    options = ServerOptions(name="inside", target=target)
    async with fleet_of(options) as fleet:
        before = fleet.server("inside")
        await fleet.apply([ServerOptions(name="inside", target=target)])
        assert fleet.server("inside") is before
        await fleet.apply([ServerOptions(name="inside", target=sdk_server("other"))])
        await fleet.settled()
        assert names(fleet.server("inside")) == ["other"]


async def test_a_server_object_that_does_not_stop_is_cancelled() -> None:
    class Stubborn(Mortal):
        async def run(self, *args: Any, **more: Any) -> None:
            try:
                await super().run(*args, **more)
            finally:
                await anyio.sleep_forever()

    with anyio.fail_after(5):
        async with Fleet(replace(FAST, stop_timeout_s=0.05)) as fleet:
            await fleet.apply([ServerOptions(name="inside", target=Stubborn(sdk_server()))])
            await fleet.settled()
            assert fleet.server("inside").status.state is READY
