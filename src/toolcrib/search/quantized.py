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
_UNTHREADED = 1 << 18
"""Multiplications of a product of matrices that OpenBLAS makes without threads. Source: its interface/gemm.c."""
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

    def products(self, places: Places, query: "Query") -> Doubles:
        """The products of the query's vectors with some rows: float64[vectors, places]."""
        rows = self.values.take(places, axis=0).astype(np.float32)
        found: Doubles = product(query.values, rows) * query.scales[:, None]
        found *= self.scales.take(places)
        return found

    def whole(self, places: Places, query: "Query") -> Doubles:
        """The same for many vectors of few components, not yet scaled by row; places: [groups, places of each].

        float64[vectors, groups * places].
        """
        groups, size = places.shape  # one small product a group, see `product`
        rows = self.values.take(places.ravel(), axis=0).astype(np.float32)
        found = np.matmul(rows.reshape(groups, size, -1), query.values.T).reshape(groups * size, -1)
        scaled: Doubles = np.multiply(found.T, query.scales[:, None], order="C")
        return scaled


@dataclass(frozen=True, slots=True)
class Query:
    """The vectors of a query, in as many bits as keep products exact."""

    values: Floats
    """Whole numbers, [vectors, components]."""
    scales: Doubles

    def split(self, count: int) -> tuple["Query", "Query"]:
        """The first vectors, and the others."""
        return Query(self.values[:count], self.scales[:count]), Query(self.values[count:], self.scales[count:])

    def take(self, places: Places) -> "Query":
        """A copy of some vectors."""
        return Query(self.values.take(places, axis=0), self.scales.take(places))


def product(left: Floats, right: Floats) -> Floats:
    """The product of each row on the left with each on the right: float32[left, right].

    A large product would wake the threads of the linear algebra library, and wait for them longer than the work takes
    where the processor has anything else to do. So what is not small is made of products of two rows.
    """
    small = 1 < len(left) <= _UNTHREADED // max(1, right.size)
    found: Floats = left @ right.T if small else np.vecdot(left[:, None], right)
    return found


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
    return Query(np.rint(vectors / scales[:, None]).astype(np.float32), scales)


def directions(vectors: Floats) -> Query:
    """The same, each vector brought to unit length; zeros stay so."""
    levels = _levels(vectors.shape[1])
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)).astype(np.float64)
    largest = np.maximum(np.abs(vectors).max(axis=1, initial=0), _TINY).astype(np.float64)
    values = np.rint(vectors * (levels / largest)[:, None]).astype(np.float32)
    return Query(values, largest / (levels * np.maximum(lengths, _TINY)))


@cache
def _levels(dim: int) -> int:
    return max(1, _EXACT // (_LEVELS * dim) - 1)
