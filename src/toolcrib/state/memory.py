"""State kept in the memory of this process: the default store."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Generic, Self, TypeVar, Unpack

import anyio

from toolcrib.errors import StateUnavailable
from toolcrib.state.base import Change, StateCodec, StateTable, TableLimits, TableOptions
from toolcrib.types import Object

V = TypeVar("V")
R = TypeVar("R")

_MAX_WAITING: Final = 1_000
"""Messages that wait for one subscriber; with more, all are dropped, and None says so."""


@dataclass(frozen=True, slots=True)
class _StoredValue(Generic[V]):
    value: V
    expires: float
    size: int


class MemoryTable(Generic[V]):
    """One table in memory; when it is full, the value used least recently is dropped. Thread-safe."""

    def __init__(self, name: str, limits: TableLimits, *, clock: Callable[[], float]) -> None:
        """With `keep`, no value is dropped: `set` and `update` raise `StateUnavailable` when the table is full."""
        self._name = name
        self._keep = limits.keep
        self._max_entries = inf if limits.max_entries is None else limits.max_entries
        self._max_size = inf if limits.max_size is None else limits.max_size
        self._clock = clock
        self._values: OrderedDict[str, _StoredValue[V]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    async def get(self, key: str) -> V | None:
        """Return the value, or None."""
        with self._lock:
            return self._get(key)

    async def set(self, key: str, value: V, *, ttl_s: float | None = None, size: int = 0) -> None:
        """Store a value. One that alone exceeds the size of the table is not kept."""
        with self._lock:
            self._set(key, value, ttl_s, size)

    async def update(self, key: str, change: Change[V, R], *, ttl_s: float | None = None, size: int | None = None) -> R:
        """Replace a value atomically by what `change` makes of it."""
        with self._lock:
            value, result = change(self._get(key))
            if value is None:
                self._drop(key)
            elif (old := self._values.get(key)) is not None and size is None:
                expires = inf if ttl_s is None else self._clock() + ttl_s
                self._values[key] = _StoredValue(value, expires, old.size)  # its place is the last one since `_get`
            else:
                known = 0 if old is None else old.size
                self._set(key, value, ttl_s, known if size is None else size)
        return result

    async def delete(self, key: str) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            self._drop(key)

    async def items(self) -> dict[str, V]:
        """Return all values, the one used least recently first."""
        now = self._clock()
        with self._lock:
            return {key: stored.value for key, stored in self._values.items() if stored.expires > now}

    def _get(self, key: str) -> V | None:
        stored = self._values.get(key)
        if stored is None:
            return None
        if stored.expires <= self._clock():
            self._drop(key)
            return None
        self._values.move_to_end(key)
        return stored.value

    def _set(self, key: str, value: V, ttl_s: float | None, size: int) -> None:
        if self._keep:
            self._make_room(key, size)
        self._drop(key)
        if size > self._max_size:
            return
        self._values[key] = _StoredValue(value, inf if ttl_s is None else self._clock() + ttl_s, size)
        self._size += size
        while len(self._values) > self._max_entries or self._size > self._max_size:
            self._drop(next(iter(self._values)))

    def _make_room(self, key: str, size: int) -> None:
        """Drop what has expired if the table is full. Raises `StateUnavailable` if the value does not fit even then."""
        if self._fits(key, size):
            return
        now = self._clock()
        for expired in [one for one, stored in self._values.items() if stored.expires <= now]:
            self._drop(expired)
        if not self._fits(key, size):
            raise table_full(self._name)

    def _fits(self, key: str, size: int) -> bool:
        old = self._values.get(key)
        entries = len(self._values) + (old is None)
        return entries <= self._max_entries and self._size + size - (0 if old is None else old.size) <= self._max_size

    def _drop(self, key: str) -> None:
        stored = self._values.pop(key, None)
        if stored is not None:
            self._size -= stored.size


def table_full(name: str) -> StateUnavailable:
    """The error for a value that a table with `keep` has no room for."""
    return StateUnavailable(
        f"There is no room for another value in the table {name} of the state; nothing was changed.",
        hint="Delete some of its values, wait until some expire, or give the state more space.",
    )


class MemoryChannel:
    """Messages between tasks of this process; also the local end of the channels of other stores."""

    def __init__(self) -> None:
        self._subscriptions: set[_Subscription] = set()

    @property
    def is_used(self) -> bool:
        """Whether anything is subscribed."""
        return bool(self._subscriptions)

    async def publish(self, message: Object) -> None:
        """Send a message to all current subscribers."""
        self.deliver(message)

    def deliver(self, message: Object | None) -> None:
        """Send a message, or None for messages that may have been lost, to all current subscribers."""
        for subscription in self._subscriptions:
            subscription.put(message)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Object | None]]:
        """Receive what is published inside the block."""
        subscription = _Subscription()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)


class _Subscription:
    """What waits for one subscriber; iterating never ends."""

    def __init__(self) -> None:
        self._waiting: deque[Object | None] = deque()
        self._arrived = anyio.Event()

    def put(self, message: Object | None) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.clear()
            message = None
        self._waiting.append(message)
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Object | None:
        while not self._waiting:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._waiting.popleft()


class MemoryStore:
    """Tables in memory. Values are kept as they are, without encoding them. `async with` neither adds nor drops any."""

    shared = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds, and never goes back."""
        self._clock = clock
        self._tables: dict[str, MemoryTable[Any]] = {}
        self._channels: dict[str, MemoryChannel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def table(
        self,
        name: str,
        codec: StateCodec[V],  # noqa: ARG002 - the protocol's signature
        **options: Unpack[TableOptions],
    ) -> StateTable[V]:
        """Return the table of that name; the first call sets its limits. Each change is made at once."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = MemoryTable(name, TableLimits.of(options), clock=self._clock)
        return table

    def channel(self, name: str) -> MemoryChannel:
        """Return the channel of that name."""
        return self._channels.setdefault(name, MemoryChannel())
