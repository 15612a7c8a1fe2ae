"""Requests on a connection: in any order, in pieces and badly formed, they are answered as the strict parser has it."""

import contextlib
import json
from collections.abc import AsyncIterator

import anyio
import pytest
from tests.server.conftest import TOKENS, PerTenant, crib, native
from tests.server.test_requests import TOOLS, Exchange, Served, call, listing, request_bytes, run
from tests.server.wire import Wire

from toolcrib.server.auth.authentication import StaticTokens
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.http.strict import StrictReader
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.process import InFlightRequests
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio

PLAIN = request_bytes(call("plain"))
HEAD, _, BODY = PLAIN.partition(b"\r\n\r\n")


@contextlib.asynccontextmanager
async def both() -> AsyncIterator[Served]:
    async with crib(*TOOLS, handler=run, policy=PerTenant(), surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        async with app.running():
            yield Served(served, app, app)


async def answers(wire: Wire, count: int) -> list[tuple[int, list[tuple[bytes, bytes]], bytes]]:
    with anyio.fail_after(10):
        return [await wire.answer() for _ in range(count)]


def numbered(number: int, exchange: Exchange | None = None) -> bytes:
    return request_bytes(Exchange(**{**vars(exchange or call("plain")), "message": {"id": number}}))


def with_head(old: bytes, new: bytes) -> bytes:
    assert old in HEAD
    return HEAD.replace(old, new, 1) + b"\r\n\r\n" + BODY


ODD_HEADS = {
    "lower case": HEAD.lower().replace(b"post /mcp http/1.1", b"POST /mcp HTTP/1.1") + b"\r\n\r\n" + BODY,
    "blanks around values": with_head(b"host: 127.0.0.1", b"host:   127.0.0.1  "),
    "no blank": with_head(b"host: 127.0.0.1", b"host:127.0.0.1"),
    "old protocol": with_head(b"HTTP/1.1", b"HTTP/1.0"),
    "other path": with_head(b"/mcp", b"/mcp/other"),
    "query": with_head(b"/mcp", b"/mcp?show_all=true"),
    "encoded path": with_head(b"/mcp", b"/%6dcp"),
    "whole address": with_head(b"POST /mcp", b"POST http://127.0.0.1/mcp"),
    "foreign host": with_head(b"host: 127.0.0.1", b"host: example.com"),
    "foreign page": with_head(b"host:", b"origin: http://example.com\r\nhost:"),
    "two hosts": with_head(b"host:", b"host: 127.0.0.1\r\nhost:"),
    "two tokens": with_head(b"authorization:", b"authorization: Bearer x\r\nauthorization:"),
    "other scheme": with_head(b"Bearer ", b"Basic "),
    "upper-case scheme": with_head(b"Bearer ", b"BEARER "),
    "close": with_head(b"host:", b"connection: close\r\nhost:"),
    "keep-alive": with_head(b"host:", b"connection: Keep-Alive\r\nhost:"),
    "upgrade": with_head(b"host:", b"connection: upgrade\r\nupgrade: h2c\r\nhost:"),
    "many headers": with_head(b"host:", b"".join(b"x-%d: 1\r\n" % number for number in range(200)) + b"host:"),
    "long header": with_head(b"host:", b"x: " + b"1" * 9_000 + b"\r\nhost:"),
    "blank in a name": with_head(b"host:", b"x : 1\r\nhost:"),
    "control character": with_head(b"host:", b"x: \x01\r\nhost:"),
    "letters beyond ASCII": with_head(b"host:", b"x: \xe9\r\nhost:"),
    "two lengths": with_head(b"content-length:", b"content-length: 1\r\ncontent-length:"),
    "signed length": with_head(b"content-length: ", b"content-length: +"),
    "chunks": with_head(b"host:", b"transfer-encoding: chunked\r\nhost:"),
    "folded": with_head(b"host:", b"x: 1\r\n 2\r\nhost:"),
    "line feeds": HEAD.replace(b"\r\n", b"\n") + b"\n\n" + BODY,
    "every tool": with_head(b"host:", b"x-mcp-show-all: true\r\nhost:"),
}


@pytest.mark.parametrize("apart", [False, True], ids=["whole", "body apart"])
@pytest.mark.parametrize("sent", ODD_HEADS.values(), ids=ODD_HEADS.keys())
async def test_an_unusual_head_is_answered_as_the_servers_own_parser_would_have_it(sent: bytes, apart: bool) -> None:
    async with both() as served:
        received = []
        for paths in (served.app.direct_paths, frozenset[str]()):
            requests = InFlightRequests(served.app)
            requests.paths = paths
            wire = served.connected(requests)
            for part in (sent[: -len(BODY)], BODY) if apart else (sent,):
                wire.protocol.data_received(part)
            ((status, headers, content),) = await answers(wire, 1)
            received.append((status, sorted(headers), content, wire.closed))
            wire.protocol.connection_lost(None)
        assert received[0] == received[1]


async def test_a_request_in_pieces_is_answered_like_a_whole_one() -> None:
    async with both() as served:
        wire = served.connected()
        wire.protocol.data_received(PLAIN)
        whole = await answers(wire, 1)
        for cut in (3, 60, len(HEAD), len(HEAD) + 2, len(HEAD) + 4, len(PLAIN) - 1):
            wire.protocol.data_received(PLAIN[:cut])
            wire.protocol.data_received(PLAIN[cut:])
            assert await answers(wire, 1) == whole
            wire.protocol.data_received(PLAIN)
            assert await answers(wire, 1) == whole


async def test_a_head_and_its_body_that_come_apart_do_not_reach_the_strict_parser() -> None:
    async with both() as served:
        wire = served.connected()
        for cut in (len(HEAD) + 4, len(HEAD) + 9, len(PLAIN) - 1):
            wire.protocol.data_received(PLAIN[:cut])
            wire.protocol.data_received(PLAIN[cut:])
            assert (await answers(wire, 1))[0][0] == 200
        assert not isinstance(wire.protocol.reader, StrictReader)
        wire.protocol.data_received(PLAIN[:-1])
        wire.protocol.data_received(PLAIN[-1:] + PLAIN)
        assert [status for status, _, _ in await answers(wire, 2)] == [200, 200]
        wire.protocol.connection_lost(None)


async def test_a_body_that_does_not_come_ends_the_connection() -> None:
    async with crib(*TOOLS, handler=run, surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(body_timeout_s=0.02), ready=lambda: (True, {}))
        async with app.running():
            wire = Served(served, app, app).connected()
            wire.protocol.data_received(PLAIN[: len(HEAD) + 9])
            with anyio.fail_after(5):
                while not wire.closed:
                    await wire.arrived.wait()
            assert wire.received.startswith(b"HTTP/1.1 408 ")


async def test_a_request_whose_body_has_yet_to_come_is_answered_before_the_connection_ends() -> None:
    async with both() as served:
        wire = served.connected()
        wire.protocol.data_received(PLAIN[:-3])
        wire.protocol.shutdown()
        assert not wire.closed
        wire.protocol.data_received(PLAIN[-3:])
        assert (await answers(wire, 1))[0][0] == 200
        assert wire.closed


async def test_requests_that_do_not_wait_for_answers_are_answered_in_order() -> None:
    async with both() as served:
        wire = served.connected()
        sent = [numbered(1), numbered(2, call("empty")), numbered(3, listing()), numbered(4, call("plain", verb="PUT"))]
        wire.protocol.data_received(sent[0])
        for part in sent[1:]:
            wire.protocol.data_received(part)
        *found, last = await answers(wire, 4)
        assert [json.loads(body)["id"] for _, _, body in found] == [1, 2, 3]
        assert last[0] == 405
        wire.protocol.data_received(b"".join((numbered(5), numbered(6))))
        assert [json.loads(body)["id"] for _, _, body in await answers(wire, 2)] == [5, 6]
        assert not wire.paused


async def test_a_plain_call_ends_when_its_connection_does() -> None:
    begun = anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError("it was not cancelled")

    async with crib(native("slow"), handler=wait, surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        async with app.running():
            requests = InFlightRequests(app)
            wire = Served(served, app, app).connected(requests)
            wire.protocol.data_received(request_bytes(call("slow")))
            with anyio.fail_after(5):
                await begun.wait()
                wire.protocol.connection_lost(None)
                await requests.wait_idle()
            assert not wire.received


async def test_a_connection_that_is_to_end_answers_its_plain_call_first() -> None:
    async with both() as served:
        wire = served.connected()
        wire.protocol.data_received(PLAIN)
        wire.protocol.shutdown()
        closed_early = wire.closed
        (status, headers, _), *_ = await answers(wire, 1)
        assert (closed_early, status) == (False, 200)
        assert (b"connection", b"close") in headers
        assert wire.closed
        idle = served.connected()
        idle.protocol.shutdown()
        assert idle.closed


async def test_a_revoked_token_is_refused_on_an_open_connection() -> None:
    accepted = StaticTokens(TOKENS)
    async with crib(*TOOLS, handler=run, policy=PerTenant(), surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), authenticator=accepted)
        async with app.running():
            wire = Served(served, app, app).connected()
            wire.protocol.data_received(PLAIN)
            assert (await answers(wire, 1))[0][0] == 200
            accepted.replace([])
            wire.protocol.data_received(PLAIN)
            assert (await answers(wire, 1))[0][0] == 401
