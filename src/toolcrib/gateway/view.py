"""A view: what one caller sees of a snapshot, plus the tools that came with the request.

A view never asks a provider for anything. A tool outside its mask does not exist for it: not in lists, search scores,
suggestions or errors. Indexes of request tools are cached by content, independent of the caller who brought them.
"""

from __future__ import annotations

import marshal
import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeVar

import toolcrib.search
from toolcrib.catalog import Catalog, ambiguous_name
from toolcrib.errors import ToolNotFound
from toolcrib.gateway.policy import ReplaceablePolicy, decide
from toolcrib.gateway.snapshot import MergedTools, ProviderTools, Snapshot, empty_snapshot
from toolcrib.providers.accounts import is_group_tool, with_accounts
from toolcrib.providers.base import Backend
from toolcrib.schema import Schema, signature
from toolcrib.schema.repair import read_schema
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.types import Action, Caller, Decision, Filters, Key, Object, Policy, SearchReply, SearchRequest, Tool

_MAX_SCOPES = 4096

MAX_EMBEDDED_REQUEST_TOOLS = 64
"""A request with more tools of its own waits for no embedder, and only their words are compared."""

_T = TypeVar("_T")


class ResolvedTool(NamedTuple):
    """A tool with everything a call of it needs."""

    tool: Tool
    backends: tuple[Backend, ...]
    """The backends that can run it, in order of precedence; one or more."""
    schema: Schema
    wire_name: str

    @property
    def runs_elsewhere(self) -> bool:
        """Whether a call of it runs no code of others here: all its backends are remote servers."""
        if self.tool.meta and is_group_tool(self.tool):
            return False
        return all(backend.provider.runs_elsewhere for backend in self.backends)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescription:
    """How to call one tool."""

    tool: Tool
    id: str
    wire_name: str
    signature: str
    example: Object
    """Arguments that match the schema, ready to send."""


@dataclass(frozen=True, slots=True)
class View:
    """What one caller sees of a snapshot."""

    snapshot: Snapshot
    mask: bytes | None
    """One byte for each tool, nonzero if it is visible; None if all are."""
    version: str
    """A hash of everything visible, and of nothing else."""
    overlay: Snapshot = field(default_factory=empty_snapshot)
    """Tools of the request, without those that a visible shared tool of the same key replaces."""
    memo: dict[Hashable, Any] = field(default_factory=dict)
    """Values derived from this view; they live as long as the view."""
    base: View | None = None
    """The same view without the request's tools; it lives longer."""
    shadowed: frozenset[Key] = frozenset()
    """The tools of `base` that a tool of the request replaces."""

    def tools(self) -> tuple[Tool, ...]:
        """Return every tool in view by id, including those that are listed nowhere."""
        shared: Sequence[Tool] = self.snapshot.catalog.tools
        if narrowed := self._narrowed:
            shared = [narrowed.get(place, tool) for place, tool in enumerate(shared)]
        if self.mask is not None:
            shared = tuple(tool for tool, seen in zip(shared, self.mask, strict=True) if seen)
        return merge_sorted(shared, self.overlay.catalog.tools, key=lambda tool: tool.id)

    def overlay_tools(self) -> tuple[Tool, ...]:
        """Return the tools of the request, by id."""
        return self.overlay.catalog.tools

    def sees(self, tool: Tool) -> bool:
        """Whether a shared tool of that key is in view."""
        return self.position(tool.key) is not None

    def position(self, key: Key) -> int | None:
        """Return the position of the shared tool of that key, if it is in view."""
        position = self.snapshot.catalog.by_id(key.id)
        if position is None or (self.mask is not None and not self.mask[position]):
            return None
        return position

    def get(self, key: Key) -> Tool | None:
        """Return the tool of that key, or None."""
        position = self.position(key)
        if position is not None:
            return self._narrowed.get(position) or self.snapshot.catalog.tools[position]
        place = self.overlay.catalog.by_id(key.id)
        return None if place is None else self.overlay.catalog.tools[place]

    def find(self, spelling: str) -> ResolvedTool:
        """Return the tool that a spelling names. Raises `ToolNotFound` or `AmbiguousName`, both within the view.

        An exact id or wire name always names its tool. Any other spelling that matches a shared tool and a tool of the
        request is ambiguous, like every other that matches two tools.
        """
        if not self.overlay.catalog.tools:
            return self._shared_tool(self.snapshot.catalog.find(spelling, self.mask))
        exact = self.find_exact(spelling)
        return exact if exact is not None else self._find_loose(spelling)

    def find_exact(self, name: str) -> ResolvedTool | None:
        """Return the tool with exactly that id, else with exactly that wire name."""
        position = self.snapshot.catalog.by_id(name)
        if position is not None and (self.mask is None or self.mask[position]):
            return self._shared_tool(position)
        position = self.overlay.catalog.by_id(name)
        return self.find_wire(name) if position is None else resolve_at(self.overlay, position)

    def _find_loose(self, spelling: str) -> ResolvedTool:
        found: list[ResolvedTool] = []
        missing: list[ToolNotFound] = []
        for snapshot, mask in self._parts():
            try:
                found.append(self._resolve(snapshot, snapshot.catalog.find(spelling, mask)))
            except ToolNotFound as error:
                missing.append(error)
        if len(found) > 1:
            raise ambiguous_name(spelling, sorted(one.tool.id for one in found))
        if found:
            return found[0]
        first, last = missing
        last.suggestions = tuple(dict.fromkeys((*first.suggestions, *last.suggestions)))
        raise last

    def _parts(self) -> tuple[tuple[Snapshot, bytes | None], ...]:
        return (self.snapshot, self.mask), (self.overlay, None)

    def find_wire(self, name: str) -> ResolvedTool | None:
        """Return the tool of that wire name, or None."""
        for snapshot, mask in self._parts():
            position = snapshot.catalog.by_wire(name)
            if position is not None and (mask is None or mask[position]):
                return self._resolve(snapshot, position)
        return None

    # -- accounts --------------------------------------------------------------------------------------------------

    @property
    def _narrowed(self) -> Mapping[int, Tool]:
        """The tools of groups of accounts with the caller's accounts, by position; made once."""
        if not self.snapshot.accounts:
            return {}
        return (self.base or self).memoized("accounts", _narrow)

    def account_keys(self, tool: Tool) -> dict[str, Key]:
        """The keys of the tools of the accounts that the caller may use, for the tool of a group."""
        position = self.position(tool.key)
        accounts = () if position is None else self.snapshot.accounts.get(position, ())
        catalog = self.snapshot.catalog
        return {account: catalog.tools[at].key for account, at in accounts if self.mask is None or self.mask[at]}

    def grouped(self) -> frozenset[str]:
        """The namespaces of accounts, whose tools are shown as those of their group."""
        tools, accounts = self.snapshot.catalog.tools, self.snapshot.accounts.values()
        return self.memoized("grouped", lambda _: frozenset(tools[at].namespace for one in accounts for _, at in one))

    def _resolve(self, snapshot: Snapshot, position: int) -> ResolvedTool:
        return self._shared_tool(position) if snapshot is self.snapshot else resolve_at(snapshot, position)

    def _shared_tool(self, position: int) -> ResolvedTool:
        """The shared tool at a position, with the caller's accounts if it is that of a group."""
        found = resolve_at(self.snapshot, position)
        narrowed = self._narrowed.get(position) if self.snapshot.accounts else None
        if narrowed is None:
            return found
        schema = self.memoized(("schema", position), lambda _: read_schema(narrowed.input_schema, narrowed.id).check)
        return found._replace(tool=narrowed, schema=schema)

    def wire_name(self, tool: Tool) -> str:
        """Return the wire name of a tool in view."""
        for catalog in (self.snapshot.catalog, self.overlay.catalog):
            position = catalog.by_id(tool.id)
            if position is not None:
                return catalog.entries[position].wire
        raise ToolNotFound(f"No tool is called {tool.id}.")

    def listing(self, filters: Filters) -> tuple[Tool, ...]:
        """Return every tool that a search can find, by id."""
        found = toolcrib.search.listing(self.snapshot.index, filters, mask=self.mask, overlay=self._overlay)
        return tuple(map(self._as_seen, found)) if self._narrowed else found

    def _as_seen(self, tool: Tool) -> Tool:
        """The tool, with the caller's accounts if it is that of a group."""
        position = self.position(tool.key) if is_group_tool(tool) else None
        return tool if position is None else self._narrowed.get(position, tool)

    def search(
        self,
        request: SearchRequest,
        options: SearchOptions,
        *,
        lexicon: Lexicon | None = None,
        boosts: Mapping[str, float] | None = None,
        embedded: Mapping[str, toolcrib.search.Floats] | None = None,
        past: toolcrib.search.PastRequests | None = None,
        complete: bool = True,
    ) -> SearchReply:
        """Search the view; the gateway adds the servers to the reply.

        `boosts` maps ids of tools to the factor by which their odds are raised, 1 or more; `embedded` has the vectors
        of `request_texts`; `past` has the requests of the caller's tenant. Where the snapshot is not `complete`, the
        reply does not say that nothing fits.
        """
        reply = toolcrib.search.search(
            self.snapshot.index,
            request,
            mask=self.mask,
            overlay=self._overlay,
            options=options,
            lexicon=lexicon,
            boosts=boosts,
            embedded=embedded,
            past=past,
            complete=complete,
        )
        if not self.snapshot.accounts:
            return reply
        hits = [
            hit if (tool := self._as_seen(hit.tool)) is hit.tool else replace(hit, tool=tool, signature=signature(tool))
            for hit in reply.hits
        ]
        return replace(reply, hits=tuple(hits))

    def request_texts(
        self, request: SearchRequest, options: SearchOptions, lexicon: Lexicon | None = None
    ) -> tuple[str, ...]:
        """The texts of a request that a search compares by an embedder; none without one."""
        return toolcrib.search.request_texts(
            self.snapshot.index, request, mask=self.mask, overlay=self._overlay, options=options, lexicon=lexicon
        )

    def lacks_vectors(self) -> bool:
        """Whether the embedder has yet to embed a shared tool in view."""
        return self.snapshot.index.view(self.mask).lacks_vectors()

    @property
    def _overlay(self) -> toolcrib.search.Index | None:
        return self.overlay.index if self.overlay.catalog.tools else None

    def memoized(self, key: Hashable, make: Callable[[View], _T]) -> _T:
        """Return what `make` returns for this view, computed once."""
        if key not in self.memo:
            self.memo[key] = make(self)
        value: _T = self.memo[key]
        return value


def _narrow(view: View) -> dict[int, Tool]:
    tools = view.snapshot.catalog.tools
    return {
        place: with_accounts(tools[place], [account for account, at in accounts if not view.mask or view.mask[at]])
        for place, accounts in view.snapshot.accounts.items()
    }


def resolve_at(snapshot: Snapshot, position: int) -> ResolvedTool:
    """Return the tool at a position with everything a call needs."""
    entry = snapshot.catalog.entries[position]
    return ResolvedTool(entry.tool, snapshot.backends[position], entry.schema, entry.wire)


def merge_sorted(ordered: Sequence[_T], more: Iterable[_T], *, key: Callable[[_T], str]) -> tuple[_T, ...]:
    """Insert a few items into a sorted sequence, without sorting it again.

    >>> merge_sorted(("a", "c"), ["b"], key=str)
    ('a', 'b', 'c')
    """
    extra = tuple(more)
    if not extra:
        return tuple(ordered)
    items = list(ordered)
    for item in extra:
        insort(items, item, key=key)
    return tuple(items)


class ViewCache:
    """The views of one snapshot, one for each scope of the policy, made on first use."""

    def __init__(
        self, snapshot: Snapshot, policy: ReplaceablePolicy, made: Mapping[Hashable, View] | None = None
    ) -> None:
        self.snapshot = snapshot
        self._policy = policy
        self._by_scope = dict(made or {})

    def rebase(self, snapshot: Snapshot) -> ViewCache:
        """Return the views of another snapshot; if only its index differs, they keep what they memoized."""
        if snapshot.catalog is not self.snapshot.catalog:
            return ViewCache(snapshot, self._policy)
        kept = {scope: replace(view, snapshot=snapshot) for scope, view in tuple(self._by_scope.items())}
        return ViewCache(snapshot, self._policy, kept)

    def for_caller(self, caller: Caller) -> View:
        """Return the caller's view. O(catalog) for the first caller of a scope, O(1) for the others."""
        scope = None if self._policy.allows_everything else self._policy.scope(caller)
        view = self._by_scope.get(scope)
        if view is None:
            view = self._make(caller)
            if len(self._by_scope) >= _MAX_SCOPES:
                self._by_scope.pop(next(iter(self._by_scope)), None)
            view = self._by_scope.setdefault(scope, view)
        return view

    def _make(self, caller: Caller) -> View:
        catalog = self.snapshot.catalog
        if self._policy.allows_everything and not self.snapshot.accounts:
            return View(self.snapshot, None, catalog.fingerprint())
        seen = bytearray(may_see(self._policy, caller, tool) for tool in catalog.tools)
        for place, accounts in self.snapshot.accounts.items():
            seen[place] = seen[place] and any(seen[at] for _, at in accounts)
        mask = None if all(seen) else bytes(seen)
        return View(self.snapshot, mask, catalog.fingerprint(mask))


def may_see(policy: Policy, caller: Caller, tool: Tool) -> bool:
    """Whether the policy lets the caller see the tool."""
    return decide(policy, caller, tool, Action.SEE) is not Decision.HIDE


@dataclass(frozen=True, slots=True)
class _CachedOverlay:
    tools: tuple[Tool, ...]
    catalog: Catalog
    index: toolcrib.search.Index
    mark: str
    """A hash of the catalog's content."""
    beside: str = ""
    """The version of a view in which no shared tool replaces any of these."""
    vectors: int = 0
    """The version of the embedder's vectors that the index has."""

    def with_vectors(self) -> _CachedOverlay:
        """Return the same with the vectors of tools that became known meanwhile."""
        known = self.index.model.tools
        if known is None or known.version == self.vectors:
            return self
        version = known.version
        return replace(self, index=self.index.with_vectors(), vectors=version)


class OverlayCache:
    """Caches catalogs and indexes of request tools by their content, for any caller. Thread-safe."""

    def __init__(self, max_tools: int) -> None:
        """Keep at most `max_tools` tools in all; those not used for longest are dropped first."""
        self._max_tools = max_tools
        self._overlays: OrderedDict[int, _CachedOverlay] = OrderedDict()
        self._keys_by_identity: dict[tuple[int, ...], int] = {}
        """Keys into `_overlays`, by the identities of the tools."""
        self._count = 0
        self._without_vectors: toolcrib.search.SemanticModel | None = None
        self._lock = threading.Lock()

    def is_cached(self, tools: tuple[Tool, ...]) -> bool:
        """Whether these very objects are cached. Tools are immutable, so they need no further check."""
        return self._key_of_same(tools) is not None

    def apply(self, view: View, plain: Sequence[ProviderTools], overriding: Sequence[ProviderTools] = ()) -> View:
        """Return the view with these tools; its version depends on them. `overriding` tools replace shared ones."""
        if len(plain) == 1 and not overriding and (again := self._cached_view(view, plain[0])) is not None:
            return again
        taken = {tool.key for offer in overriding for tool in offer.tools}
        fresh = [
            replace(offer, tools=[tool for tool in offer.tools if not _is_taken(view, tool, taken)]) for offer in plain
        ]
        gathered = MergedTools.merge((*overriding, *fresh))
        if not gathered.tools:
            return view
        alone = len(fresh) == 1 and not overriding and len(fresh[0].tools) == len(plain[0].tools)
        kept = self._overlay_for(gathered.tools, view.snapshot.index, view.version if alone else "")
        overlay = Snapshot.from_parts(gathered, kept.catalog, kept.index)
        version = f"{view.version}.{kept.mark}"
        shadowed = [place for key in taken if (place := view.position(key)) is not None]
        if not shadowed:
            return replace(view, overlay=overlay, version=version, memo={}, base=view)
        return _without_shadowed(replace(view, overlay=overlay, version=version, memo={}, base=view), shadowed)

    def _cached_view(self, view: View, offer: ProviderTools) -> View | None:
        """Return the view with the tools of a request's only provider, if they were applied to the same view before."""
        tools = tuple(offer.tools)
        kept = self._cached(self._key_of(tools), tools, view.snapshot.index)
        if kept is None or kept.beside != view.version or offer.rejected or kept.catalog.rejected:
            return None
        overlay = Snapshot(kept.catalog, kept.index, ((offer.backend,),) * len(kept.catalog))
        return replace(view, overlay=overlay, version=f"{view.version}.{kept.mark}", memo={}, base=view)

    def _overlay_for(self, tools: tuple[Tool, ...], shared: toolcrib.search.Index, beside: str) -> _CachedOverlay:
        place = self._key_of(tools)
        kept = self._cached(place, tools, shared)
        if kept is not None and (kept.beside == beside or not beside):
            return kept
        if kept is None:
            catalog = Catalog.build(tools)
            index = toolcrib.search.Index.build(
                catalog.tools, options=shared.options, model=self._model_for(tools, shared.model)
            )
            made = _CachedOverlay(tools, catalog, index, catalog.fingerprint(None), beside)
        else:
            made = replace(kept, beside=beside)
        self._store(place, made)
        return made

    def _model_for(self, tools: Sequence[Tool], shared: toolcrib.search.SemanticModel) -> toolcrib.search.SemanticModel:
        """The shared model, or an equal one that embeds no tools if there are too many."""
        if len(tools) <= MAX_EMBEDDED_REQUEST_TOOLS or shared.tools is None:
            return shared
        if self._without_vectors != shared:
            self._without_vectors = shared.without_tools()
        return self._without_vectors

    def _key_of(self, tools: tuple[Tool, ...]) -> int:
        place = self._key_of_same(tools)
        return _content_key(tools) if place is None else place

    def _key_of_same(self, tools: tuple[Tool, ...]) -> int | None:
        with self._lock:
            place = self._keys_by_identity.get(tuple(map(id, tools)), -1)
            kept = self._overlays.get(place)
        return place if kept is not None and all(map(is_, kept.tools, tools)) else None

    def _cached(self, place: int, tools: tuple[Tool, ...], shared: toolcrib.search.Index) -> _CachedOverlay | None:
        with self._lock:
            kept = self._overlays.get(place)
            if kept is None or not _is_reusable(kept, tools, shared):
                return None
            self._overlays.move_to_end(place)
            kept = kept.with_vectors()
            self._overlays[place] = kept
            if not all(map(is_, kept.tools, tools)):  # equal tools that the provider may reuse from now on
                self._put(place, replace(kept, tools=tools))
        return kept

    def _store(self, place: int, made: _CachedOverlay) -> None:
        if len(made.tools) > self._max_tools:
            return
        with self._lock:
            self._put(place, made)
            while self._count > self._max_tools:
                self._drop(next(iter(self._overlays)))

    def _put(self, place: int, made: _CachedOverlay) -> None:
        if place in self._overlays:
            self._drop(place)
        self._overlays[place] = made
        self._keys_by_identity[tuple(map(id, made.tools))] = place
        self._count += len(made.tools)

    def _drop(self, place: int) -> None:
        tools = self._overlays.pop(place).tools
        self._count -= len(tools)
        self._keys_by_identity.pop(tuple(map(id, tools)), None)


def _without_shadowed(view: View, places: Sequence[int]) -> View:
    """Return the view without the shared tools at these positions."""
    mask = bytearray(view.mask or b"\x01" * len(view.snapshot.catalog))
    for place in places:
        mask[place] = 0
    keys = frozenset(view.snapshot.catalog.tools[place].key for place in places)
    mark = blake2b("\0".join(sorted(map(str, keys))).encode(), digest_size=4).hexdigest()
    return replace(view, mask=bytes(mask), version=f"{view.version}.{mark}", shadowed=keys)


def _content_key(tools: tuple[Tool, ...]) -> int:
    """Hash tools by their exact content: values that are equal in Python may differ in JSON, as 1 and true do, and
    the order of parameters shows in a signature.
    """
    return hash((*map(_content_bytes, tools), *[type(tool.visibility) for tool in tools]))


_marshalled_fields = attrgetter(*(item.name for item in fields(Tool) if item.name != "visibility"))
"""All fields of a tool except its visibility, which marshal cannot write."""


def _content_bytes(tool: Tool) -> bytes | str:
    try:
        return marshal.dumps(_marshalled_fields(tool), 0)
    except ValueError:  # not plain JSON, such as another mapping class
        return _content_repr(tool)


def _content_repr(tool: Tool) -> str:
    try:
        return repr(_marshalled_fields(tool))
    except RecursionError:  # the catalog rejects it
        return tool.id


def _is_reusable(kept: _CachedOverlay, tools: tuple[Tool, ...], shared: toolcrib.search.Index) -> bool:
    """Whether the overlay has these tools, and an index like the shared one."""
    return kept.tools == tools and kept.index.model == shared.model and kept.index.options == shared.options


def _is_taken(view: View, tool: Tool, taken: set[Key]) -> bool:
    return tool.key in taken or view.sees(tool)
