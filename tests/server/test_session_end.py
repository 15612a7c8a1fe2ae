"""What is left of a session over HTTP once its client has deleted it: nothing."""

import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from tests.server.conftest import JSON, Crib, at_address, crib, until

from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions
from toolcrib.types import Caller, Context

pytestmark = pytest.mark.anyio

OPEN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "0"},
    },
}
REMEMBERED = (
    "toolcrib.server.http.reader.Head",
    "toolcrib.server.http.requests.HeadFacts",
    "asyncio.events.TimerHandle",
)
"""Of recent heads of requests, which name their sessions, there is never more than a thousand. The event loop drops
timers that were cancelled when their time comes.
"""
OURS = ("toolcrib", "mcp", "anyio", "starlette", "asyncio")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Crib, str]]:
    """A served gateway, and the URL of its endpoint."""
    async with crib() as parts:
        app = http_app(parts.engine, HttpOptions(), ready=lambda: (True, {"tools": 1}))
        async with at_address(app) as address:
            yield parts, f"{address}/mcp"


async def post(http: httpx2.AsyncClient, url: str, message: Any, session: str = "") -> httpx2.Response:
    """Send one message, of a session if it is given."""
    headers = {**JSON, **({"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"} if session else {})}
    return await http.post(url, json=message, headers=headers)


async def open_session(http: httpx2.AsyncClient, url: str) -> str:
    """Open a session that has called a tool and searched. Returns its id."""
    session = (await post(http, url, OPEN)).headers["mcp-session-id"]
    await post(http, url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
    for name, arguments in (("execute_tool", {"name": "x:echo", "arguments": {}}), ("tool_search", {"query": "echo"})):
        params = {"name": name, "arguments": arguments}
        answer = await post(http, url, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}, session)
        assert "result" in answer.json()
    return session


async def delete(http: httpx2.AsyncClient, url: str, session: str) -> None:
    """Delete a session."""
    headers = {**JSON, "mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    assert (await http.delete(url, headers=headers)).status_code == 200


def live() -> Counter[str]:
    """How many objects of our packages are alive, by type."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return Counter(name for name in names if name.startswith(OURS))


async def test_deleted_sessions_leave_no_objects_behind() -> None:
    with anyio.fail_after(30):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            for _ in range(3):
                await delete(http, url, await open_session(http, url))
            before = live()
            for _ in range(20):
                await delete(http, url, await open_session(http, url))
            await until(lambda: parts.changes.subscriber_count == 0)
            more = live() - before

            assert {kind: count for kind, count in more.items() if count >= 10 and kind not in REMEMBERED} == {}


async def test_what_a_session_used_is_forgotten_with_it() -> None:
    with anyio.fail_after(10):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            session = await open_session(http, url)
            ctx = Context(caller=Caller(id="local"), session=session)
            used = len(await parts.gateway.sessions.get(ctx))
            await delete(http, url, session)
            await until(lambda: parts.changes.subscriber_count == 0)

            assert (used, len(await parts.gateway.sessions.get(ctx))) == (1, 0)


async def test_servers_learn_which_session_over_http_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str | None] = []
    with anyio.fail_after(10):
        async with served() as (parts, url), httpx2.AsyncClient() as http:
            (backend,) = parts.gateway.refresher.backends()
            monkeypatch.setattr(backend.provider, "end_session", lambda ctx: ended.append(ctx.session))
            session = await open_session(http, url)
            await delete(http, url, session)
            await until(lambda: bool(ended))

            assert ended == [session]
