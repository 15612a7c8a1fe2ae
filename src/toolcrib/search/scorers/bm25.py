"""BM25F: rare words count more, a word in the name more than one in the text, and more of the same less and less.

    raw    = sum over the words w of the query, each once:  idf(w) * tf(w) / (k1 + tf(w))
    idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))
    tf(w)  = sum over the fields f:  weight(f) * count(w, f) / (1 - b + b * length(f) / average(f))

N counts the tools that the caller sees, df those of them with the word, average is the mean length of a field, in
words, over those of them that have it. k1 = 1.2, b = 0.75; weights: name 3, namespace 2, tags and keywords 2, title,
description and the names and descriptions of parameters 1.

Sources: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, for the simple BM25F;
Kamphuis et al., ECIR 2020, for the idf and the average length as Lucene has them. A word is a run of letters, digits or
CJK pairs, lower case; identifiers are taken apart, English stop words are left out, and no endings are cut off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from toolcrib.search.analysis import ToolAnalyzer, Vocabulary, count_words
from toolcrib.search.index import Bools, IndexView, Positions, Segment, SegmentView, idf
from toolcrib.search.options import DEFAULT_SCORERS, FIELD_NAMES, Bm25Options, Field, ScorerOptions
from toolcrib.search.scorers.base import (
    FieldMatch,
    Floats,
    QueryWord,
    ScorerResult,
    WordPostings,
    cached_on,
    choose_best,
    explain_tool,
    read_words,
    score_lines,
    sum_matches,
    unmatched_words,
    word_postings,
)
from toolcrib.search.text import STOP_WORDS


def score(raw: float, options: ScorerOptions = DEFAULT_SCORERS) -> float:
    """The public score, 0 to 1: `raw / (raw + half)`.

    >>> score(0.0), score(5.0), score(15.0)
    (0.0, 0.5, 0.75)
    """
    return raw / (raw + options.bm25.half)


def rank(
    view: IndexView,
    text: str,
    limit: int,
    allowed: Sequence[Bools],
    options: ScorerOptions,
    boosts: Mapping[str, float] | None = None,
) -> ScorerResult:
    """The best tools for a query. `base.Rank` says what the arguments are."""
    use = options.bm25
    view = _first_tools(view, use.max_docs) if use.max_docs else view
    allowed = [passes & part.visible for passes, part in zip(allowed, view.parts, strict=True)]
    asked = _content_words(read_words(text, use.max_words))
    tables = [_postings(part.segment, use.max_text) for part in view.parts]
    scale = _FieldScale(use, tables, view)
    meetings: list[list[FieldMatch]] = [[] for _ in view.parts]
    met = [word.text for word in asked if _match_word(word, view, tables, scale, meetings)]
    scores = [sum_matches(own, len(part.segment)) for own, part in zip(meetings, view.parts, strict=True)]
    found, total = choose_best(view, scores, allowed, limit, boosts)
    typed = {word.place: word.token for word in asked}
    told = score_lines(meetings, view, found)
    hits = [explain_tool(one, own, typed) for one, own in zip(found, told, strict=True)]
    return ScorerResult(hits, total, unmatched_words(asked, met))


def _content_words(asked: list[QueryWord]) -> list[QueryWord]:
    """The words that say something, or all where none does."""
    return [word for word in asked if word.text not in STOP_WORDS] or asked


def _first_tools(view: IndexView, count: int) -> IndexView:
    """The view of only the first tools by id."""
    ids = sorted(
        (part.segment.ids[place], number, place)
        for number, part in enumerate(view.parts)
        for place in np.flatnonzero(part.visible).tolist()
    )
    masks = [np.zeros(len(part.segment), dtype=np.bool_) for part in view.parts]
    for _, number, place in ids[:count]:
        masks[number][place] = True
    return IndexView.of(*(SegmentView(part.segment, mask) for part, mask in zip(view.parts, masks, strict=True)))


def _postings(index: Segment, max_text: int) -> WordPostings:
    return (
        cached_on(index, ("rows", max_text), lambda index: _truncated_postings(index, max_text))
        if max_text
        else word_postings(index)
    )


def _truncated_postings(index: Segment, max_text: int) -> WordPostings:
    """The rows of tools of which only the beginning of the description is read."""
    vocabulary = Vocabulary()
    analysis = ToolAnalyzer(vocabulary)
    for position, tool in enumerate(index.tools):
        analysis.add(position, replace(tool, description=tool.description[:max_text]))
    return WordPostings(count_words(analysis, vocabulary), vocabulary, len(index))


class _FieldScale:
    """What one occurrence of a word adds in a field of some length."""

    def __init__(self, use: Bm25Options, tables: Sequence[WordPostings], view: IndexView) -> None:
        self.use = use
        labels, text = use.tags, use.text
        by_field = {
            Field.NAME: use.name,
            Field.NAMESPACE: use.namespace,
            Field.KEYWORDS: labels,
            Field.TAGS: labels,
        }
        self.weights = np.array([by_field.get(field, text) for field in Field])
        self.average = _average_lengths(tables, view)

    def adds(self, table: WordPostings, chosen: Positions) -> Floats:
        """What each of some rows adds to tf."""
        fields = table.fields[chosen]
        length = table.lengths[table.positions[chosen], fields] / self.average[fields]
        adds: Floats = self.weights[fields] * table.counts[chosen] / (1 - self.use.b + self.use.b * length)
        return adds


def _average_lengths(tables: Sequence[WordPostings], view: IndexView) -> Floats:
    """The mean length of each field over the tools that are seen and have it; 1 where none has."""
    seen = [table.lengths[part.visible] for table, part in zip(tables, view.parts, strict=True)]
    total = np.sum([lengths.sum(axis=0) for lengths in seen], axis=0)
    having = np.sum([np.count_nonzero(lengths, axis=0) for lengths in seen], axis=0)
    average: Floats = np.divide(total, having, out=np.ones(len(total)), where=having > 0)
    return average


class _WordMatches(NamedTuple):
    """The tools of one part that have a word."""

    fields: Positions
    adds: Floats
    owners: Positions
    """Beside both: the place in `positions` and `tf`."""
    positions: Positions
    tf: Floats


def _match_word(
    word: QueryWord,
    view: IndexView,
    tables: Sequence[WordPostings],
    scale: _FieldScale,
    meetings: Sequence[list[FieldMatch]],
) -> bool:
    """Note what a word adds to which tools; False when no tool that is seen has it."""
    stands = [_word_matches(table, part, word, scale) for table, part in zip(tables, view.parts, strict=True)]
    df = sum(len(stand.positions) for stand in stands)
    rare = idf(view.count, df)
    for stand, own in zip(stands, meetings, strict=True):
        values = stand.adds / (scale.use.k1 + stand.tf[stand.owners])
        for field in np.unique(stand.fields).tolist():
            chosen = stand.fields == field
            tools = stand.positions[stand.owners[chosen]]
            own.append(FieldMatch((word,), FIELD_NAMES[field], "exact", tools, rare, values[chosen]))
    return df > 0


def _word_matches(table: WordPostings, part: SegmentView, word: QueryWord, scale: _FieldScale) -> _WordMatches:
    span = table.rows_of(word.text)
    chosen = np.arange(span.start, span.stop)
    chosen = chosen[part.visible[table.positions[chosen]] & (scale.weights[table.fields[chosen]] > 0)]
    positions, owners = np.unique(table.positions[chosen], return_inverse=True)
    adds = scale.adds(table, chosen)
    tf: Any = np.bincount(owners, weights=adds, minlength=len(positions))
    return _WordMatches(table.fields[chosen], adds, owners, positions, tf)
