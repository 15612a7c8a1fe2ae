"""A segment of an index: immutable, in plain arrays, without a word on who may see what.

It holds what depends on one tool alone: how strongly each word marks it, and what it means. How rare a word is, is
counted at query time among the tools the caller sees, so a tool that he does not see changes nothing for him.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.model import Tool, Visibility
from toolcrib.schema import signature
from toolcrib.search.analysis import Analysis, Vocabulary
from toolcrib.search.entries import Entries, Floats, Ints, counted, norms
from toolcrib.search.facets import Facets
from toolcrib.search.features import Features, WordFeatures
from toolcrib.search.meaning import Meaning
from toolcrib.search.options import Field, SearchOptions
from toolcrib.search.spelling import Spelling

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

_MAX_DEAD_WORDS = 10_000
"""Words that no tool has any more are dropped when there are more than these, and more than live ones."""


class Segment:
    """Searchable tools. A position is a tool's place in `tools`."""

    def __init__(
        self,
        tools: Sequence[Tool],
        entries: Entries,
        norms: Floats,
        vocabulary: Vocabulary,
        features: Features,
        words: WordFeatures,
        meaning: Meaning,
        options: SearchOptions,
    ) -> None:
        """Use `Segment.build`."""
        self.tools = tuple(tools)
        self.options = options
        self.vocabulary = vocabulary
        self.norms = norms
        """What one occurrence of a word adds, for each tool and field."""
        self.features = features
        self.words = words
        self.meaning = meaning
        self.ids = [tool.id for tool in self.tools]
        self.ranked = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        """The positions in the alphabetical order of ids."""
        self.ranks = np.empty(len(self.ids), dtype=np.int32)
        """The place of each tool's id in alphabetical order."""
        self.ranks[self.ranked] = np.arange(len(self.ids), dtype=np.int32)
        self.findable: Bools = np.array([tool.visibility is not Visibility.HIDDEN for tool in self.tools], np.bool_)
        self.signatures: list[str | None] = [None] * len(self.tools)
        self.memo: dict[Hashable, Any] = {}
        """What others derive from the segment once."""
        self._post(entries)

    @classmethod
    def build(
        cls, tools: Sequence[Tool], *, meaning: Meaning, options: SearchOptions, previous: "Segment | None" = None
    ) -> "Segment":
        """A segment of the tools. The very same objects that `previous` holds are not read again."""
        if previous is not None and (previous.options != options or previous.meaning != meaning or previous.is_worn()):
            previous = None
        kept, fresh = _matched(tools, previous)
        vocabulary = Vocabulary(previous.vocabulary if previous else None)
        analysis = Analysis(vocabulary)
        for position in fresh:
            analysis.add(position, tools[position])
        entries = counted(analysis, vocabulary)
        adds = norms(analysis, len(tools), options.fields)
        words, rows = meaning.of(analysis, vocabulary, [tools[position] for position in fresh])
        if previous is None or not kept:
            return cls(tools, entries, adds, vocabulary, rows, words, meaning, options)
        old, new = list(kept.values()), list(kept)
        adds[new] = previous.norms[old]
        entries = previous.entries().moved(kept, len(previous)).merged(entries)
        order = np.full(len(tools), -1, dtype=np.int32)
        order[new] = old
        rows = previous.features.moved(order, len(previous)).filled(rows, np.array(fresh, dtype=np.int32))
        segment = cls(tools, entries, adds, vocabulary, rows, words, meaning, options)
        for position, before in kept.items():
            segment.signatures[position] = previous.signatures[before]
        return segment

    def __len__(self) -> int:
        """How many tools it holds."""
        return len(self.tools)

    def is_worn(self) -> bool:
        """Whether most of the words it knows have left it, so that a new one is better made from nothing."""
        words = len(self.vocabulary.words)
        return words > _MAX_DEAD_WORDS and words > 2 * len(np.unique(self._words))

    def span(self, stem: str) -> tuple[int, int]:
        """Where the postings of a stem begin and end in `positions` and `impacts`; (0, 0) when there are none."""
        number = self.vocabulary.stem_numbers.get(stem)
        return (self._starts[number], self._starts[number + 1]) if number is not None else (0, 0)

    def with_id(self, id_: str) -> Places:
        """The positions of the tools with that id."""
        start = bisect_left(self.ranked, id_, key=self.ids.__getitem__)
        stop = bisect_right(self.ranked, id_, key=self.ids.__getitem__)
        return np.array(self.ranked[start:stop], dtype=np.intp)

    def parts(self, postings: Sequence[int]) -> Iterator[tuple[int, Field, list[str], float]]:
        """What some postings are made of: place in `postings`, field, its words, and its share of the impact."""
        if not postings:
            return iter(())
        at = np.array(postings, dtype=np.intp)
        lengths = self._rows[at + 1] - self._rows[at]
        place = np.repeat(np.arange(len(at)), lengths)
        found = np.arange(len(place)) + np.repeat(self._rows[at] - np.cumsum(lengths) + lengths, lengths)
        fields = self._fields[found]
        starts = np.flatnonzero(_changes(place, fields))
        place, fields = place[starts], fields[starts]
        adds = _added(self._counts[found], starts, self.norms[self.positions[at[place]], fields])
        gains = adds * (self.impacts[at] / np.bincount(place, adds, len(at)))[place]
        words = [self.vocabulary.words[word] for word in self._words[found].tolist()]
        ends = [*starts[1:].tolist(), len(words)]
        groups = [words[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        return zip(place.tolist(), map(_FIELD.__getitem__, fields.tolist()), groups, gains.tolist(), strict=True)

    def surfaces(self, start: int, stop: int, seen: Bools) -> dict[str, int]:
        """The words behind some postings, in the tools that are seen, and in how many fields each stands."""
        chosen = np.flatnonzero(seen[self.positions[start:stop]]) + start
        rows = [row for at in chosen.tolist() for row in range(self._rows[at], self._rows[at + 1])]
        numbers, counts = np.unique(self._words[np.array(rows, dtype=np.intp)], return_counts=True)
        return {self.vocabulary.words[n]: c for n, c in zip(numbers.tolist(), counts.tolist(), strict=True)}

    def signature(self, position: int) -> str:
        """The one-line signature of a tool, worked out once."""
        known = self.signatures[position]
        if known is None:
            known = self.signatures[position] = signature(self.tools[position])
        return known

    @cached_property
    def facets(self) -> Facets:
        """What the tools can be narrowed to."""
        return Facets(self.tools)

    @cached_property
    def spelling(self) -> Spelling:
        """The stems that a misspelt word may be meant for."""
        return Spelling(self.vocabulary.stems)

    @cached_property
    def heads(self) -> dict[str, Places]:
        """The words that names of several words begin with, and the positions of the tools so called."""
        slots = self.features.slots
        several = np.flatnonzero(slots[:, 1] >= 0)
        several = several[slots[several, 0].argsort(kind="stable")]
        numbers, starts = np.unique(slots[several, 0], return_index=True)
        groups = np.split(several, starts[1:]) if len(numbers) else []
        return {self.vocabulary.words[number]: at for number, at in zip(numbers.tolist(), groups, strict=True)}

    def field_words(self, field: Field) -> tuple[Ints, Ints]:
        """The words in one field of all tools: their numbers, and beside each the position of the tool."""
        chosen = np.flatnonzero(self._fields == field)
        return self._words[chosen], self.positions[np.searchsorted(self._rows, chosen, side="right") - 1]

    def entries(self) -> Entries:
        """What the segment was made of."""
        stems = np.array(self.vocabulary.word_stems, dtype=np.int32)[self._words]
        positions = np.repeat(self.positions, np.diff(self._rows))
        return Entries(stems, positions, self._fields, self._words, self._counts)

    def _post(self, entries: Entries) -> None:
        """Work out the postings: the tools of each stem, and how strongly it marks them."""
        first = np.flatnonzero(_changes(entries.stems, entries.positions, entries.fields))
        stems, positions, fields = entries.stems[first], entries.positions[first], entries.fields[first]
        adds = _added(entries.counts, first, self.norms[positions, fields])
        starts = np.flatnonzero(_changes(stems, positions))
        weight = np.add.reduceat(adds, starts) if len(starts) else adds
        self.positions: Ints = positions[starts]
        """The tools of all stems, one after the other."""
        self.impacts: Floats = (weight / (self.options.k1 + weight)).astype(np.float32)
        """How strongly the stem marks the tool, 0 to 1, beside `positions`."""
        numbers = np.arange(len(self.vocabulary.stems) + 1)
        self._starts: list[int] = np.searchsorted(stems[starts], numbers).tolist()
        self._fields, self._words, self._counts = entries.fields, entries.words, entries.counts
        self._rows: Ints = np.append(first[starts], len(entries.stems)).astype(np.int32)
        """Where the rows of each posting begin in the three columns above."""


def _added(counts: npt.NDArray[np.uint16], starts: Places, norms: Floats) -> npt.NDArray[np.float64]:
    """What each field of a tool adds to the weight of a stem; its rows begin at `starts`.

    Whole counts are summed first, so that the order of the words, which follows the history of the segment, does not
    show in the last digit.
    """
    whole = counts.astype(np.float64)
    return (np.add.reduceat(whole, starts) if len(starts) else whole) * norms


def _changes(*columns: npt.NDArray[Any]) -> Bools:
    """Where a row differs from the one before it; the first one does."""
    new = np.ones(len(columns[0]), dtype=np.bool_)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return new


_FIELD = tuple(Field)


def _matched(tools: Sequence[Tool], previous: Segment | None) -> tuple[dict[int, int], list[int]]:
    """New to old positions of the tools that come again, and the positions of the others."""
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
