"""Answers next to the right shape: a call that took effect keeps its result, whatever the transport and the version."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.upstream.raw_http import (
    EventPeer,
    Message,
    Request,
    events,
    mcp,
    mcp_modern,
    peer_of,
    response,
    result,
    server_at,
    text_result,
)
from tests.upstream.support import FAST, raw

from toolcrib import App
from toolcrib.errors import ConnectionLost, UpstreamError
from toolcrib.settings.options import Settings
from toolcrib.types import ServerState
from toolcrib.upstream.options import ServerOptions

BOM = "\ufeff"


@asynccontextmanager
async def app_of(*servers: ServerOptions) -> AsyncIterator[App]:
    """An app with these servers, which have been tried."""
    with anyio.fail_after(20):
        async with App(Settings(servers=servers, fleet=FAST)) as app:
            await app.settled()
            yield app


@asynccontextmanager
async def app_before(answer: Callable[[Request], Any], **options: Any) -> AsyncIterator[App]:
    """An app before a server that answers so."""
    async with peer_of(answer) as peer, app_of(server_at(peer.port, **options)) as app:
        yield app


def on_call(answer: Callable[[Request], bytes], others: Callable[[Request], bytes] = mcp) -> Callable[[Request], bytes]:
    """Answer calls so, and everything else as a well-behaved server does."""
    return lambda request: (answer if request.message.get("method") == "tools/call" else others)(request)


async def say(app: App) -> list[str]:
    """The texts in the result of a call."""
    return [block["text"] for block in (await app.call("web:echo", {})).content]


# -- results -----------------------------------------------------------------------------------------------------------

SHAPES: tuple[tuple[Any, list[str]], ...] = (
    ({"content": "done"}, ["done"]),
    ({"content": {"type": "text", "text": "done"}}, ["done"]),
    ({"content": {"text": "done"}}, ["done"]),
    ({"content": {"rows": 2}}, ['{"rows":2}']),
    ({"content": ["done", {"type": "text", "text": "twice"}]}, ["done", "twice"]),
    ({"content": 7}, ["7"]),
    ({"content": None}, []),
    ({"toolResult": {"rows": 2}}, ['{"rows":2}']),
    ({"toolResult": "done"}, ["done"]),
    ("done", ["done"]),
    ([{"type": "text", "text": "done"}], ["done"]),
    (None, []),
)


def as_json(request: Request, value: Any) -> bytes:
    return response(json.dumps(result(request, value)))


def as_event(request: Request, value: Any) -> bytes:
    return events(result(request, value))


@pytest.mark.parametrize(("value", "texts"), SHAPES, ids=[json.dumps(value) for value, _ in SHAPES])
@pytest.mark.parametrize("others", [mcp, mcp_modern], ids=["older", "newer"])
@pytest.mark.parametrize("write", [as_json, as_event], ids=["json", "events"])
async def test_a_result_of_another_shape_is_read_over_http(
    value: Any, texts: list[str], others: Callable[[Request], bytes], write: Callable[[Request, Any], bytes]
) -> None:
    async with app_before(on_call(lambda request: write(request, value), others)) as app:
        assert [await say(app), await say(app)] == [texts, texts]


async def test_a_result_of_another_shape_is_read_from_an_event_stream_of_the_older_transport() -> None:
    wanted = iter(SHAPES)
    answer = EventPeer(on_call(lambda request: as_json(request, next(wanted)[0])))
    async with app_before(answer, transport="sse") as app:
        assert [await say(app) for _ in SHAPES] == [texts for _, texts in SHAPES]


@pytest.mark.parametrize("discover", ["refuse", "serve"], ids=["older", "newer"])
async def test_a_result_of_another_shape_is_read_from_a_program(discover: str) -> None:
    async with app_of(raw(discover=discover)) as app:
        for value, texts in SHAPES:
            for before in ("", BOM):
                found = await app.call("raw:shaped", {"result": value, "before": before})
                assert [block["text"] for block in found.content] == texts


# -- bodies ------------------------------------------------------------------------------------------------------------


def written(message: Message) -> str:
    return json.dumps(message)


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


BODIES: dict[str, Callable[[str], bytes]] = {
    "a byte order mark": lambda text: response(BOM + text),
    "plain text": lambda text: response(text, "text/plain"),
    "plain text with a byte order mark": lambda text: response(BOM + text, "text/plain"),
    "a web page by its header": lambda text: response(text, "text/html"),
    "no content type": lambda text: response(text, ""),
    "a batch": lambda text: response(f"[{text}]"),
    "another id": lambda text: response(json.dumps({**json.loads(text), "id": "other"})),
    "no id": lambda text: response(json.dumps({**json.loads(text), "id": None})),
    "gzip": lambda text: response(gzip.compress(text.encode()), content_encoding="gzip"),
    "deflate": lambda text: response(zlib.compress(text.encode()), content_encoding="deflate"),
    "deflate without a frame": lambda text: response(bare_deflate(text.encode()), content_encoding="deflate"),
    "an event": lambda text: response(f"data: {text}\n\n", "text/event-stream"),
    "an event that ends in carriage returns": lambda text: response(f"data: {text}\r\r", "text/event-stream"),
    "an event without its last blank line": lambda text: response(f"data: {text}", "text/event-stream"),
    "an event with a byte order mark": lambda text: response(f"data: {BOM}{text}\n\n", "text/event-stream"),
    "an event as plain text": lambda text: response(f"event: message\ndata: {text}\n\n", "text/plain"),
    "after a line that is no message": lambda text: response(f"data: oops\n\ndata: {text}\n\n", "text/event-stream"),
    "after events of other names": lambda text: response(
        f"event: ping\ndata: {{}}\n\n: hello\n\ndata:\n\ndata: {text}\n\n", "text/event-stream"
    ),
    "twice": lambda text: response(f"data: {text}\n\ndata: {text}\n\n", "text/event-stream"),
    "before a foreign answer": lambda text: response(
        f'data: {{"jsonrpc": "2.0", "id": "other", "result": {{}}}}\n\ndata: {text}\n\n', "text/event-stream"
    ),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("others", [mcp, mcp_modern], ids=["older", "newer"])
async def test_a_body_of_another_form_is_read_in_the_handshake_in_lists_and_in_calls(
    name: str, others: Callable[[Request], bytes]
) -> None:
    def answer(request: Request) -> bytes:
        whole = others(request)
        head, _, body = whole.partition(b"\r\n\r\n")
        return BODIES[name](body.decode()) if b"application/json" in head else whole

    async with app_before(answer) as app:
        (status,) = app.statuses()
        assert (status.state, status.tools, status.reason) == (ServerState.READY, 1, "")
        assert [await say(app), await say(app)] == [["done"], ["done"]]


CUT = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\nconnection: close\r\n\r\n{"jsonrpc"'
CUT_CHUNK = CUT.replace(b"content-length: 500", b"transfer-encoding: chunked").replace(b"{", b"40\r\n{")


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (CUT, ConnectionLost, "its response was cut off"),
        (CUT_CHUNK, ConnectionLost, "its response was cut off"),
        (b"", ConnectionLost, "the connection was closed without an answer"),
        (b"HTTP/1.1 OK\r\n\r\n", ConnectionLost, "its response is not HTTP"),
        (response("{}", content_length="1"), ConnectionLost, "its response is not HTTP"),
        (
            response(gzip.compress(b"{}")[:-4], content_encoding="gzip"),
            ConnectionLost,
            "its compressed response was cut",
        ),
        (response(b"nothing", content_encoding="gzip"), ConnectionLost, "its compressed response cannot be decoded"),
        (response("{", "application/json"), UpstreamError, "is not a JSON-RPC message"),
        (response("hello", "text/plain"), UpstreamError, "Unexpected content type: text/plain"),
        (events(), ConnectionLost, "the connection broke off"),
        (events("oops"), ConnectionLost, "holds an event that is not a JSON-RPC message, and no result"),
        (events('{"id": "other", "result": {}}'), ConnectionLost, "its response answers another request"),
        (events('{"error": "The disk is full"}'), UpstreamError, "The disk is full"),
        (response('{"error": "The disk is full"}'), UpstreamError, "The disk is full"),
        (response("busy", "text/plain", "503 Service Unavailable"), UpstreamError, r'HTTP 503 .* message: "busy"'),
    ],
)
@pytest.mark.parametrize("others", [mcp, mcp_modern], ids=["older", "newer"])
async def test_an_answer_that_cannot_be_read_fails_its_own_call_with_its_own_reason(
    answer: bytes, error: type[Exception], reason: str, others: Callable[[Request], bytes]
) -> None:
    calls = 0

    def answer_first(request: Request) -> bytes:
        nonlocal calls
        calls += 1
        return response(json.dumps(result(request, text_result("done")))) if calls % 2 == 0 else answer

    async with app_before(on_call(answer_first, others)) as app:
        for _ in range(2):  # over a connection that is opened for it, and over one that is open
            with pytest.raises(error, match=reason):
                await app.call("web:echo", {})
            assert await say(app) == ["done"]
        assert calls == 4
