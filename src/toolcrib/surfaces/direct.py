"""The surface `direct`: every tool by its public name, no meta-tools."""

from collections.abc import Sequence

from toolcrib.gateway.view import View
from toolcrib.model import Object, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Context


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
