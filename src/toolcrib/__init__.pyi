from toolcrib.app import App as App
from toolcrib.errors import ToolcribError as ToolcribError
from toolcrib.gateway.gateway import Gateway as Gateway
from toolcrib.model import Caller as Caller
from toolcrib.model import Filters as Filters
from toolcrib.model import Hit as Hit
from toolcrib.model import ScorePart as ScorePart
from toolcrib.model import SearchReply as SearchReply
from toolcrib.model import SearchRequest as SearchRequest
from toolcrib.model import ServerStatus as ServerStatus
from toolcrib.model import Tool as Tool
from toolcrib.model import ToolResult as ToolResult
from toolcrib.model import Visibility as Visibility
from toolcrib.protocols import Authenticator as Authenticator
from toolcrib.protocols import Context as Context
from toolcrib.protocols import Policy as Policy
from toolcrib.protocols import ToolProvider as ToolProvider
from toolcrib.search.engine import search as search_tools
from toolcrib.search.index import Index as Index
from toolcrib.search.lexicon import Lexicon as Lexicon
from toolcrib.search.options import SearchOptions as SearchOptions
from toolcrib.search.semantic import Embedder as Embedder
from toolcrib.settings.loader import load as load_settings
from toolcrib.settings.options import Settings as Settings
from toolcrib.upstream.options import ServerOptions as ServerOptions

__version__: str
__all__ = [
    "App",
    "Authenticator",
    "Caller",
    "Context",
    "Embedder",
    "Filters",
    "Gateway",
    "Hit",
    "Index",
    "Lexicon",
    "Policy",
    "ScorePart",
    "SearchOptions",
    "SearchReply",
    "SearchRequest",
    "ServerOptions",
    "ServerStatus",
    "Settings",
    "Tool",
    "ToolProvider",
    "ToolResult",
    "ToolcribError",
    "Visibility",
    "__version__",
    "load_settings",
    "search_tools",
]
