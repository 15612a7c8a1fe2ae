"""A gateway with an embedder: which thread does the work, and what happens if it fails."""

import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import anyio
import numpy as np
import pytest

from toolcrib.gateway import indexing
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.indexing import BackgroundVectors, RequestEmbedder
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.search.options import SearchOptions
from toolcrib.search.vectors import Vectors
from toolcrib.testing import FakeProvider, FakeSource, ready
from toolcrib.types import Caller, Context, SearchRequest, Tool

pytestmark = pytest.mark.anyio

ME = Context(caller=Caller(id="me"))
SHOW_ALL = SearchOptions(nothing_below=0)
AT_ONCE = GatewayOptions(search=SHOW_ALL, search_wait_s=0, list_wait_s=0, idle_s=0, retry_s=0)
RETRYING = replace(AT_ONCE, retry_s=0.01)
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
async def embedding(
    embedder: Topics, *tools: Tool, options: GatewayOptions = AT_ONCE, policy: ByScopes | None = None
) -> AsyncIterator[Running]:
    """A running gateway with the embedder and all tools in its snapshot."""
    provider = FakeProvider(tools or (MAIL, CLOCK), status=ready("post", tools=2))
    source = FakeSource(provider)
    gateway = Gateway([source], options=options, embedder=embedder, policy=policy)
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


async def test_many_tools_of_a_request_are_compared_by_words_only() -> None:
    topics = Topics()
    mine = FakeProvider([Tool(name=f"bring_{at}", namespace="mine", description="Bring a letter.") for at in range(65)])
    async with embedding(topics, CLOCK) as it:
        assert "mine:bring_64" in await it.found("bring_64", ME.with_providers(mine))
        assert "mine" not in " ".join(topics.asked)
        await it.gateway.refresher.wait_idle()
        assert not any("mine" in text for text in topics.asked)


async def test_an_embedder_that_fails_for_the_tools_of_a_request_leaves_a_search_by_words() -> None:
    topics = Topics()
    mine = FakeProvider([Tool(name="bring", namespace="mine", description="Bring a letter.")])
    async with embedding(topics, CLOCK) as it:
        topics.broken = True
        assert (await it.found("bring a letter", ME.with_providers(mine)))[:1] == ["mine:bring"]


async def test_each_tool_is_embedded_once() -> None:
    topics = Topics()
    async with embedding(topics) as it:
        before = len(topics.asked)
        await it.changed(MAIL, CLOCK, Tool(name="more", namespace="post", description="More."))
        await it.gateway.refresher.wait_idle()
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
                await anyio.to_thread.run_sync(begun.wait, 10)
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
    async with embedding(topics, options=RETRYING) as it:
        assert (await it.found("hand over a letter"))[:1] == ["post:deliver"]
        topics.broken = False
        while (await it.found("zorblax"))[:1] != ["post:deliver"]:
            await it.gateway.refresher.wait_changed()


async def test_a_tool_that_comes_while_the_embedder_fails_is_embedded_later() -> None:
    topics = Topics()
    async with embedding(topics, CLOCK, options=RETRYING) as it:
        topics.broken = True
        await it.changed(CLOCK, MAIL)
        assert (await it.found("hand over a letter"))[:1] == ["post:deliver"]
        topics.broken = False
        while (await it.found("zorblax"))[:1] != ["post:deliver"]:
            await it.gateway.refresher.wait_changed()


@pytest.mark.parametrize("vectors", [np.zeros((3, 2), np.float32), np.full((2, 2), np.nan, np.float32)])
async def test_invalid_vectors_are_a_failure(vectors: Vectors) -> None:
    class Odd(Topics):
        def embed(self, texts: Sequence[str]) -> Vectors:
            return vectors

    given = await RequestEmbedder(Odd(), 10).embed(["a", "b"])
    assert (given.vectors, given.failure) == ({}, "ValueError")


async def test_a_service_that_is_down_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "toolcrib")
    topics = Topics()
    embedder = RequestEmbedder(topics, 10)
    for broken in (True, True, False, False):
        topics.broken = broken
        await embedder.embed(["a"])
    assert [record.getMessage() for record in caplog.records] == [
        "the embedder topics failed; only words are compared",
        "the embedder topics works again",
    ]


class Stuck(Topics):
    """Does not answer requests until `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.calls = 0

    def embed(self, texts: Sequence[str]) -> Vectors:
        if len(texts) == 1 and not texts[0].startswith(("deliver", "now")):
            self.calls += 1
            self.go_on.wait(20)
        return super().embed(texts)


async def test_a_search_waits_for_an_embedder_no_longer_than_the_deadline() -> None:
    stuck = Stuck()
    async with embedding(stuck, options=replace(AT_ONCE, embed_timeout_s=0.01)) as it:
        try:
            for _ in range(3):
                reply = await it.gateway.search(ME, asked("hand over a letter"))
                assert reply.hits[0].tool.id == "post:deliver"
                assert reply.note.endswith("The embedder failed (TimeoutError), so only words were compared.")
            assert stuck.calls == 1  # while it has not answered, it is not asked again
        finally:
            stuck.go_on.set()


async def test_cancelled_requests_leave_no_more_than_one_call_behind() -> None:
    stuck = Stuck()
    embedder = RequestEmbedder(stuck, 0.5)
    try:
        for _ in range(3):
            async with anyio.create_task_group() as group:
                group.start_soon(embedder.embed, ["a"])
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
        assert stuck.calls == 1
    finally:
        stuck.go_on.set()


async def test_requests_that_waited_for_others_in_vain_do_not_end_the_use_of_the_embedder() -> None:
    stuck = Stuck()
    embedder = RequestEmbedder(stuck, 0.05)
    try:
        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(embedder.embed, ["a"])
    finally:
        stuck.go_on.set()
    with anyio.fail_after(5):
        while (answer := await embedder.embed(["a"])).failure:  # noqa: ASYNC110 - a thread ends without an event
            await anyio.sleep(0.01)
    assert list(answer.vectors) == ["a"]


async def test_while_tools_are_being_embedded_a_search_uses_the_vectors_that_are_there_and_says_so() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Topics):
        def embed(self, texts: Sequence[str]) -> Vectors:
            if any("later" in text for text in texts):
                begun.set()
                go_on.wait(20)
            return super().embed(texts)

    later = Tool(name="later", namespace="post", description="Hand over a parcel later.")
    async with embedding(Slow(), MAIL, CLOCK) as it:
        try:
            await it.changed(MAIL, CLOCK, later)
            await anyio.to_thread.run_sync(begun.wait, 10)
            reply = await it.gateway.search(ME, asked("zorblax"))
            assert reply.hits[0].tool.id == "post:deliver"
            assert reply.note.endswith("Some tools are not embedded yet, so only their words were compared.")
            assert (await it.found("hand over a parcel"))[:1] == ["post:later"]
        finally:
            go_on.set()
        await it.gateway.refresher.wait_idle()
        assert "embedded" not in (await it.gateway.search(ME, asked("zorblax"))).note


async def test_a_hidden_tool_without_a_vector_is_not_mentioned() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Topics):
        def embed(self, texts: Sequence[str]) -> Vectors:
            if any("secret" in text for text in texts):
                begun.set()
                go_on.wait(20)
            return super().embed(texts)

    secret = Tool(name="secret", namespace="vault", description="A letter that nobody may read.")
    policy = ByScopes([Rule(tools=("vault:*",), effect="hide")])
    async with embedding(Slow(), MAIL, CLOCK, policy=policy) as it:
        before = await it.gateway.search(ME, asked("zorblax"))
        try:
            await it.changed(MAIL, CLOCK, secret)
            await anyio.to_thread.run_sync(begun.wait, 10)
            during = await it.gateway.search(ME, asked("zorblax"))
        finally:
            go_on.set()
        await it.gateway.refresher.wait_idle()
        after = await it.gateway.search(ME, asked("zorblax"))
    assert before == during == after


async def test_many_tools_are_embedded_in_batches_and_the_log_shows_the_progress(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "toolcrib")
    monkeypatch.setattr(indexing, "_PROGRESS_S", -1.0)
    topics = Topics()
    tools = [Tool(name=f"tool_{number}", description="Do it.") for number in range(100)]
    async with embedding(topics, *tools):
        pass
    told = [message for message in caplog.messages if message.startswith("embedded")]
    assert told[:2] == ["embedded 32 of 100 tools with topics", "embedded 64 of 100 tools with topics"]
    assert told[-1].startswith("embedded 100 tools with topics in ")


def test_a_text_without_a_vector_waits_once_and_its_row_is_known_after_the_next_batch() -> None:
    woken: list[str] = []
    vectors = BackgroundVectors(Topics(), lambda: woken.append("woken"))
    assert vectors.rows(["a letter", "an hour", "a letter"]).scales.tolist() == [0, 0, 0]
    vectors.rows(["an hour"])
    assert (vectors.waiting(), woken) == (2, ["woken"])
    assert [vectors.embed_next(), vectors.embed_next()] == [2, 0]
    found = vectors.rows(["an hour", "a letter"])
    assert (found.values / 127).tolist() == [[0, 1], [1, 0]]
    assert found.scales.tolist() == pytest.approx([1 / 127, 1 / 127])
    assert len(vectors.rows([])) == 0


def test_tools_of_requests_replace_no_vectors_of_shared_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "_MAX_VECTORS", 2)
    monkeypatch.setattr(indexing, "_MAX_OF_REQUESTS", 2)
    vectors, topics = _vectors_of("a letter", "an hour")
    for number in range(9):
        vectors.embed_of_request([f"letter {number}", "an hour"])
    assert vectors.rows(["a letter", "an hour", "letter 8"]).scales.all()
    assert "an hour" not in topics.asked
    vectors.rows(["letter 0"])
    assert vectors.waiting() == 1


def test_a_tool_of_a_request_that_could_not_be_embedded_does_not_wait() -> None:
    vectors, topics = _vectors_of("a letter")
    topics.broken = True
    with pytest.raises(ConnectionError):
        vectors.embed_of_request(["another letter"])
    assert vectors.rows(["another letter"]).scales.tolist() == [0]
    assert vectors.waiting() == 0
    topics.broken = False
    vectors.embed_of_request(["another letter"])
    assert vectors.rows(["another letter"]).scales.all()


def _vectors_of(*texts: str) -> tuple[BackgroundVectors, Topics]:
    """The vectors of these texts, and their embedder."""
    topics = Topics()
    vectors = BackgroundVectors(topics, lambda: None)
    vectors.rows(texts)
    vectors.embed_next()
    topics.asked.clear()
    return vectors, topics
