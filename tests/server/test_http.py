"""toolcrib over HTTP, through real sockets."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types
import pytest
from mcp.client.streamable_http import streamable_http_client

from toolcrib.errors import NotAuthenticated, SettingsError
from toolcrib.gateway.gateway import Gateway
from toolcrib.server.auth.authentication import StaticTokens
from toolcrib.server.engine import Engine
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions, Token
from toolcrib.server.processes.process import bind_socket, serve_http
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.testing import FakeProvider, FakeSource, Handler, echo, running, text_of
from toolcrib.types import Caller, Context, Object, Tool, ToolResult

pytestmark = pytest.mark.anyio

TOKENS = (
    Token(secret="s3cret-a", caller="ann", tenant="acme", scopes=frozenset({"read"})),
    Token(secret="s3cret-b", caller="bob"),
)
PING = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

MODERN = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "execute_tool"}
EXECUTE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "execute_tool",
        "arguments": {"name": "x:echo"},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}


@contextlib.asynccontextmanager
async def serving(
    handler: Handler = echo, options: HttpOptions | None = None, surfaces: tuple[str, ...] = ("search",)
) -> AsyncIterator[tuple[str, anyio.Event, Gateway]]:
    """A served gateway: its address, the event that stops it, and the gateway itself."""
    options = replace(options or HttpOptions(), port=0)
    stop, addresses = anyio.Event(), list[str]()
    bound = anyio.Event()

    def started(address: str) -> None:
        addresses.append(address)
        bound.set()

    provider = FakeProvider([Tool(name="echo", namespace="x", description="Echoes")], handler)
    async with running(FakeSource(provider)) as gateway, anyio.create_task_group() as group:
        facade = make_facade(gateway, SurfaceOptions(surfaces=surfaces))
        app = http_app(Engine(facade), options, ready=lambda: (True, {"tools": 1}))

        async def serve() -> None:
            await serve_http(app, options, stop=stop, started=started)

        group.start_soon(serve)
        with anyio.fail_after(5):
            await bound.wait()
        try:
            yield addresses[0], stop, gateway
        finally:
            stop.set()


def with_token(secret: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"})


@contextlib.asynccontextmanager
async def client_of(url: str, mode: Any = "auto", secret: str = "") -> AsyncIterator[mcp.Client]:
    async with with_token(secret) if secret else httpx2.AsyncClient() as http:
        async with mcp.Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
async def test_a_client_of_each_era_lists_searches_and_executes(mode: str) -> None:
    with anyio.fail_after(10):
        async with serving() as (url, _, _), client_of(url, mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["tool_search", "execute_tool"]
            found = await client.call_tool("tool_search", {"query": "echoes"})
            assert isinstance(found, mcp_types.CallToolResult)
            assert found.structured_content["hits"][0]["name"] == "x:echo"
            ran = await client.call_tool("execute_tool", {"name": "x:echo", "arguments": {"a": 1}})
            assert text_of(ran) == "echo {'a': 1}"


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_older_version_is_supported(version: str) -> None:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    with anyio.fail_after(10):
        async with serving() as (url, _, _), httpx2.AsyncClient(headers=JSON) as http:
            opened = await http.post(url, json={**PING, "params": params})
            assert opened.json()["result"]["protocolVersion"] == version
            session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": version}
            await http.post(url, headers=session, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
            call = {"name": "execute_tool", "arguments": {"name": "x:echo", "arguments": {}}}
            answer = await http.post(
                url, headers=session, json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            )
            assert answer.json()["result"]["content"] == [{"type": "text", "text": "echo {}"}]


async def test_health_and_readiness_need_no_token_and_identify_no_caller() -> None:
    with anyio.fail_after(5):
        async with serving(options=HttpOptions(tokens=TOKENS)) as (url, _, _), httpx2.AsyncClient() as http:
            base = url.removesuffix("/mcp")
            assert (await http.get(f"{base}/healthz")).text == "ok"
            assert (await http.get(f"{base}/readyz")).json() == {"ready": True, "tools": 1}


async def test_requests_without_a_valid_token_are_rejected() -> None:
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(tokens=TOKENS)) as (url, _, _):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret-a"}):
                async with httpx2.AsyncClient(headers={**JSON, **headers}) as http:
                    refused = await http.post(url, json=PING)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"].startswith("Bearer")
                assert "s3cret" not in refused.text


async def test_the_token_identifies_the_caller() -> None:
    seen: list[Caller] = []

    async def note(ctx: Context, name: str, arguments: Object) -> ToolResult:
        seen.append(ctx.caller)
        return ToolResult()

    with anyio.fail_after(10):
        async with serving(note, HttpOptions(tokens=TOKENS)) as (url, _, _):
            for secret in ("s3cret-a", "s3cret-b"):
                async with client_of(url, secret=secret) as client:
                    await client.call_tool("execute_tool", {"name": "x:echo"})
    assert seen == [Caller(id="ann", tenant="acme", scopes=frozenset({"read"})), Caller(id="bob")]


async def test_a_session_belongs_to_the_token_that_opened_it() -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    with anyio.fail_after(10):
        async with serving(options=HttpOptions(tokens=TOKENS)) as (url, _, _):
            async with with_token("s3cret-a") as ann, with_token("s3cret-b") as bob:
                opened = await ann.post(url, headers=JSON, json={**PING, "params": params})
                session = {**JSON, "mcp-session-id": opened.headers["mcp-session-id"]}
                listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
                assert (await bob.post(url, headers=session, json=listing)).status_code == 404


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/mcp", {"host": "evil.example"}, 421),
        ("/healthz", {"host": "10.0.0.7:8000"}, 200),
        ("/healthz", {"origin": "https://evil.example"}, 403),
        ("/healthz", {"origin": "null"}, 403),
        ("/healthz", {"origin": "http://localhost:1"}, 403),
        ("/healthz", {"origin": "HTTP://LocalHost:80", "host": "localhost:80"}, 200),
        ("/healthz", {"origin": "http://localhost", "host": "localhost"}, 200),
        ("/healthz", {"origin": "http://localhost.evil.example", "host": "localhost"}, 403),
    ],
)
async def test_a_foreign_host_or_origin_is_rejected(path: str, headers: dict[str, str], status: int) -> None:
    with anyio.fail_after(5):
        async with serving() as (url, _, _), httpx2.AsyncClient() as http:
            assert (await http.get(url.replace("/mcp", path), headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("host", "header"), [("127.0.0.2", "127.0.0.2:80"), ("fd00::1", "[fd00::1]:80"), ("crib.example", "CRIB.example")]
)
async def test_a_server_accepts_its_own_address(host: str, header: str) -> None:
    async with running(FakeSource()) as gateway:
        server = Engine(make_facade(gateway, SurfaceOptions()))
        app = http_app(server, HttpOptions(host=host, tokens=TOKENS), ready=lambda: (True, {}))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as http:
            assert (await http.get("/mcp", headers={"host": header})).status_code == 401
            assert (await http.get("/mcp", headers={"host": "other.example"})).status_code == 421


async def test_an_oversized_request_is_refused() -> None:
    options = HttpOptions(max_body_bytes=1000)
    with anyio.fail_after(5):
        async with serving(options=options) as (url, _, _), httpx2.AsyncClient(headers=JSON) as http:
            assert (await http.post(url, json={**PING, "params": {"x": "y" * 2000}})).status_code == 413


async def test_invalid_json_is_a_clear_error() -> None:
    with anyio.fail_after(5):
        async with serving() as (url, _, _), httpx2.AsyncClient(headers=JSON) as http:
            refused = await http.post(url, content=b"{nope")
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == mcp_types.PARSE_ERROR


async def test_show_all_lists_every_tool_and_leaves_the_meta_tools_out() -> None:
    with anyio.fail_after(5):
        async with serving() as (url, _, _), client_of(f"{url}?show_all=true") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["x__echo"]


async def test_running_calls_finish_before_a_shutdown() -> None:
    under_way, go_on = anyio.Event(), anyio.Event()
    answers: list[str] = []

    async def slow(ctx: Context, name: str, arguments: Object) -> ToolResult:
        under_way.set()
        await go_on.wait()
        return ToolResult(content=({"type": "text", "text": "done"},))

    with anyio.fail_after(10):
        async with serving(slow) as (url, stop, _), anyio.create_task_group() as group:

            async def call() -> None:
                async with httpx2.AsyncClient(headers={**JSON, **MODERN}) as http:
                    answers.append((await http.post(url, json=EXECUTE)).json()["result"]["content"][0]["text"])

            group.start_soon(call)
            await under_way.wait()
            stop.set()
            await anyio.wait_all_tasks_blocked()
            go_on.set()
    assert answers == ["done"]


async def test_a_connection_without_a_request_is_closed_after_the_time_of_the_setting() -> None:
    assert HttpOptions().keep_alive_s == 75
    with anyio.fail_after(10):
        async with serving(echo, HttpOptions(keep_alive_s=1)) as (url, _, _):
            address = httpx2.URL(url)
            async with await anyio.connect_tcp(address.host, address.port or 80) as connection:
                await connection.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b"".join([part async for part in connection])  # until the server closes it
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_call_that_never_ends_does_not_delay_the_shutdown() -> None:
    under_way = anyio.Event()

    async def endless(ctx: Context, name: str, arguments: Object) -> ToolResult:
        under_way.set()
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            async with serving(endless, HttpOptions(drain_s=0.2)) as (url, stop, _):

                async def call() -> None:
                    with contextlib.suppress(Exception):
                        async with client_of(url, "2026-07-28") as client:
                            await client.call_tool("execute_tool", {"name": "x:echo"})

                group.start_soon(call)
                await under_way.wait()
                stop.set()
            ended = stop.is_set()
            group.cancel_scope.cancel()
    assert ended


async def test_the_answer_to_a_call_that_the_shutdown_ends_says_when_to_try_again() -> None:
    under_way = anyio.Event()

    async def endless(ctx: Context, name: str, arguments: Object) -> ToolResult:
        under_way.set()
        await anyio.sleep_forever()
        raise AssertionError

    answers: list[httpx2.Response] = []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            async with serving(endless, HttpOptions(drain_s=0.2)) as (url, stop, _):

                async def call() -> None:
                    async with httpx2.AsyncClient(headers={**JSON, **MODERN}) as http:
                        answers.append(await http.post(url, json=EXECUTE))

                group.start_soon(call)
                await under_way.wait()
                stop.set()
    assert [(answer.status_code, answer.headers["retry-after"]) for answer in answers] == [(503, "5")]


async def test_a_call_is_cancelled_when_its_client_disconnects() -> None:
    under_way, ended = anyio.Event(), anyio.Event()

    async def endless(ctx: Context, name: str, arguments: Object) -> ToolResult:
        under_way.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    with anyio.fail_after(10):
        async with serving(endless) as (url, _, _):
            async with anyio.create_task_group() as group:

                async def call() -> None:
                    async with client_of(url, "2026-07-28") as client:
                        await client.call_tool("execute_tool", {"name": "x:echo"})

                group.start_soon(call)
                await under_way.wait()
                group.cancel_scope.cancel()
            await ended.wait()
    assert under_way.is_set()


async def test_progress_reaches_the_client() -> None:
    async def report(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert ctx.client is not None
        await ctx.client.progress(1, 2, "half")
        return ToolResult()

    received: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        received.append((progress, total, message))

    with anyio.fail_after(5):
        async with serving(report) as (url, _, _), client_of(url, "2026-07-28") as client:
            await client.call_tool("execute_tool", {"name": "x:echo"}, progress_callback=hear)
    assert received == [(1, 2, "half")]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com", "::"])
async def test_an_address_that_other_machines_can_reach_needs_a_token(host: str) -> None:
    async with running(FakeSource()) as gateway:
        server = Engine(make_facade(gateway, SurfaceOptions()))
        with pytest.raises(SettingsError, match="without a token"):
            http_app(server, HttpOptions(host=host), ready=lambda: (True, {}))
        http_app(server, HttpOptions(host=host, tokens=TOKENS), ready=lambda: (True, {}))


async def test_an_address_that_is_taken_is_a_clear_error() -> None:
    with bind_socket("127.0.0.1", 0) as sock, pytest.raises(SettingsError, match=r"Cannot listen on 127\.0\.0\.1:"):
        bind_socket("127.0.0.1", sock.getsockname()[1])


async def test_a_token_never_shows_its_secret() -> None:
    assert "s3cret" not in repr(TOKENS[0]) + str(HttpOptions(tokens=TOKENS))
    with pytest.raises(NotAuthenticated):
        await StaticTokens(TOKENS).authenticate({"authorization": "Bearer s3cret"})
