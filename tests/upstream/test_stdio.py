"""Servers as child processes: start, output and shutdown."""

import asyncio
import gc
import os
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.upstream.support import (
    FAST,
    MARK,
    READY,
    alive,
    call,
    call_json,
    fleet_of,
    left_over,
    names,
    raw,
    server_of,
    until,
)

from toolcrib.errors import ConnectionLost, ServerUnavailable
from toolcrib.types import ServerState
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import Message
from toolcrib.upstream.transports.stdio import StderrTail, StdioTransport

SLOW_RETRY = replace(FAST, backoff_first_s=100, backoff_max_s=200)


async def test_junk_on_stdout_is_skipped_before_and_between_messages() -> None:
    async with server_of(raw(junk=True)) as server:
        assert server.status.state is READY
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_child_gets_its_own_variables_and_few_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNRELATED_SECRET", "x")
    async with server_of(raw(options={"env": {"MINE": "1"}, "cwd": tmp_path})) as server:
        given = await call_json(server, "environment")
        assert given["env"]["MINE"] == "1"
        assert given["env"]["PATH"] == os.environ["PATH"]
        assert "UNRELATED_SECRET" not in given["env"]
        assert given["cwd"] == str(tmp_path)


async def test_a_child_has_its_own_process_group() -> None:
    async with server_of(raw()) as server:
        (pid,) = await call_json(server, "pids")
        assert os.getpgid(pid) == os.getsid(pid) == pid


@pytest.mark.parametrize("spec", [{}, {"linger": True}, {"stubborn": True}, {"stubborn": True, "child": True}])
async def test_every_child_is_stopped_with_all_it_started(spec: dict[str, Any]) -> None:
    with anyio.CancelScope() as stopping:
        async with server_of(raw(**spec)) as server:
            pids = await call_json(server, "pids")
            assert len(pids) == 1 + spec.get("child", False)
            stopping.deadline = anyio.current_time() + 3
    assert not stopping.cancel_called
    assert not any(alive(pid) for pid in pids)


async def test_a_child_may_finish_writing(tmp_path: Path) -> None:
    farewell = tmp_path / "farewell"
    async with server_of(raw(farewell=str(farewell)), replace(FAST, exit_grace_s=10)):
        assert not farewell.exists()
    assert farewell.exists()


async def test_a_whole_fleet_of_stubborn_children_stops_in_the_time_of_one() -> None:
    stubborn = [raw(f"s{number}", stubborn=True, child=True) for number in range(6)]
    with anyio.CancelScope() as stopping:
        async with fleet_of(*stubborn) as fleet:
            pids = [pid for server in fleet.providers() for pid in await call_json(server, "pids")]
            stopping.deadline = anyio.current_time() + 3
    assert not stopping.cancel_called
    assert len(pids) == 12
    assert not any(alive(pid) for pid in pids)


async def test_a_child_is_killed_even_without_time_for_a_graceful_exit() -> None:
    async with server_of(raw(stubborn=True), replace(FAST, exit_grace_s=60, stop_timeout_s=0.1)) as server:
        (pid,) = await call_json(server, "pids")
    assert not alive(pid)


async def test_a_child_that_is_killed_leaves_nothing_of_its_group_behind() -> None:
    async with server_of(raw(child=True)) as server:
        parent, child = await call_json(server, "pids")
        os.kill(parent, signal.SIGKILL)
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        assert server.status.reason == "ended by SIGKILL"
        await until(server, lambda: server.status.state is READY)
        assert not alive(child)


async def test_a_missing_command_is_named() -> None:
    async with server_of(ServerOptions(name="gone", command="no-such-command-here"), SLOW_RETRY) as server:
        assert server.status.state is ServerState.FAILED
        assert server.status.reason == (
            'the command "no-such-command-here" was not found; install it, or give its full path'
        )


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    async with server_of(raw(options={"cwd": tmp_path / "gone"}), SLOW_RETRY) as server:
        assert server.status.reason == f'its working directory "{tmp_path / "gone"}" does not exist'


async def test_a_command_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("no program at all")
    async with server_of(ServerOptions(name="p", command=str(program)), SLOW_RETRY) as server:
        assert server.status.reason == f'the command "{program}" may not be executed; check its permissions'
        with pytest.raises(ServerUnavailable, match="check its permissions"):
            await call(server, "echo")
    program.chmod(0o755)
    async with server_of(ServerOptions(name="p", command=str(program)), SLOW_RETRY) as server:
        assert server.status.reason == f'the command "{program}" could not be started: Exec format error'


async def test_a_child_that_exits_at_once_is_reported_with_code_and_stderr() -> None:
    spoken = "Starting up\nError: GITHUB_TOKEN is required\n    at main (index.js:1)\n\nNode.js v20.1.0"
    async with server_of(raw(exit=7, say=spoken), SLOW_RETRY) as server:
        assert server.status.state is ServerState.FAILED
        assert server.status.reason == "exited with code 7: Error: GITHUB_TOKEN is required"
        assert server.status.retry_at is not None


NPM = """npm warn Unknown user config "nodedir".
npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/@acme%2fserver
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm error A complete log of this run can be found in: /root/.npm/_logs/debug-0.log"""
UV = """error: No solution found when resolving tool dependencies
  cause: Because acme-server was not found in the package registry and you require acme-server, we can conclude that
your requirements are unsatisfiable.
help: use `uvx --from`"""
OLDER_UV = """  x No solution found when resolving tool dependencies:
  ╰─▶ Because acme-server was not found in the package registry, we can
      conclude that your requirements are unsatisfiable."""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/app/main.py", line 5, in <module>
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | KeyError: 'DATABASE_URL'
    +------------------------------------
INFO: no error was reported"""
OLDER_MCP = """Traceback (most recent call last):
  File "/app/server.py", line 173, in main
    @server.list_resources()
     ^^^^^^^^^^^^^^^^^^^^^
AttributeError: 'Server' object has no attribute 'list_resources'"""


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (NPM, "npm error 404 Not Found - GET https://registry.npmjs.org/@acme%2fserver"),
        (
            UV,
            (
                "Because acme-server was not found in the package registry and you require acme-server, we can "
                "conclude that your requirements are unsatisfiable."
            ),
        ),
        (
            OLDER_UV,
            (
                "Because acme-server was not found in the package registry, we can conclude that your requirements are "
                "unsatisfiable."
            ),
        ),
        (GROUP, "KeyError: 'DATABASE_URL'"),
        (
            OLDER_MCP,
            (
                "AttributeError: 'Server' object has no attribute 'list_resources'; it needs an older MCP library: "
                'with uvx, put "--with", "mcp<2" before its name in args'
            ),
        ),
    ],
    ids=["npm", "uv", "older uv", "exception group", "older mcp"],
)
async def test_the_reason_is_the_line_of_stderr_that_says_most(stderr: str, reason: str) -> None:
    async with server_of(raw(exit=1, say=stderr), SLOW_RETRY) as server:
        assert server.status.reason == f"exited with code 1: {reason}"


async def test_a_child_that_exits_at_once_silently_is_reported_with_its_code() -> None:
    async with server_of(raw(exit=0), SLOW_RETRY) as server:
        assert server.status.reason == "exited with code 0"


async def test_secrets_are_redacted_in_the_reason() -> None:
    options = {"env": {"API_KEY": "tiger", "HOST": "db.internal.example"}}
    spoken = "error: tiger was refused by db.internal.example, see https://me:pw@host/a?key=tiger"
    async with server_of(raw(exit=1, say=spoken, options=options), SLOW_RETRY) as server:
        assert server.status.reason == "exited with code 1: error: *** was refused by ***, see https://host/a"


async def test_a_child_that_never_answers_is_reported_with_its_stderr() -> None:
    program = "import sys; print('waiting for the moon', file=sys.stderr, flush=True); sys.stdin.read()"
    silent = replace(raw(options={"start_timeout_s": 0.4}), args=("-I", "-S", "-c", program))
    async with server_of(silent, replace(SLOW_RETRY, probe_timeout_s=0.1)) as server:
        assert server.status.state is ServerState.FAILED
        assert server.status.reason == (
            "no answer to the handshake within 0.4 s; its last output: waiting for the moon"
        )


async def test_a_child_that_prints_something_else_than_messages_is_reported_with_it() -> None:
    program = "import sys; print('Uvicorn running on port 8000', flush=True); sys.stdin.read()"
    talking = replace(raw(options={"start_timeout_s": 0.4}), args=("-I", "-S", "-c", program))
    async with server_of(talking, replace(SLOW_RETRY, probe_timeout_s=0.1)) as server:
        assert server.status.reason == (
            "no answer to the handshake within 0.4 s; its last output: Uvicorn running on port 8000 "
            "(on stdout, where only MCP messages belong)"
        )


async def test_what_looks_like_a_secret_of_the_program_itself_is_masked_in_the_reason() -> None:
    async with server_of(raw(exit=1, say="error: login failed, password=hunter2"), SLOW_RETRY) as server:
        assert server.status.reason == "exited with code 1: error: login failed, password=***"


async def test_a_server_that_nothing_leads_to_says_so() -> None:
    async with server_of(ServerOptions(name="empty"), SLOW_RETRY) as server:
        assert server.status.reason == "it has no command, url or target"


async def test_stderr_is_read_however_much_there_is() -> None:
    program = "import sys; sys.stderr.write('e' * 5_000_000); " + "exec(open(sys.argv.pop(1)).read())"
    given = raw()
    noisy = replace(given, args=("-I", "-S", "-c", program, *given.args[2:]))
    async with server_of(noisy) as server:
        assert server.status.state is READY
        assert names(server)[0] == "echo"


async def test_a_slow_start_delays_no_one_else(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with anyio.fail_after(20):
        async with Fleet(FAST) as fleet:
            await fleet.apply([raw("slow", gate=str(gate)), raw("quick")])
            slow, quick = fleet.server("slow"), fleet.server("quick")
            await until(fleet, lambda: quick.status.state is READY)
            assert await call_json(quick, "echo", a=1) == {"a": 1}
            assert slow.status.state is ServerState.CONNECTING
            await anyio.to_thread.run_sync(gate.write_text, "go")
            await fleet.settled()
            assert await call_json(slow, "echo", a=1) == {"a": 1}


async def test_a_program_that_the_system_takes_long_to_start_holds_up_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answered, in_time = asyncio.Event(), threading.Event(), list[bool]()
    loop, start = asyncio.get_running_loop(), subprocess.Popen.__init__

    def start_slowly(*args: Any, **options: Any) -> None:
        if "HEAVY" in options["env"]:
            loop.call_soon_threadsafe(begun.set)
            in_time.append(answered.wait(10))
        start(*args, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", start_slowly)
    heavy = raw("heavy", options={"env": {"HEAVY": "1"}})
    async with fleet_of(raw("quick")) as fleet:
        await fleet.apply([raw("quick"), heavy])
        await begun.wait()
        assert await call_json(fleet.server("quick"), "echo", a=1) == {"a": 1}
        answered.set()
        await fleet.settled()
        assert await call_json(fleet.server("heavy"), "echo", a=2) == {"a": 2}
    assert in_time == [True]


async def test_a_fleet_can_be_left_while_its_servers_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    with anyio.fail_after(5):
        async with Fleet(FAST) as fleet:
            await fleet.apply([raw(str(number), gate=str(tmp_path / "gate")) for number in range(4)])
            await until(fleet, lambda: all(s.state is ServerState.CONNECTING for s in fleet.statuses()))
    assert left_over() == []


async def test_a_fleet_can_be_cancelled_at_any_moment() -> None:
    for delay_s in (0.0, 0.005, 0.02, 0.05, 0.1, 0.2):
        with anyio.move_on_after(delay_s):
            async with Fleet(FAST) as fleet:
                await fleet.apply([raw(str(number), stubborn=True, child=True) for number in range(2)])
                await anyio.sleep_forever()
        assert left_over() == []


async def ignore(_: Message) -> None:
    """Take a message of a server that does not matter."""


async def test_a_child_that_closes_its_input_just_before_a_message_breaks_only_its_own_connection(
    tmp_path: Path,
) -> None:
    ask, notified = tmp_path / "ask", tmp_path / "notified"
    os.mkfifo(ask)
    os.mkfifo(notified)

    program = ("-c", 'read _ < "$1"; exec 0<&-; echo closed > "$2"; exec sleep 600', "sh", str(ask), str(notified))
    options = ServerOptions(name="deaf", command="sh", args=program, env={MARK: str(os.getpid())})
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    transport = StdioTransport(options, FAST, Redactor(options))
    with anyio.fail_after(20):
        async with transport.opened(ignore):
            # The child closes its input, and the event loop has no time to notice.
            ask.write_text("close\n")
            notified.read_text()
            await transport.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {})
            await transport.closed.wait()
            assert transport.closed.reason == "closed its input but keeps running"
    # Some versions of Python report an unretrieved error only when it is garbage-collected.
    del transport
    gc.collect()
    await anyio.lowlevel.checkpoint()
    assert complaints == []


async def test_a_message_larger_than_a_pipe_arrives_whole() -> None:
    async with server_of(raw()) as server:
        assert await call_json(server, "echo", text="x" * 1_000_000) == {"text": "x" * 1_000_000}


MOMENTS = ("initialize", "tools/list", "tools/call")


@pytest.mark.parametrize("half", ["", '{"jsonrpc": "2.0", "id": 1, "res'], ids=["whole", "half a line"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_child_that_closes_its_output_and_lives_on_is_replaced_at_once(
    moment: str, half: str, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    reasons: list[str] = []
    async with fleet_of(raw(closes=moment, once=str(once), half=half), limit_s=20) as fleet:
        server = fleet.server("raw")
        server.subscribe(lambda: reasons.append(server.status.reason))
        if moment == "tools/call":
            reason = "lost during the call: closed its output but keeps running"
            with pytest.raises(ConnectionLost, match=reason):
                await call(server, "echo")
        await until(server, lambda: server.status.state is READY and once.exists())
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert not alive(int(once.read_text()))
    if moment == "tools/call":
        assert "closed its output but keeps running" in reasons


def test_what_a_child_printed_well_before_its_last_answer_is_not_why_it_ended() -> None:
    now = 0.0
    tail = StderrTail(clock=lambda: now)
    tail.add(b"Error: an old complaint\n")
    now = 5.0
    tail.answered()
    assert tail.line() == ""
    tail.add(b"Error: the disk is full\n")
    now = 5.5
    tail.answered()  # such as the error that it sends because of that
    assert tail.line() == "Error: the disk is full"
