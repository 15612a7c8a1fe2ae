"""The seam through which a model of meaning is used: texts in, vectors out. It knows no model and no tool."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
"""Shape [texts, components]; every row of unit length, or zero."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors whose product is their likeness in meaning, -1 to 1.

    One embedder may be used from several threads at once.
    """

    @property
    def name(self) -> str:
        """Says what made the vectors, the model included: two embedders of one name give the same vectors."""

    @property
    def dim(self) -> int:
        """Components of a vector, 1 or more."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text, in the order of the texts: float32[n, dim].

        A row has unit length, or is zero where the model knows nothing of the text, such as an empty one: that
        means "no signal", not "no match". Any text is taken. What a text gives does not depend on its neighbours,
        but for rounding.
        """
