"""Points: ten for a word of the name, fewer for weaker matches, in stages that run only if the one before found little.

1. Names. For each keyword of the query: 10 for a word of the name, 5 for a prefix of one; 10 more if the whole query is
   the name. Final if one tool has every keyword in its name.
2. Everything. For each keyword and each synonym: 10 for a word of the name, 5 if one is a prefix of the other, 3 for a
   word of the description, 2 of the namespace, 1 of the name of a parameter, all added up. A keyword that matches
   nothing visible gets `10 * similarity` for a word of a name that it misspells. The sum is multiplied by 0.5 to 1,
   depending on the share of the query's domain words that belong to the domain of the tool.
3. Similarity, if nothing matched: `10 * ratio` of query and name, from 0.5 on, and `3 * ratio` of the query and the
   most similar word of the description, from 0.6 on; or the points for misspellings, if they are more.
4. If nothing is similar either: 0.1 for the most used tools and those with the shortest names, labelled as such.

The boost of the session multiplies the points.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toolcrib.names import fold_id
from toolcrib.search.index import IndexView, SegmentView
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.options import DEFAULT_SCORERS, FIELD_NAMES, Field, PointsOptions, ScorerOptions
from toolcrib.search.scorers.base import (
    ChosenTool,
    FieldMatch,
    Floats,
    QueryWord,
    ScoreLine,
    ScorerResult,
    StringIndex,
    cached_on,
    choose_best,
    explain_tool,
    field_words,
    misspelt_strings,
    positions_by_id,
    read_words,
    score_lines,
    similarity_ratios,
    sum_matches,
    unmatched_words,
    word_postings,
)
from toolcrib.search.scorers.tiers import name_index as lower_names
from toolcrib.search.segment import Bools, Positions, Segment
from toolcrib.search.text import STOP_WORDS, split_words
from toolcrib.types import Reason, ScorePart

Matches = list[list[FieldMatch]]
"""The matches in each part of the view."""
_MAX_QUERY = 200
"""Characters of a query that are compared with whole names."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of one stage."""

    matches: Matches
    scores: Sequence[Floats]
    penalties: Sequence[Floats]
    """The factors of the sums, for each tool."""
    missed: tuple[str, ...] = ()
    """The words that match nothing."""


def score(raw: float, options: ScorerOptions = DEFAULT_SCORERS) -> float:
    """The public score, 0 to 1: `raw / (raw + half)`.

    >>> score(0.0), score(10.0), score(30.0)
    (0.0, 0.5, 0.75)
    """
    return raw / (raw + options.points.half)


def rank(
    view: IndexView,
    text: str,
    limit: int,
    allowed: Sequence[Bools],
    options: ScorerOptions,
    boosts: Mapping[str, float] | None = None,
) -> ScorerResult:
    """Rank tools by points. `ScorerFunction` describes the arguments."""
    use = options.points
    asked = keywords(text, use.max_words)
    stage = _first_stage(view, text, asked, use)
    found, total = choose_best(view, stage.scores, allowed, limit, boosts)
    if not total and use.fallback and use.fallback_points > use.min_score:
        return popular_tools(view, limit, allowed, use, boosts, stage.missed)
    typed = {word.place: word.token for word in asked}
    lines = score_lines(stage.matches, view, found)
    hits = [
        explain_tool(one, [*own, *_domain_penalty(view, one, stage, use.lexicon)], typed)
        for one, own in zip(found, lines, strict=True)
    ]
    return ScorerResult(hits, total, stage.missed)


def _first_stage(view: IndexView, text: str, asked: list[QueryWord], use: PointsOptions) -> StageResult:
    """Run the stages until one finds something."""
    if asked:
        for stage in (_match_names, _match_everything, _match_similar):
            found = stage(view, text, asked, use)
            if found is not None:
                return found
    return StageResult(
        [[] for _ in view.parts], [np.zeros(len(part.segment)) for part in view.parts], [], unmatched_words(asked, ())
    )


def _match_names(view: IndexView, text: str, asked: list[QueryWord], use: PointsOptions) -> StageResult | None:
    """Match the keywords with names; None if no tool has them all in its name."""
    matches: Matches = []
    is_final = False
    for part in view.parts:
        named = match_whole_name(part, text, tuple(asked), use)
        found = [match for word in asked for match in match_name(part, ExpandedTerm(word.text, (word,), "exact"), use)]
        exact = [replace(match, weight=1.0) for match in found if match.how == "exact"]
        has_all = sum_matches(exact, len(part.segment)) == len(asked)
        is_final |= len(named.positions) > 0 or bool(has_all.any())
        matches.append([named, *found])
    return _stage_result(view, matches, asked, use) if is_final else None


def _match_everything(view: IndexView, text: str, asked: list[QueryWord], use: PointsOptions) -> StageResult | None:  # noqa: ARG001 - as the others
    lexicon = use.lexicon
    sought = expand_terms(asked, lexicon)
    matches = [[match for term in sought for match in match_all_fields(part, term, use)] for part in view.parts]
    if not any(len(match.positions) for own in matches for match in own):
        return None
    unknown = _unknown_words(view, asked, matches, use)
    for part, own in zip(view.parts, matches, strict=True):
        own += list(match_misspelt(part, unknown, own, use))
    subjects = word_domains((word.text for word in asked), lexicon)
    kinds = [tool_domains(part.segment, lexicon) for part in view.parts]
    return _stage_result(view, matches, asked, use, [domain_factors(own, subjects, use.mismatch) for own in kinds])


def _match_similar(view: IndexView, text: str, asked: list[QueryWord], use: PointsOptions) -> StageResult | None:
    query = text.strip().lower()[:_MAX_QUERY]
    words = (QueryWord(query, text.strip()[:_MAX_QUERY], asked[0].place, is_whole_token=True), *asked)
    unknown = [word for word in asked if _is_correctable(word, use)]
    matches: Matches = []
    for part in view.parts:
        size = len(part.segment)
        like, slips = match_similar_texts(part, query, words, use), list(match_misspelt(part, unknown, (), use))
        better = sum_matches(slips, size) > sum_matches(like, size)
        matches.append([*(_restrict(one, ~better) for one in like), *(_restrict(one, better) for one in slips)])
    return _stage_result(view, matches, asked, use)


def _stage_result(
    view: IndexView, matches: Matches, asked: list[QueryWord], use: PointsOptions, penalties: Sequence[Floats] = ()
) -> StageResult | None:
    """Add up the matches; None if no tool is left."""
    scores = []
    for number, (part, own) in enumerate(zip(view.parts, matches, strict=True)):
        score = sum_matches(own, len(part.segment)) * (penalties[number] if penalties else 1.0)
        scores.append(np.where(score > use.min_score, score, 0.0))
    if not any(bool(score.any()) for score in scores):
        return None
    matched_words = {word.text for own in matches for match in own if len(match.positions) for word in match.words}
    return StageResult(matches, scores, penalties, unmatched_words(asked, matched_words))


def _unknown_words(view: IndexView, asked: list[QueryWord], matches: Matches, use: PointsOptions) -> list[QueryWord]:
    """The keywords that match nothing, and may be misspelt."""
    known = {match.words[0].text for own in matches for match in own if match.how == "exact" and len(match.positions)}
    return [
        word
        for word in asked
        if _is_correctable(word, use)
        and word.text not in known
        and not use.lexicon.related(word.text)
        and not any(begins_a_name(part, word) for part in view.parts)
    ]


def _is_correctable(word: QueryWord, use: PointsOptions) -> bool:
    return len(word.text) >= use.slip_chars and word.text.isalpha()


def _restrict(match: FieldMatch, chosen: Bools) -> FieldMatch:
    """Restrict a match to some of the tools."""
    chosen_rows = chosen[match.positions]
    matched = [text for text, stays in zip(match.matched, chosen_rows.tolist(), strict=True) if stays]
    return replace(match, positions=match.positions[chosen_rows], values=match.values[chosen_rows], matched=matched)


def _domain_penalty(view: IndexView, one: ChosenTool, stage: StageResult, lexicon: Lexicon) -> list[ScoreLine]:
    """What a tool loses because it belongs to another domain."""
    factor = float(stage.penalties[one.part][one.position]) if stage.penalties else 1.0
    if factor == 1.0:
        return []
    bits = int(tool_domains(view.parts[one.part].segment, lexicon)[one.position])
    names = ", ".join(domain_names(bits, lexicon))
    before = one.unboosted / factor
    reason = Reason(word=names, field="domain", how="mismatch", gain=one.unboosted - before)
    return [ScoreLine(reason, ScorePart(name=f"domain {names}", value=before, weight=factor - 1), ())]


_TEXTS = (Field.DESCRIPTION, Field.TITLE, Field.KEYWORDS, Field.TAGS)


class ExpandedTerm(NamedTuple):
    """A word to look up: a keyword or a synonym."""

    text: str
    words: tuple[QueryWord, ...]
    """The keywords behind it."""
    how: str
    """exact or synonym."""


def match_name(part: SegmentView, term: ExpandedTerm, use: PointsOptions) -> Iterator[FieldMatch]:
    """Match a term with the words of names: an equal word, or else one that begins with the term."""
    names = field_words(part.segment, Field.NAME)
    exact = _visible(part, names.tools(names.equal_to(term.text)))
    yield _flat_match(term, "name", exact, use.token)
    if len(term.text) >= use.prefix_chars:
        yield from _prefix_matches(part, term, names, names.starting_with(term.text), exact, use)


def match_all_fields(part: SegmentView, term: ExpandedTerm, use: PointsOptions) -> Iterator[FieldMatch]:
    """Match a term with all fields: names, including prefixes both ways, texts, namespaces and parameters."""
    names = field_words(part.segment, Field.NAME)
    exact = _visible(part, names.tools(names.equal_to(term.text)))
    yield _flat_match(term, "name", exact, use.token)
    yield from _prefix_matches(part, term, names, _sharing_prefix(names, term.text, use.prefix_chars), exact, use)
    table = word_postings(part.segment)
    span = table.rows_of(term.text)
    positions, fields = table.positions[span], table.fields[span]
    taken: Bools = ~part.visible
    for field in _TEXTS:
        tools = positions[fields == field]
        tools = tools[~taken[tools]]
        yield _flat_match(term, FIELD_NAMES[field], tools, use.description)
        taken = taken.copy()
        taken[tools] = True
    yield _flat_match(term, "namespace", _visible(part, positions[fields == Field.NAMESPACE]), use.namespace)
    yield _flat_match(term, "parameters", _visible(part, positions[fields == Field.PARAMETERS]), use.parameter)


def begins_a_name(part: SegmentView, word: QueryWord) -> bool:
    """Whether a word in the name of a visible tool begins with this one."""
    names = field_words(part.segment, Field.NAME)
    return len(_visible(part, names.tools(names.starting_with(word.text)))) > 0


def match_misspelt(
    part: SegmentView, words: Sequence[QueryWord], known_matches: Sequence[FieldMatch], use: PointsOptions
) -> Iterator[FieldMatch]:
    """Match unknown words with words of names they may misspell, in tools whose name does not match them already."""
    names = field_words(part.segment, Field.NAME)
    found = misspelt_strings([word.text for word in words], names, use.slip_above)
    for word, (numbers, values) in zip(words, found, strict=True):
        free = part.visible.copy()
        for match in known_matches:
            if match.field == "name" and match.words == (word,):
                free[match.positions] = False
        yield _similar_match(SegmentView(part.segment, free), (word,), names, "name", numbers, values, use.token)


def match_whole_name(part: SegmentView, text: str, words: tuple[QueryWord, ...], use: PointsOptions) -> FieldMatch:
    """Match the whole query with names, in any spelling."""
    aliases = cached_on(part.segment, "aliases", _name_spellings)
    tools = _visible(part, aliases.tools(aliases.equal_to(fold_id(text.strip()))))
    match = _flat_match(ExpandedTerm(text, words, "exact"), "name", tools, use.whole_name)
    return replace(match, how="phrase", phrase=" ".join(word.typed for word in words))


def match_similar_texts(
    part: SegmentView, text: str, words: tuple[QueryWord, ...], use: PointsOptions
) -> list[FieldMatch]:
    """Match tools whose name, or a word of whose description, is similar to the whole query."""
    names = lower_names(part.segment)
    described = field_words(part.segment, Field.DESCRIPTION)
    near_names = similarity_ratios(text, names, use.fuzzy_name_least)
    near_words = similarity_ratios(text, described, use.fuzzy_description_least)
    return [
        _similar_match(part, words, names, "name", *near_names, use.fuzzy_name),
        _similar_match(part, words, described, "description", *near_words, use.fuzzy_description),
    ]


def _name_spellings(segment: Segment) -> StringIndex:
    return StringIndex([{fold_id(tool.name.strip()), fold_id(tool.id.strip())} - {""} for tool in segment.tools])


def _visible(part: SegmentView, tools: Positions) -> Positions:
    return tools[part.visible[tools]]


def _flat_match(term: ExpandedTerm, field: str, tools: Positions, weight: float, how: str = "") -> FieldMatch:
    matched = (term.text,) if term.how == "synonym" else ()
    return FieldMatch(term.words, field, how or term.how, tools, weight, np.ones(len(tools)), matched)


def _sharing_prefix(names: StringIndex, text: str, least: int) -> Positions:
    """The words of names that begin with a text, and those that are a prefix of it."""
    if len(text) < least:
        return np.array([], dtype=np.intp)
    shorter = [names.equal_to(text[:end]) for end in range(least, len(text))]
    return np.concatenate([names.starting_with(text), *reversed(shorter)])


def _prefix_matches(
    part: SegmentView, term: ExpandedTerm, names: StringIndex, numbers: Positions, exact: Positions, use: PointsOptions
) -> Iterator[FieldMatch]:
    """Match prefixes; of several in one tool the first counts."""
    tools, order = names.spread(numbers, np.arange(len(numbers), dtype=np.float64))
    wanted = part.visible.copy()
    wanted[exact] = False
    tools, order = tools[wanted[tools]], order[wanted[tools]]
    if len(tools):
        tools, first = np.unique(tools, return_index=True)
        matched = [names.strings[numbers[int(place)]] for place in order[first]]
        how = "prefix" if term.how == "exact" else term.how
        yield FieldMatch(term.words, "name", how, tools, use.prefix, np.ones(len(tools)), matched)


def _similar_match(
    part: SegmentView,
    words: tuple[QueryWord, ...],
    known: StringIndex,
    field: str,
    numbers: Positions,
    values: Floats,
    weight: float,
) -> FieldMatch:
    """Match similar words; of several in one tool the most similar counts."""
    tools, places = known.spread(numbers, np.arange(len(numbers), dtype=np.float64))
    chosen = part.visible[tools]
    tools, places = tools[chosen], places[chosen].astype(np.intp)
    order = np.lexsort((places, -values[places], tools))
    tools, first = np.unique(tools[order], return_index=True)
    places = places[order][first]
    return FieldMatch(
        words,
        field,
        "spelling",
        tools,
        weight,
        values[places],
        [known.strings[numbers[int(place)]] for place in places],
    )


_REQUEST_WORD_TEXT = """
calculate calculated calculates calculating calculation calculations compute computed computes computing computation
computations function functions tool tools use used uses using something
"""
_REQUEST_WORDS = frozenset(_REQUEST_WORD_TEXT.split())
"""Words that say nothing in a request. The documented points for "calculate average" need `calculate` to be one."""


def keywords(text: str, limit: int) -> list[QueryWord]:
    """The words of a query that say what is wanted, or all words if none does.

    >>> [word.text for word in keywords("calculate the average", 10)], [word.text for word in keywords("calculate", 10)]
    (['average'], ['calculate'])
    """
    asked = read_words(text, limit)
    return [word for word in asked if word.text not in STOP_WORDS and word.text not in _REQUEST_WORDS] or asked


def expand_terms(asked: Sequence[QueryWord], lexicon: Lexicon) -> list[ExpandedTerm]:
    """The keywords, followed by their synonyms, each once."""
    own = {word.text: ExpandedTerm(word.text, (word,), "exact") for word in asked}
    synonyms: dict[str, ExpandedTerm] = {}
    for word in asked:
        for text in _related_words(word.text, lexicon):
            if text not in own:
                before = synonyms.get(text)
                synonyms[text] = ExpandedTerm(text, (*(before.words if before else ()), word), "synonym")
    return [*own.values(), *synonyms.values()]


def _related_words(word: str, lexicon: Lexicon) -> dict[str, None]:
    return dict.fromkeys(part for related in lexicon.related(word) for part in split_words(related))


DomainBits = npt.NDArray[np.int64]
"""The domains of each tool, one bit each."""
_DOMAIN_FIELDS = ((Field.NAME,), (Field.NAMESPACE,), (Field.DESCRIPTION, Field.TITLE, Field.KEYWORDS, Field.TAGS))
"""The fields that show the domain of a tool, in order: the name, else the namespace, else the texts."""


def tool_domains(segment: Segment, lexicon: Lexicon) -> DomainBits:
    """The domains that most words of the first field with any belong to, for each tool; 0 for none."""
    return cached_on(
        segment, ("domains", tuple(lexicon.domains.items())), lambda segment: _compute_tool_domains(segment, lexicon)
    )


def _compute_tool_domains(segment: Segment, lexicon: Lexicon) -> DomainBits:
    table = word_postings(segment)
    by_word = np.array([_domain_bits(word, lexicon) for word in table.vocabulary], dtype=np.int64)
    rows_found = np.flatnonzero(by_word[table.words]) if len(by_word) else np.array([], dtype=np.intp)
    bits, positions, fields = by_word[table.words[rows_found]], table.positions[rows_found], table.fields[rows_found]
    found: DomainBits = np.zeros(len(segment), dtype=np.int64)
    for domain_fields in _DOMAIN_FIELDS:
        chosen = np.isin(fields, domain_fields)
        counts = np.array(
            [
                np.bincount(positions[chosen & (bits >> place & 1 > 0)], minlength=len(segment))
                for place in range(len(lexicon.domains))
            ]
        )
        most = counts.max(axis=0, initial=0)
        values = ((counts == most) * (1 << np.arange(len(counts)))[:, None]).sum(axis=0)
        found = np.where((found == 0) & (most > 0), values, found)
    return found


def word_domains(words: Iterable[str], lexicon: Lexicon) -> list[int]:
    """The domains of each word that has any, as bits."""
    return [bits for bits in (_domain_bits(word, lexicon) for word in words) if bits]


def domain_names(bits: int, lexicon: Lexicon) -> list[str]:
    """The names of the domains in a set."""
    return [name for place, name in enumerate(lexicon.domains) if bits >> place & 1]


def domain_factors(tools: DomainBits, asked: Sequence[int], least: float) -> Floats:
    """The factor of each tool's score: `least` to 1, by the share of the words that belong to its domains.

    It is 1 if the tool or the query has no domain.
    """
    if not asked:
        return np.ones(len(tools))
    shared = np.mean([(tools & bits) != 0 for bits in asked], axis=0)
    factor: Floats = np.where(tools == 0, 1.0, least + (1 - least) * shared)
    return factor


def _domain_bits(word: str, lexicon: Lexicon) -> int:
    found = lexicon.domains_of([word])
    return sum(1 << place for place, name in enumerate(lexicon.domains) if name in found) if found else 0


def popular_tools(
    view: IndexView,
    limit: int,
    allowed: Sequence[Bools],
    use: PointsOptions,
    boosts: Mapping[str, float] | None,
    missed: tuple[str, ...],
) -> ScorerResult:
    """Show some allowed tools, labelled as a fallback, ordered by boost, length of the name and id."""
    chosen = _choose_popular(view, allowed, use.fallback_count, boosts or {})
    scores = [np.zeros(len(part.segment)) for part in view.parts]
    for number, place in chosen:
        scores[number][place] = use.fallback_points
    found, total = choose_best(view, scores, allowed, limit, boosts)
    part = ScorePart(name="fallback", value=1.0, weight=use.fallback_points)
    line = ScoreLine(Reason(word="", field="", how="fallback"), part, ())
    hits = [explain_tool(one, [line], {}, fallback=True) for one in found]
    return ScorerResult(hits, total, missed)


def _choose_popular(
    view: IndexView, allowed: Sequence[Bools], count: int, boosts: Mapping[str, float]
) -> list[tuple[int, int]]:
    """Choose the tools to show: part and position of each."""
    found: list[tuple[float, int, str, int, int]] = []
    for number, (part, passes) in enumerate(zip(view.parts, allowed, strict=True)):
        segment = part.segment
        lengths = cached_on(
            segment, "name lengths", lambda segment: np.array([len(tool.name) for tool in segment.tools], np.intp)
        )
        places = np.flatnonzero(passes)
        first = places[np.lexsort((segment.id_ranks[places], lengths[places]))][: count + len(boosts)].tolist()
        at = positions_by_id(segment)
        used = [at[id_] for id_ in boosts if id_ in at and passes[at[id_]]]
        found += [
            (-boosts.get(segment.ids[place], 1.0), int(lengths[place]), segment.ids[place], number, place)
            for place in {*first, *used}
        ]
    found.sort()
    return [(number, place) for *_, number, place in found[:count]]
