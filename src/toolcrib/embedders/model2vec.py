"""Static models of the `model2vec` library: a table of word pieces, tens of thousands of texts a second."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy.typing as npt

from toolcrib.embedders.extras import library, loading
from toolcrib.embedders.rows import embedded, fingerprint
from toolcrib.search.semantic import Vectors


class Model2Vec:
    """A static model, from a folder or by its name on the hub, such as `minishlab/potion-base-8M`."""

    def __init__(self, model: str | Path, *, batch: int = 1024) -> None:
        """Raises `MissingExtra` without the library, `SettingsError` when the model cannot be loaded."""
        model2vec = library("model2vec", extra="model2vec")
        self._batch = batch
        self._lock = Lock()  # every call sets up the tokenizer, which must not be in use then
        with loading(str(model)):
            self._model = model2vec.StaticModel.from_pretrained(model, force_download=False)
            self.dim, digest = fingerprint(self._encode)
        self.name = f"model2vec:{model}#{digest}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text: float32[n, dim], of unit length, or zero where none of its words is known."""
        return embedded(texts, self.dim, self._batch, self._encode)

    def _encode(self, texts: list[str]) -> npt.ArrayLike:
        with self._lock:
            vectors: npt.ArrayLike = self._model.encode(texts, batch_size=self._batch, use_multiprocessing=False)
        return vectors
