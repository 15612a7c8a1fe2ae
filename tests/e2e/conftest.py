"""Complete gateways in their own processes, in front of real servers in theirs."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

SERVERS = Path(__file__).parent / "servers"
TOOLCRIB = [str(Path(sys.executable).with_name("toolcrib"))]


def notes() -> dict[str, Any]:
    """The configuration of one notes server over stdio."""
    return {"command": sys.executable, "args": [str(SERVERS / "notes.py")]}


class Files:
    """Writes configurations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def config(self, servers: dict[str, Any], **own: Any) -> Path:
        """Write a configuration file with these servers and these settings."""
        path = self._folder / "toolcrib.json"
        path.write_text(json.dumps({"mcpServers": servers, "toolcrib": own}))
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def serve(config: Path, *more: str) -> list[str]:
    """The command that serves a configuration."""
    return [*TOOLCRIB, "serve", "--config", str(config), *more]


@contextlib.asynccontextmanager
async def http_gateway(config: Path, *more: str, **environment: str) -> AsyncIterator[tuple[str, anyio.abc.Process]]:
    """A gateway over HTTP: its address and process. Stopped at the end."""
    process = await anyio.open_process(
        serve(config, "--http", "127.0.0.1:0", *more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        assert process.stderr is not None
        received = ""
        with anyio.fail_after(60):
            async for chunk in process.stderr:
                received += chunk.decode()
                if address := re.search(r"http://\S+/mcp", received):
                    break
            else:
                raise AssertionError(received)
        async with anyio.create_task_group() as group:
            group.start_soon(_drain, process.stderr)
            yield address[0], process
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with anyio.move_on_after(10):
                await process.wait()
            await process.aclose()


async def _drain(stream: anyio.abc.ByteReceiveStream) -> None:
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError):
        while True:
            await stream.receive()


def children(pid: int) -> list[int]:
    """The living child processes of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == pid:
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def http_notes(folder: Path) -> Iterator[str]:
    """A notes server over HTTP: its address."""
    port = folder / "port"
    process = subprocess.Popen([sys.executable, str(SERVERS / "notes.py"), "--http", str(port)])
    try:
        for _ in range(400):
            if port.exists():
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield f"http://127.0.0.1:{port.read_text()}/mcp"
    finally:
        process.terminate()
        process.wait(10)
