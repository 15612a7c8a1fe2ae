"""Search indexes in files: written when they have changed, and mapped into memory by every process that starts later.

A file holds what an index computed from its tools, and for each tool a hash of what it was computed from. So it needs
no key and cannot be out of date: its reader says which tools there are, those that the file knows are not
analyzed again, and the answers are the same to the last digit. Processes that map one file share its memory. A file
that is damaged, or was written by another version, is ignored. It holds the words of the tools, and no callers.
"""

import hashlib
import json
import logging
import marshal
import mmap
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from toolcrib._version import VERSION
from toolcrib.checks import checked
from toolcrib.private_files import make_folders, make_private_folder, replacing
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.index import Index, index_from_segment
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import ANALYSIS_VERSION, Segment
from toolcrib.search.text import stem
from toolcrib.search.vectors import TABLE_SHA256, default_table
from toolcrib.types import Tool

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

_MAGIC: Final = b"toolcrib"
_START: Final = Struct("<8sIIQ")
"""The beginning of a file: magic, format, CRC and length of the header."""
_FORMAT: Final = 1
_ALIGNMENT: Final = 64
_MAX_HEADER: Final = 1 << 20
_HASH_BYTES: Final = 16
_PLAIN_MARSHAL: Final = 0
"""The version of `marshal` that writes values only, not which of them are the same object."""
_MIN_TOOLS: Final = 100
"""A smaller index takes less time to build than to worry about."""
_REWRITTEN: Final = 20_000
"""An index of at most so many tools is written again whenever tools are added; a larger one, when enough changes."""
_CHANGED_SHARE: Final = 50
"""Enough means one in so many of its tools."""
_GONE_SHARE: Final = 5
"""Where fewer than one in so many tools are gone from a small index, their rows stay, since they may come again."""
_PAUSE_S: Final = 60.0
"""The time between two writes at least, in seconds."""
_MAX_FOLDER_BYTES: Final = 1 << 30
"""All files in a folder; beyond it, those that were used least recently are removed."""
_ABANDONED_S: Final = 3600.0
"""After this time, a file that was not completed is removed."""
_SUFFIX: Final = ".index"
_FINISHED: Final = re.compile(r"[0-9a-f]{24}\.index")
"""The names of a gateway's files; others in the same folder are not ours to remove."""
_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{24}\.index\.[0-9a-f]{16}\.tmp")
_STEMMED: Final = ("queries", "stopped", "встречами", "отправленных", "календаре", "συναντήσεων", "اجتماعات", "फ़ाइलें")


@checked(shallow=True)
def save_index(index: Index, path: str | os.PathLike[str]) -> None:
    """Write an index to a file, from which `load_index` makes it again in a fraction of the time.

    A file of that name is replaced at once when the new one is complete, so processes that use it never see half of
    it. Only this user can read it. About 2 KB a tool. An embedder's vectors are not saved; `CachedEmbedder` keeps them.
    Raises `OSError` if the file cannot be written, and `ValueError` for an index with a table of its own.

    >>> from tempfile import TemporaryDirectory
    >>> from toolcrib import SearchRequest, Tool, search_tools
    >>> tools = [Tool(name="read_file", description="Read a file."), Tool(name="send_mail")]
    >>> with TemporaryDirectory() as folder:
    ...     save_index(Index.build(tools), f"{folder}/tools.index")
    ...     index = load_index(f"{folder}/tools.index", tools)
    >>> [hit.tool.id for hit in search_tools(index, SearchRequest(queries=("open a file",))).hits]
    ['read_file']
    """
    merged = index.merged()
    _write(Path(path), merged, tool_hashes(merged.tools))


@checked(shallow=True)
def load_index(
    path: str | os.PathLike[str],
    tools: Sequence[Tool],
    *,
    options: SearchOptions | None = None,
    model: SemanticModel | None = None,
) -> Index:
    """Build an index of the tools with the file that `save_index` wrote: `Index.build`, only faster.

    Only tools that the file does not know in exactly this form are analyzed; tools that are gone do no harm. Without a
    file, or with one that is damaged or of another version, all of them are. The file is mapped into memory, so
    processes share it, and it must only be replaced or removed, never changed in place.
    """
    options, model = options or SearchOptions(), model or default_semantic_model()
    stored = StoredSegment.open(Path(path), options, model)
    return Index.build(tools, options=options, model=model) if stored is None else stored.index(tools)


def tool_hashes(tools: Sequence[Tool]) -> list[bytes]:
    """Hash what the index reads of each tool, in 16 bytes; no bytes for a tool whose values are not plain JSON.

    >>> one, same, other = tool_hashes([Tool(name="a"), Tool(name="a", version="2"), Tool(name="b")])
    >>> one == same, one == other
    (True, False)
    """
    return [_tool_hash(tool) for tool in tools]


def _tool_hash(tool: Tool) -> bytes:
    # With the order of keys, since it decides which of very many parameters are read.
    read: Any = (tool.namespace, tool.name, tool.title, tool.description, tool.keywords, tool.tags, tool.input_schema)
    try:
        # Unlike JSON, this is as fast, the same for the same values only, and refuses those of other types.
        return hashlib.blake2b(marshal.dumps(read, _PLAIN_MARSHAL), digest_size=_HASH_BYTES).digest()
    except ValueError:
        return b""


# -- a mapped file -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment in a mapped file, and what its rows are of."""

    segment: Segment
    rows: Mapping[bytes, int]
    """The row of each tool, by the hash of what was read of it."""
    content: str
    """Identifies the tools of the file, in their order."""

    @classmethod
    def open(cls, path: Path, options: SearchOptions, model: SemanticModel) -> "StoredSegment | None":
        """Map a file; None if there is none that was written for these options and this version."""
        if model.table is not default_table():
            return None
        try:
            with _mapped(path) as (memory, header):
                if header["made_by"] != _made_by(options):
                    logger.debug("%s was written by another version or with other options", path)
                    return None
                arrays = _read_arrays(memory, header)
            hashes = arrays.pop("hashes").tobytes()
            segment = Segment.restore(arrays, model=model, options=options)
        except FileNotFoundError:
            return None
        except (IndexError, KeyError, OSError, TypeError, ValueError) as error:
            logger.warning("the search index in %s is not used: %s", path, error)
            return None
        places = range(0, len(hashes) + 1, _HASH_BYTES)
        rows = {hashes[start:end]: row for row, (start, end) in enumerate(pairwise(places))}
        return cls(segment, rows, header["content"])

    def index(self, tools: Sequence[Tool], hashes: Sequence[bytes] = (), *, previous: Index | None = None) -> Index:
        """Build the index of these tools; `previous` is one that was built with the same file."""
        left = dict(self.rows)
        rows = [left.pop(of, -1) for of in hashes or tool_hashes(tools)]
        return index_from_segment(self.segment, tools, rows, previous=previous)


@contextmanager
def _mapped(path: Path) -> Iterator[tuple[memoryview, dict[str, Any]]]:
    """Map a file: the bytes of its arrays, and its header. Raises `OSError` or `ValueError` if it cannot be trusted."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if os.name == "posix" and (about.st_uid != os.geteuid() or about.st_mode & 0o022):
            raise ValueError("another user may have written it")
        if about.st_size < _START.size:
            raise ValueError("it is too short")
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    magic, number, crc, length = _START.unpack(memory[: _START.size])
    if magic != _MAGIC or number != _FORMAT:
        raise ValueError("it has another format")
    head = memory[_START.size : _START.size + min(length, _MAX_HEADER)]
    if len(head) != length or crc32(head) != crc:
        raise ValueError("its header is damaged")
    yield memory[_aligned(_START.size + length) :], json.loads(head.tobytes())


def _read_arrays(memory: memoryview, header: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays of a file, which are views of it. Raises `ValueError` if one is damaged."""
    arrays: dict[str, Array] = {}
    checks: list[tuple[memoryview, int]] = []
    for name, kind, shape, start, crc in header["arrays"]:
        found = np.dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        data = memory[start : start + count * found.itemsize]
        if len(data) != count * found.itemsize:
            raise ValueError("it is too short")
        checks.append((data, crc))
        arrays[name] = np.frombuffer(data, found, count).reshape(shape) if count else np.zeros(shape, found)
    with ThreadPoolExecutor(2) as threads:  # the checksum lets go of the interpreter's lock
        if not all(threads.map(_is_intact, *zip(*checks, strict=True))):
            raise ValueError("it is damaged")
    return arrays


def _is_intact(data: memoryview, crc: int) -> bool:
    return crc32(data) == crc


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@cache
def _libraries() -> str:
    """What every index depends on besides its tools; the stems differ if the library for them does."""
    return f"{VERSION} {ANALYSIS_VERSION} {TABLE_SHA256} {sys.byteorder} {[*map(stem, _STEMMED)]}"


def _made_by(options: SearchOptions) -> str:
    """What an index depends on besides its tools."""
    return hashlib.sha256(f"{_libraries()} {options.k1!r} {options.fields!r}".encode()).hexdigest()


# -- writing -----------------------------------------------------------------------------------------------------------


def _content(hashes: Sequence[bytes]) -> str:
    return hashlib.blake2b(b"".join(hashes), digest_size=_HASH_BYTES).hexdigest()


def _write(path: Path, index: Index, hashes: Sequence[bytes]) -> None:
    """Write an index of one segment. Raises `OSError`, or `ValueError` if its table is not that of the package."""
    if index.model.table is not default_table():
        raise ValueError("Only an index with the word table of the package can be saved.")
    whole = np.frombuffer(b"".join(of.ljust(_HASH_BYTES, b"\0") for of in hashes), np.uint8)
    arrays = {"hashes": whole, **index.segments[0].arrays()}
    parts = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    table, end = [], 0
    for name, array in parts.items():
        table.append((name, array.dtype.str, array.shape, end, crc32(_bytes(array))))
        end = _aligned(end + array.nbytes)
    content = _content(hashes)
    head = json.dumps({"made_by": _made_by(index.options), "content": content, "arrays": table}).encode()
    with replacing(path) as file:
        file.write(_START.pack(_MAGIC, _FORMAT, crc32(head), len(head)) + head)
        for array in parts.values():
            file.write(bytes(_aligned(file.tell()) - file.tell()))
            file.write(_bytes(array))


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


# -- a gateway's index -------------------------------------------------------------------------------------------------


class SavedIndex:
    """The saved index of one gateway: mapped when it is built, and written when it has changed.

    It only saves time: whatever goes wrong with the file is logged, and the index is built. Several processes may use
    one file, and all methods any thread.
    """

    def __init__(
        self, folder: Path, key: str, *, owns_folder: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`key` identifies the gateway among those with the same folder, which is created when it is needed.

        One that toolcrib `owns_folder` is also made private, if it is there.
        """
        self._owns_folder = owns_folder
        self.path = folder / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}{_SUFFIX}"
        self._clock = clock
        self._lock = Lock()
        self._opened = False
        self._stored: StoredSegment | None = None
        self._hashes: dict[int, tuple[Tool, bytes]] = {}
        """The hash of each tool object of the last index, by its `id`."""
        self._written_at = float("-inf")

    @classmethod
    def of(cls, state: Path | None, key: str, *, cache: Path | bool) -> "SavedIndex | None":
        """The index of a gateway with this state file and `index_cache`; None if it keeps none."""
        if isinstance(cache, Path):
            return cls(cache, key)
        return cls(state.parent / "index", key, owns_folder=True) if cache and state is not None else None

    def build(
        self, tools: Sequence[Tool], *, previous: Index | None = None, options: SearchOptions | None = None
    ) -> Index:
        """Build the index of the tools as `Index.build` does, only that tools in the file are not analyzed."""
        options = options or (SearchOptions() if previous is None else previous.options)
        model = default_semantic_model() if previous is None else previous.model
        with self._lock:
            stored = self._open(options, model)
            if stored is None or not self._is_based_on_file(previous):
                return Index.build(tools, previous=previous, options=options, model=model)
            hashes = self._hashes_of(tools)
            before = {id(tool) for tool in previous.tools} if previous is not None else set()
            if any(of in stored.rows and id(tool) not in before for tool, of in zip(tools, hashes, strict=True)):
                return stored.index(tools, hashes, previous=previous)
        return Index.build(tools, previous=previous, options=options, model=model)

    def improve(self, index: Index, *, save: bool = True) -> Index:
        """Return the same index in a form that is better to search: merged and, if it is time to `save` it, mapped.

        A mapped index stays as it is while little has changed: to merge it is to take memory that no process shares,
        and to write all of it again.
        """
        if index.segments[0].restored and (not save or not self._is_outdated(index)):
            return index
        merged = index.merged()
        if not save or len(merged) < _MIN_TOOLS or self._clock() - self._written_at < _PAUSE_S:
            return merged
        with self._lock:
            try:
                return self._written(merged) or merged
            except (OSError, ValueError) as error:
                logger.warning("the search index cannot be saved in %s: %s", self.path, error)
                return merged
            finally:
                self._written_at = self._clock()

    @staticmethod
    def _is_outdated(index: Index) -> bool:
        """Whether so much of a mapped index has changed that its file should be written again."""
        gone, added = index.changes()
        if len(index) > _REWRITTEN:
            return (gone + added) * _CHANGED_SHARE > len(index)
        return added > 0 or gone * _GONE_SHARE > len(index)

    def _open(self, options: SearchOptions, model: SemanticModel) -> StoredSegment | None:
        known = self._stored
        if known is not None and (known.segment.options != options or known.segment.model != model):
            self._opened, self._stored = False, None
        if not self._opened:
            self._opened, self._stored = True, StoredSegment.open(self.path, options, model)
            if self._stored is not None:
                with suppress(OSError):
                    os.utime(self.path)
        return self._stored

    def _is_based_on_file(self, previous: Index | None) -> bool:
        """Whether an index has rows of the mapped file, or no rows at all."""
        if previous is None or not len(previous):
            return True
        base = previous.segments[0]
        return self._stored is not None and base.restored and base.norms is self._stored.segment.norms

    def _hashes_of(self, tools: Sequence[Tool]) -> list[bytes]:
        known = self._hashes
        self._hashes = {id(tool): known.get(id(tool)) or (tool, _tool_hash(tool)) for tool in tools}
        return [self._hashes[id(tool)][1] for tool in tools]

    def _written(self, index: Index) -> Index | None:
        """Write an index, unless another process did, and return the same index mapped."""
        hashes = self._hashes_of(index.tools)
        content = _content(hashes)
        stored = StoredSegment.open(self.path, index.options, index.model)
        if stored is None or stored.content != content:
            if self._owns_folder:
                make_private_folder(self.path.parent)
            else:
                make_folders(self.path.parent)
            _write(self.path, index, hashes)
            self._tidy()
            stored = StoredSegment.open(self.path, index.options, index.model)
        if stored is None or stored.content != content:  # another process replaced it meanwhile
            return None
        self._opened, self._stored = True, stored
        return stored.index(index.tools, hashes)

    def _tidy(self) -> None:
        """Remove files that were never completed, and those used least recently beyond the limit."""
        now, total = time.time(), 0
        kept = []
        for path in self.path.parent.iterdir():
            with suppress(OSError):
                about = path.stat()
                if _UNFINISHED.fullmatch(path.name):
                    if now - about.st_mtime > _ABANDONED_S:
                        path.unlink()
                elif _FINISHED.fullmatch(path.name):
                    kept.append((path == self.path, about.st_mtime, about.st_size, path))
        for own, _, size, path in sorted(kept, reverse=True):
            total += size
            if total > _MAX_FOLDER_BYTES and not own:
                with suppress(OSError):
                    path.unlink()
