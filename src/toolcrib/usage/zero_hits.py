"""Searches that found nothing, or only weak hits: grouped by their words, for each tenant, for people to act on.

Only content words are kept, as in `toolcrib.search.past`: no names of persons, quotations and numbers. Nothing is kept
of anonymous requests without a session. A search is put aside in memory; a background task reads its words and saves.
"""

import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from toolcrib import search
from toolcrib.errors import StateUnavailable
from toolcrib.gateway.keywords import MAX_PHRASE_CHARS, MAX_PHRASES
from toolcrib.gateway.past import tenant_key
from toolcrib.gateway.sessions import session_key
from toolcrib.middleware.observers import EndedCall, EndedSearch
from toolcrib.state.base import StateCodec, StateStore, StateTable
from toolcrib.types import JSON

logger = logging.getLogger(__name__)

ZERO_HITS_TABLE: Final = "zero hits"
"""The durable table with the groups of each tenant, by `tenant_key`."""
_WAIT_S: Final = 300.0
"""How long a session's search waits for the call of a tool, in seconds."""
_MAX_WAITING: Final = 1_000
"""Sessions whose last search waits for a call, and searches that wait to be saved."""
_MAX_GROUPS: Final = 200
"""Groups of each tenant; the one that was asked for least recently is forgotten first."""
_MAX_TENANTS: Final = 1_000
"""Tenants; the one that searched least recently is forgotten first."""
_MAX_TOOLS: Final = 5
"""Tools that are kept of each group."""
_MAX_COUNT: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroHit:
    """Searches with the same words that found nothing, or only weak hits."""

    words: tuple[str, ...]
    """Their content words, as they were first written, in lower case."""
    none: int = 0
    """How many found nothing."""
    weak: int = 0
    """How many found only weak hits."""
    last: float = 0.0
    """When the last one was; seconds since the epoch."""
    called: Mapping[str, int] = field(default_factory=dict)
    """The tools that sessions called next, by id, with the number of sessions; the most frequent one first."""
    best: tuple[str, ...] = ()
    """The weak hits of the last search that had any, by id, best first."""

    @property
    def count(self) -> int:
        """How many searches there were."""
        return self.none + self.weak

    def __add__(self, other: "ZeroHit") -> "ZeroHit":
        """Add later searches."""
        called = Counter(self.called) + Counter(other.called)
        return ZeroHit(
            words=self.words,
            none=min(_MAX_COUNT, self.none + other.none),
            weak=min(_MAX_COUNT, self.weak + other.weak),
            last=max(self.last, other.last),
            called=dict(called.most_common(_MAX_TOOLS)),
            best=other.best or self.best,
        )


ZeroHits = Mapping[str, ZeroHit]
"""The groups of one tenant by the stems of their words, the one that was asked for least recently first."""


def _encode(groups: ZeroHits) -> JSON:
    return {
        key: [list(one.words), one.none, one.weak, one.last, dict(one.called), list(one.best)]
        for key, one in groups.items()
    }


def _decode(saved: Any) -> ZeroHits:
    found = {}
    for key, (words, none, weak, last, called, best) in saved.items():
        found[key] = ZeroHit(
            words=tuple(map(str, words)),
            none=int(none),
            weak=int(weak),
            last=float(last),
            called={str(tool): int(count) for tool, count in called.items()},
            best=tuple(map(str, best)),
        )
    return found


def zero_hits_table(state: StateStore) -> StateTable[ZeroHits]:
    """The table of the groups of each tenant."""
    return state.table(ZERO_HITS_TABLE, StateCodec(_encode, _decode), max_entries=_MAX_TENANTS, durable=True)


async def read_zero_hits(table: StateTable[ZeroHits]) -> dict[str | None, tuple[ZeroHit, ...]]:
    """The groups of each tenant, the most frequent first; None is the tenant of callers without one."""
    return {
        json.loads(tenant): tuple(sorted(groups.values(), key=lambda one: (-one.count, -one.last)))
        for tenant, groups in sorted((await table.items()).items())
    }


async def forget_zero_hits(table: StateTable[ZeroHits], tenant: str | None, tool_id: str | None = None) -> int:
    """Forget the groups of a tenant, or only those after which a tool was called; return how many there were."""

    def change(saved: ZeroHits | None) -> tuple[ZeroHits | None, int]:
        groups = saved or {}
        left = {key: one for key, one in groups.items() if tool_id is not None and tool_id not in one.called}
        return left or None, len(groups) - len(left)

    return await table.update(tenant_key(tenant), change)


def proposed_keywords(groups: Iterable[ZeroHit]) -> dict[str, tuple[str, ...]]:
    """Propose phrases for each tool that sessions called after a search without hits: the words of the search.

    >>> proposed_keywords([ZeroHit(words=("wake", "people"), none=3, called={"ops:list_shifts": 2})])
    {'ops:list_shifts': ('wake people',)}
    """
    found: dict[str, list[str]] = {}
    for one in sorted(groups, key=lambda one: -one.count):
        phrase = " ".join(one.words)
        if one.called and len(phrase) <= MAX_PHRASE_CHARS:
            phrases = found.setdefault(max(one.called, key=one.called.__getitem__), [])
            if phrase not in phrases and len(phrases) < MAX_PHRASES:
                phrases.append(phrase)
    return {tool: tuple(phrases) for tool, phrases in sorted(found.items())}


@dataclass(slots=True, eq=False)
class _FruitlessQuery:
    """One query that found nothing, or only weak hits."""

    tenant: str
    text: str
    found: ZeroHit
    """Without words."""
    moment: float
    """By `time.monotonic`."""
    called: str = ""


class ZeroHitRecorder:
    """Notes such searches of sessions, and the tool that each session called next; observes a gateway."""

    def __init__(
        self,
        state: StateStore,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wall` counts seconds since the epoch, and `clock` never goes back."""
        self._table = zero_hits_table(state)
        self._wall = wall
        self._clock = clock
        self._waiting: OrderedDict[str, tuple[_FruitlessQuery, ...]] = OrderedDict()
        """By session, until it calls a tool."""
        self._unsaved: list[_FruitlessQuery] = []
        self._saving = anyio.Lock()
        self._failing = False

    # -- what is noted ---------------------------------------------------------------------------------------------

    def search_ended(self, search: EndedSearch) -> None:
        """Note the queries of a search that found nothing good."""
        if (key := session_key(search.ctx)) is None:
            return
        asked = tuple(self._poor_queries(search))
        if asked:
            self._waiting.pop(key, None)
            self._waiting[key] = asked
            if len(self._waiting) > _MAX_WAITING:
                self._waiting.popitem(last=False)
            self._unsaved += asked
            del self._unsaved[:-_MAX_WAITING]

    def _poor_queries(self, search: EndedSearch) -> Iterable[_FruitlessQuery]:
        tenant, now = tenant_key(search.ctx.caller.tenant), self._clock()
        for place, text in enumerate(search.request.needs):
            hits = [hit for hit in search.reply.hits if hit.query == place and not hit.fallback]
            if text.strip() and all(hit.weak for hit in hits):
                best = tuple(hit.tool.id for hit in hits[:_MAX_TOOLS])
                found = ZeroHit(words=(), none=int(not hits), weak=int(bool(hits)), last=self._wall(), best=best)
                yield _FruitlessQuery(tenant, text, found, now)

    def call_ended(self, call: EndedCall) -> None:
        """Note a tool that a session called with success after such a search."""
        if call.tool is None or call.outcome != "ok" or not self._waiting or (key := session_key(call.ctx)) is None:
            return
        for asked in self._waiting.pop(key, ()):
            if self._clock() - asked.moment > _WAIT_S:
                continue
            if asked in self._unsaved:
                asked.called = call.name
            else:  # its search is counted already
                again = ZeroHit(words=(), last=asked.found.last)
                self._unsaved.append(replace(asked, found=again, called=call.name))

    # -- reports ---------------------------------------------------------------------------------------------------

    async def queries(self) -> dict[str | None, tuple[ZeroHit, ...]]:
        """Return the groups of each tenant, the most frequent first; None is the tenant of callers without one.

        Raises `StateUnavailable` if the store cannot be read.
        """
        await self.save()
        return await read_zero_hits(self._table)

    async def forget(self, tenant: str | None = None, tool_id: str | None = None) -> int:
        """Forget the groups of a tenant, or only those after which a tool was called; return how many there were."""
        await self.save()
        if tool_id is None:
            key = tenant_key(tenant)
            for session, asked in tuple(self._waiting.items()):
                if asked[0].tenant == key:
                    del self._waiting[session]
        return await forget_zero_hits(self._table, tenant, tool_id)

    # -- the store -------------------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Add to the store what was noted since the last time. If that fails, a warning is logged once."""
        async with self._saving:
            if not self._unsaved:
                return
            asked, self._unsaved = self._unsaved, []
            groups = await anyio.to_thread.run_sync(_group, asked)
            for tenant, found in groups.items():
                try:
                    with anyio.CancelScope(shield=True):  # or they would be counted twice
                        await self._table.update(tenant, partial(_merged, found))
                except StateUnavailable as error:
                    left = [one for one in asked if one.tenant == tenant]
                    self._unsaved = [*left, *self._unsaved][-_MAX_WAITING:]
                    if not self._failing:
                        logger.warning("searches without hits could not be saved: %s", error)
                    self._failing = True
                else:
                    self._failing = False


def _group(asked: Sequence[_FruitlessQuery]) -> dict[str, dict[str, ZeroHit]]:
    """Group queries by tenant, and by the stems of their words in any order; those without words are left out."""
    found: dict[str, dict[str, ZeroHit]] = {}
    for one in asked:
        terms = search.request_terms(one.text)
        if not terms:
            continue
        groups, key = found.setdefault(one.tenant, {}), " ".join(sorted(terms))
        called = {one.called: 1} if one.called else {}
        new = replace(one.found, words=tuple(terms.values()), called=called)
        groups[key] = groups[key] + new if key in groups else new
    return found


def _merged(new: ZeroHits, saved: ZeroHits | None) -> tuple[ZeroHits, None]:
    """Add groups to those that are saved, and forget the oldest."""
    groups = dict(saved or {})
    for key, one in new.items():
        groups[key] = groups.pop(key) + one if key in groups else one
    return dict(list(groups.items())[-_MAX_GROUPS:]), None
