"""The Redis store: several replicas, Redis killed and paused, and what happens to state meanwhile."""

import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.redis_server import NEEDS_REDIS, RedisServer, running_redis

from toolcrib.errors import ApprovalRequired, ConnectionLost, MissingExtra, ServerUnavailable, StateUnavailable
from toolcrib.gateway.options import SessionOptions
from toolcrib.gateway.sessions import Sessions
from toolcrib.middleware.approval import ApprovalBinding, ApprovalTokens
from toolcrib.middleware.breaker import CircuitBreaker
from toolcrib.middleware.limits import RateMiddleware
from toolcrib.middleware.options import BreakerOptions, RateOptions
from toolcrib.server.auth.api_keys import ApiKeyTable
from toolcrib.state.base import StateCodec
from toolcrib.state.coordination import Counters, Leases
from toolcrib.state.options import StateOptions
from toolcrib.state.redis import RedisStore
from toolcrib.state.stores import make_store
from toolcrib.types import LOCAL, Call, Caller, Context, Tool, ToolResult

pytestmark = [pytest.mark.anyio, NEEDS_REDIS, pytest.mark.slow]

NUMBERS: StateCodec[int] = StateCodec(int, int)


def increment(old: int | None) -> tuple[int, int]:
    return (old or 0) + 1, (old or 0) + 1


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path) as server:
        yield server


@asynccontextmanager
async def replicas(redis: RedisServer, timeout_s: float = 0.5) -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    async with RedisStore(redis.url, timeout_s=timeout_s) as one, RedisStore(redis.url, timeout_s=timeout_s) as two:
        yield one, two


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(20):
        while not await condition():  # noqa: ASYNC110 - another process has no event
            await anyio.sleep(0.02)


async def test_a_change_that_is_being_written_when_the_store_closes_is_written_once(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, scripts = anyio.Event(), RedisStore.scripts

    async def slow_answers(*arguments: Any) -> Any:
        answers = await scripts(*arguments)
        written.set()
        await anyio.sleep(0.2)
        return answers

    monkeypatch.setattr(RedisStore, "scripts", slow_answers)
    with anyio.fail_after(20):
        async with RedisStore(redis.url, timeout_s=5) as store:
            await store.table("numbers", NUMBERS, batched=True).update("n", increment)
            await written.wait()
        async with RedisStore(redis.url, timeout_s=5) as store:
            assert await store.table("numbers", NUMBERS).get("n") == 1


async def test_replicas_share_values_and_lose_no_update(redis: RedisServer) -> None:
    async with replicas(redis, timeout_s=10) as stores:
        tables = [store.table("numbers", NUMBERS) for store in stores]

        async def count(index: int) -> None:
            for _ in range(25):
                await tables[index].update("n", increment)

        async with anyio.create_task_group() as group:
            for index in (0, 1) * 4:
                group.start_soon(count, index)
        assert [await table.get("n") for table in tables] == [200, 200]


async def test_gateways_with_other_prefixes_share_nothing(redis: RedisServer) -> None:
    async with RedisStore(redis.url, prefix="one") as one, RedisStore(redis.url, prefix="two") as two:
        await one.table("numbers", NUMBERS).set("a", 1)
        assert await two.table("numbers", NUMBERS).get("a") is None
        assert await two.clear() == 0
        assert [(table.name, table.entries) for table in await one.tables()] == [("numbers", 1)]
        assert await one.clear("numbers") == 1
        assert await one.tables() == ()


async def test_a_message_reaches_the_subscribers_of_all_replicas(redis: RedisServer) -> None:
    async with replicas(redis) as (one, two):
        with anyio.fail_after(10):
            async with one.channel("news").subscribe() as here, two.channel("news").subscribe() as there:
                await one.channel("news").publish({"n": 1})
                assert [await anext(here), await anext(there)] == [{"n": 1}, {"n": 1}]


async def test_while_redis_is_away_state_is_kept_here_and_written_when_it_is_back(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with replicas(redis) as (one, two):
        table = one.table("numbers", NUMBERS)
        await table.set("n", 5)
        await table.set("old", 1)
        redis.kill()
        assert await table.update("n", increment) == 6
        assert await table.update("n", increment) == 7
        await table.set("new", 1)
        await table.delete("old")
        assert await table.items() == {"n": 7, "new": 1}
        status = one.status()
        assert status.away_since is not None
        assert status.waiting == 3
        assert status.place == redis.url
        redis.start()
        other = two.table("numbers", NUMBERS)

        async def is_written() -> bool:
            return await other.items() == {"n": 7, "new": 1}

        await until(is_written)
        assert await table.get("n") == 7
    assert "is away, so state is kept in this process" in caplog.text
    assert "is back after" in caplog.text


async def test_changes_of_two_replicas_while_redis_was_away_add_up(redis: RedisServer) -> None:
    async with replicas(redis) as stores:
        counters = [Counters(store, "calls") for store in stores]
        await counters[0].add("a", 10)
        assert await counters[1].get("a") == 10
        redis.kill()
        for one in counters:
            for _ in range(5):
                await one.add("a")
        redis.start()

        async def is_complete() -> bool:
            return [await one.get("a") for one in counters] == [20, 20]

        await until(is_complete)


async def test_a_change_whose_answer_was_lost_is_not_made_again(redis: RedisServer) -> None:
    class LosesAnswer(RedisStore):
        loses = False

        async def run(self, work: Callable[[Any], Awaitable[Any]], *, probing: bool = False, **more: bool) -> Any:
            done = await super().run(work, probing=probing, **more)
            if self.loses and not probing and isinstance(done, str):  # what a write answers
                self.loses = False
                self._note_away(TimeoutError())
                raise self._unavailable()
            return done

    async with LosesAnswer(redis.url) as one, RedisStore(redis.url) as two:
        table = one.table("numbers", NUMBERS)
        await table.set("n", 5)
        one.loses = True
        assert await table.update("n", increment) == 6
        assert await table.update("n", increment) == 7

        async def is_back() -> bool:
            return one.status().away_since is None

        await until(is_back)
        assert await two.table("numbers", NUMBERS).get("n") == 7


async def test_a_value_that_was_acknowledged_survives_the_sudden_death_of_redis(redis: RedisServer) -> None:
    async with RedisStore(redis.url) as store:
        for number in range(200):
            await store.table("numbers", NUMBERS).set(str(number), number)
    redis.kill()
    redis.start()
    async with RedisStore(redis.url) as store:
        assert len(await store.table("numbers", NUMBERS).items()) == 200


async def test_a_table_that_is_kept_refuses_everything_while_redis_is_away(redis: RedisServer) -> None:
    async with RedisStore(redis.url) as store:
        table = store.table("spent", NUMBERS, keep=True)
        await table.set("a", 1)
        redis.kill()
        for attempt in (table.get("a"), table.set("b", 1), table.update("b", increment), table.items()):
            with pytest.raises(StateUnavailable, match="cannot be used"):
                await attempt
        redis.start()

        async def is_back() -> bool:
            return store.status().away_since is None

        await until(is_back)
        assert await table.items() == {"a": 1}


async def _publish(store: RedisStore) -> None:
    channel = store.channel("news")
    await channel.publish({"n": 1})
    assert not channel.has_unsent


async def _spend(store: RedisStore) -> None:
    about = ApprovalBinding("ann", "tool", "arguments")
    tokens = ApprovalTokens("a key of a test, long enough", store, expires_s=600, wall=time.time)
    await tokens.spend(tokens.read(tokens.issue("asked", about), about))


FIRST_OPERATIONS: dict[str, Callable[[RedisStore], Awaitable[object]]] = {
    **{
        f"{name} of a table{' that is kept' if keep else ''}": partial(operation, keep)
        for keep in (False, True)
        for name, operation in {
            "get": lambda keep, store: store.table(f"t {keep}", NUMBERS, keep=keep).get("a"),
            "set": lambda keep, store: store.table(f"t {keep}", NUMBERS, keep=keep).set("a", 2),
            "update": lambda keep, store: store.table(f"t {keep}", NUMBERS, keep=keep).update("a", increment),
            "delete": lambda keep, store: store.table(f"t {keep}", NUMBERS, keep=keep).delete("a"),
            "items": lambda keep, store: store.table(f"t {keep}", NUMBERS, keep=keep).items(),
        }.items()
    },
    "counter": lambda store: Counters(store, "counts").add("a"),
    "lease": lambda store: Leases(store, "leases").acquire("a", "me", ttl_s=5),
    "channel": _publish,
    "approval": _spend,
    "key": lambda store: ApiKeyTable(store).create(Caller(id="ann"), lasts_s=None),
    "list of tables": lambda store: store.tables(),
    "clear": lambda store: store.clear("t True"),
}


@pytest.mark.parametrize("operation", FIRST_OPERATIONS)
async def test_the_first_operation_after_a_restart_of_redis_is_like_any_other(
    redis: RedisServer, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    async with RedisStore(redis.url, timeout_s=5) as store:
        async with anyio.create_task_group() as group:
            for number in range(4):  # several connections are used, and kept
                group.start_soon(store.table("t True", NUMBERS, keep=True).set, str(number), number)
        await store.table("t False", NUMBERS).set("a", 1)
        await anyio.to_thread.run_sync(redis.kill)
        await anyio.to_thread.run_sync(redis.start)
        with caplog.at_level(logging.WARNING, "toolcrib"), anyio.fail_after(20):
            await FIRST_OPERATIONS[operation](store)
        assert [record.getMessage() for record in caplog.records] == []
        assert store.status().away_since is None


async def test_a_value_is_read_again_if_its_connection_turns_out_to_have_ended(redis: RedisServer) -> None:
    async with RedisStore(redis.url, timeout_s=5) as store:
        table = store.table("kept", NUMBERS, keep=True)
        await table.set("a", 1)
        # Without a turn of the event loop in between, nothing can have noticed before the value is asked for.
        with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as other:
            other.sendall(b"CLIENT KILL TYPE normal\r\n")
            other.recv(64)
        assert await table.get("a") == 1
        assert store.status().away_since is None


async def test_one_operation_notices_that_redis_hangs_and_the_next_ones_do_not_wait(redis: RedisServer) -> None:
    async with RedisStore(redis.url, timeout_s=0.3) as store:
        table = store.table("numbers", NUMBERS)
        await table.set("n", 1)
        redis.pause()
        try:
            with anyio.fail_after(2):
                assert await table.get("n") == 1
            with anyio.fail_after(20):  # 200 deadlines would be a minute
                for number in range(200):
                    assert await table.update("n", increment) == number + 2
        finally:
            redis.resume()

        async def is_back() -> bool:
            return store.status().away_since is None

        await until(is_back)
        assert await table.get("n") == 201


async def test_a_gateway_starts_while_redis_is_away(redis: RedisServer) -> None:
    redis.kill()
    async with RedisStore(redis.url) as store:
        assert await store.table("numbers", NUMBERS).update("n", increment) == 1
        redis.start()

        async def is_back() -> bool:
            return store.status().away_since is None

        await until(is_back)
        assert await store.table("numbers", NUMBERS).get("n") == 1


async def test_subscribers_learn_that_messages_may_be_lost_when_redis_was_away(redis: RedisServer) -> None:
    async with replicas(redis) as (one, two):
        with anyio.fail_after(20):
            async with two.channel("news").subscribe() as messages:
                redis.kill()
                await one.channel("news").publish({"n": "lost"})
                redis.start()
                assert await anext(messages) is None
                while one.status().away_since is not None:  # noqa: ASYNC110 - until then it publishes to itself
                    await anyio.sleep(0.02)
                await one.channel("news").publish({"n": 2})
                while (message := await anext(messages)) is None:
                    pass
                assert message == {"n": 2}


async def test_others_learn_of_a_message_that_only_this_replica_could_not_send(redis: RedisServer) -> None:
    async with replicas(redis) as (one, two):
        with anyio.fail_after(20):
            async with two.channel("news").subscribe() as messages:
                one._note_away(TimeoutError())
                await one.channel("news").publish({"n": "lost"})
                assert await anext(messages) is None


async def test_batched_changes_are_seen_here_at_once_and_by_other_replicas_soon(redis: RedisServer) -> None:
    async with replicas(redis) as (one, two):
        tables = [store.table("learned", NUMBERS, batched=True) for store in (one, two)]
        assert await tables[0].update("n", increment) == 1
        assert await tables[1].update("n", increment) == 1
        assert await tables[0].get("n") == 1

        async def is_merged() -> bool:
            return [await table.get("n") for table in tables] == [2, 2]

        await until(is_merged)


async def test_batched_changes_are_written_when_a_store_is_closed(redis: RedisServer) -> None:
    async with RedisStore(redis.url) as store:
        await store.table("learned", NUMBERS, batched=True).update("n", increment)
    async with RedisStore(redis.url) as store:
        assert await store.table("learned", NUMBERS, batched=True).get("n") == 1


async def test_no_error_and_no_log_has_the_password(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    redis.kill()
    caplog.set_level(logging.DEBUG)
    url = redis.url.replace("redis://", "redis://ann:hunter2secret@")
    async with RedisStore(url, password="another-secret") as store:
        with pytest.raises(StateUnavailable) as failure:
            await store.table("spent", NUMBERS, keep=True).get("a")
        shown = f"{failure.value} {failure.value.hint} {store.status()} {caplog.text}"
    assert "hunter2secret" not in shown
    assert "another-secret" not in shown


async def test_an_approval_is_spent_once_by_all_gateways_and_by_none_while_redis_is_away(redis: RedisServer) -> None:
    about = ApprovalBinding("ann", "tool", "arguments")
    async with replicas(redis) as stores:
        one, two = (ApprovalTokens("a key of a test, long enough", s, expires_s=600, wall=time.time) for s in stores)
        token = one.issue("asked", about)
        await two.spend(two.read(token, about))
        with pytest.raises(ApprovalRequired, match="used before"):
            await one.spend(one.read(token, about))
        redis.kill()
        with pytest.raises(StateUnavailable):
            await one.spend(one.read(one.issue("asked", about), about))


async def test_a_rate_holds_for_all_gateways_together(redis: RedisServer) -> None:
    rate = RateOptions(per_second=0.01, burst=3)
    async with replicas(redis, timeout_s=10) as stores:
        limits = [RateMiddleware(rate, (), store, wall=time.time) for store in stores]
        waits = [await limit.take(Caller(id="ann"), "tool") for _ in range(4) for limit in limits]
        assert [wait > 0 for wait in waits] == [False] * 3 + [True] * 5


async def test_a_breaker_that_one_gateway_opens_opens_for_the_others_too(redis: RedisServer) -> None:
    call = Call(tool=Tool(name="t"), arguments={}, backend="server")
    ctx = Context(caller=LOCAL)

    async def fail(ctx: Context, call: Call) -> ToolResult:
        raise ConnectionLost("It broke.")

    async def succeed(ctx: Context, call: Call) -> ToolResult:
        return ToolResult()

    async with replicas(redis) as stores:
        one, two = (CircuitBreaker(BreakerOptions(failures=2, open_s=600), s, wall=time.time) for s in stores)
        await two(ctx, call, succeed)
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await one(ctx, call, fail)

        async def is_open() -> bool:
            try:
                await two(ctx, call, succeed)
            except ServerUnavailable:
                return True
            return False

        await until(is_open)


async def test_what_a_session_used_at_one_gateway_ranks_higher_at_the_others(redis: RedisServer) -> None:
    ctx = Context(caller=Caller(id="ann"), session="s")
    async with replicas(redis) as stores:
        one, two = (Sessions(SessionOptions(), store) for store in stores)
        await one.record(ctx, "git:log", success=True)

        async def is_known() -> bool:
            return "git:log" in await two.boosts(ctx)

        await until(is_known)
        assert "git:log" in await two.boosts(ctx)


def test_without_the_client_library_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.delitem(sys.modules, "toolcrib.state.redis")
    with pytest.raises(MissingExtra, match=r"State in Redis needs the library 'redis'.*toolcrib\[redis\]"):
        make_store(StateOptions(url="redis://127.0.0.1:1"))


async def test_what_redis_refuses_is_kept_here_and_written_later(redis: RedisServer) -> None:
    async with RedisStore(redis.url) as store, RedisStore(redis.url) as other:
        await store.run(lambda client: client.config_set("maxmemory", "1"))
        table = store.table("numbers", NUMBERS)
        assert await table.update("n", increment) == 1
        assert await table.update("n", increment) == 2
        with pytest.raises(StateUnavailable, match="used memory"):
            await store.table("spent", NUMBERS, keep=True).set("a", 1)
        await store.run(lambda client: client.config_set("maxmemory", "0"))

        async def is_written() -> bool:
            return await other.table("numbers", NUMBERS).get("n") == 2

        await until(is_written)
