"""Behaviour of the registry system beyond its document, row by row."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from tests.reference.support import ME, call, found, hits, names, until

from toolcrib import (
    App,
    Caller,
    Context,
    Filters,
    InvalidArguments,
    SearchRequest,
    Settings,
    Tool,
    ToolcribError,
    ToolNotFound,
    Visibility,
)
from toolcrib.errors import AmbiguousName, InvalidRequest, InvalidTool, NameCollision, ServerUnavailable
from toolcrib.options import SearchOptions, ServerOptions, SurfaceOptions
from toolcrib.registry import Backend, BackendConfig, BackendKind, Config, Registry
from toolcrib.types import Action, Decision, ServerInfo

pytestmark = pytest.mark.anyio

ANY = {"type": "object"}


def registry(*ids: str, **config: Any) -> Registry:
    """A registry with tools of these ids, each of which returns its own id."""
    reg = Registry(Config(**config))
    for tool_id in ids:
        namespace, _, name = tool_id.rpartition(":")
        reg.register_local_func(name, f"Does {name}", ANY, answering(tool_id), namespace=namespace)
    return reg


def answering(text: str) -> Any:
    return lambda args: text


def behind(*names_: str, description: str = "Behind") -> App:
    app = App(name="behind", settings=Settings(surfaces=SurfaceOptions(surfaces=("direct",))))
    for name in names_:
        app.register(Tool(name=name, description=description, visibility=Visibility.NATIVE), lambda: "behind")
    return app


def remote(app: App, name: str, namespace: str | None = None) -> BackendConfig:
    return BackendConfig(name=name, transport=app.server, namespace=namespace, retry_interval=0.01)


# -- the model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("namespace", "version", "tool_id"),
    [("", None, "echo"), ("", "2.0.0", "echo"), ("utility", None, "utility:echo"), ("utility", "1", "utility:echo")],
)
def test_an_id_is_the_name_with_its_namespace_and_the_version_is_a_field(
    namespace: str, version: str | None, tool_id: str
) -> None:
    tool = Registry().register_local_func("echo", "", ANY, answering("x"), namespace=namespace, version=version)
    assert (tool.id, tool.version) == (tool_id, version)


@pytest.mark.parametrize("spelling", ["utility:echo", "utility__echo", "utility.echo", "utility/echo", "echo", "ECHO"])
async def test_a_tool_answers_to_every_usual_spelling_of_its_id(spelling: str) -> None:
    async with registry("utility:echo") as reg:
        assert await reg.execute(spelling) == "utility:echo"


async def test_a_spelling_that_could_be_several_tools_is_refused_with_their_ids() -> None:
    async with registry("a:echo", "b:echo") as reg:
        with pytest.raises(AmbiguousName) as caught:
            await reg.execute("echo")
    assert set(caught.value.suggestions) == {"a:echo", "b:echo"}


@pytest.mark.parametrize("schema", [None, [], "text", {"type": 7}, {"$ref": "https://example.com/schema.json"}])
async def test_an_invalid_or_external_schema_is_refused_and_nothing_is_registered(schema: Any) -> None:
    reg = Registry()
    with pytest.raises(InvalidTool):
        reg.register_local_func("echo", "", schema, answering("x"))
    assert await reg.list_all() == ()


async def test_tags_stay_as_they_are_written_and_narrow_a_search() -> None:
    reg = registry("plain")
    reg.register_local_func("tagged", "", ANY, answering("x"), tags=("Bug Report", "déjà vu"))
    request = SearchRequest(filters=Filters(tags=frozenset({"déjà vu"})))
    assert [hit.tool.id for hit in (await reg.app.gateway.search(ME, request)).hits] == ["tagged"]
    assert (await reg.get_tool("tagged")).tags == ("Bug Report", "déjà vu")
    assert [hit.tool.id for hit in (await reg.search("DEJA VU")).hits] == ["tagged"]


# -- the index ---------------------------------------------------------------------------------------------------------


async def test_registering_again_updates_the_definition_and_strict_refuses_to() -> None:
    reg = registry("echo")
    changed = reg.register_local_func("echo", "Other words", ANY, answering("new"))
    assert (await reg.get_tool("echo")).description == "Other words"
    assert reg.register_local(changed, answering("newer"), strict=True) == changed
    with pytest.raises(NameCollision):
        reg.register_local(Tool(name="echo", description="Third"), answering("x"), strict=True)
    async with reg:
        assert await reg.execute("echo") == "newer"


async def test_two_servers_with_tools_of_one_name_live_side_by_side() -> None:
    reg = Registry()
    for name in ("one", "two"):
        reg.register_mcp(remote(behind("echo", description=f"Of {name}"), name))
    async with reg:
        described = {tool.id: tool.description for tool in await reg.list_all()}
    assert described == {"one:echo": "Of one", "two:echo": "Of two"}


async def test_servers_of_one_namespace_with_the_same_tool_are_backends_of_it() -> None:
    reg = Registry()
    for name in ("one", "two"):
        reg.register_mcp(remote(behind("echo"), name, namespace="shared"))
    async with reg:
        assert [tool.id for tool in await reg.list_all()] == ["shared:echo"]
        assert sorted(backend.name for backend in await reg.get_backends("shared:echo")) == ["one", "two"]
        reg.unregister_mcp("one")
        await reg.app.settled()
        assert [backend.name for backend in await reg.get_backends("shared:echo")] == ["two"]
        assert await reg.execute("shared:echo") == "behind"
        reg.unregister_mcp("two")
        await reg.app.settled()
        with pytest.raises(ToolNotFound):
            await reg.get_tool("shared:echo")


@dataclass
class Provider:
    """A provider of the given tools."""

    tools: Sequence[Tool]

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return self.tools

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> str | None:
        return "provided" if any(tool.name == name for tool in self.tools) else None


async def test_the_usual_order_of_backends_is_local_provider_remote_and_a_selector_may_change_it() -> None:
    seen = list[list[BackendKind]]()

    def reverse(backends: Sequence[Backend]) -> Sequence[Backend]:
        seen.append([backend.kind for backend in backends])
        return list(reversed(backends))

    for selector, value in ((None, "shared:echo"), (reverse, "behind")):
        reg = Registry(Config(backend_selector=selector))
        reg.register_mcp(remote(behind("echo"), "shared"))
        async with reg:
            tool = await reg.get_tool("shared:echo")
            reg.add_provider(Provider([tool]))
            reg.register_local(tool, answering("shared:echo"))
            assert await reg.execute("shared:echo") == value
    assert seen == [[BackendKind.LOCAL, BackendKind.PROVIDER, BackendKind.MCP]]


async def test_a_tool_of_a_provider_can_be_executed() -> None:
    reg = Registry()
    reg.add_provider(Provider([Tool(name="lamp")]))
    async with reg:
        assert await reg.execute("lamp") == "provided"


async def test_namespaces_are_sorted_and_the_empty_one_is_among_them() -> None:
    assert await registry("b:x", "a:x", "x").list_namespaces() == ("", "a", "b")


async def test_pages_continue_by_cursor_and_a_stale_cursor_is_refused() -> None:
    reg = registry("a", "b", "c")
    first = await reg.search("", 2)
    assert ([hit.tool.id for hit in first.hits], first.total) == (["a", "b"], 3)
    rest = await reg.app.gateway.search(ME, SearchRequest(cursor=first.cursor, limit=2))
    assert ([hit.tool.id for hit in rest.hits], rest.cursor) == (["c"], None)
    reg.register_local_func("d", "", ANY, answering("d"))
    for cursor in (first.cursor, "no cursor"):
        with pytest.raises(InvalidRequest, match="cursor"):
            await reg.app.gateway.search(ME, SearchRequest(cursor=cursor))


class OwnNamespace:
    """Shows the tools of a namespace to the caller of that name."""

    def scope(self, caller: Caller) -> str:
        return caller.id

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.ALLOW if tool.namespace in ("", caller.id) else Decision.HIDE


async def test_a_cursor_outlives_changes_that_its_caller_may_not_see() -> None:
    reg = registry("a", "b", "c", policy=OwnNamespace())
    first = await reg.search("", 2)
    reg.register_local_func("x", "", ANY, answering("x"), namespace="ann")
    rest = await reg.app.gateway.search(ME, SearchRequest(cursor=first.cursor))
    assert [hit.tool.id for hit in rest.hits] == ["c"]


@pytest.mark.parametrize(("limit", "count"), [(None, 10), (3, 3), (0, 1), (-1, 1), (500, 100)])
async def test_a_limit_out_of_range_is_clamped(limit: int | None, count: int) -> None:
    reg = registry(*(f"echo_{number:03}" for number in range(120)))
    assert len((await reg.search("echo", limit)).hits) == count


async def test_a_listener_sees_additions_and_removals_until_it_unsubscribes() -> None:
    reg, received = registry("a"), list[int]()
    async with reg:
        end = reg.on_change(lambda: received.append(1))
        reg.register_local_func("b", "", ANY, answering("b"))
        await until(lambda: len(received) > 0)
        reg.unregister("b")
        await until(lambda: len(received) > 1)
        end()
        end()
        before = len(received)
        reg.unregister("a")
        await reg.refresh()
    assert len(received) == before


# -- the searcher ------------------------------------------------------------------------------------------------------


async def test_bm25_is_bm25_and_takes_names_apart() -> None:
    reg = registry("git:create_issue", "git:close", "mail:send", search_config=SearchOptions(scorer="bm25"))
    (hit,) = (await reg.search("issue")).hits
    assert (hit.tool.id, hit.raw > 0, 0 < hit.score < 1) == ("git:create_issue", True, True)
    either = [hit.tool.id for hit in (await reg.search("issue send")).hits]
    assert sorted(either) == ["git:create_issue", "mail:send"]


@pytest.mark.parametrize("query", ['"', "(", "name:x AND", "*", "a\x00b", "+-&|!(){}[]^~?\\/"])
async def test_no_query_is_a_syntax_error(query: str) -> None:
    for scorer in ("hybrid", "bm25"):
        reg = registry("echo", search_config=SearchOptions(scorer=scorer))
        assert len((await reg.search(query)).hits) <= 1


# -- the registry ------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_added_to_a_running_registry_is_connected_at_once() -> None:
    async with registry("echo") as reg:
        reg.register_mcp(remote(behind("far"), "late"))
        assert await reg.execute("late:far") == "behind"
        await reg.health_check()


async def test_a_server_that_is_down_at_the_start_is_tried_again_and_may_come_later() -> None:
    app, up = behind("far"), list[bool]()

    def target() -> Any:
        if not up:
            raise ConnectionRefusedError("nobody listens")
        return app.server

    reg = registry("echo")
    reg.register_mcp(BackendConfig(name="late", transport=target, retry_interval=0.01))
    with anyio.fail_after(10):
        async with reg:
            assert await reg.execute("echo") == "echo"
            with pytest.raises(ServerUnavailable, match="late has failed"):
                await reg.health_check()
            up.append(True)
            await until(lambda: str(reg.statuses()[0].state) == "ready")
            await reg.refresh()
            assert await reg.execute("late:far") == "behind"


async def test_a_transport_may_bring_its_own_http_client_with_any_authentication() -> None:
    app, sent = App(), list[str]()
    app.register(Tool(name="far"), lambda: "far")
    mount = app.asgi_mount()

    async def signed(request: httpx2.Request) -> None:
        request.headers["authorization"] = "Bearer fresh"
        sent.append(request.headers["authorization"])

    @asynccontextmanager
    async def own() -> AsyncIterator[Any]:
        hooks = {"request": [signed]}
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=mount), event_hooks=hooks) as http:
            async with streamable_http_client("http://localhost/mcp", http_client=http) as streams:
                yield streams

    reg = Registry()
    reg.register_mcp(BackendConfig(name="behind", transport=own))
    with anyio.fail_after(5):
        async with app, reg:
            assert await reg.execute("behind:execute_tool", {"name": "far"}) == "far"
    assert set(sent) == {"Bearer fresh"}


async def test_a_required_server_that_is_down_stops_the_start_and_nothing_is_left_over() -> None:
    def target() -> Any:
        raise ConnectionRefusedError("nobody listens")

    down = ServerOptions(name="down", target=target, required=True)
    reg = Registry(Config(settings=Settings(servers=(down,))))
    with anyio.fail_after(5):
        with pytest.raises(ServerUnavailable, match="down is required"):
            await reg.start()
        assert (await reg.list_all(), reg.app.running) == ((), False)
        await reg.stop()


async def test_every_page_of_a_servers_list_is_read() -> None:
    many = App(Settings(surfaces=SurfaceOptions(surfaces=("direct",), list_page_bytes=1000)))
    for number in range(40):
        many.register(Tool(name=f"tool_{number}"), lambda: "x")
    reg = Registry()
    reg.register_mcp(remote(many, "many"))
    with anyio.fail_after(5):
        async with reg:
            assert len(await reg.list_all()) == 40


async def test_a_server_that_reports_a_changed_list_is_listed_again() -> None:
    app = behind("first")
    reg = Registry()
    reg.register_mcp(remote(app, "live"))
    with anyio.fail_after(10):
        async with app, reg:
            app.register(Tool(name="second", visibility=Visibility.NATIVE), lambda: "x")
            while len(listed := [tool.id for tool in await reg.list_all()]) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)  # what the registry's own tasks did has no event
            assert listed == ["live:first", "live:second"]


async def test_arguments_are_checked_before_anything_runs() -> None:
    ran = list[Any]()
    reg = Registry()
    reg.register_local_func("echo", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, ran.append)
    async with reg:
        with pytest.raises(InvalidArguments, match="n"):
            await reg.execute("echo", {"n": "many"})
    assert ran == []


# -- the protocol ------------------------------------------------------------------------------------------------------


async def test_two_namespaces_with_one_name_have_two_names_on_the_wire_both_callable() -> None:
    async with registry("a:echo", "b:echo") as reg, mcp.Client(reg.app.server) as client:
        assert await names(client) == ["a__echo", "b__echo"]
        for name in ("a__echo", "b__echo"):
            result = await call(client, name)
            assert result.content[0].model_dump()["text"] == name.replace("__", ":")


async def test_the_list_holds_title_annotations_and_output_schema() -> None:
    reg = Registry(Config(server_info=ServerInfo(name="my-mcp", version="1.0.0", title="My tools")))
    reg.register_local_func(
        "echo", "", ANY, answering("x"), title="Echo", annotations={"readOnlyHint": True}, output_schema=ANY
    )
    async with reg, mcp.Client(reg.app.server, mode="legacy") as client:
        (tool,) = (await client.list_tools()).tools
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.title) == ("my-mcp", "My tools")
    assert (tool.title, tool.output_schema) == ("Echo", ANY)


@pytest.mark.parametrize(("info", "title"), [(ServerInfo(name="my-mcp"), "my-mcp"), (ServerInfo(), "toolcrib")])
async def test_a_server_without_a_title_goes_by_its_name(info: ServerInfo, title: str) -> None:
    reg = Registry(Config(server_info=info))
    async with reg, mcp.Client(reg.app.server, mode="legacy") as client:
        assert client.server_info is not None
        assert client.server_info.title == title


# -- neighbours --------------------------------------------------------------------------------------------------------


async def test_hits_have_their_score_and_the_matched_words() -> None:
    (hit,) = (await registry("git:create_issue").search("create an issue")).hits
    assert 0.5 < hit.score <= 1
    assert {reason.field for reason in hit.reasons} & {"name"}
    assert hit.matched == ("create", "issue")


async def test_a_search_may_be_narrowed_to_a_namespace() -> None:
    app = App()
    for space in ("git", "hub"):
        app.register(Tool(name="issue", namespace=space, description="Open an issue"), lambda: "x")
    async with mcp.Client(app.server) as client:
        assert await found(client, "open an issue", namespace="git") == ["git:issue"]


@pytest.mark.parametrize(
    ("detail", "holds"), [("summary", None), ("signature", "signature"), ("full", "input_schema"), ("", "input_schema")]
)
async def test_there_are_three_levels_of_detail(detail: str, holds: str | None) -> None:
    app = App()
    app.register(Tool(name="lamp", description="Switch the lamp " * 40), lambda: "x")
    async with mcp.Client(app.server) as client:
        (hit,) = await hits(client, "lamp", detail=detail)
    assert {"signature", "input_schema"} & set(hit) == ({holds} if holds else set())
    assert (len(hit["description"]) <= 300) is (detail in ("summary", "signature"))


def test_every_error_is_of_one_tree_with_a_stable_code() -> None:
    errors = [InvalidTool, InvalidRequest, ToolNotFound, NameCollision, AmbiguousName, ServerUnavailable]
    assert all(issubclass(error, ToolcribError) for error in errors)
    assert len({error.code for error in errors}) == len(errors)
