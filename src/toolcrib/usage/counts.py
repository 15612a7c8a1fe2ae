"""Daily counts as values: calls by tool, tokens by server, searches by outcome, and a report over several days."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import zip_longest
from operator import add
from typing import Any, Final

from toolcrib.providers.accounts import group_key
from toolcrib.state.base import StateCodec
from toolcrib.tokens import estimate_tokens
from toolcrib.types import JSON, Tool, Visibility

LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets in `CallCounts.latency`, in seconds; the last bucket has no bound."""
KEPT_DAYS: Final = 90
MAX_TOOLS: Final = 5_000
"""Tools of one day that are counted by name; calls of further ones are counted in `OTHER`."""
OTHER: Final = "(other tools)"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCounts:
    """Calls of a tool or a server.

    >>> fast = CallCounts(calls=9, latency=(9,))
    >>> slow = CallCounts(calls=1, errors=1, duration_s=2.0, latency=(0,) * 8 + (1,))
    >>> both = fast + slow
    >>> both.calls, both.quantile_s(0.5), both.quantile_s(0.95)
    (10, 0.005, 2.5)
    """

    calls: int = 0
    errors: int = 0
    """Calls that ended with an error, be it the tool's own."""
    duration_s: float = 0.0
    """Of all calls together."""
    result_bytes: int = 0
    """Approximate size of the texts and data in the results."""
    result_tokens: int = 0
    """Approximate number of tokens in the texts of the results."""
    latency: tuple[int, ...] = ()
    """Calls in each bucket of `LATENCY_S`; empty buckets at the end may be missing."""

    def __add__(self, other: "CallCounts") -> "CallCounts":
        return CallCounts(
            calls=self.calls + other.calls,
            errors=self.errors + other.errors,
            duration_s=self.duration_s + other.duration_s,
            result_bytes=self.result_bytes + other.result_bytes,
            result_tokens=self.result_tokens + other.result_tokens,
            latency=tuple(map(sum, zip_longest(self.latency, other.latency, fillvalue=0))),
        )

    def quantile_s(self, share: float) -> float | None:
        """The upper bound of the bucket in which this share of the calls had ended; None without calls."""
        left = share * sum(self.latency)
        for bound, count in zip((*LATENCY_S, LATENCY_S[-1]), self.latency, strict=False):
            left -= count
            if left <= 0 < count:
                return bound
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of the definitions of one server's tools, estimated."""

    tools: int = 0
    at_rest: int = 0
    """What an agent would carry in each request if the tools were listed: the tokens of all of them."""
    unlisted: int = 0
    """What the lists of clients would have held in addition, had they named the tools: `at_rest` for each list."""
    served: int = 0
    """What clients were shown: tools that they list by name, and those in replies of searches and descriptions."""

    @property
    def saved(self) -> int:
        """The difference, counted once for each list; negative if replies cost more than the lists would have."""
        return self.unlisted - self.served

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        """Add a later count."""
        latest = other if other.tools else self
        return TokenCounts(
            tools=latest.tools,
            at_rest=latest.at_rest,
            unlisted=self.unlisted + other.unlisted,
            served=self.served + other.served,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DayUsage:
    """The counts of one day, or of several together."""

    tools: Mapping[str, CallCounts] = field(default_factory=dict)
    """Calls by the id of the tool."""
    servers: Mapping[str, TokenCounts] = field(default_factory=dict)
    """Tokens by namespace."""
    searches: Mapping[str, int] = field(default_factory=dict)
    """Searches by outcome: `hit`, `weak` or `none`."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Calls that came to no tool, by the code of the error: no such tool, not allowed, wrong arguments."""
    lists: int = 0
    """How often clients asked for their list of tools."""
    list_tokens: int = 0
    """What the meta-tools in these lists took."""

    @property
    def saved(self) -> int:
        """Tokens saved by not listing all tools, less the meta-tools that are listed instead."""
        return sum(tokens.saved for tokens in self.servers.values()) - self.list_tokens

    def calls(self) -> CallCounts:
        """The calls of all tools."""
        return reduce(add, self.tools.values(), CallCounts())

    def calls_by_server(self) -> dict[str, CallCounts]:
        """The calls by namespace."""
        found: dict[str, CallCounts] = {}
        for tool, counts in self.tools.items():
            namespace = tool.partition(":")[0] if ":" in tool else ""
            found[namespace] = found.get(namespace, CallCounts()) + counts
        return found

    def __add__(self, other: "DayUsage") -> "DayUsage":
        """Add later counts, within the bounds."""
        tools = dict(self.tools)
        for name, counts in other.tools.items():
            key = name if name in tools or len(tools) < MAX_TOOLS else OTHER
            tools[key] = tools.get(key, CallCounts()) + counts
        servers = dict(self.servers)
        for name, tokens in other.servers.items():
            servers[name] = servers.get(name, TokenCounts()) + tokens
        return DayUsage(
            tools=tools,
            servers=servers,
            searches=Counter(self.searches) + Counter(other.searches),
            refused=Counter(self.refused) + Counter(other.refused),
            lists=self.lists + other.lists,
            list_tokens=self.list_tokens + other.list_tokens,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON for `from_dict`."""
        return {
            "version": _VERSION,
            "tools": {
                name: [one.calls, one.errors, one.duration_s, one.result_bytes, one.result_tokens, list(one.latency)]
                for name, one in self.tools.items()
            },
            "servers": {name: [one.tools, one.at_rest, one.unlisted, one.served] for name, one in self.servers.items()},
            "searches": dict(self.searches),
            "refused": dict(self.refused),
            "lists": [self.lists, self.list_tokens],
        }

    @classmethod
    def from_dict(cls, saved: JSON) -> "DayUsage":
        """Restore from `to_dict`. Raises `ValueError`, `TypeError` or `KeyError` for anything else."""
        if not isinstance(saved, dict) or saved["version"] != _VERSION:
            raise ValueError("not the counts of a day")
        lists, list_tokens = saved["lists"]
        return cls(
            tools={name: _read_calls(counts) for name, counts in saved["tools"].items()},
            servers={name: _read_tokens(counts) for name, counts in saved["servers"].items()},
            searches={name: int(count) for name, count in saved["searches"].items()},
            refused={name: int(count) for name, count in saved["refused"].items()},
            lists=int(lists),
            list_tokens=int(list_tokens),
        )


DAY_CODEC: Final[StateCodec[DayUsage]] = StateCodec(DayUsage.to_dict, DayUsage.from_dict)


def _read_calls(saved: Sequence[Any]) -> CallCounts:
    calls, errors, duration_s, size, tokens, latency = saved
    return CallCounts(
        calls=int(calls),
        errors=int(errors),
        duration_s=float(duration_s),
        result_bytes=int(size),
        result_tokens=int(tokens),
        latency=tuple(map(int, latency)),
    )


def _read_tokens(saved: Sequence[Any]) -> TokenCounts:
    tools, at_rest, unlisted, served = map(int, saved)
    return TokenCounts(tools=tools, at_rest=at_rest, unlisted=unlisted, served=served)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """The counts of the last days."""

    days: Mapping[str, DayUsage]
    """By day in UTC, such as `2026-11-23`, in order; days without any use are missing."""
    total: DayUsage
    """The sum of all days. The tools and tokens at rest of its servers are those of now."""
    unused: tuple[str, ...] = ()
    """The ids of tools that were not called on any of these days."""

    @property
    def since(self) -> str | None:
        """The first day with counts."""
        return next(iter(self.days), None)

    @classmethod
    def make(
        cls, saved: Mapping[str, DayUsage], *, until: float, days: int, tools: Sequence[Tool] | None = None
    ) -> "UsageReport":
        """Make a report of the last `days` days up to `until`, seconds since the epoch.

        `tools` are the tools that there are now; None if they are not known.
        """
        first = day_of(until - (days - 1) * 86_400)
        chosen = {day: saved[day] for day in sorted(saved) if first <= day <= day_of(until)}
        total = reduce(add, chosen.values(), DayUsage())
        if tools is None:
            return cls(days=chosen, total=total)
        now = DefinitionTokens().by_namespace(tools)
        servers = {}
        for name in sorted({*total.servers, *now}):
            there = now.get(name, TokenCounts())
            counted = total.servers.get(name, TokenCounts())
            servers[name] = replace(counted, tools=there.tools, at_rest=there.at_rest)
        used = {*total.tools, *(key.id for tool in tools if tool.id in total.tools and (key := group_key(tool)))}
        unused = tuple(tool.id for tool in tools if tool.id not in used and is_listable(tool))
        return cls(days=chosen, total=replace(total, servers=servers), unused=unused)


def day_of(moment: float) -> str:
    """The day of a moment, in UTC.

    >>> day_of(0)
    '1970-01-01'
    """
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=moment)).date().isoformat()


def is_listable(tool: Tool) -> bool:
    """Whether a client that lists all tools would list this one."""
    return tool.visibility is not Visibility.HIDDEN


class DefinitionTokens:
    """Estimates the tokens of definitions, and counts each definition once. Use one in each thread."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tool, int]] = {}
        """By the identity of a tool, which stays the same object while its definition does."""
        self._catalog: Sequence[Tool] = ()
        self._counted: Mapping[str, TokenCounts] = {}

    def of(self, tools: Iterable[Tool]) -> list[int]:
        """The tokens of each of the tools. Only these are remembered for the next time."""
        found = [self._known.get(id(tool)) or (tool, estimate_tokens(_text(tool))) for tool in tools]
        self._known = {id(pair[0]): pair for pair in found}
        return [tokens for _, tokens in found]

    def by_namespace(self, tools: Sequence[Tool]) -> Mapping[str, TokenCounts]:
        """The number of listable tools, and their tokens, by namespace; the same value for the same sequence."""
        if tools is not self._catalog:
            listed = [tool for tool in tools if is_listable(tool)]
            found: dict[str, list[int]] = {}
            for tool, tokens in zip(listed, self.of(listed), strict=True):
                found.setdefault(tool.namespace, []).append(tokens)
            self._counted = {name: TokenCounts(tools=len(all_), at_rest=sum(all_)) for name, all_ in found.items()}
            self._catalog = tools
        return self._counted


def _text(tool: Tool) -> str:
    """The definition as text, without what only a client's user interface shows."""
    parts = [tool.id, tool.description, tool.input_schema, tool.output_schema]
    return json.dumps(parts, default=lambda value: dict(value) if isinstance(value, Mapping) else str(value))
