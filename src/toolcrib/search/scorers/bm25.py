"""BM25F: rare words count more, words in the name count more than in the text, and repetitions count less and less.

    raw    = sum over the words w of the query, each once:  idf(w) * tf(w) / (k1 + tf(w))
    idf(w) = ln(1 + (N - df + 0.5) / (df + 0.5))
    tf(w)  = sum over the fields f:  weight(f) * count(w, f) / (1 - b + b * length(f) / average(f))

N is the number of visible tools, df the number of these with the word, average the mean length of a field, in words,
over those that have it. k1 = 1.2, b = 0.75; weights: name 3, namespace 2, tags and keywords 2, title, description and
the names and descriptions of parameters 1.

Sources: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, for the simple BM25F;
Kamphuis et al., ECIR 2020, for the idf and the average length as in Lucene. A word is a lower-case run of letters or
digits, or a pair of CJK characters; identifiers are split, English stop words are left out, and words are not stemmed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from toolcrib.names import fold
from toolcrib.search.analysis import ToolAnalyzer, Vocabulary, count_words
from toolcrib.search.index import IndexView, SegmentView, idf
from toolcrib.search.options import DEFAULT_SCORERS, FIELD_NAMES, Bm25Options, Field, ScorerOptions
from toolcrib.search.scorers.base import (
    MAX_TEXT,
    ExactNames,
    FieldMatch,
    Floats,
    QueryWord,
    ScorerResult,
    WordPostings,
    cached_on,
    choose_best,
    explain_tool,
    folded_names,
    read_words,
    score_lines,
    sum_matches,
    unmatched_words,
    word_postings,
)
from toolcrib.search.segment import Bools, Positions, Segment
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
    """Rank tools by BM25F. `ScorerFunction` describes the arguments."""
    use = options.bm25
    view = _first_tools(view, use.max_docs) if use.max_docs else view
    allowed = [passes & part.visible for passes, part in zip(allowed, view.parts, strict=True)]
    asked = _content_words(read_words(text, use.max_words))
    tables = [_postings(part.segment, use.max_text) for part in view.parts]
    scale = _FieldScale(use, tables, view)
    matches: list[list[FieldMatch]] = [[] for _ in view.parts]
    matched = [word.text for word in asked if _match_word(word, view, tables, scale, matches)]
    scores = [sum_matches(own, len(part.segment)) for own, part in zip(matches, view.parts, strict=True)]
    found, total = choose_best(view, scores, allowed, limit, boosts, _exact_names(view, text, scores))
    typed = {word.place: word.token for word in asked}
    lines = score_lines(matches, view, found)
    hits = [explain_tool(one, own, typed) for one, own in zip(found, lines, strict=True)]
    return ScorerResult(hits, total, unmatched_words(asked, matched))


def _exact_names(view: IndexView, text: str, scores: Sequence[Floats]) -> ExactNames:
    """Find the visible tools whose whole name is the query, in any spelling."""
    asked = fold(text[:MAX_TEXT])
    names = [folded_names(part.segment) for part in view.parts]
    found = [known.tools(known.equal_to(asked)) for known in names]
    found = [positions[part.visible[positions]] for part, positions in zip(view.parts, found, strict=True)]
    best = [float(score[positions].max(initial=0.0)) for score, positions in zip(scores, found, strict=True)]
    return ExactNames(found, max(best, default=0.0))


def _content_words(asked: list[QueryWord]) -> list[QueryWord]:
    """The words that are not stop words, or all if there are none."""
    return [word for word in asked if word.text not in STOP_WORDS] or asked


def _first_tools(view: IndexView, count: int) -> IndexView:
    """Restrict a view to the first tools by id."""
    ids = sorted(
        (part.segment.ids[place], number, place)
        for number, part in enumerate(view.parts)
        for place in np.flatnonzero(part.visible).tolist()
    )
    masks = [np.zeros(len(part.segment), dtype=np.bool_) for part in view.parts]
    for _, number, place in ids[:count]:
        masks[number][place] = True
    return IndexView.of(*(SegmentView(part.segment, mask) for part, mask in zip(view.parts, masks, strict=True)))


def _postings(segment: Segment, max_text: int) -> WordPostings:
    return (
        cached_on(segment, ("rows", max_text), lambda segment: _truncated_postings(segment, max_text))
        if max_text
        else word_postings(segment)
    )


def _truncated_postings(segment: Segment, max_text: int) -> WordPostings:
    """The word postings with only the beginning of each description."""
    vocabulary = Vocabulary()
    analysis = ToolAnalyzer(vocabulary)
    for position, tool in enumerate(segment.tools):
        analysis.add(position, replace(tool, description=tool.description[:max_text]))
    return WordPostings(count_words(analysis, vocabulary), vocabulary, len(segment))


class _FieldScale:
    """Weights and length normalization of the fields."""

    def __init__(self, use: Bm25Options, tables: Sequence[WordPostings], view: IndexView) -> None:
        self.use = use
        labels, text = use.tags, use.text
        by_field = {Field.NAME: use.name, Field.NAMESPACE: use.namespace, Field.KEYWORDS: labels, Field.TAGS: labels}
        self.weights = np.array([by_field.get(field, text) for field in Field])
        self.average = _average_lengths(tables, view)

    def adds(self, table: WordPostings, chosen: Positions) -> Floats:
        """What each of some rows adds to the term frequency."""
        fields = table.fields[chosen]
        length = table.lengths[table.positions[chosen], fields] / self.average[fields]
        adds: Floats = self.weights[fields] * table.counts[chosen] / (1 - self.use.b + self.use.b * length)
        return adds


def _average_lengths(tables: Sequence[WordPostings], view: IndexView) -> Floats:
    """The mean length of each field over the visible tools that have it; 1 if none has."""
    seen = [table.lengths[part.visible] for table, part in zip(tables, view.parts, strict=True)]
    total = np.sum([lengths.sum(axis=0) for lengths in seen], axis=0)
    having = np.sum([np.count_nonzero(lengths, axis=0) for lengths in seen], axis=0)
    average: Floats = np.divide(total, having, out=np.ones(len(total)), where=having > 0)
    return average


class _WordMatches(NamedTuple):
    """The visible tools of one part that have a word."""

    fields: Positions
    adds: Floats
    owners: Positions
    """For each entry of both: the index into `positions` and `tf`."""
    positions: Positions
    tf: Floats


def _match_word(
    word: QueryWord,
    view: IndexView,
    tables: Sequence[WordPostings],
    scale: _FieldScale,
    matches: Sequence[list[FieldMatch]],
) -> bool:
    """Add the matches of a word to `meetings`; False if no visible tool has it."""
    by_part = [_word_matches(table, part, word, scale) for table, part in zip(tables, view.parts, strict=True)]
    df = sum(len(found.positions) for found in by_part)
    rarity = idf(view.count, df)
    for found, own in zip(by_part, matches, strict=True):
        values = found.adds / (scale.use.k1 + found.tf[found.owners])
        for field in np.unique(found.fields).tolist():
            chosen = found.fields == field
            tools = found.positions[found.owners[chosen]]
            own.append(FieldMatch((word,), FIELD_NAMES[field], "exact", tools, rarity, values[chosen]))
    return df > 0


def _word_matches(table: WordPostings, part: SegmentView, word: QueryWord, scale: _FieldScale) -> _WordMatches:
    span = table.rows_of(word.text)
    chosen = np.arange(span.start, span.stop)
    chosen = chosen[part.visible[table.positions[chosen]] & (scale.weights[table.fields[chosen]] > 0)]
    positions, owners = np.unique(table.positions[chosen], return_inverse=True)
    adds = scale.adds(table, chosen)
    tf: Any = np.bincount(owners, weights=adds, minlength=len(positions))
    return _WordMatches(table.fields[chosen], adds, owners, positions, tf)
