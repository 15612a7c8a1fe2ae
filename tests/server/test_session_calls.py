"""Requests of sessions that are answered without the session's transport get the answers that it would give."""

import contextlib
import itertools
import json
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import pytest
from tests.server.conftest import TOKENS, PerTenant, crib, native
from tests.server.test_direct import RESULTS, TOOLS, run

from toolcrib.server import session_calls
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.http.sessions import SessionManager
from toolcrib.server.options import HttpOptions
from toolcrib.server.session_calls import SessionCalls
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio

VERSION = "2025-11-25"
SEEN = {"mcp-session-id", "content-length", "content-type"}
WAYS = ("answer", "answer_dormant")
"""Around a session's transport, if it has one, and for a session that has none."""


@dataclass
class Session:
    """A session of an older client, and how many of its requests passed by its transport."""

    http: httpx2.AsyncClient
    id: str
    manager: SessionManager
    direct: int = 0

    async def post(self, body: Any, **headers: str | None) -> tuple[int, dict[str, str], Any]:
        sent = {"mcp-session-id": self.id, "mcp-protocol-version": VERSION, **headers}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in sent.items() if value is not None}
        with anyio.fail_after(20):
            response = await self.http.post("/mcp", content=content, headers=given)
        known = {name: value for name, value in response.headers.items() if name in SEEN}
        return response.status_code, known, response.content


@contextlib.asynccontextmanager
async def session(monkeypatch: pytest.MonkeyPatch, tools: Any = TOOLS, handler: Any = run) -> AsyncIterator[Session]:
    async with crib(*tools, handler=handler, policy=PerTenant(), surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        headers = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {TOKENS[0].secret}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        }
        transport = httpx2.ASGITransport(app=app)
        async with (
            app.running(),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http,
        ):
            client = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            response = await http.post("/mcp", json=message("initialize", client))
            managers = app._endpoint._managers  # type: ignore[attr-defined]  # of this transport
            opened = Session(http, response.headers["mcp-session-id"], managers[0])
            await opened.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

            def counting(inner: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
                async def counted(*args: Any) -> bool:
                    answered = await inner(*args)
                    opened.direct += answered
                    return answered

                return counted

            for name in WAYS:
                monkeypatch.setattr(SessionCalls, name, counting(getattr(SessionCalls, name)))
            yield opened


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
"""What is answered without the transport."""
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


@pytest.mark.parametrize("dormant", [False, True])
async def test_every_answer_is_that_of_the_transport(monkeypatch: pytest.MonkeyPatch, dormant: bool) -> None:
    count = 0
    async with session(monkeypatch) as opened:
        for body, headers in generated():
            count += 1
            if dormant:
                await opened.manager._rest(opened.id)
            found = await opened.post(body, **headers)
            with monkeypatch.context() as patch:
                for name in WAYS:
                    patch.setattr(SessionCalls, name, _never)
                assert found == await opened.post(body, **headers), (body, headers)
        assert opened.direct > len(PLAIN)
    assert count > 300


async def _never(*_: Any) -> bool:
    return False


@pytest.mark.parametrize("dormant", [False, True])
async def test_plain_requests_pass_by_the_transport(monkeypatch: pytest.MonkeyPatch, dormant: bool) -> None:
    async with session(monkeypatch) as opened:
        if not dormant:
            await opened.post(message("prompts/list"))
        for place, body in enumerate(PLAIN):
            await opened.post(body)
            assert opened.direct == place + 1, body
        assert (opened.id in opened.manager._manager._server_instances) is not dormant
        await opened.post(call("plain", {}, _meta={"progressToken": 1}))
        await opened.post(message("prompts/list"))
        assert opened.direct == len(PLAIN)


OPENING = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


@pytest.mark.parametrize(
    ("sdk", "warned"), [("2.3.0", False), ("2.3.99", False), ("2.30.0", True), ("2.4.0", True), ("3.0.0", True)]
)
async def test_with_another_release_of_the_sdk_the_transport_answers_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sdk: str, *, warned: bool
) -> None:
    monkeypatch.setattr(session_calls, "version", lambda _: sdk)
    with caplog.at_level(logging.WARNING, "toolcrib.server.http.endpoint"):
        async with session(monkeypatch) as opened:
            status, _, body = await opened.post(message("ping"))
    assert (status, b'"result"' in body) == (200, True)
    assert bool(opened.direct) is not warned
    said = [record.getMessage() for record in caplog.records if "older clients" in record.getMessage()]
    assert len(said) == warned
    assert all(f"MCP SDK {sdk}," in text and "2.3.x" in text for text in said)


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


async def test_a_session_is_opened_without_a_transport_as_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_session(*_: Any) -> None:
        return None

    async def opening(params: Any) -> Any:
        given = params if not isinstance(params, dict) else {k: v for k, v in params.items() if v is not ...}
        response = await opened.http.post("/mcp", json=message("initialize", given))
        headers = {name: value for name, value in response.headers.items() if name in SEEN - {"mcp-session-id"}}
        return response.status_code, headers, response.content, "mcp-session-id" in response.headers

    async with session(monkeypatch) as opened:
        transports = opened.manager._manager._server_instances
        for params in openings():
            before = len(transports)
            found = await opening(params)
            plain = len(transports) == before
            with monkeypatch.context() as patch:
                patch.setattr(SessionCalls, "open", no_session)
                assert found == await opening(params), params
            if params == OPENING:
                assert plain


async def test_a_dormant_session_ends_at_once_when_its_client_deletes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with session(monkeypatch) as opened:
        answers = []
        for _ in range(2):
            response = await opened.http.delete("/mcp", headers={"mcp-session-id": opened.id})
            answers.append((response.status_code, response.headers.get("content-length"), response.content))
        assert answers[0] == (200, "0", b"")
        assert answers[1][0] == 404
        assert (await opened.post(call("plain")))[0] == 404


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


async def answer_of_ended(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[Session], Awaitable[Any]]
) -> tuple[int, bytes, int]:
    """The status and body of a call that has begun when `end` ends it, and how many requests were answered here."""
    slow = Slow(anyio.Event(), anyio.Event())
    answers: list[Any] = []
    async with session(monkeypatch, [native("slow")], slow) as opened, anyio.create_task_group() as group:

        async def ask() -> None:
            answers.append(await opened.post(call("slow")))

        group.start_soon(ask)
        with anyio.fail_after(5):
            await slow.begun.wait()
            await end(opened)
            await slow.cancelled.wait()
    status, _, body = answers[0]
    return status, body, opened.direct


@pytest.mark.parametrize("woken", [False, True])
async def test_a_client_cancels_a_call_of_its_session(monkeypatch: pytest.MonkeyPatch, woken: bool) -> None:
    async def cancel(opened: Session) -> None:
        if woken:  # the session has got a transport since the call began
            await opened.post(message("prompts/list", id=8))
        await opened.post(message("notifications/cancelled", {"requestId": 7}, id=...))

    status, body, direct = await answer_of_ended(monkeypatch, cancel)
    assert (status, json.loads(body)["error"]["code"], direct) == (200, -32800, 1 if woken else 2)


async def test_the_end_of_a_session_ends_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def delete(opened: Session) -> None:
        await opened.http.delete("/mcp", headers={"mcp-session-id": opened.id})

    status, body, _ = await answer_of_ended(monkeypatch, delete)
    assert (status, b"Session terminated" in body) == (500, True)


async def test_a_session_is_open_to_the_credential_alone_that_opened_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with session(monkeypatch) as opened:
        status, _, _ = await opened.post(call("plain"), authorization=f"Bearer {TOKENS[1].secret}")
        assert (status, opened.direct) == (404, 0)
