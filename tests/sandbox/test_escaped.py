"""A compromised worker can only write to its pipe: only its own script fails."""

import asyncio
import json
import struct
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sandbox.conftest import Servers

from toolcrib.errors import SandboxUnavailable
from toolcrib.sandbox import Limits, LuaSandbox, SandboxOptions, ScriptError, frames, process

READY, BEGUN = b"\0\0\0\1r", b"\0\0\0\1b"
LIMITS = Limits(wall_s=20, stall_s=0.5, calls=5, inflight=2)
EVIL = """
import os, sys, time
os.write(1, {ready!r})
head = os.read(0, 4)
left = int.from_bytes(head, "big")
while left > 0:
    left -= len(os.read(0, left))
os.write(1, {begun!r})
try:
    {body}
except OSError:
    pass
"""


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def call(number: int, server: int = 0, tool: int = 0, arguments: bytes = b"{}") -> bytes:
    return frame(b"c" + struct.pack(">IHH", number, server, tool) + arguments)


def done(**details: object) -> bytes:
    return frame(b"d" + json.dumps({"has_value": False, **details}).encode())


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    boot = tmp_path / "boot.py"
    monkeypatch.setattr(process, "BOOT_SCRIPT", boot)
    return boot


def _write(evil: Path, program: str) -> None:
    evil.write_text(program, encoding="utf-8")


async def fate(evil: Path, body: str, servers: Servers) -> ScriptError:
    _write(evil, EVIL.format(ready=READY, begun=BEGUN, body=body))
    async with LuaSandbox(limits=LIMITS, options=SandboxOptions(zygote=False, pool=1)) as box:
        with anyio.fail_after(30), pytest.raises(ScriptError) as caught:
            await box.run("return 1", servers.tools())
    return caught.value


NONSENSE = {
    "nothing at all": b"",
    "a length of two gigabytes": b"\x7f\xff\xff\xffd",
    "an empty frame": b"\0\0\0\0",
    "half a length": b"\0\0",
    "half a frame": b"\0\0\1\0d{",
    "garbage": b"\xde\xad\xbe\xef" * 1000,
    "an unknown kind": frame(b"q"),
    "readiness again": READY,
    "a second beginning": BEGUN,
    "done without details": frame(b"d"),
    "done with a list": frame(b"d[]"),
    "done with a value that never came": done(has_value=True),
    "a value and done without one": frame(b"v1") + done(),
    "two values": frame(b"v1") + frame(b"v2"),
    "unawaited calls that are no texts": done(unawaited=[1]),
    "an error without its parts": frame(b"e{}"),
    "an error of an unknown kind": frame(b'e{"kind": "sudo", "message": "", "traceback": ""}'),
    "a value that is too large": frame(b'v"' + b"x" * (1 << 20) + b'"'),
    "too many values": frame(b"v[" + b"0," * 300_000 + b"0]"),
    "too many values under many commas": frame(b"v[" + b'",",' * 200_001 + b"0]"),
    "a value that is too deep": frame(b"v" + b"[" * 200_000),
    "not a number": frame(b"v[NaN]"),
    "infinity": frame(b"v[-Infinity]"),
    "a number beyond numbers": frame(b"v[1e999]"),
    "an integer of a hundred thousand digits": frame(b"v" + b"9" * 100_000),
    "a lone surrogate": frame(b'v"\\ud800"'),
    "bytes that are no text": frame(b'v"\xff"'),
    "half a call": frame(b"c\0\0"),
    "a call of no tool": call(1, 0, 99),
    "a call of no server": call(1, 65535, 0),
    "a call with a list": call(1, arguments=b"[]"),
    "a call with no arguments": call(1, arguments=b""),
    "a call out of turn": call(2),
    "a call twice": call(1) + call(1),
    "more calls at once than allowed": call(1, 1, 4) + call(2, 1, 4) + call(3, 1, 4),
    "more printed text than allowed": frame(b"p" + b"x" * 60_000) * 2,
    "empty printed text": frame(b"p") * 1000,
    "a sleep of no length": frame(b"s"),
    "sleeps without end": frame(b"s\0\0\0\1") * 100_000,
    "two warnings": frame(b"na") + frame(b"nb"),
}


UNFINISHED = ("nothing at all", "an empty frame", "half a length", "half a frame")
"""Output that becomes invalid only when the worker ends."""


@pytest.mark.parametrize("what", NONSENSE)
async def test_invalid_frames_end_only_their_script(evil: Path, servers: Servers, what: str) -> None:
    data = evil.with_suffix(".data")
    data.write_bytes(NONSENSE[what])
    body = f"data = open({str(data)!r}, 'rb').read()\n    while data: data = data[os.write(1, data):]"
    if what not in UNFINISHED:  # it stays alive, so that only its output can be the reason
        body += "\n    time.sleep(60)"
    error = await fate(evil, body, servers)
    assert error.kind == "protocol", error


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("time.sleep(60)", "stall"),
        ("os.kill(os.getpid(), 9)", "killed"),
        ("os.kill(os.getpid(), 31)", "seccomp" if sys.platform == "linux" else "crash"),
        ("os.abort()", "crash"),
        ("os._exit(3)", "crash"),
        ("os._exit(77)", "memory"),
        (f"os.write(1, {call(6)!r})", "calls"),
        (f"os.write(1, {call(6)!r}); time.sleep(60)", "calls"),
    ],
)
async def test_the_exit_of_a_worker_determines_the_kind_of_error(
    evil: Path, servers: Servers, body: str, kind: str
) -> None:
    assert (await fate(evil, body, servers)).kind == kind


async def test_a_worker_that_never_reads_is_ended(evil: Path, servers: Servers) -> None:
    big = call(1, 1, 0, b'{"n": 4000000}')
    assert (await fate(evil, f"os.write(1, {big!r}); time.sleep(60)", servers)).kind == "stall"


async def test_workers_that_end_before_they_start_make_the_sandbox_unavailable(evil: Path, servers: Servers) -> None:
    _write(evil, f"import os; os.write(1, {READY!r}); os.read(0, 4)")
    async with LuaSandbox(options=SandboxOptions(zygote=False, pool=1)) as box:
        with anyio.fail_after(30), pytest.raises(SandboxUnavailable, match="before they are ready"):
            await box.run("return 1", servers.tools())


async def test_a_worker_that_never_gets_ready_makes_the_sandbox_unavailable(evil: Path) -> None:
    _write(evil, "import time; time.sleep(60)")
    with anyio.fail_after(30), pytest.raises(Exception, match="did not get ready"):
        async with LuaSandbox(options=SandboxOptions(zygote=False, start_s=0.2)):
            pass


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_valid_frames_or_an_error(data: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        try:
            while True:
                kind, body = await frames.read_frame(reader, frames.max_frame_sizes(LIMITS))
                assert kind in b"rbunspcvde"
                frames.loads(body, nodes=100)
        except (EOFError, frames.ProtocolError):
            return

    asyncio.run(read())


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_what_python_writes_as_json_is_read_back_or_refused(value: object) -> None:
    try:
        text = json.dumps(value).encode()
        assert frames.loads(text, nodes=1000) == value
    except frames.ProtocolError:
        assert any(word in json.dumps(value) for word in ("NaN", "Infinity", "\\ud"))
