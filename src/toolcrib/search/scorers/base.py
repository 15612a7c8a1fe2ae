"""What the rankings share: the interface, how a query is read, and how the best are chosen and explained."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from toolcrib.model import Reason, ScorePart
from toolcrib.search.scorers.options import ScorerOptions
from toolcrib.search.segment import Bools, Places, Segment
from toolcrib.search.text import CHUNK, split
from toolcrib.search.view import Part, View, idf

__all__ = ["Bools", "Floats", "Part", "Places", "Segment", "View", "idf"]

Floats = npt.NDArray[np.float64]

MAX_TEXT = 8_000
"""Characters of one text that are read, of a query or of a tool."""

_T = TypeVar("_T")


class Scored(NamedTuple):
    """One tool of an answer."""

    part: int
    """The part of the view that holds it."""
    position: int
    """Its place there."""
    raw: float
    """The ranking's own figure, above 0."""
    reasons: tuple[Reason, ...]
    """Why it was found, the strongest first."""
    matched: tuple[str, ...]
    """The typed words that it covers, in their order."""
    parts: tuple[ScorePart, ...]
    """What `raw` is the sum of."""
    fallback: bool
    """Whether it fits nothing and is shown all the same."""


@dataclass(slots=True)
class Ranked:
    """What one query found."""

    hits: list[Scored]
    """Best first: `raw` descending, then id ascending."""
    total: int
    """How many there were before the limit."""
    unmatched: tuple[str, ...] = ()
    """The words, as typed, that meet nothing the caller sees."""


class Rank(Protocol):
    """The interface of a ranking.

    `view` is all that exists for the caller; a tool outside of it changes nothing. `allowed` narrows, in each part,
    which of the tools he sees are given back, and changes no figure. `boosts` leads from ids to factors of `raw`.
    """

    def __call__(
        self,
        view: View,
        text: str,
        limit: int,
        allowed: Sequence[Bools],
        options: ScorerOptions,
        boosts: Mapping[str, float] | None = None,
    ) -> Ranked: ...


def kept(index: Segment, key: Hashable, work_out: Callable[[Segment], _T]) -> _T:
    """What is worked out from an index once, and kept beside it."""
    if key not in index.memo:
        index.memo[key] = work_out(index)
    known: _T = index.memo[key]
    return known


class Word(NamedTuple):
    """A word of a query."""

    text: str
    """Lower case, taken out of its identifier: what is looked up."""
    chunk: str
    """The identifier or word it comes from, as typed."""
    place: int
    """The place of that among all."""
    alone: bool
    """Whether nothing else comes from there."""

    @property
    def shown(self) -> str:
        """The word as it was typed, or the part of an identifier."""
        return self.chunk if self.alone else self.text


def read(text: str, limit: int) -> list[Word]:
    """The first words of a query, each once.

    >>> [word.text for word in read("createIssue in my_repo, create it", 5)]
    ['create', 'issue', 'in', 'my', 'repo']
    """
    found: dict[str, Word] = {}
    for place, chunk in enumerate(CHUNK.findall(text[:MAX_TEXT])):
        parts = split(chunk)
        for part in parts:
            found.setdefault(part, Word(part, chunk, place, len(parts) == 1))
        if len(found) >= limit:
            break
    return list(found.values())[:limit]


def unmatched(words: Sequence[Word], met: Iterable[str]) -> tuple[str, ...]:
    """The typed words of which nothing was met, and the missing parts of the others."""
    known = set(met)
    places = {word.place for word in words if word.text in known}
    missed = (word.shown if word.place in places else word.chunk for word in words if word.text not in known)
    return tuple(dict.fromkeys(missed))


class Found(NamedTuple):
    """A chosen tool, before it is explained."""

    raw: float
    id: str
    part: int
    position: int
    plain: float
    """What `raw` was before the session's boost."""


def best(
    view: View, scores: Sequence[Floats], allowed: Sequence[Bools], limit: int, boosts: Mapping[str, float] | None
) -> tuple[list[Found], int]:
    """The best tools with a score above 0, best first, and how many there are in all."""
    found: list[Found] = []
    total = 0
    for number, (part, score, passes) in enumerate(zip(view.parts, scores, allowed, strict=True)):
        candidates = np.flatnonzero((score > 0) & passes)
        total += len(candidates)
        raw = _boosted(part.index, score, boosts)
        found += [
            Found(float(raw[place]), part.index.ids[place], number, place, float(score[place]))
            for place in _top(candidates, raw, part.index, limit).tolist()
        ]
    found.sort(key=lambda one: (-one.raw, one.id, one.part))
    return found[: max(0, limit)], total


def _boosted(index: Segment, score: Floats, boosts: Mapping[str, float] | None) -> Floats:
    if not boosts:
        return score
    places = positions(index)
    raw = score.copy()
    for id_, factor in boosts.items():
        if id_ in places:
            raw[places[id_]] *= factor
    return raw


def positions(index: Segment) -> dict[str, int]:
    """The position of each id."""
    return kept(index, "positions", lambda index: {id_: place for place, id_ in enumerate(index.ids)})


def _top(candidates: Places, raw: Floats, index: Segment, limit: int) -> Places:
    if limit < 1:
        return candidates[:0]
    if len(candidates) > limit:
        values = raw[candidates]
        candidates = candidates[values >= np.partition(values, -limit)[-limit]]
    order = np.lexsort((index.ranks[candidates], -raw[candidates]))
    return candidates[order[:limit]]


class Line(NamedTuple):
    """One thing that adds to a tool's score."""

    reason: Reason
    part: ScorePart
    places: tuple[int, ...]
    """The places of the typed words behind it."""


def scored(found: Found, lines: Sequence[Line], typed: Mapping[int, str], *, fallback: bool = False) -> Scored:
    """The chosen tool with its reasons; what the session added comes last."""
    ordered = sorted(lines, key=lambda line: (-line.reason.gain, line.reason.word, line.reason.field, line.part.name))
    reasons = [line.reason for line in ordered if line.reason.gain]
    parts = [line.part for line in ordered]
    gained = found.raw - found.plain
    if gained:
        reasons.append(Reason(word="", field="session", how="use", gain=gained))
        parts.append(ScorePart(name="session", value=gained / found.plain, weight=found.plain))
    covered = sorted({place for line in lines for place in line.places})
    matched = tuple(dict.fromkeys(typed[place] for place in covered))
    return Scored(found.part, found.position, found.raw, tuple(reasons), matched, tuple(parts), fallback)


@dataclass(slots=True)
class Meeting:
    """One word of a query meets some tools of one part in one way."""

    words: tuple[Word, ...]
    """The words of the query behind it; the first is shown."""
    field: str
    how: str
    positions: Places
    """The tools, each once."""
    weight: float
    values: Floats
    """Beside `positions`; each tool gains `weight * value`."""
    matched: Sequence[str] = ()
    """The words of the tools that were met, where they are not the query's own: one for all, or one each."""

    def line(self, at: int) -> Line:
        """What it adds to one of the tools."""
        value = float(self.values[at])
        word = self.words[0].shown
        matched = self.matched[at if len(self.matched) > 1 else 0] if self.matched else ""
        reason = Reason(word=word, field=self.field, how=self.how, matched=matched, gain=self.weight * value)
        name = f"{matched or word} in {self.field}"
        return Line(reason, ScorePart(name=name, value=value, weight=self.weight), _places(self.words))


def _places(words: Iterable[Word]) -> tuple[int, ...]:
    return tuple(word.place for word in words)


def lines(meetings: Sequence[Sequence[Meeting]], view: View, found: Sequence[Found]) -> list[list[Line]]:
    """What each of the chosen tools was found by; the meetings come part by part."""
    told: list[list[Line]] = [[] for _ in found]
    for number, part in enumerate(view.parts):
        owner = np.full(len(part.index), -1, dtype=np.intp)
        for place, one in enumerate(found):
            if one.part == number:
                owner[one.position] = place
        for meeting in meetings[number]:
            owners: Any = owner[meeting.positions]
            for at in np.flatnonzero(owners >= 0).tolist():
                told[owners[at]].append(meeting.line(at))
    return told


def total_of(meetings: Sequence[Meeting], size: int) -> Floats:
    """The sum of what each of `size` tools gains."""
    score = np.zeros(size)
    for meeting in meetings:
        score[meeting.positions] += meeting.weight * meeting.values
    return score
