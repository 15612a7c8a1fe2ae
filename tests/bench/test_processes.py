"""The processes that benchmarks start: found wherever the repository is, and never waited for without end."""

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
HANGING = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('hanging', flush=True)\ntime.sleep(600)"
)
NOISY = """
import sys, time
print("http://elsewhere.example/mcp", file=sys.stderr, flush=True)
print("http://127.0.0.1:1/mcp", flush=True)
print("x" * 1_000_000, file=sys.stderr)
print("y" * 1_000_000, flush=True)
open(sys.argv[1], "w").write("done")
time.sleep(600)
"""
"""Prints more than a pipe holds; its address is on the standard output."""


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the benchmarks, whose folder is no package, with short waits."""
    monkeypatch.syspath_prepend(str(BENCH))
    module: ModuleType = importlib.import_module("processes")
    monkeypatch.setattr(module, "_END_S", 0.5)
    yield module
    sys.modules.pop("processes")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder of the name that a clone has, below one with a space in its name."""
    (folder := tmp_path / "x y" / "toolcrib").mkdir(parents=True)
    return folder


def hanging() -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True)


def test_a_server_is_found_by_what_it_prints_whatever_its_path_and_however_much_it_says(
    processes: Any, clone: Path
) -> None:
    (program := clone / "server.py").write_text(NOISY)
    with processes.server(str(program), str(clone / "done")) as (url, pid):
        assert url == "http://127.0.0.1:1/mcp"
        assert Path(f"/proc/{pid}").exists()
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waiting:
            processes.wait_until(waiting, (clone / "done").exists)
    assert not Path(f"/proc/{pid}").exists()


def test_a_gateway_is_found_whatever_the_path_of_its_settings(processes: Any, clone: Path) -> None:
    (config := clone / "toolcrib.json").write_text(json.dumps({"toolcrib": {"state": {"memory": True}}}))
    with processes.gateway(config) as (url, _):
        port = int(url.rpartition(":")[2].partition("/")[0])
        assert processes.is_open(port)
        assert processes.is_ok(port, "/readyz")
        assert not processes.is_ok(port, "/nothing")
    assert not processes.is_open(port)


@pytest.mark.parametrize(
    "program", ["raise SystemExit('no licence key')", "print('no licence key'); raise SystemExit(3)"]
)
def test_a_server_that_ends_at_once_is_an_error_with_its_exit_code(processes: Any, clone: Path, program: str) -> None:
    (file := clone / "server.py").write_text(program)
    with (
        pytest.raises(RuntimeError, match=r"x y/toolcrib/server\.py' ended with exit code [13]"),
        processes.server(str(file)),
    ):
        pass


def test_what_hangs_is_given_up_and_ended(processes: Any) -> None:
    with hanging() as process:
        assert processes.read_line(process) == "hanging\n"
        with pytest.raises(RuntimeError, match=r"is not ready after 0\.2 s"), processes.ending(process):
            processes.wait_until(process, lambda: False, within_s=0.2)
        assert process.returncode == -signal.SIGKILL
    with hanging() as process:
        processes.read_line(process)
        with pytest.raises(RuntimeError, match="printed no line"):
            processes.read_line(process, within_s=0.2)
        assert process.wait(10) == -signal.SIGKILL
    with pytest.raises(RuntimeError, match="failed"):
        processes.finished([sys.executable, "-c", HANGING], {}, within_s=0.2)


def test_a_command_that_fails_is_an_error_with_what_it_said(processes: Any) -> None:
    wall, cpu = processes.finished([sys.executable, "-c", "pass"], {})
    assert wall > 0
    assert cpu > 0
    with pytest.raises(RuntimeError, match="failed: no licence key"):
        processes.finished([sys.executable, "-c", "raise SystemExit('no licence key')"], {})
