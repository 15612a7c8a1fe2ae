"""The index: immutable, in plain arrays, without a word on who may see what.

It holds what depends on one tool alone: how strongly each word marks it. How rare a word is, is counted at query
time among the tools the caller sees, so a tool that he does not see changes nothing for him.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.model import Tool, Visibility
from toolcrib.names import fold
from toolcrib.schema import signature
from toolcrib.search.analysis import Analysis, Vocabulary
from toolcrib.search.entries import Entries, Floats, Ints, counted, norms
from toolcrib.search.facets import Facets
from toolcrib.search.options import Field, SearchOptions

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

_MAX_DEAD_WORDS = 10_000
"""Words that no tool has any more are dropped when there are more than these, and more than live ones."""


class Index:
    """Searchable tools. A position is a tool's place in `tools`."""

    __slots__ = (
        "_counts",
        "_facets",
        "_fields",
        "_names",
        "_rows",
        "_starts",
        "_words",
        "findable",
        "ids",
        "impacts",
        "norms",
        "options",
        "positions",
        "ranks",
        "signatures",
        "tools",
        "vocabulary",
    )

    def __init__(
        self, tools: Sequence[Tool], entries: Entries, norms: Floats, vocabulary: Vocabulary, options: SearchOptions
    ) -> None:
        """Use `Index.build`."""
        self.tools = tuple(tools)
        self.options = options
        self.vocabulary = vocabulary
        self.norms = norms
        """What one occurrence of a word adds, for each tool and field."""
        self.ids = [tool.id for tool in self.tools]
        self.ranks = _ranks(self.ids)
        """The place of each tool's id in alphabetical order."""
        self.findable: Bools = np.array([tool.visibility is not Visibility.HIDDEN for tool in self.tools], np.bool_)
        self.signatures: list[str | None] = [None] * len(self.tools)
        self._facets: Facets | None = None
        self._names: list[str] | None = None
        self._post(entries)

    @classmethod
    def build(
        cls, tools: Sequence[Tool], *, previous: "Index | None" = None, options: SearchOptions | None = None
    ) -> "Index":
        """An index of the tools. The very same objects that `previous` holds are not read again.

        The options are those of `previous` when none are given.
        """
        options = options or (previous.options if previous else SearchOptions())
        if previous is None or previous.options != options or previous.is_worn():
            previous = None
        kept, fresh = _matched(tools, previous)
        vocabulary = Vocabulary(previous.vocabulary if previous else None)
        analysis = Analysis(vocabulary)
        for position in fresh:
            analysis.add(position, tools[position])
        entries = counted(analysis, vocabulary)
        adds = norms(analysis, len(tools), options.fields)
        if previous is None or not kept:
            return cls(tools, entries, adds, vocabulary, options)
        old, new = list(kept.values()), list(kept)
        adds[new] = previous.norms[old]
        entries = previous.entries().moved(kept, len(previous)).merged(entries)
        index = cls(tools, entries, adds, vocabulary, options)
        for position, before in kept.items():
            index.signatures[position] = previous.signatures[before]
        return index

    def __len__(self) -> int:
        """How many tools it holds."""
        return len(self.tools)

    def is_worn(self) -> bool:
        """Whether most of the words it knows have left it, so that a new one is better made from nothing."""
        words = len(self.vocabulary.words)
        return words > _MAX_DEAD_WORDS and words > 2 * len(np.unique(self._words))

    def visible(self, mask: bytes | None) -> Bools:
        """The tools that a search with that mask may find. Raises `ValueError` for a mask of another length."""
        if mask is None:
            return self.findable
        if len(mask) != len(self.tools):
            raise ValueError(f"the mask has {len(mask)} bytes for {len(self.tools)} tools")
        seen: Bools = self.findable & (np.frombuffer(mask, dtype=np.uint8) != 0)
        return seen

    def span(self, stem: str) -> tuple[int, int]:
        """Where the postings of a stem begin and end in `positions` and `impacts`; (0, 0) when there are none."""
        number = self.vocabulary.stem_numbers.get(stem)
        return (self._starts[number], self._starts[number + 1]) if number is not None else (0, 0)

    def parts(self, postings: Sequence[int]) -> Iterator[tuple[int, Field, list[str], float]]:
        """What some postings are made of: place in `postings`, field, its words, and its share of the impact."""
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

    def signature(self, position: int) -> str:
        """The one-line signature of a tool, worked out once."""
        known = self.signatures[position]
        if known is None:
            known = self.signatures[position] = signature(self.tools[position])
        return known

    def facets(self) -> Facets:
        """What the tools can be narrowed to, worked out once."""
        if self._facets is None:
            self._facets = Facets(self.tools)
        return self._facets

    def names(self) -> list[str]:
        """The folded name of each tool, without its namespace, worked out once."""
        if self._names is None:
            self._names = [fold(tool.name) for tool in self.tools]
        return self._names

    def name_words(self, allowed: Bools) -> tuple[Ints, Ints]:
        """The words in the names of the allowed tools: their numbers, and beside each the position of the tool."""
        chosen = np.flatnonzero(self._fields == Field.NAME)
        positions = self.positions[np.searchsorted(self._rows, chosen, side="right") - 1]
        return self._words[chosen][allowed[positions]], positions[allowed[positions]]

    def entries(self) -> Entries:
        """What the index was made of."""
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

    Whole counts are summed first, so that the order of the words, which follows the history of the index, does not
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


def _ranks(ids: list[str]) -> Ints:
    order = sorted(range(len(ids)), key=ids.__getitem__)
    ranks = np.empty(len(ids), dtype=np.int32)
    ranks[order] = np.arange(len(ids), dtype=np.int32)
    return ranks


def _matched(tools: Sequence[Tool], previous: Index | None) -> tuple[dict[int, int], list[int]]:
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
