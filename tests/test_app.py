"""The app joins the parts: what its life cycle promises."""

import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcrib.app import App
from toolcrib.errors import AlreadyStarted, NotStarted, ServerUnavailable, SettingsError
from toolcrib.model import SearchRequest, ServerState
from toolcrib.server.options import HttpOptions
from toolcrib.settings.options import Settings
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

NOTES = Path(__file__).parent / "e2e" / "servers" / "notes.py"


def notes(name: str = "notes", **more: Any) -> ServerOptions:
    options: dict[str, Any] = {"name": name, "command": sys.executable, "args": (str(NOTES),), **more}
    return ServerOptions(**options)


async def test_a_started_app_finds_and_calls() -> None:
    with anyio.fail_after(30):
        async with App(Settings(servers=(notes(),))) as app:
            await app.settled()
            me = app.local_context()
            reply = await app.gateway.search(me, SearchRequest(queries=("write down a note",)))
            assert reply.hits[0].tool.id == "notes:add_note"
            result = await app.gateway.call(me, "notes:add_note", {"text": "x"})
            assert result.content[0]["text"] == "note 1 kept"


async def test_servers_are_applied_while_running() -> None:
    with anyio.fail_after(30):
        async with App(Settings()) as app:
            me = app.local_context()
            await app.settled()
            assert await app.gateway.tools(me) == ()
            await app.fleet.apply([notes("a")])
            await app.settled()
            assert {tool.namespace for tool in await app.gateway.tools(me)} == {"a"}
            await app.fleet.apply([notes("b")])
            await app.settled()
            assert {tool.namespace for tool in await app.gateway.tools(me)} == {"b"}


async def test_a_double_start_is_refused() -> None:
    with anyio.fail_after(10):
        async with App(Settings()) as app:
            with pytest.raises(AlreadyStarted):
                await app.__aenter__()


async def test_an_app_that_is_not_running_serves_nobody() -> None:
    with pytest.raises(NotStarted):
        await App(Settings()).serve_stdio()


async def test_a_required_server_that_fails_ends_the_start_and_the_others_are_stopped() -> None:
    broken = ServerOptions(name="broken", command="no-such-program", required=True)
    with anyio.fail_after(30), pytest.raises(ServerUnavailable, match="broken is required"):
        async with App(Settings(servers=(notes(), broken))):
            raise AssertionError("it started")


async def test_readiness_waits_for_first_attempts_only() -> None:
    missing = ServerOptions(name="x", command="no-such-program")
    with anyio.fail_after(30):
        async with App(Settings(servers=(missing,))) as app:
            await app.settled()
            transport = httpx2.ASGITransport(app=app.asgi())
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
                answer = await http.get("/readyz")
            assert answer.status_code == 200
            assert answer.json() == {"ready": True, "servers": {"failed": 1}, "tools": 0}
            (status,) = await app.gateway.servers(app.local_context())
            assert status.state is ServerState.FAILED


async def test_a_token_that_cannot_be_had_refuses_http_alone() -> None:
    app = App(Settings(http_problem="environment variable T is not set (http.tokens[0].env)", http=HttpOptions()))
    with pytest.raises(SettingsError, match="T is not set"):
        app.asgi()
