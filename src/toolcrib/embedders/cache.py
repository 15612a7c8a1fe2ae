"""Embed each text once: cache vectors in memory and, across restarts, in an SQLite file.

A crash loses nothing that was written, and several processes may share the file. If the file fails, the embedder works
without it. The file holds hashes and vectors, never texts.
"""

import logging
import re
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Self, TypeVar
from zlib import crc32

import numpy as np

from toolcrib.errors import SettingsError
from toolcrib.search.vectors import Embedder, Vectors

_KEY_BYTES = 16

_WRITE_BATCH = 512
"""Texts that are embedded between two writes, so that an index which is cut off while it is built is not lost."""


class CachedEmbedder:
    """The same vectors as the embedder inside, which is asked only for texts that have not been seen.

    Texts are kept as hashes, never as they are. Close it at the end, or use it in a `with`; one that is not closed
    loses nothing.
    """

    def __init__(self, embedder: Embedder, path: Path | None = None, *, size: int = 200_000) -> None:
        """At most `size` vectors, of 4 bytes a component, in memory and as many in the file; those used least go first.

        `path` is a file for this embedder alone, or an existing folder, in which it gets one of its own. The file of
        another model is emptied; a damaged one is put aside and begun anew, and the log says so. Raises
        `SettingsError` when the path is a database of something else.
        """
        self._embedder = embedder
        self.name = embedder.name
        self.dim = embedder.dim
        self._size = size
        self._lock = Lock()
        self._memory: OrderedDict[bytes, Vectors] = OrderedDict()
        self._store = None if path is None else VectorStore(path, name=self.name, dim=self.dim, size=size)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text, from memory, the file or the embedder: float32[n, dim]."""
        keys = [self._key(text) for text in texts]
        found = self._recall(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        for start in range(0, len(missing), _WRITE_BATCH):
            group = list(missing)[start : start + _WRITE_BATCH]
            made = dict(zip(group, self._embedder.embed([missing[key] for key in group]), strict=True))
            self._keep(made)
            found |= made
        vectors = np.empty((len(keys), self.dim), dtype=np.float32)
        for row, key in enumerate(keys):
            vectors[row] = found[key]
        return vectors

    def close(self) -> None:
        """Let go of the file. What is in memory stays of use."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _key(self, text: str) -> bytes:
        said = f"{self.name}\0{text}".encode(errors="surrogatepass")
        return blake2b(said, digest_size=_KEY_BYTES).digest()

    def _recall(self, keys: Sequence[bytes]) -> dict[bytes, Vectors]:
        with self._lock:
            found = {key: self._memory[key] for key in keys if key in self._memory}
            for key in found:
                self._memory.move_to_end(key)
            if self._store is not None and len(found) < len(keys):
                stored = self._store.read([key for key in dict.fromkeys(keys) if key not in found])
                self._remember(stored)
                found |= stored
            return found

    def _keep(self, vectors: dict[bytes, Vectors]) -> None:
        with self._lock:
            self._remember(vectors)
            if self._store is not None:
                self._store.write(vectors)

    def _remember(self, vectors: dict[bytes, Vectors]) -> None:
        # copies, since a row of an array keeps the whole array alive
        self._memory.update({key: vector.copy() for key, vector in vectors.items()})
        while len(self._memory) > self._size:
            self._memory.popitem(last=False)


logger = logging.getLogger(__name__)

_APPLICATION_ID: Final = 0x74637665
"""SQLite's `application_id` of our files, so that no other database is ever taken for one."""

_MAX_KEYS: Final = 500
"""Keys of one query: old builds of SQLite take 999 values."""

_WAIT_S: Final = 1.0
"""How long another process that writes is waited for."""

_DAY_S: Final = 86_400

_EVICTED_SHARE: Final = 10
"""One in this many is dropped at once when there are too many, so that room is made seldom."""

_SCHEMA: Final = """
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS model (name TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS vectors
        (key BLOB UNIQUE NOT NULL, vector BLOB NOT NULL, crc INTEGER NOT NULL, used INTEGER NOT NULL);
    CREATE INDEX IF NOT EXISTS by_use ON vectors (used);
    COMMIT;
"""

_Answer = TypeVar("_Answer")


class _StoredVector(NamedTuple):
    key: bytes
    vector: bytes
    crc: int
    used: int
    """The day, counted from 1970, on which it was read last."""


class VectorStore:
    """The vectors of one model, by key; for one thread at a time."""

    def __init__(self, path: Path, *, name: str, dim: int, size: int) -> None:
        """`name` is the model's, `dim` its components; no more than `size` vectors are kept.

        Raises `SettingsError` when the path is a database of something else.
        """
        self._path = cache_file(path, name)
        self._name = name
        self._bytes = dim * np.dtype(np.float32).itemsize
        self._size = size
        self._count = 0
        self._told = False
        self._db: sqlite3.Connection | None = None
        self._reopen()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Vectors]:
        """The vectors that are there, float32[dim] each; a damaged one is not."""
        nothing: list[_StoredVector] = []
        rows = [
            row
            for start in range(0, len(keys), _MAX_KEYS)
            for row in self._try(partial(_select, keys[start : start + _MAX_KEYS]), nothing)
            if len(row.vector) == self._bytes and crc32(row.vector) == row.crc
        ]
        today = _today()
        idle = [(today, row.key) for row in rows if row.used != today]
        if idle:
            self._try(partial(_touch, idle), None)
        return {row.key: np.frombuffer(row.vector, dtype=np.float32) for row in rows}

    def write(self, vectors: Mapping[bytes, Vectors]) -> None:
        """Keep these, all or none of them; those used least recently make room."""
        self._try(partial(self._write, vectors), None)

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _write(self, vectors: Mapping[bytes, Vectors], db: sqlite3.Connection) -> None:
        today = _today()
        rows = [(key, blob := vector.tobytes(), crc32(blob), today) for key, vector in vectors.items()]
        with db:
            db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)
            self._count += len(rows)
            if self._count > self._size:
                self._make_room(db)

    def _make_room(self, db: sqlite3.Connection) -> None:
        [count] = db.execute("SELECT count(*) FROM vectors").fetchone()
        if count > self._size:
            excess = count - self._size + self._size // _EVICTED_SHARE
            oldest = "SELECT rowid FROM vectors ORDER BY used, rowid LIMIT ?"
            db.execute(f"DELETE FROM vectors WHERE rowid IN ({oldest})", (excess,))  # noqa: S608 - a constant
            count -= excess
        self._count = count

    def _try(self, work: Callable[[sqlite3.Connection], _Answer], without: _Answer) -> _Answer:
        """What the work on the file gives, or the other answer when there is no file to work on."""
        if self._db is None:
            return without
        try:
            return work(self._db)
        except sqlite3.OperationalError as error:  # busy, full or read-only: it may pass
            self._tell("The cache of vectors %s cannot be used now, vectors are computed anew: %s", error)
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
        return without

    def _reopen(self) -> None:
        try:
            self._db = self._opened()
        except (OSError, sqlite3.OperationalError) as error:
            self._tell("The cache of vectors %s cannot be opened, vectors are kept in memory only: %s", error)
        except sqlite3.DatabaseError as error:
            self._set_aside(error)

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._path, timeout=_WAIT_S, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        [magic] = db.execute("PRAGMA application_id").fetchone()
        [foreign] = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if magic != _APPLICATION_ID and (magic or foreign):
            raise SettingsError(
                f"{self._path} is a database, but not a cache of vectors.", hint="Name a file that does not exist."
            )
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.executescript(_SCHEMA)
        with db:
            if db.execute("SELECT name FROM model").fetchall() != [(self._name,)]:
                db.execute("DELETE FROM vectors")
                db.execute("DELETE FROM model")
                db.execute("INSERT INTO model VALUES (?)", (self._name,))
        [self._count] = db.execute("SELECT count(*) FROM vectors").fetchone()

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Begin a new file in the place of a damaged one, which is kept beside it."""
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged")
        logger.warning(
            "The cache of vectors %s is damaged (%s); it is now %s, and begun anew", self._path, error, aside
        )
        try:
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            self._db = self._opened()
        except (OSError, sqlite3.Error) as again:
            self._tell("The cache of vectors %s cannot be begun anew, vectors are kept in memory only: %s", again)

    def _tell(self, message: str, error: Exception) -> None:
        """Say so in the log, once."""
        if not self._told:
            logger.warning(message, self._path, error)
            self._told = True


def cache_file(path: Path, name: str) -> Path:
    """The path itself, or in a folder the file of the embedder of that name.

    >>> cache_file(Path("vectors.sqlite"), "static#1234").name
    'vectors.sqlite'
    """
    if not path.is_dir():
        return path
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", name.partition("#")[0])[-40:].strip("-")
    return path / f"{readable}-{blake2b(name.encode(), digest_size=4).hexdigest()}.sqlite"


def _select(keys: Sequence[bytes], db: sqlite3.Connection) -> list[_StoredVector]:
    marks = ",".join("?" * len(keys))
    query = f"SELECT key, vector, crc, used FROM vectors WHERE key IN ({marks})"  # noqa: S608 - question marks only
    return [_StoredVector(*row) for row in db.execute(query, keys)]


def _touch(idle: Sequence[tuple[int, bytes]], db: sqlite3.Connection) -> None:
    with db:
        db.executemany("UPDATE vectors SET used = ? WHERE key = ?", idle)


def _today() -> int:
    return int(time.time()) // _DAY_S
