"""The protocol of state stores: tables of values by key, and channels between processes.

A feature keeps what lasts in a `StateTable`, and knows nothing of where the table is. `toolcrib.state.coordination`
builds counters and leases on tables, so they work with every store.
"""

import json
import json.scanner
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypedDict, TypeVar, Unpack, runtime_checkable

from toolcrib.errors import ToolcribError
from toolcrib.types import JSON, Object

logger = logging.getLogger(__name__)

_V = TypeVar("_V")
_R = TypeVar("_R")
PARSE_AT_ONCE: Final = 256 * 1024
"""Longer values are parsed in steps, so that the event loop stays free."""


class _StepwiseDecoder(json.JSONDecoder):
    """Parses in Python, so that other threads run meanwhile; the parser in C keeps them waiting until its end."""

    def __init__(self) -> None:
        super().__init__()
        decoder: Any = json.decoder  # typeshed lacks these parts of `json`
        scanner: Any = json.scanner
        self.parse_object = decoder.JSONObject
        self.parse_array = decoder.JSONArray
        self.scan_once = scanner.py_make_scanner(self)


@dataclass(frozen=True, slots=True)
class StateCodec(Generic[_V]):
    """Converts the values of a table to JSON and back, for stores outside this process."""

    encode: Callable[[_V], JSON]
    decode: Callable[[JSON], _V]
    """Raises one of `UNREADABLE` for JSON that another version wrote and that it cannot read."""

    def dump(self, value: _V, *, in_steps: bool) -> str:
        """Write a value as text; in steps, other threads run meanwhile, and it takes longer."""
        encoded = self.encode(value)
        if not in_steps:
            return json.dumps(encoded, separators=(",", ":"))
        return "".join(json.JSONEncoder(separators=(",", ":")).iterencode(encoded))

    def load(self, text: str) -> _V | None:
        """Read a value, from a long text in steps; None for one that this version cannot read."""
        try:
            return self.decode(_StepwiseDecoder().decode(text) if len(text) > PARSE_AT_ONCE else json.loads(text))
        except UNREADABLE as error:
            # Without what it says, which may quote the value.
            logger.debug("a value of the state cannot be read: %s", type(error).__name__)
            return None


UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError, ToolcribError)
"""What reading JSON of another shape may raise: such a value counts as missing."""
Change = Callable[[_V | None], tuple[_V | None, _R]]
"""Makes a new value of an old one, None for no value, and a result for who asked."""


class StateTable(Protocol[_V]):
    """Values of one kind, by key. A value that was read must not be changed, except by `update`."""

    async def get(self, key: str) -> _V | None:
        """Return the value, or None if there is none or it has expired."""

    async def set(self, key: str, value: _V, *, ttl_s: float | None = None, size: int = 0) -> None:
        """Store a value for `ttl_s` seconds, None for no limit. `size` counts against the table's `max_size`."""

    async def update(
        self, key: str, change: Change[_V, _R], *, ttl_s: float | None = None, size: int | None = None
    ) -> _R:
        """Replace a value atomically, and return the second item that `change` returned.

        `size` is as in `set`; by default, the new value counts as much as the old one.
        `change` gets the value, or None, and returns the new one, or None to delete it. It may change the value it was
        given but must have no other side effects: it runs again if another process changed the value meanwhile. If it
        raises, the value and its lifetime stay as they were.
        """

    async def delete(self, key: str) -> None:
        """Delete a value; does nothing if there is none."""

    async def items(self) -> Mapping[str, _V]:
        """Return all values that have not expired, by key."""


class StateChannel(Protocol):
    """Messages to every process that serves the same address, this one included. None is kept for later."""

    async def publish(self, message: Object) -> None:
        """Send a message to all current subscribers. It never waits for one of them."""

    def subscribe(self) -> AbstractAsyncContextManager[AsyncIterator[Object | None]]:
        """Receive the messages that are published inside the block, in order.

        None means that messages may have been lost, because the connection was, or because this subscriber was
        too slow: read again whatever was derived from messages.
        """


class TableOptions(TypedDict, total=False):
    """What a table is asked for, as `StateStore.table` describes it; None is no limit."""

    max_entries: int | None
    max_size: int | None
    durable: bool
    keep: bool
    batched: bool


class TableLimits(NamedTuple):
    """How much a table may hold, and whether it refuses what exceeds that."""

    max_entries: int | None = None
    max_size: int | None = None
    keep: bool = False

    @classmethod
    def of(cls, options: TableOptions) -> Self:
        """The limits among the options of a table."""
        return cls(options.get("max_entries"), options.get("max_size"), options.get("keep", False))

    @property
    def are_bounded(self) -> bool:
        """Whether values are dropped for space, the one used least recently first."""
        return self.max_entries is not None or self.max_size is not None


class StateStore(Protocol):
    """Keeps the state that several processes serving one address have to share."""

    @property
    def shared(self) -> bool:
        """Whether other processes serve the same address with this state."""

    def table(self, name: str, codec: StateCodec[_V], **options: Unpack[TableOptions]) -> StateTable[_V]:
        """Return the table of that name; the same one each time.

        A store may drop the least recently used values beyond the limits, or ignore the limits and rely on expiry.
        `durable` asks for values that survive a restart. A store that keeps everything may ignore it, and one that
        keeps nothing must. `keep` asks for values that are never dropped for space: a write that would exceed a limit
        raises `StateUnavailable` and changes nothing, and so does any operation while the values cannot be reached.
        `batched` allows a store outside this process to write changes together, about a second later, and to lose
        those of the last second; this process sees its own changes at once. Operations raise `StateUnavailable` if
        the store cannot be reached.
        """

    def channel(self, name: str) -> StateChannel:
        """Return the channel of that name; the same one each time."""


def state_problem(store: StateStore) -> str:
    """Why what should last cannot be saved at the moment; empty if it can, or if the store does not say."""
    return str(getattr(store, "problem", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOverview:
    """What one table of a store holds."""

    name: str
    entries: int
    bytes: int
    oldest: float | None = None
    newest: float | None = None
    """When its oldest and newest value were written, in seconds since the epoch, if the store knows."""


class ListedStore(StateStore, Protocol):
    """A store that outlives the process, and can be looked into."""

    async def tables(self) -> tuple[TableOverview, ...]:
        """Return what it holds, by name."""

    async def clear(self, table: str | None = None) -> int:
        """Delete all values of a table, or of all tables, and return their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatus:
    """Whether a store that is outside this process can be reached."""

    place: str
    """Where it is, without credentials."""
    away_since: float | None = None
    """When it was last reached, in seconds since the epoch; None while it can be."""
    reason: str = ""
    """Why it cannot be reached."""
    waiting: int = 0
    """Values that were changed in this process only, and are written when it is back."""


@runtime_checkable
class RemoteStore(StateStore, Protocol):
    """A store that may be out of reach."""

    def status(self) -> StateStatus:
        """Return whether it can be reached, as of the last operation."""
