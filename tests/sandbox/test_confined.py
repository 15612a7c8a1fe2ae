"""Script processes as the kernel reports them, while scripts run."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from tests.sandbox.conftest import QUICK, Servers

from toolcrib.sandbox import LuaSandbox, PythonSandbox, SandboxOptions
from toolcrib.sandbox.worker import seccomp

pytestmark = pytest.mark.skipif(bool(seccomp.missing()) or sys.platform != "linux", reason="only Linux has /proc")


@asynccontextmanager
async def waiting(box: LuaSandbox | PythonSandbox, source: str) -> AsyncIterator[None]:
    """Keep a script waiting for a call inside the block."""
    servers = Servers()
    with anyio.fail_after(30):
        task = asyncio.create_task(box.run(source, servers.tools()))
        await servers.arrived.wait()
        yield
        task.cancel()
        await asyncio.wait([task])


def descendants(pid: int) -> list[int]:
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def limits(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:25].strip(): line[26:46].strip() for line in lines}


def filtered() -> list[int]:
    """Our processes with a seccomp filter: those that run a script."""
    return [pid for pid in descendants(os.getpid()) if status(pid)["Seccomp"] == "2"]


@pytest.mark.parametrize("zygote", [True, False], ids=["forked", "spawned"])
async def test_a_lua_script_runs_in_a_process_that_has_nothing(zygote: bool) -> None:
    async with LuaSandbox(limits=QUICK, options=SandboxOptions(zygote=zygote, pool=1)) as box:
        async with waiting(box, "slow.sleep{s = 60}:await()"):
            (pid,) = filtered()
            place = Path(f"/proc/{pid}")
            said, bounds = status(pid), limits(pid)
            assert said["NoNewPrivs"] == "1"
            assert environment(pid).replace(b"\0", b"") in (b"", b"LC_CTYPE=C.UTF-8")
            assert (place / "cwd").readlink() == Path("/")
            assert sorted(item.name for item in (place / "fd").iterdir()) == ["0", "1", "2"]
            assert os.getsid(pid) == pid
    assert (bounds["Max open files"], bounds["Max processes"], bounds["Max file size"]) == ("0", "0", "0")
    assert (bounds["Max cpu time"], bounds["Max address space"]) == (str(QUICK.cpu_s), str(QUICK.as_bytes))


async def test_a_python_script_runs_in_a_process_that_has_little() -> None:
    async with PythonSandbox(limits=QUICK, options=SandboxOptions(pool=1)) as box:
        async with waiting(box, "await slow.sleep(s=60)"):
            pids = filtered()
            bounds = [limits(pid) for pid in pids]
            environments = [environment(pid) for pid in pids]
            privileges = [status(pid)["NoNewPrivs"] for pid in pids]
    assert pids
    assert environments == [b""] * len(pids)
    assert privileges == ["1"] * len(pids)
    assert {bound["Max file size"] for bound in bounds} == {"0"}
    assert {bound["Max address space"] for bound in bounds} == {str(QUICK.as_bytes)}
    assert str(QUICK.cpu_s + 1) in {bound["Max cpu time"] for bound in bounds}, "the one that runs the script"


async def test_no_launcher_is_left_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with PythonSandbox(limits=QUICK, options=SandboxOptions(pool=1)):
        assert len(list(tmp_path.iterdir())) == 1  # noqa: ASYNC240 - a local folder of one
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240 - as above
