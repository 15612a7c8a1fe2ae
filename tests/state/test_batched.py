"""Batched tables in a file: changes are seen here at once, and written together later."""

from pathlib import Path

import anyio
import pytest

from toolcrib.errors import StateUnavailable
from toolcrib.state import batched as module
from toolcrib.state.base import StateCodec, StateTable
from toolcrib.state.batched import BatchedTable
from toolcrib.state.memory import MemoryStore
from toolcrib.state.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

NUMBERS: StateCodec[int] = StateCodec(int, int)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def one_more(value: int | None) -> tuple[int, int]:
    return (value or 0) + 1, (value or 0) + 1


def counts(store: SqliteStore, *, batched: bool = True) -> StateTable[int]:
    return store.table("counts", NUMBERS, durable=True, batched=batched)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


async def test_a_change_is_seen_at_once_and_written_when_the_store_closes(file: Path) -> None:
    async with SqliteStore(file) as store, SqliteStore(file) as other:
        table = counts(store)
        assert [await table.update("a", one_more) for _ in range(3)] == [1, 2, 3]
        assert await counts(other, batched=False).get("a") is None
        assert await table.get("a") == 3
    async with SqliteStore(file) as store:
        assert await counts(store).get("a") == 3


async def test_changes_are_written_in_the_background(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_S", 0.01)
    with anyio.fail_after(10):
        async with SqliteStore(file) as store, SqliteStore(file) as other:
            await counts(store).update("a", one_more)
            written = counts(other, batched=False)
            while await written.get("a") is None:  # noqa: ASYNC110 - the other process of the file has no event
                await anyio.sleep(0.01)
            assert await written.get("a") == 1


async def test_two_processes_add_to_each_others_changes(file: Path) -> None:
    async with SqliteStore(file) as store, SqliteStore(file) as other:
        for table in (counts(store), counts(other)):
            for _ in range(10):
                await table.update("a", one_more)
    async with SqliteStore(file) as store:
        assert await counts(store).items() == {"a": 20}


async def test_what_another_process_wrote_is_seen_after_a_few_seconds() -> None:
    clock, inner = Clock(), MemoryStore().table("counts", NUMBERS)
    table = BatchedTable(inner, lambda: None, clock=clock)
    await inner.set("a", 1)
    assert await table.get("a") == 1
    await inner.set("a", 2)
    assert await table.get("a") == 1
    clock.now = 6.0
    assert await table.get("a") == 2


async def test_a_deleted_value_stays_deleted_and_a_replaced_one_replaced() -> None:
    inner = MemoryStore().table("counts", NUMBERS)
    await inner.set("a", 1)
    await inner.set("b", 1)
    table = BatchedTable(inner, lambda: None)
    await table.update("a", one_more)
    await table.delete("a")
    await table.set("b", 7)
    assert (await table.get("a"), await table.get("b"), await inner.get("b")) == (None, 7, 1)
    assert await table.items() == {"b": 7}


async def test_changes_wait_while_the_file_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    inner = MemoryStore().table("counts", NUMBERS)
    table = BatchedTable(inner, lambda: None)
    write = inner.update

    async def away(*_: object, **__: object) -> None:
        raise StateUnavailable("The disk is full.")

    inner.update = away  # type: ignore[method-assign, assignment]
    for _ in range(3):
        await table.update("a", one_more)
        await table.flush()
    assert table.waits
    assert caplog.text.count("The disk is full.") == 1
    inner.update = write  # type: ignore[method-assign]
    await table.flush()
    assert (await inner.get("a"), table.waits) == (3, False)


async def test_at_most_so_many_values_are_remembered_here_and_none_that_waits_is_lost() -> None:
    inner = MemoryStore().table("counts", NUMBERS)
    table = BatchedTable(inner, lambda: None, max_entries=3)
    for key in "abcdefgh":
        await table.update(key, one_more)
    await table.flush()
    assert await inner.items() == dict.fromkeys("abcdefgh", 1)


async def test_a_value_is_read_while_the_changes_of_all_others_wait() -> None:
    inner = MemoryStore().table("counts", NUMBERS)
    await inner.set("b", 1)
    table = BatchedTable(inner, lambda: None, max_entries=1)
    await table.update("a", one_more)
    assert (await table.get("b"), await table.get("a")) == (1, 1)


async def test_a_burst_of_changes_is_written_whole() -> None:
    inner = MemoryStore().table("counts", NUMBERS)
    table = BatchedTable(inner, lambda: None)
    for _ in range(1_000):
        await table.update("a", one_more)
    await table.flush()
    assert await inner.get("a") == 1_000


async def test_a_file_that_cannot_be_read_fails_no_request_and_loses_nothing() -> None:
    inner = MemoryStore().table("counts", NUMBERS)
    await inner.set("a", 1)
    table = BatchedTable(inner, lambda: None)
    read = inner.get

    async def away(_: str) -> None:
        raise StateUnavailable("The disk has failed.")

    inner.get = away  # type: ignore[method-assign, assignment]
    assert await table.get("a") is None
    await table.update("a", one_more)
    inner.get = read  # type: ignore[method-assign]
    await table.flush()
    assert (await inner.get("a"), await table.get("a")) == (2, 2)
