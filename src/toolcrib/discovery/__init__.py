"""Tool search for agent loops: a search engine over any tools, a memory of the session, and five meta-tools.

>>> from toolcrib.discovery import ToolSearchEngine
>>> engine = ToolSearchEngine()
>>> engine.set_tools([{"name": "stats.calculate_mean", "description": "Calculate the mean of a list of numbers."}])
>>> [result.name for result in engine.search("find the average of numbers")]
['stats.calculate_mean']
"""

from importlib import import_module
from typing import Any, Final

_HOMES: Final = {
    "BaseDynamicToolProvider": "provider",
    "Guard": "guards",
    "GuardOptions": "guards",
    "HostToolOptions": "provider",
    "MetaTools": "host_tools",
    "PastRequests": "engine",
    "SearchResult": "results",
    "SearchableTool": "tool_reader",
    "Session": "session",
    "SessionStats": "session",
    "ToolPort": "host_tools",
    "ToolSearchEngine": "engine",
    "expand_with_synonyms": "engine",
    "extract_keywords": "engine",
    "find_tool_by_alias": "engine",
    "find_tool_exact": "engine",
    "normalize_tool_name": "engine",
    "search_tools": "engine",
    "tokenize": "engine",
}
"""Each public name and its module, for `__getattr__`: the gateway, which needs the meta-tools and the session, does
not load the rest. `__init__.pyi` says the same to type checkers."""


__all__ = [*_HOMES]  # noqa: PLE0604 - names of the table, all of them strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toolcrib.discovery' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"toolcrib.discovery.{_HOMES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
