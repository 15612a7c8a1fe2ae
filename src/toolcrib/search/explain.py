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
"""A word with at least this similarity becomes a reason of its own; the rest goes to the meaning of the whole."""


class LazyReasons(Sequence[Reason]):
    """The reasons of one hit, the largest gain first. They are computed when first read."""

    __slots__ = ("_place", "_source")

    def __init__(self, source: "ReasonSource", place: int) -> None:
        self._source = source
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
        """Copy and pickle as a plain tuple."""
        return tuple, (self._tuple(),)

    def _tuple(self) -> tuple[Reason, ...]:
        return self._source.all[self._place]


class ReasonSource:
    """Computes the reasons of all hits of a query on first use, since they cost as much as the search itself."""

    def __init__(self, work_out: Callable[[], list["HitExplanation"]]) -> None:
        self._work_out: Callable[[], list[HitExplanation]] | None = work_out
        self._all: list[tuple[Reason, ...]] = []

    @property
    def all(self) -> list[tuple[Reason, ...]]:
        """The reasons by number of the hit. Once they are computed, no reference to the search is kept."""
        work_out = self._work_out
        if work_out is not None:
            self._all = [explanation.reasons() for explanation in work_out()]
            self._work_out = None
        return self._all


def matched_words(query: ParsedQuery, ranking: Ranking) -> list[tuple[str, ...]]:
    """The query words that each hit covers, in their order."""
    match = ranking.match
    typed = [matched.term.word_range[0] for matched in match.terms]
    found: list[tuple[str, ...]] = []
    for hit, (number, position) in zip(ranking.tools, ranking.places(), strict=True):
        places = {*compress(typed, ranking.candidates[number].covered_idf[:, hit.row].tolist())}
        for item in match.names:
            if position in item.expansions[0].tools[number]:
                places.update(item.term.word_range)
        found.append(tuple([query.words[place] for place in sorted(places)]))
    return found


class HitExplanation:
    """Collects what each word adds to the score of one tool, where and how."""

    __slots__ = ("gains", "rest", "shown")

    def __init__(self) -> None:
        self.gains: dict[tuple[str, str], float] = {}
        """By word and field."""
        self.shown: dict[tuple[str, str], tuple[str, str]] = {}
        """How it matched, and which word of the tool."""
        self.rest = 0.0
        """The gain of the meaning of the whole."""

    def add(self, word: str, field: str, how: str, matched: str, gain: float) -> None:
        """Add a gain, which may be negative."""
        key = (word, field)
        self.gains[key] = self.gains.get(key, 0.0) + gain
        self.shown.setdefault(key, (how, matched))

    def reasons(self) -> tuple[Reason, ...]:
        """Return the reasons, the largest gain first."""
        found = [Reason(word, field, *self.shown[word, field], gain) for (word, field), gain in self.gains.items()]
        if self.rest:
            found.append(Reason("", "all", "meaning", "", self.rest))
        found.sort(key=lambda reason: (-reason.gain, reason.word, reason.field))
        return tuple(found)


def explain_hits(view: IndexView, query: ParsedQuery, ranking: Ranking, options: SearchOptions) -> list[HitExplanation]:
    """Explain each tool of a ranking. The gains of its reasons add up to its `raw`."""
    weights = {name: getattr(options.weights, name) for name in SIGNALS}
    explanations: list[HitExplanation] = [HitExplanation() for _ in ranking.tools]
    for number in range(len(view.parts)):
        places = [place for place, hit in enumerate(ranking.tools) if hit.part == number]
        if places:
            _explain_part(view.parts[number].segment, number, query, ranking, places, explanations, weights)
    for hit, explanation in zip(ranking.tools, explanations, strict=True):
        if hit.boost:
            explanation.add("", "session", "use", "", hit.boost)
        explanation.rest -= options.same_need * hit.repeats
    return explanations


def score_parts(hit: RankedTool, candidates: CandidateSignals, options: SearchOptions) -> tuple[ScorePart, ...]:
    """Break down the `raw` of a hit into signals and weights."""
    signals = candidates.signals[hit.row].tolist()
    parts = [
        ScorePart(name, value, getattr(options.weights, name)) for name, value in zip(SIGNALS, signals, strict=True)
    ]
    if hit.boost:
        parts.append(ScorePart("use", hit.boost, 1.0))
    if hit.repeats:
        parts.append(ScorePart("same need", hit.repeats, -options.same_need))
    return tuple(parts)


def _explain_part(
    segment: Segment,
    number: int,
    query: ParsedQuery,
    ranking: Ranking,
    places: Sequence[int],
    explanations: Sequence[HitExplanation],
    weights: Mapping[str, float],
) -> None:
    candidates = ranking.candidates[number]
    rows = [ranking.tools[place].row for place in places]
    chosen = [explanations[place] for place in places]
    positions = candidates.positions[rows]
    _explain_words(segment, number, ranking, positions, chosen, weights["coverage"])
    _explain_slots(segment, query, ranking, candidates, rows, chosen, weights)
    for item in ranking.match.names:
        start, stop = item.expansions[0].spans[number]
        gain = weights["named" if item.term.is_explicit else "called"]
        for tool in np.flatnonzero(is_among(segment.positions[start:stop], positions)).tolist():
            chosen[tool].add(item.term.typed, "name", "exact", "", gain)
    _explain_phrases(segment, query, ranking, positions, chosen, weights["phrase"])
    typed = _typed_words(query, ranking)
    taken = segment.features.literals[positions] & np.uint16(query.literals)
    columns = (candidates.signals[rows].tolist(), taken.tolist(), segment.features.verbs[positions].tolist())
    for explanation, signals, literals, verbs in zip(chosen, *columns, strict=True):
        shown = dict(zip(SIGNALS, signals, strict=True))
        explanation.rest += shown["meaning"] * weights["meaning"] + shown["topic"] * weights["topic"]
        if literals:
            explanation.add(
                ", ".join(literal_names(literals)), "parameters", "type", "", weights["literal"] * shown["literal"]
            )
        if shown["verb"]:
            head = matching_verb(ranking.meaning, verbs)
            explanation.add(typed.get(head, head), "name", "verb", "", weights["verb"] * shown["verb"])


def _typed_words(query: ParsedQuery, ranking: Ranking) -> dict[str, str]:
    """Map the words of a query, after correction, to what was typed."""
    typed = {term.surface: term.typed for term in query.terms}
    return {read: typed[surface] for surface, read in ranking.match.corrected.items()} | typed


def _explain_phrases(
    segment: Segment,
    query: ParsedQuery,
    ranking: Ranking,
    positions: Ints,
    explanations: Sequence[HitExplanation],
    weight: float,
) -> None:
    """Explain the `phrase` signal."""
    if not ranking.meaning.pairs:
        return
    typed = _typed_words(query, ranking)
    total = sum(share for _, _, share in ranking.meaning.pairs.values())
    names = segment.words.stems[segment.features.slots[positions, :MAX_NAME_WORDS]].tolist()
    for (first, second, share), at in matching_pairs(segment, ranking.meaning):
        pair = tuple([segment.vocabulary.stem_numbers.get(stem(word), -1) for word in (first, second)])
        shown = f"{typed.get(first, first)} {typed.get(second, second)}"
        for tool in np.flatnonzero(is_among(at, positions)).tolist():
            field = "name" if pair in [*pairwise(names[tool])] else "description"
            explanations[tool].add(shown, field, "phrase", "", weight * share / total)


def _explain_words(
    segment: Segment,
    number: int,
    ranking: Ranking,
    positions: Ints,
    explanations: Sequence[HitExplanation],
    weight: float,
) -> None:
    """Explain the `coverage` signal: which words match in which fields."""
    match = ranking.match
    hits = match.postings[number].hits(CandidateRows(positions, len(segment)), match.terms)
    for at, field, words, added in segment.field_shares([hit.posting for hit in hits]):
        row, matched, expansion, posting = hits[at]
        own = matched.term.surface in words
        how = expansion.how if expansion.how != "exact" or own else "stem"
        gain = weight * expansion.coverage / match.total_idf * added / float(segment.impacts[posting])
        explanations[row].add(matched.term.typed, FIELD_NAMES[field], how, "" if own else min(words), gain)


def _explain_slots(
    segment: Segment,
    query: ParsedQuery,
    ranking: Ranking,
    candidates: CandidateSignals,
    rows: Sequence[int],
    explanations: Sequence[HitExplanation],
    weights: Mapping[str, float],
) -> None:
    """Explain the `name` and `sentence` signals: which query word asks for which word of the tool."""
    features, positions = segment.features, candidates.positions[rows]
    likeness = candidates.likeness[rows]
    gains = likeness * features.shares[positions]
    gains[:, :MAX_NAME_WORDS] *= weights["name"]
    gains[:, MAX_NAME_WORDS:] *= weights["sentence"]
    named = likeness >= _MIN_NAMED_LIKENESS
    for explanation, vague in zip(explanations, np.where(named, 0.0, gains).sum(axis=1).tolist(), strict=True):
        explanation.rest += vague
    tools, slots = np.nonzero(named)
    words = features.slots[positions][named]
    query_words = [*best_query_words(segment, words, ranking.meaning)] if len(words) else []
    typed = _typed_words(query, ranking)
    spelt = {*ranking.match.corrected.values()}.difference(term.surface for term in query.terms)
    columns = (tools.tolist(), slots.tolist(), words.tolist(), gains[named].tolist())
    for tool, slot, word, gain, (number, kind) in zip(*columns, query_words, strict=True):
        query_word = ranking.meaning.words[number]
        own = segment.vocabulary.words[word]
        how = (
            kind if kind != "exact" else "spelling" if query_word in spelt else "exact" if query_word == own else "stem"
        )
        field = "name" if slot < MAX_NAME_WORDS else "description"
        explanations[tool].add(typed.get(query_word, query_word), field, how, "" if how == "exact" else own, gain)
