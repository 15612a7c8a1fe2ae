"""Words of names and queries, as the search sees them."""

from collections.abc import Iterable
from typing import Final

from toolcrib.search.lexicon import Lexicon
from toolcrib.search.scorers.points_query import keywords
from toolcrib.search.text import words

_MAX_WORDS: Final = 256
_MAX_TEXT: Final = 100_000
"""Characters that are read."""


def tokenize(text: str) -> list[str]:
    """The words of a name or a text, lower case, in order; a word may come twice.

    Identifiers are taken apart at separators, at capitals and at digits.

    >>> tokenize("normalCdf"), tokenize("sin2"), tokenize("stats.get_user-name")
    (['normal', 'cdf'], ['sin', '2'], ['stats', 'get', 'user', 'name'])
    """
    return words(text[:_MAX_TEXT])


def extract_keywords(query: str) -> list[str]:
    """The words of a query that say what is wanted, each once, or all of them where none does.

    >>> extract_keywords("find the average of numbers"), extract_keywords("calculate")
    (['find', 'average', 'numbers'], ['calculate'])
    """
    return [word.text for word in keywords(query, _MAX_WORDS)]


def expand_with_synonyms(tokens: Iterable[str], lexicon: Lexicon | None = None) -> set[str]:
    """The words, and those that may stand for one of them; one step only, and in both directions.

    >>> sorted(expand_with_synonyms(["cdf"], Lexicon.points()))
    ['cdf', 'cumulative', 'distribution']
    >>> "write" in expand_with_synonyms(["save"])
    True
    """
    known = lexicon or Lexicon.default()
    own = {token.lower() for token in tokens}
    return own.union(*(known.related(token) for token in own))


def normalize_tool_name(name: str) -> set[str]:
    """The spellings of a name that a model may use, with and without its namespace.

    >>> sorted(normalize_tool_name("stats.normal_cdf"))
    ['normal-cdf', 'normalCdf', 'normal_cdf', 'normalcdf', 'stats.normal_cdf']
    """
    base = name.rpartition(".")[2]
    parts = words(base)
    camel = "".join([*parts[:1], *(part.capitalize() for part in parts[1:])])
    found = {name.lower(), base.lower(), "".join(parts), "_".join(parts), "-".join(parts), camel}
    return found - {""}
