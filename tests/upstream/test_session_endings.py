"""Servers that forget a session say so in many ways: each leads to a new session, and to a call that runs once."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from tests.upstream.raw_http import Message, Request, events, mcp, peer_of, response, result, server_at, text_result
from tests.upstream.support import FAST, until

from toolcrib import App
from toolcrib.errors import ConnectionLost, ServerUnavailable, UpstreamError
from toolcrib.settings.options import Settings
from toolcrib.types import ServerState


def refusal(request: Request, code: int, message: str) -> Message:
    return {"jsonrpc": "2.0", "id": request.message.get("id"), "error": {"code": code, "message": message}}


Ending = Callable[[Request], bytes]
NO_SESSION = "Bad Request: No valid session ID provided"
ENDINGS: dict[str, Ending] = {
    "404": lambda _: response("", "", "404 Not Found"),
    "404 with a page": lambda _: response("<h1>Not Found</h1>", "text/html", "404 Not Found"),
    "404 with an error": lambda one: response(json.dumps(refusal(one, -32001, "Session not found")), status="404 Not"),
    "410": lambda _: response("gone", "text/plain", "410 Gone"),
    "400 with an error": lambda one: response(json.dumps(refusal(one, -32000, NO_SESSION)), status="400 Bad Request"),
    "400 with text": lambda _: response("Invalid session ID", "text/plain", "400 Bad Request"),
    "401 with JSON": lambda _: response('{"error": "invalid session"}', status="401 Unauthorized"),
    "403 with text": lambda _: response("unknown session", "text/plain", "403 Forbidden"),
    "500 with an error": lambda one: response(json.dumps(refusal(one, -32603, "no such session")), status="500 Oops"),
    "200 with -32001": lambda one: response(json.dumps(refusal(one, -32001, "Session not found"))),
    "200 with -32600": lambda one: response(json.dumps(refusal(one, -32600, "Session terminated"))),
    "200 with a bare error": lambda _: response('{"error": "Session not found"}'),
    "an event with an error": lambda one: events(refusal(one, -32001, "Session not found")),
    "an event with a bare error": lambda _: events('{"error": "Session not found"}'),
    "text in 200": lambda one: response(json.dumps(refusal(one, -32001, "Session expired")), "text/plain"),
}


@dataclass
class Forgetful:
    """A server that forgets each session after one call, and from then on answers everything in it by `ending`."""

    ending: Ending
    redirects: bool = False
    """Whether it redirects all requests: then every one goes through the session of the SDK."""
    calls_each: int = 1
    ran: list[Any] = field(default_factory=list)
    """The arguments of the calls that ran."""
    sessions: dict[str, int] = field(default_factory=dict)
    """The calls that ran in each session."""

    def __call__(self, request: Request) -> bytes:
        if self.redirects and request.path == "/mcp" and request.method == "POST":
            return response("", "", "307 Temporary Redirect", location="/mcp/")
        message = request.message
        session = request.headers.get("mcp-session-id", "")
        if message.get("method") == "initialize":
            session = f"s{len(self.sessions)}"
            self.sessions[session] = 0
            return mcp(request, session=session)
        if session and self.sessions.get(session, 0) >= self.calls_each and request.method == "POST":
            return self.ending(request)
        if message.get("method") == "tools/call":
            self.sessions[session] += 1
            self.ran.append(message["params"]["arguments"])
            return response(json.dumps(result(request, text_result("done"))))
        return mcp(request)


def app_before(port: int) -> App:
    return App(Settings(servers=(server_at(port),), fleet=FAST))


@pytest.mark.parametrize("redirects", [False, True], ids=["direct", "by the SDK"])
@pytest.mark.parametrize("name", ENDINGS)
async def test_a_forgotten_session_is_opened_again_and_the_call_runs_once(name: str, *, redirects: bool) -> None:
    server = Forgetful(ENDINGS[name], redirects)
    with anyio.fail_after(20):
        async with peer_of(server) as peer, app_before(peer.port) as app:
            await app.settled()
            for number in range(3):
                await app.call("web:echo", {"n": number})
            assert server.ran == [{"n": 0}, {"n": 1}, {"n": 2}]
            assert list(server.sessions.values()) == [1, 1, 1]


@pytest.mark.parametrize("redirects", [False, True], ids=["direct", "by the SDK"])
async def test_calls_at_the_same_time_run_once_each(*, redirects: bool) -> None:
    server = Forgetful(ENDINGS["an event with a bare error"], redirects, calls_each=4)
    with anyio.fail_after(20):
        async with peer_of(server) as peer, app_before(peer.port) as app, anyio.create_task_group() as group:
            await app.settled()
            for number in range(4):
                await app.call("web:echo", {"n": number})
            for number in range(4, 8):
                group.start_soon(app.call, "web:echo", {"n": number})
    assert sorted(one["n"] for one in server.ran) == list(range(8))


@pytest.mark.parametrize("name", ["200 with -32001", "400 with an error", "an event with a bare error"])
async def test_words_about_a_session_of_the_tools_own_are_shown_and_nothing_is_repeated(name: str) -> None:
    calls: list[Request] = []

    def answer(request: Request) -> bytes:
        if request.message.get("method") == "tools/call":
            calls.append(request)
            return ENDINGS[name](request)
        return mcp(request, session="s1")

    with anyio.fail_after(20):
        async with peer_of(answer) as peer, app_before(peer.port) as app:
            await app.settled()
            with pytest.raises(UpstreamError, match=r"[Ss]ession"):
                await app.call("web:echo", {})
            assert len(calls) == len(peer.sent("initialize")) == 1


@pytest.mark.parametrize("name", ["404", "200 with -32001"])
async def test_a_server_that_knows_no_session_at_all_is_quoted(name: str) -> None:
    server = Forgetful(ENDINGS[name])
    words = {"404": "its session has ended", "200 with -32001": "Session not found"}[name]
    with anyio.fail_after(20):
        async with peer_of(server) as peer, app_before(peer.port) as app:
            await app.settled()
            server.calls_each = 0
            with pytest.raises(ServerUnavailable, match=rf"{words}.* Nothing was run\."):
                await app.call("web:echo", {})
    assert server.ran == []


async def test_a_stream_that_ends_without_a_word_fails_its_call_and_leads_to_a_new_session() -> None:
    server = Forgetful(lambda _: events())
    with anyio.fail_after(20):
        async with peer_of(server) as peer, app_before(peer.port) as app:
            await app.settled()
            await app.call("web:echo", {"n": 0})
            with pytest.raises(ConnectionLost, match="the connection broke off"):
                await app.call("web:echo", {"n": 1})
            web = app.fleet.server("web")
            await until(web, lambda: len(server.sessions) == 2 and web.status.state is ServerState.READY)
            await app.call("web:echo", {"n": 2})
    assert server.ran == [{"n": 0}, {"n": 2}]
