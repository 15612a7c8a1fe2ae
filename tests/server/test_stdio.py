"""toolcrib over pipes, message by message."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from toolcrib import wire
from toolcrib.server.engine import Engine
from toolcrib.server.notifications import ListChangeNotifier
from toolcrib.server.stdio import serve_pipes
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, Handler, echo, running
from toolcrib.types import Context, Object, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

OPENING = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}


WHOLE = {"toolcrib/wholeResult": True}
"""In `_meta`: the result itself, however large it is."""


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


class Peer:
    """The client's end of the pipes."""

    source: FakeSource
    provider: FakeProvider
    left = b""

    def __init__(self, reader: asyncio.StreamReader, read_fd: int) -> None:
        self.to_server = reader
        self.stop = anyio.Event()
        self.ended = False
        self._read_fd = read_fd
        self._buffer = b""

    def unread(self) -> bytes:
        """What the server wrote that was not received, once it has ended and its end of the pipe is closed."""
        return self._buffer + os.read(self._read_fd, 65536)

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
    reader = asyncio.StreamReader()
    peer = Peer(reader, read_fd)
    provider = FakeProvider([Tool(name="echo", namespace="x", description="Echoes")], handler)
    source = FakeSource(provider)
    try:
        with anyio.fail_after(10):
            async with running(source) as gateway, anyio.create_task_group() as group:
                facade = make_facade(gateway, SurfaceOptions())
                changes = ListChangeNotifier(facade, gateway.refresher, debounce_s=0.01)
                await group.start(changes.run)
                engine = Engine(facade, changes=changes)
                peer.source, peer.provider = source, provider

                async def serve() -> None:
                    await serve_pipes(engine, reader, write_fd, drain_s=drain_s, stop=peer.stop, max_line_bytes=limit)
                    peer.ended = True
                    group.cancel_scope.cancel()

                group.start_soon(serve)
                yield peer
    finally:
        os.close(write_fd)
        peer.left = peer.unread()
        os.close(read_fd)


async def test_a_client_lists_and_calls_until_the_end_of_input_ends_the_server() -> None:
    async with serving() as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo", "arguments": {"a": 1}}))
        assert (await peer.receive())["result"]["content"][0]["text"] == "echo {'a': 1}"
        peer.to_server.feed_eof()


class Panic(BaseException):
    """What the panic of a Rust extension raises."""


async def test_a_tool_that_panics_ends_only_its_own_call() -> None:
    async def panic(ctx: Context, name: str, arguments: Object) -> ToolResult:
        if arguments:
            raise Panic("index out of bounds")
        return ToolResult(content=({"type": "text", "text": "done"},))

    async with serving(panic) as peer:
        await peer.open()
        for number, arguments in enumerate([{"a": 1}, {}]):
            call = {"name": "x:echo", "arguments": arguments}
            peer.send(request(number, "tools/call", name="execute_tool", arguments=call))
        failed, done = [(await peer.receive())["result"] for _ in range(2)]
        assert failed["isError"], failed
        assert done["content"][0]["text"] == "done"
        peer.to_server.feed_eof()


async def test_requests_before_the_end_of_input_are_still_answered() -> None:
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


async def test_a_stop_lets_calls_finish_for_a_limited_time() -> None:
    async def endless(ctx: Context, name: str, arguments: Object) -> ToolResult:
        await anyio.sleep_forever()
        raise AssertionError

    async with serving(endless, drain_s=0.1) as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}))
        await anyio.wait_all_tasks_blocked()
        peer.stop.set()
        answer = await peer.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32000)
        assert answer["error"]["message"] == "The server is shutting down; the call was cancelled."
        await anyio.sleep_forever()  # until the server has ended
    assert peer.ended
    assert peer.left == b"", "a request has one answer"


async def test_a_cancelled_call_does_not_delay_the_shutdown() -> None:
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


async def test_a_line_that_is_not_a_message_gets_an_error_and_harms_nothing() -> None:
    async with serving() as peer:
        await peer.open()
        for junk in (b"{nope\n", b"\xff\xfe\n", b'{"jsonrpc": "2.0"}\n', b"[]\n", b"\n", b"   \n"):
            peer.send(junk)
        codes = [(await peer.receive())["error"]["code"] for _ in range(4)]
        assert codes == [-32700, -32700, -32600, -32600]
        peer.send(request(1, "ping"))
        assert (await peer.receive())["id"] == 1
        peer.to_server.feed_eof()


async def test_a_line_that_is_too_long_is_answered_and_skipped() -> None:
    async with serving(limit=1000) as peer:
        await peer.open()
        peer.send(b'{"jsonrpc": "2.0", "method": "' + b"x" * 5000)
        await anyio.wait_all_tasks_blocked()
        peer.send(b"y" * 5000 + b'"}\n')
        answer = await peer.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        assert "larger than 1,000 bytes" in answer["error"]["message"]
        peer.send(request(2, "ping"))
        assert (await peer.receive())["id"] == 2
        peer.to_server.feed_eof()


LARGE = {"name": "execute_tool", "arguments": {"id": 8, "x": "y" * 5000}}


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": "seven", "method": "tools/call", "params": LARGE},
        {"id": "seven", "jsonrpc": "2.0", "method": "tools/call", "params": LARGE},
        {"jsonrpc": "2.0", "method": "tools/call", "id": "seven", "params": LARGE},
        {"method": "tools/call", "params": LARGE, "jsonrpc": "2.0", "id": "seven"},
    ],
)
async def test_a_request_that_is_too_long_is_answered_by_its_id(message: Any) -> None:
    async with serving(limit=1000) as peer:
        await peer.open()
        peer.send(message)
        answer = await peer.receive()
        assert (answer["id"], answer["error"]["code"]) == ("seven", -32600)
        assert "larger than 1,000 bytes" in answer["error"]["message"]
        peer.to_server.feed_eof()


async def test_a_malformed_request_is_answered_by_its_id() -> None:
    async with serving() as peer:
        await peer.open()
        for broken in (b'{"jsonrpc": "2.0", "id": 3, "method": "ping", "params": 5}\n', b'{"id": 4, "method": "x",\n'):
            peer.send(broken)
        assert [(await peer.receive())["id"] for _ in range(2)] == [3, 4]
        peer.to_server.feed_eof()


async def test_a_large_result_arrives_whole_through_a_slow_pipe() -> None:
    async def large(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "x" * 2_000_000},))

    async with serving(large) as peer:
        os.set_blocking(peer._read_fd, False)
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}, _meta=WHOLE))
        assert len((await peer.receive())["result"]["content"][0]["text"]) == 2_000_000
        peer.to_server.feed_eof()


MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def offer_more(peer: Peer) -> None:
    """Add a tool that clients list by name."""
    peer.provider.tools.append(Tool(name="add", visibility=Visibility.NATIVE))
    peer.source.changed()


async def test_a_session_announces_notifications_and_sends_them() -> None:
    async with serving() as peer:
        peer.send(OPENING)
        assert (await peer.receive())["result"]["capabilities"]["tools"] == {"listChanged": True}
        peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        offer_more(peer)
        assert (await peer.receive())["method"] == "notifications/tools/list_changed"
        peer.to_server.feed_eof()


@pytest.mark.parametrize("end", ["input", "stop"])
async def test_a_subscription_gets_changes_and_ends_cleanly(end: str) -> None:
    async with serving(drain_s=60) as peer:
        peer.send(request(7, "subscriptions/listen", notifications={"toolsListChanged": True}, _meta=MODERN))
        opening = await peer.receive()
        assert opening["method"] == "notifications/subscriptions/acknowledged"
        assert opening["params"]["notifications"] == {"toolsListChanged": True}
        offer_more(peer)
        notice = await peer.receive()
        assert notice["method"] == "notifications/tools/list_changed"
        assert notice["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == 7
        peer.to_server.feed_eof() if end == "input" else peer.stop.set()
        assert (await peer.receive())["id"] == 7
    assert peer.ended


async def test_a_result_that_cannot_be_encoded_becomes_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def half(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": "\ud800"},))

    monkeypatch.setattr(wire, "is_encodable", lambda _: True)
    async with serving(half) as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}))
        answer = await peer.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32603)
        peer.send(request(2, "ping"))
        assert (await peer.receive())["id"] == 2
        peer.to_server.feed_eof()
    assert "cannot encode the result of tools/call as JSON" in caplog.text


async def test_a_large_result_is_written_in_parts_and_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    text, sizes, write = "x" * 3_000_000, list[int](), os.write

    def noted(fd: int, data: Any) -> int:
        sizes.append(len(data))
        return write(fd, data)

    async def large(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return ToolResult(content=({"type": "text", "text": text},))

    monkeypatch.setattr(os, "write", noted)
    async with serving(large) as peer:
        await peer.open()
        peer.send(request(1, "tools/call", name="execute_tool", arguments={"name": "x:echo"}, _meta=WHOLE))
        assert (await peer.receive())["result"]["content"][0]["text"] == text
        peer.to_server.feed_eof()
    assert max(sizes) <= 2**18
