"""What one caller sees: a window on a shared snapshot, and the tools that came with his request.

A view never asks a provider for anything. What lies outside its mask does not exist for it.
"""

import threading
from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from toolcrib.catalog.misses import ambiguous
from toolcrib.errors import ToolNotFound
from toolcrib.gateway.snapshot import EMPTY, Snapshot
from toolcrib.model import Action, Caller, Decision, Filters, Key, SearchReply, SearchRequest, Tool
from toolcrib.protocols import Backend, Policy
from toolcrib.schema import Schema
from toolcrib.search.engine import listing, search
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions

_MAX_SCOPES = 4096

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found:
    """A tool with everything a call of it needs."""

    tool: Tool
    backends: tuple[Backend, ...]
    """Who can run it, in the order in which they offered it; one or more."""
    schema: Schema
    wire_name: str


@dataclass(frozen=True, slots=True)
class View:
    """One caller's window on a snapshot."""

    snapshot: Snapshot
    mask: bytes | None
    """One byte a tool, nonzero where it may be seen; None where all may be."""
    version: str
    """A hash of everything visible, and of nothing else."""
    overlay: Snapshot = EMPTY
    """Tools of the request that no shared tool in view stands before."""
    memo: dict[Hashable, Any] = field(default_factory=dict)
    """What others derive from this view once; it lives as long as the view."""
    base: "View | None" = None
    """The same without the request's tools; it lives longer."""
    shadowed: frozenset[Key] = frozenset()
    """The tools of `base` before which one of the request stands."""

    def tools(self) -> tuple[Tool, ...]:
        """Every visible tool, hidden ones included, by id."""
        shared = self.snapshot.catalog.tools
        if self.mask is not None:
            shared = tuple(tool for tool, seen in zip(shared, self.mask, strict=True) if seen)
        return with_more(shared, self.overlay.catalog.tools, key=lambda tool: tool.id)

    def added(self) -> tuple[Tool, ...]:
        """The tools that a view has beside those of its `base`, by id."""
        return self.overlay.catalog.tools

    def sees(self, tool: Tool) -> bool:
        """Whether a shared tool of that key is in view."""
        return self.position(tool.key) is not None

    def position(self, key: Key) -> int | None:
        """The place of the shared tool of that key, where it is in view."""
        position = self.snapshot.catalog.by_id(f"{key.namespace}:{key.name}" if key.namespace else key.name)
        if position is None or (self.mask is not None and not self.mask[position]):
            return None
        return position

    def holds(self, key: Key) -> Tool | None:
        """The tool of that key in view, or None."""
        position = self.position(key)
        if position is not None:
            return self.snapshot.catalog.tools[position]
        place = self.overlay.catalog.by_id(f"{key.namespace}:{key.name}" if key.namespace else key.name)
        return None if place is None else self.overlay.catalog.tools[place]

    def find(self, spelling: str) -> Found:
        """The tool that a spelling names. Raises `ToolNotFound` or `AmbiguousName`, both within the view.

        An exact id or wire name is always that tool's; any other spelling that fits a shared tool and one of the
        request is refused, like every other that fits two.
        """
        if not self.overlay.catalog.tools:
            return found_at(self.snapshot, self.snapshot.catalog.find(spelling, self.mask))
        exact = self.exact(spelling)
        return exact if exact is not None else self._loose(spelling)

    def exact(self, name: str) -> Found | None:
        """The tool of exactly that id, else of exactly that wire name."""
        for snapshot, mask in self._sides():
            position = snapshot.catalog.by_id(name)
            if position is not None and (mask is None or mask[position]):
                return found_at(snapshot, position)
        return self.by_wire(name)

    def _loose(self, spelling: str) -> Found:
        found: list[Found] = []
        missing: list[ToolNotFound] = []
        for snapshot, mask in self._sides():
            try:
                found.append(found_at(snapshot, snapshot.catalog.find(spelling, mask)))
            except ToolNotFound as error:
                missing.append(error)
        if len(found) > 1:
            raise ambiguous(spelling, sorted(one.tool.id for one in found))
        if found:
            return found[0]
        first, last = missing
        last.suggestions = tuple(dict.fromkeys((*first.suggestions, *last.suggestions)))
        raise last

    def _sides(self) -> tuple[tuple[Snapshot, bytes | None], ...]:
        return (self.snapshot, self.mask), (self.overlay, None)

    def by_wire(self, name: str) -> Found | None:
        """The tool of that wire name, or None."""
        for snapshot, mask in self._sides():
            position = snapshot.catalog.by_wire(name)
            if position is not None and (mask is None or mask[position]):
                return found_at(snapshot, position)
        return None

    def wire_name(self, tool: Tool) -> str:
        """The tool's wire name; the tool must be one of the view's."""
        for catalog in (self.snapshot.catalog, self.overlay.catalog):
            position = catalog.by_id(tool.id)
            if position is not None:
                return catalog.wire_name(position)
        raise ToolNotFound(f"No tool is called {tool.id}.")

    def listing(self, filters: Filters) -> tuple[Tool, ...]:
        """Every tool that a search could find, by id."""
        return listing(self.snapshot.index, filters, mask=self.mask, overlay=self._overlay)

    def search(
        self,
        request: SearchRequest,
        options: SearchOptions,
        *,
        lexicon: Lexicon | None = None,
        boosts: Mapping[str, float] | None = None,
    ) -> SearchReply:
        """What the view holds for the request; its servers are left to the gateway.

        `boosts` leads from ids of tools that were of use to how much their odds are raised, 1 or more.
        """
        return search(
            self.snapshot.index,
            request,
            mask=self.mask,
            overlay=self._overlay,
            options=options,
            lexicon=lexicon,
            boosts=boosts,
        )

    @property
    def _overlay(self) -> Index | None:
        return self.overlay.index if self.overlay.catalog.tools else None

    def remembered(self, key: Hashable, make: Callable[["View"], _T]) -> _T:
        """What `make` gives for this view, worked out once."""
        if key not in self.memo:
            self.memo[key] = make(self)
        value: _T = self.memo[key]
        return value


def found_at(snapshot: Snapshot, position: int) -> Found:
    """The tool at a position, with all that a call needs."""
    catalog = snapshot.catalog
    return Found(
        catalog.tools[position], snapshot.backends[position], catalog.schema(position), catalog.wire_name(position)
    )


def with_more(ordered: Sequence[_T], more: Iterable[_T], *, key: Callable[[_T], str]) -> tuple[_T, ...]:
    """A sorted sequence with a few more items in their places: no sorting anew, and no work where there are none.

    >>> with_more(("a", "c"), ["b"], key=str)
    ('a', 'b', 'c')
    """
    extra = tuple(more)
    if not extra:
        return tuple(ordered)
    items = list(ordered)
    for item in extra:
        insort(items, item, key=key)
    return tuple(items)


class Views:
    """The views of one snapshot, one a scope; made when first asked for."""

    def __init__(self, snapshot: Snapshot, policy: Policy, made: Mapping[Hashable, View] | None = None) -> None:
        """With the views of some scopes, where they are made already."""
        self.snapshot = snapshot
        self._policy = policy
        self._by_scope = dict(made or {})
        self._lock = threading.Lock()

    def on(self, snapshot: Snapshot) -> "Views":
        """The views of another snapshot: these very ones, with all they remember, where only the index is another."""
        if snapshot.catalog is not self.snapshot.catalog:
            return Views(snapshot, self._policy)
        with self._lock:
            kept = {scope: replace(view, snapshot=snapshot) for scope, view in self._by_scope.items()}
        return Views(snapshot, self._policy, kept)

    def of(self, caller: Caller) -> View:
        """The caller's view. O(catalog) for the first caller of a scope, O(1) for the others."""
        scope = self._policy.scope(caller)
        view = self._by_scope.get(scope)
        if view is None:
            view = self._make(caller)
            with self._lock:
                if len(self._by_scope) >= _MAX_SCOPES:
                    self._by_scope.pop(next(iter(self._by_scope)))
                view = self._by_scope.setdefault(scope, view)
        return view

    def _make(self, caller: Caller) -> View:
        catalog = self.snapshot.catalog
        seen = bytes(may_see(self._policy, caller, tool) for tool in catalog.tools)
        mask = None if all(seen) else seen
        return View(self.snapshot, mask, catalog.fingerprint(mask))


def may_see(policy: Policy, caller: Caller, tool: Tool) -> bool:
    """Whether the policy lets the caller see the tool."""
    return policy.decide(caller, tool, Action.SEE) is not Decision.HIDE
