"""Match the terms of a query with BM25F: exact stems, synonyms and corrected spellings.

Statistics are counted over the caller's view.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.search.index import IndexView, idf
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import SearchOptions
from toolcrib.search.spelling import is_correctable
from toolcrib.search.text import WHOLE_NAME, ParsedQuery, QueryTerm
from toolcrib.search.vectors import WordPieceTable

Doubles = npt.NDArray[np.float64]

Ints = npt.NDArray[np.int32]

Floats = npt.NDArray[np.float32]

Places = npt.NDArray[np.intp]

Spans = tuple[tuple[int, int], ...]

UNKNOWN_WORD_WEIGHT = 0.5
"""Weight of an unknown query word in the coverage, relative to the rarest known word.
Source: the prototype's `cov` feature."""

_MAX_CORRECTIONS = 4
"""Corrections that are tried for a misspelt word."""

_SHORT_FORM = 12
"""A typed word with digits is looked up in the lexicon as a whole up to this length."""

_MAX_CACHED_TERMS = 2048
"""Terms whose expansions are cached per view."""

_SYNONYM_SHARE = 50
"""A synonym is used if at most one visible tool in so many has it: common words say little."""

_SYNONYM_COUNT = 200
"""A synonym that at most so many visible tools have is always used."""


class TermExpansion(NamedTuple):
    """One stem that a term expands to: itself, a correction or a synonym. At least one visible tool has it."""

    stem: str
    how: str
    """exact, spelling or synonym."""
    weight: float
    """Relative to the word itself, above 0 to 1."""
    idf: float
    spans: Spans
    """Where the postings of the stem are, in each part."""
    df: int
    """How many visible tools have the stem."""
    covers: float
    """The idf that a tool with this stem covers."""
    tools: tuple[Ints, ...]
    """The tools with the stem, visible or not, in each part."""
    impacts: tuple[Floats, ...]
    """The impact of the stem on each of them."""


class MatchedTerm(NamedTuple):
    """A query term that at least one visible tool matches."""

    term: QueryTerm
    ways: tuple[TermExpansion, ...]
    """Its expansions, best first."""
    rising: Sequence[TermExpansion]
    """The same, in ascending order of coverage."""

    @property
    def idf(self) -> float:
        """The idf of the term, or of its best expansion if the term itself is unknown."""
        return self.ways[0].idf


class TermHit(NamedTuple):
    """A match of one term in one tool."""

    tool: int
    """The row of the tool."""
    known: MatchedTerm
    way: TermExpansion
    posting: int
    """The index of the posting in its part."""


@dataclass(frozen=True, slots=True)
class MatchedPostings:
    """All postings of one part that a query matches, grouped by expansion; the best expansion of a term comes last."""

    ways: Sequence[tuple[int, TermExpansion]]
    """Each expansion, with the number of its term."""
    ends: Places
    """Where the postings of each expansion end in `positions`."""
    positions: Ints
    number: int
    """The number of the part."""

    def covered(self, rows: "CandidateRows", terms: int) -> Doubles:
        """The idf that each term contributes to some tools of the part: float64[terms, tools]."""
        found = np.zeros((terms, rows.count))
        at, tools = rows.among(self.positions)
        if len(at):
            way = self.ends.searchsorted(at, side="right")
            numbers = np.array([term for term, _ in self.ways], dtype=np.intp)
            covers = np.array([way.covers for _, way in self.ways])
            found[numbers.take(way), tools] = covers.take(way)
        return found

    def meetings(self, rows: "CandidateRows", known: Sequence[MatchedTerm]) -> list[TermHit]:
        """List the best match of each term in each of some tools."""
        at, tools = rows.among(self.positions)
        number = self.ends.searchsorted(at, side="right")
        begins = self.ends - np.diff(self.ends, prepend=0)
        starts = np.array([way.spans[self.number][0] for _, way in self.ways], dtype=np.intp)
        postings = at - begins[number] + starts[number]
        found: dict[tuple[int, int], TermHit] = {}
        for tool, way, posting in zip(tools.tolist(), number.tolist(), postings.tolist(), strict=True):
            term, met = self.ways[way]
            found[term, tool] = TermHit(tool, known[term], met, posting)
        return list(found.values())


class CandidateRows:
    """Maps the positions of some tools of a part to rows."""

    __slots__ = ("_place", "count")

    def __init__(self, positions: Ints, size: int) -> None:
        """Row `i` is the tool at `positions[i]` of a part with `size` tools."""
        self.count = len(positions)
        self._place = np.full(size, -1, dtype=np.int32)
        self._place[positions] = np.arange(self.count, dtype=np.int32)

    def among(self, positions: Ints) -> tuple[Places, Ints]:
        """Find which of some postings belong to these tools, and the row of each."""
        tools = self._place.take(positions)
        at = (tools >= 0).nonzero()[0]
        return at, tools.take(at)


@dataclass(frozen=True, slots=True)
class LexicalMatch:
    """What the words of a query met."""

    known: tuple[MatchedTerm, ...]
    names: tuple[MatchedTerm, ...]
    """The whole names of tools that stand in the query."""
    total: float
    """The idf of all words, what coverage is a share of."""
    scores: tuple[Doubles, ...]
    """BM25F of every tool, for each part."""
    postings: tuple[MatchedPostings, ...]
    """For each part."""
    unmatched: tuple[str, ...]
    """The words, as typed, that met nothing."""
    corrected: dict[str, str]
    """Misspelt words, and what was read for them."""


def match_terms(
    view: IndexView, query: ParsedQuery, table: WordPieceTable, lexicon: Lexicon, options: SearchOptions
) -> LexicalMatch:
    """Look the words of a query up."""
    known: list[MatchedTerm] = []
    unknown: list[QueryTerm] = []
    corrected: dict[str, str] = {}
    typed = _match_short_forms(view, query, lexicon, options)
    memo = _expansion_cache(view, lexicon, options)
    for term in query.terms:
        key = term.stem, term.surface
        found = memo.get(key)
        if found is None:
            found = _cache_expansions(memo, key, _expand(view, term, table, lexicon, options))
        ways, rising = found
        if ways:
            known.append(MatchedTerm(term, ways, rising))
            if ways[0].how == "spelling":
                corrected[term.surface] = _most_common_word(view, ways[0])
        elif term.places[0] not in typed:
            unknown.append(term)
    known += typed.values()
    rarest = idf(view.count, 0)
    vague = sum([UNKNOWN_WORD_WEIGHT * rarest for term in unknown if not any(map(str.isdigit, term.surface))])
    names = _match_names(view, query)
    scores, postings = _score(view, known, names)
    return LexicalMatch(
        known=tuple(known),
        names=names,
        total=sum([item.ways[0].idf for item in known]) + vague,
        scores=scores,
        postings=postings,
        unmatched=_unmatched_words(query, known, unknown),
        corrected=corrected,
    )


Expansions = tuple[tuple[TermExpansion, ...], Sequence[TermExpansion]]
"""The ways of a term, the best first, and once more, those that cover most last; none where nothing meets it."""

ExpansionCache = dict[tuple[str, str], Expansions]
"""By stem and surface of a term."""


def _expansion_cache(view: IndexView, lexicon: Lexicon, options: SearchOptions) -> ExpansionCache:
    """The ways that were worked out before for this view, with this lexicon and these options."""
    kept = view.memo.get("ways")
    if kept is None or kept[0] is not lexicon or kept[1] is not options:
        kept = view.memo["ways"] = (lexicon, options, {})
    found: ExpansionCache = kept[2]
    return found


def _cache_expansions(memo: ExpansionCache, key: tuple[str, str], ways: tuple[TermExpansion, ...]) -> Expansions:
    if len(memo) >= _MAX_CACHED_TERMS:
        memo.clear()
    found = memo[key] = ways, sorted(ways, key=_by_coverage)
    return found


_by_coverage = attrgetter("covers")


def _match_short_forms(
    view: IndexView, query: ParsedQuery, lexicon: Lexicon, options: SearchOptions
) -> dict[int, MatchedTerm]:
    """Typed words with digits that have synonyms as a whole, by place: `k8s`, whose parts say nothing."""
    found: dict[int, MatchedTerm] = {}
    for place, word in enumerate(query.words):
        if len(word) <= _SHORT_FORM and not word.isalpha() and lexicon.stems(word.lower()):
            term = QueryTerm(word.lower(), word.lower(), word, range(place, place + 1))
            ways = _synonym_expansions(view, term, 0.0, lexicon, options)
            if ways:
                found[place] = MatchedTerm(term, ways, sorted(ways, key=_by_coverage))
    return found


def _expand(
    view: IndexView, term: QueryTerm, table: WordPieceTable, lexicon: Lexicon, options: SearchOptions
) -> tuple[TermExpansion, ...]:
    """The ways in which a term meets visible tools."""
    df, spans = view.spans(term.stem)
    rarity = idf(view.count, df) if df else 0.0
    synonyms = _synonym_expansions(view, term, rarity, lexicon, options)
    if df:
        return (_expansion(view, term.stem, "exact", 1.0, (df, spans), rarity, rarity), *synonyms)
    near = _spelling_expansions(view, term, options) if not synonyms and is_correctable(term.surface, table) else ()
    return near or synonyms


def _expansion(
    view: IndexView, stem: str, how: str, weight: float, met: tuple[int, Spans], idf: float, covers: float
) -> TermExpansion:
    df, spans = met
    indexes = [part.index for part in view.parts]
    tools = tuple([index.positions[start:stop] for index, (start, stop) in zip(indexes, spans, strict=True)])
    impacts = tuple([index.impacts[start:stop] for index, (start, stop) in zip(indexes, spans, strict=True)])
    return TermExpansion(stem, how, weight, idf, spans, df, covers, tools, impacts)


def _synonym_expansions(
    view: IndexView, term: QueryTerm, rarity: float, lexicon: Lexicon, options: SearchOptions
) -> tuple[TermExpansion, ...]:
    """The ways by synonyms, the rarest first. `rarity` is the idf of the term, 0 where it is unknown."""
    found: list[TermExpansion] = []
    rare = max(_SYNONYM_COUNT, view.count // _SYNONYM_SHARE)
    weight = options.synonym_weight
    for root in lexicon.stems(term.surface):
        df, spans = view.spans(root)
        if 0 < df <= rare and root != term.stem:
            own = idf(view.count, df)
            found.append(_expansion(view, root, "synonym", weight, (df, spans), own, weight * min(own, rarity or own)))
    found.sort(key=_by_rarity)
    return tuple(found)


def _by_rarity(way: TermExpansion) -> tuple[int, str]:
    return way.df, way.stem


def _spelling_expansions(view: IndexView, term: QueryTerm, options: SearchOptions) -> tuple[TermExpansion, ...]:
    """The stems of visible tools that a misspelt word may be meant for, the nearest and most frequent first."""
    distances: dict[str, int] = {}
    for part in view.parts:
        spelling = part.index.spelling
        for number, distance in spelling.near(term.stem, limit=len(spelling.words)):
            distances[spelling.words[number]] = distance
    found = []
    for root, distance in distances.items():
        df, spans = view.spans(root)
        if df:
            found.append((distance, -df, root, spans))
    found.sort()
    best = idf(view.count, -found[0][1]) if found else 0.0
    ways = []
    for distance, df, root, spans in found[:_MAX_CORRECTIONS]:
        own, weight = idf(view.count, -df), options.spelling_weights[distance - 1]
        ways.append(_expansion(view, root, "spelling", weight, (-df, spans), own, weight * min(own, best)))
    return tuple(ways)


def _most_common_word(view: IndexView, way: TermExpansion) -> str:
    """The word of a stem that most visible tools use."""
    counts: dict[str, int] = {}
    for part, span in zip(view.parts, way.spans, strict=True):
        for word, count in part.index.surfaces(*span, part.seen).items():
            counts[word] = counts.get(word, 0) + count
    return min(counts, key=lambda word: (-counts[word], word))


def _match_names(view: IndexView, query: ParsedQuery) -> tuple[MatchedTerm, ...]:
    """The whole names of visible tools that stand in the query, each once."""
    found: dict[str, MatchedTerm] = {}
    for name, places in query.names(view.begins, view.knows()):
        df, spans = view.spans(WHOLE_NAME + name)
        if df:
            term = query.whole(name, places)
            if name not in found or term.spelt > found[name].term.spelt:
                rarity = idf(view.count, df)
                ways = (_expansion(view, term.stem, "exact", 1.0, (df, spans), rarity, 0.0),)
                found[name] = MatchedTerm(term, ways, ways)
    return tuple(found.values())


def _score(
    view: IndexView, known: Sequence[MatchedTerm], names: Sequence[MatchedTerm]
) -> tuple[tuple[Doubles, ...], tuple[MatchedPostings, ...]]:
    """BM25F of each tool, and the postings of the words. Where a term has several ways, what they give is added up."""
    words = [(number, way) for number, item in enumerate(known) for way in item.rising]
    ways = [way for _, way in words] + [item.ways[0] for item in names]
    weights = np.array([way.weight * way.idf for way in ways])
    scores, postings = [], []
    for number, part in enumerate(view.parts):
        at = np.concatenate([_NO_POSITIONS, *[way.tools[number] for way in ways]])
        impacts = np.concatenate([_NO_IMPACTS, *[way.impacts[number] for way in ways]])
        lengths = np.array([len(way.tools[number]) for way in ways], dtype=np.intp)
        added = np.bincount(at, weights.repeat(lengths) * impacts, len(part.index))
        scores.append(added.astype(np.float64, copy=False))
        ends = lengths[: len(words)].cumsum()
        postings.append(MatchedPostings(words, ends, at[: int(ends[-1]) if len(ends) else 0], number))
    return tuple(scores), tuple(postings)


_NO_POSITIONS = np.zeros(0, dtype=np.int32)

_NO_IMPACTS = np.zeros(0, dtype=np.float32)


def _unmatched_words(query: ParsedQuery, known: Sequence[MatchedTerm], unknown: Sequence[QueryTerm]) -> tuple[str, ...]:
    """The words that met nothing: typed words without any known part, and the unknown parts of the others."""
    if not unknown:
        return ()
    met = set(chain.from_iterable(item.term.places for item in known))
    missed = (term.shown if term.places[0] in met else query.words[term.places[0]] for term in unknown)
    return tuple(dict.fromkeys(missed))
