"""Connections of single sessions: who gets one, what it declares, and when it ends."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from tests.upstream.raw_http import mcp, mcp_modern, peer_of, server_at
from tests.upstream.support import CTX, FAST, alive, call, call_json, raw, server_of, serving
from tests.upstream.test_forwarding import ELICIT, TALK

from toolcrib.errors import ExecutionFailed, ServerUnavailable
from toolcrib.protocol.failures import RpcError
from toolcrib.types import SESSION_META, Caller, Context, Object, ServerState, SessionClient
from toolcrib.upstream import open_calls
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.forwarding import LogForwarder, UpstreamExchange
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.session_connections import SessionConnections, SessionUnavailable
from toolcrib.upstream.targets import open_transport
from toolcrib.upstream.transports.base import Transport
from toolcrib.upstream.transports.stdio import StdioTransport

pytestmark = pytest.mark.anyio

OWN: dict[str, Any] = {"options": {"sessions": "client"}}


class Peer(SessionClient):
    """A client of either era."""

    def __init__(self, *, is_modern: bool = False, capabilities: Object | None = None) -> None:
        self._is_modern = is_modern
        self._capabilities = capabilities or {}
        self.logged: tuple[Object, ...] = ()

    @property
    def is_modern(self) -> bool:
        return self._is_modern

    @property
    def capabilities(self) -> Object:
        return self._capabilities

    declared = capabilities

    @property
    def can_elicit(self) -> bool:
        return False

    def can_ask(self, method: str) -> bool:
        return not self.is_modern and method.partition("/")[0] in self.capabilities

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    async def elicit(self, params: Object) -> Object:
        return {"action": "accept", "content": {"by": "client"}}

    async def sample(self, params: Object) -> Object:
        raise AssertionError("this client has no model")

    async def list_roots(self) -> Object:
        return {"roots": [{"uri": "file:///r"}]}

    async def notify(self, method: str, params: Object) -> None:
        self.logged += (params,)


def of(session: str | None, caller: str = "ann", **client: Any) -> Context:
    return Context(caller=Caller(id=caller), session=session, client=Peer(**client))


async def process(server: RemoteServer, ctx: Context = CTX) -> int:
    (pid,) = await call_json(server, "pids", ctx)
    assert isinstance(pid, int)
    return pid


async def gone(pid: int) -> None:
    while alive(pid):  # noqa: ASYNC110 - a process has no event
        await anyio.sleep(0.01)


async def test_each_session_has_its_own_process_and_other_requests_share_one() -> None:
    async with server_of(raw(**OWN)) as server:
        shared = await process(server)
        one, two = await process(server, of("1")), await process(server, of("2"))
        assert len({shared, one, two}) == 3
        assert (await process(server, of("1")), await process(server)) == (one, shared)
        assert await process(server, of("1", caller="bob")) not in (shared, one, two)
        assert (server.status.sessions, server.status.sessions_why) == ("client", "set in its entry")


async def test_a_connection_ends_with_its_session() -> None:
    async with server_of(raw(**OWN)) as server:
        one, two = await process(server, of("1")), await process(server, of("2"))
        server.end_session(of("1"))
        await gone(one)
        assert await process(server, of("1")) != one
        assert await process(server, of("2")) == two


async def test_an_idle_connection_is_closed_and_opened_again_when_needed() -> None:
    async with server_of(raw(**OWN), replace(FAST, session_idle_s=0.05)) as server:
        one = await process(server, of("1"))
        await gone(one)
        assert await process(server, of("1")) != one


async def test_no_request_gets_an_idle_connection_that_is_being_closed() -> None:
    options = replace(raw(**OWN), start_timeout_s=10)
    redact, transports = Redactor(options), list[Transport]()

    def open_kept(_: Caller) -> Transport:
        transports.append(StdioTransport(options, FAST, redact))
        return transports[-1]

    idle_soon = replace(FAST, session_idle_s=0.0)
    own = SessionConnections(options, idle_soon, redact, LogForwarder("s", redact), open_kept)
    own.attach(modern=False, extensions={})
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(own.run)
            await anyio.wait_all_tasks_blocked()
            (await own.lease(of("1"))).release()
            await transports[0].closed.wait()
            group.cancel_scope.cancel()
    assert transports[0].closed.reason == "it was not used"


async def test_a_session_too_many_takes_the_place_of_the_one_unused_longest() -> None:
    async with server_of(raw(**OWN), replace(FAST, max_sessions=2)) as server:
        pids = [await process(server, of(session)) for session in ("1", "2", "1", "3")]
        await gone(pids[1])
        assert await process(server, of("1")) == pids[0]


async def test_a_caller_with_many_sessions_takes_no_place_of_another_caller() -> None:
    async with server_of(raw(**OWN), replace(FAST, max_sessions=2)) as server:
        bob = await process(server, of("1", caller="bob"))
        for session in ("1", "2", "3"):
            await process(server, of(session))
        assert await process(server, of("1", caller="bob")) == bob


async def test_a_session_without_a_place_learns_why() -> None:
    async with server_of(raw(**OWN), replace(FAST, max_sessions=1)) as server, anyio.create_task_group() as group:
        busy = of("1")
        await process(server, busy)
        group.start_soon(call, server, "hang", busy)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ServerUnavailable, match="all 1 connections of its clients' sessions are in use"):
            await process(server, of("2"))
        group.cancel_scope.cancel()


async def test_a_session_whose_process_died_gets_another_one() -> None:
    async with server_of(raw(**OWN)) as server:
        one = await process(server, of("1"))
        with pytest.raises(ExecutionFailed):
            await call(server, "die", of("1"))
        assert await process(server, of("1")) != one


async def test_requests_without_a_session_use_a_connection_one_at_a_time() -> None:
    anonymous = of(None, caller="local")
    async with server_of(raw(**OWN)) as server:
        shared, one = await process(server), await process(server, anonymous)
        assert one != shared
        assert await process(server, anonymous) == one
        async with anyio.create_task_group() as group:
            group.start_soon(call, server, "hang", anonymous)
            await anyio.wait_all_tasks_blocked()
            assert await process(server, anonymous) not in (shared, one)
            group.cancel_scope.cancel()


ABLE: Object = {"elicitation": {"form": {}}, "roots": {"listChanged": False}}


async def test_a_session_declares_what_its_client_can_do_unless_the_server_may_not_ask() -> None:
    async with server_of(raw(**OWN)) as server:
        assert await call_json(server, "given", of("1", capabilities={**ABLE, "experimental": {}})) == ABLE
        assert await call_json(server, "given", of("2")) == {}
    async with server_of(raw(options={"sessions": "client", "asks": False})) as server:
        assert await call_json(server, "given", of("1", capabilities=ABLE)) == {}


async def test_a_server_that_may_ask_gets_a_connection_for_each_session() -> None:
    async with server_of(raw(options={"asks": True})) as server:
        assert (server.status.sessions, server.status.sessions_why) == ("client", 'it may ask clients ("asks")')
        ann, bob = of("1", capabilities=ABLE), of("2", capabilities={})
        accepted = {"action": "accept", "content": {"by": "client"}}
        assert await call_json(server, "ask_back", ann, **ELICIT) == accepted
        assert await call_json(server, "ask_back", ann, method="roots/list", params={}) == {
            "roots": [{"uri": "file:///r"}]
        }
        assert (await call_json(server, "ask_back", bob, **ELICIT))["action"] == "cancel"


async def test_a_question_is_refused_while_it_may_belong_to_another_client_of_the_same_caller() -> None:
    accepted = {"action": "accept", "content": {"by": "client"}}
    async with server_of(raw(options={"asks": True})) as server, anyio.create_task_group() as group:
        group.start_soon(call, server, "hang", of(None, capabilities=ABLE))
        await anyio.wait_all_tasks_blocked()
        assert (await call_json(server, "ask_back", of(None, capabilities=ABLE), **ELICIT))["action"] == "cancel"
        named = replace(of(None, capabilities=ABLE), meta={SESSION_META: "mine"})
        assert await call_json(server, "ask_back", named, **ELICIT) == accepted
        group.cancel_scope.cancel()
    async with server_of(raw(options={"asks": True})) as server:
        assert await call_json(server, "ask_back", of(None, capabilities=ABLE), **ELICIT) == accepted


async def test_log_messages_of_a_session_reach_its_running_request() -> None:
    ctx = of("1")
    notice = {"method": "notifications/message", "params": {"level": "info", "data": "d"}}
    async with server_of(raw(**OWN)) as server:
        for _ in range(3):
            await call(server, "tell", ctx, notices=[notice])
    assert isinstance(ctx.client, Peer)
    assert ctx.client.logged == ({"level": "info", "logger": "raw", "data": "d"},) * 3


@pytest.mark.parametrize("streams", [True, False])
async def test_calls_of_a_session_over_http_are_its_own_with_their_log_messages(streams: bool) -> None:
    sessions: list[str] = []

    async def answer(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        sessions.append(ctx.request.headers["mcp-session-id"])
        if streams:
            message = LoggingMessageNotification(params=LoggingMessageNotificationParams(level="error", data="d"))
            await ctx.session.send_notification(message, related_request_id=ctx.request_id)
        return CallToolResult(content=[TextContent(type="text", text=str(len(sessions)))])

    async def list_tools(ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="count", input_schema={"type": "object"})])

    app = Server[Any]("web", on_list_tools=list_tools, on_call_tool=answer).streamable_http_app(
        json_response=not streams
    )
    one, two = of("1"), of("2")
    async with serving(app) as origin:
        async with server_of(
            ServerOptions(name="web", transport="http", url=f"{origin}/mcp", **OWN["options"])
        ) as server:
            texts = [(await call(server, "count", ctx)).text for ctx in (one, two, one, two, one)]
    assert texts == ["1", "2", "3", "4", "5"]
    assert sessions == [sessions[0], sessions[1], sessions[0], sessions[1], sessions[0]]
    assert sessions[0] != sessions[1]
    for ctx, count in ((one, 3), (two, 2)):
        assert isinstance(ctx.client, Peer)
        assert [message["data"] for message in ctx.client.logged] == (["d"] * count if streams else [])


@asynccontextmanager
async def silence() -> AsyncIterator[Any]:
    """The transport of a server that never answers."""
    [into, received], [sent, out] = (
        anyio.create_memory_object_stream[Any](9),
        anyio.create_memory_object_stream[Any](9),
    )
    with into, received, sent, out:
        yield received, sent


async def test_a_session_whose_server_does_not_answer_the_handshake_learns_that() -> None:
    options = ServerOptions(name="s", command="s", sessions="client", start_timeout_s=0.05)
    redact = Redactor(options)

    def open_silent(_: Caller) -> Transport:
        return open_transport(replace(options, target=silence), FAST, redact)

    own = SessionConnections(options, FAST, redact, LogForwarder("s", redact), open_silent)
    own.attach(modern=False, extensions={})
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(own.run)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(SessionUnavailable, match=r"no answer to the handshake within 0\.05 s"):
                await own.lease(of("1"))
            group.cancel_scope.cancel()


# -- protocol versions -------------------------------------------------------------------------------------------------


async def test_a_named_older_version_is_offered_without_asking_for_a_newer_one() -> None:
    async with server_of(raw(version="echo", discover="serve", supports=[], options={"protocol": "2025-03-26"})) as one:
        assert one.status.protocol == "2025-03-26"
        assert (await call_json(one, "seen"))[0] == "initialize"


async def test_a_server_that_does_not_speak_the_named_version_has_failed() -> None:
    async with server_of(raw(options={"protocol": "2026-07-28"})) as server:
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, "it does not speak 2026-07-28")


async def test_a_server_that_refuses_a_version_but_names_it_as_supported_is_asked_again() -> None:
    async with server_of(raw(discover="insist")) as server:
        assert server.status.protocol == "2026-07-28"


async def test_an_older_client_is_served_in_its_own_version_where_the_server_speaks_it() -> None:
    async with server_of(raw(discover="serve", supports=["2026-07-28", "2025-11-25"])) as server:
        shared, older = await process(server), await process(server, of("1"))
        assert (server.status.protocol, server.status.sessions) == ("2026-07-28", "older")
        assert older != shared
        assert await process(server, of("1", is_modern=True)) == shared
        assert await call_json(server, "given", of("2", capabilities=ABLE)) == ABLE


async def test_a_server_that_speaks_the_newer_version_only_serves_older_clients_in_it() -> None:
    async with server_of(raw(discover="serve")) as server:
        shared = await process(server)
        assert [await process(server, of("1")) for _ in range(2)] == [shared] * 2
        assert "initialize" not in await call_json(server, "seen")


# -- questions to newer clients ----------------------------------------------------------------------------------------

MODERN = of("1", is_modern=True, capabilities={"elicitation": {}, "sampling": {}})


async def test_a_question_to_a_newer_client_ends_its_request_and_the_repeated_one_brings_the_answer() -> None:
    async with server_of(raw(options={"asks": True})) as server:
        asked = await call(server, "ask_back", MODERN, **ELICIT)
        assert (asked.kind, dict(asked.input_requests or {})) == ("input_required", {"q1": ELICIT})
        answers = {"q1": {"action": "accept", "content": {"who": "me"}}}
        repeated = replace(MODERN, input_responses=answers, request_state=asked.request_state)
        assert await call_json(server, "ask_back", repeated, **ELICIT) == answers["q1"]


async def test_a_caller_cannot_leave_any_number_of_calls_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "_MAX_OPEN_OF_CALLER", 2)

    async def ask(open_call: open_calls.OpenCall) -> dict[str, Any]:
        return dict(await open_call.ask("elicitation/create", {"message": "?"}))

    async with anyio.create_task_group() as group:
        calls = open_calls.OpenCalls(group.start_soon)
        for _ in range(2):
            assert (await calls.begin(MODERN, ask))["resultType"] == "input_required"
        with pytest.raises(ExecutionFailed, match="Too many of your calls to this server wait for an answer"):
            await calls.begin(MODERN, ask)
        bob = replace(MODERN, caller=Caller(id="bob"))
        assert (await calls.begin(bob, ask))["resultType"] == "input_required"
        group.cancel_scope.cancel()


async def test_calls_that_begin_together_cannot_all_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "_MAX_OPEN_OF_CALLER", 2)
    begun, outcomes = anyio.Event(), list[str]()

    async def ask(open_call: open_calls.OpenCall) -> dict[str, Any]:
        await begun.wait()
        return dict(await open_call.ask("elicitation/create", {"message": "?"}))

    async def begin(calls: open_calls.OpenCalls) -> None:
        try:
            outcomes.append((await calls.begin(MODERN, ask))["resultType"])
        except ExecutionFailed as error:
            outcomes.append(error.message)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            calls = open_calls.OpenCalls(group.start_soon)
            async with anyio.create_task_group() as callers:
                for _ in range(4):
                    callers.start_soon(begin, calls)
                await anyio.wait_all_tasks_blocked()
                begun.set()
            group.cancel_scope.cancel()
    assert outcomes.count("input_required") == 2
    assert outcomes.count("Too many of your calls to this server wait for an answer.") == 2


async def test_a_caller_whose_rights_have_changed_cannot_continue_an_open_call() -> None:
    async def ask(open_call: open_calls.OpenCall) -> dict[str, Any]:
        return dict(await open_call.ask("elicitation/create", {"message": "?"}))

    admin = replace(MODERN, caller=Caller(id="ann", scopes=frozenset({"admin"})))
    async with anyio.create_task_group() as group:
        calls = open_calls.OpenCalls(group.start_soon)
        asked = await calls.begin(admin, ask)
        repeated = replace(admin, request_state=asked["requestState"], input_responses={"q1": {"action": "accept"}})
        with pytest.raises(ExecutionFailed, match="no longer open"):
            await calls.resume(replace(repeated, caller=Caller(id="ann")))
        assert await calls.resume(repeated) == {"action": "accept"}
        group.cancel_scope.cancel()


class Steps:
    """An open call that asks a question, and ends when the test lets it."""

    def __init__(self) -> None:
        self.answered, self.finish, self.cancelled = anyio.Event(), anyio.Event(), anyio.Event()

    async def run(self, open_call: open_calls.OpenCall) -> dict[str, Any]:
        answer = await open_call.ask("elicitation/create", {"message": "?"})
        self.answered.set()
        try:
            await self.finish.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        return dict(answer)


async def lose_connection(calls: open_calls.OpenCalls, ctx: Context, answered: anyio.Event) -> None:
    """Answer the question of a call, and be cancelled while the call goes on."""
    async with anyio.create_task_group() as request:
        request.start_soon(calls.resume, ctx)
        await answered.wait()
        await anyio.wait_all_tasks_blocked()
        request.cancel_scope.cancel()


@pytest.mark.parametrize("finished_while_away", [False, True])
async def test_a_client_that_lost_its_connection_after_answering_repeats_its_request(
    *, finished_while_away: bool
) -> None:
    steps = Steps()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            calls = open_calls.OpenCalls(group.start_soon)
            asked = await calls.begin(MODERN, steps.run)
            answers = {"q1": {"action": "accept"}}
            repeated = replace(MODERN, input_responses=answers, request_state=asked["requestState"])
            await lose_connection(calls, repeated, steps.answered)
            if finished_while_away:
                steps.finish.set()
                await anyio.wait_all_tasks_blocked()
            steps.finish.set()
            assert await calls.resume(repeated) == {"action": "accept"}
            with pytest.raises(ExecutionFailed, match="no longer open"):
                await calls.resume(repeated)
            group.cancel_scope.cancel()


async def test_two_requests_for_the_same_open_call_get_its_result() -> None:
    steps, results = Steps(), list[dict[str, Any]]()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            calls = open_calls.OpenCalls(group.start_soon)
            asked = await calls.begin(MODERN, steps.run)
            repeated = replace(MODERN, input_responses={"q1": {"n": 1}}, request_state=asked["requestState"])

            async def resume() -> None:
                results.append(await calls.resume(repeated))

            async with anyio.create_task_group() as requests:
                requests.start_soon(resume)
                requests.start_soon(resume)
                await steps.answered.wait()
                await anyio.wait_all_tasks_blocked()
                steps.finish.set()
            group.cancel_scope.cancel()
    assert results == [{"n": 1}] * 2


async def test_a_call_ends_if_its_client_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_calls, "_RETURN_TIMEOUT_S", 0.01)
    steps = Steps()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            calls = open_calls.OpenCalls(group.start_soon)
            asked = await calls.begin(MODERN, steps.run)
            repeated = replace(MODERN, input_responses={"q1": {}}, request_state=asked["requestState"])
            await lose_connection(calls, repeated, steps.answered)
            await steps.cancelled.wait()
            with pytest.raises(ExecutionFailed, match="The call was cancelled"):
                await calls.resume(repeated)
            group.cancel_scope.cancel()


async def test_an_open_call_of_another_gateway_is_continued_there() -> None:
    async with server_of(raw(discover="serve")) as server:
        repeated = replace(MODERN, input_responses={"q": {}}, request_state="open-call.theirs")
        assert await call_json(server, "ask_more", repeated) == [{"q": {}}, "open-call.theirs"]


async def test_a_call_that_waits_for_a_person_is_finished_by_the_server_that_is_being_replaced() -> None:
    with anyio.fail_after(20):
        async with Fleet(FAST) as fleet:
            before = raw(options={"asks": True})
            await fleet.apply([before])
            await fleet.settled()
            (old,) = fleet.providers()
            asked = await call(old, "ask_back", MODERN, **ELICIT)
            await fleet.apply([replace(before, call_timeout_s=before.call_timeout_s + 1)])
            (new,) = fleet.providers()
            assert new is not old
            answers = {key: {"action": "accept", "content": {"by": "a person"}} for key in asked.input_requests or {}}
            repeated = replace(MODERN, input_responses=answers, request_state=asked.request_state)
            assert await call_json(new, "ask_back", repeated, **ELICIT) == answers["q1"]
            await fleet.settled()
            with pytest.raises(ExecutionFailed, match="no longer open"):
                await call(new, "ask_back", repeated, **ELICIT)


@pytest.mark.parametrize("other", [of("2", is_modern=True), of("1", caller="bob", is_modern=True)])
async def test_only_the_session_that_was_asked_can_answer(other: Context) -> None:
    async with server_of(raw(options={"asks": True})) as server:
        asked = await call(server, "ask_back", MODERN, method="sampling/createMessage", params=TALK)
        stolen = replace(other, input_responses={"q1": {}}, request_state=asked.request_state)
        with pytest.raises(ExecutionFailed, match="no longer open"):
            await call(server, "ask_back", stolen)
        with pytest.raises(ExecutionFailed, match="no longer open"):
            await call(server, "ask_back", replace(MODERN, request_state="open-call.unknown"))


async def test_a_newer_client_is_not_asked_for_what_it_did_not_declare() -> None:
    async with server_of(raw(options={"asks": True})) as server:
        answer = await call_json(server, "ask_back", MODERN, method="roots/list", params={})
        assert answer == {"refused": "The client has no roots to list."}


async def test_a_question_about_a_task_names_the_task_as_the_client_knows_it() -> None:
    logs = LogForwarder("s", Redactor(ServerOptions(name="s", command="s")))
    running = UpstreamExchange(Peer(capabilities=ABLE), logs, may_ask=True, task="mine")
    asked: list[Object] = []

    async def ask(method: str, params: Object) -> Object:
        asked.append(params)
        return {"action": "cancel"}

    running.ask = ask
    theirs = {"io.modelcontextprotocol/related-task": {"taskId": "theirs"}}
    await running.answer("elicitation/create", {"message": "?", "_meta": theirs})
    assert asked == [{"message": "?", "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "mine"}}}]


async def test_a_server_cannot_ask_any_number_of_questions_at_the_same_time() -> None:
    options = ServerOptions(name="s", command="s")
    running = UpstreamExchange(Peer(capabilities=ABLE), LogForwarder("s", Redactor(options)), may_ask=True)
    waiting = 0

    async def ask(method: str, params: Object) -> Object:
        nonlocal waiting
        waiting += 1
        await anyio.sleep_forever()
        return {}

    running.ask = ask
    async with anyio.create_task_group() as group:
        for _ in range(16):
            group.start_soon(running.answer, ELICIT["method"], ELICIT["params"])
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5), pytest.raises(RpcError, match="16 questions wait"):
            await running.answer(ELICIT["method"], ELICIT["params"])
        group.cancel_scope.cancel()
    assert waiting == 16


async def test_over_http_a_client_that_declares_capabilities_has_a_session_of_its_own_with_an_older_server() -> None:
    async with peer_of(partial(mcp, session="s")) as peer, server_of(server_at(peer.port)) as server:
        await call(server, "echo", of("1"))
        assert [one.message["params"]["capabilities"] for one in peer.sent("initialize")] == [{}]
        for _ in range(2):
            await call(server, "echo", of("2", capabilities=ABLE))
        assert [one.message["params"]["capabilities"] for one in peer.sent("initialize")] == [{}, ABLE]
        assert server.status.sessions == "asking"


async def test_a_server_that_keeps_no_sessions_for_older_clients_serves_them_in_the_newer_version() -> None:
    async with peer_of(mcp_modern) as peer, server_of(server_at(peer.port)) as server:
        for session in ("1", "1", "2"):
            await call(server, "echo", of(session, capabilities=ABLE))
        versions = [one.headers["mcp-protocol-version"] for one in peer.sent("tools/call")]
    assert versions == ["2026-07-28"] * 3
    assert len(peer.sent("initialize")) == 1


async def test_a_program_is_opened_again_with_the_capabilities_of_its_first_client_and_may_ask_it() -> None:
    async with server_of(raw()) as server:
        first = await process(server, of("1", capabilities=ABLE))
        assert await call_json(server, "given", of("1", capabilities=ABLE)) == ABLE
        answer = await call_json(server, "ask_back", of("1", capabilities=ABLE), **ELICIT)
        assert answer == {"action": "accept", "content": {"by": "client"}}
        assert await process(server, of("1", capabilities=ABLE)) == first


async def test_a_request_during_a_reopening_is_answered_once_the_program_is_ready(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    pids: set[int] = set()

    async def ask(server: RemoteServer) -> None:
        pids.add(await process(server, of("1", capabilities=ABLE)))

    patient = replace(FAST, connect_wait_s=600)
    with anyio.fail_after(20):
        async with Fleet(patient) as fleet, anyio.create_task_group() as group:
            await fleet.apply([raw(gate=str(gate))])
            await anyio.to_thread.run_sync(gate.write_text, "", abandon_on_cancel=True)
            await fleet.settled()
            group.start_soon(ask, fleet.server("raw"))
            opened = await anyio.to_thread.run_sync(gate.open, "w", abandon_on_cancel=True)
            with opened:
                group.start_soon(ask, fleet.server("raw"))
                await anyio.wait_all_tasks_blocked()
    assert len(pids) == 1


async def test_a_program_that_several_sessions_use_asks_none_of_them_and_stays_as_it_is() -> None:
    async with server_of(raw()) as server:
        shared = await process(server, of("1"))
        assert await process(server, of("2", capabilities=ABLE)) == shared
        assert await call_json(server, "given", of("2", capabilities=ABLE)) == {}


async def test_a_newer_client_of_a_program_is_asked_by_the_result_of_its_call() -> None:
    async with server_of(raw()) as server:
        asked = await call(server, "ask_back", MODERN, **ELICIT)
        assert asked.kind == "input_required"
