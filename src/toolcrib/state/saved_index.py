"""The search index of one gateway in a file: mapped when the index is built, and written when it has changed."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from toolcrib import search, state
from toolcrib.private_files import make_folders, make_private_folder
from toolcrib.search.options import SearchOptions
from toolcrib.types import Tool

logger = logging.getLogger(__name__)

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
        self._stored: state.StoredSegment | None = None
        self._hashes: dict[int, tuple[Tool, bytes]] = {}
        """The hash of each tool object of the last index, by its `id`."""
        self._written_at = float("-inf")

    @classmethod
    def of(cls, state: Path | None, key: str, *, cache: Path | bool) -> SavedIndex | None:
        """The index of a gateway with this state file and `index_cache`; None if it keeps none."""
        if isinstance(cache, Path):
            return cls(cache, key)
        return cls(state.parent / "index", key, owns_folder=True) if cache and state is not None else None

    def build(
        self, tools: Sequence[Tool], *, previous: search.Index | None = None, options: SearchOptions | None = None
    ) -> search.Index:
        """Build the index of the tools as `Index.build` does, only that tools in the file are not analyzed."""
        options = options or (SearchOptions() if previous is None else previous.options)
        model = search.default_semantic_model() if previous is None else previous.model
        with self._lock:
            stored = self._open(options, model)
            if stored is None or not self._is_based_on_file(previous):
                return search.Index.build(tools, previous=previous, options=options, model=model)
            hashes = self._hashes_of(tools)
            before = {id(tool) for tool in previous.tools} if previous is not None else set()
            if any(of in stored.rows and id(tool) not in before for tool, of in zip(tools, hashes, strict=True)):
                return stored.index(tools, hashes, previous=previous)
        return search.Index.build(tools, previous=previous, options=options, model=model)

    def improve(self, index: search.Index, *, save: bool = True) -> search.Index:
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
    def _is_outdated(index: search.Index) -> bool:
        """Whether so much of a mapped index has changed that its file should be written again."""
        gone, added = index.changes()
        if len(index) > _REWRITTEN:
            return (gone + added) * _CHANGED_SHARE > len(index)
        return added > 0 or gone * _GONE_SHARE > len(index)

    def _open(self, options: SearchOptions, model: search.SemanticModel) -> state.StoredSegment | None:
        known = self._stored
        if known is not None and (known.segment.options != options or known.segment.model != model):
            self._opened, self._stored = False, None
        if not self._opened:
            self._opened, self._stored = True, state.StoredSegment.open(self.path, options, model)
            if self._stored is not None:
                with suppress(OSError):
                    os.utime(self.path)
        return self._stored

    def _is_based_on_file(self, previous: search.Index | None) -> bool:
        """Whether an index has rows of the mapped file, or no rows at all."""
        if previous is None or not len(previous):
            return True
        base = previous.segments[0]
        return self._stored is not None and base.restored and base.norms is self._stored.segment.norms

    def _hashes_of(self, tools: Sequence[Tool]) -> list[bytes]:
        known = self._hashes
        self._hashes = {id(tool): known.get(id(tool)) or (tool, state.tool_hash(tool)) for tool in tools}
        return [self._hashes[id(tool)][1] for tool in tools]

    def _written(self, index: search.Index) -> search.Index | None:
        """Write an index, unless another process did, and return the same index mapped."""
        hashes = self._hashes_of(index.tools)
        content = state.content_hash(hashes)
        stored = state.StoredSegment.open(self.path, index.options, index.model)
        if stored is None or stored.content != content:
            if self._owns_folder:
                make_private_folder(self.path.parent)
            else:
                make_folders(self.path.parent)
            state.write_index(self.path, index, hashes)
            self._tidy()
            stored = state.StoredSegment.open(self.path, index.options, index.model)
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
