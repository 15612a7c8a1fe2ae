"""What a surface is."""

from collections.abc import Sequence
from typing import Protocol

from toolcrib.gateway.view import View
from toolcrib.model import Object, ServerStatus, Tool, ToolResult
from toolcrib.protocols import Context


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
