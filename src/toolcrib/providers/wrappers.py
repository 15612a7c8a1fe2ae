"""Wrappers that change what a provider offers: filter, rename, namespace, set the visibility, restrict to a caller."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

from toolcrib.errors import InvalidRequest, NameCollision
from toolcrib.names import check_name, check_namespace
from toolcrib.providers.adapters import adapt, unadapted
from toolcrib.providers.base import (
    CACHE,
    CHANGES,
    FINDER,
    KEYED,
    LOOKUP,
    STATUSES,
    ForwardChanges,
    MixinRule,
    display_name,
    find_tool,
    key_id,
    mixins_for,
    possible_keys,
    with_mixins,
)
from toolcrib.providers.definitions import parse_tools
from toolcrib.schema import signature
from toolcrib.search.options import SearchOptions
from toolcrib.types import (
    JSON,
    Context,
    Hit,
    Key,
    Object,
    SearchRequest,
    ServerStatus,
    Tool,
    ToolLookup,
    ToolResult,
    Visibility,
)

_PRUNE_ABOVE: Final = 1024


class ToolMapping:
    """Changed tools: the very same object for the very same tool."""

    def __init__(self, make: Callable[[Tool], Tool]) -> None:
        """`make` changes one tool."""
        self._make = make
        self._made: dict[int, tuple[Tool, Tool]] = {}

    def get(self, tool: Tool) -> Tool:
        """The changed tool."""
        known = self._made.get(id(tool))
        if known is None or known[0] is not tool:
            known = self._made[id(tool)] = (tool, self._make(tool))
        return known[1]

    def prune(self, tools: Sequence[Tool]) -> None:
        """Let go of tools that are not among these, once there are many of them."""
        made = self._made
        if len(made) > 2 * len(tools) + _PRUNE_ABOVE:
            self._made = {id(tool): made[id(tool)] for tool in tools if id(tool) in made}


class Wrapper:
    """A provider that stands before another one; it has the same optional protocols as that one.

    By itself it changes nothing. Takes whatever `adapt` takes.
    """

    inner: Any
    """The provider inside, as a `ToolProvider`."""

    _withheld: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Protocols that are not passed on."""

    def __new__(cls, provider: object, *_: Any, **__: Any) -> Self:
        """With the optional protocols that the provider has."""
        inner = adapt(provider)
        parts = [part for part in _WRAPPER_MIXINS if part[0] not in cls._withheld]
        wrapper: Self = object.__new__(with_mixins(cls, mixins_for(inner, parts)))
        wrapper.inner = inner
        return wrapper

    def __init__(self, provider: object) -> None:
        """Nothing is asked before the wrapper is."""

    @property
    def name(self) -> str:
        """That of the provider inside."""
        return display_name(self.inner)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """The tools inside, as they are seen from here."""
        if not self._admits(ctx):
            return ()
        return self._all_shown(parse_tools(await self.inner.list_tools(ctx)))

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool that has that name from here; None when there is none."""
        own = self._own_name(name)
        if own is None or not self._admits(ctx) or not await self._lets(ctx, own):
            return None
        return await self.inner.call_tool(ctx, own, arguments)

    # -- what a wrapper may change ---------------------------------------------------------------------------------

    def _admits(self, ctx: Context) -> bool:  # noqa: ARG002 - a hook
        """Whether there is anything at all for this caller."""
        return True

    def _shown(self, tool: Tool) -> Tool | None:
        """A tool inside, as it is seen from here; None where it is not."""
        return tool

    def _all_shown(self, tools: Iterable[Tool]) -> Sequence[Tool]:
        """All of them, in their order."""
        return tuple(shown for tool in tools if (shown := self._shown(tool)) is not None)

    def _own_name(self, name: str) -> str | None:
        """The name inside of what is called so here; None where nothing can be called so."""
        return name

    def _own_key(self, key: Key) -> Key | None:
        """The key inside of what has that key here; None where nothing can have it."""
        name = self._own_name(key.name)
        return None if name is None else Key(key.namespace, name)

    def _outer_key(self, key: Key) -> Key | None:
        """The key here of what has that key inside; None where it is not seen, or that cannot be told."""
        return key

    async def _lets(self, ctx: Context, own: Key | str) -> bool:  # noqa: ARG002 - a hook
        """Whether the tool of that key, or that name, inside may be run from here."""
        return True

    def _asked(self, request: SearchRequest) -> SearchRequest | None:
        """The search as it is to be made inside; None where nothing here can answer it."""
        return request

    def _found(self, hits: Sequence[Hit], request: SearchRequest) -> Sequence[Hit]:  # noqa: ARG002 - a hook
        """What the search gave, as it is seen from here; `request` is the one that was made here."""
        return tuple(seen for hit in hits if (seen := self._hit(hit)) is not None)

    def _status(self, status: ServerStatus) -> ServerStatus:
        """A status inside, as it is seen from here."""
        return status

    def _mark(self) -> Hashable:
        """What this wrapper's list depends on, beside the one inside."""
        return None

    # -- for all of them -------------------------------------------------------------------------------------------

    def _hit(self, hit: Hit) -> Hit | None:
        tool = self._shown(hit.tool)
        if tool is None:
            return None
        outer = (self._outer_key(key) for id_ in hit.similar for key in possible_keys(id_)[:1])
        similar = tuple(key_id(key) for key in outer if key is not None)
        if tool is hit.tool and similar == hit.similar:
            return hit
        return replace(
            hit, tool=tool, similar=similar, signature=signature(tool) if hit.signature else "", reasons=hit.reasons
        )


class _KeyedWrapper(Wrapper):
    """`KeyedCalls`."""

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool that has that key from here; None when there is none."""
        own = self._own_key(key)
        if own is None or not self._admits(ctx) or not await self._lets(ctx, own):
            return None
        return await self.inner.call_key(ctx, own, arguments)


class _LookupWrapper(Wrapper):
    """`ToolLookup`."""

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The tool that has that name from here, its own or with its namespace, or None."""
        if not self._admits(ctx):
            return None
        keyed = [key_id(own) for key in possible_keys(name) if (own := self._own_key(key)) is not None]
        bare = self._own_name(name)
        for own in dict.fromkeys((*keyed, *(() if bare is None else (bare,)))):
            found = await self.inner.get_tool(ctx, own)
            tool = None if found is None else self._shown(found)
            if tool is not None and name in (tool.id, tool.name):
                return tool
        return None


class _FinderWrapper(Wrapper):
    """`ToolFinder`."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """The hits inside, as they are seen from here."""
        asked = self._asked(request) if self._admits(ctx) else None
        if asked is None:
            return ()
        return self._found(await self.inner.find_tools(ctx, asked), request)


class _StatusWrapper(Wrapper):
    """`StatusSource`."""

    def statuses(self) -> Sequence[ServerStatus]:
        """The statuses inside, as they are seen from here."""
        return tuple(self._status(status) for status in self.inner.statuses())


class _CacheableWrapper(Wrapper):
    """`Cacheable`."""

    @property
    def cache_for_s(self) -> float:
        """As long as the list inside, in seconds."""
        seconds: float = self.inner.cache_for_s
        return seconds

    @property
    def cache_key(self) -> Hashable:
        """What the list inside depends on, and this wrapper: others around the same provider show other tools."""
        return (cache_identity(self, outermost=True), self.inner.cache_key)


def cache_identity(provider: object, *, outermost: bool = False) -> Hashable:
    """What tells lists of equal cache keys apart: the classes of a provider and of the wrappers around it."""
    if not isinstance(provider, Wrapper):
        return (type(unadapted(provider)),)
    mark = (type(provider), provider._mark())  # noqa: SLF001 - its own base
    return mark if outermost else (*mark, cache_identity(provider.inner))


_WRAPPER_MIXINS: Final[tuple[MixinRule, ...]] = (
    (KEYED, _KeyedWrapper),
    (LOOKUP, _LookupWrapper),
    (FINDER, _FinderWrapper),
    (CHANGES, ForwardChanges),
    (STATUSES, _StatusWrapper),
    (CACHE, _CacheableWrapper),
)


_DEFAULT_LIMIT: Final = SearchOptions().default_limit


_OVERFETCH: Final = 4


_MAX_LIMIT: Final = SearchOptions().max_limit
"""Hits that are asked of a provider that searches by itself, where some of them will be left out: four times as many
as are wanted, but at most so many."""


class Filtered(Wrapper):
    """Only some of the tools; the others do not exist, neither in lists and look-ups nor for searches and calls.

    >>> from toolcrib.testing import FakeProvider
    >>> tools = FakeProvider([Tool(name="read"), Tool(name="delete")])
    >>> readers = Filtered(tools, lambda tool: tool.name != "delete")
    """

    def __init__(
        self,
        provider: object,
        predicate: Callable[[Tool], bool] | None = None,
        *,
        names: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
    ) -> None:
        """Tools that pass the predicate, have one of the names (or ids), and one of the tags: all that is given.

        An empty list of names or tags lets nothing pass. Raises `InvalidRequest` when nothing is given.
        """
        super().__init__(provider)
        if predicate is None and names is None and tags is None:
            raise InvalidRequest("Nothing says which tools to keep.", hint="Give a predicate, names or tags.")
        self._predicate = predicate
        self._names = None if names is None else _name_set(names)
        self._tags = None if tags is None else _name_set(tags)

    def _shown(self, tool: Tool) -> Tool | None:
        if self._names is not None and not self._named(tool.key):
            return None
        if self._tags is not None and self._tags.isdisjoint(tool.tags):
            return None
        return None if self._predicate is not None and not self._predicate(tool) else tool

    async def _lets(self, ctx: Context, own: Key | str) -> bool:
        if isinstance(own, Key):
            if not self._by_name_alone:
                tool = await find_tool(self.inner, ctx, own)
                return tool is not None and self._shown(tool) is not None
            return self._named(own)
        if self._by_name_alone and own in (self._names or ()):
            return True
        if isinstance(self.inner, ToolLookup):
            tool = await self.inner.get_tool(ctx, own)
            return tool is not None and tool.name == own and self._shown(tool) is not None
        listed = parse_tools(await self.inner.list_tools(ctx))
        return any(tool.name == own and self._shown(tool) is not None for tool in listed)

    def _outer_key(self, key: Key) -> Key | None:
        return key if self._by_name_alone and self._named(key) else None

    def _asked(self, request: SearchRequest) -> SearchRequest:
        limit = _DEFAULT_LIMIT if request.limit is None else request.limit
        return replace(request, limit=min(max(limit, 1) * _OVERFETCH, _MAX_LIMIT))

    def _found(self, hits: Sequence[Hit], request: SearchRequest) -> Sequence[Hit]:
        seen: dict[int, list[Hit]] = {}
        for hit in super()._found(hits, request):
            seen.setdefault(hit.query, []).append(hit)
        limit = _DEFAULT_LIMIT if request.limit is None else request.limit
        return tuple(hit for query in sorted(seen) for hit in seen[query][:limit])

    def _status(self, status: ServerStatus) -> ServerStatus:
        """Without the names of broken definitions that may not be seen."""
        space = status.namespace or status.name
        rejected = tuple(one for one in status.rejected if self._outer_key(Key(space, one.tool)) is not None)
        return replace(status, rejected=rejected)

    def _mark(self) -> Hashable:
        return (_hashable_or_unique(self._predicate), self._names, self._tags)

    @property
    def _by_name_alone(self) -> bool:
        return self._predicate is None and self._tags is None

    def _named(self, key: Key) -> bool:
        return self._names is not None and (key.name in self._names or key_id(key) in self._names)


class Namespaced(Wrapper):
    """The tools under a namespace: `create` becomes `acme:create`, and `git:log` becomes `acme-git:log`."""

    def __init__(self, provider: object, namespace: str) -> None:
        """Raises `InvalidName`."""
        super().__init__(provider)
        check_namespace(namespace)
        self._namespace = namespace
        self._start = f"{namespace}-"
        self._kept = ToolMapping(lambda tool: replace(tool, namespace=self._outer(tool.namespace)))

    def _shown(self, tool: Tool) -> Tool:
        return self._kept.get(tool)

    def _all_shown(self, tools: Iterable[Tool]) -> Sequence[Tool]:
        inside = tuple(tools)
        self._kept.prune(inside)
        return super()._all_shown(inside)

    def _outer(self, namespace: str) -> str:
        return self._start + namespace if namespace else self._namespace

    def _inner(self, namespace: str) -> str | None:
        if namespace == self._namespace:
            return ""
        inside = namespace.removeprefix(self._start)
        return inside if inside and inside != namespace else None

    def _own_key(self, key: Key) -> Key | None:
        namespace = self._inner(key.namespace)
        return None if namespace is None else Key(namespace, key.name)

    def _outer_key(self, key: Key) -> Key:
        return Key(self._outer(key.namespace), key.name)

    def _asked(self, request: SearchRequest) -> SearchRequest | None:
        wanted = request.filters.namespaces
        if not wanted:
            return request
        inside = frozenset(own for name in wanted if (own := self._inner(name)) is not None)
        return replace(request, filters=replace(request.filters, namespaces=inside)) if inside else None

    def _status(self, status: ServerStatus) -> ServerStatus:
        return replace(status, namespace=self._outer(status.namespace or status.name))

    def _mark(self) -> Hashable:
        return self._namespace


class Renamed(Wrapper):
    """Some tools under other names; the old names are free, and a new name hides what had it before."""

    def __init__(self, provider: object, names: Mapping[str, str]) -> None:
        """`names` leads from old names to new ones, both without namespace, in whichever namespace they are.

        Raises `InvalidName`, and `NameCollision` when two tools get one name.
        """
        super().__init__(provider)
        for name in names.values():
            check_name(name)
        self._new = dict(names)
        self._old = {new: old for old, new in names.items()}
        if len(self._old) < len(self._new):
            twice = sorted({new for old, new in names.items() if self._old[new] != old})
            raise NameCollision(f"Two tools are to be called {twice[0]}.", hint="Give each a name of its own.")
        self._kept = ToolMapping(lambda tool: replace(tool, name=self._new[tool.name]))

    def _shown(self, tool: Tool) -> Tool | None:
        if tool.name in self._new:
            return self._kept.get(tool)
        return None if tool.name in self._old else tool

    def _all_shown(self, tools: Iterable[Tool]) -> Sequence[Tool]:
        inside = tuple(tools)
        self._kept.prune(inside)
        return super()._all_shown(inside)

    def _own_name(self, name: str) -> str | None:
        if name in self._old:
            return self._old[name]
        return None if name in self._new else name

    def _outer_key(self, key: Key) -> Key | None:
        if key.name in self._new:
            return Key(key.namespace, self._new[key.name])
        return None if key.name in self._old else key

    def _mark(self) -> Hashable:
        return frozenset(self._new.items())


class WithVisibility(Wrapper):
    """Tools with another visibility."""

    def __init__(self, provider: object, visibility: Visibility | str, names: Iterable[str] | None = None) -> None:
        """Of the tools of these names (or ids); None means all. Raises `InvalidRequest` for what is no visibility."""
        super().__init__(provider)
        try:
            wanted = self._visibility = Visibility(visibility)
        except ValueError:
            options = ", ".join(Visibility)
            raise InvalidRequest(f"{visibility!r:.40} is no visibility.", hint=f"Give one of {options}.") from None
        self._names = None if names is None else _name_set(names)
        self._kept = ToolMapping(lambda tool: replace(tool, visibility=wanted))

    def _shown(self, tool: Tool) -> Tool:
        if tool.visibility is self._visibility:
            return tool
        named = self._names is None or tool.name in self._names or tool.id in self._names
        return self._kept.get(tool) if named else tool

    def _all_shown(self, tools: Iterable[Tool]) -> Sequence[Tool]:
        inside = tuple(tools)
        self._kept.prune(inside)
        return super()._all_shown(inside)

    def _asked(self, request: SearchRequest) -> SearchRequest:
        return replace(request, filters=replace(request.filters, visibility=frozenset()))

    def _found(self, hits: Sequence[Hit], request: SearchRequest) -> Sequence[Hit]:
        wanted = request.filters.visibility or {Visibility.NATIVE, Visibility.DISCOVERABLE}
        return tuple(hit for hit in super()._found(hits, request) if hit.tool.visibility in wanted)

    def _mark(self) -> Hashable:
        return (self._visibility, self._names)


def native(provider: object, *names: str) -> WithVisibility:
    """The provider with its tools of these names listed by name to clients; all of them without any name."""
    return WithVisibility(provider, Visibility.NATIVE, names or None)


class ForCaller(Wrapper):
    """One caller's, or one tenant's, provider: for anybody else it has no tools at all, and runs none.

    A guard for providers that are made for one user and might meet the request of another. It does not speak for
    servers, because a status is not told to a caller of its own.
    """

    _withheld = (STATUSES,)

    def __init__(self, provider: object, caller_id: str | None = None, *, tenant: str | None = None) -> None:
        """Both must match where both are given. Raises `InvalidRequest` when none is."""
        super().__init__(provider)
        if caller_id is None and tenant is None:
            raise InvalidRequest("Nothing says whose tools these are.", hint="Give a caller_id, a tenant, or both.")
        self._caller_id = caller_id
        self._tenant = tenant

    def _admits(self, ctx: Context) -> bool:
        same_caller = self._caller_id is None or ctx.caller.id == self._caller_id
        return same_caller and (self._tenant is None or ctx.caller.tenant == self._tenant)

    def _mark(self) -> Hashable:
        return (self._caller_id, self._tenant)


class Cached(Wrapper):
    """A provider whose list of tools may be kept; whoever asks it for tools does the keeping."""

    _withheld = (CACHE,)

    def __init__(self, provider: object, seconds: float, key: Hashable) -> None:
        """For so long, and for every provider of the same classes and an equal key; a user's id, for example.

        Raises `InvalidRequest` for a time below 0, and for a key that cannot be hashed.
        """
        super().__init__(provider)
        if isinstance(seconds, bool) or not 0 <= seconds < math.inf:
            raise InvalidRequest(f"seconds is {seconds!r:.40}.", hint="Give a number of seconds, 0 or more.")
        if not _is_hashable(key):
            raise InvalidRequest(f"key is of the type {type(key).__name__}.", hint="Give a text, a number or a tuple.")
        self.cache_for_s = float(seconds)
        self.cache_key: Hashable = (cache_identity(self), key)


def _name_set(names: Iterable[str]) -> frozenset[str]:
    """The names as a set; one text is one name."""
    return frozenset((names,) if isinstance(names, str) else names)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _hashable_or_unique(value: object) -> Hashable:
    """The value, or something that equals nothing else, where it cannot be hashed."""
    return value if _is_hashable(value) else object()
