"""Replicas that share their state in Redis, and workers: each console shows what all of them do."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.console.support import words
from tests.e2e.conftest import SERVERS, TOOLCRIB, http_notes, serve
from tests.e2e.test_replicas import LEGACY, MODERN, answers, call, client_at, free_port
from tests.e2e.test_workers import Workers, until
from tests.redis_server import NEEDS_REDIS, running_redis

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Observed:
    """Two gateways with consoles, of one settings file."""

    def __init__(self, folder: Path, redis: str) -> None:
        self.config = folder / "toolcrib.json"
        servers = {"notes": {"command": sys.executable, "args": [str(SERVERS / "notes.py")]}}
        own = {"state": redis, "calls": {"approval": "always", "approval_wait": 60}, "console": {"content": True}}
        self.config.write_text(json.dumps({"mcpServers": servers, "toolcrib": own}))
        self.ports, self.consoles = [free_port() for _ in range(2)], [free_port() for _ in range(2)]
        self.processes: list[subprocess.Popen[bytes]] = []
        for port, console in zip(self.ports, self.consoles, strict=True):
            command = serve(self.config, "--http", f"127.0.0.1:{port}", "--console", f"127.0.0.1:{console}")
            with (folder / "log").open("ab") as log:
                self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log))

    async def ready(self) -> None:
        with anyio.fail_after(60):
            for port in self.ports:
                while not await anyio.to_thread.run_sync(answers, port):  # noqa: ASYNC110 - a process has no event
                    await anyio.sleep(0.05)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)


@contextmanager
def observed(folder: Path) -> Iterator[Observed]:
    with running_redis(folder) as redis:
        gateways = Observed(folder, redis.url)
        try:
            yield gateways
        finally:
            gateways.close()


@NEEDS_REDIS
async def test_a_call_at_one_process_is_approved_shown_and_counted_at_the_console_of_the_other(tmp_path: Path) -> None:
    with observed(tmp_path) as gateways:
        await gateways.ready()
        here = f"http://127.0.0.1:{gateways.consoles[1]}"
        with anyio.fail_after(90):
            async with httpx2.AsyncClient(base_url=here, timeout=20) as browser:
                other = f"http://127.0.0.1:{gateways.ports[0]}/mcp"
                async with client_at(other, LEGACY) as client, anyio.create_task_group() as group:
                    group.start_soon(lambda: call(client, "notes:add_note", text="from the first"))
                    while not (  # noqa: ASYNC110 - another process has no event
                        found := re.findall(r'name="id" value="([^"]+)"', (page := await load(browser, "/approvals")))
                    ):
                        await anyio.sleep(0.05)
                    csrf = re.findall(r'data-csrf="([^"]+)"', page)[0]
                    response = await browser.post("/approvals", data={"csrf": csrf, "id": found[0], "say": "allow"})
                    assert response.status_code == 303
                calls = await load(browser, "/calls")
                first, second = (f":{process.pid}" for process in gateways.processes)
                assert re.search(rf"notes:add_note ok local \S+{first} ", words(calls))
                (path,) = re.findall(r'href="(/calls/\d+\?at=[0-9a-f]+)"', calls)
                assert "from the first" in words(await load(browser, path))
                overview = words(await load(browser, "/"))
                assert re.search(rf"{first} .*1 of 1", overview)
                assert re.search(rf"{second} .*1 of 1", overview)
                assert "1 calls and 0 searches in the last hour" in overview
                assert re.search(r"notes:add_note 1\b", words(await load(browser, "/usage")))
                stats = await anyio.run_process([*TOOLCRIB, "stats", "--config", str(gateways.config), "--json"])
                assert '"notes:add_note"' in stats.stdout.decode()

                gateways.processes[0].send_signal(signal.SIGKILL)
                calls = words(await load(browser, "/calls"))
                assert "No answer from" in calls
                while "No answer from" in (calls := words(await load(browser, "/calls"))):  # noqa: ASYNC110 - as above
                    await anyio.sleep(0.2)
                assert "Nothing was called yet" in calls


async def test_one_address_shows_the_metrics_and_the_calls_of_all_workers(tmp_path: Path) -> None:
    console, metrics = free_port(), free_port()
    with http_notes(tmp_path) as notes:
        workers = Workers(
            tmp_path,
            {"notes": {"url": notes}},
            console={"address": f"127.0.0.1:{console}"},
            telemetry={"metrics": f"127.0.0.1:{metrics}"},
        )
        try:
            workers.wait_serving()
            with anyio.fail_after(120):
                async with httpx2.AsyncClient(timeout=20, headers={"connection": "close"}) as browser:
                    await add_notes(workers.url, 12)
                    for _ in range(4):  # each is a new connection, which either worker may answer
                        assert await counted(browser, metrics) == (12, 2)
                        calls = words(await load(browser, f"http://127.0.0.1:{console}/calls"))
                        assert "12 of the last 12 calls" in calls
                        assert {"local worker 1", "local worker 2"} <= set(re.findall(r"local worker \d", calls))
                    overview = words(await load(browser, f"http://127.0.0.1:{console}/"))
                    assert re.search(r"worker 1 .*1 of 1 .*worker 2 .*1 of 1", overview), "in the same order at either"
                    assert re.search(
                        r"notes:add_note 12\b", words(await load(browser, f"http://127.0.0.1:{console}/usage"))
                    )

                    os.kill(workers.workers()[0], signal.SIGKILL)
                    assert (await counted(browser, metrics))[0] == 12
                    await anyio.to_thread.run_sync(until, lambda: workers.log().count("serving MCP") >= 3, workers.log)
                    while await counted(browser, metrics) != (12, 2):  # noqa: ASYNC110 - a process has no event
                        await anyio.sleep(0.1)
                    await add_notes(workers.url, 4)
                    assert await counted(browser, metrics) == (16, 2)
        finally:
            workers.close()


async def add_notes(url: str, number: int) -> None:
    for place in range(number):
        async with client_at(url, MODERN) as client:
            assert not (await call(client, "notes:add_note", text=str(place))).is_error


async def counted(browser: httpx2.AsyncClient, port: int) -> tuple[float, float]:
    """The successful calls of the server, and the workers."""
    text = await load(browser, f"http://127.0.0.1:{port}/metrics")
    calls = re.findall(
        r'^toolcrib_tool_call_duration_seconds_count\{namespace="notes",outcome="ok"\} (\S+)', text, re.MULTILINE
    )
    (workers,) = re.findall(r"^toolcrib_workers (\S+)", text, re.MULTILINE)
    return sum(map(float, calls)), float(workers)


async def load(browser: httpx2.AsyncClient, path: str) -> str:
    response = await browser.get(path)
    assert response.status_code == 200, response.text
    return response.text
