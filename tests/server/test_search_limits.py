"""Limits of searches, descriptions and lists: every way to ask for one gives the same honest answer."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from tests.server.conftest import token

from toolcrib import App, AuditEvent, Settings
from toolcrib.errors import RateLimited
from toolcrib.options import CallOptions, GatewayOptions, HttpOptions, RateOptions, SurfaceOptions, Token
from toolcrib.settings.options import TelemetryOptions
from toolcrib.types import Caller, Context, SearchRequest

pytestmark = pytest.mark.anyio

TOKENS = (Token(secret="ann-secret", caller="ann"), Token(secret="bob-secret", caller="bob"))
SLOW = RateOptions(per_second=0.001, burst=1)
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}

METHODS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
META_TOOLS: list[tuple[str, str, Mapping[str, Any], str]] = [
    ("search", "tool_search", {"query": "add numbers"}, "search"),
    ("search", "tool_search", {}, "search"),
    ("dynamic", "list_tools", {}, "list"),
    ("dynamic", "search_tools", {"query": "add numbers"}, "search"),
    ("dynamic", "get_tool_schema", {"tool_name": "add"}, "describe"),
    ("dynamic", "get_tool_schemas", {"tool_names": ["add", "add"]}, "describe"),
    ("progressive", "list-servers", {}, "list"),
    ("progressive", "list-server-tools", {"luaServerName": "calc"}, "list"),
    ("progressive", "tool-details", {"luaServerName": "calc", "luaToolName": "add"}, "describe"),
    ("progressive", "summary", {}, "list"),
]
LIBRARY: Mapping[str, Callable[[App, Context], Awaitable[Any]]] = {
    "search": lambda app, ctx: app.search("add", ctx=ctx),
    "list": lambda app, ctx: app.tools(ctx=ctx),
    "describe": lambda app, ctx: app.gateway.describe(ctx, "add"),
}


@asynccontextmanager
async def served(
    surface: str = "search", **calls: Any
) -> AsyncIterator[tuple[App, httpx2.AsyncClient, list[AuditEvent]]]:
    """An app with limits, a client of it without a network, and what its audit gets."""
    events: list[AuditEvent] = []
    settings = Settings(
        http=HttpOptions(tokens=TOKENS, allowed_hosts=("test",)),
        gateway=GatewayOptions(calls=CallOptions(**({"search_rate": SLOW} | calls))),
        surfaces=SurfaceOptions(surfaces=(surface,), summary=True),
        telemetry=TelemetryOptions(metrics="127.0.0.1:0"),
    )
    app = App(settings, audit=events.append)

    @app.tool(namespace="calc")
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    asgi = app.asgi()
    async with app, asgi.running():
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(asgi), base_url="http://test") as client:
            yield app, client, events


def request_of(caller: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    headers = {
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": method,
        "Accept": "application/json, text/event-stream",
        **token(f"{caller}-secret"),
        **({"Mcp-Name": params["name"]} if "name" in params else {}),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    return {"url": "/mcp", "headers": headers, "json": body}


async def post(client: httpx2.AsyncClient, caller: str, method: str, params: Mapping[str, Any]) -> httpx2.Response:
    with anyio.fail_after(10):
        return await client.post(**request_of(caller, method, params))


@pytest.mark.parametrize("method", METHODS)
async def test_a_list_over_the_limit_is_refused_with_the_time_to_wait_and_others_are_served(method: str) -> None:
    async with served() as (app, client, events):
        assert (await post(client, "ann", method, {})).status_code == 200
        refused = await post(client, "ann", method, {})
        assert (await post(client, "bob", method, {})).status_code == 200
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) == 1000
        error = refused.json()["error"]
        assert error["message"].startswith(f"{method} was not run: you search and list too often (calls.search_rate).")
        assert error["data"]["code"] == "rate_limited"
        assert [(event.caller, event.action, event.outcome) for event in events] == [
            ("ann", method, "ok"),
            ("ann", method, "rate_limited"),
            ("bob", method, "ok"),
        ]
        assert app.telemetry.metrics is not None
        assert 'toolcrib_refusals_total{limit="calls.search_rate"} 1.0' in app.telemetry.metrics.text()


@pytest.mark.parametrize(("surface", "name", "arguments", "action"), META_TOOLS)
async def test_a_meta_tool_over_the_limit_says_so_and_others_are_served(
    surface: str, name: str, arguments: Mapping[str, Any], action: str
) -> None:
    async with served(surface) as (app, client, events):
        params = {"name": name, "arguments": arguments}
        answers = [
            (await post(client, caller, "tools/call", params)).json()["result"] for caller in ("ann", "ann", "bob")
        ]
        assert [answer["isError"] for answer in answers] == [False, True, False]
        assert "calls.search_rate" in json.dumps(answers[1])
        assert [(event.caller, event.action, event.outcome) for event in events] == [
            ("ann", action, "ok"),
            ("ann", action, "rate_limited"),
            ("bob", action, "ok"),
        ]
        assert app.telemetry.metrics is not None
        assert 'toolcrib_refusals_total{limit="calls.search_rate"} 1.0' in app.telemetry.metrics.text()


@pytest.mark.parametrize("action", LIBRARY)
async def test_what_a_program_asks_for_a_caller_is_limited_alike(action: str) -> None:
    async with served() as (app, _, events):
        ann, bob = (Context(caller=Caller(id=name)) for name in ("ann", "bob"))
        ask = LIBRARY[action]
        await ask(app, ann)
        with pytest.raises(RateLimited, match=r"calls\.search_rate"):
            await ask(app, ann)
        await ask(app, bob)
        assert [(event.caller, event.action, event.outcome) for event in events] == [
            ("ann", action, "ok"),
            ("ann", action, "rate_limited"),
            ("bob", action, "ok"),
        ]


async def test_the_rate_of_calls_holds_for_searches_too_unless_they_have_their_own() -> None:
    async with served(search_rate=None, rate=RateOptions(per_second=0.001, burst=1)) as (app, _, _):
        ann = Context(caller=Caller(id="ann"))

        async def search_often() -> None:
            for _ in range(500):
                await app.search("add", ctx=ann)

        with pytest.raises(RateLimited):
            await search_often()
        assert (await app.gateway.call(ann, "add", {"a": 1, "b": 2})).structured is not None


async def test_a_query_is_read_up_to_256_distinct_words_and_the_reply_says_so() -> None:
    query = " ".join(f"word{number}" for number in range(60_000)) + " add numbers"
    async with served("search", search_rate=None) as (app, client, _):
        replies = [
            (await app.search(query)).note,
            (await app.gateway.search(Context(caller=Caller(id="ann")), SearchRequest(queries=(query, "add")))).note,
            json.dumps(
                (await post(client, "ann", "tools/call", {"name": "tool_search", "arguments": {"query": query}})).json()
            ),
        ]
    async with served("dynamic", search_rate=None) as (_, client, _):
        params = {"name": "search_tools", "arguments": {"query": query}}
        replies.append(json.dumps((await post(client, "ann", "tools/call", params)).json()))
    assert all("256 different ones at most" in reply for reply in replies), replies
