"""The HTTP+SSE transport for old clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp
import pytest
from mcp.client.sse import sse_client
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.server.conftest import JSON, TOKENS, Crib, Notices, Own, at_address, crib, names, native, token, until
from tests.server.test_asgi import hosted

from toolcrib.server.http.app import HttpApp, RequestProviders
from toolcrib.server.http.sse import sse_app
from toolcrib.server.options import HttpOptions, Token
from toolcrib.testing import text_of
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio

META = ["tool_search", "execute_tool"]


def app_of(served: Crib, **options: Any) -> HttpApp:
    return sse_app(served.engine, HttpOptions(**options), ready=lambda: (True, {}))


@asynccontextmanager
async def client_of(url: str, **client: Any) -> AsyncIterator[mcp.Client]:
    async with mcp.Client(sse_client(url, headers=client.pop("headers", {})), mode="legacy", **client) as connected:
        yield connected


async def test_an_old_client_lists_searches_and_executes() -> None:
    with anyio.fail_after(10):
        async with crib() as served, at_address(app_of(served)) as url, client_of(f"{url}/sse") as client:
            assert await names(client) == META
            found = await client.call_tool("tool_search", {"query": "echoes"})
            assert found.structured_content["hits"][0]["name"] == "x:echo"
            ran = await client.call_tool("execute_tool", {"name": "x:echo", "arguments": {"a": 1}})
            assert text_of(ran) == "echo {'a': 1}"


async def test_an_sse_app_can_be_mounted_under_any_prefix() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = app_of(served)
            host = Starlette(routes=[Mount("/old/one", app=app)])
            async with app.running(), hosted(host) as url, client_of(f"{url}/old/one/sse") as client:
                assert await names(client) == META


async def test_changes_are_notified_on_the_stream() -> None:
    notices = Notices()
    with anyio.fail_after(10):
        async with crib(native("add")) as served, at_address(app_of(served)) as url:
            async with client_of(f"{url}/sse", message_handler=notices) as client:
                assert "add" in await names(client)
                await served.offer(native("add"), native("sub"))
                await until(lambda: notices.count == 1)
            await until(lambda: served.changes.subscriber_count == 0)


async def test_the_token_of_each_message_identifies_its_caller() -> None:
    seen: list[str] = []

    async def note(ctx: Context, name: str, arguments: Object) -> ToolResult:
        seen.append(ctx.caller.id)
        return ToolResult()

    with anyio.fail_after(10):
        async with crib(handler=note) as served, at_address(app_of(served, tokens=TOKENS)) as url:
            for secret in ("s3cret-a", "s3cret-b"):
                async with client_of(f"{url}/sse", headers=token(secret)) as client:
                    await client.call_tool("execute_tool", {"name": "x:echo"})
    assert seen == ["ann", "bob"]


async def test_a_stream_belongs_to_the_token_that_opened_it() -> None:
    with anyio.fail_after(10):
        async with crib() as served, at_address(app_of(served, tokens=TOKENS, max_body_bytes=1000)) as url:
            async with httpx2.AsyncClient() as http:
                async with http.stream("GET", f"{url}/sse", headers=token("s3cret-a")) as stream:
                    lines = stream.aiter_lines()
                    while not (line := await anext(lines)).startswith("data: "):
                        pass
                    inbox = url + line.removeprefix("data: ")
                    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                    assert (await http.post(inbox, json=ping)).status_code == 401
                    assert (await http.post(inbox, json=ping, headers=token("s3cret-b"))).status_code == 404
                    assert (await http.post(inbox, json=ping, headers=token("s3cret-a"))).status_code == 202
                    large = {**ping, "params": {"x": "y" * 2000}}
                    assert (await http.post(inbox, json=large, headers=token("s3cret-a"))).status_code == 413


async def test_the_scopes_of_each_message_are_those_of_its_own_token() -> None:
    seen: list[frozenset[str]] = []

    async def note(ctx: Context, name: str, arguments: Object) -> ToolResult:
        seen.append(ctx.caller.scopes)
        return ToolResult()

    tokens = [Token(secret=f"s3cret-{name}", caller="ann", scopes=frozenset({name})) for name in ("admin", "read")]
    about = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    with anyio.fail_after(10):
        async with crib(native("use"), handler=note) as served, at_address(app_of(served, tokens=tokens)) as url:
            async with (
                httpx2.AsyncClient() as http,
                http.stream("GET", f"{url}/sse", headers=token("s3cret-admin")) as stream,
            ):
                data = (line.removeprefix("data: ") async for line in stream.aiter_lines() if line.startswith("data: "))
                inbox = url + await anext(data)
                for method, params in (("initialize", about), ("tools/call", {"name": "use"})):
                    asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                    await http.post(inbox, json=asked, headers=token("s3cret-read"))
                    await anext(data)
    assert seen == [frozenset({"read"})]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("PUT", "/sse", 405), ("POST", "/messages/", 400), ("GET", "/other", 404)]
)
async def test_other_requests_are_rejected(method: str, path: str, status: int) -> None:
    with anyio.fail_after(10):
        async with crib() as served, at_address(app_of(served)) as url, httpx2.AsyncClient(headers=JSON) as http:
            assert (await http.request(method, f"{url}{path}")).status_code == status


async def test_tools_of_a_request_come_with_its_message() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = app_of(served)
            host = RequestProviders(app, lambda request: Own(native(f"of_{request.headers['x-user']}")))
            async with app.running(), hosted(host) as url:
                async with client_of(f"{url}/sse", headers={"x-user": "ann"}) as client:
                    assert await names(client) == [*META, "of_ann"]


async def test_streams_end_with_the_app() -> None:
    with anyio.fail_after(10):
        async with crib() as served:
            app = app_of(served)
            async with hosted(Starlette(routes=[Mount("/", app=app)])) as url, httpx2.AsyncClient() as http:
                async with app.running():
                    stream = await http.send(http.build_request("GET", f"{url}/sse"), stream=True)
                    assert stream.status_code == 200
                async for _ in stream.aiter_lines():
                    pass
                await stream.aclose()
