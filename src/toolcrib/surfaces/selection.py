"""Decide how much of each hit a search reply shows, so that its tokens go where they are likely to be needed.

A hit is worth showing if that probably saves a round trip: the agent calls the tool at once instead of asking for its
schema. So each hit has a share, the probability that it is the right one of its query, and each level of detail has a
worth, the part of a round trip that it saves. Levels are raised in the order of `share * worth / tokens`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final

from toolcrib.types import Hit

ROUND_TRIP_TOKENS: Final = 2_500
"""What another request costs an agent, in tokens: the request, the reply, and reading the conversation again.

Tuned on seven development sets, alone and among 5,133 other tools: 1,500 to 6,000 change the tokens until a call by a
tenth, and how often the right tool comes with its schema by three hundredths.
"""
_LEAST_ADDED: Final = 10
"""Tokens that any level adds to a name, at least."""
_NAME_TOKENS: Final = 15
"""Tokens of a hit of which a reply shows the name and the score."""
_LIKELY_FACTOR: Final = 4
"""A hit is likely if the best one is at most so many times as likely."""
_MAX_SCORE: Final = 0.99
"""Higher scores count as this, so that no hit rules out a near tie."""


class Level(IntEnum):
    """How much of a hit a reply shows, from the least."""

    NAME = 0
    SUMMARY = 1
    """The name and the beginning of the description."""
    SIGNATURE = 2
    """The parameters on one line."""
    REQUIRED = 3
    """The schema of the required parameters, and the names of the others."""
    FULL = 4
    """The compact schema, with long descriptions cut and long enums folded."""
    COMPLETE = 5
    """The compact schema and the whole description."""


WORTH: Final[Mapping[Level, float]] = {
    Level.NAME: 0.5,
    Level.SUMMARY: 0.55,
    Level.SIGNATURE: 0.65,
    Level.REQUIRED: 0.92,
    Level.FULL: 0.99,
    Level.COMPLETE: 1.0,
}
"""The part of a round trip that a level saves if the hit is the right one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One hit to decide about."""

    share: float
    """The probability that it is the right one of its query, from 0 to 1."""
    costs: Mapping[Level, int]
    """Tokens at each level that it may have."""
    best: bool = False
    """Whether it is the best of its query, which is shown in full if that fits."""
    alone: int | None = None
    """Tokens of its name without those of tools that are grouped under it; None if there are none."""


def shares(hits: Sequence[Hit]) -> list[float]:
    """The probability of each hit to be the right one, if one of its query is: its odds divided by their sum.

    Without scores, as in a list, all are alike.
    """
    odds = [_odds(hit.score) for hit in hits]
    sums: dict[int, float] = {}
    for hit, own in zip(hits, odds, strict=True):
        sums[hit.query] = sums.get(hit.query, 0.0) + own
    counts: dict[int, int] = {}
    for hit in hits:
        counts[hit.query] = counts.get(hit.query, 0) + 1
    return [
        own / sums[hit.query] if sums[hit.query] else 1 / counts[hit.query] for hit, own in zip(hits, odds, strict=True)
    ]


def _odds(score: float) -> float:
    bounded = min(max(score, 0.0), _MAX_SCORE)
    return bounded / (1 - bounded)


def likely_places(hits: Sequence[Hit]) -> set[int]:
    """The places of hits worth their schema: the best of each query, and those at least a quarter as likely.

    A list without scores has none.
    """
    best: dict[int, float] = {}
    odds = [_odds(hit.score) for hit in hits]
    for hit, own in zip(hits, odds, strict=True):
        best[hit.query] = max(own, best.get(hit.query, 0.0))
    return {place for place, hit in enumerate(hits) if 0 < best[hit.query] <= _LIKELY_FACTOR * odds[place]}


def is_worth_naming(share: float) -> bool:
    """Whether a hit with this share is worth the tokens of a usual name.

    >>> is_worth_naming(0.1), is_worth_naming(0.005)
    (True, False)
    """
    return share * WORTH[Level.NAME] * ROUND_TRIP_TOKENS >= _NAME_TOKENS


def useful_levels(top: Level, share: float, *, economical: bool) -> list[Level]:
    """The levels up to `top` that a hit with this share may get, so that the others need not be rendered.

    >>> useful_levels(Level.SIGNATURE, 0.5, economical=True)
    [<Level.NAME: 0>, <Level.SUMMARY: 1>, <Level.SIGNATURE: 2>]
    >>> useful_levels(Level.COMPLETE, 0.001, economical=True)
    [<Level.NAME: 0>]
    """
    if not economical:
        return [level for level in Level if level <= top]
    worth = share * ROUND_TRIP_TOKENS
    return [
        level
        for level in Level
        if level == Level.NAME
        or (level <= min(top, Level.FULL) and worth * (WORTH[level] - WORTH[Level.NAME]) >= _LEAST_ADDED)
    ]


def choose_levels(
    candidates: Sequence[Candidate], budget: int, *, round_trip: float | None = None, keep_all: bool = True
) -> list[Level | None]:
    """The level of each hit within a budget of tokens; None for those that are left out.

    The best of each query are raised first. With `round_trip` tokens, another is raised only while that saves more
    than it costs; without, as long as the budget lasts. If `keep_all` is false, hits whose name is not worth its
    tokens are left out; otherwise a long list can exceed the budget, since each hit is at least a name.
    """
    spending = _Spending(candidates, budget)
    for place, one in enumerate(candidates):
        if keep_all or one.best or spending.is_name_worth(one, round_trip):
            spending.show(place)
    spending.raise_levels([place for place in spending.levels if candidates[place].best], None)
    spending.raise_levels([place for place in spending.levels if not candidates[place].best], round_trip)
    return [spending.levels.get(place) for place in range(len(candidates))]


class _Spending:
    """Spends a budget of tokens on the levels of candidates."""

    def __init__(self, candidates: Sequence[Candidate], budget: int) -> None:
        self._candidates = candidates
        self._left = budget
        self.levels: dict[int, Level] = {}
        """By place, for those that are shown."""

    def is_name_worth(self, one: Candidate, round_trip: float | None) -> bool:
        cost = one.costs[Level.NAME]
        alone = cost if one.alone is None else one.alone  # what is grouped under a hit does not make it less likely
        return cost <= self._left and (round_trip is None or one.share * WORTH[Level.NAME] * round_trip >= alone)

    def show(self, place: int) -> None:
        self.levels[place] = Level.NAME
        self._left -= self._candidates[place].costs[Level.NAME]

    def raise_levels(self, places: Sequence[int], round_trip: float | None) -> None:
        """Raise the levels of some hits, the most useful tokens first."""
        allowed = {place: set(self._candidates[place].costs) for place in places}
        steps = [step for place in places if (step := self._next_step(place, allowed[place], round_trip))]
        heapify(steps)
        while steps:
            _, place, level = heappop(steps)
            costs = self._candidates[place].costs
            added = costs[level] - costs[self.levels[place]]
            if added <= self._left:
                self.levels[place] = level
                self._left -= added
            else:
                allowed[place].discard(level)
            if step := self._next_step(place, allowed[place], round_trip):
                heappush(steps, step)

    def _next_step(self, place: int, allowed: set[Level], round_trip: float | None) -> tuple[float, int, Level] | None:
        """The most useful higher level of a hit, after the negative usefulness; None if no level is worth it."""
        one, now = self._candidates[place], self.levels[place]
        found: list[tuple[float, int, Level]] = []
        for level in allowed:
            gain = one.share * (WORTH[level] - WORTH[now])
            added = one.costs[level] - one.costs[now]
            if level > now and (round_trip is None or gain * round_trip >= added):
                found.append((-gain / max(added, 1), place, level))
        return min(found, default=None)
