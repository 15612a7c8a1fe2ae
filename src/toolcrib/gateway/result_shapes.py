"""The shapes of tools' results: types and field names, never values, kept separately for each caller.

Field names are kept only for objects with few fields: an object with many is a table whose keys are data.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from toolcrib.errors import ExecutionFailed
from toolcrib.middleware.fingerprint import canonical_json
from toolcrib.providers.content import script_value
from toolcrib.state.base import StateCodec, StateStore
from toolcrib.types import JSON, Context, Tool, ToolResult

_MAX_SHAPES: Final = 2_000
_MAX_SHAPE_CHARS: Final = 600
_MAX_FIELDS: Final = 25
"""An object with more fields is a table."""

_SAMPLED_ITEMS: Final = 5
_MAX_DEPTH: Final = 5
_MAX_TEXT_CHARS: Final = 256 * 1024
"""A longer text is not read as JSON."""

_FIELD_NAME: Final = re.compile(r"[^\W\d][\w.-]{0,39}")
_CODEC: Final[StateCodec[str]] = StateCodec(str, str)


class ResultShapes:
    """The shape of each caller's last result of each tool, in the gateway's state store."""

    def __init__(self, state: StateStore, *, max_shapes: int = _MAX_SHAPES) -> None:
        self.enabled = False
        """Whether results are looked at; set by a surface that shows shapes."""
        self._shapes = state.table("result shapes", _CODEC, max_entries=max_shapes)

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
    return canonical_json([ctx.caller.tenant, ctx.caller.id, *tool.key]) or ""


def shape_of(value: JSON) -> str:
    """Write the types of a value on one line of at most 600 characters.

    >>> shape_of({"users": [{"id": 1, "name": "Ann"}, {"id": 2}], "next": None})
    '{ users: { id: integer, name?: string }[], next: null }'
    """
    text = _shape(value, _MAX_DEPTH)
    return text if len(text) <= _MAX_SHAPE_CHARS else f"{text[: _MAX_SHAPE_CHARS - 1]}…"


def _shape(value: JSON, depth: int) -> str:
    if isinstance(value, dict):
        return _object_shape([value], depth)
    if isinstance(value, list):
        return _array(value, depth)
    return _scalar(value)


def _scalar(value: JSON) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "integer" if isinstance(value, int) else "number" if isinstance(value, float) else "string"


def _array(items: list[Any], depth: int) -> str:
    if not items:
        return "[]"
    of = _union(items[:_SAMPLED_ITEMS], depth - 1)
    return f"({of})[]" if " | " in of and not of.startswith("{") else f"{of}[]"


def _union(values: list[Any], depth: int) -> str:
    """Merge the shapes of several values for the same place."""
    objects = [value for value in values if isinstance(value, dict)]
    others = dict.fromkeys(_shape(value, depth) for value in values if not isinstance(value, dict))
    return " | ".join([*([_object_shape(objects, depth)] if objects else []), *others])


def _object_shape(values: list[dict[str, Any]], depth: int) -> str:
    """Merge objects of one kind; a `?` marks a field that some of them lack."""
    names = list(dict.fromkeys(name for value in values for name in value))
    if not names:
        return "{}"
    if depth <= 0:
        return "{ … }"
    if len(names) > _MAX_FIELDS or not _are_fields(names):
        first = [item for value in values for item in list(value.values())[:_SAMPLED_ITEMS]]
        return f"{{ [key]: {_union(first[:_SAMPLED_ITEMS], depth - 1)} }}"
    return f"{{ {', '.join(_field(name, values, depth) for name in names)} }}"


def _field(name: str, values: list[dict[str, Any]], depth: int) -> str:
    found = [value[name] for value in values if name in value]
    return f"{name}{'' if len(found) == len(values) else '?'}: {_union(found, depth - 1)}"


def _are_fields(names: Iterable[str]) -> bool:
    return all(_FIELD_NAME.fullmatch(name) for name in names)
