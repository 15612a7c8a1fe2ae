"""Explain hits with the numbers that ranked them.

Reasons are computed when they are first read, since most callers never read them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress, pairwise
from typing import overload

import numpy as np

from toolcrib.search.analysis import MAX_NAME_WORDS
from toolcrib.search.index import IndexView
from toolcrib.search.lexical import CandidateRows, MatchedTerm
from toolcrib.search.literals import literal_names
from toolcrib.search.options import FIELD_NAMES, SearchOptions
from toolcrib.search.ranking import RankedTool, Ranking
from toolcrib.search.segment import Segment
from toolcrib.search.signals import SIGNALS, best_query_words, is_among, matching_pairs, matching_verb
from toolcrib.search.text import STOP_WORDS, ParsedQuery, stem
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


def matched_words(query: ParsedQuery, ranking: Ranking, at: Sequence[tuple[int, int]]) -> list[tuple[str, ...]]:
    """The query words that each hit covers, in their order; `at` has the part and position of each hit."""
    match = ranking.match
    typed = [matched.term.word_range[0] for matched in match.terms]
    if not match.names and ranking.past is None and typed == sorted(set(typed)):
        words = [query.words[place] for place in typed]
        covers = [part.covered_idf.tolist() for part in ranking.candidates]
        return [tuple(compress(words, covers[hit.part][hit.row])) for hit in ranking.tools]
    found: list[tuple[str, ...]] = []
    names = _names_at(match.names, at)
    for hit, (number, position) in zip(ranking.tools, at, strict=True):
        places = {*compress(typed, ranking.candidates[number].covered_idf[hit.row].tolist())}
        places.update(*names.get((number, position), ()))
        if ranking.past is not None:
            places.update(place for term, _ in ranking.past.gains(number, position) for place in term.word_range)
        found.append(tuple([query.words[place] for place in sorted(places)]))
    return found


def _names_at(names: Sequence[MatchedTerm], at: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[range]]:
    """The numbers of the query words of each whole name that a tool has, by part and position of the tool."""
    found: dict[tuple[int, int], list[range]] = {place: [] for place in at}
    for item in names:
        for number, positions in enumerate(item.expansions[0].tools):
            for position in positions.tolist():
                if (number, position) in found:
                    found[number, position].append(item.term.word_range)
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
    explanations: list[HitExplanation] = [HitExplanation() for _ in ranking.tools]
    for number in range(len(view.parts)):
        places = [place for place, hit in enumerate(ranking.tools) if hit.part == number]
        if places:
            part = _PartHits(
                view.parts[number].segment,
                number,
                query,
                ranking,
                rows=[ranking.tools[place].row for place in places],
                explanations=[explanations[place] for place in places],
            )
            for name in dict.fromkeys((*_EXPLAINERS, *SIGNALS)):
                _EXPLAINERS.get(name, _explain_total)(part, name, getattr(ranking.weights, name))
    for hit, explanation in zip(ranking.tools, explanations, strict=True):
        if hit.boost:
            explanation.add("", "session", "use", "", hit.boost)
        explanation.rest -= options.same_need * hit.repeats
    return explanations


def score_parts(hit: RankedTool, ranking: Ranking, options: SearchOptions) -> tuple[ScorePart, ...]:
    """Break down the `raw` of a hit into signals and weights."""
    signals = ranking.candidates[hit.part].signals[hit.row].tolist()
    parts = [
        ScorePart(name, value, getattr(ranking.weights, name))
        for name, value in zip(SIGNALS, signals, strict=True)
        if (name != "embedding" or ranking.meaning.embedded is not None) and (name != "past" or ranking.past)
    ]
    if hit.boost:
        parts.append(ScorePart("use", hit.boost, 1.0))
    if hit.repeats:
        parts.append(ScorePart("same need", hit.repeats, -options.same_need))
    return tuple(parts)


class _PartHits:
    """The hits in one part of the index, with what their explanations are made from."""

    def __init__(
        self,
        segment: Segment,
        number: int,
        query: ParsedQuery,
        ranking: Ranking,
        *,
        rows: Sequence[int],
        explanations: Sequence[HitExplanation],
    ) -> None:
        candidates = ranking.candidates[number]
        self.segment = segment
        self.number = number
        self.query = query
        self.match = ranking.match
        self.meaning = ranking.meaning
        self.past = ranking.past
        self.explanations = explanations
        """One per hit, like the rows of the arrays below."""
        self.positions = candidates.positions[rows]
        self._signals = candidates.signals[rows]
        self.likeness = candidates.likeness[rows]
        self.object_slots = (
            np.zeros(len(rows), dtype=np.intp)
            if candidates.objects is None
            else candidates.objects[rows].argmax(axis=1)
        )
        """The number of the tool's word that is most like an object of the query."""
        typed = {term.surface: term.typed for term in query.terms}
        read = self.match.replaced | self.match.corrected
        self._typed = {word: typed[surface] for surface, word in read.items()} | typed

    def values(self, signal: str) -> list[float]:
        """The values of a signal."""
        found: list[float] = self._signals[:, SIGNALS.index(signal)].tolist()
        return found

    def typed(self, word: str) -> str:
        """A word of the query, after correction, as it was typed."""
        return self._typed.get(word, word)


def _explain_total(part: _PartHits, name: str, weight: float) -> None:
    """Explain a signal that has no words of its own by its name."""
    for explanation, value in zip(part.explanations, part.values(name), strict=True):
        if value:
            explanation.add("", "all", name, "", weight * value)


def _explain_meaning(part: _PartHits, name: str, weight: float) -> None:
    for explanation, value in zip(part.explanations, part.values(name), strict=True):
        explanation.rest += weight * value


def _explain_coverage(part: _PartHits, _: str, weight: float) -> None:
    """Explain which words match in which fields."""
    match, segment = part.match, part.segment
    hits = match.postings[part.number].hits(CandidateRows(part.positions, len(segment)))
    for at, field, words, added in segment.field_shares([hit.posting for hit in hits]):
        row, matched, expansion, posting = hits[at]
        own = matched.term.surface in words
        how = expansion.how if expansion.how != "exact" or own else "stem"
        gain = weight * expansion.coverage / match.total_idf * added / float(segment.impacts[posting])
        part.explanations[row].add(matched.term.typed, FIELD_NAMES[field], how, "" if own else min(words), gain)


def _explain_slots(part: _PartHits, name: str, weight: float) -> None:
    """Explain which query word asks for which word of the name or of the first sentence."""
    features, field = part.segment.features, "name" if name == "name" else "description"
    slots = slice(0, MAX_NAME_WORDS) if name == "name" else slice(MAX_NAME_WORDS, None)
    likeness = part.likeness[:, slots]
    gains = weight * likeness * features.shares[part.positions, slots]
    named = likeness >= _MIN_NAMED_LIKENESS
    for explanation, vague in zip(part.explanations, np.where(named, 0.0, gains).sum(axis=1).tolist(), strict=True):
        explanation.rest += vague
    tools = np.nonzero(named)[0].tolist()
    words = features.slots[part.positions, slots][named]
    query_words = [*best_query_words(part.segment, words, part.meaning)] if len(words) else []
    typed = {term.surface for term in part.query.terms}
    read = dict.fromkeys(part.match.replaced.values(), "synonym") | dict.fromkeys(
        part.match.corrected.values(), "spelling"
    )
    for tool, word, gain, (number, kind) in zip(tools, words.tolist(), gains[named].tolist(), query_words, strict=True):
        query_word = part.meaning.words[number]
        own = part.segment.vocabulary.words[word]
        how = kind if kind != "exact" else "exact" if query_word == own else "stem"
        if kind == "exact" and query_word in read and query_word not in typed:
            how = read[query_word]
        part.explanations[tool].add(part.typed(query_word), field, how, "" if how == "exact" else own, gain)


def _explain_phrases(part: _PartHits, _: str, weight: float) -> None:
    """Explain which neighbouring words are neighbours in the tool too."""
    if not part.meaning.pairs:
        return
    segment = part.segment
    total = sum(share for _, _, share in part.meaning.pairs.values())
    names = segment.words.stems[segment.features.slots[part.positions, :MAX_NAME_WORDS]].tolist()
    for (first, second, share), at in matching_pairs(segment, part.meaning):
        pair = tuple([segment.vocabulary.stem_numbers.get(stem(word), -1) for word in (first, second)])
        for tool in np.flatnonzero(is_among(at, part.positions)).tolist():
            field = "name" if pair in [*pairwise(names[tool])] else "description"
            shown = f"{part.typed(first)} {part.typed(second)}"
            part.explanations[tool].add(shown, field, "phrase", "", weight * share / total)


def _explain_literals(part: _PartHits, name: str, weight: float) -> None:
    taken = part.segment.features.literals[part.positions] & np.uint16(part.query.literals)
    for explanation, kinds, value in zip(part.explanations, taken.tolist(), part.values(name), strict=True):
        if kinds:
            explanation.add(", ".join(literal_names(kinds)), "parameters", "type", "", weight * value)


def _explain_verb(part: _PartHits, name: str, weight: float) -> None:
    verbs = part.segment.features.verbs[part.positions]
    for explanation, kinds, value in zip(part.explanations, verbs.tolist(), part.values(name), strict=True):
        if value:
            head = matching_verb(part.meaning, kinds)
            explanation.add("" if head in STOP_WORDS else part.typed(head), "name", "verb", "", weight * value)


def _explain_object(part: _PartHits, name: str, weight: float) -> None:
    """Explain which word of the tool is most like the object of the query."""
    words = part.segment.features.slots[part.positions, part.object_slots]
    asked = best_query_words(part.segment, words, part.meaning) if part.meaning.objects else ()
    columns = (part.explanations, words.tolist(), part.object_slots.tolist(), part.values(name), asked)
    for explanation, word, slot, value, (number, kind) in zip(*columns, strict=False):
        if value:
            field = "name" if slot < MAX_NAME_WORDS else "description"
            own, query_word = part.segment.vocabulary.words[word], part.meaning.words[number]
            same = own == query_word
            how = "stem" if kind == "exact" and not same else kind
            explanation.add(part.typed(query_word), field, how, "" if same else own, weight * value)


def _explain_names(part: _PartHits, name: str, weight: float) -> None:
    """Explain which whole names the query has: typed as one word (`named`), or as several (`called`)."""
    for item in part.match.names:
        if item.term.is_explicit == (name == "named"):
            start, stop = item.expansions[0].spans[part.number]
            for tool in np.flatnonzero(is_among(part.segment.positions[start:stop], part.positions)).tolist():
                part.explanations[tool].add(item.term.typed, "name", "exact", "", weight)


def _explain_past(part: _PartHits, name: str, weight: float) -> None:
    """Explain which words the past requests of a tool have."""
    rows = zip(part.explanations, part.positions.tolist(), part.values(name), strict=True)
    for explanation, position, value in rows:
        for term, share in () if part.past is None else part.past.gains(part.number, position):
            explanation.add(term.typed, "past requests", "exact", "", weight * value * share)


_EXPLAINERS: Mapping[str, Callable[[_PartHits, str, float], None]] = {
    "coverage": _explain_coverage,
    "name": _explain_slots,
    "sentence": _explain_slots,
    "called": _explain_names,
    "named": _explain_names,
    "phrase": _explain_phrases,
    "meaning": _explain_meaning,
    "embedding": _explain_meaning,
    "topic": _explain_meaning,
    "literal": _explain_literals,
    "verb": _explain_verb,
    "object": _explain_object,
    "past": _explain_past,
}
"""How each signal is explained. One that is not here is a reason by its own name.

Where two signals name the same word and field, the reason says how the first of them matched.
"""
