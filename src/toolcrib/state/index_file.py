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
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from toolcrib._version import VERSION
from toolcrib.checks import checked
from toolcrib.private_files import replacing
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.index import Index, index_from_segment
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import ANALYSIS_VERSION, Segment
from toolcrib.search.text import stem
from toolcrib.search.vectors import TABLE_SHA256, default_table
from toolcrib.types import Tool

__all__ = ["StoredSegment", "content_hash", "load_index", "save_index", "tool_hash", "tool_hashes", "write_index"]

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
    write_index(Path(path), merged, tool_hashes(merged.tools))


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
    return [tool_hash(tool) for tool in tools]


def tool_hash(tool: Tool) -> bytes:
    """The same for one tool."""
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


def content_hash(hashes: Sequence[bytes]) -> str:
    """Identify tools by the `tool_hashes` of all of them."""
    return hashlib.blake2b(b"".join(hashes), digest_size=_HASH_BYTES).hexdigest()


def write_index(path: Path, index: Index, hashes: Sequence[bytes]) -> None:
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
    content = content_hash(hashes)
    head = json.dumps({"made_by": _made_by(index.options), "content": content, "arrays": table}).encode()
    with replacing(path) as file:
        file.write(_START.pack(_MAGIC, _FORMAT, crc32(head), len(head)) + head)
        for array in parts.values():
            file.write(bytes(_aligned(file.tell()) - file.tell()))
            file.write(_bytes(array))


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
