"""Scripts over a gateway: a script can do what its caller can, and nothing more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from toolcrib.errors import ExecutionFailed, InvalidRequest, MissingExtra
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.middleware.options import CallOptions
from toolcrib.sandbox import Limits, SandboxOptions
from toolcrib.sandbox.limits import ScriptOptions
from toolcrib.scripting.runner import CALLS_META, ScriptRunner, make_script_runner
from toolcrib.testing import FakeProvider, FakeSource, ready
from toolcrib.types import (
    Action,
    Call,
    Caller,
    CallNext,
    Context,
    Decision,
    Object,
    ServerState,
    Tool,
    ToolProvider,
    ToolResult,
    Visibility,
)

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
PAIR: Object = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
READS: Object = {"readOnlyHint": True}


async def answer(ctx: Context, name: str, arguments: Object) -> ToolResult:
    """Answer the calls of these tests."""
    if name == "add":
        return ToolResult(structured={"result": arguments["a"] + arguments["b"]})
    if name == "fail":
        return ToolResult(content=({"type": "text", "text": "no such account"},), is_error=True)
    if name == "text":
        return ToolResult(content=({"type": "text", "text": str(arguments.get("say", ""))},))
    if name == "who":
        return ToolResult(structured={"caller": ctx.caller.id, "asked": ctx.request_state})
    return ToolResult(
        content=({"type": "text", "text": "a"}, {"type": "image", "data": "QUJD", "mimeType": "image/png"})
    )


def tools() -> list[Tool]:
    return [
        Tool(name="add", namespace="calc", input_schema=PAIR, annotations=READS),
        Tool(name="fail", namespace="calc"),
        Tool(name="text", namespace="data-server"),
        Tool(name="who", namespace="data-server"),
        Tool(name="picture", namespace="data-server"),
        Tool(name="who", input_schema={"type": "object"}),
        Tool(name="secret", namespace="calc", visibility=Visibility.HIDDEN),
    ]


class NoFail:
    """Only the boss sees calc:fail."""

    def scope(self, caller: Caller) -> bool:
        return caller.id == "boss"

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.HIDE if tool.name == "fail" and caller.id != "boss" else Decision.ALLOW


class NoCalls(NoFail):
    """A policy with a mistake in it."""

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        if action is Action.CALL:
            raise LookupError("no role in postgres://ann:pw@db/roles")
        return Decision.ALLOW


@asynccontextmanager
async def scripts(
    *more: ToolProvider, levels: int = 3, sandbox: SandboxOptions | None = None, **gateway: Any
) -> AsyncIterator[ScriptRunner]:
    known = Gateway([FakeSource(FakeProvider(tools(), answer), *more)], **gateway)
    made = make_script_runner(known, sandbox=sandbox, options=ScriptOptions(levels=levels))
    with anyio.fail_after(60):
        async with made.engines:
            yield made


def said(result: ToolResult) -> str:
    return "\n".join(str(block.get("text", block["type"])) for block in result.content)


async def test_a_script_reads_no_message_of_an_error_of_the_applications_policy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripts(policy=NoCalls()) as run:
        done = await run.run(ME, "return calc.add{a=1, b=2}:await()")
    assert "Internal error; see the server's log for the cause." in said(done)
    assert "no role" not in said(done) + str(done.structured)
    assert "no role" in caplog.text


# -- values ------------------------------------------------------------------------------------------------------------


async def test_a_script_gets_structured_content_else_json_else_text_else_everything() -> None:
    async with scripts() as run:
        for script, value in [
            ("calc.add{a=1, b=2}", {"result": 3}),
            ('data_server.text{say="[1, 2]"}', [1, 2]),
            ('data_server.text{say="plain words"}', "plain words"),
        ]:
            done = await run.run(ME, f"return {{ got = {script}:await() }}")
            assert done.structured == {"got": value}
        whole = await run.run(ME, "local r = data_server.picture{}:await() return { kind = r.content[2].type }")
    assert whole.structured == {"kind": "image"}


async def test_a_result_of_blocks_passes_through_whole() -> None:
    async with scripts() as run:
        done = await run.run(ME, "return data_server.picture{}:await()")
    assert [block["type"] for block in done.content] == ["text", "image"]
    assert done.structured is None


async def test_an_object_that_only_resembles_a_result_stays_an_object() -> None:
    async with scripts() as run:
        done = await run.run(ME, "return { content = { { kind = 'text' } } }")
    assert done.structured == {"content": [{"kind": "text"}]}


async def test_printed_text_and_unawaited_calls_are_reported_beside_the_result() -> None:
    async with scripts() as run:
        done = await run.run(ME, "print('looking') calc.add{a=1, b=2} return 1")
    assert said(done).startswith("1\nPrinted:\nlooking")
    assert "never awaited" in said(done)


async def test_the_calls_of_a_script_are_reported_with_their_outcomes() -> None:
    async with scripts() as run:
        done = await run.run(ME, "calc.add{a=1, b=2}:await() calc.fail{}:try() return 1")
    calls = [{key: value for key, value in call.items() if key != "duration_ms"} for call in done.meta[CALLS_META]]
    assert calls == [
        {"name": "calc:add", "outcome": "ok"},
        {"name": "calc:fail", "outcome": "error", "error": "no such account"},
    ]
    assert all(call["duration_ms"] >= 0 for call in done.meta[CALLS_META])


# -- rights ------------------------------------------------------------------------------------------------------------


async def test_tools_that_the_caller_may_not_see_do_not_exist_for_their_script() -> None:
    async with scripts(policy=NoFail()) as run:
        mine = await run.run(ME, "return calc.fail{}:await()")
        boss = await run.run(Context(caller=Caller(id="boss")), "return calc.fail{}:await()")
    assert "has no tool 'fail'" in said(mine)
    assert "no such account" in said(boss)


async def test_every_call_is_checked_against_its_schema_and_the_error_teaches() -> None:
    async with scripts() as run:
        done = await run.run(ME, "return calc.add{a='one', b=2}:await()")
    assert done.is_error
    assert '"a" must be number' in said(done)
    assert "calc.add: " in said(done)


async def test_middleware_applies_to_a_scripts_calls() -> None:
    seen: list[str] = []

    class Watching:
        async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
            seen.append(f"{ctx.caller.id} {call.tool.id}")
            return await call_next(ctx, call)

    async with scripts(middleware=[Watching()]) as run:
        await run.run(ME, "return calc.add{a=1, b=2}:await()")
    assert seen == ["me calc:add"]


async def test_the_session_remembers_what_a_script_used() -> None:
    async with scripts() as run:
        await run.run(ME, "return calc.add{a=1, b=2}:await()")
        assert "calc:add" in await run._gateway.sessions.boosts(ME)


async def test_a_call_that_needs_approval_is_refused_if_the_scripts_client_cannot_ask() -> None:
    options = GatewayOptions(calls=CallOptions(approval="always"))
    async with scripts(options=options) as run:
        done = await run.run(ME, "local ok, why = calc.add{a=1, b=2}:try() return { ok = ok, why = why }")
    assert done.structured["ok"] is False
    assert "a person must agree" in done.structured["why"]


async def test_a_call_that_asks_for_more_is_an_error_that_a_script_can_catch() -> None:
    async def ask(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(kind="input_required", input_requests={"q": {}})

    async with scripts(FakeProvider([Tool(name="ask", namespace="more")], ask)) as run:
        done = await run.run(ME, "local ok, why = more.ask{}:try() return why")
    assert "call the tool by itself" in said(done)


async def test_answers_to_the_script_itself_do_not_reach_its_tools() -> None:
    async with scripts() as run:
        ctx = Context(caller=Caller(id="me"), request_state="of execute", input_responses={"x": {}})
        done = await run.run(ctx, "return data_server.who{}:await()")
    assert done.structured == {"caller": "me", "asked": None}


async def test_a_read_only_script_sees_only_read_only_tools() -> None:
    async with scripts() as run:
        reads = await run.run(ME, "return calc.add{a=1, b=2}:await()", read_only=True)
        acts = await run.run(ME, "return calc.fail{}:await()", read_only=True)
        other = await run.run(ME, "return data_server.who{}:await()", read_only=True)
    assert reads.structured == {"result": 3}
    assert "has no tool 'fail'; it has: add" in said(acts)
    assert "only tools that are marked" in said(other)


async def test_a_hidden_tool_can_be_called_by_its_exact_name_and_is_never_listed() -> None:
    async with scripts() as run:
        called = await run.run(ME, "return calc.secret{}:await()")
        wrong = await run.run(ME, "return calc.secrt{}:await()")
    assert not called.is_error
    assert "secret" not in said(wrong)


# -- names -------------------------------------------------------------------------------------------------------------


async def test_tools_without_a_namespace_share_one_server_name() -> None:
    async with scripts() as run:
        done = await run.run(ME, "return tools.who{}:await()")
    assert done.structured == {"caller": "me", "asked": None}


async def test_tools_without_a_namespace_give_way_to_a_server_of_that_name() -> None:
    async with scripts(FakeProvider([Tool(name="hammer", namespace="tools")])) as run:
        theirs = await run.run(ME, "return tools.hammer{}:await().tool")
        own = await run.run(ME, "return own_tools.who{}:await().caller")
    assert (said(theirs), said(own)) == ("hammer", "me")


async def test_tools_of_a_request_exist_only_for_its_script() -> None:
    own = FakeProvider([Tool(name="mine", namespace="calc"), Tool(name="note", namespace="pad")])
    async with scripts() as run:
        ctx = ME.with_providers(own)
        done = await run.run(
            ctx, "return { calc.mine{}:await().tool, pad.note{}:await().tool, calc.add{a=1,b=1}:await() }"
        )
        others = await run.run(ME, "return pad.note{}:await()")
    assert said(done) == '["mine","note",{"result":2}]'
    assert others.is_error


async def test_a_failed_server_is_named_when_a_script_uses_it() -> None:
    down = FakeProvider([], status=ready("git", state=ServerState.FAILED, reason="exited with code 1"))
    async with scripts(down) as run:
        done = await run.run(ME, "return git.log{}:await()")
    assert "Server git has failed: exited with code 1." in said(done)


# -- how scripts end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["lua", "python"])
async def test_an_error_comes_in_band_with_kind_line_and_traceback(language: str) -> None:
    source = {"lua": "local x = 1\nerror('broken')", "python": "x = 1\nraise ValueError('broken')"}[language]
    async with scripts() as run:
        done = await run.run(ME, source, language=language)
    assert done.is_error
    details = done.structured["error"]["details"]
    assert (details["kind"], details["line"]) == ("script", 2)
    assert "2" in details["traceback"]
    assert "broken" in said(done)


async def test_an_error_for_a_wrong_name_suggests_the_closest() -> None:
    async with scripts() as run:
        done = await run.run(ME, "return calc.ad{}:await()")
    assert done.structured["error"]["suggestions"] == ["calc.add"]


LUA_MISTAKES = {
    "local now = os.time()": "there is no os.",
    'local file = io.open("x")': "there is no io.",
    'local json = require("json")': "No module can be loaded; json is there without require.",
    "calculator.add{a = 1, b = 2}": "calculator is neither a server nor a variable. The servers: ",
    "add{a = 1, b = 2}": "add is a tool of calc: write calc.add.",
    "calc{a = 1, b = 2}": "calc is a server: call one of its tools, as in calc.tool{...}.",
    "```lua\nreturn 1\n```": "Send the script alone, without Markdown's ``` lines.",
    "r = await calc.add(a=1, b=2)": "This is Python, but it was run as Lua: set the language to python, or write Lua.",
    "import json\nprint(1)": "This is Python, but it was run as Lua: set the language to python, or write Lua.",
    "const r = 1;": "This is JavaScript, but it was run as Lua: write local x = 1.",
    "local x = 1\nif x != 2 then end": 'In Lua, "not equal" is written ~=.',
    "local x = 1\nx += 1": "Lua has no +=: write x = x + 1.",
    "for i = 1, 3 do if i == 2 then continue end end": "Lua has no continue: use an if, or goto with a label.",
    "local r = calc.add{a = 1, b = 2}\nreturn r + 1": "A call starts at once; add :await() to get its answer.",
    "return 'a' + 'b'": "Lua joins texts with .. instead of +.",
    "local t = {}\nreturn t.user.name": "There is no user. To see what a value holds, print(json.encode(value)).",
}
PYTHON_MISTAKES = {
    "calculator.add(a=1, b=2)": "calculator is neither a server nor a variable. The servers: ",
    "add(a=1, b=2)": "add is a tool of calc: write calc.add.",
    "```python\n1\n```": "Send the script alone, without Markdown's ``` lines.",
    "local r = calc.add{a = 1}:await()": (
        "This is Lua, but it was run as Python: set the language to lua, or write Python."
    ),
    "const r = await calc.add({a: 1})": "This is JavaScript, but it was run as Python: write x = 1.",
    "r = calc.add(a=1, b=2)\nr + 1": "A tool's answer comes with await: r = await server.tool(name=value).",
    "await calc.add(1, 2)": "Pass arguments by name: server.tool(name=value).",
    "text = 'x'\ntext['message']": "A tool that answers with text gives a string: use it as it is",
    "text = await data_server.text(say='x')\ntext['message']": (
        "A tool that answers with text gives a string: use it as it is"
    ),
    "open('x').read()": "there is no open.",
}


@pytest.mark.parametrize(("language", "mistakes"), [("lua", LUA_MISTAKES), ("python", PYTHON_MISTAKES)])
async def test_the_error_of_a_usual_mistake_says_what_to_write(language: str, mistakes: dict[str, str]) -> None:
    async with scripts() as run:
        for source, hint in mistakes.items():
            failed = await run.run(ME, source, language=language)
            assert failed.is_error
            assert hint in said(failed), source


async def test_the_text_of_a_tools_error_is_not_taken_for_a_mistake_of_the_script() -> None:
    async def refuse(ctx: Context, name: str, arguments: Object) -> ToolResult:
        raise ExecutionFailed("near '!' is a nil value (global 'os'), 'coroutine', PermissionError, and no text")

    strict = FakeProvider([Tool(name="refuse", namespace="odd")], refuse)
    async with scripts(strict) as run:
        for language, source in (("lua", "return odd.refuse{}:await()"), ("python", "await odd.refuse()")):
            failed = await run.run(ME, source, language=language)
            assert "hint" not in failed.structured["error"]


async def test_a_script_has_a_budget_of_calls() -> None:
    async with scripts() as run:
        done = await run.run(ME, "for i = 1, 9 do calc.add{a=1, b=1}:await() end", limits=Limits(calls=3))
    assert "more than 3" in said(done)
    assert len(done.meta[CALLS_META]) == 3


async def test_cancelling_a_script_cancels_its_calls() -> None:
    began, ended = anyio.Event(), anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        return ToolResult()

    async with scripts(FakeProvider([Tool(name="wait", namespace="slow")], wait)) as run:
        async with anyio.create_task_group() as group:
            group.start_soon(run.run, ME, "return slow.wait{}:await()")
            await began.wait()
            group.cancel_scope.cancel()
        assert ended.is_set()


async def test_nested_scripts_are_limited() -> None:
    async with scripts(levels=1) as run:
        inner: list[ToolResult] = []

        async def again(ctx: Context, name: str, arguments: Object) -> ToolResult:
            inner.append(await run.run(ctx, "return 1"))
            return inner[-1]

        ctx = ME.with_providers(FakeProvider([Tool(name="again", namespace="x")], again))
        done = await run.run(ctx, "return x.again{}:await()")
    assert not inner
    assert "deep already" in said(done)


async def test_an_empty_script_and_an_unknown_language_are_refused() -> None:
    async with scripts() as run:
        with pytest.raises(InvalidRequest, match="empty"):
            await run.run(ME, "  \n")
        with pytest.raises(InvalidRequest, match="lua, python"):
            await run.run(ME, "return 1", language="pyton")


async def test_a_missing_engine_says_what_to_install() -> None:
    def missing() -> Any:
        raise MissingExtra("The library 'lupa' is not installed.", hint="Run: pip install 'toolcrib[lua]'")

    run = ScriptRunner(Gateway([FakeSource()]), {"lua": missing})
    with pytest.raises(MissingExtra, match="toolcrib\\[lua\\]"):
        await run.run(ME, "return 1")
    async with run.engines:
        with pytest.raises(MissingExtra):
            await run.run(ME, "return 1")


# -- without running ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["lua", "python"])
async def test_a_dry_run_lists_the_calls_and_makes_none(language: str) -> None:
    source = {"lua": "local x = calc.add{a=1, b=2}:await()\nreturn x", "python": "x = await calc.add(a=1, b=2)\nx"}[
        language
    ]
    provider = FakeProvider(tools(), answer)
    run = make_script_runner(Gateway([FakeSource(provider)]))
    done = await run.check(ME, source, language=language)
    assert done.structured["calls"] == [{"name": "calc:add", "line": 1, "known": True}]
    assert provider.calls == []


@pytest.mark.parametrize(
    ("source", "head", "found"),
    [
        ("return calc.add{ a = 1, b = x }:await()", "The script can be run.", ""),
        ("local f = calc\nreturn f.add{ a = 1 }", "The script can be run.", ""),
        ("return calc.ad{ a = 1, b = 2 }", "The script calls tools that do not exist.", "there is no such tool"),
        ("return calk.add{ a = 1, b = 2 }", "The script calls tools that do not exist.", "line 1: calk:add"),
        ("return add{ a = 1, b = 2 }", "The script calls tools that do not exist.", "add is not defined"),
        ("\nreturn calc.add{ a = 'x', b = 2 }", "arguments that do not fit", 'line 2: calc:add ("a" must be number'),
        ("calc.add({ a = f, c = {} })", "arguments that do not fit", '"b" is required'),
        ("calc.add{}", "arguments that do not fit", '"a" is required'),
    ],
)
async def test_a_lua_dry_run_checks_names_and_literal_arguments(source: str, head: str, found: str) -> None:
    async with scripts() as run:
        checked = await run.check(ME, f"local x, f = 1, 2\n{source}" if "calc\n" not in source else source)
    assert head in said(checked)
    assert found.replace("line 2", "line 3").replace("line 1", "line 2") in said(checked)


async def test_a_dry_run_reports_a_syntax_error() -> None:
    async with scripts() as run:
        done = await run.check(ME, "return return")
    assert done.is_error
    assert done.structured["error"]["code"] == "script_refused"


# -- arguments ---------------------------------------------------------------------------------------------------------

AWKWARD: Object = {"n": 1, "list": [], "text": 'a "quoted"\n\\ line \u00e9 \U0001f600', "deep": {"x": [1, {"y": None}]}}


@pytest.mark.parametrize("language", ["lua", "python"])
async def test_arguments_arrive_as_they_were_sent(language: str) -> None:
    source = {"lua": "return { got = args }", "python": "{'got': args}"}[language]
    async with scripts() as run:
        done = await run.run(ME, source, language=language, arguments=AWKWARD)
    assert done.structured == {"got": AWKWARD}


@pytest.mark.parametrize("language", ["lua", "python"])
async def test_line_numbers_do_not_count_the_arguments(language: str) -> None:
    source = {"lua": "local x = 1\nerror('broken')", "python": "x = 1\nraise ValueError('broken')"}[language]
    async with scripts() as run:
        done = await run.run(ME, source, language=language, arguments={"n": 1})
    details = done.structured["error"]["details"]
    assert details["line"] == 2
    assert "3" not in details["traceback"]


async def test_typed_arguments_do_not_make_the_checker_refuse_a_good_call() -> None:
    async with scripts() as run:
        done = await run.run(
            ME, "await calc.add(a=args['a'], b=args['b'])", language="python", arguments={"a": 1, "b": 2.5, "c": "x"}
        )
    assert done.structured == {"result": 3.5}


async def test_gateway_errors_propagate() -> None:
    async with scripts(levels=1) as run:
        object.__setattr__(run.options, "levels", 0)
        with pytest.raises(ExecutionFailed):
            await run.run(ME, "return 1")


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("lua", "return _G['ca' .. 'lc']['a' .. 'dd']{ a = 1, b = 2 }:await()"),
        ("lua", "return load('return ca' .. 'lc.add{ a = 1, b = 2 }:await()')()"),
        ("python", "await call_tool('ca' + 'lc', 'add', a=1, b=2)"),
    ],
)
async def test_a_server_is_reached_by_a_computed_name_too(language: str, source: str) -> None:
    async with scripts() as run:
        done = await run.run(ME, source, language=language)
    assert done.structured == {"result": 3}


class Person:
    """A client whose user answers questions."""

    can_elicit = True

    def __init__(self, *, agrees: bool) -> None:
        self.capabilities: Object = {}
        self.agrees = agrees
        self.asked = 0

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    async def sample(self, params: Object) -> Object:
        return {}

    async def elicit(self, params: Object) -> Object:
        self.asked += 1
        fields = params["requestedSchema"]["properties"]
        return {"action": "accept", "content": dict.fromkeys(fields, True)} if self.agrees else {"action": "decline"}


@pytest.mark.parametrize("agrees", [True, False])
async def test_the_user_is_asked_while_the_script_waits(agrees: bool) -> None:
    person = Person(agrees=agrees)
    async with scripts(options=GatewayOptions(calls=CallOptions(approval="always"))) as run:
        ctx = Context(caller=Caller(id="me"), client=person)
        done = await run.run(ctx, "local ok = calc.add{a=1, b=2}:try() return { ok = ok }")
    assert done.structured == {"ok": agrees}
    assert person.asked == 1


async def test_the_client_gets_the_number_of_ended_calls_as_progress() -> None:
    reported: list[float] = []

    class Listening(Person):
        async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
            reported.append(done)

    async def noisy(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert ctx.client is not None
        await ctx.client.progress(100)
        return ToolResult()

    async with scripts(FakeProvider([Tool(name="noisy", namespace="x")], noisy)) as run:
        ctx = Context(caller=Caller(id="me"), client=Listening(agrees=True))
        await run.run(ctx, "for i = 1, 3 do x.noisy{}:await() end")
    assert reported == [1, 2, 3]


async def test_a_hidden_tool_never_takes_the_name_of_one_that_is_shown() -> None:
    both = FakeProvider(
        [Tool(name="get-user", namespace="x"), Tool(name="get_user", namespace="x", visibility=Visibility.HIDDEN)]
    )
    async with scripts(both) as run:
        done = await run.run(ME, "return x.get_user{}:await().tool")
    assert said(done) == "get-user"


# -- unusual scripts ---------------------------------------------------------------------------------------------------


async def test_a_script_with_arguments_may_begin_with_a_bracket_or_a_shebang() -> None:
    async with scripts() as run:
        for source in ("(function() result(args.n) end)()", "#!/usr/bin/lua\nresult(args.n)", "\ufeffresult(args.n)"):
            assert said(await run.run(ME, source, arguments={"n": 5})) == "5"
        done = await run.run(ME, "\ufeff#!/usr/bin/python\nargs['n']", arguments={"n": 5}, language="python")
    assert said(done) == "5"


async def test_a_shebang_counts_as_a_line() -> None:
    async with scripts() as run:
        done = await run.run(ME, "#!/usr/bin/lua\nerror('x')", arguments={})
    assert done.structured["error"]["details"]["line"] == 2


async def test_meta_that_is_not_an_object_is_left_out_of_a_scripts_result() -> None:
    async with scripts() as run:
        done = await run.run(ME, "return {content={{type='text', text='x'}}, _meta='boom'}")
    assert said(done) == "x"
    assert dict(done.meta) == {CALLS_META: []}


async def test_line_numbers_in_a_tools_text_are_not_changed() -> None:
    words = "bad price in line 12, see script:40\nscript:50: too"

    async def refuse(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": words},), is_error=True)

    async with scripts(FakeProvider([Tool(name="refuse", namespace="shop")], refuse)) as run:
        done = await run.run(ME, "x = 1\nawait shop.refuse()", language="python", arguments={"n": 1})
    details = done.structured["error"]["details"]
    assert words in said(done)
    assert details["traceback"].endswith(words)
    assert details["line"] == 2
    assert 'File "script", line 2' in details["traceback"]


async def test_a_refused_script_with_arguments_names_the_scripts_own_line() -> None:
    async with scripts() as run:
        done = await run.run(ME, "x = 1\nawait calc.ad()", language="python", arguments={"n": 1})
    assert "script:2: " in said(done)
    assert done.structured["error"]["details"]["line"] == 2


DEEP: Any = []
for _ in range(62):
    DEEP = [DEEP]


@pytest.mark.parametrize("language", ["lua", "python"])
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"n": float("nan")}, "arguments.n is nan"),
        ({"deep": [1, {"n": {1, 2}}]}, r"arguments.deep\[1\].n is a set"),
        ({"n": "\ud800"}, "arguments.n is not valid Unicode"),
        ({"\ud800": 1}, "has a key that is not valid Unicode"),
        ({"n": {(1, 2): 3}}, "arguments.n has a key that is a tuple"),
        ({"n": 10**5000}, "arguments.n is a number with too many digits"),
        ({"n": [[DEEP]]}, r"arguments.n\[0\].* is nested too deep"),
        ({"n": "x" * 1_100_000}, "arguments are 1100009 bytes of JSON, and 1048576 are allowed"),
    ],
)
async def test_arguments_that_json_cannot_represent_are_named(language: str, arguments: Object, problem: str) -> None:
    async with scripts() as run:
        with pytest.raises(InvalidRequest, match=problem):
            await run.run(ME, "1" if language == "python" else "return 1", language=language, arguments=arguments)


@pytest.mark.parametrize("language", ["lua", "python"])
async def test_large_and_deep_arguments_do_not_count_as_source(language: str) -> None:
    source = "len(args['s']) + len(args['d'])" if language == "python" else "return #args.s + #args.d"
    async with scripts() as run:
        done = await run.run(ME, source, language=language, arguments={"s": "\u00e9\"'\\" * 100_000, "d": DEEP})
        long = await run.run(ME, source + " " * 300_000, language=language, arguments={"s": ""})
    assert said(done) in ("400001", "500001")  # Lua counts bytes
    assert f"The script has {300_000 + len(source)} bytes, and 262144 are allowed" in said(long)


async def test_a_hidden_tool_beside_a_similar_listed_one_keeps_its_own_name() -> None:
    both = FakeProvider(
        [
            Tool(name="ab", namespace="x"),
            Tool(name="a_b", namespace="x", visibility=Visibility.HIDDEN),
            Tool(name="a-b-c", namespace="x", visibility=Visibility.HIDDEN),
            Tool(name="a_b_c", namespace="x"),
        ]
    )
    async with scripts(both) as run:
        assert said(await run.run(ME, "return x.ab{}:await().tool")) == "ab"
        assert said(await run.run(ME, "return x.a_b{}:await().tool")) == "a_b"
        assert said(await run.run(ME, "return x['a-b-c']{}:await().tool .. x.a_b_c{}:await().tool")) == "a-b-ca_b_c"
        done = await run.run(ME, "(await call_tool('x', 'a-b-c'))['tool']", language="python")
        assert said(done) == "a-b-c"


async def test_a_hidden_tool_whose_name_is_taken_is_called_by_its_id() -> None:
    both = FakeProvider(
        [Tool(name="get-user", namespace="x"), Tool(name="get_user", namespace="x", visibility=Visibility.HIDDEN)]
    )
    async with scripts(both) as run:
        done = await run.run(ME, "return x['x:get_user']{}:await().tool .. x.get_user{}:await().tool")
        shown = await run.run(ME, "x.get_user{}:await() return x.wrong{}:await()")
    assert said(done) == "get_userget-user"
    assert [call["name"] for call in done.meta[CALLS_META]] == ["x:get_user", "x:get-user"]
    assert "x_get_user" not in said(shown)


async def test_scripts_are_bounded_through_tools_that_add_providers_too() -> None:
    reached: list[int] = []

    async with scripts(levels=2) as run:

        async def again(ctx: Context, name: str, arguments: Object) -> ToolResult:
            reached.append(1)
            assert len(reached) < 9
            inner = ctx.with_providers(FakeProvider([Tool(name="again", namespace=f"x{len(reached)}")], again))
            return await run.run(inner, f"return x{len(reached)}.again{{}}:await()")

        ctx = Context(caller=Caller(id="me"), memo={}).with_providers(
            FakeProvider([Tool(name="again", namespace="x")], again)
        )
        done = await run.run(ctx, "return x.again{}:await()")
        after = await run.run(ctx, "return 1")
    assert len(reached) == 2
    assert "deep already" in said(done)
    assert said(after) == "1"


# -- tools that are in no list -----------------------------------------------------------------------------------------


class Warehouse:
    """A provider with too many tools to list, which looks up one by name."""

    name = "warehouse"

    def __init__(self, *tools: Tool, namespace: str = "", error: Exception | None = None) -> None:
        self.tools, self.namespace, self.error = {tool.id: tool for tool in tools}, namespace, error
        self.asked: list[str] = []

    async def list_tools(self, ctx: Context) -> list[Tool]:
        return []

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        return self.tools.get(name)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(structured={"did": name, "with": dict(arguments)})


PART = Tool(name="find-part", namespace="ware-house", input_schema=PAIR, annotations=READS)


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("lua", "return ware_house['find-part']{ a = 1, b = 2 }:await()"),
        ("lua", 'return _G["ware-house"]["find-part"]{ a = 1, b = 2 }:await()'),
        ("python", "await call_tool('ware-house', 'find-part', a=1, b=2)"),
        ("python", 'await call_tool("ware_house", "find-part", a=1, b=2)'),
    ],
)
@pytest.mark.parametrize("where", ["shared", "request"])
async def test_an_unlisted_tool_is_called_by_its_name(language: str, source: str, where: str) -> None:
    house = Warehouse(PART, namespace="ware-house")
    async with scripts(*([house] if where == "shared" else [])) as run:
        done = await run.run(ME if where == "shared" else ME.with_providers(house), source, language=language)
    assert done.structured == {"did": "find-part", "with": {"a": 1, "b": 2}}
    assert [call["name"] for call in done.meta[CALLS_META]] == ["ware-house:find-part"]


async def test_an_unlisted_tool_is_also_called_by_an_identifier_and_without_a_namespace() -> None:
    house = Warehouse(Tool(name="count"), Tool(name="count", namespace="cellar"))
    async with scripts(house) as run:
        bare = await run.run(ME, "return tools.count{ of = 'nuts' }:await()")
        spaced = await run.run(ME, "await cellar.count(of='bolts')", language="python")
    assert bare.structured == {"did": "count", "with": {"of": "nuts"}}
    assert spaced.structured == {"did": "count", "with": {"of": "bolts"}}


async def test_only_names_that_such_a_provider_may_have_are_looked_up_and_each_once() -> None:
    named, nameless = Warehouse(namespace="ware-house"), Warehouse()
    source = (
        "local t = {} table.insert(t, string.format('%d', 1)) t.rest = 1\n"
        "calc.add{ a = 1, b = 2 }:await() calc.secret{}:await()\n"
        "pcall(function() ware_house.find{} ware_house.find{} ware_house['x y']{} end)\n"
        "return 1"
    )
    async with scripts(named) as run:
        assert said(await run.run(ME, source)).startswith("1")
    assert sorted(named.asked) == ["ware-house:find", "ware-house:x y"]
    async with scripts(nameless) as run:
        assert said(await run.run(ME, source)).startswith("1")
    assert sorted(nameless.asked) == ["t:rest", "ware_house:find", "ware_house:x y"]


async def test_a_look_up_that_returns_another_tool_is_ignored() -> None:
    house = Warehouse(namespace="ware-house")
    house.tools["ware-house:part"] = PART
    async with scripts(house) as run:
        done = await run.run(ME, "return ware_house.part{ a = 1, b = 2 }:await()")
    assert done.is_error
    assert house.asked == ["ware-house:part"]


async def test_policies_apply_to_unlisted_tools() -> None:
    class Keeper:
        def scope(self, caller: Caller) -> bool:
            return caller.id == "boss"

        def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
            return Decision.HIDE if tool.name == "clear" and caller.id != "boss" else Decision.ALLOW

    house = Warehouse(PART, Tool(name="clear", namespace="ware-house"), namespace="ware-house")
    clear, find = "return ware_house.clear{}:await()", "return ware_house['find-part']{ a = 1, b = 'x' }:await()"
    async with scripts(house, policy=Keeper()) as run:
        denied = await run.run(ME, clear)
        missing = await run.run(ME, clear.replace("clear", "cleer"))
        boss = Context(caller=Caller(id="boss"))
        allowed = await run.run(boss, clear)
        held = await run.run(boss, clear, read_only=True)
        wrong = await run.run(ME, find)
    assert denied.is_error
    assert said(denied).replace("clear", "cleer") == said(missing)
    assert not allowed.is_error
    assert "only tools that are marked" in said(held)
    assert "must be number" in said(wrong)


async def test_a_dry_run_finds_unlisted_tools_and_reports_failed_look_ups() -> None:
    source = "return ware_house['find-part']{ a = 1, b = 2 }"
    async with scripts(Warehouse(PART, namespace="ware-house")) as run:
        known = await run.check(ME, source)
    async with scripts(Warehouse(PART, namespace="ware-house", error=ValueError("secret"))) as run:
        checked = await run.check(ME, source)
        failed = await run.run(ME, source)
    assert known.structured is not None
    assert known.structured["calls"] == [{"name": "ware-house:find-part", "line": 1, "known": True}]
    for done in (checked, failed):
        assert "warehouse failed (ValueError)" in said(done)
        assert "secret" not in said(done)


async def test_a_hanging_provider_delays_a_script_for_a_limited_time() -> None:
    class Hanging(Warehouse):
        async def get_tool(self, ctx: Context, name: str) -> Tool | None:
            await anyio.sleep_forever()
            return None

    named = (f"local t{place} = function() ware_house.tool{place}{{}} end" for place in range(60))
    source = "\n".join((*named, "return 7"))
    quick = GatewayOptions(find_timeout_s=0.02)
    async with scripts(Hanging(namespace="ware-house"), options=quick) as run:
        assert said(await run.run(ME, source)) == "7"
        checked = await run.check(ME, source)
    assert "Not all tools that the script names could be looked up within 0.04 s." in said(checked)


async def test_a_test_with_answers_looks_up_no_tools() -> None:
    house = Warehouse(PART, namespace="ware-house")
    async with scripts(house) as run:
        source = "return ware_house['find-part']{ a = 1, b = 2 }:await()"
        done = await run.run(ME, source, answers={"ware-house:find-part": 7})
    assert said(done) == "7"
    assert house.asked == []
