"""toolcrib: one place that knows thousands of tools, finds the few that fit, and calls them.

>>> import toolcrib
>>> toolcrib.Tool(name="create_issue", namespace="github").id
'github:create_issue'
"""

from importlib import import_module
from typing import Any, Final

from toolcrib._version import VERSION

__version__ = VERSION

_HOMES: Final = {
    "App": "app:App",
    "Authenticator": "protocols:Authenticator",
    "Caller": "model:Caller",
    "Context": "protocols:Context",
    "Embedder": "search.semantic:Embedder",
    "Filters": "model:Filters",
    "Gateway": "gateway.gateway:Gateway",
    "Hit": "model:Hit",
    "Index": "search.index:Index",
    "Lexicon": "search.lexicon:Lexicon",
    "Policy": "protocols:Policy",
    "ScorePart": "model:ScorePart",
    "SearchOptions": "search.options:SearchOptions",
    "SearchReply": "model:SearchReply",
    "SearchRequest": "model:SearchRequest",
    "ServerOptions": "upstream.options:ServerOptions",
    "ServerStatus": "model:ServerStatus",
    "Settings": "settings.options:Settings",
    "Tool": "model:Tool",
    "ToolProvider": "protocols:ToolProvider",
    "ToolResult": "model:ToolResult",
    "ToolcribError": "errors:ToolcribError",
    "Visibility": "model:Visibility",
    "load_settings": "settings.loader:load",
    "search_tools": "search.engine:search",
}
"""Each public name and where it lives, for `__getattr__`; `__init__.pyi` tells type checkers the same."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - names of the table, all of them strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    found = globals()[name] = getattr(import_module(f"toolcrib.{module}"), attribute)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
