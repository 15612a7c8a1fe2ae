"""The index: immutable, in plain arrays, without a word on who may see what.

It holds what depends on one tool alone: how strongly each word marks it. How rare a word is, is counted at query
time among the tools the caller sees, so a tool that he does not see changes nothing for him.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.model import Tool, Visibility
from toolcrib.schema import signature
from toolcrib.search.analysis import Analysis, Vocabulary
from toolcrib.search.facets import Facets
from toolcrib.search.options import Field, SearchOptions

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

_FIELDS = len(Field)
_MAX_DEAD_WORDS = 10_000
"""Words that no tool has any more are dropped when there are more than these, and more than live ones."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Which word stands how often in which field of which tool; sorted by stem, position, field."""

    stems: Ints
    positions: Ints
    fields: npt.NDArray[np.uint8]
    words: Ints
    counts: npt.NDArray[np.uint16]


class Index:
    """Searchable tools. A position is a tool's place in `tools`."""

    __slots__ = (
        "_entry_starts", "_facets", "_norms", "_signatures", "_starts", "entries", "findable", "ids", "impacts",
        "options", "positions", "ranks", "tools", "vocabulary",
    )  # fmt: skip

    def __init__(
        self, tools: Sequence[Tool], entries: Entries, norms: Floats, vocabulary: Vocabulary, options: SearchOptions
    ) -> None:
        """Use `Index.build`."""
        self.tools = tuple(tools)
        self.options = options
        self.vocabulary = vocabulary
        self.entries = entries
        self._norms = norms
        self.ids = [tool.id for tool in self.tools]
        self.ranks = _ranks(self.ids)
        self.findable: Bools = np.fromiter((t.visibility is not Visibility.HIDDEN for t in self.tools), dtype=np.bool_)
        self._signatures: list[str | None] = [None] * len(self.tools)
        self._facets: Facets | None = None
        self._post()

    @classmethod
    def build(
        cls, tools: Sequence[Tool], *, previous: "Index | None" = None, options: SearchOptions | None = None
    ) -> "Index":
        """An index of the tools. The very same objects that `previous` holds are not read again."""
        options = options or (previous.options if previous else SearchOptions())
        if previous is not None and (previous.options != options or previous._is_stale()):
            previous = None
        kept, fresh = _matched(tools, previous)
        vocabulary = Vocabulary(previous.vocabulary if previous else None)
        analysis = Analysis(vocabulary)
        for position in fresh:
            analysis.add(position, tools[position])
        norms = np.zeros((len(tools), _FIELDS), dtype=np.float32)
        entries = _counted(analysis, vocabulary, norms, options)
        if previous is not None and kept:
            entries = _merged(entries, _moved(previous, kept, norms))
        index = cls(tools, entries, norms, vocabulary, options)
        if previous is not None:
            for new, old in kept.items():
                index._signatures[new] = previous._signatures[old]
        return index

    def __len__(self) -> int:
        """How many tools it holds."""
        return len(self.tools)

    def span(self, stem: str) -> tuple[int, int]:
        """Where the postings of a stem begin and end in `positions` and `impacts`; (0, 0) when there are none."""
        number = self.vocabulary.stem_numbers.get(stem)
        return (self._starts[number], self._starts[number + 1]) if number is not None else (0, 0)

    def parts(self, postings: Sequence[int]) -> Iterator[tuple[int, int, str, float]]:
        """What some postings are made of: place in `postings`, field, word, and its share of the impact."""
        at = np.array(postings, dtype=np.intp)
        starts = self._entry_starts[at]
        lengths = self._entry_starts[at + 1] - starts
        place = np.repeat(np.arange(len(at)), lengths)
        found = np.arange(len(place)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        entries = self.entries
        fields, words = entries.fields[found], entries.words[found].tolist()
        adds = entries.counts[found] * self._norms[entries.positions[found], fields].astype(np.float64)
        gains = adds * (self.impacts[at] / np.bincount(place, adds, len(at)))[place]
        texts = [self.vocabulary.words[word] for word in words]
        return zip(place.tolist(), fields.tolist(), texts, gains.tolist(), strict=True)

    def signature(self, position: int) -> str:
        """The one-line signature of a tool, worked out once."""
        known = self._signatures[position]
        if known is None:
            known = self._signatures[position] = signature(self.tools[position])
        return known

    def facets(self) -> Facets:
        """What the tools can be narrowed to, worked out once."""
        if self._facets is None:
            self._facets = Facets(self.tools)
        return self._facets

    def name_words(self, allowed: Bools) -> dict[str, list[int]]:
        """The words in the names of the allowed tools, each with the positions of its tools."""
        entries = self.entries
        chosen = np.flatnonzero((entries.fields == Field.NAME) & allowed[entries.positions])
        found: dict[str, list[int]] = {}
        for word, position in zip(entries.words[chosen].tolist(), entries.positions[chosen].tolist(), strict=True):
            found.setdefault(self.vocabulary.words[word], []).append(position)
        return found

    def visible(self, mask: bytes | None) -> Bools:
        """The tools that a search with that mask may find. Raises `ValueError` for a mask of another length."""
        if mask is None:
            return self.findable
        if len(mask) != len(self.tools):
            raise ValueError(f"the mask has {len(mask)} bytes for {len(self.tools)} tools")
        return self.findable & np.frombuffer(mask, dtype=np.bool_)

    def _post(self) -> None:
        """Work out the postings: the tools of each stem, and how strongly it marks them."""
        entries = self.entries
        adds = (entries.counts * self._norms[entries.positions, entries.fields]).astype(np.float64)
        new = np.ones(len(adds), dtype=np.bool_)
        new[1:] = (entries.stems[1:] != entries.stems[:-1]) | (entries.positions[1:] != entries.positions[:-1])
        starts = np.flatnonzero(new)
        weight = np.add.reduceat(adds, starts) if len(starts) else adds
        self.positions = entries.positions[starts]
        self.impacts = (weight / (self.options.k1 + weight)).astype(np.float32)
        self._entry_starts = np.append(starts, len(adds)).astype(np.int32)
        self._starts = np.searchsorted(entries.stems[starts], np.arange(len(self.vocabulary.stems) + 1)).tolist()

    def _is_stale(self) -> bool:
        words = len(self.vocabulary.words)
        return words > _MAX_DEAD_WORDS and words > 2 * len(np.unique(self.entries.words))


def _ranks(ids: list[str]) -> Ints:
    """The place of each id in alphabetical order."""
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


def _counted(analysis: Analysis, vocabulary: Vocabulary, norms: Floats, options: SearchOptions) -> Entries:
    """The entries of freshly read tools; their norms are filled in."""
    words = np.array(analysis.numbers, dtype=np.int64)
    lengths = np.array(analysis.lengths, dtype=np.int64)
    positions = np.array(analysis.positions, dtype=np.int64)
    fields = np.array(analysis.fields, dtype=np.int64)
    weight = np.array([f.weight for f in options.fields])
    b = np.array([f.b for f in options.fields])
    reference = np.array([f.reference for f in options.fields])
    norms[positions, fields] = weight[fields] / (1 - b[fields] + b[fields] * lengths / reference[fields])
    owner = np.repeat(positions * _FIELDS + fields, lengths)
    keys, counts = np.unique((owner << 32) | words, return_counts=True)
    found = (keys & 0xFFFFFFFF).astype(np.int32)
    place = keys >> 32
    stems = np.array(vocabulary.word_stems, dtype=np.int32)
    return _sorted(
        stems[found] if len(found) else found,
        (place // _FIELDS).astype(np.int32),
        (place % _FIELDS).astype(np.uint8),
        found,
        np.minimum(counts, 0xFFFF).astype(np.uint16),
    )


def _moved(previous: Index, kept: dict[int, int], norms: Floats) -> Entries:
    """The entries of tools that come again, under their new positions; their norms are filled in."""
    new = np.fromiter(kept.keys(), dtype=np.int32, count=len(kept))
    old = np.fromiter(kept.values(), dtype=np.int32, count=len(kept))
    norms[new] = previous._norms[old]
    place = np.full(len(previous), -1, dtype=np.int32)
    place[old] = new
    entries = previous.entries
    positions = place[entries.positions]
    stay = positions >= 0
    return Entries(
        entries.stems[stay], positions[stay], entries.fields[stay], entries.words[stay], entries.counts[stay]
    )


def _merged(first: Entries, second: Entries) -> Entries:
    def both(name: str) -> Any:
        return np.concatenate([getattr(second, name), getattr(first, name)])

    return _sorted(both("stems"), both("positions"), both("fields"), both("words"), both("counts"))


def _sorted(stems: Any, positions: Any, fields: Any, words: Any, counts: Any) -> Entries:
    order = np.argsort((stems.astype(np.int64) << 36) | (positions.astype(np.int64) << 4) | fields, kind="stable")
    return Entries(stems[order], positions[order], fields[order], words[order], counts[order])
