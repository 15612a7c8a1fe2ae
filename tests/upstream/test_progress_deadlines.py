"""Calls that report progress go on past the time for a call, up to a maximum. The clock of these tests is moved on."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.upstream.raw_http import EventPeer, Request, mcp, peer_of, result, server_at, text_result
from tests.upstream.support import call, raw, server_of
from tests.upstream.test_program_host import workers
from tests.upstream.test_server import Watcher

from toolcrib.errors import CallTimeout
from toolcrib.types import Caller, Context
from toolcrib.upstream.remote_server import RemoteServer

CALL_S = 60
STEP_S = 50
LIMIT_S = 100_000
"""Of each test, by the clock that it moves on."""


@dataclass
class Clock:
    """The event loop's clock, which can be moved on."""

    loop: asyncio.AbstractEventLoop
    ahead_s: float = 0.0

    async def pass_time(self, seconds: float) -> None:
        """Let so much time pass, second by second, while the event loop runs."""
        for _ in range(int(seconds)):
            self.ahead_s += 1
            for _ in range(3):
                await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    loop = asyncio.get_running_loop()
    found, real = Clock(loop), loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + found.ahead_s)
    return found


@dataclass
class Worker(Watcher):
    """A client for which time passes after each report of progress, and that then lets the server go on."""

    clock: Clock = field(kw_only=True)
    go_on: Callable[[], None] = field(kw_only=True)
    end: Callable[[], None] = field(kw_only=True)
    steps: int = 10
    last_s: float = STEP_S
    """How long the server does nothing after its last report."""

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        await super().progress(done, total, message)
        is_last = len(self.reports) == self.steps
        await self.clock.pass_time(self.last_s if is_last else STEP_S)
        (self.end if is_last else self.go_on)()


class Steps:
    """What makes the server report progress, or answer."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "steps"
        os.mkfifo(self.path)
        self._file = os.open(self.path, os.O_RDWR)
        self._queue: asyncio.Queue[bool] = asyncio.Queue()

    def go_on(self) -> None:
        os.write(self._file, b"x")
        self._queue.put_nowait(True)

    def end(self) -> None:
        os.close(self._file)
        self._queue.put_nowait(False)

    async def wait(self) -> AsyncIterator[int]:
        """Yield the number of each step, for a server of this process."""
        number = 0
        while await self._queue.get():
            number += 1
            yield number


def progress(request: Request, step: int) -> bytes:
    token = request.message["params"]["_meta"]["progressToken"]
    params = {"progressToken": token, "progress": step}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()


Open = Callable[[Path, Steps, dict[str, Any]], Any]


@asynccontextmanager
async def program(_: Path, __: Steps, limits: dict[str, Any]) -> AsyncIterator[RemoteServer]:
    async with server_of(raw(options=limits), limit_s=LIMIT_S) as server:
        yield server


@asynccontextmanager
async def hosted_program(folder: Path, _: Steps, limits: dict[str, Any]) -> AsyncIterator[RemoteServer]:
    async with workers(folder, raw(options=limits), 1, limit_s=LIMIT_S) as (server,):
        yield server


@asynccontextmanager
async def http(_: Path, steps: Steps, limits: dict[str, Any]) -> AsyncIterator[RemoteServer]:
    async def work(request: Request) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        async for step in steps.wait():
            yield b"data: " + progress(request, step) + b"\n\n"
        yield b"data: " + json.dumps(result(request, text_result("done"))).encode() + b"\n\n"

    def answer(request: Request) -> Any:
        return work(request) if request.message.get("method") == "tools/call" else mcp(request)

    async with peer_of(answer) as peer, server_of(server_at(peer.port, **limits), limit_s=LIMIT_S) as server:
        yield server


@asynccontextmanager
async def sse(_: Path, steps: Steps, limits: dict[str, Any]) -> AsyncIterator[RemoteServer]:
    peer = EventPeer()

    async def work(request: Request) -> None:
        async for step in steps.wait():
            peer.say(progress(request, step))
        peer.say(json.dumps(result(request, text_result("done"))).encode())

    def answer(request: Request) -> Any:
        if request.message.get("method") != "tools/call":
            return peer(request)
        group.start_soon(work, request)
        return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"

    async with peer_of(answer) as listening, anyio.create_task_group() as group:
        options = server_at(listening.port, transport="sse", **limits)
        async with server_of(options, limit_s=LIMIT_S) as server:
            yield server
        group.cancel_scope.cancel()


each_transport = pytest.mark.parametrize("connect", [program, hosted_program, http, sse])


async def work(
    connect: Open, folder: Path, clock: Clock, *, steps: int, last_s: float = STEP_S, call_max_s: float = 600
) -> str:
    """Call a tool that reports progress so many times, 50 seconds apart; return what it says, or why it timed out."""
    go = Steps(folder)
    client = Worker(clock=clock, go_on=go.go_on, end=go.end, steps=steps, last_s=last_s)
    async with connect(folder, go, {"call_timeout_s": CALL_S, "call_max_timeout_s": call_max_s}) as server:
        go.go_on()
        tool = "work" if connect in (program, hosted_program) else "echo"
        try:
            found = await call(server, tool, Context(caller=Caller(id="ann"), client=client), steps=str(go.path))
        except CallTimeout as error:
            return error.message
        assert [done for done, *_ in client.reports] == list(range(1, steps + 1))
        return str(found.content[0]["text"])


@each_transport
async def test_progress_keeps_a_call_alive(connect: Open, tmp_path: Path, clock: Clock) -> None:
    assert await work(connect, tmp_path, clock, steps=10) == "done"


@each_transport
async def test_a_call_ends_when_it_stops_reporting_progress(connect: Open, tmp_path: Path, clock: Clock) -> None:
    said = await work(connect, tmp_path, clock, steps=3, last_s=CALL_S + 1)
    assert re.search(r"reported no progress of \w+ for 60 s \(timeouts\.call\) and was cancelled\.$", said)


@each_transport
async def test_a_call_ends_at_the_maximum_whatever_it_reports(connect: Open, tmp_path: Path, clock: Clock) -> None:
    said = await work(connect, tmp_path, clock, steps=10, call_max_s=120)
    assert re.search(r"still worked on \w+ after 120 s \(timeouts\.call_max\) and was cancelled\.$", said)


async def test_a_call_that_reports_nothing_names_its_limit() -> None:
    async with server_of(raw(options={"call_timeout_s": 0.2, "call_max_timeout_s": 0.1})) as server:
        with pytest.raises(CallTimeout, match=r"did not answer hang within 0\.2 s \(timeouts\.call\)") as raised:
            await call(server, "hang")
        assert raised.value.data["limit"] == "timeouts.call"
