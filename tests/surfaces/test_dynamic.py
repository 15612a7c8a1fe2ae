"""The surface `dynamic`, through MCP clients of both eras, in memory."""

import contextlib
import json
from collections.abc import AsyncIterator, Hashable
from typing import Any

import mcp
import mcp_types
import pytest
from mcp_types import ElicitResult

from toolcrib import App, Settings
from toolcrib.discovery import GuardOptions
from toolcrib.discovery.host_tools import META_TOOLS
from toolcrib.errors import ServerUnavailable
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions, SessionOptions
from toolcrib.middleware.options import CallOptions
from toolcrib.surfaces.dynamic import DynamicSurface
from toolcrib.surfaces.facade import listed_meta_tool
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.types import Action, Caller, Context, Decision, Object, Policy, ServerState, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

FIVE = ["list_tools", "search_tools", "get_tool_schema", "get_tool_schemas", "call_tool"]
DYNAMIC = SurfaceOptions(surfaces=("dynamic",))
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
eras = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


async def respond(ctx: Context, name: str, arguments: Object) -> ToolResult:
    if name == "add":
        total = arguments["a"] + arguments["b"]
        return ToolResult(content=({"type": "text", "text": f"{total}"},), structured={"total": total})
    if name == "draw_chart":
        return ToolResult(content=({"type": "text", "text": "here it is"}, IMAGE), meta={"com.example/k": 1})
    if name == "divide":
        return ToolResult(content=({"type": "text", "text": "division by zero"},), is_error=True)
    if name == "subtract":
        raise ServerUnavailable("The server is gone.")
    return ToolResult(content=({"type": "text", "text": f"{name} {dict(arguments)}"},))


def shelf() -> FakeProvider:
    tools = [
        Tool(name="add", namespace="math", description="Add two numbers.", input_schema=ADD),
        Tool(name="divide", namespace="math", description="Divide two numbers."),
        Tool(name="subtract", namespace="math", description="Subtract two numbers."),
        Tool(name="draw_chart", namespace="charts", description="Draw a chart of some numbers."),
        Tool(name="secret", namespace="charts", description="Draw a secret.", visibility=Visibility.HIDDEN),
    ]
    return FakeProvider(tools, respond, status=ready("math", tools=len(tools)))


@contextlib.asynccontextmanager
async def client_of(
    *providers: FakeProvider,
    mode: str,
    policy: Policy | None = None,
    options: GatewayOptions | None = None,
    **more: Any,
) -> AsyncIterator[mcp.Client]:
    source = FakeSource(*(providers or (shelf(),)))
    async with running(source, policy=policy, options=options) as gateway:
        async with connect(gateway, DYNAMIC, mode=mode, **more) as client:
            yield client


async def answer(client: mcp.Client, name: str, meta: Any = None, **arguments: Any) -> dict[str, Any]:
    """The envelope, after checking that text and structured content agree."""
    result = await client.call_tool(name, arguments, meta=meta)
    envelope: dict[str, Any] = result.structured_content or {}
    first = result.content[0]
    assert isinstance(first, mcp_types.TextContent)
    assert json.loads(first.text) == envelope
    assert result.is_error is not envelope["success"] or "schemas" in envelope
    return envelope


def found(envelope: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in envelope["result"]]


@eras
async def test_a_client_sees_the_five_as_they_are_defined(mode: str) -> None:
    async with client_of(mode=mode) as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == FIVE
    assert [tool.input_schema for tool in tools] == [listed_meta_tool(tool).input_schema for tool in META_TOOLS]
    by_name = {tool.name: tool for tool in tools}
    for name in FIVE[:4]:
        hints = by_name[name].annotations
        assert hints is not None
        assert hints.read_only_hint is True
    acts = by_name["call_tool"].annotations
    assert acts is not None
    assert acts.destructive_hint is True


@eras
async def test_the_same_tool_of_two_servers_is_one_entry_with_both_names(mode: str) -> None:
    tools = [Tool(name="add", namespace=name, description="Add two numbers", input_schema=ADD) for name in ("a", "b")]
    async with client_of(FakeProvider(tools), mode=mode) as client:
        (entry,) = (await answer(client, "search_tools", query="add two numbers"))["result"]
        described = await answer(client, "get_tool_schema", tool_name=entry["similar"][0])
    assert sorted([entry["name"], *entry["similar"]]) == ["a:add", "b:add"]
    assert described["result"]["function"]["parameters"] == ADD


@eras
async def test_unlikely_tools_do_not_get_the_places_of_the_same_tool(mode: str) -> None:
    texts = {"add": "Add two numbers", "draw_chart": "Draws a chart of numbers"}
    tools = [Tool(name=name, namespace=at, description=text) for name, text in texts.items() for at in ("a", "b")]
    async with client_of(FakeProvider(tools), mode=mode) as client:
        few = (await answer(client, "search_tools", query="add two numbers", limit=2))["result"]
        more = (await answer(client, "search_tools", query="add two numbers", limit=4))["result"]
    assert [len(few), len(more)] == [1, 2]


@eras
async def test_a_model_lists_searches_describes_and_calls(mode: str) -> None:
    async with client_of(mode=mode) as client:
        listed = await answer(client, "list_tools", limit=2)
        assert (found(listed), listed["count"], listed["total_available"]) == (
            ["charts:draw_chart", "math:add"],
            2,
            4,
        )
        searched = await answer(client, "search_tools", query="sum of two numbers", limit=3)
        (best, *_) = searched["result"]
        assert (best["name"], best["namespace"]) == ("math:add", "math")
        assert "match_reasons" not in best
        assert 0 < best["score"] <= 1
        described = await answer(client, "get_tool_schema", tool_name=best["name"])
        assert described["result"]["function"]["parameters"] == ADD
        called_by = described["result"]["function"]["name"]
        for name in (called_by, "math:add", "math.add"):
            assert await answer(client, "call_tool", tool_name=name, arguments={"a": 1, "b": 2}) == {
                "success": True,
                "result": {"total": 3},
            }
        flat = await answer(client, "call_tool", tool_name="add", a=1, b=2)
        assert flat["result"] == {"total": 3}


@eras
async def test_several_schemas_come_with_the_names_that_are_missing(mode: str) -> None:
    async with client_of(mode=mode) as client:
        envelope = await answer(client, "get_tool_schemas", tool_names=["math:add", "math:ad"])
    assert (envelope["success"], envelope["count"]) == (False, 1)
    (error,) = envelope["errors"]
    assert error["tool_name"] == "math:ad"
    assert "math:add" in error["suggestions"]


@eras
async def test_images_and_meta_of_a_result_pass_through_beside_the_envelope(mode: str) -> None:
    async with client_of(mode=mode) as client:
        result = await client.call_tool("call_tool", {"tool_name": "charts:draw_chart"})
    assert [block.type for block in result.content] == ["text", "image"]
    assert result.content[1].model_dump(by_alias=True, exclude_none=True) == IMAGE
    assert result.structured_content is not None
    assert result.structured_content["success"] is True
    assert (result.meta or {})["com.example/k"] == 1


@eras
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tool_name": "math:divide"}, "division by zero"),
        ({"tool_name": "math:subtract"}, "The server is gone."),
        ({"tool_name": "math:add", "arguments": {"a": "one"}}, "math:add"),
        ({"tool_name": "math:ad"}, "math:add"),
        ({"tool_name": "search_tools"}, "called directly"),
        ({}, "needs the name of a tool"),
    ],
    ids=["in band", "raised", "arguments", "name", "meta-tool", "nothing"],
)
async def test_every_failure_is_an_envelope_and_marked_as_an_error(
    mode: str, arguments: dict[str, Any], said: str
) -> None:
    async with client_of(mode=mode) as client:
        result = await client.call_tool("call_tool", arguments)
    assert result.is_error
    assert result.structured_content is not None
    assert result.structured_content["success"] is False
    assert said in result.structured_content["error"] + str(result.structured_content.get("suggestions", ""))
    assert "Traceback" not in text_of(result)


@eras
async def test_a_server_that_is_down_is_named_instead_of_an_empty_answer(mode: str) -> None:
    down = FakeProvider([], status=ready("git", state=ServerState.FAILED, reason="exited with code 1"))
    async with client_of(down, mode=mode) as client:
        envelope = await answer(client, "call_tool", tool_name="git:log")
    assert envelope["success"] is False
    assert "exited with code 1" in envelope["error"]


class NoCharts:
    """A policy that hides charts."""

    def scope(self, caller: Caller) -> Hashable:
        return "all"

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.HIDE if tool.namespace == "charts" else Decision.ALLOW


@eras
async def test_a_tool_that_the_policy_hides_is_in_no_list_search_schema_or_call(mode: str) -> None:
    async with client_of(mode=mode, policy=NoCharts()) as client:
        listed = await answer(client, "list_tools")
        assert listed["total_available"] == 3
        assert not any(name.startswith("charts") for name in found(listed))
        assert "charts:draw_chart" not in found(await answer(client, "search_tools", query="draw a chart"))
        for name in ("get_tool_schema", "call_tool"):
            hidden = await answer(client, name, {"toolcrib/session": f"1 {name}"}, tool_name="charts:draw_chart")
            missing = await answer(client, name, {"toolcrib/session": f"2 {name}"}, tool_name="charts:draw_nothin")
            assert hidden["success"] is False
            assert hidden["error"].replace("draw_chart", "?") == missing["error"].replace("draw_nothin", "?")
            assert "charts:draw_chart" not in str(missing.get("suggestions"))


class Broken(NoCharts):
    """A policy with a mistake in it."""

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        raise LookupError("no role in postgres://ann:pw@db/roles")


@eras
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_tools", {}),
        ("search_tools", {"query": "add numbers"}),
        ("get_tool_schema", {"tool_name": "math:add"}),
        ("call_tool", {"tool_name": "math:add", "arguments": {"a": 1, "b": 2}}),
    ],
)
async def test_an_error_of_the_applications_policy_is_in_the_log_and_in_no_answer(
    mode: str, name: str, arguments: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(mode=mode, policy=Broken()) as client:
        envelope = await answer(client, name, **arguments)
    assert envelope == {"success": False, "error": "Internal error; see the server's log for the cause."}
    assert "a request failed unexpectedly" in caplog.text


@eras
async def test_a_tool_that_was_used_is_boosted_in_the_next_turn(mode: str) -> None:
    async with client_of(mode=mode) as client:
        query = {"query": "two numbers", "limit": 4}
        before = await answer(client, "search_tools", meta={"toolcrib/turn": 1}, **query)
        used = next(entry for entry in before["result"] if entry["name"] == "math:add")
        await answer(client, "call_tool", tool_name="math:add", arguments={"a": 1, "b": 2})
        await answer(client, "call_tool", tool_name="math:divide")
        after = await answer(client, "search_tools", meta={"toolcrib/turn": 2}, **query)
    best = after["result"][0]
    assert best["name"] == "math:add"
    assert best["score"] > used["score"]
    scores = [{entry["name"]: entry["score"] for entry in one["result"]} for one in (before, after)]
    assert [name for name, score in scores[1].items() if score > scores[0][name]] == ["math:add"]


@eras
async def test_two_handles_of_one_caller_do_not_learn_from_each_other(mode: str) -> None:
    async with client_of(mode=mode) as client:
        mine, other = {"toolcrib/session": "a"}, {"toolcrib/session": "b"}
        await answer(client, "call_tool", meta=mine, tool_name="math:add", arguments={"a": 1, "b": 2})
        scores = []
        for meta in (mine, other):
            envelope = await answer(client, "search_tools", meta=meta, query="two numbers")
            scores.append({entry["name"]: entry["score"] for entry in envelope["result"]}["math:add"])
        assert scores[0] > scores[1]


@eras
async def test_an_elicitation_passes_through(mode: str) -> None:
    asked: list[str] = []

    async def yes(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True})

    options = GatewayOptions(search_wait_s=0, list_wait_s=0, calls=CallOptions(approval="always"))
    provider = shelf()
    async with client_of(provider, mode=mode, options=options, elicitation_callback=yes) as client:
        envelope = await answer(client, "call_tool", tool_name="math:add", arguments={"a": 1, "b": 2})
    assert envelope == {"success": True, "result": {"total": 3}}
    assert len(asked) == 1
    assert provider.calls == [("add", {"a": 1, "b": 2})]


async def test_a_tools_own_question_passes_through_unchanged() -> None:
    question = ToolResult(kind="input_required", request_state="s", input_requests={"q": {"method": "ping"}})

    async def ask(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return question

    provider = FakeProvider(shelf().tools, ask)
    async with running(FakeSource(provider)) as gateway:
        surface = DynamicSurface(gateway)
        asked = await surface.handlers["call_tool"](ME, {"tool_name": "math:divide"})
    assert asked is not None
    assert (asked.kind, asked.input_requests) == ("input_required", question.input_requests)


# -- guards ----------------------------------------------------------------------------------------------------------

ME = Context(caller=Caller(id="me"), session="one")


async def envelope_of(surface: DynamicSurface, ctx: Context, name: str, **arguments: Any) -> dict[str, Any]:
    result = await surface.handlers[name](ctx, arguments)
    assert result is not None
    assert isinstance(result.structured, dict)
    return result.structured


# -- searches --------------------------------------------------------------------------------------------------------


@eras
async def test_the_best_hit_comes_with_its_parameters_and_can_be_called_at_once(mode: str) -> None:
    async with client_of(mode=mode) as client:
        envelope = await answer(client, "search_tools", query="add two numbers")
        best, *others = envelope["result"]
        assert (best["name"], best["parameters"]) == ("math:add", ADD)
        assert all({"name", "namespace", "description", "score"} <= hit.keys() for hit in others)
        assert (await answer(client, "call_tool", tool_name=best["name"], a=1, b=2))["success"] is True


async def test_a_search_keeps_the_budget_of_the_settings() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "Words. " * 30}}}
    tools = [Tool(name=f"read_{number}", description="Read a file. " * 9, input_schema=schema) for number in range(8)]
    shown = []
    for budget in (150, 800):
        async with running(FakeSource(FakeProvider(tools))) as gateway:
            surface = DynamicSurface(gateway, budget=budget)
            hits = (await envelope_of(surface, ME, "search_tools", query="read a file"))["result"]
            shown.append(["parameters" in hit for hit in hits])
    assert [len(hits) for hits in shown] == [8, 8]
    assert [any(hits) for hits in shown] == [False, True]


@eras
async def test_a_model_that_guesses_names_is_advised_to_search(mode: str) -> None:
    async with client_of(mode=mode) as client:
        for _ in range(2):
            assert "do not guess" not in (await answer(client, "call_tool", tool_name="tea"))["error"]
        assert "do not guess" in (await answer(client, "call_tool", tool_name="tea"))["error"]


def guarded(gateway: Gateway, **options: Any) -> DynamicSurface:
    return DynamicSurface(gateway, GuardOptions(**options))


async def test_each_session_has_its_own_guard() -> None:
    async with running(FakeSource(shelf())) as gateway:
        surface = guarded(gateway, lookups=2)
        other = Context(caller=Caller(id="me"), session="two")
        for _ in range(2):
            assert "note" not in await envelope_of(surface, ME, "list_tools")
        assert "note" not in await envelope_of(surface, other, "list_tools")
        assert "note" in await envelope_of(surface, ME, "list_tools")


async def test_a_refused_call_reaches_no_tool_and_is_an_error() -> None:
    provider = shelf()
    async with running(FakeSource(provider)) as gateway:
        surface = guarded(gateway, repeats=1, refuse=True)
        assert (await envelope_of(surface, ME, "call_tool", tool_name="math:multiply"))["success"] is False
        for _ in range(3):
            last = await surface.handlers["call_tool"](ME, {"tool_name": "math:add", "a": 1, "b": 2})
        assert last is not None
        assert last.is_error
    assert len(provider.calls) == 1


async def test_a_guard_is_forgotten_with_its_session() -> None:
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, sessions=SessionOptions(sessions=3))
    async with running(FakeSource(shelf()), options=options) as gateway:
        surface = guarded(gateway)
        for number in range(20):
            await envelope_of(surface, Context(caller=Caller(id="me"), session=str(number)), "list_tools")
        assert len(surface._guarded) <= 3


async def test_a_wrong_limit_is_met_with_the_bounds_that_apply() -> None:
    app = App(Settings(surfaces=SurfaceOptions(surfaces=("dynamic",))))
    for name, bounds in (("search_tools", "1 to 100."), ("list_tools", "1 to 1000.")):
        reply = await app.facade.call(app.local_context(), name, {"query": "x", "limit": "lots"})
        assert bounds in reply.structured["error"]
