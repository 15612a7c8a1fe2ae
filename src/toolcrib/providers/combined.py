"""Several providers together: `Many` merges them into one, `ProviderList` is the changing list that an app shares."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import anyio

from toolcrib.containment import contained
from toolcrib.errors import BackendNotFound, InvalidRequest, ToolcribError
from toolcrib.providers.adapters import adapt, unadapted
from toolcrib.providers.base import (
    CACHE,
    CHANGES,
    FINDER,
    CallbackList,
    MixinRule,
    ThreadSafeCallback,
    call_by_key,
    call_logged,
    display_name,
    find_tool,
    mixins_for,
    with_mixins,
)
from toolcrib.providers.definitions import parse_tools
from toolcrib.types import (
    JSON,
    BackendKind,
    Cacheable,
    Changes,
    Context,
    Hit,
    Key,
    Object,
    SearchRequest,
    ServerState,
    ServerStatus,
    StatusSource,
    Tool,
    ToolFinder,
    ToolLookup,
    ToolProvider,
    ToolResult,
    Unsubscribe,
)

logger = logging.getLogger(__name__)


TIMEOUT_S: Final = 5.0
"""How long a member may take to list or find its tools, in seconds; less than a gateway waits for all of them."""


_MAX_CALLERS: Final = 256
"""Callers of whom it is remembered what was listed to them."""


_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _ManyMember:
    provider: ToolProvider
    name: str
    trouble: ServerStatus | None = None
    """Why it could not be asked the last time; None where it could."""


@dataclass(frozen=True, slots=True)
class _MemberListing:
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
        had = [mixins_for(one, _MANY_MIXINS) for one in inner]
        parts: list[type] = [_ManyFinder] if any(_ManyFinder in one for one in had) else []
        parts += [part for part in (_ManyChanges, _ManyCacheable) if had and all(part in one for one in had)]
        made: Self = object.__new__(with_mixins(cls, tuple(parts)))
        made.members = tuple(inner)
        return made

    members: tuple[ToolProvider, ...]
    """Those inside, in order."""

    def __init__(self, *providers: object, timeout_s: float = TIMEOUT_S) -> None:  # noqa: ARG002 - see `__new__`
        """Members in the order of precedence, each whatever `adapt` takes; `timeout_s` is for each of them."""
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s is {timeout_s!r:.40}.", hint="Give a number of seconds above 0.")
        self._timeout_s = timeout_s
        self._members = [
            _ManyMember(one, name) for one, name in zip(self.members, _member_names(self.members), strict=True)
        ]
        self._listed: OrderedDict[Hashable, tuple[_MemberListing, ...]] = OrderedDict()
        self._last: tuple[_MemberListing, ...] = tuple(_MemberListing() for _ in self._members)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """The tools of all members that can be asked, each key once."""
        lists = await self._of_all(lambda member: self._in_time(member, _list_tools, ctx))
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
            if not owners and await self._in_time(member, find_tool, ctx, key) is None:
                continue
            result = await call_by_key(member.provider, ctx, key, arguments)
            if result is not None:
                return result
        return None

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The first tool of that name, its own or with its namespace, or None."""
        for member in self._members:
            tool = await self._in_time(member, _get_tool, ctx, name)
            if tool is not None:
                return tool
        return None

    def statuses(self) -> Sequence[ServerStatus]:
        """Those of the members, and one for each member that could not be asked the last time; by name."""
        own = [member.trouble for member in self._members if member.trouble is not None]
        theirs = [one for member in self.members if isinstance(member, StatusSource) for one in member.statuses()]
        return tuple(sorted((*own, *theirs), key=lambda status: status.name))

    # -- who has what ----------------------------------------------------------------------------------------------

    def _owners(self, ctx: Context, key: Key) -> list[_ManyMember]:
        """Members that listed the key to this caller, or else in the last list; those that failed since come last."""
        listed = self._listed.get(_caller_key(ctx), self._last)
        having = [(one.failed, place) for place, one in enumerate(listed) if key in one.keys]
        return [self._members[place] for _, place in sorted(having)]

    def _remember(self, ctx: Context, lists: Sequence[Iterable[Key] | None]) -> None:
        who = _caller_key(ctx)
        before = self._listed.pop(who, self._last)
        self._last = self._listed[who] = tuple(
            _MemberListing(old.keys, failed=True) if keys is None else _MemberListing(frozenset(keys))
            for old, keys in zip(before, lists, strict=True)
        )
        while len(self._listed) > _MAX_CALLERS:
            self._listed.popitem(last=False)

    # -- asking members --------------------------------------------------------------------------------------------

    async def _of_all(self, ask: Callable[[_ManyMember], Awaitable[_T]]) -> list[_T]:
        """What each member answers, asked at the same time."""
        answers: dict[int, _T] = {}

        async def put(place: int, member: _ManyMember) -> None:
            answers[place] = await ask(member)

        async with anyio.create_task_group() as group:
            for place, member in enumerate(self._members):
                group.start_soon(put, place, member)
        return [answers[place] for place in range(len(self._members))]

    async def _in_time(self, member: _ManyMember, ask: Callable[..., Awaitable[_T]], *arguments: Any) -> _T | None:
        """What the member answers; None where it fails or takes too long, which is noted."""
        try:
            with anyio.move_on_after(self._timeout_s) as waiting:
                answer = await contained(ask(member.provider, *arguments))
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

    def _note(self, member: _ManyMember, reason: str) -> None:
        since = member.trouble.since if member.trouble is not None else time.time()
        member.trouble = ServerStatus(
            name=member.name, state=ServerState.FAILED, since=since, reason=reason, transport="local"
        )


class _ManyFinder(Many):
    """`ToolFinder`."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """The hits of the members that search by themselves: each query's best first, each key once."""
        found = await self._of_all(lambda member: self._in_time(member, _find_tools, ctx, request))
        first: dict[tuple[int, Key], Hit] = {}
        for member, hits in zip(self._members, found, strict=True):
            for hit in hits or ():
                owners = self._owners(ctx, hit.tool.key)
                if not owners or owners[0] is member:
                    first.setdefault((hit.query, hit.tool.key), hit)
        return tuple(sorted(first.values(), key=lambda hit: (hit.query, -hit.score, hit.tool.id)))


class _ManyChanges(Many):
    """`Changes`."""

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back whenever something changed in one of the members."""
        ends = [member.subscribe(callback) for member in self.members if isinstance(member, Changes)]

        def end() -> None:
            for one in ends:
                one()

        return end


class _ManyCacheable(Many):
    """`Cacheable`."""

    @property
    def cache_for_s(self) -> float:
        """As long as the shortest of the members' lists, in seconds."""
        return min(member.cache_for_s for member in self.members if isinstance(member, Cacheable))

    @property
    def cache_key(self) -> Hashable:
        """Those of the members, in order."""
        return tuple(
            (type(unadapted(member)), member.cache_key) for member in self.members if isinstance(member, Cacheable)
        )


_MANY_MIXINS: Final[tuple[MixinRule, ...]] = ((FINDER, _ManyFinder), (CHANGES, _ManyChanges), (CACHE, _ManyCacheable))


async def _list_tools(provider: ToolProvider, ctx: Context) -> Sequence[Tool]:
    return parse_tools(await provider.list_tools(ctx))


async def _get_tool(provider: ToolProvider, ctx: Context, name: str) -> Tool | None:
    if isinstance(provider, ToolLookup):
        return await provider.get_tool(ctx, name)
    return next((tool for tool in await _list_tools(provider, ctx) if name in (tool.id, tool.name)), None)


async def _find_tools(provider: ToolProvider, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
    return tuple(await provider.find_tools(ctx, request)) if isinstance(provider, ToolFinder) else ()


def _caller_key(ctx: Context) -> Hashable:
    return (ctx.caller.tenant, ctx.caller.id)


def _member_names(providers: Sequence[ToolProvider]) -> list[str]:
    """A name for each; numbered where several are called the same."""
    plain = [display_name(provider) for provider in providers]
    return [
        f"{name} {plain[: place + 1].count(name)}" if plain.count(name) > 1 else name
        for place, name in enumerate(plain)
    ]


class ProviderList:
    """A `ProviderSource` of shared providers; all its methods may be called from any thread."""

    kind = BackendKind.PROVIDER

    def __init__(self, *providers: object) -> None:
        """The first providers, as by `add`."""
        self._lock = threading.Lock()
        self._providers: tuple[ToolProvider, ...] = ()
        self._ends: dict[int, Unsubscribe] = {}
        self._told: dict[int, int] = {}
        """How often each provider came or told of a change."""
        self._tolds = 0
        self._callbacks = CallbackList()
        for provider in providers:
            self.add(provider)

    def add(self, provider: object) -> None:
        """Offer this provider's tools too, after those of the others; one that is here already stays where it is.

        Takes whatever `adapt` takes. Raises `InvalidRequest`, also where it cannot be heard of changes; then it is not
        offered.
        """
        added = adapt(provider)
        with self._lock:
            if _contains(added, self._providers):
                return
            self._providers = (*self._providers, added)
            self._count(added)
        try:
            end = self._listened(added)
        except Exception as error:
            with self._lock:
                self._drop(added)
            raise InvalidRequest(
                f"{display_name(added)} cannot be added: its subscribe() failed ({type(error).__name__}).",
                hint="A subscribe takes a callback, and returns what ends the subscription.",
            ) from error
        with self._lock:
            stays = _contains(added, self._providers)
            if stays:
                self._ends[id(added)] = end
        if not stays:
            call_logged(end)
        self._callbacks.notify()

    def _listened(self, provider: ToolProvider) -> Unsubscribe:
        """Hear of its changes from now on."""
        if not isinstance(provider, Changes):
            return _no_op

        def hear() -> None:
            with self._lock:
                if not _contains(provider, self._providers):
                    return
                self._count(provider)
            self._callbacks.forward()

        end: object = provider.subscribe(ThreadSafeCallback(hear))
        return end if callable(end) else _no_op

    def _count(self, provider: ToolProvider) -> None:
        self._tolds += 1
        self._told[id(provider)] = self._tolds

    def _drop(self, provider: ToolProvider) -> None:
        self._providers = tuple(one for one in self._providers if one is not provider)
        self._told.pop(id(provider), None)

    def remove(self, provider: object) -> None:
        """Offer it no longer; the object that was given to `add`. Raises `BackendNotFound`."""
        with self._lock:
            gone = [one for one in self._providers if provider is one or provider is unadapted(one)]
            if not gone:
                raise BackendNotFound(
                    f"{display_name(provider)} is not one of the providers.",
                    hint="Remove the very object that was added.",
                    suggestions=sorted({display_name(one) for one in self._providers}),
                )
            self._drop(gone[0])
            end = self._ends.pop(id(gone[0]), None)
        if end is not None:
            call_logged(end)
        self._callbacks.notify()

    def providers(self) -> Sequence[ToolProvider]:
        """The providers of this moment, in the order in which they take precedence."""
        return self._providers

    def change_count(self, provider: ToolProvider) -> int:
        """Another count whenever this provider came, or told that it changed; 0 where it is not here."""
        return self._told.get(id(provider), 0)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, from the event loop in which this is called, whenever a provider came, went or changed."""
        return self._callbacks.add(callback)


def _no_op() -> None:
    """Ends what never began."""


def _contains(provider: ToolProvider, providers: Sequence[ToolProvider]) -> bool:
    return any(provider is one for one in providers)
