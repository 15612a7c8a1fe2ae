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
    "Action": "model:Action",
    "AlreadyStarted": "errors:AlreadyStarted",
    "AmbiguousName": "errors:AmbiguousName",
    "App": "app:App",
    "ApprovalRequired": "errors:ApprovalRequired",
    "Array": "providers.fields:Array",
    "AuditEvent": "gateway.calls.audit:AuditEvent",
    "Authenticator": "protocols:Authenticator",
    "Backend": "protocols:Backend",
    "BackendConfig": "registry:BackendConfig",
    "BackendKind": "model:BackendKind",
    "BackendNotFound": "errors:BackendNotFound",
    "BackendSelector": "protocols:BackendSelector",
    "Boolean": "providers.fields:Boolean",
    "BreakerOptions": "gateway.calls.options:BreakerOptions",
    "ByScopes": "gateway.policy:ByScopes",
    "CacheOptions": "gateway.calls.options:CacheOptions",
    "Call": "protocols:Call",
    "CallOptions": "gateway.calls.options:CallOptions",
    "CallTimeout": "errors:CallTimeout",
    "Caller": "model:Caller",
    "CallerProviders": "server.middleware:CallerProviders",
    "Config": "registry:Config",
    "Context": "protocols:Context",
    "Decision": "model:Decision",
    "Embedder": "search.semantic:Embedder",
    "ExecutionFailed": "errors:ExecutionFailed",
    "Filters": "model:Filters",
    "ForCaller": "providers.wrap:ForCaller",
    "Gateway": "gateway.gateway:Gateway",
    "GatewayOptions": "gateway.options:GatewayOptions",
    "HandlerNotFound": "errors:HandlerNotFound",
    "Hit": "model:Hit",
    "HttpOptions": "server.options:HttpOptions",
    "Index": "search.index:Index",
    "Integer": "providers.fields:Integer",
    "InvalidArguments": "errors:InvalidArguments",
    "InvalidRequest": "errors:InvalidRequest",
    "InvalidTool": "errors:InvalidTool",
    "Lexicon": "search.lexicon:Lexicon",
    "LocalTools": "providers.local:LocalTools",
    "Many": "providers.many:Many",
    "NameCollision": "errors:NameCollision",
    "NotAuthenticated": "errors:NotAuthenticated",
    "NotStarted": "errors:NotStarted",
    "Number": "providers.fields:Number",
    "Object": "providers.fields:Object",
    "Policy": "protocols:Policy",
    "RateLimited": "errors:RateLimited",
    "RateOptions": "gateway.calls.options:RateOptions",
    "Registry": "registry:Registry",
    "RequestProviders": "server.middleware:RequestProviders",
    "RetryOptions": "gateway.calls.options:RetryOptions",
    "Rule": "gateway.policy:Rule",
    "ScorePart": "model:ScorePart",
    "ScriptFailed": "errors:ScriptFailed",
    "ScriptOptions": "gateway.options:ScriptOptions",
    "SearchOptions": "search.options:SearchOptions",
    "SearchReply": "model:SearchReply",
    "SearchRequest": "model:SearchRequest",
    "ServerInfo": "model:ServerInfo",
    "ServerOptions": "upstream.options:ServerOptions",
    "ServerStatus": "model:ServerStatus",
    "ServerUnavailable": "errors:ServerUnavailable",
    "Settings": "settings.options:Settings",
    "SettingsError": "errors:SettingsError",
    "StaticTokens": "server.auth:StaticTokens",
    "StoredScripts": "gateway.stored:StoredScripts",
    "String": "providers.fields:String",
    "SurfaceOptions": "surfaces.options:SurfaceOptions",
    "Token": "server.options:Token",
    "Tool": "model:Tool",
    "ToolBuilder": "providers.builder:ToolBuilder",
    "ToolDiscoveryService": "surfaces.discovery:ToolDiscoveryService",
    "ToolMetadata": "providers.definitions:ToolMetadata",
    "ToolNotFound": "errors:ToolNotFound",
    "ToolProcessor": "processor:ToolProcessor",
    "ToolProvider": "protocols:ToolProvider",
    "ToolRegistry": "registry:ToolRegistry",
    "ToolRequest": "providers.requests:ToolRequest",
    "ToolResult": "model:ToolResult",
    "ToolcribError": "errors:ToolcribError",
    "Visibility": "model:Visibility",
    "create_registry": "processor:create_registry",
    "get_tool_providers": "providers.ambient:get_tool_providers",
    "load_settings": "settings.loader:load",
    "new_tool": "providers.builder:new_tool",
    "search_tools": "search.engine:search",
    "show_all_from_request": "providers.ambient:show_all_from_request",
    "with_request_providers": "providers.ambient:with_request_providers",
    "with_show_all": "providers.ambient:with_show_all",
    "with_tool_providers": "providers.ambient:with_tool_providers",
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
