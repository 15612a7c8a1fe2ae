"""Tools, calls and results in the formats of the model providers, as plain JSON.

`definitions` writes any list of tools; the modules `openai`, `anthropic`, `gemini` and `mcp` read calls and write
results. Nothing here talks to a provider.
"""

from toolcrib.formats.definitions import FORMATS, Format, definitions, restored
from toolcrib.formats.messages import ToolCall
from toolcrib.formats.tool_list import Names, search_request

__all__ = ["FORMATS", "Format", "Names", "ToolCall", "definitions", "restored", "search_request"]
