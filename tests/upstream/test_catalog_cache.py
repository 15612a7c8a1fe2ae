"""Catalogs that outlive the run that read them."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import pytest
from tests.upstream.support import CTX, FAST, MARK, READY, SERVERS, call_json, left_over, names, until

from toolcrib.app import App
from toolcrib.errors import ServerUnavailable, StateUnavailable
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.state.memory import MemoryStore
from toolcrib.state.options import StateOptions
from toolcrib.state.sqlite import SqliteStore
from toolcrib.types import ServerState
from toolcrib.upstream.catalog.cache import CatalogCache, ServerCatalog
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.server_manager import ServerManager

V = TypeVar("V")
R = TypeVar("R")
ON_DEMAND = replace(FAST, connect="on_demand")
FAILING = {"exit": 3, "say": "Error: no database"}
LAUNCHER = """
import runpy, sys
from pathlib import Path
sys.argv = ["raw.py", Path(sys.argv[1]).read_text()]
runpy.run_path({raw!r}, run_name="__main__")
"""


class ChangingServer:
    """A server that behaves differently from run to run, although its definition stays the same."""

    def __init__(self, folder: Path) -> None:
        self._spec, launcher = folder / "spec.json", folder / "launcher.py"
        launcher.write_text(LAUNCHER.format(raw=str(SERVERS / "raw.py")))
        self.options = ServerOptions(
            name="raw",
            command=sys.executable,
            args=("-I", str(launcher), str(self._spec)),
            env={MARK: str(os.getpid()), "API_KEY": "a secret that no file may hold"},
        )
        self.gate = folder / "gate"
        os.mkfifo(self.gate)
        self.behave()

    def behave(self, **spec: Any) -> None:
        """How it behaves when it is started next."""
        self._spec.write_text(json.dumps(spec))

    def wait_at_gate(self, **spec: Any) -> None:
        """Make it start only once `open_gate` is called."""
        self.behave(gate=str(self.gate), **spec)

    async def open_gate(self) -> None:
        await anyio.to_thread.run_sync(self.gate.write_text, "go", abandon_on_cancel=True)


@pytest.fixture
def changing(tmp_path: Path) -> ChangingServer:
    return ChangingServer(tmp_path)


@asynccontextmanager
async def run_of(options: ServerOptions, state: StateStore, fleet: FleetOptions = FAST) -> AsyncIterator[RemoteServer]:
    """One run of a gateway with this server, from the moment at which its cached catalog is known."""
    with anyio.fail_after(20):
        async with ServerManager(fleet, [options], state=state).running() as running:
            server = running.server(options.name)
            await until(server, lambda: server.status.state is not ServerState.CONFIGURED)
            yield server


async def remember(options: ServerOptions, state: StateStore) -> RemoteServer:
    """One run in which everything works."""
    async with run_of(options, state) as server:
        await until(server, lambda: server.status.state is READY and server.documents() is not None)
    return server


async def test_tools_are_known_before_the_server_has_started(changing: ChangingServer) -> None:
    state = MemoryStore()
    before = await remember(changing.options, state)
    changing.wait_at_gate()
    async with run_of(changing.options, state) as server:
        status = server.status
        assert (status.state, status.cached, status.stale, status.tools) == (
            ServerState.CONNECTING,
            True,
            False,
            len(before.tools),
        )
        assert status.as_of is not None
        assert server.tools == before.tools
        known = server.tools
        await changing.open_gate()
        await until(server, lambda: server.status.state is READY)
        assert (server.status.cached, server.status.as_of) == (False, None)
        assert all(new is old for new, old in zip(server.tools, known, strict=True))


async def test_after_a_restart_a_search_finds_the_tools_of_a_server_that_has_not_answered_yet(
    changing: ChangingServer, tmp_path: Path
) -> None:
    settings = Settings(servers=(changing.options,), state=StateOptions(path=tmp_path / "state.sqlite"))
    with anyio.fail_after(20):
        async with App(settings) as app:
            await app.settled()
        changing.wait_at_gate()
        async with App(settings) as app:
            reply = await app.search("echo", limit=1)
            assert [hit.tool.id for hit in reply.hits] == ["raw:echo"]
            await changing.open_gate()
            await app.settled()
            assert [status.state for status in app.statuses()] == [READY]


async def test_a_server_that_stays_down_keeps_its_tools_with_the_reason_and_their_age(changing: ChangingServer) -> None:
    state = MemoryStore()
    before = await remember(changing.options, state)
    changing.behave(**FAILING)
    async with run_of(changing.options, state) as server:
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        status = server.status
        assert (status.cached, status.stale) == (True, True)
        assert status.reason == "exited with code 3: Error: no database"
        assert status.as_of is not None
        assert server.tools == before.tools


async def test_a_changed_definition_has_no_cached_catalog(changing: ChangingServer) -> None:
    state = MemoryStore()
    await remember(changing.options, state)
    changing.behave(**FAILING)
    other = replace(changing.options, env={**changing.options.env, "API_KEY": "that of another user"})
    async with run_of(other, state) as server:
        await until(server, lambda: server.status.state is ServerState.FAILED)
        assert (server.tools, server.status.cached) == ((), False)


async def test_the_catalog_of_one_principal_is_not_that_of_another(changing: ChangingServer) -> None:
    cache = CatalogCache(MemoryStore())
    await cache.update(await cache.key(changing.options, "ann"), 1, {"tools": ({"name": "hers"},)})
    assert await ServerCatalog(cache, changing.options, "ann").load() is not None
    assert await ServerCatalog(cache, changing.options, "bob").load() is None
    assert await ServerCatalog(cache, changing.options).load() is None


async def test_the_state_file_does_not_hold_the_secrets_of_a_definition(
    changing: ChangingServer, tmp_path: Path
) -> None:
    async with SqliteStore(tmp_path / "state.sqlite") as state:
        before = await remember(changing.options, state)
    changing.behave(**FAILING)
    async with SqliteStore(tmp_path / "state.sqlite") as state, run_of(changing.options, state) as server:
        assert server.tools == before.tools
    held = (tmp_path / "state.sqlite").read_bytes()
    assert b"echo" in held
    assert b"a secret that no file may hold" not in held


async def test_a_narrower_choice_of_tools_applies_to_a_cached_catalog(changing: ChangingServer) -> None:
    state = MemoryStore()
    await remember(changing.options, state)
    changing.behave(**FAILING)
    async with run_of(replace(changing.options, allowed_tools=("echo",)), state) as server:
        assert names(server) == ["echo"]
    async with run_of(changing.options, state) as server:
        assert len(names(server)) > 1


async def test_prompts_and_resources_are_cached_too(changing: ChangingServer) -> None:
    state = MemoryStore()
    lists = {
        "prompts/list": {"prompts": [{"name": "greet"}]},
        "resources/list": {"resources": [{"name": "notes", "uri": "note:///a"}]},
        "resources/templates/list": {"resourceTemplates": []},
    }
    changing.behave(capabilities={"prompts": {}, "resources": {"subscribe": True}}, lists=lists)
    before = await remember(changing.options, state)
    changing.behave(**FAILING)
    async with run_of(changing.options, state) as server:
        assert server.documents() == before.documents()
    documents = before.documents()
    assert documents is not None
    assert (list(documents.prompts), list(documents.resources), documents.watches) == (["greet"], ["note:///a"], True)


async def test_on_demand_a_known_server_is_started_by_its_first_call(changing: ChangingServer) -> None:
    state = MemoryStore()
    await remember(changing.options, state)
    async with run_of(changing.options, state, ON_DEMAND) as server:
        assert (server.status.state, server.status.cached) == (ServerState.IDLE, True)
        assert left_over() == []
        assert await call_json(server, "echo", n=1) == {"n": 1}
        assert (server.status.state, server.status.cached) == (READY, False)


async def test_on_demand_a_server_that_offered_nothing_is_asked_again(changing: ChangingServer) -> None:
    state = MemoryStore()
    changing.behave(pages=[{"tools": []}])
    await remember(changing.options, state)
    changing.behave()
    async with run_of(changing.options, state, ON_DEMAND) as server:
        await until(server, lambda: server.status.state is READY)
        assert "echo" in names(server)


async def test_an_idle_server_says_why_none_of_its_tools_is_offered(changing: ChangingServer) -> None:
    state = MemoryStore()
    await remember(changing.options, state)
    async with run_of(replace(changing.options, allowed_tools=()), state, ON_DEMAND) as server:
        assert server.status.reason == "none of its tools is allowed by its settings"


async def test_on_demand_a_required_server_that_is_known_is_not_started_either(
    changing: ChangingServer, tmp_path: Path
) -> None:
    required = replace(changing.options, required=True)
    settings = Settings(servers=(required,), state=StateOptions(path=tmp_path / "state.sqlite"))
    with anyio.fail_after(20):
        async with App(settings):
            pass
        async with App(replace(settings, fleet=ON_DEMAND)) as app:
            assert left_over() == []
            assert [hit.tool.id for hit in (await app.search("echo", limit=1)).hits] == ["raw:echo"]
            result = await app.call("raw:echo", {"n": 3})
            assert result.content[0]["text"] == '{"n": 3}'


async def test_on_demand_a_call_of_a_server_that_cannot_be_started_says_why(changing: ChangingServer) -> None:
    state = MemoryStore()
    await remember(changing.options, state)
    changing.behave(**FAILING)
    async with run_of(changing.options, state, ON_DEMAND) as server:
        with pytest.raises(ServerUnavailable, match="exited with code 3: Error: no database"):
            await server.call_tool(CTX, "echo", {})
        assert (server.status.state, server.status.cached) == (ServerState.DEGRADED, True)


async def test_on_demand_an_unknown_server_is_started_at_once(changing: ChangingServer) -> None:
    async with run_of(changing.options, MemoryStore(), ON_DEMAND) as server:
        await until(server, lambda: server.status.state is READY)
        assert "echo" in [tool.name for tool in server.tools]
        assert not server.status.cached


async def test_a_call_waits_for_the_first_start_of_a_known_server(changing: ChangingServer) -> None:
    state = MemoryStore()
    await remember(changing.options, state)
    changing.wait_at_gate()
    impatient = replace(FAST, connect_wait_s=0.01)
    async with run_of(changing.options, state, impatient) as server, anyio.create_task_group() as group:
        group.start_soon(changing.open_gate)
        assert await call_json(server, "echo", n=2) == {"n": 2}


async def test_a_server_that_hung_at_its_last_start_is_remembered_until_it_answers(changing: ChangingServer) -> None:
    state = MemoryStore()
    changing.behave(discover="ignore", version="ignore")
    hasty = replace(changing.options, start_timeout_s=0.2)
    async with run_of(hasty, state) as server:
        await until(server, lambda: server.status.hung)
    changing.behave()
    async with run_of(changing.options, state) as server:
        history = [server.status.hung]
        await until(server, lambda: server.status.state is READY)
        history.append(server.status.hung)
    async with run_of(changing.options, state) as server:
        history.append(server.status.hung)
    assert history == [True, False, False]


class CountingStore(MemoryStore):
    """Counts the writes of catalogs."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def table(self, name: str, codec: StateCodec[V], **limits: Any) -> StateTable[V]:
        return (
            CountedTable(self, super().table(name, codec, **limits))
            if name == "catalogs"
            else super().table(name, codec)
        )


class CountedTable(Generic[V]):
    def __init__(self, store: CountingStore, table: StateTable[V]) -> None:
        self._store = store
        self.get = table.get
        self.set = table.set
        self.delete = table.delete
        self.items = table.items
        self._update = table.update

    async def update(self, key: str, change: Callable[[V | None], tuple[V | None, R]], **more: Any) -> R:
        self._store.writes += 1
        return await self._update(key, change, **more)


async def test_a_catalog_is_written_once_and_not_again_while_nothing_changes(changing: ChangingServer) -> None:
    state = CountingStore()
    await remember(changing.options, state)
    assert state.writes == 1
    await remember(changing.options, state)
    assert state.writes == 1
    changing.behave(tools={"new": {"inputSchema": {"type": "object"}}})
    await remember(changing.options, state)
    assert state.writes == 2


@pytest.mark.parametrize(
    "entry",
    [
        {"format": 0},
        [],
        {"format": 1, "catalog": {"read_at": "yesterday"}},
        {"format": 1, "catalog": {"tools": 5}},
        {"format": 1, "catalog": [5]},
        {"format": 1, "catalog": {"server": 5, "hung": "yes"}},
        {"format": 1, "catalog": {"tools": [{"name": "x"}], "accepted": [1]}},
        {"format": 1, "catalog": {"tools": [{"name": "x"}], "info": {"name": 3}}},
        {"format": 1, "catalog": {"tools": [{"name": "x"}], "rejected": [{"tool": 1, "reason": "x"}]}},
        {"format": 1, "catalog": {"tools": [1, {"name": 5}, {"name": "x", "inputSchema": 7}]}},
        {"format": 1, "catalog": {"documents": {"prompts": {"a": 1}, "resources": {"b": {"uri": 3}}}}},
    ],
)
async def test_an_entry_that_cannot_be_read_is_ignored(changing: ChangingServer, tmp_path: Path, entry: Any) -> None:
    async with SqliteStore(tmp_path / "state.sqlite") as state:
        key = await CatalogCache(state).key(changing.options, "")
    async with SqliteStore(tmp_path / "state.sqlite") as state:
        await state.table("catalogs", StateCodec(_same, _same), durable=True).set(key, entry)
    async with SqliteStore(tmp_path / "state.sqlite") as state:
        server = await remember(changing.options, state)
        assert "echo" in names(server)


@pytest.mark.parametrize("secret", ["no number", "ab" * 100, "", 5])
async def test_a_secret_that_cannot_be_read_is_replaced(changing: ChangingServer, tmp_path: Path, secret: Any) -> None:
    async with SqliteStore(tmp_path / "state.sqlite") as state:
        await state.table("catalog_secret", StateCodec(_same, _same), durable=True).set("key", secret)
    async with SqliteStore(tmp_path / "state.sqlite") as state:
        key = await CatalogCache(state).key(changing.options, "")
    async with SqliteStore(tmp_path / "state.sqlite") as state:
        assert await CatalogCache(state).key(changing.options, "") == key


def _same(value: Any) -> Any:
    return value


class BrokenStore(MemoryStore):
    """A store that cannot be reached."""

    def table(self, name: str, codec: StateCodec[V], **limits: Any) -> StateTable[V]:
        table = super().table(name, codec, **limits)

        async def fail(*_: Any, **__: Any) -> Any:
            raise StateUnavailable("The store is away.")

        table.get = table.update = fail  # type: ignore[method-assign]  # a store that fails, in place of its methods
        return table


async def test_a_store_that_cannot_be_reached_does_not_keep_a_server_from_starting(
    changing: ChangingServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = await remember(changing.options, BrokenStore())
    assert "echo" in names(server)
    assert "the cached catalog of raw cannot be read: The store is away." in caplog.text
