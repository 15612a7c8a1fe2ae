"""The tables of Redis: the scripts that read and change them in one step."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from toolcrib.state.remote_table import TableLimits, ValueWrite, WriteOutcome

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


class RedisScripts(Protocol):
    """What runs scripts. Methods raise `StateUnavailable`, at once while Redis is known to be away."""

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


class RedisValues:
    """`RemoteValues` in Redis."""

    def __init__(self, redis: RedisScripts) -> None:
        self._redis = redis

    @property
    def place(self) -> str:
        """Where Redis is."""
        return self._redis.place

    def watch(self) -> None:
        """Begin to write batched changes."""
        self._redis.watch()

    async def read(
        self, table: str, keys: Sequence[str], limits: TableLimits, *, probing: bool = False
    ) -> list[str | None]:
        """Return values, and note their use if some are dropped for space."""
        arguments = [self._redis.now_ms(), "1" if limits.are_bounded else "", *keys]
        found: list[str | None] = await self._redis.script(_READ, self._redis.keys(table), arguments, probing=probing)
        return found

    async def items(self, table: str, limits: TableLimits) -> Mapping[str, str]:  # noqa: ARG002 - the protocol
        """Return all values of a table."""
        found = await self._redis.script(_ITEMS, self._redis.keys(table), [self._redis.now_ms()])
        return dict(zip(found[::2], found[1::2], strict=True))

    async def write(self, table: str, write: ValueWrite, limits: TableLimits) -> WriteOutcome:
        """Write one value. Deleting works also when the memory of Redis is full."""
        source = _DELETE if write.text is None else _WRITE
        outcome: WriteOutcome = await self._redis.script(
            source, self._redis.keys(table), self._arguments(write, limits)
        )
        return outcome

    async def write_all(self, table: str, writes: Sequence[ValueWrite], limits: TableLimits) -> Sequence[WriteOutcome]:
        """Write several values in one round trip."""
        calls = [self._arguments(write, limits) for write in writes]
        outcomes: list[WriteOutcome] = await self._redis.scripts(_WRITE, self._redis.keys(table), calls)
        return outcomes

    def _arguments(self, write: ValueWrite, limits: TableLimits) -> list[object]:
        expected = write.expected
        return [
            self._redis.now_ms(),
            write.key,
            "" if expected is None else "1",
            "" if expected is None or expected[0] is None else hashlib.sha1(expected[0].encode()).hexdigest(),  # noqa: S324 - compares, and secures nothing
            "1" if write.text is None else "",
            write.text or "",
            "" if write.ttl_s is None else max(round(write.ttl_s * 1000), 0),
            "" if write.size is None else write.size,
            "" if limits.max_entries is None else limits.max_entries,
            "" if limits.max_size is None else limits.max_size,
            "1" if limits.keep else "",
        ]
