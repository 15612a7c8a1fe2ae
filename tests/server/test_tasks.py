"""Tasks of 2025-11-25 between clients and servers: calls that run as one, and requests about them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND
from tests.fixtures.servers.tasks import CAPABILITY, Running, TaskServer
from tests.server.conftest import at_address
from tests.server.shop import FAST
from tests.upstream.support import serving

from toolcrib.app import App
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.gateway.tasks import TaskRecord, TaskRecords
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions
from toolcrib.settings.options import Settings
from toolcrib.state.memory import MemoryStore
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.types import Caller, Context, Decision
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

RELATED = "io.modelcontextprotocol/related-task"


class Peer:
    """A client of 2025-11-25 that speaks plain JSON, because the SDK's own takes no tasks."""

    def __init__(self, dispatcher: JSONRPCDispatcher[TransportContext]) -> None:
        self._dispatcher = dispatcher
        self.statuses: list[Mapping[str, Any]] = []
        self.notified = anyio.Event()
        self.capabilities: dict[str, Any] = {}

    async def on_request(self, ctx: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        raise AssertionError(f"{method} was not expected")

    async def on_notify(self, ctx: Any, method: str, params: Mapping[str, Any] | None) -> None:
        if method == "notifications/tasks/status":
            self.statuses.append(params or {})
            self.notified.set()

    async def open(self, version: str) -> None:
        about = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
        self.capabilities = (await self.send("initialize", **about))["capabilities"]
        await self._dispatcher.notify("notifications/initialized", None)

    async def send(self, method: str, /, **params: Any) -> dict[str, Any]:
        headers = {"headers": {"mcp-protocol-version": "2025-11-25"}} if method != "initialize" else {}
        return await self._dispatcher.send_raw_request(method, params, headers)  # type: ignore[arg-type] # a TypedDict

    async def start(self, tool: str, **task: Any) -> dict[str, Any]:
        created = await self.send("tools/call", name=tool, arguments={"n": 1}, task=task)
        assert created.keys() == {"task"}
        task_of: dict[str, Any] = created["task"]
        return task_of

    async def refused(self, method: str, **params: Any) -> tuple[int, str, Any]:
        with pytest.raises(MCPError) as caught:
            await self.send(method, **params)
        return caught.value.code, caught.value.message, caught.value.error.data


@asynccontextmanager
async def connected(there: Any, version: str = "2025-11-25") -> AsyncIterator[Peer]:
    """A client in memory or at an address."""
    transport = streamable_http_client(there) if isinstance(there, str) else _in_memory(there)
    async with transport as (read, write), anyio.create_task_group() as group:
        dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(read, write)
        peer = Peer(dispatcher)
        await group.start(dispatcher.run, peer.on_request, peer.on_notify)
        await peer.open(version)
        yield peer
        group.cancel_scope.cancel()


@asynccontextmanager
async def _in_memory(server: Any) -> AsyncIterator[Any]:
    to_server, from_client = anyio.create_memory_object_stream[Any](9)
    to_client, from_server = anyio.create_memory_object_stream[Any](9)
    async with to_server, from_client, to_client, from_server, anyio.create_task_group() as group:
        group.start_soon(server.run, from_client, to_client, server.create_initialization_options())
        yield from_server, to_server
        group.cancel_scope.cancel()


@asynccontextmanager
async def front_of(
    *servers: TaskServer,
    over: str = "memory",
    surfaces: tuple[str, ...] = ("direct",),
    prefix: bool = False,
    policy: Any = None,
    **more: Any,
) -> AsyncIterator[App]:
    """A gateway in front of servers called a and b, reached in memory or over HTTP."""
    surface = SurfaceOptions(surfaces=surfaces, prefix=prefix)
    with anyio.fail_after(20):
        async with addresses(servers, over) as targets:
            entries = [ServerOptions(name=name, **one, **more) for name, one in zip("ab", targets, strict=False)]
            async with App(Settings(servers=tuple(entries), surfaces=surface, fleet=FAST), policy=policy) as app:
                await app.settled()
                yield app


@asynccontextmanager
async def addresses(servers: tuple[TaskServer, ...], over: str) -> AsyncIterator[list[dict[str, Any]]]:
    if over == "memory":
        yield [{"target": one.server, "protocol": "2025-11-25"} for one in servers]
        return
    (only,) = servers
    async with serving(only.server.streamable_http_app()) as url:
        yield [{"url": f"{url}/mcp", "protocol": "2025-11-25"}]


@asynccontextmanager
async def client_of(app: App, over: str) -> AsyncIterator[Peer]:
    if over == "memory":
        async with connected(app.server) as peer:
            yield peer
        return
    async with at_address(http_app(app.engine, HttpOptions(), ready=lambda: (True, {}))) as url:
        async with connected(f"{url}/mcp") as peer:
            yield peer


def only(server: TaskServer) -> Running:
    (running,) = server.tasks.values()
    return running


@pytest.mark.parametrize("sessions", ["shared", "client"])
@pytest.mark.parametrize("over", ["memory", "http"])
async def test_a_client_runs_a_tool_as_a_task_follows_it_and_gets_its_result(over: str, sessions: Any) -> None:
    server = TaskServer()
    async with front_of(server, over=over, sessions=sessions) as app, client_of(app, over) as client:
        assert client.capabilities["tasks"] == CAPABILITY
        task = await client.start("job", ttl=60_000)
        assert server.calls == [{"name": "job", "arguments": {"n": 1}, "task": {"ttl": 60_000}}]
        assert task == {**only(server).wire, "taskId": task["taskId"]}
        assert task["taskId"] != "task-1"
        assert await client.send("tasks/get", taskId=task["taskId"]) == task
        assert (await client.send("tasks/list"))["tasks"] == [task]
        async with anyio.create_task_group() as group:

            async def wait_for_result() -> None:
                got = await client.send("tasks/result", taskId=task["taskId"])
                assert got["content"] == [{"type": "text", "text": "task-1 completed"}]
                assert got["_meta"] == {RELATED: {"taskId": task["taskId"]}, "k": 1}

            group.start_soon(wait_for_result)
            await anyio.wait_all_tasks_blocked()
            await only(server).end()
            await client.notified.wait()
        assert client.statuses == [{**task, "status": "completed"}]


async def test_a_task_is_cancelled_at_its_server() -> None:
    server = TaskServer()
    async with front_of(server) as app, connected(app.server) as client:
        task = await client.start("either")
        cancelled = await client.send("tasks/cancel", taskId=task["taskId"])
        assert (cancelled["status"], cancelled["taskId"]) == ("cancelled", task["taskId"])
        assert only(server).status == "cancelled"


@pytest.mark.parametrize("sessions", ["shared", "client"])
async def test_a_task_of_another_session_looks_as_if_there_were_none(sessions: Any) -> None:
    server = TaskServer()
    async with front_of(server, sessions=sessions) as app, connected(app.server) as ann, connected(app.server) as bob:
        task, other = await ann.start("job"), await bob.start("job")
        for method in ("tasks/get", "tasks/cancel", "tasks/result"):
            stolen = await bob.refused(method, taskId=task["taskId"])
            assert stolen == await bob.refused(method, taskId="no such task")
            assert stolen[0] == INVALID_PARAMS
            assert stolen == await bob.refused(method, taskId="task-1")
        assert (await bob.send("tasks/list"))["tasks"] == [await bob.send("tasks/get", taskId=other["taskId"])]
        assert all(running.status == "working" for running in server.tasks.values())


async def test_a_task_of_a_tool_that_the_caller_may_no_longer_call_looks_as_if_there_were_none() -> None:
    class Switch:
        hidden = False

        def scope(self, caller: Caller) -> object:
            return self.hidden

        def decide(self, caller: Caller, tool: Any, action: Any) -> Any:
            return Decision.HIDE if self.hidden and action == "call" else Decision.ALLOW

    policy = Switch()
    async with front_of(TaskServer(), policy=policy) as app, connected(app.server) as client:
        task = await client.start("job")
        policy.hidden = True
        assert await client.refused("tasks/get", taskId=task["taskId"]) == await client.refused("tasks/get", taskId="x")


async def test_two_servers_may_use_the_same_id() -> None:
    one, two = TaskServer(), TaskServer()
    async with front_of(one, two, prefix=True) as app, connected(app.server) as client:
        first, second = await client.start("a__job"), await client.start("b__job")
        await only(two).end()
        statuses = [(await client.send("tasks/get", taskId=task["taskId"]))["status"] for task in (first, second)]
        assert statuses == ["working", "completed"]


async def test_a_call_without_a_task_waits_for_the_result_and_says_nothing_of_the_task() -> None:
    server = TaskServer()
    async with front_of(server) as app, connected(app.server) as client, anyio.create_task_group() as group:

        async def call() -> None:
            got = await client.send("tools/call", name="job", arguments={})
            assert got["content"] == [{"type": "text", "text": "task-1 completed"}]
            assert got["_meta"] == {"k": 1}

        group.start_soon(call)
        while not server.tasks:
            await anyio.lowlevel.checkpoint()
        await only(server).end()
    assert server.calls == [{"name": "job", "arguments": {}, "task": {}}]


async def test_tools_say_that_they_may_run_as_a_task_to_clients_that_can_run_them_so() -> None:
    async with front_of(TaskServer()) as app:
        async with connected(app.server) as client:
            listed = {tool["name"]: tool.get("execution") for tool in (await client.send("tools/list"))["tools"]}
            optional = {"taskSupport": "optional"}
            assert listed == {"job": optional, "either": optional, "plain": None}
        async with mcp.Client(app.server, mode="2026-07-28") as newer:
            assert [tool.execution for tool in (await newer.list_tools()).tools] == [None] * 3


@pytest.mark.parametrize("surfaces", [("direct",), ("search",)])
async def test_tasks_are_declared_only_where_a_listed_tool_takes_them(surfaces: tuple[str, ...]) -> None:
    denied = ByScopes([Rule(tools=("a:job", "a:either"), effect="hide")])
    async with front_of(TaskServer(declares=False), surfaces=surfaces) as app, connected(app.server) as client:
        assert "tasks" not in client.capabilities
    async with front_of(TaskServer(), surfaces=surfaces, policy=denied) as app, connected(app.server) as client:
        assert "tasks" not in client.capabilities
    async with front_of(TaskServer(), surfaces=surfaces) as app:
        async with connected(app.server, "2025-06-18") as older, connected(app.server) as client:
            assert "tasks" not in older.capabilities
            assert ("tasks" in client.capabilities) is (surfaces == ("direct",))


async def test_a_tool_that_does_not_run_as_a_task_and_a_missing_one_refuse_in_the_same_way() -> None:
    async with front_of(TaskServer()) as app, connected(app.server) as client:
        refusals = [
            await client.refused("tools/call", name=name, arguments={}, task={}) for name in ("plain", "no_such_tool")
        ]
        assert [code for code, *_ in refusals] == [METHOD_NOT_FOUND] * 2
        assert refusals[0][1] == refusals[1][1]


async def test_a_meta_tool_runs_at_once_even_if_the_client_wants_a_task() -> None:
    server = TaskServer()
    async with front_of(server, surfaces=("search",)) as app, connected(app.server) as client:
        arguments = {"name": "a:plain", "arguments": {}}
        got = await client.send("tools/call", name="execute_tool", arguments=arguments, task={})
        assert got["content"] == [{"type": "text", "text": "ran plain"}]
        assert server.calls == [{"name": "plain", "arguments": {}}]


async def test_a_client_of_an_older_version_has_no_requests_about_tasks() -> None:
    async with front_of(TaskServer()) as app, connected(app.server, "2025-06-18") as older:
        assert (await older.refused("tasks/list"))[0] == METHOD_NOT_FOUND


async def test_a_tool_that_needs_a_task_is_left_out_if_its_server_takes_none_and_the_status_says_why() -> None:
    async with front_of(TaskServer(declares=False)) as app, connected(app.server) as client:
        assert [tool["name"] for tool in (await client.send("tools/list"))["tools"]] == ["either", "plain"]
        (rejected,) = app.statuses()[0].rejected
        reason = "it runs only as a task, but its server does not declare that it takes tasks"
        assert (rejected.tool, rejected.reason) == ("job", reason)


async def test_a_task_that_its_server_forgot_is_forgotten() -> None:
    server = TaskServer()
    async with front_of(server) as app, connected(app.server) as client:
        task = await client.start("job")
        server.tasks.clear()
        missing = await client.refused("tasks/get", taskId="x")
        assert await client.refused("tasks/get", taskId=task["taskId"]) == missing
        assert await client.send("tasks/list") == {"tasks": []}
        assert server.asked == ["tasks/get task-1"]


async def test_the_list_of_tasks_has_pages_with_the_newest_first() -> None:
    async with front_of(TaskServer()) as app, connected(app.server) as client:
        ids = [(await client.start("job"))["taskId"] for _ in range(25)]
        first = await client.send("tasks/list")
        rest = await client.send("tasks/list", cursor=first["nextCursor"])
        assert [task["taskId"] for task in (*first["tasks"], *rest["tasks"])] == list(reversed(ids))
        assert "nextCursor" not in rest
        assert (await client.refused("tasks/list", cursor="nonsense"))[0] == INVALID_PARAMS


async def test_a_session_knows_a_limited_number_of_tasks_until_they_expire() -> None:
    now = 0.0
    records = TaskRecords(MemoryStore(clock=lambda: now), wall=lambda: now)
    ctx = Context(caller=Caller(id="ann"), session="1")
    for number in range(300):
        await records.add(ctx, str(number), TaskRecord("s", "t", "n", "tool", expires=number + 1))
    assert list(await records.get(ctx)) == [str(number) for number in range(44, 300)]
    now = 299.5
    assert list(await records.get(ctx)) == ["299"]
