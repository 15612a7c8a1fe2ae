"""The document "Progressive Tool Discovery", example by example, over two servers on stdio."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp
import mcp_types
import pytest

from toolcrib.app import App
from toolcrib.errors import BackendNotFound, ToolNotFound
from toolcrib.sandbox.languages import LUA, sanitize_lua_identifier, script_names
from toolcrib.settings.options import Settings
from toolcrib.surfaces.disclosure import ToolDiscoveryService
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import text_of
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

SERVERS = Path(__file__).parents[1] / "fixtures" / "servers"


def server(name: str, file: str, *words: str) -> ServerOptions:
    return ServerOptions(name=name, transport="stdio", command=sys.executable, args=(str(SERVERS / file), *words))


@asynccontextmanager
async def started(*words: str, more: tuple[ServerOptions, ...] = ()) -> AsyncIterator[App]:
    both = (server("calculator", "calculator.py", *words), server("data-server", "data_server.py"), *more)
    async with App(Settings(servers=both, surfaces=SurfaceOptions(surfaces=("progressive",)))) as app:
        with anyio.fail_after(60):
            await app.settled()
        yield app


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the file, and so for its gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def app(anyio_backend: str) -> AsyncIterator[App]:
    """The gateway of all tests that need no special server."""
    async with started() as app:
        yield app


class Agent:
    def __init__(self, client: mcp.Client) -> None:
        self.client = client

    async def __call__(self, name: str, **arguments: Any) -> mcp_types.CallToolResult:
        result = await self.client.call_tool(name, arguments)
        assert isinstance(result, mcp_types.CallToolResult)
        return result


@asynccontextmanager
async def agent(app: App) -> AsyncIterator[Agent]:
    with anyio.fail_after(60):
        async with mcp.Client(app.server) as client:
            yield Agent(client)


# -- the workflow and the tools ----------------------------------------------------------------------------------------


async def test_an_agent_sees_five_tools_and_none_of_the_servers_own(app: App) -> None:
    async with agent(app) as ask:
        tools = (await ask.client.list_tools()).tools
    assert [tool.name for tool in tools] == [
        "list-servers",
        "list-server-tools",
        "tool-details",
        "inspect-tool-response",
        "execute",
    ]
    assert all(tool.title and tool.annotations for tool in tools)


async def test_the_inputs_are_those_of_the_document(app: App) -> None:
    async with agent(app) as ask:
        tools = {tool.name: tool.input_schema for tool in (await ask.client.list_tools()).tools}
    assert tools["list-servers"]["properties"] == {}
    assert tools["list-server-tools"]["required"] == ["luaServerName"]
    assert tools["tool-details"]["required"] == ["luaServerName", "luaToolName"]
    assert tools["inspect-tool-response"]["required"] == ["luaServerName", "luaToolName"]
    assert tools["inspect-tool-response"]["properties"]["sampleArgs"]["type"] == "object"
    assert tools["execute"]["required"] == ["script"]


async def test_the_workflow_of_the_diagram_from_the_first_step_to_the_last(app: App) -> None:
    async with agent(app) as ask:
        assert "(Lua: calculator)" in text_of(await ask("list-servers"))
        assert "(Lua: add)" in text_of(await ask("list-server-tools", luaServerName="calculator"))
        assert "### Parameters" in text_of(await ask("tool-details", luaServerName="calculator", luaToolName="add"))
        looked = await ask(
            "inspect-tool-response", luaServerName="calculator", luaToolName="add", sampleArgs={"a": 1, "b": 2}
        )
        assert looked.structured_content == {"response": {"result": 3}, "shape": "{ result: integer }"}
        done = await ask("execute", script="result(calculator.add({a=5,b=3}):await())")
    assert done.structured_content == {"result": 8}


# -- the printed outputs -----------------------------------------------------------------------------------------------


async def test_list_servers_prints_the_documented_text(app: App) -> None:
    async with agent(app) as ask:
        assert (
            text_of(await ask("list-servers"))
            == """\
Available MCP Servers:

## calculator (Lua: calculator)
A simple calculator server
Version: 1.0.0

## data-server (Lua: data_server)
Provides data access tools"""
        )


async def test_list_server_tools_prints_the_documented_text() -> None:
    async with started("-sqrt") as app, agent(app) as ask:
        assert (
            text_of(await ask("list-server-tools", luaServerName="calculator"))
            == """\
Tools for calculator:

- add (Lua: add): Add two numbers
- divide (Lua: divide): Divide two numbers
- multiply (Lua: multiply): Multiply two numbers"""
        )


async def test_tool_details_prints_the_documented_text() -> None:
    async with started("wordy") as app, agent(app) as ask:
        text = text_of(await ask("tool-details", luaServerName="calculator", luaToolName="add"))
    printed = """\
## add

Add two numbers together

### Parameters

- a (number, required): First number to add
- b (number, required): Second number to add

### Example Usage

local result = calculator.add({
  a = ...,
  b = ...
}):await()
"""
    assert text.startswith(printed)


async def test_the_example_script_of_execute_gives_a_sum_and_a_product(app: App) -> None:
    script = """\
local sum = calculator.add({ a = 10, b = 20 }):await()
local product = calculator.multiply({ a = sum.result, b = 2 }):await()
result({ sum = sum, product = product })
"""
    async with agent(app) as ask:
        done = await ask("execute", script=script)
    assert done.structured_content == {"sum": {"result": 30}, "product": {"result": 60}}
    assert text_of(done) == '{"product":{"result":60},"sum":{"result":30}}'


async def test_the_example_session_word_for_word(app: App) -> None:
    async with agent(app) as ask:
        servers = await ask("list-servers")
        assert [entry["name"] for entry in servers.structured_content["servers"]] == ["calculator", "data-server"]
        tools = await ask("list-server-tools", luaServerName="calculator")
        names = {entry["name"] for entry in tools.structured_content["tools"]}
        assert names == {"add", "multiply", "divide", "sqrt"}
        details = await ask("tool-details", luaServerName="calculator", luaToolName="add")
        assert "- a (number, required)" in text_of(details)
        assert "- b (number, required)" in text_of(details)
        done = await ask("execute", script="result(calculator.add({a=5,b=3}):await())")
        assert done.structured_content == {"result": 8}


# -- descriptions of tools ---------------------------------------------------------------------------------------------


async def test_a_failing_server_is_listed_with_its_reason() -> None:
    broken = ServerOptions(
        name="my.api", transport="stdio", command=sys.executable, args=("-c", "import sys; sys.exit('no key')")
    )
    async with started(more=(broken,)) as app, agent(app) as ask:
        text = text_of(await ask("list-servers"))
        asked = await ask("list-server-tools", luaServerName="my_api")
    assert "## my.api (Lua: my_api)\nNot available: it has failed" in text
    assert "no key" in text
    assert asked.is_error
    assert "no key" in text_of(asked)


async def test_the_response_of_an_inspection_equals_the_one_in_a_script(app: App) -> None:
    async with agent(app) as ask:
        for tool, arguments in [("get_record", {"id": 1}), ("list_records", {}), ("chart", {})]:
            looked = await ask(
                "inspect-tool-response", luaServerName="data_server", luaToolName=tool, sampleArgs=arguments
            )
            call = f"data_server.{tool}{{{', '.join(f'{key}={value}' for key, value in arguments.items())}}}:await()"
            done = await ask("execute", script=f"return {{ given = {call} }}")
            assert looked.structured_content is not None
            assert done.structured_content == {"given": looked.structured_content["response"]}


async def test_inspecting_runs_the_tool_and_says_so_beforehand(app: App) -> None:
    async with agent(app) as ask:
        tools = {tool.name: tool for tool in (await ask.client.list_tools()).tools}
        assert "WARNING: this really runs the tool" in (tools["inspect-tool-response"].description or "")
        looked = await ask("inspect-tool-response", luaServerName="data_server", luaToolName="list_records")
    assert "Ann" in text_of(looked)


async def test_execute_always_has_text_and_structured_content_for_objects_only(app: App) -> None:
    async with agent(app) as ask:
        for script, text, structured in [
            ("return { a = 1 }", '{"a":1}', {"a": 1}),
            ("return { 1, 2 }", "[1,2]", None),
            ("return 5", "5", None),
            ("return 'five'", "five", None),
            ("result(nil)", "null", None),
        ]:
            done = await ask("execute", script=script)
            assert (text_of(done), done.structured_content) == (text, structured), script
        silent = await ask("execute", script="local x = 1")
    assert "without a result" in text_of(silent)
    assert not silent.is_error


async def test_an_error_of_a_tool_reaches_the_agent_with_its_text(app: App) -> None:
    async with agent(app) as ask:
        failed = await ask("execute", script="return calculator.divide({ a = 1, b = 0 }):await()")
        caught = await ask(
            "execute", script="local ok, why = calculator.divide({ a = 1, b = 0 }):try()\nreturn { ok = ok, why = why }"
        )
    assert failed.is_error
    assert "Cannot divide by zero" in text_of(failed)
    assert caught.structured_content is not None
    assert caught.structured_content["ok"] is False
    assert "Cannot divide by zero" in caught.structured_content["why"]


async def test_images_pass_through_a_script_unharmed(app: App) -> None:
    async with agent(app) as ask:
        done = await ask("execute", script="return data_server.chart():await()")
    assert [block.type for block in done.content] == ["text", "image"]


# -- the discovery service ---------------------------------------------------------------------------------------------


async def test_the_service_has_the_four_methods_of_the_table(app: App) -> None:
    with anyio.fail_after(60):
        service = ToolDiscoveryService(app.gateway, app.local_context())
        assert "## data-server (Lua: data_server)" in text_of_result(await service.list_servers())
        assert "Tools for calculator:" in text_of_result(await service.list_server_tools("calculator"))
        assert "### Parameters" in text_of_result(await service.get_tool_details("calculator", "add"))
        looked = await service.inspect_tool_response("calculator", "add", {"a": 1, "b": 2})
        assert looked.structured["response"] == {"result": 3}
        with pytest.raises(BackendNotFound, match="Did you mean calculator"):
            await service.list_server_tools("calculater")
        with pytest.raises(ToolNotFound, match="Did you mean divide"):
            await service.get_tool_details("calculator", "devide")


def text_of_result(result: Any) -> str:
    return "\n".join(block["text"] for block in result.content)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("original", "identifier"),
    [("data-server", "data_server"), ("my.api", "my_api"), ("123numbers", "_123numbers"), ("while", "_while")],
)
def test_names_become_the_identifiers_of_the_table(original: str, identifier: str) -> None:
    assert sanitize_lua_identifier(original) == identifier
    assert list(script_names({original: []}, LUA)) == [identifier]


async def test_the_original_name_answers_too_by_indexing(app: App) -> None:
    async with agent(app) as ask:
        done = await ask("execute", script='return data_server["get-record"]{ id = 2 }:await().record.name')
    assert text_of(done) == "Bo"


# -- tips --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tip", ["in batches", "Remember", "sparingly", "Combine"])
async def test_the_instructions_hold_the_workflow_and_the_four_tips(app: App, tip: str) -> None:
    async with agent(app) as ask:
        said = ask.client.instructions or ""
    assert tip in said
    assert said.index("list-servers") < said.index("list-server-tools") < said.index("tool-details")
    assert said.index("tool-details") < said.index("inspect-tool-response") < said.index("execute:")
