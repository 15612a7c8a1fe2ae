"""Means with their 95 % intervals: how much would a figure change with other requests of the same kind?

The intervals are those of the bootstrap: the requests are drawn again with replacement, and the middle 95 % of the
means are kept. Two engines are compared on the same requests, pair by pair, which says more than two separate
intervals. Source: Sakai, "Evaluating evaluation metrics based on the bootstrap", SIGIR 2006.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from toolcrib.search.evaluation import SEED, Metrics, mean

ROUNDS = 2_000
SHOWN = ("recall@1", "recall@5", "ndcg@10")


def means(scores: Sequence[Metrics]) -> dict[str, Any]:
    """The number of requests, and the mean of each metric."""
    return {"queries": len(scores), **{name: round(value, 5) for name, value in mean(scores).as_dict().items()}}


def figures(scores: Sequence[Metrics], ours: Sequence[Metrics] = ()) -> dict[str, Any]:
    """The means, and the interval of three; with `ours`, the difference to them on the same requests."""
    given = means(scores)
    if scores:
        given["interval"] = {name: interval(values(scores, name)) for name in SHOWN}
    if scores and ours:
        changes = {name: values(scores, name) - values(ours, name) for name in SHOWN}
        given["to_ours"] = {name: [round(float(each.mean()), 5), *interval(each)] for name, each in changes.items()}
    return given


def values(scores: Sequence[Metrics], metric: str) -> np.ndarray:
    """One metric of every request."""
    return np.array([each.as_dict()[metric] for each in scores])


def interval(of: np.ndarray) -> list[float]:
    """Where the middle 95 % of the resampled means begin and end; the same values always give the same interval."""
    chance = np.random.default_rng(SEED)
    means = of[chance.integers(0, len(of), (ROUNDS, len(of)))].mean(axis=1)
    return [round(float(end), 5) for end in np.quantile(means, (0.025, 0.975))]
