"""Tools, calls and results as plain MCP JSON, for programs that do not use `toolcrib.server`.

Schemas are not adapted: MCP accepts any JSON Schema of an object.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from toolcrib.formats.messages import ToolCall, make_call, read_field
from toolcrib.formats.tool_list import request_name
from toolcrib.types import Object, Tool, ToolResult, Visibility

TOOL_KEYS: Final = frozenset(
    {"name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution", "_meta"}
)
"""The keys of an entry of `tools/list` that a tool has fields for."""


def tool(tool: Tool, *, name: str | None = None) -> dict[str, Any]:
    """Format a tool as an entry of `tools/list`; of a server's tool, with all keys of the server, in their order.

    >>> tool(Tool(name="now", description="The time."))
    {'name': 'now', 'description': 'The time.', 'inputSchema': {'type': 'object'}}
    """
    entry: dict[str, Any] = {
        "name": request_name(tool, name),
        "title": tool.title,
        "description": tool.description,
        "inputSchema": {**tool.input_schema, "type": "object"},
        "outputSchema": tool.output_schema,
        "annotations": dict(tool.annotations),
        "icons": list(tool.icons),
        "execution": dict(tool.execution),
        "_meta": dict(tool.meta),
    }
    was_empty = [key for key in entry if tool.extra.get(key) is False]
    shown = {key: value for key, value in entry.items() if value or (value is not None and key in was_empty)}
    return as_sent(shown, tool.extra, TOOL_KEYS)


def read_entry(entry: Mapping[str, Any], namespace: str = "") -> Tool:
    """Read an entry of `tools/list` that is known to be valid, or to be so once its input schema is repaired.

    >>> read_entry({"name": "now", "inputSchema": {"type": "object"}}, "clock").id
    'clock:now'
    """
    schema: Any = entry.get("inputSchema")
    return Tool(
        name=entry["name"],
        namespace=namespace,
        title=entry.get("title"),
        description=entry.get("description") or "",
        input_schema={} if schema is None or schema is True or schema == [] else schema,
        output_schema=entry.get("outputSchema"),
        annotations=entry.get("annotations") or {},
        icons=tuple(entry.get("icons") or ()),
        visibility=Visibility.DISCOVERABLE,
        meta=entry.get("_meta") or {},
        extra=further_keys(entry, TOOL_KEYS),
    )


def further_keys(sent: Object, fields: Collection[str]) -> dict[str, Any]:
    """Return the keys of what a server has sent, in its order, as `Tool.extra` and `ToolResult.extra` hold them.

    >>> further_keys({"id": 7, "name": "now", "title": "", "icons": None}, {"name", "title", "icons"})
    {'id': 7, 'name': True, 'title': False, 'icons': None}
    """
    return {key: value if key not in fields else None if value is None else bool(value) for key, value in sent.items()}


def as_sent(shown: dict[str, Any], extra: Object, fields: Collection[str]) -> dict[str, Any]:
    """Return what is shown of the fields, with the further keys that a server has sent, in its order.

    >>> as_sent({"name": "time", "icons": [1]}, {"id": 7, "name": True, "title": False}, {"name", "title", "icons"})
    {'id': 7, 'name': 'time', 'icons': [1]}
    """
    ordered = {key: shown.get(key, value) for key, value in extra.items() if key in shown or key not in fields}
    return {**ordered, **shown}


def tool_call(request: Any) -> ToolCall:
    """Read the call of a `tools/call` request; its id is that of the request."""
    params = read_field(request, "params") or {}
    return make_call(read_field(request, "id"), read_field(params, "name"), read_field(params, "arguments"))


def result(result: ToolResult) -> dict[str, Any]:
    """Format a result as a complete `CallToolResult`.

    >>> result(ToolResult(content=({"type": "text", "text": "noon"},)))
    {'content': [{'type': 'text', 'text': 'noon'}], 'isError': False}
    """
    wire: dict[str, Any] = {"content": [dict(block) for block in result.content], "isError": result.is_error}
    if result.structured is not None:
        wire["structuredContent"] = result.structured
    if result.meta:
        wire["_meta"] = dict(result.meta)
    return wire
