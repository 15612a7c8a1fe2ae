"""`toolcrib serve`, driven by the official SDK client over stdio and HTTP."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import mcp
import mcp_types
import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.e2e.conftest import Files, children, http_gateway, http_notes, notes, serve

from toolcrib.testing import text_of

pytestmark = pytest.mark.anyio

CALLERS = 30
"""Callers that go on while the settings change."""

SLOW = pytest.mark.slow
BROKEN = {"command": "no-such-program-anywhere"}
SILENT = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}


def stdio(config: Path) -> Any:
    command, *args = serve(config)
    return stdio_client(StdioServerParameters(command=command, args=args))


async def call(client: mcp.Client, name: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
    result = await client.call_tool(name, arguments)
    assert isinstance(result, mcp_types.CallToolResult)
    return result


async def walk_the_road(client: mcp.Client) -> Any:
    """List, search and execute, and see the failed server reported; returns what was read back at the end."""
    assert [tool.name for tool in (await client.list_tools()).tools] == ["tool_search", "execute_tool"]
    found = (await call(client, "tool_search", {"query": "write down a note"})).structured_content
    assert found["hits"][0]["name"] == "notes:add_note"
    (failing,) = found["servers"]
    assert (failing["name"], failing["state"]) == ("broken", "failed")
    assert "no-such-program-anywhere" in failing["reason"]
    kept = await call(client, "execute_tool", {"name": "notes:add_note", "arguments": {"text": "hello"}})
    assert text_of(kept) == "note 1 kept"
    read = await call(client, "execute_tool", {"name": "notes__list_notes"})
    return read.structured_content


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=SLOW), pytest.param("2026-07-28", marks=SLOW)])
async def test_the_whole_road_over_stdio(files: Files, mode: Any) -> None:
    config = files.config({"notes": notes(), "broken": BROKEN})
    with anyio.fail_after(40):
        async with mcp.Client(stdio(config), mode=mode) as client:
            assert await walk_the_road(client) == {"notes": ["hello"]}


@SLOW
async def test_the_first_search_over_stdio_finds_the_tools_of_every_server(files: Files) -> None:
    servers = {f"notes_{number}": notes() for number in range(6)}
    config = files.config({**servers, "broken": BROKEN}, state={"memory": True})
    with anyio.fail_after(60):
        async with mcp.Client(stdio(config), mode="legacy") as client:
            found = (await call(client, "tool_search", {"query": "write down a note"})).structured_content
    names = {name for hit in found["hits"] for name in (hit["name"], *hit.get("similar", ()))}
    assert names >= {f"{name}:add_note" for name in servers}
    assert [server["name"] for server in found["servers"]] == ["broken"]
    assert "starting" not in found["note"]


@pytest.mark.parametrize("mode", ["legacy", pytest.param("auto", marks=SLOW), pytest.param("2026-07-28", marks=SLOW)])
async def test_the_whole_road_over_http(files: Files, tmp_path: Path, mode: Any) -> None:
    with anyio.fail_after(40), http_notes(tmp_path) as upstream:
        config = files.config({"notes": {"url": upstream}, "broken": BROKEN})
        async with http_gateway(config) as (url, _), mcp.Client(url, mode=mode) as client:
            assert await walk_the_road(client) == {"notes": ["hello"]}


@SLOW
async def test_a_token_from_the_environment_is_asked_for(files: Files) -> None:
    config = files.config({"notes": notes()})
    with anyio.fail_after(40):
        async with http_gateway(config, TOOLCRIB_TOKEN="s3cret") as (url, _):
            async with httpx2.AsyncClient() as http:
                assert (await http.post(url, json={})).status_code == 401
            async with httpx2.AsyncClient(headers={"Authorization": "Bearer s3cret"}) as http:
                async with mcp.Client(streamable_http_client(url, http_client=http)) as client:
                    assert len((await client.list_tools()).tools) == 2


@SLOW
async def test_an_address_that_others_reach_is_refused_without_a_token(files: Files) -> None:
    command = serve(files.config({}), "--http", "0.0.0.0:0")
    with anyio.fail_after(20):
        refused = await anyio.run_process(command, check=False)
    assert refused.returncode == 3
    assert b"without a token" in refused.stderr
    assert refused.stdout == b""


async def test_sigterm_ends_the_gateway_and_its_servers_with_the_call_under_way_answered(files: Files) -> None:
    with anyio.fail_after(40):
        async with http_gateway(files.config({"notes": notes()})) as (url, process):
            answers: list[str] = []
            async with mcp.Client(url, mode="2026-07-28") as client:
                await call(client, "execute_tool", {"name": "notes:list_notes"})
            started = children(process.pid)
            assert started
            async with anyio.create_task_group() as group:

                async def wait() -> None:
                    arguments = {"name": "notes:wait", "arguments": {"seconds": 1}}
                    answers.append(await one_call(url, arguments))

                group.start_soon(wait)
                await busy(url)
                process.send_signal(signal.SIGTERM)
                await process.wait()
    assert process.returncode == 0
    assert answers == ["waited"]
    assert not any(alive(pid) for pid in started)


@SLOW
async def test_callers_meet_no_error_while_servers_are_added_changed_and_removed(files: Files) -> None:
    listing = {"name": "notes:list_notes"}
    with anyio.fail_after(120):
        async with http_gateway(files.config({"notes": notes(), "other": notes()})) as (url, process):
            answers: list[str] = []
            done = anyio.Event()

            async def keep_calling() -> None:
                while not done.is_set():
                    answers.append(await one_call(url, listing))

            async with mcp.Client(url) as client, anyio.create_task_group() as group:
                await call(client, "execute_tool", {"name": "notes:add_note", "arguments": {"text": "kept"}})
                for _ in range(CALLERS):
                    group.start_soon(keep_calling)
                for servers, name, found in (
                    ({"notes": notes(), "third": notes()}, "third:list_notes", True),
                    ({"notes": notes(), "third": {**notes(), "retries": 2}}, "other:list_notes", False),
                    ({"notes": notes()}, "third:list_notes", False),
                ):
                    files.config(servers)
                    process.send_signal(signal.SIGHUP)
                    while (await call(client, "execute_tool", {"name": name})).is_error is found:
                        await anyio.lowlevel.checkpoint()
                done.set()
    assert len(answers) >= CALLERS
    assert set(answers) == {"kept"}


async def one_call(url: str, arguments: dict[str, Any]) -> str:
    """One stateless call by a client that sends nothing afterwards."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "execute_tool",
    }
    params = {"name": "execute_tool", "arguments": arguments, "_meta": meta}
    async with httpx2.AsyncClient(headers=headers, timeout=30, verify=False) as http:  # no certificates to load
        answer = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    text: str = answer.json()["result"]["content"][0]["text"]
    return text


async def busy(url: str) -> None:
    """Wait until the server has started to wait."""
    while "waiting" not in await one_call(url, {"name": "notes:list_notes"}):
        await anyio.lowlevel.checkpoint()


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_closing_stdin_ends_the_gateway_and_its_servers(files: Files) -> None:
    with anyio.fail_after(40):
        async with await anyio.open_process(serve(files.config({"notes": notes()})), stderr=None) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            await process.stdin.send(OPENING)
            assert b'"serverInfo"' in await process.stdout.receive()
            await process.stdin.send(SEARCH)
            assert b"notes:add_note" in await process.stdout.receive()
            started = children(process.pid)
            assert started
            await process.stdin.aclose()
            assert await process.wait() == 0
    assert not any(alive(pid) for pid in started)


OPENING = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    b'"clientInfo":{"name":"t","version":"0"}}}\n{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)
SEARCH = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"tool_search","arguments":{"query":"note"}}}\n'
)


@SLOW
async def test_a_server_that_dies_in_a_call_is_named_and_comes_back(files: Files) -> None:
    with anyio.fail_after(60):
        async with http_gateway(files.config({"notes": notes(), "other": notes()})) as (url, _):
            async with mcp.Client(url) as client:
                await call(client, "execute_tool", {"name": "notes:list_notes"})
                lost = await call(client, "execute_tool", {"name": "notes:crash"})
                assert lost.is_error
                assert lost.structured_content["error"]["code"] == "connection_lost"
                still = await call(client, "execute_tool", {"name": "other:list_notes"})
                assert not still.is_error
                while (await call(client, "execute_tool", {"name": "notes:list_notes"})).is_error:
                    await anyio.lowlevel.checkpoint()


@SLOW
async def test_two_tools_of_one_bare_name_refuse_to_be_served(files: Files) -> None:
    config = files.config({"silent": SILENT, "a": notes(), "b": notes()}, surfaces=["direct"], prefix=False)
    said = b""
    with anyio.fail_after(40):
        async with await anyio.open_process(serve(config), stdin=subprocess.PIPE) as process:
            assert process.stderr is not None
            async for chunk in process.stderr:
                said += chunk
            assert await process.wait() == 3
    assert b"a:add_note and b:add_note both claim the name add_note" in said


@SLOW
async def test_a_silent_server_blocks_no_one_when_names_have_no_namespace(files: Files) -> None:
    config = files.config({"silent": SILENT, "notes": notes()}, surfaces=["direct"], prefix=False)
    with anyio.fail_after(40):
        async with stdio(config) as (read, write), mcp.ClientSession(read, write) as session:
            await session.initialize()
        async with http_gateway(config) as (url, _), mcp.Client(url) as client:
            while "add_note" not in [tool.name for tool in (await client.list_tools()).tools]:
                await anyio.lowlevel.checkpoint()
            async with httpx2.AsyncClient() as http:
                waits = await http.get(url.removesuffix("/mcp") + "/readyz")
            assert (waits.status_code, waits.json()["servers"]) == (503, {"ready": 1, "connecting": 1})


@SLOW
async def test_a_silent_server_holds_up_no_start_that_requires_another_one(files: Files) -> None:
    config = files.config({"silent": SILENT, "notes": {**notes(), "required": True}})
    with anyio.fail_after(40):
        async with http_gateway(config) as (url, _), mcp.Client(url) as client:
            assert not (await call(client, "execute_tool", {"name": "notes:list_notes"})).is_error


@SLOW
async def test_a_required_server_that_fails_ends_the_start(files: Files) -> None:
    config = files.config({"broken": {**BROKEN, "required": True}, "notes": notes()})
    with anyio.fail_after(40):
        refused = await anyio.run_process(serve(config), check=False, input=b"")
    assert refused.returncode != 0
    assert b"broken is required" in refused.stderr
