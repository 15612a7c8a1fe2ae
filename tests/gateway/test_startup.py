"""What a session's first requests wait for while servers start, and what replies say about servers that are missing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import anyio
import pytest

from toolcrib.errors import ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running, text_of
from toolcrib.types import (
    PATH_META,
    Action,
    Caller,
    Context,
    Decision,
    Filters,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
)

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"), session="mine")
LONG = GatewayOptions(search_wait_s=1000, list_wait_s=1000)
BRIEF = GatewayOptions(search_wait_s=0.02, list_wait_s=0.02)
NOTHING_FITS = SearchRequest(queries=("convert the time in tokyo",))

_T = TypeVar("_T")


class Slow(FakeProvider):
    """A server that is starting until the test says how that ends."""

    def __init__(self, name: str, **status: Any) -> None:
        super().__init__([], status=ready(name, state=ServerState.CONNECTING, **status))
        self.name = name

    def become_ready(self) -> None:
        self.tools = [Tool(name="convert_time", namespace=self.name, description="Convert the time between zones.")]
        self.status = ready(self.name, tools=1)

    def fail(self) -> None:
        self.status = ready(self.name, state=ServerState.FAILED, reason="exited with code 1")


class Starting:
    """A running gateway over one server that works, and slow ones."""

    def __init__(self, gateway: Gateway, source: FakeSource, *slow: Slow) -> None:
        self.gateway, self.source, self.slow = gateway, source, slow

    async def ends(self, waiting: "asyncio.Task[_T]") -> _T:
        """Check that the task waits; let every server become ready, and return the task's result."""
        await anyio.wait_all_tasks_blocked()
        assert not waiting.done()
        for server in self.slow:
            server.become_ready()
        self.source.changed()
        return await waiting


def notes() -> FakeProvider:
    return FakeProvider([Tool(name="add_note", namespace="notes", description="Add a note.")], status=ready("notes"))


@asynccontextmanager
async def starting(*slow: Slow, options: GatewayOptions = LONG, **more: Any) -> AsyncIterator[Starting]:
    source = FakeSource(notes(), *slow)
    with anyio.fail_after(20):
        async with running(source, options=options, **more) as gateway:
            yield Starting(gateway, source, *slow)


def in_background(work: Awaitable[_T]) -> "asyncio.Task[_T]":
    return asyncio.ensure_future(work)


async def do_not_wait() -> NoReturn:
    raise AssertionError("it waits")


async def test_the_first_search_waits_for_servers_that_are_starting() -> None:
    async with starting(Slow("time"), Slow("maps")) as it:
        reply = await it.ends(in_background(it.gateway.search(ME, NOTHING_FITS)))
    assert reply.hits[0].tool.name == "convert_time"
    assert (reply.servers, reply.note) == ((), "")


async def test_a_server_that_fails_ends_the_wait_for_it() -> None:
    async with starting(Slow("time")) as it:
        waiting = in_background(it.gateway.search(ME, NOTHING_FITS))
        await anyio.wait_all_tasks_blocked()
        it.slow[0].fail()
        it.source.changed()
        reply = await waiting
    assert reply.note.startswith("Nothing fits")
    assert [server.reason for server in reply.servers] == ["exited with code 1"]


@pytest.mark.parametrize(
    ("slow", "note"),
    [
        ([Slow("time")], "1 server is still starting; search again in a few seconds."),
        ([Slow("time"), Slow("maps")], "2 servers are still starting; search again in a few seconds."),
    ],
)
@pytest.mark.parametrize("query", ["convert the time in tokyo", ""])
async def test_a_reply_counts_the_servers_that_are_missing_when_the_time_is_up(
    slow: list[Slow], note: str, query: str
) -> None:
    async with starting(*slow, options=BRIEF) as it:
        reply = await it.gateway.search(ME, SearchRequest(queries=(query,)))
    assert reply.note == note
    assert {server.name for server in reply.servers} == {server.name for server in slow}


async def test_a_reply_with_missing_servers_still_says_which_queries_were_left_out() -> None:
    async with starting(Slow("time"), options=BRIEF) as it:
        reply = await it.gateway.search(ME, SearchRequest(queries=("xyzzy",) * 40))
    assert reply.note.startswith("1 server is still starting; search again in a few seconds. The last ")


async def test_only_the_first_search_of_a_session_waits() -> None:
    async with starting(Slow("time"), options=BRIEF) as it:
        await it.gateway.search(ME, NOTHING_FITS)
        it.gateway.refresher.wait_changed = do_not_wait  # type: ignore[method-assign]  # fails a search that waits
        assert "still starting" in (await it.gateway.search(ME, NOTHING_FITS)).note
        with pytest.raises(AssertionError, match="it waits"):
            await it.gateway.search(replace(ME, session="another"), NOTHING_FITS)


async def test_a_server_that_is_added_later_is_waited_for_by_the_next_search() -> None:
    async with starting(Slow("time"), options=BRIEF) as it:
        await it.gateway.search(ME, NOTHING_FITS)
        it.slow[0].fail()
        it.source.changed()
        await it.gateway.refresher.wait_settled()
        await it.gateway.search(ME, NOTHING_FITS)
        it.source.replace(notes(), Slow("maps"))
        await it.gateway.refresher.wait_changed()
        it.gateway.refresher.wait_changed = do_not_wait  # type: ignore[method-assign]  # fails a search that waits
        with pytest.raises(AssertionError, match="it waits"):
            await it.gateway.search(ME, NOTHING_FITS)


@pytest.mark.parametrize("known", [{"cached": True}, {"hung": True}])
async def test_no_search_waits_for_a_server_that_hung_before_or_whose_tools_are_known(known: dict[str, Any]) -> None:
    async with starting(Slow("time", **known)) as it:
        reply = await it.gateway.search(ME, NOTHING_FITS)
        assert ("still starting" in reply.note) == ("hung" in known)
        assert ("Nothing fits" in reply.note) == ("cached" in known)
        it.slow[0].become_ready()
        it.slow[0].status = replace(it.slow[0].status or ready("time"), state=ServerState.CONNECTING, **known)
        it.source.changed()
        await it.gateway.refresher.wait_current()
        assert (await it.gateway.search(ME, NOTHING_FITS)).hits[0].tool.name == "convert_time"


async def test_a_search_of_one_server_does_not_wait_for_others() -> None:
    only_notes = replace(NOTHING_FITS, filters=Filters(namespaces=frozenset({"notes"})))
    async with starting(Slow("time")) as it:
        reply = await it.gateway.search(ME, only_notes)
        assert reply.servers == ()
        assert "starting" not in reply.note
        only_time = replace(NOTHING_FITS, filters=Filters(namespaces=frozenset({"time"})))
        assert (await it.ends(in_background(it.gateway.search(ME, only_time)))).hits


class NotesOnly:
    """Shows only the server `notes`."""

    def scope(self, caller: Caller) -> str:
        return ""

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.ALLOW if tool.namespace == "notes" else Decision.HIDE


async def test_a_search_neither_waits_for_nor_mentions_a_server_that_the_caller_may_not_see() -> None:
    async with starting(Slow("time"), policy=NotesOnly()) as it:
        reply = await it.gateway.search(ME, NOTHING_FITS)
    assert reply.servers == ()
    assert reply.note.startswith("Nothing fits")


async def test_another_gateways_search_does_not_wait() -> None:
    async with starting(Slow("time")) as it:
        reply = await it.gateway.search(replace(ME, meta={PATH_META: ["other"]}), NOTHING_FITS)
    assert "1 server is still starting" in reply.note


# -- what clients see ------------------------------------------------------------------------------------------------


async def test_a_client_that_asks_for_progress_sees_how_many_servers_have_started() -> None:
    seen: list[tuple[float, float | None, str | None]] = []
    more = anyio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
        more.set()

    async with starting(Slow("time"), Slow("maps")) as it, connect(it.gateway) as client:
        call = client.call_tool("tool_search", {"query": "convert the time"}, progress_callback=note)
        waiting = in_background(call)
        await more.wait()
        it.slow[0].become_ready()
        it.source.changed()
        more = anyio.Event()
        await more.wait()
        await it.ends(waiting)
    assert seen[:2] == [(0, 2, "0 of 2 servers have started"), (1, 2, "1 of 2 servers have started")]


async def test_the_text_of_a_reply_never_says_that_nothing_fits_while_servers_are_missing() -> None:
    async with starting(Slow("time"), options=BRIEF) as it, connect(it.gateway) as client:
        result = await client.call_tool("tool_search", {"query": "convert the time in tokyo"})
    assert text_of(result).startswith("[]")
    assert "1 server is still starting; search again in a few seconds." in text_of(result)
    assert "fits" not in text_of(result)
    assert "instead" not in text_of(result)


async def server_lines(gateway: Gateway) -> list[str]:
    """The lines of the digest of servers that a new client gets in the first meta-tool's description."""
    async with connect(gateway) as client:
        description = (await client.list_tools()).tools[0].description or ""
    return description.partition("Servers:\n")[2].splitlines()


async def test_meta_tools_are_listed_at_once_and_a_missing_server_is_only_named() -> None:
    async with starting(Slow("time"), Slow("maps", cached=True)) as it:
        assert await server_lines(it.gateway) == ["- notes: add", "- maps (no tools)", "- time"]
        for server in it.slow:
            server.become_ready()
        it.source.changed()
        await it.gateway.refresher.wait_settled()
        assert await server_lines(it.gateway) == [
            "- maps: zones, time, convert",
            "- notes: add",
            "- time: zones, convert",
        ]


async def test_the_first_list_of_all_tools_waits_for_servers_that_are_starting() -> None:
    direct = SurfaceOptions(surfaces=("direct",))
    async with starting(Slow("time")) as it, connect(it.gateway, direct) as client:
        page = await it.ends(in_background(client.list_tools()))
        assert [tool.name for tool in page.tools] == ["notes__add_note", "time__convert_time"]
    async with starting(Slow("time"), options=BRIEF) as it, connect(it.gateway, direct) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["notes__add_note"]


async def test_list_servers_waits_for_servers_that_are_starting() -> None:
    progressive = SurfaceOptions(surfaces=("progressive",))
    async with starting(Slow("time")) as it, connect(it.gateway, progressive) as client:
        result = await it.ends(in_background(client.call_tool("list-servers", {})))
    assert [server["state"] for server in (result.structured_content or {})["servers"]] == ["ready", "ready"]


@pytest.mark.parametrize("call", [("search_tools", {"query": "convert the time"}), ("list_tools", {})])
async def test_the_dynamic_surface_waits_and_says_what_is_missing(call: tuple[str, dict[str, Any]]) -> None:
    dynamic = SurfaceOptions(surfaces=("dynamic",))
    async with starting(Slow("time")) as it, connect(it.gateway, dynamic) as client:
        found = (await it.ends(in_background(client.call_tool(*call)))).structured_content or {}
        assert "time:convert_time" in str(found)
        assert "note" not in found
    async with starting(Slow("time"), options=BRIEF) as it, connect(it.gateway, dynamic) as client:
        found = (await client.call_tool(*call)).structured_content or {}
        assert found["note"] == "1 server is still starting; search again in a few seconds."


async def test_an_idle_server_is_not_a_problem() -> None:
    idle = FakeProvider(
        [Tool(name="convert_time", namespace="time", description="Convert the time.")],
        status=ServerStatus(name="time", state=ServerState.IDLE, since=0, cached=True, tools=1),
    )
    with anyio.fail_after(5):
        async with running(FakeSource(notes(), idle), options=LONG) as gateway:
            reply = await gateway.search(ME, NOTHING_FITS)
            assert (reply.hits[0].tool.name, reply.servers, reply.note) == ("convert_time", (), "")
            assert "- time: convert" in await server_lines(gateway)


@pytest.mark.parametrize("state", [ServerState.IDLE, ServerState.CONNECTING])
async def test_a_misspelt_tool_of_a_server_with_known_tools_is_refused_at_once_with_the_nearest_names(
    state: ServerState,
) -> None:
    tools = [Tool(name="convert_time", namespace="time", description="Convert the time.")]
    known = FakeProvider(tools, status=ready("time", state=state, cached=True, tools=1))
    with anyio.fail_after(5):
        async with running(FakeSource(notes(), known), options=LONG) as gateway:
            with pytest.raises(ToolNotFound) as caught:
                await gateway.call(ME, "time:convert_tmie")
    assert caught.value.suggestions == ("time:convert_time",)
