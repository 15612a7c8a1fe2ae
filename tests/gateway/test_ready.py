"""A server is reported ready only when its tools can be found."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import mcp
import pytest
from tests.upstream.in_process import sdk_server

from toolcrib.app import App
from toolcrib.errors import ServerUnavailable, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import Snapshot, empty_snapshot
from toolcrib.settings.options import Settings
from toolcrib.testing import FakeProvider, FakeSource, ready, running
from toolcrib.types import BackendKind, Caller, Context, SearchRequest, ServerState, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
QUIET = GatewayOptions(search_wait_s=0, list_wait_s=0)
MAIL = [Tool(name="send_mail", namespace="mail", description="Send a mail.")]
FILES = [Tool(name="read_file", namespace="files", description="Read a file.")]


class FakeServers(FakeSource):
    """A changing set of remote servers, which requests do not wait for."""

    kind = BackendKind.MCP


class Held:
    """Waits before it builds any snapshot but the empty one."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.builds = 0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    hold, build = Held(), Snapshot.build

    def wait(offers: Any, previous: Any, **more: Any) -> Snapshot:
        hold.builds += 1
        if any(tool.namespace == "mail" for offer in offers for tool in offer.tools):
            hold.begun.set()
            assert hold.go_on.wait(10)
        return build(offers, previous, **more)

    monkeypatch.setattr(Snapshot, "build", wait)
    yield hold
    hold.go_on.set()


@contextlib.asynccontextmanager
async def coming(held: Held, source: FakeSource, provider: FakeProvider) -> AsyncIterator[Gateway]:
    """A gateway whose server `mail` has connected, and whose tools are being indexed."""
    with anyio.fail_after(10):
        async with running(source) as gateway:
            provider.tools, provider.status = list(MAIL), ready("mail", tools=1)
            source.changed()
            await anyio.to_thread.run_sync(held.begun.wait)
            try:
                yield gateway
            finally:
                held.go_on.set()


async def test_a_server_is_ready_for_all_to_see_only_once_its_tools_can_be_found(held: Held) -> None:
    mail = FakeProvider([], status=ready("mail", state=ServerState.CONNECTING))
    async with coming(held, FakeServers(FakeProvider(FILES), mail), mail) as gateway:
        (status,) = gateway.refresher.statuses()
        assert (status.state, status.reason) == (ServerState.CONNECTING, "its tools are being loaded")
        reply = await gateway.search(ME, SearchRequest(queries=("send a mail",)))
        assert [one.name for one in reply.servers] == ["mail"]
        assert not any(hit.tool in MAIL for hit in reply.hits)
        held.go_on.set()
        await gateway.refresher.wait_settled()
        reply = await gateway.search(ME, SearchRequest(queries=("send a mail",)))
        assert (reply.servers, reply.hits[0].tool) == ((), MAIL[0])
        assert gateway.refresher.statuses() == (mail.status,)


@pytest.mark.parametrize("state", [ServerState.IDLE, ServerState.CONNECTING, ServerState.DEGRADED])
async def test_the_first_search_waits_until_remembered_tools_can_be_found(held: Held, state: ServerState) -> None:
    mail = FakeProvider([], status=ready("mail", state=ServerState.CONFIGURED))
    source = FakeServers(FakeProvider(FILES), mail)
    with anyio.fail_after(10):
        async with running(source, options=GatewayOptions(search_wait_s=1000)) as gateway:
            mail.tools, mail.status = list(MAIL), ready("mail", state=state, cached=True, tools=1)
            source.changed()
            await anyio.to_thread.run_sync(held.begun.wait)
            (status,) = gateway.refresher.statuses()
            assert (status.state, status.cached) == (ServerState.CONNECTING, False)
            search = asyncio.ensure_future(gateway.search(ME, SearchRequest(queries=("send a mail",))))
            await anyio.wait_all_tasks_blocked()
            assert not search.done()
            held.go_on.set()
            assert (await search).hits[0].tool == MAIL[0]
            assert gateway.refresher.statuses() == (mail.status,)


class Unhurried(FakeProvider):
    """A provider of this process that lists its tools when it may."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools)
        self.may_list = anyio.Event()

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        await self.may_list.wait()
        return await super().list_tools(ctx)


async def test_the_first_search_and_call_find_a_tool_of_this_process_however_long_its_list_and_its_index_take(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.gateway.refresh._POLL_WAIT_S", 0.0)  # as if the machine were busy
    mail = Unhurried(MAIL)
    with anyio.fail_after(10):
        async with App(Settings(gateway=QUIET)) as app:
            await app.settled()
            app.add_provider(mail)
            searching = asyncio.create_task(app.search("send a mail"))
            calling = asyncio.create_task(app.call("mail:send_mail"))
            await app.gateway.refresher.wait_changed()  # a snapshot without it
            await anyio.wait_all_tasks_blocked()
            mail.may_list.set()
            await anyio.to_thread.run_sync(held.begun.wait)
            await anyio.wait_all_tasks_blocked()
            assert not searching.done()
            held.go_on.set()
            assert (await searching).hits[0].tool.id == "mail:send_mail"
            assert not (await calling).is_error


async def test_a_provider_of_this_process_that_does_not_answer_holds_requests_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.gateway.refresh._LOCAL_WAIT_S", 0.01)
    with anyio.fail_after(10):
        async with App(Settings(gateway=QUIET)) as app:
            app.add_provider(Unhurried(MAIL))
            app.add_provider(FakeProvider(FILES))
            assert not (await app.call("files:read_file")).is_error
            with pytest.raises(ToolNotFound):
                await app.call("mail:send_mail")


async def test_a_call_of_a_tool_that_is_being_taken_in_waits_for_it(held: Held) -> None:
    mail = FakeProvider([], status=ready("mail", state=ServerState.CONNECTING))
    async with coming(held, FakeServers(FakeProvider(FILES), mail), mail) as gateway:
        async with anyio.create_task_group() as group:
            group.start_soon(gateway.call, ME, "mail:send_mail")
            await gateway.call(ME, "files:read_file")  # no other caller waits
            assert mail.calls == []
            held.go_on.set()
    assert mail.calls == [("send_mail", {})]


@pytest.mark.parametrize("state", [ServerState.CONNECTING, ServerState.IDLE, ServerState.DEGRADED])
async def test_the_first_search_and_a_call_wait_until_tools_of_an_earlier_run_can_be_found(
    held: Held, state: ServerState
) -> None:
    known = ready("mail", state=state, cached=True, stale=state is ServerState.DEGRADED, tools=1)
    source = FakeServers(FakeProvider(FILES), FakeProvider(MAIL, status=known))
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            gateway = Gateway([source])
            await group.start(gateway.refresher.run)
            await anyio.to_thread.run_sync(held.begun.wait)
            searching = asyncio.create_task(gateway.search(ME, SearchRequest(queries=("send mail",))))
            calling = asyncio.create_task(gateway.call(ME, "mail:send_mail", {}))
            await anyio.wait_all_tasks_blocked()
            assert not searching.done()
            assert not calling.done()
            held.go_on.set()
            assert (await searching).hits[0].tool.id == "mail:send_mail"
            assert not (await calling).is_error
            assert await gateway.servers(ME) == (known,)
            group.cancel_scope.cancel()


async def test_a_server_that_is_back_is_stale_until_its_new_tools_are_in(held: Held) -> None:
    lost = ready("mail", state=ServerState.DEGRADED, reason="connection lost", stale=True)
    mail = FakeProvider(FILES, status=lost)
    async with coming(held, FakeServers(mail), mail) as gateway:
        assert gateway.refresher.statuses() == (lost,)
        assert not gateway.refresher.is_connecting()


async def test_a_server_that_fails_meanwhile_is_reported_at_once(held: Held) -> None:
    mail = FakeProvider([], status=ready("mail", state=ServerState.CONNECTING))
    source = FakeServers(mail)
    async with coming(held, source, mail) as gateway:
        mail.status = ready("mail", state=ServerState.FAILED, reason="exited")
        source.changed()
        assert [status.reason for status in gateway.refresher.statuses()] == ["exited"]


async def test_tools_that_cannot_be_taken_in_leave_their_server_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    empty_snapshot()  # is built once in a process

    def fail(offers: Any, previous: Any, **more: Any) -> Snapshot:
        raise MemoryError

    monkeypatch.setattr(Snapshot, "build", fail)
    with anyio.fail_after(5):
        async with running(FakeServers(FakeProvider(MAIL, status=ready("mail", tools=1)))) as gateway:
            (status,) = gateway.refresher.statuses()
            assert (status.state, status.tools) == (ServerState.DEGRADED, 0)
            assert "could not be loaded" in status.reason
            with pytest.raises(ServerUnavailable, match="could not be loaded"):
                await gateway.call(ME, "mail:send_mail")


async def test_changes_that_come_while_tools_are_taken_in_are_taken_in_together(held: Held) -> None:
    mail = FakeProvider([], status=ready("mail", state=ServerState.CONNECTING))
    source = FakeServers(mail)
    async with coming(held, source, mail) as gateway:
        before = held.builds
        for number in range(20):
            more = [FakeProvider([Tool(name="act", namespace=f"server_{place}")]) for place in range(number + 1)]
            source.replace(mail, *more)
        held.go_on.set()
        await gateway.refresher.wait_current()
        assert len(await gateway.tools(ME)) == 21
        assert held.builds == before + 1


async def test_readyz_says_ready_only_once_every_servers_tools_can_be_found(held: Held) -> None:
    with anyio.fail_after(10):
        async with App(Settings(gateway=QUIET)) as app:
            transport = httpx2.ASGITransport(app.asgi_mount())
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
                await app.settled()  # or requests would wait for the first snapshot
                app.include(sdk_server("send_mail"), "mail")
                await anyio.to_thread.run_sync(held.begun.wait)
                assert app.fleet.statuses()[0].state is ServerState.READY
                waits = await http.get("/readyz")
                assert (waits.status_code, waits.json()["servers"]) == (503, {"connecting": 1})
                async with mcp.Client(app.server) as client:
                    assert ((await client.list_tools()).tools[0].description or "").endswith("\n- mail")
                held.go_on.set()
                await app.settled()
                answer = await http.get("/readyz")
                assert (answer.status_code, answer.json()) == (
                    200,
                    {"ready": True, "servers": {"ready": 1}, "tools": 1},
                )
                assert [status.state for status in app.statuses()] == [ServerState.READY]


async def test_a_removed_server_is_gone_for_the_next_request() -> None:
    with anyio.fail_after(10):
        async with App(Settings(gateway=QUIET)) as app:
            app.include(sdk_server("send_mail"), "mail")
            app.include(sdk_server("read_file"), "files")
            await app.settled()
            app.remove_server("mail")
            with pytest.raises(ToolNotFound):
                await app.call("mail:send_mail")
            assert [tool.id for tool in await app.tools()] == ["files:read_file"]
            app.remove_server("files")
            assert (await app.search("read a file")).hits == ()


async def test_the_log_says_once_how_many_tools_a_server_has_and_which_were_set_aside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = [Tool(name=f"bad_{n}", namespace="mail", input_schema={"type": "array"}) for n in range(5)]
    mail = FakeProvider([*MAIL, *broken], status=ready("mail", tools=6, protocol="2025-06-18"))
    source = FakeServers(mail)
    with anyio.fail_after(5), caplog.at_level(logging.INFO, "toolcrib.gateway"):
        async with running(source) as gateway:
            source.changed()
            await gateway.refresher.wait_current()
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "mail is ready: 1 tools, protocol 2025-06-18"
    assert said[1].startswith("mail: 5 tools were rejected: bad_0 (")
    assert said[1].endswith(" and 2 more")
    assert len(said) == 2


async def test_a_program_that_changes_its_tools_all_the_time_holds_no_request_for_ever() -> None:
    source = FakeSource(FakeProvider(FILES))
    with anyio.fail_after(10):
        async with running(source, options=QUIET) as gateway:
            gateway.refresher.subscribe(source.changed)  # each snapshot is followed by the next change
            source.changed()
            for _ in range(3):
                assert (await gateway.call(ME, "files:read_file")).text == "read_file {}"
