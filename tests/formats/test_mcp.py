"""Plain MCP JSON, accepted by the protocol's own library."""

import mcp_types
from tests.formats.samples import PICTURE, WEATHER

from toolcrib.formats import mcp
from toolcrib.types import Tool, ToolResult


def test_a_tool_is_an_entry_of_the_list_that_the_protocol_takes() -> None:
    entry = mcp.tool(
        Tool(
            name="now",
            title="Clock",
            description="The time.",
            output_schema={"type": "object"},
            annotations={"readOnlyHint": True},
            meta={"k": 1},
        )
    )
    assert mcp_types.Tool.model_validate(entry, by_name=False).title == "Clock"
    assert entry["_meta"] == {"k": 1}
    assert mcp.tool(WEATHER).keys() == {"name", "description", "inputSchema"}


def test_a_result_is_one_that_the_protocol_takes() -> None:
    result = ToolResult(content=({"type": "text", "text": "x"}, PICTURE), structured={"a": 1}, meta={"k": 1})
    wire = mcp.result(result)
    assert wire["isError"] is False
    assert mcp_types.CallToolResult.model_validate(wire, by_name=False).structured_content == {"a": 1}
    assert wire["_meta"] == {"k": 1}


def test_a_call_is_read_from_a_request() -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "now", "arguments": {"z": 1}}}
    call = mcp.tool_call(request)
    assert (call.id, call.name, call.arguments) == ("7", "now", {"z": 1})
