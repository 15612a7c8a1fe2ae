"""Tiers: a tool is worth what its best meeting with the query is worth, 0 to 1.

One word against one tool, the most of what applies: the name begins with the word 0.9, a keyword is the word 0.85, the
name holds it 0.8, a keyword holds it 0.7, the description has it as a word 0.6, the description holds it 0.5. Only
where none applies, likeness counts: 0.7 times that of the name, 0.6 times that of a keyword; and, for a word that no
visible tool meets in any way of the list, 0.5 times that of one word of a name.

Several words: `0.9 * mean` where every word is met, else `mean * met / words`. A query that is the whole name, the id
or the wire name is worth 1.0.

Keywords are a tool's keywords, its tags and its namespace. Case does not matter; marks around a word do not count.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import OSA, Levenshtein

from toolcrib.model import Reason, ScorePart, Tool
from toolcrib.search.scorers import texts
from toolcrib.search.scorers.base import Bools, Floats, Line, Places, Ranked, View, best, scored
from toolcrib.search.scorers.options import DEFAULTS, ScorerOptions, TiersOptions
from toolcrib.search.scorers.strings import near, slipped
from toolcrib.search.scorers.texts import Texts
from toolcrib.search.text import words as name_words


class Level(IntEnum):
    """The ways in which a word meets a tool."""

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


_HOW = {
    Level.PREFIX: "prefix",
    Level.KEYWORD: "exact",
    Level.CONTAINS: "part",
    Level.KEYWORD_CONTAINS: "part",
    Level.DESCRIPTION_WORD: "exact",
    Level.DESCRIPTION_CONTAINS: "part",
    Level.FUZZY_NAME: "spelling",
    Level.FUZZY_KEYWORD: "spelling",
    Level.FUZZY_WORD: "spelling",
}
"""What `Reason.how` calls the levels."""


class Asked(NamedTuple):
    """A word of the query."""

    text: str
    """Lower case."""
    place: int
    """Where it first stands in the query."""
    times: int
    """How often it does."""


class Met:
    """How one word met the tools of one part: what it is worth for each, and by which level."""

    __slots__ = ("levels", "values")

    def __init__(self, size: int) -> None:
        """For that many tools, none of which is met."""
        self.values: Floats = np.zeros(size)
        self.levels: npt.NDArray[np.int8] = np.zeros(size, dtype=np.int8)

    def lift(self, level: Level, positions: Places, value: float) -> None:
        """Some tools, which may come more than once, are worth that much, unless they were worth more."""
        better = np.zeros(len(self.values), dtype=np.bool_)
        better[positions] = True
        better &= self.values < value
        self.values[better] = value
        self.levels[better] = level

    def lift_each(self, level: Level, positions: Places, values: Floats) -> None:
        """The same, each tool with a worth of its own."""
        order = np.argsort(values, kind="stable")  # of several assignments to one place the last holds
        other = Met(len(self.values))
        other.values[positions[order]] = values[order]
        better = other.values > self.values
        self.values[better] = other.values[better]
        self.levels[better] = level

    def fill(self, other: "Met") -> None:
        """What is worth nothing is worth what it is there."""
        empty = self.values == 0
        self.values[empty] = other.values[empty]
        self.levels[empty] = other.levels[empty]


def score(raw: float, options: ScorerOptions = DEFAULTS) -> float:  # noqa: ARG001 - the interface of all three
    """The public score: the raw one, at most 1, which a boost may pass.

    >>> score(0.85), score(2.4)
    (0.85, 1.0)
    """
    return min(1.0, raw)


def rank(
    view: View,
    text: str,
    limit: int,
    allowed: Sequence[Bools],
    options: ScorerOptions,
    boosts: Mapping[str, float] | None = None,
) -> Ranked:
    """The best tools for a query. `base.Rank` says what the arguments are."""
    use = options.tiers
    typed = texts.read(text, use.max_words)
    asked = _asked(typed)
    known = [texts.texts(part.index) for part in view.parts]
    met = _meet(view, known, asked, use)
    shares = [_shares(found, asked, own.size, use) for own, found in zip(known, met, strict=True)]
    scores = [_total(found, asked, share) for found, share in zip(met, shares, strict=True)]
    exact = [own.spellings.tools(own.spellings.same(text.strip().lower())) for own in known]
    for total, named in zip(scores, exact, strict=True):
        total[named] = use.exact
    found, count = best(view, scores, allowed, limit, boosts)
    hits = []
    for one in found:
        if one.position in exact[one.part]:
            lines = [_whole(text, use, range(len(typed)))]
        else:
            tool, share = view.parts[one.part].index.tools[one.position], float(shares[one.part][one.position])
            lines = _lines(tool, one.position, typed, asked, met[one.part], share)
        hits.append(scored(one, lines, dict(enumerate(typed))))
    is_named = any(bool(np.any(part.seen[named])) for part, named in zip(view.parts, exact, strict=True))
    return Ranked(hits, count, () if is_named else _unmatched(view, met, asked, typed))


def _asked(typed: Sequence[str]) -> list[Asked]:
    lower = [word.lower() for word in typed]
    return [Asked(word, lower.index(word), lower.count(word)) for word in dict.fromkeys(lower)]


def _meet(view: View, known: Sequence[Texts], asked: Sequence[Asked], use: TiersOptions) -> list[list[Met]]:
    """For each part, how each word meets its tools."""
    met = [[_listed(own, word.text, use) for word in asked] for own in known]
    strange = [
        word.text
        for place, word in enumerate(asked)
        if len(word.text) >= use.fuzzy_chars and not _is_met(view, met, place)
    ]
    for own, found in zip(known, met, strict=True):
        for like, one in zip(_like(own, [word.text for word in asked], strange, use), found, strict=True):
            one.fill(like)
    return met


def _listed(own: Texts, word: str, use: TiersOptions) -> Met:
    """How a word meets the tools of a part in the ways of the list."""
    met = Met(own.size)
    met.lift(Level.PREFIX, own.names.tools(own.names.starting(word)), use.prefix)
    met.lift(Level.KEYWORD, own.keywords.tools(own.keywords.same(word)), use.keyword)
    met.lift(Level.CONTAINS, own.names.tools(own.names.holding(word)), use.contains)
    met.lift(Level.KEYWORD_CONTAINS, own.keywords.tools(own.keywords.holding(word)), use.keyword_contains)
    described = own.descriptions
    met.lift(Level.DESCRIPTION_WORD, described.tools(described.same(word)), use.description_word)
    met.lift(Level.DESCRIPTION_CONTAINS, described.tools(described.holding(word)), use.description_contains)
    return met


def _is_met(view: View, met: Sequence[Sequence[Met]], place: int) -> bool:
    return any(bool(np.any(own[place].values[part.seen] > 0)) for part, own in zip(view.parts, met, strict=True))


def _like(own: Texts, words: Sequence[str], strange: Sequence[str], use: TiersOptions) -> list[Met]:
    """How words meet the tools of a part by likeness."""
    names = near(words, own.names, use.likeness)
    keywords = near(words, own.keywords, use.likeness)
    tokens = dict(zip(strange, slipped(strange, own.tokens, use.likeness), strict=True))
    found = []
    for word, (places, values), (labels, label_values) in zip(words, names, keywords, strict=True):
        met = Met(own.size)
        met.lift_each(Level.FUZZY_NAME, *own.names.spread(places, use.fuzzy_name * values))
        met.lift_each(Level.FUZZY_KEYWORD, *own.keywords.spread(labels, use.fuzzy_keyword * label_values))
        if word in tokens:
            parts, part_values = tokens[word]
            met.lift_each(Level.FUZZY_WORD, *own.tokens.spread(parts, use.fuzzy_word * part_values))
        found.append(met)
    return found


def _shares(met: Sequence[Met], asked: Sequence[Asked], size: int, use: TiersOptions) -> Floats:
    """What the worth of one word counts in each tool's score."""
    count = sum(word.times for word in asked)
    if count <= 1:
        return np.ones(size)
    found = np.zeros(size)
    for word, one in zip(asked, met, strict=True):
        found += word.times * (one.values > 0)
    share: Floats = np.where(found == count, use.every_word / count, found / count**2)
    return share


def _total(met: Sequence[Met], asked: Sequence[Asked], share: Floats) -> Floats:
    total = np.zeros(len(share))
    for word, one in zip(asked, met, strict=True):
        total += word.times * one.values
    return total * share


def _whole(text: str, use: TiersOptions, places: Sequence[int]) -> Line:
    reason = Reason(word=text.strip(), field="name", how="exact", gain=use.exact)
    return Line(reason, ScorePart(name="exact name", value=use.exact, weight=1.0), tuple(places))


def _lines(
    tool: Tool, position: int, typed: Sequence[str], asked: Sequence[Asked], met: Sequence[Met], share: float
) -> list[Line]:
    """What the words of the query add to one tool."""
    lines = []
    for word, one in zip(asked, met, strict=True):
        level = Level(one.levels[position])
        if level is Level.NOTHING:
            continue
        value = float(one.values[position])
        weight = word.times * share
        field, how, matched = _told(tool, word.text, level)
        shown = typed[word.place]
        reason = Reason(word=shown, field=field, how=how, matched=matched, gain=value * weight)
        lines.append(Line(reason, ScorePart(name=f"{shown} in {field}", value=value, weight=weight), (word.place,)))
    return lines


def _told(tool: Tool, word: str, level: Level) -> tuple[str, str, str]:
    """The field in which a word met a tool, how, and what of the tool it met, where that is not the word."""
    match level:
        case Level.PREFIX | Level.CONTAINS | Level.FUZZY_NAME:
            told = "name", _HOW[level], texts.name(tool)
        case Level.FUZZY_WORD:
            told = "name", _HOW[level], _nearest(word, name_words(tool.name), OSA.normalized_similarity)
        case Level.DESCRIPTION_WORD:
            told = "description", _HOW[level], ""
        case Level.DESCRIPTION_CONTAINS:
            told = "description", _HOW[level], texts.around(tool, word)
        case _:
            told = _told_of_keywords(texts.keywords(tool), word, level)
    return told


def _told_of_keywords(labels: Mapping[str, str], word: str, level: Level) -> tuple[str, str, str]:
    match level:
        case Level.KEYWORD:
            return labels[word], _HOW[level], ""
        case Level.KEYWORD_CONTAINS:
            label = next(label for label in labels if word in label)
        case _:
            label = _nearest(word, list(labels), Levenshtein.normalized_similarity)
    return labels[label], _HOW[level], label


def _nearest(word: str, known: Sequence[str], likeness: Callable[[str, str], float]) -> str:
    """The known word that is most like this one."""
    return max(known, key=lambda text: likeness(word, text))


def _unmatched(
    view: View, met: Sequence[Sequence[Met]], asked: Sequence[Asked], typed: Sequence[str]
) -> tuple[str, ...]:
    return tuple(typed[word.place] for place, word in enumerate(asked) if not _is_met(view, met, place))
