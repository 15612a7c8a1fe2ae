"""Tiers: the score of a tool is the value of its best match with the query, 0 to 1.

For one word, the highest that applies: the name begins with the word 0.9, a keyword is the word 0.85, the name
contains it 0.8, a keyword contains it 0.7, the description has it as a word 0.6, the description contains it 0.5. If
none applies, similarity counts: 0.7 times that of the name, 0.6 times that of a keyword; and, for a word that matches
no visible tool in any of the listed ways, 0.5 times that of one word of a name.

For several words: `0.9 * mean` if every word matches, else `mean * matched / words`. A query that is the whole name,
the id or the wire name scores 1.0.

Keywords are a tool's keywords, tags and namespace. Case and punctuation around a word do not matter.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import OSA, Levenshtein

from toolcrib.names import exact_spellings
from toolcrib.search.index import IndexView
from toolcrib.search.options import DEFAULT_SCORERS, ScorerOptions, TiersOptions
from toolcrib.search.scorers.base import (
    MAX_TEXT,
    ExactNames,
    Floats,
    ScoreLine,
    ScorerResult,
    StringIndex,
    cached_on,
    choose_best,
    explain_tool,
    misspelt_strings,
    similar_strings,
)
from toolcrib.search.segment import Bools, Positions, Segment
from toolcrib.search.text import split_words
from toolcrib.types import Reason, ScorePart, Tool


class MatchLevel(IntEnum):
    """The kinds of matches between a word and a tool."""

    NOTHING = 0
    PREFIX = 1
    KEYWORD = 2
    CONTAINS = 3
    KEYWORD_CONTAINS = 4
    DESCRIPTION_WORD = 5
    DESCRIPTION_CONTAINS = 6
    FUZZY_NAME = 7
    FUZZY_KEYWORD = 8
    FUZZY_WORD = 9


_HOW_BY_LEVEL = ("", "prefix", "exact", "part", "part", "exact", "part", "spelling", "spelling", "spelling")
"""The name of each level in `Reason.how`."""


class TypedWord(NamedTuple):
    """A word of the query."""

    text: str
    """Lower case."""
    place: int
    """The number of its first occurrence in the query."""
    times: int
    """How often it occurs."""


class WordLevels:
    """The best match of one word with each tool of one part: its value and level."""

    __slots__ = ("levels", "values")

    def __init__(self, size: int) -> None:
        """Start without a match, for `size` tools."""
        self.values: Floats = np.zeros(size)
        self.levels: npt.NDArray[np.int8] = np.zeros(size, dtype=np.int8)

    def raise_all(self, level: MatchLevel, positions: Positions, value: float) -> None:
        """Raise some tools to a value, unless they have a higher one. Positions may repeat."""
        better = np.zeros(len(self.values), dtype=np.bool_)
        better[positions] = True
        better &= self.values < value
        self.values[better] = value
        self.levels[better] = level

    def raise_each(self, level: MatchLevel, positions: Positions, values: Floats) -> None:
        """Raise some tools, each to its own value."""
        order = np.argsort(values, kind="stable")  # of several assignments to one position the last one counts
        other = WordLevels(len(self.values))
        other.values[positions[order]] = values[order]
        better = other.values > self.values
        self.values[better] = other.values[better]
        self.levels[better] = level

    def fill_gaps(self, other: "WordLevels") -> None:
        """Take the values of another for tools without a match."""
        empty = self.values == 0
        self.values[empty] = other.values[empty]
        self.levels[empty] = other.levels[empty]


def score(raw: float, options: ScorerOptions = DEFAULT_SCORERS) -> float:  # noqa: ARG001 - the interface of all three
    """The public score: the raw one, but at most 1. A boost can raise the raw score above 1.

    >>> score(0.85), score(2.4)
    (0.85, 1.0)
    """
    return min(1.0, raw)


def rank(
    view: IndexView,
    text: str,
    limit: int,
    allowed: Sequence[Bools],
    options: ScorerOptions,
    boosts: Mapping[str, float] | None = None,
) -> ScorerResult:
    """Rank tools by tiers. `ScorerFunction` describes the arguments."""
    use = options.tiers
    typed = typed_words(text, use.max_words)
    asked = _distinct_words(typed)
    known = [tool_texts(part.segment) for part in view.parts]
    levels = _match_words(view, known, asked, use)
    shares = [_word_shares(found, asked, own.size, use) for own, found in zip(known, levels, strict=True)]
    scores = [_total_score(found, asked, share) for found, share in zip(levels, shares, strict=True)]
    exact = [own.spellings.tools(own.spellings.equal_to(text.strip().lower())) for own in known]
    for total, named in zip(scores, exact, strict=True):
        total[named] = use.exact
    found, count = choose_best(view, scores, allowed, limit, boosts, ExactNames(exact, use.exact))
    hits = []
    for one in found:
        if one.position in exact[one.part]:
            lines = [_exact_name_line(text, use, range(len(typed)))]
        else:
            tool, share = view.parts[one.part].segment.tools[one.position], float(shares[one.part][one.position])
            lines = _word_lines(tool, one.position, typed, asked, levels[one.part], share)
        hits.append(explain_tool(one, lines, dict(enumerate(typed))))
    is_named = any(bool(np.any(part.visible[named])) for part, named in zip(view.parts, exact, strict=True))
    unmatched = tuple(typed[word.place] for place, word in enumerate(asked) if not _is_met(view, levels, place))
    return ScorerResult(hits, count, () if is_named else unmatched)


def _distinct_words(typed: Sequence[str]) -> list[TypedWord]:
    lower = [word.lower() for word in typed]
    return [TypedWord(word, lower.index(word), lower.count(word)) for word in dict.fromkeys(lower)]


class ToolTexts:
    """The texts of all tools of a segment."""

    __slots__ = ("descriptions", "keywords", "names", "size", "spellings", "tokens")

    def __init__(self, segment: Segment) -> None:
        self.size = len(segment)
        self.names = name_index(segment)
        self.spellings = StringIndex([name_spellings(tool) for tool in segment.tools])
        self.keywords = StringIndex([tool_labels(tool) for tool in segment.tools])
        self.descriptions = StringIndex([description_words(tool) for tool in segment.tools])
        self.tokens = StringIndex([split_words(tool.name) for tool in segment.tools])
        """The words of the names."""


def _match_words(
    view: IndexView, known: Sequence[ToolTexts], asked: Sequence[TypedWord], use: TiersOptions
) -> list[list[WordLevels]]:
    """Match each word with the tools of each part."""
    levels = [[_match_listed(own, word.text, use) for word in asked] for own in known]
    strange = [
        word.text
        for place, word in enumerate(asked)
        if len(word.text) >= use.fuzzy_chars and not _is_met(view, levels, place)
    ]
    for own, found in zip(known, levels, strict=True):
        for like, one in zip(_match_similar(own, [word.text for word in asked], strange, use), found, strict=True):
            one.fill_gaps(like)
    return levels


def _match_listed(own: ToolTexts, word: str, use: TiersOptions) -> WordLevels:
    """Match a word with the tools of a part in the listed ways."""
    levels = WordLevels(own.size)
    levels.raise_all(MatchLevel.PREFIX, own.names.tools(own.names.starting_with(word)), use.prefix)
    levels.raise_all(MatchLevel.KEYWORD, own.keywords.tools(own.keywords.equal_to(word)), use.keyword)
    levels.raise_all(MatchLevel.CONTAINS, own.names.tools(own.names.containing(word)), use.contains)
    levels.raise_all(
        MatchLevel.KEYWORD_CONTAINS, own.keywords.tools(own.keywords.containing(word)), use.keyword_contains
    )
    described = own.descriptions
    levels.raise_all(MatchLevel.DESCRIPTION_WORD, described.tools(described.equal_to(word)), use.description_word)
    levels.raise_all(
        MatchLevel.DESCRIPTION_CONTAINS, described.tools(described.containing(word)), use.description_contains
    )
    return levels


def _is_met(view: IndexView, levels: Sequence[Sequence[WordLevels]], place: int) -> bool:
    return any(bool(np.any(own[place].values[part.visible] > 0)) for part, own in zip(view.parts, levels, strict=True))


def _match_similar(own: ToolTexts, words: Sequence[str], strange: Sequence[str], use: TiersOptions) -> list[WordLevels]:
    """Match words with the tools of a part by similarity."""
    names = similar_strings(words, own.names, use.likeness)
    keywords = similar_strings(words, own.keywords, use.likeness)
    tokens = dict(zip(strange, misspelt_strings(strange, own.tokens, use.likeness), strict=True))
    found = []
    for word, (places, values), (labels, label_values) in zip(words, names, keywords, strict=True):
        levels = WordLevels(own.size)
        levels.raise_each(MatchLevel.FUZZY_NAME, *own.names.spread(places, use.fuzzy_name * values))
        levels.raise_each(MatchLevel.FUZZY_KEYWORD, *own.keywords.spread(labels, use.fuzzy_keyword * label_values))
        if word in tokens:
            parts, part_values = tokens[word]
            levels.raise_each(MatchLevel.FUZZY_WORD, *own.tokens.spread(parts, use.fuzzy_word * part_values))
        found.append(levels)
    return found


def _word_shares(levels: Sequence[WordLevels], asked: Sequence[TypedWord], size: int, use: TiersOptions) -> Floats:
    """The weight of one word's value in each tool's score."""
    count = sum(word.times for word in asked)
    if count <= 1:
        return np.ones(size)
    found = np.zeros(size)
    for word, one in zip(asked, levels, strict=True):
        found += word.times * (one.values > 0)
    share: Floats = np.where(found == count, use.every_word / count, found / count**2)
    return share


def _total_score(levels: Sequence[WordLevels], asked: Sequence[TypedWord], share: Floats) -> Floats:
    total = np.zeros(len(share))
    for word, one in zip(asked, levels, strict=True):
        total += word.times * one.values
    return total * share


def _exact_name_line(text: str, use: TiersOptions, places: Sequence[int]) -> ScoreLine:
    reason = Reason(word=text.strip(), field="name", how="exact", gain=use.exact)
    return ScoreLine(reason, ScorePart(name="exact name", value=use.exact, weight=1.0), tuple(places))


def _word_lines(
    tool: Tool,
    position: int,
    typed: Sequence[str],
    asked: Sequence[TypedWord],
    levels: Sequence[WordLevels],
    share: float,
) -> list[ScoreLine]:
    """What each word of the query adds to the score of one tool."""
    lines = []
    for word, one in zip(asked, levels, strict=True):
        level = MatchLevel(one.levels[position])
        if level is MatchLevel.NOTHING:
            continue
        value = float(one.values[position])
        weight = word.times * share
        field, how, matched = _describe_match(tool, word.text, level)
        shown = typed[word.place]
        reason = Reason(word=shown, field=field, how=how, matched=matched, gain=value * weight)
        lines.append(
            ScoreLine(reason, ScorePart(name=f"{shown} in {field}", value=value, weight=weight), (word.place,))
        )
    return lines


def _describe_match(tool: Tool, word: str, level: MatchLevel) -> tuple[str, str, str]:
    """The field of a match, how it matched, and the matched text of the tool if it differs from the word."""
    match level:
        case MatchLevel.PREFIX | MatchLevel.CONTAINS | MatchLevel.FUZZY_NAME:
            described = "name", _HOW_BY_LEVEL[level], tool.name.lower()
        case MatchLevel.FUZZY_WORD:
            known = split_words(tool.name)
            described = "name", _HOW_BY_LEVEL[level], _most_similar(word, known, OSA.normalized_similarity)
        case MatchLevel.DESCRIPTION_WORD:
            described = "description", _HOW_BY_LEVEL[level], ""
        case MatchLevel.DESCRIPTION_CONTAINS:
            described = "description", _HOW_BY_LEVEL[level], word_around(tool, word)
        case _:
            described = _describe_label_match(tool_labels(tool), word, level)
    return described


def _describe_label_match(labels: Mapping[str, str], word: str, level: MatchLevel) -> tuple[str, str, str]:
    match level:
        case MatchLevel.KEYWORD:
            return labels[word], _HOW_BY_LEVEL[level], ""
        case MatchLevel.KEYWORD_CONTAINS:
            label = next(label for label in labels if word in label)
        case _:
            label = _most_similar(word, list(labels), Levenshtein.normalized_similarity)
    return labels[label], _HOW_BY_LEVEL[level], label


def _most_similar(word: str, known: Sequence[str], likeness: Callable[[str, str], float]) -> str:
    """The most similar known word."""
    return max(known, key=lambda text: likeness(word, text))


_PUNCTUATION = ".,;:!?()[]{}\"'"


def typed_words(text: str, limit: int) -> list[str]:
    """The first words of a query as typed, without punctuation around them.

    >>> typed_words('send "an email"?', 10)
    ['send', 'an', 'email']
    """
    return _stripped_words(text[:MAX_TEXT])[:limit]


def _stripped_words(text: str) -> list[str]:
    return [stripped for word in text.split() if (stripped := word.strip(_PUNCTUATION))]


def name_spellings(tool: Tool) -> list[str]:
    """The spellings of the whole name in lower case: the name, the id and the wire name."""
    return [tool.name.lower(), *map(str.lower, exact_spellings(tool.key))]


def tool_labels(tool: Tool) -> dict[str, str]:
    """The keywords, tags and namespace in lower case, each with its field."""
    found = {keyword[:MAX_TEXT].lower(): "keywords" for keyword in tool.keywords}
    for tag in tool.tags:
        found.setdefault(tag[:MAX_TEXT].lower(), "tags")
    found.setdefault(tool.namespace.lower(), "namespace")
    return {keyword: field for keyword, field in found.items() if keyword}


def description_words(tool: Tool) -> list[str]:
    """The words of the description in lower case, without punctuation around them."""
    return _stripped_words(tool.description[:MAX_TEXT].lower())


def word_around(tool: Tool, text: str) -> str:
    """The first word of the description that contains a text. The description must contain it."""
    whole = tool.description[:MAX_TEXT].lower()
    at = whole.index(text)
    before = whole[:at].rsplit(None, 1)[-1] if at and not whole[at - 1].isspace() else ""
    return (before + whole[at:].split(None, 1)[0]).strip(_PUNCTUATION)


def name_index(segment: Segment) -> StringIndex:
    """The lower-case names of a segment, cached."""
    return cached_on(segment, "names", lambda segment: StringIndex([[tool.name.lower()] for tool in segment.tools]))


def tool_texts(segment: Segment) -> ToolTexts:
    """The texts of a segment, cached."""
    return cached_on(segment, "texts", ToolTexts)
