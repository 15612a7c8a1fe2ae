"""A query as words and terms."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from toolcrib.search.analysis import WHOLE
from toolcrib.search.kinds import literals
from toolcrib.search.text import CHUNK, Word, read_chunk

_MAX_TEXT = 8_000
"""Characters of a query that are read."""

_MAX_REMEMBERED = 1_000
"""Characters of a query that is remembered for a while: one request is read at several places."""

_MAX_TERMS = 256
"""Words of a query that count."""

_MAX_NAME_WORDS = 6
"""Words in a row that are tried as a whole name."""

_MAX_SPELT_WORDS = 24
"""Words of a name that was typed as one word."""

_MAX_CLAUSES = 8
"""Parts of a query that are compared in meaning, each by itself; what follows belongs to the last one."""

_MIN_CLAUSE = 2
"""Telling words without which a part belongs to the one before it."""

_BREAK = re.compile(
    r"[\s;,](?:(?<=[.!?]\s)|(?<=[;\n])|(?<=,)\s|(?<=\s)(?i:and\s(?:then|also)|and|then|also|as\swell\sas)\s)"
)


class Term(NamedTuple):
    """One thing to look for."""

    stem: str
    """What is looked up: a stem, or a whole name."""
    surface: str
    """The word itself, lower case."""
    shown: str
    """The word as it was typed."""
    places: range
    """The typed words it comes from, by their place."""
    whole: bool = False
    """Whether it is a whole name rather than a word."""
    spelt: bool = False
    """Whether that name was typed as one word of several, `createIssue`, or is all that was typed."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query, read."""

    words: tuple[str, ...]
    """The words as they were typed."""
    terms: tuple[Term, ...]
    """What is looked for, each stem once; without stop words, unless there is nothing else."""
    chain: tuple[tuple[int, str], ...]
    """All its words in a row, each with the place of the typed word it comes from."""
    clauses: tuple[tuple[str, ...], ...]
    """The words of each part of the query, in order, stop words included; a word may come twice."""
    literals: int
    """The kinds of literals in it, one bit a kind."""

    def names(self, begins: Callable[[str], bool], spells: Callable[[str], bool]) -> Iterator[tuple[str, range]]:
        """Words in a row that are a whole name: joined, and the typed words they come from, by place.

        `begins` tells whether some name of several words begins with a word, `spells` whether one is spelt so, with
        `WHOLE` before it.
        """
        for start, (first, word) in enumerate(self.chain):
            name = WHOLE + word
            if spells(name):
                yield word, range(first, first + 1)
            if not begins(word):
                continue
            for count, (last, more) in enumerate(self.chain[start + 1 : start + _MAX_SPELT_WORDS], 2):
                if count > _MAX_NAME_WORDS and last != first:
                    break
                name += more
                if spells(name):
                    yield name[len(WHOLE) :], range(first, last + 1)

    def whole(self, name: str, places: range) -> Term:
        """The term for a whole name."""
        shown = " ".join(self.words[place] for place in places)
        joined = len(places) == 1 and sum(place == places[0] for place, _ in self.chain) > 1
        spelt = joined or len(places) == len(self.words)
        return Term(WHOLE + name, name, shown, places, whole=True, spelt=spelt)


def read(text: str) -> Query:
    """Read a query of any length.

    >>> [term.stem for term in read("list the open issues").terms]
    ['list', 'open', 'issu']
    >>> read("Find a flight to Oslo, then book a hotel").clauses
    (('find', 'a', 'flight', 'to', 'oslo'), ('then', 'book', 'a', 'hotel'))
    """
    return _remembered(text) if len(text) <= _MAX_REMEMBERED else _read(text[:_MAX_TEXT])


def _read(text: str) -> Query:
    typed = tuple(CHUNK.findall(text))
    pairs = [(place, word, words) for place, words in enumerate(map(read_chunk, typed)) for word in words][:_MAX_TERMS]
    terms: dict[str, Term] = {}
    for place, word, words in [pair for pair in pairs if pair[1].telling] or pairs:
        if word.stem not in terms:
            shown = typed[place] if len(words) == 1 else word.text
            terms[word.stem] = Term(word.stem, word.text, shown, range(place, place + 1))
    chain = tuple([(place, word.text) for place, word, _ in pairs])
    return Query(typed, tuple(terms.values()), chain, _clauses(text, pairs), literals(text))


_remembered = lru_cache(maxsize=16)(_read)


def _clauses(text: str, pairs: Sequence[tuple[int, Word, tuple[Word, ...]]]) -> tuple[tuple[str, ...], ...]:
    """The words, parted where the query passes from one need to the next."""
    breaks = [match.end() for match in _BREAK.finditer(text)]
    if not breaks or not pairs:
        return (tuple([word.text for _, word, _ in pairs]),)
    starts = [match.start() for match in CHUNK.finditer(text)]
    parts: list[list[str]] = []
    last, telling = -1, _MIN_CLAUSE
    for place, word, _ in pairs:
        part = bisect_right(breaks, starts[place])
        if part != last and telling >= _MIN_CLAUSE and len(parts) < _MAX_CLAUSES:
            parts.append([])
            telling = 0
        last = part
        telling += word.telling
        parts[-1].append(word.text)
    if len(parts) > 1 and telling < _MIN_CLAUSE:
        parts[-2].extend(parts.pop())
    return tuple([tuple(part) for part in parts])
