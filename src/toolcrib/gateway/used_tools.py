"""Which tools each caller used over all their sessions, so that a new session ranks those higher.

A tool counts once for each session that used it with success, and less with the time since then. Only ids, counts and
times are kept, no words of requests and no arguments. Nothing is kept of anonymous requests.
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.types import JSON, Caller

USED_TABLE: Final = "used tools"
"""The durable table with what each caller used, by `caller_key`."""

HALF_LIFE_S: Final = 30 * 86_400.0
"""The time after which a use counts half as much, in seconds."""
_MAX_TOOLS: Final = 256
"""Tools of each caller; those that count least are forgotten first."""
_LEAST: Final = 0.05
"""What counts less is forgotten: a single use after about four months."""
_PER_DOUBLING: Final = 0.25
_MOST: Final = 1.75
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Use:
    count: float
    """How many sessions used it, each weighted by its age at `last`."""
    last: float
    """When a session used it last, in seconds since the epoch."""

    def at(self, now: float) -> float:
        """The count at a moment."""
        return self.count * math.exp2(-max(0.0, now - self.last) / HALF_LIFE_S)


@dataclass(frozen=True, slots=True)
class UsedTools:
    """The tools that one caller used, by id."""

    uses: Mapping[str, _Use] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.uses)

    def with_use(self, tool_id: str, now: float) -> "UsedTools":
        """These, after one more session used a tool. Those that count least go if there are too many."""
        known = self.uses.get(tool_id)
        fresh = _Use(1.0 + (0.0 if known is None else known.at(now)), now)
        kept = {id_: use for id_, use in self.uses.items() if id_ != tool_id and use.at(now) >= _LEAST}
        if len(kept) >= _MAX_TOOLS:
            del kept[min(kept, key=lambda id_: kept[id_].at(now))]
        return UsedTools({**kept, tool_id: fresh})

    def without(self, tool_id: str) -> "UsedTools":
        """These, without one tool."""
        return UsedTools({id_: use for id_, use in self.uses.items() if id_ != tool_id})

    def boosts(self, now: float) -> Mapping[str, float]:
        """What to multiply the odds of each tool with in a search, by id: 1.25 after one session, at most 1.75.

        >>> UsedTools().with_use("git:log", 0.0).boosts(now=0.0)
        {'git:log': 1.25}
        """
        return {id_: min(_MOST, 1.0 + _PER_DOUBLING * math.log2(1.0 + use.at(now))) for id_, use in self.uses.items()}


def _encode(used: UsedTools) -> JSON:
    return {id_: [round(use.count, 3), round(use.last, 3)] for id_, use in used.uses.items()}


def _decode(saved: Any) -> UsedTools:
    return UsedTools({str(id_): _Use(float(count), float(last)) for id_, (count, last) in saved.items()})


def used_table(state: StateStore, callers: int | None = None) -> StateTable[UsedTools]:
    """The table of what each caller used, of at most that many callers."""
    return state.table(USED_TABLE, StateCodec(_encode, _decode), max_entries=callers, durable=True, batched=True)


def caller_key(caller: Caller) -> str:
    """The key of a caller in the table."""
    return json.dumps(caller.key)


class UsedToolsRecorder:
    """Records what callers use, and gives each caller what they used; does nothing unless it is enabled."""

    def __init__(
        self, state: StateStore, *, enabled: bool, callers: int, wall: Callable[[], float] = time.time
    ) -> None:
        """`callers` bounds how many callers are remembered; `wall` counts seconds since the epoch."""
        self._table = used_table(state, callers) if enabled else None
        self._wall = wall

    async def record(self, caller: Caller, tool_id: str) -> None:
        """Record that one more session of the caller used a tool with success."""
        if self._table is not None:
            now = self._wall()
            await self._table.update(
                caller_key(caller), lambda used: ((used or UsedTools()).with_use(tool_id, now), None)
            )

    async def boosts(self, caller: Caller) -> Mapping[str, float]:
        """What to multiply the odds of each tool with, by id; nothing for an unknown caller."""
        used = None if self._table is None else await self._table.get(caller_key(caller))
        return _NOTHING if used is None else used.boosts(self._wall())
