"""Wrappers of providers: one small class for each thing that may be changed about what a provider offers."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from toolcrib.errors import InvalidRequest, NameCollision
from toolcrib.model import Hit, Key, SearchRequest, ServerStatus, Tool, Visibility
from toolcrib.names import check_name, check_namespace
from toolcrib.protocols import Context, ToolLookup
from toolcrib.providers.definitions import tools_from
from toolcrib.providers.keyed import find, spelled
from toolcrib.providers.passing import CACHE, STATUSES
from toolcrib.providers.wrapper import Kept, Wrapper, made_of
from toolcrib.search.options import SearchOptions

_USUAL: Final = SearchOptions().default_limit
_MORE: Final = 4
_MOST: Final = SearchOptions().max_limit
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
        self._names = None if names is None else _texts(names)
        self._tags = None if tags is None else _texts(tags)

    def _shown(self, tool: Tool) -> Tool | None:
        if self._names is not None and not self._named(tool.key):
            return None
        if self._tags is not None and self._tags.isdisjoint(tool.tags):
            return None
        return None if self._predicate is not None and not self._predicate(tool) else tool

    async def _lets(self, ctx: Context, own: Key | str) -> bool:
        if isinstance(own, Key):
            if not self._by_name_alone:
                tool = await find(self.inner, ctx, own)
                return tool is not None and self._shown(tool) is not None
            return self._named(own)
        if self._by_name_alone and own in (self._names or ()):
            return True
        if isinstance(self.inner, ToolLookup):
            tool = await self.inner.get_tool(ctx, own)
            return tool is not None and tool.name == own and self._shown(tool) is not None
        listed = tools_from(await self.inner.list_tools(ctx))
        return any(tool.name == own and self._shown(tool) is not None for tool in listed)

    def _outer_key(self, key: Key) -> Key | None:
        return key if self._by_name_alone and self._named(key) else None

    def _asked(self, request: SearchRequest) -> SearchRequest:
        limit = _USUAL if request.limit is None else request.limit
        return replace(request, limit=min(max(limit, 1) * _MORE, _MOST))

    def _found(self, hits: Sequence[Hit], request: SearchRequest) -> Sequence[Hit]:
        seen: dict[int, list[Hit]] = {}
        for hit in super()._found(hits, request):
            seen.setdefault(hit.query, []).append(hit)
        limit = _USUAL if request.limit is None else request.limit
        return tuple(hit for query in sorted(seen) for hit in seen[query][:limit])

    def _status(self, status: ServerStatus) -> ServerStatus:
        """Without the names of broken definitions that may not be seen."""
        space = status.namespace or status.name
        rejected = tuple(one for one in status.rejected if self._outer_key(Key(space, one.tool)) is not None)
        return replace(status, rejected=rejected)

    def _mark(self) -> Hashable:
        return (_hashable(self._predicate), self._names, self._tags)

    @property
    def _by_name_alone(self) -> bool:
        return self._predicate is None and self._tags is None

    def _named(self, key: Key) -> bool:
        return self._names is not None and (key.name in self._names or spelled(key) in self._names)


class Namespaced(Wrapper):
    """The tools under a namespace: `create` becomes `acme:create`, and `git:log` becomes `acme-git:log`."""

    def __init__(self, provider: object, namespace: str) -> None:
        """Raises `InvalidName`."""
        super().__init__(provider)
        check_namespace(namespace)
        self._namespace = namespace
        self._start = f"{namespace}-"
        self._kept = Kept(lambda tool: replace(tool, namespace=self._outer(tool.namespace)))

    def _shown(self, tool: Tool) -> Tool:
        return self._kept.of(tool)

    def _all_shown(self, tools: Iterable[Tool]) -> Sequence[Tool]:
        inside = tuple(tools)
        self._kept.forget_all_but(inside)
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
        self._kept = Kept(lambda tool: replace(tool, name=self._new[tool.name]))

    def _shown(self, tool: Tool) -> Tool | None:
        if tool.name in self._new:
            return self._kept.of(tool)
        return None if tool.name in self._old else tool

    def _all_shown(self, tools: Iterable[Tool]) -> Sequence[Tool]:
        inside = tuple(tools)
        self._kept.forget_all_but(inside)
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
        self._names = None if names is None else _texts(names)
        self._kept = Kept(lambda tool: replace(tool, visibility=wanted))

    def _shown(self, tool: Tool) -> Tool:
        if tool.visibility is self._visibility:
            return tool
        named = self._names is None or tool.name in self._names or tool.id in self._names
        return self._kept.of(tool) if named else tool

    def _all_shown(self, tools: Iterable[Tool]) -> Sequence[Tool]:
        inside = tuple(tools)
        self._kept.forget_all_but(inside)
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
        self.cache_key: Hashable = (made_of(self), key)


def _texts(names: Iterable[str]) -> frozenset[str]:
    """The names as a set; one text is one name."""
    return frozenset((names,) if isinstance(names, str) else names)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _hashable(value: object) -> Hashable:
    """The value, or something that equals nothing else, where it cannot be hashed."""
    return value if _is_hashable(value) else object()


__all__ = ["Cached", "Filtered", "ForCaller", "Namespaced", "Renamed", "WithVisibility", "native"]
