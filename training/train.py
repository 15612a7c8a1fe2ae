"""Train the table: start from single pieces, then take steps over pairs of requests and tools."""

import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.corpus import Record
from training.pieces import Pieces
from training.student import Adam, Batch, Floats, Loss, batch_gradient
from training.views import Parts, pair, parts

_LOG = logging.getLogger(__name__)
_REPORT = 250


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a training run.

    dimensions of the table; steps; batch (pairs a step); cluster: how many pairs of one service stand together in a
    batch, as hard negatives; rate: Adam's, falling linearly to a twentieth; sif: the constant of the start's weights;
    mixed: the share of steps whose pairs are drawn from anywhere instead of from clusters.
    """

    dimensions: int = 256
    steps: int = 1500
    batch: int = 512
    cluster: int = 12
    rate: float = 0.003
    sif: float = 1e-3
    mixed: float = 0.3
    seed: int = 7


def space(texts: Floats, dimensions: int) -> tuple[Floats, Floats]:
    """The centre of the teacher's vectors and their first principal axes (float32[384, dimensions])."""
    centre = texts.mean(axis=0)
    centred = texts - centre
    _, _, axes = np.linalg.svd(centred.T @ centred)
    return centre, np.asarray(axes[:dimensions].T, dtype=np.float32)


def start(taught: Floats, counts: Floats, axes: Floats, plan: Plan) -> Floats:
    """The table before training: the teacher's vectors of single pieces, centred, in the space of `axes`.

    Each row is weighted by a / (a + share of the piece in the corpus), as in smooth inverse frequency (Arora et al.,
    2017).
    """
    centred = taught - taught.mean(axis=0)
    table = centred @ axes
    table /= np.linalg.norm(table, axis=1, keepdims=True) + 1e-6
    share = counts / counts.sum()
    return np.asarray(table * (plan.sif / (plan.sif + share))[:, None], dtype=np.float32)


class Sampler:
    """Draws the records of a batch: sources by weight, then single records or clusters of one group."""

    def __init__(self, records: Sequence[Record], weights: Mapping[str, float], seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not a secret
        self._all: dict[str, list[int]] = {}
        groups: dict[str, dict[str, list[int]]] = {}
        for i, record in enumerate(records):
            self._all.setdefault(record.source, []).append(i)
            groups.setdefault(record.source, {}).setdefault(record.group, []).append(i)
        self._sources = [source for source in self._all if weights.get(source, 0) > 0]
        self._weights = [weights[source] for source in self._sources]
        self._groups = {source: list(by_name.values()) for source, by_name in groups.items()}
        self._sizes = {source: [len(x) ** 0.5 for x in by] for source, by in self._groups.items()}

    def draw(self, size: int, cluster: int, mixed: float) -> list[int]:
        """Draw `size` distinct record numbers."""
        chosen: dict[int, None] = {}
        together = 1 if self._rng.random() < mixed else cluster
        while len(chosen) < size:
            source = self._rng.choices(self._sources, self._weights)[0]
            if together == 1:
                chosen[self._rng.choice(self._all[source])] = None
                continue
            group = self._rng.choices(self._groups[source], self._sizes[source])[0]
            chosen.update(dict.fromkeys(self._rng.sample(group, min(together, len(group)))))
        return list(chosen)[:size]


def near_duplicates(names: Sequence[str], firsts: Sequence[str]) -> NDArray[np.bool_]:
    """bool[n, n]: pairs of records with the same name or first sentence, which must not be negatives."""
    out = np.zeros((len(names), len(names)), dtype=bool)
    for texts in (names, firsts):
        _, number = np.unique(np.asarray([text.lower() for text in texts]), return_inverse=True)
        out |= number[:, None] == number[None, :]
    np.fill_diagonal(out, val=False)
    return out


def train(
    table: Floats,
    pieces: Pieces,
    records: Sequence[Record],
    anchors: Mapping[int, Floats],
    weights: Mapping[str, float],
    plan: Plan,
    loss: Loss,
) -> None:
    """Train `table` in place.

    `anchors` holds the teacher's vector of a record's text, in the table's space, by the record's number, where there
    is one; `weights` how often a source is drawn.
    """
    cut: dict[int, Parts] = {}
    rng = random.Random(plan.seed)  # noqa: S311 - repeatable, not a secret
    sampler = Sampler(records, weights, plan.seed)
    adam = Adam(table)
    nothing = np.zeros(table.shape[1], dtype=np.float32)
    hits, began = 0.0, time.monotonic()
    for step in range(plan.steps):
        chosen = sampler.draw(plan.batch, plan.cluster, plan.mixed)
        views = [cut.setdefault(i, parts(records[i])) for i in chosen]
        pairs = [pair(view, rng) for view in views]
        batch = Batch(
            asked=pieces.bags(asked for asked, _ in pairs),
            tools=pieces.bags(tool for _, tool in pairs),
            blocked=near_duplicates([view.name for view in views], [view.first for view in views]),
            anchors=np.stack([anchors.get(i, nothing) for i in chosen]),
        )
        rows, gradient, hit = batch_gradient(table, batch, loss)
        adam.step(rows, gradient, plan.rate * (1 - 0.95 * step / plan.steps))
        hits = hit if step == 0 else 0.99 * hits + 0.01 * hit
        if (step + 1) % _REPORT == 0 or step + 1 == plan.steps:
            _LOG.info("step %d: right tool first %.3f, %.0f s", step + 1, hits, time.monotonic() - began)
