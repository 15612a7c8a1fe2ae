"""A query as the points read it: its keywords, and the words that mean the same."""

from collections.abc import Sequence
from typing import NamedTuple

from toolcrib.search.lexicon import Lexicon
from toolcrib.search.scorers.base import Word, read
from toolcrib.search.text import STOP_WORDS, words

_OF_ASKING = """
calculate calculated calculates calculating calculation calculations compute computed computes computing computation
computations function functions tool tools use used uses using something
"""

_ASKING = frozenset(_OF_ASKING.split())
"""What every request says of itself. The documented figure of "calculate average" needs it to say nothing."""


class Term(NamedTuple):
    """A word to look for: a keyword, or one that means the same."""

    text: str
    words: tuple[Word, ...]
    """The keywords it stands for."""
    how: str
    """exact, or synonym."""


def keywords(text: str, limit: int) -> list[Word]:
    """The words of a query that say what is wanted, or all of them where none does.

    >>> [word.text for word in keywords("calculate the average", 10)], [word.text for word in keywords("calculate", 10)]
    (['average'], ['calculate'])
    """
    asked = read(text, limit)
    return [word for word in asked if word.text not in STOP_WORDS and word.text not in _ASKING] or asked


def terms(asked: Sequence[Word], lexicon: Lexicon) -> list[Term]:
    """The keywords, and after them what is one step away from them in the lexicon, each once."""
    own = {word.text: Term(word.text, (word,), "exact") for word in asked}
    meant: dict[str, Term] = {}
    for word in asked:
        for text in _related(word.text, lexicon):
            if text not in own:
                before = meant.get(text)
                meant[text] = Term(text, (*(before.words if before else ()), word), "synonym")
    return [*own.values(), *meant.values()]


def _related(word: str, lexicon: Lexicon) -> dict[str, None]:
    return dict.fromkeys(part for related in lexicon.related(word) for part in words(related))
