"""The search in single functions, without an engine object, and the text functions behind it.

No session is kept: calls do not affect each other.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from toolcrib.discovery.engine import ToolSearchEngine
from toolcrib.search.lexicon import Lexicon
from toolcrib.search.scorers.points import keywords
from toolcrib.search.text import split_words

T = TypeVar("T")

_ENGINE: Final[ToolSearchEngine[Any]] = ToolSearchEngine()
"""Caches the last few lists; nothing is ever recorded in it."""
_MAX_KEYWORDS: Final = 256
_MAX_TEXT: Final = 100_000
"""Characters that are read."""


def search_tools(query: str, tools: Sequence[Any], limit: int = 10) -> list[dict[str, Any]]:
    """Return the tools that match a query, best first: name, namespace, description, score and match_reasons of each.

    >>> tools = [{"name": "math.add", "description": "Add numbers."}, {"name": "mail.send"}]
    >>> [found["name"] for found in search_tools("sum of two numbers", tools)]
    ['math.add']
    """
    return [
        {
            "name": found.name,
            "description": found.description or "",
            "namespace": found.namespace,
            "score": found.score,
            "match_reasons": found.match_reasons,
        }
        for found in _ENGINE.search(query, tools, limit, use_session_boost=False)
    ]


def find_tool_exact(name: str, tools: Sequence[T]) -> T | None:
    """Return the tool of that name in any spelling, or None. Raises `AmbiguousName` if several match.

    >>> find_tool_exact("math.add", [{"name": "add", "namespace": "math"}])
    {'name': 'add', 'namespace': 'math'}
    """
    found: T | None = _ENGINE.find_exact(name, tools)
    return found


def find_tool_by_alias(query_name: str, tools: Sequence[T]) -> T | None:
    """Like `find_tool_exact`, which accepts every spelling already.

    >>> find_tool_by_alias("normalCdf", [{"name": "normal_cdf", "namespace": "stats"}])["name"]
    'normal_cdf'
    """
    return find_tool_exact(query_name, tools)


def tokenize(text: str) -> list[str]:
    """Return the words of a name or a text, lower case, in order, with repetitions.

    Identifiers are split at separators, capitals and digits.

    >>> tokenize("normalCdf"), tokenize("sin2"), tokenize("stats.get_user-name")
    (['normal', 'cdf'], ['sin', '2'], ['stats', 'get', 'user', 'name'])
    """
    return split_words(text[:_MAX_TEXT])


def extract_keywords(query: str) -> list[str]:
    """Return the significant words of a query, each once; all of its words if none is significant.

    >>> extract_keywords("find the average of numbers"), extract_keywords("calculate")
    (['find', 'average', 'numbers'], ['calculate'])
    """
    return [word.text for word in keywords(query, _MAX_KEYWORDS)]


def expand_with_synonyms(tokens: Iterable[str], lexicon: Lexicon | None = None) -> set[str]:
    """Return the words with their synonyms; one step only, in both directions.

    >>> sorted(expand_with_synonyms(["cdf"], Lexicon.points()))
    ['cdf', 'cumulative', 'distribution']
    >>> "write" in expand_with_synonyms(["save"])
    True
    """
    known = lexicon or Lexicon.default()
    own = {token.lower() for token in tokens}
    return own.union(*(known.related(token) for token in own))


def normalize_tool_name(name: str) -> set[str]:
    """Return the spellings of a name that a model may use, with and without its namespace.

    >>> sorted(normalize_tool_name("stats.normal_cdf"))
    ['normal-cdf', 'normalCdf', 'normal_cdf', 'normalcdf', 'stats.normal_cdf']
    """
    base = name.rpartition(".")[2]
    parts = split_words(base)
    camel = "".join([*parts[:1], *(part.capitalize() for part in parts[1:])])
    found = {name.lower(), base.lower(), "".join(parts), "_".join(parts), "-".join(parts), camel}
    return found - {""}
