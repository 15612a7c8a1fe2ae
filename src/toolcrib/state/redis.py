"""State that replicas of a gateway share in Redis 7 (extra `redis`).

Each table is a hash with sorted sets for expiry and use; a script changes them in one step. While Redis is away, tables
are kept in this process, and what was changed is applied when Redis is back; a status says so. Tables with `keep` raise
`StateUnavailable` meanwhile: what they hold must be the same for all. No operation waits longer than a deadline, and
while Redis is known to be away none waits at all.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self, TypeVar, Unpack
from urllib.parse import urlsplit

import anyio

from toolcrib.errors import StateUnavailable, missing_extra
from toolcrib.sanitize import MAX_REASON, one_line
from toolcrib.state.base import StateCodec, StateStatus, StateTable, TableLimits, TableOptions, TableOverview
from toolcrib.state.remote_store import RemoteChannel, RemoteChannels, RemoteTables
from toolcrib.state.remote_table import FLUSH_S, ValueWrite, WriteOutcome

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import RedisError, ResponseError
except ModuleNotFoundError as error:
    raise missing_extra("redis", "toolcrib[redis]", needed_by="State in Redis") from error

logger = logging.getLogger(__name__)

V = TypeVar("V")
R = TypeVar("R")

_RETRY_S: Final = 0.5
"""How often Redis is tried while it is away, in seconds."""
_GAP: Final = "null"
"""A message that says that others may have been lost."""
_CLOSE_S: Final = 2.0
"""How long closing may take, in seconds."""
_ERRORS: Final = (RedisError, OSError, TimeoutError)
_CONNECTION_LOST: Final = (RedisConnectionError, ConnectionError)

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


class RedisValues:
    """`RemoteValues` in Redis."""

    def __init__(self, redis: "RedisStore") -> None:
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
        found: list[str | None] = await self._redis.script(
            _READ, self._redis.keys(table), arguments, probing=probing, repeatable=True
        )
        return found

    async def items(self, table: str, limits: TableLimits) -> Mapping[str, str]:  # noqa: ARG002 - the protocol
        """Return all values of a table."""
        found = await self._redis.script(_ITEMS, self._redis.keys(table), [self._redis.now_ms()], repeatable=True)
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


class RedisStore:
    """Keeps all tables in Redis, under keys that begin with a prefix. Replicas use the same place and prefix.

    `async with` closes the connections at its end, once waiting changes are written. A store may be used again then.
    """

    shared = True

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        prefix: str = "toolcrib",
        timeout_s: float = 0.5,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`timeout_s` is how long an operation waits at most. `clock` counts seconds, instead of the clock of Redis."""
        self._url, self._password = url, password
        self._timeout_s = timeout_s
        self._prefix = prefix
        self._clock = clock
        parts = urlsplit(url)
        self.place = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 6379}{parts.path}"
        self._client: Any = None
        self._scripts: dict[str, Any] = {}
        self._tables = RemoteTables(RedisValues(self), clock or time.monotonic)
        self._channels = RemoteChannels(self._publish, self._listen)
        self._receiver: asyncio.Task[None] | None = None
        self._away_since: float | None = None
        self._reason = ""
        self._listening = asyncio.Event()

    def table(self, name: str, codec: StateCodec[V], **options: Unpack[TableOptions]) -> StateTable[V]:
        """Return the table of that name; the first call sets its limits."""
        return self._tables.table(name, codec, options)

    def channel(self, name: str) -> RemoteChannel:
        """Return the channel of that name, between all processes that use this place and prefix."""
        return self._channels.channel(name)

    def status(self) -> StateStatus:
        """Return whether Redis can be reached, and what waits for it."""
        return StateStatus(
            place=self.place, away_since=self._away_since, reason=self._reason, waiting=self._tables.waiting
        )

    async def tables(self) -> tuple[TableOverview, ...]:
        """Return what is kept under the prefix, by name."""
        begin, end = self.keys("*")[0].split("*")

        async def overviews(client: Any) -> list[TableOverview]:
            found = []
            async for key in client.scan_iter(match=f"{_escaped(begin)}*{end}"):
                entries, size = await client.hlen(key), await client.memory_usage(key, samples=0)
                name = key.removeprefix(begin).removesuffix(end)
                found.append(TableOverview(name=name, entries=entries, bytes=size or 0))
            return found

        return tuple(sorted(await self.run(overviews), key=lambda table: table.name))

    async def clear(self, table: str | None = None) -> int:
        """Delete all values of a table, or of all tables, and return their number."""
        deleted = 0
        for one in await self.tables():
            if table in (None, one.name):
                await self.run(partial(_delete, self.keys(one.name)))
                deleted += one.entries
        return deleted

    async def __aenter__(self) -> Self:
        """Connect. If Redis is away, the tables are kept in this process until it is back."""
        with suppress(StateUnavailable):
            await self.run(lambda client: client.ping())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what is waiting, and close the connections."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            receiver, self._receiver = self._receiver, None
            if receiver is not None:
                receiver.cancel()
                await asyncio.wait([receiver])
            await self._tables.stop()
            if self._client is not None and self._away_since is None:
                try:
                    await self._tables.flush()
                except StateUnavailable as error:
                    logger.warning("%d changed values of the state are lost: %s", self.status().waiting, error)
            client, self._client = self._client, None
            self._scripts.clear()
            if client is not None:
                await client.aclose()

    # -- the connection ----------------------------------------------------------------------------------------------

    async def run(self, work: Callable[[Any], Awaitable[R]], *, probing: bool = False, repeatable: bool = False) -> R:
        """Run an operation. Raises `StateUnavailable`, at once while Redis is known to be away.

        One that is `repeatable` runs again if its connection was lost, which may have happened long before.
        """
        if self._away_since is not None and not probing:
            raise self._unavailable()
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    return await work(self._connect())
                except _CONNECTION_LOST:
                    if not repeatable:
                        raise
                    return await work(self._connect())
        except ResponseError as error:  # Redis is there, and says for example that its memory is full
            raise self._unavailable(str(error)) from error
        except _ERRORS as error:
            self._note_away(error)
            raise self._unavailable() from error

    async def script(
        self,
        source: str,
        keys: Sequence[str],
        arguments: Sequence[object],
        *,
        probing: bool = False,
        repeatable: bool = False,
    ) -> Any:
        """Run a script, which is sent whole only once."""

        async def call(client: Any) -> Any:
            script = self._scripts.get(source)
            if script is None:
                script = self._scripts[source] = client.register_script(source)
            return await script(keys=keys, args=arguments)

        return await self.run(call, probing=probing, repeatable=repeatable)

    async def scripts(self, source: str, keys: Sequence[str], calls: Iterable[Sequence[object]]) -> list[Any]:
        """Run a script several times in one round trip."""

        async def call(client: Any) -> list[Any]:
            # Each script is one step by itself. They are sent whole: in a pipeline the answer that Redis does not
            # know a script by its hash comes after all others.
            pipeline = client.pipeline(transaction=False)
            for arguments in calls:
                pipeline.eval(source, len(keys), *keys, *arguments)
            found: list[Any] = await pipeline.execute()
            return found

        return await self.run(call, probing=True)

    def now_ms(self) -> str:
        """The first argument of every script."""
        return "" if self._clock is None else str(round(self._clock() * 1000))

    def keys(self, table: str) -> list[str]:
        """The keys of a table, which one node of a cluster holds."""
        # A cluster places a key by what is in braces.
        return [f"{{{self._prefix}:{table}}}:{part}" for part in ("values", "expiry", "use", "sizes", "size")]

    def watch(self) -> None:
        """Begin to write batched changes, and to look whether Redis is back."""
        self._tables.maintain(self._maintain, lambda: FLUSH_S if self._away_since is None else _RETRY_S)

    async def _publish(self, channel: str, text: str) -> None:
        try:
            await self.run(lambda client: client.publish(self._channel_key(channel), text))
        except StateUnavailable:
            self.watch()  # the others learn later that they missed it
            raise

    def _channel_key(self, channel: str) -> str:
        return f"{self._prefix}:channel:{channel}"

    async def _listen(self) -> None:
        """Begin to receive the messages of all channels; wait until that works, but not for long."""
        if self._receiver is None:
            self.watch()
            self._listening = asyncio.Event()
            self._receiver = asyncio.get_running_loop().create_task(self._receive())
        with anyio.move_on_after(self._timeout_s):
            await self._listening.wait()

    def _connect(self) -> Any:
        if self._client is None:
            options: dict[str, Any] = {} if self._password is None else {"password": self._password}
            # The client would repeat any command, and a write whose answer was lost may have taken effect.
            retry = Retry(NoBackoff(), 0)
            self._client = Redis.from_url(
                self._url,
                decode_responses=True,
                socket_connect_timeout=self._timeout_s,
                retry=retry,
                client_name="toolcrib",
                # With RESP3, redis-py 8 expects notices of maintenance, and uses a connection that has ended meanwhile.
                protocol=2,
                **options,
            )
        return self._client

    def _note_away(self, error: Exception) -> None:
        self.watch()
        if self._away_since is None:
            self._away_since = time.time()
            self._reason = one_line(str(error), MAX_REASON) or "no answer in time"
            logger.warning("%s is away, so state is kept in this process: %s", self.place, self._reason)

    def _unavailable(self, reason: str = "") -> StateUnavailable:
        why = one_line(reason or self._reason or "it is away", MAX_REASON)
        return StateUnavailable(
            f"The state in {self.place} cannot be used: {why}.",
            hint="Try again shortly, or check that Redis runs and can be reached.",
        )

    async def _maintain(self) -> None:
        if self._away_since is not None:
            await self.run(lambda client: client.ping(), probing=True)
        await self._tables.flush()
        self._note_back()
        await self._report_unsent()

    def _note_back(self) -> None:
        """Use Redis again, unless changes were made here while the others were written."""
        if self._away_since is None or self._tables.are_stale:
            return
        away_s = time.time() - self._away_since
        self._away_since, self._reason = None, ""
        logger.warning("%s is back after %.1f s; what was changed meanwhile is written", self.place, away_s)
        if self._receiver is not None:  # its connection may be dead, and messages were lost in any case
            self._receiver.cancel()
            self._receiver = asyncio.get_running_loop().create_task(self._receive(was_lost=True))

    async def _report_unsent(self) -> None:
        """Tell the other processes that messages of this one did not reach them: they may not have lost Redis."""
        for channel in self._channels:
            if channel.has_unsent and self._away_since is None:
                await self._publish(channel.name, _GAP)
                channel.has_unsent = False

    async def _receive(self, *, was_lost: bool = False) -> None:
        """Hand messages to the channels, and connect again whenever the connection is lost."""
        begin = self._channel_key("")
        while True:
            try:
                async with self._connect().pubsub() as source:
                    await source.psubscribe(f"{begin}*")
                    async for message in source.listen():
                        if message["type"] == "psubscribe":
                            self._listening.set()
                            if was_lost:
                                self._channels.deliver_gap()
                        elif message["type"] == "pmessage":
                            self._channels.deliver(message["channel"].removeprefix(begin), message["data"])
            except _ERRORS as error:
                logger.debug("messages are not received: %s", error)
            was_lost = True
            await anyio.sleep(_RETRY_S)


async def _delete(keys: Sequence[str], client: Any) -> None:
    await client.delete(*keys)


def _escaped(text: str) -> str:
    """The text as a pattern of Redis that matches only itself."""
    return "".join(f"\\{char}" if char in "*?[]^\\" else char for char in text)
