"""Exchanges over pooled connections, with servers that answer with the bytes of a script."""

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import anyio
import h11
import pytest
from tests.upstream.raw_http import Authority, Request, peer_of, response

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.transports import http_client, http_connection
from toolcrib.upstream.transports.http_client import DirectClient, HttpUrl, RequestHead
from toolcrib.upstream.transports.http_connection import H11Parser, HttpConnection, HttpResponse

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
REQUEST = b"POST /mcp HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
HEADER_END = b"\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param:
        pytest.importorskip("uvloop", reason="uvloop is optional")
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(params=[False, True], ids=["httptools", "h11"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(http_connection, "new_parser", H11Parser)
        monkeypatch.setattr(http_connection, "PARSER_ERRORS", (h11.RemoteProtocolError,))
    else:
        pytest.importorskip("httptools", reason="httptools is optional")


class Scripted:
    """A server that answers each request of any connection with the next part of its script, and then closes."""

    def __init__(self, *script: bytes, closes: bool = False) -> None:
        self.script = list(script)
        self.closes = closes
        self.requests: list[bytes] = []
        self.connections = 0
        self.running: list[asyncio.Task[Any] | None] = []
        self.dropped = anyio.Event()
        self.url = HttpUrl.parse("http://unset")
        self.client = DirectClient()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.running.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.requests.append(await reader.readuntil(HEADER_END))
                if not self.script:
                    await reader.read()
                    break
                writer.write(self.script.pop(0))
                await writer.drain()
                if self.closes:
                    break
        self.dropped.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @property
    def head(self) -> RequestHead:
        return RequestHead.of("POST", self.url, ())

    async def ask(self, timeout_s: float | None = None, *, keeps_cookies: bool = False) -> HttpResponse:
        with anyio.fail_after(5):
            return await self.client.send(self.head, connect_s=5, timeout_s=timeout_s, keeps_cookies=keeps_cookies)


_Peer = TypeVar("_Peer", bound=Scripted)


@contextlib.asynccontextmanager
async def scripted(*script: bytes, closes: bool = False) -> AsyncIterator[Scripted]:
    async with scripted_by(Scripted(*script, closes=closes)) as peer:
        yield peer


@contextlib.asynccontextmanager
async def scripted_by(peer: _Peer) -> AsyncIterator[_Peer]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.url = HttpUrl.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp")
    try:
        yield peer
    finally:
        server.close()
        await peer.client.aclose()
        with anyio.fail_after(5):
            await asyncio.gather(*(task for task in peer.running if task is not None))


def short(body: bytes, *more: bytes) -> bytes:
    return HEAD + b"".join(more) + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def body_of(response: HttpResponse) -> bytes:
    with anyio.fail_after(5):
        found = b"".join([chunk async for chunk in response])
        await response.aclose()
    return found


async def test_a_short_response_comes_whole_and_its_connection_is_used_again() -> None:
    async with scripted(short(b"{}"), short(b"[1]")) as peer:
        first, second = await peer.ask(), await peer.ask()
        assert (first.status, first.body, second.body) == (200, b"{}", b"[1]")
        assert (b"content-type", b"application/json") in first.headers
        assert peer.connections == 1


async def test_chunks_are_joined_and_interim_responses_skipped() -> None:
    chunked = HEAD + b'Transfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
    async with scripted(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + chunked, short(b"{}")) as peer:
        assert (await peer.ask()).body == b'{"a":1}'
        assert (await peer.ask()).body == b"{}"
        assert peer.connections == 1


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with scripted(HEAD + b"\r\n{}", closes=True) as peer:
        assert (await peer.ask()).body == b"{}"


async def test_a_long_body_comes_in_parts_and_then_its_connection_is_used_again() -> None:
    body = b"[" + b"1," * 700_000 + b"1]"
    async with scripted(short(body), short(b"{}")) as peer:
        long = await peer.ask()
        assert long.body is None
        assert await body_of(long) == body
        assert (await peer.ask()).body == b"{}"
        assert peer.connections == 1


async def test_anything_but_json_is_a_stream() -> None:
    events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: 1\n\n"
    async with scripted(events) as peer:
        response = await peer.ask()
        assert response.body is None
        assert await body_of(response) == b"data: 1\n\n"


async def test_a_stream_that_is_left_early_closes_its_connection() -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n") as peer:
        await (await peer.ask()).aclose()
        with anyio.fail_after(5):
            await peer.dropped.wait()
        assert peer.dropped.is_set()


async def test_a_cancelled_exchange_closes_its_connection() -> None:
    async with scripted() as peer:
        with anyio.move_on_after(0.05):
            await peer.ask()
        with anyio.fail_after(5):
            await peer.dropped.wait()
        assert peer.dropped.is_set()


async def test_a_cancellation_that_comes_with_the_response_leaves_the_connection_to_the_next_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = HttpConnection.data_received
    firsts: list[asyncio.Task[HttpResponse]] = []
    seconds: list[asyncio.Task[HttpResponse]] = []

    def received_during_other_work(connection: HttpConnection, data: bytes) -> None:
        is_first = bool(firsts) and not seconds
        if is_first:
            seconds.append(asyncio.create_task(peer.ask()))  # it takes the connection that is free from now on
        received(connection, data)
        if is_first:
            firsts[0].cancel()

    monkeypatch.setattr(HttpConnection, "data_received", received_during_other_work)
    async with scripted(short(b"{}"), short(b"[1]"), short(b"[2]")) as peer:
        await peer.ask()
        firsts.append(asyncio.create_task(peer.ask()))
        with anyio.fail_after(5):
            await asyncio.wait(firsts)
            found = await seconds[0]
        assert firsts[0].cancelled()
        assert (found.body, peer.connections) == (b"[2]", 1)


async def test_a_response_that_is_closed_twice_returns_its_connection_once() -> None:
    events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: 1\n\n"
    async with scripted(events, short(b"[1]"), short(b"[2]")) as peer:
        response = await peer.ask()
        await body_of(response)
        await response.aclose()
        with anyio.fail_after(5):
            found = await asyncio.gather(peer.ask(), peer.ask())
        assert sorted(one.body or b"" for one in found) == [b"[1]", b"[2]"]
        assert peer.connections == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed without an answer"),
        (b"HTTP/1.1 200", "was cut off|closed without an answer"),
        (b"220 smtp.example ESMTP\r\n", "is not HTTP|closed without an answer"),
        (HEAD + b"Content-Length: 5\r\n\r\n{}", "was cut off"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "too large|is not HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx", "is not HTTP"),
    ],
    ids=["nothing", "half a head", "not HTTP", "half a body", "an endless head", "another protocol"],
)
async def test_what_is_no_response_is_an_error(answer: bytes, reason: str) -> None:
    async with scripted(answer, closes=True) as peer:
        with pytest.raises(ExchangeError, match=reason) as failed:
            await peer.ask()
        assert failed.value.kind is FailureKind.LOST


async def test_a_connection_with_a_second_response_is_not_used_again() -> None:
    async with scripted(short(b"{}") + short(b'{"not":"asked for"}'), short(b"[]")) as peer:
        assert (await peer.ask()).body == b"{}"
        assert (await peer.ask()).body == b"[]"
        assert peer.connections == 2


async def test_trailers_are_not_kept() -> None:
    events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"".join(b"x-%d: y\r\n" % number for number in range(1_000))
    async with scripted(events + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n", short(b"[1]")) as peer:
        response = await peer.ask()
        assert await body_of(response) == b"{}"
        assert len(response.headers) == 2
        assert (await peer.ask()).body == b"[1]"
        assert peer.connections == 1


async def test_a_connection_on_which_a_second_response_begins_is_not_used_again() -> None:
    async with scripted(short(b"{}") + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-a: b\r\n", short(b"[1]")) as peer:
        assert (await peer.ask()).body == b"{}"
        assert (await peer.ask()).body == b"[1]"
        assert peer.connections == 2


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async with scripted(short(b"{}", b"Connection: close\r\n"), short(b"[]"), closes=True) as peer:
        assert (await peer.ask()).body == b"{}"
        assert (await peer.ask()).body == b"[]"
        assert peer.connections == 2


async def test_a_connection_that_was_closed_while_the_program_was_busy_is_not_used_again() -> None:
    closed = threading.Semaphore(0)

    def answer(listener: socket.socket) -> None:
        for _ in range(2):
            with listener.accept()[0] as peer:
                received = b""
                while HEADER_END not in received:
                    received += peer.recv(4096)
                peer.sendall(short(b"{}"))
            closed.release()

    client = DirectClient()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        head = RequestHead.of("POST", HttpUrl.parse(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"), ())
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        try:
            with anyio.fail_after(10):
                for _ in range(2):
                    assert (await client.send(head, connect_s=5)).body == b"{}"
                    assert closed.acquire(timeout=5)  # without a turn for the event loop
        finally:
            await client.aclose()
            server.join(10)


def rest(peer: Scripted, seconds: float) -> None:
    """Let the connection that is idle have been so for that long."""
    (pool,) = peer.client._pools.values()
    (connection,) = pool._idle
    connection.idle_since -= seconds


@pytest.mark.parametrize(
    ("kept", "idle_s", "connections"),
    [
        (b"timeout=5", 3.9, 1),
        (b"timeout=5", 4.1, 2),
        (b"max=100, Timeout=5", 4.1, 2),
        (b"timeout=1", 0.4, 1),
        (b"timeout=1", 0.6, 2),
        (b"timeout=0", 0.0, 2),
        (b"timeout=500", 29.0, 1),
        (b"timeout=500", 31.0, 2),
        (b"max=100", 29.0, 1),
    ],
)
@pytest.mark.parametrize("parsed", [False, True])
async def test_no_request_is_sent_when_the_server_may_just_be_closing_its_connection(
    kept: bytes, idle_s: float, connections: int, parsed: bool
) -> None:
    more = [b"Keep-Alive: " + kept + b"\r\n", *([b"X-A: \x80\r\n"] if parsed else [])]
    async with scripted(short(b"{}", *more), short(b"[]")) as peer:
        assert (await peer.ask()).body == b"{}"
        rest(peer, idle_s)
        assert (await peer.ask()).body == b"[]"
        assert peer.connections == connections


class Impatient(Scripted):
    """A server that closes the connection after each response, once that is asked for."""

    def __init__(self, *script: bytes) -> None:
        super().__init__(*script)
        self.closing = anyio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.running.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while self.script:
                self.requests.append(await reader.readuntil(HEADER_END))
                writer.write(self.script.pop(0))
                if self.connections == 1:
                    await self.closing.wait()
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.dropped.set()


async def test_how_long_a_server_keeps_idle_connections_is_learned_from_the_first_that_it_closes() -> None:
    async with scripted_by(Impatient(short(b"1"), short(b"2"), short(b"3"), short(b"4"), short(b"5"))) as peer:
        assert (await peer.ask()).body == b"1"
        rest(peer, 5.0)
        peer.closing.set()
        with anyio.fail_after(5):
            await peer.dropped.wait()
        assert (await peer.ask()).body == b"2"
        rest(peer, 3.9)
        assert (await peer.ask()).body == b"3"
        assert peer.connections == 2
        rest(peer, 4.2)
        assert (await peer.ask()).body == b"4"
        assert peer.connections == 3


async def test_a_request_whose_connection_is_closed_instead_of_an_answer_is_sent_once() -> None:
    async with scripted(short(b"{}"), b"") as peer:
        assert (await peer.ask()).body == b"{}"
        peer.closes = True
        with pytest.raises(ExchangeError, match="closed"):
            await peer.ask()
        assert (len(peer.requests), peer.connections) == (2, 1)


async def test_a_host_that_cannot_be_reached_got_no_request() -> None:
    async with scripted() as peer:
        gone = RequestHead.of("POST", HttpUrl.parse("http://127.0.0.1:1/mcp"), ())
        with pytest.raises(ExchangeError, match="connection refused") as failed:
            await peer.client.send(gone, connect_s=5)
        assert failed.value.kind is FailureKind.UNSENT


async def test_exchanges_over_tls_share_a_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    connections = set[asyncio.Task[None]]()

    def answer(request: Request) -> bytes:
        connections.update(peer.connections)
        return response(request.path)

    client = DirectClient()
    with anyio.fail_after(10):
        async with peer_of(answer, tls=authority.context("localhost")) as peer:
            head = RequestHead.of("POST", HttpUrl.parse(f"https://localhost:{peer.port}/mcp"), ())
            for _ in range(3):
                assert (await client.send(head, connect_s=5)).body == b"/mcp"
            assert client.send_idle(replace(head, url=HttpUrl.parse("http://localhost")), b"") is None
            await client.aclose()
    assert len(connections) == 1


async def test_of_several_addresses_the_first_that_answers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    async with scripted(short(b"{}")) as peer:

        async def addresses(_: str, __: int) -> list[Any]:
            kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            both = [(socket.AF_INET6, *kind, (one, 1, 0, 0)) for one in ("fe80::1", "::1")]
            return [*both, (socket.AF_INET, *kind, ("127.0.0.1", peer.url.port))]

        async def connect(address: tuple[Any, ...]) -> socket.socket:
            tried.append(address[4][0])
            if address[4][0] == "fe80::1":
                await anyio.sleep_forever()
            return await to_address(address)

        to_address = http_client._connect_to
        monkeypatch.setattr(http_client, "_HEAD_START_S", 0.01)
        monkeypatch.setattr(http_client, "_connect_to", connect)
        monkeypatch.setattr(http_client, "_resolve", addresses)
        assert (await peer.ask()).body == b"{}"
    assert tried == ["fe80::1", "127.0.0.1"]


async def test_a_cookie_in_the_response_to_a_request_of_its_own_is_sent_from_then_on() -> None:
    cookies = (b"route=a; Path=/mcp", b"other=b; Path=/elsewhere", b"old=c; Max-Age=0")
    lines = b"".join(b"Set-Cookie: " + one + b"\r\n" for one in cookies)
    async with scripted(short(b"{}", lines), short(b"[]"), short(b"[]")) as peer:
        await peer.ask(keeps_cookies=True)
        await peer.ask()
        idle = peer.client.send_idle(peer.head, b"")
        assert idle is not None
        await idle
        assert [re.findall(rb"cookie: (.*)\r", request) for request in peer.requests] == [
            [],
            [b"route=a"],
            [b"route=a"],
        ]


async def test_a_cookie_in_the_response_to_a_caller_is_not_sent_with_later_requests() -> None:
    answers = [short(b"{}", b"Set-Cookie: %b=secret; Path=/\r\n" % name) for name in (b"a", b"b", b"c", b"d")]
    async with scripted(*answers) as peer:
        await peer.ask()
        await peer.ask(keeps_cookies=True)
        await peer.ask()
        await peer.ask()
        assert b"a=secret" not in b"".join(peer.requests)
        assert b"b=secret" in peer.requests[-1]
        assert b"c=secret" not in b"".join(peer.requests)


async def test_an_exchange_over_an_open_connection_needs_one_that_is_idle() -> None:
    async with scripted(short(b"{}"), short(b"[]")) as peer:
        assert peer.client.send_idle(peer.head, b"") is None
        assert (await peer.ask()).body == b"{}"
        exchange = peer.client.send_idle(peer.head, b"")
        assert exchange is not None
        assert (await exchange).body == b"[]"
        assert peer.connections == 1


async def test_an_exchange_that_takes_too_long_closes_its_connection() -> None:
    async with scripted(short(b"{}")) as peer:
        assert (await peer.ask()).body == b"{}"
        with pytest.raises(ExchangeError, match="no data in time"):
            await peer.ask(timeout_s=0.01)
        assert peer.client.send_idle(peer.head, b"") is None


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\0", "\u20ac"])
async def test_a_header_that_http_does_not_allow_is_not_sent(value: str) -> None:
    async with scripted() as peer:
        head = RequestHead.of("POST", peer.url, [("x", value)])
        with pytest.raises(ExchangeError, match="a character that HTTP does not allow") as failed:
            await peer.client.send(head, connect_s=5)
        assert (failed.value.kind, peer.connections) == (FailureKind.UNSENT, 0)


@pytest.mark.parametrize(
    ("text", "host", "port", "target"),
    [
        ("http://Example.com", "example.com", 80, "/"),
        ("HTTPS://me:pw@example.com:8443/a b/%20?q=\u00e4#f", "example.com", 8443, "/a%20b/%20?q=%C3%A4"),
        ("http://[::1]:9/x", "::1", 9, "/x"),
        ("http://b\u00fccher.example/", "xn--bcher-kva.example", 80, "/"),
    ],
)
def test_a_url_is_read_in_the_form_in_which_it_is_asked(text: str, host: str, port: int, target: str) -> None:
    url = HttpUrl.parse(text)
    assert (url.host, url.port, url.target) == (host, port, target)


@pytest.mark.parametrize(
    "text", ["", "mcp.example", "ftp://a", "http://", "http://a:b", "http://a:99999", "http://a b/"]
)
def test_what_is_no_url_of_http_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must begin with http|Invalid (port|host)"):
        HttpUrl.parse(text)


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
RESPONSES = {
    "plain": PLAIN,
    "other status": PLAIN.replace(b"200 OK", b"404 Not Found"),
    "no reason": PLAIN.replace(b"200 OK", b"200 "),
    "status alone": PLAIN.replace(b"200 OK", b"200"),
    "no content": PLAIN.replace(b"200 OK", b"204 No Content"),
    "old protocol": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "closes": PLAIN.replace(b"Content-Length", b"Connection: close\r\nContent-Length"),
    "stays": PLAIN.replace(b"Content-Length", b"Connection: Keep-Alive\r\nContent-Length"),
    "blanks": PLAIN.replace(b"application/json", b" \tapplication/json\t "),
    "parameter": PLAIN.replace(b"application/json", b"Application/JSON; charset=utf-8"),
    "other type": PLAIN.replace(b"application/json", b"text/plain"),
    "two types": PLAIN.replace(b"Content-Length", b"Content-Type: text/plain\r\nContent-Length"),
    "two lengths": PLAIN.replace(b"Content-Length", b"Content-Length: 2\r\nContent-Length"),
    "chunks and length": PLAIN.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length").removesuffix(
        b"{}"
    )
    + b"0\r\n\r\n",
    "signed length": PLAIN.replace(b": 2", b": +2"),
    "too long": PLAIN + b"{}",
    "folded": PLAIN.replace(b"Content-Length", b"X: 1\r\n 2\r\nContent-Length"),
    "blank in a name": PLAIN.replace(b"Content-Length", b"X : 1\r\nContent-Length"),
    "cookie": PLAIN.replace(b"Content-Length", b"Set-Cookie: a=b\r\nContent-Length"),
    "letters beyond ASCII": PLAIN.replace(b"Content-Length", b"X: \xe9\r\nContent-Length"),
    "line feeds": PLAIN.replace(b"\r\n", b"\n"),
    "empty": PLAIN.replace(b": 2", b": 0").removesuffix(b"{}"),
}


@pytest.mark.parametrize("response", RESPONSES.values(), ids=RESPONSES.keys())
async def test_a_response_in_one_piece_is_read_as_the_parser_reads_it(
    response: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> list[Any]:
        found: list[Any] = []
        async with scripted(response, response, response) as peer:
            for _ in range(3):
                try:
                    answer = await peer.ask()
                    found.append((answer.status, answer.headers, answer.names, await body_of(answer)))
                except ExchangeError as error:
                    found.append(error.reason)
            return [*found, peer.connections]

    plain = await read()
    monkeypatch.setattr(http_connection, "read_plain", lambda _: None)
    assert plain == await read()


class Owner:
    """Keeps nothing, and notes what it is given back."""

    def __init__(self) -> None:
        self.released: list[HttpConnection] = []

    def added(self, connection: HttpConnection) -> None:
        pass

    def removed(self, connection: HttpConnection) -> None:
        pass

    def release(self, connection: HttpConnection) -> None:
        self.released.append(connection)


class Unconnected(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.socket = socket.socket()

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket


@pytest.mark.parametrize("response", [PLAIN, RESPONSES["parameter"].replace(b"HTTP/1.1", b"HTTP/1.0")])
async def test_the_connection_of_a_response_that_came_too_late_is_not_used_again(response: bytes) -> None:
    owner = Owner()
    connection = HttpConnection(owner)
    transport = Unconnected()
    connection.connection_made(transport)
    async with asyncio.TaskGroup() as group:
        exchange = group.create_task(connection.send(REQUEST))
        await asyncio.sleep(0)
        exchange.cancel()
        connection.data_received(response)
    transport.socket.close()
    assert exchange.cancelled()
    assert not owner.released


async def test_a_response_whose_body_comes_apart_from_its_head_does_not_reach_the_parser() -> None:
    owner, transport = Owner(), Unconnected()
    connection = HttpConnection(owner)
    connection.connection_made(transport)
    whole = short(b'{"a":1}')
    head = whole.index(HEADER_END) + len(HEADER_END)
    async with asyncio.TaskGroup() as group:
        for cuts in ((head,), (head + 3,), (len(whole) - 1,), (head, head + 2, head + 4)):
            exchange = group.create_task(connection.send(REQUEST))
            await asyncio.sleep(0)
            for start, end in pairwise((0, *cuts, len(whole))):
                assert not exchange.done()
                connection.data_received(whole[start:end])
                assert not connection._is_parsing
            assert (await exchange).body == b'{"a":1}'
    transport.socket.close()
    assert owner.released == [connection] * 4


async def test_a_connection_that_ends_within_a_body_loses_its_exchange() -> None:
    async with scripted(short(b"[1,2,3]")[:-2], closes=True) as peer:
        with pytest.raises(ExchangeError, match="was cut off"):
            await peer.ask()
