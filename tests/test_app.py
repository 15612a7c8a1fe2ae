"""The app joins the parts: what its life cycle promises."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
import numpy as np
import pytest

from toolcrib.app import App
from toolcrib.errors import AlreadyStarted, NotStarted, ServerUnavailable, SettingsError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.steady import Steady
from toolcrib.model import SearchRequest, ServerState
from toolcrib.search.semantic import Vectors
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


class Counting:
    """An embedder of somebody's own, which counts what it is asked."""

    name = "counting"
    dim = 3
    asked = 0

    def embed(self, texts: Sequence[str]) -> Vectors:
        Counting.asked += len(texts)
        return np.tile(np.array([1, 0, 0], dtype=np.float32), (len(texts), 1))


def embedding(spec: str, **more: Any) -> Settings:
    return Settings(servers=(notes(),), gateway=GatewayOptions(embedder=spec, idle_s=0, **more))


async def test_the_embedder_of_the_settings_is_loaded_and_keeps_its_vectors(tmp_path: Path) -> None:
    Counting.asked = 0
    counts = []
    with anyio.fail_after(30):
        for _ in range(2):
            async with App(embedding(f"{__name__}:Counting", embedder_cache=tmp_path / "vectors.sqlite")) as app:
                await app.settled()
                await app.gateway.live.idle()
                found = await app.gateway.search(app.local_context(), SearchRequest(queries=("write down a note",)))
                assert found.hits[0].tool.id == "notes:add_note"
                assert isinstance(app.gateway.live.snapshot.index.meaning.embedder, Steady)
            counts.append(Counting.asked)
    assert counts[1] - counts[0] == 2  # what is asked on loading


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("model2vek:x", SettingsError, "toolcrib.search.embedder: There is no embedder 'model2vek'. Did you mean"),
        (f"{__name__}:Lost", SettingsError, "toolcrib.search.embedder: "),
    ],
)
async def test_an_embedder_that_cannot_be_had_ends_the_start(spec: str, error: type[SettingsError], said: str) -> None:
    with anyio.fail_after(30), pytest.raises(error, match=said):
        async with App(embedding(spec)):
            raise AssertionError("it started")


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
            asgi = app.asgi()
            transport = httpx2.ASGITransport(app=asgi)
            async with asgi.running(), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
                answer = await http.get("/readyz")
            assert answer.status_code == 200
            assert answer.json() == {"ready": True, "servers": {"failed": 1}, "tools": 0}
            (status,) = await app.gateway.servers(app.local_context())
            assert status.state is ServerState.FAILED


async def test_a_token_that_cannot_be_had_refuses_http_alone() -> None:
    app = App(Settings(http_problem="environment variable T is not set (http.tokens[0].env)", http=HttpOptions()))
    with pytest.raises(SettingsError, match="T is not set"):
        app.asgi()
