"""The public interfaces of two older systems, over one `App`.

`Registry` gathers local functions, providers and remote MCP servers under ids, and executes them; `ToolProcessor`
executes a model's tool calls over it. `ToolRegistry` keeps tools out of a server's list until they are searched for;
it can be attached to an existing server, and is itself a provider.
"""

from toolcrib.errors import missing_extra
from toolcrib.providers.base import Backend, BackendSelector
from toolcrib.types import BackendKind, Call, SearchRequest

try:
    from toolcrib.registry.processor import ToolProcessor, create_registry
    from toolcrib.registry.registry import BackendConfig, Config, Registry, ToolRegistry
except ModuleNotFoundError as error:
    raise missing_extra(error.name, "toolcrib-slim[server]", needed_by="toolcrib.registry") from error

__all__ = [
    "Backend",
    "BackendConfig",
    "BackendKind",
    "BackendSelector",
    "Call",
    "Config",
    "Registry",
    "SearchRequest",
    "ToolProcessor",
    "ToolRegistry",
    "create_registry",
]
