"""Vectors in eight bits, and products of them that are exact.

The components of a row are small whole numbers times one scale. A product of whole numbers that stays below 2^24 is
exact in float32, in whatever order a matrix product adds it up: so what one tool scores never depends, not by the last
digit, on which others are scored beside it.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp] | npt.NDArray[np.int32]

_LEVELS = 127
_EXACT = 1 << 24
_TINY = 1e-30
"""Less than any length or component that means something."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Quantised vectors."""

    values: npt.NDArray[np.int8]
    scales: Floats

    def __len__(self) -> int:
        """How many there are."""
        return len(self.values)

    def take(self, places: Places) -> "Rows":
        """A copy of some rows."""
        return Rows(self.values[places], self.scales[places])

    def put(self, places: Places, rows: "Rows") -> None:
        """Replace some rows, while they are being built."""
        self.values[places] = rows.values
        self.scales[places] = rows.scales

    def floats(self, places: Places) -> Floats:
        """Some rows as vectors."""
        found: Floats = self.values[places].astype(np.float32) * self.scales[places][:, None]
        return found

    def whole(self, places: Places, query: "Query") -> Doubles:
        """The products of some rows with the query's vectors, not yet scaled by row: float64[places, vectors]."""
        found: Doubles = (self.values.take(places, axis=0).astype(np.float32) @ query.values) * query.scales
        return found

    def products(self, places: Places, query: "Query") -> Doubles:
        """The products of some rows with the query's vectors: float64[places, vectors]."""
        found: Doubles = self.whole(places, query) * self.scales.take(places).astype(np.float64)[:, None]
        return found


@dataclass(frozen=True, slots=True)
class Query:
    """The vectors of a query, in as many bits as keep products exact."""

    values: Floats
    """Whole numbers, [components, vectors]."""
    scales: Doubles

    def split(self, count: int) -> tuple["Query", "Query"]:
        """The first vectors, and the others."""
        first = Query(np.ascontiguousarray(self.values[:, :count]), self.scales[:count])
        return first, Query(np.ascontiguousarray(self.values[:, count:]), self.scales[count:])


def quantized(vectors: Floats) -> Rows:
    """Vectors in eight bits; rows of zeros stay so."""
    largest = np.abs(vectors).max(axis=1, initial=0)
    scales = np.where(largest > 0, largest / np.float32(_LEVELS), np.float32(1)).astype(np.float32)
    return Rows(np.rint(vectors / scales[:, None]).astype(np.int8), scales)


def query(vectors: Floats) -> Query:
    """The vectors of a query, [vectors, components], for products with rows of as many components."""
    levels = _levels(vectors.shape[1])
    scales = np.abs(vectors).max(axis=1, initial=0).astype(np.float64) / levels
    scales[scales == 0] = 1.0
    return Query(np.rint(vectors.T / scales).astype(np.float32), scales)


def directions(vectors: Floats) -> Query:
    """The same, each vector brought to unit length; zeros stay so."""
    levels = _levels(vectors.shape[1])
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)).astype(np.float64)
    largest = np.maximum(np.abs(vectors).max(axis=1, initial=0), _TINY).astype(np.float64)
    values = np.rint(vectors.T * (levels / largest)).astype(np.float32)
    return Query(values, largest / (levels * np.maximum(lengths, _TINY)))


@cache
def _levels(dim: int) -> int:
    return max(1, _EXACT // (_LEVELS * dim) - 1)
