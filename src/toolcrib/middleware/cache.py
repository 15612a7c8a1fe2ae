"""Result cache: return an earlier answer instead of calling the backend; off by default.

An answer belongs to a caller, a backend, a tool definition and its arguments. A call of a tool that is not marked
read-only invalidates everything cached for its backend.
"""

import asyncio
import copy
import secrets
from collections.abc import Hashable
from typing import Any, Final, cast

import anyio

from toolcrib.gateway.policy import Patterns
from toolcrib.gateway.sessions import is_anonymous
from toolcrib.middleware.audit import record_cache_hit
from toolcrib.middleware.fingerprint import canonical_json, digest, json_chars, tool_digest
from toolcrib.middleware.options import CacheOptions
from toolcrib.resources.uris import is_document
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Call, CallNext, Context, Policy, ToolResult, is_read_only

_ENTRY_BYTES: Final = 500
"""What an entry costs beside its result."""

_CLEANUP_S: Final = 2.0
"""How long a cancelled call may take to invalidate its backend's answers, in seconds."""

_MAX_SCOPES: Final = 4096
"""Scopes of the policy that are not plain values and that this process remembers."""


def _encode(result: ToolResult) -> Any:
    return [list(result.content), result.structured, dict(result.meta), result.extra]


def _decode(saved: Any) -> ToolResult:
    content, structured, meta, extra = saved
    return ToolResult(content=tuple(content), structured=structured, meta=meta, extra=extra)


_RESULTS: Final[StateCodec[ToolResult]] = StateCodec(_encode, _decode)
_GENERATIONS: Final[StateCodec[str]] = StateCodec(str, str)


class CacheMiddleware:
    """Keeps complete results without errors in the gateway's state store, within a number of entries and of bytes.

    Concurrent calls with the same answer wait for the first of them. Nothing is cached for a request that brings tools
    of its own: those may be the only sign of who it is for.
    """

    def __init__(self, options: CacheOptions, policy: Policy | None, state: StateStore) -> None:
        """The policy decides who shares answers if the options share them within a scope."""
        self._options = options
        self._listed = Patterns(options.tools)
        self._policy = policy
        self._results = state.table("results", _RESULTS, max_entries=options.max_entries, max_size=options.max_bytes)
        self._generations = state.table("result generations", _GENERATIONS)
        """By backend: part of the key of its answers, so that a new one invalidates them all."""
        self._scopes: dict[Hashable, str] = {}
        self._under_way: dict[tuple[asyncio.AbstractEventLoop, str], anyio.Event] = {}

    async def __call__(self, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        """Return the cached answer, or run the call."""
        if is_document(call.tool):  # a client that is notified of a change must read the new content
            return await call_next(ctx, call)
        key = await self._key(ctx, call)
        if key is not None:
            return await self._answer(key, ctx, call, call_next)
        if is_read_only(call.tool):
            return await call_next(ctx, call)
        try:
            return await call_next(ctx, call)
        finally:
            # It may have changed what other tools of its backend answer, even if it failed.
            with anyio.move_on_after(_CLEANUP_S, shield=True):
                await self._invalidate(call.backend)

    async def _answer(self, key: str, ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        if (result := await self._get(key)) is not None:
            return result
        flight = (asyncio.get_running_loop(), key)
        if (first := self._under_way.get(flight)) is not None:
            await first.wait()
            if (result := await self._get(key)) is not None:
                return result
            return await call_next(ctx, call)  # the first failed: run side by side rather than one after the other
        landed = self._under_way[flight] = anyio.Event()
        try:
            result = await call_next(ctx, call)
            await self._store(key, result)
            return result
        finally:
            del self._under_way[flight]
            landed.set()

    async def _key(self, ctx: Context, call: Call) -> str | None:
        """Return what the answer depends on; None if it must not be cached."""
        is_wanted = self._listed.matches(call.tool.id) if self._listed else is_read_only(call.tool)
        if not is_wanted or ctx.providers or ctx.overriding:
            return None
        if ctx.input_responses is not None or ctx.request_state is not None or ctx.task is not None:
            return None
        if self._options.per == "caller" and is_anonymous(ctx):
            return None
        arguments, tool = canonical_json(call.arguments), tool_digest(call.tool)
        if arguments is None or tool is None:
            return None
        generation = await self._generations.update(call.backend, lambda old: (old or "0", old or "0"))
        parts = (*self._owner(ctx), call.backend, generation, call.tool.id, tool, digest(arguments))
        return digest(repr(parts))

    def _owner(self, ctx: Context) -> tuple[object, ...]:
        caller = ctx.caller
        if self._options.per == "scope":
            scope = self._policy.scope(caller) if self._policy is not None else None
            return ("scope", caller.tenant, _plain(scope) or self._scope_token(scope))
        return ("caller", *caller.key, sorted(caller.scopes), ctx.session)

    def _scope_token(self, scope: Hashable) -> str:
        """Stand for a scope that has no text of its own; the token is known to this process only."""
        if len(self._scopes) >= _MAX_SCOPES:
            self._scopes.clear()
        return self._scopes.setdefault(scope, secrets.token_hex(8))

    async def _invalidate(self, backend: str) -> None:
        def renew(generation: str | None) -> tuple[str | None, None]:
            return None if generation is None else secrets.token_hex(8), None

        await self._generations.update(backend, renew)

    async def _get(self, key: str) -> ToolResult | None:
        result = await self._results.get(key)
        if result is None:
            return None
        record_cache_hit()
        return copy.deepcopy(result)

    async def _store(self, key: str, result: ToolResult) -> None:
        if result.is_error or result.kind != "complete" or (size := json_chars(result)) is None:
            return
        # The caller who got the result may change it.
        kept = copy.deepcopy(result)
        await self._results.set(key, kept, ttl_s=self._options.seconds, size=size + _ENTRY_BYTES)


def _plain(scope: Hashable) -> str:
    """Write a scope as the one text that equal scopes share; empty if it is not made of plain values."""
    if scope is None or type(scope) in (str, int, bool):
        return repr(scope)
    if type(scope) not in (tuple, frozenset):
        return ""
    parts = [_plain(part) for part in cast("tuple[Hashable, ...]", scope)]
    if not all(parts):
        return ""
    return f"({','.join(parts)})" if type(scope) is tuple else f"{{{','.join(sorted(parts))}}}"
