"""A gateway with an embedder: which thread does the work, and what happens if it fails."""

import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import numpy as np
import pytest

from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.indexing import ResilientEmbedder, embedder_failures
from toolcrib.gateway.options import GatewayOptions
from toolcrib.search.vectors import Vectors
from toolcrib.testing import FakeProvider, FakeSource, ready
from toolcrib.types import Caller, Context, SearchRequest, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
AT_ONCE = GatewayOptions(search_wait_s=0, list_wait_s=0, idle_s=0, retry_s=0)
MAIL = Tool(name="deliver", namespace="post", description="Hand over a letter.")
CLOCK = Tool(name="now", namespace="time", description="Tell the hour.")


class Topics:
    """Knows two topics; fails while `broken`, and records the threads it ran in."""

    name = "topics"
    dim = 2

    def __init__(self) -> None:
        self.broken = False
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.threads.add(threading.get_ident())
        self.asked += texts
        if self.broken:
            raise ConnectionError("https://user:hunter2@models.example.com is down")
        post = [any(word in text.casefold() for word in ("letter", "zorblax")) for text in texts]
        return np.array([[1, 0] if found else [0, 1] for found in post], dtype=np.float32).reshape(-1, 2)


class Running:
    """A running gateway with an embedder."""

    def __init__(self, gateway: Gateway, provider: FakeProvider, source: FakeSource) -> None:
        self.gateway = gateway
        self.provider = provider
        self.source = source

    async def found(self, query: str, ctx: Context = ME) -> list[str]:
        return [hit.tool.id for hit in (await self.gateway.search(ctx, asked(query))).hits]

    async def changed(self, *tools: Tool) -> None:
        self.provider.tools = list(tools)
        self.source.changed()
        await self.gateway.refresher.wait_current()


def asked(query: str) -> SearchRequest:
    return SearchRequest(queries=(query,))


@contextlib.asynccontextmanager
async def embedding(embedder: Topics, *tools: Tool, options: GatewayOptions = AT_ONCE) -> AsyncIterator[Running]:
    """A running gateway with the embedder and all tools in its snapshot."""
    provider = FakeProvider(tools or (MAIL, CLOCK), status=ready("post", tools=2))
    source = FakeSource(provider)
    gateway = Gateway([source], options=options, embedder=embedder)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            await gateway.refresher.wait_idle()
            yield Running(gateway, provider, source)
            group.cancel_scope.cancel()


async def test_a_tool_is_found_by_a_meaning_that_only_the_embedder_knows() -> None:
    async with embedding(Topics()) as it:
        assert (await it.found("zorblax"))[:1] == ["post:deliver"]


async def test_the_event_loop_never_waits_for_an_embedder() -> None:
    topics = Topics()
    mine = FakeProvider([Tool(name="stamp", namespace="mine", description="Stamp a letter.")])
    async with embedding(topics) as it:
        assert "mine:stamp" in await it.found("stamp a letter", ME.with_providers(mine))
    assert topics.threads
    assert threading.get_ident() not in topics.threads


async def test_tools_of_the_request_are_compared_like_shared_ones() -> None:
    mine = FakeProvider([Tool(name="bring", namespace="mine", description="Bring a letter.")])
    async with embedding(Topics(), CLOCK) as it:
        assert (await it.found("zorblax", ME.with_providers(mine)))[:1] == ["mine:bring"]


async def test_each_tool_is_embedded_once() -> None:
    topics = Topics()
    async with embedding(topics) as it:
        before = len(topics.asked)
        await it.changed(MAIL, CLOCK, Tool(name="more", namespace="post", description="More."))
    assert len(topics.asked) == before + 1


async def test_tools_are_found_by_words_while_a_slow_embedder_is_at_work() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Topics):
        def embed(self, texts: Sequence[str]) -> Vectors:
            begun.set()
            go_on.wait(20)
            return super().embed(texts)

    provider = FakeProvider([MAIL])
    source = FakeSource(provider)
    gateway = Gateway([source], options=AT_ONCE, embedder=Slow())
    it = Running(gateway, provider, source)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            await group.start(gateway.refresher.run)
            try:
                await anyio.to_thread.run_sync(begun.wait)
                assert (await it.found("hand over a letter"))[:1] == ["post:deliver"]
                await it.changed(MAIL, CLOCK)
                assert (await it.found("tell the hour"))[:1] == ["time:now"]
            finally:
                go_on.set()
            await gateway.refresher.wait_idle()
            assert (await it.found("zorblax"))[:1] == ["post:deliver"]
            assert len(await gateway.tools(ME)) == 2
            group.cancel_scope.cancel()


async def test_an_embedder_may_be_replaced_by_another() -> None:
    async with embedding(Topics()) as it:
        better = Topics()
        it.gateway.use_embedder(better)
        await it.gateway.refresher.wait_idle()
        assert (await it.found("zorblax"))[:1] == ["post:deliver"]
        assert "zorblax" in better.asked


async def test_without_an_embedder_a_search_stays_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError("a thread was asked for")

    provider = FakeProvider([MAIL])
    gateway = Gateway([FakeSource(provider)], options=AT_ONCE)
    async with anyio.create_task_group() as group:
        await group.start(gateway.refresher.run)
        await gateway.refresher.wait_idle()
        monkeypatch.setattr(anyio.to_thread, "run_sync", refuse)
        assert (await gateway.search(ME, asked("hand over a letter"))).hits
        group.cancel_scope.cancel()


async def test_a_failing_embedder_leaves_a_search_by_words_with_a_note() -> None:
    topics = Topics()
    async with embedding(topics) as it:
        topics.broken = True
        reply = await it.gateway.search(ME, asked("hand over a letter"))
        assert reply.hits[0].tool.id == "post:deliver"
        assert reply.note.endswith("The embedder failed (ConnectionError), so only words were compared.")
        assert "hunter2" not in reply.note
        topics.broken = False
        assert "embedder" not in (await it.gateway.search(ME, asked("hand over a letter"))).note


async def test_tools_that_could_not_be_embedded_are_there_and_embedded_later() -> None:
    topics = Topics()
    topics.broken = True
    async with embedding(topics, options=GatewayOptions(search_wait_s=0, list_wait_s=0, idle_s=0, retry_s=0.01)) as it:
        assert (await it.found("hand over a letter"))[:1] == ["post:deliver"]
        topics.broken = False
        while (await it.found("zorblax"))[:1] != ["post:deliver"]:
            await it.gateway.refresher.wait_changed()


async def test_a_tool_that_comes_while_the_embedder_fails_is_embedded_later() -> None:
    topics = Topics()
    async with embedding(
        topics, CLOCK, options=GatewayOptions(search_wait_s=0, list_wait_s=0, idle_s=0, retry_s=0.01)
    ) as it:
        topics.broken = True
        await it.changed(CLOCK, MAIL)
        assert (await it.found("hand over a letter"))[:1] == ["post:deliver"]
        topics.broken = False
        while (await it.found("zorblax"))[:1] != ["post:deliver"]:
            await it.gateway.refresher.wait_changed()


@pytest.mark.parametrize("vectors", [np.zeros((1, 2), np.float32), np.full((2, 2), np.nan, np.float32)])
def test_invalid_vectors_are_a_failure(vectors: Vectors) -> None:
    class Odd(Topics):
        def embed(self, texts: Sequence[str]) -> Vectors:
            return vectors

    with embedder_failures() as failures:
        assert not ResilientEmbedder(Odd()).embed(["a", "b"]).any()
    assert failures == ["ValueError"]
    assert ResilientEmbedder(Odd()).embed(["a", "b"]).shape == (2, 2)


def test_failures_are_collected_only_inside_the_context() -> None:
    topics = Topics()
    topics.broken = True
    steady = ResilientEmbedder(topics)
    with embedder_failures() as outer:
        with embedder_failures() as inner:
            steady.embed(["a"])
    assert (outer, inner) == ([], ["ConnectionError"])


def test_a_service_that_is_down_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "toolcrib")
    topics = Topics()
    steady = ResilientEmbedder(topics)
    for broken in (True, True, False, False):
        topics.broken = broken
        steady.embed(["a"])
    assert [record.getMessage() for record in caplog.records] == [
        "the embedder topics failed; only words are compared",
        "the embedder topics works again",
    ]
