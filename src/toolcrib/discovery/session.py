"""What a session has used, and how much that counts in a search. Bounded in memory; can be saved and restored.

A turn is one request of the user; the host says when the next one begins. What counts is how long ago a tool last
succeeded, its success rate, and how often it succeeded. A tool that never succeeded gets no boost.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import log1p
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Literal

from toolcrib.checks import checked
from toolcrib.errors import InvalidRequest
from toolcrib.sanitize import echo
from toolcrib.schema import Schema
from toolcrib.types import Object

MAX_TOOLS: Final = 256
"""The default number of tools that a session remembers; the least recently used is forgotten first."""
_VERSION: Final = 1
_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": 2**53}
_SAVED: Final[Object] = {
    "type": "object",
    "properties": {
        "version": {"const": _VERSION},
        "turn": _COUNT,
        "tools": {
            "type": "array",
            "maxItems": 100_000,
            "items": {
                "type": "object",
                "properties": {
                    "tool": {"type": "string", "maxLength": 1_000},
                    "calls": _COUNT,
                    "successes": _COUNT,
                    "last_success": _COUNT,
                    "last_used": _COUNT,
                },
                "required": ["tool", "calls", "successes", "last_success", "last_used"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["version", "turn", "tools"],
    "additionalProperties": False,
}


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """How one tool was used in a session."""

    name: str
    call_count: int = 0
    success_count: int = 0
    last_used_turn: int = 0

    @property
    def success_rate(self) -> float:
        """The share of calls that succeeded, 0 to 1."""
        return self.success_count / self.call_count if self.call_count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUsage:
    """How a tool was used in a session."""

    calls: int = 0
    successes: int = 0
    """At most `calls`."""
    last_success: int = 0
    """The turn of the last success."""


@dataclass(slots=True)
class _UsageRecord:
    calls: int = 0
    successes: int = 0
    last_success: int = 0
    last_used: int = 0
    unreported: int = 0
    """Calls of the last used turn that the call path recorded and the host has not reported yet."""

    def use(self) -> ToolUsage:
        return ToolUsage(calls=self.calls, successes=self.successes, last_success=self.last_success)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostOptions:
    """How much recency, success rate and count of uses add to a tool's boost.

    Source: the documentation of chuk-tool-processor's dynamic tool discovery, and its code for the figures.
    """

    recency: float = 2.0
    """For a success in this turn; less with each turn since."""
    turns: int = 5
    """Turns after which a success no longer counts as recent."""
    success: float = 1.5
    """Times the share of calls that succeeded."""
    count: float = 0.5
    """Times the natural logarithm of one more than the successes."""


@checked(methods=("record", "record_call", "boost", "stats", "without", "from_dict"))
class Session:
    """What one session used, by tool id. Safe to use from several threads and tasks."""

    def __init__(self, *, max_tools: int = MAX_TOOLS, options: BoostOptions | None = None) -> None:
        """Create an empty session that remembers at most `max_tools` tools, 1 or more."""
        if max_tools < 1:
            raise InvalidRequest(f"max_tools must be 1 or more, not {max_tools}.")
        self._max_tools = max_tools
        self._options = options or BoostOptions()
        self._records: OrderedDict[str, _UsageRecord] = OrderedDict()
        """Most recently used last."""
        self._turn = 0
        self._boosts: Mapping[str, float] | None = None
        self._lock = Lock()

    @property
    def turn(self) -> int:
        """The number of the turn, from 0."""
        return self._turn

    def record(self, tool_id: str, success: bool = True, *, by: Literal["host", "call"] = "host") -> None:  # noqa: FBT001, FBT002 - the documented form
        """Record a use of a tool.

        The call path records each call itself (`by="call"`). A host that reports the same call again in the same turn
        does not count it twice.
        """
        if by == "call":
            self.record_call(tool_id, success=success)
            return
        with self._lock:
            record = self._used(tool_id)
            if record.unreported:
                record.unreported -= 1
                return
            self._count(record, success=success)

    def record_call(self, tool_id: str, *, success: bool) -> bool:
        """Record a use on the call path. Returns whether it is the tool's first success."""
        return self.note_call(tool_id, success)

    def note_call(self, tool_id: str, success: bool) -> bool:  # noqa: FBT001 - for the call path
        """The same for arguments that are known to fit, which are not checked."""
        with self._lock:
            record = self._used(tool_id)
            is_first = success and not record.successes
            record.unreported += 1
            self._count(record, success=success)
        return is_first

    def _used(self, tool_id: str) -> _UsageRecord:
        record = self._records.get(tool_id)
        if record is None:
            record = self._records[tool_id] = _UsageRecord()
        self._records.move_to_end(tool_id)
        if record.last_used != self._turn:
            record.unreported = 0
        record.last_used = self._turn
        return record

    def _count(self, record: _UsageRecord, *, success: bool) -> None:
        record.calls += 1
        if success:
            record.successes += 1
            record.last_success = self._turn
        while len(self._records) > self._max_tools:
            self._records.popitem(last=False)
        self._boosts = None

    def advance_turn(self) -> None:
        """Begin the user's next request."""
        with self._lock:
            self._turn += 1
            self._boosts = None

    def reset(self) -> None:
        """Forget everything: a new conversation begins."""
        with self._lock:
            self._records.clear()
            self._turn = 0
            self._boosts = None

    def boosts(self) -> Mapping[str, float]:
        """Return the factors, above 1, on the odds of each used tool, by id; a search takes them as its `boosts`.

        >>> session = Session()
        >>> session.record("stats:calculate_std")
        >>> session.advance_turn()
        >>> {id_: round(boost, 4) for id_, boost in session.boosts().items()}
        {'stats:calculate_std': 4.4466}
        """
        with self._lock:
            if self._boosts is None:
                found = {id_: self._multiplier(record) for id_, record in self._records.items()}
                self._boosts = MappingProxyType({id_: boost for id_, boost in found.items() if boost > 1.0})
            return self._boosts

    def boost(self, tool_id: str) -> float:
        """Return the factor of one tool; 1.0 if it was not used or never succeeded."""
        return self.boosts().get(tool_id, 1.0)

    def stats(self, tool_id: str) -> SessionStats | None:
        """Return how a tool was used, or None if it was not."""
        with self._lock:
            record = self._records.get(tool_id)
            if record is None:
                return None
            return SessionStats(
                name=tool_id,
                call_count=record.calls,
                success_count=record.successes,
                last_used_turn=record.last_used,
            )

    def without(self, tool_id: str) -> "Session":
        """Return a copy that never used a tool."""
        saved = self.to_dict()
        kept = [entry for entry in saved["tools"] if entry["tool"] != tool_id]
        return type(self).from_dict({**saved, "tools": kept}, max_tools=self._max_tools, options=self._options)

    def __len__(self) -> int:
        return len(self._records)

    def to_dict(self) -> dict[str, Any]:
        """Return the session as JSON for `from_dict`; the least recently used tool comes first."""
        with self._lock:
            tools = [
                {
                    "tool": id_,
                    "calls": record.calls,
                    "successes": record.successes,
                    "last_success": record.last_success,
                    "last_used": record.last_used,
                }
                for id_, record in self._records.items()
            ]
            return {"version": _VERSION, "turn": self._turn, "tools": tools}

    @classmethod
    def from_dict(cls, saved: Object, *, max_tools: int = MAX_TOOLS, options: BoostOptions | None = None) -> "Session":
        """Restore a session from `to_dict`, without the least recently used tools if there are too many.

        Raises `InvalidRequest` for anything else, naming the field.
        """
        Schema(_SAVED, "session").check(saved)
        session = cls(max_tools=max_tools, options=options)
        session._turn = saved["turn"]
        for entry in saved["tools"][-max_tools:]:
            if entry["successes"] > entry["calls"] or max(entry["last_success"], entry["last_used"]) > saved["turn"]:
                raise InvalidRequest(
                    f"session: the figures of {echo(entry['tool'])} contradict each other.",
                    hint="successes are at most calls, and turns at most the session's turn.",
                )
            session._records[entry["tool"]] = _UsageRecord(
                calls=entry["calls"],
                successes=entry["successes"],
                last_success=entry["last_success"],
                last_used=entry["last_used"],
            )
        return session

    def _multiplier(self, record: _UsageRecord) -> float:
        return usage_boost(record.use(), self._turn, self._options)


_DEFAULT_BOOST = BoostOptions()


def usage_boost(use: ToolUsage, turn: int, options: BoostOptions = _DEFAULT_BOOST) -> float:
    """Return the factor on the odds of a tool in that turn, 1 or more.

    A tool that never succeeded gets 1: a failed call must not raise a tool's rank.

    >>> round(usage_boost(ToolUsage(calls=1, successes=1, last_success=3), turn=4), 4)
    4.4466
    >>> usage_boost(ToolUsage(calls=2), turn=4)
    1.0
    """
    if not use.successes:
        return 1.0
    passed = max(0, turn - use.last_success)
    recent = options.recency * (1 - passed / options.turns) if passed < options.turns else 0.0
    return 1.0 + recent + options.success * use.successes / use.calls + options.count * log1p(use.successes)
