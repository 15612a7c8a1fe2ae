"""Workers are forked from a prepared process or started ahead of time, and none outlives its script."""

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.sandbox.conftest import QUICK, Servers

from toolcrib.sandbox import LuaSandbox, SandboxOptions, ScriptError, process
from toolcrib.sandbox.calls import Tools
from toolcrib.sandbox.process import ScriptProcess

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers are ended by signals here")

WAIT = "return slow.sleep{s = 60}:await()"


@pytest.fixture(
    params=["forked", "spawned"] if process.zygote_supported() else ["spawned"],
)
async def box(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[LuaSandbox]:
    options = SandboxOptions(zygote=request.param == "forked", pool=2, workers=4)
    async with LuaSandbox(limits=QUICK, options=options) as sandbox:
        yield sandbox


def recorded(box: LuaSandbox) -> list[ScriptProcess]:
    """Record the workers that scripts get from now on."""
    workers: list[ScriptProcess] = []
    source = box._pool
    assert source is not None
    acquire = source.acquire

    async def remember() -> ScriptProcess:
        workers.append(await acquire())
        return workers[-1]

    source.acquire = remember  # type: ignore[method-assign]  # a spy
    return workers


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def started(servers: Servers, count: int) -> None:
    while len(servers.started) < count:
        servers.arrived.clear()
        await servers.arrived.wait()


async def test_every_script_has_its_own_process_which_ends_with_it(box: LuaSandbox, tools: Tools) -> None:
    workers = recorded(box)
    with anyio.fail_after(30):
        for _ in range(5):
            assert (await box.run("return slow.echo{v = 1}:await().v", tools)).value == 1
    pids = [worker.process.pid for worker in workers]
    assert len(set(pids)) == 5
    with anyio.fail_after(5):
        while not all(gone(pid) for pid in pids):
            await anyio.lowlevel.checkpoint()


async def test_killing_one_worker_does_not_affect_another(box: LuaSandbox, servers: Servers) -> None:
    workers = recorded(box)
    with anyio.fail_after(30):
        first = asyncio.create_task(box.run(WAIT, servers.tools()))
        await started(servers, 1)
        second = asyncio.create_task(box.run("return slow.sleep{s = 0.2, v = 5}:await()", servers.tools()))
        await started(servers, 2)
        os.kill(workers[0].process.pid, signal.SIGKILL)
        with pytest.raises(ScriptError) as caught:
            await first
        assert caught.value.kind == "killed"
        assert (await second).value == 5
        assert (await box.run("return 1", servers.tools())).value == 1
    assert servers.cancelled == ["sleep"]


async def test_a_cancelled_script_has_ended_when_run_returns(box: LuaSandbox, servers: Servers) -> None:
    workers = recorded(box)
    with anyio.fail_after(30):
        task = asyncio.create_task(box.run(WAIT, servers.tools()))
        await servers.arrived.wait()
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert servers.cancelled == ["sleep"]
    assert gone(workers[0].process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="it is seen by poll whether the other side hung up")
async def test_a_script_that_ends_before_its_calls_still_reports_its_end(box: LuaSandbox) -> None:
    workers = recorded(box)

    def answer_late(_: dict[str, Any]) -> str:
        """Block the event loop for a while; a worker that exits by itself has exited by then."""
        hung_up = select.poll()
        hung_up.register(workers[-1].writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
        hung_up.poll(200)
        return "late"

    busy = "for _ = 1, 3000000 do end"  # until the call has arrived and the tool runs
    with anyio.fail_after(30):
        with pytest.raises(ScriptError, match="no matter") as caught:
            await box.run(f"slow.echo{{}} {busy} error('no matter')", {"slow": {"echo": answer_late}})
        result = await box.run(f"slow.echo{{}} {busy} return 5", {"slow": {"echo": answer_late}})
    assert caught.value.kind == "script"
    assert (result.value, result.unawaited) == (5, ("slow.echo",))


async def test_many_scripts_at_once_all_end_well(box: LuaSandbox, tools: Tools) -> None:
    with anyio.fail_after(60):
        results = await asyncio.gather(*(box.run(f"return slow.echo{{v = {n}}}:await().v", tools) for n in range(30)))
    assert [result.value for result in results] == list(range(30))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
async def test_no_descriptor_is_left_behind(box: LuaSandbox, tools: Tools) -> None:
    with anyio.fail_after(60):
        await box.run("return 1", tools)
        before = open_files()
        for source in ["return 1", "error('x')", "slow.sleep{s = 60}", "return 1"] * 5:
            with anyio.move_on_after(20):
                try:
                    await box.run(source, tools)
                except ScriptError:
                    continue
    assert open_files() <= before + 4  # the pool may be one worker ahead


async def test_a_worker_that_died_while_it_waited_is_replaced(tools: Tools) -> None:
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(zygote=False, pool=1)) as box:
        pool = box._pool
        assert pool is not None
        (pid,) = pool.idle
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(30):
            while pool._ready and pool._ready[0].alive:
                await anyio.lowlevel.checkpoint()
            assert (await box.run("return 1", tools)).value == 1


async def test_nothing_is_left_when_the_sandbox_ends(tools: Tools) -> None:
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(zygote=False, pool=2)) as box:
        pool = box._pool
        assert pool is not None
        with anyio.fail_after(30):
            while len(pool.idle) < 2:
                await anyio.lowlevel.checkpoint()
        pids = pool.idle
    assert all(gone(pid) for pid in pids)


@pytest.mark.skipif(not process.zygote_supported(), reason="Linux only")
async def test_scripts_still_run_after_the_prepared_process_is_killed(tools: Tools) -> None:
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(pool=1)) as box:
        pool = box._pool
        assert box._zygote is not None
        assert pool is not None
        prepared = box._zygote.pid
        assert prepared is not None
        with anyio.fail_after(30):
            while not pool.idle:
                await anyio.lowlevel.checkpoint()
            os.kill(prepared, signal.SIGKILL)
            while any(worker.alive for worker in pool._ready):  # they die with it
                await anyio.lowlevel.checkpoint()
            for _ in range(3):
                assert (await box.run("return 1", tools)).value == 1


@pytest.mark.skipif(not process.zygote_supported(), reason="Linux only")
async def test_a_running_script_dies_with_the_prepared_process(servers: Servers) -> None:
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(pool=1)) as box:
        assert box._zygote is not None
        prepared = box._zygote.pid
        assert prepared is not None
        with anyio.fail_after(30):
            task = asyncio.create_task(box.run(WAIT, servers.tools()))
            await servers.arrived.wait()
            os.kill(prepared, signal.SIGKILL)
            with pytest.raises(ScriptError) as caught:
                await task
        assert caught.value.kind == "killed"


@pytest.mark.skipif(not process.zygote_supported(), reason="Linux only")
async def test_workers_are_started_one_by_one_if_none_can_be_prepared(
    tools: Tools, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = process.worker_command
    broken = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(
        process, "worker_command", lambda mode, kind: broken if mode == "zygote" else command(mode, kind)
    )
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(pool=1)) as box:
        with anyio.fail_after(30):
            assert (await box.run("return 1", tools)).value == 1
    assert "one by one" in caplog.text


def test_processor_time_is_known_if_the_system_reports_it() -> None:
    used = process.cpu_seconds(os.getpid())
    assert used is None or used >= 0
    assert process.cpu_seconds(1 << 30) is None
