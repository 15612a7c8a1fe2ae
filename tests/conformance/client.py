"""The client under test: toolcrib over stdio, in front of the suite's server, driven as each scenario expects.

The suite runs this with the address of its server as the last argument, and judges what reaches that server.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import mcp_types
from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

TIMEOUT_S: Final = 50.0
_POLL_S: Final = 0.5
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
AUTHORIZATION: Final = "auth/"
"""How the names of the others begin."""
_CLIENT_METADATA: Final = "https://conformance-test.local/client-metadata.json"
"""The address by which the suite knows its client, where it takes one."""
_ADDRESS: Final = re.compile(rb"^(https?://\S+)$", re.MULTILINE)


def auth_of(scenario: str) -> str | dict[str, Any]:
    """The `auth` of the server's entry in a scenario."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    if scenario == "auth/basic-cimd":
        return {"client_metadata_url": _CLIENT_METADATA}
    if "client_id" in context and "client_secret" in context:
        return {"client_id": context["client_id"], "client_secret": "${CLIENT_SECRET}"}
    return "oauth"


async def browse(url: str) -> None:
    """Open a login page, whose authorization server consents at once, and follow it back."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False, timeout=TIMEOUT_S) as browser:
        await browser.get(url)


async def log_in(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Run `toolcrib login` as a person would. Returns whether they are logged in."""
    async with await anyio.open_process(
        [*arguments], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        if process.stderr is None:
            raise RuntimeError("its output is not to be had")
        seen = b""
        async for part in process.stderr:
            sys.stderr.buffer.write(part)
            seen += part
            if found := _ADDRESS.search(seen):
                seen = b""
                await browse(found[1].decode())
        return await process.wait() == 0


async def use_tools(client: Client, log_in_again: Callable[[], Awaitable[bool]]) -> None:
    """Call every tool. If the server has meanwhile moved to another authorization server, log in there first."""
    listed = (await client.list_tools()).tools
    if not listed and await log_in_again():
        while not (listed := (await client.list_tools()).tools):  # noqa: ASYNC110 - another process has the login
            await anyio.sleep(_POLL_S)
    for tool in listed:
        await _call(client, tool.name, _required_arguments(tool.input_schema))


async def accept(
    context: ClientRequestContext,
    params: mcp_types.ElicitRequestParams,
) -> mcp_types.ElicitResult:
    """Answer a form with its defaults, or with yes; open an address."""
    if isinstance(params, mcp_types.ElicitRequestURLParams):
        await browse(params.url)
        return mcp_types.ElicitResult(action="accept")
    properties = params.requested_schema.get("properties", {})
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
        needs_login = scenario.startswith(AUTHORIZATION)
        entry = {"url": url, "asks": True, **({"auth": auth_of(scenario)} if needs_login else {})}
        own = {"surfaces": ["direct"], "prefix": False}
        config.write_text(json.dumps({"mcpServers": {"suite": entry}, "toolcrib": own}))
        secret = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("client_secret", "")
        env = {**os.environ, "XDG_STATE_HOME": folder, "CLIENT_SECRET": secret}
        toolcrib = [sys.executable, "-m", "toolcrib"]
        program = StdioServerParameters(command=toolcrib[0], args=[*toolcrib[1:], "serve", "-c", str(config)], env=env)
        mode = "auto" if version in MODERN_PROTOCOL_VERSIONS else "legacy"
        with anyio.fail_after(TIMEOUT_S):
            again = partial(log_in, [*toolcrib, "login", "suite", "--no-browser", "-c", str(config)], env)
            if needs_login and not await again():
                return
            async with Client(program, mode=mode, elicitation_callback=accept, sampling_callback=sample) as client:
                await (use_tools(client, again) if needs_login else SCENARIOS[scenario](client))


if __name__ == "__main__":
    scenario, version = (os.environ[f"MCP_CONFORMANCE_{name}"] for name in ("SCENARIO", "PROTOCOL_VERSION"))
    anyio.run(drive, scenario, version, sys.argv[-1])
