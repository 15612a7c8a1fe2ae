"""The surface `progressive`, through an MCP client in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp
import mcp_types
import pytest

from toolcrib import App, Settings
from toolcrib.errors import MissingExtra
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.scripting.runner import make_script_runner
from toolcrib.server.engine import Engine
from toolcrib.server.sdk import SdkServer
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.disclosure import ToolDiscoveryService
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.types import Caller, Context, Object, ServerInfo, ServerState, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

ISSUE: Object = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "description": "What it is about"},
        "labels": {"type": "array", "items": {"type": "string"}, "default": ["new"]},
        "state": {"enum": ["open", "closed"]},
        "author": {"$ref": "#/$defs/Person"},
        "links": {"type": "array", "items": {"type": "object", "properties": {"url": {"type": "string"}}}},
    },
    "required": ["title", "author"],
    "$defs": {
        "Person": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "id": {"type": "integer"}},
            "required": ["name"],
        }
    },
}


async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
    return ToolResult(structured={"did": name, "for": ctx.caller.id, "rows": [{"id": 1}, {"id": 2, "note": "x"}]})


def tracker() -> FakeProvider:
    tools = [
        Tool(
            name="create-issue",
            namespace="issue-tracker",
            description="Create an issue",
            input_schema=ISSUE,
            output_schema={"type": "object", "properties": {"did": {"type": "string", "description": "What"}}},
            annotations={"readOnlyHint": False},
        ),
        Tool(name="list", namespace="issue-tracker", description="List issues", annotations={"readOnlyHint": True}),
        Tool(name="drop", namespace="issue-tracker", description="Drop it", annotations={"destructiveHint": True}),
        Tool(name="plain", namespace="issue-tracker", description="Says nothing of itself"),
        Tool(name="back.door", namespace="issue-tracker", visibility=Visibility.HIDDEN),
    ]
    info = ServerInfo(name="x", version="2", description="Issues", instructions="Ask\nbefore " + "you create. " * 20)
    return FakeProvider(tools, answer, status=ready("issue-tracker", tools=5, info=info))


def down() -> FakeProvider:
    return FakeProvider([], status=ready("git", state=ServerState.FAILED, reason="exited with code 1"))


class Asking:
    def __init__(self, client: mcp.Client) -> None:
        self.client = client

    async def __call__(self, name: str, **arguments: Any) -> mcp_types.CallToolResult:
        result = await self.client.call_tool(name, arguments)
        assert isinstance(result, mcp_types.CallToolResult)
        return result


@asynccontextmanager
async def asking(*providers: FakeProvider, **options: Any) -> AsyncIterator[Asking]:
    chosen = SurfaceOptions(**{"surfaces": ("progressive",), **options})
    async with running(FakeSource(*(providers or (tracker(), down())))) as gateway, connect(gateway, chosen) as client:
        yield Asking(client)


# -- servers and tools -------------------------------------------------------------------------------------------------


async def test_a_server_is_shown_with_its_title_description_and_instructions() -> None:
    async with asking() as ask:
        text = text_of(await ask("list-servers"))
    assert "## issue-tracker (Lua: issue_tracker)\nIssues\nVersion: 2\nInstructions: Ask before you create." in text
    assert "## git (Lua: git)\nNot available: it has failed: exited with code 1" in text


async def test_long_texts_of_a_server_are_truncated() -> None:
    schema: Object = {"properties": {"end": {"type": "string"}}}
    for _ in range(5):
        schema = {"properties": {"part": {**schema, "type": "object"}}}
    tool = Tool(name="read", namespace="wiki", description="d" * 5_000, input_schema={**schema, "type": "object"})
    info = ServerInfo(description="s" * 400, instructions="i" * 2_000)
    async with asking(FakeProvider([tool], status=ready("wiki", tools=1, info=info))) as ask:
        servers = text_of(await ask("list-servers"))
        tools = text_of(await ask("list-server-tools", luaServerName="wiki"))
        details = text_of(await ask("tool-details", luaServerName="wiki", luaToolName="read"))
    assert f"\n{'s' * 296} ...\nInstructions: {'i' * 996} ..." in servers
    assert tools.endswith(f": {'d' * 96} ...")
    assert f"{'d' * 3_999}…" in details
    assert "d" * 4_000 not in details
    assert details.count("part (") == 5
    assert "end (" not in details


async def test_names_that_differ_between_languages_are_shown_for_each() -> None:
    async with asking(FakeProvider([Tool(name="end", namespace="while")])) as ask:
        assert "## while (Lua: _while, Python: while_)" in text_of(await ask("list-servers"))
        assert "- end (Lua: _end, Python: end)" in text_of(await ask("list-server-tools", luaServerName="_while"))


async def test_colliding_identifiers_are_made_unique_and_find_the_right_tool() -> None:
    both = FakeProvider([Tool(name="a-b", namespace="x"), Tool(name="a.b", namespace="x")])
    async with asking(both) as ask:
        listed = await ask("list-server-tools", luaServerName="x")
        assert listed.structured_content is not None
        names = {entry["name"]: entry["lua"] for entry in listed.structured_content["tools"]}
        assert len(set(names.values())) == 2
        for name, identifier in names.items():
            done = await ask("execute", script=f"return x.{identifier}{{}}:await().tool")
            assert text_of(done) == name


async def test_a_server_can_be_given_by_identifier_or_by_name() -> None:
    async with asking() as ask:
        one = await ask("list-server-tools", luaServerName="issue_tracker")
        other = await ask("list-server-tools", luaServerName="issue-tracker")
    assert one.structured_content == other.structured_content


async def test_unknown_names_are_answered_with_the_existing_and_the_closest_names() -> None:
    async with asking() as ask:
        server = await ask("list-server-tools", luaServerName="issue_traker")
        tool = await ask("tool-details", luaServerName="issue_tracker", luaToolName="create_isue")
        down = await ask("list-server-tools", luaServerName="git")
    assert server.is_error
    assert "Did you mean issue_tracker? Available servers: git, issue_tracker." in text_of(server)
    assert "Did you mean create_issue? Available tools: create_issue, drop, list, plain." in text_of(tool)
    assert "Server git has failed: exited with code 1." in text_of(down)


async def test_a_hidden_tool_is_not_listed_but_described_by_its_exact_name() -> None:
    async with asking() as ask:
        assert "back" not in text_of(await ask("list-server-tools", luaServerName="issue_tracker"))
        details = await ask("tool-details", luaServerName="issue_tracker", luaToolName="back.door")
    assert "## back.door" in text_of(details)


async def test_risk_is_shown_in_the_list_and_in_the_details() -> None:
    async with asking() as ask:
        listed = text_of(await ask("list-server-tools", luaServerName="issue_tracker"))
        details = text_of(await ask("tool-details", luaServerName="issue_tracker", luaToolName="drop"))
    assert "- drop (Lua: drop) [destructive]: Drop it" in listed
    assert "- destructive: it may change or delete existing data" in details


# -- details -----------------------------------------------------------------------------------------------------------


async def test_the_details_have_a_compact_schema() -> None:
    async with asking() as ask:
        details = await ask("tool-details", luaServerName="issue_tracker", luaToolName="create_issue")
    schema = (details.structured_content or {})["input_schema"]
    assert "$defs" not in schema
    assert schema["properties"]["author"]["type"] == "object"
    assert schema["required"] == ISSUE["required"]


async def test_details_show_nested_parameters_choices_defaults_and_references() -> None:
    async with asking() as ask:
        text = text_of(await ask("tool-details", luaServerName="issue_tracker", luaToolName="create_issue"))
    lines = text.partition("### Parameters\n\n")[2].partition("\n\n")[0].splitlines()
    assert lines == [
        "- title (string, required): What it is about",
        "- labels (string[], optional): Default: […].",
        '- state ("open"|"closed", optional)',
        "- author (object, required)",
        "  - name (string, required)",
        "  - id (integer, optional)",
        "- links (object[], optional)",
        "  - url (string, optional)",
    ]
    assert "### Output\n\n- did (string, optional): What" in text
    assert "local result = issue_tracker.create_issue({\n  title = ...,\n  author = ...\n}):await()" in text
    assert "result = await issue_tracker.create_issue(title=..., author=...)" in text


async def test_details_show_the_shape_of_the_last_response_but_no_values() -> None:
    async with asking() as ask:
        before = text_of(await ask("tool-details", luaServerName="issue_tracker", luaToolName="list"))
        await ask("execute", script="return issue_tracker.list{}:await()")
        after = text_of(await ask("tool-details", luaServerName="issue_tracker", luaToolName="list"))
    assert "Last Response" not in before
    assert "### Last Response\n\n{ did: string, for: string, rows: { id: integer, note?: string }[] }" in after


async def test_shapes_of_responses_are_not_shared_between_callers() -> None:
    async with running(FakeSource(tracker())) as gateway:
        ann, bo = (Context(caller=Caller(id="x", tenant=tenant)) for tenant in ("ann", "bo"))
        await ToolDiscoveryService(gateway, ann).inspect_tool_response("issue_tracker", "list")
        mine = await ToolDiscoveryService(gateway, ann).get_tool_details("issue_tracker", "list")
        other = await ToolDiscoveryService(gateway, bo).get_tool_details("issue_tracker", "list")
    assert "last_response" in mine.structured
    assert "last_response" not in other.structured


# -- inspecting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["drop", "create_issue"])
async def test_a_tool_that_may_change_something_is_not_run_for_inspection(tool: str) -> None:
    provider = tracker()
    async with asking(provider) as ask:
        refused = await ask("inspect-tool-response", luaServerName="issue_tracker", luaToolName=tool)
        assert refused.is_error
        assert "allowSideEffects" in text_of(refused)
        assert provider.calls == []
        await ask(
            "inspect-tool-response",
            luaServerName="issue_tracker",
            luaToolName=tool,
            sampleArgs={"title": "t", "author": {"name": "n"}},
            allowSideEffects=True,
        )
    assert len(provider.calls) == 1


@pytest.mark.parametrize("tool", ["list", "plain"])
async def test_a_read_only_or_unannotated_tool_is_run_for_inspection(tool: str) -> None:
    async with asking() as ask:
        looked = await ask("inspect-tool-response", luaServerName="issue_tracker", luaToolName=tool)
    assert not looked.is_error
    assert looked.structured_content is not None
    assert looked.structured_content["response"]["did"] == tool


async def test_a_long_response_is_shown_by_its_beginning_and_its_shape() -> None:
    async def much(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(structured={"rows": [{"id": number, "note": "x" * 100} for number in range(3000)]})

    async with asking(FakeProvider([Tool(name="much", namespace="data")], much)) as ask:
        looked = await ask("inspect-tool-response", luaServerName="data", luaToolName="much")
    assert len(text_of(looked)) < 21_000
    assert "more characters. Use execute" in text_of(looked)
    assert looked.structured_content is not None
    assert looked.structured_content.keys() == {"shape", "left_out"}
    assert looked.structured_content["shape"] == "{ rows: { id: integer, note: string }[] }"
    assert looked.structured_content["left_out"] > 300_000


# -- executing ---------------------------------------------------------------------------------------------------------


async def test_execute_runs_either_language_checks_without_running_and_reads_only() -> None:
    provider = tracker()
    async with asking(provider) as ask:
        lua = await ask("execute", script="return issue_tracker.list{}:await().did")
        python = await ask("execute", script="(await issue_tracker.list())['did']", language="python")
        dry = await ask("execute", script="issue_tracker.drop{}", dry_run=True)
        reads = await ask("execute", script="issue_tracker.drop{}", read_only=True)
    assert (text_of(lua), text_of(python)) == ("list", "list")
    assert dry.structured_content == {
        "calls": [{"name": "issue-tracker:drop", "line": 1, "known": True}],
        "warnings": [],
    }
    assert reads.is_error
    assert [name for name, _ in provider.calls] == ["list", "list"]


async def test_invalid_arguments_are_explained() -> None:
    async with asking() as ask:
        missing = await ask("execute")
        strange = await ask("list-server-tools", luaServerName="git", verbose=True)
    assert '"script" is required' in text_of(missing)
    assert "verbose" in text_of(strange)


async def test_names_that_models_use_for_the_arguments_are_understood() -> None:
    async with asking() as ask:
        done = await ask("execute", code="return 1")
        listed = await ask("list-server-tools", serverName="issue_tracker")
        looked = await ask("inspect-tool-response", server="issue_tracker", tool="list", sampleArgs="{}")
    assert [text_of(done), listed.is_error, looked.is_error] == ["1", False, False]


async def test_a_client_that_disconnects_ends_its_script_and_the_scripts_calls() -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ToolResult()

    provider = FakeProvider([Tool(name="wait", namespace="slow")], wait)
    gateway = Gateway([FakeSource(provider)], options=GatewayOptions(search_wait_s=0, list_wait_s=0))
    scripts = make_script_runner(gateway)
    with anyio.fail_after(60):
        async with scripts.engines:
            server = SdkServer(Engine(make_facade(gateway, SurfaceOptions(surfaces=("progressive",)), scripts)))
            async with mcp.Client(server) as client, anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "execute", {"script": "return slow.wait{}:await()"})
                await began.wait()
                group.cancel_scope.cancel()
            await ended.wait()
    assert ended.is_set()


# -- settings ----------------------------------------------------------------------------------------------------------


async def test_the_summary_tool_exists_if_the_settings_say_so() -> None:
    async with asking(summary=True) as ask:
        assert "summary" in [tool.name for tool in (await ask.client.list_tools()).tools]
        whole = await ask("summary")
        one = await ask("summary", luaServerName="issue_tracker")
    assert text_of(whole).splitlines()[0] == "2 servers, 1 ready, 4 tools"
    assert text_of(one).splitlines()[1] == "- issue-tracker: ready, 4 tools, 1 read-only, 1 destructive"
    async with asking() as ask:
        assert "summary" not in [tool.name for tool in (await ask.client.list_tools()).tools]


async def test_two_surfaces_are_listed_together_with_both_introductions() -> None:
    async with asking(surfaces=("search", "progressive")) as ask:
        names = [tool.name for tool in (await ask.client.list_tools()).tools]
        said = ask.client.instructions or ""
    assert {"tool_search", "execute_tool", "list-servers", "execute"} <= set(names)
    assert "Search for what you need" in said
    assert "Inspect sparingly" in said


async def test_a_server_that_says_nothing_about_itself_is_described_by_the_words_of_its_tools() -> None:
    silent = [Tool(name=f"{verb}_invoice", namespace="shop", description="For customers.") for verb in ("send", "list")]
    spoken = [Tool(name="send_invoice", namespace="bank")]
    about = ServerInfo(description="Money.")
    source = FakeSource(
        FakeProvider(silent, status=ready("shop", tools=2)), FakeProvider(spoken, status=ready("bank", info=about))
    )
    options = SurfaceOptions(surfaces=("progressive",))
    async with running(source) as gateway, connect(gateway, options) as client:
        result = await client.call_tool("list-servers", {})
    listed: Any = result.structured_content
    assert [server.get("words") for server in listed["servers"]] == [None, ["invoice", "customers"]]
    assert "## shop (Lua: shop)\nAbout: invoice, customers" in text_of(result)
    assert "## bank (Lua: bank)\nMoney." in text_of(result)


# -- call_many ---------------------------------------------------------------------------------------------------------


async def test_several_calls_at_once_return_separate_results_in_order() -> None:
    calls = [
        {"name": "issue-tracker:list"},
        {"name": "issue-tracker:nothing"},
        {"name": "issue-tracker:create-issue", "arguments": {"title": 1}},
        {"name": "issue-tracker:plain", "arguments": {}},
    ]
    async with asking(surfaces=("search",), call_many=True) as ask:
        done = await ask("call_many", calls=calls)
    assert done.structured_content is not None
    results = done.structured_content["results"]
    assert [result["ok"] for result in results] == [True, False, False, True]
    assert results[0]["result"]["did"] == "list"
    assert results[1]["error"]["code"] == "tool_not_found"
    assert results[2]["error"]["code"] == "invalid_arguments"
    assert not done.is_error


async def test_calls_of_one_request_run_at_the_same_time() -> None:
    meeting = [anyio.Event(), anyio.Event()]

    async def meet(ctx: Context, name: str, arguments: Object) -> ToolResult:
        place = int(name)
        meeting[place].set()
        await meeting[1 - place].wait()
        return ToolResult(structured={"met": True})

    provider = FakeProvider([Tool(name="0", namespace="m"), Tool(name="1", namespace="m")], meet)
    with anyio.fail_after(5):
        async with asking(provider, surfaces=("search",), call_many=True) as ask:
            done = await ask("call_many", calls=[{"name": "m:0"}, {"name": "m:1"}])
    assert done.structured_content is not None
    assert [result["ok"] for result in done.structured_content["results"]] == [True, True]


async def test_call_many_is_off_by_default_and_explains_invalid_calls() -> None:
    async with asking(surfaces=("search",)) as ask:
        assert "call_many" not in [tool.name for tool in (await ask.client.list_tools()).tools]
    async with asking(surfaces=("search",), call_many=True) as ask:
        empty = await ask("call_many", calls=[])
        failed = await ask("call_many", calls=["x"])
    assert empty.is_error
    assert failed.is_error
    assert "Each call must be an object" in text_of(failed)


async def test_without_a_script_engine_the_surface_offers_no_execute_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolcrib.scripting.engines.find_spec", lambda name: None)
    app = App(Settings(surfaces=SurfaceOptions(surfaces=("progressive",))))
    app.register(Tool(name="add"), lambda: 3)
    with anyio.fail_after(10):
        async with app:
            listed = [entry.tool.name for entry in (await app.facade.page(app.local_context())).items]
            assert "execute" not in listed
            assert "inspect-tool-response" in listed
            assert "script" not in await app.facade.instructions(app.local_context())
            with pytest.raises(MissingExtra, match=r"A script in Lua needs the library 'lupa', .*toolcrib\[lua\]"):
                await app.run_script("return 1")
    assert "the surface progressive has no execute" in caplog.text


@pytest.mark.parametrize(("library", "left"), [("lupa", "python"), ("pydantic_monty", "lua")])
async def test_scripts_are_offered_in_the_languages_that_are_installed(
    library: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.scripting.engines.find_spec", lambda name: None if name == library else object())
    app = App(Settings(surfaces=SurfaceOptions(surfaces=("progressive",))))
    (execute,) = [
        entry.tool
        for entry in (await app.facade.page(app.local_context())).items
        if entry.tool.name == "execute"
    ]  # fmt: skip
    assert execute.input_schema["properties"]["language"]["enum"] == [left]
