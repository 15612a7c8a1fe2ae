"""Tools, calls and results as plain MCP JSON, for whoever speaks the protocol by other means than `toolcrib.server`.

Nothing is adapted: MCP takes any JSON Schema of an object.
"""

from typing import Any

from toolcrib.formats.calls import ToolCall, call, read
from toolcrib.formats.names import named
from toolcrib.model import Tool, ToolResult


def tool(tool: Tool, *, name: str | None = None) -> dict[str, Any]:
    """The tool as an entry of `tools/list`.

    >>> tool(Tool(name="now", description="The time."))
    {'name': 'now', 'description': 'The time.', 'inputSchema': {'type': 'object'}}
    """
    entry: dict[str, Any] = {
        "name": named(tool, name),
        "title": tool.title,
        "description": tool.description,
        "inputSchema": {**tool.input_schema, "type": "object"},
        "outputSchema": tool.output_schema,
        "annotations": dict(tool.annotations),
        "icons": list(tool.icons),
        "_meta": dict(tool.meta),
    }
    return {key: value for key, value in entry.items() if value or key in ("name", "inputSchema")}


def tool_call(request: Any) -> ToolCall:
    """The call in a `tools/call` request; its id is the request's."""
    params = read(request, "params") or {}
    return call(read(request, "id"), read(params, "name"), read(params, "arguments"))


def result(result: ToolResult) -> dict[str, Any]:
    """The result as a `CallToolResult`, whole.

    >>> result(ToolResult(content=({"type": "text", "text": "noon"},)))
    {'content': [{'type': 'text', 'text': 'noon'}], 'isError': False}
    """
    wire: dict[str, Any] = {"content": [dict(block) for block in result.content], "isError": result.is_error}
    if result.structured is not None:
        wire["structuredContent"] = result.structured
    if result.meta:
        wire["_meta"] = dict(result.meta)
    return wire
