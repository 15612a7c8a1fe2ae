"""An embedder that may fail: then words alone are compared, and whoever asked learns of it."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from toolcrib.search.semantic import Embedder, Vectors

logger = logging.getLogger(__name__)

_failures: ContextVar[list[str] | None] = ContextVar("_failures", default=None)


class Steady:
    """The same vectors as the embedder inside. Where that fails, rows of zeros, which say nothing of any text."""

    def __init__(self, embedder: Embedder) -> None:
        """Two of these are never equal: an index that was made with one is made anew with another."""
        self.inner = embedder
        self.name = embedder.name
        self.dim = embedder.dim
        self._failing = False

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector a text: float32[n, dim]. Never raises; what went wrong is in the log, and told to `watched`."""
        try:
            vectors = self._checked(self.inner.embed(texts), len(texts))
        except Exception as error:
            # the first failure of several in a row, with its trace; a service that is down fails every search
            if not self._failing:
                logger.warning("the embedder %s failed; words alone are compared", self.name, exc_info=True)
            self._failing = True
            failures = _failures.get()
            if failures is not None:
                failures.append(type(error).__name__)
            return np.zeros((len(texts), self.dim), dtype=np.float32)
        if self._failing:
            logger.info("the embedder %s answers again", self.name)
        self._failing = False
        return vectors

    def _checked(self, vectors: Vectors, count: int) -> Vectors:
        if vectors.shape != (count, self.dim) or not np.isfinite(vectors).all():
            raise ValueError(f"vectors of shape {vectors.shape} for {count} texts, or figures that are none")
        return vectors


@contextmanager
def watched() -> Iterator[list[str]]:
    """A list that gathers the kinds of the failures which happen inside, in this thread."""
    failures: list[str] = []
    token = _failures.set(failures)
    try:
        yield failures
    finally:
        _failures.reset(token)
