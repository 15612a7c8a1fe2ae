"""Two registries with the interfaces of older systems, over one `App`.

`Registry` gathers local functions, providers and remote MCP servers under ids, and executes them. `ToolRegistry` keeps
tools out of a server's list until they are searched for; it can be attached to a server that is there already, and
is itself a provider.
"""

from toolcrib.registry.registry import BackendConfig, Config, Registry
from toolcrib.registry.tool_registry import ToolRegistry
from toolcrib.types import SearchRequest

__all__ = ["BackendConfig", "Config", "Registry", "SearchRequest", "ToolRegistry"]
