"""Definitions, records and words of a catalog in one SQLite file.

The file is the source of truth: what a search engine holds can be made from it again. It notes which tools the engine
has yet to take up, so that a crash between the two loses nothing.
"""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from toolcrib.errors import StateUnavailable
from toolcrib.large.records import Record
from toolcrib.names import fold_id
from toolcrib.private_files import create_private_database
from toolcrib.types import Tool, Visibility

_FIELDS = [field.name for field in fields(Tool) if field.name != "visibility"]
_DEFAULTS = Tool(name="")
_TABLES = """
create table meta (key text primary key, value) without rowid;
create table tools (
    row integer primary key, id text not null unique, namespace text not null, folded text not null,
    bare text not null, digest blob not null, findable integer not null, definition blob not null
);
create index tools_by_id_spelling on tools (folded);
create index tools_by_name_spelling on tools (bare);
create table records (row integer primary key, id text not null, namespace text not null, whole text not null,
    fixed blob not null, pairs blob not null, words blob not null);
create table sketches (row integer primary key, sketch blob not null);
create table words (number integer primary key, word text not null, stem text not null, uses integer not null,
    begins integer not null, coarse blob not null, scale real not null);
create table stems (stem text primary key, tools integer not null) without rowid;
create table pending (row integer primary key);
"""
_MAX_PARAMETERS = 500
"""Values in one statement."""
_CACHE_KB = 65_536
_MAPPED_BYTES = 512 << 20
"""How much of the file is read from memory that it is mapped into, which takes half the time."""


@dataclass(frozen=True, slots=True)
class StoredTool:
    """A tool as it is written."""

    tool: Tool
    definition: bytes
    digest: bytes
    """A hash of the definition."""

    @classmethod
    def of(cls, tool: Tool) -> "StoredTool":
        """Encode a tool. Raises `ValueError` for one that is not JSON."""
        definition = encode_tool(tool)
        return cls(tool, definition, blake2b(definition, digest_size=12).digest())

    @property
    def is_findable(self) -> bool:
        """Whether a search may find the tool."""
        return self.tool.visibility is not Visibility.HIDDEN


def encode_tool(tool: Tool) -> bytes:
    """Return a tool as JSON, without the fields that have their default value.

    >>> encode_tool(Tool(name="add", namespace="math", tags=("sum",)))
    b'{"name":"add","namespace":"math","tags":["sum"]}'
    """
    found = {name: value for name in _FIELDS if (value := getattr(tool, name)) != getattr(_DEFAULTS, name)}
    if tool.visibility is not _DEFAULTS.visibility:
        found["visibility"] = str(tool.visibility)
    try:
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()
    except (TypeError, RecursionError, UnicodeEncodeError) as error:
        raise ValueError(f"the definition of {tool.id} is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Other mappings and sequences than those of `json`."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def decode_tool(data: bytes) -> Tool:
    """Return the tool that `encode_tool` encoded.

    >>> decode_tool(b'{"name":"add","namespace":"math","tags":["sum"]}').tags
    ('sum',)
    """
    found = json.loads(data)
    for name in ("keywords", "tags", "icons"):
        if name in found:
            found[name] = tuple(found[name])
    return Tool(**found)


class ToolStore:
    """The file of one catalog. Methods may be called from any thread; one writes at a time."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it. Raises `StateUnavailable` if it is damaged or cannot be opened."""
        self._path = path
        self._lock = threading.RLock()
        with self._errors():
            create_private_database(path)
            self._reader = self._connect()
            self._writer = self._connect()
            if not self._writer.execute("select 1 from sqlite_master where name = 'meta'").fetchone():
                self._writer.executescript(f"begin; {_TABLES} commit;")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=10.0)
        connection.execute("pragma page_size = 8192")
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = normal")
        connection.execute(f"pragma cache_size = -{_CACHE_KB}")
        connection.execute(f"pragma mmap_size = {_MAPPED_BYTES}")
        return connection

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._reader.close()
            self._writer.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise StateUnavailable(
                f"The tools in {self._path} cannot be read or written: {error}.",
                hint="If the file is damaged, delete its folder and build the index again.",
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write something, all or nothing."""
        with self._lock, self._errors():
            self._writer.execute("begin immediate")
            try:
                yield self._writer
            except BaseException:
                self._writer.execute("rollback")
                raise
            self._writer.execute("commit")

    def _read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._errors():
            return self._reader.execute(statement, values).fetchall()

    def _read_many(self, statement: str, values: Sequence[Any]) -> Iterator[Any]:
        """Run a statement with `in (?)` for many values."""
        for start in range(0, len(values), _MAX_PARAMETERS):
            some = values[start : start + _MAX_PARAMETERS]
            yield from self._read(statement.replace("(?)", f"({','.join('?' * len(some))})"), some)

    # -- reading ---------------------------------------------------------------------------------------------------

    def meta(self) -> dict[str, Any]:
        """What the catalog was built with, by key."""
        return dict(self._read("select key, value from meta"))

    def count(self) -> int:
        """How many tools there are, with those that no search finds."""
        return int(self._read("select count(*) from tools")[0][0])

    def tools(self, ids: Iterable[str]) -> dict[str, Tool]:
        """The tools with these ids; without those that do not exist."""
        found = self._read_many("select id, definition from tools where id in (?)", list(ids))
        return {id_: decode_tool(definition) for id_, definition in found}

    def spelt(self, name: str, limit: int) -> list[Tool]:
        """The tools whose id, or else whose bare name, is spelt like this without case and separators."""
        folded = fold_id(name)
        for column in ("folded", "bare"):
            statement = f"select definition from tools where {column} = ? order by id limit ?"  # noqa: S608 - a constant
            if found := self._read(statement, (folded, limit)):
                return [decode_tool(definition) for (definition,) in found]
        return []

    def digests(self, ids: Iterable[str]) -> dict[str, bytes]:
        """The hashes of the tools with these ids."""
        return dict(self._read_many("select id, digest from tools where id in (?)", list(ids)))

    def ids(self) -> Iterator[str]:
        """All ids, in alphabetical order. The catalog may change meanwhile."""
        last = ""
        while found := self._read("select id from tools where id > ? order by id limit 10000", (last,)):
            yield from [id_ for (id_,) in found]
            last = found[-1][0]

    def rows_by_id(self, ids: Iterable[str]) -> dict[str, int]:
        """The numbers of the tools with these ids."""
        return dict(self._read_many("select id, row from tools where id in (?)", list(ids)))

    def listed(self, rows: Sequence[int] | None, limit: int) -> list[Tool]:
        """The first findable tools by id; among these rows, if they are given."""
        if rows is None:
            found = self._read("select definition from tools where findable order by id limit ?", (limit,))
            return [decode_tool(definition) for (definition,) in found]
        some = sorted(self._read_many("select id, definition from tools where row in (?)", list(rows)))
        return [decode_tool(definition) for _, definition in some[:limit]]

    def records(self, rows: Sequence[int]) -> dict[int, Record]:
        """The records of the tools with these numbers."""
        statement = "select row, id, namespace, whole, fixed, pairs, words from records where row in (?)"
        return {row: Record._make(columns) for row, *columns in self._read_many(statement, list(rows))}

    def rows_after(self, row: int, limit: int) -> list[int]:
        """The next numbers of findable tools."""
        found = self._read("select row from tools where row > ? and findable order by row limit ?", (row, limit))
        return [number for (number,) in found]

    def last_row(self) -> int:
        """The highest number that a tool ever had; -1 for none."""
        found = self._read("select value from meta where key = 'last_row'")
        return int(found[0][0]) if found else -1

    def sketches(self) -> tuple[list[int], bytes]:
        """The numbers of all findable tools, and their sketches."""
        found = self._read("select row, sketch from sketches order by row")
        return [row for row, _ in found], b"".join([sketch for _, sketch in found])

    def words(self) -> list[tuple[str, str, int, int, bytes, float]]:
        """Word, stem, uses, begun names, short vector and its scale, of all words by number."""
        return self._read("select word, stem, uses, begins, coarse, scale from words order by number")

    def stems(self) -> dict[str, int]:
        """How many tools have each stem."""
        return dict(self._read("select stem, tools from stems"))

    def pending(self) -> list[int]:
        """The numbers of tools that the search engine has yet to take up or to drop."""
        return [row for (row,) in self._read("select row from pending order by row")]


def add_tools(
    writer: sqlite3.Connection,
    first_row: int,
    tools: Sequence[StoredTool],
    records: Sequence[Record],
    sketches: Sequence[bytes],
) -> None:
    """Write tools under consecutive numbers, as part of a transaction."""
    rows = range(first_row, first_row + len(tools))
    writer.executemany(
        "insert into tools values (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                row,
                one.tool.id,
                one.tool.namespace,
                fold_id(one.tool.id),
                fold_id(one.tool.name),
                one.digest,
                one.is_findable,
                one.definition,
            )
            for row, one in zip(rows, tools, strict=True)
        ],
    )
    writer.executemany(
        "insert into records values (?, ?, ?, ?, ?, ?, ?)",
        [
            (row, one.id, one.namespace, one.whole_name, one.row, one.pairs, one.words)
            for row, one in zip(rows, records, strict=True)
        ],
    )
    findable = [(row, sketch) for row, one, sketch in zip(rows, tools, sketches, strict=True) if one.is_findable]
    writer.executemany("insert into sketches values (?, ?)", findable)
    writer.executemany("insert into pending values (?)", [(row,) for row, _ in findable])
    set_meta(writer, {"last_row": rows[-1]})


def remove_tools(writer: sqlite3.Connection, rows: Sequence[int]) -> None:
    """Remove tools, as part of a transaction."""
    some = [(row,) for row in rows]
    for table in ("tools", "records", "sketches"):
        writer.executemany(f"delete from {table} where row = ?", some)  # noqa: S608 - constants
    writer.executemany("insert or replace into pending values (?)", some)


def set_meta(writer: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Write values of `meta`, as part of a transaction."""
    writer.executemany(
        "insert or replace into meta values (?, ?)", [(key, str(value)) for key, value in values.items()]
    )


def write_words(
    writer: sqlite3.Connection,
    words: Iterable[tuple[int, str, str, int, int, bytes, float]],
    stems: Iterable[tuple[str, int]],
) -> None:
    """Write words as `ToolStore.words` returns them, after their numbers, and stems, as part of a transaction."""
    writer.executemany("insert or replace into words values (?, ?, ?, ?, ?, ?, ?)", words)
    writer.executemany("insert or replace into stems values (?, ?)", stems)


def note_done(writer: sqlite3.Connection) -> None:
    """Note that the search engine has taken up or dropped all tools, as part of a transaction."""
    writer.execute("delete from pending")
