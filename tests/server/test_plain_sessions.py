"""Calls in sessions of older clients that are read from the connection are answered as those that pass the layers."""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.server.conftest import TOKENS, PerTenant, crib, native
from tests.server.test_direct import TOOLS, Both, Wire, run
from tests.server.test_plain_connection import answers
from tests.server.test_session_calls import OPENING, PLAIN, VERSION, call, generated, message

from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions
from toolcrib.server.processes.process import InFlightRequests
from toolcrib.server.session_calls import SessionCalls
from toolcrib.types import Context, Object, SessionClient, ToolResult

pytestmark = pytest.mark.anyio

HEADERS = {
    "host": "127.0.0.1",
    "authorization": f"Bearer {TOKENS[0].secret}",
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}


@dataclass
class Opened:
    """A session of an older client, and how many of its requests were read from the connection."""

    both: Both
    id: str
    plain: int = 0

    def connected(self, *, reads_plain: bool = True, through: InFlightRequests | None = None) -> Wire:
        wire = self.both.connected(through)
        if not reads_plain:
            wire.protocol.read_plain = None
        return wire

    def sent(self, body: Any, verb: str = "POST", **headers: str | None) -> bytes:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        whole = {**HEADERS, "mcp-session-id": self.id, "mcp-protocol-version": VERSION, **given}
        lines = "".join(f"{name}: {value}\r\n" for name, value in whole.items() if value is not None)
        return f"{verb} /mcp HTTP/1.1\r\n{lines}content-length: {len(content)}\r\n\r\n".encode() + content

    async def ask(self, wire: Wire, body: Any, /, verb: str = "POST", **headers: Any) -> tuple[int, list[Any], bytes]:
        wire.protocol.data_received(self.sent(body, verb, **headers))
        ((status, found, content),) = await answers(wire, 1)
        others = [(name, value) for name, value in found if name != b"mcp-session-id" or value == self.id.encode()]
        return status, sorted(others), content


@contextlib.asynccontextmanager
async def session(monkeypatch: pytest.MonkeyPatch, tools: Any = TOOLS, handler: Any = run) -> AsyncIterator[Opened]:
    async with crib(*tools, handler=handler, policy=PerTenant(), surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        async with app.running():
            opened = Opened(Both(served, app), "")
            inner = SessionCalls.answer_plain

            async def counted(*args: Any) -> Any:
                opened.plain += 1
                return await inner(*args)

            monkeypatch.setattr(SessionCalls, "answer_plain", counted)
            wire = opened.connected()
            wire.protocol.data_received(opened.sent(message("initialize", OPENING), mcp_session_id=None))
            ((_, headers, _),) = await answers(wire, 1)
            opened.id = dict(headers)[b"mcp-session-id"].decode()
            await opened.ask(wire, message("notifications/initialized", id=...))
            yield opened
            wire.protocol.connection_lost(None)


@pytest.mark.parametrize("awake", [False, True])
async def test_every_answer_is_that_of_the_layers(monkeypatch: pytest.MonkeyPatch, awake: bool) -> None:
    async with session(monkeypatch) as opened:
        wires = [opened.connected(), opened.connected(reads_plain=False)]
        if awake:
            await opened.ask(wires[0], message("prompts/list"))
        for body, headers in generated():
            given: dict[str, Any] = {**headers}
            found = [await opened.ask(wire, body, **given) for wire in wires]
            assert found[0] == found[1], (body, headers)
        for token in (TOKENS[1].secret, "none", ""):
            found = [await opened.ask(wire, call("plain"), authorization=f"Bearer {token}") for wire in wires]
            assert found[0] == found[1], token
        assert opened.plain > 50
        for wire in wires:
            wire.protocol.connection_lost(None)


async def test_calls_are_read_from_the_connection_and_other_requests_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with session(monkeypatch) as opened:
        wire = opened.connected()
        calls = [one for one in PLAIN if one["method"] == "tools/call" and "_meta" not in (one.get("params") or {})]
        for body in calls:
            await opened.ask(wire, body)
        assert opened.plain > len(calls) - 4
        before = opened.plain
        for body in (message("tools/list"), message("ping"), call("plain", {}, task={})):
            await opened.ask(wire, body)
        assert opened.plain == before
        assert (await opened.ask(wire, call("plain"), mcp_protocol_version=None))[0] == 200
        assert opened.plain == before + 1
        wire.protocol.connection_lost(None)


async def test_a_call_in_a_session_that_has_ended_gets_404(monkeypatch: pytest.MonkeyPatch) -> None:
    async with session(monkeypatch) as opened:
        wire, other = opened.connected(), opened.connected(reads_plain=False)
        wire.protocol.data_received(opened.sent(call("plain")))
        other.protocol.data_received(opened.sent(b"", verb="DELETE"))
        statuses = [(await answers(one, 1))[0][0] for one in (wire, other)]
        assert statuses in ([404, 200], [500, 200]), "it ended with the session, before or after it had begun"
        found = [await opened.ask(one, call("plain")) for one in (wire, other)]
        assert found[0] == found[1]
        assert found[0][0] == 404
        for one in (wire, other):
            one.protocol.connection_lost(None)


async def events(wire: Wire) -> list[Any]:
    """The messages of an answer that is a stream of events."""
    with anyio.fail_after(5):
        while not wire.received.endswith(b"0\r\n\r\n"):
            await wire.arrived.wait()
    head, _, chunks = wire.received.partition(b"\r\n\r\n")
    wire.received = b""
    assert b"content-type: text/event-stream" in head
    assert b"mcp-session-id: " in head
    body = b""
    while (size := int(chunks.split(b"\r\n", 1)[0], 16)) > 0:
        chunks = chunks.split(b"\r\n", 1)[1]
        body, chunks = body + chunks[:size], chunks[size + 2 :]
    return [json.loads(data) for data in re.findall(rb"event: message\r\ndata: (.*)\r\n\r\n", body)]


async def test_log_messages_of_a_call_come_before_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def logs(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert isinstance(ctx.client, SessionClient)
        for number in range(2):
            await ctx.client.notify("notifications/message", {"level": "error", "data": f"{number}"})
        return ToolResult(content=({"type": "text", "text": "done"},))

    async with session(monkeypatch, [native("logs")], logs) as opened:
        received = []
        for reads_plain in (True, False):
            wire = opened.connected(reads_plain=reads_plain)
            for _ in range(2):
                wire.protocol.data_received(opened.sent(call("logs")))
                received.append(await events(wire))
            status, _, body = await opened.ask(wire, call("logs"), accept="application/json")
            assert (status, json.loads(body)["result"]["content"][0]["text"]) == (200, "done")
            wire.protocol.connection_lost(None)
        assert received[0] == received[1] == received[2] == received[3]
        assert [one.get("method", "answer") for one in received[0]] == ["notifications/message"] * 2 + ["answer"]
        assert opened.plain == 3


async def answered_after(monkeypatch: pytest.MonkeyPatch, end: Callable[[Opened, Wire], Awaitable[None]]) -> list[bool]:
    """Whether a call that has begun is cancelled by `end`, and then by the end of its session."""
    begun, cancelled = anyio.Event(), anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError("it was not cancelled")

    async with session(monkeypatch, [native("slow")], wait) as opened:
        requests = InFlightRequests(opened.both.app)
        wire, other = opened.connected(through=requests), opened.connected()
        wire.protocol.data_received(opened.sent(call("slow")))
        with anyio.fail_after(5):
            await begun.wait()
            assert opened.plain == 1
            await end(opened, wire)
            await anyio.wait_all_tasks_blocked()
            found = [cancelled.is_set()]
            await opened.ask(other, b"", verb="DELETE")
            await requests.wait_idle()
        other.protocol.connection_lost(None)
        return [*found, cancelled.is_set()]


async def test_a_call_in_a_session_goes_on_when_its_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(_: Opened, wire: Wire) -> None:
        wire.protocol.connection_lost(None)

    assert await answered_after(monkeypatch, leave) == [False, True]


async def test_a_client_cancels_a_call_that_was_read_from_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cancel(opened: Opened, _: Wire) -> None:
        other = opened.connected()
        await opened.ask(other, message("notifications/cancelled", {"requestId": 7}, id=...))
        other.protocol.connection_lost(None)

    assert await answered_after(monkeypatch, cancel) == [True, True]


async def test_a_call_that_comes_while_a_request_opens_the_transport_of_its_session_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with session(monkeypatch) as opened:
        wires = [opened.connected(), opened.connected()]
        managers = opened.both.app._endpoint._managers  # type: ignore[attr-defined]  # of this transport
        for later in range(40):
            await managers[0]._rest(opened.id)
            wires[0].protocol.data_received(opened.sent(message("prompts/list")))
            for _ in range(later):
                await anyio.lowlevel.checkpoint()
            status, _, content = await opened.ask(wires[1], call("plain"))
            assert (status, b"result" in content) == (200, True), (later, content)
            await answers(wires[0], 1)
        for wire in wires:
            wire.protocol.connection_lost(None)
