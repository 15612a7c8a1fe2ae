"""Build snapshots off the event loop, improve their index while the gateway is idle, and embed tools and requests.

Improving means merging index segments, saving them, and adding the vectors of tools that an embedder computes in the
background.

The vectors of tools are kept by the hash of their text, so every index that has such a tool can use them. Until a tool
has a vector, and while the embedder does not answer, only words and the built-in table are compared. Requests are
embedded within a deadline. An embedder that fails never fails a search.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from math import inf
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib import search
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import ProviderTools, Snapshot, empty_snapshot, same_tools
from toolcrib.gateway.view import MAX_EMBEDDED_REQUEST_TOOLS
from toolcrib.search.embedder import Embedder
from toolcrib.state.saved_index import SavedIndex
from toolcrib.types import ServerStatus, Tool

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


# -- embedding ---------------------------------------------------------------------------------------------------------


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
    def scale(self) -> search.CosineScale:
        """The scale of the cosines, measured before the first vector is known."""
        return search.CosineScale.of(self._embedder)

    def rows(self, texts: Sequence[str]) -> search.QuantizedRows:
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
        return search.unpacked_rows(found, self.dim)

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
        rows = search.quantize(search.checked_vectors(self._embedder.embed([*group.values()]), len(group), self.dim))
        return zip(group, search.packed_rows(rows), strict=True)


def _text_key(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class EmbeddedRequest:
    """The vectors of the queries of a request, by text; fewer if the embedder failed."""

    vectors: Mapping[str, search.Floats]
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

    async def _within_deadline(self, texts: Sequence[str]) -> search.Vectors:
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

    def _call(self, call: _Call, texts: Sequence[str]) -> search.Vectors:
        with self._lock:
            if call.is_given_up:
                raise TimeoutError("it waited for earlier calls for too long")
            self._check_overdue()
            call.is_running = True
        try:
            return search.checked_vectors(self.embedder.embed(texts), len(texts), self.embedder.dim)
        finally:
            with self._lock:
                call.is_running = False
                self._overdue -= call.is_given_up


@dataclass(slots=True)
class _Call:
    is_running: bool = False
    is_given_up: bool = False


# -- snapshots and their index -----------------------------------------------------------------------------------------


class IndexMaintenance:
    """Merges index segments and embeds tools in the background: gets a snapshot and puts a better one."""

    def __init__(
        self,
        options: GatewayOptions,
        saved: SavedIndex | None,
        *,
        is_connecting: Callable[[], bool],
        get: Callable[[], Snapshot],
        put: Callable[[Snapshot], None],
        wake: Callable[[], None],
        wake_from_thread: Callable[[], None],
    ) -> None:
        """`wake` starts another refresh; `wake_from_thread` does so from any thread. Nothing is done before `tidy`.

        The index is not saved while `is_connecting`, since tools that are still to come would be missing.
        """
        self._options = options
        self._saved = saved
        self._is_connecting, self._get, self._put = is_connecting, get, put
        self._wake, self._wake_from_thread = wake, wake_from_thread
        self._idle = anyio.Event()
        self._vectors: BackgroundVectors | None = None
        self._used = 0
        """How many vectors were computed when the index last got them."""
        self._embedding = False
        self._retry_at = inf
        """When to embed again after a failure; infinite if nothing failed."""
        self._pause_s = options.retry_s
        self._failing = False

    def use_embedder(self, embedder: Embedder, tools: Embedder | None = None) -> None:
        """Compare meanings with this embedder as well; `tools` embeds tools, by default the same."""
        self._vectors = BackgroundVectors(tools or embedder, self._wake_from_thread)
        self._model, self._used = search.SemanticModel(search.default_table(), embedder, self._vectors), 0
        self._retry_at, self._pause_s = inf, self._options.retry_s
        self._wake()

    def mark_busy(self) -> None:
        """Note that there is work to do."""
        if self._idle.is_set():
            self._idle = anyio.Event()

    def stop(self) -> None:
        """Forget work under way, and release those who wait for it."""
        self._embedding = False
        self._idle.set()
        self._idle = anyio.Event()

    async def wait_idle(self) -> None:
        """Wait until no work is left."""
        await self._idle.wait()

    def waiting(self) -> int | None:
        """How many tools have yet to be embedded; None without an embedder."""
        return None if self._vectors is None else self._vectors.waiting()

    def has_news(self, snapshot: Snapshot) -> bool:
        """Whether the index lacks vectors that are known by now."""
        vectors = self._vectors
        return vectors is not None and (vectors.version > self._used or snapshot.index.model != self._model)

    def with_vectors(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the vectors that are known of its tools. Takes milliseconds."""
        if self._vectors is None:
            return snapshot
        self._used = self._vectors.version
        index = snapshot.index.with_vectors(self._model)
        return snapshot if index is snapshot.index else replace(snapshot, built=index)

    async def embed_request_tools(self, tools: Sequence[Tool]) -> None:
        """Embed the tools of a request, if they are few, so that its answer does not depend on other requests."""
        vectors = self._vectors
        if vectors is None or not 0 < len(tools) <= MAX_EMBEDDED_REQUEST_TOOLS:
            return
        try:
            with anyio.move_on_after(self._options.list_timeout_s):
                work = partial(vectors.embed_of_request, [*map(search.tool_text, tools)])
                await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except Exception as error:  # noqa: BLE001 - as below
            self._note_failure(vectors, error)

    async def tidy(self, group: anyio.abc.TaskGroup, dirty: anyio.Event) -> None:
        """Embed tools, and merge the index when nothing changes any more, until something changes."""
        self._start_embedding(group)
        if await _happens_within(dirty, self._options.idle_s):
            return
        async with anyio.create_task_group() as merging:
            merging.start_soon(self._merge, merging.cancel_scope)
            await dirty.wait()
            merging.cancel_scope.cancel()
        if dirty.is_set() or self._embedding:
            return
        self._idle.set()
        if not await _happens_within(dirty, self._retry_at - anyio.current_time()):
            self._retry_at = inf
            self._wake()

    def _start_embedding(self, group: anyio.abc.TaskGroup) -> None:
        vectors = self._vectors
        if vectors is not None and vectors.waiting() and self._retry_at == inf and not self._embedding:
            self._embedding = True
            group.start_soon(self._embed, vectors)

    async def _embed(self, vectors: BackgroundVectors) -> None:
        """Embed the tools that wait, and let the index have their vectors every few seconds."""
        begun, done = anyio.current_time(), 0
        shown = begun
        try:
            while vectors is self._vectors and (
                count := await anyio.to_thread.run_sync(vectors.embed_next, abandon_on_cancel=True)
            ):
                done += count
                if anyio.current_time() - shown > _PROGRESS_S:
                    shown = anyio.current_time()
                    logger.info("embedded %d of %d tools with %s", done, done + vectors.waiting(), vectors.name)
                    self._wake()
        except Exception as error:  # noqa: BLE001 - a model of the operator's may raise anything
            self._note_failure(vectors, error)
        else:
            self._failing, self._pause_s = False, self._options.retry_s
            if done:
                logger.info("embedded %d tools with %s in %.1f s", done, vectors.name, anyio.current_time() - begun)
        self._embedding = False
        self._wake()

    def _note_failure(self, vectors: BackgroundVectors, error: Exception) -> None:
        """Try again after a pause, which doubles with each further failure."""
        if not self._failing:
            logger.warning("the embedder %s failed; only words are compared", vectors.name, exc_info=error)
        self._failing = True
        if vectors is self._vectors:
            self._retry_at = anyio.current_time() + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._options.retry_s * _MAX_BACKOFF_FACTOR)

    async def _merge(self, scope: anyio.CancelScope) -> None:
        """Replace the index by a merged one, and save it. Views and their versions stay the same."""
        before = self._get()
        try:
            merged = await anyio.to_thread.run_sync(self._merged, before, abandon_on_cancel=True)
        except Exception:
            logger.exception("the index could not be merged; it stays as it is")
        else:
            self._put(before if merged is before.index else replace(before, built=merged))
        scope.cancel()

    def _merged(self, snapshot: Snapshot) -> search.Index:
        saved, index = self._saved, snapshot.index
        merged = index.merged() if saved is None else saved.improve(index, save=not self._is_connecting())
        search.prepare(merged)
        return merged


class SnapshotBuilder:
    """Holds the current snapshot, and builds the next one from the tools of the providers."""

    def __init__(self, options: GatewayOptions, saved: SavedIndex | None) -> None:
        self.snapshot: Snapshot = empty_snapshot()
        self.statuses: dict[int, tuple[ServerStatus, ...]] = {}
        """The statuses that each provider gave with the tools in the snapshot, by the provider's `id`."""
        self.failed = False
        """Whether the last build failed."""
        self._tools: tuple[ProviderTools, ...] = ()
        self._version = -1
        self._lock = threading.Lock()
        self._options = options
        self._saved = saved

    def replace(self, snapshot: Snapshot) -> None:
        """Use another snapshot of the same tools."""
        self.snapshot = snapshot

    async def build(self, tools: tuple[ProviderTools, ...], maintenance: IndexMaintenance, *, version: int) -> None:
        """Build a snapshot in a thread and swap it in, unless a later version was built meanwhile."""
        before, same = self.snapshot, same_tools(self._tools, tools)
        if same and not maintenance.has_news(before):
            self._commit(tools, before, version)
            return
        try:
            snapshot = await anyio.to_thread.run_sync(partial(self._built, tools, before, maintenance, same=same))
        except Exception:
            logger.exception("the snapshot could not be built; the previous one stays")
            self._tools, self.failed = tools, True
        else:
            self.failed = False
            self._commit(tools, snapshot, version)

    def _built(
        self, tools: tuple[ProviderTools, ...], before: Snapshot, maintenance: IndexMaintenance, *, same: bool
    ) -> Snapshot:
        embedded = maintenance.with_vectors(before)
        snapshot = (
            embedded if same else Snapshot.build(tools, embedded, options=self._options.search, saved=self._saved)
        )
        if snapshot.built is not None:
            search.prepare(snapshot.built)
        return snapshot

    def _commit(self, tools: tuple[ProviderTools, ...], snapshot: Snapshot, version: int) -> None:
        # Without `run`, several event loops may build at once.
        with self._lock:
            if version < self._version:
                return
            self.snapshot, self._tools, self._version = snapshot, tools, version
            if not self.failed:
                self.statuses = {id(one.backend.provider): one.statuses for one in tools}


_MAX_BACKOFF_FACTOR: Final = 20
"""The longest pause between two attempts to embed, as a multiple of the first."""

_PROGRESS_S: Final = 2.0
"""How often the index gets the vectors of tools while others are still being embedded, in seconds."""


async def _happens_within(event: anyio.Event, seconds: float) -> bool:
    """Wait for the event; return whether it came within that time."""
    with anyio.move_on_after(seconds):
        await event.wait()
    return event.is_set()
