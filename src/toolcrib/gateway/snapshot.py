"""All tools of one moment: what exists, how it is searched, and who runs it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolcrib.catalog.catalog import Catalog
from toolcrib.model import Key, Rejected, ServerStatus, Tool, Visibility
from toolcrib.protocols import Backend
from toolcrib.search.index import Index
from toolcrib.search.meaning import Meaning
from toolcrib.search.options import SearchOptions

_SHOWN: Final = 80
"""Characters of a name that a refusal repeats."""
_DEFINITION: Final = (
    "title",
    "description",
    "input_schema",
    "output_schema",
    "annotations",
    "icons",
    "meta",
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one provider offers."""

    backend: Backend
    tools: Sequence[Tool]
    rejected: tuple[Rejected, ...] = ()
    """What it listed that is no tool."""
    said: tuple[ServerStatus, ...] = ()
    """How its servers stood, as it says, when it listed these tools."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A definition that cannot be offered."""

    backend: Backend
    """Whose it is."""
    namespace: str
    rejected: Rejected
    tool: Tool | None = None
    """The definition itself, where its fields are what their types say."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The tools of several offers, each key once, and all that can run them."""

    tools: tuple[Tool, ...]
    backends: Mapping[Key, tuple[Backend, ...]]
    rejected: tuple[SetAside, ...]

    @classmethod
    def of(cls, offers: Iterable[Offer]) -> "Gathered":
        """The first offer of a key defines the tool. Equal ones back it too; others are refused."""
        first: dict[Key, Tool] = {}
        backends: dict[Key, tuple[Backend, ...]] = {}
        rejected: list[SetAside] = []
        for offer in offers:
            rejected.extend(SetAside(offer.backend, "", refused) for refused in offer.rejected)
            for tool in offer.tools:
                if field := unsound_field(tool):
                    rejected.append(SetAside(offer.backend, str(tool.namespace), unsound(tool, field)))
                    continue
                known = first.setdefault(tool.key, tool)
                if known is tool or same_definition(known, tool):
                    backends[tool.key] = (*backends.get(tool.key, ()), offer.backend)
                else:
                    why = f"{backends[tool.key][0].name} offers another tool of that name before it"
                    aside = Rejected(tool=tool.name, reason=why)
                    rejected.append(SetAside(offer.backend, tool.namespace, aside, tool))
        return cls(tuple(first.values()), backends, tuple(rejected))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tools of one moment."""

    catalog: Catalog
    index: Index
    backends: tuple[tuple[Backend, ...], ...]
    """Who can run each tool, by position; one or more."""
    rejected: tuple[SetAside, ...] = ()
    """Definitions set aside."""

    @classmethod
    def build(
        cls,
        offers: Iterable[Offer],
        previous: "Snapshot | None",
        *,
        options: SearchOptions | None = None,
        meaning: Meaning | None = None,
    ) -> "Snapshot":
        """Gather what is offered. How it is searched is as in `previous`, where nothing else is given."""
        gathered = Gathered.of(offers)
        catalog = Catalog.build(gathered.tools, previous=previous.catalog if previous else None)
        index = Index.build(
            catalog.tools, previous=previous.index if previous else None, options=options, meaning=meaning
        )
        return cls.joined(gathered, catalog, index)

    @classmethod
    def joined(cls, gathered: Gathered, catalog: Catalog, index: Index) -> "Snapshot":
        """A catalog and an index of the gathered tools, with those who run them."""
        return cls(
            catalog=catalog,
            index=index,
            backends=tuple(gathered.backends[tool.key] for tool in catalog.tools),
            rejected=(
                *gathered.rejected,
                *(
                    SetAside(gathered.backends[tool.key][0], tool.namespace, Rejected(tool=tool.name, reason=why), tool)
                    for tool, why in catalog.rejected
                ),
            ),
        )


def same_offers(old: Sequence[Offer], new: Sequence[Offer]) -> bool:
    """Whether two rounds offered the very same objects; providers keep a tool object while nothing changes."""
    return len(old) == len(new) and all(_unchanged(a, b) for a, b in zip(old, new, strict=True))


def _unchanged(old: Offer, new: Offer) -> bool:
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
    return all(_plain(getattr(one, name)) == _plain(getattr(other, name)) for name in _DEFINITION)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def unsound_field(tool: Tool) -> str:
    """The first field of a tool that does not hold what its type says; empty where all do.

    >>> unsound_field(Tool(name="x")), unsound_field(Tool(name="x", tags=("a", 1)))
    ('', 'tags')
    """
    return next((name for name, holds in _HOLDS.items() if not holds(getattr(tool, name))), "")


def unsound(tool: Tool, field: str) -> Rejected:
    """A tool that was set aside for that field."""
    return Rejected(tool=str(tool.name)[:_SHOWN], reason=f"its {field} must be {_WORDED[_HOLDS[field]]}")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict | Mapping)  # a dict is known as one ten times as fast


def _object_or_none(value: Any) -> bool:
    return value is None or _object(value)


def _words(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(map(_text, value))


def _objects(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(map(_object, value))


def _visibility(value: Any) -> bool:
    return isinstance(value, Visibility)


_HOLDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "name": _text,
    "namespace": _text,
    "title": _text_or_none,
    "description": _text,
    "input_schema": _object,
    "output_schema": _object_or_none,
    "annotations": _object,
    "icons": _objects,
    "keywords": _words,
    "tags": _words,
    "visibility": _visibility,
    "version": _text_or_none,
    "meta": _object,
}
"""Whether a value is what the field's type says, by field."""

_WORDED: Final[Mapping[Callable[[Any], bool], str]] = {
    _text: "a text",
    _text_or_none: "a text, or None",
    _object: "an object",
    _object_or_none: "an object, or None",
    _words: "texts in a tuple or a list",
    _objects: "objects in a tuple or a list",
    _visibility: f"one of {', '.join(Visibility)}",
}
"""What each of them asks for."""


EMPTY: Final = Snapshot.build((), None)
