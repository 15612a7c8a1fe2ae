"""A query as words and terms."""

from dataclasses import dataclass

from toolcrib.search.analysis import WHOLE
from toolcrib.search.text import CHUNK, STOP_WORDS, split, stem

_MAX_TEXT = 8_000
"""Characters of a query that are read."""

_MAX_TERMS = 256
"""Words of a query that count."""

_MAX_NAME_WORDS = 6
"""Words in a row that are tried as a whole name."""


@dataclass(frozen=True, slots=True)
class Term:
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


@dataclass(frozen=True, slots=True)
class Query:
    """A query, read."""

    words: tuple[str, ...]
    """The words as they were typed."""
    terms: tuple[Term, ...]
    """What is looked for, each stem once; without stop words, unless there is nothing else."""
    names: tuple[tuple[str, range], ...]
    """Words in a row that may be the whole name of a tool: joined, and the typed words they come from, by place."""

    def whole(self, name: str, places: range) -> Term:
        """The term for a whole name."""
        return Term(WHOLE + name, name, " ".join(self.words[place] for place in places), places, whole=True)


def read(text: str) -> Query:
    """Read a query of any length.

    >>> [term.stem for term in read("list the open issues").terms]
    ['list', 'open', 'issu']
    """
    typed = tuple(CHUNK.findall(text[:_MAX_TEXT]))
    split_words = [(place, split(chunk)) for place, chunk in enumerate(typed)]
    pairs = [(place, word, len(words) == 1) for place, words in split_words for word in words][:_MAX_TERMS]
    telling = [pair for pair in pairs if pair[1] not in STOP_WORDS] or pairs
    terms: dict[str, Term] = {}
    for place, word, alone in telling:
        text_shown = typed[place] if alone else word
        terms.setdefault(stem(word), Term(stem(word), word, text_shown, range(place, place + 1)))
    return Query(typed, tuple(terms.values()), _names([(place, word) for place, word, _ in pairs]))


def _names(pairs: list[tuple[int, str]]) -> tuple[tuple[str, range], ...]:
    found: dict[str, range] = {}
    for start, (first, _) in enumerate(pairs):
        name = ""
        for last, word in pairs[start : start + _MAX_NAME_WORDS]:
            name += word
            found.setdefault(name, range(first, last + 1))
    return tuple(found.items())
