"""Several providers together: `Many` merges them into one, `ProviderList` is the changing list that an app shares."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio

from toolcrib.checks import checked
from toolcrib.containment import contained
from toolcrib.errors import BackendNotFound, InvalidRequest, ToolcribError
from toolcrib.providers.adapters import adapt, unadapted
from toolcrib.providers.base import (
    CallbackList,
    Provider,
    ProviderFeature,
    ThreadSafeCallback,
    call_logged,
    display_name,
    do_nothing,
    end_all,
    find_tool,
)
from toolcrib.providers.definitions import parse_tools
from toolcrib.types import (
    JSON,
    BackendKind,
    Context,
    Hit,
    Key,
    Object,
    SearchRequest,
    ServerState,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
)

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
TIMEOUT_S: Final = 5.0
"""Time limit for a member to list or search its tools, in seconds; less than a gateway waits for the whole."""
_MAX_CALLERS: Final = 256
"""Callers whose lists are remembered, to know which member a key came from."""


@dataclass(slots=True, eq=False)
class _ManyMember:
    provider: Provider
    name: str
    failure: ServerStatus | None = None
    """Why it failed the last time; None if it answered."""


@checked
class Many(Provider):
    """Several providers as one: the first that offers a key wins, in lists, look-ups and calls.

    A member that fails or hangs is left out of lists, look-ups and searches, and `statuses` says why; when its own
    tool is called, its error is raised. Changes are forwarded, and the list may be cached, if that holds for every
    member.
    """

    def __init__(self, *providers: object, timeout_s: float = TIMEOUT_S) -> None:
        """Members in order of precedence, each whatever `adapt` takes; `timeout_s` applies to each of them."""
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s is {timeout_s!r:.40}.", hint="Give a number of seconds above 0.")
        self.members: Final = tuple(adapt(provider) for provider in providers)
        self._timeout_s = timeout_s
        self._members = [
            _ManyMember(one, name) for one, name in zip(self.members, _member_names(self.members), strict=True)
        ]
        self._listed: OrderedDict[Hashable, tuple[frozenset[Key], ...]] = OrderedDict()
        """By caller, the keys that each member listed the last time that it answered."""
        self._last: tuple[frozenset[Key], ...] = tuple(frozenset() for _ in self._members)

    @property
    def features(self) -> ProviderFeature:
        """Look-up and statuses; search if any member searches; changes if every member reports them."""
        features = ProviderFeature.LOOKUP | ProviderFeature.STATUS
        if any(ProviderFeature.SEARCH in member.features for member in self.members):
            features |= ProviderFeature.SEARCH
        if self.members and all(ProviderFeature.CHANGES in member.features for member in self.members):
            features |= ProviderFeature.CHANGES
        return features

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """List the tools of all members that answer, each key once."""
        lists = await self._ask_all(_list_tools, ctx)
        self._remember(ctx, lists)
        first: dict[Key, Tool] = {}
        for tool in (tool for tools in lists for tool in tools or ()):
            first.setdefault(tool.key, tool)
        return tuple(first.values())

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the first tool of that name, in any namespace."""
        tool = await self.get_tool(ctx, name)
        return None if tool is None else await self.call_key(ctx, tool.key, arguments)

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that key of the first member that offers it."""
        owners = self._owners(ctx, key)
        for member in owners or self._members:
            if not owners and await self._ask(member, find_tool, ctx, key) is None:
                continue
            result = await member.provider.call_key(ctx, key, arguments)
            if result is not None:
                return result
        return None

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """Look up the first tool of that name, with or without its namespace."""
        for member in self._members:
            tool = await self._ask(member, _get_tool, ctx, name)
            if tool is not None:
                return tool
        return None

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """Search the members that search: each query's best hits first, each key once."""
        found = await self._ask_all(_find_tools, ctx, request)
        first: dict[tuple[int, Key], Hit] = {}
        for member, hits in zip(self._members, found, strict=True):
            for hit in hits or ():
                owners = self._owners(ctx, hit.tool.key)
                if not owners or owners[0] is member:
                    first.setdefault((hit.query, hit.tool.key), hit)
        return tuple(sorted(first.values(), key=lambda hit: (hit.query, -hit.score, hit.tool.id)))

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back on each change of a member."""
        return end_all([member.subscribe(callback) for member in self.members])

    def statuses(self) -> Sequence[ServerStatus]:
        """The statuses of the members, and one for each member that failed the last time; by name."""
        own = [member.failure for member in self._members if member.failure is not None]
        theirs = [status for member in self.members for status in member.statuses()]
        return tuple(sorted((*own, *theirs), key=lambda status: status.name))

    @property
    def cache_for_s(self) -> float | None:
        """As long as the shortest of the members' lists, in seconds; None if a member does not say."""
        times = [seconds for member in self.members if (seconds := member.cache_for_s) is not None]
        return min(times) if times and len(times) == len(self.members) else None

    @property
    def cache_key(self) -> Hashable:
        """The keys of the members, in order; None if a member has none."""
        keys = tuple((type(unadapted(member)), member.cache_key) for member in self.members)
        return None if any(key is None for _, key in keys) else keys

    @property
    def cache_owner(self) -> Hashable:
        """Those of the members, in order."""
        return tuple(member.cache_owner for member in self.members)

    # -- who has what ----------------------------------------------------------------------------------------------

    def _owners(self, ctx: Context, key: Key) -> list[_ManyMember]:
        """The members that listed the key to this caller, or else to the last one; those failing since come last."""
        listed = self._listed.get(ctx.caller.key, self._last)
        owners = [member for member, keys in zip(self._members, listed, strict=True) if key in keys]
        return sorted(owners, key=lambda member: member.failure is not None)

    def _remember(self, ctx: Context, lists: Sequence[Sequence[Tool] | None]) -> None:
        who = ctx.caller.key
        before = self._listed.pop(who, self._last)
        self._last = self._listed[who] = tuple(
            keys if tools is None else frozenset(tool.key for tool in tools)
            for keys, tools in zip(before, lists, strict=True)
        )
        while len(self._listed) > _MAX_CALLERS:
            self._listed.popitem(last=False)

    # -- asking members --------------------------------------------------------------------------------------------

    async def _ask_all(self, ask: Callable[..., Awaitable[_T]], *arguments: Any) -> list[_T | None]:
        """Ask all members at once; the answers are in their order."""
        answers: list[_T | None] = [None] * len(self._members)

        async def put(place: int, member: _ManyMember) -> None:
            answers[place] = await self._ask(member, ask, *arguments)

        async with anyio.create_task_group() as group:
            for place, member in enumerate(self._members):
                group.start_soon(put, place, member)
        return answers

    async def _ask(self, member: _ManyMember, ask: Callable[..., Awaitable[_T]], *arguments: Any) -> _T | None:
        """Ask one member; None if it fails or takes too long, which is recorded."""
        try:
            with anyio.move_on_after(self._timeout_s) as waiting:
                answer = await contained(ask(member.provider, *arguments))
                member.failure = None
                return answer
        except Exception as error:
            # Statuses reach all callers, and the text of a foreign error may hold what they must not see.
            reason = error.message if isinstance(error, ToolcribError) else f"it raised {type(error).__name__}"
            self._record_failure(member, reason)
            logger.warning("%s could not be asked for its tools", member.name, exc_info=True)
            return None
        if waiting.cancelled_caught:
            self._record_failure(member, f"it did not answer within {self._timeout_s:g} s")
            logger.warning("%s did not answer within %g s", member.name, self._timeout_s)
        return None

    def _record_failure(self, member: _ManyMember, reason: str) -> None:
        since = member.failure.since if member.failure is not None else time.time()
        member.failure = ServerStatus(
            name=member.name, state=ServerState.FAILED, since=since, reason=reason, transport="local"
        )


async def _list_tools(provider: Provider, ctx: Context) -> Sequence[Tool]:
    return parse_tools(await provider.list_tools(ctx))


async def _get_tool(provider: Provider, ctx: Context, name: str) -> Tool | None:
    return await provider.get_tool(ctx, name)


async def _find_tools(provider: Provider, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
    return tuple(await provider.find_tools(ctx, request))


def _member_names(providers: Sequence[Provider]) -> list[str]:
    """A name for each; equal names are numbered."""
    plain = [display_name(provider) for provider in providers]
    return [
        f"{name} {plain[: place + 1].count(name)}" if plain.count(name) > 1 else name
        for place, name in enumerate(plain)
    ]


class ProviderList:
    """The shared providers of an app, as a `ProviderSource`. All methods may be called from any thread."""

    kind = BackendKind.PROVIDER

    def __init__(self, *providers: object) -> None:
        self._lock = threading.Lock()
        self._providers: tuple[Provider, ...] = ()
        self._unsubscribes: dict[int, Unsubscribe] = {}
        self._change_counts: dict[int, int] = {}
        self._changes = 0
        self._callbacks = CallbackList()
        for provider in providers:
            self.add(provider)

    def add(self, provider: object) -> None:
        """Offer the tools of this provider too, after those of the others; adding it again changes nothing.

        Takes whatever `adapt` takes. Raises `InvalidRequest`, also if subscribing to its changes fails; then it is
        not added.
        """
        added = adapt(provider)
        if _contains(self._providers, added):
            return
        try:
            unsubscribe = self._subscribe_to(added)
        except Exception as error:
            raise InvalidRequest(
                f"{display_name(added)} cannot be added: its subscribe() failed ({type(error).__name__}).",
                hint="subscribe takes a callback and returns a function that ends the subscription.",
            ) from error
        with self._lock:
            is_new = not _contains(self._providers, added)
            if is_new:
                self._providers = (*self._providers, added)
                self._unsubscribes[id(added)] = unsubscribe
                self._count_change(added)
        if is_new:
            self._callbacks.notify()
        else:  # added by another thread in the meantime
            call_logged(unsubscribe)

    def remove(self, provider: object) -> None:
        """Stop offering a provider, given as the object that was added. Raises `BackendNotFound`."""
        with self._lock:
            gone = [one for one in self._providers if provider is one or provider is unadapted(one)]
            if not gone:
                raise BackendNotFound(
                    f"{display_name(provider)} is not one of the providers.",
                    hint="Remove the same object that was added.",
                    suggestions=sorted({display_name(one) for one in self._providers}),
                )
            self._providers = tuple(one for one in self._providers if one is not gone[0])
            self._change_counts.pop(id(gone[0]), None)
            unsubscribe = self._unsubscribes.pop(id(gone[0]))
        call_logged(unsubscribe)
        self._callbacks.notify()

    def providers(self) -> Sequence[Provider]:
        """The current providers, in order of precedence."""
        return self._providers

    def change_count(self, provider: Provider) -> int:
        """A number that differs after each change that this provider reports; 0 if it is not here."""
        return self._change_counts.get(id(provider), 0)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back, in the current event loop, whenever a provider is added, removed or reports a change."""
        return self._callbacks.add(callback)

    def _subscribe_to(self, provider: Provider) -> Unsubscribe:
        def on_change() -> None:
            with self._lock:
                if not _contains(self._providers, provider):
                    return
                self._count_change(provider)
            self._callbacks.forward()

        unsubscribe: object = provider.subscribe(ThreadSafeCallback(on_change))
        return unsubscribe if callable(unsubscribe) else do_nothing

    def _count_change(self, provider: Provider) -> None:
        self._changes += 1
        self._change_counts[id(provider)] = self._changes


def _contains(providers: Sequence[Provider], provider: Provider) -> bool:
    return any(provider is one for one in providers)
