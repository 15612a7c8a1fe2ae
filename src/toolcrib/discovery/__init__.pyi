from toolcrib.discovery.engine import (
    PastRequests,
    ToolSearchEngine,
    expand_with_synonyms,
    extract_keywords,
    find_tool_by_alias,
    find_tool_exact,
    normalize_tool_name,
    search_tools,
    tokenize,
)
from toolcrib.discovery.guards import Guard, GuardOptions
from toolcrib.discovery.host_tools import MetaTools, ToolPort
from toolcrib.discovery.provider import BaseDynamicToolProvider, HostToolOptions
from toolcrib.discovery.results import SearchResult
from toolcrib.discovery.session import Session, SessionStats
from toolcrib.discovery.tool_reader import SearchableTool

__all__ = [
    "BaseDynamicToolProvider",
    "Guard",
    "GuardOptions",
    "HostToolOptions",
    "MetaTools",
    "PastRequests",
    "SearchResult",
    "SearchableTool",
    "Session",
    "SessionStats",
    "ToolPort",
    "ToolSearchEngine",
    "expand_with_synonyms",
    "extract_keywords",
    "find_tool_by_alias",
    "find_tool_exact",
    "normalize_tool_name",
    "search_tools",
    "tokenize",
]
