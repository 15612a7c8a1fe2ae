"""Stored scripts: tools built from other tools."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcrib.errors import InvalidArguments, InvalidName, InvalidRequest, InvalidTool, SettingsError, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.providers.combined import ProviderList
from toolcrib.scripting import stored
from toolcrib.scripting.files import make_script, read_script
from toolcrib.scripting.runner import CALLS_META, make_script_runner
from toolcrib.scripting.stored import StoredScripts
from toolcrib.testing import FakeProvider, FakeSource
from toolcrib.types import Action, Caller, Context, Decision, Object, SearchRequest, Tool, ToolResult

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
NUMBER: Object = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
DOUBLE = "return calc.add{ a = args.n, b = args.n }:await().result"


async def calculate(ctx: Context, name: str, arguments: Object) -> ToolResult:
    return ToolResult(structured={"result": arguments["a"] + arguments["b"]} if name == "add" else {"gone": True})


@asynccontextmanager
async def library(**more: Any) -> AsyncIterator[tuple[Gateway, StoredScripts]]:
    calc = FakeProvider(
        [Tool(name="add", namespace="calc", annotations={"readOnlyHint": True}), Tool(name="clear", namespace="calc")],
        calculate,
    )
    shared = ProviderList()
    gateway = Gateway([FakeSource(calc), shared], **more)
    scripts = make_script_runner(gateway)
    kept = StoredScripts(scripts)
    shared.add(kept)
    with anyio.fail_after(60):
        async with scripts.engines:
            yield gateway, kept


async def test_a_stored_script_is_found_and_called_like_any_tool() -> None:
    async with library() as (gateway, kept):
        kept.add(make_script("double", DOUBLE, description="Double a number", parameters=NUMBER))
        reply = await gateway.search(ME, SearchRequest(queries=("double a number",)))
        assert reply.hits[0].tool.id == "scripts:double"
        done = await gateway.call(ME, "scripts:double", {"n": 4})
    assert done.content[0]["text"] == "8"
    assert [call["name"] for call in done.meta[CALLS_META]] == ["calc:add"]


async def test_its_arguments_are_checked_against_its_parameters() -> None:
    async with library() as (gateway, kept):
        kept.add(make_script("double", DOUBLE, parameters=NUMBER))
        with pytest.raises(InvalidArguments, match='"n" must be number'):
            await gateway.call(ME, "scripts:double", {"n": "four"})


async def test_it_runs_with_only_its_callers_rights() -> None:
    class OnlyBoss:
        def scope(self, caller: Caller) -> bool:
            return caller.id == "boss"

        def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
            return Decision.HIDE if tool.id == "calc:add" and caller.id != "boss" else Decision.ALLOW

    async with library(policy=OnlyBoss()) as (gateway, kept):
        kept.add(make_script("double", DOUBLE, parameters=NUMBER))
        mine = await gateway.call(ME, "scripts:double", {"n": 4})
        boss = await gateway.call(Context(caller=Caller(id="boss")), "scripts:double", {"n": 4})
    assert mine.is_error
    assert boss.content[0]["text"] == "8"


async def test_a_read_only_stored_script_sees_only_read_only_tools() -> None:
    async with library() as (gateway, kept):
        kept.add(make_script("tidy", "return calc.clear{}:await()", annotations={"readOnlyHint": True}))
        done = await gateway.call(ME, "scripts:tidy")
    assert done.is_error
    assert "has no tool 'clear'" in str(done.content[0]["text"])


async def test_stored_scripts_call_each_other_up_to_a_limit() -> None:
    async with library() as (gateway, kept):
        kept.add(make_script("double", DOUBLE, parameters=NUMBER))
        kept.add(make_script("fourfold", "return scripts.double{ n = scripts.double{ n = args.n }:await() }:await()"))
        kept.add(make_script("endless", "return scripts.endless{}:await()"))
        done = await gateway.call(ME, "scripts:fourfold", {"n": 1})
        never = await gateway.call(ME, "scripts:endless")
    assert done.content[0]["text"] == "4"
    assert never.is_error
    assert "deep already" in str(never.content[0]["text"])


async def test_a_script_in_python_is_a_tool_too() -> None:
    async with library() as (gateway, kept):
        source = "total = 0\nfor n in args['all']:\n    total = (await calc.add(a=total, b=n))['result']\ntotal"
        kept.add(make_script("total", source, language="python"))
        done = await gateway.call(ME, "scripts:total", {"all": [1, 2, 3]})
    assert done.content[0]["text"] == "6"


async def test_a_script_that_is_removed_is_gone() -> None:
    async with library() as (gateway, kept):
        kept.add(make_script("double", DOUBLE))
        kept.remove("double")
        with pytest.raises(ToolNotFound):
            await gateway.call(ME, "scripts:double", {"n": 1})
        with pytest.raises(ToolNotFound):
            kept.remove("double")


async def test_what_cannot_be_a_tool_is_refused() -> None:
    async with library() as (_, kept):
        with pytest.raises(InvalidName):
            kept.add(make_script("", "return 1"))
        with pytest.raises(InvalidRequest):
            kept.add(make_script("x", "puts 1", language="ruby"))
        with pytest.raises(InvalidTool):
            kept.add(make_script("x", "return 1", parameters={"type": "nothing"}))


# -- files -------------------------------------------------------------------------------------------------------------

DOUBLE_FILE = """\
-- /// tool
-- title = "Double"
-- description = "Double a number"
-- keywords = ["twice"]
-- annotations = { readOnlyHint = true }
-- [parameters]
-- required = ["n"]
-- properties.n = { type = "number" }
--
-- [[tests]]
-- name = "four"
-- arguments = { n = 2 }
-- tools = { "calc:add" = { result = 4 } }
-- result = 4
--
-- [[tests]]
-- name = "for real"
-- arguments = { n = 5 }
-- result = 10
--
-- [[tests]]
-- name = "wrong"
-- arguments = { n = 5 }
-- result = 11
--
-- [[tests]]
-- name = "needs a number"
-- arguments = {}
-- fails = '"n" is required'
-- ///
return calc.add{ a = args.n, b = args.n }:await().result
"""


async def test_a_folder_of_scripts_becomes_tools(tmp_path: Path) -> None:
    (tmp_path / "double.lua").write_text(DOUBLE_FILE)
    (tmp_path / "ten.py").write_text("10")
    (tmp_path / "ten.toml").write_text('description = "Always ten"\n')
    (tmp_path / "notes.txt").write_text("not a script")
    async with library() as (gateway, kept):
        made = kept.load(tmp_path)
        assert [tool.id for tool in made] == ["scripts:double", "scripts:ten"]
        assert made[0].description == "Double a number"
        assert made[0].input_schema["required"] == ["n"]
        assert made[1].description == "Always ten"
        assert (await gateway.call(ME, "scripts:double", {"n": 3})).content[0]["text"] == "6"
        assert (await gateway.call(ME, "scripts:ten")).content[0]["text"] == "10"


async def test_a_file_that_cannot_be_read_is_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "bad.lua").write_text("-- /// tool\n-- descriptoin = 'x'\n-- ///\nreturn 1")
    (tmp_path / "broken.lua").write_text("-- /// tool\n-- = = =\n-- ///\nreturn 1")
    (tmp_path / "good.lua").write_text("return 1")
    async with library() as (_, kept):
        assert [tool.id for tool in kept.load(tmp_path)] == ["scripts:good"]
    first, second = kept.problems
    assert "bad.lua: there is no field descriptoin" in first
    assert "broken.lua" in second


async def test_a_script_that_does_not_parse_is_rejected_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "folder.lua").write_text("local y = 1\nlocal x = = 1")
    (tmp_path / "snake.py").write_text("x = calc.add(\n")
    (tmp_path / "unknown.py").write_text("nobody.knows(this=1)")
    async with library() as (gateway, kept):
        kept.load(tmp_path)
        kept.add(make_script("added", "local x = = 1"))
        kept.add(make_script("good", "return 1"))
        await kept.check()
        tools = {tool.id for tool in await gateway.tools(ME) if tool.namespace == "scripts"}
        assert tools == {"scripts:good", "scripts:unknown"}
        added, folder, snake = kept.problems
        assert "added: script:1: unexpected symbol near '='" in added
        assert "folder: script:2: unexpected symbol near '='" in folder
        assert snake.startswith("snake: ")
        assert [one.tool for one in kept.statuses()[0].rejected] == ["added", "folder", "snake"]
        kept.add(make_script("added", "return 1"))
        assert "scripts:added" in {tool.id for tool in await gateway.tools(ME)}


async def test_scripts_are_checked_soon_after_they_were_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_CHECK_DELAY_S", 0.001)
    async with library() as (_, kept), anyio.create_task_group() as group:
        group.start_soon(kept.keep_checked)
        for name in ("first", "second"):
            kept.add(make_script(name, f"local {name} = = 1"))
            rejected = anyio.Event()
            unsubscribe = kept.subscribe(rejected.set)
            await rejected.wait()
            unsubscribe()
            assert kept.problems[-1].startswith(f"{name}: ")
        group.cancel_scope.cancel()


async def test_calls_of_tools_that_do_not_exist_are_found() -> None:
    async with library() as (_, kept):
        kept.add(make_script("double", DOUBLE))
        kept.add(make_script("wrong", "local a = 1\nreturn calc.addd{a = a}:await()"))
        assert await kept.unknown_calls(ME) == ("script wrong, line 2: there is no tool calc:addd",)


async def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    async with library() as (_, kept):
        with pytest.raises(SettingsError, match="not a readable folder"):
            kept.load(tmp_path / "nowhere")


# -- a folder that changes ---------------------------------------------------------------------------------------------


async def test_reloading_a_folder_gives_its_current_files(tmp_path: Path) -> None:
    for name in ("stays", "changes", "goes"):
        (tmp_path / f"{name}.lua").write_text(f"return '{name}'")
    async with library() as (gateway, kept):
        before = {tool.name: tool for tool in kept.load(tmp_path)}
        (tmp_path / "changes.lua").write_text("return 'changed'")
        (tmp_path / "goes.lua").unlink()
        (tmp_path / "comes.lua").write_text("return 'came'")
        await kept.reload()
        after = {tool.name: tool for tool in await gateway.tools(ME) if tool.namespace == "scripts"}
        assert sorted(after) == ["changes", "comes", "stays"]
        assert after["stays"] is before["stays"]
        assert (await gateway.call(ME, "scripts:changes")).content[0]["text"] == "changed"
        assert (await gateway.call(ME, "scripts:comes")).content[0]["text"] == "came"


async def test_a_broken_script_is_rejected_with_a_reason_until_it_is_fixed(tmp_path: Path) -> None:
    path = tmp_path / "double.lua"
    path.write_text(DOUBLE_FILE)
    (tmp_path / "other.lua").write_text("return 1")
    async with library() as (gateway, kept):
        kept.load(tmp_path)
        path.write_text(DOUBLE_FILE.replace("-- title", "-- titel"))
        await kept.reload()
        with pytest.raises(ToolNotFound):
            await gateway.call(ME, "scripts:double", {"n": 3})
        assert [script.name for script in kept.scripts()] == ["other"]
        (status,) = await gateway.servers(ME)
        assert (status.name, status.state, status.tools) == ("scripts", "ready", 1)
        assert [one.tool for one in status.rejected] == ["double"]
        assert "there is no field titel" in status.rejected[0].reason
        path.write_text(DOUBLE_FILE)
        await kept.reload()
        assert await gateway.servers(ME) == ()
        assert (await gateway.call(ME, "scripts:double", {"n": 3})).content[0]["text"] == "6"


async def test_an_added_script_takes_precedence_over_a_file_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "one.lua"
    path.write_text("return 'file'")
    async with library() as (gateway, kept):
        kept.add(make_script("one", "return 'added'"))
        kept.load(tmp_path)
        assert (await gateway.call(ME, "scripts:one")).content[0]["text"] == "added"
        path.unlink()
        await kept.reload()
        assert (await gateway.call(ME, "scripts:one")).content[0]["text"] == "added"


async def test_scripts_stay_while_their_folder_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "one.lua").write_text("return 1")
    async with library() as (_, kept):
        kept.load(folder)
        folder.rename(tmp_path / "away")
        await kept.reload()
        assert [script.name for script in kept.scripts()] == ["one"]
    assert "kept the old ones" in caplog.text


async def test_a_watched_folder_is_reloaded_when_its_files_change(tmp_path: Path) -> None:
    (tmp_path / "one.lua").write_text("return 1")
    async with library() as (_, kept):
        kept.load(tmp_path)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                await group.start(kept.watch_folder, 0.005)
                for name, text in (("two.lua", "return 2"), ("two.toml", "description = 'Two'"), ("one.lua", None)):
                    changed = anyio.Event()
                    end = kept.subscribe(changed.set)
                    if text is None:
                        (tmp_path / name).unlink()
                    else:
                        (tmp_path / name).write_text(text)
                    await changed.wait()
                    end()
                group.cancel_scope.cancel()
        (two,) = kept.scripts()
    assert (two.name, two.description) == ("two", "Two")


@pytest.mark.parametrize(
    ("front", "problem"),
    [
        ("description = 1", "description must be a string, not 1"),
        ("parameters = 'x'", "parameters must be a table, not 'x'"),
        ("visibility = 'loud'", "visibility must be one of"),
        ("[[tests]]\n-- name = 'x'", "needs either result or fails"),
        ("[[tests]]\n-- answer = 1", "there is no field tests"),
    ],
)
def test_a_wrong_metadata_field_is_named(front: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.lua"
    path.write_text(f"-- /// tool\n-- {front}\n-- ///\nreturn 1")
    with pytest.raises(InvalidTool, match=problem):
        read_script(path)


async def test_a_scripts_tests_run_with_their_own_answers_or_the_real_tools(tmp_path: Path) -> None:
    (tmp_path / "double.lua").write_text(DOUBLE_FILE)
    async with library() as (_, kept):
        kept.load(tmp_path)
        went = await kept.run_tests(ME, "double")
    assert [(one.test, one.passed) for one in went] == [
        ("four", True),
        ("for real", True),
        ("wrong", False),
        ("needs a number", True),
    ]
    assert went[2].reason == "it returned 10 instead of 11"


@pytest.mark.parametrize(("ending", "mark"), [("lua", "--"), ("py", "#")])
def test_metadata_may_follow_a_shebang(ending: str, mark: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{ending}"
    path.write_text(
        f"#!/usr/bin/env toolcrib\n{mark} /// tool\n{mark} description = 'Runs'\n{mark} ///\n1", "utf-8-sig"
    )
    assert read_script(path).description == "Runs"


async def test_a_stored_script_may_begin_with_a_bracket_and_names_invalid_arguments() -> None:
    async with library() as (gateway, kept):
        kept.add(make_script("five", "(function() result(args.n) end)()", parameters={"type": "object"}))
        assert (await gateway.call(ME, "scripts:five", {"n": 5})).content[0]["text"] == "5"
        with pytest.raises(InvalidRequest, match="n"):
            await gateway.call(ME, "scripts:five", {"n": float("nan")})
