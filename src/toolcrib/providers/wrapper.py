"""What all wrappers of providers share: they change what is seen, and pass everything else on."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

from toolcrib.model import JSON, Hit, Key, Object, SearchRequest, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Context
from toolcrib.providers.adapt import adapt, original
from toolcrib.providers.definitions import tools_from
from toolcrib.providers.keyed import label, meant, spelled
from toolcrib.providers.passing import (
    CACHE,
    CHANGES,
    FINDER,
    KEYED,
    LOOKUP,
    STATUSES,
    Part,
    PassChanges,
    parts_for,
    variant,
)
from toolcrib.schema import signature

_FORGET_ABOVE: Final = 1024


class Kept:
    """Changed tools: the very same object for the very same tool."""

    def __init__(self, make: Callable[[Tool], Tool]) -> None:
        """`make` changes one tool."""
        self._make = make
        self._made: dict[int, tuple[Tool, Tool]] = {}

    def of(self, tool: Tool) -> Tool:
        """The changed tool."""
        known = self._made.get(id(tool))
        if known is None or known[0] is not tool:
            known = self._made[id(tool)] = (tool, self._make(tool))
        return known[1]

    def forget_all_but(self, tools: Sequence[Tool]) -> None:
        """Let go of tools that are not among these, once there are many of them."""
        made = self._made
        if len(made) > 2 * len(tools) + _FORGET_ABOVE:
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
        parts = [part for part in _PARTS if part[0] not in cls._withheld]
        wrapper: Self = object.__new__(variant(cls, parts_for(inner, parts)))
        wrapper.inner = inner
        return wrapper

    def __init__(self, provider: object) -> None:
        """Nothing is asked before the wrapper is."""

    @property
    def name(self) -> str:
        """That of the provider inside."""
        return label(self.inner)

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        """The tools inside, as they are seen from here."""
        if not self._admits(ctx):
            return ()
        return self._all_shown(tools_from(await self.inner.list_tools(ctx)))

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
        outer = (self._outer_key(key) for id_ in hit.similar for key in meant(id_)[:1])
        similar = tuple(spelled(key) for key in outer if key is not None)
        if tool is hit.tool and similar == hit.similar:
            return hit
        return replace(
            hit, tool=tool, similar=similar, signature=signature(tool) if hit.signature else "", reasons=hit.reasons
        )


class _Keyed(Wrapper):
    """`KeyedCalls`."""

    async def call_key(self, ctx: Context, key: Key, arguments: Object) -> ToolResult | JSON | None:
        """Run the tool that has that key from here; None when there is none."""
        own = self._own_key(key)
        if own is None or not self._admits(ctx) or not await self._lets(ctx, own):
            return None
        return await self.inner.call_key(ctx, own, arguments)


class _Lookup(Wrapper):
    """`ToolLookup`."""

    async def get_tool(self, ctx: Context, name: str) -> Tool | None:
        """The tool that has that name from here, its own or with its namespace, or None."""
        if not self._admits(ctx):
            return None
        keyed = [spelled(own) for key in meant(name) if (own := self._own_key(key)) is not None]
        bare = self._own_name(name)
        for own in dict.fromkeys((*keyed, *(() if bare is None else (bare,)))):
            found = await self.inner.get_tool(ctx, own)
            tool = None if found is None else self._shown(found)
            if tool is not None and name in (tool.id, tool.name):
                return tool
        return None


class _Finder(Wrapper):
    """`ToolFinder`."""

    async def find_tools(self, ctx: Context, request: SearchRequest) -> Sequence[Hit]:
        """The hits inside, as they are seen from here."""
        asked = self._asked(request) if self._admits(ctx) else None
        if asked is None:
            return ()
        return self._found(await self.inner.find_tools(ctx, asked), request)


class _Statuses(Wrapper):
    """`StatusSource`."""

    def statuses(self) -> Sequence[ServerStatus]:
        """The statuses inside, as they are seen from here."""
        return tuple(self._status(status) for status in self.inner.statuses())


class _Cache(Wrapper):
    """`Cacheable`."""

    @property
    def cache_for_s(self) -> float:
        """As long as the list inside, in seconds."""
        seconds: float = self.inner.cache_for_s
        return seconds

    @property
    def cache_key(self) -> Hashable:
        """What the list inside depends on, and this wrapper: others around the same provider show other tools."""
        return (made_of(self, outermost=True), self.inner.cache_key)


def made_of(provider: object, *, outermost: bool = False) -> Hashable:
    """What tells lists of equal cache keys apart: the classes of a provider and of the wrappers around it."""
    if not isinstance(provider, Wrapper):
        return (type(original(provider)),)
    mark = (type(provider), provider._mark())  # noqa: SLF001 - its own base
    return mark if outermost else (*mark, made_of(provider.inner))


_PARTS: Final[tuple[Part, ...]] = (
    (KEYED, _Keyed),
    (LOOKUP, _Lookup),
    (FINDER, _Finder),
    (CHANGES, PassChanges),
    (STATUSES, _Statuses),
    (CACHE, _Cache),
)

__all__ = ["Kept", "Wrapper", "made_of"]
