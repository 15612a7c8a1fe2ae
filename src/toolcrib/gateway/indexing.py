"""Build snapshots off the event loop, and improve their index while the gateway is idle.

Improving means merging index segments and embedding tools with a configured embedder. An embedder that fails never
fails a search: only words are compared until it works again.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final, TypeVar

import anyio
import anyio.abc
import anyio.to_thread
import numpy as np

from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import ProviderTools, Snapshot, empty_snapshot, same_tools
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.index import Index
from toolcrib.search.vectors import Embedder, Vectors, default_table
from toolcrib.types import ServerStatus

logger = logging.getLogger(__name__)


class IndexMaintenance:
    """Merges index segments and embeds tools in the background: gets a snapshot and puts a better one."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        get: Callable[[], Snapshot],
        put: Callable[[Snapshot], None],
        wake: Callable[[], None],
    ) -> None:
        """`wake` starts another refresh. Nothing is done before `tidy`."""
        self._options = options
        self._get, self._put, self._wake = get, put, wake
        self._idle = anyio.Event()
        self._embedder: Embedder | None = None
        self._wanted = default_semantic_model()
        """The model that the index should compare meanings with; it uses another one until all tools are embedded."""
        self._embedded: Index | None = None
        """An index that was built in the background, for the next snapshot."""
        self._embedding = False
        self._retry_at = inf
        """When to embed all tools again after a failure; infinite if nothing failed."""
        self._pause_s = options.retry_s

    def use_embedder(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder as soon as all tools are embedded."""
        self._pause_s = self._options.retry_s
        self._want(embedder)

    def _want(self, embedder: Embedder) -> None:
        """Rebuild the whole index: a new model never equals an earlier one."""
        self._retry_at = inf
        self._embedder = embedder
        self._wanted = SemanticModel(default_table(), ResilientEmbedder(embedder))
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

    def take_index(self) -> Index | None:
        """Return the index that was built for the next snapshot, if any; only once."""
        made, self._embedded = self._embedded, None
        return made

    async def tidy(self, group: anyio.abc.TaskGroup, dirty: anyio.Event) -> None:
        """Merge the index, and embed all tools if that is due, until something changes."""
        if await _happens_within(dirty, self._options.idle_s):
            return
        async with anyio.create_task_group() as merging:
            merging.start_soon(self._merge, merging.cancel_scope)
            await dirty.wait()
            merging.cancel_scope.cancel()
        if dirty.is_set() or self._embedding:
            return
        if self._retry_at == inf and self._get().index.model != self._wanted:
            self._embedding = True
            group.start_soon(self._embed)
            return
        self._idle.set()
        if self._embedder is not None and not await _happens_within(dirty, self._retry_at - anyio.current_time()):
            self._want(self._embedder)

    async def _embed(self) -> None:
        """Build an index of the current tools with the wanted model, while changes use the old one."""
        wanted = self._wanted
        build = partial(Index.build, self._get().catalog.tools, options=self._options.search, model=wanted)
        failed = True
        try:
            index, failed = await anyio.to_thread.run_sync(build_noting_failures, build, abandon_on_cancel=True)
        except Exception:
            logger.exception("the tools could not be embedded; the index stays as it is")
        self._embedding = False
        if wanted is self._wanted and failed:
            self.schedule_retry()
        elif wanted is self._wanted:
            self._embedded, self._pause_s = index, self._options.retry_s
        self._wake()

    def schedule_retry(self) -> None:
        """Embed all tools again after a pause, which doubles with each further failure."""
        if self._retry_at == inf:
            self._retry_at = anyio.current_time() + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._options.retry_s * _MAX_BACKOFF_FACTOR)

    async def _merge(self, scope: anyio.CancelScope) -> None:
        """Replace the index by one with a single segment. Views and their versions stay the same."""
        before = self._get()
        try:
            merged, failed = await anyio.to_thread.run_sync(
                build_noting_failures, before.index.merged, abandon_on_cancel=True
            )
        except Exception:
            logger.exception("the index could not be merged; it stays as it is")
        else:
            # After a failure, the old index still has the vectors.
            self._put(before if failed or merged is before.index else replace(before, index=merged))
        scope.cancel()


class SnapshotBuilder:
    """Holds the current snapshot, and builds the next one from the tools of the providers."""

    def __init__(self, options: GatewayOptions) -> None:
        self.snapshot: Snapshot = empty_snapshot()
        self.statuses: dict[int, tuple[ServerStatus, ...]] = {}
        """The statuses that each provider gave with the tools in the snapshot, by the provider's `id`."""
        self.failed = False
        """Whether the last build failed."""
        self._tools: tuple[ProviderTools, ...] = ()
        self._version = -1
        self._lock = threading.Lock()
        self._options = options

    def replace(self, snapshot: Snapshot) -> None:
        """Use another snapshot of the same tools."""
        self.snapshot = snapshot

    async def build(self, tools: tuple[ProviderTools, ...], maintenance: IndexMaintenance, *, version: int) -> None:
        """Build a snapshot in a thread and swap it in, unless a later version was built meanwhile."""
        made = maintenance.take_index()
        if made is None and same_tools(self._tools, tools):
            self._commit(tools, self.snapshot, version)
            return
        before = self.snapshot if made is None else replace(self.snapshot, index=made)
        build = partial(Snapshot.build, tools, before, options=self._options.search)
        try:
            snapshot, failed = await anyio.to_thread.run_sync(build_noting_failures, build)
        except Exception:
            logger.exception("the snapshot could not be built; the previous one stays")
            self._tools, self.failed, failed = tools, True, True
        else:
            self.failed = False
            self._commit(tools, snapshot, version)
        if failed:
            maintenance.schedule_retry()

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

_BuiltT = TypeVar("_BuiltT")


async def _happens_within(event: anyio.Event, seconds: float) -> bool:
    """Wait for the event; return whether it came within that time."""
    with anyio.move_on_after(seconds):
        await event.wait()
    return event.is_set()


def build_noting_failures(build: Callable[[], _BuiltT]) -> tuple[_BuiltT, bool]:
    """Build, and return whether some tools could not be embedded; a search finds those by words only."""
    with embedder_failures() as failures:
        built = build()
    return built, bool(failures)


_failures: ContextVar[list[str] | None] = ContextVar("_failures", default=None)


class ResilientEmbedder:
    """Wraps an embedder that may fail: it then returns rows of zeros, which match no text."""

    def __init__(self, embedder: Embedder) -> None:
        """Instances are never equal, so an index built with one is rebuilt for another."""
        self.inner = embedder
        self.name = embedder.name
        self.dim = embedder.dim
        self._failing = False

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector for each text: float32[n, dim]. Never raises; failures are logged and collected."""
        try:
            vectors = self._checked(self.inner.embed(texts), len(texts))
        except Exception as error:
            # Only the first failure in a row is logged: a service that is down fails every search.
            if not self._failing:
                logger.warning("the embedder %s failed; only words are compared", self.name, exc_info=True)
            self._failing = True
            failures = _failures.get()
            if failures is not None:
                failures.append(type(error).__name__)
            return np.zeros((len(texts), self.dim), dtype=np.float32)
        if self._failing:
            logger.info("the embedder %s works again", self.name)
        self._failing = False
        return vectors

    def _checked(self, vectors: Vectors, count: int) -> Vectors:
        if vectors.shape != (count, self.dim) or not np.isfinite(vectors).all():
            raise ValueError(f"vectors of shape {vectors.shape} for {count} texts, or with values that are not finite")
        return vectors


@contextmanager
def embedder_failures() -> Iterator[list[str]]:
    """Collect the exception types of embedder failures in this thread."""
    failures: list[str] = []
    token = _failures.set(failures)
    try:
        yield failures
    finally:
        _failures.reset(token)
