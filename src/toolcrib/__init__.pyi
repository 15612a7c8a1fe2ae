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
from toolcrib.gateway.calls.audit import AuditEvent as AuditEvent
from toolcrib.gateway.calls.options import BreakerOptions as BreakerOptions
from toolcrib.gateway.calls.options import CacheOptions as CacheOptions
from toolcrib.gateway.calls.options import CallOptions as CallOptions
from toolcrib.gateway.calls.options import RateOptions as RateOptions
from toolcrib.gateway.calls.options import RetryOptions as RetryOptions
from toolcrib.gateway.gateway import Gateway as Gateway
from toolcrib.gateway.options import GatewayOptions as GatewayOptions
from toolcrib.gateway.options import ScriptOptions as ScriptOptions
from toolcrib.gateway.policy import ByScopes as ByScopes
from toolcrib.gateway.policy import Rule as Rule
from toolcrib.gateway.stored import StoredScripts as StoredScripts
from toolcrib.model import Action as Action
from toolcrib.model import BackendKind as BackendKind
from toolcrib.model import Caller as Caller
from toolcrib.model import Decision as Decision
from toolcrib.model import Filters as Filters
from toolcrib.model import Hit as Hit
from toolcrib.model import ScorePart as ScorePart
from toolcrib.model import SearchReply as SearchReply
from toolcrib.model import SearchRequest as SearchRequest
from toolcrib.model import ServerInfo as ServerInfo
from toolcrib.model import ServerStatus as ServerStatus
from toolcrib.model import Tool as Tool
from toolcrib.model import ToolResult as ToolResult
from toolcrib.model import Visibility as Visibility
from toolcrib.processor import ToolProcessor as ToolProcessor
from toolcrib.processor import create_registry as create_registry
from toolcrib.protocols import Authenticator as Authenticator
from toolcrib.protocols import Backend as Backend
from toolcrib.protocols import BackendSelector as BackendSelector
from toolcrib.protocols import Call as Call
from toolcrib.protocols import Context as Context
from toolcrib.protocols import Policy as Policy
from toolcrib.protocols import ToolProvider as ToolProvider
from toolcrib.providers.ambient import get_tool_providers as get_tool_providers
from toolcrib.providers.ambient import show_all_from_request as show_all_from_request
from toolcrib.providers.ambient import with_request_providers as with_request_providers
from toolcrib.providers.ambient import with_show_all as with_show_all
from toolcrib.providers.ambient import with_tool_providers as with_tool_providers
from toolcrib.providers.builder import ToolBuilder as ToolBuilder
from toolcrib.providers.builder import new_tool as new_tool
from toolcrib.providers.definitions import ToolMetadata as ToolMetadata
from toolcrib.providers.fields import Array as Array
from toolcrib.providers.fields import Boolean as Boolean
from toolcrib.providers.fields import Integer as Integer
from toolcrib.providers.fields import Number as Number
from toolcrib.providers.fields import Object as Object
from toolcrib.providers.fields import String as String
from toolcrib.providers.local import LocalTools as LocalTools
from toolcrib.providers.many import Many as Many
from toolcrib.providers.requests import ToolRequest as ToolRequest
from toolcrib.providers.wrap import ForCaller as ForCaller
from toolcrib.registry import BackendConfig as BackendConfig
from toolcrib.registry import Config as Config
from toolcrib.registry import Registry as Registry
from toolcrib.registry import ToolRegistry as ToolRegistry
from toolcrib.search.engine import search as search_tools
from toolcrib.search.index import Index as Index
from toolcrib.search.lexicon import Lexicon as Lexicon
from toolcrib.search.options import SearchOptions as SearchOptions
from toolcrib.search.semantic import Embedder as Embedder
from toolcrib.server.auth import StaticTokens as StaticTokens
from toolcrib.server.middleware import CallerProviders as CallerProviders
from toolcrib.server.middleware import RequestProviders as RequestProviders
from toolcrib.server.options import HttpOptions as HttpOptions
from toolcrib.server.options import Token as Token
from toolcrib.settings.loader import load as load_settings
from toolcrib.settings.options import Settings as Settings
from toolcrib.surfaces.discovery import ToolDiscoveryService as ToolDiscoveryService
from toolcrib.surfaces.options import SurfaceOptions as SurfaceOptions
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
