"""Wrappers that change what a provider offers: filter, rename, namespace, set the visibility, restrict to a caller."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from toolcrib.checks import checked
from toolcrib.errors import InvalidRequest, NameCollision
from toolcrib.names import check_name, check_namespace
from toolcrib.providers.adapters import adapt, unadapted
from toolcrib.providers.base import Provider, ProviderFeature, display_name, find_tool, identity_of, possible_keys
from toolcrib.providers.definitions import parse_tools
from toolcrib.schema import signature
from toolcrib.search.options import SearchOptions
from toolcrib.types import (
    JSON,
    Context,
    Hit,
    Key,
    Object,
    Rejected,
    SearchRequest,
    ServerStatus,
    Tool,
    ToolResult,
    Unsubscribe,
    Visibility,
)

_DEFAULT_LIMIT: Final = SearchOptions().default_limit
_MAX_LIMIT: Final = SearchOptions().max_limit
_OVERFETCH: Final = 4
"""How many times more hits `Filtered` asks for, up to the maximum, because some of them will be left out."""
_PRUNE_ABOVE: Final = 1024


class Wrapper(Provider):
    """Base of the wrappers: forwards everything to the provider inside, and lets a subclass change what is shown.

    It has the features of the provider inside, which may be whatever `adapt` takes. A subclass overrides the methods
    between names inside and names here; for what is not shown, they return None. Its `options` are what its list
    depends on, apart from the one inside.
    """

    def __init__(self, provider: object, *options: Hashable) -> None:
        self.inner: Final = adapt(provider)
        self._options = options
        self._changed: dict[int, tuple[Tool, Tool]] = {}
        """By the id of a tool inside: that tool, and the changed one shown here."""

    @property
    def name(self) -> str:
        """Name of the provider inside."""
        return display_name(self.inner)

    @property
    def features(self) -> ProviderFeature:
        """Those of the provider inside, without its documents."""
        return self.inner.features & ~ProviderFeature.DOCUMENTS

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """List the tools inside, as they are shown here."""
        if not self._admits(ctx):
            return ()
        inside = parse_tools(await self.inner.list_tools(ctx))
        if len(self._changed) > 2 * len(inside) + _PRUNE_ABOVE:
            self._changed = {id(tool): self._changed[id(tool)] for tool in inside if id(tool) in self._changed}
        return tuple(shown for tool in inside if (shown := self._shown(tool)) is not None)

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool that has this name here."""
        inner = self._inner_name(name)
        return await self.inner.call_tool(ctx, inner, arguments) if inner is not None and self._admits(ctx) else None

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool that has this key here."""
        inner = self._inner_key(key)
        return await self.inner.call_key(ctx, inner, arguments) if inner is not None and self._admits(ctx) else None

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """Look up the tool that has this name here, with or without its namespace."""
        if not self._admits(ctx):
            return None
        ids = [inner.id for key in possible_keys(name) if (inner := self._inner_key(key)) is not None]
        for inner_name in dict.fromkeys((*ids, self._inner_name(name))):
            found = None if inner_name is None else await self.inner.get_tool(ctx, inner_name)
            tool = None if found is None else self._shown(found)
            if tool is not None and name in (tool.id, tool.name):
                return tool
        return None

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """Search inside; the hits are changed like the tools."""
        inner = self._inner_request(request) if self._admits(ctx) else None
        return () if inner is None else self._show_hits(await self.inner.find_tools(ctx, inner), request)

    def subscribe(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call back on each change inside."""
        return self.inner.subscribe(callback)

    def statuses(self) -> Sequence[ServerStatus]:
        """The statuses inside, as they are shown here."""
        return self.inner.statuses()

    @property
    def cache_for_s(self) -> float | None:
        """As long as the list inside, in seconds."""
        return self.inner.cache_for_s

    @property
    def cache_key(self) -> Hashable:
        """The key inside, together with what this wrapper changes: other wrappers show other tools."""
        inner = self.inner.cache_key
        return None if inner is None else (_cache_identity(self), inner)

    @property
    def cache_owner(self) -> Hashable:
        """That of the provider inside, with this wrapper's class and options."""
        return type(self), self._options, self.inner.cache_owner

    # -- what a subclass may change --------------------------------------------------------------------------------

    def _admits(self, ctx: Context) -> bool:  # noqa: ARG002 - a hook
        """Whether this caller may use anything at all."""
        return True

    def _show(self, tool: Tool) -> Tool | None:
        """A tool inside, as it is shown here."""
        return tool

    def _inner_name(self, name: str) -> str | None:
        return name

    def _inner_key(self, key: Key) -> Key | None:
        name = self._inner_name(key.name)
        return None if name is None else Key(key.namespace, name)

    def _outer_key(self, key: Key) -> Key | None:
        return key

    def _inner_request(self, request: SearchRequest) -> SearchRequest | None:
        """The search to make inside; None if nothing here can answer it."""
        return request

    def _show_hits(self, hits: Sequence[Hit], request: SearchRequest) -> Sequence[Hit]:  # noqa: ARG002 - a hook
        """The hits as they are shown here; `request` is the one that was made here."""
        return tuple(shown for hit in hits if (shown := self._show_hit(hit)) is not None)

    # -- for all wrappers ------------------------------------------------------------------------------------------

    def _shown(self, tool: Tool) -> Tool | None:
        """Show a tool: the same object each time for the same tool, because snapshots compare tools by identity."""
        shown = self._show(tool)
        if shown is None or shown is tool:
            return shown
        known = self._changed.get(id(tool))
        if known is not None and known[0] is tool and known[1] == shown:
            return known[1]
        self._changed[id(tool)] = (tool, shown)
        return shown

    def _show_hit(self, hit: Hit) -> Hit | None:
        tool = self._shown(hit.tool)
        if tool is None:
            return None
        outer = (self._outer_key(key) for id_ in hit.similar for key in possible_keys(id_)[:1])
        similar = tuple(key.id for key in outer if key is not None)
        if tool is hit.tool and similar == hit.similar:
            return hit
        return replace(hit, tool=tool, similar=similar, signature=signature(tool) if hit.signature else "")


def _cache_identity(provider: object) -> Hashable:
    """Tell apart lists with equal cache keys: by the classes of the provider and of the wrappers around it."""
    if not isinstance(provider, Wrapper):
        return (type(unadapted(provider)),)
    return (type(provider), provider._options, _cache_identity(provider.inner))  # noqa: SLF001 - its own base class


@checked(also={"names": str, "tags": str})
class Filtered(Wrapper):
    """Keep only some of the tools. The others do not exist for lists, look-ups, searches and calls.

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
        """Keep the tools that pass the predicate, have one of the names (or ids), and have one of the tags.

        Only the conditions that are given count. An empty list of names or tags lets nothing pass. Raises
        `InvalidRequest` if no condition is given.
        """
        if predicate is None and names is None and tags is None:
            raise InvalidRequest("Filtered needs a condition.", hint="Give a predicate, names or tags.")
        self._predicate = predicate
        self._names = None if names is None else _name_set(names)
        self._tags = None if tags is None else _name_set(tags)
        condition = predicate if _is_hashable(predicate) else object()  # one that cannot be hashed equals no other
        super().__init__(provider, condition, self._names, self._tags)

    def _show(self, tool: Tool) -> Tool | None:
        if self._names is not None and not self._is_named(tool.key):
            return None
        if self._tags is not None and self._tags.isdisjoint(tool.tags):
            return None
        return None if self._predicate is not None and not self._predicate(tool) else tool

    async def call_tool(self, ctx: Context, name: str, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that name, if it is shown."""
        tool = await self.get_tool(ctx, name)
        return await self.inner.call_tool(ctx, name, arguments) if tool is not None and tool.name == name else None

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool of that key, if it is shown."""
        if self._by_name_only:
            return await self.inner.call_key(ctx, key, arguments) if self._is_named(key) else None
        tool = await find_tool(self.inner, ctx, key)
        return None if tool is None or self._show(tool) is None else await self.inner.call_key(ctx, key, arguments)

    def _outer_key(self, key: Key) -> Key | None:
        return key if self._by_name_only and self._is_named(key) else None

    def _inner_request(self, request: SearchRequest) -> SearchRequest:
        limit = _DEFAULT_LIMIT if request.limit is None else request.limit
        return replace(request, limit=min(max(limit, 1) * _OVERFETCH, _MAX_LIMIT))

    def _show_hits(self, hits: Sequence[Hit], request: SearchRequest) -> Sequence[Hit]:
        seen: dict[int, list[Hit]] = {}
        for hit in super()._show_hits(hits, request):
            seen.setdefault(hit.query, []).append(hit)
        limit = _DEFAULT_LIMIT if request.limit is None else request.limit
        return tuple(hit for query in sorted(seen) for hit in seen[query][:limit])

    def statuses(self) -> Sequence[ServerStatus]:
        """The statuses inside, without the names of broken definitions that are filtered out, or might be."""
        return tuple(replace(one, rejected=tuple(self._shown_rejections(one))) for one in self.inner.statuses())

    def _shown_rejections(self, status: ServerStatus) -> Iterable[Rejected]:
        space = status.namespace or status.name
        return (one for one in status.rejected if self._outer_key(Key(space, one.tool)) is not None)

    @property
    def _by_name_only(self) -> bool:
        return self._predicate is None and self._tags is None

    def _is_named(self, key: Key) -> bool:
        return self._names is not None and not self._names.isdisjoint((key.name, key.id))


@checked
class Namespaced(Wrapper):
    """Put the tools under a namespace: `create` becomes `acme:create`, and `git:log` becomes `acme-git:log`.

    Raises `InvalidName`.
    """

    def __init__(self, provider: object, namespace: str) -> None:
        super().__init__(provider, namespace)
        check_namespace(namespace)
        self._namespace = namespace
        self._prefix = f"{namespace}-"

    def _show(self, tool: Tool) -> Tool:
        return replace(tool, namespace=self._outer_namespace(tool.namespace))

    def _outer_namespace(self, namespace: str) -> str:
        return self._prefix + namespace if namespace else self._namespace

    def _inner_namespace(self, namespace: str) -> str | None:
        if namespace == self._namespace:
            return ""
        inside = namespace.removeprefix(self._prefix)
        return inside if inside and inside != namespace else None

    def _inner_key(self, key: Key) -> Key | None:
        namespace = self._inner_namespace(key.namespace)
        return None if namespace is None else Key(namespace, key.name)

    def _outer_key(self, key: Key) -> Key:
        return Key(self._outer_namespace(key.namespace), key.name)

    def _inner_request(self, request: SearchRequest) -> SearchRequest | None:
        wanted = request.filters.namespaces
        if not wanted:
            return request
        inside = frozenset(own for name in wanted if (own := self._inner_namespace(name)) is not None)
        return replace(request, filters=replace(request.filters, namespaces=inside)) if inside else None

    def statuses(self) -> Sequence[ServerStatus]:
        """The statuses inside, with the namespaces that their tools have here."""
        return tuple(
            replace(one, namespace=self._outer_namespace(one.namespace or one.name)) for one in self.inner.statuses()
        )


@checked
class Renamed(Wrapper):
    """Give some tools other names. Their old names become free, and a new name hides the tool that had it before."""

    def __init__(self, provider: object, names: Mapping[str, str]) -> None:
        """`names` maps old names to new ones, both without namespace; it applies in every namespace.

        Raises `InvalidName`, and `NameCollision` if two tools get the same name.
        """
        super().__init__(provider, frozenset(names.items()))
        for name in names.values():
            check_name(name)
        self._new = dict(names)
        self._old = {new: old for old, new in names.items()}
        if len(self._old) < len(self._new):
            twice = sorted({new for old, new in names.items() if self._old[new] != old})
            raise NameCollision(f"Two tools would be called {twice[0]}.", hint="Give each a different name.")

    def _show(self, tool: Tool) -> Tool | None:
        key = self._outer_key(tool.key)
        return None if key is None else tool if key.name == tool.name else replace(tool, name=key.name)

    def _inner_name(self, name: str) -> str | None:
        if name in self._old:
            return self._old[name]
        return None if name in self._new else name

    def _outer_key(self, key: Key) -> Key | None:
        if key.name in self._new:
            return Key(key.namespace, self._new[key.name])
        return None if key.name in self._old else key


@checked(also={"names": str, "tags": str})
class WithVisibility(Wrapper):
    """Change the visibility of tools."""

    def __init__(self, provider: object, visibility: Visibility | str, names: Iterable[str] | None = None) -> None:
        """`names` are names or ids of tools, None means all. Raises `InvalidRequest` for an unknown visibility."""
        try:
            self._visibility = Visibility(visibility)
        except ValueError:
            options = ", ".join(Visibility)
            raise InvalidRequest(f"{visibility!r:.40} is not a visibility.", hint=f"Give one of {options}.") from None
        self._names = None if names is None else _name_set(names)
        super().__init__(provider, self._visibility, self._names)

    def _show(self, tool: Tool) -> Tool:
        named = self._names is None or tool.name in self._names or tool.id in self._names
        return replace(tool, visibility=self._visibility) if named and tool.visibility is not self._visibility else tool

    def _inner_request(self, request: SearchRequest) -> SearchRequest:
        return replace(request, filters=replace(request.filters, visibility=frozenset()))

    def _show_hits(self, hits: Sequence[Hit], request: SearchRequest) -> Sequence[Hit]:
        wanted = request.filters.visibility or {Visibility.NATIVE, Visibility.DISCOVERABLE}
        return tuple(hit for hit in super()._show_hits(hits, request) if hit.tool.visibility in wanted)


@checked
def native(provider: object, *names: str) -> WithVisibility:
    """Make the tools of these names native, so that clients see them in the tool list; all tools if none is named."""
    return WithVisibility(provider, Visibility.NATIVE, names or None)


@checked
class ForCaller(Wrapper):
    """Restrict a provider to one caller or tenant: for everyone else it has no tools and runs none.

    A safeguard for providers that are made for one user and might end up in another user's request. It reports no
    statuses, because those are not filtered by caller.
    """

    def __init__(self, provider: object, caller_id: str | None = None, *, tenant: str | None = None) -> None:
        """If both are given, both must match. Raises `InvalidRequest` if neither is."""
        super().__init__(provider, caller_id, tenant)
        if caller_id is None and tenant is None:
            raise InvalidRequest(
                "ForCaller needs to know whose tools these are.", hint="Give a caller_id, a tenant, or both."
            )
        self._caller_id = caller_id
        self._tenant = tenant

    @property
    def features(self) -> ProviderFeature:
        """Those of the provider inside, without its statuses."""
        return super().features & ~ProviderFeature.STATUS

    def statuses(self) -> Sequence[ServerStatus]:
        """None."""
        return ()

    def _admits(self, ctx: Context) -> bool:
        same_caller = self._caller_id is None or ctx.caller.id == self._caller_id
        return same_caller and (self._tenant is None or ctx.caller.tenant == self._tenant)


@checked
class Cached(Wrapper):
    """Declare for how long the list of tools may be cached. The gateway does the caching."""

    def __init__(self, provider: object, seconds: float, key: Hashable) -> None:
        """The list is kept for the same caller, an equal key, and the same provider inside, or one that is equal to it.

        Raises `InvalidRequest` for a negative or infinite time, and for a key that cannot be hashed.
        """
        super().__init__(provider)
        if isinstance(seconds, bool) or not 0 <= seconds < math.inf:
            raise InvalidRequest(f"seconds is {seconds!r:.40}.", hint="Give a number of seconds, 0 or more.")
        if not _is_hashable(key):
            raise InvalidRequest(
                f"key is a value of type {type(key).__name__}.", hint="Give a string, a number or a tuple."
            )
        self._seconds = float(seconds)
        self._key = (_cache_identity(self), key)

    @property
    def cache_for_s(self) -> float:
        """How long the list may be cached, in seconds."""
        return self._seconds

    @property
    def cache_key(self) -> Hashable:
        """The given key, for providers of the same classes."""
        return self._key


def _name_set(names: Iterable[str]) -> frozenset[str]:
    """The names as a set; a single string is one name."""
    return frozenset((names,) if isinstance(names, str) else names)


def _is_hashable(value: object) -> bool:
    return identity_of(value) is value
