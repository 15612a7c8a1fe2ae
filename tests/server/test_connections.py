"""What a single client can occupy: connections, unfinished requests, memory for heads, and sessions."""

import json
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import httpx2
import pytest
from tests.server.conftest import JSON
from tests.server.test_http import serving

from toolcrib.server.http import connections
from toolcrib.server.http.connections import ConnectionLimits, peer_of
from toolcrib.server.options import HttpOptions
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
LEGACY = {**JSON, "mcp-protocol-version": "2025-11-25"}
PARAMS = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": PARAMS}
NAMED: dict[str, Any] = {
    "clientInfo": {"name": "t", "version": "0"},
    "protocolVersion": "2026-07-28",
    "clientCapabilities": {},
}
"""How a client of 2026-07-28 names itself in each request."""
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[anyio.abc.SocketStream]:
    """A bare connection to the server at the URL."""
    address = httpx2.URL(url)
    async with await anyio.connect_tcp(address.host, address.port or 80) as connection:
        yield connection


async def answer_to(url: str, *parts: bytes) -> bytes:
    """All that the server answers to these bytes, until it closes the connection."""
    async with connected(url) as connection:
        try:
            for part in parts:
                await connection.send(part)
        except anyio.BrokenResourceError:
            pass  # refused before all was sent
        received = b""
        try:
            async for part in connection:
                received += part
        except anyio.BrokenResourceError:
            pass  # it was closed before all was read
        return received


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ([HEALTH, *[b"a" * 16_000] * 6], b"431"),
        ([b"GET /healthz?", *[b"a" * 16_000] * 6], b"431"),
        ([HEALTH, b"X: ", b"a" * 66_000, b"\r\n\r\n"], b"431"),
        ([HEALTH, b"".join(b"X-%d: 1\r\n" % n for n in range(100)), b"Connection: close\r\n\r\n"], b"431"),
        ([b"GET /healthz?" + b"a" * 9000, b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"], b"414"),
        ([HEALTH, b"Host: localhost\r\nConnection: close\r\n\r\n"], b"400"),
        ([HEALTH, b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"], b"400"),
        ([HEALTH, b"Upgrade: h2c\r\nX: ", b"a" * 90_000, b"\r\n\r\n"], b"431"),
        ([HEALTH + b"Upgrade: h2c\r\nX: " + b"a" * 90_000 + b"\r\n\r\n"], b"431"),
        ([b"get /healthz HTTP/1.1\r\nX: ", *[b"a" * 16_000] * 6], b"431"),
    ],
    ids=[
        "endless header",
        "endless URL",
        "one large header",
        "many headers",
        "long URL",
        "two hosts",
        "two lengths",
        "one large header in parts after an upgrade",
        "one large header after an upgrade",
        "endless unusual header",
    ],
)
async def test_a_head_that_is_too_large_or_ambiguous_is_refused(head: list[bytes], status: bytes) -> None:
    with anyio.fail_after(10):
        async with serving() as (url, _, _):
            assert (await answer_to(url, *head)).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("target", "status"),
    [(b"http://localhost/mcp", 405), (b"http://localhost:80/mcp?x=1", 405), (b"http://evil.example/mcp", 421)],
)
async def test_the_host_of_a_whole_url_counts_instead_of_the_header(target: bytes, status: int) -> None:
    request = b"PUT %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target
    reverse = b"PUT %b HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n" % target
    with anyio.fail_after(10):
        async with serving() as (url, _, _):
            for sent in (request, reverse):
                assert (await answer_to(url, sent)).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (HEALTH, b"HTTP/1.1 408"),
        (POST + b"\r\n" + b"x" * 20, b"HTTP/1.1 408"),
        (b"get " + HEALTH, b"HTTP/1.1 408"),
        (POST + b"Upgrade: h2c\r\n\r\n" + b"x" * 20, b"HTTP/1.1 408"),
        (HEALTH.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n9\r\nx", b"HTTP/1.1 405"),
    ],
    ids=["silent", "half a head", "half a body", "half an odd head", "half a body after an upgrade", "half a chunk"],
)
async def test_a_request_that_does_not_arrive_in_time_is_ended(sent: bytes, answer: bytes) -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(head_timeout_s=0.1, body_timeout_s=0.1)) as (url, _, _):
            assert (await answer_to(url, sent))[:12] == answer


@pytest.mark.parametrize("second", [b"GET /hea", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_second_request_that_does_not_arrive_in_time_is_ended_too(second: bytes) -> None:
    first = HEALTH + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(head_timeout_s=0.1)) as (url, _, _), connected(url) as connection:
            await connection.send(first)
            assert (await connection.receive()).startswith(b"HTTP/1.1 200")
            await connection.send(second)
            assert (await connection.receive()).startswith(b"HTTP/1.1 408")


async def test_blanks_around_the_values_of_headers_do_not_count() -> None:
    headers = {**JSON, "mcp-protocol-version": "2026-07-28 \t", "mcp-method": " \t tools/list  "}
    params = {"_meta": {f"io.modelcontextprotocol/{key}": value for key, value in NAMED.items()}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost \r\nConnection: close \r\nContent-Length: {len(body)} \r\n{lines}\r\n"
    )
    with anyio.fail_after(10):
        async with serving() as (url, _, _):
            assert (await answer_to(url, head.encode() + body)).startswith(b"HTTP/1.1 200")


async def test_a_request_that_has_arrived_starts_no_deadline() -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(head_timeout_s=0.1, body_timeout_s=0.1)) as (url, _, _):
            async with connected(url) as connection:
                for _ in range(2):
                    await connection.send(HEALTH + b"\r\n")
                    assert (await connection.receive()).startswith(b"HTTP/1.1 200")
                    assert await answer_to(url, b"") == b"", "a silent connection has come to its end meanwhile"


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive, te\r\n"], ids=["usual", "unusual"])
@pytest.mark.parametrize(
    "stray",
    [b"\r\n", HEALTH, POST + b"\r\n" + b"x" * 20],
    ids=["line end", "half a head", "half a body"],
)
async def test_bytes_after_a_request_do_not_end_it(stray: bytes, more: bytes) -> None:
    called, over = anyio.Event(), anyio.Event()

    async def wait(_: Context, __: str, ___: Object) -> ToolResult:
        called.set()
        await over.wait()
        return ToolResult(content=({"type": "text", "text": "done"},))

    options = HttpOptions(head_timeout_s=0.1, body_timeout_s=0.1)
    with anyio.fail_after(20):
        async with serving(wait, options) as (url, _, _), httpx2.AsyncClient(headers=LEGACY) as http:
            session = await opened(http, url)
            async with connected(url) as connection:
                await connection.send(call_of("x:echo", session).replace(b"\r\n", b"\r\n" + more, 1))
                await called.wait()
                await connection.send(stray)
                for _ in range(3):
                    assert await answer_to(url, b"") == b"", "the deadline has passed meanwhile"
                over.set()
                received = await connection.receive()
    assert received.startswith(b"HTTP/1.1 200")


async def test_a_line_end_after_an_answer_begins_no_request() -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(head_timeout_s=0.1)) as (url, _, _), connected(url) as connection:
            await connection.send(HEALTH + b"\r\n")
            assert (await connection.receive()).startswith(b"HTTP/1.1 200")
            await connection.send(b"\r\n")
            for _ in range(2):
                assert await answer_to(url, b"") == b"", "the deadline has passed meanwhile"
            await connection.send(HEALTH + b"\r\n")
            assert (await connection.receive()).startswith(b"HTTP/1.1 200")


async def test_one_address_cannot_take_more_than_its_connections(caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(max_connections_per_peer=3)) as (url, _, _):
            async with connected(url), connected(url), connected(url) as last:
                for _ in range(5):
                    refused = await answer_to(url, HEALTH + b"\r\n")
                    assert refused.startswith(b"HTTP/1.1 503"), refused
                assert b"Retry-After" in refused
                await last.aclose()
                while not (await answer_to(url, HEALTH + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200"):
                    pass
    assert len([record for record in caplog.records if "connections were refused" in record.message]) == 1


async def test_all_addresses_of_a_network_of_ipv6_share_their_connections() -> None:
    limits = ConnectionLimits(HttpOptions(max_connections_per_peer=2))
    assert [limits.admit(peer_of((f"2001:db8::{end}", 5, 0, 0))) for end in range(3)] == [True, True, False]
    assert limits.admit(peer_of(("2001:db8:0:1::1", 5, 0, 0)))


async def test_connections_that_arrive_together_are_accepted_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, accepted = 0, Counter[int]()
    admit = connections.ConnectionLimits.admit

    def admit_noted(limits: connections.ConnectionLimits, peer: str) -> bool:
        accepted[turn] += 1
        return admit(limits, peer)

    monkeypatch.setattr(connections.ConnectionLimits, "admit", admit_noted)
    with anyio.fail_after(20), ExitStack() as opened:
        async with serving(options=HttpOptions(max_connections_per_peer=1000)) as (url, _, _):
            address = httpx2.URL(url)
            for _ in range(400):  # without a turn of the server
                opened.enter_context(socket.create_connection((address.host, address.port or 80)))
            while accepted.total() < 400:
                turn += 1
                await anyio.lowlevel.checkpoint()
    assert max(accepted.values()) <= 64


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive, te\r\n"], ids=["usual", "unusual"])
async def test_many_requests_are_all_answered_though_their_client_does_not_wait(
    more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with anyio.fail_after(20):
        async with serving() as (url, _, _):
            answered = await answer_to(url, (HEALTH + more + b"\r\n") * 500 + HEALTH + b"Connection: close\r\n\r\n")
    assert answered.count(b"HTTP/1.1 200") == 501
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(version: str) -> None:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": [' + b"[]," * 200_000 + b"0]}}"
    with anyio.fail_after(10):
        async with serving() as (url, _, _), httpx2.AsyncClient(headers=JSON) as http:
            refused = await http.post(url, content=body, headers={"mcp-protocol-version": version})
    assert refused.status_code == 413
    assert "holds more than 200,000 values" in refused.json()["error"]["message"]


def call_of(tool: str, session: str = "") -> bytes:
    """A call as a client of 2026-07-28 sends it, or of the session."""
    params: dict[str, Any] = {"name": "execute_tool", "arguments": {"name": tool, "arguments": {}}}
    headers = {**LEGACY, "host": "localhost", "mcp-session-id": session}
    if not session:
        params["_meta"] = {f"io.modelcontextprotocol/{key}": value for key, value in NAMED.items()}
        headers = {**JSON, "host": "localhost", "mcp-protocol-version": NAMED["protocolVersion"]}
        headers |= {"mcp-method": "tools/call", "mcp-name": "execute_tool"}
    body = json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params}).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "content-length": str(len(body))}.items())
    return b"POST /mcp HTTP/1.1\r\n" + lines.encode() + b"\r\n" + body


ROADS = {
    "plain": lambda call: call,
    "through the layers": lambda call: call.replace(b"\r\n", b"\r\nX-MCP-Show-All: false\r\n", 1),
    "through h11": lambda call: call.replace(b"\r\n", b"\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", 1),
}
"""Ways in which a call reaches the tool."""


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS.keys())
async def test_a_client_that_sends_nothing_more_gets_its_answers(road: Callable[[bytes], bytes]) -> None:
    called, over = anyio.Event(), anyio.Event()

    async def wait(_: Context, __: str, ___: Object) -> ToolResult:
        called.set()
        await over.wait()
        return ToolResult(content=({"type": "text", "text": "done"},))

    with anyio.fail_after(10):
        async with serving(wait) as (url, _, _), connected(url) as connection:
            await connection.send(road(call_of("x:echo")))
            await connection.send_eof()
            await called.wait()
            received = await connection.receive()
            assert received.startswith(b"HTTP/1.1 102 Processing\r\n\r\n"), "the server asks whether it is there"
            over.set()
            async for part in connection:
                received += part
    assert received.count(b"HTTP/1.1 200 OK") == received.count(b"done") == 1


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS.keys())
async def test_requests_before_the_end_of_what_a_client_sends_are_all_answered(road: Callable[[bytes], bytes]) -> None:
    with anyio.fail_after(10):
        async with serving() as (url, _, _), connected(url) as connection:
            await connection.send(road(call_of("x:echo")) * 3)
            await connection.send_eof()
            received = b"".join([part async for part in connection])
    assert received.count(b"HTTP/1.1 200 OK") == 3


@pytest.mark.parametrize("road", ROADS.values(), ids=ROADS.keys())
async def test_a_client_that_closes_the_connection_ends_its_call(road: Callable[[bytes], bytes]) -> None:
    called, ended = anyio.Event(), anyio.Event()

    async def wait(_: Context, __: str, ___: Object) -> ToolResult:
        called.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError("it was not cancelled")

    with anyio.fail_after(10):
        async with serving(wait) as (url, _, _):
            async with connected(url) as connection:
                await connection.send(road(call_of("x:echo")))
                await called.wait()
            await ended.wait()
    assert ended.is_set()


BAD = {
    "no request": b"\x16\x03\x01\r\n\r\n",
    "two lengths": POST + b"Content-Length: 4\r\n\r\n",
    "an upgrade": HEALTH + b"Connection: upgrade, close\r\nUpgrade: h2c\r\n\r\n",
    "a bad chunk after the answer": HEALTH + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD.keys())
async def test_a_client_without_a_token_cannot_fill_the_log(
    sent: bytes, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with anyio.fail_after(20):
        async with serving() as (url, _, _):
            for _ in range(20):
                await answer_to(url, sent[:-4], sent[-4:])
    captured = capsys.readouterr().err
    assert len(captured.splitlines()) <= 1, captured
    assert caplog.records == []


async def test_warnings_that_were_left_out_are_counted_in_the_next_line() -> None:
    times = iter((0.0, 1.0, 59.0, 60.0, 61.0, 200.0))
    repeated = connections.RepeatedWarnings(clock=lambda: next(times))
    logged = list[str]()
    for _ in range(6):
        for level, text in ((logging.WARNING, "a %s"), (logging.ERROR, "b %s")):
            record = logging.LogRecord("x", level, "", 0, text, ("c",), None)
            if repeated.filter(record):
                logged.append(record.getMessage())
    assert [line for line in logged if line.startswith("a")] == [
        "a c",
        "a c (2 more since the last such line)",
        "a c (1 more since the last such line)",
    ]
    assert logged.count("b c") == 6


async def test_a_client_that_leaves_during_its_request_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(10):
        async with serving() as (url, _, _), httpx2.AsyncClient(headers=LEGACY) as http:
            async with connected(url) as connection:
                await connection.send(POST + b"MCP-Protocol-Version: 2025-11-25\r\n\r\n" + b"x" * 20)
            assert (await http.post(url, json=INITIALIZE)).status_code == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def opened(http: httpx2.AsyncClient, url: str) -> str:
    """The id of a new session."""
    return (await http.post(url, json=INITIALIZE)).headers["mcp-session-id"]


async def status_of(http: httpx2.AsyncClient, url: str, session: str, message: dict[str, Any] = PING) -> int:
    """How a request of the session is answered."""
    return (await http.post(url, json=message, headers={"mcp-session-id": session})).status_code


async def test_a_caller_with_many_sessions_closes_their_own_idle_one() -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(max_sessions_per_caller=3)) as (url, _, _):
            async with httpx2.AsyncClient(headers=LEGACY) as http:
                first, second, third = [await opened(http, url) for _ in range(3)]
                assert await status_of(http, url, first) == 200  # now the second one is idle for longest
                await opened(http, url)
                assert [await status_of(http, url, session) for session in (first, second, third)] == [200, 404, 200]


async def test_sessions_in_use_are_never_closed_for_others(caplog: pytest.LogCaptureFixture) -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(max_sessions=1)) as (url, _, _):
            async with httpx2.AsyncClient(headers=LEGACY) as http:
                session = await opened(http, url)
                headers = {"mcp-session-id": session, "accept": "text/event-stream"}
                async with http.stream("GET", url, headers=headers) as stream:
                    assert stream.status_code == 200
                    for _ in range(3):
                        refused = await http.post(url, json=INITIALIZE)
                        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert await status_of(http, url, session) == 200
    assert len([record for record in caplog.records if "sessions were refused" in record.message]) == 1


async def test_sessions_opened_at_once_keep_to_the_limits(caplog: pytest.LogCaptureFixture) -> None:
    statuses, sessions = list[int](), list[str]()
    with anyio.fail_after(20):
        async with serving(options=HttpOptions(max_sessions_per_caller=3)) as (url, _, _):
            async with httpx2.AsyncClient(headers=LEGACY) as http:

                async def open_one() -> None:
                    answer = await http.post(url, json=INITIALIZE)
                    statuses.append(answer.status_code)
                    sessions.extend(answer.headers.get_list("mcp-session-id"))

                async with anyio.create_task_group() as group:
                    for _ in range(30):
                        group.start_soon(open_one)
                left = [session for session in sessions if await status_of(http, url, session) == 200]
    assert set(statuses) <= {200, 503}
    assert 1 <= len(left) <= 3


async def test_requests_that_open_no_session_close_none() -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(max_sessions_per_caller=1)) as (url, _, _):
            async with httpx2.AsyncClient(headers=LEGACY) as http:
                session = await opened(http, url)
                refused = [await http.post(url, json=PING), await http.post(url, content=b"{"), await http.get(url)]
                assert [answer.status_code for answer in refused] == [400] * 3
                assert await status_of(http, url, "", INITIALIZE) == 404
                assert await status_of(http, url, session) == 200


async def test_an_idle_session_ends_after_the_time_of_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(session_idle_s=0.1)) as (url, _, _):
            async with httpx2.AsyncClient(headers=LEGACY) as http:
                session = await opened(http, url)
                assert await status_of(http, url, session, INITIALIZED) == 202
                while "idle timeout" not in caplog.text:
                    await answer_to(url, HEALTH + b"Connection: close\r\n\r\n")
                assert await status_of(http, url, session) == 404
