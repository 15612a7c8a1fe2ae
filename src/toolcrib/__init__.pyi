from toolcrib.app import App as App
from toolcrib.errors import ExecutionFailed as ExecutionFailed
from toolcrib.errors import InvalidArguments as InvalidArguments
from toolcrib.errors import SettingsError as SettingsError
from toolcrib.errors import ToolcribError as ToolcribError
from toolcrib.errors import ToolNotFound as ToolNotFound
from toolcrib.gateway.gateway import Gateway as Gateway
from toolcrib.gateway.policy import ByScopes as ByScopes
from toolcrib.gateway.policy import Rule as Rule
from toolcrib.large.disk import DiskIndex as DiskIndex
from toolcrib.middleware.audit import AuditEvent as AuditEvent
from toolcrib.providers.base import Provider as Provider
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
from toolcrib.scripting.stored import StoredScripts as StoredScripts
from toolcrib.search.embedder import Embedder as Embedder
from toolcrib.search.engine import search as search_tools
from toolcrib.search.index import Index as Index
from toolcrib.search.lexicon import Lexicon as Lexicon
from toolcrib.server.auth.authentication import StaticTokens as StaticTokens
from toolcrib.server.auth.oauth import OAuthResource as OAuthResource
from toolcrib.server.http.app import CallerProviders as CallerProviders
from toolcrib.server.http.app import RequestProviders as RequestProviders
from toolcrib.settings.loader import load_settings as load_settings
from toolcrib.settings.options import Settings as Settings
from toolcrib.state.index_file import load_index as load_index
from toolcrib.state.index_file import save_index as save_index
from toolcrib.surfaces.disclosure import ToolDiscoveryService as ToolDiscoveryService
from toolcrib.sync import SyncApp as SyncApp
from toolcrib.types import Action as Action
from toolcrib.types import Authenticator as Authenticator
from toolcrib.types import Caller as Caller
from toolcrib.types import Context as Context
from toolcrib.types import Decision as Decision
from toolcrib.types import Filters as Filters
from toolcrib.types import Hit as Hit
from toolcrib.types import Policy as Policy
from toolcrib.types import SearchReply as SearchReply
from toolcrib.types import SearchRequest as SearchRequest
from toolcrib.types import ServerStatus as ServerStatus
from toolcrib.types import Tool as Tool
from toolcrib.types import ToolProvider as ToolProvider
from toolcrib.types import ToolResult as ToolResult
from toolcrib.types import Visibility as Visibility

__version__: str
__all__ = [
    "Action",
    "App",
    "AuditEvent",
    "Authenticator",
    "ByScopes",
    "Caller",
    "CallerProviders",
    "Context",
    "Decision",
    "DiskIndex",
    "Embedder",
    "ExecutionFailed",
    "Filters",
    "ForCaller",
    "Gateway",
    "Hit",
    "Index",
    "InvalidArguments",
    "Lexicon",
    "LocalTools",
    "Many",
    "OAuthResource",
    "Policy",
    "Provider",
    "RequestProviders",
    "Rule",
    "SearchReply",
    "SearchRequest",
    "ServerStatus",
    "Settings",
    "SettingsError",
    "StaticTokens",
    "StoredScripts",
    "SyncApp",
    "Tool",
    "ToolBuilder",
    "ToolDiscoveryService",
    "ToolMetadata",
    "ToolNotFound",
    "ToolProvider",
    "ToolRequest",
    "ToolResult",
    "ToolcribError",
    "Visibility",
    "__version__",
    "get_tool_providers",
    "load_index",
    "load_settings",
    "new_tool",
    "save_index",
    "search_tools",
    "show_all_from_request",
    "with_request_providers",
    "with_show_all",
    "with_tool_providers",
]
