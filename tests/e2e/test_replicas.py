"""Three gateways that share their state in Redis, behind a load balancer without stickiness."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types as types
import pytest
from mcp.client.streamable_http import streamable_http_client
from tests.e2e.conftest import SERVERS, serve
from tests.e2e.round_robin import round_robin
from tests.redis_server import NEEDS_REDIS, RedisServer, running_redis

pytestmark = [pytest.mark.anyio, pytest.mark.slow, NEEDS_REDIS]

ASKING = Path(__file__).parents[1] / "fixtures" / "servers" / "asking.py"
MODERN, LEGACY = "2026-07-28", "legacy"
_START_S = 60.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def answers(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


class Gateways:
    """Three gateway processes over one server, with Redis."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self.redis = redis
        self.ports = [free_port() for _ in range(3)]
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * 3
        self._notes = self._start_notes()
        self._config = self._write_config()

    def _start_notes(self) -> subprocess.Popen[bytes]:
        self._port_file = self._folder / "port"
        return subprocess.Popen([sys.executable, str(SERVERS / "notes.py"), "--http", str(self._port_file)])

    def _write_config(self) -> Path:
        deadline = time.monotonic() + _START_S
        while not self._port_file.exists() or not self._port_file.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.notes_url = f"http://127.0.0.1:{self._port_file.read_text().strip()}/mcp"
        servers = {
            "notes": {"url": self.notes_url},
            "older": {"command": sys.executable, "args": [str(ASKING)], "protocol": "2025-11-25", "asks": True},
        }
        own = {
            "state": self.redis.url,
            "calls": {"approval": "destructive", "tool_rates": {"older:era": {"per_second": 0.01, "burst": 2}}},
            "http": {"allowed_hosts": ["127.0.0.1:*"], "max_connections_per_peer": 4000},
        }
        path = self._folder / "toolcrib.json"
        path.write_text(json.dumps({"mcpServers": servers, "toolcrib": own}))
        return path

    def start(self) -> None:
        """Start the gateways that do not run, and wait until they are ready."""
        for index, port in enumerate(self.ports):
            if self._processes[index] is None:
                log = (self._folder / f"{port}.log").open("ab")
                command = serve(self._config, "--http", f"127.0.0.1:{port}")
                self._processes[index] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
                log.close()
        deadline = time.monotonic() + _START_S
        while not all(answers(port) for port in self.ports):
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def send(self, index: int, number: signal.Signals) -> None:
        process = self._processes[index]
        assert process is not None
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait(10)
            self._processes[index] = None

    def close(self) -> None:
        for process in (*self._processes, self._notes):
            if process is not None:
                process.kill()
                process.wait(10)

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    folder = tmp_path_factory.mktemp("replicas")
    with running_redis(folder) as redis:
        gateways = Gateways(folder, redis)
        try:
            yield gateways
        finally:
            gateways.close()


@pytest.fixture
def gateways(started: Gateways) -> Gateways:
    """All three gateways, ready, whatever the test before has ended."""
    started.start()
    return started


@contextlib.asynccontextmanager
async def client_at(url: str, mode: Any, **more: Any) -> AsyncIterator[mcp.Client]:
    async with httpx2.AsyncClient(timeout=60) as http:
        async with mcp.Client(streamable_http_client(url, http_client=http), mode=mode, **more) as client:
            yield client


async def call(client: mcp.Client, name: str, **arguments: Any) -> types.CallToolResult:
    return await client.call_tool("execute_tool", {"name": name, "arguments": arguments})


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


@dataclass
class Tally:
    """What 15 clients saw."""

    succeeded: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    written: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def show(self, what: str) -> None:
        """Print a line of the table that `pytest -s` shows."""
        print(f"{what:>16}: {self.succeeded.total():5} calls succeeded, {self.failed.total():3} failed")  # noqa: T201


async def fifteen_clients(
    url: str, notes_url: str, seconds: float, disturb: Callable[[], Awaitable[None]] | None = None
) -> Tally:
    """Let 8 older and 7 newer clients write notes for a while; they go on after a failed call."""
    tally, prefix, connected, waiting = Tally(), os.urandom(4).hex(), anyio.Event(), set(range(15))

    async def work(number: int) -> None:
        mode, name = (LEGACY, f"older {number}") if number < 8 else (MODERN, f"newer {number}")
        async with client_at(url, mode) as client:
            assert "execute_tool" in [tool.name for tool in (await client.list_tools()).tools]
            waiting.discard(number)
            if not waiting:
                connected.set()
            await connected.wait()
            end, count = anyio.current_time() + seconds, 0
            while anyio.current_time() < end:
                note, count = f"{prefix} {number} {count}", count + 1
                try:
                    with anyio.fail_after(30):
                        result = await call(client, "notes:add_note", text=note)
                        failure = text_of(result) if result.is_error else ""
                except Exception as error:  # noqa: BLE001 - whatever fails is counted
                    failure = repr(error)
                if failure:
                    tally.failed[name] += 1
                    tally.errors.append(f"{name}: {failure}")
                else:
                    tally.succeeded[name] += 1
                    tally.written.append(note)
                await anyio.sleep(0.02)

    async with anyio.create_task_group() as group:
        for number in range(15):
            group.start_soon(work, number)
        if disturb is not None:
            await connected.wait()
            await anyio.sleep(seconds / 4)
            await disturb()
    async with client_at(notes_url, MODERN) as client:
        listed = (await client.call_tool("list_notes", {})).structured_content
    notes = Counter((listed or {})["notes"])
    assert all(notes[note] == 1 for note in tally.written), "each acknowledged call ran exactly once"
    mine = [note for note in notes if note.startswith(prefix)]
    assert all(notes[note] == 1 for note in mine), "no call ran twice"
    return tally


async def test_fifteen_clients_of_both_eras_lose_no_call(gateways: Gateways) -> None:
    async with round_robin(gateways.ports) as url:
        tally = await fifteen_clients(url, gateways.notes_url, 4)
    tally.show("undisturbed")
    assert tally.errors == []
    assert len(tally.succeeded) == 15


async def test_the_death_of_a_gateway_fails_only_calls_under_way_on_it(gateways: Gateways) -> None:
    async def kill() -> None:
        gateways.send(1, signal.SIGKILL)

    async with round_robin(gateways.ports) as url:
        tally = await fifteen_clients(url, gateways.notes_url, 6, kill)
    tally.show("gateway killed")
    assert max(tally.failed.values(), default=0) <= 1, tally.errors
    assert len(tally.succeeded) == 15


async def test_the_death_of_redis_fails_no_call(gateways: Gateways) -> None:
    async def kill() -> None:
        gateways.redis.kill()
        await anyio.sleep(2)
        gateways.redis.start()

    async with round_robin(gateways.ports) as url:
        tally = await fifteen_clients(url, gateways.notes_url, 6, kill)
    tally.show("Redis killed")
    assert tally.errors == []


async def test_a_pause_of_redis_fails_no_call(gateways: Gateways) -> None:
    async def pause() -> None:
        gateways.redis.pause()
        await anyio.sleep(2)
        gateways.redis.resume()

    async with round_robin(gateways.ports) as url:
        tally = await fifteen_clients(url, gateways.notes_url, 6, pause)
    tally.show("Redis paused")
    assert tally.errors == []


async def test_a_pause_of_a_gateway_fails_no_call(gateways: Gateways) -> None:
    async def pause() -> None:
        gateways.send(2, signal.SIGSTOP)
        await anyio.sleep(2)
        gateways.send(2, signal.SIGCONT)

    async with round_robin(gateways.ports) as url:
        tally = await fifteen_clients(url, gateways.notes_url, 6, pause)
    tally.show("gateway paused")
    assert tally.errors == []


async def accept(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"sure": True})


@pytest.mark.parametrize("mode", [LEGACY, MODERN])
async def test_a_question_of_a_server_is_answered_through_any_gateway(gateways: Gateways, mode: str) -> None:
    async with round_robin(gateways.ports) as url:
        async with client_at(url, mode, elicitation_callback=accept) as client:
            with anyio.fail_after(60):
                for _ in range(6):
                    result = await call(client, "older:ask_form")
                    assert json.loads(text_of(result))["content"] == {"sure": True}


def post(port: int, method: str, params: dict[str, Any], session: str = "", version: str = MODERN) -> httpx2.Response:
    """Send a request as a client of this protocol version."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": version}
    if version == MODERN:
        params = {**params, "_meta": meta}
        headers |= {"mcp-method": method, "mcp-name": params.get("name", "")}
    if session:
        headers["mcp-session-id"] = session
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx2.post(f"http://127.0.0.1:{port}/mcp", json=body, headers=headers, timeout=60)


def ask(port: int) -> dict[str, Any]:
    """Begin a call that waits for an answer, and return its parameters for the repeated call."""
    params = {"name": "execute_tool", "arguments": {"name": "older:ask_form", "arguments": {}}}
    result = post(port, "tools/call", params).json()["result"]
    assert result["resultType"] == "input_required", result
    (key,) = result["inputRequests"]
    answer = {key: {"action": "accept", "content": {"sure": True}}}
    return {**params, "inputResponses": answer, "requestState": result["requestState"]}


def test_a_call_that_waits_for_an_answer_is_continued_where_it_runs(gateways: Gateways) -> None:
    repeated = ask(gateways.ports[0])
    result = post(gateways.ports[1], "tools/call", repeated).json()["result"]
    assert '"sure": true' in json.dumps(result["content"]).replace("\\", "")
    again = post(gateways.ports[2], "tools/call", repeated).json()["result"]
    assert "no longer open" in json.dumps(again), "it is not run a second time"


def test_a_call_whose_gateway_died_fails_and_is_not_run_again(gateways: Gateways) -> None:
    repeated = ask(gateways.ports[0])
    gateways.send(0, signal.SIGKILL)
    result = post(gateways.ports[1], "tools/call", repeated).json()["result"]
    assert result["isError"] is True
    assert "no longer open" in json.dumps(result)


def test_a_rate_holds_for_all_gateways_together(gateways: Gateways) -> None:
    params = {"name": "execute_tool", "arguments": {"name": "older:era", "arguments": {}}}
    results = [post(port, "tools/call", params).json()["result"] for port in gateways.ports]
    assert sum("the rate limit is reached" in json.dumps(result) for result in results) == 1


def initialize(port: int) -> str:
    """Open a session of an older client, and return its id."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    response = post(port, "initialize", params, version="2025-11-25")
    return response.headers["mcp-session-id"]


def test_a_session_that_its_client_ended_is_unknown_to_every_gateway(gateways: Gateways) -> None:
    session = initialize(gateways.ports[0])
    for port in gateways.ports:
        assert post(port, "tools/list", {}, session, "2025-11-25").status_code == 200
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    ended = httpx2.delete(f"http://127.0.0.1:{gateways.ports[2]}/mcp", headers=headers)
    assert ended.status_code == 200
    assert [post(port, "tools/list", {}, session, "2025-11-25").status_code for port in gateways.ports] == [404] * 3


def test_a_session_goes_on_when_the_gateway_that_opened_it_has_died(gateways: Gateways) -> None:
    session = initialize(gateways.ports[0])
    gateways.send(0, signal.SIGKILL)
    for port in gateways.ports[1:]:
        assert post(port, "tools/list", {}, session, "2025-11-25").status_code == 200


def test_an_id_that_no_gateway_gave_out_is_no_session(gateways: Gateways) -> None:
    session = initialize(gateways.ports[0])
    owner, body, mac = session.split(".")
    forged = [f"{owner}.{body}.{mac[::-1]}", f"{owner[::-1]}.{body}.{mac}", f"{owner}.{body[:-4]}.{mac}", "x" * 32]
    for one in forged:
        for port in gateways.ports:
            assert post(port, "tools/list", {}, one, "2025-11-25").status_code == 404
