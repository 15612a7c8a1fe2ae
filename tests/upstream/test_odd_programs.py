"""Programs over stdio that write what they should not, or end at a bad moment: each fails its own call and says why."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.upstream.support import FAST, MARK, until

from toolcrib import App
from toolcrib.errors import CallTimeout, ConnectionLost, UpstreamError
from toolcrib.settings.options import Settings
from toolcrib.types import ServerState
from toolcrib.upstream.options import ServerOptions

PROGRAM = """
import json, os, sys, time
def say(text): sys.stdout.write(text); sys.stdout.flush()
def message(request, result): return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\\n"
lists = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "odd")]}
start = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
ran = []
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if method == "initialize": say(message(request, start))
    elif method == "tools/list": say(message(request, lists))
    elif method == "tools/call" and request["params"]["name"] == "echo":
        say(message(request, {"content": [{"type": "text", "text": json.dumps(ran)}]}))
    elif method == "tools/call":
        ran.append(request["params"]["arguments"].get("n"))
        done = message(request, {"content": [{"type": "text", "text": "done"}]})
        BEHAVIOUR
    elif "id" in request:
        say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}}) + "\\n")
"""


def program(behaviour: str, **options: Any) -> ServerOptions:
    """A program whose tool `odd` does this; `echo` says which of its calls ran."""
    code = PROGRAM.replace("BEHAVIOUR", behaviour)
    env = {MARK: str(os.getpid())}
    return ServerOptions(name="odd", command=sys.executable, args=("-I", "-S", "-c", code), env=env, **options)


@asynccontextmanager
async def app_of(options: ServerOptions) -> AsyncIterator[App]:
    with anyio.fail_after(30):
        async with App(Settings(servers=(options,), fleet=FAST)) as app:
            await app.settled()
            yield app


async def ran(app: App) -> list[Any]:
    """The arguments of the calls of `odd` that ran, since the program was started."""
    found: list[Any] = json.loads((await app.call("odd:echo", {})).content[0]["text"])
    return found


@pytest.mark.parametrize(
    "behaviour",
    [
        "say(done + done)",
        "say(done[:20]); time.sleep(0.05); say(done[20:])",
        "say('\\n\\n' + done.rstrip() + '\\r\\n')",
        "say(message({**request, 'id': 'other'}, {}) + done)",
        "say(message({**request, 'id': None}, {}) + done)",
        "say(message({**request, 'id': 999999}, {}) + done)",
    ],
    ids=[
        "twice",
        "in parts",
        "between blank lines",
        "after one of a text id",
        "after one of no id",
        "after a later id",
    ],
)
async def test_an_answer_among_others_is_found_and_its_call_runs_once(behaviour: str) -> None:
    async with app_of(program(behaviour)) as app:
        for number in range(2):
            found = await app.call("odd:odd", {"n": number})
            assert found.content == ({"type": "text", "text": "done"},)
        assert await ran(app) == [0, 1]


@pytest.mark.parametrize(
    ("behaviour", "error", "reason"),
    [
        ("say(done[:20])", CallTimeout, r"did not answer odd within 0\.5 s \(timeouts\.call\)"),
        ("say(message({**request, 'id': 'other'}, {}))", CallTimeout, "did not answer odd within"),
        (
            "say(json.dumps({'jsonrpc': '2.0', 'id': request['id']}) + '\\n')",
            UpstreamError,
            "neither a result nor",
        ),
        ("say(json.dumps({'id': request['id'], 'error': 'The disk is full'}) + '\\n')", UpstreamError, "disk is full"),
        (
            "sys.stderr.write('Error: out of memory\\n'); os._exit(9)",
            ConnectionLost,
            "exited with code 9: Error: out of",
        ),
        ("say(done[:20]); os._exit(9)", ConnectionLost, "exited with code 9"),
        ("os.kill(os.getpid(), 9)", ConnectionLost, "ended by SIGKILL"),
        ("os.close(1); time.sleep(600)", ConnectionLost, "closed its output but keeps running"),
    ],
    ids=[
        "half a line",
        "another id",
        "nothing in it",
        "a text as its error",
        "exits",
        "half and exits",
        "killed",
        "mute",
    ],
)
async def test_a_call_without_an_answer_fails_alone_with_its_reason_and_is_not_repeated(
    behaviour: str, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    noted = f"open({str(calls)!r}, 'a').write('x'); {behaviour}"
    async with app_of(program(noted, call_timeout_s=0.5 if error is CallTimeout else 10)) as app:
        with pytest.raises(error, match=reason):
            await app.call("odd:odd", {})
        server = app.fleet.server("odd")
        await until(server, lambda: server.status.state is ServerState.READY)
        assert calls.read_text() == "x"


async def test_an_answer_after_the_call_was_given_up_disturbs_nothing() -> None:
    late = "time.sleep(0.6); say(done)"
    async with app_of(program(late, call_timeout_s=0.3)) as app:
        with pytest.raises(CallTimeout):
            await app.call("odd:odd", {"n": 1})
        server = app.fleet.server("odd")
        with anyio.move_on_after(5):
            while True:
                try:
                    assert await ran(app) == [1]
                    break
                except CallTimeout:
                    continue
        assert server.status.state is ServerState.READY


async def test_a_program_that_is_killed_in_its_first_second_is_started_again(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    options = program(f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); say(done)")
    async with app_of(options) as app:
        server = app.fleet.server("odd")
        for life in range(1, 4):
            await app.call("odd:odd", {})
            (*_, pid) = pids.read_text().split()
            assert len(pids.read_text().split()) == life
            os.kill(int(pid), signal.SIGKILL)
            await until(server, lambda: server.status.state is not ServerState.READY)
            await until(server, lambda: server.status.state is ServerState.READY)


async def test_a_line_of_sixty_megabytes_fails_its_own_call_only() -> None:
    async with app_of(program("say(message(request, {'content': 'x' * 60_000_000}))")) as app:
        with pytest.raises(UpstreamError, match=r"its response is larger than 10,485,760 bytes .*results\.max_bytes"):
            await app.call("odd:odd", {"n": 1})
        assert await ran(app) == [1]
        assert app.statuses()[0].state is ServerState.READY
