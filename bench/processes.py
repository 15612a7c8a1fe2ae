"""Processes that benchmarks start: where they serve, what they print, and how they end. No wait here lasts for ever."""

import contextlib
import http.client
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeVar

T = TypeVar("T")

START_S: Final = 60.0
"""How long a process may take until it is ready, in seconds."""
RUN_S: Final = 300.0
"""How long a command may run, in seconds."""
_END_S: Final = 20.0
_STEP_S: Final = 0.02
_TAIL: Final = 900
_ADDRESS: Final = re.compile(r"http://\S+/mcp")


@contextlib.contextmanager
def server(*command: str) -> Iterator[tuple[str, int]]:
    """A Python program that prints the address at which it serves: the address and its process id."""
    with tempfile.TemporaryDirectory() as folder:
        said, log = Path(folder) / "said", Path(folder) / "log"
        with said.open("w") as out, log.open("w") as errors:
            # Files, since a pipe without a reader stops a process once it is full.
            process = subprocess.Popen([sys.executable, *command], stdout=out, stderr=errors)
        with ending(process):
            yield wait_until(process, lambda: _address(said), log=log), process.pid


@contextlib.contextmanager
def gateway(config: Path, python: str = sys.executable) -> Iterator[tuple[str, int]]:
    """`toolcrib serve`: its address and process id. Its log is beside the configuration, with the suffix `.log`."""
    command = [python, "-m", "toolcrib.cli.main", "serve", "--http", "127.0.0.1:0", "--config", str(config)]
    log = config.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    with ending(process):
        yield wait_until(process, lambda: _address(log), log=log), process.pid


@contextlib.contextmanager
def ending(process: "subprocess.Popen[Any]") -> Iterator[None]:
    """End a process after the block, by force if it does not end by itself."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)


def wait_until(
    process: "subprocess.Popen[Any]", found: Callable[[], T], *, log: Path | None = None, within_s: float = START_S
) -> T:
    """Return the first true answer of `found`. Raises `RuntimeError`, with the end of the log, if there is none."""
    deadline = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(_STEP_S)
    code = process.poll()
    why = f"is not ready after {within_s:g} s" if code is None else f"ended with exit code {code}"
    said = "" if log is None else f": {log.read_text()[-_TAIL:]}"
    raise RuntimeError(f"{_shown(process.args)} {why}{said}")


def is_open(port: int) -> bool:
    """Whether something listens at a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def is_ok(port: int, path: str) -> bool:
    """Whether a server at a port of this machine answers a path with 200."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
    return False


def read_line(process: "subprocess.Popen[str]", *, within_s: float = START_S) -> str:
    """The next line that a process prints. Raises `RuntimeError`, and kills it, if none comes in time."""
    with _killing_after(process, within_s):
        line = _pipe(process.stdout).readline()
    if not line:
        raise RuntimeError(f"{_shown(process.args)} printed no line within {within_s:g} s, or ended")
    return line


def finished(command: Sequence[str], environ: Mapping[str, str], *, within_s: float = RUN_S) -> tuple[float, float]:
    """Run a command to its end: wall time, and processor time with its children. Raises `RuntimeError` if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ)
    with _pipe(process.stderr) as errors, _killing_after(process, within_s):
        said = errors.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise RuntimeError(f"{_shown(command)} failed: {said.decode()[-_TAIL:]}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def _killing_after(process: "subprocess.Popen[Any]", seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _address(file: Path) -> str:
    found = _ADDRESS.search(file.read_text())
    return found[0] if found else ""


def _pipe(stream: "IO[Any] | None") -> "IO[Any]":
    assert stream is not None
    return stream


def _shown(command: Any) -> str:
    return command if isinstance(command, str) else shlex.join(map(str, command))
