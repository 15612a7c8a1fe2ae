"""What a process knows of a table elsewhere: copies of the values used last, and its own changes that wait to be made.

It knows nothing of where the table is. What uses it reads and writes the table, and says when.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

K = TypeVar("K")
"""What is kept of a value: the value itself, or its text."""
V = TypeVar("V")

MAX_COPIES: Final = 10_000
"""Values of a table that are copied here; those with changes that wait are never dropped."""
_LOOKED_AT: Final = 8
"""Copies that are looked at for one to drop, so that a write takes no longer if the changes of all others wait."""
MAX_CHANGES: Final = 200
"""Changes of one value that wait while the table is out of reach; with more, the older half is lost."""


class PendingChange(NamedTuple, Generic[V]):
    """A change of one value that is still to be made elsewhere."""

    apply: Callable[[V | None], V | None]
    ttl_s: float | None
    size: int | None


@dataclass(frozen=True, slots=True)
class _Copy(Generic[K]):
    kept: K | None
    """None for a value that is known not to exist."""
    read_at: float
    """When it was read or written there, by the clock of ages."""
    expires_at: float
    size: int


class LocalCopies(Generic[K, V]):
    """Copies of values, and the changes that wait, each by key."""

    def __init__(
        self,
        *,
        encode: Callable[[V], K],
        decode: Callable[[K | None], V | None],
        max_entries: int | None = None,
        max_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        age_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is that of lifetimes, and `age_clock` counts how old copies are."""
        self._encode = encode
        self._decode = decode
        self._max_entries = min(max_entries or MAX_COPIES, MAX_COPIES)
        self._max_size = inf if max_size is None else max_size
        self._clock = clock
        self._age_clock = age_clock
        self._copies: OrderedDict[str, _Copy[K]] = OrderedDict()
        self._size = 0
        self.pending: dict[str, list[PendingChange[V]]] = {}
        """Changes that wait, oldest first."""

    def get(self, key: str) -> K | None:
        """Return what is kept of a value; None if it is not known here, or does not exist."""
        copy = self._copies.get(key)
        if copy is None or copy.expires_at <= self._clock():
            return None
        self._copies.move_to_end(key)
        return copy.kept

    def items(self) -> dict[str, K]:
        """Return what is kept of all values, the one used least recently first."""
        now = self._clock()
        return {key: copy.kept for key, copy in self._copies.items() if copy.kept is not None and copy.expires_at > now}

    def is_current(self, key: str, age_s: float) -> bool:
        """Whether the copy of a value can be used: changes to it wait, or it was read less than `age_s` seconds ago."""
        return key in self.pending or self.is_recent(key, age_s)

    def is_recent(self, key: str, age_s: float) -> bool:
        """Whether the value was read or written there less than `age_s` seconds ago."""
        copy = self._copies.get(key)
        return copy is not None and self._age_clock() - copy.read_at < age_s

    def store(self, key: str, kept: K | None, *, ttl_s: float | None = None, size: int = 0) -> None:
        """Keep a copy of a value that was read or written there; None for one that does not exist."""
        self._put(key, _Copy(kept, self._age_clock(), self._expiry(ttl_s), size))

    def store_changed(self, key: str, kept: K | None, *, ttl_s: float | None, size: int | None) -> None:
        """Keep a value that was changed here. Without a `size`, it counts as much as before."""
        old = self._copies.get(key)
        known = 0 if old is None else old.size
        read_at = -inf if old is None else old.read_at
        self._put(key, _Copy(kept, read_at, self._expiry(ttl_s), known if size is None else size))

    def wait(
        self, key: str, change: PendingChange[V], *, replaces: bool = False, max_changes: int = MAX_CHANGES
    ) -> None:
        """Have a change wait to be made there; one that `replaces` the value makes earlier ones needless."""
        changes = self.pending.setdefault(key, [])
        if replaces:
            changes.clear()
        changes.append(change)
        if len(changes) > max_changes:
            del changes[: len(changes) // 2]

    def applied(self, kept: K | None, changes: Sequence[PendingChange[V]]) -> K | None:
        """Return what the changes make of a value. One that fails, because the value is another by now, changes
        nothing.
        """
        for change in changes:
            try:
                value = change.apply(self._decode(kept))
            except Exception as error:  # noqa: BLE001 - it may raise anything, and was answered long ago
                logger.debug("a change does not apply any more: %r", error)
                continue
            kept = None if value is None else self._encode(value)
        return kept

    def clear(self) -> None:
        """Forget the copies and the changes that wait."""
        self._copies.clear()
        self._size = 0
        self.pending.clear()

    def _expiry(self, ttl_s: float | None) -> float:
        return inf if ttl_s is None else self._clock() + ttl_s

    def _put(self, key: str, copy: _Copy[K]) -> None:
        self._drop(key)
        self._copies[key] = copy
        self._size += copy.size
        for _ in range(_LOOKED_AT):
            if len(self._copies) <= self._max_entries and self._size <= self._max_size:
                return
            oldest = next(iter(self._copies))
            if oldest == key:
                return
            if oldest in self.pending:  # known here only
                self._copies.move_to_end(oldest)
            else:
                self._drop(oldest)

    def _drop(self, key: str) -> None:
        old = self._copies.pop(key, None)
        if old is not None:
            self._size -= old.size
