"""A list of tools, read once: looked up in any spelling, searched by one index. Immutable."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from toolcrib.catalog.catalog import Catalog
from toolcrib.discovery.reading import namespace_in, own_description, own_name, own_namespace, read
from toolcrib.errors import AmbiguousName, ToolcribError, ToolNotFound
from toolcrib.model import Object, Rejected, SearchRequest, Tool, Visibility
from toolcrib.search.engine import search
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.search.text import words

T = TypeVar("T")

_ECHO: Final = 80
_SUGGESTIONS: Final = 3
_LIKELY: Final = 0.2
"""The score, 0 to 1, from which a tool is suggested for what it does."""
_READ: Final = 8_000
"""Characters of a description."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Known(Generic[T]):
    """One tool and how it was read."""

    original: T
    tool: Tool
    name: str
    """The name that the tool gives itself."""
    namespace: str
    description: str

    @property
    def id(self) -> str:
        """The canonical id."""
        return self.tool.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Generic[T]):
    """How names are taken from tools."""

    name_of: Callable[[T], str] = own_name
    namespace_of: Callable[[T], str] = own_namespace

    def known(self, original: T, before: "Known[T] | None" = None) -> Known[T]:
        """The tool, read. What it was read as before stays the same object where nothing changed."""
        name: Any = self.name_of(original)
        namespace: Any = self.namespace_of(original)
        if isinstance(name, str) and isinstance(namespace, str):
            namespace = namespace_in(name, namespace)
        tool = read(original, name, namespace)
        if before is not None and before.tool == tool:
            return before
        return Known(
            original=original,
            tool=tool,
            name=name,
            namespace=namespace,
            description=tool.description if tool is not original else own_description(original),
        )


class ToolSet(Generic[T]):
    """Tools that can be found."""

    def __init__(
        self,
        originals: Sequence[T],
        reader: Reader[T],
        options: SearchOptions,
        previous: "ToolSet[T] | None" = None,
    ) -> None:
        """Read them. Broken ones are set aside in `rejected`; what `previous` had read is read again only if new."""
        self.originals = tuple(originals)
        """As they were given; kept, so that no other object can take their place in memory."""
        before = {id(one.original): one for one in previous.known} if previous else {}
        rejected: list[Rejected] = []
        found: list[Known[T]] = []
        for original in self.originals:
            try:
                found.append(reader.known(original, before.get(id(original))))
            except Exception as error:  # noqa: BLE001 - a tool of any make may raise anything; it alone is left out
                rejected.append(Rejected(tool=type(original).__name__, reason=_reason(error)))
        self.catalog: Catalog = Catalog.build(
            [one.tool for one in found], previous=previous.catalog if previous else None
        )
        taken = {id(tool) for tool in self.catalog.tools}
        self.by_id = {one.id: one for one in reversed(found) if id(one.tool) in taken}
        self.known: tuple[Known[T], ...] = tuple(one for one in found if self.by_id.get(one.id) is one)
        """Those that can be found, in the order given."""
        self.listed = tuple(one for one in self.known if one.tool.visibility is not Visibility.HIDDEN)
        """Those that are shown; the others are found by their exact names only."""
        self.rejected = (*rejected, *(Rejected(tool=tool.id, reason=why) for tool, why in self.catalog.rejected))
        """Those that cannot, and why."""
        self._options = options
        self._names = Counter(one.name for one in self.known)
        self._previous = previous._index if previous else None  # noqa: SLF001 - of the same class
        self._index: Index | None = None
        self._building = Lock()

    def __len__(self) -> int:
        """How many can be found."""
        return len(self.known)

    @property
    def index(self) -> Index:
        """The index, built when it is first asked for."""
        with self._building:
            if self._index is None:
                self._index = Index.build(self.catalog.tools, previous=self._previous, options=self._options)
                self._previous = None
            return self._index

    @cached_property
    def vocabulary(self) -> tuple[frozenset[str], frozenset[str]]:
        """The words of the names, and those of the descriptions."""
        names = (word for one in self.known for word in words(one.tool.name))
        texts = (word for one in self.known for word in words(one.tool.description[:_READ]))
        return frozenset(names), frozenset(texts)

    def same(self, originals: Sequence[T]) -> bool:
        """Whether it was made of these very objects."""
        return len(originals) == len(self.originals) and all(
            one is other for one, other in zip(originals, self.originals, strict=True)
        )

    def call_name(self, known: Known[T]) -> str:
        """The name to call a tool by: its own, or `namespace.name` where another tool has the same one."""
        alone = self._names[known.name] == 1 or not known.namespace
        return known.name if alone else f"{known.namespace}.{known.tool.name}"

    def find(self, name: str, mask: bytes | None = None) -> Known[T]:
        """The one tool that answers to a name, in any spelling.

        `mask` has one byte for each tool of the catalog: others do not exist. Raises `ToolNotFound`, which suggests
        names, and `AmbiguousName`, which names the candidates.
        """
        try:
            return self.by_id[self.catalog.tools[self.catalog.find(name, mask)].id]
        except AmbiguousName as error:
            raise self._ambiguous(name, error.suggestions) from None
        except ToolNotFound as error:
            raise self._missing(name, error.suggestions, mask) from None

    def id_of(self, name: str) -> str:
        """The id of the tool that answers to a name, or the name itself where none or several do."""
        if name in self.by_id:
            return name
        try:
            return self.catalog.tools[self.catalog.find(name)].id
        except ToolcribError:
            return name

    def check(self, known: Known[T], arguments: Object) -> None:
        """Return when the arguments fit the schema of a tool. Raises `InvalidArguments`, which says what would."""
        position = self.catalog.by_id(known.id)
        if position is not None:
            self.catalog.schema(position).check(arguments, self.call_name(known))

    def mask(self, kept: Sequence[Known[T]]) -> bytes:
        """The mask that shows only these."""
        ids = {one.id for one in kept}
        return bytes(tool.id in ids for tool in self.catalog.tools)

    def _ambiguous(self, name: str, ids: Sequence[str]) -> AmbiguousName:
        names = self._called(ids)
        return AmbiguousName(
            f"Tool '{name[:_ECHO]}' is ambiguous: several tools answer to it.",
            hint=f"Use one of: {', '.join(names)}.",
            suggestions=names,
        )

    def _missing(self, name: str, ids: Sequence[str], mask: bytes | None) -> ToolNotFound:
        names = self._called(ids or self._alike(name, mask))
        hint = f"Did you mean: {', '.join(names)}?" if names else "Use search_tools to discover available tools."
        return ToolNotFound(f"Tool '{name[:_ECHO]}' not found.", hint=hint, suggestions=names)

    def _alike(self, name: str, mask: bytes | None) -> list[str]:
        """Ids of tools that do what the name says, where no name is like it."""
        if not len(self) or not name.strip():
            return []
        request = SearchRequest(queries=(name,), limit=_SUGGESTIONS, detail="summary")
        reply = search(self.index, request, mask=mask, options=SearchOptions())
        return [hit.tool.id for hit in reply.hits if hit.score >= _LIKELY]

    def _called(self, ids: Sequence[str]) -> list[str]:
        return [self.call_name(self.by_id[id_]) for id_ in ids]


def _reason(error: Exception) -> str:
    return (
        str(error) if isinstance(error, ToolcribError) else f"it cannot be read: {type(error).__name__}: {error}"[:300]
    )
