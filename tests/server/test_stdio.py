"""toolcrib over pipes, message by message."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from toolcrib.model import Object, Tool, ToolResult
from toolcrib.protocols import Context
from toolcrib.server.mcp import make_server
from toolcrib.server.stdio import serve_pipes
from toolcrib.surfaces.front import Front
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, Handler, echo, running

pytestmark = pytest.mark.anyio

OPENING = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


class Peer:
    """The client's end of the pipes."""

    def __init__(self, reader: asyncio.StreamReader, read_fd: int) -> None:
        self.to_server = reader
        self.stop = anyio.Event()
        self.ended = False
        self._read_fd = read_fd
        self._buffer = b""

    def send(self, message: Any) -> None:
        self.to_server.feed_data(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")

    async def receive(self) -> Any:
        with anyio.fail_after(5):
            while b"\n" not in self._buffer:
                await anyio.wait_readable(self._read_fd)
                chunk = os.read(self._read_fd, 65536)
                if not chunk:
                    raise EOFError
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def open(self) -> None:
        self.send(OPENING)
        assert (await self.receive())["result"]["serverInfo"]["name"] == "toolcrib"
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})


@contextlib.asynccontextmanager
async def serving(handler: Handler = echo, *, drain_s: float = 2, limit: int = 2**16) -> AsyncIterator[Peer]:
    read_fd, write_fd = os.pipe()
    reader = asyncio.StreamReader(limit=limit)
    peer = Peer(reader, read_fd)
    provider = FakeProvider([Tool(name="echo", namespace="x", description="Echoes")], handler)
    try:
        with anyio.fail_after(10):
            async with running(FakeSource(provider)) as gateway, anyio.create_task_group() as group:
                server = make_server(Front(gateway, SurfaceOptions()))

                async def serve() -> None:
                    await serve_pipes(server, reader, write_fd, drain_s=drain_s, stop=peer.stop)
                    peer.ended = True

                group.start_soon(serve)
                yield peer
    finally:
        os.close(read_fd)
        os.close(write_fd)


async def test_a_client_lists_and_calls_and_the_end_of_input_ends_the_server() -> None:
    async with serving() as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo", "arguments": {"a": 1}}))
        assert (await peer.receive())["result"]["content"][0]["text"] == "echo {'a': 1}"
        peer.to_server.feed_eof()


async def test_what_was_asked_before_the_end_of_input_is_still_answered() -> None:
    go_on = anyio.Event()

    async def slow(ctx: Context, name: str, arguments: Object) -> ToolResult:
        await go_on.wait()
        return ToolResult(content=({"type": "text", "text": "done"},))

    async with serving(slow) as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}))
        peer.to_server.feed_eof()
        await anyio.wait_all_tasks_blocked()
        go_on.set()
        assert (await peer.receive())["result"]["content"][0]["text"] == "done"


async def test_a_request_to_stop_lets_calls_finish_but_not_for_ever() -> None:
    async def endless(ctx: Context, name: str, arguments: Object) -> ToolResult:
        await anyio.sleep_forever()
        raise AssertionError

    async with serving(endless, drain_s=0.1) as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}))
        await anyio.wait_all_tasks_blocked()
        peer.stop.set()
    assert peer.ended


async def test_a_cancelled_call_holds_no_shutdown_up() -> None:
    started = anyio.Event()

    async def endless(ctx: Context, name: str, arguments: Object) -> ToolResult:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with serving(endless, drain_s=60) as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}))
        await started.wait()
        peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await anyio.wait_all_tasks_blocked()
        peer.to_server.feed_eof()
    assert peer.ended


async def test_a_line_that_is_no_message_is_answered_and_harms_nothing() -> None:
    async with serving() as peer:
        await peer.open()
        for junk in (b"{nope\n", b"\xff\xfe\n", b'{"jsonrpc": "2.0"}\n', b"[]\n", b"\n", b"   \n"):
            peer.send(junk)
        for _ in range(4):
            assert (await peer.receive())["error"]["code"] == -32700
        peer.send(request(1, "ping"))
        assert (await peer.receive())["id"] == 1
        peer.to_server.feed_eof()


async def test_a_line_that_is_too_long_is_answered_and_skipped() -> None:
    async with serving(limit=1000) as peer:
        await peer.open()
        peer.send(b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * 5000)
        await anyio.wait_all_tasks_blocked()
        peer.send(b"y" * 5000 + b'"}\n')
        assert "larger than" in (await peer.receive())["error"]["message"]
        peer.send(request(2, "ping"))
        assert (await peer.receive())["id"] == 2
        peer.to_server.feed_eof()


async def test_a_large_answer_arrives_whole_through_a_slow_pipe() -> None:
    async def large(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "x" * 2_000_000},))

    async with serving(large) as peer:
        os.set_blocking(peer._read_fd, False)
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}))
        assert len((await peer.receive())["result"]["content"][0]["text"]) == 2_000_000
        peer.to_server.feed_eof()
