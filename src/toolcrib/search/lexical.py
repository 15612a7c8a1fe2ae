"""BM25F over the caller's view, and the reasons that come out of the same numbers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from toolcrib.model import Reason
from toolcrib.search.analysis import WHOLE
from toolcrib.search.index import Bools, Index
from toolcrib.search.options import FIELD_NAMES
from toolcrib.search.query import Query, Term

_UNKNOWN = 0.5
"""What a word that nobody knows counts, as a share of the rarest known word, when coverage is worked out.
Source: the prototype's `cov` feature."""


@dataclass(frozen=True, slots=True)
class Part:
    """An index, and which of its tools the caller sees."""

    index: Index
    seen: Bools


@dataclass(frozen=True, slots=True)
class View:
    """All that one caller sees: the statistics of a search are counted in here, and nowhere else."""

    parts: tuple[Part, ...]
    count: int
    """How many tools there are."""

    @classmethod
    def of(cls, *parts: Part) -> "View":
        """The view made of these parts."""
        return cls(parts, sum(int(np.count_nonzero(part.seen)) for part in parts))


@dataclass(frozen=True, slots=True)
class Known:
    """A term that at least one visible tool has."""

    term: Term
    idf: float
    spans: tuple[tuple[int, int], ...]
    """Where its postings are, in each part."""


@dataclass(frozen=True, slots=True)
class Found:
    """A tool that was found."""

    raw: float
    id: str
    part: int
    position: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one query found."""

    found: list[Found]
    """Best first: score descending, then id ascending."""
    total: int
    """How many there were before the limit."""
    known: list[Known]
    """The terms that met any visible tool."""
    ceiling: float
    """What a tool would score that every word of the query marks as strongly as a word can."""
    unmatched: tuple[str, ...]
    """The words, as typed, that met nothing."""


def idf(n: int, df: int) -> float:
    """How rare a term is: `ln(1 + (n - df + 0.5) / (df + 0.5))`; above 0.

    n counts the tools, df those with the term, 0 <= df <= n.
    Source: Kamphuis et al., ECIR 2020, the Lucene variant.

    >>> round(idf(1000, 1), 2), round(idf(1000, 1000), 4)
    (6.5, 0.0005)
    """
    return log(1 + (n - df + 0.5) / (df + 0.5))


def rank(view: View, query: Query, limit: int, allowed: Sequence[Bools]) -> Ranking:
    """The best tools for a query, of those allowed in each part. Allowed tools must be seen ones."""
    known = _known(view, query)
    scores = [np.zeros(len(part.index)) for part in view.parts]
    for met in known:
        for part, score, (start, stop) in zip(view.parts, scores, met.spans, strict=True):
            score[part.index.positions[start:stop]] += met.idf * part.index.impacts[start:stop]
    found: list[Found] = []
    total = 0
    for number, (part, score) in enumerate(zip(view.parts, scores, strict=True)):
        candidates = np.flatnonzero((score > 0) & allowed[number])
        total += len(candidates)
        best = _best(candidates, score, part.index, limit)
        found.extend(Found(float(score[p]), part.index.ids[p], number, p) for p in best.tolist())
    if len(view.parts) > 1:
        found.sort(key=lambda hit: (-hit.raw, hit.id))
    stems = {met.term.stem for met in known}
    unknown = [term for term in query.terms if term.stem not in stems]
    ceiling = sum(met.idf for met in known) + _UNKNOWN * len(unknown) * idf(view.count, 0)
    return Ranking(found[:limit], total, known, ceiling, _unmatched(query, known, unknown))


def reasons(view: View, ranking: Ranking) -> list[tuple[tuple[Reason, ...], tuple[int, ...]]]:
    """Why each found tool was found, the strongest reason first, and which typed words it covers, by place."""
    why: list[dict[tuple[str, str], _Why]] = [{} for _ in ranking.found]
    for number, part in enumerate(view.parts):
        places = [place for place, hit in enumerate(ranking.found) if hit.part == number]
        if not places:
            continue
        for place, met, field, words, gain in _contributions(part.index, number, ranking, places):
            found = why[place]
            key = (met.term.stem, field)
            if key not in found:
                found[key] = _Why(met.term)
            found[key].add(words, met.idf * gain)
    return [_told(found.items()) for found in why]


class _Why:
    """Why one term met one field, while it is added up."""

    __slots__ = ("gain", "term", "words")

    def __init__(self, term: Term) -> None:
        self.term = term
        self.words: list[str] = []
        self.gain = 0.0

    def add(self, words: list[str], gain: float) -> None:
        self.words += words
        self.gain += gain

    def reason(self, field: str) -> Reason:
        exact = self.term.whole or self.term.surface in self.words
        return Reason(
            word=self.term.shown,
            field=field,
            how="exact" if exact else "stem",
            matched="" if exact else min(self.words),
            gain=self.gain,
        )


def _told(found: Iterable[tuple[tuple[str, str], _Why]]) -> tuple[tuple[Reason, ...], tuple[int, ...]]:
    ordered = sorted(found, key=lambda item: (-item[1].gain, item[0]))
    told = tuple(why.reason(field) for (_, field), why in ordered)
    return told, tuple(sorted({place for _, why in ordered for place in why.term.places}))


def _known(view: View, query: Query) -> list[Known]:
    found = []
    for term in query.terms:
        met = _met(view, term.stem)
        if met:
            found.append(Known(term, *met))
    for name, places in query.names:
        met = _met(view, WHOLE + name)
        if met:
            found.append(Known(query.whole(name, places), *met))
    return found


def _met(view: View, stem: str) -> tuple[float, tuple[tuple[int, int], ...]] | None:
    """The idf of a stem, and where its postings are in each part; None when no visible tool has it."""
    spans = tuple(part.index.span(stem) for part in view.parts)
    df = sum(_seen(part, start, stop) for part, (start, stop) in zip(view.parts, spans, strict=True) if stop > start)
    return (idf(view.count, df), spans) if df else None


def _seen(part: Part, start: int, stop: int) -> int:
    return int(np.count_nonzero(part.seen[part.index.positions[start:stop]]))


def _unmatched(query: Query, known: list[Known], unknown: list[Term]) -> tuple[str, ...]:
    """The typed words without any known part, and the unknown parts of the others."""
    met = {place for item in known for place in item.term.places}
    missed = (term.shown if term.places[0] in met else query.words[term.places[0]] for term in unknown)
    return tuple(dict.fromkeys(missed))


def _best(
    candidates: npt.NDArray[np.intp], score: npt.NDArray[np.float64], index: Index, limit: int
) -> npt.NDArray[np.intp]:
    """The best of the candidates, best first, ties by id."""
    if len(candidates) > limit:
        scores = score[candidates]
        candidates = candidates[scores >= np.partition(scores, -limit)[-limit]]
    order = np.lexsort((index.ranks[candidates], -score[candidates]))
    return candidates[order[:limit]]


def _contributions(
    index: Index, number: int, ranking: Ranking, places: list[int]
) -> Iterator[tuple[int, Known, str, list[str], float]]:
    """What made the score of the hits of one part: hit, term, field, words of the tool, share of the impact."""
    positions = np.array([ranking.found[place].position for place in places], dtype=np.int32)
    postings: list[int] = []
    owners: list[int] = []
    terms: list[Known] = []
    for met in ranking.known:
        start, stop = met.spans[number]
        there = index.positions[start:stop]
        for owner, at in enumerate(there.searchsorted(positions).tolist()):
            if at < stop - start and there[at] == positions[owner]:
                postings.append(start + at)
                owners.append(places[owner])
                terms.append(met)
    for place, field, words, gain in index.parts(postings):
        yield owners[place], terms[place], FIELD_NAMES[field], words, gain
