"""The surface `direct` without prefixes: what a client gets is what the server behind the gateway sends."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from tests.server.conftest import JSON, at_address, client_at
from tests.server.shop import FAST, Shop

from toolcrib.app import App
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import text_of
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

ERAS = ["legacy", "auto"]
COUNT: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "all": {"type": "boolean"},
        "region": {"type": "string", "x-mcp-header": "Region"},
    },
}


class Counter:
    """A server with one tool, which returns its arguments, reports progress, or fails as it is asked to."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.server: Server[Any] = Server("counter", on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="count", input_schema=dict(COUNT))])

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.received.append(params.arguments)
        arguments = params.arguments or {}
        for step in range(arguments.get("steps", 0)):
            await ctx.session.report_progress(step, 10, f"step {step}")
        if arguments.get("n") == 13:
            raise MCPError(-32050, "13 is not a number", {"try": 12})
        return types.CallToolResult(content=[types.TextContent(type="text", text=json.dumps(arguments))])


@contextlib.asynccontextmanager
async def direct(*servers: Any, surfaces: tuple[str, ...] = ("direct",), **more: Any) -> AsyncIterator[App]:
    """A gateway in front of servers, which are called a, b, and so on."""
    options = [ServerOptions(name=name, target=one.server) for name, one in zip("abc", servers, strict=False)]
    surface = SurfaceOptions(surfaces=surfaces, prefix=False)
    async with App(Settings(servers=tuple(options), surfaces=surface, fleet=FAST), **more) as app:
        await app.settled()
        yield app


@contextlib.asynccontextmanager
async def over_http(app: App) -> AsyncIterator[str]:
    options = HttpOptions(port=0)
    async with at_address(http_app(app.engine, options, ready=lambda: (True, {}))) as url:
        yield f"{url}/mcp"


@contextlib.asynccontextmanager
async def session_at(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client in a session of 2025-11-25."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    async with httpx2.AsyncClient(headers=JSON) as http:
        opened = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        http.headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield http


# -- prompts and resources -------------------------------------------------------------------------------------------


async def test_prompts_keep_their_own_names_unless_two_servers_have_the_same() -> None:
    with anyio.fail_after(10):
        async with direct(Shop("a", prompts=["greet", "mine"]), Shop("b")) as app:
            async with over_http(app) as url, client_at(url) as client:
                names = [prompt.name for prompt in (await client.list_prompts()).prompts]
                assert names == ["a__greet", "b__greet", "mine"]
                got = await client.get_prompt("mine", {"who": "me"})
                assert got.messages[0].content == types.TextContent(type="text", text="a mine {'who': 'me'}")
                argument = {"name": "who", "value": "x"}
                completed = await client.complete(types.PromptReference(type="ref/prompt", name="mine"), argument)
                assert completed.completion.values == ["a", "mine", "x"]


@pytest.mark.parametrize("mode", ERAS)
async def test_an_error_for_a_missing_resource_names_its_uri(mode: Any) -> None:
    with anyio.fail_after(10):
        async with direct(Shop("a"), Shop("b")) as app, over_http(app) as url, client_at(url, mode) as client:
            with pytest.raises(MCPError) as failed:
                await client.read_resource("nothing://here")
            assert failed.value.error.data["uri"] == "nothing://here"


async def test_a_uri_that_no_list_holds_goes_to_the_only_server_that_may_have_it() -> None:
    with anyio.fail_after(10):
        async with direct(Shop("a")) as app, over_http(app) as url, client_at(url) as client:
            assert (await client.read_resource("other://thing")).contents[0].uri == "other://thing"
        async with direct(Shop("a"), Shop("b", uris=["mail://1"])) as app, over_http(app) as url:
            async with client_at(url) as client:
                part = (await client.read_resource("mail://2")).contents[0]
                assert isinstance(part, types.TextResourceContents)
                assert part.text == "b has mail://2"
                with pytest.raises(MCPError, match="No resource is known"):
                    await client.read_resource("other://thing")


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
async def test_a_json_rpc_error_of_a_server_stays_one(mode: Any) -> None:
    with anyio.fail_after(10):
        async with direct(Counter()) as app, over_http(app) as url, client_at(url, mode) as client:
            with pytest.raises(MCPError, match="13 is not a number") as failed:
                await client.call_tool("count", {"n": 13})
            assert (failed.value.error.code, failed.value.error.data) == (-32050, {"try": 12})


async def test_a_meta_tool_shows_the_model_a_json_rpc_error_of_a_server_as_a_result() -> None:
    with anyio.fail_after(10):
        async with direct(Counter(), surfaces=("search",)) as app, over_http(app) as url, client_at(url) as client:
            result = await client.call_tool("execute_tool", {"name": "a:count", "arguments": {"n": 13}})
            assert result.is_error
            assert "13 is not a number" in text_of(result)


async def test_a_server_decides_itself_on_the_arguments_of_its_own_tools() -> None:
    counter, sent = Counter(), {"n": "1", "all": None, "more": 2}
    with anyio.fail_after(10):
        async with direct(counter) as app, over_http(app) as url, client_at(url) as client:
            await client.call_tool("count", sent)
        assert counter.received == [sent]


async def test_arguments_in_another_form_than_the_schemas_are_repaired_for_a_meta_tool() -> None:
    counter = Counter()
    with anyio.fail_after(10):
        async with direct(counter, surfaces=("search",)) as app, over_http(app) as url, client_at(url) as client:
            sent = {"n": "1", "all": "true", "region": None}
            await client.call_tool("execute_tool", {"name": "a:count", "arguments": sent})
            refused = await client.call_tool("execute_tool", {"name": "a:count", "arguments": {"n": "one"}})
            assert '"n" must be integer' in text_of(refused)
        assert counter.received == [{"n": 1, "all": True}]


def _call(headers: Mapping[str, str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "count"}
    params = {"name": "count", "arguments": arguments, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return {"headers": {**JSON, **modern, **headers}, "json": message}


async def test_a_header_that_differs_from_its_argument_is_refused() -> None:
    with anyio.fail_after(10):
        async with direct(Counter()) as app, over_http(app) as url, httpx2.AsyncClient() as http:
            agreed = await http.post(url, **_call({"mcp-param-region": "eu"}, {"region": "eu"}))
            assert agreed.status_code == 200
            for headers in ({}, {"mcp-param-region": "us"}):
                refused = await http.post(url, **_call(headers, {"region": "eu"}))
                assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32020)


async def test_the_check_of_headers_does_not_reveal_a_hidden_tool() -> None:
    hidden = ByScopes([Rule(tools=("a:*",), scopes=("never",))])
    with anyio.fail_after(10):
        async with direct(Counter(), policy=hidden) as app, over_http(app) as url, httpx2.AsyncClient() as http:
            answer = await http.post(url, **_call({"mcp-param-region": "us"}, {"region": "eu"}))
            assert "No tool is called" in answer.json()["error"]["message"]


# -- sessions over HTTP ----------------------------------------------------------------------------------------------


async def test_a_session_gets_progress_in_order_before_the_result() -> None:
    reported: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append((progress, total, message))

    with anyio.fail_after(10):
        async with direct(Counter()) as app, over_http(app) as url, client_at(url, "legacy") as client:
            result = await client.call_tool("count", {"steps": 3}, progress_callback=note)
            assert text_of(result) == '{"steps": 3}'
            assert reported == [(step, 10, f"step {step}") for step in range(3)]


@pytest.mark.parametrize(
    ("meta", "steps", "kind"),
    [({}, 3, "json"), ({"progressToken": 7}, 0, "json"), ({"progressToken": 7}, 3, "event-stream")],
)
async def test_only_a_request_with_progress_to_report_gets_events(meta: Any, steps: int, kind: str) -> None:
    params = {"name": "count", "arguments": {"steps": steps}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    with anyio.fail_after(10):
        async with direct(Counter()) as app, over_http(app) as url, session_at(url) as http:
            answer = await http.post(url, json=message)
            assert answer.headers["content-type"].split("/")[1] == kind
            assert answer.text.count('"progressToken":7') == (3 if kind == "event-stream" else 0)
            plain = await http.post(url, json=message, headers={"accept": "application/json"})
            assert plain.headers["content-type"] == "application/json"
            assert plain.json()["result"]["isError"] is False


async def test_a_stream_can_be_opened_again_where_another_one_broke_off() -> None:
    with anyio.fail_after(10):
        async with direct(Counter()) as app, over_http(app) as url, session_at(url) as http:
            async with http.stream("GET", url, headers={"last-event-id": "7"}) as answer:
                assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")


@pytest.mark.parametrize("bad", [None, 1.5, True, {}, []])
async def test_a_request_with_an_id_of_another_type_is_refused(bad: Any) -> None:
    counter = Counter()
    message = {"jsonrpc": "2.0", "id": bad, "method": "tools/call", "params": {"name": "count"}}
    with anyio.fail_after(10):
        async with direct(counter) as app, over_http(app) as url, session_at(url) as http:
            refused = await http.post(url, json=message)
            assert refused.status_code == 400
            assert "id must be a string or an integer" in refused.json()["error"]["message"]
        assert counter.received == []


# -- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("surface", ["direct", "search", "progressive", "dynamic"])
async def test_the_list_of_tools_is_the_same_byte_for_byte_until_the_tools_change(surface: str) -> None:
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    uses = [("count", {"n": 1}), ("tool_search", {"query": "count"}), ("execute_tool", {"name": "a:count"})]
    with anyio.fail_after(10):
        async with direct(Counter(), Shop("b"), surfaces=(surface,)) as app, over_http(app) as url:
            async with session_at(url) as http, session_at(url) as other:
                first = (await http.post(url, json=listing)).content
                for name, arguments in uses:
                    params = {"name": name, "arguments": arguments}
                    await http.post(url, json={"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params})
                assert (await http.post(url, json=listing)).content == first
                assert (await other.post(url, json=listing)).content == first


# -- requests to servers ---------------------------------------------------------------------------------------------

_LOOK_UPS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "search": {"tool_search": {"query": "count"}},
    "dynamic": {
        "list_tools": {},
        "search_tools": {"query": "count"},
        "get_tool_schema": {"tool_name": "a:count"},
        "get_tool_schemas": {"tool_names": ["a:count"]},
    },
    "progressive": {
        "list-servers": {},
        "list-server-tools": {"luaServerName": "a"},
        "tool-details": {"luaServerName": "a", "luaToolName": "count"},
    },
    "direct": {},
}


@pytest.mark.parametrize("surface", list(_LOOK_UPS))
@pytest.mark.parametrize("mode", ERAS)
async def test_lists_searches_and_descriptions_make_no_request_to_a_server(surface: str, mode: Any) -> None:
    counter, asked = Counter(), list[str]()

    async def count(ctx: Any, call_next: Any) -> Any:
        asked.append(ctx.method)
        return await call_next(ctx)

    counter.server.middleware.append(count)
    with anyio.fail_after(10):
        async with direct(counter, surfaces=(surface,)) as app, over_http(app) as url, client_at(url, mode) as client:
            await client.list_tools(cache_mode="bypass")
            asked.clear()
            for _ in range(2):
                await client.list_tools(cache_mode="bypass")
                for tool, arguments in _LOOK_UPS[surface].items():
                    result = await client.call_tool(tool, dict(arguments))
                    assert not result.is_error, text_of(result)
                    assert "count" in text_of(result) or tool == "list-servers"
            assert asked == []


async def test_a_long_result_after_progress_arrives_whole() -> None:
    with anyio.fail_after(10):
        async with direct(Counter()) as app, over_http(app) as url, client_at(url, "legacy") as client:
            steps: list[float] = []

            async def report(progress: float, total: float | None, message: str | None) -> None:
                steps.append(progress)

            arguments = {"steps": 2, "pad": "x" * 300_000}
            result = await client.call_tool("count", arguments, progress_callback=report)
            assert json.loads(text_of(result)) == arguments
            assert steps == [0, 1]
