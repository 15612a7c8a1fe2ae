"""The contract of every engine, each with scripts in its own language."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import anyio
import pytest
from tests.sandbox.conftest import Servers

from toolcrib.errors import InvalidRequest, NotStarted, ScriptFailed, ScriptLimit, ScriptRefused, ToolcribError
from toolcrib.sandbox import CallTrace, Limits, LuaSandbox, PythonSandbox, SandboxOptions, ScriptError, ScriptResult
from toolcrib.sandbox.calls import Tools
from toolcrib.sandbox.languages import LUA

Box = LuaSandbox | PythonSandbox

SCRIPTS: Mapping[str, tuple[str, str]] = {
    "sum": (
        "local sum = calculator.add{a = 10, b = 20}:await()\nreturn calculator.multiply{a = sum.result, b = 2}:await()",
        "sum = await calculator.add(a=10, b=20)\nawait calculator.multiply(a=sum['result'], b=2)",
    ),
    "result": ("result(1)\nresult{2, null}\n", "result(1)\nresult([2, None])\n3"),
    "null": ("result(nil)", "result(None)"),
    "nothing": ("local x = 1", "x = 1"),
    "print": ("print('a', 1)\nprint('é')", "print('a', 1)\nprint('é')"),
    "print much": ("for i = 1, 100 do print(('x'):rep(99)) end", "for i in range(100):\n    print('x' * 99)"),
    "fail": ("local x = 1\nslow.fail{}:await()", "x = 1\nawait slow.fail()"),
    "catch": (
        "local ok, e = slow.fail{}:try()\nreturn {ok, e}",
        "try:\n    await slow.fail()\nexcept RuntimeError as e:\n    said = [False, str(e)]\nsaid",
    ),
    "error": ("local x = 1\nlocal y = x.a.b", "x = 1\ny = x.a"),
    "syntax": ("local a = 1\nlocal = 2", "a = 1\nb = = 2"),
    "together": (
        "local a, b, c = slow.sleep{s = 60, v = 1}, slow.sleep{s = 60}, slow.sleep{s = 60}\nawait_all{a, b, c}",
        "import asyncio\nawait asyncio.gather(slow.sleep(s=60), slow.sleep(s=60), slow.sleep(s=60))",
    ),
    "all": (
        "return await_all{slow.echo{v = 1}, slow.echo{v = 2}}",
        "import asyncio\nawait asyncio.gather(slow.echo(v=1), slow.echo(v=2))",
    ),
    "left": ("slow.sleep{s = 60}\nslow.echo{}:await()\nreturn 1", "p = slow.sleep(s=60)\nawait slow.echo()\n1"),
    "forever": ("while true do end", "while True:\n    pass"),
    "many": ("for i = 1, 5 do slow.echo{}:await() end", "for i in range(5):\n    await slow.echo()"),
    "echo": ("return slow.echo(slow.fixture{}:await()):await()", "f = await slow.fixture()\nawait slow.echo(**f)"),
    "big": ("return slow.big{n = 5000}:await()", "await slow.big(n=5000)"),
    "none": ("return nope == nil", "True"),
    "unknown": ("\ncalculator.ad{a = 1}", "\nawait calculator.ad(a=1)"),
    "odd names": (
        'local own = _G["data-server"]\nreturn {data_server.get_user{}:await(), own["get-user"]{}:await()}',
        "[await data_server.get_user(), await call_tool('data-server', 'get-user')]",
    ),
}


def script(box: Box, name: str) -> str:
    return SCRIPTS[name][0 if box.language is LUA else 1]


async def run(box: Box, name: str, tools: Tools, **options: Any) -> ScriptResult:
    with anyio.fail_after(30):
        return await box.run(script(box, name), tools, **options)


async def failed(box: Box, name: str, tools: Tools, **options: Any) -> ScriptError:
    with pytest.raises(ScriptError) as caught:
        await run(box, name, tools, **options)
    return caught.value


async def test_a_script_combines_the_answers_of_several_calls(box: Box, tools: Tools) -> None:
    result = await run(box, "sum", tools)
    assert (result.value, result.has_value) == ({"result": 60}, True)
    assert [(call.server, call.tool, call.outcome) for call in result.calls] == [
        ("calculator", "add", "ok"),
        ("calculator", "multiply", "ok"),
    ]


async def test_the_last_result_wins_over_earlier_ones_and_over_the_last_value(box: Box, tools: Tools) -> None:
    assert (await run(box, "result", tools)).value == [2, None]


async def test_a_null_result_is_a_value_and_a_missing_result_is_none(box: Box, tools: Tools) -> None:
    null, nothing = await run(box, "null", tools), await run(box, "nothing", tools)
    assert (null.value, null.has_value) == (None, True)
    assert (nothing.value, nothing.has_value) == (None, False)


async def test_printed_output_is_returned_as_text(box: Box, tools: Tools) -> None:
    printed = (await run(box, "print", tools)).printed
    assert printed.replace("\t", " ") == "a 1\né\n"


async def test_too_much_printed_text_is_cut_with_a_warning(box: Box, tools: Tools) -> None:
    result = await run(box, "print much", tools, limits=Limits(print_bytes=1000))
    assert len(result.printed) == 1000
    assert any("cut" in warning for warning in result.warnings)


async def test_a_tool_that_fails_is_an_error_with_its_name_and_the_line(box: Box, tools: Tools) -> None:
    error = await failed(box, "fail", tools)
    assert "slow.fail: boom" in error.message
    assert (error.kind, error.line, type(error)) == ("script", 2, ScriptError)
    assert error.data["line"] == 2


async def test_a_script_can_catch_a_failing_tool(box: Box, tools: Tools) -> None:
    result = await run(box, "catch", tools)
    assert result.value == [False, "slow.fail: boom"]
    assert result.calls[0].outcome == "error"
    assert result.calls[0].error == "boom"


async def test_a_toolcrib_error_reaches_the_script_with_its_hint(box: Box) -> None:
    async def fail(_: dict[str, Any]) -> Any:
        raise ToolcribError("No such thing.", hint="Try another.")

    error = await failed(box, "fail", {"slow": {"fail": fail}})
    assert "No such thing. Try another." in error.message


async def test_an_error_names_its_tool_only_once(box: Box) -> None:
    async def fail(_: dict[str, Any]) -> Any:
        raise ToolcribError("slow:fail is closed on Sundays.")

    error = await failed(box, "fail", {"slow": {"fail": fail}})
    assert "slow.fail: is closed on Sundays." in error.message


async def test_a_mistake_in_a_script_is_shown_with_its_line_and_traceback(box: Box, tools: Tools) -> None:
    error = await failed(box, "error", tools)
    assert (error.kind, error.line) == ("script", 2)
    assert "script" in error.traceback


async def test_a_script_that_does_not_parse_is_refused_with_its_line(box: Box, tools: Tools) -> None:
    error = await failed(box, "syntax", tools)
    assert isinstance(error, ScriptRefused)
    assert error.line in (2, None)
    assert error.code == "script_refused"


async def test_calls_start_at_once_and_run_together(box: Box, servers: Servers) -> None:
    servers.expected = 3
    with anyio.fail_after(30):
        task = asyncio.create_task(box.run(script(box, "together"), servers.tools()))
        await servers.arrived.wait()  # three calls of a minute each: they can only have been started together
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert len(servers.cancelled) == 3


async def test_several_calls_are_awaited_in_the_order_they_are_named(box: Box, tools: Tools) -> None:
    assert (await run(box, "all", tools)).value == [{"v": 1}, {"v": 2}]


async def test_cancelling_a_run_ends_its_calls_before_it_returns(box: Box, servers: Servers) -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(box.run, script(box, "together"), servers.tools())
            await servers.arrived.wait()
            group.cancel_scope.cancel()
    assert len(servers.cancelled) == len(servers.started)


async def test_a_call_that_is_never_awaited_is_cancelled_and_named(box: Box, servers: Servers) -> None:
    result = await run(box, "left", servers.tools())
    assert (result.value, result.unawaited) == (1, ("slow.sleep",))
    assert len(servers.cancelled) == len(servers.started) == 1
    assert [call.outcome for call in result.calls] == ["ok", "cancelled"]
    assert "slow.sleep" in result.warnings[0]


async def test_a_wall_clock_ends_a_script_that_waits(box: Box, servers: Servers) -> None:
    error = await failed(box, "together", servers.tools(), limits=Limits(wall_s=0.5))
    assert error.kind == "wall"
    assert isinstance(error, ScriptLimit)
    assert len(servers.cancelled) == len(servers.started)


async def test_a_script_that_computes_forever_is_ended(box: Box, tools: Tools) -> None:
    error = await failed(box, "forever", tools)
    assert error.kind == "cpu"
    assert isinstance(error, ScriptLimit)


async def test_more_calls_than_allowed_end_the_script(box: Box, servers: Servers) -> None:
    error = await failed(box, "many", servers.tools(), limits=Limits(calls=3))
    assert error.kind in ("script", "calls")
    assert "3 tool calls" in error.message


async def test_json_survives_a_round_trip(box: Box, tools: Tools) -> None:
    assert (await run(box, "echo", tools)).value == {"n": None, "e": [], "o": {}, "x": [1, None, 3]}


async def test_an_answer_that_is_too_large_is_an_error_of_that_call(box: Box, tools: Tools) -> None:
    error = await failed(box, "big", tools, limits=Limits(response_bytes=1000))
    assert "slow.big" in error.message
    assert "larger than 1000 bytes" in error.message


async def test_a_result_that_is_too_large_is_an_error(box: Box, tools: Tools) -> None:
    error = await failed(box, "big", tools, limits=Limits(out_bytes=1000))
    assert "larger than 1000 bytes" in error.message


async def test_a_script_that_is_too_long_is_not_run(box: Box, tools: Tools) -> None:
    error = await failed(box, "sum", tools, limits=Limits(script_bytes=10))
    assert (error.kind, isinstance(error, ScriptRefused)) == ("size", True)


async def test_an_error_for_a_misspelled_tool_suggests_the_closest(box: Box, tools: Tools) -> None:
    error = await failed(box, "unknown", tools, schemas={})
    assert error.line == 2
    assert error.suggestions == ("calculator.add",)


async def test_tools_answer_to_their_identifiers_and_to_their_own_names(box: Box) -> None:
    async def get(_: dict[str, Any]) -> Any:
        return 7

    assert (await run(box, "odd names", {"data-server": {"get-user": get}})).value == [7, 7]


async def test_a_tool_may_also_return_its_value_at_once(box: Box) -> None:
    result = await run(box, "sum", {"calculator": {"add": lambda a: {"result": 1}, "multiply": lambda a: a["a"]}})
    assert result.value == 1


async def test_an_answer_that_json_cannot_represent_is_an_error_of_that_call(box: Box) -> None:
    async def nan(_: dict[str, Any]) -> Any:
        return {"x": float("nan")}

    async def strange(_: dict[str, Any]) -> Any:
        return object()

    for tool in (nan, strange):
        error = await failed(box, "fail", {"slow": {"fail": tool}})
        assert "cannot be represented in JSON" in error.message


async def test_a_listener_gets_every_call_as_it_ends(box: Box, tools: Tools) -> None:
    ended: list[CallTrace] = []
    await run(box, "many", tools, on_call=ended.append)
    assert [call.tool for call in ended] == ["echo"] * 5


async def test_scripts_know_nothing_of_each_other(box: Box, tools: Tools) -> None:
    with anyio.fail_after(30):
        await box.run("nope = 1", tools)
    assert (await run(box, "none", tools)).value is True


async def test_a_check_finds_the_calls_and_makes_none(box: Box, servers: Servers) -> None:
    with anyio.fail_after(30):
        seen = await box.check(script(box, "sum"), servers.tools())
        with pytest.raises(ScriptRefused):
            await box.check(script(box, "syntax"), servers.tools())
    assert [(call.server, call.tool, call.line, call.known) for call in seen.calls] == [
        ("calculator", "add", 1, True),
        ("calculator", "multiply", 2, True),
    ]
    assert servers.started == []


async def test_a_sandbox_that_is_not_started_says_so(tools: Tools) -> None:
    for engine in (LuaSandbox(), PythonSandbox()):
        with pytest.raises(NotStarted):
            await engine.run("", tools)


async def test_scripts_wait_for_their_turn_and_then_give_up(tools: Tools, servers: Servers) -> None:
    options = SandboxOptions(workers=1, pool=1, queue_wait_s=0.2)
    async with LuaSandbox(options=options) as box:
        with anyio.fail_after(30):
            running = asyncio.create_task(box.run(SCRIPTS["together"][0], servers.tools()))
            await servers.arrived.wait()
            with pytest.raises(ScriptFailed, match="1 scripts are already running"):
                await box.run("return 1", tools)
            running.cancel()
            await asyncio.wait([running])
            assert (await box.run("return 1", tools)).value == 1


def test_limits_must_be_above_zero() -> None:
    fields: Iterable[str] = Limits.__slots__
    for name in fields:
        with pytest.raises(InvalidRequest, match=name):
            Limits(**{name: 0})
