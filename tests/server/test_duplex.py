"""One client over a connection in both directions: both eras, questions to it, and requests that it cancels."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from tests.server.conftest import crib
from tests.server.test_stdio import MODERN, OPENING, request

from toolcrib.protocol.failures import INVALID_REQUEST, RpcError
from toolcrib.server.context import RequestClient
from toolcrib.server.duplex import DuplexConnection
from toolcrib.server.engine import Engine
from toolcrib.server.exchange import Exchange
from toolcrib.testing import Handler, echo
from toolcrib.types import Context, Object, ToolResult

pytestmark = pytest.mark.anyio

CALL = {"name": "execute_tool", "arguments": {"name": "x:echo"}}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Peer:
    """The client's end of a connection."""

    connection: DuplexConnection
    engine: Engine

    def __init__(self) -> None:
        self.sent, self.received = anyio.create_memory_object_stream[bytes](100)

    async def send(self, *messages: Any) -> None:
        for message in messages:
            await self.connection.receive(json.dumps(message).encode())

    async def receive(self) -> Any:
        with anyio.fail_after(5):
            return json.loads(await self.received.receive())

    def has_more(self) -> bool:
        return self.received.statistics().current_buffer_used > 0

    async def open(self, **capabilities: Any) -> None:
        params: dict[str, Any] = {**dict(OPENING)["params"], "capabilities": capabilities}  # type: ignore[dict-item]  # it is a dict
        await self.send({**OPENING, "params": params}, INITIALIZED)
        assert (await self.receive())["id"] == 0


@contextlib.asynccontextmanager
async def connected(handler: Handler = echo) -> AsyncIterator[Peer]:
    peer = Peer()
    with anyio.fail_after(10), peer.sent, peer.received:
        async with crib(handler=handler) as served:
            peer.engine = served.engine
            peer.connection = DuplexConnection(served.engine, peer.sent.send)
            async with peer.connection.serving():
                yield peer


def said(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


# -- eras --------------------------------------------------------------------------------------------------------------


async def test_a_request_right_behind_the_handshake_finds_the_session_open() -> None:
    async with connected() as peer:
        await peer.send(OPENING, request(1, "tools/call", **CALL))
        assert [(await peer.receive())["id"] for _ in range(2)] == [0, 1]


async def test_a_client_without_a_handshake_gets_its_progress_before_the_result() -> None:
    async def work(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert ctx.client is not None
        await ctx.client.progress(1, 2, "half")
        return ToolResult(content=({"type": "text", "text": "done"},))

    async with connected(work) as peer:
        await peer.send(request(1, "tools/call", **CALL, _meta={**MODERN, "progressToken": "p"}))
        notice, answer = await peer.receive(), await peer.receive()
        assert notice["params"] == {"progressToken": "p", "progress": 1, "total": 2, "message": "half"}
        assert said(answer) == "done"


async def test_requests_of_one_connection_belong_to_one_session_and_those_of_others_do_not() -> None:
    sessions: list[str | None] = []

    async def note(ctx: Context, name: str, arguments: Object) -> ToolResult:
        sessions.append(ctx.session)
        return ToolResult()

    for _ in range(2):
        async with connected(note) as peer:
            for number in (1, 2):
                await peer.send(request(number, "tools/call", **CALL, _meta=MODERN))
                await peer.receive()
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3]


async def test_an_older_request_before_the_handshake_is_refused() -> None:
    async with connected() as peer:
        await peer.send(request(1, "tools/list"))
        assert "initialize first" in (await peer.receive())["error"]["message"]


async def test_params_of_a_wrong_type_are_refused_by_name() -> None:
    async with connected() as peer:
        await peer.open()
        await peer.send(request(1, "tools/call", name=7))
        error = (await peer.receive())["error"]
        assert (error["code"], "name must be a string" in error["message"]) == (-32602, True)


# -- cancelled requests ------------------------------------------------------------------------------------------------


async def test_a_cancelled_request_ends_without_a_response_and_others_go_on() -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError("it was not cancelled")

    async with connected(wait) as peer:
        await peer.open()
        await peer.send(request(1, "tools/call", **CALL))
        await begun.wait()
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await ended.wait()
        await peer.send(request(2, "ping"))
        assert (await peer.receive())["id"] == 2
        await anyio.wait_all_tasks_blocked()
        assert not peer.has_more()


async def test_a_second_request_with_the_id_of_one_under_way_is_refused_and_the_first_is_answered() -> None:
    calls, begun, go_on = list[str](), anyio.Event(), anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        calls.append(name)
        begun.set()
        await go_on.wait()
        return await echo(ctx, name, arguments)

    async with connected(wait) as peer:
        await peer.open()
        await peer.send(request(1, "tools/call", **CALL))
        await begun.wait()
        await peer.send(request(1, "tools/call", **CALL))
        refused = await peer.receive()
        assert (refused["id"], refused["error"]["code"]) == (1, INVALID_REQUEST)
        assert "with another id" in refused["error"]["message"]
        go_on.set()
        assert said(await peer.receive())
        await peer.send(request(1, "tools/call", **CALL))
        assert said(await peer.receive())
        assert len(calls) == 2


async def test_a_cancellation_finds_its_request_even_if_it_writes_the_id_as_a_text() -> None:
    begun = anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError("it was not cancelled")

    async with connected(wait) as peer:
        await peer.open()
        await peer.send(request(7, "tools/call", **CALL))
        await begun.wait()
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "7"}})
        await peer.connection.drain(5)
        await peer.connection.refuse_rest(5)
        assert not peer.has_more()


async def test_a_request_that_outlasts_the_server_is_answered_under_its_own_id() -> None:
    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        await anyio.sleep_forever()
        raise AssertionError("it was not cancelled")

    async with connected(wait) as peer:
        await peer.open()
        await peer.send({**request(0, "tools/call", **CALL), "id": "7"})
        await peer.connection.drain(0)
        await peer.connection.refuse_rest(5)
        answer = await peer.receive()
        assert (answer["id"], "shutting down" in answer["error"]["message"]) == ("7", True)


async def test_a_message_that_is_being_written_is_written_whole_even_if_its_request_is_cancelled_now() -> None:
    written, may_go_on, parts = anyio.Event(), anyio.Event(), list[bytes]()

    async def write_slowly(text: bytes) -> None:
        parts.append(text[:10])
        written.set()
        await may_go_on.wait()
        parts.append(text[10:])

    async def report(ctx: Context, name: str, arguments: Object) -> ToolResult:
        assert ctx.client is not None
        await ctx.client.progress(1)
        raise AssertionError("it was not cancelled")

    with anyio.fail_after(10):
        async with crib(handler=report) as served:
            connection = DuplexConnection(served.engine, write_slowly)
            async with connection.serving():
                call = request(1, "tools/call", **CALL, _meta={**MODERN, "progressToken": 1})
                await connection.receive(json.dumps(call).encode())
                await written.wait()
                cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
                await connection.receive(json.dumps(cancelled).encode())
                await anyio.wait_all_tasks_blocked()  # the cancellation has arrived
                may_go_on.set()
                await connection.drain(5)
    assert json.loads(b"".join(parts))["method"] == "notifications/progress"


async def test_a_client_that_reads_nothing_does_not_delay_the_end() -> None:
    async def never(text: bytes) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(10):
        async with crib() as served:
            connection = DuplexConnection(served.engine, never)
            async with connection.serving():
                await connection.receive(json.dumps(request(1, "tools/call", **CALL, _meta=MODERN)).encode())
                await anyio.wait_all_tasks_blocked()
                await connection.drain(0.01)
                await connection.refuse_rest(0.01)


# -- questions ---------------------------------------------------------------------------------------------------------


async def roots(ctx: Context, name: str, arguments: Object) -> ToolResult:
    """Ask the client for its roots."""
    assert isinstance(ctx.client, RequestClient)
    try:
        text = str((await ctx.client.list_roots())["roots"])
    except RpcError as error:
        text = error.message
    return ToolResult(content=({"type": "text", "text": text},))


async def test_a_question_is_answered_while_its_call_waits() -> None:
    async with connected(roots) as peer:
        await peer.open(roots={})
        await peer.send(request(1, "tools/call", **CALL))
        question = await peer.receive()
        assert question["method"] == "roots/list"
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "result": {"roots": [{"uri": "file:///a"}]}})
        assert said(await peer.receive()) == "[{'uri': 'file:///a'}]"


async def test_a_client_that_cannot_answer_fails_only_its_question() -> None:
    async with connected(roots) as peer:
        await peer.open(roots={})
        await peer.send(request(1, "tools/call", **CALL))
        question = await peer.receive()
        await peer.send({"jsonrpc": "2.0", "id": question["id"], "error": {"code": -1, "message": "No roots today."}})
        assert said(await peer.receive()) == "No roots today."


async def test_the_question_of_a_cancelled_call_is_withdrawn() -> None:
    async with connected(roots) as peer:
        await peer.open(roots={})
        await peer.send(request(1, "tools/call", **CALL))
        question = await peer.receive()
        await peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        withdrawn = await peer.receive()
        assert (withdrawn["method"], withdrawn["params"]) == ("notifications/cancelled", {"requestId": question["id"]})


async def test_a_question_that_stays_unanswered_is_given_up_and_withdrawn() -> None:
    async with connected() as peer:
        await peer.open(roots={})
        with pytest.raises(RpcError, match="did not answer in time"):
            await peer.connection.questions.ask(peer.connection.send, "roots/list", {}, 0.01)
        question, withdrawn = await peer.receive(), await peer.receive()
        assert withdrawn["params"] == {"requestId": question["id"]}


async def test_a_question_ends_with_the_connection_of_its_client() -> None:
    answers: list[str] = []

    async def ask(ctx: Context, name: str, arguments: Object) -> ToolResult:
        try:
            return await roots(ctx, name, arguments)
        finally:
            answers.append("ended")

    async with connected(ask) as peer:
        await peer.open(roots={})
        await peer.send(request(1, "tools/call", **CALL))
        await peer.receive()
    assert answers == ["ended"]


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": "x" * 4_000_000}]},
        {"content": [], "structuredContent": {"rows": [{"text": "x" * 1_000} for _ in range(4_000)]}},
    ],
    ids=["text", "structured"],
)
async def test_other_tasks_run_while_a_large_result_is_encoded(result: dict[str, Any]) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async def answer(_: Exchange) -> dict[str, Any]:
        return dict(result)

    async with connected() as peer, anyio.create_task_group() as group:
        await peer.open()
        peer.engine.methods["ping"] = answer
        group.start_soon(count_turns)
        await peer.send(request(1, "ping"))
        found = (await peer.receive())["result"]
        group.cancel_scope.cancel()
    assert found == result
    assert turns >= 10
