"""Messages that are too large are dropped before they are parsed, and long lists are parsed entry by entry."""

import itertools
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import CallToolResult
from starlette.middleware.gzip import GZipMiddleware
from tests.fixtures.servers.web import TOOLS, OldWeb, Web, result_of
from tests.upstream.in_process import sdk_server
from tests.upstream.support import call, call_json, names, raw, server_of, serving

from toolcrib.errors import UpstreamError
from toolcrib.protocol.failures import ExchangeError
from toolcrib.protocol.messages import encode_object, parse_json
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.transports import bounds
from toolcrib.upstream.transports.bounds import Bounds, Meter, parse_list, run_at_once, value_problem
from toolcrib.upstream.transports.framing import LineSplitter
from toolcrib.upstream.transports.http_bodies import MessageStream, read_bounded
from toolcrib.upstream.transports.http_connection import HttpResponse

SMALL: dict[str, Any] = {"max_result_bytes": 100_000, "max_result_nodes": 5_000, "max_result_blocks": 100}

ROOM = Bounds(bytes=16_000_000, nodes=100_000)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


def nodes_of(value: Any) -> int:
    """The marks that begin a value or end a key."""
    if isinstance(value, dict):
        return 1 + len(value) + max(0, len(value) - 1) + sum(map(nodes_of, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(nodes_of, value))
    return 0


@given(values, st.lists(st.integers(0, 200), max_size=5), st.booleans())
def test_a_meter_counts_the_values_however_the_text_is_cut(value: Any, cuts: list[int], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    meter = Meter()
    for start, end in itertools.pairwise(places):
        meter.add(text[start:end])
    assert (meter.size, meter.nodes) == (len(text), nodes_of(value))


@given(st.lists(values, max_size=5), st.dictionaries(st.text(max_size=4), values, max_size=3), st.integers(0, 3))
def test_a_list_parsed_by_entry_equals_one_parsed_whole(entries: list[Any], more: dict[str, Any], indent: int) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "result": {**more, "tools": entries, "nextCursor": "x"}, "extra": more}
    text = json.dumps(message, indent=indent or None).encode()
    assert run_at_once(parse_list(text, parse_json)) == message


class Parts:
    """The source of a body in parts."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    async def read(self) -> bytes | None:
        return await anext(self._parts, None)

    async def end_response(self) -> None:
        pass


@pytest.mark.anyio
async def test_of_large_messages_that_arrive_together_one_part_is_read_in_each_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "_SHARE_BYTES", 1)  # otherwise as many parts as there is room for in a turn
    turn, parts = 0, list[int]()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await anyio.lowlevel.checkpoint()
            turn += 1

    async def body() -> AsyncIterator[bytes]:
        for _ in range(20):
            parts.append(turn)
            yield b"x" * 100_000

    async def read() -> None:
        response = HttpResponse(Parts(body()), 200, [], None)
        assert isinstance(await read_bounded(response, Bounds(bytes=10_000_000, nodes=100)), bytes)

    async with anyio.create_task_group() as group:
        group.start_soon(count_turns)
        async with anyio.create_task_group() as readers:
            for _ in range(5):
                readers.start_soon(read)
        group.cancel_scope.cancel()
    begun = 5 * 3  # each message reads three parts before it is a large one
    assert len(parts) == 100
    assert len(set(parts[begun:])) >= 100 - begun


@pytest.mark.anyio
@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\r\n\r\n"])
async def test_events_are_measured_one_by_one_however_their_ends_are_cut(end: bytes) -> None:
    text = b'data: {"jsonrpc":"2.0","method":"m"}'
    event = text + end
    for cut in range(1, len(event)):

        async def cut_events(cut: int = cut) -> AsyncIterator[bytes]:
            for _ in range(10):
                yield event[:cut]
                yield event[cut:]

        stream = MessageStream(cut_events(), Bounds(bytes=2 * len(event), nodes=100))
        assert [await stream.next() for _ in range(11)] == [{"jsonrpc": "2.0", "method": "m"}] * 10 + [None]


@pytest.mark.anyio
@pytest.mark.parametrize("part", [b"x", b"\r\n", b"x\n"])
async def test_an_event_that_is_too_large_ends_its_stream_however_it_is_cut(part: bytes) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" + part

    stream = MessageStream(endless(), Bounds(bytes=100, nodes=100))
    with pytest.raises(ExchangeError, match="larger than 100 bytes"):
        await stream.next()


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"result": {"tools": [{}', b'{"a": 1,}', b'{"a": 1} {}', b"[]", b'{"a" 1}']
)
def test_a_broken_list_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|message"):
        run_at_once(parse_list(text, parse_json))


async def _answer_in_memory(name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> CallToolResult:
    params = {"name": name, "arguments": dict(arguments)}
    return CallToolResult.model_validate(result_of({"method": "tools/call", "params": params}))


@asynccontextmanager
async def served_by(kind: str, **given: Any) -> AsyncIterator[RemoteServer]:
    """A server of this kind, and ours in front of it."""
    if kind == "stdio":
        async with server_of(raw(options=given)) as server:
            yield server
        return
    if kind in ("memory", "function"):
        inside = sdk_server(*TOOLS, answer=_answer_in_memory)
        target = inside if kind == "memory" else lambda: inside
        async with server_of(ServerOptions(name="inside", target=target, **given)) as server:
            yield server
        return
    app = OldWeb().app if kind == "sse" else Web(streaming=kind == "events").app
    if kind == "gzip":
        app.add_middleware(GZipMiddleware, minimum_size=10)
    async with serving(app) as origin:
        url = f"{origin}/sse" if kind == "sse" else f"{origin}/mcp"
        options = ServerOptions(name="web", transport="sse" if kind == "sse" else "http", url=url, **given)
        async with server_of(options) as server:
            yield server


KINDS = ("stdio", "json", "events", "gzip", "sse", "memory", "function")


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_too_large_fails_only_its_own_call_and_names_the_setting(kind: str) -> None:
    async with served_by(kind, **SMALL) as server:
        with pytest.raises(UpstreamError, match=r"larger than 100,000 bytes and was dropped.*results\.max_bytes"):
            await call(server, "huge", size=3_000_000)
        with pytest.raises(UpstreamError, match=r"more than 5,000 values and was dropped.*results\.max_nodes"):
            await call(server, "huge", values=24_000)
        with pytest.raises(UpstreamError, match=r"holds 101 blocks and was dropped.*100 is results\.max_blocks"):
            await call(server, "huge", blocks=101)
        assert len((await call(server, "huge", blocks=100)).content) == 100
        assert len((await call(server, "huge", size=99_000)).content[0]["text"]) == 99_000
        assert await call_json(server, "echo", a=1) == {"a": 1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"size": 99_500}, ""),
        ({"size": 100_000}, "100,000 bytes"),
        ({"values": 4_950}, ""),
        ({"values": 5_000}, "10,000 values"),
    ],
    ids=str,
)
async def test_every_way_to_a_server_has_the_same_bounds(kind: str, arguments: dict[str, Any], problem: str) -> None:
    async with served_by(kind, max_result_bytes=100_000, max_result_nodes=10_000) as server:
        if not problem:
            assert not (await call(server, "huge", **arguments)).is_error
            return
        with pytest.raises(UpstreamError, match=problem):
            await call(server, "huge", **arguments)


async def test_a_text_of_a_server_in_memory_is_measured_as_it_would_be_written() -> None:
    async def answer(name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
        return "\x00" * int(arguments["chars"])

    options = ServerOptions(name="inside", target=sdk_server("huge", answer=answer), max_result_bytes=60_000)
    async with server_of(options) as server:
        assert len((await call(server, "huge", chars=9_900)).content[0]["text"]) == 9_900
        with pytest.raises(UpstreamError, match=r"60,000 bytes and was dropped.*results\.max_bytes"):
            await call(server, "huge", chars=10_000)


@given(values, st.integers(0, 200), st.integers(0, 100))
def test_a_value_breaks_the_bounds_that_its_text_breaks(value: Any, size: int, nodes: int) -> None:
    meter = Meter()
    meter.add(encode_object({"value": value}))
    room = Bounds(size, nodes + 20)
    assert run_at_once(value_problem({"value": value}, room)) == room.problem(meter.size, meter.nodes)


async def _body_of(response: HttpResponse) -> object:
    return await read_bounded(response, ROOM)


async def _event_of(response: HttpResponse) -> object:
    return await MessageStream(response.__aiter__(), ROOM).next()


async def _line_of(response: HttpResponse) -> object:
    lines = LineSplitter(lambda *_: ROOM)
    done = [line async for chunk in response for line in lines.feed(chunk)]
    return parse_json(done[0]) if isinstance(done[0], bytes) else None


@pytest.mark.parametrize(
    ("read", "start", "end"),
    [(_body_of, b"", b""), (_event_of, b"data: ", b"\n\n"), (_line_of, b"", b"\n")],
    ids=["body", "event", "line"],
)
async def test_a_large_answer_is_never_held_more_than_twice(
    read: Callable[[HttpResponse], Awaitable[object]], start: bytes, end: bytes
) -> None:
    parts, part = 80, b"x" * 100_000

    async def answer() -> AsyncIterator[bytes]:
        yield start + b'{"jsonrpc":"2.0","id":1,"result":{"text":"'
        for _ in range(parts):
            yield bytes(bytearray(part))  # each of its own memory, as from a socket
        yield b'"}}' + end

    tracemalloc.start()
    try:
        assert await read(HttpResponse(Parts(answer()), 200, [], None))
        assert tracemalloc.get_traced_memory()[1] < 2.5 * parts * len(part)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["json", "events"])
async def test_values_are_counted_before_a_text_is_parsed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_by(kind) as server:
        parsed: list[int] = []

        def note(text: bytes) -> Any:
            parsed.append(len(text))
            return parse_json(text)

        monkeypatch.setattr("toolcrib.upstream.transports.framing.parse_json", note)
        with pytest.raises(UpstreamError, match=r"more than 200,000 values"):
            await call(server, "huge", values=1_000_000)
        assert max(parsed, default=0) < 100_000


async def test_a_list_may_be_larger_than_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"name": f"tool_{n}", "description": "é" * 400, "inputSchema": {"type": "object"}} for n in range(700)]
    monkeypatch.setattr("tests.fixtures.servers.web.result_of", _with_tools(tools))
    for app, transport in ((Web().app, "http"), (Web(streaming=True).app, "http"), (OldWeb().app, "sse")):
        async with serving(app) as origin:
            url = f"{origin}/{'sse' if transport == 'sse' else 'mcp'}"
            limits = {"max_result_bytes": 100_000, "max_result_nodes": 2_000}
            async with server_of(ServerOptions(name="web", transport=transport, url=url, **limits)) as server:  # type: ignore[arg-type] # a literal
                assert names(server) == [f"tool_{n}" for n in range(700)]


def _with_tools(tools: list[dict[str, Any]]) -> Any:
    def result(message: dict[str, Any]) -> dict[str, Any] | None:
        if message["method"] == "tools/list":
            return {"tools": tools}
        handshake = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        server = {"serverInfo": {"name": "web", "version": "1"}}
        return {**handshake, **server} if message["method"] == "initialize" else None

    return result
