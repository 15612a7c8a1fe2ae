"""The console of any process shows what all processes that share its state do."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.console.support import Browser, console_app, words
from tests.console.test_approvals import BOT, DELETE, ids, waiting_at

from toolcrib.app import App
from toolcrib.errors import ToolcribError
from toolcrib.options import CallOptions, GatewayOptions, TelemetryOptions
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Caller, Context, ServerState, ServerStatus, Tool, ToolResult

pytestmark = pytest.mark.anyio
PING = Tool(namespace="net", name="ping", description="Reach a host")
ANN = Context(caller=Caller(id="ann"), session="s", memo={})


class SharedStore(MemoryStore):
    """State that the gateways of this process share."""

    shared = True


@asynccontextmanager
async def gateways(*names: str, settings: dict[str, Any] | None = None, **console: Any) -> AsyncIterator[list[App]]:
    """Started gateways with consoles, which share one state."""
    store, apps = SharedStore(), []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            stop = anyio.Event()
            for name in names:
                app = console_app(PING, DELETE, state=store, settings=settings, **{"address": "127.0.0.1:0", **console})
                app.peers.own = replace(app.peers.own, name=name)
                apps.append(app)
                await group.start(running, app, stop)
            yield apps
            stop.set()


async def running(app: App, stop: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    async with app:
        task_status.started()
        await stop.wait()


async def test_the_calls_of_all_processes_are_listed_with_their_process_as_a_filter() -> None:
    async with gateways("east", "west") as (east, west):
        await east.call("net:ping", {"host": "a"}, ctx=ANN)
        await west.call("net:ping", {"host": "b"}, ctx=ANN)
        await west.call("net:ping", {"host": "c"}, ctx=ANN)
        for app in (east, west):
            async with Browser(app) as browser:
                page = await browser.load("/calls")
                assert "3 of the last 3 calls" in words(page)
                assert words(page).count("ann west") == 2
                only = words(await browser.load(f"/calls?process={west.peers.own.id}"))
                assert "2 of the last 2 calls" in only
                assert "ann east" not in only


async def test_the_timeline_of_a_request_on_another_process_shows_the_search_on_this_one() -> None:
    async with gateways("east", "west", content=True) as (east, west):
        await east.search("reach a host", ctx=ANN)
        await west.call("net:ping", {"host": "a-host"}, ctx=ANN)
        async with Browser(east) as browser:
            (path,) = re.findall(rf'href="(/calls/\d+\?at={west.peers.own.id})"', await browser.load("/calls"))
            page = words(await browser.load(path))
            assert "on west" in page
            assert "a-host" in page
            assert "Found by a search for reach a host on east" in page
            gone = await browser.get(path.replace(west.peers.own.id, "00000000"))
            assert gone.status_code == 404


async def test_the_overview_adds_up_calls_and_shows_where_a_server_is_in_another_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateways("east", "west") as (east, west):
        for app in (east, west, west):
            await app.call("net:ping", {}, ctx=ANN)
        with pytest.raises(ToolcribError):
            await west.call("net:missing", {}, ctx=ANN)
        ready = ServerStatus(name="github", state=ServerState.READY, since=1.0, tools=3)
        failed = replace(ready, state=ServerState.FAILED, reason="it has ended")
        monkeypatch.setattr(east.gateway.refresher, "statuses", lambda: (ready,))
        monkeypatch.setattr(west.gateway.refresher, "statuses", lambda: (failed,))
        async with Browser(east) as browser:
            page = words(await browser.load("/"))
            assert "4 calls and 0 searches in the last hour" in page
            assert re.search(r"east \S+ ?\S* 1 of 1 1 \W ", page)
            assert re.search(r"west \S+ ?\S* 0 of 1 3 1", page)
            assert re.search(r"github failed west: failed, it has ended", page)
            assert "net:missing tool not found" in page
            assert "different settings" not in page
            server = words(await browser.load("/servers/github"))
            assert "west: failed, it has ended" in server


async def test_processes_with_different_settings_and_settings_that_are_not_in_use_are_pointed_out() -> None:
    async with gateways("east", "west") as (east, west):
        west.settings = replace(west.settings, section={"policy": "other"})
        west.settings_problem = "toolcrib.toml: line 3 is no TOML"
        async with Browser(east) as browser:
            page = words(await browser.load("/"))
    assert "The processes run with different settings." in page
    assert "The changed settings are not in use west: toolcrib.toml: line 3 is no TOML" in page


async def test_a_call_that_waits_in_one_process_is_allowed_at_the_console_of_another() -> None:
    options = GatewayOptions(calls=CallOptions(approval="always", approval_wait_s=30, audit=True))
    async with gateways("east", "west", settings={"gateway": options}) as (east, west), Browser(west) as browser:
        results: list[ToolResult] = []

        async def call() -> None:
            results.append(await east.call("git:delete", {"repo": "a"}, ctx=BOT))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await waiting_at(west.console.parts.desk)
            (name,) = ids(await browser.load("/approvals"))
            assert (await browser.submit("/approvals", id=name, say="allow")).status_code == 303
    assert [one.structured for one in results] == [{"repo": "a"}]


async def test_usage_and_zero_hits_have_what_every_process_counted_until_now() -> None:
    options = TelemetryOptions(zero_hits=True)
    async with gateways("east", "west", settings={"telemetry": options}) as (east, west), Browser(east) as browser:
        await east.call("net:ping", {}, ctx=ANN)
        await west.call("net:ping", {}, ctx=ANN)
        await west.search("water the tulips", ctx=ANN)
        assert re.search(r"net:ping 2\b", words(await browser.load("/usage")))
        assert "water tulips" in words(await browser.load("/zero-hits"))


async def test_an_open_page_learns_of_calls_in_other_processes() -> None:
    async with gateways("east", "west") as (east, west):
        before = await east.console.parts.processes.versions()
        await west.call("net:ping", {}, ctx=ANN)
        while (now := await east.console.parts.processes.versions()) == before:  # noqa: ASYNC110 - asked once a second
            await anyio.sleep(0.1)
    assert now["calls"] != before["calls"]
    assert now["servers"] == before["servers"]


async def test_a_process_that_does_not_answer_is_named() -> None:
    async with gateways("east", "west") as (east, west):

        async def fail(_: Any) -> None:
            return None

        west.peers.answer("console calls", fail)
        await east.call("net:ping", {}, ctx=ANN)
        async with Browser(east) as browser:
            page = words(await browser.load("/calls"))
    assert "No answer from west: what it did is missing here." in page
    assert "1 of the last 1 calls" in page


async def test_without_other_processes_no_page_speaks_of_any() -> None:
    app = console_app(PING)
    await app.call("net:ping", {}, ctx=ANN)
    async with Browser(app) as browser:
        pages = [words(await browser.load(path)) for path in ("/", "/calls", "/usage")]
    assert not any("process" in page.casefold() for page in pages)
