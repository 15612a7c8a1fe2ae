"""The search index: immutable segments of postings and features, and the view of them that one caller has.

An index has one large segment and a small one for recent changes; a change makes a new index. A segment holds what
depends on a single tool. Document frequencies are counted at query time among the tools that the caller sees, so that
a tool they cannot see changes nothing for them. Segments know nothing about permissions.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import log
from typing import Any, Protocol

import numpy as np

from toolcrib.checks import checked
from toolcrib.search.analysis import Ints
from toolcrib.search.features import SemanticModel, default_semantic_model
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import ABSENT, Bools, Segment
from toolcrib.types import Tool

_MAX_SMALL_DELTA = 64
"""A delta of at most so many tools always stays a segment of its own."""
_DELTA_SHARE = 20
"""A larger delta stays separate up to one in so many of all tools."""
_REMOVED_SHARE = 5
"""The base segment is kept until more than one in so many of its tools are gone."""
_MAX_CACHED_VIEWS = 16
"""Views that are cached."""


@dataclass(frozen=True)
class SegmentView:
    """One segment, and which of its tools the caller sees."""

    segment: Segment
    visible: Bools
    count: int = field(init=False)
    """How many tools are visible."""
    is_whole: bool = field(init=False)
    """Whether all tools are visible."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", int(np.count_nonzero(self.visible)))
        object.__setattr__(self, "is_whole", self.count == len(self.visible))

    @cached_property
    def positions(self) -> Ints:
        """The positions of the visible tools."""
        return self.visible.nonzero()[0].astype(np.int32)

    def begins_name(self, word: str) -> bool:
        """Whether the name of a visible tool begins with the word and continues."""
        at = self.segment.first_words.get(word)
        return at is not None and (self.is_whole or bool(self.visible[at].any()))

    def frequency(self, start: int, stop: int) -> int:
        """Count the visible tools in a range of postings."""
        if stop == start or self.is_whole:
            return stop - start
        return int(np.count_nonzero(self.visible[self.segment.positions[start:stop]]))


class WordStatistics(Protocol):
    """What is known of the words of a whole catalog, of which a view may hold only a few tools."""

    def frequency(self, stem: str) -> int:
        """How many tools have the stem."""

    def common_word(self, stem: str) -> str:
        """The form of a stem that most tools use; empty if no tool has it."""

    def begins_name(self, word: str) -> bool:
        """Whether the name of a tool begins with the word and continues."""


@dataclass(frozen=True, slots=True)
class IndexView:
    """All tools that one caller sees."""

    parts: tuple[SegmentView, ...]
    count: int
    """How many tools are visible in all."""
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """Values that other modules derive from the view and cache. Callers with different views never share it."""
    statistics: WordStatistics | None = None
    """Where the frequencies of words come from; None counts them in the parts."""

    @classmethod
    def of(cls, *parts: SegmentView) -> "IndexView":
        """Make a view of these parts."""
        return cls(parts, sum(part.count for part in parts))

    def lacks_vectors(self) -> bool:
        """Whether the embedder has yet to embed some visible tool."""
        if "lacks vectors" not in self.memo:
            self.memo["lacks vectors"] = any(
                bool((part.segment.features.embedded.rows.scales[part.visible] == 0).any()) for part in self.parts
            )
        found: bool = self.memo["lacks vectors"]
        return found

    def spans(self, stem: str) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The document frequency of a stem among visible tools, and where its postings are in each part."""
        if self.statistics is not None:
            return self.statistics.frequency(stem), tuple([part.segment.span(stem) for part in self.parts])
        if len(self.parts) == 1:
            part = self.parts[0]
            span = part.segment.span(stem)
            return part.frequency(*span), (span,)
        spans = tuple([part.segment.span(stem) for part in self.parts])
        return sum([part.frequency(*span) for part, span in zip(self.parts, spans, strict=True)]), spans

    def stem_test(self) -> Callable[[str], bool]:
        """A fast test whether any tool, visible or not, has a stem."""
        if self.statistics is not None:
            frequency = self.statistics.frequency
            return lambda stem: frequency(stem) > 0
        first, *others = [part.segment.vocabulary.stem_numbers for part in self.parts]
        if not others:
            return first.__contains__
        return lambda stem: stem in first or any(stem in numbers for numbers in others)

    def name_test(self) -> Callable[[str], bool]:
        """A fast test whether the name of a visible tool begins with a word and continues."""
        if self.statistics is not None:
            return self.statistics.begins_name
        first, *others = self.parts
        if first.is_whole and not others:
            return first.segment.first_words.__contains__
        return lambda word: any(part.begins_name(word) for part in self.parts)


@checked(shallow=True, methods=("build",))
class Index:
    """Searchable tools. A position is an index into `tools`; a mask has one byte per position.

    Immutable, and safe to use from several threads.
    """

    __slots__ = ("_size", "_tools", "_views", "model", "options", "places", "segments")

    def __init__(self, size: int, segments: Sequence[Segment], places: Sequence[Ints]) -> None:
        """Call `Index.build` instead."""
        self._size = size
        self._tools: tuple[Tool, ...] | None = None
        self.segments = tuple(segments)
        self.places = tuple(places)
        """For each segment, the position of each of its tools in the index; -1 for tools that are gone."""
        self.options = self.segments[0].options
        self.model = self.segments[0].model
        self._views: dict[bytes | None, IndexView] = {}
        """By mask. Replaced as a whole, never changed in place, since several threads may search."""

    @classmethod
    def build(
        cls,
        tools: Sequence[Tool],
        *,
        previous: "Index | None" = None,
        options: SearchOptions | None = None,
        model: SemanticModel | None = None,
    ) -> "Index":
        """Build an index of the tools. Tool objects that `previous` holds are not analyzed again.

        Options and model default to those of `previous`.
        """
        # An index without tools is false.
        options = options or (SearchOptions() if previous is None else previous.options)
        model = model or (default_semantic_model() if previous is None else previous.model)
        if previous is None or previous.options != options or previous.model != model:
            return cls._whole(Segment.build(tools, options=options, model=model))
        return previous._changed(tools)  # noqa: SLF001 - of the same class

    def updated(self, add: Iterable[Tool] = (), remove: Iterable[str] = ()) -> "Index":
        """Return an index with some tools added at the end, and those with some ids removed.

        A new tool replaces one with the same id. The cost is that of the change, plus one integer per tool.
        """
        fresh = list(add)
        ids = {*remove, *(tool.id for tool in fresh)}
        gone = sorted({position for id_ in ids for position in self._positions(id_)})
        places = [_shift_positions(places, gone) if gone else places for places in self.places]
        return self._joined(places, list(enumerate(fresh, len(self) - len(gone))))

    def with_vectors(self, model: SemanticModel | None = None) -> "Index":
        """Return the index with all vectors that are known of its tools; the same index if there is nothing new.

        With a model, also use its embedder from now on. Raises `ValueError` if its table is another one.
        """
        model = model or self.model
        if model.table is not self.model.table:
            raise ValueError("the model has another table than the index")
        segments = [segment.with_vectors(model) for segment in self.segments]
        if all(new is old for new, old in zip(segments, self.segments, strict=True)):
            return self
        return Index(len(self), segments, self.places)

    def merged(self) -> "Index":
        """Merge the segments into one, which is faster to search. Takes time, so do it in the background."""
        if len(self.segments) == 1 and not self._gone(self.places[0]):
            return self
        return self._whole(self._base(self.tools))

    def __len__(self) -> int:
        return self._size

    def changes(self) -> tuple[int, int]:
        """How many tools were removed, and how many added, since its large segment was built."""
        return self._gone(self.places[0]), sum(len(at) - self._gone(at) for at in self.places[1:])

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools, by position."""
        if self._tools is None:
            self._tools = tuple(_in_order(self._pairs(), ()))
        return self._tools

    def view(self, mask: bytes | None = None, overlay: "Index | None" = None) -> IndexView:
        """Return the view of the tools that the mask shows, together with all tools of the overlay.

        Views without an overlay are cached by mask. Raises `ValueError` for a mask of the wrong length, and for an
        overlay built with another embedder.
        """
        view = self._views.get(mask)
        if view is None:
            view = IndexView.of(*self.parts(mask))
            self._views = dict([*self._views.items(), (mask, view)][-_MAX_CACHED_VIEWS:])
        if overlay is None:
            return view
        if overlay.model != self.model:
            raise ValueError("the overlay was built with another embedder than the index")
        return IndexView.of(*view.parts, *overlay.view().parts)

    def parts(self, mask: bytes | None) -> tuple[SegmentView, ...]:
        """Return the visible part of each segment. Raises `ValueError` for a mask of the wrong length."""
        if mask is None:
            return tuple([self._part(*pair, None) for pair in self._pairs()])
        if len(mask) != len(self):
            raise ValueError(f"the mask has {len(mask)} bytes for {len(self)} tools")
        seen = np.frombuffer(mask, dtype=np.uint8) != 0
        return tuple([self._part(segment, places, seen) for segment, places in self._pairs()])

    def _pairs(self) -> Iterable[tuple[Segment, Ints]]:
        return zip(self.segments, self.places, strict=True)

    @staticmethod
    def _part(segment: Segment, places: Ints, mask: Bools | None) -> SegmentView:
        seen: Bools = segment.findable
        if len(places) and (mask is not None or int(places.min()) < 0):
            seen = seen & (places >= 0)
            if mask is not None:
                seen &= mask[places]
        return SegmentView(segment, seen)

    @classmethod
    def _whole(cls, segment: Segment) -> "Index":
        return cls(len(segment), (segment,), (np.arange(len(segment), dtype=np.int32),))

    def _base(self, tools: Sequence[Tool]) -> Segment:
        """Build one segment of the tools, reusing the base segment."""
        return Segment.build(tools, options=self.options, model=self.model, previous=self.segments[0])

    def _changed(self, tools: Sequence[Tool]) -> "Index":
        """Return the index of other tools, many of which are the same objects."""
        places = [np.full(len(segment), -1, dtype=np.int32) for segment in self.segments]
        known: dict[int, tuple[Any, int]] = {}
        for (segment, old), new in zip(self._pairs(), places, strict=True):
            known.update((id(segment.tools[at]), (new, at)) for at in np.flatnonzero(old >= 0).tolist())
        fresh: list[tuple[int, Tool]] = []
        for position, tool in enumerate(tools):
            found = known.pop(id(tool), None)
            if found is None:
                fresh.append((position, tool))
            else:
                found[0][found[1]] = position
        return self._joined(places, fresh)

    def _joined(self, places: Sequence[Ints], fresh: Sequence[tuple[int, Tool]]) -> "Index":
        """Combine the base segment, at its new places, with a delta of the rest. Merge both if the delta is large."""
        base, *deltas = zip(self.segments, places, strict=True)
        stay = [(int(at[p]), segment.tools[p]) for segment, at in deltas for p in np.flatnonzero(at >= 0).tolist()]
        behind = [*stay, *fresh]
        gone = self._gone(base[1])
        size = len(base[0]) - gone + len(behind)
        worn = gone * _REMOVED_SHARE > len(base[0]) and not base[0].restored
        if worn or len(behind) > max(_MAX_SMALL_DELTA, size // _DELTA_SHARE):
            return self._whole(self._base(_in_order([base], behind)))
        if not behind:
            return Index(size, (base[0],), (base[1],))
        segment = Segment.build(
            [tool for _, tool in behind],
            options=self.options,
            model=self.model,
            previous=deltas[0][0] if deltas else None,
        )
        return Index(size, (base[0], segment), (base[1], np.array([at for at, _ in behind], dtype=np.int32)))

    @staticmethod
    def _gone(places: Ints) -> int:
        return int(np.count_nonzero(places < 0))

    def _positions(self, id_: str) -> list[int]:
        """The positions of the tools with that id."""
        found = [places[segment.positions_of(id_)] for segment, places in self._pairs()]
        return [position for at in found for position in at.tolist() if position >= 0]


@cache
def empty_index() -> Index:
    """The index without tools."""
    return Index.build(())


def index_from_segment(
    segment: Segment, tools: Sequence[Tool], rows: Sequence[int], *, previous: Index | None = None
) -> Index:
    """Build an index of the tools with a restored segment, which has the row of many of them.

    `rows` has the row of each tool, and -1 for a tool that the segment does not know; no row occurs twice. Unknown
    tools are analyzed, except the tool objects that the small segment of `previous` holds.
    """
    present = [ABSENT] * len(segment)
    places = np.full(len(segment), -1, dtype=np.int32)
    fresh: list[tuple[int, Tool]] = []
    for position, (tool, row) in enumerate(zip(tools, rows, strict=True)):
        if row < 0:
            fresh.append((position, tool))
        else:
            present[row], places[row] = tool, position
    base = segment.with_tools(present)
    if base.model.tools is not None:
        base = base.with_vectors(base.model)
    deltas = previous.segments[1:] if previous is not None and previous.model == base.model else ()
    nowhere = [np.full(len(delta), -1, dtype=np.int32) for delta in deltas]
    empty = Index(0, (base, *deltas), (places, *nowhere))
    return empty._joined([places, *nowhere], fresh)  # noqa: SLF001 - of the same module


def _in_order(pairs: Iterable[tuple[Segment, Ints]], behind: Iterable[tuple[int, Tool]]) -> list[Tool]:
    """List the remaining tools of some segments and other tools by position."""
    found = dict(behind)
    for segment, places in pairs:
        stay = np.flatnonzero(places >= 0)
        found.update(zip(places[stay].tolist(), map(segment.tools.__getitem__, stay.tolist()), strict=True))
    return [found[position] for position in range(len(found))]


def _shift_positions(places: Ints, gone: Sequence[int]) -> Ints:
    """Close the gaps that removed positions leave."""
    left = np.array(gone, dtype=np.int32)
    shifted = places - np.searchsorted(left, places).astype(np.int32)
    shifted[np.isin(places, left) | (places < 0)] = -1
    return shifted


def idf(n: int, df: int) -> float:
    """Inverse document frequency: `ln(1 + (n - df + 0.5) / (df + 0.5))`, always above 0.

    n counts the tools, df those with the term, 0 <= df <= n.
    Source: Kamphuis et al., ECIR 2020, the Lucene variant.

    >>> round(idf(1000, 1), 2), round(idf(1000, 1000), 4)
    (6.5, 0.0005)
    """
    return log(1 + (n - df + 0.5) / (df + 0.5))
