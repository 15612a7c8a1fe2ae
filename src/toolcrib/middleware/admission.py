"""Admits what callers ask of the catalog: searches, descriptions and lists, which no call pipeline sees.

A caller's share of them is bounded by a rate, and by turns in the event loop, where ranking and listing run: one piece
of work at a time, and the callers in rotation. Each request is reported to the audit, as calls are.
"""

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import anyio.to_thread

from toolcrib.errors import RateLimited, ToolcribError
from toolcrib.middleware.audit import AuditMiddleware
from toolcrib.middleware.limits import RateMiddleware
from toolcrib.middleware.options import CallOptions
from toolcrib.types import Caller, Context

_T = TypeVar("_T")

CountRefusal = Callable[[str], None]
"""Counts a refusal by the setting whose limit was reached. Must not raise."""

_ACTIVE_S: Final = 1.0
"""A caller counts as active for this long after a request, in seconds."""
_BURST_S: Final = 0.1
"""How much of the event loop's time a caller may take at once before its share applies, in seconds."""
_QUEUES: Final = 32
"""All callers together may have as many requests waiting as this many callers."""
_MAX_PACED: Final = 4096
"""Callers whose use of the event loop is remembered."""


class FairQueue:
    """Runs work of callers in the event loop, one piece at a time, with other tasks in between.

    A caller's work waits while other callers are active and it has had more than its share of the loop's time; what
    waits runs with the callers in rotation. Several loops may run at once, in threads of their own, and each has turns
    of its own.
    """

    def __init__(self, *, share: float, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`share` is above 0 and up to 1; at most `waiting` pieces of one caller's work wait. `clock` is in seconds."""
        self._make = partial(_CallerTurns, 1 / share, _BURST_S / share, waiting, clock)
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _CallerTurns] = WeakKeyDictionary()
        self._latest: tuple[asyncio.AbstractEventLoop, _CallerTurns] | None = None
        """The turns that were used last: a program usually has one loop."""

    def note(self, caller: Caller) -> None:
        """Note that a caller is active. Called for every request, so it does next to nothing."""
        latest = self._latest
        turns = self._turns() if latest is None or latest[0] is not asyncio.get_running_loop() else latest[1]
        turns.note(caller)

    async def run(self, caller: Caller, work: Callable[[], _T]) -> _T:
        """Run the work in the caller's turn, and return its value. Raises `RateLimited` if too much waits already."""
        turns = self._turns()
        await turns.begin(caller)
        started = turns.now()
        try:
            return work()
        finally:
            turns.charge(caller, started)
            turns.end()

    async def run_in_thread(self, caller: Caller, work: Callable[[], _T]) -> _T:
        """Run work that may take long in a thread. It counts too, because threads take turns with the loop."""
        turns = self._turns()
        await turns.begin(caller)
        turns.end()
        started = turns.now()
        try:
            return await anyio.to_thread.run_sync(work)
        finally:
            turns.charge(caller, started)

    def _turns(self) -> "_CallerTurns":
        loop, latest = asyncio.get_running_loop(), self._latest
        if latest is not None and latest[0] is loop:
            return latest[1]
        with self._lock:
            turns = self._by_loop.get(loop)
            if turns is None:
                turns = self._by_loop[loop] = self._make()
            self._latest = (loop, turns)
            return turns


class _CallerTurns:
    """The turns in one event loop, which alone uses them."""

    def __init__(self, pace: float, span_s: float, waiting: int, clock: Callable[[], float]) -> None:
        """`pace` is how long a caller waits for each second that it has had, and `span_s` how much wait is let pass."""
        self._pace = pace
        self._span_s = span_s
        self._waiting = waiting
        self.now = clock
        self._lines: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        """What waits, by caller; the one whose turn is next comes first."""
        self._count = 0
        self._busy = False
        """Whether a piece of work is under way, or has just ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._even_at: OrderedDict[Hashable, float] = OrderedDict()
        """When each caller will not have had more than its share any more."""
        self._latest: Caller | None = None
        self._latest_at = self._other_at = float("-inf")

    def note(self, caller: Caller) -> None:
        """Note that a caller is active."""
        if caller is not self._latest:
            if self._latest is None or caller.key != self._latest.key:
                self._other_at = self._latest_at
            self._latest = caller
        self._latest_at = self.now()

    async def begin(self, caller: Caller) -> None:
        """Wait for the caller's turn."""
        self.note(caller)
        key = caller.key
        if self._busy or key in self._lines or self._wait_s(key, self.now()) > 0:
            await self._turn(key)
        self._busy = True

    def end(self) -> None:
        """Let the next caller begin, after other tasks of the loop."""
        asyncio.get_running_loop().call_soon(self._next)

    async def _turn(self, key: Hashable) -> None:
        line = self._lines.setdefault(key, deque())
        if len(line) >= self._waiting:
            raise _too_many(f"{len(line)} of your searches and lists are waiting already", "caller")
        if self._count >= self._waiting * _QUEUES:
            if not line:
                del self._lines[key]
            raise _too_many("too many searches and lists of all callers are waiting", "all")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        self._count += 1
        if not self._busy:
            self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._next()  # the turn was given to it already
            elif turn in self._lines.get(key, ()):
                self._forget(key, turn)
            raise

    def _forget(self, key: Hashable, turn: asyncio.Future[None]) -> None:
        line = self._lines[key]
        line.remove(turn)
        self._count -= 1
        if not line:
            del self._lines[key]

    def _next(self) -> None:
        """Give the next caller its turn."""
        self._busy = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, soonest = self.now(), float("inf")
        for key in tuple(self._lines):
            wait_s = self._wait_s(key, now)
            if wait_s <= 0 and (turn := self._take(key)) is not None:
                self._busy = True
                turn.set_result(None)
                return
            soonest = min(soonest, max(wait_s, 0.0))
        if self._lines:
            self._timer = asyncio.get_running_loop().call_later(soonest, self._next)

    def _take(self, key: Hashable) -> asyncio.Future[None] | None:
        """Take the first of a caller's line that was not cancelled, and put the caller behind the others."""
        found = None
        while found is None and (line := self._lines.get(key)):
            first = line[0]
            self._forget(key, first)
            found = None if first.cancelled() else first
        if key in self._lines:
            self._lines.move_to_end(key)
        return found

    def _wait_s(self, key: Hashable, now: float) -> float:
        """How long the caller has to wait, because it has had more than its share, in seconds."""
        return self._even_at.get(key, now) - now - self._span_s

    def charge(self, caller: Caller, started: float) -> None:
        """Count the time since a moment as the caller's."""
        now, key = self.now(), caller.key
        other_at = self._other_at if self._latest is not None and self._latest.key == key else self._latest_at
        if now - other_at > _ACTIVE_S:
            return  # no other caller has to wait
        self._even_at[key] = max(self._even_at.get(key, now), now) + (now - started) * self._pace
        self._even_at.move_to_end(key)
        if len(self._even_at) > _MAX_PACED:
            self._even_at.popitem(last=False)


def _too_many(problem: str, of: str) -> RateLimited:
    return RateLimited(
        f"Nothing was run: {problem} (calls.search_queue).",
        hint="Wait for an answer before you ask again.",
        data={"retry_after_s": 1, "limit": "calls.search_queue", "of": of},
    )


class Admission:
    """What each search, description and list passes."""

    def __init__(
        self,
        options: CallOptions,
        *,
        rates: RateMiddleware | None = None,
        audit: AuditMiddleware | None = None,
        refused: CountRefusal | None = None,
    ) -> None:
        self.queue = FairQueue(share=options.search_share, waiting=options.search_queue)
        self._rates = rates
        self._audit = audit
        self.count = refused
        """What counts refusals."""

    def report_refusal(self, ctx: Context, action: str, error: ToolcribError) -> None:
        """Report a request that a limit refused elsewhere."""
        self._count_refusal(error)
        if self._audit is not None:
            self._audit.begin(ctx, action, "")(error.code)

    def _count_refusal(self, error: ToolcribError) -> None:
        if self.count is not None and "limit" in error.data:
            self.count(error.data["limit"])

    @asynccontextmanager
    async def admitted(self, ctx: Context, action: str, subject: str = "") -> AsyncIterator[None]:
        """Report what runs inside to the audit. Raises `RateLimited` instead if the caller's rate is exceeded.

        `action` is a word such as `search`, or the method of an MCP request; `subject` is what it is about, if that is
        a tool.
        """
        report = None if self._audit is None else self._audit.begin(ctx, action, subject)
        outcome = "cancelled"
        try:
            if self._rates is not None:
                await self._rates.check_search(ctx.caller, action)
            yield
            outcome = "ok"
        except ToolcribError as error:
            outcome = error.code
            self._count_refusal(error)
            raise
        except Exception:
            outcome = "internal_error"
            raise
        finally:
            if report is not None:
                report(outcome)
