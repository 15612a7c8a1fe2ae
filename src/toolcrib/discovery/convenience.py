"""The engine in one call, for a list of tools. No session is kept: callers never feel each other."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from toolcrib.discovery.engine import ToolSearchEngine

T = TypeVar("T")

_ENGINE: Final[ToolSearchEngine[Any]] = ToolSearchEngine()
"""Only for its memory of the last few lists; nothing is ever recorded in it."""


def search_tools(query: str, tools: Sequence[Any], limit: int = 10) -> list[dict[str, Any]]:
    """The tools that fit a query, best first: name, namespace, description, score and match_reasons of each.

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
    """The tool of that name, in any spelling, or None. Raises `AmbiguousName` where several answer to it.

    >>> find_tool_exact("math.add", [{"name": "add", "namespace": "math"}])
    {'name': 'add', 'namespace': 'math'}
    """
    found: T | None = _ENGINE.find_exact(name, tools)
    return found


def find_tool_by_alias(query_name: str, tools: Sequence[T]) -> T | None:
    """The same as `find_tool_exact`: a spelling is a name.

    >>> find_tool_by_alias("normalCdf", [{"name": "normal_cdf", "namespace": "stats"}])["name"]
    'normal_cdf'
    """
    return find_tool_exact(query_name, tools)
