"""Refreshes in the background, while no caller waits."""

import contextlib
import threading
from collections.abc import Hashable, Sequence

import anyio
import anyio.to_thread
import numpy as np
import pytest

from toolcrib import App, Settings, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.options import GatewayOptions
from toolcrib.search.index import Index
from toolcrib.search.vectors import Vectors
from toolcrib.testing import FakeProvider, FakeSource, running
from toolcrib.types import Action, Caller, Context, Decision, Object, SearchReply, SearchRequest, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
OTHER = Context(caller=Caller(id="other"))
NEVER = GatewayOptions(search_wait_s=0, list_wait_s=0, idle_s=float("inf"))
AT_ONCE = GatewayOptions(search_wait_s=0, list_wait_s=0, idle_s=0)
NEW = Tool(name="water_plants", namespace="garden", description="Water the plants.")


class Odd:
    """Shows the other caller every second tool."""

    def scope(self, caller: Caller) -> Hashable:
        return caller.id

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        return Decision.HIDE if caller.id == "other" and tool.name.endswith(("0", "2", "4")) else Decision.ALLOW


def tools() -> list[Tool]:
    return [Tool(name=f"read_{number}", namespace="files", description=f"Read file {number}.") for number in range(50)]


def request(query: str) -> SearchRequest:
    return SearchRequest(queries=(query,), explain=True)


async def answers(options: GatewayOptions) -> tuple[list[SearchReply], list[str], int]:
    """The replies to two callers after a change, the versions of their views, and the segments of the index."""
    provider = FakeProvider(tools())
    source = FakeSource(provider)
    with anyio.fail_after(10):
        async with running(source, policy=Odd(), options=options) as gateway:
            provider.tools.append(NEW)
            source.changed()
            await gateway.refresher.wait_current()
            if options.idle_s == 0:
                await gateway.refresher.wait_idle()
            queries = ("water the plants", "read file 7", "")
            replies = [await gateway.search(ctx, request(query)) for ctx in (ME, OTHER) for query in queries]
            versions = [(await gateway.view(ctx)).version for ctx in (ME, OTHER)]
            return replies, versions, len(gateway.refresher.snapshot.index.segments)


async def test_putting_the_index_in_order_changes_nothing_that_anybody_sees() -> None:
    replies, versions, segments = await answers(NEVER)
    assert segments == 2
    assert await answers(AT_ONCE) == (replies, versions, 1)


async def test_a_view_keeps_its_cache_when_only_the_index_changes() -> None:
    provider = FakeProvider(tools())
    source = FakeSource(provider)
    with anyio.fail_after(10):
        async with running(source, options=GatewayOptions(search_wait_s=0, list_wait_s=0, idle_s=0.05)) as gateway:
            provider.tools.append(NEW)
            source.changed()
            await gateway.refresher.wait_current()
            before = await gateway.view(ME)
            await gateway.refresher.wait_idle()
            after = await gateway.view(ME)
    assert after.snapshot is not before.snapshot
    assert after.memo is before.memo


async def test_a_change_does_not_wait_for_the_index_to_be_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, merged = threading.Event(), threading.Event(), Index.merged

    def slow(index: Index) -> Index:
        begun.set()
        go_on.wait(10)
        return merged(index)

    monkeypatch.setattr(Index, "merged", slow)
    provider = FakeProvider(tools())
    source = FakeSource(provider)
    with anyio.fail_after(10):
        async with running(source, options=AT_ONCE) as gateway:
            try:
                await anyio.to_thread.run_sync(begun.wait)
                provider.tools.append(NEW)
                source.changed()
                await gateway.refresher.wait_current()
                assert (await gateway.search(ME, request("water the plants"))).hits[0].tool is NEW
            finally:
                go_on.set()


async def test_an_index_that_cannot_be_put_in_order_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: Index) -> Index:
        raise MemoryError

    monkeypatch.setattr(Index, "merged", fail)
    with anyio.fail_after(10):
        async with running(FakeSource(FakeProvider([NEW])), options=AT_ONCE) as gateway:
            await gateway.refresher.wait_idle()
            assert (await gateway.search(ME, request("water the plants"))).hits[0].tool is NEW


async def test_embedding_that_was_cut_short_by_a_stop_is_done_after_the_next_start() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        name = "slow"
        dim = 2

        def embed(self, texts: Sequence[str]) -> Vectors:
            begun.set()
            go_on.wait(10)
            return np.ones((len(texts), self.dim), dtype=np.float32)

    slow = Slow()
    gateway = Gateway([FakeSource(FakeProvider([NEW]))], options=AT_ONCE, embedder=slow)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await anyio.to_thread.run_sync(begun.wait)
            group.cancel_scope.cancel()
        go_on.set()
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await gateway.refresher.wait_idle()
            assert gateway.refresher.snapshot.index.model.embedder is not None
            group.cancel_scope.cancel()


class Unreporting:
    """A provider that reports no changes and does not say how long its list is valid."""

    def __init__(self, *names: str) -> None:
        self.offered = list(names)
        self.lists = 0

    async def list_tools(self, ctx: Context) -> list[Tool]:
        self.lists += 1
        return [Tool(name=name, description=f"The {name} of the bakery.") for name in self.offered]

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> str:
        return f"called {name}"


@pytest.mark.parametrize("cache_s", [0.0, 60.0])
@pytest.mark.parametrize("started", [True, False])
async def test_a_providers_new_tool_can_be_called_at_once(
    cache_s: float, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcrib.gateway.provider_state._DOUBT_FACTOR", 0)  # a busy machine may take long to list
    app, provider = App(Settings(gateway=GatewayOptions(provider_cache_s=cache_s))), Unreporting("bread")
    app.add_provider(provider)
    async with contextlib.AsyncExitStack() as stack:
        if started:
            await stack.enter_async_context(app)
        with anyio.fail_after(10):
            assert (await app.call("bread")).text == "called bread"
            provider.offered.append("muffin")
            assert (await app.call("muffin")).text == "called muffin"
            assert [hit.tool.name for hit in (await app.search("muffin")).hits][:1] == ["muffin"]


async def test_a_search_that_finds_nothing_has_unreported_tools_read_for_the_next_one() -> None:
    app, provider = App(), Unreporting("bread")
    app.add_provider(provider)
    with anyio.fail_after(10):
        async with app:
            await app.search("bread")
            provider.offered.append("muffin")
            await app.search("muffin")
            await app.gateway.refresher.wait_current()
            assert [hit.tool.name for hit in (await app.search("muffin")).hits][:1] == ["muffin"]


async def test_misspelt_names_do_not_have_a_slow_provider_list_its_tools_each_time() -> None:
    class Slow(Unreporting):
        async def list_tools(self, ctx: Context) -> list[Tool]:
            await anyio.sleep(0.05)
            return await super().list_tools(ctx)

    app, provider = App(), Slow("bread")
    app.add_provider(provider)
    with anyio.fail_after(20):
        async with app:
            await app.call("bread")
            listed = provider.lists
            for number in range(100):
                with pytest.raises(ToolNotFound):
                    await app.call(f"bred{number}")
            assert provider.lists <= listed + 2


@pytest.mark.parametrize("seconds", [0.0, 0.5, 5.0, 3600.0])
async def test_a_provider_is_asked_again_before_a_tool_is_missing_however_long_its_list_is_valid(
    seconds: float,
) -> None:
    class Sure(Unreporting):
        cache_for_s = seconds

    app, provider = App(), Sure("bread")
    app.add_provider(provider)
    with anyio.fail_after(10):
        async with app:
            assert (await app.call("bread")).text == "called bread"
            provider.offered.append("muffin")
            assert (await app.call("muffin")).text == "called muffin"
            listed = provider.lists
            assert (await app.call("bread")).text == "called bread"
            assert provider.lists <= listed + (seconds < 1)  # polled each second at most


async def test_the_thread_that_builds_an_index_leaves_nothing_for_the_first_search_to_compute() -> None:
    provider = FakeProvider(tools())
    source = FakeSource(provider)
    with anyio.fail_after(10):
        async with running(source, options=NEVER) as gateway:
            provider.tools.append(NEW)
            source.changed()
            await gateway.refresher.wait_current()
            segments = gateway.refresher.snapshot.index.segments
            known = [{*segment.memo, *vars(segment)} for segment in segments]
            await gateway.search(ME, request("qwxzv zzqy"))
            await gateway.search(ME, request("watr the plants"))
    assert len(segments) == 2
    assert [{*segment.memo, *vars(segment)} for segment in segments] == known
