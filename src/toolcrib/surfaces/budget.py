"""Fitting hits into what a reply may cost a model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from toolcrib.model import Detail, Hit

Costs = Mapping[Detail, int]
"""What a hit costs at each detail, in tokens."""

_LOWER: Final[dict[Detail, tuple[Detail, ...]]] = {"full": ("signature", "summary"), "signature": ("summary",)}
_STEPS: Final[tuple[Detail, ...]] = ("signature", "summary")


def fitted(hits: Sequence[Hit], costs: Sequence[Costs], budget: int) -> list[Detail]:
    """How much of each hit is shown within a budget of tokens: the worst show less first, and every hit stays.

    First all but the best are lowered to their signatures, from the worst on, then to summaries; the best of each query
    is lowered last. Where not even it alone fits as it is, it is lowered with the others. A hit never shows more than
    was asked.
    """
    details = [hit.detail for hit in hits]
    total = sum(cost[detail] for cost, detail in zip(costs, details, strict=True))
    if total <= budget:
        return details
    for place, detail in _steps(hits, costs, budget):
        if detail in _LOWER.get(details[place], ()):
            total += costs[place][detail] - costs[place][details[place]]
            details[place] = detail
            if total <= budget:
                break
    return details


def _steps(hits: Sequence[Hit], costs: Sequence[Costs], budget: int) -> Iterator[tuple[int, Detail]]:
    """Which hit is lowered to what, in turn."""
    ranks = _ranks(hits)
    worst_first = sorted(range(len(hits)), key=lambda place: (-ranks[place], -place))
    best = [place for place in worst_first if ranks[place] == 0]
    others = [place for place in worst_first if ranks[place] > 0]
    least = sum(costs[place][hits[place].detail] for place in best) + sum(costs[place]["summary"] for place in others)
    for group in (others, best) if least <= budget else (worst_first,):
        for detail in _STEPS:
            for place in group:
                yield place, detail


def _ranks(hits: Sequence[Hit]) -> list[int]:
    """The place of each hit among those of its query, from 0."""
    seen: dict[int, int] = {}
    ranks = []
    for hit in hits:
        rank = seen.get(hit.query, 0)
        ranks.append(rank)
        seen[hit.query] = rank + 1
    return ranks
