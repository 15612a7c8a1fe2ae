"""Conversion between MCP's wire format and our types."""

import json
import tracemalloc
from functools import partial
from typing import Any

import pytest

from toolcrib.errors import UpstreamError
from toolcrib.formats import mcp
from toolcrib.types import ToolResult
from toolcrib.wire import (
    document_to_wire,
    entry_for_version,
    read_document,
    read_result,
    read_tool,
    result_to_wire,
)

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
GOOD: dict[str, Any] = {"name": "act", "inputSchema": {"type": "object"}}


def test_a_definition_is_read_whole_and_written_back_the_same() -> None:
    raw = {
        **GOOD,
        "title": "Act",
        "description": "Acts.",
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
        "icons": [{"src": "https://example.com/i.png"}],
        "_meta": {"k": 1},
    }
    tool, refusal = (read := read_tool(raw, namespace="x")).tool, read.refusal
    assert tool is not None
    assert refusal is None
    assert (tool.id, tool.title, tool.output_schema) == ("x:act", "Act", {"type": "object"})
    assert mcp.tool(tool, name="act") == raw


@pytest.mark.parametrize(
    ("raw", "label", "why"),
    [
        ({**GOOD, "inputSchema": {"type": "string"}}, "act", "its arguments would have to be string"),
        ({**GOOD, "inputSchema": "none"}, "act", "its input schema is a string"),
        ({"inputSchema": {"type": "object"}}, "(unnamed)", "name"),
        ({**GOOD, "name": ""}, "(unnamed)", ""),
        ({**GOOD, "_meta": {"n": float("nan")}}, "act", "JSON"),
        ("act", "(unnamed)", "definition"),
        (None, "(unnamed)", "definition"),
    ],
)
def test_an_invalid_definition_is_rejected_with_its_field(raw: Any, label: str, why: str) -> None:
    judged = read_tool(raw, namespace="x")
    if raw == {**GOOD, "name": ""}:
        assert judged.tool is not None
        return
    assert judged.tool is None
    assert judged.refusal is not None
    assert (judged.refusal.tool, judged.refusal.state) == (label, "rejected")
    assert why in judged.refusal.reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", 3),
        ("description", ["Acts."]),
        ("annotations", {"readOnlyHint": "perhaps"}),
        ("annotations", []),
        ("icons", {}),
        ("outputSchema", True),
        ("outputSchema", []),
        ("execution", "task"),
        ("_meta", []),
    ],
)
def test_an_optional_field_that_cannot_be_read_costs_only_itself(field: str, value: Any) -> None:
    read = read_tool({**GOOD, field: value}, namespace="x")
    assert read.tool is not None
    assert mcp.tool(read.tool, name="act") == GOOD
    assert read.refusal is not None
    assert (read.refusal.state, read.refusal.reason) == ("repaired", f"without its {field}, which cannot be read")


def test_an_output_schema_that_no_client_can_compile_is_repaired() -> None:
    output = {"type": "object", "properties": {"n": {"type": "int"}}, "required": None}
    read = read_tool({**GOOD, "outputSchema": output}, namespace="x")
    assert read.tool is not None
    assert read.tool.output_schema == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert read.refusal is not None
    assert read.refusal.state == "repaired"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("schema", [{"type": "array"}, {"$ref": "#/$defs/A", "$defs": {"A": {}}}, {"anyOf": [{}]}])
def test_an_output_schema_that_is_not_an_object_is_left_out_for_older_versions(
    version: str, schema: dict[str, Any]
) -> None:
    shown = entry_for_version({**GOOD, "outputSchema": schema}, version)
    assert shown == ({**GOOD, "outputSchema": schema} if version == "2026-07-28" else GOOD)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "t"}},
        {"type": "hologram", "data": 1},
        {"type": "text"},
        {"text": "no type"},
        {"type": "text", "text": "a", "annotations": {"priority": "high"}},
    ],
)
def test_every_block_reaches_every_version_as_itself_or_as_text(version: str, block: dict[str, Any]) -> None:
    (sent,) = result_to_wire(ToolResult(content=(block,)), version)["content"]
    assert sent == block or (sent["type"] == "text" and isinstance(sent["text"], str))
    known_to_all = block in ({"type": "text", "text": "a"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"})
    assert not known_to_all or sent == block


def test_an_older_client_gets_a_text_if_a_tool_needs_more_input() -> None:
    asking = ToolResult(kind="input_required", input_requests={"a": {"method": "roots/list"}}, request_state="s")
    text = result_to_wire(asking, "2025-11-25")
    assert text["isError"] is True
    assert "more input" in text["content"][0]["text"]
    passed = result_to_wire(asking, "2026-07-28")
    assert passed == {
        "resultType": "input_required",
        "inputRequests": {"a": {"method": "roots/list"}},
        "requestState": "s",
    }
    assert read_result(passed) == asking


@pytest.mark.parametrize(
    "raw",
    [
        {"resultType": "task", "task": {}},
        {"resultType": "input_required"},
        {"resultType": "input_required", "inputRequests": [1]},
        {"resultType": "input_required", "inputRequests": {}},
    ],
)
def test_an_invalid_result_is_an_error(raw: dict[str, Any]) -> None:
    with pytest.raises(UpstreamError, match="server"):
        read_result(raw)


def test_a_result_without_content_is_a_result() -> None:
    assert read_result({}) == ToolResult()
    assert read_result({"structuredContent": [1], "isError": "yes", "_meta": 3}) == ToolResult(structured=[1])


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", "2026-07-28"])
def test_an_unpaired_surrogate_in_a_result_is_replaced(version: str) -> None:
    half = "caf\udce9"
    result = ToolResult(content=({"type": "text", "text": half},), structured={half: [half, 1]}, meta={"a": half})
    sent = result_to_wire(result, version)
    assert sent["content"][0]["text"] == "caf\ufffd"
    assert sent["_meta"]["a"] == "caf\ufffd"
    assert sent["structuredContent"] == {"caf\ufffd": ["caf\ufffd", 1]}
    assert json.dumps(sent, ensure_ascii=False).encode()


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25", "2026-07-28"])
def test_an_unpaired_surrogate_in_a_document_is_replaced(version: str) -> None:
    contents = [{"uri": "a://b", "text": "x", "_meta": {"k": "caf\udce9"}}]
    sent = document_to_wire("resources/read", read_document("resources/read", {"contents": contents}), version)
    assert sent["contents"][0]["_meta"] == {"k": "caf\ufffd"}


STAMPED = {"io.modelcontextprotocol/serverInfo": {"name": "x"}, "io.modelcontextprotocol/subscriptionId": 1}
PASSED = {"vendor/key": 1, "io.modelcontextprotocol/related-task": {"taskId": "1"}}


def test_server_meta_is_not_part_of_a_result() -> None:
    assert read_result({"content": [], "_meta": {**STAMPED, **PASSED}}).meta == PASSED
    asking = {"resultType": "input_required", "requestState": "s"}
    assert read_result({**asking, "_meta": STAMPED}).meta == {}
    assert read_document("resources/read", {"contents": [], "_meta": {**STAMPED, **PASSED}}).structured == {
        "contents": [],
        "_meta": PASSED,
    }
    assert read_document("resources/read", {"contents": [], "_meta": STAMPED}).structured == {"contents": []}


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ("text", "not one of elicitation/create"),
        ({"method": "evil/x", "params": {}}, "not one of elicitation/create"),
        ({"method": ["elicitation/create"]}, "not one of elicitation/create"),
        ({"method": "elicitation/create", "params": 5}, "params"),
        (
            {"method": "elicitation/create", "params": {"message": "a", "requestedSchema": {}}},
            "params.requestedSchema.type is required",
        ),
        ({"method": "sampling/createMessage", "params": {"messages": "none", "maxTokens": 1}}, "messages"),
    ],
)
def test_an_invalid_input_request_is_an_error_of_the_server(request_: Any, why: str) -> None:
    raw = {"resultType": "input_required", "inputRequests": {"q": request_}}
    for read in (read_result, partial(read_document, "prompts/get")):
        with pytest.raises(UpstreamError, match=f"inputRequests.'q'.*{why}"):
            read(raw)


def test_a_completion_needs_no_more_input() -> None:
    with pytest.raises(UpstreamError, match="result of completion/complete is invalid"):
        read_document("completion/complete", {"resultType": "input_required", "requestState": "s"})


def test_a_large_result_is_checked_without_a_copy_of_its_text() -> None:
    structured = {"rows": [{"text": "x" * 1_000} for _ in range(4_000)]}
    result = ToolResult(content=(), structured=structured)
    tracemalloc.start()
    try:
        assert result_to_wire(result, "2026-07-28")["structuredContent"] == structured
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
