"""What is done to the index while nobody waits: putting it in order, and comparing meanings with another embedder."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.snapshot import Snapshot
from toolcrib.gateway.steady import Steady, watched
from toolcrib.search.index import Index
from toolcrib.search.meaning import Meaning, default_meaning
from toolcrib.search.semantic import Embedder
from toolcrib.search.table import default_table

logger = logging.getLogger(__name__)

_LONGEST: Final = 20
"""How many times the first pause there may be between two attempts to embed."""

_Built = TypeVar("_Built")


class Background:
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
        self._wanted = default_meaning()
        """What the index is to compare meanings with; another one until all tools are embedded."""
        self._embedded: Index | None = None
        """An index that was made in the background, for the next snapshot."""
        self._embedding = False
        self._again_at = inf
        """When to embed again what could not be embedded; never, when all is well."""
        self._pause_s = options.retry_s

    def embed_with(self, embedder: Embedder) -> None:
        """Compare meanings with this embedder as soon as all tools are embedded."""
        self._pause_s = self._options.retry_s
        self._want(embedder)

    def _want(self, embedder: Embedder) -> None:
        """Have the whole index made anew: no meaning equals one that was made before."""
        self._again_at = inf
        self._embedder = embedder
        self._wanted = Meaning(default_table(), Steady(embedder))
        self._wake()

    def disturb(self) -> None:
        """Something changed: it is not idle any more."""
        if self._idle.is_set():
            self._idle = anyio.Event()

    def rest(self) -> None:
        """Nothing is done any more; whoever waits for it is let go."""
        self._embedding = False
        self._idle.set()
        self._idle = anyio.Event()

    async def idle(self) -> None:
        """Wait until nothing is left to be done."""
        await self._idle.wait()

    def taken(self) -> Index | None:
        """The index that was made for the next snapshot, if any; once."""
        made, self._embedded = self._embedded, None
        return made

    async def tidy(self, group: anyio.abc.TaskGroup, dirty: anyio.Event) -> None:
        """Until something changes: put the index in order, and embed all tools where that is due."""
        if await _within(dirty, self._options.idle_s):
            return
        async with anyio.create_task_group() as merging:
            merging.start_soon(self._merge, merging.cancel_scope)
            await dirty.wait()
            merging.cancel_scope.cancel()
        if dirty.is_set() or self._embedding:
            return
        if self._again_at == inf and self._get().index.meaning != self._wanted:
            self._embedding = True
            group.start_soon(self._embed)
            return
        self._idle.set()
        if self._embedder is not None and not await _within(dirty, self._again_at - anyio.current_time()):
            self._want(self._embedder)

    async def _embed(self) -> None:
        """Make an index of the present tools with the wanted meaning; changes are taken in meanwhile, without it."""
        wanted = self._wanted
        build = partial(Index.build, self._get().catalog.tools, options=self._options.search, meaning=wanted)
        failed = True
        try:
            index, failed = await anyio.to_thread.run_sync(watching, build, abandon_on_cancel=True)
        except Exception:
            logger.exception("the tools could not be embedded; the index stays as it is")
        self._embedding = False
        if wanted is self._wanted and failed:
            self.plan()
        elif wanted is self._wanted:
            self._embedded, self._pause_s = index, self._options.retry_s
        self._wake()

    def plan(self) -> None:
        """Embed all tools again soon; later after each further failure."""
        if self._again_at == inf:
            self._again_at = anyio.current_time() + self._pause_s
            self._pause_s = min(2 * self._pause_s, self._options.retry_s * _LONGEST)

    async def _merge(self, scope: anyio.CancelScope) -> None:
        """Replace the index by one of a single segment. What is seen, and its version, stay as they are."""
        before = self._get()
        try:
            merged, failed = await anyio.to_thread.run_sync(watching, before.index.merged, abandon_on_cancel=True)
        except Exception:
            logger.exception("the index could not be put in order; it stays as it is")
        else:
            # What could not be embedded again has its vectors in the index as it is.
            self._put(before if failed or merged is before.index else replace(before, index=merged))
        scope.cancel()


async def _within(event: anyio.Event, seconds: float) -> bool:
    """Whether the event comes within that time."""
    with anyio.move_on_after(seconds):
        await event.wait()
    return event.is_set()


def watching(build: Callable[[], _Built]) -> tuple[_Built, bool]:
    """What is built, and whether some tools could not be embedded; those are found by words alone."""
    with watched() as failures:
        built = build()
    return built, bool(failures)
