"""State kept in the memory of this process: the default store."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Self, TypeVar

from toolcrib.types import StateCodec, StateTable

V = TypeVar("V")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _StoredValue(Generic[V]):
    value: V
    expires: float
    size: int


class MemoryTable(Generic[V]):
    """One table in memory; when it is full, the value used least recently is dropped. Thread-safe."""

    def __init__(self, *, max_entries: int | None, max_size: int | None, clock: Callable[[], float]) -> None:
        self._max_entries = inf if max_entries is None else max_entries
        self._max_size = inf if max_size is None else max_size
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

    async def update(
        self,
        key: str,
        change: Callable[[V | None], tuple[V | None, R]],
        *,
        ttl_s: float | None = None,
        size: int | None = None,
    ) -> R:
        """Replace a value atomically by what `change` makes of it."""
        with self._lock:
            value, result = change(self._get(key))
            if value is None:
                self._drop(key)
            else:
                old = self._values.get(key)
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
        self._drop(key)
        if size > self._max_size:
            return
        self._values[key] = _StoredValue(value, inf if ttl_s is None else self._clock() + ttl_s, size)
        self._size += size
        while len(self._values) > self._max_entries or self._size > self._max_size:
            self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        stored = self._values.pop(key, None)
        if stored is not None:
            self._size -= stored.size


class MemoryStore:
    """Tables in memory. Values are kept as they are, without encoding them. `async with` neither adds nor drops any."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds, and never goes back."""
        self._clock = clock
        self._tables: dict[str, MemoryTable[Any]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def table(
        self,
        name: str,
        codec: StateCodec[V],  # noqa: ARG002 - the protocol's signature
        *,
        max_entries: int | None = None,
        max_size: int | None = None,
        durable: bool = False,  # noqa: ARG002 - nothing here outlives the process
    ) -> StateTable[V]:
        """Return the table of that name; the first call sets its limits."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = MemoryTable(max_entries=max_entries, max_size=max_size, clock=self._clock)
        return table
