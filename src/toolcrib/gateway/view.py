"""What one caller sees: a window on a shared snapshot, and the tools that came with his request.

A view never asks a provider for anything. What lies outside its mask does not exist for it.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolcrib.catalog.catalog import Catalog
from toolcrib.errors import ToolNotFound
from toolcrib.model import Action, Caller, Decision, Filters, Key, Rejected, SearchReply, SearchRequest, Tool
from toolcrib.protocols import Policy, ToolProvider
from toolcrib.schema import Schema
from toolcrib.search.engine import listing, search
from toolcrib.search.index import Index
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.meaning import Meaning
from toolcrib.search.options import SearchOptions

_MAX_SCOPES = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """A tool with everything a call of it needs."""

    tool: Tool
    provider: ToolProvider
    schema: Schema
    wire_name: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All shared tools of one moment: what exists, how it is searched, who runs it."""

    catalog: Catalog
    index: Index
    owners: tuple[ToolProvider, ...]
    """The provider of each tool, by position."""
    rejected: tuple[tuple[str, Rejected], ...] = ()
    """Definitions set aside, with the namespace of each."""

    @classmethod
    def build(
        cls,
        offers: Sequence[tuple[ToolProvider, Sequence[Tool]]],
        previous: "Snapshot | None",
        *,
        options: SearchOptions | None = None,
        meaning: Meaning | None = None,
    ) -> "Snapshot":
        """Gather what the providers offer; the first one to offer a key owns it.

        How it is searched is as in `previous`, where nothing else is given.
        """
        owners: dict[Key, ToolProvider] = {}
        tools: list[Tool] = []
        unsound: list[tuple[str, Rejected]] = []
        for provider, offered in offers:
            for tool in offered:
                if field := unsound_field(tool):
                    unsound.append((str(tool.namespace), Rejected(tool=str(tool.name), reason=f"its {field} is none")))
                elif tool.key not in owners:
                    owners[tool.key] = provider
                    tools.append(tool)
        catalog = Catalog.build(tools, previous=previous.catalog if previous else None)
        return cls(
            catalog=catalog,
            index=Index.build(
                catalog.tools, previous=previous.index if previous else None, options=options, meaning=meaning
            ),
            owners=tuple(owners[tool.key] for tool in catalog.tools),
            rejected=(
                *unsound,
                *((tool.namespace, Rejected(tool=tool.name, reason=why)) for tool, why in catalog.rejected),
            ),
        )


def unsound_field(tool: Tool) -> str:
    """The first field of a tool that does not hold what its type says; empty where all do.

    >>> unsound_field(Tool(name="x")), unsound_field(Tool(name="x", tags=("a", 1)))
    ('', 'tags')
    """
    for name in ("name", "namespace", "description"):
        if not isinstance(getattr(tool, name), str):
            return name
    for name in ("title", "version"):
        if not isinstance(getattr(tool, name), str | None):
            return name
    for name in ("input_schema", "annotations", "meta"):
        if not isinstance(getattr(tool, name), Mapping):
            return name
    for name in ("keywords", "tags"):
        if not all(isinstance(word, str) for word in getattr(tool, name) or ()):
            return name
    return ""


EMPTY = Snapshot.build((), None)


@dataclass(frozen=True, slots=True)
class View:
    """One caller's window on a snapshot."""

    snapshot: Snapshot
    mask: bytes | None
    """One byte a tool, nonzero where it may be seen; None where all may be."""
    version: str
    """A hash of everything visible, and of nothing else."""
    overlay: Snapshot = EMPTY
    """Tools of the request; a shared tool of the same key stands before them."""
    memo: dict[Hashable, Any] = field(default_factory=dict)
    """What others derive from this view once; it lives as long as the view."""

    def tools(self) -> tuple[Tool, ...]:
        """Every visible tool, hidden ones included, by id."""
        shared = self.snapshot.catalog.tools
        if self.mask is not None:
            shared = tuple(tool for tool, seen in zip(shared, self.mask, strict=True) if seen)
        if not self.overlay.catalog.tools:
            return shared
        return tuple(sorted((*shared, *self.overlay.catalog.tools), key=lambda tool: tool.id))

    def sees(self, tool: Tool) -> bool:
        """Whether the very tool is in view."""
        position = self.snapshot.catalog.by_id(tool.id)
        return position is not None and (self.mask is None or bool(self.mask[position]))

    def find(self, spelling: str) -> Found:
        """The tool that a spelling names. Raises `ToolNotFound` or `AmbiguousName`, both within the view."""
        try:
            return self._found(self.snapshot, self.snapshot.catalog.find(spelling, self.mask))
        except ToolNotFound as missing:
            return self._find_overlaid(spelling, missing)

    def _find_overlaid(self, spelling: str, missing: ToolNotFound) -> Found:
        if not self.overlay.catalog.tools:
            raise missing
        try:
            return self._found(self.overlay, self.overlay.catalog.find(spelling))
        except ToolNotFound as error:
            error.suggestions = tuple(dict.fromkeys((*missing.suggestions, *error.suggestions)))
            raise

    def by_wire(self, name: str) -> Found | None:
        """The tool of that wire name, or None."""
        for snapshot, mask in ((self.snapshot, self.mask), (self.overlay, None)):
            position = snapshot.catalog.by_wire(name)
            if position is not None and (mask is None or mask[position]):
                return self._found(snapshot, position)
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

    @staticmethod
    def _found(snapshot: Snapshot, position: int) -> Found:
        catalog = snapshot.catalog
        return Found(
            catalog.tools[position], snapshot.owners[position], catalog.schema(position), catalog.wire_name(position)
        )


class Views:
    """The views of one snapshot, one a scope; made when first asked for."""

    def __init__(self, snapshot: Snapshot, policy: Policy, made: Mapping[Hashable, View] | None = None) -> None:
        """With the views of some scopes, where they are made already."""
        self.snapshot = snapshot
        self._policy = policy
        self._by_scope = dict(made or {})

    def on(self, snapshot: Snapshot) -> "Views":
        """The views of another snapshot: these very ones, with all they remember, where only the index is another."""
        if snapshot.catalog is not self.snapshot.catalog:
            return Views(snapshot, self._policy)
        kept = {scope: replace(view, snapshot=snapshot) for scope, view in self._by_scope.items()}
        return Views(snapshot, self._policy, kept)

    def of(self, caller: Caller) -> View:
        """The caller's view. O(catalog) for the first caller of a scope, O(1) for the others."""
        scope = self._policy.scope(caller)
        view = self._by_scope.get(scope)
        if view is None:
            if len(self._by_scope) >= _MAX_SCOPES:
                self._by_scope.pop(next(iter(self._by_scope)))
            view = self._by_scope[scope] = self._make(caller)
        return view

    def _make(self, caller: Caller) -> View:
        catalog = self.snapshot.catalog
        seen = bytes(may_see(self._policy, caller, tool) for tool in catalog.tools)
        mask = None if all(seen) else seen
        return View(self.snapshot, mask, catalog.fingerprint(mask))


def may_see(policy: Policy, caller: Caller, tool: Tool) -> bool:
    """Whether the policy lets the caller see the tool."""
    return policy.decide(caller, tool, Action.SEE) is not Decision.HIDE


def overlaid(view: View, offers: Sequence[tuple[ToolProvider, Sequence[Tool]]]) -> View:
    """The view with a request's own tools; its mark changes with them."""
    fresh = [(provider, [tool for tool in tools if not view.sees(tool)]) for provider, tools in offers]
    shared = view.snapshot.index
    overlay = Snapshot.build(fresh, None, options=shared.options, meaning=shared.meaning)
    if not overlay.catalog.tools:
        return view
    return replace(view, overlay=overlay, version=f"{view.version}.{overlay.catalog.fingerprint(None)}", memo={})
