"""The search index: immutable segments of postings and features, and the view of them that one caller has.

An index has one large segment and a small one for recent changes; a change makes a new index. A segment holds what
depends on a single tool. Document frequencies are counted at query time among the tools that the caller sees, so that
a tool they cannot see changes nothing for them. Segments know nothing about permissions.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.checks import checked
from toolcrib.schema import signature
from toolcrib.search.analysis import Floats, Ints, ToolAnalyzer, Vocabulary, WordOccurrences, count_words, field_norms
from toolcrib.search.embedding import unknown_rows
from toolcrib.search.features import (
    EmbeddedTools,
    SemanticModel,
    ToolFeatures,
    WordFeatures,
    default_semantic_model,
)
from toolcrib.search.options import Field, SearchOptions
from toolcrib.types import Filters, Tool, Visibility

Positions = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_MAX_SMALL_DELTA = 64
"""A delta of at most so many tools always stays a segment of its own."""

_DELTA_SHARE = 20
"""A larger delta stays separate up to one in so many of all tools."""

_REMOVED_SHARE = 5
"""The base segment is kept until more than one in so many of its tools are gone."""

_MAX_CACHED_VIEWS = 16
"""Views that are cached."""


class Facets:
    """The filterable properties of some tools, as arrays."""

    __slots__ = ("_namespaces", "_numbers", "_read_only", "_tags", "_visibility")

    def __init__(self, tools: Sequence[Tool]) -> None:
        """A position is an index into `tools`."""
        self._numbers: dict[str, int] = {}
        self._namespaces = np.array(
            [self._numbers.setdefault(t.namespace, len(self._numbers)) for t in tools], np.int32
        )
        self._read_only = np.array([t.annotations.get("readOnlyHint") is True for t in tools], np.bool_)
        self._visibility = {kind: np.array([t.visibility is kind for t in tools], np.bool_) for kind in Visibility}
        self._tags: dict[str, list[int]] = {}
        for position, tool in enumerate(tools):
            for tag in tool.tags:
                self._tags.setdefault(tag, []).append(position)

    def matching(self, filters: Filters) -> Bools:
        """Mark the tools that pass all filters."""
        passes = np.ones(len(self._read_only), np.bool_)
        if filters.namespaces:
            numbers = [self._numbers[name] for name in filters.namespaces if name in self._numbers]
            passes &= np.isin(self._namespaces, numbers)
        if filters.read_only is not None:
            passes &= self._read_only == filters.read_only
        if filters.visibility:
            passes &= np.logical_or.reduce([self._visibility[kind] for kind in filters.visibility])
        for tag in filters.tags:
            tagged = np.zeros(len(passes), np.bool_)
            tagged[self._tags.get(tag, [])] = True
            passes &= tagged
        return passes


class Segment:
    """An immutable part of an index. A position is an index into `tools`."""

    def __init__(
        self,
        tools: Sequence[Tool],
        entries: WordOccurrences,
        norms: Floats,
        vocabulary: Vocabulary,
        features: ToolFeatures,
        words: WordFeatures,
        model: SemanticModel,
        options: SearchOptions,
    ) -> None:
        """Call `Segment.build` instead."""
        self.tools = tuple(tools)
        self.options = options
        self.vocabulary = vocabulary
        self.norms = norms
        """What one occurrence of a word adds, per tool and field."""
        self.features = features
        self.words = words
        self.model = model
        self.ids = [tool.id for tool in self.tools]
        self.id_order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        """The positions in alphabetical order of ids."""
        self.id_ranks = np.empty(len(self.ids), dtype=np.int32)
        """The rank of each tool's id in alphabetical order."""
        self.id_ranks[self.id_order] = np.arange(len(self.ids), dtype=np.int32)
        self.findable: Bools = np.array([tool.visibility is not Visibility.HIDDEN for tool in self.tools], np.bool_)
        self.signatures: list[str | None] = [None] * len(self.tools)
        self.memo: dict[Hashable, Any] = {}
        """Values that other modules derive from the segment and cache."""
        self._post(entries)

    @classmethod
    def build(
        cls, tools: Sequence[Tool], *, model: SemanticModel, options: SearchOptions, previous: "Segment | None" = None
    ) -> "Segment":
        """Build a segment. Tool objects that `previous` holds are not analyzed again."""
        if previous is not None and (previous.options != options or previous.model != model or previous.is_worn()):
            previous = None
        kept, fresh = _match_previous(tools, previous)
        vocabulary = Vocabulary(previous.vocabulary if previous else None)
        analysis = ToolAnalyzer(vocabulary)
        for position in fresh:
            analysis.add(position, tools[position])
        entries = count_words(analysis, vocabulary)
        adds = field_norms(analysis, len(tools), options.fields)
        words, rows = model.compute_features(analysis, vocabulary, [tools[position] for position in fresh])
        if previous is None or not kept:
            return cls(tools, entries, adds, vocabulary, rows, words, model, options)
        old, new = list(kept.values()), list(kept)
        adds[new] = previous.norms[old]
        entries = previous.occurrences().reposition(kept, len(previous)).merge(entries)
        order = np.full(len(tools), -1, dtype=np.int32)
        order[new] = old
        rows = previous.features.rearrange(order, len(previous)).fill(rows, np.array(fresh, dtype=np.int32))
        segment = cls(tools, entries, adds, vocabulary, rows, words, model, options)
        for position, before in kept.items():
            segment.signatures[position] = previous.signatures[before]
        return segment

    def with_vectors(self, model: SemanticModel) -> "Segment":
        """Return the segment with the vectors that a model knows of its tools.

        The model differs from the segment's at most in its embedder.
        """
        rows = self.features.embedded.rows
        known = rows.scales > 0 if model == self.model else np.zeros(len(self), np.bool_)
        missing = np.flatnonzero(~known).astype(np.int32)
        fresh = model.embed_tools([self.tools[place] for place in missing.tolist()])
        if model == self.model and not fresh.scales.any():
            return self
        made = EmbeddedTools.of(unknown_rows(len(self), fresh.values.shape[1]))
        if known.any():
            kept = np.flatnonzero(known).astype(np.int32)
            made.put(kept, self.features.embedded.take(kept))
        made.put(missing, EmbeddedTools.of(fresh))
        other = copy(self)
        other.model, other.features = model, replace(self.features, embedded=made)
        return other

    def __len__(self) -> int:
        return len(self.tools)

    def is_worn(self) -> bool:
        """Whether most words of the vocabulary are unused, so that a new segment should start from scratch."""
        words = len(self.vocabulary.words)
        return words > _MAX_DEAD_WORDS and words > 2 * len(np.unique(self._words))

    def span(self, stem: str) -> tuple[int, int]:
        """Where the postings of a stem begin and end in `positions` and `impacts`; (0, 0) if there are none."""
        number = self.vocabulary.stem_numbers.get(stem)
        return (self._starts[number], self._starts[number + 1]) if number is not None else (0, 0)

    def positions_of(self, id_: str) -> Positions:
        """The positions of the tools with that id."""
        start = bisect_left(self.id_order, id_, key=self.ids.__getitem__)
        stop = bisect_right(self.id_order, id_, key=self.ids.__getitem__)
        return np.array(self.id_order[start:stop], dtype=np.intp)

    def field_shares(self, postings: Sequence[int]) -> Iterator[tuple[int, Field, list[str], float]]:
        """Break postings down by field: index into `postings`, field, words, and share of the impact."""
        if not postings:
            return iter(())
        at = np.array(postings, dtype=np.intp)
        lengths = self._rows[at + 1] - self._rows[at]
        place = np.repeat(np.arange(len(at)), lengths)
        found = np.arange(len(place)) + np.repeat(self._rows[at] - np.cumsum(lengths) + lengths, lengths)
        fields = self._fields[found]
        starts = np.flatnonzero(_row_changes(place, fields))
        place, fields = place[starts], fields[starts]
        adds = _field_weights(self._counts[found], starts, self.norms[self.positions[at[place]], fields])
        gains = adds * (self.impacts[at] / np.bincount(place, adds, len(at)))[place]
        words = [self.vocabulary.words[word] for word in self._words[found].tolist()]
        ends = [*starts[1:].tolist(), len(words)]
        groups = [words[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        return zip(
            place.tolist(), map(_FIELD_BY_NUMBER.__getitem__, fields.tolist()), groups, gains.tolist(), strict=True
        )

    def word_counts(self, start: int, stop: int, seen: Bools) -> dict[str, int]:
        """Count in how many fields of visible tools each word behind some postings occurs."""
        chosen = np.flatnonzero(seen[self.positions[start:stop]]) + start
        rows = [row for at in chosen.tolist() for row in range(self._rows[at], self._rows[at + 1])]
        numbers, counts = np.unique(self._words[np.array(rows, dtype=np.intp)], return_counts=True)
        return {self.vocabulary.words[n]: c for n, c in zip(numbers.tolist(), counts.tolist(), strict=True)}

    def signature(self, position: int) -> str:
        """The one-line signature of a tool, cached."""
        known = self.signatures[position]
        if known is None:
            known = self.signatures[position] = signature(self.tools[position])
        return known

    @cached_property
    def facets(self) -> Facets:
        """The filterable properties of the tools."""
        return Facets(self.tools)

    @cached_property
    def first_words(self) -> dict[str, Positions]:
        """The first words of names with several words, and the positions of the tools with each."""
        slots = self.features.slots
        several = np.flatnonzero(slots[:, 1] >= 0)
        several = several[slots[several, 0].argsort(kind="stable")]
        numbers, starts = np.unique(slots[several, 0], return_index=True)
        groups = np.split(several, starts[1:]) if len(numbers) else []
        return {self.vocabulary.words[number]: at for number, at in zip(numbers.tolist(), groups, strict=True)}

    def field_words(self, field: Field) -> tuple[Ints, Ints]:
        """The numbers of the words in one field of all tools, and the position of the tool for each."""
        chosen = np.flatnonzero(self._fields == field)
        return self._words[chosen], self.positions[np.searchsorted(self._rows, chosen, side="right") - 1]

    def occurrences(self) -> WordOccurrences:
        """The word counts that the segment was built from."""
        stems = np.array(self.vocabulary.word_stems, dtype=np.int32)[self._words]
        positions = np.repeat(self.positions, np.diff(self._rows))
        return WordOccurrences(stems, positions, self._fields, self._words, self._counts)

    def _post(self, entries: WordOccurrences) -> None:
        """Compute the postings: the tools of each stem, and its impact on each."""
        first = np.flatnonzero(_row_changes(entries.stems, entries.positions, entries.fields))
        stems, positions, fields = entries.stems[first], entries.positions[first], entries.fields[first]
        adds = _field_weights(entries.counts, first, self.norms[positions, fields])
        starts = np.flatnonzero(_row_changes(stems, positions))
        weight = np.add.reduceat(adds, starts) if len(starts) else adds
        self.positions: Ints = positions[starts]
        """The tools of all stems, one after the other."""
        self.impacts: Floats = (weight / (self.options.k1 + weight)).astype(np.float32)
        """The saturated frequency of the stem in each tool of `positions`, 0 to 1."""
        numbers = np.arange(len(self.vocabulary.stems) + 1)
        self._starts: list[int] = np.searchsorted(stems[starts], numbers).tolist()
        self._fields, self._words, self._counts = entries.fields, entries.words, entries.counts
        self._rows: Ints = np.append(first[starts], len(entries.stems)).astype(np.int32)
        """Where the rows of each posting begin in the three columns above."""


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


@dataclass(frozen=True, slots=True)
class IndexView:
    """All tools that one caller sees."""

    parts: tuple[SegmentView, ...]
    count: int
    """How many tools are visible in all."""
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """Values that other modules derive from the view and cache. Callers with different views never share it."""

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
        if len(self.parts) == 1:
            part = self.parts[0]
            span = part.segment.span(stem)
            return part.frequency(*span), (span,)
        spans = tuple([part.segment.span(stem) for part in self.parts])
        return sum([part.frequency(*span) for part, span in zip(self.parts, spans, strict=True)]), spans

    def stem_test(self) -> Callable[[str], bool]:
        """A fast test whether any tool, visible or not, has a stem."""
        first, *others = [part.segment.vocabulary.stem_numbers for part in self.parts]
        if not others:
            return first.__contains__
        return lambda stem: stem in first or any(stem in numbers for numbers in others)

    def name_test(self) -> Callable[[str], bool]:
        """A fast test whether the name of a visible tool begins with a word and continues."""
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
        if gone * _REMOVED_SHARE > len(base[0]) or len(behind) > max(_MAX_SMALL_DELTA, size // _DELTA_SHARE):
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


_MAX_DEAD_WORDS = 10_000
"""A vocabulary is rebuilt when it holds more unused words than these, and more unused than used ones."""


def _field_weights(counts: npt.NDArray[np.uint16], starts: Positions, norms: Floats) -> npt.NDArray[np.float64]:
    """What each field of a tool adds to the weight of a stem; its rows begin at `starts`.

    Adds up integers before multiplying, so that the order of the words, which depends on the history of the segment,
    does not change the last digit.
    """
    whole = counts.astype(np.float64)
    return (np.add.reduceat(whole, starts) if len(starts) else whole) * norms


def _row_changes(*columns: npt.NDArray[Any]) -> Bools:
    """Mark rows that differ from the one before; the first one does."""
    new = np.ones(len(columns[0]), dtype=np.bool_)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return new


_FIELD_BY_NUMBER = tuple(Field)


def _match_previous(tools: Sequence[Tool], previous: Segment | None) -> tuple[dict[int, int], list[int]]:
    """Map new to old positions for tools in both, and list the positions of new tools."""
    if previous is None:
        return {}, list(range(len(tools)))
    known = {id(tool): position for position, tool in enumerate(previous.tools)}
    kept: dict[int, int] = {}
    fresh: list[int] = []
    for position, tool in enumerate(tools):
        old = known.pop(id(tool), None)
        if old is None:
            fresh.append(position)
        else:
            kept[position] = old
    return kept, fresh
