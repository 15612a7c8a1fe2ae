"""A snapshot: every shared tool at one moment, how it is searched, and which backends run it. It never changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from toolcrib import search
from toolcrib.catalog import Catalog
from toolcrib.gateway.offers import MergedTools, ProviderTools, RejectedDefinition
from toolcrib.providers.accounts import find_accounts
from toolcrib.providers.base import Backend
from toolcrib.sanitize import visible
from toolcrib.search.options import SearchOptions
from toolcrib.state.saved_index import SavedIndex
from toolcrib.types import Rejected


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All shared tools at one moment."""

    catalog: Catalog
    built: search.Index | None
    """The index of the tools; None if there are none, and the options are those of an empty index."""
    backends: tuple[tuple[Backend, ...], ...]
    """The backends of each tool, by position; one or more."""
    rejected: tuple[RejectedDefinition, ...] = ()
    """Definitions that cannot be used."""
    marked: tuple[RejectedDefinition, ...] = ()
    """Definitions in use that were repaired, or whose arguments are not checked here."""
    accounts: Mapping[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """For each tool of a group, by its position: the accounts that have it, with the positions of their tools."""

    @classmethod
    def build(
        cls,
        offers: Iterable[ProviderTools],
        previous: Snapshot | None,
        *,
        options: SearchOptions | None = None,
        saved: SavedIndex | None = None,
    ) -> Snapshot:
        """Build a snapshot; the search is configured as in `previous` unless given otherwise.

        Tools that the `saved` index knows are not analyzed.
        """
        gathered = MergedTools.merge(offers)
        catalog = Catalog.build(gathered.tools, previous=previous.catalog if previous else None)
        before = previous.built if previous else None
        if not catalog.tools and before is None and options in (None, SearchOptions()):
            return cls.from_parts(gathered, catalog, None)
        build = search.Index.build if saved is None else saved.build
        return cls.from_parts(gathered, catalog, build(catalog.tools, previous=before, options=options))

    @classmethod
    def from_parts(cls, gathered: MergedTools, catalog: Catalog, index: search.Index | None) -> Snapshot:
        """Join a catalog and an index of the merged tools with their backends."""
        return cls(
            catalog=catalog,
            built=index,
            backends=tuple(gathered.backends[tool.key] for tool in catalog.tools),
            accounts=find_accounts(catalog.tools),
            marked=tuple(
                RejectedDefinition(gathered.backends[tool.key][0], tool.namespace, remark, tool)
                for tool, remark in catalog.marked
            ),
            rejected=(
                *gathered.rejected,
                *(
                    RejectedDefinition(
                        gathered.backends[tool.key][0],
                        tool.namespace,
                        Rejected(tool=visible(tool.name), reason=why),
                        tool,
                    )
                    for tool, why in catalog.rejected
                ),
            ),
        )

    @property
    def index(self) -> search.Index:
        """The index of the tools. Without any, the search is loaded when this is first read, and not before."""
        return search.empty_index() if self.built is None else self.built


@cache
def empty_snapshot() -> Snapshot:
    """The snapshot without tools."""
    return Snapshot.build((), None)
