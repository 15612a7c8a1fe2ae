from toolcrib.discovery.convenience import find_tool_by_alias, find_tool_exact, search_tools
from toolcrib.discovery.desk import DeskOptions
from toolcrib.discovery.engine import ToolSearchEngine
from toolcrib.discovery.guards import Guard, GuardOptions
from toolcrib.discovery.metatools import MetaTools, ToolPort
from toolcrib.discovery.provider import BaseDynamicToolProvider
from toolcrib.discovery.reading import SearchableTool
from toolcrib.discovery.results import SearchResult
from toolcrib.discovery.session import Session, SessionStats
from toolcrib.discovery.texts import expand_with_synonyms, extract_keywords, normalize_tool_name, tokenize

__all__ = [
    "BaseDynamicToolProvider",
    "DeskOptions",
    "Guard",
    "GuardOptions",
    "MetaTools",
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
