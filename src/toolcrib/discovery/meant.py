"""What the words of a query stand for, for the scorers that look up words as they are: `tiers` and `bm25`.

A word that meets nothing is replaced by the word of a tool that it is a slip of, or that means the same.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from toolcrib.search.lexicon import Lexicon
from toolcrib.search.text import CHUNK, split, words
from toolcrib.words import nearest

_LIKE: Final = 80.0
"""How alike a slip must be, 0 to 100."""
_SHORTEST: Final = 4
"""Letters of a word that may be a slip of another."""
_MOST: Final = 32
"""Words of a query that are looked up in this way."""


def meant(unmatched: Iterable[str], names: frozenset[str], texts: frozenset[str], lexicon: Lexicon) -> dict[str, str]:
    """For the words that met nothing, those of tools to look up instead; words of names come first.

    >>> meant(["gaussian", "multipley"], frozenset({"normal", "multiply"}), frozenset(), Lexicon.points())
    {'gaussian': 'normal', 'multipley': 'multiply'}
    """
    found: dict[str, str] = {}
    for chunk in list(unmatched)[:_MOST]:
        for word in split(chunk):
            other = _other(word, names, texts, lexicon)
            if other:
                found[word] = other
    return found


def replaced(query: str, other: Mapping[str, str]) -> str:
    """The query with other words.

    >>> replaced("noraml_cdf of x", {"noraml": "normal"})
    'normal cdf of x'
    """
    found = {word: other.get(word, word) for word in words(query)}
    return CHUNK.sub(lambda match: " ".join(found.get(word, word) for word in split(match[0])), query)


def _other(word: str, names: frozenset[str], texts: frozenset[str], lexicon: Lexicon) -> str:
    related = lexicon.related(word)
    for known in (names, texts):
        same = [one for one in related if one in known]
        if same:
            return same[0]
    if len(word) < _SHORTEST or word in names or word in texts:
        return ""
    slips = nearest(word, names, limit=1, cutoff=_LIKE)
    return slips[0] if slips else ""
