"""An embedder in the search: the text that describes a tool, the vectors of tools, and one scale for all models.

The ranking adds the embedder's cosine to its other signals. Models differ in the cosines they give: unrelated texts
have about 0 in one and 0.7 in another. So cosines are mapped to the scale that the ranking's weights were chosen for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from toolcrib.search.embedder import Embedder
from toolcrib.search.text import split_words
from toolcrib.search.vectors import QuantizedRows, Vectors, quantize
from toolcrib.search.word_lists import section_text
from toolcrib.types import Tool

Bools = npt.NDArray[np.bool_]
_MAX_DESCRIPTION = 600
"""Characters of a description that are embedded."""
_MAX_PARAMETERS = 12
"""Names of parameters that are embedded."""
MAX_REQUEST = 1_000
"""Characters of a request that are embedded."""


def tool_text(tool: Tool) -> str:
    """Describe a tool as a text for an embedder.

    >>> tool_text(Tool(name="createIssue", namespace="git_hub", description="Opens an issue."))
    'create issue (git hub): Opens an issue.'
    """
    namespace = " ".join(split_words(tool.namespace))
    head = f"{' '.join(split_words(tool.name))}{f' ({namespace})' if namespace else ''}"
    properties = tool.input_schema.get("properties")
    names = islice(properties, _MAX_PARAMETERS) if isinstance(properties, dict) else ()
    parameters = ", ".join([" ".join(split_words(str(name))) for name in names])
    return f"{head}: {tool.description[:_MAX_DESCRIPTION]}{f' ({parameters})' if parameters else ''}"


@dataclass(frozen=True, slots=True)
class CosineScale:
    """Maps the cosines of one model to those that the ranking's weights were chosen for.

    Only the difference between related and unrelated texts carries over, so a model whose cosines are all high or all
    close together counts as much as another.
    """

    unrelated: float
    """The usual cosine of a request and a tool that have nothing in common."""
    factor: float
    """How much further apart related and unrelated texts are on the common scale."""

    @classmethod
    def of(cls, embedder: Embedder) -> "CosineScale":
        """Measure an embedder on a few requests and tools."""
        requests, tools = zip(*_EXAMPLES, strict=True)
        vectors = zero_non_finite(embedder.embed([*requests, *tools]))
        cosines = vectors[: len(requests)] @ vectors[len(requests) :].T
        matching = np.eye(len(requests), dtype=np.bool_)
        unrelated, related = float(cosines[~matching].mean()), float(cosines[matching].mean())
        gap = max(related - unrelated, (_RELATED - _UNRELATED) / _MAX_FACTOR)
        return cls(round(unrelated, 3), round(max((_RELATED - _UNRELATED) / gap, 1 / _MAX_FACTOR), 3))

    def apply(self, cosines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Map cosines to the common scale, -1 to 1."""
        mapped: npt.NDArray[np.float64] = np.clip(_UNRELATED + self.factor * (cosines - self.unrelated), -1.0, 1.0)
        return mapped


class ToolVectors(Protocol):
    """Gives the vectors of tools' texts as far as they are known."""

    @property
    def dim(self) -> int:
        """Components of a vector."""

    @property
    def scale(self) -> CosineScale:
        """The scale of the cosines; only read once a vector is known."""

    @property
    def version(self) -> int:
        """A number that grows when more vectors are known."""

    def rows(self, texts: Sequence[str]) -> QuantizedRows:
        """Return one row per text, in order. A row with scale 0 is not known yet."""


class ComputedVectors:
    """Computes the vectors of tools when they are needed."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.dim = embedder.dim
        self.version = 0

    @cached_property
    def scale(self) -> CosineScale:
        """The scale of the embedder, measured on first use."""
        return CosineScale.of(self._embedder)

    def rows(self, texts: Sequence[str]) -> QuantizedRows:
        """Embed texts; no row has scale 0."""
        return quantize(zero_non_finite(self._embedder.embed(texts))) if texts else unknown_rows(0, self.dim)


class NoVectors:
    """Knows the vector of no text."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.version = 0
        self.scale = CosineScale(_UNRELATED, 1.0)

    def rows(self, texts: Sequence[str]) -> QuantizedRows:
        """Return rows with scale 0."""
        return unknown_rows(len(texts), self.dim)


def unknown_rows(count: int, dim: int) -> QuantizedRows:
    """Rows that are not known yet."""
    return QuantizedRows(np.zeros((count, dim), dtype=np.int8), np.zeros(count, dtype=np.float32))


def zero_non_finite(vectors: Vectors) -> Vectors:
    """Replace vectors with infinite or NaN components by zeros: no signal is better than a wrong one."""
    sound = np.isfinite(vectors).all(axis=1, keepdims=True)
    return vectors if sound.all() else np.where(sound, vectors, np.float32(0))


_UNRELATED, _RELATED = 0.039, 0.328
"""The mean cosines of the examples below with all-MiniLM-L6-v2, the model that the weights were chosen with."""
_MAX_FACTOR = 4.0
"""A model that hardly separates the examples is not stretched any further."""
_EXAMPLES = [line.split(" | ") for line in section_text("examples").splitlines()]
"""Requests and the texts of tools that fit them."""
_SCALE_BYTES = 4


def packed_rows(rows: QuantizedRows) -> list[bytes]:
    """Each row as bytes: the scale as float32, and the components."""
    scales = rows.scales.astype(np.float32)
    return [scale.tobytes() + row.tobytes() for scale, row in zip(scales, rows.values, strict=True)]


def unpacked_rows(rows: Sequence[bytes | None], dim: int) -> QuantizedRows:
    """The rows that `packed_rows` packed; None gives a row with scale 0."""
    empty = bytes(_SCALE_BYTES + dim)
    table = np.frombuffer(b"".join([row or empty for row in rows]), dtype=np.uint8).reshape(
        len(rows), _SCALE_BYTES + dim
    )
    scales = np.ascontiguousarray(table[:, :_SCALE_BYTES]).view(np.float32).reshape(len(rows))
    return QuantizedRows(np.ascontiguousarray(table[:, _SCALE_BYTES:]).view(np.int8), scales)


def checked_vectors(vectors: Vectors, count: int, dim: int) -> Vectors:
    """Return the vectors of an embedder. Raises `ValueError` for another shape, or values that are not finite."""
    if vectors.shape != (count, dim) or not np.isfinite(vectors).all():
        raise ValueError(f"vectors of shape {vectors.shape} for {count} texts, or with values that are not finite")
    return vectors
