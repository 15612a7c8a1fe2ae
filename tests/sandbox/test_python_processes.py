"""The two processes of a Python script: what passes between them; neither outlives the script."""

import asyncio
import contextlib
import os
import signal
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from tests.sandbox.conftest import QUICK, Servers
from tests.sandbox.test_confined import descendants

from toolcrib.sandbox import Limits, LuaSandbox, PythonSandbox, SandboxOptions, ScriptError, process
from toolcrib.sandbox.calls import Tools

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

MIB = 1 << 20


@pytest.fixture(params=["forked", "spawned"] if process.zygote_supported() else ["spawned"])
async def box(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[PythonSandbox]:
    options = SandboxOptions(zygote=request.param == "forked", pool=1, workers=4)
    async with PythonSandbox(limits=QUICK, options=options) as sandbox:
        yield sandbox


def interpreters() -> list[int]:
    """Monty's processes below this one."""
    found = []
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "monty":
                found.append(pid)
    return found


async def is_left_with(count: int) -> bool:
    """Wait until exactly this many interpreters run."""
    with anyio.move_on_after(20):
        while len(interpreters()) != count:
            await anyio.lowlevel.checkpoint()
        return True
    return False


async def test_neither_process_outlives_a_script(box: PythonSandbox, tools: Tools) -> None:
    with anyio.fail_after(60):
        for _ in range(3):
            assert (await box.run("(await calculator.add(a=1, b=2))['result']", tools)).value == 3
        assert await is_left_with(1), "the one that waits for the next script"


async def test_an_interpreter_that_computes_ends_with_the_process_above_it(
    box: PythonSandbox, servers: Servers
) -> None:
    source = "import asyncio\nslow.sleep(s=60)\nawait asyncio.sleep(0)\nwhile True:\n    pass"
    with anyio.fail_after(60):
        task = asyncio.create_task(box.run(source, servers.tools(), limits=Limits(soft_cpu_s=20, cpu_s=20)))
        await servers.arrived.wait()
        task.cancel()
        await asyncio.wait([task])
        assert await is_left_with(1)
    assert task.cancelled()
    assert servers.cancelled == ["sleep"]


async def test_a_sleeping_script_gets_its_answers_and_sleeps_only_as_long_as_asked(
    box: PythonSandbox, servers: Servers
) -> None:
    source = (
        "import asyncio, time\n"
        "a, b, c = await asyncio.gather(slow.sleep(s=0.1, v=1), asyncio.sleep(0.2), slow.echo(v=3))\n"
        "time.sleep(0.01)\n"
        "[a, b, c['v']]"
    )
    with anyio.fail_after(30):
        result = await box.run(source, servers.tools())
    assert result.value == [1, None, 3]
    assert result.stats["wall_s"] >= 0.2


@pytest.mark.parametrize("source", ["import time\ntime.sleep(-1)", "import asyncio\nawait asyncio.sleep('x')"])
async def test_a_negative_sleep_is_an_error_of_the_script(box: PythonSandbox, tools: Tools, source: str) -> None:
    with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
        await box.run(source, tools)
    assert (caught.value.kind, caught.value.line) == ("script", 2)


HUGE = {
    "python": {
        "a text": "'x' * 50_000_000",
        "a list": "[1] * 3_000_000",
        "a small value a million times": "t = [0]\nfor _ in range(30):\n    t = [t, t, t, t]\nt",
        "an argument": "await slow.echo(v='x' * 50_000_000)",
        "print": "print('x' * 50_000_000)\n1",
        "an error": "raise ValueError('x' * 50_000_000)",
    },
    "lua": {
        "a text": "return string.rep('x', 50000000)",
        "a list": "local t = {} for i = 1, 1000000 do t[i] = 1 end return t",
        "an argument": "return slow.echo{v = string.rep('x', 50000000)}:await()",
        "print": "print(string.rep('x', 50000000))",
        "an error": "error(string.rep('x', 50000000))",
    },
}


@pytest.mark.parametrize(
    ("engine", "source"),
    [pytest.param(engine, source, id=f"{engine}: {what}") for engine in HUGE for what, source in HUGE[engine].items()],
)
async def test_the_gateway_holds_at_most_one_frame_of_a_scripts_data(engine: str, source: str, tools: Tools) -> None:
    limits = Limits(wall_s=20, soft_cpu_s=5, cpu_s=6)
    async with (PythonSandbox if engine == "python" else LuaSandbox)(limits=limits) as box:
        await box.run("1" if engine == "python" else "return 1", tools)
        tracemalloc.start()
        try:
            with anyio.fail_after(60):
                with suppress(ScriptError):
                    await box.run(source, tools)
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()


def kill_interpreters() -> None:
    """Kill every interpreter, unless it has just ended by itself."""
    for pid in interpreters():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_an_interpreter_that_died_in_the_pool_costs_no_script(box: PythonSandbox, tools: Tools) -> None:
    with anyio.fail_after(60):
        await box.run("1", tools)
        assert await is_left_with(1)
        kill_interpreters()
        assert (await box.run("2", tools)).value == 2


async def test_a_killed_interpreter_is_noticed_while_its_script_waits(box: PythonSandbox, servers: Servers) -> None:
    with anyio.fail_after(15):
        task = asyncio.create_task(box.run("await slow.sleep(s=60)", servers.tools()))
        await servers.arrived.wait()
        kill_interpreters()
        with pytest.raises(ScriptError) as caught:
            await task
    assert caught.value.kind == "killed"


def clear(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            file.unlink()


async def test_the_launcher_is_written_again_after_it_was_deleted(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with PythonSandbox(limits=QUICK, options=SandboxOptions(pool=1)) as box:
        for _ in range(3):
            clear(tmp_path)
            with anyio.fail_after(30):
                assert (await box.run("1", tools)).value == 1


async def test_no_interpreter_outlives_a_gateway_that_was_killed(tmp_path: Path) -> None:
    program = tmp_path / "gateway.py"
    program.write_text(
        "import asyncio\n"
        "from toolcrib.sandbox import PythonSandbox\n"
        "async def main():\n"
        "    async with PythonSandbox() as box:\n"
        "        call = lambda _: print('called', flush=True)\n"
        "        await box.run('import asyncio\\nawait s.t()\\nwhile True:\\n    pass', {'s': {'t': call}})\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    with anyio.fail_after(60):
        assert await process.stdout.readline() == b"called\n"
        below = descendants(process.pid)
        process.kill()
        await process.wait()
        while any(is_running(pid) for pid in below):
            await anyio.lowlevel.checkpoint()
    assert len(below) >= 3


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
