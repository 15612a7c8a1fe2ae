"""Elicitation: asking the user behind a client during a call, where the protocol can reach them."""

from typing import Any

import anyio
import httpx2
import mcp
import mcp_types
import pytest
from mcp.client.sse import sse_client
from tests.server.conftest import JSON, at_address, client_at, crib
from tests.server.test_stdio import OPENING, request, serving

from toolcrib.protocol.failures import RpcError
from toolcrib.server.context import RequestClient
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.http.sse import sse_app
from toolcrib.server.options import HttpOptions
from toolcrib.testing import text_of
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio

QUESTION = {
    "message": "Really?",
    "requestedSchema": {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]},
}
CALL = {"name": "execute_tool", "arguments": {"name": "x:echo"}}


async def ask(ctx: Context, name: str, arguments: Object) -> ToolResult:
    """Ask the user if possible, and return the answer."""
    client = ctx.client
    assert isinstance(client, RequestClient)
    if not client.can_elicit:
        return ToolResult(content=({"type": "text", "text": "nobody can be asked"},))
    answer = await client.elicit(QUESTION)
    return ToolResult(content=({"type": "text", "text": f"{answer['action']} {answer.get('content')}"},))


async def agree(context: Any, params: Any) -> mcp_types.ElicitResult:
    assert params.message == "Really?"
    return mcp_types.ElicitResult(action="accept", content={"sure": True})


def opening_with(elicitation: Any) -> dict[str, Any]:
    """Open a session whose client declares elicitation."""
    params: dict[str, Any] = {**dict(OPENING)["params"], "capabilities": {"elicitation": elicitation}}  # type: ignore[dict-item]  # it is a dict
    return {**OPENING, "params": params}


async def said(client: mcp.Client) -> str:
    return text_of(await client.call_tool("execute_tool", {"name": "x:echo"}))


async def test_elicitation_works_in_memory() -> None:
    with anyio.fail_after(5):
        async with crib(handler=ask) as served:
            async with mcp.Client(served.server, mode="legacy", elicitation_callback=agree) as client:
                assert await said(client) == "accept {'sure': True}"


async def test_elicitation_works_over_http_with_sse() -> None:
    with anyio.fail_after(10):
        async with crib(handler=ask) as served:
            app = sse_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with (
                at_address(app) as url,
                mcp.Client(sse_client(f"{url}/sse"), mode="legacy", elicitation_callback=agree) as client,
            ):
                assert await said(client) == "accept {'sure': True}"


async def test_elicitation_works_over_streamable_http_once_the_client_opens_its_stream() -> None:
    answers: list[str] = []
    with anyio.fail_after(10):
        async with crib(handler=ask) as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            async with at_address(app) as url, client_at(f"{url}/mcp", "legacy", elicitation_callback=agree) as client:
                while "accept {'sure': True}" not in answers:
                    answers.append(await said(client))
                    await anyio.lowlevel.checkpoint()
    assert set(answers) <= {"accept {'sure': True}", "nobody can be asked"}


async def test_elicitation_fails_over_streamable_http_without_an_open_stream() -> None:
    opening = opening_with({})
    with anyio.fail_after(10):
        async with crib(handler=ask) as served:
            app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
            transport = httpx2.ASGITransport(app=app)
            async with app.running(), httpx2.AsyncClient(transport=transport, headers=JSON) as http:
                opened = await http.post("http://localhost/mcp", json=opening)
                session = {"mcp-session-id": opened.headers["mcp-session-id"]}
                answer = await http.post("http://localhost/mcp", headers=session, json=request(1, "tools/call", **CALL))
    assert answer.json()["result"]["content"][0]["text"] == "nobody can be asked"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_without_the_elicitation_capability_is_not_asked(mode: Any) -> None:
    with anyio.fail_after(5):
        async with crib(handler=ask) as served, mcp.Client(served.server, mode=mode) as client:
            assert await said(client) == "nobody can be asked"


async def test_a_modern_call_returns_its_question_instead() -> None:
    failures: list[Exception] = []

    async def insist(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert isinstance(ctx.client, RequestClient)
        assert not ctx.client.can_elicit
        assert "elicitation" in ctx.client.capabilities
        try:
            await ctx.client.elicit(QUESTION)
        except RpcError as error:
            failures.append(error)
        return ToolResult()

    with anyio.fail_after(5):
        async with crib(handler=insist) as served:
            async with mcp.Client(served.server, mode="2026-07-28", elicitation_callback=agree) as client:
                await said(client)
    assert len(failures) == 1


@pytest.mark.parametrize(("declared", "asked"), [({}, True), ({"form": {}}, True), ({"url": {}}, False)])
async def test_elicitation_works_over_stdio_if_the_client_shows_forms(declared: Any, asked: bool) -> None:
    async with serving(ask) as peer:
        peer.send(opening_with(declared))
        await peer.receive()
        peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        peer.send(request(1, "tools/call", **CALL))
        message = await peer.receive()
        if asked:
            assert (message["method"], message["params"]["message"]) == ("elicitation/create", "Really?")
            peer.send({"jsonrpc": "2.0", "id": message["id"], "result": {"action": "decline"}})
            message = await peer.receive()
        expected = "decline None" if asked else "nobody can be asked"
        assert message["result"]["content"][0]["text"] == expected
        peer.to_server.feed_eof()
