"""Lists of tools, whose entries are encoded once for each definition, and large results, over every transport."""

import json
from dataclasses import replace
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from tests.server.conftest import JSON, Crib, at_address, client_at, crib, names, native
from tests.server.test_stdio import OPENING, request

from toolcrib.server import methods
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.methods import EntryCache
from toolcrib.server.options import HttpOptions
from toolcrib.surfaces.facade import ListedTool
from toolcrib.types import Context, Object, Tool, ToolResult, Visibility
from toolcrib.wire import entry_for_version, read_tool

pytestmark = pytest.mark.anyio


ODD = Tool(
    name="odd",
    description='Says "nextCursor": "x" and \u00e9, \u2028, \U0001f980',
    input_schema={"type": "object", "properties": {"a": {"default": None, "x-own": [1.5, None]}}, "$defs": {"b": {}}},
    output_schema={"type": "array"},
    annotations={"readOnlyHint": True},
    icons=({"src": "https://a/b.png"},),
    meta={"k": {"n": None}},
    visibility=Visibility.NATIVE,
)


def app_of(served: Crib) -> Any:
    return http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_list_is_the_same_over_http_and_in_memory(mode: Any) -> None:
    with anyio.fail_after(10):
        async with crib(ODD, surfaces=["search", "direct"]) as served, at_address(app_of(served)) as url:
            async with client_at(f"{url}/mcp", mode) as there, mcp.Client(served.server, mode=mode) as here:
                over_http, in_memory = await there.list_tools(), await here.list_tools()
    assert over_http == in_memory
    assert "odd" in [tool.name for tool in over_http.tools]


@pytest.mark.parametrize("modern", [False, True])
async def test_the_response_is_one_json_body_with_a_correct_content_length(*, modern: bool) -> None:
    meta: dict[str, Any] = {f"io.modelcontextprotocol/{key}": {} for key in ("clientCapabilities",)}
    meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28"
    with anyio.fail_after(10):
        async with crib(ODD, surfaces=["direct"]) as served:
            app = app_of(served)
            transport = httpx2.ASGITransport(app=app)
            async with app.running(), httpx2.AsyncClient(transport=transport, headers=JSON) as http:
                headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
                params: dict[str, Any] = {"_meta": meta}
                if not modern:
                    opened = await http.post("http://localhost/mcp", json=OPENING)
                    headers, params = {"mcp-session-id": opened.headers["mcp-session-id"]}, {}
                answer = await http.post(
                    "http://localhost/mcp", headers=headers, json=request(7, "tools/list", **params)
                )
    assert answer.headers["content-length"] == str(len(answer.content))
    (tool,) = answer.json()["result"]["tools"]
    assert tool["inputSchema"] == ODD.input_schema
    assert tool["_meta"] == ODD.meta
    assert ("_meta" in answer.json()["result"]) is modern
    assert answer.json()["id"] == 7


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_an_invalid_cursor_is_rejected_as_usual(mode: Any) -> None:
    with anyio.fail_after(10):
        async with crib(ODD) as served, at_address(app_of(served)) as url:
            async with client_at(f"{url}/mcp", mode) as client:
                with pytest.raises(MCPError) as refused:
                    await client.list_tools(cursor="nonsense")
    assert refused.value.code == types.INVALID_PARAMS


async def test_only_a_definition_that_no_client_could_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    bad = Tool(name="bad", annotations={"readOnlyHint": {"no": "hint"}}, visibility=Visibility.NATIVE)
    async with crib(ODD, bad, surfaces=["direct"]) as served, mcp.Client(served.server, mode="legacy") as client:
        assert await names(client) == ["odd"]
    assert "bad cannot be listed" in caplog.text


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": True, "\u043a": {"default": None}}, "required": []}
ODD_ENTRIES: list[dict[str, Any]] = [
    {"name": "plain", "inputSchema": {"type": "object"}},
    {"name": "list", "inputSchema": SCHEMA, "outputSchema": {"type": "array"}},
    {"name": "any", "inputSchema": SCHEMA, "outputSchema": {"anyOf": [{"type": "object"}]}},
    {"name": "own", "inputSchema": {**SCHEMA, "x-own": {"a": None}}, "outputSchema": SCHEMA},
    {"name": "hints", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True, "openWorldHint": False}},
    {"name": "more-hints", "inputSchema": SCHEMA, "annotations": {"title": "x", "own": {"deep": [1, None]}}},
    {"name": "icon", "inputSchema": SCHEMA, "icons": [{"src": "https://a/b"}]},
    {"name": "more-icon", "inputSchema": SCHEMA, "icons": [{"src": "https://a/b", "sizes": ["any"], "extra": 1}]},
    {"name": "meta", "inputSchema": SCHEMA, "_meta": {"n": None, "big": 12345678901234567890123, "f": 1.5e300}},
    {"name": "task", "inputSchema": SCHEMA, "execution": {"taskSupport": "optional"}, "vendor": {"x": 1}},
    {"name": "text", "title": "T", "description": "\u2028 \U0001f980 </script>", "inputSchema": SCHEMA},
]
ERA_KEYS = ("outputSchema", "execution")
"""Parts of an entry that not every version of the protocol has."""


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_entries_keep_what_their_server_sent(version: str) -> None:
    read = [read_tool(entry, namespace="x") for entry in ODD_ENTRIES]
    tools = [replace(tool, visibility=Visibility.NATIVE) for one in read if (tool := one.tool) is not None]
    listed = {tool["name"].removeprefix("x__"): tool for tool in (await listed_over_http(version, *tools))["tools"]}
    assert len(listed) == len(ODD_ENTRIES)
    for entry in ODD_ENTRIES:
        kept = {key: value for key, value in listed[entry["name"]].items() if key not in ERA_KEYS}
        sent = {key: value for key, value in entry.items() if key not in ERA_KEYS}
        assert kept == {**sent, "name": f"x__{entry['name']}"}


async def test_a_null_in_place_of_a_hint_is_left_out_because_some_clients_refuse_it() -> None:
    tool = Tool(name="odd", annotations={"readOnlyHint": None, "title": "O"}, visibility=Visibility.NATIVE)
    (entry,) = (await listed_over_http("2025-11-25", tool))["tools"]
    assert entry["annotations"] == {"title": "O"}


async def listed_over_http(version: str, *tools: Tool) -> dict[str, Any]:
    """The result of `tools/list`, parsed from the response body."""
    async with crib(*tools, surfaces=["direct"]) as served:
        app = app_of(served)
        transport = httpx2.ASGITransport(app=app)
        async with app.running(), httpx2.AsyncClient(transport=transport, headers=JSON) as http:
            headers, params = {"mcp-protocol-version": version, "mcp-method": "tools/list"}, dict[str, Any]()
            if version == "2026-07-28":
                said = {"protocolVersion": version, "clientCapabilities": {}}
                params["_meta"] = {f"io.modelcontextprotocol/{key}": value for key, value in said.items()}
            else:
                opening: Any = {**OPENING}
                opening["params"] = {**opening["params"], "protocolVersion": version}
                opened = await http.post("http://localhost/mcp", json=opening)
                headers["mcp-session-id"] = opened.headers["mcp-session-id"]
            answer = await http.post("http://localhost/mcp", headers=headers, json=request(7, "tools/list", **params))
    result: dict[str, Any] = answer.json()["result"]
    return result


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tools that were encoded."""
    made: list[str] = []

    def noted(entry: dict[str, Any], version: str) -> dict[str, Any]:
        made.append(entry["name"])
        return entry_for_version(entry, version)

    monkeypatch.setattr(methods, "entry_for_version", noted)
    return made


async def test_only_changed_tools_are_encoded_again(made: list[str]) -> None:
    async with crib(native("add"), native("sub"), surfaces=["direct"]) as served:
        for _ in range(2):
            async with mcp.Client(served.server, mode="legacy") as client:
                assert await names(client) == ["add", "sub"]
        assert made == ["add", "sub"]
        await served.offer(native("add"), native("sub", description="Takes away"))
        async with mcp.Client(served.server, mode="legacy") as client:
            assert [tool.description for tool in (await client.list_tools()).tools] == [None, "Takes away"]
        assert made == ["add", "sub", "sub"]


def listed(number: int, **more: Any) -> ListedTool:
    return ListedTool(f"t{number}", Tool(name=f"t{number}", **more), 1, b"%d" % number)


def entry(known: EntryCache, tool: ListedTool, version: str) -> dict[str, Any]:
    (only,) = json.loads(known.encoded([tool], version).text)
    assert isinstance(only, dict)
    return only


def test_each_era_has_its_own_entries() -> None:
    known, tool = EntryCache(), listed(1, output_schema={"type": "array"})
    assert "outputSchema" in entry(known, tool, "2026-07-28")
    assert "outputSchema" not in entry(known, tool, "2025-11-25")
    assert entry(known, tool, "2025-06-18") == entry(known, tool, "2025-11-25")


def test_the_entry_cache_is_limited(made: list[str]) -> None:
    known = EntryCache(limit=2)
    for number in (1, 2, 3, 3, 2, 1):
        assert entry(known, listed(number), "2026-07-28")["name"] == f"t{number}"
    assert made == ["t1", "t2", "t3", "t1"]


BLOCKS: list[dict[str, Any]] = [
    *({"type": "text", "text": f"number {n}", "_meta": {"n": n}} for n in range(900)),
    {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"priority": 1.0}},
    {"type": "hologram", "data": [1]},
    {"type": "text", "text": "é\ud83d"},
]
LARGE = ToolResult(content=tuple(BLOCKS), structured={"rows": [[n] for n in range(9000)]}, meta={"k": "v"})


async def large(ctx: Context, name: str, arguments: Object) -> ToolResult:
    """A result with many blocks and a large structure."""
    return LARGE


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_large_result_is_the_same_over_http_as_in_memory(mode: str) -> None:
    echo = Tool(name="echo", visibility=Visibility.NATIVE)
    async with crib(echo, handler=large, surfaces=["direct"]) as served:
        async with mcp.Client(served.server, mode=mode) as client:
            direct = await client.call_tool("echo", {})
        async with at_address(app_of(served)) as url, client_at(f"{url}/mcp", mode=mode) as client:
            over_http = await client.call_tool("echo", {})
            with_progress = await client.call_tool("echo", {}, progress_callback=_ignore)
    assert len(direct.content) == 903
    assert (over_http, with_progress) == (direct, direct)


async def _ignore(progress: float, total: float | None, message: str | None) -> None:
    """A callback, so that the client asks for progress."""
