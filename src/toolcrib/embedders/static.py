"""The table in the package, as an embedder: no model to install, microseconds a text."""

from collections.abc import Sequence

from toolcrib.search.semantic import Vectors
from toolcrib.search.table import SHA256, default_table


class Static:
    """The built-in table of word pieces."""

    def __init__(self) -> None:
        self._table = default_table()
        self.name = f"static#{SHA256[:8]}"
        self.dim = self._table.dim

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text: float32[n, dim], of unit length, or zero where none of its words is known."""
        return self._table.embed(texts)
