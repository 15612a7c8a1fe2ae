"""Processes that share a state know each other, and answer each other's questions."""

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.redis_server import NEEDS_REDIS, RedisServer

from toolcrib.state.coordination import Answers, Peers
from toolcrib.state.memory import MemoryStore
from toolcrib.state.redis import RedisStore

pytestmark = pytest.mark.anyio


class SharedStore(MemoryStore):
    """State that the peers of this process share."""

    shared = True


@contextlib.asynccontextmanager
async def running(*peers: Peers) -> AsyncIterator[None]:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for one in peers:
                await group.start(one.run)
            yield
            group.cancel_scope.cancel()


def doubles(peers: Peers) -> Peers:
    async def double(number: Any) -> int:
        return 2 * int(number)

    peers.answer("double", double)
    return peers


def by_name(answers: Answers[Any]) -> dict[str, Any]:
    return {peer.name: answer for peer, answer in answers.given.items()}


async def test_every_process_answers_this_one_first() -> None:
    store = SharedStore()
    a, b, c = (doubles(Peers(store, name)) for name in "abc")
    async with running(a, b, c):
        answers = await b.ask("double", 4, read=int)
    assert list(by_name(answers).items()) == [("b", 8), ("a", 8), ("c", 8)]
    assert answers.missing == ()


async def test_one_process_can_be_asked_alone() -> None:
    store = SharedStore()
    a, b, c = (doubles(Peers(store, name)) for name in "abc")
    async with running(a, b, c):
        assert by_name(await a.ask("double", 1, read=int, only=c.own.id)) == {"c": 2}
        assert by_name(await a.ask("double", 1, read=int, only=a.own.id)) == {"a": 2}
        assert await a.ask("double", 1, read=int, only="gone") == Answers()


async def test_a_process_alone_answers_itself_without_running() -> None:
    peers = doubles(Peers(MemoryStore(), "a"))
    assert by_name(await peers.ask("double", 21, read=int)) == {"a": 42}
    with anyio.fail_after(5):
        await peers.run()


async def test_a_process_that_has_ended_is_not_known_any_more() -> None:
    store = SharedStore()
    a, b = (doubles(Peers(store, name)) for name in "ab")
    async with running(a):
        async with running(b):
            assert [peer.name for peer in await a.others()] == ["b"]
        assert await a.others() == ()
        assert by_name(await a.ask("double", 1, read=int)) == {"a": 2}


async def test_a_silent_process_is_named_and_not_waited_for_twice() -> None:
    store = SharedStore()
    a, b = doubles(Peers(store, "a")), Peers(store, "b")
    asked = anyio.Event()

    async def never(_: Any) -> None:
        asked.set()
        await anyio.sleep_forever()

    b.answer("double", never)
    async with running(a, b):
        first = await a.ask("double", 1, read=int, timeout_s=0.05)
        assert asked.is_set()
        assert [peer.name for peer in first.missing] == ["b"]
        with anyio.fail_after(2):  # less than the timeout of the question
            again = await a.ask("double", 1, read=int, timeout_s=60)
    assert [peer.name for peer in again.missing] == ["b"]
    assert by_name(again) == {"a": 2}


async def test_answers_that_fail_or_cannot_be_read_are_missing(caplog: pytest.LogCaptureFixture) -> None:
    store = SharedStore()
    a, b, c, d = doubles(Peers(store, "a")), Peers(store, "b"), Peers(store, "c"), Peers(store, "d")

    async def fail(_: Any) -> int:
        raise RuntimeError("broken")

    async def other(_: Any) -> str:
        return "not a number"

    b.answer("double", fail)
    c.answer("double", other)
    async with running(a, b, c, d):
        with caplog.at_level(logging.ERROR):
            answers = await a.ask("double", 1, read=int)
    assert by_name(answers) == {"a": 2}
    assert [peer.name for peer in answers.missing] == ["b", "c", "d"]
    assert "a question of another process about double failed" in caplog.text


@NEEDS_REDIS
async def test_processes_find_each_other_in_redis_and_go_on_alone_without_it(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        async with RedisStore(server.url) as one, RedisStore(server.url) as two:
            a, b = doubles(Peers(one, "a")), doubles(Peers(two, "b"))
            async with running(a, b):
                assert by_name(await a.ask("double", 4, read=int)) == {"a": 8, "b": 8}
                server.kill()
                assert by_name(await a.ask("double", 4, read=int, timeout_s=0.5))["a"] == 8
    finally:
        server.kill()
