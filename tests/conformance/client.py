"""The client under test: toolcrib over stdio, in front of the suite's server, driven as each scenario expects.

The suite runs this with the address of its server as the last argument, and judges what reaches that server.
"""

import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

TIMEOUT_S: Final = 50.0
_EXAMPLES: Final[dict[str, Any]] = {"integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}

Drive = Callable[[Client], Awaitable[None]]


async def list_tools(client: Client) -> None:
    await client.list_tools()


async def add_numbers(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("add_numbers", {"a": 5, "b": 3})


async def reconnect(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("test_reconnection", {})


async def ask_for_defaults(client: Client) -> None:
    await client.list_tools()
    await client.call_tool("test_client_elicitation_defaults", {})


async def answer_questions(client: Client) -> None:
    await client.list_tools()
    for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
        await client.call_tool(f"test_mrtr_{name}", {})


async def use_one_of_each(client: Client) -> None:
    """Call a tool, read a resource and get a prompt, for the headers of each."""
    for tool in (await client.list_tools()).tools[:1]:
        await client.call_tool(tool.name, _required_arguments(tool.input_schema))
    for resource in (await client.list_resources()).resources[:1]:
        await client.read_resource(resource.uri)
    for prompt in (await client.list_prompts()).prompts[:1]:
        await client.get_prompt(prompt.name)


async def call_all(client: Client) -> None:
    for tool in (await client.list_tools()).tools:
        await _call(client, tool.name, _required_arguments(tool.input_schema))


async def repeat_calls(client: Client) -> None:
    """Make the calls that the suite names."""
    listed = {tool.name for tool in (await client.list_tools()).tools}
    for call in json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls", []):
        if call["name"] in listed:
            await _call(client, call["name"], call.get("arguments") or {})


async def _call(client: Client, name: str, arguments: dict[str, Any]) -> None:
    """Call a tool; the suite's server may refuse."""
    with suppress(MCPError):
        await client.call_tool(name, arguments)


def _required_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _EXAMPLES.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", ())}


SCENARIOS: Final[dict[str, Drive]] = {
    "initialize": list_tools,
    "tools_call": add_numbers,
    "sse-retry": reconnect,
    "elicitation-sep1034-client-defaults": ask_for_defaults,
    "request-metadata": add_numbers,
    "sep-2322-client-request-state": answer_questions,
    "http-standard-headers": use_one_of_each,
    "http-custom-headers": repeat_calls,
    "http-invalid-tool-headers": call_all,
    "json-schema-ref-no-deref": list_tools,
}
"""The scenarios without authorization, and what the client does in each."""


async def accept(
    context: ClientRequestContext,
    params: mcp_types.ElicitRequestParams,
) -> mcp_types.ElicitResult:
    """Answer a form with its defaults, or with yes."""
    schema = params.requested_schema if isinstance(params, mcp_types.ElicitRequestFormParams) else {}
    properties = schema.get("properties", {})
    content = {name: field.get("default", True) for name, field in properties.items() if "default" in field}
    return mcp_types.ElicitResult(action="accept", content=content or {"confirmed": True})


async def sample(
    context: ClientRequestContext,
    params: mcp_types.CreateMessageRequestParams,
) -> mcp_types.CreateMessageResult:
    return mcp_types.CreateMessageResult(
        role="assistant", content=mcp_types.TextContent(type="text", text="yes"), model="none"
    )


async def drive(scenario: str, version: str, url: str) -> None:
    """Drive toolcrib in front of the server, with a client of the same era."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "toolcrib.json"
        own = {"surfaces": ["direct"], "prefix": False}
        config.write_text(json.dumps({"mcpServers": {"suite": {"url": url, "asks": True}}, "toolcrib": own}))
        program = StdioServerParameters(
            command=sys.executable,
            args=["-m", "toolcrib", "serve", "--config", str(config)],
            env={**os.environ, "XDG_STATE_HOME": folder},
        )
        mode = "auto" if version in MODERN_PROTOCOL_VERSIONS else "legacy"
        with anyio.fail_after(TIMEOUT_S):
            async with Client(program, mode=mode, elicitation_callback=accept, sampling_callback=sample) as client:
                await SCENARIOS[scenario](client)


if __name__ == "__main__":
    scenario, version = (os.environ[f"MCP_CONFORMANCE_{name}"] for name in ("SCENARIO", "PROTOCOL_VERSION"))
    anyio.run(drive, scenario, version, sys.argv[-1])
