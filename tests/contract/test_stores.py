"""The contract of state stores: one suite for every store, also for one that encodes its values."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar
from uuid import uuid4

import anyio
import pytest
from tests.redis_server import NEEDS_REDIS, RedisServer, running_redis

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import StateChannel, StateCodec, StateStore, StateTable
from toolcrib.state.coordination import Counters, Leases
from toolcrib.state.hub import HubConnection, HubStore, StateHub
from toolcrib.state.memory import MemoryStore
from toolcrib.state.redis import RedisStore
from toolcrib.state.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

V = TypeVar("V")
R = TypeVar("R")
NUMBERS: StateCodec[int] = StateCodec(int, int)
PAIRS: StateCodec[tuple[str, int]] = StateCodec(list, lambda saved: (str(saved[0]), int(saved[1])))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class JsonTable(Generic[V]):
    """Keeps values as JSON texts, and runs each change twice, as a store outside the process may."""

    def __init__(self, inner: StateTable[str], codec: StateCodec[V]) -> None:
        self._inner = inner
        self._codec = codec

    async def get(self, key: str) -> V | None:
        return self._decode(await self._inner.get(key))

    async def set(self, key: str, value: V, *, ttl_s: float | None = None, size: int = 0) -> None:
        await self._inner.set(key, self._encode(value), ttl_s=ttl_s, size=size)

    async def update(
        self,
        key: str,
        change: Callable[[V | None], tuple[V | None, R]],
        *,
        ttl_s: float | None = None,
        size: int | None = None,
    ) -> R:
        def encoded(text: str | None) -> tuple[str | None, R]:
            change(self._decode(text))
            value, result = change(self._decode(text))
            return (None if value is None else self._encode(value)), result

        return await self._inner.update(key, encoded, ttl_s=ttl_s, size=size)

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    async def items(self) -> dict[str, V]:
        return {key: self._codec.decode(json.loads(text)) for key, text in (await self._inner.items()).items()}

    def _encode(self, value: V) -> str:
        return json.dumps(self._codec.encode(value))

    def _decode(self, text: str | None) -> V | None:
        return None if text is None else self._codec.decode(json.loads(text))


class JsonStore:
    shared = False

    def __init__(self, clock: Clock) -> None:
        self._inner = MemoryStore(clock=clock)

    def table(
        self,
        name: str,
        codec: StateCodec[V],
        *,
        max_entries: int | None = None,
        max_size: int | None = None,
        durable: bool = False,
        keep: bool = False,
        batched: bool = False,
    ) -> StateTable[V]:
        texts: StateCodec[str] = StateCodec(str, str)
        return JsonTable(self._inner.table(name, texts, max_entries=max_entries, max_size=max_size, keep=keep), codec)

    def channel(self, name: str) -> StateChannel:
        return self._inner.channel(name)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class DurableStore:
    """An SQLite store that is asked to keep every table on disk."""

    shared = False

    def __init__(self, inner: SqliteStore) -> None:
        self._inner = inner

    def table(
        self,
        name: str,
        codec: StateCodec[V],
        *,
        max_entries: int | None = None,
        max_size: int | None = None,
        durable: bool = True,
        keep: bool = False,
        batched: bool = False,
    ) -> StateTable[V]:
        return self._inner.table(name, codec, max_entries=max_entries, max_size=max_size, durable=True, keep=keep)

    def channel(self, name: str) -> StateChannel:
        return self._inner.channel(name)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


REDIS = pytest.param("redis", marks=[NEEDS_REDIS, pytest.mark.slow])


@asynccontextmanager
async def hub_stores(count: int, clock: Callable[[], float]) -> AsyncIterator[list[HubStore]]:
    """The stores of several workers, as the supervisor connects them."""
    hub = StateHub(clock=clock)
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(anyio.create_task_group())
        stores = []
        for _ in range(count):
            theirs, ours = socket.socketpair()
            group.start_soon(hub.serve, theirs)
            connection = await stack.enter_async_context(HubConnection(ours).open())
            stores.append(await stack.enter_async_context(HubStore(connection, clock=clock)))
        yield stores


@pytest.fixture(params=["memory", "json", "hub", "sqlite", "sqlite, in memory", REDIS])
async def store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> AsyncIterator[StateStore]:
    if request.param == "memory":
        yield MemoryStore(clock=clock)
    elif request.param == "json":
        yield JsonStore(clock)
    elif request.param == "hub":
        async with hub_stores(1, clock) as [own]:
            yield own
    elif request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        async with RedisStore(server.url, prefix=uuid4().hex, timeout_s=5, clock=clock) as shared:
            yield shared
    else:
        async with SqliteStore(tmp_path / "state.sqlite", clock=clock) as made:
            yield DurableStore(made) if request.param == "sqlite" else made


async def test_a_value_is_returned_until_it_is_deleted(store: StateStore) -> None:
    table = store.table("pairs", PAIRS)
    assert await table.get("a") is None
    await table.set("a", ("x", 1))
    assert await table.get("a") == ("x", 1)
    await table.set("a", ("y", 2))
    assert await table.items() == {"a": ("y", 2)}
    await table.delete("a")
    await table.delete("a")
    assert await table.get("a") is None


async def test_tables_are_separate_and_a_name_always_gives_the_same_one(store: StateStore) -> None:
    await store.table("one", NUMBERS).set("key", 1)
    assert await store.table("two", NUMBERS).get("key") is None
    assert await store.table("one", NUMBERS).get("key") == 1


async def test_a_value_expires(store: StateStore, clock: Clock) -> None:
    table = store.table("numbers", NUMBERS)
    await table.set("short", 1, ttl_s=10)
    await table.set("long", 2)
    clock.now += 9.9
    assert await table.get("short") == 1
    clock.now += 0.1
    assert await table.items() == {"long": 2}
    assert await table.get("short") is None


async def test_setting_a_value_again_restarts_its_time(store: StateStore, clock: Clock) -> None:
    table = store.table("numbers", NUMBERS)
    await table.set("a", 1, ttl_s=10)
    clock.now += 6
    await table.set("a", 2, ttl_s=10)
    clock.now += 6
    assert await table.get("a") == 2


async def test_an_update_sees_the_value_and_returns_its_result(store: StateStore, clock: Clock) -> None:
    table = store.table("numbers", NUMBERS)

    def increment(value: int | None) -> tuple[int, str]:
        return (value or 0) + 1, f"was {value}"

    assert await table.update("n", increment, ttl_s=5) == "was None"
    assert await table.update("n", increment, ttl_s=5) == "was 1"
    assert await table.get("n") == 2
    clock.now += 5
    assert await table.update("n", increment) == "was None"


async def test_an_update_can_delete_a_value_and_leaves_it_alone_when_it_raises(store: StateStore) -> None:
    table = store.table("numbers", NUMBERS)
    await table.set("n", 1)

    def fail(value: int | None) -> tuple[int | None, None]:
        raise ValueError(value)

    with pytest.raises(ValueError, match="1"):
        await table.update("n", fail)
    assert await table.get("n") == 1

    def remove(value: int | None) -> tuple[int | None, int | None]:
        return None, value

    assert await table.update("n", remove) == 1
    assert await table.items() == {}


async def test_concurrent_updates_lose_nothing(store: StateStore) -> None:
    table = store.table("numbers", NUMBERS)

    async def count() -> None:
        for _ in range(20):
            await table.update("n", lambda value: ((value or 0) + 1, None))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(count)
    assert await table.get("n") == 200


async def test_a_full_table_drops_the_values_used_least_recently(store: StateStore) -> None:
    table = store.table("numbers", NUMBERS, max_entries=2)
    await table.set("a", 1)
    await table.set("b", 2)
    await table.get("a")
    await table.set("c", 3)
    assert await table.items() == {"a": 1, "c": 3}


async def test_a_table_is_bounded_by_the_sizes_of_its_values(store: StateStore) -> None:
    table = store.table("numbers", NUMBERS, max_size=100)
    await table.set("a", 1, size=60)
    await table.set("b", 2, size=60)
    assert await table.items() == {"b": 2}
    await table.set("huge", 3, size=101)
    assert await table.items() == {"b": 2}
    await table.set("b", 4, size=101)
    assert await table.get("b") is None, "an old value must not outlive the one that replaces it"


async def test_an_updated_value_counts_as_much_as_before_unless_its_size_is_given(store: StateStore) -> None:
    table = store.table("numbers", NUMBERS, max_size=100)

    def increment(value: int | None) -> tuple[int, None]:
        return (value or 0) + 1, None

    await table.set("a", 1, size=60)
    await table.update("a", increment)
    await table.set("b", 1, size=60)
    assert await table.items() == {"b": 1}, "the update must not have made its value weightless"
    await table.update("b", increment, size=10)
    await table.set("c", 1, size=60)
    assert await table.items() == {"b": 2, "c": 1}


async def test_any_text_can_be_a_key(store: StateStore) -> None:
    table = store.table("numbers", NUMBERS)
    for number, key in enumerate(("", "a'b\"c", "ключ", "line\nbreak", "%_")):
        await table.set(key, number)
        assert await table.get(key) == number
    assert len(await table.items()) == 5


async def test_a_table_that_is_kept_refuses_a_value_instead_of_dropping_another(store: StateStore) -> None:
    table = store.table("kept", NUMBERS, max_entries=2, keep=True)
    await table.set("a", 1)
    await table.set("b", 2)
    with pytest.raises(StateUnavailable, match="no room for another value in the table kept"):
        await table.set("c", 3)
    with pytest.raises(StateUnavailable, match="no room"):
        await table.update("c", lambda _: (3, None))
    await table.set("b", 4)
    assert await table.items() == {"a": 1, "b": 4}
    await table.delete("a")
    await table.set("c", 3)
    assert await table.items() == {"b": 4, "c": 3}


async def test_a_table_that_is_kept_has_room_again_once_a_value_has_expired(store: StateStore, clock: Clock) -> None:
    table = store.table("kept", NUMBERS, max_entries=1, keep=True)
    await table.set("a", 1, ttl_s=10)
    clock.now += 10
    await table.set("b", 2)
    assert await table.items() == {"b": 2}


async def test_a_table_that_is_kept_refuses_a_value_beyond_its_size(store: StateStore) -> None:
    table = store.table("kept", NUMBERS, max_size=100, keep=True)
    await table.set("a", 1, size=60)
    for size in (60, 101):
        with pytest.raises(StateUnavailable, match="no room"):
            await table.set("b", 2, size=size)
    await table.set("a", 3, size=100)
    assert await table.items() == {"a": 3}


async def test_counters_add_up_and_are_forgotten_in_time(store: StateStore, clock: Clock) -> None:
    counters = Counters(store, "calls")
    assert await counters.get("a") == 0
    assert await counters.add("a") == 1
    assert await counters.add("a", 4, ttl_s=10) == 5
    assert await counters.add("b", -1) == -1
    assert await counters.items() == {"a": 5, "b": -1}
    clock.now += 10
    assert await counters.get("a") == 0
    await counters.delete("b")
    assert await counters.items() == {}


async def test_a_lease_has_one_owner_at_a_time_until_it_ends(store: StateStore, clock: Clock) -> None:
    leases = Leases(store, "owners")
    first = await leases.acquire("server", "one", ttl_s=10)
    assert first is not None
    assert await leases.acquire("server", "two", ttl_s=10) is None
    clock.now += 6
    assert await leases.renew(first, ttl_s=10)
    clock.now += 6
    assert await leases.holder("server") == first
    assert await leases.acquire("server", "two", ttl_s=10) is None
    clock.now += 4
    assert await leases.holder("server") is None
    second = await leases.acquire("server", "two", ttl_s=10)
    assert second is not None
    assert second.token > first.token
    assert not await leases.renew(first, ttl_s=10), "it ended, and another owner has it"
    await leases.release(first)
    assert await leases.holder("server") == second


async def test_a_lease_that_is_refused_does_not_last_longer_for_it(store: StateStore, clock: Clock) -> None:
    leases = Leases(store, "owners")
    await leases.acquire("server", "one", ttl_s=10)
    clock.now += 9
    assert await leases.acquire("server", "two", ttl_s=10) is None
    clock.now += 1
    assert await leases.acquire("server", "two", ttl_s=10) is not None


async def test_the_owner_of_a_lease_acquires_it_again_under_the_same_token(store: StateStore) -> None:
    leases = Leases(store, "owners")
    first = await leases.acquire("server", "one", ttl_s=10)
    assert await leases.acquire("server", "one", ttl_s=10) == first
    assert await leases.acquire("another", "two", ttl_s=10) is not None


async def test_a_released_lease_is_free_and_its_next_token_is_higher(store: StateStore) -> None:
    leases = Leases(store, "owners")
    first = await leases.acquire("server", "one", ttl_s=10)
    assert first is not None
    await leases.release(first)
    assert await leases.holder("server") is None
    second = await leases.acquire("server", "one", ttl_s=10)
    assert second is not None
    assert second.token > first.token


async def test_a_message_reaches_every_current_subscriber_in_order(store: StateStore) -> None:
    channel = store.channel("news")
    await channel.publish({"n": 0})
    with anyio.fail_after(5):
        async with channel.subscribe() as one, store.channel("news").subscribe() as two:
            await store.channel("other").publish({"n": -1})
            for number in (1, 2):
                await channel.publish({"n": number})
            for messages in (one, two):
                assert [await anext(messages), await anext(messages)] == [{"n": 1}, {"n": 2}]


async def test_a_subscriber_that_is_too_slow_learns_that_messages_were_lost(store: StateStore) -> None:
    channel = store.channel("news")
    with anyio.fail_after(30):
        async with channel.subscribe() as messages:
            for number in range(3_000):
                await channel.publish({"n": number})
            while (message := await anext(messages)) is not None:
                assert message["n"] < 2_999
            await channel.publish({"n": "last"})
            while message != {"n": "last"}:
                message = await anext(messages)
