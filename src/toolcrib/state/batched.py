"""Changes of a table written together, about a second later, so that no caller waits for the disk.

What was changed in this process is seen there at once. A process that is killed loses the changes of the last second,
and nothing else. It knows nothing of where the table is.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import StateTable

logger = logging.getLogger(__name__)

V = TypeVar("V")
R = TypeVar("R")

FLUSH_S: Final = 1.0
"""How often changes are written, in seconds."""
_FRESH_S: Final = 5.0
"""How long a copy is used before the table is read again: other processes may have changed it."""
_MAX_COPIES: Final = 10_000
"""Values that this process remembers; those with changes that wait are never dropped."""
_MAX_CHANGES: Final = 200
"""Changes of one value that wait while the table cannot be written; beyond it, the older half is lost."""
_MAX_BURST: Final = 10_000
"""The same between two writes that succeed."""


class _UnsentChange(NamedTuple, Generic[V]):
    apply: Callable[[V | None], V | None]
    ttl_s: float | None
    size: int | None


@dataclass(slots=True)
class _Copy(Generic[V]):
    value: V | None
    read: float
    """When it was read or written, by the clock."""


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
        self._clock = clock
        self._max_copies = min(max_entries or _MAX_COPIES, _MAX_COPIES)
        self._copies: OrderedDict[str, _Copy[V]] = OrderedDict()
        self._waiting: dict[str, list[_UnsentChange[V]]] = {}
        self._failing = False

    @property
    def waits(self) -> bool:
        """Whether there are changes that are not written."""
        return bool(self._waiting)

    async def get(self, key: str) -> V | None:
        return (await self._copy(key)).value

    async def set(self, key: str, value: V, *, ttl_s: float | None = None, size: int = 0) -> None:
        self._replace(key, value, _UnsentChange(lambda _: value, ttl_s, size))

    async def update(
        self,
        key: str,
        change: Callable[[V | None], tuple[V | None, R]],
        *,
        ttl_s: float | None = None,
        size: int | None = None,
    ) -> R:
        copy = await self._copy(key)
        copy.value, result = change(copy.value)
        self._wait(key, _UnsentChange(lambda old: change(old)[0], ttl_s, size))
        return result

    async def delete(self, key: str) -> None:
        self._replace(key, None, _UnsentChange(lambda _: None, None, None))

    async def items(self) -> Mapping[str, V]:
        """Write what waits, and return all values."""
        await self.flush()
        return await self._table.items()

    async def flush(self) -> None:
        """Write the changes that wait; they go on waiting if the table cannot be written."""
        for key in tuple(self._waiting):
            changes = self._waiting.pop(key)
            last = changes[-1]
            try:
                written = await self._table.update(key, partial(_applied, changes), ttl_s=last.ttl_s, size=last.size)
            except StateUnavailable as error:
                self._waiting[key] = [*changes, *self._waiting.get(key, ())]
                self._warn(error)
                return
            self._failing = False
            if key not in self._waiting and key in self._copies:
                self._copies[key] = _Copy(written, self._clock())

    def clear(self) -> None:
        """Forget the copies and the changes that wait."""
        self._copies.clear()
        self._waiting.clear()

    async def _copy(self, key: str) -> _Copy[V]:
        copy = self._copies.get(key)
        if copy is None or (key not in self._waiting and self._clock() - copy.read >= _FRESH_S):
            found = await self._read(key, copy)
            if key not in self._waiting:  # nothing was changed meanwhile
                self._copies[key] = _Copy(found, self._clock())
        self._copies.move_to_end(key)
        if len(self._copies) > self._max_copies:
            idle = next((one for one in self._copies if one != key and one not in self._waiting), None)
            if idle is not None:
                del self._copies[idle]
        return self._copies[key]

    async def _read(self, key: str, copy: _Copy[V] | None) -> V | None:
        """Read the table, or return what is known here if that fails: changes are written there later."""
        try:
            return await self._table.get(key)
        except StateUnavailable as error:
            self._warn(error)
            return None if copy is None else copy.value

    def _replace(self, key: str, value: V | None, change: _UnsentChange[V]) -> None:
        self._copies[key] = _Copy(value, self._clock())
        self._waiting.pop(key, None)
        self._wait(key, change)

    def _wait(self, key: str, change: _UnsentChange[V]) -> None:
        changes = self._waiting.setdefault(key, [])
        changes.append(change)
        if len(changes) > (_MAX_CHANGES if self._failing else _MAX_BURST):
            del changes[: len(changes) // 2]
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


def _applied(changes: list[_UnsentChange[V]], value: V | None) -> tuple[V | None, V | None]:
    """What the changes make of a value. One that fails, because the value is another by now, changes nothing."""
    for change in changes:
        try:
            value = change.apply(value)
        except Exception as error:  # noqa: BLE001 - it may raise anything, and was answered long ago
            logger.debug("a change does not apply any more: %r", error)
    return value, value
