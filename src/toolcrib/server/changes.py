"""Tells clients that a list of theirs changed: each one of his own list, and of nobody else's.

Of every session and subscription it remembers, for each list that it follows, a mark of what that caller would be
listed. When something changes anywhere, the marks are made again, and only those whose own mark is another are told,
once for all that changes within a short while. That while begins with their own change, so that nobody's notices follow
the rhythm of others.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from toolcrib.errors import AlreadyStarted
from toolcrib.protocols import Changes, Context, Unsubscribe
from toolcrib.server.failures import is_own_cancellation

logger = logging.getLogger(__name__)

_DEBOUNCE_S: Final = 0.15
_LIMIT: Final = 60_000
_LIMIT_EACH: Final = 6_000
"""Three a client: tools, prompts, resources."""

Tell = Callable[[], Awaitable[None]]
"""Tells one client that its list changed."""


Marker = Callable[[Context], Awaitable[str]]
"""Knows the lists of one kind apart: see `Marks`."""


class Marks(Protocol):
    """Knows lists of tools apart."""

    async def mark(self, ctx: Context) -> str:
        """Another text whenever the caller would be listed something else. Cheap, and without waiting for servers."""


class Follower:
    """A session or subscription that is told of changes. What waits to be told is one flag, however much changed."""

    def __init__(self, ctx: Context, tell: Tell, ready: anyio.Event, marker: Marker) -> None:
        """Not told before `ready`."""
        self.ctx = ctx
        self.marker = marker
        self.tell = tell
        self.ready = ready
        self.ended = anyio.Event()
        """Set when it will not be told any more."""
        self.mark = ""
        self.busy = True
        self.again = False
        self.scope = anyio.CancelScope()
        self.ends: list[Unsubscribe] = []

    @property
    def whose(self) -> Hashable:
        """Whose place it takes."""
        return self.ctx.caller.tenant, self.ctx.caller.id

    @property
    def own(self) -> tuple[object, ...]:
        """The providers that came with the request that opened it."""
        return (*self.ctx.providers, *self.ctx.overriding)


class ListChanges:
    """Who is told of changes, and what was told last. It tells while `run` runs."""

    def __init__(
        self,
        marks: Marks,
        source: Changes,
        *,
        debounce_s: float = _DEBOUNCE_S,
        limit: int = _LIMIT,
        per_caller: int = _LIMIT_EACH,
    ) -> None:
        """`source` calls back when anything changed, such as a gateway's `live`.

        Changes within `debounce_s` seconds of a follower's first are told once. At most `limit` followers are kept, and
        of one caller at most `per_caller`, so that nobody takes all the places.
        """
        self.limit = limit
        self.per_caller = per_caller
        self._marks = marks
        self._source = source
        self._debounce_s = debounce_s
        self._followers: set[Follower] = set()
        self._of_caller: Counter[Hashable] = Counter()
        self._group: anyio.abc.TaskGroup | None = None
        self._dirty = anyio.Event()

    @property
    def followers(self) -> int:
        """How many sessions and subscriptions are told of changes."""
        return len(self._followers)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Tell of changes until cancelled. Raises `AlreadyStarted` when it runs already."""
        if self._group is not None:
            raise AlreadyStarted("Changes are being told already.")
        self._dirty = anyio.Event()
        end = self._source.subscribe(self._note)
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                self._note()
                task_status.started()
                while True:
                    await self._dirty.wait()
                    self._dirty = anyio.Event()
                    await self._look_at_all()
        finally:
            self._group = None
            end()
            self.end_streams()

    def _note(self) -> None:
        self._dirty.set()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run something beside, until it ends or `run` does; whether that could be done."""
        if self._group is None:
            return False
        self._group.start_soon(work)
        return True

    # -- followers -------------------------------------------------------------------------------------------------

    async def follow(
        self, ctx: Context, tell: Tell, ready: anyio.Event, marker: Marker | None = None
    ) -> Follower | None:
        """Tell of changes of this caller's list from now on, once `ready`; None where there are too many followers, or
        too many of this caller's.

        The list is that of the tools, unless a `marker` of another kind is given. The context is kept: it must hold
        nothing that ends with its request. Call `leave` in the end.
        """
        follower = Follower(ctx, tell, ready, marker or self._marks.mark)
        if len(self._followers) >= self.limit or self._of_caller[follower.whose] >= self.per_caller:
            return None
        self._followers.add(follower)
        self._of_caller[follower.whose] += 1
        try:
            for provider in follower.own:
                if isinstance(provider, Changes):
                    follower.ends.append(provider.subscribe(partial(self._attend, follower)))
            follower.mark = await follower.marker(ctx)
        except BaseException:
            self.leave(follower)
            raise
        follower.busy = False
        if follower.again:
            self._attend(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """Tell this one nothing more; calling it twice is harmless."""
        if follower in self._followers:
            self._followers.discard(follower)
            self._of_caller[follower.whose] -= 1
            if not self._of_caller[follower.whose]:
                del self._of_caller[follower.whose]
        follower.ended.set()
        follower.scope.cancel()
        ends, follower.ends = follower.ends, []
        for end in ends:
            end()

    def end_streams(self) -> None:
        """End what only waits to be told; sessions stay."""
        for follower in tuple(self._followers):
            follower.ended.set()

    # -- telling ---------------------------------------------------------------------------------------------------

    async def _look_at_all(self) -> None:
        for follower in tuple(self._followers):
            # Providers of one's own may take their time, which must be nobody else's.
            if follower.own or follower.busy or await self._moved(follower):
                self._attend(follower)
            await anyio.lowlevel.checkpoint()

    async def _moved(self, follower: Follower) -> bool:
        """Whether the follower's list is another than the one remembered; not, where that cannot be known."""
        try:
            return await follower.marker(follower.ctx) != follower.mark
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            logger.exception("a client's list of tools could not be compared with what it was")
            return False

    def _attend(self, follower: Follower) -> None:
        """Have a task look at this follower; the one that is at it already looks again."""
        follower.again = True
        if self._group is not None and not follower.busy and follower in self._followers:
            follower.busy = True
            self._group.start_soon(self._attending, follower)

    async def _attending(self, follower: Follower) -> None:
        try:
            with follower.scope:
                while follower.again:
                    follower.again = False
                    await self._attend_once(follower)
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            logger.exception("a client could not be told that its tools changed")
        finally:
            follower.busy = False
            follower.scope = anyio.CancelScope()

    async def _attend_once(self, follower: Follower) -> None:
        if not await self._moved(follower):
            return
        await follower.ready.wait()
        await anyio.sleep(self._debounce_s)
        follower.again = False
        follower.mark = await follower.marker(follower.ctx)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await follower.tell()
