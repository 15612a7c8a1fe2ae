"""Sessions over HTTP that are idle give up their transport, and go on at their next request."""

import gc
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mcp.server.streamable_http import StreamableHTTPServerTransport
from tests.server.conftest import JSON, at_address, crib, until
from tests.server.test_session_end import OPEN, delete, open_session, post, served

from toolcrib.server.auth.authentication import StaticTokens
from toolcrib.server.http import sessions
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions, Token
from toolcrib.types import Caller, Context

pytestmark = pytest.mark.anyio


def transports() -> list[StreamableHTTPServerTransport]:
    """The transports of sessions that are alive in this process, those that other tests left included."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is StreamableHTTPServerTransport]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle sessions become dormant at once."""
    monkeypatch.setattr(sessions, "_AWAKE_S", 0.0)
    monkeypatch.setattr(sessions, "_SWEEP_S", 0.02)


def calls(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


async def test_an_idle_session_takes_no_transport_and_goes_on_where_it_was(soon: None) -> None:
    with anyio.fail_after(20):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            others = transports()
            session = await open_session(http, url)
            await until(lambda: parts.changes.subscriber_count == 0)
            assert [one for one in transports() if one not in others] == []
            ctx = Context(caller=Caller(id="local"), session=session)
            assert len(await parts.gateway.sessions.get(ctx)) == 1
            for _ in range(2):
                answer = await post(http, url, calls("execute_tool", name="x:echo", arguments={}), session)
                assert (answer.status_code, answer.headers["mcp-session-id"]) == (200, session)
                assert not answer.json()["result"]["isError"]
                await until(lambda: parts.changes.subscriber_count == 0)
            await delete(http, url, session)
            assert (await post(http, url, calls("tool_search"), session)).status_code == 404
            assert len(await parts.gateway.sessions.get(ctx)) == 0


async def test_requests_at_once_wake_a_session_once(soon: None) -> None:
    with anyio.fail_after(20):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            session = await open_session(http, url)
            await until(lambda: parts.changes.subscriber_count == 0)
            statuses = []

            async def search(number: int) -> None:
                answer = await post(http, url, {**calls("tool_search", query="echo"), "id": number}, session)
                statuses.append(answer.status_code)

            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(search, number)
            assert statuses == [200] * 8


async def test_a_session_with_an_open_stream_stays_awake(soon: None) -> None:
    with anyio.fail_after(20):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            session = await open_session(http, url)
            headers = {"mcp-session-id": session, "accept": "text/event-stream"}
            async with http.stream("GET", url, headers=headers) as stream:
                assert stream.status_code == 200
                lists = parts.changes.subscriber_count
                await open_session(http, url)
                await until(lambda: parts.changes.subscriber_count == lists > 0)
            await until(lambda: parts.changes.subscriber_count == 0)


async def test_a_session_that_asked_for_log_messages_stays_awake(soon: None) -> None:
    with anyio.fail_after(20):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            session = await open_session(http, url)
            level = {"jsonrpc": "2.0", "id": 3, "method": "logging/setLevel", "params": {"level": "debug"}}
            assert (await post(http, url, level, session)).status_code == 200
            lists = parts.changes.subscriber_count
            for _ in range(2):
                await open_session(http, url)
                await until(lambda: parts.changes.subscriber_count == lists > 0)
            assert (await post(http, url, calls("tool_search"), session)).status_code == 200


async def test_only_its_own_caller_wakes_a_session(soon: None) -> None:
    tokens = [Token(secret="a" * 40, caller="ann"), Token(secret="b" * 40, caller="bob")]
    with anyio.fail_after(20):
        async with crib() as parts:
            app = http_app(parts.engine, HttpOptions(), ready=lambda: (True, {}), authenticator=StaticTokens(tokens))
            async with at_address(app) as address, httpx2.AsyncClient(headers=JSON) as http:
                url, ann, bob = f"{address}/mcp", *({"authorization": f"Bearer {one.secret}"} for one in tokens)
                session = (await http.post(url, json=OPEN, headers=ann)).headers["mcp-session-id"]
                await until(lambda: parts.changes.subscriber_count == 0)
                named = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
                search = calls("tool_search", query="echo")
                assert (await http.post(url, json=search, headers={**named, **bob})).status_code == 404
                assert parts.changes.subscriber_count == 0
                assert (await http.post(url, json=search, headers={**named, **ann})).status_code == 200


async def test_servers_learn_of_the_end_of_a_dormant_session_only_when_it_ends(
    soon: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str | None] = []
    with anyio.fail_after(20):
        async with crib() as parts:
            (backend,) = parts.gateway.refresher.backends()
            monkeypatch.setattr(backend.provider, "end_session", lambda ctx: ended.append(ctx.session))
            app = http_app(parts.engine, HttpOptions(session_idle_s=0.5), ready=lambda: (True, {}))
            async with at_address(app) as address, httpx2.AsyncClient() as http:
                session = await open_session(http, f"{address}/mcp")
                await until(lambda: parts.changes.subscriber_count == 0)
                assert ended == []
                await until(lambda: bool(ended))
                assert ended == [session]
                assert (await post(http, f"{address}/mcp", calls("tool_search"), session)).status_code == 404


async def test_of_sessions_that_are_never_used_few_stay_awake() -> None:
    with anyio.fail_after(30):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            opened = [(await post(http, url, OPEN)).headers["mcp-session-id"]]
            lists = parts.changes.subscriber_count
            opened += [(await post(http, url, OPEN)).headers["mcp-session-id"] for _ in range(49)]
            await until(lambda: parts.changes.subscriber_count == sessions._MAX_UNUSED * lists)
            for session in (opened[0], opened[-1]):
                assert (await post(http, url, calls("tool_search", query="echo"), session)).status_code == 200


async def test_a_request_that_comes_while_another_wakes_the_session_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with crib() as parts:
        app = http_app(parts.engine, HttpOptions(), ready=lambda: (True, {}))
        transport = httpx2.ASGITransport(app=app)
        async with app.running(), httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            session = await open_session(http, "/mcp")
            managers = app._endpoint._managers  # type: ignore[attr-defined]  # of this transport
            manager: sessions.SessionManager = managers[0]
            answers: list[httpx2.Response] = []

            async def list_tools(number: int, later: int) -> None:
                for _ in range(later):
                    await anyio.lowlevel.checkpoint()
                message = {"jsonrpc": "2.0", "id": number, "method": "tools/list"}
                answers.append(await post(http, "/mcp", message, session))

            for later in range(40):
                await manager._rest(session)
                answers.clear()
                with anyio.fail_after(10):
                    async with anyio.create_task_group() as group:
                        group.start_soon(list_tools, 1, 0)
                        group.start_soon(list_tools, 2, later)
                found = [(one.status_code, "result" in one.text) for one in answers]
                assert found == [(200, True)] * 2, (later, [one.text for one in answers])
