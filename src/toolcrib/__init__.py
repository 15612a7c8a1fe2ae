"""toolcrib: one place that knows thousands of tools, finds the few that fit, and calls them.

>>> import toolcrib
>>> toolcrib.Tool(name="create_issue", namespace="github").id
'github:create_issue'
"""

from importlib import import_module
from typing import Any, Final

from toolcrib._version import VERSION
from toolcrib.errors import missing_extra

__version__ = VERSION

_HOMES: Final = {
    "Action": "types:Action",
    "App": "app:App",
    "AuditEvent": "middleware.audit:AuditEvent",
    "Authenticator": "types:Authenticator",
    "ByScopes": "gateway.policy:ByScopes",
    "Caller": "types:Caller",
    "CallerProviders": "server.http.app:CallerProviders",
    "Context": "types:Context",
    "Decision": "types:Decision",
    "DiskIndex": "large.disk:DiskIndex",
    "Embedder": "search.embedder:Embedder",
    "ExecutionFailed": "errors:ExecutionFailed",
    "Filters": "types:Filters",
    "ForCaller": "providers.wrappers:ForCaller",
    "Gateway": "gateway.gateway:Gateway",
    "Hit": "types:Hit",
    "Index": "search.index:Index",
    "InvalidArguments": "errors:InvalidArguments",
    "Lexicon": "search.lexicon:Lexicon",
    "LocalTools": "providers.functions:LocalTools",
    "Many": "providers.combined:Many",
    "OAuthResource": "server.auth.oauth:OAuthResource",
    "Policy": "types:Policy",
    "Provider": "providers.base:Provider",
    "RequestProviders": "server.http.app:RequestProviders",
    "Rule": "gateway.policy:Rule",
    "SearchReply": "types:SearchReply",
    "SearchRequest": "types:SearchRequest",
    "ServerStatus": "types:ServerStatus",
    "Settings": "settings.options:Settings",
    "SettingsError": "errors:SettingsError",
    "StaticTokens": "server.auth.authentication:StaticTokens",
    "StoredScripts": "scripting.stored:StoredScripts",
    "SyncApp": "sync:SyncApp",
    "Tool": "types:Tool",
    "ToolBuilder": "providers.builder:ToolBuilder",
    "ToolDiscoveryService": "surfaces.disclosure:ToolDiscoveryService",
    "ToolMetadata": "providers.definitions:ToolMetadata",
    "ToolNotFound": "errors:ToolNotFound",
    "ToolProvider": "types:ToolProvider",
    "ToolRequest": "providers.builder:ToolRequest",
    "ToolResult": "types:ToolResult",
    "ToolcribError": "errors:ToolcribError",
    "Visibility": "types:Visibility",
    "get_tool_providers": "providers.request_scope:get_tool_providers",
    "load_index": "state.index_file:load_index",
    "load_settings": "settings.loader:load_settings",
    "new_tool": "providers.builder:new_tool",
    "save_index": "state.index_file:save_index",
    "search_tools": "search.engine:search",
    "show_all_from_request": "providers.request_scope:show_all_from_request",
    "with_request_providers": "providers.request_scope:with_request_providers",
    "with_show_all": "providers.request_scope:with_show_all",
    "with_tool_providers": "providers.request_scope:with_tool_providers",
}
"""Each public name and its module, for `__getattr__`. `__init__.pyi` has the same names for type checkers."""

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 - names of the table, all of them strings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'toolcrib' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    try:
        found = globals()[name] = getattr(import_module(f"toolcrib.{module}"), attribute)
    except ModuleNotFoundError as error:
        raise missing_extra(error.name, "toolcrib-slim[server]", needed_by=f"toolcrib.{name}") from error
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
