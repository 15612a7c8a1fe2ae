"""Result cache: return an earlier answer instead of calling the backend; off by default.

An answer belongs to a caller, a backend, a tool definition and its arguments. A call of a tool that is not marked
read-only invalidates everything cached for its backend.

"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Final

import anyio

from toolcrib.gateway.policy import Patterns
from toolcrib.gateway.sessions import is_anonymous
from toolcrib.middleware.audit import record_cache_hit
from toolcrib.middleware.fingerprint import canonical_json, digest, json_chars
from toolcrib.middleware.options import CacheOptions
from toolcrib.resources.uris import is_document
from toolcrib.types import Call, CallNext, Context, Policy, Tool, ToolResult, is_read_only

_ENTRY_BYTES: Final = 500
"""Bytes an entry costs beside its result."""


@dataclass(frozen=True, slots=True)
class _CachedResult:
    """An answer."""

    tool: Tool
    result: ToolResult
    until: float
    size: int


class CacheMiddleware:
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
        self._results: OrderedDict[Hashable, _CachedResult] = OrderedDict()
        self._size = 0
        self._generations: dict[str, int] = {}
        self._next_generation = count(1)
        self._under_way: dict[Hashable, anyio.Event] = {}
        self._lock = threading.Lock()

    async def __call__(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """The answer that was kept, or what the call gives."""
        if is_document(call.tool):  # a client that is told of a change reads anew
            return await proceed(ctx, call)
        if not is_read_only(call.tool):
            return await self._call_writing(ctx, call, proceed)
        key = self._key(ctx, call)
        if key is None:
            return await proceed(ctx, call)
        return await self._answer(key, ctx, call, proceed)

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return self._size

    async def _call_writing(self, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        """A call that may change what others of its backend answer, even where it fails."""
        key = self._key(ctx, call)
        if key is not None:
            return await self._answer(key, ctx, call, proceed)
        try:
            return await proceed(ctx, call)
        finally:
            self._invalidate(call.backend)

    async def _answer(self, key: Hashable, ctx: Context, call: Call, proceed: CallNext) -> ToolResult:
        if (result := self._get(key, call.tool)) is not None:
            return result
        flight = (threading.get_ident(), key)  # an event belongs to one event loop
        if (first := self._under_way.get(flight)) is not None:
            await first.wait()
            if (result := self._get(key, call.tool)) is not None:
                return result
            return await proceed(ctx, call)  # the first failed or gave up: each on its own, or the last waits for all
        landed = self._under_way[flight] = anyio.Event()
        try:
            result = await proceed(ctx, call)
            self._store(key, call.tool, result)
            return result
        finally:
            del self._under_way[flight]
            landed.set()

    def _key(self, ctx: Context, call: Call) -> Hashable | None:
        """What the answer depends on; None where none is kept."""
        wanted = self._listed.matches(call.tool.id) if self._listed else is_read_only(call.tool)
        alone = ctx.providers or ctx.overriding or ctx.input_responses is not None or ctx.request_state is not None
        alone = alone or (self._options.per == "caller" and is_anonymous(ctx))
        if not wanted or alone or (text := canonical_json(call.arguments)) is None:
            return None
        with self._lock:
            age = self._generations.setdefault(call.backend, 0)
        return (self._owner(ctx), call.backend, age, call.tool.id, digest(text))

    def _owner(self, ctx: Context) -> Hashable:
        if self._options.per == "scope":
            return (ctx.caller.tenant, self._policy.scope(ctx.caller) if self._policy is not None else None)
        return (ctx.caller, ctx.session)

    def _invalidate(self, backend: str) -> None:
        with self._lock:
            if backend in self._generations:
                self._generations[backend] = next(self._next_generation)

    def _get(self, key: Hashable, tool: Tool) -> ToolResult | None:
        with self._lock:
            kept = self._results.get(key)
            if kept is None:
                return None
            if self._clock() >= kept.until or not (kept.tool is tool or kept.tool == tool):
                self._drop(key)
                return None
            self._results.move_to_end(key)
        record_cache_hit()
        return copy.deepcopy(kept.result)

    def _store(self, key: Hashable, tool: Tool, result: ToolResult) -> None:
        if result.is_error or result.kind != "complete" or (size := json_chars(result)) is None:
            return
        size += _ENTRY_BYTES
        if size > self._options.max_bytes:
            return
        result = copy.deepcopy(result)  # who was given it may change it
        with self._lock:
            self._drop(key)
            self._results[key] = _CachedResult(tool, result, self._clock() + self._options.seconds, size)
            self._size += size
            while len(self._results) > self._options.max_entries or self._size > self._options.max_bytes:
                self._drop(next(iter(self._results)))

    def _drop(self, key: Hashable) -> None:
        if (kept := self._results.pop(key, None)) is not None:
            self._size -= kept.size
