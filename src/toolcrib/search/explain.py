"""Explain hits with the numbers that ranked them.

Reasons are computed when they are first read, since most callers never read them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress, pairwise
from typing import overload

import numpy as np

from toolcrib.search.analysis import MAX_NAME_WORDS
from toolcrib.search.index import IndexView, Segment
from toolcrib.search.lexical import CandidateRows
from toolcrib.search.options import FIELD_NAMES, SearchOptions
from toolcrib.search.ranking import RankedTool, Ranking
from toolcrib.search.signals import (
    SIGNALS,
    CandidateSignals,
    Ints,
    best_query_words,
    is_among,
    matching_pairs,
    matching_verb,
)
from toolcrib.search.text import ParsedQuery, literal_names, stem
from toolcrib.types import Reason, ScorePart

_MIN_NAMED_LIKENESS = 0.2
"""How near a word must be in meaning to be named, 0 to 1; what nearer ones add up to goes to the whole."""


class LazyReasons(Sequence[Reason]):
    """The reasons of one hit, what added most first; worked out when they are first read."""

    __slots__ = ("_place", "_told")

    def __init__(self, told: "ReasonSource", place: int) -> None:
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


class ReasonSource:
    """The reasons of all hits of a query: most callers never read them, and they cost as much as the search."""

    def __init__(self, work_out: Callable[[], list["HitExplanation"]]) -> None:
        self._work_out: Callable[[], list[HitExplanation]] | None = work_out
        self._all: list[tuple[Reason, ...]] = []

    @property
    def all(self) -> list[tuple[Reason, ...]]:
        """By place of the hit. Once they are worked out, nothing of the search is kept."""
        work_out = self._work_out
        if work_out is not None:
            self._all = [why.reasons() for why in work_out()]
            self._work_out = None
        return self._all


def matched_words(query: ParsedQuery, ranking: Ranking) -> list[tuple[str, ...]]:
    """The query words that each hit covers, in the query's order."""
    met = ranking.met
    typed = [known.term.places[0] for known in met.known]
    found: list[tuple[str, ...]] = []
    for hit, (number, position) in zip(ranking.found, ranking.places(), strict=True):
        places = {*compress(typed, ranking.judged[number].covered[:, hit.row].tolist())}
        for item in met.names:
            if position in item.ways[0].tools[number]:
                places.update(item.term.places)
        found.append(tuple([query.words[place] for place in sorted(places)]))
    return found


class HitExplanation:
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


def explain_hits(view: IndexView, query: ParsedQuery, ranking: Ranking, options: SearchOptions) -> list[HitExplanation]:
    """Why each found tool was found; the gains of its reasons add up to its `raw`."""
    weights = {name: getattr(options.weights, name) for name in SIGNALS}
    whys: list[HitExplanation] = [HitExplanation() for _ in ranking.found]
    for number in range(len(view.parts)):
        places = [place for place, hit in enumerate(ranking.found) if hit.part == number]
        if places:
            _explain_part(view.parts[number].index, number, query, ranking, places, whys, weights)
    for hit, why in zip(ranking.found, whys, strict=True):
        if hit.boost:
            why.add("", "session", "use", "", hit.boost)
        why.rest -= options.same_need * hit.repeated
    return whys


def score_parts(hit: RankedTool, judged: CandidateSignals, options: SearchOptions) -> tuple[ScorePart, ...]:
    """What the `raw` of a hit is the sum of."""
    signals = judged.signals[hit.row].tolist()
    parts = [
        ScorePart(name, value, getattr(options.weights, name)) for name, value in zip(SIGNALS, signals, strict=True)
    ]
    if hit.boost:
        parts.append(ScorePart("use", hit.boost, 1.0))
    if hit.repeated:
        parts.append(ScorePart("same need", hit.repeated, -options.same_need))
    return tuple(parts)


def _explain_part(
    index: Segment,
    number: int,
    query: ParsedQuery,
    ranking: Ranking,
    places: Sequence[int],
    whys: Sequence[HitExplanation],
    weights: Mapping[str, float],
) -> None:
    judged = ranking.judged[number]
    rows = [ranking.found[place].row for place in places]
    chosen = [whys[place] for place in places]
    positions = judged.positions[rows]
    _explain_words(index, number, ranking, positions, chosen, weights["coverage"])
    _explain_slots(index, query, ranking, judged, rows, chosen, weights)
    for item in ranking.met.names:
        start, stop = item.ways[0].spans[number]
        gain = weights["named" if item.term.spelt else "called"]
        for tool in np.flatnonzero(is_among(index.positions[start:stop], positions)).tolist():
            chosen[tool].add(item.term.shown, "name", "exact", "", gain)
    _explain_phrases(index, query, ranking, positions, chosen, weights["phrase"])
    typed = _typed_words(query, ranking)
    taken = index.features.literals[positions] & np.uint16(query.literals)
    columns = (judged.signals[rows].tolist(), taken.tolist(), index.features.verbs[positions].tolist())
    for why, signals, literals, verbs in zip(chosen, *columns, strict=True):
        shown = dict(zip(SIGNALS, signals, strict=True))
        why.rest += shown["meaning"] * weights["meaning"] + shown["topic"] * weights["topic"]
        if literals:
            why.add(", ".join(literal_names(literals)), "parameters", "type", "", weights["literal"] * shown["literal"])
        if shown["verb"]:
            head = matching_verb(ranking.sense, verbs)
            why.add(typed.get(head, head), "name", "verb", "", weights["verb"] * shown["verb"])


def _typed_words(query: ParsedQuery, ranking: Ranking) -> dict[str, str]:
    """The words of a query as they were read, and how each was typed."""
    typed = {term.surface: term.shown for term in query.terms}
    return {read: typed[surface] for surface, read in ranking.met.corrected.items()} | typed


def _explain_phrases(
    index: Segment, query: ParsedQuery, ranking: Ranking, positions: Ints, whys: Sequence[HitExplanation], weight: float
) -> None:
    """What neighbouring words of the query add that are neighbours in a tool."""
    if not ranking.sense.pairs:
        return
    typed = _typed_words(query, ranking)
    total = sum(share for _, _, share in ranking.sense.pairs.values())
    names = index.words.stems[index.features.slots[positions, :MAX_NAME_WORDS]].tolist()
    for (first, second, share), at in matching_pairs(index, ranking.sense):
        pair = tuple([index.vocabulary.stem_numbers.get(stem(word), -1) for word in (first, second)])
        shown = f"{typed.get(first, first)} {typed.get(second, second)}"
        for tool in np.flatnonzero(is_among(at, positions)).tolist():
            field = "name" if pair in [*pairwise(names[tool])] else "description"
            whys[tool].add(shown, field, "phrase", "", weight * share / total)


def _explain_words(
    index: Segment, number: int, ranking: Ranking, positions: Ints, whys: Sequence[HitExplanation], weight: float
) -> None:
    """What each word of the query met, and where: the shares of coverage."""
    met = ranking.met
    meetings = met.postings[number].meetings(CandidateRows(positions, len(index)), met.known)
    for at, field, words, added in index.parts([meeting.posting for meeting in meetings]):
        tool, known, way, posting = meetings[at]
        own = known.term.surface in words
        how = way.how if way.how != "exact" or own else "stem"
        gain = weight * way.covers / met.total * added / float(index.impacts[posting])
        whys[tool].add(known.term.shown, FIELD_NAMES[field], how, "" if own else min(words), gain)


def _explain_slots(
    index: Segment,
    query: ParsedQuery,
    ranking: Ranking,
    judged: CandidateSignals,
    rows: Sequence[int],
    whys: Sequence[HitExplanation],
    weights: Mapping[str, float],
) -> None:
    """What each word of a name or first sentence adds, by the word of the query that asks for it."""
    features, positions = index.features, judged.positions[rows]
    likeness = judged.likeness[rows]
    gains = likeness * features.shares[positions]
    gains[:, :MAX_NAME_WORDS] *= weights["name"]
    gains[:, MAX_NAME_WORDS:] *= weights["sentence"]
    said = likeness >= _MIN_NAMED_LIKENESS
    for why, vague in zip(whys, np.where(said, 0.0, gains).sum(axis=1).tolist(), strict=True):
        why.rest += vague
    tools, slots = np.nonzero(said)
    words = features.slots[positions][said]
    askers = [*best_query_words(index, words, ranking.sense)] if len(words) else []
    typed = _typed_words(query, ranking)
    spelt = {*ranking.met.corrected.values()}.difference(term.surface for term in query.terms)
    columns = (tools.tolist(), slots.tolist(), words.tolist(), gains[said].tolist())
    for tool, slot, word, gain, (by, met) in zip(*columns, askers, strict=True):
        asker = ranking.sense.words[by]
        own = index.vocabulary.words[word]
        how = met if met != "exact" else "spelling" if asker in spelt else "exact" if asker == own else "stem"
        field = "name" if slot < MAX_NAME_WORDS else "description"
        whys[tool].add(typed.get(asker, asker), field, how, "" if how == "exact" else own, gain)
