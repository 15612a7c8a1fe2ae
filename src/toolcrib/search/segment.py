"""A segment of the search index: the postings and features of some tools, immutable.

A segment holds what depends on a single tool, and knows nothing about permissions.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from toolcrib.schema import signature
from toolcrib.search.analysis import (
    Floats,
    Ints,
    ToolAnalyzer,
    Vocabulary,
    WordOccurrences,
    count_words,
    field_norms,
    row_changes,
)
from toolcrib.search.features import EmbeddedTools, SemanticModel, ToolFeatures, WordFeatures
from toolcrib.search.options import Field, SearchOptions
from toolcrib.types import Filters, Tool, Visibility

Positions = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
ANALYSIS_VERSION = 2
"""The way in which a segment is computed from its tools. Another number makes saved segments worthless, so it has to
be raised with every change to what `Segment.arrays` returns for the same tools.
"""
ABSENT = Tool(name="", visibility=Visibility.HIDDEN)
"""The tool of each row that is not used, in a restored segment."""
_MAX_DEAD_WORDS = 10_000
"""A vocabulary is rebuilt when it holds more unused words than these, and more unused than used ones."""


class Facets:
    """The filterable properties of some tools, as arrays."""

    __slots__ = ("_namespaces", "_numbers", "_read_only", "_tags", "_visibility")

    def __init__(self, tools: Sequence[Tool]) -> None:
        """A position is an index into `tools`."""
        names = [tool.namespace for tool in tools]
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._namespaces = np.fromiter(map(self._numbers.__getitem__, names), np.int32, len(names))
        self._read_only = np.array([t.annotations.get("readOnlyHint") is True for t in tools], np.bool_)
        kinds = [tool.visibility for tool in tools]
        self._visibility = {kind: np.array([one is kind for one in kinds], np.bool_) for kind in Visibility}
        self._tags: dict[str, list[int]] = {}
        for position, tags in [(position, tool.tags) for position, tool in enumerate(tools) if tool.tags]:
            for tag in tags:
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
        *,
        ids: Sequence[str] | None = None,
    ) -> None:
        """Call `Segment.build` instead. With `ids`, of tools none of which is hidden, each is read on use."""
        self.options = options
        self.vocabulary = vocabulary
        self.norms = norms
        """What one occurrence of a word adds, per tool and field."""
        self.features = features
        self.words = words
        self.model = model
        self.restored = False
        """Whether it was read from arrays that `restore` got; it then may hold rows of tools that are not there."""
        self.word_memo: dict[Hashable, Any] = {}
        """Values that other modules derive from the words alone and cache."""
        if ids is None:
            self._use_tools(tools)
        else:
            self._use_ids(tools, ids, np.ones(len(ids), np.bool_))
        self._post(entries)

    def _use_tools(self, tools: Sequence[Tool]) -> None:
        ids = [f"{tool.namespace}:{tool.name}" if tool.namespace else tool.name for tool in tools]
        findable = np.array([tool.visibility is not Visibility.HIDDEN for tool in tools], np.bool_)
        self._use_ids(tuple(tools), ids, findable)

    def _use_ids(self, tools: Sequence[Tool], ids: Sequence[str], findable: Bools) -> None:
        self.tools = tools
        self.ids = ids
        self.id_order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        """The positions in alphabetical order of ids."""
        self.id_ranks = np.empty(len(self.ids), dtype=np.int32)
        """The rank of each tool's id in alphabetical order."""
        self.id_ranks[self.id_order] = np.arange(len(self.ids), dtype=np.int32)
        self.findable = findable
        self.signatures: list[str | None] = [None] * len(ids)
        self.memo: dict[Hashable, Any] = {}
        """Values that other modules derive from the segment and cache."""

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

    @classmethod
    def restore(cls, arrays: Mapping[str, Array], *, model: SemanticModel, options: SearchOptions) -> "Segment":
        """Return the segment that `arrays` were taken from, without its tools: `with_tools` adds them.

        Model and options must be equal to those of that segment, except for the embedder. The arrays are used as they
        are, and never changed. Raises `KeyError` or `ValueError` for arrays that are not of a segment.
        """
        made = cls.__new__(cls)
        made._read(arrays, model, options)  # noqa: SLF001 - of the same class
        return made

    def arrays(self) -> dict[str, Array]:
        """What the segment computed from its tools, for `restore`; without the vectors of an embedder."""
        return {
            "norms": self.norms,
            "positions": self.positions,
            "impacts": self.impacts,
            "starts": np.array(self._starts, dtype=np.int32),
            "rows": self._rows,
            "fields": self._fields,
            "row_words": self._words,
            "counts": self._counts,
            "word_stems": np.array(self.vocabulary.word_stems, dtype=np.int32),
            **_pack_texts("words", self.vocabulary.words),
            **_pack_texts("stems", self.vocabulary.stems),
            **self.features.arrays(),
            **self.words.arrays(),
        }

    def with_tools(self, tools: Sequence[Tool]) -> "Segment":
        """Return a restored segment with its tools, in the order of its rows; `ABSENT` for a row that is not used."""
        other = copy(self)
        other.__dict__.pop("facets", None)
        other._use_tools(tools)  # noqa: SLF001 - of the same class
        return other

    def with_vectors(self, model: SemanticModel) -> "Segment":
        """Return the segment with the vectors that a model knows of its tools.

        The model differs from the segment's at most in its embedder.
        """
        rows = self.features.embedded.rows
        known = rows.scales > 0 if model == self.model else np.zeros(len(self), np.bool_)
        absent = np.array([tool is ABSENT for tool in self.tools], np.bool_) if self.restored else False
        missing = np.flatnonzero(~(known | absent)).astype(np.int32)
        fresh = model.embed_tools([self.tools[place] for place in missing.tolist()])
        if model == self.model and not fresh.scales.any():
            return self
        made = EmbeddedTools.unknown(len(self), fresh.values.shape[1])
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
        return words > _MAX_DEAD_WORDS and words > 2 * self._used_words

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
        starts = np.flatnonzero(row_changes(place, fields))
        place, fields = place[starts], fields[starts]
        adds = _field_weights(self._counts[found], starts, self.norms[self.positions[at[place]], fields])
        gains = adds * (self.impacts[at] / np.bincount(place, adds, len(at)))[place]
        words = [self.vocabulary.words[word] for word in self._words[found].tolist()]
        ends = [*starts[1:].tolist(), len(words)]
        groups = [words[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        return zip(
            place.tolist(), map(_FIELD_BY_NUMBER.__getitem__, fields.tolist()), groups, gains.tolist(), strict=True
        )

    @cached_property
    def _used_words(self) -> int:
        """How many words of the vocabulary some tool has."""
        is_used = np.zeros(len(self.vocabulary.words), dtype=np.bool_)
        is_used[self._words] = True
        return int(np.count_nonzero(is_used))

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
        first = np.flatnonzero(row_changes(entries.stems, entries.positions, entries.fields))
        stems, positions, fields = entries.stems[first], entries.positions[first], entries.fields[first]
        adds = _field_weights(entries.counts, first, self.norms[positions, fields])
        starts = np.flatnonzero(row_changes(stems, positions))
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

    def _read(self, arrays: Mapping[str, Array], model: SemanticModel, options: SearchOptions) -> None:
        self.model, self.options, self.restored, self.word_memo = model, options, True, {}
        self.vocabulary = Vocabulary.restore(
            _unpack_texts(arrays, "words"), _unpack_texts(arrays, "stems"), arrays["word_stems"].tolist()
        )
        size = len(arrays["norms"])
        dim = 0 if model.tools is None else model.tools.dim
        self.features = ToolFeatures.restore(arrays, EmbeddedTools.unknown(size, dim))
        self.words = WordFeatures.restore(arrays)
        self.norms, self.positions, self.impacts = arrays["norms"], arrays["positions"], arrays["impacts"]
        self._starts = arrays["starts"].tolist()
        self._rows, self._fields = arrays["rows"], arrays["fields"]
        self._words, self._counts = arrays["row_words"], arrays["counts"]
        self._use_tools((ABSENT,) * size)


def _field_weights(counts: npt.NDArray[np.uint16], starts: Positions, norms: Floats) -> npt.NDArray[np.float64]:
    """What each field of a tool adds to the weight of a stem; its rows begin at `starts`.

    Adds up integers before multiplying, so that the order of the words, which depends on the history of the segment,
    does not change the last digit.
    """
    whole = counts.astype(np.float64)
    return (np.add.reduceat(whole, starts) if len(starts) else whole) * norms


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


def _pack_texts(name: str, texts: Sequence[str]) -> dict[str, Array]:
    """Texts as two arrays: their characters as UTF-8, and where each text ends, in characters."""
    whole = "".join(texts).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    return {name: np.frombuffer(whole, dtype=np.uint8), f"{name}.ends": lengths.cumsum()}


def _unpack_texts(arrays: Mapping[str, Array], name: str) -> list[str]:
    whole = arrays[name].tobytes().decode("utf-8", "surrogatepass")
    ends = arrays[f"{name}.ends"].tolist()
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
