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

from toolcrib.search.analysis import Analysis, Vocabulary
from toolcrib.search.entries import counted
from toolcrib.search.options import FIELD_NAMES, Field
from toolcrib.search.scorers.base import (
    Bools,
    Floats,
    Meeting,
    Part,
    Places,
    Ranked,
    Segment,
    View,
    Word,
    best,
    idf,
    kept,
    lines,
    read,
    scored,
    total_of,
    unmatched,
)
from toolcrib.search.scorers.options import DEFAULTS, Bm25Options, ScorerOptions
from toolcrib.search.scorers.rows import Rows, rows
from toolcrib.search.text import STOP_WORDS


def score(raw: float, options: ScorerOptions = DEFAULTS) -> float:
    """The public score, 0 to 1: `raw / (raw + half)`.

    >>> score(0.0), score(5.0), score(15.0)
    (0.0, 0.5, 0.75)
    """
    return raw / (raw + options.bm25.half)


def rank(
    view: View,
    text: str,
    limit: int,
    allowed: Sequence[Bools],
    options: ScorerOptions,
    boosts: Mapping[str, float] | None = None,
) -> Ranked:
    """The best tools for a query. `base.Rank` says what the arguments are."""
    use = options.bm25
    view = _first(view, use.max_docs) if use.max_docs else view
    allowed = [passes & part.seen for passes, part in zip(allowed, view.parts, strict=True)]
    asked = _telling(read(text, use.max_words))
    tables = [_rows(part.index, use.max_text) for part in view.parts]
    scale = _Scale(use, tables, view)
    meetings: list[list[Meeting]] = [[] for _ in view.parts]
    met = [word.text for word in asked if _meet(word, view, tables, scale, meetings)]
    scores = [total_of(own, len(part.index)) for own, part in zip(meetings, view.parts, strict=True)]
    found, total = best(view, scores, allowed, limit, boosts)
    typed = {word.place: word.chunk for word in asked}
    told = lines(meetings, view, found)
    hits = [scored(one, own, typed) for one, own in zip(found, told, strict=True)]
    return Ranked(hits, total, unmatched(asked, met))


def _telling(asked: list[Word]) -> list[Word]:
    """The words that say something, or all where none does."""
    return [word for word in asked if word.text not in STOP_WORDS] or asked


def _first(view: View, count: int) -> View:
    """The view of only the first tools by id."""
    ids = sorted(
        (part.index.ids[place], number, place)
        for number, part in enumerate(view.parts)
        for place in np.flatnonzero(part.seen).tolist()
    )
    masks = [np.zeros(len(part.index), dtype=np.bool_) for part in view.parts]
    for _, number, place in ids[:count]:
        masks[number][place] = True
    return View.of(*(Part(part.index, mask) for part, mask in zip(view.parts, masks, strict=True)))


def _rows(index: Segment, max_text: int) -> Rows:
    return kept(index, ("rows", max_text), lambda index: _cut(index, max_text)) if max_text else rows(index)


def _cut(index: Segment, max_text: int) -> Rows:
    """The rows of tools of which only the beginning of the description is read."""
    vocabulary = Vocabulary()
    analysis = Analysis(vocabulary)
    for position, tool in enumerate(index.tools):
        analysis.add(position, replace(tool, description=tool.description[:max_text]))
    return Rows(counted(analysis, vocabulary), vocabulary, len(index))


class _Scale:
    """What one occurrence of a word adds in a field of some length."""

    def __init__(self, use: Bm25Options, tables: Sequence[Rows], view: View) -> None:
        self.use = use
        labels, text = use.tags, use.text
        by_field = {
            Field.NAME: use.name,
            Field.NAMESPACE: use.namespace,
            Field.KEYWORDS: labels,
            Field.TAGS: labels,
        }
        self.weights = np.array([by_field.get(field, text) for field in Field])
        self.average = _average(tables, view)

    def adds(self, table: Rows, chosen: Places) -> Floats:
        """What each of some rows adds to tf."""
        fields = table.fields[chosen]
        length = table.lengths[table.positions[chosen], fields] / self.average[fields]
        adds: Floats = self.weights[fields] * table.counts[chosen] / (1 - self.use.b + self.use.b * length)
        return adds


def _average(tables: Sequence[Rows], view: View) -> Floats:
    """The mean length of each field over the tools that are seen and have it; 1 where none has."""
    seen = [table.lengths[part.seen] for table, part in zip(tables, view.parts, strict=True)]
    total = np.sum([lengths.sum(axis=0) for lengths in seen], axis=0)
    having = np.sum([np.count_nonzero(lengths, axis=0) for lengths in seen], axis=0)
    average: Floats = np.divide(total, having, out=np.ones(len(total)), where=having > 0)
    return average


class _Stand(NamedTuple):
    """The tools of one part that have a word."""

    fields: Places
    adds: Floats
    owners: Places
    """Beside both: the place in `positions` and `tf`."""
    positions: Places
    tf: Floats


def _meet(word: Word, view: View, tables: Sequence[Rows], scale: _Scale, meetings: Sequence[list[Meeting]]) -> bool:
    """Note what a word adds to which tools; False when no tool that is seen has it."""
    stands = [_stand(table, part, word, scale) for table, part in zip(tables, view.parts, strict=True)]
    df = sum(len(stand.positions) for stand in stands)
    rare = idf(view.count, df)
    for stand, own in zip(stands, meetings, strict=True):
        values = stand.adds / (scale.use.k1 + stand.tf[stand.owners])
        for field in np.unique(stand.fields).tolist():
            chosen = stand.fields == field
            tools = stand.positions[stand.owners[chosen]]
            own.append(Meeting((word,), FIELD_NAMES[field], "exact", tools, rare, values[chosen]))
    return df > 0


def _stand(table: Rows, part: Part, word: Word, scale: _Scale) -> _Stand:
    span = table.of(word.text)
    chosen = np.arange(span.start, span.stop)
    chosen = chosen[part.seen[table.positions[chosen]] & (scale.weights[table.fields[chosen]] > 0)]
    positions, owners = np.unique(table.positions[chosen], return_inverse=True)
    adds = scale.adds(table, chosen)
    tf: Any = np.bincount(owners, weights=adds, minlength=len(positions))
    return _Stand(table.fields[chosen], adds, owners, positions, tf)
