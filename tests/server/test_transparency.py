"""With the surface `direct` and without prefixes, a client gets what the server sends, message for message.

Each recorded server is asked twice, with and without the gateway in front of it, by a client of the same version.
"""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import anyio
import httpx2
import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.server.conftest import JSON, at_address
from tests.server.shop import FAST
from tests.upstream.support import serving

from toolcrib import errors
from toolcrib.app import App
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.middleware.options import CacheOptions, CallOptions, RateOptions
from toolcrib.providers.builder import new_tool
from toolcrib.settings.options import Settings
from toolcrib.state.options import StateOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.types import Context, Object, Tool, ToolResult
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
OLDER, MODERN = "2025-11-25", "2026-07-28"
VERSIONS: Final = (OLDER, MODERN)
ANY: Final[Json] = {"type": "object", "properties": {"path": {"type": "string"}}}
ROWS: Final[Json] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"type": "integer"}}},
    "required": ["rows"],
    "additionalProperties": False,
}


def text(said: str, **more: Any) -> Json:
    """A result with a text."""
    return {"content": [{"type": "text", "text": said}], **more}


# As servers of well-known kinds send them: written with the TypeScript, Python, Go, C# and Rust SDKs, and without any.
TOOLS: Final[Mapping[str, tuple[Json, Json]]] = {
    "plain": ({"description": "Says done.", "inputSchema": ANY}, {"result": text("done")}),
    "typescript": (
        {
            "title": "Read a File",
            "inputSchema": {**ANY, "$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False},
            "annotations": {"readOnlyHint": True, "audience": ["user"], "x-vendor": {"tier": 2}},
            "execution": {"taskSupport": "forbidden"},
        },
        {"result": text("contents", structuredContent={"content": "contents"})},
    ),
    "python": (
        {"inputSchema": {**ANY, "title": "readArguments"}, "outputSchema": ROWS, "_meta": {"vendor/tags": ["a"]}},
        {"result": text('{"rows":[1]}', structuredContent={"rows": [1]}, isError=False)},
    ),
    "go": (
        {"annotations": {"destructiveHint": False, "title": "Get"}, "inputSchema": ANY},
        {"result": {"content": [], "_meta": {"vendor/took": 0.25}, "isError": False}},
    ),
    "failing": ({"inputSchema": ANY}, {"result": text("No such file:\n  a.txt", isError=True)}),
    "promised": ({"inputSchema": ANY, "outputSchema": ROWS}, {"result": text("no rows", isError=True)}),
    "many": (
        {"inputSchema": ANY, "icons": [{"src": "https://x.example/i.svg", "sizes": ["any"]}]},
        {
            "result": {
                "content": [
                    {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"priority": 0.5}},
                    {"type": "text", "text": "größe \u2028", "_meta": {"a/b": None}, "vendor": True},
                    {"type": "resource", "resource": {"uri": "file:///a", "text": "a", "mimeType": "text/plain"}},
                    {"type": "resource_link", "uri": "https://x.example/b", "name": "b", "size": 3},
                ],
            }
        },
    ),
    "vendor": (
        {"id": 17, "inputSchema": ANY, "vendor": {"rank": [1, None]}, "nothing": None, "description": "Is a vendor's."},
        {"result": text("ok", vendorHint={"next": "plain"}, nextStep=None)},
    ),
    "empty": (
        {"description": "", "inputSchema": ANY, "annotations": {}, "icons": [], "execution": {}, "_meta": {}},
        {"result": {"isError": False, "structuredContent": None, "content": [], "_meta": {}}},
    ),
    "ordered": (
        {
            "outputSchema": ROWS,
            "annotations": {"title": "Rows"},
            "inputSchema": ANY,
            "title": "Rows",
            "id": True,
        },
        {"result": {"structuredContent": {"rows": []}, "more": True, "content": [], "isError": False}},
    ),
    "refusing": ({"inputSchema": ANY}, {"error": {"code": -32602, "message": "Unknown path"}}),
    "explaining": (
        {"inputSchema": ANY},
        {"error": {"code": -32050, "message": "Quota used up:\n\tcome back later", "data": {"retry": [1, {"s": 2}]}}},
    ),
}
TASKED: Final[Json] = {"name": "tasked", "execution": {"taskSupport": "optional"}, "inputSchema": ANY}
"""A tool that may run as a task, which 2026-07-28 has made an extension."""
CAPABILITIES: Final[Mapping[str, Json]] = {
    OLDER: {"tools": {"listChanged": False}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}},
    MODERN: {"tools": {"listChanged": False}},
}


def as_text(value: Json | list[Json]) -> str:
    """A value as it is written, with the order of its keys."""
    return json.dumps(value)


def recorded(version: str) -> Starlette:
    """A server of one version that answers with what was recorded."""

    def outcome(method: str, params: Json) -> Json:
        about = {"capabilities": CAPABILITIES[version]}
        if method == "initialize" and version == OLDER:
            return {"result": {"protocolVersion": OLDER, "serverInfo": {"name": "r", "version": "1"}, **about}}
        if method == "server/discover" and version == MODERN:
            return {"result": {"supportedVersions": [MODERN], **about, "ttlMs": 0, "cacheScope": "private"}}
        if method == "tools/list":
            tools = [{"name": name, **tool} for name, (tool, _) in TOOLS.items()]
            return {"result": {"tools": [*tools, TASKED] if version == OLDER else tools}}
        if method == "tools/call" and params["name"] in TOOLS:
            return TOOLS[params["name"]][1]
        return {"error": {"code": -32601, "message": "Method not found"}}

    async def answer(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        if "id" not in message:
            return Response(status_code=202)
        found = outcome(message["method"], message.get("params", {}))
        if version == MODERN and "result" in found:
            found = {"result": {**found["result"], "resultType": "complete"}}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], **found})

    return Starlette(routes=[Route("/mcp", answer, methods=["GET", "POST", "DELETE"])])


class Client:
    """A client of one version, which reads nothing but JSON."""

    def __init__(self, http: httpx2.AsyncClient, url: str, version: str) -> None:
        self._http, self._url, self._version = http, url, version

    async def open(self) -> None:
        """Begin, as the version has it."""
        if self._version == MODERN:
            return
        params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
        opened = await self._post("initialize", params)
        self._http.headers["mcp-protocol-version"] = OLDER
        if "mcp-session-id" in opened.headers:
            self._http.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        await self._http.post(self._url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def ask(self, method: str, **params: Any) -> Json:
        """The result or the error, without what a server says of itself in every result of the newer version."""
        answer = (await self._post(method, params)).json()
        outcome = {key: answer[key] for key in ("result", "error") if key in answer}
        meta = outcome.get("result", {}).get("_meta", {})
        meta.pop("io.modelcontextprotocol/serverInfo", None)
        if not meta:
            outcome.get("result", {}).pop("_meta", None)
        return outcome

    async def _post(self, method: str, params: Json) -> httpx2.Response:
        headers = {}
        if self._version == MODERN:
            about = {"protocolVersion": MODERN, "clientCapabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
            params = {**params, "_meta": {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}}
            headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
            if "name" in params:
                headers["mcp-name"] = params["name"]
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await self._http.post(self._url, json=message, headers=headers)


@contextlib.asynccontextmanager
async def client_of(url: str, version: str) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers=JSON) as http:
        client = Client(http, url, version)
        await client.open()
        yield client


@contextlib.asynccontextmanager
async def gateway(
    options: GatewayOptions | None = None, *, state: StateOptions | None = None, **server: Any
) -> AsyncIterator[str]:
    """The address of a gateway that shows the tools of one server as they are."""
    settings = Settings(
        servers=(ServerOptions(name="r", **server),),
        surfaces=SurfaceOptions(surfaces=("direct",), prefix=False),
        gateway=options or GatewayOptions(),
        state=state or StateOptions(),
        fleet=FAST,
    )
    async with App(settings) as app:
        await app.settled()
        async with at_address(app.asgi()) as url:
            yield f"{url}/mcp"


@contextlib.asynccontextmanager
async def both(version: str) -> AsyncIterator[tuple[Client, Client]]:
    """Clients of a recorded server, and of a gateway in front of it."""
    with anyio.fail_after(20):
        async with serving(recorded(version)) as url, gateway(url=f"{url}/mcp") as front:
            async with client_of(f"{url}/mcp", version) as alone, client_of(front, version) as behind:
                yield alone, behind


@pytest.mark.parametrize("version", VERSIONS)
async def test_definitions_arrive_as_the_server_sends_them(version: str) -> None:
    async with both(version) as (alone, behind):
        expected = (await alone.ask("tools/list"))["result"]["tools"]
        found = (await behind.ask("tools/list"))["result"]["tools"]
        assert {tool["name"]: as_text(tool) for tool in found} == {tool["name"]: as_text(tool) for tool in expected}


@pytest.mark.parametrize("setting", ["trust", "lint"])
async def test_a_server_whose_changes_are_held_is_listed_without_the_keys_that_no_pin_has(setting: str) -> None:
    more: Any = {setting: "hold"}
    with anyio.fail_after(20):
        async with serving(recorded(OLDER)) as url, gateway(url=f"{url}/mcp", **more) as front:
            async with client_of(front, OLDER) as client:
                tools = {tool["name"]: tool for tool in (await client.ask("tools/list"))["result"]["tools"]}
    assert as_text(tools["vendor"]) == as_text({"name": "vendor", "inputSchema": ANY, "description": "Is a vendor's."})
    assert tools["empty"] == {"name": "empty", **TOOLS["empty"][0]}


@pytest.mark.parametrize("name", sorted(TOOLS))
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_outcome_of_a_call_arrives_as_the_server_sends_it(version: str, name: str) -> None:
    async with both(version) as (alone, behind):
        call = {"name": name, "arguments": {"path": "a.txt"}}
        assert as_text(await behind.ask("tools/call", **call)) == as_text(await alone.ask("tools/call", **call))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_cached_result_is_what_the_server_has_sent(version: str) -> None:
    cache = GatewayOptions(calls=CallOptions(cache=CacheOptions(tools=("r:*",), per="scope")))
    with anyio.fail_after(20):
        async with serving(recorded(version)) as url, gateway(cache, url=f"{url}/mcp") as front:
            async with client_of(front, version) as client:
                for name in ("plain", "python", "empty", "ordered"):
                    first, second = [await client.ask("tools/call", name=name, arguments={}) for _ in range(2)]
                    assert as_text(second) == as_text(first)


async def test_definitions_arrive_as_they_are_from_a_catalog_that_was_stored(tmp_path: Path) -> None:
    state = StateOptions(path=tmp_path / "state.sqlite")

    async def listed(url: str) -> str:
        async with gateway(state=state, url=url) as front, client_of(front, OLDER) as client:
            return as_text((await client.ask("tools/list"))["result"]["tools"])

    with anyio.fail_after(20):
        async with serving(recorded(OLDER)) as server:
            url = f"{server}/mcp"
            async with client_of(url, OLDER) as alone:
                expected = (await alone.ask("tools/list"))["result"]["tools"]
            fresh = await listed(url)
        stored = await listed(url)
    assert stored == fresh == as_text(sorted(expected, key=lambda tool: str(tool["name"])))


# -- what the gateway itself answers -----------------------------------------------------------------------------------


def accepts(tool: Json, outcome: Json) -> bool:
    """Whether a client of the TypeScript SDK shows its user the outcome, and no complaint of its own about it.

    It checks structured content against the output schema, that of errors too.
    """
    result = outcome.get("result")
    if result is None or "outputSchema" not in tool:
        return True
    if "structuredContent" not in result:
        return result.get("isError") is True
    return bool(jsonschema_rs.is_valid(tool["outputSchema"], result["structuredContent"]))


def kinds(of: type[errors.ToolcribError]) -> list[type[errors.ToolcribError]]:
    """An error and all errors below it."""
    return [of, *(kind for below in of.__subclasses__() for kind in kinds(below))]


KINDS: Final = sorted({kind for kind in kinds(errors.ToolcribError) if kind.__module__ == errors.__name__}, key=str)


@contextlib.asynccontextmanager
async def promising(version: str, work: Any, **more: Any) -> AsyncIterator[tuple[Client, Json]]:
    """A client of a gateway with one tool, which promises rows; and the tool as it is listed."""
    surfaces = SurfaceOptions(surfaces=("direct",), prefix=False)
    policy = more.pop("policy", None)
    with anyio.fail_after(20):
        async with App(Settings(surfaces=surfaces, fleet=FAST, **more), policy=policy) as app:
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
            app.register(Tool(name="rows", input_schema=schema, output_schema=ROWS), work)
            async with at_address(app.asgi()) as url, client_of(f"{url}/mcp", version) as client:
                (tool,) = (await client.ask("tools/list"))["result"]["tools"]
                yield client, tool


@pytest.mark.parametrize("kind", [*KINDS, RuntimeError], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("version", VERSIONS)
async def test_an_error_of_a_tool_breaks_no_promise_of_its_output_schema(version: str, kind: Any) -> None:
    async def fail(arguments: Object, ctx: Context) -> ToolResult:
        raise kind("It went wrong.")

    async with promising(version, fail) as (client, tool):
        assert "outputSchema" in tool
        outcome = await client.ask("tools/call", name="rows", arguments={"n": 1})
        assert accepts(tool, outcome)
        assert "error" in outcome or outcome["result"]["isError"]


REFUSALS: Final[Mapping[str, tuple[Any, Json]]] = {
    "invalid arguments": ({"n": "many"}, {}),
    "a rate": ({"n": 1}, {"gateway": GatewayOptions(calls=CallOptions(rate=RateOptions(per_second=0.001, burst=1)))}),
    "a deadline": ({"n": 0}, {"gateway": GatewayOptions(calls=CallOptions(deadline_s=0.01))}),
    "an approval": ({"n": 1}, {"gateway": GatewayOptions(calls=CallOptions(approval="always"))}),
    "a policy": ({"n": 1}, {"policy": ByScopes([Rule(tools=("rows",), effect="approve")])}),
}


@pytest.mark.parametrize("why", sorted(REFUSALS))
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_call_that_the_gateway_refuses_breaks_no_promise_of_the_output_schema(version: str, why: str) -> None:
    arguments, settings = REFUSALS[why]

    async def work(arguments: Object, ctx: Context) -> Any:
        if arguments["n"] == 0:
            await anyio.sleep_forever()
        return {"rows": [1]}

    async with promising(version, work, **dict(settings)) as (client, tool):
        call = {"name": "rows", "arguments": arguments}
        outcomes = [await client.ask("tools/call", **call) for _ in range(2)]
        assert all(accepts(tool, outcome) for outcome in outcomes)
        assert "error" in outcomes[1] or outcomes[1]["result"]["isError"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_error_result_says_in_meta_what_went_wrong(version: str) -> None:
    async def work(arguments: Object, ctx: Context) -> Any:
        raise errors.ExecutionFailed("The printer is out of paper.", hint="Refill it.")

    async with promising(version, work) as (client, _):
        result = (await client.ask("tools/call", name="rows", arguments={"n": 1}))["result"]
        said = result["_meta"]["toolcrib/error"]
        assert (said["code"], said["message"], said["hint"]) == (
            "execution_failed",
            "The printer is out of paper.",
            "Refill it.",
        )


async def handle(arguments: Object) -> Any:
    return {"rows": [1, 2], "more": []}


def written() -> dict[str, Any]:
    return {"rows": "none"}


def annotated() -> dict[str, list[int]]:
    return cast("dict[str, list[int]]", {"rows": "none"})


def whole() -> dict[str, list[int]]:
    return cast("dict[str, list[int]]", ToolResult(structured={"rows": "none"}))


BREAKING: Final[Mapping[str, Callable[[App], object]]] = {
    "by annotation": lambda app: app.tool("rows")(annotated),
    "by annotation, with a whole result": lambda app: app.tool("rows")(whole),
    "by a written schema": lambda app: app.tool("rows", output_schema=ROWS)(written),
    "by a written schema of a list": lambda app: app.tool("rows", output_schema={"type": "array"})(written),
    "by a registered tool": lambda app: app.register(Tool(name="rows", output_schema=ROWS), handle),
    "by a builder": lambda app: app.register(new_tool("rows").discoverable().returns(ROWS), handle),
}


@pytest.mark.parametrize("name", ["rows", "execute_tool"])
@pytest.mark.parametrize("way", sorted(BREAKING))
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_function_that_breaks_its_own_output_schema_fails_and_says_where(
    version: str, way: str, name: str
) -> None:
    surfaces = SurfaceOptions(surfaces=("direct", "search"), prefix=False)
    with anyio.fail_after(20):
        async with App(Settings(surfaces=surfaces, fleet=FAST)) as app:
            BREAKING[way](app)
            async with at_address(app.asgi()) as url, client_of(f"{url}/mcp", version) as client:
                listed = (await client.ask("tools/list"))["result"]["tools"]
                tool = next(tool for tool in listed if tool["name"] == name)
                arguments = {"name": "rows", "arguments": {}} if name == "execute_tool" else {}
                outcome = await client.ask("tools/call", name=name, arguments=arguments)
    assert accepts(tool, outcome)
    assert outcome["result"]["isError"]
    assert re.search(r"rows returned a value that does not (fit|match)", outcome["result"]["content"][0]["text"])
