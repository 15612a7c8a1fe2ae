"""What every format says of a tool alike: its description, and the arguments of a search for tools."""

from typing import Any, Final

from toolcrib.formats.schemas import Adapted
from toolcrib.model import Tool

SEARCH_NAME: Final = "search_tools"
"""What the tool that searches for tools is called, where its name is free to choose."""

SEARCH_DESCRIPTION: Final = (
    "Find tools by what they do. Not all tools are listed: search before you say that something cannot be done. "
    "The tools that are found can be called from then on."
)

_MAX_LIMIT: Final = 20
"""Tools one search may load."""


def described(tool: Tool, adapted: Adapted) -> str:
    """The description for a model: the tool's own, or its title, and what its schema no longer says."""
    words = tool.description or tool.title or tool.name
    return f"{words}\n{adapted.hint}" if adapted.hint else words


def search_arguments() -> dict[str, Any]:
    """The schema of a search: what is wanted, in words, and how many tools at most."""
    return {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What you want to do, in a few words, or a tool's name."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MAX_LIMIT,
                "description": "How many tools at most. Default 5.",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }
