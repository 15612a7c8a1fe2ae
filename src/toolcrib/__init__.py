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
    "Action": "types:Action",
    "AlreadyStarted": "errors:AlreadyStarted",
    "AmbiguousName": "errors:AmbiguousName",
    "App": "app:App",
    "ApprovalRequired": "errors:ApprovalRequired",
    "Array": "fields:Array",
    "AuditEvent": "middleware.audit:AuditEvent",
    "Authenticator": "types:Authenticator",
    "Backend": "types:Backend",
    "BackendConfig": "registry.registry:BackendConfig",
    "BackendKind": "types:BackendKind",
    "BackendNotFound": "errors:BackendNotFound",
    "BackendSelector": "types:BackendSelector",
    "Boolean": "fields:Boolean",
    "BreakerOptions": "middleware.options:BreakerOptions",
    "ByScopes": "gateway.policy:ByScopes",
    "CacheOptions": "middleware.options:CacheOptions",
    "Call": "types:Call",
    "CallOptions": "middleware.options:CallOptions",
    "CallTimeout": "errors:CallTimeout",
    "Caller": "types:Caller",
    "CallerProviders": "server.asgi:CallerProviders",
    "Config": "registry.registry:Config",
    "Context": "types:Context",
    "Decision": "types:Decision",
    "Embedder": "search.vectors:Embedder",
    "ExecutionFailed": "errors:ExecutionFailed",
    "Filters": "types:Filters",
    "ForCaller": "providers.wrappers:ForCaller",
    "Gateway": "gateway.gateway:Gateway",
    "GatewayOptions": "gateway.options:GatewayOptions",
    "HandlerNotFound": "errors:HandlerNotFound",
    "Hit": "types:Hit",
    "HttpOptions": "server.options:HttpOptions",
    "Index": "search.index:Index",
    "Integer": "fields:Integer",
    "InvalidArguments": "errors:InvalidArguments",
    "InvalidRequest": "errors:InvalidRequest",
    "InvalidTool": "errors:InvalidTool",
    "Lexicon": "search.lexicon:Lexicon",
    "LocalTools": "providers.functions:LocalTools",
    "Many": "providers.combined:Many",
    "NameCollision": "errors:NameCollision",
    "NotAuthenticated": "errors:NotAuthenticated",
    "NotStarted": "errors:NotStarted",
    "Number": "fields:Number",
    "Object": "fields:Object",
    "Policy": "types:Policy",
    "RateLimited": "errors:RateLimited",
    "RateOptions": "middleware.options:RateOptions",
    "Registry": "registry.registry:Registry",
    "RequestProviders": "server.asgi:RequestProviders",
    "RetryOptions": "middleware.options:RetryOptions",
    "Rule": "gateway.policy:Rule",
    "ScorePart": "types:ScorePart",
    "ScriptFailed": "errors:ScriptFailed",
    "ScriptOptions": "gateway.options:ScriptOptions",
    "SearchOptions": "search.options:SearchOptions",
    "SearchReply": "types:SearchReply",
    "SearchRequest": "types:SearchRequest",
    "ServerInfo": "types:ServerInfo",
    "ServerOptions": "upstream.options:ServerOptions",
    "ServerStatus": "types:ServerStatus",
    "ServerUnavailable": "errors:ServerUnavailable",
    "Settings": "settings.options:Settings",
    "SettingsError": "errors:SettingsError",
    "StaticTokens": "server.auth:StaticTokens",
    "StoredScripts": "scripting.stored:StoredScripts",
    "String": "fields:String",
    "SurfaceOptions": "surfaces.options:SurfaceOptions",
    "Token": "server.options:Token",
    "Tool": "types:Tool",
    "ToolBuilder": "providers.builder:ToolBuilder",
    "ToolDiscoveryService": "surfaces.tool_discovery:ToolDiscoveryService",
    "ToolMetadata": "providers.definitions:ToolMetadata",
    "ToolNotFound": "errors:ToolNotFound",
    "ToolProcessor": "registry.processor:ToolProcessor",
    "ToolProvider": "types:ToolProvider",
    "ToolRegistry": "registry.tool_registry:ToolRegistry",
    "ToolRequest": "providers.builder:ToolRequest",
    "ToolResult": "types:ToolResult",
    "ToolcribError": "errors:ToolcribError",
    "Visibility": "types:Visibility",
    "create_registry": "registry.processor:create_registry",
    "get_tool_providers": "providers.request_scope:get_tool_providers",
    "load_settings": "settings.loader:load_settings",
    "new_tool": "providers.builder:new_tool",
    "search_tools": "search.engine:search",
    "show_all_from_request": "providers.request_scope:show_all_from_request",
    "with_request_providers": "providers.request_scope:with_request_providers",
    "with_show_all": "providers.request_scope:with_show_all",
    "with_tool_providers": "providers.request_scope:with_tool_providers",
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
