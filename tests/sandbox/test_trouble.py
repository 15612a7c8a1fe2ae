"""Problems around scripts and their reports: odd tools, closing, large frames, missing protection."""

import asyncio
import contextlib
import datetime as dt
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.deadlines import cpu_deadline
from tests.sandbox.conftest import QUICK, Servers
from tests.sandbox.test_escaped import BEGUN, EVIL, READY

from toolcrib.errors import SandboxUnavailable
from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions, ScriptError, frames, process
from toolcrib.sandbox.calls import ScriptCalls, Tools
from toolcrib.sandbox.languages import LUA, ServerNames, find_calls

Box = LuaSandbox | PythonSandbox


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def unspeakable(_: dict[str, Any]) -> Any:
    raise Unspeakable


async def cancelled(_: dict[str, Any]) -> Any:
    raise asyncio.CancelledError


async def waits_for_something_cancelled(_: dict[str, Any]) -> Any:
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    await other


class Property:
    __slots__ = ()

    @property
    def __dataclass_fields__(self) -> Any:
        raise RuntimeError("no")


def looked_at(_: dict[str, Any]) -> Any:
    return Property()


def _answered(answer: Any, _: dict[str, Any]) -> Any:
    return answer


def _catching(box: Box) -> str:
    if box.language is LUA:
        return "local ok, said = x.f{}:try()\nreturn said"
    return "said = ''\ntry:\n    said = await x.f()\nexcept RuntimeError as error:\n    said = str(error)\nsaid"


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (unspeakable, "x.f: Unspeakable"),
        (cancelled, "x.f: something it waited for was cancelled"),
        (waits_for_something_cancelled, "x.f: something it waited for was cancelled"),
        (looked_at, "x.f: its answer cannot be represented in JSON"),
    ],
)
async def test_a_tool_that_fails_oddly_is_an_error_that_the_script_can_catch(
    box: Box, tool: Callable[[dict[str, Any]], Any], said: str
) -> None:
    with anyio.fail_after(10):
        result = await box.run(_catching(box), {"x": {"f": tool}})
    assert result.value == said


async def test_an_answer_that_is_too_large_is_refused_before_it_is_encoded_whole(box: Box) -> None:
    for parts, most in [
        ([["x" * 1000] * 1000] * 5, f"{Limits().response_bytes} bytes"),
        ([[1] * 1000] * 201, f"{Limits().nodes} values"),
    ]:
        answer: Any = [Property(), parts]
        with anyio.fail_after(30):
            result = await box.run(_catching(box), {"x": {"f": partial(_answered, answer)}})
        assert result.value == f"x.f: its answer is larger than {most}"


async def test_other_tasks_get_turns_while_large_answers_are_encoded(box: Box) -> None:
    turns, answer = 0, {"rows": [{"name": "x" * 90, "at": n} for n in range(20_000)]}

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def large(_: dict[str, Any]) -> Any:
        nonlocal turns
        turns = 0
        return answer

    source = "return #x.f{}:await().rows" if box.language is LUA else "len((await x.f())['rows'])"
    counting = asyncio.create_task(count())
    with anyio.fail_after(30):
        result = await box.run(source, {"x": {"f": large}})
    counting.cancel()
    assert result.value == len(answer["rows"])
    assert turns >= 40_000 // frames._VALUES_PER_TURN


async def test_a_string_that_contains_nan_is_allowed(box: Box) -> None:
    answer = {"at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "said": "NaN and Infinity"}
    with anyio.fail_after(10):
        result = await box.run(_catching(box), {"x": {"f": lambda _: answer}})
    assert result.value == {"at": "2020-01-01T00:00:00Z", "said": "NaN and Infinity"}


async def test_a_failing_call_listener_does_not_affect_the_script(
    box: Box, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("not listening")

    with anyio.fail_after(10):
        assert (await box.run(_catching(box), {"x": {"f": lambda _: 5}}, on_call=fail)).value == 5
    assert "not listening" in caplog.text


@pytest.mark.parametrize("engine", ["forked", "spawned", "python"])
async def test_closing_a_sandbox_ends_the_scripts_that_run(engine: str, servers: Servers) -> None:
    options = SandboxOptions(zygote=engine == "forked", pool=1, workers=4)
    servers.expected = 2
    made = PythonSandbox if engine == "python" else LuaSandbox
    source = "await slow.sleep(s=60)" if engine == "python" else "slow.sleep{s = 60}:await()"
    with anyio.fail_after(30):
        async with made(limits=QUICK, options=options) as box:
            scripts = [asyncio.create_task(box.run(source, servers.tools())) for _ in range(2)]
            await servers.arrived.wait()
        assert servers.cancelled == ["sleep", "sleep"], "before the sandbox is closed"
        ended = await asyncio.gather(*scripts, return_exceptions=True)
    assert [type(error) for error in ended] == [SandboxUnavailable] * 2
    assert "closed while the script ran" in str(ended[0])


@pytest.mark.skipif(sys.platform == "win32", reason="the worker is started as elsewhere")
async def test_a_worker_that_calls_and_never_reads_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = tmp_path / "answered"
    body = (
        "import struct\n    for n in range(1, 51):\n"
        '        b = b"c" + struct.pack(">IHH", n, 0, 0) + b"{}"\n'
        '        os.write(1, struct.pack(">I", len(b)) + b)\n'
        f"        while os.path.exists({str(tmp_path)!r}) and (not os.path.exists({str(answered)!r}) or "
        f"int(open({str(answered)!r}).read() or 0) < n): time.sleep(0.001)\n"
        "    time.sleep(60)"
    )
    boot = tmp_path / "boot.py"
    boot.write_text(EVIL.format(ready=READY, begun=BEGUN, body=body), encoding="utf-8")
    monkeypatch.setattr(process, "BOOT_SCRIPT", boot)
    made: list[int] = []

    def big(_: dict[str, Any]) -> str:
        made.append(1)
        asyncio.get_running_loop().call_later(0.01, answered.write_text, str(len(made)))  # once it has been sent
        return "x" * 1_000_000

    async with LuaSandbox(limits=Limits(inflight=4), options=SandboxOptions(zygote=False, pool=1)) as box:
        with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
            await box.run("return 1", {"x": {"f": big}})
    assert caught.value.kind == "protocol"
    assert len(made) <= 6


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (b"[" + b"1," * 200_001 + b'"' + b'\\"' * 300_000, False),
        (b"[" + b"1," * 200_001 + b'"' * 300_000 + b"\\", False),
        (b'"' + (b"9" * 299 + b"x") * 3000 + b'"', True),
        (b'["' + b"\\\\" * 300_000 + b'"]', True),
    ],
    ids=["a string without an end", "quotes", "digits", "backslashes"],
)
def test_the_time_to_read_a_frame_grows_with_its_length_only(text: bytes, is_read: bool) -> None:
    value: Any = None
    with cpu_deadline(20), contextlib.suppress(frames.ProtocolError):
        value = frames.loads(text, nodes=200_000)
    assert (value is not None) is is_read


def test_commas_and_brackets_in_strings_do_not_count_as_values() -> None:
    text = b'["' + b"," * 1000 + b'", "\\",[[[[[[[[[[", "\\\\", {"[[[[[[[[[": 1}]'
    value: Any = frames.loads(text, nodes=10)
    assert value[2] == "\\"


def test_finding_calls_in_a_long_script_is_fast() -> None:
    with cpu_deadline(20):
        found = find_calls("calc.add{}\n" * 23_000, LUA, {"calc": ServerNames(original="calc", tools={"add": "add"})})
    assert [call.line for call in found] == list(range(1, 201))


async def test_python_without_a_temporary_folder_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    with pytest.raises(SandboxUnavailable, match="TMPDIR"):
        async with PythonSandbox():
            pass


@pytest.mark.skipif(not process.zygote_supported(), reason="Linux only")
async def test_a_prepared_process_that_cannot_watch_its_children_kills_them(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot.py"
    refuse = "import os\ndef refuse(*_): raise OSError(1, 'refused')\nos.pidfd_open = refuse\n"
    source = process.BOOT_SCRIPT.read_text(encoding="utf-8").replace("__file__", repr(str(process.BOOT_SCRIPT)))
    first, _, rest = source.partition("\n\n")
    boot.write_text(f"{first}\n\n{refuse}{rest}", encoding="utf-8")
    monkeypatch.setattr(process, "BOOT_SCRIPT", boot)
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(pool=1)) as box:
        with anyio.fail_after(30):
            for _ in range(3):
                assert (await box.run("return 1", tools)).value == 1
        assert box._zygote is not None
        pid = box._zygote.pid
        assert Path(f"/proc/{pid}/task/{pid}/children").read_text().split() == []  # noqa: ASYNC240 - no disk


def test_no_process_is_prepared_if_pidfds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    assert not process.zygote_supported()


@pytest.mark.parametrize("first", ["#!/usr/bin/env lua", "\ufeff", "\ufeff#!/usr/bin/env lua"])
async def test_a_script_may_begin_with_a_byte_order_mark_or_a_shebang(
    lua: LuaSandbox, tools: Tools, first: str
) -> None:
    with anyio.fail_after(10):
        assert (await lua.run(f"{first}\nreturn 5", tools)).value == 5
        with pytest.raises(ScriptError) as caught:
            await lua.run(f"{first}\nerror('x')", tools)
    assert caught.value.line == 2


async def test_an_error_in_the_prelude_names_the_scripts_line(lua: LuaSandbox, tools: Tools) -> None:
    with anyio.fail_after(10), pytest.raises(ScriptError) as caught:
        await lua.run("local x = 1\nlocal y = setmetatable(slow, {})", tools)
    assert (caught.value.line, caught.value.message) == (2, "script:2: cannot change a protected metatable")
    with anyio.fail_after(10), pytest.raises(ScriptError) as caught:
        await lua.run("return setmetatable(slow, {})", tools)
    assert caught.value.message == "cannot change a protected metatable"


async def test_a_call_after_the_end_of_its_script_is_never_made() -> None:
    made: list[str] = []

    async def tool(arguments: dict[str, Any]) -> None:
        made.append("made")

    calls = ScriptCalls({"server": {"tool": tool}}, None)
    await calls.close()
    late = calls.spawn(calls.call("server", "tool", {}))
    with anyio.fail_after(5):
        await asyncio.wait([late])
    assert late.cancelled()
    assert made == []
