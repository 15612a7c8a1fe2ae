"""The life cycle of the app."""

import asyncio
import contextlib
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp
import numpy as np
import pytest

from toolcrib.app import App
from toolcrib.errors import (
    AlreadyStarted,
    InvalidRequest,
    NotStarted,
    ServerUnavailable,
    SettingsError,
    ToolNotFound,
)
from toolcrib.gateway.options import GatewayOptions
from toolcrib.sandbox.limits import ScriptOptions
from toolcrib.search.vectors import Vectors
from toolcrib.server.options import HttpOptions
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateCodec
from toolcrib.state.memory import MemoryStore
from toolcrib.state.options import StateOptions
from toolcrib.state.sqlite import SqliteStore
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider
from toolcrib.types import Context, Object, SearchRequest, ServerState, Tool, ToolResult, Visibility
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

NUMBERS: StateCodec[int] = StateCodec(int, int)
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


class Unfinished:
    """A policy without `decide`."""

    def scope(self, caller: object) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            {"settings": "toolcrib.json"},
            r"settings must be .*Settings.*, not str\. Load a file with load",
        ),
        ({"policy": Unfinished()}, r"policy must be an object with decide\(\) and scope\(\)"),
        ({"authenticator": "secret"}, r"authenticator must be an object with authenticate\(\)"),
        ({"state": MemoryStore}, r"state must be an object with .* and table\(\) or None, not the class MemoryStore"),
        ({"audit": "audit.log"}, "audit must be a function or None, not str"),
        ({"selector": 1}, "selector must be a function or None, not 1"),
        ({"middleware": print}, "middleware must be a list of functions"),
        ({"middleware": ["log"]}, "middleware must be a list of functions, not list with other items"),
    ],
)
def test_an_app_of_wrong_parts_says_which_one(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        App(**wrong)


def test_a_handler_in_place_of_its_tool_is_refused_with_the_right_order() -> None:
    swapped: Any = (lambda: "done", Tool(name="lamp"))
    with pytest.raises(InvalidRequest, match="Give the tool first and then its handler"):
        App().register(*swapped)
    server: Any = {"name": "time"}
    with pytest.raises(InvalidRequest, match="options must be of type ServerOptions, not dict"):
        App().add_server(server)


@pytest.mark.parametrize("server", ["uvx mcp-server-time", {"command": "run"}, None, object()])
def test_what_is_no_server_cannot_be_included(server: object) -> None:
    app = App()
    with pytest.raises(InvalidRequest, match="server must be an MCP server, not"):
        app.include(server, "time")
    assert app.statuses() == ()


async def test_a_limit_that_is_no_number_is_refused() -> None:
    limit: Any = "5"
    with pytest.raises(InvalidRequest, match="limit must be a whole number or None, not str"):
        await App().search("lamp", limit)


def test_the_decorator_of_an_app_is_documented() -> None:
    assert "Register the decorated function" in (App.tool.__doc__ or "")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"address": "localhost"}, 'Use the form "127.0.0.1:8000"'),
        ({"address": "127.0.0.1:8000", "port": 80}, "The address is given twice"),
    ],
)
def test_an_address_that_cannot_be_served_is_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        App().run(**arguments)


def test_a_port_in_place_of_an_address_is_refused() -> None:
    port: Any = 8000
    with pytest.raises(InvalidRequest, match=r"The address must be a string, not int\. Use .* or port=8000"):
        App().run(port)


async def test_an_app_cannot_be_run_inside_of_a_running_loop() -> None:
    with pytest.raises(InvalidRequest, match=r"Await serve_stdio\(\) or serve_http\(\)"):
        App().run()


def test_an_app_runs_at_a_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[Any, ...]] = []

    async def serve(self: App, host: str | None, port: int | None, **_: Any) -> None:
        served.append((host, port))

    monkeypatch.setattr(App, "serve_http", serve)
    App().run(host="127.0.0.1", port=8001)
    App().run(port=8002)
    App().run("127.0.0.1:8003")
    assert served == [("127.0.0.1", 8001), (None, 8002), ("127.0.0.1", 8003)]


async def test_clients_are_notified_of_a_new_script_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "one.lua").write_text("return 1")
    settings = Settings(
        script_folder=tmp_path,
        scripts=ScriptOptions(watch_s=0.01),
        surfaces=SurfaceOptions(surfaces=("direct",)),
    )
    with anyio.fail_after(10):
        async with App(settings) as app, mcp.Client(app.server) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["scripts__one"]
            async with client.listen(tools_list_changed=True) as subscription:
                (tmp_path / "two.lua").write_text("return 2")
                await anext(aiter(subscription))
            assert [tool.name for tool in (await client.list_tools()).tools] == ["scripts__one", "scripts__two"]
            (tmp_path / "one.lua").unlink()
            await app.refresh()
            assert [tool.id for tool in await app.tools()] == ["scripts:two"]


class Counting:
    """A custom embedder that counts its requests."""

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
                await app.gateway.refresher.wait_idle()
                found = await app.gateway.search(app.local_context(), SearchRequest(queries=("write down a note",)))
                assert found.hits[0].tool.id == "notes:add_note"
                assert app.gateway.refresher.snapshot.index.model.embedder is not None
                assert app._readiness()[1]["tools_to_embed"] == 0
            counts.append(Counting.asked)
    assert counts[1] - counts[0] == 3  # two on loading, and the request


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


async def test_an_app_that_is_not_running_serves_no_one() -> None:
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


# -- starting and stopping at once -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def silent_server(**more: Any) -> AsyncIterator[tuple[ServerOptions, asyncio.Event]]:
    """A server that accepts connections and never replies, and an event for the first connection."""
    asked = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        try:
            await reader.read(-1)
        finally:
            writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield ServerOptions(name="mute", transport="http", url=f"http://127.0.0.1:{port}/mcp", **more), asked
    server.close()


async def test_a_start_can_be_cancelled_and_stopped_while_a_required_server_says_nothing() -> None:
    async with silent_server(required=True, start_timeout_s=600) as (options, asked):
        app = App(Settings(servers=(options,)))
        with anyio.fail_after(10):
            task = asyncio.create_task(app.start())
            await asked.wait()
            await app.stop()
            with pytest.raises(NotStarted, match="stopped before it had started"):
                await task
            asked.clear()
            task = asyncio.create_task(app.start())
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not app.running
            await app.stop()


async def test_of_two_starts_at_once_the_second_is_refused_and_the_first_works() -> None:
    app = App()
    app.tool(lambda: 1, name="one")

    async def second() -> None:
        with pytest.raises(AlreadyStarted):
            await app.__aenter__()

    with anyio.fail_after(10):
        task = asyncio.create_task(second())
        async with app:
            await task
            assert (await app.call("one")).content[0]["text"] == "1"
    assert not app.running


async def test_servers_added_in_the_loop_and_from_a_thread_at_once_are_both_there() -> None:
    added = threading.Event()

    def from_thread() -> None:
        added.set()
        app.add_server(notes("thread"))

    with anyio.fail_after(30):
        async with App() as app:
            thread = threading.Thread(target=from_thread)
            thread.start()
            added.wait(5)
            app.add_server(notes("loop"))
            await asyncio.to_thread(thread.join)
            assert [status.name for status in app.fleet.statuses()] == ["loop", "thread"]
            app.remove_server("thread")
            assert [status.name for status in app.fleet.statuses()] == ["loop"]


async def test_an_app_with_servers_that_is_not_started_says_so() -> None:
    app = App(Settings(servers=(notes(),)))
    for ask in (app.call, app.find):
        with pytest.raises(ToolNotFound, match="The app is not started, so no remote server is connected"):
            await ask("notes:add_note")
    assert "The app is not started" in (await app.search("note")).note
    with pytest.raises(ToolNotFound) as caught:
        await App().call("notes:add_note")
    assert "not started" not in str(caught.value)


async def test_a_waiter_in_another_thread_is_notified_when_the_app_stops() -> None:
    class Slow(FakeProvider):
        async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult:
            called.set()
            await anyio.sleep_forever()
            raise AssertionError

    called = threading.Event()
    app = App()
    app.add_provider(Slow([Tool(name="slow")]))

    def serve() -> None:
        async def until_called() -> None:
            await app.start()
            await asyncio.to_thread(called.wait, 5)

        asyncio.run(until_called())

    thread = threading.Thread(target=serve)
    thread.start()
    with anyio.fail_after(10):
        while not app.running:  # noqa: ASYNC110 - it starts in another thread, which has no event to wait for
            await anyio.sleep(0.001)
        with pytest.raises(NotStarted, match="stopped during the call"):
            await app.call("slow")
        await asyncio.to_thread(thread.join)


async def test_the_lifespan_of_the_asgi_app_starts_the_app_and_its_servers() -> None:
    app = App(Settings(servers=(notes(),)))
    asgi = app.asgi()
    received = iter([{"type": "lifespan.startup"}])
    started, stop = anyio.Event(), anyio.Event()
    sent: list[str] = []

    async def receive() -> Any:
        for message in received:
            return message
        await stop.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        sent.append(message["type"])
        started.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(asgi, {"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
            await started.wait()
            assert app.running
            assert (await app.call("notes:add_note", {"text": "x"})).content[0]["text"] == "note 1 kept"
            stop.set()
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert not app.running


@pytest.mark.parametrize("way", ["shared", "request"])
async def test_a_providers_tool_may_say_its_visibility_in_words(way: str, caplog: pytest.LogCaptureFixture) -> None:
    words = ["native", "discoverable", "hidden", "nativ"]
    listed: Any = [{"name": f"a_{word}", "visibility": word} for word in words]
    app, ctx, provider = App(), None, FakeProvider(listed)
    if way == "shared":
        app.add_provider(provider)
    else:
        ctx = app.local_context().with_providers(provider)
    assert [tool.name for tool in await app.tools(ctx=ctx)] == ["a_discoverable", "a_native"]
    assert (await app.find("a_hidden", ctx=ctx)).tool.visibility is Visibility.HIDDEN
    async with mcp.Client(app.server) as client, app:
        listed = [tool.name for tool in (await client.list_tools()).tools]
    assert ("a_native" in listed) == (way == "shared")
    assert "a_nativ" in caplog.text
    assert "its visibility is" in caplog.text


async def test_a_query_or_a_name_that_is_not_text_is_refused_with_a_message() -> None:
    app, wrong = App(), None
    for wrong in (None, ["a", 1], 5):
        given: Any = wrong
        for ask in (app.call, app.find):
            with pytest.raises(InvalidRequest, match="name must be a string, not") as caught:
                await ask(given)
            assert "files:read" in caught.value.hint
        with pytest.raises(InvalidRequest, match="query must be a string or a list of strings, not"):
            await app.search(given)


async def test_one_text_as_queries_is_one_query() -> None:
    text: Any = "echo"
    assert SearchRequest(queries=text) == SearchRequest(queries=("echo",))


# -- state -------------------------------------------------------------------------------------------------------------


async def test_an_app_from_a_settings_file_keeps_state_on_disk_and_another_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "kept"))
    file = tmp_path / "mcp.json"
    file.write_text('{"mcpServers": {}}')
    with anyio.fail_after(10):
        async with App() as app:
            await app.gateway.state.table("numbers", NUMBERS, durable=True).set("n", 1)
        assert [path.name for path in tmp_path.iterdir()] == ["mcp.json"]  # noqa: ASYNC240 - a local folder of one
        for number in range(2):
            async with App(load_settings(file)) as app:
                table = app.gateway.state.table("numbers", NUMBERS, durable=True)
                assert await table.update("n", lambda old: ((old or 0) + 1, old or 0)) == number
    assert (tmp_path / "kept" / "toolcrib" / "state.sqlite").is_file()


async def test_a_state_file_of_a_newer_version_prevents_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    settings = Settings(state=StateOptions(path=path), servers=(notes(),))
    with anyio.fail_after(30):
        async with App(settings) as app:
            await app.settled()
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
        with pytest.raises(SettingsError, match=r"written by a newer version of toolcrib.*set another `path`"):
            async with App(settings):
                pass


async def test_a_store_that_the_program_gives_is_neither_opened_nor_closed(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "state.sqlite") as store:
        for _ in range(2):
            async with App(state=store) as app:
                assert app.gateway.state is store
            await store.table("numbers", NUMBERS, durable=True).set("n", 1)


def test_sqlite_is_not_imported_by_an_app_that_keeps_state_in_memory() -> None:
    program = "import sys; from toolcrib import App; App(); print('toolcrib.state.sqlite' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "False"


def test_the_search_is_not_imported_by_an_app_without_tools_until_it_is_searched() -> None:
    program = """
import sys, anyio
from toolcrib import App

async def main():
    async with App() as app:
        app.asgi()
        print(not {"numpy", "toolcrib.server.processes.replicas"}.isdisjoint(sys.modules))
        await app.search("anything")
        print("numpy" in sys.modules)

anyio.run(main)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["False", "True"]


async def test_the_folder_of_cached_vectors_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "vectors"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    options = replace(embedding("tests.test_app:Counting"), state=StateOptions(path=tmp_path / "state" / "state.db"))
    with anyio.fail_after(20):
        async with App(options):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
