"""What one caller sees: parts of indexes, and the statistics that are counted inside them and nowhere else."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from math import log
from typing import Any

import numpy as np

from toolcrib.search.entries import Ints
from toolcrib.search.segment import Bools, Segment


@dataclass(frozen=True)
class Part:
    """A segment of an index, and which of its tools the caller sees."""

    index: Segment
    seen: Bools
    count: int = field(init=False)
    """How many those are."""
    whole: bool = field(init=False)
    """Whether the caller sees all of it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", int(np.count_nonzero(self.seen)))
        object.__setattr__(self, "whole", self.count == len(self.seen))

    @cached_property
    def places(self) -> Ints:
        """The positions of the tools that the caller sees."""
        return self.seen.nonzero()[0].astype(np.int32)

    def frequency(self, start: int, stop: int) -> int:
        """How many visible tools are among those of some postings."""
        if stop == start or self.whole:
            return stop - start
        return int(np.count_nonzero(self.seen[self.index.positions[start:stop]]))


@dataclass(frozen=True, slots=True)
class View:
    """All that one caller sees."""

    parts: tuple[Part, ...]
    count: int
    """How many tools there are."""
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """What others derive from the view once; it lives as long as the view, which no caller with another one meets."""

    @classmethod
    def of(cls, *parts: Part) -> "View":
        """The view made of these parts."""
        return cls(parts, sum(part.count for part in parts))

    def spans(self, stem: str) -> tuple[int, tuple[tuple[int, int], ...]]:
        """In how many visible tools a stem occurs, and where its postings are in each part."""
        if len(self.parts) == 1:
            part = self.parts[0]
            span = part.index.span(stem)
            return part.frequency(*span), (span,)
        spans = tuple([part.index.span(stem) for part in self.parts])
        return sum([part.frequency(*span) for part, span in zip(self.parts, spans, strict=True)]), spans

    def knows(self) -> Callable[[str], bool]:
        """What tells whether some tool, visible or not, has a stem."""
        first, *others = [part.index.vocabulary.stem_numbers for part in self.parts]
        if not others:
            return first.__contains__
        return lambda stem: stem in first or any(stem in numbers for numbers in others)

    def begins(self, word: str) -> bool:
        """Whether the name of a visible tool begins with the word, and has others behind it."""
        for part in self.parts:
            at = part.index.heads.get(word)
            if at is not None and (part.whole or part.seen[at].any()):
                return True
        return False


def idf(n: int, df: int) -> float:
    """How rare a term is: `ln(1 + (n - df + 0.5) / (df + 0.5))`; above 0.

    n counts the tools, df those with the term, 0 <= df <= n.
    Source: Kamphuis et al., ECIR 2020, the Lucene variant.

    >>> round(idf(1000, 1), 2), round(idf(1000, 1000), 4)
    (6.5, 0.0005)
    """
    return log(1 + (n - df + 0.5) / (df + 0.5))
