"""The index: one large segment, and a small one for what changed since. Immutable; a change makes a new one."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from toolcrib.model import Tool
from toolcrib.search.entries import Ints
from toolcrib.search.meaning import Meaning, default_meaning
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import Bools, Segment
from toolcrib.search.view import Part, View

_SMALL = 64
"""Tools of a delta that are always kept apart."""
_SHARE = 20
"""A delta is kept apart up to this fraction of the tools: one in 20."""
_GONE = 5
"""A base is kept while fewer than this fraction of its tools are gone: one in 5."""
_VIEWS = 16
"""Views that are remembered."""


class Index:
    """Searchable tools. A position is a tool's place in `tools`; a mask has one byte for each."""

    __slots__ = ("_size", "_tools", "_views", "meaning", "options", "places", "segments")

    def __init__(self, size: int, segments: Sequence[Segment], places: Sequence[Ints]) -> None:
        """Use `Index.build`."""
        self._size = size
        self._tools: tuple[Tool, ...] | None = None
        self.segments = tuple(segments)
        self.places = tuple(places)
        """For each segment, where each of its tools stands in `tools`; -1 for those that are gone."""
        self.options = self.segments[0].options
        self.meaning = self.segments[0].meaning
        self._views: dict[bytes | None, View] = {}
        """By mask; never changed in place, since several threads may search."""

    @classmethod
    def build(
        cls,
        tools: Sequence[Tool],
        *,
        previous: "Index | None" = None,
        options: SearchOptions | None = None,
        meaning: Meaning | None = None,
    ) -> "Index":
        """An index of the tools. The very same objects that `previous` holds are not read again.

        Options and meaning are those of `previous` when none are given.
        """
        options = options or (previous.options if previous else SearchOptions())
        meaning = meaning or (previous.meaning if previous else default_meaning())
        if previous is None or previous.options != options or previous.meaning != meaning:
            return cls._whole(Segment.build(tools, options=options, meaning=meaning))
        return previous._changed(tools)  # noqa: SLF001 - of the same class

    def updated(self, add: Iterable[Tool] = (), remove: Iterable[str] = ()) -> "Index":
        """An index with some tools more, behind the others, and without those of some ids.

        A tool that is there already, by its id, is replaced.

        Costs as much as the change, and a look at one number a tool.
        """
        fresh = list(add)
        ids = {*remove, *(tool.id for tool in fresh)}
        gone = sorted({position for id_ in ids for position in self._positions(id_)})
        places = [_shifted(places, gone) if gone else places for places in self.places]
        return self._joined(places, list(enumerate(fresh, len(self) - len(gone))))

    def merged(self) -> "Index":
        """The same tools in one segment: as fast to search as can be. For a moment when nobody waits."""
        if len(self.segments) == 1 and not self._gone(self.places[0]):
            return self
        return self._whole(self._base(self.tools))

    def __len__(self) -> int:
        """How many tools it holds."""
        return self._size

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All of them, by position."""
        if self._tools is None:
            self._tools = tuple(_laid_out(self._pairs(), ()))
        return self._tools

    def view(self, mask: bytes | None = None, overlay: "Index | None" = None) -> View:
        """What a search with that mask, and the tools of that overlay beside, may find.

        Without an overlay, the views that were made last are remembered, each for its very mask. Raises `ValueError`
        for a mask of another length, and for an overlay built with another embedder.
        """
        view = self._views.get(mask)
        if view is None:
            view = View.of(*self.parts(mask))
            self._views = dict([*self._views.items(), (mask, view)][-_VIEWS:])
        if overlay is None:
            return view
        if overlay.meaning != self.meaning:
            raise ValueError("the overlay was built with another embedder than the index")
        return View.of(*view.parts, *overlay.view().parts)

    def parts(self, mask: bytes | None) -> tuple[Part, ...]:
        """What a search with that mask may find. Raises `ValueError` for a mask of another length."""
        if mask is None:
            return tuple([self._part(*pair, None) for pair in self._pairs()])
        if len(mask) != len(self):
            raise ValueError(f"the mask has {len(mask)} bytes for {len(self)} tools")
        seen = np.frombuffer(mask, dtype=np.uint8) != 0
        return tuple([self._part(segment, places, seen) for segment, places in self._pairs()])

    def _pairs(self) -> Iterable[tuple[Segment, Ints]]:
        return zip(self.segments, self.places, strict=True)

    @staticmethod
    def _part(segment: Segment, places: Ints, mask: Bools | None) -> Part:
        seen: Bools = segment.findable
        if len(places) and (mask is not None or int(places.min()) < 0):
            seen = seen & (places >= 0)
            if mask is not None:
                seen &= mask[places]
        return Part(segment, seen)

    @classmethod
    def _whole(cls, segment: Segment) -> "Index":
        return cls(len(segment), (segment,), (np.arange(len(segment), dtype=np.int32),))

    def _base(self, tools: Sequence[Tool]) -> Segment:
        """One segment of the tools, made from the largest one."""
        return Segment.build(tools, options=self.options, meaning=self.meaning, previous=self.segments[0])

    def _changed(self, tools: Sequence[Tool]) -> "Index":
        """The index of other tools, many of which are the same objects."""
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
        """The base with its new places, and a delta of what else stays, or all in one where that is due."""
        base, *deltas = zip(self.segments, places, strict=True)
        stay = [(int(at[p]), segment.tools[p]) for segment, at in deltas for p in np.flatnonzero(at >= 0).tolist()]
        behind = [*stay, *fresh]
        gone = self._gone(base[1])
        size = len(base[0]) - gone + len(behind)
        if gone * _GONE > len(base[0]) or len(behind) > max(_SMALL, size // _SHARE):
            return self._whole(self._base(_laid_out([base], behind)))
        if not behind:
            return Index(size, (base[0],), (base[1],))
        segment = Segment.build(
            [tool for _, tool in behind],
            options=self.options,
            meaning=self.meaning,
            previous=deltas[0][0] if deltas else None,
        )
        return Index(size, (base[0], segment), (base[1], np.array([at for at, _ in behind], dtype=np.int32)))

    @staticmethod
    def _gone(places: Ints) -> int:
        return int(np.count_nonzero(places < 0))

    def _positions(self, id_: str) -> list[int]:
        """Where the tools with that id stand."""
        found = [places[segment.with_id(id_)] for segment, places in self._pairs()]
        return [position for at in found for position in at.tolist() if position >= 0]


def _laid_out(pairs: Iterable[tuple[Segment, Ints]], behind: Iterable[tuple[int, Tool]]) -> list[Tool]:
    """The tools of some segments that stay, and others, each at its position."""
    found = dict(behind)
    for segment, places in pairs:
        stay = np.flatnonzero(places >= 0)
        found.update(zip(places[stay].tolist(), map(segment.tools.__getitem__, stay.tolist()), strict=True))
    return [found[position] for position in range(len(found))]


def _shifted(places: Ints, gone: Sequence[int]) -> Ints:
    """The places after some positions have left."""
    left = np.array(gone, dtype=np.int32)
    shifted = places - np.searchsorted(left, places).astype(np.int32)
    shifted[np.isin(places, left) | (places < 0)] = -1
    return shifted
