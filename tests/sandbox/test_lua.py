"""Features of Lua scripts: promises, conversions, errors and the limits inside the engine."""

import sys
from typing import Any

import anyio
import pytest
from tests.sandbox.conftest import QUICK, Servers

from toolcrib.errors import MissingExtra, SandboxUnavailable
from toolcrib.sandbox import Limits, LuaSandbox, SandboxOptions, ScriptError
from toolcrib.sandbox.calls import Tools
from toolcrib.sandbox.worker import seccomp


async def value(lua: LuaSandbox, source: str, tools: Tools, **options: Any) -> Any:
    with anyio.fail_after(30):
        return (await lua.run(source, tools, **options)).value


async def error(lua: LuaSandbox, source: str, tools: Tools, **options: Any) -> ScriptError:
    with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
        await lua.run(source, tools, **options)
    return caught.value


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("return slow.echo{v = 1}:await().v", 1),
        ("return slow:echo{v = 1}:await().v", 1),
        ("return await(slow.echo{v = 1}).v", 1),
        ("return slow.echo():await()", {}),
        ("return slow.echo(nil):await()", {}),
        ("return slow.echo(json.array{}):await()", {}),
        ("return {slow.echo{v = 1}:try()}", [True, {"v": 1}]),
        ("return {slow.fail{}:try()}", [False, "slow.fail: boom"]),
        ("return await_all{a = slow.echo{v = 1}, b = 2}", {"a": {"v": 1}, "b": 2}),
        ("return await_all{}", []),
        ("return {pcall(await_all, {slow.fail{}, slow.echo{}})}", [False, "slow.fail: boom"]),
        ("local p = slow.echo{v = 1}\nreturn p:await() == p:await()", True),
        ("return coroutine.wrap(function() return slow.echo{v = 1}:await().v end)()", 1),
        ("return (('ab'):gsub('.', function(c) return slow.echo{v = c .. c}:await().v end))", "aabb"),
        ("return tostring(slow.echo{}) .. tostring(slow) .. tostring(null)", "call to slow.echoserver slownull"),
        (
            "local names = {} for name in pairs(calculator) do names[#names + 1] = name end return names",
            ["add", "multiply"],
        ),
        ("return json.encode(json.decode('[1, null, {\"a\": {}}]'))", '[1,null,{"a":{}}]'),
        ("return load('return ...')(5)", 5),
        ("return load('return x', 'named', 't', {x = 3})()", 3),
        ("local co = coroutine.wrap(function() coroutine.yield(1) error('oops') end) return {co(), pcall(co)}", None),
        ("return 1, nil, 'x'", [1, None, "x"]),
        ("return select('#', table.unpack({1, 2}))", 2),
        ("return -0.0", 0),
        ("return 2^53", 9007199254740992.0),
    ],
)
async def test_a_script_gives(lua: LuaSandbox, tools: Tools, source: str, expected: object) -> None:
    given = await value(lua, source, tools)
    assert given == expected if expected is not None else given[:2] == [1, False]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("local p = slow.echo{}\nreturn p.result", "script:2: slow.echo was not awaited; add :await()"),
        ("return slow.echo{} + 1", "arithmetic on a call that was not awaited value"),
        ("await_all(slow.echo{})", "await_all needs a table of calls"),
        ("await(5)", "await needs a call such as server.tool{...}, and got a number"),
        ("return {x = {slow.echo{}}}", "result.x[1] is a call to slow.echo that was not awaited"),
        ("return {['a b'] = {[3] = print}}", 'result["a b"][3] is a function'),
        ("slow.echo{a = {b = print}}", "script:1: slow.echo.a.b is a function"),
        ("calculator.divide{}", "server 'calculator' has no tool 'divide'; it has: add, multiply"),
        ("json.array(5)", "json.array needs a table"),
        ("coroutine.wrap(5)", "coroutine.wrap needs a function"),
        ("json.decode('01')", "not valid JSON at byte 1"),
    ],
)
async def test_a_script_learns(lua: LuaSandbox, tools: Tools, source: str, said: str) -> None:
    assert said in (await error(lua, source, tools)).message


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("local p = 1\nreturn slow.fail{}:await()", 2),
        ("local t = slow.fail\nlocal p = t{}\nreturn p:await()", 2),
        ("local function f()\n  return slow.fail{}:await()\nend\nlocal x = f()", 2),
        ("local list = {slow.echo{}, slow.fail{}}\nreturn await_all(list)", 1),
    ],
)
async def test_the_error_of_a_tool_has_a_line_after_a_tail_call_too(
    lua: LuaSandbox, tools: Tools, source: str, line: int
) -> None:
    failed = await error(lua, source, tools)
    assert (failed.line, failed.message) == (line, f"script:{line}: slow.fail: boom")


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        ("setmetatable({}, {__index = slow.echo{}})", "a table that is no call"),
        ("slow.echo", "a function"),
        ("slow", "a server"),
    ],
)
async def test_await_all_refuses_what_is_neither_a_call_nor_a_value(
    lua: LuaSandbox, tools: Tools, item: str, kind: str
) -> None:
    failed = await error(lua, f"local all = await_all{{slow.echo{{}}, {item}}}", tools)
    assert failed.message == f"script:1: await_all needs calls such as server.tool{{...}}; item 2 is {kind}"


async def test_await_all_passes_values_through(lua: LuaSandbox, tools: Tools) -> None:
    given = await value(lua, "return await_all{1, 'x', {y = 2}, null, slow.echo{v = 3}}", tools)
    assert given == [1, "x", {"y": 2}, None, {"v": 3}]


async def test_a_text_has_functions_and_no_fields(lua: LuaSandbox, tools: Tools) -> None:
    own = "function string.twice(text) return text .. text end return ('ab'):twice():upper()"
    assert await value(lua, own, tools) == "ABAB"
    failed = await error(lua, "local text = 'hello'\nreturn text.message", tools)
    assert (failed.line, failed.message) == (2, 'script:2: a text has no field message; it is "hello"')
    assert failed.hint.startswith("A tool that answers with text gives a string")


async def test_a_variable_that_hides_result_is_pointed_out(lua: LuaSandbox, tools: Tools) -> None:
    shadowed = await error(lua, "local result = slow.echo{}:await()\nresult({x = 1})", tools)
    assert (shadowed.line, shadowed.hint) == (
        2,
        '"result" is a variable of the script here and hides the function of that name; rename the variable.',
    )


async def test_a_traceback_shows_only_the_script(lua: LuaSandbox, tools: Tools) -> None:
    source = "local function inner()\n  slow.fail{}:await()\nend\nlocal function outer()\n  inner()\nend\nouter()"
    failed = await error(lua, source, tools)
    assert failed.line == 2
    assert [line for line in (2, 5, 7) if f"script:{line}:" in failed.traceback] == [2, 5, 7]
    assert "prelude" not in failed.traceback


async def test_an_endless_loop_is_ended_with_its_line(lua: LuaSandbox, tools: Tools) -> None:
    ended = await error(lua, "print('before')\nlocal n = 0\nwhile true do\n  n = n + 1\nend", tools)
    assert ended.kind == "cpu"
    assert ended.line in (3, 4)
    assert ended.printed == "before\n"


async def test_an_endless_loop_in_a_coroutine_is_ended_with_its_line(lua: LuaSandbox, tools: Tools) -> None:
    ended = await error(lua, "local f = coroutine.wrap(function()\n  while true do end\nend)\nf()", tools)
    assert (ended.kind, ended.line) == ("cpu", 2)


async def test_the_kernel_ends_scripts_that_the_engine_cannot(lua: LuaSandbox, tools: Tools) -> None:
    source = "return (('a'):rep(60000)):find(('.-'):rep(9) .. 'z')"
    ended = await error(lua, source, tools, limits=Limits(soft_cpu_s=0.1, cpu_s=1))
    assert ended.kind == "cpu"
    assert ended.message == (
        "the script used more processor time than it may: 0.1 seconds, or 1 where it cannot be interrupted"
    )


NO_ROOM = """
local function compute() while true do end end
local function pcalls(n) if n == 0 then compute() end return pcall(pcalls, n - 1) end
local function frames(n) if n == 0 then compute() end local down = frames(n - 1) return down end
{where}
local held = {{}}
for i = 1, 8 do held[i] = string.rep(tostring(i % 10), 16 << 20) end
return "held " .. #held * 16
"""


@pytest.mark.parametrize(
    "where", ["pcalls(195)", "pcalls(196)", "pcall(frames, 499985 - 12)", "pcall(frames, 499985 - 14)"]
)
async def test_a_script_keeps_its_limits_where_the_stack_is_nearly_full(lua: LuaSandbox, where: str) -> None:
    ended = await error(lua, NO_ROOM.format(where=where), {}, limits=Limits(wall_s=20, soft_cpu_s=0.3, cpu_s=10))

    assert ended.kind in ("cpu", "memory")


async def test_an_empty_table_is_an_array_if_the_schema_says_so(lua: LuaSandbox, tools: Tools) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array"}, "meta": {"type": "object"}}}
    source = "return slow.echo{tags = {}, meta = {}, other = {}}:await()"
    given = await value(lua, source, tools, schemas={"slow": {"echo": schema}})
    assert given == {"tags": [], "meta": {}, "other": {}}


async def test_an_empty_table_is_an_array_behind_references_and_alternatives_too(lua: LuaSandbox, tools: Tools) -> None:
    some = {"anyOf": [{"type": "array"}, {"type": "null"}]}
    schema = {
        "type": "object",
        "properties": {"item": {"$ref": "#/$defs/Item"}, "either": {"anyOf": [{"type": "array"}, {"type": "object"}]}},
        "additionalProperties": some,
        "$defs": {
            "Item": {"type": "object", "properties": {"tags": some, "parts": {"type": "array", "items": {"$ref": "#"}}}}
        },
    }
    source = "return slow.echo{item = {tags = {}, parts = {{item = {tags = {}}}}}, either = {}, more = {}}:await()"
    given = await value(lua, source, tools, schemas={"slow": {"echo": schema}})
    assert given == {"item": {"tags": [], "parts": [{"item": {"tags": []}}]}, "either": {}, "more": []}


@pytest.mark.parametrize(
    ("limits", "source", "kind", "said"),
    [
        (Limits(lua_bytes=1 << 20), "return #('x'):rep(1 << 21)", "memory", "not enough memory"),
        (Limits(depth=3), "return {{{{}}}}", "script", "nested deeper than 3 levels"),
        (Limits(nodes=3), "return {1, 2, 3}", "script", "larger than 3 values"),
        (Limits(out_bytes=10), "slow.echo{v = 'xxxxxxxxxx'}", "script", "slow.echo is larger than 10 bytes"),
        (Limits(error_bytes=20), "error(('x'):rep(100))", "script", "…"),
        (Limits(calls=2), "for i = 1, 3 do slow.echo{} end", "script", "more than 2 tool calls in one script"),
        (Limits(as_bytes=160 << 20, lua_bytes=1 << 30), "return #('x'):rep(1 << 28)", "memory", "memory"),
    ],
)
async def test_each_limit_applies(
    lua: LuaSandbox, tools: Tools, limits: Limits, source: str, kind: str, said: str
) -> None:
    ended = await error(lua, source, tools, limits=limits)
    assert (ended.kind, said in ended.message) == (kind, True), ended


async def test_more_calls_than_fit_at_once_wait_for_their_turn(lua: LuaSandbox) -> None:
    running = most = 0

    async def tool(arguments: dict[str, Any]) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        return arguments["v"]

    source = "local all = {} for i = 1, 50 do all[i] = s.t{v = i} end return await_all(all)"
    assert await value(lua, source, {"s": {"t": tool}}, limits=Limits(inflight=3)) == list(range(1, 51))
    assert most <= 3


async def test_the_arguments_of_running_calls_are_limited_together(lua: LuaSandbox, servers: Servers) -> None:
    source = "local all = {} for i = 1, 20 do all[i] = slow.echo{v = ('x'):rep(900)} end return #await_all(all)"
    limits = Limits(out_bytes=1000, frame_bytes=2100)
    assert await value(lua, source, servers.tools(), limits=limits) == 20


async def test_a_thousand_servers_can_be_offered(lua: LuaSandbox) -> None:
    async def tool(arguments: dict[str, Any]) -> Any:
        return arguments

    tools = {f"server {number}": {f"tool {place}": tool for place in range(20)} for number in range(100)}
    assert await value(lua, "return server_99.tool_19{v = 1}:await().v", tools) == 1


async def test_without_lupa_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lupa", None)
    with pytest.raises(MissingExtra, match=r"pip install 'toolcrib\[lua\]'"):
        async with LuaSandbox():
            pass


async def test_without_a_filter_it_refuses_or_warns_as_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tools: Tools
) -> None:
    monkeypatch.setattr(seccomp, "missing", lambda: "this is a test")
    with pytest.raises(SandboxUnavailable, match=r'this is a test.*sandbox.seccomp to "try"'):
        async with LuaSandbox():
            pass
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(seccomp="try", pool=1)) as box:
        assert await value(box, "return 1", tools) == 1
