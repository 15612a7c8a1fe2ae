"""Where nothing fits: the tools with a name close to what was asked."""

from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np

from toolcrib.names import fold
from toolcrib.search.query import Query
from toolcrib.search.segment import Bools
from toolcrib.search.view import Part, View
from toolcrib.words import likeness

_LIMIT = 3
"""Ids that are named."""

_MAX_WORDS = 8
"""Words of the query that are held against the words of names."""


def nearest_ids(view: View, query: Query, allowed: Sequence[Bools]) -> tuple[str, ...]:
    """Ids of allowed tools: those whose name is like the query first, then those with a word like one of its words."""
    parts = list(zip(view.parts, allowed, strict=True))
    asked = fold(" ".join(query.words))
    found = sorted((-score, id_) for part, passes in parts for score, id_ in _named(part, passes, asked))
    ids = [id_ for _, id_ in found[:_LIMIT]]
    if len(ids) < _LIMIT:
        ids += _with_words(parts, [term.surface for term in query.terms[:_MAX_WORDS]])
    return tuple(dict.fromkeys(ids))[:_LIMIT]


def _named(part: Part, allowed: Bools, asked: str) -> Iterator[tuple[float, str]]:
    """How like the asked text the names of the allowed tools are, with their ids, where they are alike at all."""
    selectors = allowed.tolist()
    ids = list(compress(part.index.ids, selectors))
    for place, score in likeness(asked, list(compress(part.index.names, selectors))).items():
        yield score, ids[place]


def _with_words(parts: Sequence[tuple[Part, Bools]], asked: Sequence[str]) -> list[str]:
    """For each word, the first tool by id with the word in its name that is most like it."""
    best: list[tuple[float, str, str] | None] = [None] * len(asked)
    for part, allowed in parts:
        numbers, positions = part.index.name_words(allowed)
        known = np.unique(numbers).tolist()
        words = [part.index.vocabulary.words[number] for number in known]
        for place, text in enumerate(asked):
            for word, score in likeness(text, words).items():
                candidate = (-score, words[word], "")
                if best[place] is None or candidate[:2] <= (best[place] or candidate)[:2]:
                    having = positions[numbers == known[word]]
                    first = part.index.ids[having[np.argmin(part.index.ranks[having])]]
                    candidate = (-score, words[word], first)
                    best[place] = min(best[place] or candidate, candidate)
    return [found[2] for found in best if found is not None]
