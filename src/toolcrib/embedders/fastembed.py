"""Models of the `fastembed` library: quantised transformers for the processor, fetched by name, without PyTorch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from toolcrib.embedders.extras import library, loading
from toolcrib.embedders.rows import embedded, fingerprint
from toolcrib.search.semantic import Vectors

MODEL = "BAAI/bge-small-en-v1.5"


class FastEmbed:
    """A model that `fastembed` knows by its name: one of its own list, or one that was added to it."""

    def __init__(
        self,
        model: str = MODEL,
        *,
        path: Path | None = None,
        cache: Path | None = None,
        threads: int | None = None,
        batch: int = 64,
    ) -> None:
        """`path` is a folder with the model's files, which then are not fetched; `cache` is the folder of fetched ones.

        `threads` None means one a core. Raises `MissingExtra` without the library, `SettingsError` when the model is
        unknown or cannot be loaded.
        """
        fastembed = library("fastembed", extra="fastembed")
        self._batch = batch
        options = {"specific_model_path": str(path)} if path else {}
        with loading(model):
            self._model = fastembed.TextEmbedding(model, cache_dir=cache and str(cache), threads=threads, **options)
            self.dim, digest = fingerprint(self._encode)
        self.name = f"fastembed:{model}#{digest}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text: float32[n, dim], of unit length; blank texts are zero rows."""
        return embedded(texts, self.dim, self._batch, self._encode)

    def _encode(self, texts: list[str]) -> npt.ArrayLike:
        return np.stack(list(self._model.embed(texts, batch_size=self._batch)))
