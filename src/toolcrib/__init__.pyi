from toolcrib.app import App as App
from toolcrib.errors import AlreadyStarted as AlreadyStarted
from toolcrib.errors import AmbiguousName as AmbiguousName
from toolcrib.errors import ApprovalRequired as ApprovalRequired
from toolcrib.errors import BackendNotFound as BackendNotFound
from toolcrib.errors import CallTimeout as CallTimeout
from toolcrib.errors import ExecutionFailed as ExecutionFailed
from toolcrib.errors import HandlerNotFound as HandlerNotFound
from toolcrib.errors import InvalidArguments as InvalidArguments
from toolcrib.errors import InvalidRequest as InvalidRequest
from toolcrib.errors import InvalidTool as InvalidTool
from toolcrib.errors import NameCollision as NameCollision
from toolcrib.errors import NotAuthenticated as NotAuthenticated
from toolcrib.errors import NotStarted as NotStarted
from toolcrib.errors import RateLimited as RateLimited
from toolcrib.errors import ScriptFailed as ScriptFailed
from toolcrib.errors import ServerUnavailable as ServerUnavailable
from toolcrib.errors import SettingsError as SettingsError
from toolcrib.errors import ToolcribError as ToolcribError
from toolcrib.errors import ToolNotFound as ToolNotFound
from toolcrib.fields import Array as Array
from toolcrib.fields import Boolean as Boolean
from toolcrib.fields import Integer as Integer
from toolcrib.fields import Number as Number
from toolcrib.fields import Object as Object
from toolcrib.fields import String as String
from toolcrib.gateway.gateway import Gateway as Gateway
from toolcrib.gateway.options import GatewayOptions as GatewayOptions
from toolcrib.gateway.options import ScriptOptions as ScriptOptions
from toolcrib.gateway.policy import ByScopes as ByScopes
from toolcrib.gateway.policy import Rule as Rule
from toolcrib.middleware.audit import AuditEvent as AuditEvent
from toolcrib.middleware.options import BreakerOptions as BreakerOptions
from toolcrib.middleware.options import CacheOptions as CacheOptions
from toolcrib.middleware.options import CallOptions as CallOptions
from toolcrib.middleware.options import RateOptions as RateOptions
from toolcrib.middleware.options import RetryOptions as RetryOptions
from toolcrib.providers.builder import ToolBuilder as ToolBuilder
from toolcrib.providers.builder import ToolRequest as ToolRequest
from toolcrib.providers.builder import new_tool as new_tool
from toolcrib.providers.combined import Many as Many
from toolcrib.providers.definitions import ToolMetadata as ToolMetadata
from toolcrib.providers.functions import LocalTools as LocalTools
from toolcrib.providers.request_scope import get_tool_providers as get_tool_providers
from toolcrib.providers.request_scope import show_all_from_request as show_all_from_request
from toolcrib.providers.request_scope import with_request_providers as with_request_providers
from toolcrib.providers.request_scope import with_show_all as with_show_all
from toolcrib.providers.request_scope import with_tool_providers as with_tool_providers
from toolcrib.providers.wrappers import ForCaller as ForCaller
from toolcrib.registry import BackendConfig as BackendConfig
from toolcrib.registry import Config as Config
from toolcrib.registry import Registry as Registry
from toolcrib.registry import ToolRegistry as ToolRegistry
from toolcrib.registry.processor import ToolProcessor as ToolProcessor
from toolcrib.registry.processor import create_registry as create_registry
from toolcrib.scripting.stored import StoredScripts as StoredScripts
from toolcrib.search.engine import search as search_tools
from toolcrib.search.index import Index as Index
from toolcrib.search.lexicon import Lexicon as Lexicon
from toolcrib.search.options import SearchOptions as SearchOptions
from toolcrib.search.vectors import Embedder as Embedder
from toolcrib.server.asgi import CallerProviders as CallerProviders
from toolcrib.server.asgi import RequestProviders as RequestProviders
from toolcrib.server.auth import StaticTokens as StaticTokens
from toolcrib.server.options import HttpOptions as HttpOptions
from toolcrib.server.options import Token as Token
from toolcrib.settings.loader import load_settings as load_settings
from toolcrib.settings.options import Settings as Settings
from toolcrib.surfaces.options import SurfaceOptions as SurfaceOptions
from toolcrib.surfaces.tool_discovery import ToolDiscoveryService as ToolDiscoveryService
from toolcrib.types import Action as Action
from toolcrib.types import Authenticator as Authenticator
from toolcrib.types import Backend as Backend
from toolcrib.types import BackendKind as BackendKind
from toolcrib.types import BackendSelector as BackendSelector
from toolcrib.types import Call as Call
from toolcrib.types import Caller as Caller
from toolcrib.types import Context as Context
from toolcrib.types import Decision as Decision
from toolcrib.types import Filters as Filters
from toolcrib.types import Hit as Hit
from toolcrib.types import Policy as Policy
from toolcrib.types import ScorePart as ScorePart
from toolcrib.types import SearchReply as SearchReply
from toolcrib.types import SearchRequest as SearchRequest
from toolcrib.types import ServerInfo as ServerInfo
from toolcrib.types import ServerStatus as ServerStatus
from toolcrib.types import Tool as Tool
from toolcrib.types import ToolProvider as ToolProvider
from toolcrib.types import ToolResult as ToolResult
from toolcrib.types import Visibility as Visibility
from toolcrib.upstream.options import ServerOptions as ServerOptions

__version__: str
__all__ = [
    "Action",
    "AlreadyStarted",
    "AmbiguousName",
    "App",
    "ApprovalRequired",
    "Array",
    "AuditEvent",
    "Authenticator",
    "Backend",
    "BackendConfig",
    "BackendKind",
    "BackendNotFound",
    "BackendSelector",
    "Boolean",
    "BreakerOptions",
    "ByScopes",
    "CacheOptions",
    "Call",
    "CallOptions",
    "CallTimeout",
    "Caller",
    "CallerProviders",
    "Config",
    "Context",
    "Decision",
    "Embedder",
    "ExecutionFailed",
    "Filters",
    "ForCaller",
    "Gateway",
    "GatewayOptions",
    "HandlerNotFound",
    "Hit",
    "HttpOptions",
    "Index",
    "Integer",
    "InvalidArguments",
    "InvalidRequest",
    "InvalidTool",
    "Lexicon",
    "LocalTools",
    "Many",
    "NameCollision",
    "NotAuthenticated",
    "NotStarted",
    "Number",
    "Object",
    "Policy",
    "RateLimited",
    "RateOptions",
    "Registry",
    "RequestProviders",
    "RetryOptions",
    "Rule",
    "ScorePart",
    "ScriptFailed",
    "ScriptOptions",
    "SearchOptions",
    "SearchReply",
    "SearchRequest",
    "ServerInfo",
    "ServerOptions",
    "ServerStatus",
    "ServerUnavailable",
    "Settings",
    "SettingsError",
    "StaticTokens",
    "StoredScripts",
    "String",
    "SurfaceOptions",
    "Token",
    "Tool",
    "ToolBuilder",
    "ToolDiscoveryService",
    "ToolMetadata",
    "ToolNotFound",
    "ToolProcessor",
    "ToolProvider",
    "ToolRegistry",
    "ToolRequest",
    "ToolResult",
    "ToolcribError",
    "Visibility",
    "__version__",
    "create_registry",
    "get_tool_providers",
    "load_settings",
    "new_tool",
    "search_tools",
    "show_all_from_request",
    "with_request_providers",
    "with_show_all",
    "with_tool_providers",
]
