"""Build snapshots off the event loop, and improve their index while the gateway is idle.

Improving means merging index segments and embedding tools with a configured embedder. An embedder that fails never
fails a search: only words are compared until it works again.

"""

import logging
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
from toolcrib.gateway.snapshot import EMPTY_SNAPSHOT, ProviderTools, Snapshot, same_tools
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.index import Index
from toolcrib.search.vectors import Embedder, Vectors, default_table
from toolcrib.types import ServerStatus

logger = logging.getLogger(__name__)


class IndexMaintenance:
    """Works on the snapshot that `get` gives and hands a better one to `put`; `wake` has another refresh made."""

    def __init__(
        self,
        options: GatewayOptions,
        *,
        get: Callable[[], Snapshot],
        put: Callable[[Snapshot], None],
        wake: Callable[[], None],
    ) -> None:
        """Nothing is done before `tidy`."""
        self._options = options
        self._get, self._put, self._wake = get, put, wake
        self._idle = anyio.Event()
        self._embedder: Embedder | None = None
        self._wanted = default_semantic_model()
        """What the index is to compare meanings with; another one until all tools are embedded."""
        self._embedded: Index | None = None
        """An index that was made in the background, for the next snapshot."""
        self._embedding = False
        self._retry_at = inf
        """When to embed again what could not be embedded; never, when all is well."""
        self._pause_s = options.retry_s

    def use_embedder(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder as soon as all tools are embedded."""
        self._pause_s = self._options.retry_s
        self._want(embedder)

    def _want(self, embedder: Embedder) -> None:
        """Have the whole index made anew: no meaning equals one that was made before."""
        self._retry_at = inf
        self._embedder = embedder
        self._wanted = SemanticModel(default_table(), ResilientEmbedder(embedder))
        self._wake()

    def mark_busy(self) -> None:
        """Something changed: it is not idle any more."""
        if self._idle.is_set():
            self._idle = anyio.Event()

    def stop(self) -> None:
        """Nothing is done any more; whoever waits for it is let go."""
        self._embedding = False
        self._idle.set()
        self._idle = anyio.Event()

    async def wait_idle(self) -> None:
        """Wait until nothing is left to be done."""
        await self._idle.wait()

    def take_index(self) -> Index | None:
        """The index that was made for the next snapshot, if any; once."""
        made, self._embedded = self._embedded, None
        return made

    async def tidy(self, group: anyio.abc.TaskGroup, dirty: anyio.Event) -> None:
        """Until something changes: put the index in order, and embed all tools where that is due."""
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
        """Make an index of the present tools with the wanted meaning; changes are taken in meanwhile, without it."""
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
        """Embed all tools again soon; later after each further failure."""
        if self._retry_at == inf:
            self._retry_at = anyio.current_time() + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._options.retry_s * _MAX_BACKOFF_FACTOR)

    async def _merge(self, scope: anyio.CancelScope) -> None:
        """Replace the index by one of a single segment. What is seen, and its version, stay as they are."""
        before = self._get()
        try:
            merged, failed = await anyio.to_thread.run_sync(
                build_noting_failures, before.index.merged, abandon_on_cancel=True
            )
        except Exception:
            logger.exception("the index could not be put in order; it stays as it is")
        else:
            # What could not be embedded again has its vectors in the index as it is.
            self._put(before if failed or merged is before.index else replace(before, index=merged))
        scope.cancel()


class SnapshotBuilder:
    """The current snapshot, and what was offered for it."""

    def __init__(self, options: GatewayOptions) -> None:
        """Nothing was offered yet."""
        self.snapshot: Snapshot = EMPTY_SNAPSHOT
        self.statuses: dict[int, tuple[ServerStatus, ...]] = {}
        """How the servers of each provider in the snapshot stood when it listed its tools, by its `id`."""
        self.failed = False
        """Whether what was offered last could not be taken in."""
        self._offers: tuple[ProviderTools, ...] = ()
        self._options = options

    def replace(self, snapshot: Snapshot) -> None:
        """Have the same tools in another snapshot."""
        self.snapshot = snapshot

    async def build(self, offers: tuple[ProviderTools, ...], background: IndexMaintenance) -> None:
        """Take in what is offered, without holding up the event loop."""
        made = background.take_index()
        if made is None and same_tools(self._offers, offers):
            self._note(offers)
            return
        self._offers = offers
        before = self.snapshot if made is None else replace(self.snapshot, index=made)
        build = partial(Snapshot.build, offers, before, options=self._options.search)
        try:
            self.snapshot, failed = await anyio.to_thread.run_sync(build_noting_failures, build)
            self.failed = False
        except Exception:
            logger.exception("the new tools could not be taken in; the old ones stay")
            failed = self.failed = True
        self._note(offers)
        if failed:
            background.schedule_retry()

    def build_now(self, offers: tuple[ProviderTools, ...]) -> None:
        """The same at once, in a thread that may take its time; one thread at a time."""
        if not same_tools(self._offers, offers):
            self._offers = offers
            try:
                self.snapshot = Snapshot.build(offers, self.snapshot, options=self._options.search)
                self.failed = False
            except Exception:
                logger.exception("the new tools could not be taken in; the old ones stay")
                self.failed = True
        self._note(offers)

    def _note(self, offers: tuple[ProviderTools, ...]) -> None:
        """What was said with these offers holds from now on: what they offer is in."""
        if not self.failed:
            self.statuses = {id(offer.backend.provider): offer.statuses for offer in offers}


_MAX_BACKOFF_FACTOR: Final = 20
"""How many times the first pause there may be between two attempts to embed."""


_BuiltT = TypeVar("_BuiltT")


async def _happens_within(event: anyio.Event, seconds: float) -> bool:
    """Whether the event comes within that time."""
    with anyio.move_on_after(seconds):
        await event.wait()
    return event.is_set()


def build_noting_failures(build: Callable[[], _BuiltT]) -> tuple[_BuiltT, bool]:
    """What is built, and whether some tools could not be embedded; those are found by words alone."""
    with embedder_failures() as failures:
        built = build()
    return built, bool(failures)


_failures: ContextVar[list[str] | None] = ContextVar("_failures", default=None)


class ResilientEmbedder:
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
def embedder_failures() -> Iterator[list[str]]:
    """A list that gathers the kinds of the failures which happen inside, in this thread."""
    failures: list[str] = []
    token = _failures.set(failures)
    try:
        yield failures
    finally:
        _failures.reset(token)
