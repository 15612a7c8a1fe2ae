"""Changes of a table written together, about a second later, so that no caller waits for the disk.

What was changed in this process is seen there at once. A process that is killed loses the changes of the last second,
and nothing else. It knows nothing of where the table is.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import Change, StateTable
from toolcrib.state.local_copies import MAX_CHANGES, LocalCopies, PendingChange

logger = logging.getLogger(__name__)

V = TypeVar("V")
R = TypeVar("R")

FLUSH_S: Final = 1.0
"""How often changes are written, in seconds."""
_FRESH_S: Final = 5.0
"""How long a copy is used before the table is read again: other processes may have changed it."""
_MAX_BURST: Final = 10_000
"""Changes of one value between two writes that succeed."""


class BatchedTable(Generic[V]):
    """A table whose changes wait for `flush`. Every change runs twice: on the copy here, and on the value there."""

    def __init__(
        self,
        table: StateTable[V],
        on_change: Callable[[], None],
        *,
        max_entries: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` is called after each change that waits; `clock` counts seconds."""
        self._table = table
        self._on_change = on_change
        self._local: LocalCopies[V, V] = LocalCopies(
            encode=lambda value: value, decode=lambda value: value, max_entries=max_entries, age_clock=clock
        )
        self._failing = False

    @property
    def waits(self) -> bool:
        """Whether there are changes that are not written."""
        return bool(self._local.pending)

    async def get(self, key: str) -> V | None:
        return await self._known(key)

    async def set(self, key: str, value: V, *, ttl_s: float | None = None, size: int = 0) -> None:
        self._change(key, value, PendingChange(lambda _: value, ttl_s, size), replaces=True)

    async def update(self, key: str, change: Change[V, R], *, ttl_s: float | None = None, size: int | None = None) -> R:
        value, result = change(await self._known(key))
        self._change(key, value, PendingChange(lambda old: change(old)[0], ttl_s, size))
        return result

    async def delete(self, key: str) -> None:
        self._change(key, None, PendingChange(lambda _: None, None, None), replaces=True)

    async def items(self) -> Mapping[str, V]:
        """Write what waits, and return all values."""
        await self.flush()
        return await self._table.items()

    async def flush(self) -> None:
        """Write the changes that wait; they go on waiting if the table cannot be written."""
        pending = self._local.pending
        for key in tuple(pending):
            changes = pending.pop(key)
            last = changes[-1]
            try:
                written = await self._table.update(
                    key, partial(self._applied, changes), ttl_s=last.ttl_s, size=last.size
                )
            except StateUnavailable as error:
                pending[key] = [*changes, *pending.get(key, ())]
                self._warn(error)
                return
            self._failing = False
            if key not in pending:
                self._local.store(key, written)

    def clear(self) -> None:
        """Forget the copies and the changes that wait."""
        self._local.clear()

    def _applied(self, changes: Sequence[PendingChange[V]], value: V | None) -> tuple[V | None, V | None]:
        changed = self._local.applied(value, changes)
        return changed, changed

    async def _known(self, key: str) -> V | None:
        """Return the value here, after reading it if it is not current."""
        if not self._local.is_current(key, _FRESH_S):
            found = await self._read(key)
            if key not in self._local.pending:  # nothing was changed meanwhile
                self._local.store(key, found)
        return self._local.get(key)

    async def _read(self, key: str) -> V | None:
        """Read the table, or return what is known here if that fails: changes are written there later."""
        try:
            return await self._table.get(key)
        except StateUnavailable as error:
            self._warn(error)
            return self._local.get(key)

    def _change(self, key: str, value: V | None, change: PendingChange[V], *, replaces: bool = False) -> None:
        max_changes = MAX_CHANGES if self._failing else _MAX_BURST
        self._local.wait(key, change, replaces=replaces, max_changes=max_changes)
        self._local.store_changed(key, value, ttl_s=None, size=0)
        self._on_change()

    def _warn(self, error: StateUnavailable) -> None:
        if not self._failing:
            logger.warning("changes of the state wait in this process: %s", error)
        self._failing = True


class BatchedTables:
    """The batched tables of one store, and the task that writes their changes while there are any."""

    def __init__(self) -> None:
        self._tables: dict[str, BatchedTable[Any]] = {}
        self._flusher: asyncio.Task[None] | None = None

    def wrap(self, name: str, table: StateTable[V], max_entries: int | None) -> StateTable[V]:
        """Return the batched table of that name; the same one each time."""
        known = self._tables.get(name)
        if known is None:
            known = self._tables[name] = BatchedTable(table, self._flush_soon, max_entries=max_entries)
        return known

    async def flush(self) -> None:
        """Write all changes that wait."""
        for table in tuple(self._tables.values()):
            await table.flush()

    async def close(self) -> None:
        """Write all changes that wait, and forget the copies."""
        flusher, self._flusher = self._flusher, None
        if flusher is not None and not flusher.get_loop().is_closed():
            flusher.cancel()
        await self.flush()
        for table in self._tables.values():
            table.clear()

    def _flush_soon(self) -> None:
        if self._flusher is None or self._flusher.done():
            self._flusher = asyncio.get_running_loop().create_task(self._flush_later())

    async def _flush_later(self) -> None:
        while any(table.waits for table in self._tables.values()):
            await asyncio.sleep(FLUSH_S)
            # What is being written when the store closes is finished, or it would be written once more.
            await asyncio.shield(asyncio.ensure_future(self.flush()))
