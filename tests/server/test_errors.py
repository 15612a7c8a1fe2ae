"""Errors stay within the request that caused them, and reach clients as messages that say what would work."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import anyio
import httpx2
import mcp
import pytest
from mcp.shared.exceptions import MCPError
from tests.server.conftest import JSON, Own, at_address, client_at, crib, native, token, until

from toolcrib.catalog import Page
from toolcrib.containment import isolate
from toolcrib.errors import ExecutionFailed
from toolcrib.server.engine import Engine
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.notifications import ListChangeNotifier
from toolcrib.server.options import HttpOptions, Token
from toolcrib.server.sdk import SdkServer
from toolcrib.surfaces.builtin import make_surfaces
from toolcrib.surfaces.facade import ListedTool, ToolFacade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.reply import ERROR_META
from toolcrib.testing import FakeSource, running, text_of
from toolcrib.types import Action, Caller, Context, Decision, Object, Tool, ToolResult
from toolcrib.upstream.transports.base import flatten_errors

pytestmark = pytest.mark.anyio


async def await_what_was_cancelled() -> NoReturn:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future
    raise AssertionError


async def cancel_oneself() -> NoReturn:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    raise AssertionError


async def raise_it() -> NoReturn:
    raise asyncio.CancelledError


WAYS = [await_what_was_cancelled, cancel_oneself, raise_it]


class Faulty(ToolFacade):
    """A facade in which third-party code is cancelled or raises where a test says so."""

    faults: dict[str, Callable[[], Any]]

    async def _maybe(self, where: str) -> None:
        if where in self.faults:
            await self.faults[where]()

    async def page(self, ctx: Context, cursor: str | None = None) -> Page[ListedTool]:
        await self._maybe("page")
        return await super().page(ctx, cursor)

    async def call(self, ctx: Context, name: str, arguments: Object, **how: Any) -> ToolResult:
        await self._maybe("call")
        return await super().call(ctx, name, arguments, **how)

    async def instructions(self, ctx: Context) -> str:
        await self._maybe("instructions")
        return await super().instructions(ctx)

    async def fingerprint(self, ctx: Context) -> str:
        await self._maybe("mark")
        return await super().fingerprint(ctx)


@contextlib.asynccontextmanager
async def faulty(**faults: Callable[[], Any]) -> AsyncIterator[tuple[Engine, Faulty, ListChangeNotifier]]:
    source = FakeSource(Own(Tool(name="ping", namespace="x", description="Pings")))
    async with running(source) as gateway, anyio.create_task_group() as group:
        facade = Faulty(gateway, SurfaceOptions(), make_surfaces(gateway, SurfaceOptions()))
        facade.faults = faults
        changes = ListChangeNotifier(facade, gateway.refresher, debounce_s=0.01)
        await group.start(changes.run)
        yield Engine(facade, changes=changes), facade, changes
        group.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def over(transport: str, engine: Engine, mode: Any) -> AsyncIterator[mcp.Client]:
    if transport == "memory":
        async with mcp.Client(SdkServer(engine), mode=mode) as client:
            yield client
        return
    app = http_app(engine, HttpOptions(), ready=lambda: (True, {}))
    async with at_address(app) as url, client_at(f"{url}/mcp", mode) as client:
        yield client


async def pings(client: mcp.Client) -> bool:
    return "ping of" in text_of(await client.call_tool("execute_tool", {"name": "x:ping"}))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("transport", ["memory", "http"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_is_cancelled_internally_fails_alone(
    way: Callable[[], Any], transport: str, mode: str
) -> None:
    with anyio.fail_after(10):
        async with faulty(call=way) as (server, facade, _), over(transport, server, mode) as client:
            failed = await client.call_tool("execute_tool", {"name": "x:ping"})
            assert failed.is_error
            assert failed.meta is not None
            assert failed.meta[ERROR_META]["code"] == "execution_failed"
            facade.faults.clear()
            assert await pings(client)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_list_that_is_cancelled_internally_fails_alone(transport: str, mode: str) -> None:
    with anyio.fail_after(10):
        async with faulty(page=cancel_oneself) as (server, facade, _), over(transport, server, mode) as client:
            with pytest.raises(mcp.MCPError):
                await client.list_tools()
            facade.faults.clear()
            assert await pings(client)


async def refuse() -> NoReturn:
    raise RuntimeError("a secret of the policy")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("way", [*WAYS, refuse])
async def test_a_session_opens_even_if_its_instructions_fail(way: Callable[[], Any], mode: str) -> None:
    with anyio.fail_after(10):
        async with faulty(instructions=way, mark=way) as (server, facade, _), over("http", server, mode) as client:
            assert not client.instructions
            facade.faults.clear()
            assert await pings(client)


class Raising:
    """A policy that always raises."""

    def scope(self, caller: Caller) -> str:
        raise RuntimeError(f"who is {caller.id}?")

    def decide(self, caller: Caller, tool: Tool, action: Action) -> Decision:
        raise RuntimeError(f"what is {tool.id}?")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_policy_that_raises_does_not_break_the_handshake_and_leaks_nothing(transport: str, mode: str) -> None:
    with anyio.fail_after(10):
        async with crib(policy=Raising()) as served, over(transport, served.engine, mode) as client:
            assert "who is" not in (client.instructions or "")
            with pytest.raises(mcp.MCPError, match="Internal error; see the server's log"):
                await client.list_tools()


class Unknown:
    """Lists whose fingerprints fail."""

    def __init__(self, way: Callable[[], Any]) -> None:
        self._way = way

    async def fingerprint(self, ctx: Context) -> str:
        await self._way()
        raise AssertionError(ctx)


@pytest.mark.parametrize("way", [await_what_was_cancelled, raise_it])
async def test_a_failing_fingerprint_does_not_stop_notifications(way: Callable[[], Any]) -> None:
    with anyio.fail_after(10):
        async with crib(native("add", "x")) as served:
            changes, notified = served.changes, anyio.Event()
            ready = anyio.Event()
            ready.set()

            async def tell() -> None:
                await raise_it()

            async def tell_me() -> None:
                notified.set()

            for hears in (tell, tell_me):
                assert await changes.subscribe(Context(caller=Caller(id="ann")), hears, ready) is not None
            await served.offer(native("add", "x"), native("sub", "x"))
            await notified.wait()
            marks, changes._fingerprints = changes._fingerprints, Unknown(way)
            served.source.changed()
            await anyio.wait_all_tasks_blocked()
            changes._fingerprints, notified = marks, anyio.Event()
            await served.offer(native("sub", "x"))
            await notified.wait()


async def test_a_child_process_that_serves_over_stdio_outlives_a_cancelled_tool() -> None:
    with anyio.fail_after(30):
        parameters = mcp.StdioServerParameters(command=sys.executable, args=[str(Path(__file__).parent / "faulty.py")])
        async with mcp.Client(parameters, mode="legacy") as client:
            for name in ("await_cancelled", "cancel_oneself"):
                failed = await client.call_tool("execute_tool", {"name": name})
                assert failed.is_error
                assert text_of(await client.call_tool("execute_tool", {"name": "ping"})) == "pong"


# -- the guard itself ----------------------------------------------------------------------------------------------


async def test_isolate_returns_the_outcome_of_the_work() -> None:
    async def three() -> int:
        return 3

    assert await isolate(three) == 3
    with pytest.raises(RuntimeError, match="policy"):
        await isolate(refuse)
    with pytest.raises(ExecutionFailed, match="cancelled internally"):
        await isolate(raise_it)


async def test_isolated_work_is_cancelled_with_its_caller() -> None:
    ended = anyio.Event()

    async def hang() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with anyio.fail_after(5):
        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_soon(scope.cancel)
            await isolate(hang)
        assert scope.cancelled_caught
        assert ended.is_set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await isolate(hang)
        task = asyncio.create_task(isolate(hang))
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(ended.is_set)


SECRET = "s3cret-of-a-decent-length"
LIMIT = 100_000
OPTIONS = HttpOptions(tokens=(Token(secret=SECRET, caller="ann"),), max_body_bytes=LIMIT)
MINE = token(SECRET)


async def refusal_of(path: str, headers: Mapping[str, str], mode: str, size: int = 0) -> str:
    """The error that the official client raises."""
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.engine, OPTIONS, ready=lambda: (True, {}))) as url:
            try:
                async with client_at(f"{url}{path}", mode, headers) as client:
                    await client.call_tool("execute_tool", {"name": "x:echo", "arguments": {"a": "x" * size}})
            except BaseException as error:  # noqa: BLE001 - the client wraps it in groups
                (notified,) = flatten_errors(error)
                assert isinstance(notified, MCPError)
                return notified.message
    raise AssertionError("it was let in")


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("path", "headers", "size", "said"),
    [
        ("/mcp", {}, 0, ("No bearer token.", "Authorization: Bearer")),
        ("/mcp", token("wrong"), 0, ("The bearer token is not valid.", "Authorization: Bearer")),
        ("/mcp", {**MINE, "host": "evil.example"}, 0, ('Host "evil.example"', "http.allowed_hosts")),
        ("/mcp", {**MINE, "origin": "https://evil.example"}, 0, ("https://evil.example", "http.allowed_origins")),
        ("/mcp", MINE, 2 * LIMIT, ("larger than 100,000 bytes", "nothing was run", "http.max_body_bytes")),
        ("/other", MINE, 0, ("no MCP endpoint at this path", "/mcp")),
    ],
)
async def test_the_official_client_shows_why_a_request_was_rejected(
    path: str, headers: Mapping[str, str], size: int, said: tuple[str, ...], mode: str
) -> None:
    message = await refusal_of(path, headers, mode, size)
    assert [part for part in said if part not in message] == []
    assert SECRET not in message


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b"[]", {}, 400, "must be one JSON object"),
        (b'"x"', {}, 400, "must be one JSON object"),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', {}, 400, "method must be a string"),
        (b"{", {}, 400, "not valid JSON"),
        (b"{}", {"content-type": "text/plain"}, 400, "Content-Type: application/json"),
        (b"{}", {"accept": "text/plain"}, 406, "Accept"),
    ],
)
async def test_a_body_that_is_not_a_message_gets_a_clear_error(
    body: bytes, headers: Mapping[str, str], status: int, said: str, version: str
) -> None:
    given = {**JSON, **MINE, "mcp-protocol-version": version, **headers}
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.engine, OPTIONS, ready=lambda: (True, {}))) as url:
            async with httpx2.AsyncClient(headers=given) as http:
                answer = await http.post(f"{url}/mcp", content=body)
    assert answer.status_code == status
    error: dict[str, Any] = answer.json()["error"]
    assert said in error["message"]
    assert "pydantic" not in answer.text


@pytest.mark.parametrize(("hosts", "status"), [((), 401), (("tools.example",), 421)])
async def test_a_wildcard_address_accepts_any_host_unless_hosts_are_configured(
    hosts: tuple[str, ...], status: int
) -> None:
    options = HttpOptions(host="0.0.0.0", tokens=OPTIONS.tokens, allowed_hosts=hosts)
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.engine, options, ready=lambda: (True, {}))) as url:
            async with httpx2.AsyncClient(headers={**JSON, "host": "evil.example"}) as http:
                answer = await http.post(f"{url}/mcp", json={})
    assert answer.status_code == status
    assert answer.json()["error"]["message"].endswith((" in the server's settings.", "that this server knows."))


async def test_an_unsupported_method_keeps_the_allow_header() -> None:
    headers = {**JSON, **MINE, "mcp-protocol-version": "2026-07-28"}
    with anyio.fail_after(10):
        async with crib() as served, at_address(http_app(served.engine, OPTIONS, ready=lambda: (True, {}))) as url:
            async with httpx2.AsyncClient(headers=headers) as http:
                answer = await http.put(f"{url}/mcp")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "Send MCP requests by POST" in answer.json()["error"]["message"]
