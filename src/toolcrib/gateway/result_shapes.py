"""The shapes of tools' results: types and field names, never values, kept separately for each caller."""

from typing import Final

from toolcrib.errors import ExecutionFailed
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.providers.content import script_value
from toolcrib.schema.shape import shape_of
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import Context, Tool, ToolResult

_MAX_SHAPES: Final = 2_000
_MAX_TEXT_CHARS: Final = 256 * 1024
"""A longer text is not read as JSON."""
_CODEC: Final[StateCodec[str]] = StateCodec(str, str)


class ResultShapes:
    """The shape of each caller's last result of each tool, in the gateway's state store."""

    def __init__(self, state: StateStore, *, max_shapes: int = _MAX_SHAPES) -> None:
        self.enabled = False
        """Whether results are looked at; set by a surface that shows shapes."""
        self._shapes = state.table("result shapes", _CODEC, max_entries=max_shapes, batched=True)

    async def record(self, ctx: Context, tool: Tool, result: ToolResult) -> None:
        """Keep the shape of a successful result."""
        if not self.enabled or result.is_error or result.kind != "complete":
            return
        size = sum(len(str(block.get("text", ""))) for block in result.content)
        if result.structured is None and size > _MAX_TEXT_CHARS:
            return
        try:
            shape = shape_of(script_value(result))
        except ExecutionFailed:
            return
        await self._shapes.set(_shape_key(ctx, tool), shape)

    async def get(self, ctx: Context, tool: Tool) -> str:
        """Return the shape of the caller's last result of the tool; empty if there is none."""
        return await self._shapes.get(_shape_key(ctx, tool)) or ""


def _shape_key(ctx: Context, tool: Tool) -> str:
    return canonical_json([*ctx.caller.key, *tool.key]) or ""
