"""A table outside this process: its values there, the local copy that is used while they are out of reach, and batches.

What keeps the values implements `RemoteValues`; here is what all of them have in common.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Literal, Protocol, TypeVar
from weakref import WeakValueDictionary

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import PARSE_AT_ONCE, Change, StateCodec, TableLimits
from toolcrib.state.local_copies import LocalCopies, PendingChange
from toolcrib.state.memory import table_full

logger = logging.getLogger(__name__)

V = TypeVar("V")
R = TypeVar("R")

FLUSH_S: Final = 1.0
"""How often batched changes are written, and how old their local copy becomes, in seconds."""
_MAX_TRIES: Final = 50
"""Attempts at one update, while other processes change the same value."""
_MAX_WAITING: Final = 10_000
"""Values whose changes wait."""
_PER_TRIP: Final = 500
"""Values that are read or written at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueWrite:
    """One value to write, as text."""

    key: str
    text: str | None
    """None to delete it."""
    ttl_s: float | None = None
    size: int | None = None
    """None for that of the old value."""
    expected: tuple[str | None] | None = None
    """What the value must still be; None to write in any case."""


WriteOutcome = Literal["done", "changed", "full"]
"""Of a write: made; the value was not what was expected; there is no room. Only the first one changed anything."""


class RemoteValues(Protocol):
    """Where the values of tables are. Methods raise `StateUnavailable`, at once while it is known to be away."""

    @property
    def place(self) -> str:
        """Where that is, without credentials."""

    def watch(self) -> None:
        """Begin to write batched changes, and to look whether what was away is back."""

    async def read(
        self, table: str, keys: Sequence[str], limits: TableLimits, *, probing: bool = False
    ) -> list[str | None]:
        """Return values, None for each that there is not; with `probing`, try also while it is known to be away."""

    async def items(self, table: str, limits: TableLimits) -> Mapping[str, str]:
        """Return all values of a table, the one used least recently first."""

    async def write(self, table: str, write: ValueWrite, limits: TableLimits) -> WriteOutcome:
        """Write one value."""

    async def write_all(self, table: str, writes: Sequence[ValueWrite], limits: TableLimits) -> Sequence[WriteOutcome]:
        """Write several values in one round trip, also while it is known to be away."""


class RemoteTable(Generic[V]):
    """One table, with a local copy of what was used last and the changes that are not written yet."""

    def __init__(
        self,
        store: RemoteValues,
        name: str,
        codec: StateCodec[V],
        *,
        limits: TableLimits,
        batched: bool,
        is_large: bool,
        clock: Callable[[], float],
    ) -> None:
        """Values of a table that `is_large` are encoded and decoded in a thread: they include the catalogs."""
        self._store = store
        self._name = name
        self._codec = codec
        self._limits = limits
        self._batched = batched
        self._is_large = is_large
        self._local: LocalCopies[str, V] = LocalCopies(
            encode=self._encode,
            decode=self._decode,
            max_entries=limits.max_entries,
            max_size=limits.max_size,
            clock=clock,
        )
        self._waiting = self._local.pending
        self._unsure: dict[str, str | None] = {}
        """Values that may have been written in Redis although it did not answer; the change to them waits."""
        self._wanted: set[str] = set()
        """Batched values whose copy is old and in use."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Changes of one value follow each other in this process: only those of other processes can collide."""

    @property
    def waiting(self) -> int:
        """How many values have changes that are not written."""
        return len(self._waiting)

    def is_stale(self) -> bool:
        """Whether changes that were made while it was away are not written yet."""
        return bool(self._waiting) and not self._batched

    async def get(self, key: str) -> V | None:
        if self._batched and self._local.is_current(key, FLUSH_S):
            return self._decode(self._local.get(key))
        try:
            [text] = await self._read([key])
        except StateUnavailable:
            if self._limits.keep:
                raise
            text = self._local.get(key)
        else:
            self._copy(key, text)
        return await self._converted(partial(self._decode, text), text)

    async def set(self, key: str, value: V, *, ttl_s: float | None = None, size: int = 0) -> None:
        await self._replace(key, await self._converted(partial(self._encode, value)), ttl_s, size)

    async def update(self, key: str, change: Change[V, R], *, ttl_s: float | None = None, size: int | None = None) -> R:
        async with self._locks.setdefault(key, asyncio.Lock()):
            if self._batched:
                return await self._update_here(key, change, ttl_s, size)
            try:
                return await self._update_there(key, change, ttl_s, size)
            except _Away:
                return await self._update_here(key, change, ttl_s, size)

    async def delete(self, key: str) -> None:
        await self._replace(key, None, None, None)

    async def _replace(self, key: str, text: str | None, ttl_s: float | None, size: int | None) -> None:
        """Write a value, or delete it with None; while its place is away, here."""
        if not self._batched:
            try:
                await self._write(key, text, ttl_s, size)
            except StateUnavailable:
                if self._limits.keep:
                    raise
            else:
                self._copy(key, text, ttl_s, size or 0)
                return
        self._wait(key, PendingChange(lambda _: self._decode(text), ttl_s, size), replaces=True)
        self._copy(key, text, ttl_s, size or 0)

    async def items(self) -> Mapping[str, V]:
        try:
            found = await self._store.items(self._name, self._limits)
        except StateUnavailable:
            if self._limits.keep:
                raise
            texts: Mapping[str, str | None] = self._local.items()
        else:
            texts = {**found, **{key: self._local.get(key) for key in self._waiting}}

        def decoded() -> dict[str, V]:
            values = {key: self._decode(text) for key, text in texts.items()}
            return {key: value for key, value in values.items() if value is not None}

        return await self._converted(decoded)

    # -- where the values are ------------------------------------------------------------------------------------------

    async def _update_there(self, key: str, change: Change[V, R], ttl_s: float | None, size: int | None) -> R:
        """Replace the value there. Raises `_Away` if that may go on in this process."""
        for _ in range(_MAX_TRIES):
            try:
                [before] = await self._read([key])
            except StateUnavailable as error:
                raise self._failed(error) from error
            after, result = await self._converted(partial(self._changed, before, change), before)
            try:
                done = await self._write(key, after, ttl_s, size, expected=(before,))
            except StateUnavailable as error:
                if not self._limits.keep and after != before:
                    self._unsure[key] = after
                raise self._failed(error) from error
            if done:
                self._copy(key, after, ttl_s, size or 0)
                return result
        raise StateUnavailable(
            f"A value of the table {self._name} of the state is changed too often; nothing was changed.",
            hint="Try again.",
        )

    def _failed(self, error: StateUnavailable) -> Exception:
        return error if self._limits.keep else _Away()

    async def _read(self, keys: Sequence[str], *, probing: bool = False) -> list[str | None]:
        return await self._store.read(self._name, keys, self._limits, probing=probing)

    async def _write(
        self,
        key: str,
        text: str | None,
        ttl_s: float | None,
        size: int | None,
        *,
        expected: tuple[str | None] | None = None,
    ) -> bool:
        """Write, or delete with None; false if the value is not what was expected. Raises `StateUnavailable`."""
        write = ValueWrite(key=key, text=text, ttl_s=ttl_s, size=size, expected=expected)
        outcome = await self._store.write(self._name, write, self._limits)
        if outcome == "full":
            raise table_full(self._name)
        return outcome == "done"

    # -- in this process ---------------------------------------------------------------------------------------------

    async def _update_here(self, key: str, change: Change[V, R], ttl_s: float | None, size: int | None) -> R:
        """Change the local copy at once, and the value there later."""
        self._store.watch()
        if self._batched and not self._local.is_recent(key, FLUSH_S):
            self._wanted.add(key)
        before = self._local.get(key)
        after, result = await self._converted(partial(self._changed, before, change), before)
        if after != before or (ttl_s is not None and not self._batched):
            self._wait(key, PendingChange(lambda old: change(old)[0], ttl_s, size))
        self._local.store_changed(key, after, ttl_s=ttl_s, size=size)
        if key not in self._waiting:
            self._unsure.pop(key, None)
        return result

    def _wait(self, key: str, change: PendingChange[V], *, replaces: bool = False) -> None:
        self._store.watch()
        self._local.wait(key, change, replaces=replaces)
        if replaces:
            self._unsure.pop(key, None)
        if len(self._waiting) > _MAX_WAITING:
            dropped = next(iter(self._waiting))
            del self._waiting[dropped]
            self._unsure.pop(dropped, None)
            logger.warning("too many values of the table %s wait for %s: one is lost", self._name, self._store.place)

    async def flush(self) -> None:
        """Write the changes that wait, and read the values whose copies are old. Raises `StateUnavailable`."""
        keys = list(dict.fromkeys((*self._waiting, *self._wanted)))
        self._wanted.clear()
        for start in range(0, len(keys), _PER_TRIP):
            await self._flush_some(keys[start : start + _PER_TRIP])

    async def _flush_some(self, keys: Sequence[str]) -> None:
        texts = dict(zip(keys, await self._read(keys, probing=True), strict=True))
        for key in keys:
            self._forget_written(key, texts[key])
        applied = {key: len(self._waiting.get(key, ())) for key in keys}
        writes: dict[str, ValueWrite] = {}
        for key, count in applied.items():
            if not count:
                self._copy(key, texts[key])
                continue
            changes = self._waiting[key][:count]
            after = self._local.applied(texts[key], changes)
            last = changes[-1]
            writes[key] = ValueWrite(key=key, text=after, ttl_s=last.ttl_s, size=last.size, expected=(texts[key],))
        if not writes:
            return
        outcomes = await self._store.write_all(self._name, tuple(writes.values()), self._limits)
        for (key, write), outcome in zip(writes.items(), outcomes, strict=True):
            if outcome == "changed":
                continue  # by another process: once more at the next time
            changes = self._waiting.pop(key)
            newer = changes[applied[key] :]
            if newer:
                self._waiting[key] = newer
            self._copy(key, self._local.applied(write.text, newer), changes[-1].ttl_s, changes[-1].size or 0)

    def _forget_written(self, key: str, text: str | None) -> None:
        """Drop the first waiting change of a value if Redis has applied it, though its answer was lost."""
        changes = self._waiting.get(key)
        if key in self._unsure and self._unsure.pop(key) == text and changes:
            del changes[0]
            if not changes:
                del self._waiting[key]

    def _copy(self, key: str, text: str | None, ttl_s: float | None = None, size: int = 0) -> None:
        """Keep a copy of what is there, for when it is away, and for batched values."""
        if not self._limits.keep:
            self._local.store(key, text, ttl_s=ttl_s, size=size)

    def _changed(self, text: str | None, change: Change[V, R]) -> tuple[str | None, R]:
        value, result = change(self._decode(text))
        return None if value is None else self._encode(value), result

    async def _converted(self, work: Callable[[], R], text: str | None = None) -> R:
        """Run the work; in a thread if it converts something large, so that the event loop stays free."""
        if self._is_large or len(text or "") > PARSE_AT_ONCE:
            return await asyncio.to_thread(work)
        return work()

    def _encode(self, value: V) -> str:
        return self._codec.dump(value, in_steps=self._is_large)

    def _decode(self, text: str | None) -> V | None:
        return None if text is None else self._codec.load(text)


class _Away(Exception):
    """It is away, and the table may be used in this process meanwhile."""
