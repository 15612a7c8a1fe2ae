"""The student: one vector per word piece; a text is the unit sum of its pieces. Loss, gradient and Adam in numpy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]  # scipy ships no types

Floats = NDArray[np.float32]

_TINY = 1e-8


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss: contrastive softmax, and the cosine of both texts of a pair with the teacher's vector.

    temperature: of the softmax (InfoNCE, van den Oord et al., 2018). anchored: the weight of the teacher's term.
    """

    temperature: float = 0.05
    anchored: float = 30.0


def unit(rows: Floats) -> tuple[Floats, Floats]:
    """The rows scaled to unit length, and their lengths (float32[n, 1])."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None] + _TINY
    return rows / norms, norms


def softmax(scores: Floats) -> Floats:
    """The softmax of every row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def similarity_gradient(scores: Floats, blocked: NDArray[np.bool_], temperature: float) -> Floats:
    """The gradient of the contrastive loss by the cosines `scores` (float32[n, n], row i's right column is i).

    In both directions, without the `blocked` pairs (near-duplicates of the right one).
    """
    size = len(scores)
    sharp = np.where(blocked, np.float32(-1e4), scores / np.float32(temperature))
    gradient = (softmax(sharp) + softmax(sharp.T).T) / 2
    gradient[np.arange(size), np.arange(size)] -= 1
    return np.asarray(gradient / np.float32(temperature * size), dtype=np.float32)


class Adam:
    """Adam that moves only the rows of the batch; `table` is changed in place."""

    def __init__(self, table: Floats) -> None:
        self.table = table
        self._mean = np.zeros_like(table)
        self._square = np.zeros_like(table)
        self._steps = 0

    def step(self, rows: NDArray[np.int64], gradient: Floats, rate: float) -> None:
        """Update the given rows, each number by at most about `rate`."""
        self._steps += 1
        mean = self._mean[rows] * np.float32(0.9) + gradient * np.float32(0.1)
        square = self._square[rows] * np.float32(0.99) + gradient * gradient * np.float32(0.01)
        self._mean[rows], self._square[rows] = mean, square
        scale = rate / (1 - 0.9**self._steps)
        root = np.sqrt(square / np.float32(1 - 0.99**self._steps)) + np.float32(1e-9)
        self.table[rows] -= np.float32(scale) * mean / root


@dataclass(frozen=True, slots=True)
class Batch:
    """Pairs of texts as piece counts, float32[n, pieces] each; near-duplicates; the teacher's unit vectors.

    `blocked` is bool[n, n]; `anchors` is float32[n, d] in the table's space, zero where the teacher was not asked.
    """

    asked: sparse.csr_matrix
    tools: sparse.csr_matrix
    blocked: NDArray[np.bool_]
    anchors: Floats


def batch_gradient(table: Floats, batch: Batch, loss: Loss) -> tuple[NDArray[np.int64], Floats, float]:
    """The rows that a batch touches, their gradient, and the share of requests whose nearest tool is the right one."""
    both = sparse.vstack([batch.asked, batch.tools], format="csr")
    rows, local = np.unique(both.indices, return_inverse=True)
    bags = sparse.csr_matrix((both.data, local, both.indptr), shape=(both.shape[0], len(rows)))
    vectors, norms = unit(np.asarray(bags @ table[rows], dtype=np.float32))
    size = batch.asked.shape[0]
    left, right = vectors[:size], vectors[size:]
    scores = left @ right.T
    hits = float((np.where(batch.blocked, -1, scores).argmax(axis=1) == np.arange(size)).mean())
    by_score = similarity_gradient(scores, batch.blocked, loss.temperature)
    by_vector = np.vstack([by_score @ right, by_score.T @ left])
    by_vector -= np.vstack([batch.anchors, batch.anchors]) * np.float32(loss.anchored / size)
    by_sum = (by_vector - vectors * np.einsum("ij,ij->i", by_vector, vectors)[:, None]) / norms
    return rows.astype(np.int64), np.asarray(bags.T @ by_sum, dtype=np.float32), hits
