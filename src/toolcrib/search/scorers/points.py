"""Points: ten for a word of the name, fewer for less, in stages that go further only where the one before says little.

1. Names. Each keyword of the query: 10 for a word of the name, 5 for the beginning of one; 10 more where the whole
   query is the name. Final where one tool has every keyword in its name.
2. Everything. Each keyword and each word that means the same: 10 for a word of the name, 5 where one is the beginning
   of the other, 3 for a word of the description, 2 of the namespace, 1 of a parameter's name, all added up. A keyword
   that nothing visible knows gets `10 * likeness` for a word of a name it is a slip of. The sum is multiplied by 0.5
   to 1, by the share of the query's domain words that belong to the tool's domain.
3. Likeness, where nothing was met: `10 * ratio` of query and name, from 0.5 on, and `3 * ratio` of the query and the
   likest word of the description, from 0.6 on; or the points of the slips, where they are more.
4. Where nothing is like it either: 0.1 for the tools used most and those with the shortest names, labelled.

The session's boost multiplies what was found.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolcrib.model import Reason, ScorePart
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.scorers import domains
from toolcrib.search.scorers.base import (
    Bools,
    Floats,
    Found,
    Line,
    Meeting,
    Ranked,
    View,
    Word,
    best,
    lines,
    scored,
    total_of,
    unmatched,
)
from toolcrib.search.scorers.options import DEFAULTS, PointsOptions, ScorerOptions
from toolcrib.search.scorers.points_meetings import begins, expanded, in_name, like_query, misspelt, whole
from toolcrib.search.scorers.points_query import Term, keywords, terms
from toolcrib.search.scorers.popular import popular

Meetings = list[list[Meeting]]
"""For each part of the view."""


_MAX_QUERY = 200
"""Characters of a query that are held against whole names."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage found."""

    meetings: Meetings
    scores: Sequence[Floats]
    penalties: Sequence[Floats]
    """What the sums were multiplied by, for each tool."""
    missed: tuple[str, ...] = ()
    """The words that met nothing."""


def score(raw: float, options: ScorerOptions = DEFAULTS) -> float:
    """The public score, 0 to 1: `raw / (raw + half)`.

    >>> score(0.0), score(10.0), score(30.0)
    (0.0, 0.5, 0.75)
    """
    return raw / (raw + options.points.half)


def rank(
    view: View,
    text: str,
    limit: int,
    allowed: Sequence[Bools],
    options: ScorerOptions,
    boosts: Mapping[str, float] | None = None,
) -> Ranked:
    """The best tools for a query. `base.Rank` says what the arguments are."""
    use = options.points
    asked = keywords(text, use.max_words)
    stage = _found(view, text, asked, use)
    found, total = best(view, stage.scores, allowed, limit, boosts)
    if not total and use.fallback and use.fallback_points > use.min_score:
        return popular(view, limit, allowed, use, boosts, stage.missed)
    typed = {word.place: word.chunk for word in asked}
    told = lines(stage.meetings, view, found)
    hits = [
        scored(one, [*own, *_penalty(view, one, stage, use.lexicon)], typed)
        for one, own in zip(found, told, strict=True)
    ]
    return Ranked(hits, total, stage.missed)


def _found(view: View, text: str, asked: list[Word], use: PointsOptions) -> Stage:
    """The first stage that finds something."""
    if asked:
        for stage in (_by_name, _by_all, _by_likeness):
            found = stage(view, text, asked, use)
            if found is not None:
                return found
    return Stage([[] for _ in view.parts], [np.zeros(len(part.index)) for part in view.parts], [], unmatched(asked, ()))


def _by_name(view: View, text: str, asked: list[Word], use: PointsOptions) -> Stage | None:
    """What has the keywords in its name; None where no tool has them all."""
    meetings: Meetings = []
    is_final = False
    for part in view.parts:
        named = whole(part, text, tuple(asked), use)
        met = [meeting for word in asked for meeting in in_name(part, Term(word.text, (word,), "exact"), use)]
        exact = [replace(meeting, weight=1.0) for meeting in met if meeting.how == "exact"]
        has_all = total_of(exact, len(part.index)) == len(asked)
        is_final |= len(named.positions) > 0 or bool(has_all.any())
        meetings.append([named, *met])
    return _stage(view, meetings, asked, use) if is_final else None


def _by_all(view: View, text: str, asked: list[Word], use: PointsOptions) -> Stage | None:  # noqa: ARG001 - as the others
    lexicon = use.lexicon
    sought = terms(asked, lexicon)
    meetings = [[meeting for term in sought for meeting in expanded(part, term, use)] for part in view.parts]
    if not any(len(meeting.positions) for own in meetings for meeting in own):
        return None
    unknown = _unknown(view, asked, meetings, use)
    for part, own in zip(view.parts, meetings, strict=True):
        own += list(misspelt(part, unknown, own, use))
    subjects = domains.of_words((word.text for word in asked), lexicon)
    kinds = [domains.of_tools(part.index, lexicon) for part in view.parts]
    return _stage(view, meetings, asked, use, [domains.factors(own, subjects, use.mismatch) for own in kinds])


def _by_likeness(view: View, text: str, asked: list[Word], use: PointsOptions) -> Stage | None:
    query = text.strip().lower()[:_MAX_QUERY]
    words = (Word(query, text.strip()[:_MAX_QUERY], asked[0].place, alone=True), *asked)
    unknown = [word for word in asked if _is_long(word, use)]
    meetings: Meetings = []
    for part in view.parts:
        size = len(part.index)
        like, slips = like_query(part, query, words, use), list(misspelt(part, unknown, (), use))
        better = total_of(slips, size) > total_of(like, size)
        meetings.append([*(_only(one, ~better) for one in like), *(_only(one, better) for one in slips)])
    return _stage(view, meetings, asked, use)


def _stage(
    view: View, meetings: Meetings, asked: list[Word], use: PointsOptions, penalties: Sequence[Floats] = ()
) -> Stage | None:
    """The sums, or None where nothing is left of them."""
    scores = []
    for number, (part, own) in enumerate(zip(view.parts, meetings, strict=True)):
        score = total_of(own, len(part.index)) * (penalties[number] if penalties else 1.0)
        scores.append(np.where(score > use.min_score, score, 0.0))
    if not any(bool(score.any()) for score in scores):
        return None
    met = {word.text for own in meetings for meeting in own if len(meeting.positions) for word in meeting.words}
    return Stage(meetings, scores, penalties, unmatched(asked, met))


def _unknown(view: View, asked: list[Word], meetings: Meetings, use: PointsOptions) -> list[Word]:
    """The keywords that nothing knows: perhaps they are misspelt."""
    known = {
        meeting.words[0].text
        for own in meetings
        for meeting in own
        if meeting.how == "exact" and len(meeting.positions)
    }
    return [
        word
        for word in asked
        if _is_long(word, use)
        and word.text not in known
        and not use.lexicon.related(word.text)
        and not any(begins(part, word) for part in view.parts)
    ]


def _is_long(word: Word, use: PointsOptions) -> bool:
    return len(word.text) >= use.slip_chars and word.text.isalpha()


def _only(meeting: Meeting, chosen: Bools) -> Meeting:
    """The part of a meeting that is with some of the tools."""
    kept = chosen[meeting.positions]
    matched = [text for text, stays in zip(meeting.matched, kept.tolist(), strict=True) if stays]
    return replace(meeting, positions=meeting.positions[kept], values=meeting.values[kept], matched=matched)


def _penalty(view: View, one: Found, stage: Stage, lexicon: Lexicon) -> list[Line]:
    """What a tool lost for being of another domain."""
    factor = float(stage.penalties[one.part][one.position]) if stage.penalties else 1.0
    if factor == 1.0:
        return []
    bits = int(domains.of_tools(view.parts[one.part].index, lexicon)[one.position])
    names = ", ".join(domains.names(bits, lexicon))
    before = one.plain / factor
    reason = Reason(word=names, field="domain", how="mismatch", gain=one.plain - before)
    return [Line(reason, ScorePart(name=f"domain {names}", value=before, weight=factor - 1), ())]
