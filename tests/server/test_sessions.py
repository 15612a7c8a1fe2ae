"""Sessions of older clients over HTTP: their answers, who may use them, what ends with them, and what they take."""

import contextlib
import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import pytest
from starlette.types import ASGIApp
from tests.server.conftest import TOKENS, PerTenant, at_address, crib, native, until
from tests.server.test_requests import RESULTS, TOOLS, Served, as_caller, run, sdk_app, summary
from tests.server.test_session_end import open_session, post, served
from tests.server.wire import Wire

from toolcrib.protocol.failures import RpcError
from toolcrib.protocol.serving import ServerSession
from toolcrib.resources.manager import ResourceManager
from toolcrib.server import exchange
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions, Token
from toolcrib.server.processes.process import InFlightRequests
from toolcrib.types import Context, Object, SessionClient, ToolResult

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"
OPENING = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
HEADERS = {
    "host": "127.0.0.1",
    "authorization": f"Bearer {TOKENS[0].secret}",
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}
Answered = tuple[int, list[tuple[bytes, bytes]], bytes]


@dataclass
class Opened:
    """A session of an older client."""

    both: Served
    http: httpx2.AsyncClient
    """Reaches the app over ASGI."""
    id: str = ""

    def sent(self, body: Any, **headers: str | None) -> bytes:
        """A request of the session as its bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in self._headers(headers).items())
        return f"POST /mcp HTTP/1.1\r\n{lines}content-length: {len(content)}\r\n\r\n".encode() + content

    def _headers(self, more: dict[str, str | None]) -> dict[str, str]:
        given = {name.replace("_", "-"): value for name, value in more.items()}
        whole = {**HEADERS, "mcp-session-id": self.id, "mcp-protocol-version": VERSION, **given}
        return {name: value for name, value in whole.items() if value is not None}

    async def ask(self, wire: Wire, body: Any, **headers: str | None) -> Answered:
        """The answer to a request that is read from a connection."""
        wire.protocol.data_received(self.sent(body, **headers))
        with anyio.fail_after(20):
            status, found, content = await wire.answer()
        return status, sorted(found), content

    async def post(self, body: Any, **headers: str | None) -> Answered:
        """The answer to the same over ASGI."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with anyio.fail_after(20):
            response = await self.http.post("/mcp", content=content, headers=self._headers(headers))
        return response.status_code, sorted(response.headers.raw), response.content


@contextlib.asynccontextmanager
async def client_of(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for name in ("accept", "accept-encoding", "user-agent", "connection"):
            del http.headers[name]
        yield http


async def initialized(both: Served, app: ASGIApp, http: httpx2.AsyncClient) -> Opened:
    opened = Opened(both, http)
    response = await http.post("/mcp", json=message("initialize", OPENING), headers=HEADERS)
    opened.id = response.headers["mcp-session-id"]
    await opened.post(message("notifications/initialized", id=...))
    return opened


@contextlib.asynccontextmanager
async def session(tools: Any = TOOLS, handler: Any = run) -> AsyncIterator[Opened]:
    """A session of an app."""
    async with crib(*tools, handler=handler, policy=PerTenant(), surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        async with app.running(), client_of(app) as http:
            yield await initialized(Served(served, app, app), app, http)


def message(method: str, params: Any = ..., **more: Any) -> dict[str, Any]:
    whole = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params, **more}
    return {key: value for key, value in whole.items() if value is not ...}


def call(name: str, arguments: Any = ..., **more: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, **more}
    return message("tools/call", {key: value for key, value in params.items() if value is not ...})


PLAIN = [
    *(call(name) for name in RESULTS),
    *(call(name, {}) for name in RESULTS),
    call("checked", {"text": "x"}),
    call("checked", {"text": 1}),
    call("nothing"),
    call("hidden"),
    call("plain", []),
    call("caller", {}, _meta={"toolcrib/session": "s", "k": [1]}),
    message("tools/list"),
    message("tools/list", {}),
    message("tools/list", {"cursor": "none"}),
    message("tools/list", {"cursor": 5}),
    message("ping"),
    message("ping", {}),
    message("ping", id="text"),
    message("tools/call"),
    message("tools/call", {"name": 5}),
]
ODD: tuple[Any, ...] = (..., None, 1, 1.5, True, "2.0", [], {}, {"a": 1}, 2**70)
BODIES = [b"", b"{", b"[]", b"null", b"\xff", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', b'{"id":' * 500]


def generated() -> Iterator[tuple[Any, dict[str, str | None]]]:
    """Requests of which one part or two are unusual, with headers that differ."""
    for one in PLAIN:
        yield one, {}
    for key, value in itertools.product(("jsonrpc", "id", "method", "params", "more"), ODD):
        yield {name: part for name, part in {**call("plain"), key: value}.items() if part is not ...}, {}
    for key, value in itertools.product(("name", "arguments", "_meta", "task", "more"), ODD):
        params = {"name": "plain", "arguments": {}, key: value}
        yield message("tools/call", {name: part for name, part in params.items() if part is not ...}), {}
    for key in ("progressToken", "io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/logLevel"):
        for value in (1, "a", None, {}):
            yield call("plain", {}, _meta={key: value}), {}
    for body in BODIES:
        yield body, {}
    for accept in ("application/json", "text/event-stream", "*/*", "text/html", "", None):
        yield call("plain"), {"accept": accept}
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "text/plain", ""):
        yield call("plain"), {"content_type": kind}
    for version in ("2025-06-18", "2024-11-05", "2026-07-28", "none", None):
        yield call("plain"), {"mcp_protocol_version": version}
    for number in ("unknown", "", None):
        yield call("plain"), {"mcp_session_id": number}
    chance = random.Random(5)  # noqa: S311 - the same requests each time
    for _ in range(120):
        one = dict(chance.choice(PLAIN))
        one[chance.choice(["id", "params", "method", "more"])] = chance.choice([*ODD[1:], "tools/list", "ping"])
        yield one, {}


async def test_a_request_gets_the_same_answer_from_its_bytes_as_over_asgi() -> None:
    async with session() as opened:
        wire = opened.both.connected()
        for body, headers in generated():
            assert await opened.ask(wire, body, **headers) == await opened.post(body, **headers), (body, headers)
            if wire.closed:
                wire = opened.both.connected()
        for token in (TOKENS[1].secret, "none", ""):
            authorization = f"Bearer {token}"
            found = await opened.ask(wire, call("plain"), authorization=authorization)
            assert found == await opened.post(call("plain"), authorization=authorization), token
        wire.protocol.connection_lost(None)


async def test_every_request_gets_the_status_that_the_sdk_gives() -> None:
    count = 0
    async with session() as opened:
        sdk = sdk_app(opened.both.crib.engine)
        async with sdk.router.lifespan_context(sdk), client_of(as_caller(sdk)) as http:
            by_sdk = await initialized(opened.both, sdk, http)
            for body, headers in generated():
                if headers.get("content_type") == "APPLICATION/JSON":
                    continue  # the SDK takes the case of a media type for a part of it
                count += 1
                status, kind = summary(await opened.post(body, **headers))
                status_by_sdk, kind_by_sdk = summary(await by_sdk.post(body, **headers))
                if status_by_sdk == 202 and isinstance(body, dict) and "id" in body:
                    assert status == 400, body  # it is a request that waits for an answer, and no notification
                    continue
                assert status == status_by_sdk, (body, headers)
                if status == 200:
                    assert kind == kind_by_sdk, (body, headers)
    assert count > 300


def openings() -> Iterator[Any]:
    """Requests that open a session, or try to."""
    for version in ("2025-11-25", "2025-06-18", "2024-11-05", "2026-07-28", "none", 5, None, ...):
        yield {**OPENING, "protocolVersion": version}
    capabilities: Any
    for capabilities in ({"roots": {"listChanged": True}, "sampling": {}}, {"more": {}}, [], None, ...):
        yield {**OPENING, "capabilities": capabilities}
    for info in ({"name": "c"}, {"name": "c" * 5000, "version": "1"}, {}, "c", None, ...):
        yield {**OPENING, "clientInfo": info}
    for meta in ({}, {"progressToken": 5}, {"k": 1}, 5, None):
        yield {**OPENING, "_meta": meta}
    yield from ({}, [], None, ..., {**OPENING, "more": 1})


async def test_a_session_is_opened_for_the_params_for_which_the_sdk_opens_one() -> None:
    async with session() as opened:
        sdk = sdk_app(opened.both.crib.engine)
        async with sdk.router.lifespan_context(sdk), client_of(as_caller(sdk)) as http:
            for params in openings():
                given = params if not isinstance(params, dict) else {k: v for k, v in params.items() if v is not ...}
                answers = [
                    await client.post("/mcp", json=message("initialize", given), headers=HEADERS)
                    for client in (opened.http, http)
                ]
                own, by_sdk = [summary((one.status_code, [], one.content)) for one in answers]
                assert own[0] == by_sdk[0], params
                if own[0] == 200:
                    assert own == by_sdk, params
                assert ("mcp-session-id" in answers[0].headers) == ("result" in answers[1].json()), params


async def test_a_session_ends_when_its_client_deletes_it() -> None:
    async with session() as opened:
        wire = opened.both.connected()
        deleted = await opened.http.delete("/mcp", headers={**HEADERS, "mcp-session-id": opened.id})
        assert (deleted.status_code, deleted.headers.get("content-length"), deleted.content) == (200, "0", b"")
        again = await opened.http.delete("/mcp", headers={**HEADERS, "mcp-session-id": opened.id})
        assert again.status_code == 404
        assert (await opened.post(call("plain")))[0] == (await opened.ask(wire, call("plain")))[0] == 404


async def test_a_session_is_open_to_the_credential_alone_that_opened_it() -> None:
    async with session() as opened:
        wire = opened.both.connected()
        other = f"Bearer {TOKENS[1].secret}"
        assert (await opened.post(call("plain"), authorization=other))[0] == 404
        assert (await opened.ask(wire, call("plain"), authorization=other))[0] == 404
        assert (await opened.ask(wire, call("plain")))[0] == 200


# -- before the answer -----------------------------------------------------------------------------------------------


async def events(wire: Wire) -> list[Any]:
    """The messages of an answer that is a stream of events."""
    with anyio.fail_after(5):
        while not wire.received.endswith(b"0\r\n\r\n"):
            await wire.arrived.wait()
    head, _, chunks = wire.received.partition(b"\r\n\r\n")
    wire.received = b""
    assert b"content-type: text/event-stream" in head
    assert b"mcp-session-id: " in head
    body = b""
    while (size := int(chunks.split(b"\r\n", 1)[0], 16)) > 0:
        chunks = chunks.split(b"\r\n", 1)[1]
        body, chunks = body + chunks[:size], chunks[size + 2 :]
    return [json.loads(data) for data in re.findall(rb"event: message\r\ndata: (.*)\r\n\r\n", body)]


async def test_a_resource_is_watched_with_the_scopes_of_the_request_that_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[frozenset[str]] = []

    async def subscribe(_: object, ctx: Context, uri: str, callback: object) -> Callable[[], None]:
        seen.append(ctx.caller.scopes)
        return lambda: None

    monkeypatch.setattr(ResourceManager, "subscribe", subscribe)
    tokens = tuple(Token(secret=f"s3cret-{name}", caller="ann", scopes=frozenset({name})) for name in "ab")
    async with crib(*TOOLS, handler=run) as served:
        app = http_app(served.engine, HttpOptions(tokens=tokens), ready=lambda: (True, {}))
        async with app.running(), client_of(app) as http:
            opened = await initialized(Served(served, app, app), app, http)
            for one in tokens:
                asked = message("resources/subscribe", {"uri": f"file:///{one.secret}"})
                status, _, _ = await opened.post(asked, authorization=f"Bearer {one.secret}")
                assert status == 200
    assert seen == [frozenset({"a"}), frozenset({"b"})]


async def test_log_messages_of_a_call_come_before_its_answer() -> None:
    async def logs(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert isinstance(ctx.client, SessionClient)
        for number in range(2):
            await ctx.client.notify("notifications/message", {"level": "error", "data": f"{number}"})
        return ToolResult(content=({"type": "text", "text": "done"},))

    async with session([native("logs")], logs) as opened:
        wire, received = opened.both.connected(), []
        for _ in range(2):
            wire.protocol.data_received(opened.sent(call("logs")))
            received.append(await events(wire))
        status, _, body = await opened.ask(wire, call("logs"), accept="application/json")
        assert (status, json.loads(body)["result"]["content"][0]["text"]) == (200, "done")
        assert received[0] == received[1]
        assert [one.get("method", "answer") for one in received[0]] == ["notifications/message"] * 2 + ["answer"]


async def test_a_stream_that_waits_for_its_client_and_is_given_up_leaves_a_whole_answer() -> None:
    gave_up = anyio.Event()

    async def logs(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert isinstance(ctx.client, SessionClient)
        with anyio.move_on_after(0.01):
            await ctx.client.notify("notifications/message", {"level": "error", "data": "lost"})
        gave_up.set()
        return ToolResult(content=({"type": "text", "text": "done"},))

    async with session([native("logs")], logs) as opened:
        wire = opened.both.connected()
        wire.protocol.reader.pause_writing()
        wire.protocol.data_received(opened.sent(call("logs")))
        with anyio.fail_after(5):
            await gave_up.wait()
            wire.protocol.reader.resume_writing()
            status, _, body = await wire.answer()
        assert (status, json.loads(body)["result"]["content"][0]["text"]) == (200, "done")


async def test_nothing_is_written_after_the_answer_to_a_notification_that_the_shutdown_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def notified(_: object) -> None:
        await anyio.sleep_forever()

    async with session() as opened:
        monkeypatch.setattr(opened.both.crib.engine, "notified", notified)
        requests = InFlightRequests(opened.both.app)
        wire = opened.both.connected(requests)
        changed = message("notifications/roots/list_changed", id=...)
        assert (await opened.ask(wire, changed))[0] == 202
        requests.cancel_all()
        with anyio.fail_after(5):
            await requests.wait_idle()
        assert not wire.received


# -- what ends a call ------------------------------------------------------------------------------------------------


@dataclass
class Slow:
    """A tool that takes until it is cancelled."""

    begun: anyio.Event
    cancelled: anyio.Event

    async def __call__(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
        raise AssertionError("it was not cancelled")


async def answer_of_ended(end: Callable[[Opened], Awaitable[Any]]) -> tuple[int, Any]:
    """The status and the message in answer to a call that has begun when `end` ends it."""
    slow = Slow(anyio.Event(), anyio.Event())
    answers: list[Answered] = []
    async with session([native("slow")], slow) as opened, anyio.create_task_group() as group:

        async def ask() -> None:
            answers.append(await opened.post(call("slow")))

        group.start_soon(ask)
        with anyio.fail_after(5):
            await slow.begun.wait()
            await end(opened)
            await slow.cancelled.wait()
    return answers[0][0], json.loads(answers[0][2])


@pytest.mark.parametrize("number", [7, "7"])
async def test_a_client_cancels_a_call_of_its_session(number: int | str) -> None:
    async def cancel(opened: Opened) -> None:
        await opened.post(message("notifications/cancelled", {"requestId": number}, id=...))

    status, body = await answer_of_ended(cancel)
    assert (status, body["error"]["code"], body["id"]) == (200, -32800, 7)


async def test_the_end_of_a_session_ends_its_calls() -> None:
    async def end(opened: Opened) -> None:
        await opened.http.delete("/mcp", headers={**HEADERS, "mcp-session-id": opened.id})

    status, body = await answer_of_ended(end)
    assert (status, "Session terminated" in body["error"]["message"]) == (500, True)


async def test_the_end_of_a_session_ends_each_of_two_calls_with_the_same_id() -> None:
    slow = [Slow(anyio.Event(), anyio.Event()) for _ in range(2)]

    async def run_slow(ctx: Context, name: str, arguments: Object) -> ToolResult:
        return await slow[int(name)](ctx, name, arguments)

    async with session([native("0"), native("1")], run_slow) as opened, anyio.create_task_group() as group:
        with anyio.fail_after(5):
            for number in range(2):
                group.start_soon(opened.post, call(f"{number}"))
                await slow[number].begun.wait()
            await opened.http.delete("/mcp", headers={**HEADERS, "mcp-session-id": opened.id})
            for one in slow:
                await one.cancelled.wait()
    assert all(one.cancelled.is_set() for one in slow)


async def test_a_call_in_a_session_goes_on_when_its_connection_is_lost() -> None:
    slow = Slow(anyio.Event(), anyio.Event())
    async with session([native("slow")], slow) as opened:
        requests = InFlightRequests(opened.both.app)
        wire = opened.both.connected(requests)
        wire.protocol.data_received(opened.sent(call("slow")))
        with anyio.fail_after(5):
            await slow.begun.wait()
            wire.protocol.connection_lost(None)
            await anyio.wait_all_tasks_blocked()
            assert not slow.cancelled.is_set()
            await opened.http.delete("/mcp", headers={**HEADERS, "mcp-session-id": opened.id})
            await requests.wait_idle()
        assert slow.cancelled.is_set()


# -- what a session takes --------------------------------------------------------------------------------------------


def calls(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


async def test_a_session_follows_changed_lists_while_its_client_listens() -> None:
    with anyio.fail_after(20):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            session = await open_session(http, url)
            assert parts.changes.subscriber_count == 0
            headers = {"mcp-session-id": session, "accept": "text/event-stream"}
            async with http.stream("GET", url, headers=headers) as stream:
                assert stream.status_code == 200
                await until(lambda: parts.changes.subscriber_count > 0)
            await until(lambda: parts.changes.subscriber_count == 0)
            assert (await post(http, url, calls("tool_search", query="echo"), session)).status_code == 200


async def test_a_session_has_one_stream_at_a_time() -> None:
    with anyio.fail_after(20):
        async with served() as (_, url), httpx2.AsyncClient() as http:
            session = await open_session(http, url)
            headers = {"mcp-session-id": session, "accept": "text/event-stream"}
            async with http.stream("GET", url, headers=headers) as stream:
                assert stream.headers["content-type"] == "text/event-stream"
                assert (await http.get(url, headers=headers)).status_code == 409
            while True:
                async with http.stream("GET", url, headers=headers) as again:
                    if again.status_code == 200:
                        break  # the server has seen that the first one ended


async def test_a_question_to_a_client_that_reads_nothing_fails_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_WITHDRAW_S", 0.01)

    async def send(_: bytes) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(5), pytest.raises(RpcError, match="did not answer in time"):
        await exchange.Questions(ServerSession(id="s")).ask(send, "roots/list", {}, 0.01)


async def test_servers_learn_of_the_end_of_a_session_only_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str | None] = []
    with anyio.fail_after(20):
        async with crib() as parts:
            (backend,) = parts.gateway.refresher.backends()
            monkeypatch.setattr(backend.provider, "end_session", lambda ctx: ended.append(ctx.session))
            app = http_app(parts.engine, HttpOptions(session_idle_s=0.5), ready=lambda: (True, {}))
            async with at_address(app) as address, httpx2.AsyncClient() as http:
                session = await open_session(http, f"{address}/mcp")
                assert ended == []
                await until(lambda: bool(ended))
                assert ended == [session]
                assert (await post(http, f"{address}/mcp", calls("tool_search"), session)).status_code == 404


async def test_requests_at_once_in_a_session_are_all_answered() -> None:
    with anyio.fail_after(20):
        async with served() as (_, url), httpx2.AsyncClient() as http:
            session, statuses = await open_session(http, url), list[int]()

            async def search(number: int) -> None:
                answer = await post(http, url, {**calls("tool_search", query="echo"), "id": number % 2}, session)
                statuses.append(answer.status_code)

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(search, number)
            assert statuses == [200] * 8
