"""Why each hit was found, out of the very numbers that ranked it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from toolcrib.model import Reason, ScorePart
from toolcrib.search.analysis import NAME_WORDS
from toolcrib.search.kinds import named
from toolcrib.search.options import FIELD_NAMES, SearchOptions
from toolcrib.search.query import Query
from toolcrib.search.ranking import Found, Ranking
from toolcrib.search.segment import Segment
from toolcrib.search.signals import NAMES, Ints, Judged, has, phrases
from toolcrib.search.view import View

_SAID = 0.2
"""How near a word must be in meaning to be named, 0 to 1; what nearer ones add up to goes to the whole."""


class Reasons(Sequence[Reason]):
    """The reasons of one hit, what added most first; worked out when they are first read."""

    __slots__ = ("_place", "_told")

    def __init__(self, told: "Told", place: int) -> None:
        self._told = told
        self._place = place

    @overload
    def __getitem__(self, place: int) -> Reason: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Reason, ...]: ...
    def __getitem__(self, place: int | slice) -> Reason | tuple[Reason, ...]:
        return self._tuple()[place]

    def __len__(self) -> int:
        return len(self._tuple())

    def __eq__(self, other: object) -> bool:
        return self._tuple() == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._tuple())

    def __repr__(self) -> str:
        return repr(self._tuple())

    def __reduce__(self) -> tuple[type[tuple[Reason, ...]], tuple[tuple[Reason, ...]]]:
        """Copied and pickled as the plain tuple."""
        return tuple, (self._tuple(),)

    def _tuple(self) -> tuple[Reason, ...]:
        return self._told.all[self._place]


class Told:
    """The reasons of all hits of a query: most callers never read them, and they cost as much as the search."""

    def __init__(self, work_out: Callable[[], list["Why"]]) -> None:
        self._work_out = work_out

    @cached_property
    def all(self) -> list[tuple[Reason, ...]]:
        """By place of the hit."""
        return [why.reasons() for why in self._work_out()]


def matched(view: View, query: Query, ranking: Ranking) -> list[tuple[str, ...]]:
    """The query words that each hit covers, in the query's order."""
    met = ranking.met
    found: list[tuple[str, ...]] = []
    for hit, (number, position) in zip(ranking.found, ranking.places(), strict=True):
        flags = (ranking.judged[number].covered[:, hit.row] > 0).tolist()
        places = {place for known, flag in zip(met.known, flags, strict=True) if flag for place in known.term.places}
        for item in met.names:
            start, stop = item.ways[0].spans[number]
            at = view.parts[number].index.positions[start:stop]
            if position in at:
                places.update(item.term.places)
        found.append(tuple([query.words[place] for place in sorted(places)]))
    return found


class Why:
    """Why one tool was found: what each word added, by where and how."""

    __slots__ = ("gains", "rest", "shown")

    def __init__(self) -> None:
        self.gains: dict[tuple[str, str], float] = {}
        """By word and field."""
        self.shown: dict[tuple[str, str], tuple[str, str]] = {}
        """How it met, and which word of the tool."""
        self.rest = 0.0
        """What the meaning of the whole adds."""

    def add(self, word: str, field: str, how: str, matched: str, gain: float) -> None:
        """One more thing that speaks for the tool, or against it."""
        key = (word, field)
        self.gains[key] = self.gains.get(key, 0.0) + gain
        self.shown.setdefault(key, (how, matched))

    def reasons(self) -> tuple[Reason, ...]:
        """All of it, what added most first."""
        found = [Reason(word, field, *self.shown[word, field], gain) for (word, field), gain in self.gains.items()]
        if self.rest:
            found.append(Reason("", "all", "meaning", "", self.rest))
        found.sort(key=lambda reason: (-reason.gain, reason.word, reason.field))
        return tuple(found)


def explained(view: View, query: Query, ranking: Ranking, options: SearchOptions) -> list[Why]:
    """Why each found tool was found; the gains of its reasons add up to its `raw`."""
    weights = {name: getattr(options.weights, name) for name in NAMES}
    whys: list[Why] = [Why() for _ in ranking.found]
    for number in range(len(view.parts)):
        places = [place for place, hit in enumerate(ranking.found) if hit.part == number]
        if places:
            _of_part(view.parts[number].index, number, query, ranking, places, whys, weights)
    for hit, why in zip(ranking.found, whys, strict=True):
        if hit.boost:
            why.add("", "session", "use", "", hit.boost)
        why.rest -= options.same_need * hit.repeated
    return whys


def arithmetic(hit: Found, judged: Judged, options: SearchOptions) -> tuple[ScorePart, ...]:
    """What the `raw` of a hit is the sum of."""
    signals = judged.signals[hit.row].tolist()
    parts = [ScorePart(name, value, getattr(options.weights, name)) for name, value in zip(NAMES, signals, strict=True)]
    if hit.boost:
        parts.append(ScorePart("use", hit.boost, 1.0))
    if hit.repeated:
        parts.append(ScorePart("same need", hit.repeated, -options.same_need))
    return tuple(parts)


def _of_part(
    index: Segment,
    number: int,
    query: Query,
    ranking: Ranking,
    places: Sequence[int],
    whys: Sequence[Why],
    weights: Mapping[str, float],
) -> None:
    judged = ranking.judged[number]
    rows = [ranking.found[place].row for place in places]
    chosen = [whys[place] for place in places]
    positions = judged.positions[rows]
    _words(index, number, ranking, positions, chosen, weights["coverage"])
    _slots(index, ranking, judged, rows, chosen, weights)
    for why, signals in zip(chosen, judged.signals[rows].tolist(), strict=True):
        _rest(query, ranking, why, dict(zip(NAMES, signals, strict=True)), weights)
    total = sum(weight for _, _, weight in ranking.sense.pairs.values())
    if ranking.sense.pairs:
        for (first, second, weight), at in phrases(index, ranking.sense):
            for place in np.flatnonzero(has(at, positions)).tolist():
                chosen[place].add(f"{first} {second}", "description", "phrase", "", weights["phrase"] * weight / total)


def _words(index: Segment, number: int, ranking: Ranking, positions: Ints, whys: Sequence[Why], weight: float) -> None:
    """What each word of the query met, and where: the shares of coverage."""
    met = ranking.met
    meetings = met.postings[number].meetings(positions, len(index), met.known)
    for at, field, words, added in index.parts([meeting.posting for meeting in meetings]):
        tool, known, way, posting = meetings[at]
        own = known.term.surface in words
        how = way.how if way.how != "exact" or own else "stem"
        gain = weight * way.covers / met.total * added / float(index.impacts[posting])
        whys[tool].add(known.term.shown, FIELD_NAMES[field], how, "" if own else min(words), gain)


def _slots(
    index: Segment,
    ranking: Ranking,
    judged: Judged,
    rows: Sequence[int],
    whys: Sequence[Why],
    weights: Mapping[str, float],
) -> None:
    """What each word of a name or first sentence adds, by the word of the query that asks for it."""
    features, positions = index.features, judged.positions[rows]
    likeness = judged.likeness[rows]
    gains = likeness * features.shares[positions]
    gains[:, :NAME_WORDS] *= weights["name"]
    gains[:, NAME_WORDS:] *= weights["sentence"]
    said = likeness >= _SAID
    for why, vague in zip(whys, np.where(said, 0.0, gains).sum(axis=1).tolist(), strict=True):
        why.rest += vague
    tools, slots = np.nonzero(said)
    words = features.slots[positions][said].tolist()
    typed = {read: word for word, read in ranking.met.corrected.items()}
    columns = (tools.tolist(), slots.tolist(), words, gains[said].tolist(), likeness[said].tolist())
    for tool, slot, word, gain, like, by in zip(*columns, judged.asked[rows][said].tolist(), strict=True):
        asking = ranking.sense.words[by]
        how = "meaning" if like < 1 else "spelling" if asking in typed else "exact"
        field = "name" if slot < NAME_WORDS else "description"
        matched = "" if how == "exact" else index.vocabulary.words[word]
        whys[tool].add(typed.get(asking, asking), field, how, matched, gain)


def _rest(query: Query, ranking: Ranking, why: Why, signals: Mapping[str, float], weights: Mapping[str, float]) -> None:
    """What speaks for a tool or against it beside its words."""
    why.rest += signals["meaning"] * weights["meaning"] + signals["topic"] * weights["topic"]
    if signals["literal"]:
        kinds = ", ".join(named(query.literals))
        why.add(kinds, "parameters", "type", "", weights["literal"] * signals["literal"])
    if signals["verb"]:
        why.add(ranking.sense.heads[0], "name", "verb", "", weights["verb"] * signals["verb"])
    for signal in ("called", "named"):
        if signals[signal]:
            names = (known.term for known in ranking.met.names)
            name = next(term.shown for term in names if term.spelt == (signal == "named"))
            why.add(name, "name", "exact", "", weights[signal] * signals[signal])
