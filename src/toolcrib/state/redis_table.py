"""A table in Redis: the scripts that change it in one step, and the local copy that is used while Redis is away."""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import anyio

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import StateCodec
from toolcrib.state.memory import MemoryTable, table_full
from toolcrib.state.sqlite import PARSE_AT_ONCE, dump_stepwise, load_stepwise

logger = logging.getLogger(__name__)

V = TypeVar("V")
R = TypeVar("R")

FLUSH_S: Final = 1.0
"""How often batched changes are written, and how old their local copy becomes, in seconds."""
_MAX_TRIES: Final = 50
"""Attempts at one update, while other processes change the same value."""
_MAX_LOCAL: Final = 10_000
"""Values of a table that this process has a copy of."""
_MAX_CHANGES: Final = 200
"""Changes of one value that wait to be applied; with more, the older ones are lost."""
_PER_TRIP: Final = 500
"""Values that are read or written at once."""

# KEYS: values, expiry, use, sizes, total size. ARGV[1]: now in milliseconds; empty for the clock of Redis.
_COMMON: Final = """
local V, X, U, S, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local use = time[1] * 1000000 + time[2]
local now = tonumber(ARGV[1]) or math.floor(use / 1000)
local function drop(key)
  redis.call('HDEL', V, key) redis.call('ZREM', X, key) redis.call('ZREM', U, key)
  local size = redis.call('HGET', S, key)
  if size then redis.call('HDEL', S, key) redis.call('DECRBY', T, size) end
end
local function purge(most)
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', X, '-inf', now, 'LIMIT', 0, most)) do drop(key) end
end
local function read(key)
  local expires = redis.call('ZSCORE', X, key)
  if expires and tonumber(expires) <= now then drop(key) return false end
  return redis.call('HGET', V, key)
end
"""
_READ: Final = (
    "#!lua flags=allow-oom"
    + _COMMON
    + """
local found = {}
for i = 3, #ARGV do
  local value = read(ARGV[i])
  if value and ARGV[2] == '1' then redis.call('ZADD', U, use, ARGV[i]) end
  found[#found + 1] = value
end
return found
"""
)
_ITEMS: Final = (
    "#!lua flags=allow-oom"
    + _COMMON
    + """
purge(-1)
local found = {}
for _, key in ipairs(redis.call('ZRANGE', U, 0, -1)) do
  found[#found + 1] = key
  found[#found + 1] = redis.call('HGET', V, key)
end
return found
"""
)
# ARGV: now, key, '1' to compare first, SHA-1 of the expected value or '', '1' to delete, value, lifetime in ms or '',
# size or '' for that of the old value, most entries or '', largest total size or '', '1' to keep all values.
_CHANGE: Final = (
    _COMMON
    + """
local key, value = ARGV[2], ARGV[6]
local most, largest, keep = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11] == '1'
local old = read(key)
if ARGV[3] == '1' and (old and redis.sha1hex(old) or '') ~= ARGV[4] then return 'changed' end
if ARGV[5] == '1' then drop(key) return 'done' end
local before = tonumber(redis.call('HGET', S, key) or '0')
local size = tonumber(ARGV[8]) or before
purge(100)
local function full()
  local entries = redis.call('HLEN', V) + (old and 0 or 1)
  local total = tonumber(redis.call('GET', T) or '0') + size - before
  return (most and entries > most) or (largest and total > largest)
end
if keep then
  if full() then purge(-1) end
  if full() then return 'full' end
end
drop(key)
if largest and size > largest then return 'done' end
redis.call('HSET', V, key, value)
redis.call('ZADD', U, use, key)
if ARGV[7] ~= '' then redis.call('ZADD', X, now + tonumber(ARGV[7]), key) end
if size ~= 0 then redis.call('HSET', S, key, size) redis.call('INCRBY', T, size) end
while (most and redis.call('HLEN', V) > most)
   or (largest and tonumber(redis.call('GET', T) or '0') > largest) do
  drop(redis.call('ZRANGE', U, 0, 0)[1])
end
return 'done'
"""
)
_WRITE: Final = "#!lua" + _CHANGE
"""Refused by Redis when its memory is full."""
_DELETE: Final = "#!lua flags=allow-oom" + _CHANGE


@dataclass(frozen=True, slots=True)
class _Change(Generic[V]):
    """A change of one value that is still to be applied in Redis."""

    apply: Callable[[V | None], V | None]
    ttl_s: float | None
    size: int | None


class RedisConnection(Protocol):
    """What a table needs of its store. Methods raise `StateUnavailable`, at once while Redis is known to be away."""

    @property
    def place(self) -> str:
        """Where Redis is, without credentials."""

    def now_ms(self) -> str:
        """The first argument of every script: the time in milliseconds, or empty for the clock of Redis."""

    def keys(self, table: str) -> list[str]:
        """The keys of a table, which one node of a cluster holds."""

    def watch(self) -> None:
        """Begin to write batched changes, and to look whether Redis is back."""

    async def script(
        self, source: str, keys: Sequence[str], arguments: Sequence[object], *, probing: bool = False
    ) -> Any:
        """Run a script; with `probing`, also while Redis is known to be away."""

    async def scripts(self, source: str, keys: Sequence[str], calls: Iterable[Sequence[object]]) -> list[Any]:
        """Run a script several times in one round trip."""


@dataclass(frozen=True, slots=True)
class TableLimits:
    """How much a table may hold, and whether it refuses what exceeds that."""

    max_entries: int | None
    max_size: int | None
    keep: bool


class RedisTable(Generic[V]):
    """One table, with a local copy of what was used last and the changes that are not yet in Redis."""

    def __init__(
        self,
        store: RedisConnection,
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
        self._keys = store.keys(name)
        self._copies: MemoryTable[str] = MemoryTable(
            name, max_entries=min(limits.max_entries or _MAX_LOCAL, _MAX_LOCAL), max_size=limits.max_size, clock=clock
        )
        self._waiting: dict[str, list[_Change[V]]] = {}
        self._unsure: dict[str, str | None] = {}
        """Values that may have been written in Redis although it did not answer; the change to them waits."""
        self._read_at: dict[str, float] = {}
        """When the copy of a batched value was last read."""
        self._wanted: set[str] = set()
        """Batched values whose copy is old and in use."""
        self._locks: dict[str, _Lock] = {}

    @property
    def waiting(self) -> int:
        """How many values have changes that are not in Redis."""
        return len(self._waiting)

    def is_stale(self) -> bool:
        """Whether changes that were made while Redis was away are not written yet."""
        return bool(self._waiting) and not self._batched

    async def get(self, key: str) -> V | None:
        if self._batched and (key in self._waiting or self._is_recent(key)):
            return self._decode(await self._copies.get(key))
        try:
            [text] = await self._read([key])
        except StateUnavailable:
            if self._limits.keep:
                raise
            text = await self._copies.get(key)
        else:
            await self._copy(key, text)
        return await self._converted(partial(self._decode, text), text)

    async def set(self, key: str, value: V, *, ttl_s: float | None = None, size: int = 0) -> None:
        text = await self._converted(partial(self._encode, value))
        if not self._batched:
            try:
                await self._write(key, text, ttl_s, size)
            except StateUnavailable:
                if self._limits.keep:
                    raise
            else:
                await self._copy(key, text, ttl_s, size)
                return
        await self._copy(key, text, ttl_s, size)
        self._wait(key, _Change(lambda _: self._decode(text), ttl_s, size), replaces=True)

    async def update(
        self,
        key: str,
        change: Callable[[V | None], tuple[V | None, R]],
        *,
        ttl_s: float | None = None,
        size: int | None = None,
    ) -> R:
        async with self._locked(key):
            if self._batched:
                return await self._update_here(key, change, ttl_s, size)
            try:
                return await self._update_there(key, change, ttl_s, size)
            except _Away:
                return await self._update_here(key, change, ttl_s, size)

    async def delete(self, key: str) -> None:
        if not self._batched:
            try:
                await self._write(key, None, None, None)
            except StateUnavailable:
                if self._limits.keep:
                    raise
            else:
                await self._copies.delete(key)
                return
        await self._copies.delete(key)
        self._wait(key, _Change(lambda _: None, None, None), replaces=True)

    async def items(self) -> Mapping[str, V]:
        try:
            found = await self._store.script(_ITEMS, self._keys, [self._store.now_ms()])
        except StateUnavailable:
            if self._limits.keep:
                raise
            texts: Mapping[str, str | None] = await self._copies.items()
        else:
            pairs = dict(zip(found[::2], found[1::2], strict=True))
            here = await self._copies.items()
            texts = {**pairs, **{key: here.get(key) for key in self._waiting}}

        def decoded() -> dict[str, V]:
            values = {key: self._decode(text) for key, text in texts.items()}
            return {key: value for key, value in values.items() if value is not None}

        return await self._converted(decoded)

    # -- in Redis ----------------------------------------------------------------------------------------------------

    async def _update_there(
        self, key: str, change: Callable[[V | None], tuple[V | None, R]], ttl_s: float | None, size: int | None
    ) -> R:
        """Replace the value in Redis. Raises `_Away` if that may go on in this process."""
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
                await self._copy(key, after, ttl_s, size or 0)
                return result
        raise StateUnavailable(
            f"A value of the table {self._name} of the state is changed too often; nothing was changed.",
            hint="Try again.",
        )

    def _failed(self, error: StateUnavailable) -> Exception:
        return error if self._limits.keep else _Away()

    async def _read(self, keys: Sequence[str], *, probing: bool = False) -> list[str | None]:
        is_bounded = self._limits.max_entries is not None or self._limits.max_size is not None
        arguments = [self._store.now_ms(), "1" if is_bounded else "", *keys]
        found: list[str | None] = await self._store.script(_READ, self._keys, arguments, probing=probing)
        return found

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
        arguments = self._arguments(key, text, ttl_s, size, expected)
        answer = await self._store.script(_DELETE if text is None else _WRITE, self._keys, arguments)
        if answer == "full":
            raise table_full(self._name)
        return bool(answer == "done")

    def _arguments(
        self, key: str, text: str | None, ttl_s: float | None, size: int | None, expected: tuple[str | None] | None
    ) -> list[object]:
        limits = self._limits
        return [
            self._store.now_ms(),
            key,
            "" if expected is None else "1",
            "" if expected is None or expected[0] is None else hashlib.sha1(expected[0].encode()).hexdigest(),  # noqa: S324 - compares, and secures nothing
            "1" if text is None else "",
            text or "",
            "" if ttl_s is None else max(round(ttl_s * 1000), 0),
            "" if size is None else size,
            "" if limits.max_entries is None else limits.max_entries,
            "" if limits.max_size is None else limits.max_size,
            "1" if limits.keep else "",
        ]

    # -- in this process ---------------------------------------------------------------------------------------------

    async def _update_here(
        self, key: str, change: Callable[[V | None], tuple[V | None, R]], ttl_s: float | None, size: int | None
    ) -> R:
        """Change the local copy at once, and the value in Redis later."""
        self._store.watch()
        if self._batched and not self._is_recent(key):
            self._wanted.add(key)
        before = await self._copies.get(key)
        after, result = await self._converted(partial(self._changed, before, change), before)
        await self._copies.update(key, lambda _: (after, None), ttl_s=ttl_s, size=size)
        if after != before or (ttl_s is not None and not self._batched):
            self._wait(key, _Change(lambda old: change(old)[0], ttl_s, size))
        if key not in self._waiting:
            self._unsure.pop(key, None)
        return result

    def _wait(self, key: str, change: _Change[V], *, replaces: bool = False) -> None:
        self._store.watch()
        changes = self._waiting.setdefault(key, [])
        if replaces:
            changes.clear()
            self._unsure.pop(key, None)
        changes.append(change)
        if len(changes) > _MAX_CHANGES:
            del changes[: len(changes) // 2]
        if len(self._waiting) > _MAX_LOCAL:
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
        calls: dict[str, tuple[str | None, list[object]]] = {}
        for key, count in applied.items():
            if not count:
                await self._copy(key, texts[key])
                continue
            changes = self._waiting[key][:count]
            after = self._applied(texts[key], changes)
            last = changes[-1]
            calls[key] = after, self._arguments(key, after, last.ttl_s, last.size, (texts[key],))
        if not calls:
            return
        answers = await self._store.scripts(_WRITE, self._keys, [arguments for _, arguments in calls.values()])
        for (key, (after, _)), answer in zip(calls.items(), answers, strict=True):
            if answer == "changed":
                continue  # by another process: once more at the next time
            changes = self._waiting.pop(key)
            newer = changes[applied[key] :]
            if newer:
                self._waiting[key] = newer
            await self._copy(key, self._applied(after, newer), changes[-1].ttl_s, changes[-1].size or 0)

    def _forget_written(self, key: str, text: str | None) -> None:
        """Drop the first waiting change of a value if Redis has applied it, though its answer was lost."""
        changes = self._waiting.get(key)
        if key in self._unsure and self._unsure.pop(key) == text and changes:
            del changes[0]
            if not changes:
                del self._waiting[key]

    def _applied(self, text: str | None, changes: Sequence[_Change[V]]) -> str | None:
        """What the changes make of a value. One that fails, because the value is another by now, changes nothing."""
        for change in changes:
            try:
                value = change.apply(self._decode(text))
            except Exception as error:  # noqa: BLE001 - it may raise anything, and was answered long ago
                logger.debug("a change of the table %s does not apply any more: %r", self._name, error)
                continue
            text = None if value is None else self._encode(value)
        return text

    async def _copy(self, key: str, text: str | None, ttl_s: float | None = None, size: int = 0) -> None:
        """Keep a copy of what is in Redis, for when it is away, and for batched values."""
        if self._limits.keep:
            return
        if self._batched:
            self._read_at[key] = self._store_time()
            if len(self._read_at) > _MAX_LOCAL:
                del self._read_at[next(iter(self._read_at))]
        if text is None:
            await self._copies.delete(key)
        else:
            await self._copies.set(key, text, ttl_s=ttl_s, size=size)

    def _is_recent(self, key: str) -> bool:
        return self._store_time() - self._read_at.get(key, -FLUSH_S) < FLUSH_S

    def _store_time(self) -> float:
        return time.monotonic()

    def _locked(self, key: str) -> "_KeyLock":
        """Changes of one value follow each other in this process: only those of other processes can collide."""
        return _KeyLock(self._locks, key)

    def _changed(self, text: str | None, change: Callable[[V | None], tuple[V | None, R]]) -> tuple[str | None, R]:
        value, result = change(self._decode(text))
        return None if value is None else self._encode(value), result

    async def _converted(self, work: Callable[[], R], text: str | None = None) -> R:
        """Run the work; in a thread if it converts something large, so that the event loop stays free."""
        if self._is_large or len(text or "") > PARSE_AT_ONCE:
            return await asyncio.to_thread(work)
        return work()

    def _encode(self, value: V) -> str:
        encoded = self._codec.encode(value)
        return dump_stepwise(encoded) if self._is_large else json.dumps(encoded, separators=(",", ":"))

    def _decode(self, text: str | None) -> V | None:
        """Decode a value; None for one that another version wrote and this one cannot read."""
        if text is None:
            return None
        try:
            return self._codec.decode(load_stepwise(text))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            logger.debug("a value of the table %s cannot be read: %s", self._name, error)
            return None


class _Away(Exception):
    """Redis is away, and the table may be used in this process meanwhile."""


class _Lock:
    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0


class _KeyLock:
    """A lock that exists as long as it is used."""

    def __init__(self, locks: dict[str, _Lock], key: str) -> None:
        self._locks = locks
        self._key = key

    async def __aenter__(self) -> None:
        lock = self._locks.setdefault(self._key, _Lock())
        lock.users += 1
        try:
            await lock.lock.acquire()
        except BaseException:
            self._release_user(lock)
            raise

    async def __aexit__(self, *_: object) -> None:
        lock = self._locks[self._key]
        lock.lock.release()
        self._release_user(lock)

    def _release_user(self, lock: _Lock) -> None:
        lock.users -= 1
        if not lock.users:
            del self._locks[self._key]
