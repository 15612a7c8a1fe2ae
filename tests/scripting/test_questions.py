"""Questions that tools ask while a script runs: clients of each era, in front of servers of each era."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from tests.fixtures.servers.asking import QUESTIONS, AskingServer
from tests.scripting.test_runner import ME, scripts
from tests.server.conftest import until
from tests.server.shop import FAST
from tests.server.test_eras import ANSWERS, BOTH, NEWER, OLDER, PROGRAM, Person, reachable
from tests.upstream.test_session_connections import of

from toolcrib.app import App
from toolcrib.errors import ExecutionFailed
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.middleware.options import CallOptions
from toolcrib.sandbox import Limits, LuaSandbox, SandboxOptions
from toolcrib.sandbox.languages import LUA
from toolcrib.scripting import questions
from toolcrib.scripting.runner import make_script_runner
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import Context, Object, Tool, ToolResult
from toolcrib.upstream import open_calls
from toolcrib.upstream.options import ServerOptions

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:.*is deprecated as of 2026-07-28")]

ERAS = ["legacy", "2026-07-28"]
ALL_QUESTIONS = {
    "lua": "return { " + ", ".join(f"{tool} = s.{tool}{{}}:await()" for tool in QUESTIONS) + " }",
    "python": "{" + ", ".join(f"'{tool}': await s.{tool}()" for tool in QUESTIONS) + "}",
}


@asynccontextmanager
async def gateway(*servers: ServerOptions, limit_s: float = 60, **settings: Any) -> AsyncIterator[App]:
    surfaces = SurfaceOptions(surfaces=("progressive",))
    with anyio.fail_after(limit_s):
        async with App(Settings(servers=servers, fleet=FAST, surfaces=surfaces, **settings)) as app:
            await app.settled()
            yield app


def in_memory(options: Mapping[str, Any], *, by_session: bool = False) -> ServerOptions:
    return ServerOptions(name="s", target=AskingServer(by_session=by_session).server, **options)


async def execute(client: mcp.Client, script: str, language: str = "lua") -> Any:
    result = await client.call_tool("execute", {"script": script, "language": language})
    text = "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))
    assert not result.is_error, text
    return result.structured_content if result.structured_content is not None else text


@pytest.mark.parametrize("language", ["lua", "python"])
@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("options", [OLDER, NEWER, BOTH], ids=["older", "newer", "both"])
async def test_every_question_of_a_tool_in_a_script_reaches_the_client(
    language: str, mode: Any, options: Mapping[str, Any]
) -> None:
    async with gateway(in_memory(options)) as app, Person().client(app.server, mode) as client:
        assert await execute(client, ALL_QUESTIONS[language], language) == ANSWERS


@pytest.mark.parametrize(
    ("mode", "over"),
    [
        pytest.param(mode, over, marks=() if (mode, over) == (ERAS[0], "http") else pytest.mark.slow)
        for mode in ERAS
        for over in ("memory", "http")
    ],
)
async def test_a_program_that_asks_over_stdio_reaches_the_client_of_a_script(mode: Any, over: str) -> None:
    server = ServerOptions(name="s", command=sys.executable, args=(str(PROGRAM), "session"), **OLDER)
    async with gateway(server) as app, reachable(app, over) as there, Person().client(there, mode) as client:
        assert await execute(client, ALL_QUESTIONS["lua"]) == ANSWERS


async def test_calls_of_a_script_ask_at_the_same_time() -> None:
    script = "return await_all{ s.ask_form{}, s.ask_model{}, s.era{} }"
    async with gateway(in_memory(OLDER)) as app, Person().client(app.server, "2026-07-28") as client:
        assert json.loads(await execute(client, script)) == [ANSWERS["ask_form"], ANSWERS["ask_model"], "2025-11-25"]


async def test_a_person_agrees_to_a_call_of_a_script_in_either_era() -> None:
    calls = GatewayOptions(calls=CallOptions(approval="always"))
    for mode in ERAS:
        asked: list[str] = []

        async def agree(context: Any, params: Any, asked: list[str] = asked) -> types.ElicitResult:
            asked.append(params.message)
            return types.ElicitResult(action="accept", content={"approve": True})

        async with gateway(in_memory(OLDER), gateway=calls) as app:
            async with mcp.Client(app.server, mode=mode, elicitation_callback=agree) as client:
                assert await execute(client, "return s.era{}:await()") == "2025-11-25"
        assert len(asked) == 1
        assert "May s:era be called once?" in asked[0]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_stored_script_and_one_that_calls_it_can_ask(mode: Any) -> None:
    async with gateway(in_memory(OLDER)) as app:
        app.add_script("sure", "return s.ask_form{}:await()", description="Ask")
        async with Person().client(app.server, mode) as client:
            assert await execute(client, "return scripts.sure{}:await()") == ANSWERS["ask_form"]
            direct = await client.call_tool(
                "inspect-tool-response", {"luaServerName": "scripts", "luaToolName": "sure"}
            )
            assert not direct.is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_cannot_be_asked_learns_that_a_tool_asked(mode: Any) -> None:
    async with gateway(in_memory(OLDER)) as app, mcp.Client(app.server, mode=mode) as client:
        result = await client.call_tool("execute", {"script": "return { got = s.ask_form{}:await() }"})
        text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
    assert (
        "A tool had a question for a person, but this client cannot be asked: it does not declare elicitation" in text
    )


# -- waiting scripts ---------------------------------------------------------------------------------------------------

FORM: Object = {
    "method": "elicitation/create",
    "params": {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}},
}
YES: Object = {"action": "accept", "content": {"sure": True}}
MODERN = of("1", is_modern=True, capabilities={"elicitation": {"form": {}}})
ASKING = "return { first = more.ask{}:await(), second = more.count{}:await() }"


async def ask(ctx: Context, name: str, arguments: Object) -> ToolResult:
    """Ask once, and return the answer."""
    if ctx.client is not None and name == "elicit":
        return ToolResult(structured=await ctx.client.elicit(FORM["params"]))
    if name == "count" or ctx.input_responses is not None:
        return ToolResult(structured={"got": ctx.input_responses and ctx.input_responses["q"]})
    return ToolResult(kind="input_required", input_requests={"q": FORM}, request_state="mine")


def asking() -> FakeProvider:
    return FakeProvider([Tool(name=name, namespace="more") for name in ("ask", "elicit", "count")], ask)


def answered(asked: ToolResult, ctx: Context = MODERN, **answers: Object) -> Context:
    """The request that repeats the one that was asked."""
    return replace(ctx, input_responses=answers or {"q1": YES}, request_state=asked.request_state)


@pytest.mark.parametrize("tool", ["ask", "elicit"])
@pytest.mark.parametrize("language", ["lua", "python"])
async def test_a_script_continues_where_it_asked(language: str, tool: str) -> None:
    call = {"lua": f"more.{tool}{{}}:await()", "python": f"await more.{tool}()"}[language]
    source = {"lua": f"local n = 41 local a = {call} n = n + 1 return {{ n = n, a = a }}"}.get(
        language, f"n = 41\na = {call}\n{{'n': n + 1, 'a': a}}"
    )
    async with scripts(asking()) as run:
        asked = await run.run(MODERN, source, language=language)
        assert (asked.kind, dict(asked.input_requests or {})) == ("input_required", {"q1": FORM})
        done = await run.run(answered(asked), source, language=language)
        with pytest.raises(ExecutionFailed, match="The script that asked is no longer open"):
            await run.run(answered(asked), source, language=language)
    assert done.structured == {"n": 42, "a": {"got": YES} if tool == "ask" else YES}


async def test_an_invalid_question_is_an_error_of_its_call() -> None:
    async def confused(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(kind="input_required", input_requests={"q": {"method": "elicitation/create", "params": {}}})

    provider = FakeProvider([Tool(name="ask", namespace="more")], confused)
    async with scripts(provider) as run:
        done = await run.run(MODERN, "local ok, why = more.ask{}:try() return { ok = ok, why = why }")
    assert done.structured["ok"] is False
    assert "invalid request for input" in done.structured["why"]


async def test_only_the_caller_and_session_that_were_asked_continue_a_script() -> None:
    async with scripts(asking()) as run:
        asked = await run.run(MODERN, ASKING)
        for other in (of("2", is_modern=True), of("1", caller="bob", is_modern=True)):
            with pytest.raises(ExecutionFailed, match="no longer open"):
                await run.run(answered(asked, other), ASKING)


async def test_a_script_that_is_not_answered_ends_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "ANSWER_TIMEOUT_S", 0.01)
    async with scripts(asking()) as run:
        asked = await run.run(MODERN, ASKING)
        async with run.engines.engine(LUA, 0) as engine:
            assert isinstance(engine, LuaSandbox)
            await until(lambda: not engine._running._ends)
        with pytest.raises(ExecutionFailed, match="The script was cancelled") as caught:
            await run.run(answered(asked), ASKING)
    assert "did not come back in time" in caught.value.hint


async def test_a_waiting_script_leaves_its_slot_to_others() -> None:
    one = SandboxOptions(workers=1, queue_wait_s=5)
    async with scripts(asking(), sandbox=one) as run:
        asked = [await run.run(MODERN, ASKING) for _ in range(3)]
        assert (await run.run(ME, "return 'ran'")).text == "ran"
        done = [await run.run(answered(one), ASKING) for one in asked]
    assert [each.structured["first"] for each in done] == [{"got": YES}] * 3


async def test_the_wall_limit_of_a_script_does_not_run_while_it_waits() -> None:
    past = anyio.Event()

    async def slow(ctx: Context, name: str, arguments: Object) -> ToolResult:
        await past.wait()
        return ToolResult(structured={"past": True})

    late = FakeProvider([Tool(name="wait", namespace="late")], slow)
    async with scripts(asking(), late) as run:
        asked = await run.run(MODERN, ASKING, limits=Limits(wall_s=0.4))
        asyncio.get_running_loop().call_later(0.6, past.set)
        await run.run(ME, "return late.wait{}:await()")
        assert (await run.run(answered(asked), ASKING)).structured["first"] == {"got": YES}


async def test_a_callers_scripts_ask_a_limited_number_of_questions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_MAX_WAITING_OF_CALLER", 2)
    async with scripts(asking()) as run:
        asked = [await run.run(MODERN, ASKING) for _ in range(2)]
        assert [each.kind for each in asked] == ["input_required"] * 2
        refused = await run.run(MODERN, ASKING)
        assert "Too many questions of scripts wait for an answer." in refused.text
        bob = of("1", caller="bob", is_modern=True, capabilities={"elicitation": {}})
        assert (await run.run(bob, ASKING)).kind == "input_required"


async def test_the_tools_of_a_script_ask_a_limited_number_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_MAX_QUESTIONS", 1)
    older = of("1", capabilities={"elicitation": {}})
    async with scripts(asking()) as run:
        done = await run.run(older, "return more.ask{}:await() and more.ask{}:await()")
    assert "asked more than 1 questions" in done.text


async def test_a_question_of_a_script_that_no_process_keeps_is_refused() -> None:
    runner = make_script_runner(Gateway([FakeSource(asking())]))
    with anyio.fail_after(30):
        done = await runner.run(MODERN, ASKING)
    assert done.is_error
    assert "A script cannot carry that question" in done.text


async def test_ending_the_app_ends_the_scripts_that_wait() -> None:
    async with scripts(asking()) as run:
        asked = await run.run(MODERN, ASKING)
        assert asked.kind == "input_required"
    with pytest.raises(ExecutionFailed, match="The script was cancelled"):
        await run.run(answered(asked), ASKING)
