"""State kept in an SQLite file: what must survive a restart is on disk, everything else in memory.

One thread per store reads and writes the file, so the event loop never waits for a disk. Several processes may use one
file, and a process may be killed at any moment: each change is one transaction of a write-ahead log. The file is
readable by its owner only. It knows nothing of what its tables hold.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar, Unpack
from weakref import finalize

import anyio

from toolcrib.errors import SettingsError, StateUnavailable
from toolcrib.private_files import create_private_database
from toolcrib.state.base import Change, StateCodec, StateTable, TableLimits, TableOptions, TableOverview
from toolcrib.state.batched import BatchedTables
from toolcrib.state.memory import MemoryChannel, MemoryStore, table_full
from toolcrib.state.options import DEFAULT_MAX_BYTES

logger = logging.getLogger(__name__)

V = TypeVar("V")
R = TypeVar("R")

_APPLICATION_ID: Final = 0x74637374
"""SQLite's `application_id` of our files, to recognize them."""
_BUSY_S: Final = 5.0
"""How long an operation waits while another process writes."""
_CLOSE_S: Final = 2.0
"""How long closing waits for operations under way, in seconds."""
_OPEN_TRIES: Final = 50
_OPEN_PAUSE_S: Final = 0.02
"""SQLite does not wait for a lock while it changes the journal mode, so opening a new file is tried again."""
_ENTRY_BYTES: Final = 100
"""Approximate size of an entry in the file, in addition to its key and value."""
_MAX_TOUCHED: Final = 10_000
"""Reads that are noted until the next write; they only decide what is dropped first."""
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE: Final = 0xFF

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # The value comes last: SQLite then reads the other columns without the pages that a large value fills.
        """CREATE TABLE entries (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL,
            key TEXT NOT NULL,
            size INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            written REAL NOT NULL,
            used INTEGER NOT NULL,
            expires REAL,
            value TEXT NOT NULL,
            UNIQUE (name, key)
        )""",
        "CREATE INDEX entries_by_use ON entries (name, used)",
        "CREATE INDEX entries_by_expiry ON entries (expires) WHERE expires IS NOT NULL",
        # Counted by triggers, so that no write has to count a table.
        """CREATE TABLE totals (
            name TEXT PRIMARY KEY,
            entries INTEGER NOT NULL,
            size INTEGER NOT NULL,
            bytes INTEGER NOT NULL
        )""",
        """CREATE TRIGGER entry_added AFTER INSERT ON entries BEGIN
            INSERT INTO totals VALUES (new.name, 1, new.size, new.bytes) ON CONFLICT (name) DO UPDATE
            SET entries = entries + 1, size = size + excluded.size, bytes = bytes + excluded.bytes;
        END""",
        """CREATE TRIGGER entry_removed AFTER DELETE ON entries BEGIN
            UPDATE totals SET entries = entries - 1, size = size - old.size, bytes = bytes - old.bytes
            WHERE name = old.name;
        END""",
    ),
    # The tables whose values are never dropped for space.
    ("CREATE TABLE kept (name TEXT PRIMARY KEY)",),
)
"""The statements that lead from each version of the schema to the next; `user_version` counts those that were run."""


class SqliteStore:
    """Keeps durable tables in an SQLite file, and the others in memory.

    The file is opened on first use, or by `async with` if a durable table was made before. `async with` closes it at
    the end; after that, the next use opens it again. A damaged file is moved aside, with a warning. If the file cannot
    be opened, its tables are kept in memory, with a warning, unless it `must_open`.
    """

    shared = False

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        must_open: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Keep at most about `max_bytes`; beyond it, the least recently used values of the largest table go first.

        With `must_open`, operations raise `StateUnavailable` if the file cannot be opened, as they do if it cannot be
        written: for a program that ends soon, and would report as saved what is gone then. `clock` counts seconds
        since the epoch.
        """
        self.path = path
        self._file = _StateFile(path, max_bytes, clock or time.time, must_open=must_open)
        self._memory = MemoryStore(clock=clock or time.monotonic)
        self._tables: dict[str, _DurableTable[Any]] = {}
        self._batched = BatchedTables()
        self._worker: ThreadPoolExecutor | None = None

    def table(self, name: str, codec: StateCodec[V], **options: Unpack[TableOptions]) -> StateTable[V]:
        """Return the table of that name; the first call says whether it is durable, and sets its limits.

        Operations on a durable table raise `StateUnavailable` if the file cannot be read or written, and
        `SettingsError` if it belongs to a newer version or to another program.
        """
        table = self._tables.get(name)
        if table is None:
            if not options.get("durable"):
                return self._memory.table(name, codec, **options)
            table = self._tables[name] = _DurableTable(self, name, codec, TableLimits.of(options))
        if options.get("batched") and not options.get("keep"):
            return self._batched.wrap(name, table, options.get("max_entries"))
        return table

    @property
    def problem(self) -> str:
        """Why the file cannot be opened or used at the moment; empty if it can."""
        return self._file.problem

    def channel(self, name: str) -> MemoryChannel:
        """Return the channel of that name, between tasks of this process."""
        return self._memory.channel(name)

    async def __aenter__(self) -> Self:
        """Open the file if a durable table was made. Raises `SettingsError` if the file is not one of this version."""
        if self._tables:
            await self.run(_StateFile.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what waits, and close the file."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self._batched.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.submit(self._file.close)
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await asyncio.to_thread(worker.shutdown)

    async def tables(self) -> tuple[TableOverview, ...]:
        """Return what the file holds, by name."""
        return await self.run(_StateFile.tables)

    async def clear(self, table: str | None = None) -> int:
        """Delete all values of a table, or of all tables, and return their number."""
        return await self.run(lambda file: file.clear(table))

    async def run(self, work: "Callable[[_StateFile], R]") -> R:
        """Run `work` in the thread that owns the file."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="toolcrib-state")
        return await asyncio.wrap_future(self._worker.submit(self._file.attempt, work))


class _DurableTable(Generic[V]):
    """One table in the file. Its codec runs in the file's thread."""

    def __init__(self, store: SqliteStore, name: str, codec: StateCodec[V], limits: TableLimits) -> None:
        self._store = store
        self._name = name
        self._codec = codec
        self._limits = limits

    async def get(self, key: str) -> V | None:
        return await self._store.run(partial(self._get, key))

    async def set(self, key: str, value: V, *, ttl_s: float | None = None, size: int = 0) -> None:
        await self._store.run(lambda file: self._set(file, key, value, ttl_s, size))

    async def update(self, key: str, change: Change[V, R], *, ttl_s: float | None = None, size: int | None = None) -> R:
        """Replace a value in one transaction; `change` runs in the file's thread."""

        def run(file: _StateFile) -> R:
            with file.transaction():
                entry = file.read(self._name, key)
                value, result = change(None if entry is None else self._codec.load(entry.value))
                if value is None:
                    file.delete(self._name, key)
                else:
                    known = 0 if entry is None else entry.size
                    self._set(file, key, value, ttl_s, known if size is None else size)
            return result

        return await self._store.run(run)

    async def delete(self, key: str) -> None:
        await self._store.run(lambda file: file.delete(self._name, key))

    async def items(self) -> Mapping[str, V]:
        """Return all values, the one used least recently first."""

        def decoded(file: _StateFile) -> dict[str, V]:
            found = ((key, self._codec.load(text)) for key, text in file.items(self._name))
            return {key: value for key, value in found if value is not None}

        return await self._store.run(decoded)

    def _get(self, key: str, file: "_StateFile") -> V | None:
        entry = file.read(self._name, key)
        return None if entry is None else self._codec.load(entry.value)

    def _set(self, file: "_StateFile", key: str, value: V, ttl_s: float | None, size: int) -> None:
        text, limits = self._codec.dump(value, in_steps=True), self._limits
        with file.transaction():
            if limits.max_size is not None and size > limits.max_size and not limits.keep:
                file.delete(self._name, key)
                return
            if limits.keep:
                file.mark_kept(self._name)
            if not file.write(self._name, key, text, ttl_s, size) and limits.keep:
                raise table_full(self._name)
            file.shrink(self._name, limits)


@dataclass(frozen=True, slots=True)
class _Entry:
    value: str
    size: int


class _StateFile:
    """The file, as seen by the one thread that uses it."""

    def __init__(self, path: Path, max_bytes: int, clock: Callable[[], float], *, must_open: bool) -> None:
        self.problem = ""
        self._must_open = must_open
        self._is_in_memory = False
        self._path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._db: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._touched: dict[tuple[str, str], int] = {}
        self._last_use = 0
        self._in_transaction = False
        self._kept: set[str] = set()

    def attempt(self, work: "Callable[[_StateFile], R]") -> R:
        """Run `work`, once more if the file turns out to be damaged. Raises `StateUnavailable` and `SettingsError`."""
        try:
            try:
                result = work(self)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._set_aside(error)
                result = work(self)
        except (OSError, sqlite3.OperationalError) as error:
            if not self.problem:
                logger.error("the state file %s cannot be used: %s", self._path, error)  # noqa: TRY400 - the reason says it all
            self.problem = str(error)
            raise StateUnavailable(
                f"The state file {self._path} cannot be used: {error}.",
                hint="Check the disk and the rights of the file, and whether another program has locked it.",
            ) from error
        return result

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> sqlite3.Connection:
        """Return the connection; open it if necessary."""
        if self._db is None:
            try:
                db = self._connect_safely()
            except (OSError, sqlite3.OperationalError) as error:
                if self._must_open:
                    raise
                logger.warning("the state file %s cannot be opened, so state is kept in memory: %s", self._path, error)
                self.problem, self._is_in_memory = str(error), True
                db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                _migrate(db)
            self._db = db
            finalize(self, db.close)
        return self._db

    def _note_written(self) -> None:
        if self.problem and not self._is_in_memory:
            logger.warning("the state file %s is used again", self._path)
            self.problem = ""

    def close(self) -> None:
        """Close the connection, after noting which values were read."""
        if self._db is None:
            return
        try:
            if self._touched:
                # Not worth waiting for at the end: without the note, values only seem to be unused for longer.
                self._db.execute("PRAGMA busy_timeout = 0")
                with self.transaction():
                    pass
        except sqlite3.Error as error:
            logger.debug("what was read from %s is not noted: %s", self._path, error)
        self._db.close()
        self._db, self._is_in_memory = None, False

    def _connect_safely(self) -> sqlite3.Connection:
        """Connect; to a new file, if this one is damaged."""
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._set_aside(error)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        create_private_database(self._path)
        self._inode = self._path.stat().st_ino
        # Python begins no transactions of its own: `transaction` does. The thread is not checked, because the finalizer
        # closes the connection in whichever thread it runs.
        db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _check_version(db, self._path)
            for tries in range(1, _OPEN_TRIES + 1):
                try:
                    _prepare(db)
                    break
                except sqlite3.OperationalError as error:
                    if tries == _OPEN_TRIES or _primary_code(error) != sqlite3.SQLITE_BUSY:
                        raise
                    time.sleep(_OPEN_PAUSE_S)
        except BaseException:
            db.close()
            raise
        return db

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Move the damaged file aside, unless another process has done so already."""
        if self._db is not None:
            self._db.close()
            self._db = None
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            # Another process has replaced the file: this one is its new and healthy one.
            if self._path.stat().st_ino != self._inode:
                return
            self._path.replace(aside)
            # SQLite would replay the log of the damaged file into the new one.
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        except FileNotFoundError:
            return
        logger.warning(
            "the state file %s is damaged (%s); it was moved to %s, and a new one is used", self._path, error, aside
        )

    # -- entries -----------------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one write transaction; a block inside another one joins it."""
        if self._in_transaction:
            yield
            return
        db = self.open()
        # A transaction that reads first and locks later fails at once, whatever the timeout, if another process has
        # written in between.
        db.execute("BEGIN IMMEDIATE")
        self._in_transaction = True
        try:
            self._note_uses(db)
            yield
            db.execute("COMMIT")
            self._note_written()
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        finally:
            self._in_transaction = False

    def read(self, name: str, key: str) -> _Entry | None:
        """Return an entry that has not expired."""
        row = self.open().execute(
            "SELECT value, size FROM entries WHERE name = ? AND key = ? AND (expires IS NULL OR expires > ?)",
            (name, key, self._clock()),
        )
        found = row.fetchone()
        if found is None:
            return None
        if len(self._touched) < _MAX_TOUCHED:
            self._touched.pop((name, key), None)
            self._touched[name, key] = self._next_use()
        return _Entry(*found)

    def items(self, name: str) -> list[tuple[str, str]]:
        """Return the keys and values of a table, the one used least recently first."""
        return (
            self.open()
            .execute(
                "SELECT key, value FROM entries WHERE name = ? AND (expires IS NULL OR expires > ?) ORDER BY used",
                (name, self._clock()),
            )
            .fetchall()
        )

    def mark_kept(self, name: str) -> None:
        """Note, within a transaction and for every process, that no value of this table is dropped for space."""
        self.open().execute("INSERT OR IGNORE INTO kept VALUES (?)", (name,))
        self._kept.add(name)

    def write(self, name: str, key: str, text: str, ttl_s: float | None, size: int) -> bool:
        """Store a value, within a transaction. Returns false for one that alone exceeds the size of the file."""
        db, now = self.open(), self._clock()
        self.delete(name, key)
        db.execute("DELETE FROM entries WHERE expires <= ?", (now,))
        length = len(key) + len(text) + _ENTRY_BYTES
        if length > self._max_bytes:
            logger.warning("a value of %d bytes for the table %s is larger than the state file may be", length, name)
            return False
        db.execute(
            "INSERT INTO entries (name, key, size, bytes, written, used, expires, value)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (name, key, size, length, now, self._next_use(), None if ttl_s is None else now + ttl_s, text),
        )
        return True

    def delete(self, name: str, key: str) -> None:
        """Delete an entry, if it is there."""
        with self.transaction():
            self.open().execute("DELETE FROM entries WHERE name = ? AND key = ?", (name, key))

    def shrink(self, name: str, limits: TableLimits) -> None:
        """Drop the least recently used values of a table beyond its limits, and of all tables beyond the file's.

        Raises `StateUnavailable` if that would drop a value of a table that is kept.
        """
        db = self.open()
        while self._exceeds(name, limits):
            if name in self._kept:
                raise table_full(name)
            db.execute("DELETE FROM entries WHERE id = (SELECT id FROM entries WHERE name = ? ORDER BY used)", (name,))
        # Small tables are spared: dropping their values saves no space.
        largest = (
            "SELECT name FROM totals WHERE entries > 0 AND name NOT IN (SELECT name FROM kept)"
            " ORDER BY bytes DESC LIMIT 1"
        )
        oldest = f"SELECT id FROM entries WHERE name = ({largest}) ORDER BY used"  # noqa: S608 - a constant
        while self._sum("SELECT sum(bytes) FROM totals") > self._max_bytes:
            if not db.execute(f"DELETE FROM entries WHERE id = ({oldest})").rowcount:  # noqa: S608 - a constant
                raise table_full(name)

    def _exceeds(self, name: str, limits: TableLimits) -> bool:
        max_entries, max_size, _ = limits
        row = self.open().execute("SELECT entries, size FROM totals WHERE name = ?", (name,)).fetchone()
        entries, size = row or (0, 0)
        return (max_entries is not None and entries > max_entries) or (max_size is not None and size > max_size)

    def _sum(self, query: str) -> int:
        [found] = self.open().execute(query).fetchone()
        return found or 0

    def tables(self) -> tuple[TableOverview, ...]:
        """Return what each table holds."""
        rows = self.open().execute(
            "SELECT name, count(*), sum(bytes), min(written), max(written) FROM entries"
            " WHERE expires IS NULL OR expires > ? GROUP BY name ORDER BY name",
            (self._clock(),),
        )
        return tuple(
            TableOverview(name=name, entries=entries, bytes=total, oldest=oldest, newest=newest)
            for name, entries, total, oldest, newest in rows
        )

    def clear(self, table: str | None) -> int:
        """Delete the entries of a table, or all, give the space back, and return how many there were."""
        db = self.open()
        with self.transaction():
            if table is None:
                count = db.execute("DELETE FROM entries").rowcount
            else:
                count = db.execute("DELETE FROM entries WHERE name = ?", (table,)).rowcount
        # The log keeps its size, and what was deleted, until it is written back and cut.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return count

    def _note_uses(self, db: sqlite3.Connection) -> None:
        """Write down which values were read since the last write."""
        if self._touched:
            rows = [(use, name, key) for (name, key), use in self._touched.items()]
            self._touched.clear()
            db.executemany("UPDATE entries SET used = ? WHERE name = ? AND key = ?", rows)

    def _next_use(self) -> int:
        """Return a number above all earlier ones; those of other processes are comparable."""
        # The clock may be set back, or stand still for two uses.
        self._last_use = max(self._last_use + 1, time.time_ns() // 1000)
        return self._last_use


def _is_damage(error: sqlite3.Error) -> bool:
    return _primary_code(error) in _DAMAGED


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's code of the error, without what extended codes add; 0 if it is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    """Raise `SettingsError` for a file that is not ours, or newer than this program, before anything is written."""
    [magic] = db.execute("PRAGMA application_id").fetchone()
    [tables] = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if magic != _APPLICATION_ID and (magic or tables):
        raise SettingsError(
            f"{path} is a database of another program.",
            hint="Set `path` in the section toolcrib.state to a file that does not exist.",
        )
    version = _schema_version(db)
    if version > len(_MIGRATIONS):
        raise SettingsError(
            f"The state file {path} was written by a newer version of toolcrib"
            f" (schema {version}; this version reads up to {len(_MIGRATIONS)}). It was not changed.",
            hint="Update toolcrib, or set another `path`, or `memory` to true, in the section toolcrib.state.",
        )


def _prepare(db: sqlite3.Connection) -> None:
    # With a write-ahead log, NORMAL can lose the last transactions when the power fails, and damages nothing.
    db.execute("PRAGMA synchronous = NORMAL")
    if _schema_version(db) == 0:  # later it would take effect only with VACUUM
        db.execute("PRAGMA auto_vacuum = FULL")
    # To change the mode takes an exclusive lock, for which SQLite does not wait: `_connect` tries again.
    if db.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        db.execute("PRAGMA journal_mode = WAL").fetchone()
    if _schema_version(db) < len(_MIGRATIONS):
        _migrate(db)


def _migrate(db: sqlite3.Connection) -> None:
    """Bring the schema up to date, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for statements in _MIGRATIONS[_schema_version(db) :]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _schema_version(db: sqlite3.Connection) -> int:
    [version] = db.execute("PRAGMA user_version").fetchone()
    return int(version)
