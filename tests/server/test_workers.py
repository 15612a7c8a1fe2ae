"""The supervisor of worker processes: which ends it answers with a new process, and which with a stop of all."""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import pytest

from toolcrib.server.processes.workers import SupervisorOptions, WorkerSupervisor

pytestmark = pytest.mark.anyio

WORKER = """
import json, os, signal, socket, struct, sys, time

seat = json.loads(os.environ["TOOLCRIB_WORKER"])
starts = os.path.join(sys.argv[1], str(seat["number"]))
with open(starts, "a+") as file:
    print(os.getpid(), file=file, flush=True)
    file.seek(0)
    start = len(file.readlines())
script = json.loads(sys.argv[2]).get(str(seat["number"]), [])
when, how = script[min(start, len(script)) - 1] if script else ("never", "")

def end():
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "exit code":
        os._exit(3)
    os.kill(os.getppid(), signal.SIGTERM)  # all is shown: the supervisor may end

if when == "before it serves":
    end()
supervisor = socket.socket(fileno=seat["supervisor"])
question = json.dumps([1, "ask", "serving", None]).encode()
supervisor.sendall(struct.pack(">I", len(question)) + question)
supervisor.recv(1024)
if when != "never":
    end()
time.sleep(60)
"""

SERVES = ("at the end", "stop")
"""A worker that serves, and shows with it that the test is over."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.server.processes.workers._FIRST_PAUSE_S", 0.01)


async def supervise(
    folder: Path, workers: int, script: Mapping[int, Sequence[tuple[str, str]]]
) -> tuple[int, list[int]]:
    """Run workers that end as the script says, by number and start. Returns the exit code, and starts by number."""
    command = [sys.executable, "-I", "-S", "-c", WORKER, str(folder), json.dumps(script)]
    options = SupervisorOptions(workers=workers, command=command, drain_s=1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener, anyio.fail_after(50):
        code = await WorkerSupervisor(options, {"http": listener}).run()
    return code, [len((folder / str(number)).read_text().split()) for number in range(1, workers + 1)]


@pytest.mark.parametrize("how", ["exit code", "signal"])
@pytest.mark.parametrize("when", ["in the first second", "later"])
@pytest.mark.parametrize("workers", [1, 2], ids=["alone", "with another one serving"])
async def test_a_worker_that_ends_after_it_served_is_started_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
    when: str,
    workers: int,
) -> None:
    if when == "later":
        monkeypatch.setattr("toolcrib.server.processes.workers._STABLE_S", 0.0)
    code, starts = await supervise(tmp_path, workers, {workers: [(when, how), SERVES]})
    assert (code, starts) == (0, [1, 2][-workers:])
    assert "it is started again in 0.0 s" in caplog.text
    assert ("exit code 3" if how == "exit code" else "SIGKILL") in caplog.text


@pytest.mark.parametrize("how", ["exit code", "signal"])
async def test_a_worker_that_ends_before_it_serves_is_started_again_while_another_one_serves(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    code, starts = await supervise(tmp_path, 2, {2: [("before it serves", how), SERVES]})
    assert (code, starts) == (0, [1, 2])
    assert "all stop" not in caplog.text


@pytest.mark.parametrize(("how", "expected"), [("exit code", 3), ("signal", 1)])
async def test_all_stop_if_the_first_worker_ends_before_it_serves(
    tmp_path: Path, how: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    script = {1: [("before it serves", how), SERVES]}
    code, starts = await supervise(tmp_path, 1, script)
    assert (code, starts) == (expected, [1])
    assert f"could not start ({'SIGKILL' if how == 'signal' else 'exit code 3'}): all stop" in caplog.text


async def test_all_stop_if_a_worker_can_never_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code, starts = await supervise(tmp_path, 2, {2: [("before it serves", "exit code")]})
    assert (code, starts) == (3, [1, 3])
    assert "could not start (exit code 3): all stop" in caplog.text


async def test_a_worker_that_is_killed_again_and_again_is_started_again_and_again(tmp_path: Path) -> None:
    code, starts = await supervise(tmp_path, 2, {2: [*[("before it serves", "signal")] * 5, SERVES]})
    assert (code, starts) == (0, [1, 6])
