"""The base class over a host's tools: fetching, filtering, validation, calls, and failures."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import anyio
import pytest
from tests.discovery.support import FakeProvider, FakeTool, names, toolbox

from toolcrib.discovery import BaseDynamicToolProvider, HostToolOptions, SearchResult, ToolSearchEngine
from toolcrib.errors import CallTimeout, ExecutionFailed, InvalidRequest
from toolcrib.types import Tool, ToolResult, Visibility

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("list_tools", {}),
    ("search_tools", {"query": "add"}),
    ("get_tool_schema", {"tool_name": "add"}),
    ("get_tool_schemas", {"tool_names": ["add"]}),
    ("call_tool", {"tool_name": "add", "a": 1, "b": 2}),
]


class Returning(BaseDynamicToolProvider[Any]):
    """One tool, `act`, with scripted behaviour."""

    def __init__(self, run: Callable[[], Any], **options: Any) -> None:
        super().__init__(**options)
        self.run = run

    async def get_all_tools(self) -> list[Any]:
        return [{"name": "act"}]

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
        return self.run()


# The source of the tools


class Down(FakeProvider):
    async def get_all_tools(self) -> list[Any]:
        self.loads += 1
        raise ConnectionError("the registry is down")


@pytest.mark.parametrize(("name", "arguments"), ASKED)
async def test_a_source_that_is_down_is_an_error_with_its_reason(name: str, arguments: dict[str, Any]) -> None:
    answer = await Down().execute_dynamic_tool(name, arguments)
    assert answer["success"] is False
    assert "the registry is down" in answer["error"]


async def test_lists_and_searches_raise_if_the_source_is_down() -> None:
    provider = Down()
    with pytest.raises(ExecutionFailed, match="the registry is down"):
        await provider.list_tools()
    with pytest.raises(ExecutionFailed, match="the registry is down"):
        await provider.search_tools("add")
    assert provider.loads == 2, "a failure is not remembered"


class Hanging(FakeProvider):
    async def get_all_tools(self) -> list[Any]:
        await anyio.sleep_forever()
        return []

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await anyio.sleep_forever()
        return {}


@pytest.mark.parametrize(("name", "arguments"), ASKED)
async def test_a_source_that_hangs_is_an_error_too(name: str, arguments: dict[str, Any]) -> None:
    with anyio.fail_after(5):
        answer = await Hanging(options=HostToolOptions(load_timeout_s=0.01)).execute_dynamic_tool(name, arguments)
    assert answer["success"] is False
    assert "within 0.01 s" in answer["error"]


async def test_a_hanging_source_raises_a_timeout() -> None:
    with anyio.fail_after(5), pytest.raises(CallTimeout):
        await Hanging(options=HostToolOptions(load_timeout_s=0.01)).list_tools()


@pytest.mark.parametrize("given", [None, 3, "tools", b"tools"])
async def test_a_source_that_returns_no_list_is_an_error(given: Any) -> None:
    class Odd(FakeProvider):
        async def get_all_tools(self) -> Any:
            return given

    answer = await Odd().execute_dynamic_tool("list_tools")
    assert answer["success"] is False
    assert type(given).__name__ in answer["error"]


async def test_concurrent_callers_share_one_fetch() -> None:
    began, go = anyio.Event(), anyio.Event()

    class Slow(FakeProvider):
        async def get_all_tools(self) -> list[Any]:
            began.set()
            await go.wait()
            return await super().get_all_tools()

    provider = Slow()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for name, arguments in ASKED:
                group.start_soon(provider.execute_dynamic_tool, name, arguments)
            await began.wait()
            go.set()
    assert provider.loads == 1


async def test_a_cancelled_first_caller_leaves_the_fetch_to_the_next() -> None:
    began = anyio.Event()

    class Once(FakeProvider):
        async def get_all_tools(self) -> list[Any]:
            if not began.is_set():
                began.set()
                await anyio.sleep_forever()
            return await super().get_all_tools()

    provider = Once()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(provider.list_tools)
            await began.wait()
            group.cancel_scope.cancel()
        assert len(await provider.list_tools()) == 11


async def test_tools_that_change_while_they_are_fetched_are_fetched_again() -> None:
    class Changing(FakeProvider):
        async def get_all_tools(self) -> list[Any]:
            tools = await super().get_all_tools()
            if self.loads == 1:
                self.invalidate_cache()
            return tools

    provider = Changing()
    for _ in range(3):
        await provider.list_tools()
    assert provider.loads == 2


async def test_plain_functions_may_stand_for_coroutines() -> None:
    class Plain(FakeProvider):
        def get_all_tools(self) -> Any:
            return toolbox()

        def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
            return arguments["a"]

    assert await Plain().call_tool("add", {"a": 1}) == {"success": True, "result": 1}


async def test_wrong_arguments_of_a_plain_function_are_refused_before_it_runs() -> None:
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    class Plain(FakeProvider):
        def get_all_tools(self) -> Any:
            return [add]

        def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
            return add(**arguments)

    assert await Plain().call_tool("add", {"a": 1}) == {"success": True, "result": 2}
    refused = await Plain().call_tool("add", {"a": "x"})
    assert refused["error"] == 'add: "a" must be integer, not string. Valid: add(a: integer, b?: integer)'


def test_one_provider_serves_several_event_loops_in_turn() -> None:
    provider = FakeProvider()
    for _ in range(2):
        assert len(anyio.run(provider.list_tools)) == 11
    assert provider.loads == 1


# The filter


class Filtered(FakeProvider):
    denied = frozenset({"add", "sqrt"})

    def filter_search_results(self, results: list[SearchResult[Any]]) -> list[SearchResult[Any]]:
        return [r for r in results if r.name not in self.denied]


async def test_a_denied_tool_is_neither_listed_nor_found() -> None:
    provider = Filtered()
    assert not Filtered.denied & {*names(await provider.list_tools())}
    assert "add" not in names(await provider.search_tools("add two numbers"))
    answer = await provider.execute_dynamic_tool("list_tools", {})
    assert answer["total_available"] == 9


@pytest.mark.parametrize("spelling", ["add", "math.add", "Add", "math:add"])
async def test_a_denied_tool_looks_exactly_like_a_missing_one(spelling: str) -> None:
    provider = Filtered()
    missing = FakeProvider([tool for tool in toolbox() if tool.name not in Filtered.denied])
    for name in ("get_tool_schema", "call_tool"):
        asked = {"tool_name": spelling}
        assert await provider.execute_dynamic_tool(name, asked) == await missing.execute_dynamic_tool(name, asked)
    assert await provider.get_tool_schemas([spelling]) == await missing.get_tool_schemas([spelling])
    assert all(not tool.ran for tool in provider._tools)


async def test_a_name_that_is_ambiguous_only_with_a_denied_tool_is_not_ambiguous() -> None:
    class Namespaced(FakeProvider):
        def filter_search_results(self, results: list[SearchResult[Any]]) -> list[SearchResult[Any]]:
            return [r for r in results if r.namespace != "secret"]

    provider = Namespaced([{"name": "add", "namespace": "math"}, {"name": "add", "namespace": "secret"}])
    assert (await provider.get_tool_schema("add"))["function"]["name"] == "math.add"


async def test_a_search_is_filled_up_after_filtering() -> None:
    class Last(FakeProvider):
        def filter_search_results(self, results: list[SearchResult[Any]]) -> list[SearchResult[Any]]:
            return [r for r in results if r.name.endswith("7")]

    provider = Last([{"name": f"invoice_{number}"} for number in range(100)])
    assert len(await provider.search_tools("invoice", limit=5)) == 5


@pytest.mark.parametrize(("name", "arguments"), ASKED)
@pytest.mark.parametrize("kept", [None, 3, "raise"])
async def test_a_filter_that_fails_shows_nothing(name: str, arguments: dict[str, Any], kept: Any) -> None:
    class Broken(FakeProvider):
        def filter_search_results(self, results: list[SearchResult[Any]]) -> Any:
            if kept == "raise":
                raise RuntimeError("no rights today")
            return kept

    answer = await Broken().execute_dynamic_tool(name, arguments)
    assert answer["success"] is False
    assert "filter_search_results failed" in answer["error"]


async def test_a_filter_may_change_results() -> None:
    class Raised(FakeProvider):
        def filter_search_results(self, results: list[SearchResult[Any]]) -> list[SearchResult[Any]]:
            for result in results:
                result.score *= 2
            return sorted(results, key=lambda result: result.name)

    found = await Raised().search_tools("numbers")
    assert names(found) == sorted(names(found))


# Calls


async def test_a_call_is_remembered_and_a_report_of_the_host_counts_it_once() -> None:
    provider = FakeProvider()
    await provider.call_tool("calculate_std", {"values": [1]})
    provider.engine.record_tool_use("calculate_std")
    stats = provider.engine.get_session_stats("calculate_std")
    assert stats is not None
    assert stats.call_count == 1
    provider.engine.advance_turn()
    found = await provider.search_tools("calculate")
    assert found[0]["name"] == "calculate_std"
    assert "session_boost:4.45x" in found[0]["match_reasons"]


async def test_a_call_that_fails_is_remembered_as_a_failure() -> None:
    provider = Returning(lambda: {"success": False, "error": "no"})
    await provider.call_tool("act")
    stats = provider.engine.get_session_stats("act")
    assert stats is not None
    assert (stats.call_count, stats.success_count) == (1, 0)


async def test_arguments_that_do_not_match_are_explained_and_nothing_runs() -> None:
    provider = FakeProvider()
    for wrong in ({"values": "x"}, {}, {"values": ["x"]}):
        answer = await provider.call_tool("calculate_mean", wrong)
        assert answer["success"] is False
        assert "values: number[]" in answer["error"]
    assert provider.engine.get_session_stats("calculate_mean") is None
    assert all(not tool.ran for tool in provider._tools)


async def test_a_tool_that_shares_its_name_is_called_with_its_namespace() -> None:
    ran: list[str] = []

    class Two(FakeProvider):
        async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            ran.append(tool_name)
            return {"success": True, "result": None}

    provider = Two([FakeTool("add", "math"), FakeTool("add", "text"), FakeTool("sqrt", "math")])
    ambiguous = await provider.call_tool("add", {})
    assert (ambiguous["success"], ambiguous["suggestions"]) == (False, ["math.add", "text.add"])
    for name in ("text.add", "sqrt"):
        await provider.call_tool(name, {})
    assert ran == ["text.add", "sqrt"]
    assert names(await provider.list_tools()) == ["math.add", "text.add", "sqrt"]


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    when: date


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, None),
        (3.0, 3.0),
        ("text", "text"),
        ([1, (2, {3})], [1, [2, [3]]]),
        ({"a": 1}, {"a": 1}),
        ({"result": 1}, {"result": 1}),
        ({"success": "yes"}, {"success": "yes"}),
        (b"text", "text"),
        (Point(1, date(2026, 1, 2)), {"x": 1, "when": "2026-01-02"}),
        (Colour.RED, "red"),
        (PurePosixPath("/a"), "/a"),
        ({1: True}, {"1": True}),
        (ToolResult(structured={"n": 1}), {"n": 1}),
        (ToolResult(content=({"type": "text", "text": "hi"},)), "hi"),
    ],
)
async def test_any_other_value_is_the_result(value: Any, result: Any) -> None:
    answer = await Returning(lambda: value).call_tool("act")
    assert answer == {"success": True, "result": result}
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"success": False}, "gave no reason"),
        ({"success": False, "error": "no such city"}, "no such city"),
        ({"success": False, "error": {"code": 3}}, "'code': 3"),
        (ToolResult(content=({"type": "text", "text": "no"},), is_error=True), "no"),
    ],
)
async def test_a_failure_keeps_its_reason(value: Any, error: str) -> None:
    answer = await Returning(lambda: value).call_tool("act")
    assert answer["success"] is False
    assert error in answer["error"]


async def test_an_envelope_keeps_its_other_keys() -> None:
    answer = await Returning(lambda: {"success": True, "took_ms": 3}).call_tool("act")
    assert answer == {"success": True, "result": None, "took_ms": 3}


def generated() -> Iterator[int]:
    yield 1


async def generated_later() -> AsyncIterator[int]:
    yield 1


def nested() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def raising() -> Any:
    raise ValueError("the city is unknown")


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (raising, "the city is unknown"),
        (generated, "generator"),
        (generated_later, "async_generator"),
        (lambda: b"\xff\xfe", "bytes"),
        (object, "object"),
        (lambda: "x" * 50_000_000, "5,000,000 characters"),
        (lambda: ["x" * 1_000] * 50_000, "5,000,000 characters"),
        (nested, "levels deep"),
    ],
)
async def test_a_tool_that_misbehaves_is_an_error_with_a_reason(run: Callable[[], Any], why: str) -> None:
    provider = Returning(run)
    executed = await provider.execute_dynamic_tool("call_tool", {"tool_name": "act"})
    for answer in (await provider.call_tool("act"), executed):
        assert answer["success"] is False
        assert why in answer["error"]
        assert len(answer["error"]) < 600


async def test_a_call_that_hangs_is_an_error() -> None:
    class Slow(Hanging):
        async def get_all_tools(self) -> list[Any]:
            return toolbox()

    with anyio.fail_after(5):
        answer = await Slow(options=HostToolOptions(call_timeout_s=0.01)).call_tool("add", {})
    assert answer["success"] is False
    assert "within 0.01 s" in answer["error"]


async def test_a_cancelled_call_is_cancelled() -> None:
    class Slow(Hanging):
        async def get_all_tools(self) -> list[Any]:
            return toolbox()

    with anyio.fail_after(5), anyio.move_on_after(0.05) as scope:
        await Slow().execute_dynamic_tool("call_tool", {"tool_name": "add"})
    assert scope.cancelled_caught


async def test_providers_never_share_a_session_unless_they_share_an_engine() -> None:
    one, other = FakeProvider(), FakeProvider()
    await one.call_tool("add", {})
    assert other.engine.get_session_boost("add") == 1.0
    engine: ToolSearchEngine[Any] = ToolSearchEngine()
    assert FakeProvider(engine=engine).engine is engine


async def test_broken_tools_are_named_with_their_reasons() -> None:
    provider = FakeProvider([{"name": "sound"}, {"nothing": True}])
    assert names(await provider.list_tools()) == ["sound"]
    assert next(one.reason for one in provider.rejected).startswith("A tool of type dict has no name")


@pytest.mark.parametrize("format_", ["openai", "openai-responses", "anthropic", "gemini", "mcp"])
def test_the_meta_tools_have_every_format(format_: Any) -> None:
    assert len(FakeProvider().get_dynamic_tools(format=format_)) == 5


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="openai"):
        FakeProvider().get_dynamic_tools(format="fax")  # type: ignore[arg-type]  # the wrong value is what is tested


async def test_a_hidden_tool_is_called_by_its_exact_name_only() -> None:
    hidden = Tool(name="secret_act", visibility=Visibility.HIDDEN)

    class Hidden(Returning):
        async def get_all_tools(self) -> list[Any]:
            return [hidden, Tool(name="act")]

    provider = Hidden(lambda: 1)
    assert names(await provider.list_tools()) == ["act"]
    assert names(await provider.search_tools("secret act")) == ["act"]
    assert (await provider.execute_dynamic_tool("list_tools"))["total_available"] == 1
    assert (await provider.call_tool("secretAct"))["success"] is False
    assert await provider.call_tool("secret_act") == {"success": True, "result": 1}


async def test_a_long_description_is_cut_in_lists() -> None:
    (entry,) = await FakeProvider([{"name": "x", "description": "word " * 1_000}]).list_tools()
    assert len(entry["description"]) == 200
    assert entry["description"].endswith("…")


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (-1, 1), (3, 3), ("4", 4), (2.0, 2), (1_000_000, 11)])
async def test_a_limit_out_of_range_is_clamped(limit: Any, count: int) -> None:
    assert len(await FakeProvider().list_tools(limit)) == count
    assert len(await FakeProvider().search_tools("", limit)) == count


@pytest.mark.parametrize("limit", ["ten", None, 1.5, True, [1]])
async def test_a_limit_that_is_not_a_number_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        await FakeProvider().list_tools(limit)
    with pytest.raises(InvalidRequest, match="limit"):
        await FakeProvider().search_tools("add", limit)


# -- many tools --------------------------------------------------------------------------------------------------------


def many(count: int = 300) -> list[dict[str, Any]]:
    return [{"name": f"tool_{number}", "description": f"Does thing {number}."} for number in range(count)]


class Watched(ToolSearchEngine[Any]):
    """Records the threads in which its tools were read."""

    def read(self, tools: Any) -> Any:
        self.read_in = threading.get_ident()
        return super().read(tools)


async def test_many_plain_tools_are_read_in_a_thread() -> None:
    engine = Watched()
    provider = FakeProvider(many(), engine=engine)
    assert names(await provider.search_tools("tool_7", 1)) == ["tool_7"]
    assert engine.read_in != threading.get_ident()
    assert len(engine.toolset) == 300


async def test_few_tools_are_read_at_once() -> None:
    engine = Watched()
    await FakeProvider(many(5), engine=engine).list_tools()
    assert engine.read_in == threading.get_ident()


async def test_custom_classes_and_hooks_always_run_on_the_loop() -> None:
    threads: set[int] = set()

    class Own:
        def __init__(self, number: int) -> None:
            self.number = number

        @property
        def name(self) -> str:
            threads.add(threading.get_ident())
            return f"own_{self.number}"

    class Hooked(FakeProvider):
        def get_tool_name(self, tool: Any) -> str:
            threads.add(threading.get_ident())
            return str(tool["name"])

    assert len(await FakeProvider([Own(number) for number in range(300)]).list_tools(1_000)) == 300
    assert len(await Hooked(many()).list_tools(1_000)) == 300
    assert threads == {threading.get_ident()}


async def test_many_tools_that_are_asked_for_at_once_are_fetched_once() -> None:
    provider = FakeProvider(many())
    found: list[int] = []

    async def ask() -> None:
        found.append(len(await provider.list_tools(1_000)))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
    assert (found, provider.loads) == ([300] * 5, 1)


async def test_tools_that_change_while_they_are_read_are_fetched_again() -> None:
    class Changing(FakeProvider):
        async def get_all_tools(self) -> list[Any]:
            tools = await super().get_all_tools()
            if self.loads == 1:
                self.invalidate_cache()
            return tools

    provider = Changing(many())
    await provider.list_tools()
    await provider.list_tools()
    await provider.list_tools()
    assert provider.loads == 2


# Cancellation and other odd endings


async def _awaits_a_cancelled_task() -> None:
    task = asyncio.create_task(anyio.sleep_forever())
    task.cancel()
    await task


async def test_a_cancellation_inside_a_tool_is_its_own_failure() -> None:
    class Mixed(Returning):
        async def get_all_tools(self) -> list[Any]:
            return [{"name": "act"}, {"name": "good"}]

        async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
            return await _awaits_a_cancelled_task() if tool_name == "act" else 1

    provider = Mixed(lambda: None)
    failed = {"success": False, "error": "something it waited for was cancelled."}
    assert await provider.execute_dynamic_tool("call_tool", {"tool_name": "act"}) == failed
    assert await provider.call_many([("act", {}), ("good", {})]) == [failed, {"success": True, "result": 1}]


async def test_a_secret_in_a_failure_of_the_source_is_masked() -> None:
    class Unreachable(FakeProvider):
        async def get_all_tools(self) -> list[Any]:
            raise ConnectionError("no route to postgres://ann:hunter2@db/main")

    answer = await Unreachable().execute_dynamic_tool("list_tools")
    assert "no route to postgres://***@db/main" in answer["error"]
    assert "hunter2" not in str(answer)


async def test_a_cancellation_inside_the_source_is_its_own_failure() -> None:
    class Cancelled(FakeProvider):
        async def get_all_tools(self) -> list[Any]:
            await _awaits_a_cancelled_task()
            return []

    answer = await Cancelled().execute_dynamic_tool("list_tools")
    assert "could not be loaded: something it waited for was cancelled." in answer["error"]


async def test_a_call_that_is_cancelled_from_outside_is_cancelled() -> None:
    began = anyio.Event()

    class Hangs(Returning):
        async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
            began.set()
            await anyio.sleep_forever()

    provider, answers = Hangs(lambda: None), []

    async def call() -> None:
        answers.append(await provider.call_tool("act"))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await began.wait()
            group.cancel_scope.cancel()
    assert answers == []


@dataclass
class Chain:
    """A value that may contain itself."""

    then: Any = None
    held: list[Any] = field(default_factory=list)


def _endless() -> Chain:
    chain = Chain()
    chain.then = chain
    return chain


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "the number nan"),
        ({"success": True, "result": float("inf")}, "the number inf"),
        ([{"deep": -float("inf")}], "the number -inf"),
        (10**5000, "more than 4,300 digits"),
        ({10**5000: 1}, "more than 4,300 digits"),
        (ToolResult(structured={"x": float("nan")}), "the number nan"),
        ({1: "a", "1": "b"}, "several keys that become '1'"),
        (_endless(), "nested more than 100"),
    ],
    ids=["nan", "inf", "deep", "huge", "huge key", "tool result", "equal keys", "endless"],
)
async def test_values_that_are_not_json_are_refused_with_the_reason(value: Any, why: str) -> None:
    answer = await Returning(lambda: value).execute_dynamic_tool("call_tool", {"tool_name": "act"})
    assert answer["success"] is False
    assert why in answer["error"]
    json.dumps(answer, allow_nan=False)


async def test_the_largest_json_numbers_are_kept() -> None:
    value = [1.7976931348623157e308, -0.0, 10**4299, True]
    answer = await Returning(lambda: value).call_tool("act")
    assert json.loads(json.dumps(answer, allow_nan=False))["result"] == value


async def test_arguments_with_numbers_that_are_not_json_are_refused() -> None:
    provider = FakeProvider()
    for text in ('{"a": NaN, "b": 1}', '{"a": 1e999, "b": 1}'):
        answer = await provider.call_tool("add", text)
        assert "not a JSON object" in answer["error"]


async def test_a_key_error_is_reported_with_its_type() -> None:
    nothing: dict[str, int] = {}

    assert (await Returning(lambda: nothing["x"]).call_tool("act"))["error"] == "KeyError: 'x'"


async def test_wrong_arguments_are_reported_under_the_name_that_the_model_knows() -> None:
    provider = FakeProvider(
        [FakeTool("stats.mean", parameters=_needs("values")), FakeTool("median", "stats", None, _needs("x"))]
    )
    assert (await provider.call_tool("mean", {}))["error"] == (
        'stats.mean: "values" is required. Valid: stats.mean(values: any[])'
    )
    assert (await provider.call_tool("median", {}))["error"].startswith('median: "x" is required. Valid: median(')


def _needs(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "array"}}, "required": [name]}


class Hasty(BaseDynamicToolProvider[Any]):
    """A subclass that does not call the base class's `__init__`."""

    def __init__(self) -> None:
        self.shelf: list[Any] = []

    async def get_all_tools(self) -> list[Any]:
        return self.shelf

    async def execute_tool(self, tool_name: str, arguments: dict[str, Any]) -> Any:
        return None


@pytest.mark.parametrize(("name", "arguments"), ASKED)
async def test_a_missing_super_init_is_reported_in_the_response(name: str, arguments: dict[str, Any]) -> None:
    provider = Hasty()
    reason = "Hasty is not ready: its __init__ does not call the base class's. Call super().__init__() in it."
    assert await provider.execute_dynamic_tool(name, arguments) == {"success": False, "error": reason}
    assert await provider.call_many([("act", {})]) == [{"success": False, "error": reason}]
    assert await provider.call_tool("act") == {"success": False, "error": reason}
    with pytest.raises(InvalidRequest, match="Hasty is not ready"):
        await provider.list_tools()
    with pytest.raises(InvalidRequest, match="Hasty is not ready"):
        provider.engine.advance_turn()


async def test_a_dict_of_tools_is_not_a_list_of_tools() -> None:
    class ByName(Returning):
        async def get_all_tools(self) -> Any:
            return {"act": {"name": "act"}}

    answer = await ByName(lambda: 1).execute_dynamic_tool("list_tools", {})
    assert answer["error"] == (
        "The tools could not be loaded: get_all_tools returned dict instead of a list. Return list(tools.values())."
    )


async def test_the_error_of_a_filter_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Secret(Returning):
        def filter_search_results(self, results: list[SearchResult[Any]]) -> Any:
            raise RuntimeError("db of tenant 7 is down")

    answer = await Secret(lambda: 1).execute_dynamic_tool("list_tools", {})
    assert answer["error"] == (
        "filter_search_results failed (RuntimeError). It must return a list of results; the log has the cause."
    )
    assert "tenant 7" in caplog.text


async def test_the_reason_of_a_failed_source_is_a_whole_sentence() -> None:
    answer = await Down().execute_dynamic_tool("list_tools", {})
    assert "the registry is down. The source of the tools failed" in answer["error"]
