"""Counters, leases and logs for several processes, built on the tables of any state store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from toolcrib.state.base import StateCodec, StateStore

V = TypeVar("V")

_COUNTS: Final[StateCodec[int]] = StateCodec(int, int)
_LAST: Final = "last"
_FREE_S: Final = 60.0
"""How long the number of a released lease is remembered, in seconds: longer than any attempt to acquire it takes."""


class Counters:
    """Whole numbers by key, which several processes add to."""

    def __init__(
        self,
        state: StateStore,
        name: str,
        *,
        max_entries: int | None = None,
        durable: bool = False,
        batched: bool = False,
    ) -> None:
        """`durable` and `batched` are those of `StateStore.table`."""
        self._table = state.table(name, _COUNTS, max_entries=max_entries, durable=durable, batched=batched)

    async def add(self, key: str, amount: int = 1, *, ttl_s: float | None = None) -> int:
        """Add to a counter, and return its new value. It begins at 0, and is forgotten `ttl_s` after its change."""

        def added(count: int | None) -> tuple[int, int]:
            total = (count or 0) + amount
            return total, total

        return await self._table.update(key, added, ttl_s=ttl_s)

    async def get(self, key: str) -> int:
        """Return the value of a counter."""
        return await self._table.get(key) or 0

    async def items(self) -> Mapping[str, int]:
        """Return all counters."""
        return await self._table.items()

    async def delete(self, key: str) -> None:
        """Forget a counter."""
        await self._table.delete(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to do something, of one owner at a time."""

    key: str
    owner: str
    token: int
    """Grows with each new holder of the key, so work under an older token can be refused."""


@dataclass(frozen=True, slots=True)
class _Holder:
    owner: str
    """Empty for a lease that was released."""
    token: int


class _HeldByAnother(Exception):
    """Leaves the entry of a lease, and its lifetime, as they are."""


class _TokenNeeded(Exception):
    """The lease is free, and its next holder needs a number above those before."""


def _decode(saved: Any) -> _Holder:
    return _Holder(str(saved[0]), int(saved[1]))


_HOLDERS: Final[StateCodec[_Holder]] = StateCodec(lambda holder: [holder.owner, holder.token], _decode)


class Leases:
    """Leases by key. One that is not renewed in time ends by itself, so a holder that died loses it.

    While a store outside this process is away, each process grants leases of its own, and two may hold the same one:
    what a lease protects must be harmless if it happens twice, or be refused by its `token`.
    """

    def __init__(self, state: StateStore, name: str, *, durable: bool = False) -> None:
        """`durable` is that of `StateStore.table`; processes that share a file need it."""
        self._holders = state.table(name, _HOLDERS, durable=durable)
        self._tokens = Counters(state, f"{name} tokens", durable=True)

    async def acquire(self, key: str, owner: str, *, ttl_s: float) -> Lease | None:
        """Acquire or extend the lease for `ttl_s` seconds; None while another owner holds it."""
        token = 0
        while True:

            def acquired(old: _Holder | None, token: int = token) -> tuple[_Holder | None, int | None]:
                if old is not None and old.owner == owner:
                    return old, old.token
                if old is not None and old.owner:
                    raise _HeldByAnother
                if token <= (0 if old is None else old.token):
                    raise _TokenNeeded
                return _Holder(owner, token), token

            try:
                held = await self._holders.update(key, acquired, ttl_s=ttl_s)
            except _HeldByAnother:
                return None
            except _TokenNeeded:
                token = await self._tokens.add(_LAST)
                continue
            return Lease(key=key, owner=owner, token=held or token)

    async def renew(self, lease: Lease, *, ttl_s: float) -> bool:
        """Extend a lease; false if it has ended, after which another owner may hold it."""
        return await self._change(lease, _Holder(lease.owner, lease.token), ttl_s)

    async def release(self, lease: Lease) -> None:
        """Let others acquire the lease; does nothing if it has ended."""
        await self._change(lease, _Holder("", lease.token), _FREE_S)

    async def holder(self, key: str) -> Lease | None:
        """Return the lease as its current owner holds it; None if it is free."""
        found = await self._holders.get(key)
        return None if found is None or not found.owner else Lease(key=key, owner=found.owner, token=found.token)

    async def _change(self, lease: Lease, new: _Holder, ttl_s: float) -> bool:
        def changed(old: _Holder | None) -> tuple[_Holder | None, None]:
            if old != _Holder(lease.owner, lease.token):
                raise _HeldByAnother
            return new, None

        try:
            await self._holders.update(lease.key, changed, ttl_s=ttl_s)
        except _HeldByAnother:
            return False
        return True


class Log(Generic[V]):
    """Values in the order in which they were appended, from all processes; the oldest are dropped."""

    def __init__(
        self, state: StateStore, name: str, codec: StateCodec[V], *, max_entries: int, durable: bool = False
    ) -> None:
        self._entries = state.table(name, codec, max_entries=max_entries, durable=durable)
        self._numbers = Counters(state, f"{name} numbers", durable=True)

    async def append(self, value: V, *, ttl_s: float | None = None) -> int:
        """Append a value, and return its number, which is above those of all earlier values."""
        number = await self._numbers.add(_LAST)
        await self._entries.set(f"{number:020d}", value, ttl_s=ttl_s)
        return number

    async def read(self, after: int = 0, limit: int | None = None) -> list[tuple[int, V]]:
        """Return the first `limit` values, None for all, with numbers above `after`, in order.

        A value that is just being appended may appear after one with a higher number.
        """
        entries = {int(key): value for key, value in (await self._entries.items()).items()}
        return [(number, entries[number]) for number in sorted(entries) if number > after][:limit]
