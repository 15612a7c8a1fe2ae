"""What a caller has under way: bytes of requests, unread answers, streams and sessions, in all and each."""

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.test_connections import INITIALIZE, LEGACY, connected
from tests.server.test_search_limits import META, SLOW, TOKENS, VERSION

from toolcrib import App, AuditEvent, Settings
from toolcrib.gateway.options import ResultOptions
from toolcrib.options import CallOptions, GatewayOptions, HttpOptions
from toolcrib.server.http.budgets import Budget
from toolcrib.settings.options import TelemetryOptions

pytestmark = pytest.mark.anyio

LARGE = 200_000
ANSWER = 9_000_000


@asynccontextmanager
async def served(calls: CallOptions | None = None, **http: Any) -> AsyncIterator[tuple[str, App, list[AuditEvent]]]:
    """A served app with these options: its address, itself, and what its audit gets."""
    events: list[AuditEvent] = []
    options = HttpOptions(tokens=TOKENS, port=0, **http)
    whole = GatewayOptions(results=ResultOptions(tokens=0), calls=calls or CallOptions())
    metrics = TelemetryOptions(metrics="127.0.0.1:0")
    app = App(Settings(http=options, gateway=whole, telemetry=metrics), audit=events.append)
    app.tool("large")(lambda: "x" * ANSWER)
    stop, bound, addresses = anyio.Event(), anyio.Event(), list[str]()

    def started(address: str) -> None:
        addresses.append(address)
        bound.set()

    async with app, anyio.create_task_group() as group:

        async def serve() -> None:
            await app.serve_http(stop=stop, started=started)

        group.start_soon(serve)
        with anyio.fail_after(10):
            await bound.wait()
        try:
            yield addresses[0], app, events
        finally:
            stop.set()


def head(caller: str, length: int | None, method: str = "tools/list") -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {caller}-secret\r\n"
        f"Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {VERSION}\r\nMcp-Method: {method}\r\n{size}\r\n\r\n"
    ).encode()


async def first_line(connection: anyio.abc.SocketStream) -> bytes:
    return (await connection.receive()).partition(b"\r\n")[0]


def a_list(padding: int) -> dict[str, Any]:
    """The arguments of a POST for a list, in a body of about so many bytes."""
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {**META, "x": "y" * padding}}}
    more = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/list", "Accept": LEGACY["accept"]}
    return {"content": json.dumps(message), "headers": {"Content-Type": "application/json", **more}}


async def list_as(url: str, caller: str, padding: int = LARGE) -> httpx2.Response:
    async with httpx2.AsyncClient() as http:
        given = a_list(padding)
        headers = given["headers"] | {"Authorization": f"Bearer {caller}-secret"}
        return await http.post(url, content=given["content"], headers=headers)


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(
    ("limits", "setting", "status", "other"),
    [
        ({"max_pending_bytes_per_caller": LARGE + 50_000}, "http.max_pending_bytes_per_caller", 429, 200),
        ({"max_pending_bytes": LARGE + 50_000}, "http.max_pending_bytes", 503, 503),
    ],
    ids=["caller", "all"],
)
async def test_bodies_beyond_the_budget_are_refused_until_there_is_room_again(
    limits: dict[str, Any], setting: str, status: int, other: int, *, is_chunked: bool
) -> None:
    part = b"x" * 150_000
    with anyio.fail_after(20):
        async with served(max_body_bytes=LARGE + 1_000, **limits) as (url, app, events):
            async with connected(url) as unfinished:
                await unfinished.send(head("ann", None if is_chunked else LARGE))
                await unfinished.send(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
                while (refused := await list_as(url, "ann")).status_code == 200:
                    pass  # the first one has yet to arrive
                assert (refused.status_code, refused.headers["Retry-After"]) == (status, "5")
                error = refused.json()["error"]
                assert setting in error["message"]
                assert error["data"]["code"] == "rate_limited"
                assert (await list_as(url, "bob")).status_code == other
                assert (await list_as(url, "ann", 1000)).status_code == 200
            while (await list_as(url, "ann")).status_code != 200:
                pass  # the server has yet to see that the connection ended
            assert ("ann", "POST", "rate_limited") in [(one.caller, one.action, one.outcome) for one in events]
            assert app.telemetry.metrics is not None
            assert f'toolcrib_refusals_total{{limit="{setting}"}}' in app.telemetry.metrics.text()


async def test_the_largest_body_that_is_allowed_always_fits() -> None:
    with anyio.fail_after(20):
        async with served(max_pending_bytes_per_caller=1, max_pending_bytes=1) as (url, _, _):
            assert (await list_as(url, "ann", 3_000_000)).status_code == 200


@pytest.mark.parametrize(("declared", "status"), [("0" * 30 + f"{LARGE + 1}", 413), ("9" * 5_000, 413)])
async def test_a_length_of_many_digits_counts_as_what_it_says(declared: str, status: int) -> None:
    app = App(Settings(http=HttpOptions(allowed_hosts=("test",), max_body_bytes=LARGE, max_pending_bytes=1)))
    asgi, sent = app.asgi(), list[Any]()
    headers = [(b"host", b"test"), (b"content-type", b"application/json"), (b"content-length", declared.encode())]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}

    async def receive() -> Any:
        raise AssertionError("the body is not read")

    async def send(message: Any) -> None:
        sent.append(message)

    with anyio.fail_after(10):
        async with app, asgi.running():
            await asgi(scope, receive, send)
    assert sent[0]["status"] == status


async def test_a_body_whose_sender_has_no_token_is_refused_before_it_is_read_and_takes_nothing() -> None:
    with anyio.fail_after(10):
        async with served(max_body_bytes=LARGE, max_pending_bytes=1) as (url, _, _), connected(url) as stranger:
            await stranger.send(head("eve", LARGE))
            assert await first_line(stranger) == b"HTTP/1.1 401 Unauthorized"
            assert (await list_as(url, "ann", LARGE // 2)).status_code == 200


async def listen_as(connection: anyio.abc.SocketStream, caller: str, *, whole: bool = False) -> bytes:
    """Ask for a stream, and return how the answer begins, or all of it if it ends."""
    params = {"notifications": {"toolsListChanged": True}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}).encode()
    await connection.send(head(caller, len(body), "subscriptions/listen") + body)
    if not whole:
        return await first_line(connection)
    received = b""
    while b'"error"' not in received:
        received += await connection.receive()
    return received


@pytest.mark.parametrize(
    ("limits", "status", "other"),
    [
        ({"max_streams_per_caller": 2}, b"HTTP/1.1 429 Too Many Requests", b"HTTP/1.1 200 OK"),
        ({"max_streams": 2}, b"HTTP/1.1 503 Service Unavailable", b"HTTP/1.1 503 Service Unavailable"),
    ],
    ids=["caller", "all"],
)
async def test_streams_beyond_the_budget_are_refused_until_one_ends(
    limits: dict[str, Any], status: bytes, other: bytes
) -> None:
    with anyio.fail_after(20):
        async with served(**limits) as (url, app, events), connected(url) as one:
            assert await listen_as(one, "ann") == b"HTTP/1.1 200 OK"
            async with connected(url) as two, connected(url) as three, connected(url) as four:
                assert await listen_as(two, "ann") == b"HTTP/1.1 200 OK"
                assert await listen_as(three, "ann") == status
                assert await listen_as(four, "bob") == other
            answer = status
            while answer == status:
                async with connected(url) as again:
                    answer = await listen_as(again, "ann")
            assert answer == b"HTTP/1.1 200 OK"
            assert ("ann", "POST", "rate_limited") in [(one.caller, one.action, one.outcome) for one in events]
            assert app.telemetry.metrics is not None
            assert f'toolcrib_refusals_total{{limit="http.{next(iter(limits))}"}}' in app.telemetry.metrics.text()


async def test_a_subscription_over_the_rate_of_searches_is_refused_and_others_are_served() -> None:
    with anyio.fail_after(20):
        async with served(calls=CallOptions(search_rate=SLOW)) as (url, _, events):
            async with connected(url) as one, connected(url) as two, connected(url) as three:
                assert await listen_as(one, "ann") == b"HTTP/1.1 200 OK"
                refused = await listen_as(two, "ann", whole=True)
                assert await listen_as(three, "bob") == b"HTTP/1.1 200 OK"
            assert b"calls.search_rate" in refused
            assert refused.startswith(b"HTTP/1.1 429"), refused
            assert [(event.caller, event.action, event.outcome) for event in events] == [
                ("ann", "subscriptions/listen", "ok"),
                ("ann", "subscriptions/listen", "rate_limited"),
                ("bob", "subscriptions/listen", "ok"),
            ]


async def test_a_list_in_a_session_is_refused_without_a_status_that_would_end_the_session() -> None:
    headers = LEGACY | {"Authorization": "Bearer ann-secret"}
    with anyio.fail_after(20):
        limited = served(calls=CallOptions(search_rate=SLOW))
        async with limited as (url, _, _), httpx2.AsyncClient(headers=headers) as http:
            opened = await http.post(url, json=INITIALIZE)
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
            asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            assert "result" in (await http.post(url, json=asked, headers=session)).json()
            refused = await http.post(url, json=asked, headers=session)
    assert refused.status_code == 200
    assert refused.json()["error"]["data"]["details"]["retry_after_s"] > 900


async def test_a_client_that_does_not_read_its_answers_is_cut_off_before_they_fill_the_memory() -> None:
    call = {"name": "large", "arguments": {}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    request = head("ann", len(body), "tools/call").replace(b"Mcp-Method", b"Mcp-Name: large\r\nMcp-Method") + body
    with anyio.fail_after(30):
        async with served(max_unread_bytes_per_peer=100_000) as (url, app, _), connected(url) as lazy:
            await lazy.send(request)
            assert app.telemetry.metrics is not None
            while 'toolcrib_refusals_total{limit="http.max_unread_bytes"} 1.0' not in app.telemetry.metrics.text():
                await anyio.lowlevel.checkpoint()
            received = 0
            with contextlib.suppress(anyio.BrokenResourceError):
                async for part in lazy:
                    received += len(part)
            assert received < ANSWER
            assert (await list_as(url, "ann", 10)).status_code == 200


async def test_a_session_that_there_is_no_room_for_names_the_setting_and_is_counted() -> None:
    headers = LEGACY | {"Authorization": "Bearer ann-secret"}
    with anyio.fail_after(20):
        async with served(max_sessions_per_caller=1) as (url, app, events):
            async with httpx2.AsyncClient(headers=headers) as http:
                opened = await http.post(url, json=INITIALIZE)
                async with http.stream("GET", url, headers={"mcp-session-id": opened.headers["mcp-session-id"]}):
                    refused = await http.post(url, json=INITIALIZE)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
            assert "http.max_sessions_per_caller" in refused.json()["error"]["message"]
            assert ("ann", "initialize", "rate_limited") in [(one.caller, one.action, one.outcome) for one in events]
            assert app.telemetry.metrics is not None
            assert 'toolcrib_refusals_total{limit="http.max_sessions"} 1.0' in app.telemetry.metrics.text()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=30))
def test_a_budget_never_gives_more_than_it_has_and_gets_all_of_it_back(asked: list[tuple[str, int]]) -> None:
    budget, taken = Budget(20, 9), list[tuple[str, int]]()
    for owner, amount in asked:
        own, total = sum(size for name, size in taken if name == owner), budget.taken
        refused = budget.take(owner, amount)
        assert (refused == "caller") == (own + amount > 9)
        assert (refused is not None) == (own + amount > 9 or total + amount > 20)
        if refused is None:
            taken.append((owner, amount))
    assert budget.taken == sum(size for _, size in taken)
    for owner, amount in taken:
        budget.give_back(owner, amount)
    assert budget.taken == 0
    for owner in "abc":
        assert budget.take(owner, 9) is None
        budget.give_back(owner, 9)
