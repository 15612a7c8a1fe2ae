"""Worker processes that serve one address: `toolcrib serve --http --workers N`."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.e2e.conftest import children, http_notes, notes, serve
from tests.e2e.round_robin import round_robin
from tests.e2e.test_replicas import LEGACY, MODERN, call, client_at, fifteen_clients, post, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_START_S = 120.0


def until(condition: Callable[[], object], what: Callable[[], str]) -> None:
    """Wait for what other processes do."""
    deadline = time.monotonic() + _START_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


class Workers:
    """A gateway with two workers."""

    def __init__(self, folder: Path, servers: dict[str, Any], *, runtime: Path | None = None, **own: Any) -> None:
        self.folder = folder
        # By default a short path, as paths of sockets have to be.
        self.runtime = Path(tempfile.mkdtemp(prefix="run-")) if runtime is None else runtime
        self._log = folder / "log"
        self._path = folder / "toolcrib.json"
        self.configure(servers, **own)
        command = serve(self._path, "--http", "127.0.0.1:0", "--workers", "2")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self.runtime)},
                start_new_session=True,
            )

    def configure(self, servers: dict[str, Any], **own: Any) -> None:
        """Write the settings file."""
        settings = {"state": {"path": str(self.folder / "state.sqlite")}, **own}
        self._path.write_text(json.dumps({"mcpServers": servers, "toolcrib": settings}))

    def wait_serving(self) -> None:
        """Wait until both workers serve and know their servers."""
        until(lambda: len(re.findall("worker [12]: serving MCP at", self.log())) >= 2, self.log)
        self.url = re.findall(r"http://\S+/mcp", self.log())[0]
        self.port = int(self.url.rpartition(":")[2].partition("/")[0])
        until(lambda: self.log().count(" is ready") >= 2, self.log)

    def log(self) -> str:
        return self._log.read_text()

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for pid in children(self.process.pid) if b"TOOLCRIB_WORKER" in _environment(pid)]

    def descendants(self) -> list[int]:
        found, left = list[int](), [self.process.pid]
        while left:
            more = children(left.pop())
            found += more
            left += more
        return found

    def close(self) -> None:
        everything = self.descendants()
        self.process.kill()
        self.process.wait(10)
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.runtime, ignore_errors=True)


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def notes_url(tmp_path: Path) -> Iterator[str]:
    with http_notes(tmp_path) as url:
        yield url


def of_program(gateway: Workers, part: str) -> list[int]:
    """The processes below the gateway whose command line has this part."""
    return [pid for pid in gateway.descendants() if part.encode() in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def workers(tmp_path: Path, notes_url: str) -> Iterator[Workers]:
    gateway = Workers(tmp_path, {"notes": {"url": notes_url}})
    try:
        gateway.wait_serving()
        yield gateway
    finally:
        gateway.close()


async def test_clients_of_both_eras_lose_only_the_calls_of_a_worker_that_dies_and_none_of_one_that_is_replaced(
    workers: Workers, notes_url: str
) -> None:
    async def replace() -> None:
        before = set(workers.workers())
        workers.process.send_signal(signal.SIGUSR2)
        await anyio.to_thread.run_sync(until, lambda: "all workers were replaced" in workers.log(), workers.log)
        assert len(set(workers.workers()) - before) == 2

    async def kill() -> None:
        os.kill(workers.workers()[0], signal.SIGKILL)
        await anyio.to_thread.run_sync(until, lambda: len(workers.workers()) == 2, workers.log)

    tally = await fifteen_clients(workers.url, notes_url, 3, replace)
    tally.show("workers replaced")
    assert tally.errors == [], workers.log()
    # The SDK's client ends with its connection; a proxy answers for the worker instead, as a load balancer does.
    async with round_robin([workers.port]) as url:
        tally = await fifteen_clients(url, notes_url, 3, kill)
    tally.show("worker killed")
    assert max(tally.failed.values(), default=0) <= 1, tally.errors
    assert "it is started again" in workers.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_finishes_calls_and_leaves_no_process_and_no_file(
    workers: Workers, notes_url: str, number: int
) -> None:
    everything = workers.descendants()
    with anyio.fail_after(60):
        answers = []

        async def wait() -> None:
            params = {"name": "execute_tool", "arguments": {"name": "notes:wait", "arguments": {"seconds": 1}}}
            answers.append(await anyio.to_thread.run_sync(post, workers.port, "tools/call", params))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            async with client_at(notes_url, MODERN) as client:
                while "waiting" not in text_of(await client.call_tool("list_notes", {})):  # noqa: ASYNC110
                    await anyio.sleep(0.02)  # another process has no event
            workers.process.send_signal(number)
        assert "waited" in answers[0].text
        assert await anyio.to_thread.run_sync(workers.process.wait) == 0
    assert not [pid for pid in everything if is_running(pid)]
    assert not list(workers.runtime.iterdir())


async def test_workers_end_by_themselves_when_the_supervisor_is_killed(workers: Workers) -> None:
    everything = workers.descendants()
    workers.process.kill()
    workers.process.wait(10)
    until(lambda: not any(map(is_running, everything)), workers.log)
    assert not list(workers.runtime.iterdir())
    assert "the supervisor has ended" in workers.log()


def test_a_revoked_key_is_refused_by_every_worker(tmp_path: Path, notes_url: str) -> None:
    gateway = Workers(tmp_path, {"notes": {"url": notes_url}}, auth={"api_keys": True})
    config = str(tmp_path / "toolcrib.json")
    command = [sys.executable, "-m", "toolcrib", "tokens"]
    try:
        gateway.wait_serving()
        made = subprocess.run(
            [*command, "create", "--caller", "ann", "--config", config, "--json"],
            capture_output=True,
            check=True,
            timeout=60,
        )
        key = json.loads(made.stdout)
        statuses = [_status(gateway.url, key["token"]) for _ in range(8)]
        subprocess.run([*command, "revoke", key["id"], "--config", config], check=True, timeout=60)
        assert statuses == [200] * 8
        assert [_status(gateway.url, key["token"]) for _ in range(8)] == [401] * 8
    finally:
        gateway.close()


def test_changed_settings_and_a_revoked_token_apply_to_every_worker(tmp_path: Path, notes_url: str) -> None:
    ann, bob = ("ann-0123456789abcdef", "bob-0123456789abcdef")
    (tmp_path / "ann").write_text(ann)
    (tmp_path / "bob").write_text(bob)
    tokens = [{"caller": name, "file": str(tmp_path / name)} for name in ("ann", "bob")]
    gateway = Workers(tmp_path, {"notes": {"url": notes_url}}, http={"tokens": tokens})
    try:
        gateway.wait_serving()
        assert [_status(gateway.url, key) for key in (ann, bob) * 6] == [200] * 12
        gateway.configure({"notes": {"url": notes_url}, "second": {"url": notes_url}}, http={"tokens": tokens[:1]})
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: set(re.findall(r"worker (\d): second is ready", gateway.log())) == {"1", "2"}, gateway.log)
        assert [_status(gateway.url, bob) for _ in range(12)] == [401] * 12
        assert [_status(gateway.url, ann) for _ in range(12)] == [200] * 12
    finally:
        gateway.close()


def _status(url: str, key: str) -> int:
    """The status of a request on a connection of its own, which either worker may accept."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {
        "authorization": f"Bearer {key}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-11-25",
    }
    response = httpx2.post(url, json=body, headers=headers, timeout=30)
    return 200 if response.status_code not in (401, 503) else response.status_code


async def test_a_worker_that_cannot_start_ends_all_with_its_reason(tmp_path: Path) -> None:
    gateway = Workers(tmp_path, {"lost": {"command": str(tmp_path / "missing"), "required": True}})
    try:
        assert await anyio.to_thread.run_sync(gateway.process.wait, 60) not in (0, None)
        assert "lost is required" in gateway.log()
        assert gateway.log().count("lost is required") == 1
        assert "could not start" in gateway.log()
        assert not list(gateway.runtime.iterdir())
    finally:
        gateway.close()


async def test_a_program_runs_once_and_again_when_the_process_that_runs_it_is_killed(tmp_path: Path) -> None:
    entry = {**notes(), "protocol": "2026-07-28"}
    gateway = Workers(tmp_path, {"notes": entry})
    try:
        gateway.wait_serving()
        before = of_program(gateway, "notes.py")
        assert len(before) == 1

        async def note(number: int) -> None:
            async with client_at(gateway.url, MODERN) as client:
                assert not (await call(client, "notes:add_note", text=str(number))).is_error

        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(note, number)
            [host] = of_program(gateway, "program_host")
            os.kill(host, signal.SIGKILL)
            async with client_at(gateway.url, MODERN) as client:
                while (await call(client, "notes:add_note", text="again")).is_error:  # noqa: ASYNC110
                    await anyio.sleep(0.1)  # another process has no event
        after = of_program(gateway, "notes.py")
        assert len(after) == 1
        assert after != before
        everything = gateway.descendants()
        gateway.process.terminate()
        assert await anyio.to_thread.run_sync(gateway.process.wait, 30) == 0
        assert not [pid for pid in everything if is_running(pid)]
        assert not list(gateway.runtime.iterdir())
    finally:
        gateway.close()


async def test_a_session_of_an_older_client_is_served_by_every_worker(workers: Workers) -> None:
    with anyio.fail_after(60):
        async with client_at(workers.url, LEGACY) as client:
            for number in range(20):
                assert not (await call(client, "notes:add_note", text=str(number))).is_error


def test_workers_serve_where_paths_in_the_runtime_directory_are_too_long_for_sockets(
    tmp_path: Path, notes_url: str
) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    gateway = Workers(tmp_path, {"notes": {"url": notes_url}}, runtime=long)
    try:
        gateway.wait_serving()
        assert "ended" not in gateway.log()
    finally:
        gateway.close()
