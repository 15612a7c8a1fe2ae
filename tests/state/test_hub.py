"""The state that workers share in the memory of their supervisor."""

from collections.abc import AsyncIterator

import anyio
import pytest
from tests.contract.test_stores import NUMBERS, hub_stores

from toolcrib.errors import StateUnavailable
from toolcrib.state import local_copies
from toolcrib.state.hub import HubStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stores() -> AsyncIterator[list[HubStore]]:
    async with hub_stores(3, lambda: 0.0) as made:
        yield made


def increment(old: int | None) -> tuple[int, int]:
    return (old or 0) + 1, (old or 0) + 1


async def test_workers_lose_no_update(stores: list[HubStore]) -> None:
    async def count(store: HubStore) -> None:
        for _ in range(25):
            await store.table("numbers", NUMBERS).update("n", increment)

    async with anyio.create_task_group() as group:
        for store in stores * 2:
            group.start_soon(count, store)
    assert [await store.table("numbers", NUMBERS).get("n") for store in stores] == [150] * 3


async def test_batched_changes_of_workers_add_up(stores: list[HubStore]) -> None:
    with anyio.fail_after(20):
        for store in stores:
            table = store.table("numbers", NUMBERS, batched=True)
            assert await table.update("n", increment) == 1
        while await stores[0].table("seen", NUMBERS).get("n") != 3:
            await stores[0].table("seen", NUMBERS).set("n", (await stores[0].table("numbers", NUMBERS).items())["n"])
            await anyio.sleep(0.05)


async def test_a_batched_value_whose_copy_was_dropped_is_read_again(
    stores: list[HubStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copies, "MAX_COPIES", 2)
    for key, value in (("a", 1), ("b", 2), ("c", 3)):
        await stores[1].table("numbers", NUMBERS).set(key, value)
    table = stores[0].table("numbers", NUMBERS, batched=True)
    assert [await table.get(key) for key in "abacb"] == [1, 2, 1, 3, 2]


async def test_a_message_reaches_the_subscribers_of_all_workers(stores: list[HubStore]) -> None:
    with anyio.fail_after(10):
        async with stores[0].channel("news").subscribe() as here, stores[1].channel("news").subscribe() as there:
            await stores[2].channel("news").publish({"n": 1})
            assert [await anext(here), await anext(there)] == [{"n": 1}, {"n": 1}]


async def test_a_worker_whose_supervisor_has_ended_keeps_what_may_be_lost_and_refuses_what_may_not() -> None:
    async with hub_stores(1, lambda: 0.0) as [store]:
        spent = store.table("spent", NUMBERS, keep=True)
        rates = store.table("rates", NUMBERS)
        await spent.set("a", 1)
        await rates.set("a", 1)
        store._hub._end()
        assert await rates.update("a", increment) == 2
        with pytest.raises(StateUnavailable, match="supervisor's memory cannot be used"):
            await spent.get("a")
