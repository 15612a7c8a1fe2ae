"""The `Surface` protocol, results that surfaces build themselves, and the surface `direct`."""

import json
from collections.abc import Sequence
from typing import Protocol

from toolcrib.errors import ToolcribError
from toolcrib.gateway.view import View
from toolcrib.types import JSON, Context, Object, ServerStatus, Tool, ToolResult


class Surface(Protocol):
    """A named set of meta-tools over the gateway."""

    @property
    def name(self) -> str:
        """What settings call it."""

    @property
    def names(self) -> tuple[str, ...]:
        """What its tools are called, listed or not."""

    def meta_tools(self, view: View, statuses: Sequence[ServerStatus], *, searched: bool) -> tuple[Tool, ...]:
        """Its tools, as this caller should read them; none where they would be of no use to him.

        `searched` says whether a search may find what is not in the view.
        """

    async def call(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:
        """Run one of them; None when the name is not one of its tools."""


def json_text(value: JSON) -> str:
    """Compact JSON, readable in any script."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text_result(text: str, *, structured: JSON = None, is_error: bool = False) -> ToolResult:
    """A result that is one text block, with structured content beside it where given."""
    return ToolResult(content=({"type": "text", "text": text},), structured=structured, is_error=is_error)


def error_result(error: ToolcribError) -> ToolResult:
    """An error in band: text for the model, the same as data for programs."""
    return text_result(error_text(error), structured={"error": error.payload()}, is_error=True)


def error_text(error: ToolcribError) -> str:
    """The error in words, with the close names that its hint does not hold already."""
    text = str(error)
    close = [name for name in error.suggestions if name not in text]
    return f"{text} Did you mean: {', '.join(close)}?" if close else text


class DirectSurface:
    """All of the caller's tools, listed natively; the front lists and calls them."""

    name = "direct"
    names: tuple[str, ...] = ()

    def meta_tools(self, view: View, statuses: Sequence[ServerStatus], *, searched: bool) -> tuple[Tool, ...]:  # noqa: ARG002 - a Surface
        """None."""
        return ()

    async def call(self, ctx: Context, name: str, arguments: Object) -> ToolResult | None:  # noqa: ARG002 - a Surface
        """Nothing of its own to call."""
        return None
