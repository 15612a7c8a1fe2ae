"""The document of the registry: each of its blocks, lists and figures, in Python."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import anyio
import mcp
import mcp_types
import pytest
import uvicorn
from mcp.client.sse import sse_client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.reference.support import call, names, over_http, text_in
from tests.server.conftest import at_address, until
from tests.upstream.support import SERVERS

import toolcrib
from toolcrib import App, Context, ExecutionFailed, Settings, Tool, ToolcribError, ToolNotFound, errors
from toolcrib.errors import AlreadyStarted, BackendNotFound, HandlerNotFound, InvalidRequest, InvalidTool, NotStarted
from toolcrib.options import HttpOptions, SearchOptions, Token
from toolcrib.registry import Backend, BackendConfig, BackendKind, Config, Registry
from toolcrib.types import ServerInfo

pytestmark = pytest.mark.anyio

NOWHERE = "https://127.0.0.1:1/mcp"
SCHEMA = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
TEXT, STRUCTURED = mcp_types.TextContent(type="text", text="one"), {"n": 1}
RESULTS: dict[str, mcp_types.CallToolResult] = {
    "structured": mcp_types.CallToolResult(content=[TEXT], structured_content=STRUCTURED),
    "one_text": mcp_types.CallToolResult(content=[TEXT]),
    "two_texts": mcp_types.CallToolResult(content=[TEXT, TEXT]),
    "image": mcp_types.CallToolResult(
        content=[mcp_types.ImageContent(type="image", data="YQ==", mime_type="image/png")]
    ),
    "nothing": mcp_types.CallToolResult(content=[]),
    "failed": mcp_types.CallToolResult(content=[TEXT], is_error=True),
    "failed_data": mcp_types.CallToolResult(content=[], structured_content=STRUCTURED, is_error=True),
    "failed_mute": mcp_types.CallToolResult(content=[], is_error=True),
}


async def echo(ctx: Context, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"echo": arguments["message"]}


def remote() -> Server[Any]:
    """A server on the SDK, one tool for each kind of result."""

    async def list_tools(_: Any, __: Any) -> mcp_types.ListToolsResult:
        tools = [mcp_types.Tool(name=name, description=name, input_schema={"type": "object"}) for name in RESULTS]
        return mcp_types.ListToolsResult(tools=tools)

    async def call_tool(_: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        return RESULTS[params.name]

    return Server("remote", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


def registry(**config: Any) -> Registry:
    reg = Registry(Config(server_info=ServerInfo(name="my-mcp", version="1.0.0"), **config))
    reg.register_local_func("echo", "Echoes back input", SCHEMA, echo, namespace="utility", tags=("echo", "debug"))
    return reg


def with_remote(**config: Any) -> Registry:
    reg = registry(**config)
    reg.register_mcp(BackendConfig(name="remote-tools", transport=remote()))
    return reg


@asynccontextmanager
async def elsewhere(**options: Any) -> AsyncIterator[str]:
    """The address of another toolcrib, which serves one tool over a real socket to callers with the token."""
    tokens = (Token(secret="s3cret", caller="me"),)
    async with App(Settings(http=HttpOptions(tokens=tokens)), name="elsewhere") as app:
        app.register(Tool(name="add", description="Add two numbers"), add)
        async with at_address(app.sse_mount() if options.get("sse") else app.asgi()) as address:
            yield address


async def add(arguments: Mapping[str, int]) -> int:
    return arguments["a"] + arguments["b"]


# -- overview and goals --------------------------------------------------------------------------------------------


async def test_goal_a_fast_path_to_a_working_server() -> None:
    async with registry() as reg, mcp.Client(reg.app.server) as client:
        assert text_in(await call(client, "utility__echo", {"message": "hi"})) == '{"echo":"hi"}'


async def test_goal_discovery_and_execution_are_one_small_interface() -> None:
    async with registry() as reg:
        (hit,) = (await reg.search("echo back")).hits
        assert await reg.execute(hit.tool.id, {"message": "hi"}) == {"echo": "hi"}


async def test_goal_local_tools_and_remote_servers_side_by_side() -> None:
    async with with_remote() as reg:
        assert await reg.list_namespaces() == ("remote-tools", "utility")


async def test_composition_tools_are_validated_as_they_are_registered() -> None:
    reg = Registry()
    for name in ("", "two\nlines", "a:b"):
        with pytest.raises(ToolcribError, match="name"):
            reg.register_local_func(name, "", SCHEMA, echo)
    with pytest.raises(InvalidTool, match="type"):
        reg.register_local_func("echo", "", {"type": "no such type"}, echo)
    assert await reg.list_all() == ()


async def test_composition_search_is_bm25_if_configured() -> None:
    reg = registry(search_config=SearchOptions(scorer="bm25", default_limit=1))
    reg.register_local_func("echo_twice", "Echoes back input twice", SCHEMA, echo)
    (hit,) = (await reg.search("echoes")).hits
    assert hit.score == pytest.approx(hit.raw / (hit.raw + 5))


# -- core types ----------------------------------------------------------------------------------------------------


def test_config_has_the_three_documented_fields_and_defaults_for_all() -> None:
    assert {"search_config", "server_info", "backend_selector"} <= {field.name for field in fields(Config)}
    config = Config()
    assert (config.search_config, config.backend_selector) == (None, None)
    assert (config.server_info.name, config.server_info.version) == ("toolcrib", toolcrib.__version__)


@pytest.mark.parametrize(
    ("info", "told_as"),
    [
        (ServerInfo(name="my-mcp", version="1.0.0"), ("my-mcp", "1.0.0")),
        (ServerInfo(), ("toolcrib", toolcrib.__version__)),
    ],
)
async def test_server_info_is_the_result_of_initialize(info: ServerInfo, told_as: tuple[str, str]) -> None:
    async with Registry(Config(server_info=info)) as reg, mcp.Client(reg.app.server, mode="legacy") as client:
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == told_as


async def test_registry_holds_tools_finds_them_and_reports_changes() -> None:
    reg, changes = registry(), list[str]()
    async with reg:
        end = reg.on_change(lambda: changes.append("changed"))
        reg.register_local_func("more", "", SCHEMA, echo)
        assert [tool.id for tool in await reg.list_all()] == ["more", "utility:echo"]
        end()
        end()
    assert changes
    assert (await reg.get_tool("echo")).id == "utility:echo"


# -- local tools ---------------------------------------------------------------------------------------------------


async def test_local_tools_as_printed() -> None:
    reg = Registry(Config(server_info=ServerInfo(name="my-mcp", version="1.0.0")))
    tool = reg.register_local_func(
        "echo",
        "Echoes back input",
        {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
        lambda args: {"echo": args["message"]},
        namespace="utility",
        tags=("echo", "debug"),
    )
    assert (tool.id, tool.tags) == ("utility:echo", ("echo", "debug"))
    async with reg:
        assert await reg.execute("utility:echo", {"message": "hi"}) == {"echo": "hi"}
        assert [hit.tool.id for hit in (await reg.search("debug")).hits] == ["utility:echo"]


@pytest.mark.parametrize(
    "handler",
    [
        lambda args: {"echo": args["message"]},
        lambda ctx, args: {"echo": args["message"], "caller": ctx.caller.id},
        lambda message: {"echo": message},
        lambda ctx, message: {"echo": message, "caller": ctx.caller.id},
        echo,
    ],
)
async def test_a_handler_takes_the_dict_or_each_argument_with_or_without_a_context(handler: Callable[..., Any]) -> None:
    reg = Registry()
    reg.register_local_func("echo", "", SCHEMA, handler)
    async with reg:
        value = await reg.execute("echo", {"message": "hi"})
    assert value["echo"] == "hi"
    assert value.get("caller", "local") == "local"


async def test_the_quick_start_of_the_guide_runs_even_if_the_backend_is_down() -> None:
    reg = Registry(Config(server_info=ServerInfo(name="my-mcp", version="1.0.0")))
    reg.register_local_func("echo", "Echoes back input", SCHEMA, echo, namespace="utility", tags=("echo", "debug"))
    reg.register_mcp(BackendConfig(name="remote-tools", url=NOWHERE, headers={"Authorization": "Bearer ..."}))
    with anyio.fail_after(5):
        async with reg:
            result = await reg.execute("utility:echo", {"message": "hi"})
    assert result == {"echo": "hi"}


def refused() -> Any:
    raise ConnectionRefusedError("nobody listens")


# -- MCP backends --------------------------------------------------------------------------------------------------


async def test_register_mcp_as_printed_reaches_a_server_over_http_with_its_headers() -> None:
    with anyio.fail_after(10):
        async with elsewhere() as address:
            reg = registry()
            reg.register_mcp(
                BackendConfig(name="remote-tools", url=f"{address}/mcp", headers={"Authorization": "Bearer s3cret"})
            )
            async with reg:
                await reg.health_check()
                assert (
                    await reg.execute("remote-tools:execute_tool", {"name": "add", "arguments": {"a": 1, "b": 2}}) == 3
                )


async def test_a_wrong_header_is_a_failed_server_and_nothing_else() -> None:
    with anyio.fail_after(10):
        async with elsewhere() as address:
            reg = registry()
            reg.register_mcp(
                BackendConfig(
                    name="remote-tools", url=f"{address}/mcp", headers={"Authorization": "Bearer wrong"}, max_retries=0
                )
            )
            async with reg:
                assert await reg.execute("utility:echo", {"message": "hi"}) == {"echo": "hi"}
                (status,) = reg.statuses()
                assert (status.state, "wrong" in status.reason) == ("failed", False)
                with pytest.raises(ToolcribError):
                    await reg.health_check()


def test_backend_config_has_the_documented_fields_and_keeps_secrets_out_of_its_repr() -> None:
    documented = {"name", "url", "headers", "max_retries", "retry_interval", "transport"}
    assert documented <= {field.name for field in fields(BackendConfig)}
    shown = repr(BackendConfig(name="a", url="https://u:secret@x/", headers={"Authorization": "secret"}))
    assert "secret" not in shown


async def test_url_sse_reaches_a_server_of_the_older_transport() -> None:
    with anyio.fail_after(10):
        async with elsewhere(sse=True) as address:
            reg = registry()
            url = f"{address.replace('http://', 'sse://')}/sse"
            reg.register_mcp(BackendConfig(name="old", url=url, headers={"Authorization": "Bearer s3cret"}))
            async with reg:
                (status,) = reg.statuses()
                assert (status.state, status.transport) == ("ready", "sse")
                assert await reg.execute("old:execute_tool", {"name": "add", "arguments": {"a": 1, "b": 2}}) == 3


CHILD = """
import sys, anyio
from toolcrib.registry import BackendConfig, Registry

async def main():
    reg = Registry()
    reg.register_mcp(BackendConfig(name="parent", url="stdio://"))
    async with reg:
        print(await reg.execute("parent:echo", {"n": 1}), file=sys.stderr)

anyio.run(main)
"""


async def test_url_stdio_is_this_processs_own_pipes() -> None:
    to_child, from_child = os.pipe(), os.pipe()
    with anyio.fail_after(20):
        server = await anyio.open_process(
            [sys.executable, "-I", "-S", str(SERVERS / "raw.py")], stdin=from_child[0], stdout=to_child[1], stderr=None
        )
        client = await anyio.open_process(
            [sys.executable, "-c", CHILD], stdin=to_child[0], stdout=from_child[1], stderr=subprocess.PIPE
        )
        for end in (*to_child, *from_child):
            os.close(end)
        assert client.stderr is not None
        said = b"".join([chunk async for chunk in client.stderr]).decode()
        for process in (client, server):
            await process.wait()
            await process.aclose()
    assert said.strip() == '{"n": 1}'


@pytest.mark.parametrize("url", ["", "example.com/mcp", "ftp://example.com", "https://", "stdio://elsewhere"])
def test_other_urls_are_refused_with_those_that_work(url: str) -> None:
    with pytest.raises(InvalidRequest, match="sse://") as caught:
        Registry().register_mcp(BackendConfig(name="x", url=url))
    assert "transport" in caught.value.hint


async def test_a_transport_overrides_the_url() -> None:
    reg = registry()
    reg.register_mcp(BackendConfig(name="inside", url="https://example.com/mcp", transport=remote()))
    async with reg:
        assert await reg.execute("inside:one_text") == "one"


async def test_a_transport_may_be_a_subprocess() -> None:
    reg = registry()
    command = mcp.StdioServerParameters(command=sys.executable, args=["-I", "-S", str(SERVERS / "raw.py")])
    reg.register_mcp(BackendConfig(name="child", transport=command))
    with anyio.fail_after(10):
        async with reg:
            assert await reg.execute("child:echo", {"n": 1}) == '{"n": 1}'


async def test_max_retries_and_retry_interval_are_obeyed() -> None:
    attempts = list[str]()

    def flaky() -> Any:
        attempts.append("tried")
        if len(attempts) < 3:
            raise ConnectionRefusedError("nobody listens yet")
        return remote()

    reg = registry()
    reg.register_mcp(BackendConfig(name="flaky", transport=flaky, max_retries=2, retry_interval=0.01))
    reg.register_mcp(BackendConfig(name="gone", transport=refused, max_retries=1, retry_interval=0.01))
    with anyio.fail_after(10):
        async with reg:
            states: dict[str, str] = {}
            while states != {"flaky": "ready", "gone": "failed"} or len(attempts) < 3:
                await anyio.sleep(0.01)
                states = {status.name: str(status.state) for status in reg.statuses()}
            await reg.app.refresh()
            assert await reg.execute("flaky:one_text") == "one"
            with pytest.raises(ExecutionFailed, match="given up after 2 attempts"):
                await reg.execute("gone:one_text")
    assert len(attempts) == 3


# -- execution -----------------------------------------------------------------------------------------------------


async def test_execute_as_printed() -> None:
    async with registry() as reg:
        result = await reg.execute("utility:echo", {"message": "hi"})
    assert result == {"echo": "hi"}


class Provided:
    """A provider with the same tool as the registry's own."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    async def list_tools(self, ctx: Context) -> Sequence[Tool]:
        return (self.tool,)

    async def call_tool(self, ctx: Context, name: str, arguments: Mapping[str, Any]) -> str | None:
        return "from the provider" if name == self.tool.name else None


def test_routing_1_the_tool_is_looked_up_first() -> None:
    async def main() -> None:
        async with registry() as reg:
            with pytest.raises(ToolNotFound) as caught:
                await reg.execute("utility:ecko", {"message": "hi"})
            assert "utility:echo" in caught.value.suggestions

    anyio.run(main)


async def test_routing_2_the_selector_chooses_the_backend() -> None:
    seen = list[BackendKind]()

    def providers_only(backends: Sequence[Backend]) -> Sequence[Backend]:
        seen.extend(backend.kind for backend in backends)
        return [backend for backend in backends if backend.kind is BackendKind.PROVIDER]

    reg = registry(backend_selector=providers_only)
    reg.add_provider(Provided(await reg.get_tool("utility:echo")))
    async with reg:
        assert await reg.execute("utility:echo", {"message": "hi"}) == "from the provider"
    assert seen == [BackendKind.LOCAL, BackendKind.PROVIDER]


async def test_routing_3_local_handlers_come_before_providers_and_those_before_servers() -> None:
    reg = registry()
    provided = Provided(await reg.get_tool("utility:echo"))
    reg.add_provider(provided)
    async with reg:
        assert await reg.execute("utility:echo", {"message": "hi"}) == {"echo": "hi"}
        reg.unregister("utility:echo")
        assert await reg.execute("utility:echo", {"message": "hi"}) == "from the provider"


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        pytest.param("structured", {"n": 1}, id="structured-content-where-there-is-some"),
        pytest.param("one_text", "one", id="a-single-text-is-a-string"),
        pytest.param("two_texts", [{"type": "text", "text": "one"}] * 2, id="otherwise-the-content"),
        pytest.param("image", [{"type": "image", "data": "YQ==", "mimeType": "image/png"}], id="content-of-one-image"),
        pytest.param("nothing", None, id="nothing"),
    ],
)
async def test_result_mapping(tool: str, value: Any) -> None:
    async with with_remote() as reg:
        assert await reg.execute(f"remote-tools:{tool}") == value


# -- the protocol --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_initialize_tools_list_and_tools_call(mode: Any) -> None:
    async with with_remote() as reg, mcp.Client(reg.app.server, mode=mode) as client:
        listed = (await client.list_tools()).tools
        assert sorted(tool.name for tool in listed) == sorted(
            ["utility__echo", *(f"remote-tools__{name}" for name in RESULTS)]
        )
        result = await call(client, "utility__echo", {"message": "hi"})
        assert (result.structured_content, result.is_error) == ({"echo": "hi"}, False)
        assert (await call(client, "remote-tools__failed")).is_error


async def test_every_listed_name_can_be_called_by_that_name() -> None:
    async with with_remote() as reg, mcp.Client(reg.app.server) as client:
        for name in await names(client):
            arguments = {"message": "hi"} if name == "utility__echo" else {}
            assert isinstance(await call(client, name, arguments), mcp_types.CallToolResult)


# -- transports ----------------------------------------------------------------------------------------------------


SERVING = """
import anyio
from toolcrib.registry import BackendConfig, Registry

reg = Registry()

async def join(args):
    reg.register_mcp(BackendConfig(name="parent", url="stdio://"))
    await reg.app.settled()
    return reg.statuses()[0].reason

reg.register_local_func("join", "Takes the pipes, too", {"type": "object"}, join)
reg.register_local_func("size", "Of a text", {"type": "object"}, lambda args: len(args["text"]))
anyio.run(reg.serve_stdio)
"""


async def test_serve_stdio_serves_and_refuses_its_pipes_to_a_backend() -> None:
    parameters = mcp.StdioServerParameters(command=sys.executable, args=["-c", SERVING])
    with anyio.fail_after(20):
        async with mcp.Client(mcp.stdio_client(parameters)) as client:
            assert await names(client) == ["join", "size"]
            assert text_in(await call(client, "size", {"text": "x" * 200_000})) == "200000"
            assert "stdin and stdout are in use" in text_in(await call(client, "join"))


async def test_serve_http_is_an_app_to_be_mounted_anywhere() -> None:
    reg = registry()
    app = Starlette(routes=[Mount("/tools", reg.serve_http())])
    with anyio.fail_after(5):
        async with reg, over_http(app, path="/tools") as client:
            assert await names(client) == ["utility__echo"]
            assert text_in(await call(client, "utility__echo", {"message": "hi"})) == '{"echo":"hi"}'


async def test_serve_sse_is_the_older_transport_with_its_two_endpoints() -> None:
    reg = registry()
    with anyio.fail_after(10):
        async with reg, at_address(reg.serve_sse()) as address:
            async with mcp.Client(sse_client(f"{address}/sse"), mode="legacy") as client:
                assert await names(client) == ["utility__echo"]


async def test_one_app_serves_both_transports() -> None:
    app = registry().serve_http_and_sse()
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="on", log_level="warning"))
    with anyio.fail_after(20), server.config.bind_socket() as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            await until(lambda: server.started)
            async with mcp.Client(sse_client(f"{address}/sse"), mode="legacy") as client:
                assert await names(client) == ["utility__echo"]
            async with mcp.Client(f"{address}/mcp") as client:
                assert await names(client) == ["utility__echo"]
            server.should_exit = True


# -- the life cycle ------------------------------------------------------------------------------------------------


async def test_start_connects_the_backends_and_registers_their_tools() -> None:
    reg = with_remote()
    assert await reg.list_namespaces() == ("utility",)
    await reg.start()
    try:
        assert await reg.list_namespaces() == ("remote-tools", "utility")
    finally:
        await reg.stop()


async def test_stop_closes_the_sessions_and_the_registry_can_be_started_again() -> None:
    reg = with_remote()
    for _ in range(2):
        async with reg:
            assert await reg.execute("remote-tools:one_text") == "one"
        assert reg.app.fleet.providers() == ()
        assert await reg.list_namespaces() == ("utility",)


async def test_stop_before_start_does_nothing() -> None:
    reg = registry()
    await reg.stop()
    assert not reg.app.running


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanting", ["execute", "health_check", "refresh"])
async def test_error_not_started(wanting: str) -> None:
    reg = registry()
    asked = {"execute": ("utility:echo", {"message": "hi"})}.get(wanting, ())
    for _ in range(2):
        with pytest.raises(NotStarted, match="start"):
            await getattr(reg, wanting)(*asked)
        async with reg:
            await getattr(reg, wanting)(*asked)


async def test_error_already_started() -> None:
    async with registry() as reg:
        with pytest.raises(AlreadyStarted):
            await reg.start()
        assert await reg.execute("utility:echo", {"message": "hi"}) == {"echo": "hi"}


async def test_error_tool_not_found() -> None:
    async with registry() as reg:
        with pytest.raises(ToolNotFound):
            await reg.execute("utility:absent")
        with pytest.raises(ToolNotFound):
            reg.unregister("utility:absent")


def test_error_backend_not_found() -> None:
    with pytest.raises(BackendNotFound, match="absent"):
        registry().unregister_mcp("absent")
    with pytest.raises(BackendNotFound):
        registry().remove_provider(Provided(Tool(name="a")))


async def test_error_handler_not_found() -> None:
    async with registry(backend_selector=lambda backends: ()) as reg:
        with pytest.raises(HandlerNotFound, match="utility:echo"):
            await reg.execute("utility:echo", {"message": "hi"})


@pytest.mark.parametrize(
    ("tool", "why"), [("failed", "^one$"), ("failed_data", '{"n":1}'), ("failed_mute", "without a reason")]
)
async def test_error_execution_failed(tool: str, why: str) -> None:
    async with with_remote() as reg:
        with pytest.raises(ExecutionFailed, match=why):
            await reg.execute(f"remote-tools:{tool}")


async def test_error_execution_failed_for_a_handler_that_raises() -> None:
    def breaks(args: Mapping[str, Any]) -> None:
        raise ZeroDivisionError("by zero")

    reg = Registry()
    reg.register_local_func("breaks", "", {"type": "object"}, breaks)
    async with reg:
        with pytest.raises(ExecutionFailed, match="ZeroDivisionError: by zero"):
            await reg.execute("breaks")


@pytest.mark.parametrize("name", ["", "  ", "remote-tools"])
def test_error_invalid_request_for_a_backend_without_a_name_or_with_a_taken_one(name: str) -> None:
    reg = with_remote()
    with pytest.raises(InvalidRequest):
        reg.register_mcp(BackendConfig(name=name, transport=remote()))


async def test_error_invalid_request_for_arguments_that_do_not_fit() -> None:
    async with registry() as reg:
        with pytest.raises(InvalidRequest, match='"message" is required'):
            await reg.execute("utility:echo", {})


@pytest.mark.parametrize(
    "name",
    [
        "NotStarted",
        "AlreadyStarted",
        "ToolNotFound",
        "BackendNotFound",
        "HandlerNotFound",
        "ExecutionFailed",
        "InvalidRequest",
    ],
)
def test_all_seven_errors_are_public_and_of_one_tree(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, ToolcribError)
    assert error("what").code == "".join(f"_{c.lower()}" if c.isupper() else c for c in name).strip("_")


# -- the diagram ---------------------------------------------------------------------------------------------------


async def test_the_diagram_local_handlers_and_backends_meet_in_one_index_behind_every_transport() -> None:
    reg = with_remote()
    app = reg.serve_http()
    with anyio.fail_after(5):
        async with reg, over_http(app) as by_http, mcp.Client(reg.app.server) as by_memory:
            assert await names(by_http) == await names(by_memory)
            found = [hit.tool.id for hit in (await reg.search("")).hits]
            assert found == sorted(["utility:echo", *(f"remote-tools:{name}" for name in RESULTS)])


async def test_an_unknown_name_is_an_invalid_parameter_of_the_protocol() -> None:
    async with registry() as reg, mcp.Client(reg.app.server) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("absent", {})
    assert caught.value.error.code == -32602
