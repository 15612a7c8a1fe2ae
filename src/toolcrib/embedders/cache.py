"""Embed each text once: cache vectors in memory and, across restarts, in an SQLite file.

A crash loses nothing that was written, and several processes may share the file. If the file fails, the embedder works
without it. The file holds hashes and vectors, never texts, and only this user
can read it.
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

from toolcrib.embedders.models import load, unit_rows
from toolcrib.errors import SettingsError
from toolcrib.private_files import create_private_database, make_private_folder
from toolcrib.search.embedder import Embedder
from toolcrib.search.vectors import Vectors, quantize

_KEY_BYTES = 16
_WRITE_BATCH = 512
"""Texts that are embedded between two writes, so that little is lost if building an index is interrupted."""


class CachedEmbedder:
    """Wraps an embedder and calls it only for texts without a cached vector.

    Only hashes of the texts are stored. Close it at the end, or use it in a `with` block; nothing is lost if you don't.
    """

    def __init__(self, embedder: Embedder, path: Path | None = None, *, size: int = 200_000) -> None:
        """Keep at most `size` vectors, of a byte per component, in memory and in the file; the least used go first.

        All vectors are rounded to eight bits per component, so that they are the same before and after a restart.

        `path` is a file for this embedder, or an existing folder in which to create one. A file of another model is
        emptied; a damaged file is moved aside and replaced, with a warning in the log. Raises `SettingsError` if the
        path is a database of something else.
        """
        self._embedder = embedder
        self.name = embedder.name
        self.dim = embedder.dim
        self._size = size
        self._lock = Lock()
        self._memory: OrderedDict[bytes, bytes] = OrderedDict()
        self._store = None if path is None else VectorStore(path, name=self.name, dim=self.dim, size=size)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text, from memory, the file or the embedder: float32[n, dim]."""
        keys = [self._key(text) for text in texts]
        found = self._recall(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        for start in range(0, len(missing), _WRITE_BATCH):
            group = list(missing)[start : start + _WRITE_BATCH]
            made = dict(zip(group, _packed(self._embedder.embed([missing[key] for key in group])), strict=True))
            self._keep(made)
            found |= made
        return _unpacked([found[key] for key in keys], self.dim)

    def close(self) -> None:
        """Close the file. The vectors in memory can still be used."""
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

    def _recall(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._lock:
            found = {key: self._memory[key] for key in keys if key in self._memory}
            for key in found:
                self._memory.move_to_end(key)
            if self._store is not None and len(found) < len(keys):
                stored = self._store.read([key for key in dict.fromkeys(keys) if key not in found])
                self._remember(stored)
                found |= stored
            return found

    def _keep(self, vectors: dict[bytes, bytes]) -> None:
        with self._lock:
            self._remember(vectors)
            if self._store is not None:
                self._store.write(vectors)

    def _remember(self, vectors: dict[bytes, bytes]) -> None:
        self._memory.update(vectors)
        while len(self._memory) > self._size:
            self._memory.popitem(last=False)


def _packed(vectors: Vectors) -> list[bytes]:
    """Round each vector to eight bits per component. A vector of zeros stays one."""
    return [row.tobytes() for row in quantize(vectors).values]


def _unpacked(rows: Sequence[bytes], dim: int) -> Vectors:
    """Return the vectors: float32[n, dim], of unit length or zero."""
    return unit_rows(np.frombuffer(b"".join(rows), dtype=np.int8).reshape(len(rows), dim))


logger = logging.getLogger(__name__)
_APPLICATION_ID: Final = 0x74637665
"""SQLite's `application_id` of our files, to recognize them."""
_MAX_KEYS: Final = 500
"""Keys per query; old builds of SQLite accept 999 values."""
_WAIT_S: Final = 1.0
"""How long to wait while another process writes."""
_DAY_S: Final = 86_400
_EVICTED_SHARE: Final = 10
"""One in this many is evicted at once, so that evictions are rare."""
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
    """The day of the last use, counted from 1970."""


class VectorStore:
    """The vectors of one model in a file, by key. Not thread-safe."""

    def __init__(self, path: Path, *, name: str, dim: int, size: int) -> None:
        """Keep at most `size` vectors of the model `name`, with `dim` components each.

        Raises `SettingsError` if the path is a database of something else.
        """
        self._path = cache_file(path, name)
        self._name = name
        self._bytes = dim
        self._size = size
        self._count = 0
        self._told = False
        self._db: sqlite3.Connection | None = None
        self._reopen()

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored vectors of these keys, a byte per component, without damaged ones."""
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
        return {row.key: row.vector for row in rows}

    def write(self, vectors: Mapping[bytes, bytes]) -> None:
        """Store these vectors, all or none of them; the least recently used are evicted."""
        self._try(partial(self._write, vectors), None)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _write(self, vectors: Mapping[bytes, bytes], db: sqlite3.Connection) -> None:
        today = _today()
        rows = [(key, vector, crc32(vector), today) for key, vector in vectors.items()]
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
        """Do work on the file, or return `without` if the file cannot be used."""
        if self._db is None:
            return without
        try:
            return work(self._db)
        except sqlite3.OperationalError as error:  # busy, full or read-only, which may be temporary
            self._tell("The vector cache %s cannot be used at the moment, so vectors are computed again: %s", error)
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
        return without

    def _reopen(self) -> None:
        try:
            self._db = self._opened()
        except (OSError, sqlite3.OperationalError) as error:
            self._tell("The vector cache %s cannot be opened, so vectors are kept in memory only: %s", error)
        except sqlite3.DatabaseError as error:
            self._set_aside(error)

    def _opened(self) -> sqlite3.Connection:
        create_private_database(self._path)
        db = sqlite3.connect(self._path, timeout=_WAIT_S, check_same_thread=False)
        try:
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        # In this order: another process may be creating the file, and marks it first.
        [foreign] = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        [magic] = db.execute("PRAGMA application_id").fetchone()
        if magic != _APPLICATION_ID and (magic or foreign):
            raise SettingsError(
                f"{self._path} is a database, but not a vector cache.",
                hint="Give the path of a file that does not exist.",
            )
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.executescript(_SCHEMA)
        with db:
            name = f"{self._name} int8"
            if db.execute("SELECT name FROM model").fetchall() != [(name,)]:
                db.execute("DELETE FROM vectors")
                db.execute("DELETE FROM model")
                db.execute("INSERT INTO model VALUES (?)", (name,))
        [self._count] = db.execute("SELECT count(*) FROM vectors").fetchone()

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Move a damaged file aside and create a new one in its place."""
        self.close()
        aside = self._path.with_name(f"{self._path.name}.damaged")
        logger.warning(
            "The vector cache %s is damaged (%s); moved it to %s and created a new one", self._path, error, aside
        )
        try:
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            self._db = self._opened()
        except (OSError, sqlite3.Error) as again:
            self._tell("The vector cache %s cannot be created again, so vectors are kept in memory only: %s", again)

    def _tell(self, message: str, error: Exception) -> None:
        """Log a warning, once."""
        if not self._told:
            logger.warning(message, self._path, error)
            self._told = True


def cache_file(path: Path, name: str) -> Path:
    """The path itself, or, if it is a folder, the file in it for the embedder of that name.

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


def load_cached(name: str, cache: Path | None, state: Path | None) -> tuple[Embedder, CachedEmbedder]:
    """Load an embedder, and add a cache of its vectors: at `cache`, or else beside the state file."""
    try:
        embedder = load(name)
        return embedder, CachedEmbedder(embedder, cache or _own_folder(state))
    except SettingsError as error:
        raise SettingsError(
            f"toolcrib.search.embedder: {error.message}", hint=error.hint, suggestions=error.suggestions
        ) from error


def _own_folder(state: Path | None) -> Path | None:
    """The folder of vectors beside the state file; None without that file, or if the folder cannot be used."""
    if state is None:
        return None
    folder = state.parent / "vectors"
    try:
        make_private_folder(folder)
    except OSError as error:
        logger.warning(
            "The vector cache %s cannot be made, so vectors are kept in memory only: %s", folder, error.strerror
        )
        return None
    return folder
