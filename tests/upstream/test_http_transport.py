"""Exchanges over streamable HTTP, in every form of response, with servers that write exactly what a test gives them."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.upstream.raw_http import HANG, Authority, Peer, Request, events, peer_of, response, result, server_at

from toolcrib.protocol.calling import OutgoingRequest
from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import FleetOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import Message
from toolcrib.upstream.transports.http import HttpTransport

pytestmark = pytest.mark.anyio

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
Answer = Callable[[Request], bytes | AsyncIterator[bytes]]


@dataclass
class Line:
    """A transport to a peer, and what arrives over it outside of a response."""

    peer: Peer
    transport: HttpTransport
    received: list[Message] = field(default_factory=list)
    count: int = 0

    async def receive(self, message: Message) -> None:
        self.received.append(message)

    def request(self, method: str = "tools/call", *, modern: bool = True) -> OutgoingRequest:
        self.count += 1
        params = {"name": "t"}
        data = json.dumps({"jsonrpc": "2.0", "id": self.count, "method": method, "params": params}).encode()
        headers = {} if modern else {"mcp-protocol-version": "2025-11-25"}
        return OutgoingRequest(self.count, method, params, data, headers, modern)

    async def exchange(self, *, modern: bool = True, method: str = "tools/call") -> Message:
        with anyio.fail_after(5):
            return await self.transport.exchange(self.request(method, modern=modern), self.receive)

    @property
    def methods(self) -> list[str]:
        """What the peer got, by the methods of JSON-RPC and of HTTP."""
        return [one.message.get("method", one.method) for one in self.peer.requests]


@asynccontextmanager
async def line_to(answer: Answer, **options: Any) -> AsyncIterator[Line]:
    async with peer_of(answer) as peer:
        server = server_at(peer.port, **options)
        line = Line(peer, HttpTransport(server, FleetOptions(), Redactor(server)))
        async with line.transport.opened(line.receive):
            yield line


def json_result(request: Request, **value: Any) -> bytes:
    return response(json.dumps(result(request, value)))


def as_event(message: Message, event_id: str = "") -> bytes:
    return (f"id: {event_id}\n" if event_id else "").encode() + f"data: {json.dumps(message)}\n\n".encode()


# -- one response ------------------------------------------------------------------------------------------------------


async def test_an_error_keeps_its_code_and_data() -> None:
    error = {"code": -32602, "message": "no such tool", "data": {"a": 1}}
    async with line_to(
        lambda request: response(json.dumps({**result(request, None), "error": error}), status="400 Bad Request")
    ) as line:
        assert (await line.exchange())["error"] == error


async def test_a_stream_is_read_to_the_outcome_and_everything_before_is_passed_on_in_its_order() -> None:
    before = [{"jsonrpc": "2.0", "method": f"notifications/{name}"} for name in ("progress", "message", "vendor")]

    def answer(request: Request) -> bytes:
        outcome = result(request, {"content": [1]})
        foreign = {"jsonrpc": "2.0", "id": "other", "result": {}}
        return events('"not a message"', *before, foreign, outcome, {"jsonrpc": "2.0", "id": 9, "method": "ping"})

    async with line_to(answer) as line:
        assert (await line.exchange())["result"] == {"content": [1]}
        assert line.received == before


async def test_a_question_on_the_stream_can_be_answered_while_its_request_waits() -> None:
    answered = anyio.Event()

    async def ask(request: Request) -> AsyncIterator[bytes]:
        yield EVENTS + as_event({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": {}})
        await answered.wait()
        yield as_event(result(request, {"content": [2]}))

    def answer(request: Request) -> bytes | AsyncIterator[bytes]:
        if request.message.get("method") == "tools/call":
            return ask(request)
        assert request.message == {"jsonrpc": "2.0", "id": "q1", "result": {"action": "accept"}}
        answered.set()
        return response("", "", "202 Accepted")

    async with line_to(answer) as line:

        async def reply(message: Message) -> None:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept"}}
            await line.transport.post(answer, {})

        with anyio.fail_after(5):
            found = await line.transport.exchange(line.request(), reply)
        assert found["result"] == {"content": [2]}


@pytest.mark.parametrize("modern", [True, False])
async def test_a_batch_is_read_for_the_outcome(modern: bool) -> None:
    def answer(request: Request) -> bytes:
        note = {"jsonrpc": "2.0", "method": "notifications/message"}
        return response(json.dumps([note, result(request, {"content": [3]})]))

    async with line_to(answer) as line:
        assert (await line.exchange(modern=modern))["result"] == {"content": [3]}


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_unpaired_surrogate_does_not_lose_the_response(kind: str) -> None:
    def answer(request: Request) -> bytes:
        text = json.dumps(result(request, {"content": ["\ud83d", "\U0001f980"]}))
        return response(text if kind.endswith("json") else f"data: {text}\n\n", kind)

    async with line_to(answer) as line:
        assert (await line.exchange())["result"] == {"content": ["\ufffd", "\U0001f980"]}


async def test_repeated_reports_of_a_changed_list_are_passed_on_once_a_chunk() -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    other = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "a:b"}}

    def answer(request: Request) -> bytes:
        return events(*[changed] * 100, other, *[changed] * 100, result(request, {}))

    async with line_to(answer) as line:
        await line.exchange()
        assert line.received == [other, changed]


LOST, ANSWER, STATUS = FailureKind.LOST, FailureKind.ANSWER, FailureKind.STATUS
LONG = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n\r\n" + b'{"a":"' + b"x" * 100_000
)


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (events({"jsonrpc": "2.0", "method": "notifications/message"}), LOST, "broke off"),
        (events("{nope"), LOST, "not a JSON-RPC message"),
        (response("[1]"), ANSWER, "is not a JSON-RPC message"),
        (response("hello", "text/plain"), ANSWER, "Unexpected content type: text/plain"),
        (response("", "", "202 Accepted"), ANSWER, "Unexpected content type: none"),
        (response("{"), ANSWER, "is not a JSON-RPC message"),
        (response("[" * 300 + "]" * 300), ANSWER, "nested more than 200 levels deep"),
        (LONG, LOST, "cut off"),
        (b"HTTP/1.1 500 E\r\ncontent-type: text/plain\r\ncontent-length: 900\r\n\r\noops", LOST, "cut off"),
        (response(b"no gzip", content_encoding="gzip"), LOST, "cannot be decoded"),
        (response(gzip.compress(b"{}"), content_encoding="br"), LOST, "encoding that was not asked for"),
        (response("", "", "307 Temporary Redirect", location="/mcp"), STATUS, "redirects more than"),
        (response("", "", "307 Temporary Redirect", location="http://[/"), STATUS, "that is no address"),
        (response("", "", "302 Found", location="/other"), STATUS, "not followed"),
    ],
)
async def test_a_response_that_cannot_be_used_fails_its_exchange_with_a_reason(
    answer: bytes, kind: FailureKind, reason: str
) -> None:
    def respond(_: Request) -> bytes | AsyncIterator[bytes]:
        return closing(answer) if kind is LOST else answer

    async def closing(data: bytes) -> AsyncIterator[bytes]:
        yield data

    async with line_to(respond) as line:
        with pytest.raises(ExchangeError, match=reason) as failed:
            await line.exchange()
        assert failed.value.kind is kind


async def test_after_a_redirect_within_the_origin_later_messages_go_there_at_once() -> None:
    def answer(request: Request) -> bytes:
        if request.path == "/mcp":
            return response("", "", "308 Permanent Redirect", location="/v2/mcp")
        return json_result(request, path=request.path)

    async with line_to(answer) as line:
        for _ in range(3):
            assert (await line.exchange())["result"] == {"path": "/v2/mcp"}
        assert [one.path for one in line.peer.requests] == ["/mcp", "/v2/mcp", "/v2/mcp", "/v2/mcp"]


async def test_headers_of_different_names_and_the_same_value_are_not_taken_for_each_other() -> None:
    async with line_to(json_result) as line:
        for name in ("mcp-param-region", "mcp-param-zone", "mcp-param-region"):
            request = replace(line.request(), headers={"mcp-name": "t", name: "north"})
            with anyio.fail_after(5):
                await line.transport.exchange(request, line.receive)
        sent = [{key for key in one.headers if key.startswith("mcp-param")} for one in line.peer.requests]
        assert sent == [{"mcp-param-region"}, {"mcp-param-zone"}, {"mcp-param-region"}]


# -- streams that are interrupted --------------------------------------------------------------------------------------


def interrupted(*rests: bytes) -> Answer:
    """A server that ends its stream early, and sends the rest when asked for what comes after the last event."""
    left = list(rests)

    async def part(data: bytes) -> AsyncIterator[bytes]:
        yield EVENTS + data

    def answer(request: Request) -> AsyncIterator[bytes]:
        return part(left.pop(0) if request.method == "GET" else b"id: e1\nretry: 1\ndata: \n\n")

    return answer


def asked_for(line: Line) -> list[str]:
    return [one.headers["last-event-id"] for one in line.peer.requests if one.method == "GET"]


async def test_the_rest_of_an_interrupted_stream_of_an_older_server_is_asked_for_until_it_has_the_response() -> None:
    rest = as_event({"jsonrpc": "2.0", "id": 1, "result": {"content": [3]}}, "e3")
    async with line_to(interrupted(b"id: e2\ndata: \n\n", rest)) as line:
        assert (await line.exchange(modern=False))["result"] == {"content": [3]}
        assert asked_for(line) == ["e1", "e2"]


async def test_a_stream_without_event_ids_or_of_a_newer_server_is_lost_when_it_breaks_off() -> None:
    async with line_to(interrupted()) as line:
        with pytest.raises(ExchangeError, match="broke off"):
            await line.exchange(modern=True)
        assert asked_for(line) == []
    async with line_to(lambda _: events()) as line:
        with pytest.raises(ExchangeError, match="broke off"):
            await line.exchange(modern=False)
        assert asked_for(line) == []


async def test_a_server_that_sends_nothing_new_is_asked_for_the_rest_a_few_times_only() -> None:
    async with line_to(interrupted(b"", b"", b"", b"")) as line:
        with pytest.raises(ExchangeError, match="broke off"):
            await line.exchange(modern=False)
        assert asked_for(line) == ["e1"] * 3


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_the_session_that_a_response_names_is_that_of_the_next_request() -> None:
    given = iter(("", "a", "a", "", "b", "b"))

    def answer(request: Request) -> bytes:
        if request.method == "DELETE":
            return response("", "", "204 No Content")
        return response(json.dumps(result(request, {})), mcp_session_id=next(given))

    async with line_to(answer) as line:
        for _ in range(6):
            await line.exchange(modern=False)
        assert line.transport.has_session
    sent = [one.headers.get("mcp-session-id", "") for one in line.peer.requests]
    assert sent == ["", "", "a", "a", "a", "b", "b"]


async def test_a_newer_server_has_no_sessions_even_if_it_names_some() -> None:
    async with line_to(
        lambda request: response(json.dumps(result(request, {})), mcp_session_id=f"s{request.message['id']}")
    ) as line:
        for _ in range(2):
            await line.exchange(modern=True)
        assert not line.transport.has_session
        assert not any("mcp-session-id" in one.headers for one in line.peer.requests)


async def test_the_stream_of_a_servers_own_messages_is_continued_after_its_last_event() -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    parts = [as_event(note, "n1") + b"retry: 1\n\n", as_event(note, "n2")]
    ended = anyio.Event()

    async def stream() -> AsyncIterator[bytes]:
        if not parts:
            ended.set()
            await anyio.sleep_forever()
        yield EVENTS + parts.pop(0)

    def answer(request: Request) -> bytes | AsyncIterator[bytes]:
        if request.method == "GET":
            return stream()
        return response(json.dumps({**result(request, {})}) if "id" in request.message else "", mcp_session_id="s")

    async with line_to(answer) as line:
        await line.exchange(modern=False)
        await line.transport.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})
        with anyio.fail_after(5):
            await line.transport.wait_listening()
            await ended.wait()
        assert line.received == [note, note]
        got = [one for one in line.peer.requests if one.method == "GET"]
        assert [one.headers.get("last-event-id", "") for one in got] == ["", "n1", "n2"]
        assert {one.headers["mcp-session-id"] for one in got} == {"s"}


async def test_a_server_that_ends_its_stream_at_once_is_asked_again_only_after_a_pause() -> None:
    asked, enough = list[float](), anyio.Event()

    def answer(request: Request) -> bytes:
        if request.method == "GET":
            asked.append(anyio.current_time())
            if len(asked) == 3:
                enough.set()
            return response("retry: 0\n\n", "text/event-stream")
        return response(json.dumps({**result(request, {})}) if "id" in request.message else "", mcp_session_id="s")

    async with line_to(answer) as line:
        await line.exchange(modern=False)
        await line.transport.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})
        with anyio.fail_after(5):
            await enough.wait()
    assert asked[2] - asked[0] > 0.15


@pytest.mark.parametrize("status", ["405 Method Not Allowed", "404 Not Found"])
async def test_a_server_without_a_stream_of_its_own_messages_is_asked_for_it_once_and_keeps_its_session(
    status: str,
) -> None:
    def answer(request: Request) -> bytes:
        if request.method == "GET":
            return response("", "", status)
        return response(json.dumps(result(request, {})) if "id" in request.message else "", mcp_session_id="s")

    async with line_to(answer) as line:
        await line.exchange(modern=False)
        await line.transport.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})
        with anyio.fail_after(5):
            await line.transport.wait_listening()
        await line.exchange(modern=False)
        assert (line.methods.count("GET"), line.transport.closed.is_set) == (1, False)


async def test_without_a_session_no_stream_is_asked_for() -> None:
    async with line_to(lambda request: json_result(request) if "id" in request.message else response("")) as line:
        await line.exchange(modern=False)
        await line.transport.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})
        with anyio.fail_after(5):
            await line.transport.wait_listening()
        assert "GET" not in line.methods


# -- through a proxy ---------------------------------------------------------------------------------------------------


async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a proxy for one connection that asks for a tunnel."""
    target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
    there_reader, there_writer = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await source.read(65536):
                to.write(part)
                await to.drain()
        to.close()

    await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))


@pytest.mark.parametrize("write", [json_result, lambda request: events(result(request, {}))], ids=["json", "events"])
async def test_exchanges_go_through_a_proxy_with_tls_to_the_server(
    write: Callable[[Request], bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with proxy, peer_of(write, tls=authority.context("localhost")) as peer:
        server = server_at(peer.port, scheme="https", host="localhost")
        line = Line(peer, HttpTransport(server, FleetOptions(), Redactor(server)))
        async with line.transport.opened(line.receive):
            for _ in range(3):
                assert (await line.exchange())["result"] == {}


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_transport_that_is_closed_says_so() -> None:
    async with line_to(json_result) as line:
        pass
    with pytest.raises(ExchangeError, match="closed") as failed:
        await line.exchange()
    assert failed.value.kind is FailureKind.CLOSED


async def test_what_is_under_way_when_a_transport_is_closed_fails() -> None:
    failures = list[ExchangeError]()

    async def fail(line: Line) -> None:
        try:
            await line.exchange()
        except ExchangeError as error:
            failures.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group, line_to(lambda _: HANG) as line:
            group.start_soon(fail, line)
            while not line.peer.requests:  # noqa: ASYNC110 - no event for this
                await anyio.sleep(0.01)
    assert [error.kind for error in failures] == [FailureKind.LOST]


async def test_an_exchange_that_is_cancelled_when_its_transport_is_closed_stays_cancelled() -> None:
    with anyio.fail_after(5):
        async with line_to(lambda _: HANG) as line:
            task = asyncio.create_task(line.exchange(modern=False))
            while not line.peer.requests:  # noqa: ASYNC110 - no event for this
                await anyio.sleep(0.01)
            task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
