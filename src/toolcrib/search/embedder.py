"""The `Embedder` protocol, without numpy, which programs without an embedder need only to search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import toolcrib.search.arrays


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors whose dot product is their similarity in meaning, -1 to 1.

    Several threads may use one embedder at the same time.
    """

    @property
    def name(self) -> str:
        """Identifies the embedder and its model: two embedders with the same name give the same vectors."""

    @property
    def dim(self) -> int:
        """Components of a vector, 1 or more."""

    def embed(self, texts: Sequence[str]) -> toolcrib.search.arrays.Vectors:
        """Return one vector per text, in order: float32[n, dim].

        A row has unit length, or is zero if the model knows nothing about the text, such as an empty one: that means
        "no signal", not "no match". Any text is accepted. Apart from rounding, the vector of a text does not
        depend on the other texts.
        """
