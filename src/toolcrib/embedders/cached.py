"""An embedder that embeds each text once: vectors are remembered in memory, and in a file across restarts."""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Self

import numpy as np

from toolcrib.embedders.store import Store
from toolcrib.search.semantic import Embedder, Vectors

_KEY_BYTES = 16
_GROUP = 512
"""Texts that are embedded between two writes, so that an index which is cut off while it is built is not lost."""


class Cached:
    """The same vectors as the embedder inside, which is asked only for texts that have not been seen.

    Texts are kept as hashes, never as they are. Close it at the end, or use it in a `with`; one that is not closed
    loses nothing.
    """

    def __init__(self, embedder: Embedder, path: Path | None = None, *, size: int = 200_000) -> None:
        """At most `size` vectors, of 4 bytes a component, in memory and as many in the file; those used least go first.

        `path` is a file for this embedder alone, or an existing folder, in which it gets one of its own. The file of
        another model is emptied; a damaged one is put aside and begun anew, and the log says so. Raises
        `SettingsError` when the path is a database of something else.
        """
        self._embedder = embedder
        self.name = embedder.name
        self.dim = embedder.dim
        self._size = size
        self._lock = Lock()
        self._memory: OrderedDict[bytes, Vectors] = OrderedDict()
        self._store = None if path is None else Store(path, name=self.name, dim=self.dim, size=size)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text, from memory, the file or the embedder: float32[n, dim]."""
        keys = [self._key(text) for text in texts]
        found = self._recall(keys)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        for start in range(0, len(missing), _GROUP):
            group = list(missing)[start : start + _GROUP]
            made = dict(zip(group, self._embedder.embed([missing[key] for key in group]), strict=True))
            self._keep(made)
            found |= made
        vectors = np.empty((len(keys), self.dim), dtype=np.float32)
        for row, key in enumerate(keys):
            vectors[row] = found[key]
        return vectors

    def close(self) -> None:
        """Let go of the file. What is in memory stays of use."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _key(self, text: str) -> bytes:
        said = f"{self.name}\0{text}".encode(errors="surrogatepass")
        return blake2b(said, digest_size=_KEY_BYTES).digest()

    def _recall(self, keys: Sequence[bytes]) -> dict[bytes, Vectors]:
        with self._lock:
            found = {key: self._memory[key] for key in keys if key in self._memory}
            for key in found:
                self._memory.move_to_end(key)
            if self._store is not None and len(found) < len(keys):
                stored = self._store.read([key for key in dict.fromkeys(keys) if key not in found])
                self._remember(stored)
                found |= stored
            return found

    def _keep(self, vectors: dict[bytes, Vectors]) -> None:
        with self._lock:
            self._remember(vectors)
            if self._store is not None:
                self._store.write(vectors)

    def _remember(self, vectors: dict[bytes, Vectors]) -> None:
        # copies, since a row of an array keeps the whole array alive
        self._memory.update({key: vector.copy() for key, vector in vectors.items()})
        while len(self._memory) > self._size:
            self._memory.popitem(last=False)
