"""Past requests of each tenant: which words led to which tool, for the search to use as a field of that tool.

A session's search waits here until a call shows which tool it was for. Searches and calls change what this process
holds in memory; a background task merges it into the state store, which other processes may use too. Nothing is kept of
anonymous requests without a session, nor of tools that came with a request.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel

from toolcrib import search
from toolcrib.errors import InvalidRequest, StateUnavailable
from toolcrib.gateway.sessions import session_key
from toolcrib.search.options import PastOptions
from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.types import JSON, Context, Hit

logger = logging.getLogger(__name__)

PAST_TABLE: Final = "past requests"
"""The durable table with the past of each tenant, by `tenant_key`."""

_MAX_WAITING: Final = 4
"""Searches of a session that wait for a call."""

_WAIT_S: Final = 600.0
"""How long a search waits for a call, in seconds."""

_SAVE_S: Final = 5.0
"""How often the background task saves, in seconds."""

_RELOAD_S: Final = 30.0
"""How old what this process knows of a tenant may be, in seconds: other processes may have added or forgotten."""

_CLOSE_S: Final = 2.0

_MERGED_AT_ONCE: Final = 100
"""Requests that are merged in one turn of the event loop, which takes up to 10 ms where the state is in memory."""

_MAX_UNSAVED: Final = 1_000
"""Requests that wait to be saved while the store is unavailable."""


def tenant_key(tenant: str | None) -> str:
    """The key of a tenant in the table.

    >>> tenant_key(None), tenant_key("acme")
    ('null', '"acme"')
    """
    return json.dumps(tenant)


def saved_table(state: StateStore, options: PastOptions | None = None) -> StateTable[search.PastRequests]:
    """The table of the past of each tenant, within these bounds."""
    bounds = options or PastOptions()

    def decode(saved: JSON) -> search.PastRequests:
        try:
            return search.PastRequests.from_dict(saved, bounds)
        except InvalidRequest as error:
            raise ValueError(error.message) from error

    codec = StateCodec(search.PastRequests.to_dict, decode)
    return state.table(PAST_TABLE, codec, max_entries=bounds.tenants, durable=True)


async def forget_saved(table: StateTable[search.PastRequests], tenant: str | None, tool_id: str | None) -> int:
    """Forget what is saved of a tenant, or of one tool there; return how many tools had a past."""

    def change(saved: search.PastRequests | None) -> tuple[search.PastRequests | None, int]:
        left = _without(saved, tool_id)
        return left, (0 if saved is None else len(saved)) - (0 if left is None else len(left))

    return await table.update(tenant_key(tenant), change)


@dataclass(frozen=True, slots=True)
class _WaitingSearch:
    """A search that waits for a call."""

    words: tuple[str, ...]
    hits: tuple[str, ...]
    """The ids of the tools that it found."""
    used: tuple[str, ...] = ()
    """The tools that were called since."""


def _read_search(saved: Any) -> _WaitingSearch:
    return _WaitingSearch(*map(tuple, saved))


_SEARCHES: Final[StateCodec[tuple[_WaitingSearch, ...]]] = StateCodec(
    lambda searches: [[list(one.words), list(one.hits), list(one.used)] for one in searches],
    lambda saved: tuple(map(_read_search, saved if isinstance(saved, list) else [])),
)


def _without(past: search.PastRequests | None, tool_id: str | None) -> search.PastRequests | None:
    """The past without that of a tool, or of all tools; None if nothing is left."""
    left = None if past is None or tool_id is None else past.without(tool_id)
    return left or None


def _take(
    known: tuple[_WaitingSearch, ...] | None, tool_id: str
) -> tuple[tuple[_WaitingSearch, ...] | None, list[tuple[str, ...]]]:
    """Find the searches that a call was for, and note it in them."""
    if not known:
        return None, []
    asked = [one for one in known if tool_id in one.hits] or [one for one in known[-1:] if not one.used]
    new = [one for one in asked if tool_id not in one.used]
    noted = tuple(replace(one, used=(*one.used, tool_id)) if one in new else one for one in known)
    return noted, [one.words for one in new]


_Records = list[tuple[tuple[str, ...], str]]
"""Words of requests, each with the id of the tool that was called."""


@dataclass(slots=True)
class _Tenant:
    """What this process knows of a tenant."""

    past: search.PastRequests
    loaded: float
    """When it was read from the store, by `time.monotonic`."""
    unsaved: _Records = field(default_factory=list)
    saving: bool = False

    def replace(self, past: search.PastRequests) -> None:
        """Use what the store has; the same object stays if nothing differs, with what searches computed from it."""
        if past != self.past:
            self.past = past


class PastRecorder:
    """Records the requests of sessions, and gives each tenant its past. Does nothing without options."""

    def __init__(
        self,
        options: PastOptions | None,
        state: StateStore,
        *,
        sessions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sessions` bounds how many sessions' searches wait for a call; `clock` counts seconds."""
        self._options = options
        self.enabled = options is not None
        """Whether past requests are recorded."""
        self._clock = clock
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._wake: anyio.Event | None = None
        """Set when there is something to save; None while no background task runs."""
        self._failing = False
        if options is not None:
            self._searches = state.table("asked requests", _SEARCHES, max_entries=sessions, batched=True)
            self._saved = saved_table(state, options)

    # -- requests --------------------------------------------------------------------------------------------------

    async def of(self, ctx: Context) -> search.PastRequests | None:
        """Return the past of the caller's tenant; None if past requests are not used."""
        return None if self._options is None else (await self._tenant(tenant_key(ctx.caller.tenant))).past

    async def searched(self, ctx: Context, queries: Sequence[str], hits: Sequence[Hit]) -> None:
        """Let the queries of a search wait for the calls that follow."""
        if self._options is None or (key := session_key(ctx)) is None:
            return
        found: list[list[str]] = [[] for _ in queries]
        for hit in hits:
            found[hit.query] += [hit.tool.id, *hit.similar]
        new = [
            _WaitingSearch(words, tuple(ids))
            for text, ids in zip(queries, found, strict=True)
            if (words := search.request_words(text))
        ]
        if new:
            await self._searches.update(
                key, lambda known: (((known or ()) + tuple(new))[-_MAX_WAITING:], None), ttl_s=_WAIT_S
            )

    async def called(self, ctx: Context, tool_id: str) -> None:
        """Record that a call succeeded: the searches that found the tool were for it.

        If none found it, the session's last search was for it, unless another tool was called after that search.
        """
        if not self.enabled or (key := session_key(ctx)) is None:
            return
        requests = await self._searches.update(key, lambda known: _take(known, tool_id), ttl_s=_WAIT_S)
        if not requests:
            return
        known = await self._tenant(tenant_key(ctx.caller.tenant))
        for words in requests:
            known.past = known.past.with_words(words, tool_id)
            known.unsaved.append((words, tool_id))
        del known.unsaved[:-_MAX_UNSAVED]
        if self._wake is None:
            await self._save_all()
        else:
            self._wake.set()

    async def forget(self, tenant: str | None = None, tool_id: str | None = None) -> int:
        """Forget the past of a tenant, or that of one tool; return how many tools had one.

        Raises `StateUnavailable` if the store cannot be written.
        """
        if self._options is None:
            return 0
        known = await self._tenant(tenant_key(tenant))
        known.unsaved = [one for one in known.unsaved if tool_id not in (None, one[1])]
        before, known.past = known.past, _without(known.past, tool_id) or search.PastRequests(self._options)
        return max(len(before) - len(known.past), await forget_saved(self._saved, tenant, tool_id))

    # -- the store -------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Save in the background until cancelled, and then once more."""
        self._wake = anyio.Event()
        task_status.started()
        try:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                await self._save_all()
                await anyio.sleep(_SAVE_S)
        finally:
            self._wake = None
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._save_all()

    async def _tenant(self, key: str) -> _Tenant:
        known = self._tenants.get(key)
        if known is None or (self._clock() - known.loaded >= _RELOAD_S and not known.unsaved and not known.saving):
            known = await self._load(key)
        self._tenants.move_to_end(key)
        return known

    async def _load(self, key: str) -> _Tenant:
        begun = self._clock()
        try:
            saved = await self._saved.get(key)
            past = saved or search.PastRequests(self._options)
        except StateUnavailable as error:
            self._warn("read", error)
            past = None
        known = self._tenants.setdefault(key, _Tenant(search.PastRequests(self._options), -1.0))
        # Requests that were recorded meanwhile may be missing in what was read.
        if past is not None and known.loaded < begun and not known.unsaved and not known.saving:
            known.replace(past)
        known.loaded = self._clock()
        idle = (one for one, tenant in self._tenants.items() if one != key and not tenant.unsaved and not tenant.saving)
        if self._options is not None and len(self._tenants) > self._options.tenants:
            self._tenants.pop(next(idle, ""), None)
        return known

    async def _save_all(self) -> None:
        for key, tenant in tuple(self._tenants.items()):
            if tenant.unsaved and not tenant.saving:
                tenant.saving = True
                try:
                    await self._save(key, tenant)
                finally:
                    tenant.saving = False

    async def _save(self, key: str, tenant: _Tenant) -> None:
        while tenant.unsaved:
            if not await self._save_some(key, tenant):
                return
            await anyio.lowlevel.checkpoint()

    async def _save_some(self, key: str, tenant: _Tenant) -> bool:
        """Save some requests; false if the store is unavailable."""
        records, tenant.unsaved = tenant.unsaved[:_MERGED_AT_ONCE], tenant.unsaved[_MERGED_AT_ONCE:]
        try:
            with anyio.CancelScope(shield=True):  # or what was written would be written again
                merged = await self._saved.update(key, partial(_merged, records, self._options))
        except StateUnavailable as error:
            tenant.unsaved = [*records, *tenant.unsaved][-_MAX_UNSAVED:]
            self._warn("saved", error)
            return False
        self._failing = False
        if not tenant.unsaved:
            tenant.replace(merged)
            tenant.loaded = self._clock()
        return True

    def _warn(self, what: str, error: StateUnavailable) -> None:
        if not self._failing:
            logger.warning("past requests could not be %s, so only those of this process are used: %s", what, error)
        self._failing = True


def _merged(
    records: _Records, options: PastOptions | None, saved: search.PastRequests | None
) -> tuple[search.PastRequests, search.PastRequests]:
    """Add requests to what is saved."""
    past = (saved or search.PastRequests(options)).with_requests(records)
    return past, past
