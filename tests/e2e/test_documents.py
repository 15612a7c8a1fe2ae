"""Prompts and resources through complete gateways, in both eras, over both transports, and of a server from PyPI."""

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.e2e.conftest import Files, http_gateway, http_notes, notes, serve

from toolcrib.cli.demo import PINS, find_uvx, uvx_arguments

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def client_of(config: Path, transport: str, mode: Any) -> AsyncIterator[mcp.Client]:
    """A client of a gateway in its own process."""
    if transport == "http":
        async with http_gateway(config) as (url, _), mcp.Client(url, mode=mode) as client:
            yield client
        return
    command, *args = serve(config)
    async with mcp.Client(stdio_client(StdioServerParameters(command=command, args=args)), mode=mode) as client:
        yield client


async def text_at(client: mcp.Client, uri: str) -> str:
    (part,) = (await client.read_resource(uri)).contents
    assert isinstance(part, types.TextResourceContents)
    assert part.uri == uri
    return part.text


@pytest.mark.parametrize(
    ("transport", "mode"),
    [
        pytest.param("stdio", "legacy", marks=pytest.mark.slow),
        ("http", "auto"),
        pytest.param("stdio", "auto", marks=pytest.mark.slow),
        pytest.param("http", "legacy", marks=pytest.mark.slow),
    ],
)
async def test_prompts_and_resources_pass_through(files: Files, tmp_path: Path, transport: str, mode: Any) -> None:
    with anyio.fail_after(60), http_notes(tmp_path) as upstream:
        config = files.config({"near": notes(), "far": {"url": upstream}})
        async with client_of(config, transport, mode) as client:
            for server in ("near", "far"):
                written = {"name": f"{server}:add_note", "arguments": {"text": f"said {server}"}}
                await client.call_tool("execute_tool", written)
            assert [one.name for one in (await client.list_prompts()).prompts] == ["far__sum_up", "near__sum_up"]
            got = await client.get_prompt("near__sum_up", {"about": "ships"})
            assert got.messages[0].content == types.TextContent(type="text", text="Sum up my notes about ships.")
            listed = [one.uri for one in (await client.list_resources()).resources]
            assert listed == ["toolcrib://far/notes://all", "toolcrib://near/notes://all"]
            assert [await text_at(client, uri) for uri in listed] == ["said far", "said near"]
            assert await text_at(client, "toolcrib://far/notes://1") == "said far"


@pytest.mark.network
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_server_from_pypi_has_its_prompt_and_its_resource_here_too(
    files: Files, tmp_path: Path, mode: Any
) -> None:
    passed_on = {key: value for key, value in os.environ.items() if key.startswith(("UV_", "SSL_CERT_"))}
    arguments = [*uvx_arguments(PINS["sqlite"]), "--db-path", str(tmp_path / "a.db")]
    config = files.config({"sqlite": {"command": find_uvx(), "args": arguments, "env": passed_on}})
    with anyio.fail_after(200):
        async with client_of(config, "stdio", mode) as client:
            insight = {"name": "sqlite:append_insight", "arguments": {"insight": "ships sink"}}
            while (await client.call_tool("execute_tool", insight)).is_error:  # noqa: ASYNC110 - it is being installed
                await anyio.sleep(0.1)
            assert [one.name for one in (await client.list_prompts()).prompts] == ["sqlite__mcp-demo"]
            got = await client.get_prompt("sqlite__mcp-demo", {"topic": "ships"})
            assert "ships" in json.dumps([message.model_dump(mode="json") for message in got.messages])
            assert [one.uri for one in (await client.list_resources()).resources] == ["memo://insights"]
            assert "ships sink" in await text_at(client, "memo://insights")
