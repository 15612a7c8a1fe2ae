"""This process's own stdin and stdout as a transport to a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.upstream.support import SERVERS, server_of

from toolcrib.errors import AlreadyStarted
from toolcrib.types import ServerState
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports import pipes as module
from toolcrib.upstream.transports.base import Message
from toolcrib.upstream.transports.pipes import LineWriter, ParentStdio, PipeReader, claim_stdio, release_stdio

PROGRAM = """
import sys, anyio
from toolcrib.types import Caller
from toolcrib.types import Context
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transports.pipes import ParentStdio

async def main():
    async with Fleet() as fleet:
        await fleet.apply([ServerOptions(name="parent", target=ParentStdio, retries=0)])
        await fleet.settled()
        print("this does not belong on the wire")
        server = fleet.server("parent")
        result = await server.call_tool(Context(caller=Caller(id="me")), "echo", {"n": 1})
        print(server.status.state.value, result.content[0]["text"], file=sys.stderr)
        sys.stdout.flush()

anyio.run(main)
"""


async def test_a_process_can_be_the_client_of_the_one_that_started_it() -> None:
    to_child, from_child = os.pipe(), os.pipe()
    with anyio.fail_after(30):
        server = await anyio.open_process(
            [sys.executable, "-I", "-S", str(SERVERS / "raw.py")],
            stdin=from_child[0],
            stdout=to_child[1],
            stderr=None,
        )
        client = await anyio.open_process(
            [sys.executable, "-c", PROGRAM], stdin=to_child[0], stdout=from_child[1], stderr=subprocess.PIPE
        )
        for fd in (*to_child, *from_child):
            os.close(fd)
        assert client.stderr is not None
        notified = b"".join([chunk async for chunk in client.stderr]).decode()
        await client.wait()
        await server.wait()
        await client.aclose()
        await server.aclose()
    assert sorted(notified.splitlines()) == ['ready {"n": 1}', "this does not belong on the wire"]


async def test_only_one_part_of_a_process_can_use_its_stdio_at_a_time() -> None:
    claim_stdio("the server over stdio")
    try:
        with pytest.raises(AlreadyStarted, match="in use by the server over stdio"):
            claim_stdio("another")
        async with server_of(ServerOptions(name="parent", target=ParentStdio, retries=0)) as server:
            assert server.status.state is ServerState.FAILED
            assert server.status.reason.startswith(
                "This process's stdin and stdout are in use by the server over stdio"
            )
    finally:
        release_stdio()
    claim_stdio("another")
    release_stdio()
    release_stdio()


async def test_stdio_is_released_after_use(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe(), os.pipe()
    monkeypatch.setattr(module, "_STDIN", theirs[0])
    monkeypatch.setattr(module, "_STDOUT", ours[1])
    with anyio.fail_after(5):
        received: list[Message] = []
        arrived = anyio.Event()

        async def receive(message: Message) -> None:
            received.append(message)
            arrived.set()

        transport = ParentStdio()
        async with transport.opened(receive):
            await transport.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {})
            assert json.loads(await PipeReader(os.dup(ours[0])).receive())["method"] == "ping"
            os.write(theirs[1], b'no message\n{"jsonrpc": "2.0", "id": 1, "result": {}}\n')
            await arrived.wait()
            assert received == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
            os.write(theirs[1], b"kept for the next one\n")
    assert os.get_blocking(ours[1])
    os.write(ours[1], b"free again")
    assert os.read(ours[0], 100) == b"free again"
    for fd in (*ours, *theirs):
        os.close(fd)


async def test_a_reader_sees_the_end_of_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "in").write_text('{"jsonrpc": "2.0", "id": 1, "result": {}}')
    reader = PipeReader(os.open(tmp_path / "in", os.O_RDONLY))
    assert (await reader.receive()).startswith(b"{")
    with pytest.raises(anyio.EndOfStream):
        await reader.receive()
    reader.close()
    with pytest.raises(anyio.ClosedResourceError):
        await reader.receive()


async def test_closing_a_pipe_wakes_a_waiting_task() -> None:
    (out, into), woken = os.pipe(), []
    reader, writer = PipeReader(os.dup(out)), LineWriter(into)

    async def read() -> None:
        with pytest.raises(anyio.ClosedResourceError):
            await reader.receive()
        woken.append("reader")

    async def write() -> None:
        await writer.send(b"x" * 10_000_000)
        with pytest.raises(anyio.ClosedResourceError):
            await writer.run()
        woken.append("writer")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            reader.close()
            await anyio.wait_all_tasks_blocked()
            group.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            writer.close()
    os.close(out)
    assert woken == ["reader", "writer"]
