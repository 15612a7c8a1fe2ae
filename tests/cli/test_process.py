"""The command as a process of its own: pipes, signals, and a standard output that belongs to the protocol."""

import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import anyio
import httpx2
import pytest
from opentelemetry.sdk.trace import TracerProvider
from tests.cli.conftest import broken, toolbox

from toolcrib.app import App
from toolcrib.cli.output import ExitCode
from toolcrib.cli.serve import JsonFormatter, PlainFormatter
from toolcrib.tracing import TRACING

Settings = Callable[..., Path]
TOOLCRIB = (sys.executable, "-m", "toolcrib")
PATIENCE_S = 60
CLIENT = {"name": "test", "version": "1"}


def _receives_interrupts() -> None:
    """Whether this process handles SIGINT; background jobs of a shell inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(*words: str | Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command with pipes; kill it at the end if it still runs."""
    process = subprocess.Popen(
        [*TOOLCRIB, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
        preexec_fn=_receives_interrupts,  # noqa: PLW1509 - this process has no threads that hold a lock here
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def request(number: int, method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


def test_serve_writes_nothing_but_the_protocol_to_standard_output(settings: Settings) -> None:
    file = settings(good=toolbox(autoApprove=[]), bad=broken(), needy=toolbox(env={"K": "${KEY_FOR_TEST}"}))
    lines = request(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=CLIENT)
    lines += b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
    lines += request(
        2, "tools/call", name="execute_tool", arguments={"name": "good:greet", "arguments": {"person": "A"}}
    )
    with started("serve", "--config", file) as process:
        out, err = process.communicate(lines, timeout=PATIENCE_S)
    answers = {answer["id"]: answer for answer in map(json.loads, out.splitlines()) if "id" in answer}
    assert set(answers) == {1, 2}
    assert answers[2]["result"]["content"] == [{"type": "text", "text": "Hello, A!"}]
    assert process.returncode == 0
    said = err.decode()
    assert "3 servers from " in said
    assert "settings of another client that are ignored: autoApprove" in said
    assert "good is ready: 4 tools" in said
    assert "needy has failed: environment variable KEY_FOR_TEST is not set" in said


@pytest.mark.slow
def test_serve_writes_a_line_of_json_for_each_audited_call(settings: Settings) -> None:
    lines = request(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=CLIENT)
    lines += b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
    arguments = {"name": "good:greet", "arguments": {"person": "Ada Lovelace"}}
    lines += request(2, "tools/call", name="execute_tool", arguments=arguments)
    with started("serve", "--config", settings({"calls": {"audit": True}}, good=toolbox())) as process:
        _, err = process.communicate(lines, timeout=PATIENCE_S)
    (line,) = [line for line in err.decode().splitlines() if line.startswith("{")]
    event = json.loads(line)
    assert (event["tool"], event["caller"], event["outcome"]) == ("good:greet", "local", "ok")
    assert "Ada Lovelace" not in err.decode()


def test_serve_logs_with_times_and_levels(settings: Settings) -> None:
    with started("serve", "--config", settings(bad=broken())) as process:
        _, err = process.communicate(b"", timeout=PATIENCE_S)
    lines = err.decode().splitlines()
    assert lines
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) toolcrib\.", line) for line in lines)


@pytest.mark.parametrize(
    ("policy", "is_said"),
    [
        ({"rules": [{"tools": ["good:*"]}]}, True),
        pytest.param({"rules": [{"tools": ["good:*"]}], "default": "hide"}, False, marks=pytest.mark.slow),
        pytest.param({"rules": [{"tools": ["good:*"], "effect": "hide"}]}, False, marks=pytest.mark.slow),
    ],
)
def test_serve_logs_that_a_policy_hides_by_a_default_that_it_does_not_set(
    settings: Settings, policy: dict[str, object], is_said: bool
) -> None:
    with started("serve", "--config", settings({"policy": policy}, good=toolbox())) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert ("what no rule of the policy covers is hidden; `toolcrib policy check` shows it" in err.decode()) == is_said


def test_a_json_log_has_an_object_per_line() -> None:
    record = logging.LogRecord("toolcrib.serve", logging.INFO, "f", 1, "%s\nis ready", ("git",), None)
    line = JsonFormatter().format(record)
    logged = json.loads(line)
    assert "\n" not in line
    assert (logged["level"], logged["logger"], logged["message"]) == ("info", "toolcrib.serve", "git\nis ready")
    assert datetime.fromisoformat(logged["time"]).tzinfo is not None


@pytest.mark.parametrize("formatter", [JsonFormatter(), PlainFormatter()])
def test_a_logged_exception_is_cut_and_clean_and_shows_no_secret(formatter: logging.Formatter) -> None:
    error = ValueError("\x1b[31mpassword=hunter2 " + "\u202ex" * 1_000_000)
    record = logging.LogRecord("toolcrib", logging.ERROR, "f", 1, "it raised", (), (ValueError, error, None))
    line = formatter.format(record)
    assert "password=***" in line
    assert len(line) < 50_000
    assert not {"\x1b", "\u202e"} & set(line)


def test_the_settings_can_ask_for_a_json_log_and_the_command_line_has_the_last_word(settings: Settings) -> None:
    config = settings({"telemetry": {"logFormat": "json"}}, bad=broken())
    logs = []
    for words in ([], ["--log-format", "text"]):
        with started("serve", "--config", config, *words) as process:
            _, err = process.communicate(b"", timeout=PATIENCE_S)
        logs.append(err.decode().splitlines())
    assert {json.loads(line)["level"] for line in logs[0]} <= {"info", "warning"}
    assert logs[1]
    assert not any(line.startswith("{") for line in logs[1])


def test_messages_of_one_call_have_the_number_of_its_request_and_the_ids_of_its_span(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.handler.setFormatter(JsonFormatter())
    monkeypatch.setattr(TRACING, "_tracer", TracerProvider().get_tracer("test"))
    monkeypatch.setattr(TRACING, "is_on", True)
    log = logging.getLogger("toolcrib.test")
    lines: list[dict[str, Any]] = []
    app = App()

    @app.tool
    def speak() -> str:
        log.warning("spoken")
        lines.append(json.loads(caplog.handler.format(caplog.records[-1])))
        return ""

    @app.tool
    async def repeat() -> str:
        await app.call("speak")
        return str(await app.call("speak"))

    async def run() -> None:
        with anyio.fail_after(10):
            await app.call("repeat")
            await app.call("speak")

    anyio.run(run)
    first, again, other = lines
    assert first["request"] == again["request"] != other["request"]
    assert first["trace_id"] == again["trace_id"] != other["trace_id"]
    assert len({line["span_id"] for line in lines}) == 3
    log.warning("outside")
    assert "request" not in caplog.handler.format(caplog.records[-1])


@pytest.mark.slow
def test_serve_offers_the_older_http_transport_on_request(settings: Settings) -> None:
    with started("serve", "--http", "127.0.0.1:0", "--sse", "--config", settings(good=toolbox())) as process:
        errors = pipe(process.stderr)
        url = ""
        while not url:
            _, _, url = next(errors).decode().strip().partition("serving MCP at ")
        assert url.endswith("/sse")
        with httpx2.stream("GET", url, timeout=PATIENCE_S) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert next(stream.iter_lines()) == "event: endpoint"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (b"y\n", ExitCode.OK, "[image image/png"),
        pytest.param(b"\n", ExitCode.REFUSED, "the question was declined", marks=pytest.mark.slow),
        pytest.param(b"\x04", ExitCode.REFUSED, "the question was declined", marks=pytest.mark.slow),
    ],
)
def test_call_asks_the_user_at_the_terminal(settings: Settings, typed: bytes, code: ExitCode, said: str) -> None:
    file = settings({"calls": {"approval": "always"}}, a=toolbox())
    with at_a_terminal("call", "a:show_image", "--config", file) as (process, terminal):
        shown = read_until(terminal, b"[y/N] ")
        assert b"May a:show_image be called once?" in shown
        os.write(terminal, typed)
        rest = read_until(terminal, said.encode())
        assert process.wait(PATIENCE_S) == code, rest


def test_an_unanswered_question_times_out(settings: Settings) -> None:
    file = settings({"calls": {"approval": "always", "approval_wait": 0.1}}, a=toolbox())
    with at_a_terminal("call", "a:show_image", "--config", file) as (process, terminal):
        read_until(terminal, b"there was no answer within 0.1 s")
        assert process.wait(PATIENCE_S) == ExitCode.REFUSED


@contextmanager
def at_a_terminal(*words: str | Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Start the command in its own terminal; yields it with the other end of the terminal."""
    ours, its = os.openpty()
    process = subprocess.Popen([*TOOLCRIB, *map(str, words)], stdin=its, stdout=its, stderr=its)
    os.close(its)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Read what the terminal shows until the expected text appears."""
    shown = b""
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], PATIENCE_S)
        assert ready, shown
        shown += os.read(terminal, 4096)
    return shown


def test_serve_over_http_prints_its_address_and_exits_cleanly_on_sigterm(settings: Settings) -> None:
    with started("serve", "--http", "127.0.0.1:0", "--config", settings(good=toolbox())) as process:
        lines = iter(pipe(process.stderr))
        said = ""
        while "serving MCP at http://127.0.0.1:" not in said or "good is ready" not in said:
            said += next(lines).decode()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"")


def test_serve_ends_well_on_sigterm_before_it_has_begun(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    os.mkfifo(file)
    with started("serve", "--config", file) as process:
        with file.open("wb"):  # waits until the settings are about to be read
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.slow
def test_a_hangup_before_serve_has_begun_does_not_end_it(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    os.mkfifo(file)
    with started("serve", "--http", "127.0.0.1:0", "--config", file) as process:
        with file.open("w") as settings_file:  # waits until the settings are about to be read
            process.send_signal(signal.SIGHUP)
            settings_file.write('{"mcpServers": {}}')
        errors = pipe(process.stderr)
        while "serving MCP at" not in next(errors).decode():
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_file_that_is_gone_at_a_reload_is_not_replaced_by_another_one(settings: Settings, tmp_path: Path) -> None:
    settings(good=toolbox()).rename(tmp_path / "toolcrib.json")
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"other": {"command": "other"}}}')
    process = subprocess.Popen([*TOOLCRIB, "serve", "--http", "127.0.0.1:0"], cwd=tmp_path, stderr=subprocess.PIPE)
    with process:
        errors = pipe(process.stderr)
        try:
            while "serving MCP at" not in next(errors).decode():
                pass
            (tmp_path / "toolcrib.json").unlink()
            process.send_signal(signal.SIGHUP)
            while "settings" not in (said := next(errors).decode()):
                pass
        finally:
            process.kill()
    assert "nothing was changed: There is no file" in said


@pytest.mark.parametrize(
    "words", [("tools", "-n", "gone"), pytest.param(("call", "good:gone"), marks=pytest.mark.slow)]
)
def test_an_error_whose_reader_goes_away_ends_the_verb_as_a_closed_pipe(
    settings: Settings, words: tuple[str, ...]
) -> None:
    command = [*TOOLCRIB, *words, "--json", "--config", str(settings(good=toolbox()))]
    readable, writable = os.pipe()
    os.close(readable)
    process = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=writable, timeout=PATIENCE_S, check=False)
    os.close(writable)
    assert process.returncode == ExitCode.CLOSED_PIPE


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--http", "--config"), ("--http", "--sse", "-c")])
def test_serve_over_http_without_an_address_takes_that_of_the_settings(
    settings: Settings, words: tuple[str, ...]
) -> None:
    file = settings({"http": {"host": "localhost", "port": 0}}, good=toolbox())
    with started("serve", *words, file) as process:
        lines = iter(pipe(process.stderr))
        assert any(b"serving MCP at http://localhost:" in line for line in lines)


def test_serve_refuses_workers_that_would_share_an_index_on_disk(settings: Settings, tmp_path: Path) -> None:
    search = {"engine": "tantivy", "index": str(tmp_path / "index")}
    file = settings({"http": {"port": 0}, "search": search}, good=toolbox())
    with started("serve", "--http", "--workers", "2", "--config", file) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.SETTINGS
    assert b"each process needs a folder of its own" in err


def test_serve_requires_http_for_the_older_transport(settings: Settings) -> None:
    with started("serve", "--sse", "--config", settings()) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.USAGE
    assert err.decode() == "toolcrib: --sse needs --http.\nSuch as --http --sse.\n"


@pytest.mark.parametrize(
    ("address", "http", "said"),
    [
        ("0.0.0.0:0", {}, "Refusing to serve on 0.0.0.0 without a token"),
        pytest.param(
            "127.0.0.1:0",
            {"tokens": [{"env": "TOKEN_FOR_TEST", "caller": "me"}]},
            "HTTP cannot be served: environment variable TOKEN_FOR_TEST is not set (toolcrib.http.tokens[0].env).",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_serve_over_http_refuses_unsafe_settings(
    settings: Settings, address: str, http: dict[str, object], said: str
) -> None:
    with started("serve", "--http", address, "--config", settings({"http": http}, good=toolbox())) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (ExitCode.SETTINGS, b"")
    assert said in err.decode()
    assert "Traceback" not in err.decode()


def test_an_invalid_address_is_a_usage_error(settings: Settings) -> None:
    with started("serve", "--http", "localhost:http", "--config", settings()) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.USAGE
    assert err.decode() == "toolcrib: localhost:http is not an address.\nWrite HOST:PORT, such as 127.0.0.1:8000.\n"


@pytest.mark.parametrize("options", [(), pytest.param(("--json",), marks=pytest.mark.slow)])
def test_a_reader_that_goes_away_ends_the_verb_quietly(settings: Settings, options: tuple[str, ...]) -> None:
    with started("tools", *options, "--config", settings(good=toolbox())) as process:
        pipe(process.stdout).close()
        err = pipe(process.stderr).read()
        process.wait(PATIENCE_S)
    assert (process.returncode, err) == (ExitCode.CLOSED_PIPE, b"")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED),
        pytest.param(signal.SIGTERM, ExitCode.TERMINATED, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_a_waiting_verb_quietly_and_reaps_its_servers(
    settings: Settings, tmp_path: Path, number: signal.Signals, code: ExitCode
) -> None:
    pid_file = tmp_path / "pid"
    os.mkfifo(pid_file)
    program = f"import os; open({str(pid_file)!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)"
    with started("tools", "--config", settings(slow={"command": sys.executable, "args": ["-c", program]})) as process:
        child = int(pid_file.read_text())
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (code, b"", b"")
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_progress_is_shown_on_a_terminal_and_only_on_standard_error(settings: Settings) -> None:
    slow = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"], "timeouts": {"start": 1}}
    terminal, end = os.openpty()
    ran = subprocess.run(
        [*TOOLCRIB, "tools", "--config", str(settings(good=toolbox(), slow=slow))],
        stdout=subprocess.PIPE,
        stderr=end,
        timeout=PATIENCE_S,
        check=True,
    )
    os.close(end)
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert "1 of 2 servers; waiting for slow" in shown
    assert ran.stdout.startswith(b"good:fail ")
    assert b"waiting" not in ran.stdout


def test_a_failure_shows_its_trace_only_when_asked(settings: Settings) -> None:
    file = settings(good=toolbox())
    with started("call", "good:greet", "--args", "@/proc/self/mem", "--config", file) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.USAGE
    assert "Traceback" not in err.decode()
    with started("tools", "--config", "lost.json", TOOLCRIB_DEBUG="1") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.SETTINGS
    assert "Traceback" in err.decode()
