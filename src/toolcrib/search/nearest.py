"""Where nothing fits: the tools with a name close to what was asked."""

from collections.abc import Sequence

import numpy as np

from toolcrib.names import fold
from toolcrib.search.index import Bools
from toolcrib.search.lexical import View
from toolcrib.search.query import Query
from toolcrib.words import nearest

_LIMIT = 3
"""Ids that are named."""

_MAX_WORDS = 8
"""Words of the query that are held against the words of names."""


def nearest_ids(view: View, query: Query, allowed: Sequence[Bools]) -> tuple[str, ...]:
    """Ids of allowed tools: a whole name close to the query first, then names with a word close to one of its words."""
    names: dict[str, list[str]] = {}
    words: dict[str, list[str]] = {}
    for part, passes in zip(view.parts, allowed, strict=True):
        for position in np.flatnonzero(passes).tolist():
            names.setdefault(fold(part.index.tools[position].name), []).append(part.index.ids[position])
        for word, positions in part.index.name_words(passes).items():
            words.setdefault(word, []).extend(part.index.ids[position] for position in positions)
    asked = fold(" ".join(query.words))
    found = [id_ for name in nearest(asked, names, limit=_LIMIT) for id_ in sorted(names[name])]
    for term in query.terms[:_MAX_WORDS]:
        for word in nearest(term.surface, words, limit=1):
            found.extend(sorted(words[word])[:1])
    return tuple(dict.fromkeys(found))[:_LIMIT]
