"""The `Surface` protocol, and the tools and results that surfaces build themselves."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from toolcrib.errors import ToolcribError
from toolcrib.gateway.view import View
from toolcrib.types import JSON, Context, Object, ServerStatus, Tool, ToolResult, Visibility

MetaToolHandler = Callable[[Context, Object], Awaitable[ToolResult]]
"""Runs a meta-tool. Raises `ToolcribError` for failures to show to the model."""

SEARCH_INTRODUCTION: Final = (
    "This server provides many tools that it does not list. Search for what you need, then call what you found."
)
READ_ONLY_HINTS: Final[Object] = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
SIDE_EFFECT_HINTS: Final[Object] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}


class Surface(Protocol):
    """A named set of meta-tools over the gateway."""

    @property
    def name(self) -> str:
        """The name in settings."""

    @property
    def introduction(self) -> str:
        """The part of the server's instructions that explains the meta-tools; empty if there are none."""

    @property
    def lists_all(self) -> bool:
        """Whether it lists every tool of the caller by name."""

    @property
    def handlers(self) -> Mapping[str, MetaToolHandler]:
        """Its meta-tools by name, listed or not."""

    def meta_tools(self, view: View, statuses: Sequence[ServerStatus], *, searched: bool) -> tuple[Tool, ...]:
        """The meta-tools to list for this caller; none where they would be of no use.

        `searched` says whether a search may find tools outside the view.
        """


def meta_tool(name: str, title: str, description: str, schema: Object, hints: Object) -> Tool:
    """The definition of a meta-tool."""
    return Tool(
        name=name,
        title=title,
        description=description,
        input_schema=schema,
        annotations={"title": title, **hints},
        visibility=Visibility.NATIVE,
    )


def json_text(value: JSON) -> str:
    """Compact JSON, without escapes for non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_result(text: str, *, structured: JSON = None, is_error: bool = False) -> ToolResult:
    """A result with one text block, and structured content where given."""
    return ToolResult(content=({"type": "text", "text": text},), structured=structured, is_error=is_error)


def error_result(error: ToolcribError) -> ToolResult:
    """An error as a tool result: text for the model, and the same as data for programs."""
    return text_result(error_text(error), structured={"error": error.payload()}, is_error=True)


def error_text(error: ToolcribError) -> str:
    """The error's message and hint, and those suggestions that they do not mention already."""
    text = str(error)
    more = [name for name in error.suggestions if name not in text]
    return f"{text} Did you mean: {', '.join(more)}?" if more else text
