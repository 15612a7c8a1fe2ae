"""Gateways that share their state and serve one address: whose request it is, and how it gets there."""

import contextlib
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio
import httpx2
import pytest
from tests.e2e.round_robin import round_robin
from tests.server.conftest import Notices, client_at, token

from toolcrib import App, Settings
from toolcrib.options import CallOptions, GatewayOptions, HttpOptions, SurfaceOptions, Token
from toolcrib.server.processes.replicas import Replicas
from toolcrib.state.memory import MemoryStore
from toolcrib.types import LOCAL, Caller

pytestmark = pytest.mark.anyio

MODERN, LEGACY = "2026-07-28", "2025-11-25"
ANN, BOB = "s3cret-of-ann-123", "s3cret-of-bob-123"
TOKENS = (Token(secret=ANN, caller="ann"), Token(secret=BOB, caller="bob"))
ECHO = {"name": "echo", "arguments": {"text": "a"}}
ACCEPT = {"accept": "application/json, text/event-stream"}


class SharedStore(MemoryStore):
    """State that gateways of this process share."""

    shared = True


class Gateway:
    """One running gateway, and how to stop it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.port = 0
        self.stop = anyio.Event()
        self.stopped = anyio.Event()
        self.calls: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def end(self) -> None:
        """Stop, and wait until nothing listens at its address."""
        self.stop.set()
        await self.stopped.wait()


@contextlib.asynccontextmanager
async def gateways(number: int = 2, **options: Any) -> AsyncIterator[list[Gateway]]:
    """Gateways with the tool `echo`, which share one state."""
    store = SharedStore()
    settings = Settings(
        surfaces=SurfaceOptions(surfaces=("direct",)), http=HttpOptions(port=0, drain_s=0.2, tokens=TOKENS), **options
    )
    made = [Gateway(App(settings, state=store)) for _ in range(number)]
    async with anyio.create_task_group() as group:
        for one in made:
            bound = anyio.Event()
            group.start_soon(serve, one, bound)
            await bound.wait()
        try:
            yield made
        finally:
            for one in made:
                one.stop.set()


async def serve(gateway: Gateway, bound: anyio.Event) -> None:
    @gateway.app.tool
    def echo(text: str) -> str:
        gateway.calls.append(text)
        return text

    def started(address: str) -> None:
        gateway.port = int(address.removesuffix("/mcp").rpartition(":")[2])
        bound.set()

    async with gateway.app:
        await gateway.app.serve_http(stop=gateway.stop, started=started)
    gateway.stopped.set()


async def post(
    gateway: Gateway, method: str, params: dict[str, Any], *, session: str = "", secret: str = ANN
) -> httpx2.Response:
    """Send a request of an older client."""
    headers = {**ACCEPT, **token(secret), "mcp-protocol-version": LEGACY}
    if session:
        headers["mcp-session-id"] = session
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with httpx2.AsyncClient(timeout=20) as http:
        return await http.post(gateway.url, json=body, headers=headers)


async def call_modern(gateway: Gateway, params: dict[str, Any], secret: str = ANN) -> dict[str, Any]:
    """Call `echo` as a client of 2026-07-28 that can show forms."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    headers = {**ACCEPT, **token(secret), "mcp-protocol-version": MODERN, "mcp-method": "tools/call"}
    whole = {"name": "echo", "arguments": {"text": "hi"}, **params, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": whole}
    async with httpx2.AsyncClient(timeout=20) as http:
        response = await http.post(gateway.url, json=body, headers={**headers, "mcp-name": "echo"})
    result: dict[str, Any] = response.json()["result"]
    return result


async def opened(gateway: Gateway, secret: str = ANN) -> str:
    """Open a session of an older client, and return its id."""
    params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    response = await post(gateway, "initialize", params, secret=secret)
    assert response.status_code == 200
    return response.headers["mcp-session-id"]


async def test_the_gateway_that_opened_a_session_serves_it_wherever_a_request_arrives() -> None:
    with anyio.fail_after(30):
        async with gateways() as (one, two):
            session = await opened(one)
            for gateway in (one, two, two):
                response = await post(
                    gateway, "tools/call", {"name": "echo", "arguments": {"text": "a"}}, session=session
                )
                assert response.json()["result"]["content"][0]["text"] == "a"
            assert (one.calls, two.calls) == (["a"] * 3, [])


async def test_a_session_goes_on_at_one_other_gateway_once_its_own_is_gone() -> None:
    with anyio.fail_after(60):
        async with gateways(3) as (one, two, three):
            session = await opened(one)
            await one.end()
            for gateway in (two, three, two):
                response = await post(
                    gateway, "tools/call", {"name": "echo", "arguments": {"text": "a"}}, session=session
                )
                assert response.json()["result"]["content"][0]["text"] == "a"
            assert (two.calls, three.calls) == (["a"] * 3, []), "the first to get a request has taken it over"


async def test_a_session_belongs_to_its_caller_at_every_gateway() -> None:
    with anyio.fail_after(60):
        async with gateways() as (one, two):
            session = await opened(one)
            assert (await post(two, "tools/list", {}, session=session, secret=BOB)).status_code == 404
            await one.end()
            assert (await post(two, "tools/list", {}, session=session, secret=BOB)).status_code == 404
            assert (await post(two, "tools/list", {}, session=session)).status_code == 200


async def test_a_session_that_its_client_ended_stays_ended() -> None:
    with anyio.fail_after(60):
        async with gateways() as (one, two):
            session = await opened(one)
            headers = {**token(ANN), "mcp-session-id": session, "mcp-protocol-version": LEGACY}
            async with httpx2.AsyncClient() as http:
                assert (await http.delete(two.url, headers=headers)).status_code == 200
            assert (await post(one, "tools/list", {}, session=session)).status_code == 404
            await one.end()
            assert (await post(two, "tools/list", {}, session=session)).status_code == 404


async def test_a_caller_cannot_end_the_session_of_another() -> None:
    with anyio.fail_after(60):
        async with gateways() as (one, two):
            session = await opened(one)
            headers = {**token(BOB), "mcp-session-id": session, "mcp-protocol-version": LEGACY}
            async with httpx2.AsyncClient() as http:
                assert (await http.delete(one.url, headers=headers)).status_code == 404
            await one.end()
            assert (await post(two, "tools/list", {}, session=session)).status_code == 200


async def test_an_id_that_was_changed_opens_nothing() -> None:
    with anyio.fail_after(30):
        async with gateways() as (one, two):
            owner, body, mac = (await opened(one)).split(".")
            for forged in (
                f"{owner}.{body}.{mac[::-1]}",
                f"{'0' * 16}.{body}.{mac}",
                f"{owner}.{body[2:]}.{mac}",
                "x.y",
            ):
                for gateway in (one, two):
                    assert (await post(gateway, "tools/list", {}, session=forged)).status_code == 404


async def test_an_approval_that_one_gateway_asked_for_is_given_through_another_and_used_once() -> None:
    gateway = GatewayOptions(calls=CallOptions(approval="always"))
    with anyio.fail_after(30):
        async with gateways(gateway=gateway) as (one, two):
            asked = await call_modern(one, {})
            assert asked["resultType"] == "input_required"
            answers = {key: {"action": "accept", "content": {"approve": True}} for key in asked["inputRequests"]}
            repeated = {"inputResponses": answers, "requestState": asked["requestState"]}
            assert (await call_modern(two, repeated))["content"][0]["text"] == "hi"
            assert "used before" in str(await call_modern(two, repeated))
            assert "another caller" in str(await call_modern(two, repeated, BOB))
            assert (one.calls, two.calls) == (["hi"], [])


async def test_an_answer_to_a_gateway_that_is_gone_is_refused_and_nothing_is_run() -> None:
    gateway = GatewayOptions(calls=CallOptions(approval="always"))
    with anyio.fail_after(60):
        async with gateways(gateway=gateway) as (one, two):
            asked = await call_modern(one, {})
            answers = {key: {"action": "accept", "content": {"approve": True}} for key in asked["inputRequests"]}
            await one.end()
            result = await call_modern(two, {"inputResponses": answers, "requestState": asked["requestState"]})
            assert result["isError"] is True
            assert "not one that this server gave out" in str(result)
            assert (one.calls, two.calls) == ([], [])


async def test_an_older_client_learns_of_changed_lists_whichever_gateway_has_its_stream() -> None:
    with anyio.fail_after(60):
        async with gateways() as made, round_robin([one.port for one in made]) as url:
            notices = Notices()
            async with client_at(url, "legacy", token(ANN), message_handler=notices):
                for number in count():  # its stream may not be open yet
                    for one in made:
                        one.app.tool(another, name=f"another_{number}")
                    with anyio.move_on_after(0.5):
                        await notices.next()
                    if notices.count:
                        break
            assert notices.count >= 1


async def test_a_client_that_listens_at_any_gateway_learns_of_changed_lists() -> None:
    with anyio.fail_after(60):
        async with gateways() as made, round_robin([one.port for one in made]) as url:
            async with client_at(url, MODERN, token(ANN)) as client:
                async with client.listen(tools_list_changed=True) as subscription:
                    for one in made:
                        one.app.tool(another)
                    assert await anext(aiter(subscription)) is not None


def another() -> str:
    """Say another thing."""
    return "another"


def test_a_large_introduction_of_a_client_is_cut_in_the_id_of_its_session() -> None:
    replicas = Replicas(MemoryStore(), HttpOptions())
    info = {"name": "n" * 9000, "version": "1", "icons": [{"src": "x" * 9000}]}
    params = {"protocolVersion": LEGACY, "capabilities": {"roots": {"listChanged": True}}, "clientInfo": info}
    session = replicas.seal(LOCAL, params)
    assert len(session) < 2000
    assert replicas.unseal(session, LOCAL) == {
        "protocolVersion": LEGACY,
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "n" * 200, "version": "1"},
    }
    assert replicas.unseal(session, Caller(id="other")) is None
