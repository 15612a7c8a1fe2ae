"""Tools, calls and results as plain MCP JSON, for programs that do not use `toolcrib.server`.

Schemas are not adapted: MCP accepts any JSON Schema of an object.
"""

from collections.abc import Mapping
from typing import Any

from toolcrib.formats.messages import ToolCall, make_call, read_field
from toolcrib.formats.tool_list import request_name
from toolcrib.types import Tool, ToolResult, Visibility


def tool(tool: Tool, *, name: str | None = None) -> dict[str, Any]:
    """Format a tool as an entry of `tools/list`.

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
        "_meta": dict(tool.meta),
    }
    return {key: value for key, value in entry.items() if value or key in ("name", "inputSchema")}


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
    )


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
