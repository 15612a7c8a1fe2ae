"""Tools, hits and results that the tests of the formats share."""

from typing import Any

from toolcrib.types import Hit, Tool, ToolResult

WEATHER = Tool(
    namespace="weather",
    name="get_forecast",
    description="The forecast for a city.",
    input_schema={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)

CLOCK = Tool(name="now", description="The time.")

ODATA = Tool(
    namespace="files",
    name="list",
    description="Files.",
    input_schema={"type": "object", "properties": {"$top": {"type": "integer"}}},
)

FREE = Tool(name="store", description="Stores anything.", input_schema={"type": "object", "additionalProperties": True})

PICTURE = {"type": "image", "mimeType": "image/png", "data": "iVBORw0="}


def hit(tool: Tool, **more: Any) -> Hit:
    return Hit(tool=tool, score=1.0, raw=1.0, **more)


def said(text: str, **more: Any) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": text},), **more)


class Words:
    def count(self, text: str) -> int:
        return len(text.split())
