"""Gives an answer again instead of asking a backend for it; on only where the settings say so.

An answer belongs to who asked, to the backend, to the tool's definition and to the arguments. A call of a tool of the
same backend that does not say it only reads makes everything kept for that backend old.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Final

import anyio

from toolcrib.gateway.calls.hints import reads_only
from toolcrib.gateway.calls.measure import canonical, digest, whole_size
from toolcrib.gateway.calls.options import CacheOptions
from toolcrib.gateway.calls.trail import answered_from_cache
from toolcrib.gateway.documents import is_document
from toolcrib.gateway.policy import Patterns
from toolcrib.gateway.sessions import is_anonymous
from toolcrib.model import Tool, ToolResult
from toolcrib.protocols import Call, Context, Policy, Proceed

_OVERHEAD: Final = 500
"""Bytes an entry costs beside its result."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer."""

    tool: Tool
    result: ToolResult
    until: float
    size: int


class ResultCache:
    """Keeps complete results without errors, newest used last, within a number of entries and of bytes.

    Calls for the same answer at the same time wait for the first of them. Nothing is kept for a request that brings
    tools of its own: who it is for may show in them alone.
    """

    def __init__(self, options: CacheOptions, policy: Policy | None, *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds; the policy says who shares answers where the options ask for scopes."""
        self._options = options
        self._listed = Patterns(options.tools)
        self._policy = policy
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._size = 0
        self._ages: dict[str, int] = {}
        self._age = count(1)
        self._under_way: dict[Hashable, anyio.Event] = {}
        self._lock = threading.Lock()

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        """The answer that was kept, or what the call gives."""
        if is_document(call.tool):  # a client that is told of a change reads anew
            return await proceed(ctx, call)
        if not reads_only(call.tool):
            return await self._writing(ctx, call, proceed)
        key = self._key(ctx, call)
        if key is None:
            return await proceed(ctx, call)
        return await self._answer(key, ctx, call, proceed)

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return self._size

    async def _writing(self, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        """A call that may change what others of its backend answer, even where it fails."""
        key = self._key(ctx, call)
        if key is not None:
            return await self._answer(key, ctx, call, proceed)
        try:
            return await proceed(ctx, call)
        finally:
            self._outdate(call.backend)

    async def _answer(self, key: Hashable, ctx: Context, call: Call, proceed: Proceed) -> ToolResult:
        if (result := self._look(key, call.tool)) is not None:
            return result
        flight = (threading.get_ident(), key)  # an event belongs to one event loop
        if (first := self._under_way.get(flight)) is not None:
            await first.wait()
            if (result := self._look(key, call.tool)) is not None:
                return result
            return await proceed(ctx, call)  # the first failed or gave up: each on its own, or the last waits for all
        landed = self._under_way[flight] = anyio.Event()
        try:
            result = await proceed(ctx, call)
            self._keep(key, call.tool, result)
            return result
        finally:
            del self._under_way[flight]
            landed.set()

    def _key(self, ctx: Context, call: Call) -> Hashable | None:
        """What the answer depends on; None where none is kept."""
        wanted = self._listed.fit(call.tool.id) if self._listed else reads_only(call.tool)
        alone = ctx.providers or ctx.overriding or ctx.input_responses is not None or ctx.request_state is not None
        alone = alone or (self._options.per == "caller" and is_anonymous(ctx))
        if not wanted or alone or (text := canonical(call.arguments)) is None:
            return None
        with self._lock:
            age = self._ages.setdefault(call.backend, 0)
        return (self._whose(ctx), call.backend, age, call.tool.id, digest(text))

    def _whose(self, ctx: Context) -> Hashable:
        if self._options.per == "scope":
            return (ctx.caller.tenant, self._policy.scope(ctx.caller) if self._policy is not None else None)
        return (ctx.caller, ctx.session)

    def _outdate(self, backend: str) -> None:
        with self._lock:
            if backend in self._ages:
                self._ages[backend] = next(self._age)

    def _look(self, key: Hashable, tool: Tool) -> ToolResult | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            if self._clock() >= kept.until or not (kept.tool is tool or kept.tool == tool):
                self._drop(key)
                return None
            self._kept.move_to_end(key)
        answered_from_cache()
        return copy.deepcopy(kept.result)

    def _keep(self, key: Hashable, tool: Tool, result: ToolResult) -> None:
        if result.is_error or result.kind != "complete" or (size := whole_size(result)) is None:
            return
        size += _OVERHEAD
        if size > self._options.max_bytes:
            return
        result = copy.deepcopy(result)  # who was given it may change it
        with self._lock:
            self._drop(key)
            self._kept[key] = _Kept(tool, result, self._clock() + self._options.seconds, size)
            self._size += size
            while len(self._kept) > self._options.max_entries or self._size > self._options.max_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self._size -= kept.size
