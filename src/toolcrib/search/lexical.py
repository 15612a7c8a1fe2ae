"""Match the terms of a query with BM25F: exact stems, synonyms and corrected spellings.

Statistics are counted over the caller's view.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.search.index import IndexView, idf
from toolcrib.search.inflection import COMPOUNDING, inflection_stem, request_language, stop_words
from toolcrib.search.lexicon import Lexicon, added_stems
from toolcrib.search.options import SearchOptions
from toolcrib.search.segment import Segment
from toolcrib.search.spelling import SpellingIndex, is_correctable
from toolcrib.search.text import WHOLE_NAME, ParsedQuery, QueryTerm, is_unspaced, stem
from toolcrib.search.vectors import WordPieceTable

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Places = npt.NDArray[np.intp]
Spans = tuple[tuple[int, int], ...]
UNKNOWN_WORD_WEIGHT = 0.5
"""Weight of an unknown query word in the coverage, relative to the rarest known word.
Source: the prototype's `cov` feature."""
UNKNOWN_VALUE_WEIGHT = 0.25
"""The same for a word that looks like an argument, and for a pair of characters, since half of them cross words."""
_MAX_CORRECTIONS = 4
"""Corrections that are tried for a misspelt word."""
_SHORT_FORM = 12
"""A typed word with digits is looked up in the lexicon as a whole up to this length."""
_MAX_CACHED_TERMS = 2048
"""Terms that are cached per view."""
_MAX_CACHED_POSTINGS = 1 << 20
"""Postings of cached terms per view; each takes up to twelve bytes."""
_MAX_READINGS = 4
"""Synonyms that a word without a match may be read as."""
_SYNONYM_SHARE = 50
"""A synonym is used if at most one visible tool in so many has it: common words say little."""
_SYNONYM_COUNT = 200
"""A synonym that at most so many visible tools have is always used."""


class TermExpansion(NamedTuple):
    """One stem that a term expands to: itself, a correction or a synonym. At least one visible tool has it."""

    stem: str
    how: str
    """exact, stem, spelling or synonym."""
    weight: float
    """Relative to the word itself, above 0 to 1."""
    idf: float
    spans: Spans
    """Where the postings of the stem are, in each part."""
    df: int
    """How many visible tools have the stem."""
    coverage: float
    """The idf that a tool with this stem covers."""
    tools: tuple[Ints, ...]
    """The tools with the stem, visible or not, in each part."""


class TermPostings(NamedTuple):
    """The postings of a term in one part: those of each expansion, one after the other, the best one last."""

    positions: Ints
    scores: Doubles
    """What each posting adds to the BM25F score of its tool."""
    lengths: tuple[int, ...]
    """How many of them each expansion has."""


class MatchedTerm(NamedTuple):
    """A query term that at least one visible tool matches."""

    term: QueryTerm
    expansions: tuple[TermExpansion, ...]
    """Its expansions, best first."""
    by_coverage: Sequence[TermExpansion]
    """Those of them that have postings in some part, in ascending order of coverage."""
    postings: tuple[TermPostings, ...]
    """For each part."""

    @property
    def idf(self) -> float:
        """The idf of the term, or of its best expansion if the term itself is unknown."""
        return self.expansions[0].idf


class TermHit(NamedTuple):
    """A match of one term in one tool."""

    row: int
    """The row of the tool."""
    matched: MatchedTerm
    expansion: TermExpansion
    posting: int
    """The index of the posting in its part."""


class MatchedPostings(NamedTuple):
    """All postings of one part that a query matches, grouped by expansion; the best expansion of a term comes last."""

    terms: Sequence[MatchedTerm]
    ends: Places
    """Where the postings of each expansion end in `positions`."""
    positions: Ints
    part: int
    """The number of the part."""

    def covered_idf(self, rows: "CandidateRows") -> Doubles:
        """The idf that each term contributes to some tools of the part: float64[tools, terms]."""
        found = np.zeros((rows.count, len(self.terms)))
        at, tools = rows.locate(self.positions)
        if len(at):
            expansion = self.ends.searchsorted(at, side="right")
            numbers = np.array([number for number, term in enumerate(self.terms) for _ in term.by_coverage])
            found[tools, numbers.take(expansion)] = self._coverage().take(expansion)
        return found

    def _coverage(self) -> Doubles:
        """The idf that each expansion covers."""
        return np.array([expansion.coverage for term in self.terms for expansion in term.by_coverage])

    def most_covered(self, visible: npt.NDArray[np.bool_]) -> float:
        """The most idf that one visible tool contributes, an upper bound: several matches of one term are added up."""
        sums = np.bincount(self.positions, self._coverage().repeat(np.diff(self.ends, prepend=0)), len(visible))
        return float(sums.max(initial=0.0, where=visible))

    def hits(self, rows: "CandidateRows") -> list[TermHit]:
        """List the best match of each term in each of some tools."""
        at, tools = rows.locate(self.positions)
        number = self.ends.searchsorted(at, side="right")
        begins = self.ends - np.diff(self.ends, prepend=0)
        expansions = [(place, one) for place, term in enumerate(self.terms) for one in term.by_coverage]
        starts = np.array([expansion.spans[self.part][0] for _, expansion in expansions], dtype=np.intp)
        postings = at - begins[number] + starts[number]
        found: dict[tuple[int, int], TermHit] = {}
        for tool, place, posting in zip(tools.tolist(), number.tolist(), postings.tolist(), strict=True):
            term, expansion = expansions[place]
            found[term, tool] = TermHit(tool, self.terms[term], expansion, posting)
        return list(found.values())


class CandidateRows:
    """Maps the positions of some tools of a part to rows."""

    __slots__ = ("_place", "count")

    def __init__(self, positions: Ints, size: int) -> None:
        """Row `i` is the tool at `positions[i]` of a part with `size` tools."""
        self.count = len(positions)
        self._place = np.zeros(size, dtype=np.int32)
        """The row of each tool plus one; 0 for other tools."""
        self._place[positions] = np.arange(1, self.count + 1, dtype=np.int32)

    def locate(self, positions: Ints) -> tuple[Places, Ints]:
        """Find which of some postings belong to these tools, and the row of each."""
        tools = self._place.take(positions)
        at = (tools > 0).nonzero()[0]
        return at, tools.take(at) - 1


class LexicalMatch(NamedTuple):
    """What the words of a query match in a view."""

    terms: tuple[MatchedTerm, ...]
    names: tuple[MatchedTerm, ...]
    """The whole names of tools that appear in the query."""
    total_idf: float
    """The idf of all words together; coverage is a share of this."""
    scores: tuple[Doubles, ...]
    """For each part, the BM25F score of every tool."""
    postings: tuple[MatchedPostings, ...]
    """For each part."""
    unmatched: tuple[str, ...]
    """The words, as typed, that match nothing."""
    corrected: dict[str, str]
    """Misspelt words and their corrections."""
    replaced: dict[str, str]
    """Words that no visible tool has, and the synonym that each is read as: the most common of those that the reference
    documents or, if there are none, of the others."""
    alternatives: dict[str, tuple[str, ...]]
    """For some of these words, the further synonyms that the reference documents: they mean the word as well."""
    fillers: frozenset[str]
    """The stop words of the request's language, if that is not English."""


def match_terms(
    view: IndexView, query: ParsedQuery, table: WordPieceTable, lexicon: Lexicon, options: SearchOptions
) -> LexicalMatch:
    """Look up the words of a query."""
    matched: list[MatchedTerm] = []
    unknown: list[QueryTerm] = []
    corrected: dict[str, str] = {}
    replaced: dict[str, str] = {}
    alternatives: dict[str, tuple[str, ...]] = {}
    typed = _match_short_forms(view, query, lexicon, options)
    cache = _term_cache(view, lexicon, options)
    language = request_language([word for _, word in query.sequence], accented=not query.text.isascii())
    fillers = stop_words(language)
    terms = ([term for term in query.terms if term.surface not in fillers] or query.terms) if fillers else query.terms
    for term in terms:
        key = term.stem, term.surface, term.is_value, language
        found = cache.find(key)
        if found is None:
            found = cache.add(key, _known_term(view, term, _expand(view, term, table, lexicon, options, language)))
        expansions, by_coverage, postings, read_as, others = found
        if expansions:
            matched.append(MatchedTerm(term, expansions, by_coverage, postings))
            if read_as and expansions[0].how != "synonym":
                corrected[term.surface] = read_as
            elif read_as and not table.translation(term.surface):
                replaced[term.surface] = read_as
                if others:
                    alternatives[term.surface] = others
        elif term.word_range[0] not in typed:
            unknown.append(term)
    matched += typed.values()
    rarest = idf(view.count, 0)
    unknown_idf = rarest * sum(map(unknown_weight, unknown))
    names = _match_names(view, query)
    scores, matched_postings = _score(view, matched, names)
    return LexicalMatch(
        terms=tuple(matched),
        names=names,
        total_idf=sum([item.expansions[0].idf for item in matched]) + unknown_idf,
        scores=scores,
        postings=matched_postings,
        unmatched=_unmatched_words(query, matched, unknown),
        corrected=corrected,
        replaced=replaced,
        alternatives=alternatives,
        fillers=fillers,
    )


def unknown_weight(term: QueryTerm) -> float:
    """What an unknown word counts in the coverage; a word with a digit, such as a number, counts nothing."""
    if any(map(str.isdigit, term.surface)):
        return 0.0
    return UNKNOWN_VALUE_WEIGHT if term.is_value or is_unspaced(term.surface) else UNKNOWN_WORD_WEIGHT


class KnownTerm(NamedTuple):
    """What a term matches in a view; nothing if it has no expansions."""

    expansions: tuple[TermExpansion, ...]
    by_coverage: Sequence[TermExpansion]
    postings: tuple[TermPostings, ...]
    read_as: str
    """The word that it is read as in the meaning of the query, if no visible tool has the term itself."""
    others: tuple[str, ...]
    """Further words that it may as well be read as."""


TermKey = tuple[str, str, bool, str]
"""The stem and surface of a term, whether it is a value, and the language of the request."""


class TermCache:
    """The terms that were looked up in one view, with one lexicon and options."""

    __slots__ = ("_postings", "known", "lexicon", "options")

    def __init__(self, lexicon: Lexicon, options: SearchOptions) -> None:
        self.lexicon = lexicon
        self.options = options
        self.known: dict[TermKey, KnownTerm] = {}
        self._postings = 0

    def find(self, key: TermKey) -> KnownTerm | None:
        """Return a cached term, or None."""
        return self.known.get(key)

    def add(self, key: TermKey, term: KnownTerm) -> KnownTerm:
        """Cache and return a term; all others are dropped first if there are too many of them, or of their postings."""
        self._postings += sum([len(each.positions) for each in term.postings])
        if len(self.known) >= _MAX_CACHED_TERMS or self._postings > _MAX_CACHED_POSTINGS:
            self.known.clear()
            self._postings = 0
        self.known[key] = term
        return term


def locate_match(match: LexicalMatch, view: IndexView) -> LexicalMatch:
    """Return a match that was found in a whole catalog, with the postings that a view of some of its tools has."""
    terms, names = (tuple([_located_term(item, view) for item in items]) for items in (match.terms, match.names))
    scores, postings = _score(view, terms, names)
    return match._replace(terms=terms, names=names, scores=scores, postings=postings)


def _located_term(item: MatchedTerm, view: IndexView) -> MatchedTerm:
    expansions = tuple([_located_expansion(expansion, view) for expansion in item.expansions])
    by_coverage = sorted([one for one in expansions if any(map(len, one.tools))], key=_by_coverage)
    return MatchedTerm(item.term, expansions, by_coverage, _term_postings(view, by_coverage))


def _located_expansion(expansion: TermExpansion, view: IndexView) -> TermExpansion:
    segments = [part.segment for part in view.parts]
    spans = tuple([segment.span(expansion.stem) for segment in segments])
    tools = tuple([segment.positions[start:stop] for segment, (start, stop) in zip(segments, spans, strict=True)])
    return expansion._replace(spans=spans, tools=tools)


def _term_cache(view: IndexView, lexicon: Lexicon, options: SearchOptions) -> TermCache:
    found: TermCache | None = view.memo.get("terms")
    if found is None or found.lexicon is not lexicon or found.options is not options:
        found = view.memo["terms"] = TermCache(lexicon, options)
    return found


_UNKNOWN_TERM = KnownTerm((), (), (), "", ())


def _known_term(view: IndexView, term: QueryTerm, expansions: tuple[TermExpansion, ...]) -> KnownTerm:
    if not expansions:
        return _UNKNOWN_TERM
    readings: list[str] = []
    if expansions[0].how == "synonym":
        added = added_stems(term.surface)
        documented = [one for one in expansions if one.stem not in added]
        common = sorted(documented, key=_by_frequency, reverse=True)[:_MAX_READINGS]
        readings = [_most_common_word(view, one) for one in common or [max(expansions, key=_by_frequency)]]
    elif expansions[0].how != "exact":
        readings = [_most_common_word(view, expansions[0])]
    by_coverage = sorted(expansions, key=_by_coverage)
    read_as, *others = readings or [""]
    return KnownTerm(expansions, by_coverage, _term_postings(view, by_coverage), read_as, tuple(others))


def _term_postings(view: IndexView, expansions: Sequence[TermExpansion]) -> tuple[TermPostings, ...]:
    """The postings of some expansions of a term in each part, in their order."""
    return tuple([_part_postings(part.segment, number, expansions) for number, part in enumerate(view.parts)])


def _part_postings(segment: Segment, number: int, expansions: Sequence[TermExpansion]) -> TermPostings:
    positions, scores = [_NO_POSITIONS], [_NO_SCORES]
    for expansion in expansions:
        start, stop = expansion.spans[number]
        positions.append(expansion.tools[number])
        scores.append(expansion.weight * expansion.idf * segment.impacts[start:stop].astype(np.float64))
    joined = positions[1] if len(expansions) == 1 else np.concatenate(positions)
    return TermPostings(joined, np.concatenate(scores), tuple([len(at) for at in positions[1:]]))


_by_coverage = attrgetter("coverage")


def _by_frequency(expansion: TermExpansion) -> int:
    return expansion.df


def _match_short_forms(
    view: IndexView, query: ParsedQuery, lexicon: Lexicon, options: SearchOptions
) -> dict[int, MatchedTerm]:
    """Match typed words with digits as a whole, by number: the parts of `k8s` say nothing."""
    found: dict[int, MatchedTerm] = {}
    for number, word in [(number, word) for number, word in enumerate(query.words) if not word.isalpha()]:
        if len(word) <= _SHORT_FORM and lexicon.stems_of_synonyms(word.lower()):
            term = QueryTerm(word.lower(), word.lower(), word, range(number, number + 1))
            expansions = _synonym_expansions(view, term, 0.0, lexicon, options)
            if expansions:
                by_coverage = sorted(expansions, key=_by_coverage)
                found[number] = MatchedTerm(term, expansions, by_coverage, _term_postings(view, by_coverage))
    return found


def _expand(
    view: IndexView, term: QueryTerm, table: WordPieceTable, lexicon: Lexicon, options: SearchOptions, language: str
) -> tuple[TermExpansion, ...]:
    """Expand a term to stems that visible tools have."""
    df, spans = view.spans(term.stem)
    rarity = idf(view.count, df) if df else 0.0
    exact = (_expansion(view, term.stem, "exact", 1.0, (df, spans), rarity, rarity),) if df else ()
    inflected = _inflected_expansions(view, term, rarity, language) if language else ()
    translated = _translated_expansions(view, term, rarity, table, lexicon, options)
    if inflected or (translated and table.translation(term.surface)):
        return _distinct((*exact, *inflected, *translated))
    synonyms = () if term.is_value else _synonym_expansions(view, term, rarity, lexicon, options)
    corrections = (
        _spelling_expansions(view, term, options)
        if not (exact or synonyms) and is_correctable(term.surface, table)
        else ()
    )
    return (
        _distinct((*(exact or corrections), *synonyms, *translated)) if translated else exact + corrections + synonyms
    )


def _distinct(expansions: Iterable[TermExpansion]) -> tuple[TermExpansion, ...]:
    """The first expansion for each stem."""
    found: dict[str, TermExpansion] = {}
    for expansion in expansions:
        found.setdefault(expansion.stem, expansion)
    return tuple(found.values())


def _expansion(
    view: IndexView, stem: str, how: str, weight: float, frequency: tuple[int, Spans], idf: float, coverage: float
) -> TermExpansion:
    df, spans = frequency
    segments = [part.segment for part in view.parts]
    tools = tuple([segment.positions[start:stop] for segment, (start, stop) in zip(segments, spans, strict=True)])
    return TermExpansion(stem, how, weight, idf, spans, df, coverage, tools)


def _synonym_expansions(
    view: IndexView, term: QueryTerm, rarity: float, lexicon: Lexicon, options: SearchOptions
) -> tuple[TermExpansion, ...]:
    """Expand a term to its synonyms, the rarest first. `rarity` is the idf of the term, 0 if it is unknown."""
    found: list[TermExpansion] = []
    rare = max(_SYNONYM_COUNT, view.count // _SYNONYM_SHARE)
    weight = options.synonym_weight
    for root in lexicon.stems_of_synonyms(term.surface):
        df, spans = view.spans(root)
        if 0 < df <= rare and root != term.stem:
            own = idf(view.count, df)
            found.append(_expansion(view, root, "synonym", weight, (df, spans), own, weight * min(own, rarity or own)))
    found.sort(key=_by_rarity)
    return tuple(found)


def _inflected_expansions(view: IndexView, term: QueryTerm, rarity: float, language: str) -> tuple[TermExpansion, ...]:
    """Expand a term to other forms of the word in a language, and to compounds with it, if the language has them.

    Only words with the same first letters are compared.
    """
    root = inflection_stem(term.surface, language)
    weights: dict[str, float] = {}
    for part in view.parts:
        words = _sorted_words(part.segment)
        for word in _words_beginning(words, root[:_MIN_INFLECTED]):
            same = inflection_stem(word, language) == root
            if same or (language in COMPOUNDING and len(root) >= _MIN_COMPOUND and word.startswith(root)):
                known = stem(word)
                weights[known] = max(weights.get(known, 0.0), _INFLECTED_WEIGHT if same else _COMPOUND_WEIGHT)
        if language in COMPOUNDING and not rarity:
            weights |= dict.fromkeys(_inner_words(part.segment, term.surface, language), _COMPOUND_WEIGHT)
    weights.pop(term.stem, None)
    return _weighted_expansions(view, weights, "stem", rarity)


def _translated_expansions(
    view: IndexView, term: QueryTerm, rarity: float, table: WordPieceTable, lexicon: Lexicon, options: SearchOptions
) -> tuple[TermExpansion, ...]:
    """Expand a term to its English words, to words of any language for the same, and to synonyms of these."""
    own = table.translation(term.surface)
    foreign = [_translated_words(part.segment, table) for part in view.parts]
    if not own and not any(foreign):
        return ()
    weights: dict[str, float] = {}
    for english in own or (term.surface,):
        roots = dict.fromkeys(lexicon.stems_of_synonyms(english), options.synonym_weight)
        for root, weight in {**roots, stem(english): _TRANSLATED_WEIGHT}.items():
            same = [known for words in foreign for known in words.get(root, ())]
            for known in [root, *same] if own else same:
                weights[known] = max(weights.get(known, 0.0), weight)
    weights.pop(term.stem, None)
    return _weighted_expansions(view, weights, "synonym", rarity)


def _translated_words(segment: Segment, table: WordPieceTable) -> Mapping[str, Sequence[str]]:
    """The stems of the segment's words of other languages, by the stems of their English words; cached."""
    if "translated words" not in segment.word_memo:
        found: dict[str, list[str]] = {}
        for word in _without_names(segment.vocabulary.words):
            for english in table.translation(word):
                found.setdefault(stem(english), []).append(stem(word))
        segment.word_memo["translated words"] = found
    known: Mapping[str, Sequence[str]] = segment.word_memo["translated words"]
    return known


def prepare_segment(segment: Segment, table: WordPieceTable) -> None:
    """Compute what queries with foreign, inflected or misspelt words need, which takes long in a large segment."""
    _translated_words(segment, table)
    _sorted_words(segment)
    _spelling_index(segment)


def _weighted_expansions(
    view: IndexView, weights: Mapping[str, float], how: str, rarity: float
) -> tuple[TermExpansion, ...]:
    """The visible ones of some stems, the heaviest and most common first."""
    found = []
    for known, weight in weights.items():
        df, spans = view.spans(known)
        if df:
            own = idf(view.count, df)
            found.append(_expansion(view, known, how, weight, (df, spans), own, weight * min(own, rarity or own)))
    found.sort(key=lambda expansion: (-expansion.weight, -expansion.df, expansion.stem))
    return tuple(found[:_MAX_INFLECTED])


def _inner_words(segment: Segment, word: str, language: str) -> list[str]:
    """The stems of the segment that a compound begins or ends with."""
    stems = segment.vocabulary.stem_numbers
    parts = [word[:at] for at in range(_MIN_COMPOUND, len(word) - 2)] + [
        word[at:] for at in range(3, len(word) - _MIN_COMPOUND + 1)
    ]
    return [known for part in parts for known in {stem(part), inflection_stem(part, language)} if known in stems]


def _sorted_words(segment: Segment) -> list[str]:
    """The words of the segment in alphabetical order, cached."""
    if "sorted words" not in segment.word_memo:
        segment.word_memo["sorted words"] = sorted(_without_names(segment.vocabulary.words))
    known: list[str] = segment.word_memo["sorted words"]
    return known


def _without_names(words: Iterable[str]) -> list[str]:
    """Some words of a vocabulary without the whole names of tools, which in a large catalog are most of it."""
    return [word for word in words if word[:1] != WHOLE_NAME]


def _words_beginning(words: Sequence[str], start: str) -> Sequence[str]:
    return words[bisect_left(words, start) : bisect_right(words, start, key=lambda word: word[: len(start)])]


_MIN_INFLECTED = 3
"""Forms of a word have so many first letters in common."""
_MIN_COMPOUND = 5
"""Letters of a word that is recognized in a compound."""
_INFLECTED_WEIGHT = 0.95
_COMPOUND_WEIGHT = 0.6
"""The weights of another form of a word, and of a compound with it."""
_TRANSLATED_WEIGHT = 0.8
"""The weight of a word of another language for the same."""
_MAX_INFLECTED = 8


def _by_rarity(expansion: TermExpansion) -> tuple[int, str]:
    return expansion.df, expansion.stem


def _spelling_expansions(view: IndexView, term: QueryTerm, options: SearchOptions) -> tuple[TermExpansion, ...]:
    """Expand a misspelt word to stems of visible tools, the nearest and most frequent first."""
    distances: dict[str, int] = {}
    for part in view.parts:
        spelling = _spelling_index(part.segment)
        for number, distance in spelling.near(term.stem, limit=len(spelling.words)):
            distances[spelling.words[number]] = distance
    found = []
    for root, distance in distances.items():
        df, spans = view.spans(root)
        if df:
            found.append((distance, -df, root, spans))
    found.sort()
    best = idf(view.count, -found[0][1]) if found else 0.0
    expansions = []
    for distance, df, root, spans in found[:_MAX_CORRECTIONS]:
        own, weight = idf(view.count, -df), options.spelling_weights[distance - 1]
        expansions.append(_expansion(view, root, "spelling", weight, (-df, spans), own, weight * min(own, best)))
    return tuple(expansions)


def _spelling_index(segment: Segment) -> SpellingIndex:
    """The stems that a misspelt word may stand for, cached."""
    if "spelling" not in segment.word_memo:
        segment.word_memo["spelling"] = SpellingIndex(_without_names(segment.vocabulary.stems))
    known: SpellingIndex = segment.word_memo["spelling"]
    return known


def _most_common_word(view: IndexView, expansion: TermExpansion) -> str:
    """The form of a stem that most visible tools use."""
    if view.statistics is not None:
        return view.statistics.common_word(expansion.stem)
    counts: dict[str, int] = {}
    for part, span in zip(view.parts, expansion.spans, strict=True):
        for word, count in part.segment.word_counts(*span, part.visible).items():
            counts[word] = counts.get(word, 0) + count
    return min(counts, key=lambda word: (-counts[word], word))


def _match_names(view: IndexView, query: ParsedQuery) -> tuple[MatchedTerm, ...]:
    """Find the whole names of visible tools in the query, each once."""
    found: dict[str, MatchedTerm] = {}
    for name, word_range in query.find_names(view.name_test(), view.stem_test()):
        df, spans = view.spans(WHOLE_NAME + name)
        if df:
            term = query.name_term(name, word_range)
            if name not in found or term.is_explicit > found[name].term.is_explicit:
                rarity = idf(view.count, df)
                expansions = (_expansion(view, term.stem, "exact", 1.0, (df, spans), rarity, 0.0),)
                found[name] = MatchedTerm(term, expansions, expansions, _term_postings(view, expansions))
    return tuple(found.values())


def _score(
    view: IndexView, matched: Sequence[MatchedTerm], names: Sequence[MatchedTerm]
) -> tuple[tuple[Doubles, ...], tuple[MatchedPostings, ...]]:
    """Compute the BM25F score of each tool, adding up the expansions of a term, and collect the postings."""
    scores, postings = [], []
    for number, part in enumerate(view.parts):
        found = [item.postings[number] for item in matched]
        both = found + [item.postings[number] for item in names] if names else found
        at = np.concatenate([each.positions for each in both]) if both else _NO_POSITIONS
        adds = np.concatenate([each.scores for each in both]) if both else _NO_SCORES
        scores.append(np.bincount(at, adds, len(part.segment)).astype(np.float64, copy=False))
        ends = [*accumulate([length for each in found for length in each.lengths])]
        own = at[: ends[-1] if ends else 0] if names else at
        postings.append(MatchedPostings(matched, np.array(ends, dtype=np.intp), own, number))
    return tuple(scores), tuple(postings)


_NO_POSITIONS = np.zeros(0, dtype=np.int32)
_NO_SCORES = np.zeros(0, dtype=np.float64)


def _unmatched_words(
    query: ParsedQuery, matched: Sequence[MatchedTerm], unknown: Sequence[QueryTerm]
) -> tuple[str, ...]:
    """The words that match nothing: typed words without any known part, and the unknown parts of the others."""
    if not unknown:
        return ()
    matched_words = set(chain.from_iterable(item.term.word_range for item in matched))
    shown = (term.typed if term.word_range[0] in matched_words else query.words[term.word_range[0]] for term in unknown)
    return tuple(dict.fromkeys(shown))
