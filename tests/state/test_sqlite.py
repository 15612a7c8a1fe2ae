"""The SQLite store: restarts, several processes, sudden death, damage, versions and bounds."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import toolcrib.state.sqlite as module
from toolcrib.discovery.session import Session
from toolcrib.errors import SettingsError, StateUnavailable
from toolcrib.state.base import StateCodec, StateTable
from toolcrib.state.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

NUMBERS: StateCodec[int] = StateCodec(int, int)
TEXTS: StateCodec[str] = StateCodec(str, str)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "toolcrib" / "state.sqlite"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_file(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o644)


def content(path: Path) -> bytes:
    return path.read_bytes()


def file_names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def file_size(path: Path) -> int:
    return path.stat().st_size


def numbers(store: SqliteStore, name: str = "numbers", *, max_entries: int | None = None) -> StateTable[int]:
    return store.table(name, NUMBERS, max_entries=max_entries, durable=True)


async def test_a_durable_value_survives_a_restart_and_another_does_not(path: Path) -> None:
    async with SqliteStore(path) as store:
        await numbers(store).set("a", 1)
        await store.table("rates", NUMBERS).set("a", 2)
    async with SqliteStore(path) as store:
        assert await numbers(store).get("a") == 1
        assert await store.table("rates", NUMBERS).get("a") is None


async def test_a_value_that_expired_during_a_restart_is_gone(path: Path) -> None:
    clock = Clock()
    async with SqliteStore(path, clock=clock) as store:
        await numbers(store).set("a", 1, ttl_s=60)
    clock.now += 60
    async with SqliteStore(path, clock=clock) as store:
        assert await numbers(store).items() == {}


async def test_what_was_used_last_is_known_after_a_restart(path: Path) -> None:
    async with SqliteStore(path) as store:
        for key in "abc":
            await numbers(store, max_entries=3).set(key, 1)
        await numbers(store).get("a")
    async with SqliteStore(path) as store:
        await numbers(store, max_entries=3).set("d", 1)
        assert sorted(await numbers(store).items()) == ["a", "c", "d"]


async def test_a_store_can_be_used_again_after_it_was_closed(path: Path) -> None:
    store = SqliteStore(path)
    for number in range(3):
        async with store:
            await numbers(store).set("a", number)
    assert await numbers(store).get("a") == 2
    async with store:
        pass


async def test_the_file_is_made_on_first_use_and_for_its_owner_only(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.table("rates", NUMBERS).set("a", 1)
        with pytest.raises(FileNotFoundError):
            file_names(path.parent)
        await numbers(store).set("a", 1)
        modes = {name: mode(path.parent / name) for name in file_names(path.parent)}
    assert mode(path.parent) == 0o700
    assert modes == {"state.sqlite": 0o600, "state.sqlite-wal": 0o600, "state.sqlite-shm": 0o600}


async def test_an_existing_file_is_made_private(path: Path) -> None:
    write_file(path)
    async with SqliteStore(path) as store:
        await numbers(store).set("a", 1)
    assert mode(path) == 0o600


async def test_a_newer_file_is_refused_and_left_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, ("CREATE TABLE added (x)",)))
        async with SqliteStore(path) as store:
            await numbers(store).set("a", 1)
    before = content(path)
    store = SqliteStore(path)
    numbers(store)
    with pytest.raises(SettingsError, match=r"written by a newer version.*schema 3; this version reads up to 2"):
        async with store:
            pass
    assert content(path) == before
    assert file_names(path.parent) == {"state.sqlite"}


async def test_an_older_file_is_migrated_and_keeps_its_values(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteStore(path) as store:
        await numbers(store).set("a", 1)
    monkeypatch.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, ("ALTER TABLE entries ADD COLUMN note TEXT",)))
    for _ in range(2):
        async with SqliteStore(path) as store:
            assert await numbers(store).get("a") == 1
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (3,)
        assert db.execute("SELECT note FROM entries").fetchall() == [(None,)]
    db.close()


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SqliteStore(path) as store:
        await numbers(store).set("a", 1)
    with monkeypatch.context() as broken:
        steps = ("ALTER TABLE entries ADD COLUMN note TEXT", "ALTER TABLE nothing ADD COLUMN x")
        broken.setattr(module, "_MIGRATIONS", (*module._MIGRATIONS, steps))
        async with SqliteStore(path) as store:
            with pytest.raises(StateUnavailable):
                await numbers(store).set("b", 1)
    async with SqliteStore(path) as store:
        assert await numbers(store).items() == {"a": 1}


async def test_a_database_of_another_program_is_refused_and_left_whole(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mails (subject)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="a database of another program"):
        await numbers(SqliteStore(path)).get("a")
    assert path.read_bytes() == before


async def test_a_damaged_file_is_moved_aside_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_file(path, "not a database, but long enough to look like one" * 100)
    store = SqliteStore(path)
    numbers(store)
    async with store:
        await numbers(store).set("a", 1)
        assert await numbers(store).get("a") == 1
    assert "is damaged" in caplog.text
    assert path.with_name("state.sqlite.damaged").read_text().startswith("not a database")


async def test_damage_that_shows_later_is_handled_too(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with SqliteStore(path) as store:
        for number in range(2_000):
            await numbers(store).set(f"key {number}", number)
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(b"\xff" * 65_536)
    async with SqliteStore(path) as store:
        await numbers(store).items()
        await numbers(store).set("a", 1)
        assert await numbers(store).get("a") == 1
    assert "is damaged" in caplog.text


async def test_without_a_usable_place_state_is_kept_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    async with SqliteStore(tmp_path / "file" / "state.sqlite") as store:
        await numbers(store).set("a", 1)
        assert await numbers(store).get("a") == 1
    assert "cannot be opened, so state is kept in memory" in caplog.text


async def test_a_locked_file_is_an_error_that_names_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUSY_S", 0.01)
    async with SqliteStore(path) as store:
        await numbers(store).set("a", 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateUnavailable, match=r"state\.sqlite cannot be used: database is locked"):
            await numbers(store).set("a", 2)
        assert await numbers(store).get("a") == 1, "readers do not wait for writers"
        other.execute("ROLLBACK")
        other.close()
        await numbers(store).set("a", 3)
        assert await numbers(store).get("a") == 3


async def test_the_file_stays_within_its_size(path: Path) -> None:
    most = 1024 * 1024
    async with SqliteStore(path, max_bytes=most) as store:
        texts = store.table("texts", TEXTS, durable=True)
        for number in range(100):
            await texts.set(str(number), "x" * 50_000)
        kept = await texts.items()
        assert list(kept) == [str(number) for number in range(80, 100)]
        await texts.set("huge", "x" * (most + 1))
        assert await texts.get("huge") is None
        assert len(await texts.items()) == 20
    assert file_size(path) < 1.5 * most


async def test_a_large_table_does_not_push_out_the_values_of_a_small_one(path: Path) -> None:
    async with SqliteStore(path, max_bytes=1024 * 1024) as store:
        await numbers(store, "spent").set("token", 1)
        texts = store.table("texts", TEXTS, durable=True)
        for number in range(50):
            await texts.set(str(number), "x" * 50_000)
        assert await numbers(store, "spent").get("token") == 1


async def test_a_kept_table_is_never_shrunk_and_refuses_what_the_file_has_no_room_for(path: Path) -> None:
    async with SqliteStore(path, max_bytes=1024 * 1024) as store, SqliteStore(path, max_bytes=1024 * 1024) as other:
        kept = store.table("kept", TEXTS, durable=True, keep=True)
        for number in range(15):
            await kept.set(str(number), "x" * 50_000)
        texts = other.table("texts", TEXTS, durable=True)
        for number in range(20):
            await texts.set(str(number), "x" * 50_000)
        assert len(await kept.items()) == 15, "the other store does not know the table, but the file does"
        for number in range(15, 20):
            await kept.set(str(number), "x" * 50_000)
        with pytest.raises(StateUnavailable, match="no room for another value in the table kept"):
            await kept.set("20", "x" * 50_000)
        assert list(await kept.items()) == [str(number) for number in range(20)]
        with pytest.raises(StateUnavailable, match="no room"):
            await kept.set("huge", "x" * (1024 * 1024 + 1))
        assert await kept.get("huge") is None
        await kept.delete("0")
        await kept.set("20", "x" * 50_000)
        assert await kept.get("20") is not None


async def test_expired_values_leave_the_file(path: Path) -> None:
    clock = Clock()
    async with SqliteStore(path, clock=clock) as store:
        await numbers(store).set("a", 1, ttl_s=10)
        clock.now += 10
        await numbers(store).set("b", 1)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT key FROM entries").fetchall() == [("b",)]
        assert db.execute("SELECT entries FROM totals").fetchall() == [(1,)]
    db.close()


async def test_a_value_that_another_version_wrote_counts_as_missing(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.table("numbers", TEXTS, durable=True).set("a", "not a number")
    async with SqliteStore(path) as store:
        assert await numbers(store).get("a") is None
        assert await numbers(store).items() == {}
        assert await numbers(store).update("a", lambda old: (5, old)) is None
        assert await numbers(store).get("a") == 5


@pytest.mark.parametrize("read", [lambda saved: saved.items(), lambda saved: saved[3], Session.from_dict])
async def test_a_value_of_another_shape_counts_as_missing(path: Path, read: Callable[[Any], Any]) -> None:
    written: StateCodec[Any] = StateCodec(list, list)
    async with SqliteStore(path) as store:
        await store.table("things", written, durable=True).set("a", [1])
    async with SqliteStore(path) as store:
        assert await store.table("things", replace(written, decode=read), durable=True).get("a") is None


async def test_a_large_value_comes_back_as_it_was(path: Path) -> None:
    value = {"tools": [{"name": f"t{number}", "text": 'ü"\\\n' * 20, "ok": None} for number in range(5_000)]}
    plain: StateCodec[Any] = StateCodec(lambda given: given, lambda saved: saved)
    async with SqliteStore(path) as store:
        await store.table("large", plain, durable=True).set("a", value)
        assert await store.table("large", plain, durable=True).get("a") == value


async def test_the_overview_counts_what_is_there(path: Path) -> None:
    clock = Clock()
    async with SqliteStore(path, clock=clock) as store:
        await numbers(store, "b").set("x", 1)
        clock.now += 5
        await numbers(store, "b").set("y", 1)
        await numbers(store, "a").set("x", 1)
        await numbers(store, "gone").set("x", 1, ttl_s=1)
        clock.now += 1
        shown = [(table.name, table.entries, table.oldest, table.newest) for table in await store.tables()]
        assert shown == [("a", 1, 1_000_005, 1_000_005), ("b", 2, 1_000_000, 1_000_005)]
        assert await store.clear("b") == 2
        assert [table.name for table in await store.tables()] == ["a"]
        assert await store.clear() == 2, "the expired one is deleted too"
        assert await store.tables() == ()


async def test_two_stores_of_one_file_see_each_others_changes(path: Path) -> None:
    async with SqliteStore(path) as one, SqliteStore(path) as two:
        await numbers(one).set("a", 1)
        assert await numbers(two).get("a") == 1
        assert await numbers(two).update("a", lambda old: ((old or 0) + 1, old)) == 1
        assert await numbers(one).get("a") == 2


async def test_a_second_store_in_one_process_leaves_the_locks_of_the_first_alone(path: Path) -> None:
    reader = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM entries'); db.close()"
    async with SqliteStore(path) as one, SqliteStore(path) as two:
        await numbers(one).set("a", 1)
        await numbers(two).get("a")
        await anyio.run_process([sys.executable, "-c", reader, str(path)])
        assert "state.sqlite-wal" in file_names(path.parent), "the other process took itself for the last one"
        await numbers(one).set("b", 1)
        assert await numbers(two).get("b") == 1


COUNT = """
import asyncio, sys
from pathlib import Path
from toolcrib.state.sqlite import SqliteStore
from toolcrib.state.base import StateCodec

async def main():
    async with SqliteStore(Path(sys.argv[1])) as store:
        table = store.table("numbers", StateCodec(int, int), durable=True)
        for number in range(int(sys.argv[2])):
            await table.update("n", lambda old: ((old or 0) + 1, None))
            await table.set(f"{sys.argv[3]} {number}", number)
            print(number, flush=True)

asyncio.run(main())
"""


def start(path: Path, count: int, name: str) -> "subprocess.Popen[str]":
    arguments = [sys.executable, "-c", COUNT, str(path), str(count), name]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


async def test_two_processes_lose_no_update(path: Path) -> None:
    with anyio.fail_after(60):
        processes = [start(path, 100, name) for name in ("a", "b")]
        for process in processes:
            await anyio.to_thread.run_sync(process.communicate)
            assert process.returncode == 0
    async with SqliteStore(path) as store:
        found = dict(await numbers(store).items())
        assert found.pop("n") == 200
        assert len(found) == 200


async def killed(path: Path, name: str, after: int) -> int:
    """Kill a process that writes, and return the last number that it had written for certain."""
    with start(path, 1_000_000, name) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= after:
                process.send_signal(signal.SIGKILL)
                break
        rest = [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    return max(rest, default=after)


async def check_after_kill(path: Path, name: str, last: int) -> None:
    async with SqliteStore(path) as store:
        found = await numbers(store).items()
        assert {f"{name} {number}" for number in range(last + 1)} <= found.keys()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        counted = db.execute("SELECT count(*), sum(size), sum(bytes) FROM entries").fetchone()
        assert db.execute("SELECT sum(entries), sum(size), sum(bytes) FROM totals").fetchone() == counted
    db.close()


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
async def test_a_process_that_is_killed_while_it_writes_loses_nothing_that_it_had_written(path: Path) -> None:
    with anyio.fail_after(60):
        last = await killed(path, "one", 20)
    await check_after_kill(path, "one", last)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
async def test_many_sudden_deaths_damage_nothing(path: Path) -> None:
    with anyio.fail_after(600):
        for turn in range(20):
            with start(path, 100_000, f"other {turn}") as other:
                last = await killed(path, f"run {turn}", 3 + 7 * turn)
                other.kill()
                assert other.stdout is not None
                other.stdout.read()
            await check_after_kill(path, f"run {turn}", last)
