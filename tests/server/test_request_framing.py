"""Where requests end: a body is a body, whatever it holds and however its request is written."""

from collections.abc import Iterator

import anyio
import pytest
from tests.server.raw_http import LAST, RecordingApp, Request, exchange, served

pytestmark = pytest.mark.anyio

INNER = b"GET /inner HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""A whole request, sent as the body of another one."""
LENGTH = b"Content-Length: %d\r\n" % len(INNER)
HOST = b"Host: localhost\r\n"
PART = 16 * 1024


def head(*lines: bytes, start: bytes = b"POST /outer HTTP/1.1", length: bytes = LENGTH) -> bytes:
    """The head of a request that has the other one as its body."""
    return b"\r\n".join([start, *lines, HOST + length, b""])


UPGRADES = {
    "h2c": head(b"Connection: Upgrade", b"Upgrade: h2c"),
    "h2c with settings": head(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARA"),
    "websocket": head(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    "websocket by GET": head(b"Connection: Upgrade", b"Upgrade: websocket", start=b"GET /outer HTTP/1.1"),
    "an upgrade by PUT": head(b"Connection: Upgrade", b"Upgrade: TLS/1.0", start=b"PUT /outer HTTP/1.1"),
    "an unknown protocol": head(b"connection: keep-alive, uPgRaDe", b"upgrade: x/1, y"),
    "an upgrade of the next hop": head(b"Proxy-Connection: upgrade", b"Upgrade: h2c"),
    "an upgrade without Connection": head(b"Upgrade: h2c"),
    "Connection without an upgrade": head(b"Connection: upgrade"),
}
"""Heads that ask for another protocol: the server does not speak it, and may ignore that (RFC 9110, 7.8)."""
ODD = {
    **UPGRADES,
    "nothing unusual": head(),
    "trailing blanks": head(b"X-Note: a \t "),
    "a blank before the length": head(length=b"Content-Length:\t  %d  \r\n" % len(INNER)),
    "no blank before the length": head(length=b"content-length:%d\r\n" % len(INNER)),
    "leading zeros": head(length=b"Content-Length: 000%d\r\n" % len(INNER)),
    "the same length twice": head(LENGTH.strip()),
    "bare line feeds": head().replace(b"\r\n", b"\n"),
    "a folded header": head(b"X-Note: a", b" b"),
    "letters beyond ASCII": head(b"X-Note: \xe9"),
    "an absolute target": head(start=b"POST http://localhost/outer HTTP/1.1"),
    "two slashes": head(start=b"POST //outer HTTP/1.1"),
    "an unknown method": head(start=b"BREW /outer HTTP/1.1"),
    "a future protocol": head(start=b"POST /outer HTTP/2.0"),
    "many connection options": head(b"Connection: keep-alive", b"Connection: te"),
    "a line end before it": b"\r\n\r\n" + head(),
}
"""Heads that are allowed, most of them unusual, before a body of as many bytes as they say."""
REFUSED = {
    "two lengths": head(b"Content-Length: 4"),
    "a list of lengths": head(length=b"Content-Length: %d, 4\r\n" % len(INNER)),
    "a signed length": head(length=b"Content-Length: +%d\r\n" % len(INNER)),
    "a hexadecimal length": head(length=b"Content-Length: 0x%x\r\n" % len(INNER)),
    "an empty length": head(length=b"Content-Length:\r\n"),
    "a huge length": head(length=b"Content-Length: " + b"9" * 30 + b"\r\n"),
    "a blank before the colon": head(length=b"Content-Length : %d\r\n" % len(INNER)),
    "a length after a NUL": head(b"X-Note: \0"),
    "a carriage return in a value": head(b"X-Note: a\rX-Note: b"),
    "an unknown coding": head(length=b"Transfer-Encoding: gzip, chunked\r\n"),
    "an identity coding": head(length=b"Transfer-Encoding: identity\r\n"),
    "a chunked coding of HTTP/1.0": head(length=b"Transfer-Encoding: xchunked\r\n", start=b"POST /outer HTTP/1.0"),
    "two codings": head(b"Transfer-Encoding: chunked", length=b"Transfer-Encoding: chunked\r\n"),
    "no target": head(start=b"POST HTTP/1.1"),
    "a blank in the target": head(start=b"POST /ou ter HTTP/1.1"),
    "a folded first header": b"POST /outer HTTP/1.1\r\n Host: localhost\r\n" + LENGTH + b"\r\n",
}
"""Heads that leave open where the next request begins: they are answered once, and the connection ends."""


def splits(request: bytes, step: int) -> Iterator[tuple[bytes, ...]]:
    yield (request,)
    for cut in range(1, len(request), step):
        yield request[:cut], request[cut:]


async def assert_one_answer(app: RecordingApp, url: str, parts: tuple[bytes, ...], expected: Request) -> None:
    app.requests.clear()
    with anyio.fail_after(10):
        answers = await exchange(url, (*parts, LAST))
    assert [answer.status for answer in answers] == [200, 200]
    assert app.requests == [expected, Request("GET", "/last", b"")]


def outer(request: bytes, body: bytes) -> Request:
    method, target, _ = request.lstrip().split(b" ", 2)
    return Request(method.decode(), target.decode(), body)


@pytest.mark.parametrize("sent", ODD.values(), ids=ODD.keys())
async def test_a_request_in_the_body_of_an_unusual_one_is_never_run(sent: bytes) -> None:
    app = RecordingApp()
    async with served(app) as url:
        for parts in splits(sent + INNER, step=7):
            await assert_one_answer(app, url, parts, outer(sent, INNER))


@pytest.mark.slow
@pytest.mark.parametrize("sent", ODD.values(), ids=ODD.keys())
async def test_a_request_in_the_body_of_an_unusual_one_is_never_run_wherever_it_is_split(sent: bytes) -> None:
    app = RecordingApp()
    async with served(app) as url:
        for parts in splits(sent + INNER, step=1):
            await assert_one_answer(app, url, parts, outer(sent, INNER))
        await assert_one_answer(app, url, tuple(bytes([byte]) for byte in sent + INNER), outer(sent, INNER))


@pytest.mark.parametrize("sent", ODD.values(), ids=ODD.keys())
async def test_a_large_body_of_an_unusual_request_ends_where_its_head_says(sent: bytes) -> None:
    app = RecordingApp()
    async with served(app) as url:
        for padding in (PART - len(sent), PART, 3 * PART):
            body = b"x" * padding + INNER
            whole = sent.replace(b"%d" % len(INNER), b"%d" % len(body)) + body
            for parts in ((whole,), (whole[:PART], whole[PART:]), (whole[: -len(INNER)], INNER)):
                await assert_one_answer(app, url, parts, outer(sent, body))


@pytest.mark.parametrize("before", [b"", head(b"Upgrade: h2c", start=b"GET /first HTTP/1.1", length=b"")])
async def test_a_body_of_very_small_chunks_is_read_in_many_turns(before: bytes) -> None:
    app = RecordingApp()
    sent = head(length=b"Transfer-Encoding: chunked\r\n") + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"
    async with served(app) as url:
        with anyio.fail_after(20):
            answers = await exchange(url, (before + sent, LAST))
    assert {answer.status for answer in answers} == {200}
    assert app.requests[-2:] == [Request("POST", "/outer", b"x" * 100_000), Request("GET", "/last", b"")]
    assert app.largest_part <= 2 * PART / len(b"1\r\nx\r\n")


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED.keys())
async def test_an_ambiguous_head_is_answered_once_and_ends_the_connection(sent: bytes) -> None:
    app = RecordingApp()
    async with served(app) as url:
        for parts in splits(sent + INNER, step=11):
            app.requests.clear()
            with anyio.fail_after(10):
                answers = await exchange(url, (*parts, LAST))
            assert [answer.status // 100 for answer in answers] == [4] or answers == [], (parts, answers)
            assert app.requests == []
