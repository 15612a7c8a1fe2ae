"""Usage through an app: what is counted, how long it is kept, and what it never contains."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import mcp
import pytest

from toolcrib.app import App
from toolcrib.errors import InvalidRequest, StateUnavailable, ToolNotFound
from toolcrib.gateway.view import View
from toolcrib.middleware.observers import EndedCall, ListEntry
from toolcrib.settings.options import Settings, TelemetryOptions
from toolcrib.state.memory import MemoryStore, MemoryTable
from toolcrib.state.options import StateOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.types import Caller, Context, Tool, ToolResult
from toolcrib.usage.counts import KEPT_DAYS, MAX_TOOLS, OTHER, DayUsage, UsageReport
from toolcrib.usage.recorder import UsageRecorder, result_size, usage_table

pytestmark = pytest.mark.anyio

DAY = 86_400
SECRET = "hunter2"
ANN = Context(caller=Caller(id="ann", tenant="acme"), session="s1")


def shop(settings: Settings | None = None, **options: Any) -> App:
    """An app with two tools in use and one that is never called."""
    app = App(settings, **options)
    app.register(Tool(name="find", namespace="shop", description="Find an article by its name"), lambda **_: "found")
    app.register(Tool(name="fail", namespace="shop", description="Always fails"), lambda: 1 / 0)
    app.register(Tool(name="idle", namespace="store", description="Never called"), lambda: "")
    return app


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def use(app: App) -> UsageReport:
    """One session of an agent, and the report after it."""
    with anyio.fail_after(20):
        async with app:
            await app.settled()
            async with mcp.Client(app.server) as client:
                await client.list_tools()
                await client.call_tool("tool_search", {"query": "find an article"})
                await client.call_tool("tool_search", {"query": "zzzz qqqq"})
                await client.call_tool("execute_tool", {"name": "shop:find", "arguments": {"name": SECRET}})
                await client.call_tool("execute_tool", {"name": "shop:find"})
                await client.call_tool("execute_tool", {"name": "shop:fail"})
            with pytest.raises(ToolNotFound):
                await app.call("shop:missing", {})
            return await app.usage_report()


async def test_calls_errors_and_searches_are_counted_and_tools_without_calls_are_named() -> None:
    report = await use(shop())
    found, failed = report.total.tools["shop:find"], report.total.tools["shop:fail"]
    assert (found.calls, found.errors, sum(found.latency)) == (2, 0, 2)
    assert (failed.calls, failed.errors) == (1, 1)
    assert found.result_bytes == 2 * len("found")
    assert found.result_tokens > 0
    assert report.total.searches == {"hit": 1, "none": 1}
    assert report.total.refused == {"tool_not_found": 1}
    assert report.total.calls_by_server()["shop"].calls == 3
    assert report.unused == ("store:idle",)


async def test_tokens_at_rest_are_those_of_all_definitions_and_saved_is_what_lists_left_out() -> None:
    report = await use(shop())
    shop_tokens, store_tokens = report.total.servers["shop"], report.total.servers["store"]
    assert (shop_tokens.tools, store_tokens.tools) == (2, 1)
    assert shop_tokens.at_rest > store_tokens.at_rest > 0
    assert report.total.lists == 1
    assert shop_tokens.unlisted == shop_tokens.at_rest
    assert shop_tokens.served > 0
    assert shop_tokens.saved == shop_tokens.unlisted - shop_tokens.served
    assert report.total.list_tokens > 0
    assert report.total.saved == shop_tokens.saved + store_tokens.saved - report.total.list_tokens


async def test_a_client_that_lists_every_tool_saves_nothing() -> None:
    app = shop(Settings(surfaces=SurfaceOptions(surfaces=("direct",))))
    with anyio.fail_after(20):
        async with app:
            await app.settled()
            async with mcp.Client(app.server) as client:
                await client.list_tools()
            total = (await app.usage_report()).total
    assert total.servers["store"].served == total.servers["store"].unlisted
    assert total.saved == 0


async def test_counts_survive_a_restart_and_hold_no_caller_no_arguments_and_no_queries(tmp_path: Path) -> None:
    settings = Settings(state=StateOptions(path=tmp_path / "state.sqlite"))
    await use(shop(settings))
    report = await use(shop(settings))
    assert report.total.tools["shop:find"].calls == 4
    state = content(tmp_path)
    assert b"shop:find" in state
    assert SECRET.encode() not in state
    assert b"zzzz" not in state


async def test_usage_is_not_counted_where_the_settings_say_so() -> None:
    app = shop(Settings(telemetry=TelemetryOptions(usage=False)))
    assert app.telemetry.usage is None
    with pytest.raises(InvalidRequest, match="Usage is not counted"):
        await app.usage_report()


# -- the recorder ------------------------------------------------------------------------------------------------------


TOOL = Tool(name="find", namespace="shop", description="Find an article")


def call(tool: Tool = TOOL, outcome: str = "ok", result: ToolResult | None = None) -> EndedCall:
    return EndedCall(ctx=ANN, tool=tool, name=tool.id, outcome=outcome, duration_s=0.002, result=result)


class Clock:
    def __init__(self, now: float = 20_000 * DAY) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def test_each_day_has_its_own_counts_and_a_report_covers_the_last_ones() -> None:
    clock = Clock()
    recorder = UsageRecorder(MemoryStore(), lambda: (TOOL,), wall=clock)
    for _ in range(40):
        recorder.call_ended(call())
        clock.now += DAY
    clock.now -= DAY
    report = await recorder.report(30)
    assert len(report.days) == 30
    assert report.total.tools[TOOL.id].calls == 30
    assert (await recorder.report(KEPT_DAYS)).total.tools[TOOL.id].calls == 40


async def test_counts_of_a_day_are_forgotten_after_ninety_days() -> None:
    clock = Clock()
    recorder = UsageRecorder(MemoryStore(clock=clock), lambda: (TOOL,), wall=clock)
    recorder.call_ended(call())
    await recorder.save()
    clock.now += (KEPT_DAYS + 2) * DAY
    assert (await recorder.report(KEPT_DAYS)).days == {}


async def test_several_processes_count_into_one_store() -> None:
    state = MemoryStore()
    one, other = (UsageRecorder(state, lambda: (TOOL,)) for _ in range(2))
    for recorder in (one, other, one):
        recorder.call_ended(call())
    await one.save()
    assert (await other.report()).total.tools[TOOL.id].calls == 3


async def test_what_could_not_be_saved_is_saved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = UsageRecorder(MemoryStore(), lambda: (TOOL,))

    async def refuse(*_: object, **__: object) -> None:
        raise StateUnavailable("The disk is full.")

    recorder.call_ended(call())
    with monkeypatch.context() as patch:
        patch.setattr(MemoryTable, "update", refuse)
        await recorder.save()
        recorder.call_ended(call())
        await recorder.save()
    assert (await recorder.report()).total.tools[TOOL.id].calls == 2


async def test_a_day_counts_a_bounded_number_of_tools_by_name() -> None:
    recorder = UsageRecorder(MemoryStore(), tuple)
    for number in range(MAX_TOOLS + 10):
        recorder.call_ended(call(replace(TOOL, name=f"t{number}")))
    await recorder.save()
    recorder.call_ended(call(replace(TOOL, name="one-more")))
    tools = (await recorder.report()).total.tools
    assert len(tools) == MAX_TOOLS + 1
    assert tools[OTHER].calls == 11


async def test_a_day_that_another_version_wrote_is_left_out() -> None:
    written: list[Any] = [{"version": 99}, [], None, {"version": 1}]
    for saved in written:
        with pytest.raises((KeyError, TypeError, ValueError)):
            DayUsage.from_dict(saved)


async def test_lists_of_views_that_no_task_saves_do_not_pile_up() -> None:
    app = shop()
    assert app.telemetry.usage is not None
    view = await app.gateway.view(ANN)
    nothing: Sequence[ListEntry] = ()
    views: list[View] = [replace(view) for _ in range(1_200)]
    for one in views:
        app.telemetry.usage.tools_listed(one, nothing, nothing)
    assert (await app.usage_report()).total.lists == 1_000


@pytest.mark.parametrize(
    ("result", "size", "tokens"),
    [
        (ToolResult(content=({"type": "text", "text": "word " * 20_000},)), 100_000, 25_000),
        (ToolResult(content=({"type": "text", "text": "é" * 5_000},)), 10_000, 5_000),
        (ToolResult(content=tuple({"type": "text", "text": "word"} for _ in range(1_000))), 4_000, 1_000),
        (ToolResult(content=({"type": "image", "data": "A" * 300},)), 300, 0),
        (ToolResult(content=({"type": "resource", "resource": {"text": "four"}},)), 4, 1),
        (ToolResult(content=()), 0, 0),
    ],
)
def test_the_size_of_a_result_is_estimated_from_its_beginning(result: ToolResult, size: int, tokens: int) -> None:
    assert result_size(result) == (size, tokens)


def test_structured_content_counts_only_without_content_blocks() -> None:
    rows = [{"id": number} for number in range(20)]
    assert result_size(ToolResult(content=(), structured={"rows": rows}))[0] == len(json.dumps({"rows": rows}))
    assert result_size(ToolResult(content=({"type": "text", "text": "four"},), structured={"rows": rows}))[0] == 4


async def test_the_counts_of_a_day_are_json_that_can_be_read_again() -> None:
    state = MemoryStore()
    recorder = UsageRecorder(state, lambda: (TOOL,))
    recorder.call_ended(call(result=ToolResult(content=({"type": "text", "text": "four"},))))
    await recorder.save()
    (day,) = (await usage_table(state).items()).values()
    assert DayUsage.from_dict(json.loads(json.dumps(day.to_dict()))) == day
