"""Several providers as one."""

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import anyio

from toolcrib.errors import InvalidRequest, ToolcribError
from toolcrib.model import JSON, Hit, Key, Object, SearchRequest, ServerState, ServerStatus, Tool, ToolResult
from toolcrib.protocols import (
    Cacheable,
    Changes,
    Context,
    StatusSource,
    ToolFinder,
    ToolLookup,
    ToolProvider,
    Unsubscribe,
)
from toolcrib.providers.adapt import adapt, original
from toolcrib.providers.definitions import tools_from
from toolcrib.providers.foreign import uncancelled
from toolcrib.providers.keyed import find, label, run
from toolcrib.providers.passing import CACHE, CHANGES, FINDER, Part, parts_for, variant

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
"""How long a member may take to list or find its tools, in seconds; less than a gateway waits for all of them."""

_CALLERS: Final = 256
"""Callers of whom it is remembered what was listed to them."""

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Member:
    provider: ToolProvider
    name: str
    trouble: ServerStatus | None = None
    """Why it could not be asked the last time; None where it could."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """What a member listed."""

    keys: frozenset[Key] = frozenset()
    failed: bool = False
    """It could not be asked; the keys are of the time before."""


class Many:
    """Several providers as one: the first one that offers a key wins, in lists, look-ups and calls.

    A member that fails or hangs is left out of lists, look-ups and searches, and `statuses` says why; a call of its own
    tool tells its error. It forwards changes, and says how long its list may be kept, where every member does.
    """

    def __new__(cls, *providers: object, timeout_s: float = TIMEOUT_S) -> Self:  # noqa: ARG004 - as in `__init__`
        """With the optional protocols that the members have."""
        inner = [adapt(provider) for provider in providers]
        had = [parts_for(one, _PARTS) for one in inner]
        parts: list[type] = [_Finder] if any(_Finder in one for one in had) else []
        parts += [part for part in (_Changes, _Cache) if had and all(part in one for one in had)]
        made: Self = object.__new__(variant(cls, tuple(parts)))
        made.members = tuple(inner)
        return made

    members: tuple[ToolProvider, ...]
    """Those inside, in order."""

    def __init__(self, *providers: object, timeout_s: float = TIMEOUT_S) -> None:  # noqa: ARG002 - see `__new__`
        """Members in the order of precedence, each whatever `adapt` takes; `timeout_s` is for each of them."""
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s is {timeout_s!r:.40}.", hint="Give a number of seconds above 0.")
        self._timeout_s = timeout_s
        self._members = [_Member(one, name) for one, name in zip(self.members, _names(self.members), strict=True)]
        self._listed: OrderedDict[Hashable, tuple[_Listed, ...]] = OrderedDict()
        self._last: tuple[_Listed, ...] = tuple(_Listed() for _ in self._members)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """The tools of all members that can be asked, each key once."""
        lists = await self._of_all(lambda member: self._in_time(member, _list, ctx))
        keyed = [None if tools is None else {tool.key: tool for tool in reversed(tools)} for tools in lists]
        self._remember(ctx, keyed)
        first: dict[Key, Tool] = {}
        for tools in reversed(keyed):
            first.update(tools or {})
        return tuple(first[key] for key in dict.fromkeys(key for tools in keyed for key in reversed(tools or {})))

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the first tool of that name, in whichever namespace; None when there is none."""
        tool = await self.get_tool(ctx, name)
        return None if tool is None else await self.call_key(ctx, tool.key, arguments)

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that key of the first member that offers it; None when there is none."""
        owners = self._owners(ctx, key)
        for member in owners or self._members:
            if not owners and await self._in_time(member, find, ctx, key) is None:
                continue
            result = await run(member.provider, ctx, key, arguments)
            if result is not None:
                return result
        return None

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The first tool of that name, its own or with its namespace, or None."""
        for member in self._members:
            tool = await self._in_time(member, _look_up, ctx, name)
            if tool is not None:
                return tool
        return None

    def statuses(self) -> Sequence[ServerStatus]:
        """Those of the members, and one for each member that could not be asked the last time; by name."""
        own = [member.trouble for member in self._members if member.trouble is not None]
        theirs = [one for member in self.members if isinstance(member, StatusSource) for one in member.statuses()]
        return tuple(sorted((*own, *theirs), key=lambda status: status.name))

    # -- who has what ----------------------------------------------------------------------------------------------

    def _owners(self, ctx: Context, key: Key) -> list[_Member]:
        """Members that listed the key to this caller, or else in the last list; those that failed since come last."""
        listed = self._listed.get(_who(ctx), self._last)
        having = [(one.failed, place) for place, one in enumerate(listed) if key in one.keys]
        return [self._members[place] for _, place in sorted(having)]

    def _remember(self, ctx: Context, lists: Sequence[Iterable[Key] | None]) -> None:
        who = _who(ctx)
        before = self._listed.pop(who, self._last)
        self._last = self._listed[who] = tuple(
            _Listed(old.keys, failed=True) if keys is None else _Listed(frozenset(keys))
            for old, keys in zip(before, lists, strict=True)
        )
        while len(self._listed) > _CALLERS:
            self._listed.popitem(last=False)

    # -- asking members --------------------------------------------------------------------------------------------

    async def _of_all(self, ask: Callable[[_Member], Awaitable[_T]]) -> list[_T]:
        """What each member answers, asked at the same time."""
        answers: dict[int, _T] = {}

        async def put(place: int, member: _Member) -> None:
            answers[place] = await ask(member)

        async with anyio.create_task_group() as group:
            for place, member in enumerate(self._members):
                group.start_soon(put, place, member)
        return [answers[place] for place in range(len(self._members))]

    async def _in_time(self, member: _Member, ask: Callable[..., Awaitable[_T]], *arguments: Any) -> _T | None:
        """What the member answers; None where it fails or takes too long, which is noted."""
        try:
            with anyio.move_on_after(self._timeout_s) as waiting:
                answer = await uncancelled(ask(member.provider, *arguments))
                member.trouble = None
                return answer
        except Exception as error:
            # Of an error of its own, only the kind is told: its text may hold what is nobody's business.
            self._note(
                member, error.message if isinstance(error, ToolcribError) else f"it raised {type(error).__name__}"
            )
            logger.warning("%s could not be asked for its tools", member.name, exc_info=True)
            return None
        if waiting.cancelled_caught:
            self._note(member, f"it did not answer within {self._timeout_s:g} s")
            logger.warning("%s did not answer within %g s", member.name, self._timeout_s)
        return None

    def _note(self, member: _Member, reason: str) -> None:
        since = member.trouble.since if member.trouble is not None else time.time()
        member.trouble = ServerStatus(
            name=member.name, state=ServerState.FAILED, since=since, reason=reason, transport="local"
        )


class _Finder(Many):
    """`ToolFinder`."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """The hits of the members that search by themselves: each query's best first, each key once."""
        found = await self._of_all(lambda member: self._in_time(member, _search, ctx, request))
        first: dict[tuple[int, Key], Hit] = {}
        for member, hits in zip(self._members, found, strict=True):
            for hit in hits or ():
                owners = self._owners(ctx, hit.tool.key)
                if not owners or owners[0] is member:
                    first.setdefault((hit.query, hit.tool.key), hit)
        return tuple(sorted(first.values(), key=lambda hit: (hit.query, -hit.score, hit.tool.id)))


class _Changes(Many):
    """`Changes`."""

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever something changed in one of the members."""
        ends = [member.subscribe(callback) for member in self.members if isinstance(member, Changes)]

        def end() -> None:
            for one in ends:
                one()

        return end


class _Cache(Many):
    """`Cacheable`."""

    @property
    def cache_for_s(self) -> float:
        """As long as the shortest of the members' lists, in seconds."""
        return min(member.cache_for_s for member in self.members if isinstance(member, Cacheable))

    @property
    def cache_key(self) -> Hashable:
        """Those of the members, in order."""
        return tuple(
            (type(original(member)), member.cache_key) for member in self.members if isinstance(member, Cacheable)
        )


_PARTS: Final[tuple[Part, ...]] = ((FINDER, _Finder), (CHANGES, _Changes), (CACHE, _Cache))


async def _list(provider: ToolProvider, ctx: Context) -> Sequence[Tool]:
    return tools_from(await provider.list_tools(ctx))


async def _look_up(provider: ToolProvider, ctx: Context, name: str) -> Tool | None:
    if isinstance(provider, ToolLookup):
        return await provider.get_tool(ctx, name)
    return next((tool for tool in await _list(provider, ctx) if name in (tool.id, tool.name)), None)


async def _search(provider: ToolProvider, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
    return tuple(await provider.find_tools(ctx, request)) if isinstance(provider, ToolFinder) else ()


def _who(ctx: Context) -> Hashable:
    return (ctx.caller.tenant, ctx.caller.id)


def _names(providers: Sequence[ToolProvider]) -> list[str]:
    """A name for each; numbered where several are called the same."""
    plain = [label(provider) for provider in providers]
    return [
        f"{name} {plain[: place + 1].count(name)}" if plain.count(name) > 1 else name
        for place, name in enumerate(plain)
    ]


__all__ = ["TIMEOUT_S", "Many"]
