"""Whatever bytes a client sends, the app sees the requests that h11 reads in them, and each gets one answer."""

import itertools
import re
from collections.abc import Iterator

import anyio
import anyio.abc
import anyio.from_thread
import h11
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.server.raw_http import RecordingApp, Request, exchange, served

INNER = b"GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"


Outcome = tuple[list[Request], list[int]]
"""Requests, and the status of each answer to a client that sends nothing more."""
BLANK_LINES = re.compile(rb"\A(?:\r\n)+")


def references(data: bytes) -> list[Outcome]:
    """What h11 reads in the data.

    Line ends before a further request may be ignored (RFC 9112, 2.2). h11 refuses them, so there may be two outcomes.
    """
    request, status, rest = _first(data)
    if request is None or rest is None:
        return [([] if request is None else [request], [] if status is None else [status])]
    return [
        ([request, *requests], [status or 0, *statuses])
        for start in {rest, BLANK_LINES.sub(b"", rest)}
        for requests, statuses in references(start)
    ]


def _first(data: bytes) -> tuple[Request | None, int | None, bytes | None]:
    """The first request that h11 reads, its status, and what follows it; None for what there is none of."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(data)
    head, body = None, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return None, 400, None
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            path, _, query = head.target.decode().partition("?")
            request = Request(head.method.decode(), path + ("?" + query if query else ""), body)
            status = 405 if head.method == b"CONNECT" else 200
            return request, status, connection.trailing_data[0] if _answer(connection, status) else None
        else:
            return None, None, None


def _answer(connection: h11.Connection, status: int) -> bool:
    """Answer the request; false if the connection ends with that."""
    connection.send(h11.Response(status_code=status, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    return connection.our_state is h11.DONE


def weighted(usual: bytes, *others: bytes) -> st.SearchStrategy[bytes]:
    """Mostly the usual one."""
    return st.sampled_from([*[usual] * 9 * len(others), *others])


LINE_END = weighted(b"\r\n", b"\n", b"\r\n ", b"\r")
BLANK = weighted(b" ", b"", b"  ", b"\t", b"\x0b")
START = st.tuples(
    weighted(b"POST", b"GET", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"BREW", b"get", b"PRI", b"P@ST"),
    weighted(b" ", b"  ", b"\t", b""),
    weighted(
        b"/a",
        b"/",
        b"//a",
        b"/a?b=/c",
        b"/a?",
        b"/a#b",
        b"*",
        b"a:80",
        b"http://a/b",
        b"/\xe9",
        b'/"<>\\^`{|}',
        b"/%2f",
    ),
    weighted(b" ", b"  ", b""),
    weighted(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1.10", b""),
).map(b"".join)
NAME = weighted(b"X-Note", b"x_note", b"X Note", b"X-Note ", b" X-Note", b"", b"\xe9", b"X\0", b"Cookie")
VALUE = weighted(b"a", b"", b"a b", b"a \t", b"\xe9", b"\0", b"a\rb", b'"a,b"', b"\x7f")
CONNECTION = st.sampled_from(
    [b"close", b"keep-alive", b"Upgrade", b"upgrade, close", b"Keep-Alive, TE", b"", b",", b"HTTP2-Settings, Upgrade"]
)
UPGRADE = st.sampled_from([b"h2c", b"websocket", b"TLS/1.0, HTTP/2", b""])


def header(name: bytes, value: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(weighted(name, name.lower(), name.upper()), weighted(b":", b" :", b": ", b":\t"), value).map(
        b"".join
    )


ODD_HEADER = st.one_of(
    st.tuples(NAME, weighted(b":", b""), BLANK, VALUE).map(b"".join),
    header(b"Connection", CONNECTION),
    header(b"Proxy-Connection", CONNECTION),
    header(b"Upgrade", UPGRADE),
    header(b"Expect", st.sampled_from([b"100-continue", b"100-Continue", b"200-ok"])),
    header(b"Host", st.sampled_from([b"a", b"b", b""])),
    header(
        b"Content-Length",
        st.sampled_from([b"0", b"1", b"5", b"+5", b"5,5", b"5,6", b"0x5", b"-1", b"9" * 25, b"", b"5 "]),
    ),
    header(
        b"Transfer-Encoding",
        st.sampled_from(
            [b"chunked", b"Chunked", b"identity", b"gzip, chunked", b"chunked, identity", b"xchunked", b" chunked "]
        ),
    ),
)


@st.composite
def chunked(draw: st.DrawFn) -> bytes:
    """A body in chunks, of which some are badly formed."""
    sent = b""
    for data in draw(st.lists(st.sampled_from([b"a", b"0\r\n\r\n", INNER, b"x" * 300]), max_size=3)):
        size = draw(
            weighted(
                b"%x" % len(data),
                b"%X" % len(data),
                b"00%x" % len(data),
                b"0x%x" % len(data),
                b"-1",
                b"",
                b"1",
                b"f" * 21,
            )
        )
        extension = draw(weighted(b"", b";a=b", b';a="\r\n', b" ", b";", b";a\n"))
        sent += (
            size + extension + draw(weighted(b"\r\n", b"\n", b"\r")) + data + draw(weighted(b"\r\n", b"\n", b"", b"xx"))
        )
    end = draw(
        weighted(
            b"0\r\n\r\n",
            b"0\n\n",
            b"0\r\nX: 1\r\n\r\n",
            b"0\r\nContent-Length: 9\r\n\r\n",
            b"00\r\n\r\n",
            b"",
            b"0;a\r\n\r\n",
        )
    )
    return sent + end


@st.composite
def request_bytes(draw: st.DrawFn) -> bytes:
    """A request as a client may send it, usual in most ways."""
    lines = [
        draw(START),
        *draw(weighted(b"Host: a", b"host:a", b"Host: a\r\nHost: b", b"X: 1").map(lambda host: [host])),
    ]
    body = draw(st.sampled_from([b"", b"{}", INNER, INNER + b"x", b"x" * 100]))
    framing = draw(st.sampled_from(["none", "length", "length", "length", "chunks", "chunks", "both"]))
    if framing in ("length", "both"):
        off = draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        lines.append(draw(header(b"Content-Length", st.just(b"%d" % max(0, len(body) + off)))))
    if framing in ("chunks", "both"):
        body = draw(chunked())
        lines.append(draw(header(b"Transfer-Encoding", st.just(b"chunked"))))
    for line in draw(st.lists(ODD_HEADER, max_size=draw(st.sampled_from([0, 1, 2])))):
        lines.insert(draw(st.integers(1, len(lines))), line)
    end = draw(LINE_END)
    return b"".join(line + (end if draw(st.integers(0, 19)) == 0 else b"\r\n") for line in lines) + b"\r\n" + body


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """What a client sends on one connection."""
    sent = bytearray(b"".join(draw(st.lists(request_bytes(), min_size=1, max_size=4))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(sent)))
        sent[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\r", b"\n", b"\0", b" ", b":", b"a", b"\r\n"])
        )
    # The server ignores line ends before a request, which h11 does not.
    return bytes(sent).lstrip(b"\r\n")


@pytest.fixture(scope="module", params=["uvloop", "asyncio, with the strict parser alone"])
def recorder(request: pytest.FixtureRequest) -> Iterator[tuple[anyio.from_thread.BlockingPortal, RecordingApp, str]]:
    """A server in a thread of its own."""
    options = {"use_uvloop": request.param == "uvloop"}
    app = RecordingApp()
    if request.param != "uvloop":
        app.direct_paths = frozenset()
    with (
        anyio.from_thread.start_blocking_portal(backend_options=options) as portal,
        portal.wrap_async_context_manager(served(app)) as url,
    ):
        yield portal, app, url


Recorder = tuple[anyio.from_thread.BlockingPortal, RecordingApp, str]


def assert_read_like_h11(recorder: Recorder, sent: bytes, cuts: list[int]) -> None:
    portal, app, url = recorder
    places = [0, *sorted({cut % (len(sent) + 1) for cut in cuts}), len(sent)]
    parts = [sent[start:end] for start, end in itertools.pairwise(places) if start < end]
    app.requests.clear()

    async def ask() -> list[int]:
        with anyio.fail_after(10):
            return [answer.status for answer in await exchange(url, parts)]

    statuses = portal.call(ask)
    assert (app.requests, statuses) in references(sent)


CUTS = st.lists(st.integers(0, 2000), max_size=4)


@example(sent=b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n\r\nx", cuts=[])
@given(sent=streams(), cuts=CUTS)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_as_h11_reads_them(recorder: Recorder, sent: bytes, cuts: list[int]) -> None:
    assert_read_like_h11(recorder, sent, cuts)
