"""Models of the `sentence-transformers` library: the widest choice and graphics cards, at the price of PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy.typing as npt

from toolcrib.embedders.extras import library, loading
from toolcrib.embedders.rows import embedded, fingerprint
from toolcrib.search.semantic import Vectors


class SentenceTransformers:
    """A sentence model, from a folder or by its name on the hub, such as `all-MiniLM-L6-v2`."""

    def __init__(
        self, model: str | Path, *, device: str | None = None, max_tokens: int | None = None, batch: int = 32
    ) -> None:
        """`device` is `cpu`, `cuda` or `mps`; None takes the best there is. `max_tokens` cuts longer texts.

        Raises `MissingExtra` without the library, `SettingsError` when the model cannot be loaded.
        """
        sentence_transformers = library("sentence_transformers", extra="sentence-transformers")
        self._batch = batch
        self._lock = Lock()  # every call sets up the tokenizer, which must not be in use then
        with loading(str(model)):
            self._model = sentence_transformers.SentenceTransformer(str(model), device=device)
            if max_tokens is not None:
                self._model.max_seq_length = max_tokens
            self.dim, digest = fingerprint(self._encode)
        self.name = f"sentence-transformers:{model}?max_tokens={self._model.max_seq_length}#{digest}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text: float32[n, dim], of unit length; blank texts are zero rows."""
        return embedded(texts, self.dim, self._batch, self._encode)

    def _encode(self, texts: list[str]) -> npt.ArrayLike:
        with self._lock:
            vectors: npt.ArrayLike = self._model.encode(
                texts, batch_size=self._batch, show_progress_bar=False, convert_to_numpy=True
            )
        return vectors
