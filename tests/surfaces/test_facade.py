"""The surface `direct`, and names without their namespace, through an MCP client in memory."""

import asyncio
import json
import logging
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import mcp
import mcp_types
import pytest
from mcp.shared.exceptions import MCPError

from toolcrib.errors import NameCollision, ServerUnavailable, SettingsError, ToolNotFound
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.facade import ToolFacade, watch_names
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.surfaces.reply import ERROR_META
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.types import BackendKind, Caller, Context, Object, Rejected, ServerState, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
DIRECT = SurfaceOptions(surfaces=("direct",))
BARE = SurfaceOptions(surfaces=("direct",), prefix=False)


def provider(namespace: str, *names: str, **more: Any) -> FakeProvider:
    tools = [Tool(name=name, namespace=namespace, description=name, **more) for name in names]
    return FakeProvider(tools, status=ready(namespace, tools=len(tools)))


class Remote(FakeProvider):
    """A named server with these tools."""

    def __init__(self, name: str, *tools: str) -> None:
        super().__init__([Tool(name=tool, namespace=name) for tool in tools], status=ready(name, tools=len(tools)))
        self.name = name


async def listed(client: mcp.Client) -> list[mcp_types.Tool]:
    found: list[mcp_types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_every_tool_is_listed_and_called_by_its_wire_name() -> None:
    async with running(FakeSource(provider("git", "log"), provider("time", "now"))) as gateway:
        async with connect(gateway, DIRECT) as client:
            assert [tool.name for tool in await listed(client)] == ["git__log", "time__now"]
            assert text_of(await client.call_tool("git__log", {"n": 1})) == "log {'n': 1}"


async def test_a_definition_arrives_whole() -> None:
    tool = Tool(
        name="act",
        namespace="x",
        title="Act",
        description="Acts.",
        input_schema={"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}},
        output_schema={"type": "object", "properties": {"b": {"type": "integer"}}},
        annotations={"title": "Act!", "readOnlyHint": True},
        icons=({"src": "https://example.com/i.png", "mimeType": "image/png"},),
        keywords=("not", "shown"),
        meta={"com.example/k": 1},
    )
    async with running(FakeSource(FakeProvider([tool]))) as gateway, connect(gateway, DIRECT) as client:
        (found,) = await listed(client)
    assert found.model_dump(by_alias=True, mode="json", exclude_none=True) == {
        "name": "x__act",
        "title": "Act",
        "description": "Acts.",
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": {"title": "Act!", "readOnlyHint": True},
        "icons": [{"src": "https://example.com/i.png", "mimeType": "image/png"}],
        "_meta": {"com.example/k": 1},
    }


async def test_a_list_is_paged_by_bytes() -> None:
    many = provider("big", *(f"t{number:03}" for number in range(50)), title="x" * 1000)
    options = SurfaceOptions(surfaces=("direct",), list_page_bytes=10_000)
    async with running(FakeSource(many)) as gateway, connect(gateway, options) as client:
        first = await client.list_tools()
        assert len(first.model_dump_json()) < 15_000
        assert [tool.name for tool in await listed(client)] == [f"big__t{number:03}" for number in range(50)]


async def test_a_tool_larger_than_a_page_is_still_listed() -> None:
    options = SurfaceOptions(surfaces=("direct",), list_page_bytes=100)
    async with running(FakeSource(provider("x", "a", "b", title="y" * 1000))) as gateway:
        async with connect(gateway, options) as client:
            assert [tool.name for tool in await listed(client)] == ["x__a", "x__b"]


async def test_a_stale_cursor_is_a_clear_protocol_error() -> None:
    async with running(FakeSource(provider("x", "a"))) as gateway, connect(gateway, DIRECT) as client:
        with pytest.raises(MCPError, match="cursor") as refused:
            await client.list_tools(cursor="nonsense")
    assert refused.value.code == mcp_types.INVALID_PARAMS


async def test_names_have_no_namespace_if_the_settings_say_so() -> None:
    async with running(FakeSource(provider("git", "log"))) as gateway, connect(gateway, BARE) as client:
        assert [tool.name for tool in await listed(client)] == ["log"]
        assert text_of(await client.call_tool("log", {})) == "log {}"


async def test_two_tools_with_the_same_bare_name_prevent_the_start_and_are_both_named() -> None:
    async with running(FakeSource(provider("git", "log"), provider("svn", "log"))) as gateway:
        with pytest.raises(NameCollision, match=r"git:log and svn:log both claim the name log"):
            await make_facade(gateway, BARE).check_names(ME)
        await make_facade(gateway, DIRECT).check_names(ME)


async def test_a_bare_name_that_is_a_meta_tools_is_a_collision_too() -> None:
    options = SurfaceOptions(surfaces=("search", "direct"), prefix=False)
    async with running(FakeSource(provider("x", "tool_search"))) as gateway:
        with pytest.raises(NameCollision, match="tool_search"):
            await make_facade(gateway, options).check_names(ME)


async def test_two_surfaces_list_their_tools_together() -> None:
    options = SurfaceOptions(surfaces=("search", "direct"))
    async with running(FakeSource(provider("git", "log"))) as gateway, connect(gateway, options) as client:
        assert [tool.name for tool in await listed(client)] == ["tool_search", "execute_tool", "git__log"]


async def test_an_unknown_surface_is_refused_with_the_names_of_those_that_exist() -> None:
    async with running(FakeSource()) as gateway:
        with pytest.raises(SettingsError, match="serach") as refused:
            make_facade(gateway, SurfaceOptions(surfaces=("serach",)))
        assert ", ".join(SURFACES) in refused.value.hint


@pytest.mark.parametrize("name", SURFACES)
async def test_every_named_surface_can_be_made(name: str) -> None:
    async with running(FakeSource()) as gateway:
        facade = make_facade(gateway, SurfaceOptions(surfaces=(name,)))
    assert bool(facade.meta_names) == (name != "direct")


async def test_a_hidden_tool_is_not_listed_but_can_be_called_by_its_wire_name() -> None:
    hidden = provider("x", "lever", visibility=Visibility.HIDDEN)
    async with running(FakeSource(hidden)) as gateway, connect(gateway, DIRECT) as client:
        assert await listed(client) == []
        assert text_of(await client.call_tool("x__lever", {})) == "lever {}"


async def test_wrong_arguments_are_explained_in_the_result() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    strict = provider("x", "act", input_schema=schema)
    async with running(FakeSource(strict)) as gateway, connect(gateway, DIRECT) as client:
        result = await client.call_tool("x__act", {"n": "many"})
    assert isinstance(result, mcp_types.CallToolResult)
    assert result.is_error
    assert json.loads(json.dumps(result.meta))[ERROR_META]["code"] == "invalid_arguments"


async def test_a_violated_output_schema_is_no_longer_listed() -> None:
    async def plain(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "3"},))

    promising = Tool(name="count", namespace="x", output_schema={"type": "object"})
    async with running(FakeSource(FakeProvider([promising], plain))) as gateway:
        async with connect(gateway, DIRECT) as client:
            assert (await listed(client))[0].output_schema == {"type": "object"}
        await gateway.call(ME, "x:count", {})
        async with connect(gateway, DIRECT) as client:
            assert (await listed(client))[0].output_schema is None


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("schema", "value"),
    [({"type": "array"}, [1]), ({"anyOf": [{"type": "object"}, {"type": "string"}]}, {"a": 1}), ({}, {"a": 1})],
)
async def test_a_strict_client_accepts_results_with_any_output_schema(mode: str, schema: Any, value: Any) -> None:
    async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "here"},), structured=value)

    tool = Tool(name="many", namespace="x", output_schema=schema)
    async with running(FakeSource(FakeProvider([tool], answer))) as gateway:
        async with connect(gateway, DIRECT, mode=mode) as client:
            (found,) = await listed(client)
            result = await client.call_tool("x__many", {})
    assert isinstance(result, mcp_types.CallToolResult)
    assert (found.output_schema is None) == (mode == "legacy" or not schema)
    wrapped = mode == "legacy" and isinstance(value, list)
    assert result.structured_content == ({"result": value} if wrapped else value)


async def test_a_bare_name_claimed_by_a_late_server_stays_with_the_first_in_the_settings() -> None:
    first, late = Remote("bank", "delete"), Remote("aaa", "delete")
    source = FakeSource(first)
    source.kind = BackendKind.MCP
    async with running(source) as gateway, connect(gateway, BARE, mode="legacy") as client:
        facade = make_facade(gateway, BARE, order=lambda: ("bank", "aaa"))
        source.replace(late, first)
        with anyio.fail_after(5):
            await gateway.refresher.wait_current()
        assert [entry.name for entry in (await facade.page(ME)).items] == ["delete"]
        await facade.call(ME, "delete", {})
        assert (len(first.calls), len(late.calls)) == (1, 0)
        why = "bank:delete has the name delete; set prefix = true, or leave one out with allowedTools."
        rejected = {status.name: status.rejected for status in await gateway.servers(ME)}
        assert rejected == {"aaa": (Rejected(tool="delete", reason=f"it is not listed, because {why}"),), "bank": ()}
        await facade.call(ME, "aaa__delete", {})
        assert len(late.calls) == 1
        assert [tool.name for tool in await listed(client)] == ["delete"]


async def test_a_caller_that_sees_one_of_two_namesakes_gets_it_by_its_bare_name() -> None:
    policy = ByScopes([Rule(tools=("git:*",), scopes=("admin",))], default="allow")
    async with running(FakeSource(provider("git", "log"), provider("svn", "log")), policy=policy) as gateway:
        facade = make_facade(gateway, BARE)
        assert [entry.tool.id for entry in (await facade.page(ME)).items] == ["svn:log"]
        assert [(status.name, status.rejected) for status in await gateway.servers(ME)] == [("svn", ())]


async def test_a_request_tool_does_not_take_a_shared_tools_bare_name() -> None:
    own = FakeProvider([Tool(name="log", namespace="mine")])
    async with running(FakeSource(provider("git", "log"))) as gateway:
        facade, ctx = make_facade(gateway, BARE), ME.with_providers(own)
        assert [(entry.name, entry.tool.id) for entry in (await facade.page(ctx)).items] == [
            ("log", "git:log"),
            ("mine__log", "mine:log"),
        ]
        await facade.call(ctx, "mine__log", {})
        assert len(own.calls) == 1


async def test_namesakes_that_appear_soon_after_the_start_stop_the_app() -> None:
    waits = FakeProvider([], status=ready("slow", state=ServerState.CONNECTING))
    source = FakeSource(provider("git", "log"), waits)

    async def watch(facade: ToolFacade) -> None:
        with pytest.raises(NameCollision, match=r"git:log and svn:log both claim the name log"):
            await watch_names(facade, ME)

    with anyio.fail_after(5):
        async with running(source) as gateway, anyio.create_task_group() as group:
            group.start_soon(watch, make_facade(gateway, BARE))
            await anyio.lowlevel.checkpoint()
            source.replace(provider("git", "log"), provider("svn", "log"), waits)


async def test_late_namesakes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeSource(provider("git", "log"))
    with anyio.fail_after(5):
        async with running(source) as gateway, anyio.create_task_group() as group:
            group.start_soon(partial(watch_names, make_facade(gateway, BARE), ME, grace_s=0))
            for more, count in (("act", 1), ("turn", 1), ("log", 2)):
                source.replace(provider("git", "log"), provider("svn", "log"), provider("xyz", more))
                await gateway.refresher.wait_current()
                while len(caplog.records) < count:
                    await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert said == [
        "svn:log: it is not listed, because git:log has the name log",
        "xyz:log: it is not listed, because git:log has the name log",
    ]


async def test_hints_do_not_mention_search_if_every_tool_is_listed() -> None:
    down = FakeProvider([], status=ready("down", state=ServerState.FAILED, reason="exited"))
    async with running(FakeSource(provider("git", "log"), down)) as gateway:
        for options, ctx in ((DIRECT, ME), (SurfaceOptions(), replace(ME, show_all=True))):
            with pytest.raises(ToolNotFound) as missing:
                await make_facade(gateway, options).call(ctx, "water_plants", {})
            assert missing.value.hint == "List the tools to see which there are."
            with pytest.raises(ServerUnavailable) as unavailable:
                await make_facade(gateway, options).call(ctx, "down__act", {})
            assert unavailable.value.hint == "Try again once it is available."
        with pytest.raises(ToolNotFound) as missing:
            await make_facade(gateway, SurfaceOptions()).call(ME, "water_plants", {})
        assert missing.value.hint == "Search for a tool by what it does."


async def test_clients_that_list_every_tool_can_still_call_the_meta_tools() -> None:
    everything = replace(ME, show_all=True)
    async with running(FakeSource(provider("git", "log"))) as gateway:
        facade = make_facade(gateway, SurfaceOptions())
        assert [entry.tool.name for entry in (await facade.page(everything)).items] == ["log"]
        found = await facade.call(everything, "tool_search", {"query": "log"})
        assert "git:log" in found.text
        assert not (await facade.call(everything, "execute_tool", {"name": "git:log"})).is_error
        assert await facade.has_tool(everything, "execute_tool")


async def test_a_tool_with_the_name_of_a_meta_tool_is_called_by_clients_that_list_every_tool() -> None:
    own = FakeProvider([Tool(name="tool_search")], status=ready("own", tools=1))
    async with running(FakeSource(own)) as gateway:
        facade = make_facade(gateway, SurfaceOptions())
        await facade.call(replace(ME, show_all=True), "tool_search", {})
        assert len(own.calls) == 1
        await facade.call(ME, "tool_search", {"query": "log"})
        assert len(own.calls) == 1


async def test_agents_learn_that_a_connected_server_offers_nothing() -> None:
    empty = FakeProvider([], status=ready("empty", reason="connected, but it offers no tools"))
    async with running(FakeSource(provider("git", "log"), empty)) as gateway:
        facade = make_facade(gateway, SurfaceOptions())
        found = await facade.call(ME, "tool_search", {"query": "delete a customer"})
        assert "Server empty is connected, but it offers no tools" in found.text
        assert "empty (no tools)" in (await facade.page(ME)).items[0].tool.description


async def test_an_always_visible_tool_keeps_its_bare_name_beside_an_unlisted_namesake() -> None:
    options = SurfaceOptions(prefix=False, always_visible=("git:status",))
    aaa, git = provider("aaa", "status"), provider("git", "status")
    async with running(FakeSource(aaa, git)) as gateway, connect(gateway, options) as client:
        assert [tool.name for tool in await listed(client)] == ["tool_search", "execute_tool", "status"]
        await client.call_tool("status", {})
    assert (len(aaa.calls), len(git.calls)) == (0, 1)


async def test_a_cursor_is_valid_for_its_own_list_only() -> None:
    many = provider("big", *(f"t{number:03}" for number in range(50)), title="x" * 1000)
    options = SurfaceOptions(surfaces=("search", "direct"), list_page_bytes=10_000)
    async with running(FakeSource(many)) as gateway, connect(gateway, options) as client:
        searched = await client.call_tool("tool_search", {"max_results": 5})
        assert isinstance(searched, mcp_types.CallToolResult)
        with pytest.raises(MCPError, match="cursor"):
            await client.list_tools(cursor=searched.structured_content["cursor"])


class Elsewhere(Remote):
    """A server whose calls run none of this process's code."""

    runs_elsewhere = True


async def refuse(_ctx: Context, name: str, _arguments: Object) -> ToolResult:
    raise ServerUnavailable(f"{name} is closed.")


@pytest.mark.parametrize("name", ["execute_tool", "far__go"])
async def test_a_call_is_a_task_of_its_own_only_if_code_of_others_may_run_in_it(name: str) -> None:
    def asked(namespace: str) -> tuple[str, Object]:
        return (name, {"name": f"{namespace}:go"}) if name == "execute_tool" else (f"{namespace}__go", {})

    options = SurfaceOptions(surfaces=("search", "direct"))
    async with running(FakeSource(Elsewhere("far", "go"), Remote("near", "go"))) as gateway:
        facade = make_facade(gateway, options)
        own = facade.own_call(ME, *asked("far"))
        assert own is not None
        assert (await own(ME)).text == "go {}"
        assert facade.own_call(ME, *asked("near")) is None
        assert facade.own_call(ME, *asked("missing")) is None
        assert facade.own_call(ME.with_providers(provider("mine", "go")), *asked("far")) is None


async def test_execute_tool_returns_the_errors_of_remote_servers_as_results() -> None:
    far = Elsewhere("far", "go")
    far.handler = refuse
    hiding = ByScopes([Rule(tools=("far:*",), callers=("me",))])
    async with running(FakeSource(far), policy=hiding) as gateway:
        facade = make_facade(gateway, SurfaceOptions(surfaces=("search",)))
        own = facade.own_call(ME, "execute_tool", {"name": "far:go"})
        assert own is not None
        failed = await own(ME)
        assert failed.is_error
        assert "go is closed." in failed.text
        assert facade.own_call(Context(caller=Caller(id="ann")), "execute_tool", {"name": "far:go"}) is None


async def cancel_itself(_ctx: Context, _name: str, _arguments: Object) -> ToolResult:
    raise asyncio.CancelledError


@pytest.mark.parametrize(("name", "arguments"), [("far__go", {}), ("execute_tool", {"name": "far:go"})])
async def test_a_call_that_is_cancelled_from_inside_is_answered(name: str, arguments: dict[str, Any]) -> None:
    far = Elsewhere("far", "go")
    far.handler = cancel_itself
    async with running(FakeSource(far)) as gateway:
        async with connect(gateway, SurfaceOptions(surfaces=("search", "direct"))) as client:
            with pytest.raises(MCPError, match="cancelled internally"):
                await client.call_tool(name, arguments)
            assert "far__go" in [tool.name for tool in await listed(client)]
