"""What providers list, and the snapshot that is made of it: every shared tool at one moment, and what runs it.

Rejects what cannot be used. A snapshot never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from toolcrib import search
from toolcrib.catalog import Catalog
from toolcrib.providers.accounts import find_accounts
from toolcrib.providers.base import Backend
from toolcrib.sanitize import visible
from toolcrib.search.options import SearchOptions
from toolcrib.state.saved_index import SavedIndex
from toolcrib.types import Key, Rejected, ServerStatus, Tool, Visibility

_MAX_NAME_CHARS: Final = 80
"""Characters of a name that an error repeats."""

_DEFINITION_FIELDS: Final = (
    "title",
    "description",
    "input_schema",
    "output_schema",
    "annotations",
    "icons",
    "meta",
)


@dataclass(frozen=True, slots=True)
class ProviderTools:
    """What one provider lists."""

    backend: Backend
    tools: Sequence[Tool]
    rejected: tuple[Rejected, ...] = ()
    """Items that are not tools."""
    statuses: tuple[ServerStatus, ...] = ()
    """The statuses of its servers when it listed these tools."""


@dataclass(frozen=True, slots=True)
class RejectedDefinition:
    """A definition that cannot be used, or not as it came."""

    backend: Backend
    namespace: str
    rejected: Rejected
    tool: Tool | None = None
    """The definition itself, if its fields have the right types."""


@dataclass(frozen=True, slots=True)
class MergedTools:
    """The tools of several providers, each key once, with all backends that can run them."""

    tools: tuple[Tool, ...]
    backends: Mapping[Key, tuple[Backend, ...]]
    rejected: tuple[RejectedDefinition, ...]

    @classmethod
    def merge(cls, offers: Iterable[ProviderTools]) -> MergedTools:
        """Merge lists: the first tool of a key defines it, equal ones add a backend, and others are rejected."""
        first: dict[Key, Tool] = {}
        backends: dict[Key, tuple[Backend, ...]] = {}
        rejected: list[RejectedDefinition] = []
        for offer in offers:
            rejected.extend(RejectedDefinition(offer.backend, "", refused) for refused in offer.rejected)
            for tool in offer.tools:
                if field := invalid_field(tool):
                    rejected.append(RejectedDefinition(offer.backend, str(tool.namespace), reject_invalid(tool, field)))
                    continue
                known = first.setdefault(tool.key, tool)
                if known is tool or same_definition(known, tool):
                    backends[tool.key] = (*backends.get(tool.key, ()), offer.backend)
                else:
                    why = f"{backends[tool.key][0].name} already has another tool of that name"
                    reason = Rejected(tool=tool.name, reason=why)
                    rejected.append(RejectedDefinition(offer.backend, tool.namespace, reason, tool))
        return cls(tuple(first.values()), backends, tuple(rejected))


def same_tools(old: Sequence[ProviderTools], new: Sequence[ProviderTools]) -> bool:
    """Whether two rounds listed the same objects; providers keep a tool object while nothing changes."""
    return len(old) == len(new) and all(_same_provider_tools(a, b) for a, b in zip(old, new, strict=True))


def _same_provider_tools(old: ProviderTools, new: ProviderTools) -> bool:
    if old.backend is not new.backend or len(old.tools) != len(new.tools) or old.rejected != new.rejected:
        return False
    return old.tools is new.tools or all(a is b for a, b in zip(old.tools, new.tools, strict=True))


def same_definition(one: Tool, other: Tool) -> bool:
    """Whether two tools of one key look the same to a client.

    >>> same_definition(Tool(name="x", tags=("a",)), Tool(name="x"))
    True
    >>> same_definition(Tool(name="x", title="Ex"), Tool(name="x"))
    False
    """
    return all(_comparable(getattr(one, name)) == _comparable(getattr(other, name)) for name in _DEFINITION_FIELDS)


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def invalid_field(tool: Tool) -> str:
    """Return the first field of a tool with a value of the wrong type; empty if all are right.

    >>> invalid_field(Tool(name="x")), invalid_field(Tool(name="x", tags=("a", 1)))
    ('', 'tags')
    """
    return next((name for name, holds in _FIELD_CHECKS.items() if not holds(getattr(tool, name))), "")


def reject_invalid(tool: Tool, field: str) -> Rejected:
    """Reject a tool for that field."""
    return Rejected(
        tool=str(tool.name)[:_MAX_NAME_CHARS], reason=f"its {field} must be {_EXPECTED[_FIELD_CHECKS[field]]}"
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict | Mapping)  # checking for a dict is ten times faster


def _is_object_or_none(value: Any) -> bool:
    return value is None or _is_object(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_text, value))


def _is_objects(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_object, value))


def _is_visibility(value: Any) -> bool:
    return isinstance(value, Visibility)


_FIELD_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "name": _is_text,
    "namespace": _is_text,
    "title": _is_text_or_none,
    "description": _is_text,
    "input_schema": _is_object,
    "output_schema": _is_object_or_none,
    "annotations": _is_object,
    "icons": _is_objects,
    "keywords": _is_texts,
    "tags": _is_texts,
    "visibility": _is_visibility,
    "version": _is_text_or_none,
    "meta": _is_object,
}
"""For each field, a check of its value."""

_EXPECTED: Final[Mapping[Callable[[Any], bool], str]] = {
    _is_text: "a string",
    _is_text_or_none: "a string, or None",
    _is_object: "an object",
    _is_object_or_none: "an object, or None",
    _is_texts: "texts in a tuple or a list",
    _is_objects: "objects in a tuple or a list",
    _is_visibility: f"one of {', '.join(Visibility)}",
}
"""What each check expects."""


# -- the snapshot ------------------------------------------------------------------------------------------------------


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
