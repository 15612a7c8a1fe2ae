"""A Redis server of the tests' own, on a free port, which can be killed, paused and started again."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

MISSING: Final = shutil.which("redis-server") is None
NEEDS_REDIS: Final = pytest.mark.skipif(MISSING, reason="redis-server is not installed")
_START_S: Final = 10.0


class RedisServer:
    """One server process. What was acknowledged is on disk, so it survives a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the process, and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        durable = ["--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(["redis-server", *options, *durable], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if time.monotonic() > deadline:
                raise TimeoutError("redis-server does not answer")

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """Let the process answer nothing, with its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """Run a server during the block."""
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
