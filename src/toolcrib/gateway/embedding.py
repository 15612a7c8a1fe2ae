"""Embed tools in the background, and requests within a deadline. An embedder that fails never fails a search.

The vectors of tools are kept by the hash of their text, so every index that has such a tool can use them. Until a tool
has a vector, and while the embedder does not answer, only words and the built-in table are compared.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from typing import Final

import anyio
import anyio.to_thread
import numpy as np

from toolcrib.search.embedding import CosineScale
from toolcrib.search.vectors import Embedder, Floats, QuantizedRows, Vectors, quantize

logger = logging.getLogger(__name__)

_MAX_VECTORS: Final = 200_000
"""Vectors of tools that are kept; the least recently used go first."""

_MAX_OF_REQUESTS: Final = 8_192
"""Vectors of requests' own tools that are kept, apart from those of shared tools, which they must not replace."""

_MAX_WAITING: Final = 100_000
"""Texts that wait to be embedded; what is beyond is asked for again when it is needed."""

_BATCH: Final = 32
"""Texts that are embedded between two looks at whether the work should stop."""

_MAX_REQUESTS: Final = 8
"""Requests that are embedded at the same time, so that they never take all threads of the process."""


class BackgroundVectors:
    """The vectors of tools that are known so far; texts without one wait to be embedded. Thread-safe."""

    def __init__(self, embedder: Embedder, wake: Callable[[], None]) -> None:
        """`wake` is called, from any thread, when a text begins to wait."""
        self.name = embedder.name
        self.dim = embedder.dim
        self._embedder = embedder
        self._wake = wake
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        """By hash of the text: the scale as float32, and the components."""
        self._of_requests: OrderedDict[bytes, bytes | None] = OrderedDict()
        """The same for tools that requests brought; None while they have no vector. They never wait."""
        self._waiting: dict[bytes, str] = {}
        self.version = 0
        """How many vectors were computed so far."""

    @cached_property
    def scale(self) -> CosineScale:
        """The scale of the cosines, measured before the first vector is known."""
        return CosineScale.of(self._embedder)

    def rows(self, texts: Sequence[str]) -> QuantizedRows:
        """Return one row per text; those with scale 0 are not known yet, and wait to be embedded from now on."""
        keys = [_text_key(text) for text in texts]
        with self._lock:
            found = [self._known.get(key) or self._of_requests.get(key) for key in keys]
            missing = {
                key: text
                for key, text, row in zip(keys, texts, found, strict=True)
                if row is None and key not in self._of_requests
            }
            room = _MAX_WAITING - len(self._waiting)
            begins = not self._waiting and bool(missing)
            self._waiting.update(list(missing.items())[: max(0, room)])
            for key in keys:
                if key in self._known:
                    self._known.move_to_end(key)
        if begins:
            self._wake()
        return _unpacked([row or bytes(_SCALE_BYTES + self.dim) for row in found], self.dim)

    def waiting(self) -> int:
        """How many texts wait to be embedded."""
        return len(self._waiting)

    def embed_next(self) -> int:
        """Embed some of the texts that wait; return how many. Raises what the embedder raises."""
        with self._lock:
            group = dict(islice(self._waiting.items(), _BATCH))
        for key, packed in self._embed(group):
            with self._lock:
                self._known[key] = packed
                self._waiting.pop(key, None)
                self.version += 1
                if len(self._known) > _MAX_VECTORS:
                    self._known.popitem(last=False)
        return len(group)

    def embed_of_request(self, texts: Sequence[str]) -> None:
        """Embed those texts of a request's own tools that have no vector yet. Raises what the embedder raises."""
        missing: dict[bytes, str] = {}
        with self._lock:
            for key, text in ((_text_key(text), text) for text in texts):
                if key in self._known:
                    continue
                if self._of_requests.setdefault(key, None) is None:
                    missing[key] = text
                self._of_requests.move_to_end(key)
            while len(self._of_requests) > _MAX_OF_REQUESTS:
                self._of_requests.popitem(last=False)
        for key, packed in self._embed(missing):
            with self._lock:
                if key in self._of_requests:
                    self._of_requests[key] = packed
                    self.version += 1

    def _embed(self, group: Mapping[bytes, str]) -> Iterable[tuple[bytes, bytes]]:
        if not group:
            return ()
        _ = self.scale
        rows = quantize(checked_vectors(self._embedder.embed([*group.values()]), len(group), self.dim))
        return zip(group, _packed(rows), strict=True)


def _text_key(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


_SCALE_BYTES: Final = 4


def _packed(rows: QuantizedRows) -> list[bytes]:
    scales = rows.scales.astype(np.float32)
    return [scale.tobytes() + row.tobytes() for scale, row in zip(scales, rows.values, strict=True)]


def _unpacked(rows: Sequence[bytes], dim: int) -> QuantizedRows:
    table = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), _SCALE_BYTES + dim)
    scales = np.ascontiguousarray(table[:, :_SCALE_BYTES]).view(np.float32).reshape(len(rows))
    return QuantizedRows(np.ascontiguousarray(table[:, _SCALE_BYTES:]).view(np.int8), scales)


def checked_vectors(vectors: Vectors, count: int, dim: int) -> Vectors:
    """Return the vectors of an embedder. Raises `ValueError` for another shape, or values that are not finite."""
    if vectors.shape != (count, dim) or not np.isfinite(vectors).all():
        raise ValueError(f"vectors of shape {vectors.shape} for {count} texts, or with values that are not finite")
    return vectors


@dataclass(frozen=True, slots=True)
class EmbeddedRequest:
    """The vectors of the queries of a request, by text; fewer if the embedder failed."""

    vectors: Mapping[str, Floats]
    failure: str = ""
    """The type of the error; empty if there was none."""


class RequestEmbedder:
    """Embeds requests in threads, within a deadline."""

    def __init__(self, embedder: Embedder, timeout_s: float) -> None:
        self.embedder = embedder
        self._timeout_s = timeout_s
        self._threads: anyio.CapacityLimiter | None = None
        self._overdue = 0
        """Calls that were given up and still run."""
        self._lock = threading.Lock()
        self._failing = False

    async def embed(self, texts: Sequence[str]) -> EmbeddedRequest:
        """Return a vector for each text, or none of them and why.

        While a call that was given up still runs, others are not even begun.
        """
        try:
            vectors = await self._within_deadline(texts)
        except Exception as error:
            # Only the first failure in a row is logged: a service that is down fails every search.
            if not self._failing:
                logger.warning("the embedder %s failed; only words are compared", self.embedder.name, exc_info=True)
            self._failing = True
            return EmbeddedRequest({}, type(error).__name__)
        if self._failing:
            logger.info("the embedder %s works again", self.embedder.name)
        self._failing = False
        return EmbeddedRequest(dict(zip(texts, vectors, strict=True)))

    async def _within_deadline(self, texts: Sequence[str]) -> Vectors:
        self._check_overdue()
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_MAX_REQUESTS)
        call = _Call()
        try:
            # Also a request that is cancelled holds its place until then, so that threads never pile up.
            with anyio.fail_after(self._timeout_s, shield=True):
                return await anyio.to_thread.run_sync(
                    partial(self._call, call, texts), limiter=self._threads, abandon_on_cancel=True
                )
        except TimeoutError:
            with self._lock:
                call.is_given_up = True
                self._overdue += call.is_running
            raise

    def _check_overdue(self) -> None:
        if self._overdue:
            raise TimeoutError("an earlier call has not ended yet")

    def _call(self, call: "_Call", texts: Sequence[str]) -> Vectors:
        with self._lock:
            if call.is_given_up:
                raise TimeoutError("it waited for earlier calls for too long")
            self._check_overdue()
            call.is_running = True
        try:
            return checked_vectors(self.embedder.embed(texts), len(texts), self.embedder.dim)
        finally:
            with self._lock:
                call.is_running = False
                self._overdue -= call.is_given_up


@dataclass(slots=True)
class _Call:
    is_running: bool = False
    is_given_up: bool = False
