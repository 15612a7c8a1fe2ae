"""Where nothing fits: the tools with a name close to what was asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toolcrib.names import fold
from toolcrib.search.options import Field
from toolcrib.search.query import Query
from toolcrib.search.segment import Bools
from toolcrib.search.view import Part, View
from toolcrib.words import likeness

Marks = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

_LIMIT = 3
"""Ids that are named."""

_MAX_WORDS = 8
"""Words of the query that are held against the words of names."""

_COMPARED = 256
"""Texts that are compared letter by letter: those with nearly the same set of letters."""


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts that may be near, with what makes most of them quick to rule out."""

    texts: Sequence[str]
    marks: Marks
    """Which letters and digits each has, one bit for each."""
    positions: Places
    """The tool of each text."""


def nearest_ids(view: View, query: Query, allowed: Sequence[Bools]) -> tuple[str, ...]:
    """Ids of allowed tools: those whose name is like the query first, then those with a word like one of its words."""
    parts = list(zip(view.parts, allowed, strict=True))
    asked = fold(" ".join(query.words))
    found = sorted((-score, id_) for part, passes in parts for score, id_ in _like(part, _names(part, passes), asked))
    ids = [id_ for _, id_ in found[:_LIMIT]]
    if len(ids) < _LIMIT:
        ids += _with_words(parts, [term.surface for term in query.terms[:_MAX_WORDS]])
    return tuple(dict.fromkeys(ids))[:_LIMIT]


def _with_words(parts: Sequence[tuple[Part, Bools]], asked: Sequence[str]) -> list[str]:
    """For each word, the first tool by id with the word in its name that is most like it."""
    words = [(part, _words(part, allowed)) for part, allowed in parts]
    found = []
    for word in asked:
        best = min(((-score, id_) for part, texts in words for score, id_ in _like(part, texts, word)), default=None)
        found += [best[1]] if best else []
    return found


def _like(part: Part, texts: _Texts, asked: str) -> Iterator[tuple[float, str]]:
    """How like the asked text the others are, with the ids of their tools, where they are alike at all."""
    places = _compared(part, texts, asked)
    for place, score in likeness(asked, [texts.texts[at] for at in places]).items():
        yield score, part.index.ids[texts.positions[places[place]]]


def _compared(part: Part, texts: _Texts, asked: str) -> Sequence[int]:
    """The texts whose letters differ least, ties by id: the others cannot be much alike."""
    if len(texts.positions) <= _COMPARED:
        return range(len(texts.positions))
    differ = np.bitwise_count(texts.marks ^ _mark(asked)).astype(np.int64)
    order = (differ << 32) | part.index.ranks[texts.positions]
    found: list[int] = np.sort(np.argpartition(order, _COMPARED)[:_COMPARED]).tolist()
    return found


def _names(part: Part, allowed: Bools) -> _Texts:
    """The folded names of the allowed tools."""
    index = part.index
    if "nearest names" not in index.memo:
        names = [fold(tool.name) for tool in index.tools]
        index.memo["nearest names"] = _Texts(names, _marks(names), np.arange(len(names)))
    known: _Texts = index.memo["nearest names"]
    if _is_all(part, allowed):
        return known
    places = np.flatnonzero(allowed)
    return _Texts([known.texts[place] for place in places.tolist()], known.marks[places], places)


def _words(part: Part, allowed: Bools) -> _Texts:
    """The words in the names of the allowed tools, each with the first of those by id."""
    index = part.index
    if _is_all(part, allowed) and "nearest words" in index.memo:
        known: _Texts = index.memo["nearest words"]
        return known
    numbers, positions = index.field_words(Field.NAME)
    passing = allowed[positions]
    numbers, positions = numbers[passing], positions[passing]
    order = np.lexsort((index.ranks[positions], numbers))
    numbers, positions = numbers[order], positions[order]
    first = np.flatnonzero(np.diff(numbers, prepend=-1))
    texts = [index.vocabulary.words[number] for number in numbers[first].tolist()]
    found = _Texts(texts, _marks(texts), positions[first].astype(np.intp))
    if _is_all(part, allowed):
        index.memo["nearest words"] = found
    return found


def _is_all(part: Part, allowed: Bools) -> bool:
    return part.whole and allowed is part.seen


_CHARACTERS = {character: bit for bit, character in enumerate("abcdefghijklmnopqrstuvwxyz0123456789")}


def _mark(text: str) -> np.uint64:
    mark = 0
    for character in set(text):
        mark |= 1 << _CHARACTERS.get(character, 36 + ord(character) % 28)
    return np.uint64(mark)


def _marks(texts: Sequence[str]) -> Marks:
    return np.array([_mark(text) for text in texts], dtype=np.uint64)
