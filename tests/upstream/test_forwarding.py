"""What a server of an older version asks during a call."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from tests.upstream.raw_http import (
    HANG,
    Request,
    events,
    mcp,
    mcp_modern,
    peer_of,
    response,
    result,
    server_at,
    text_result,
)
from tests.upstream.support import CTX, call, call_json, raw, server_of
from tests.upstream.test_server import Watcher

from toolcrib.types import Caller, Object, SessionClient
from toolcrib.upstream import connection
from toolcrib.upstream.server import UpstreamServer

pytestmark = pytest.mark.anyio

FORM = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
TALK = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}
MODEL = {"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"}
ELICIT: dict[str, Any] = {"method": "elicitation/create", "params": FORM}
SAMPLE: dict[str, Any] = {"method": "sampling/createMessage", "params": TALK}


@dataclass
class Person(Watcher):
    """A client with a person and a model."""

    name: str = "her"

    async def elicit(self, params: Object) -> Object:
        assert params["message"] == "Sure?"
        return {"action": "accept", "content": {"who": self.name}}

    async def sample(self, params: Object) -> Object:
        assert params["maxTokens"] == 5
        return MODEL


BOTH: Object = {"elicitation": {}, "sampling": {}}
HERS = replace(CTX, session="1", client=Person(capabilities=BOTH))
ASKING: dict[str, Any] = {"options": {"asks": True, "sessions": "shared"}}


async def test_no_request_reaches_the_client_unless_the_options_allow_it() -> None:
    async with server_of(raw(options={"sessions": "shared"})) as server:
        assert await call_json(server, "given") == {}
        assert "refused" in await call_json(server, "ask_back", HERS, **ELICIT)
    async with server_of(raw(**ASKING)) as server:
        assert set(await call_json(server, "given")) == {"elicitation", "sampling", "roots"}


async def test_the_client_of_the_call_is_asked() -> None:
    async with server_of(raw(**ASKING)) as server:
        answer = await call_json(server, "ask_back", HERS, **ELICIT)
        assert answer == {"action": "accept", "content": {"who": "her"}}
        answer = await call_json(server, "ask_back", HERS, **SAMPLE)
        assert (answer["content"]["text"], answer["model"]) == ("ho", "m")


async def test_a_client_without_the_capability_cancels() -> None:
    unable = replace(HERS, client=Person())
    async with server_of(raw(**ASKING)) as server:
        assert (await call_json(server, "ask_back", unable, **ELICIT))["action"] == "cancel"
        assert await call_json(server, "ask_back", unable, **SAMPLE) == {"refused": "The client has no model to ask."}


@pytest.mark.parametrize("other", [replace(HERS, session="2"), replace(HERS, caller=Caller(id="other"))])
async def test_no_client_is_asked_once_several_callers_used_the_connection(other: Any) -> None:
    async with server_of(raw(**ASKING)) as server:
        await call(server, "echo", other)
        assert (await call_json(server, "ask_back", HERS, **ELICIT))["action"] == "cancel"


async def test_a_failing_client_does_not_end_the_connection() -> None:
    class Failing(Person):
        async def elicit(self, params: Object) -> Object:
            raise RuntimeError("no screen")

    failing = replace(HERS, client=Failing(capabilities=BOTH))
    with anyio.fail_after(10):
        async with server_of(raw(**ASKING)) as server:
            assert await call_json(server, "ask_back", failing, **ELICIT) == {"refused": "The client failed to answer."}
            assert await call_json(server, "echo", a=1) == {"a": 1}


def asking_during_a_call(questions: Iterable[Object], *, until: anyio.Event, outcome: Callable[[Object], bytes]) -> Any:
    """What a server answers that asks these questions on the stream of its first call, which ends with the event."""
    calls = list[Request]()

    async def ask(request: Request) -> AsyncIterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        for message in questions:
            yield f"data: {json.dumps(message)}\n\n".encode()
        await until.wait()
        yield f"data: {json.dumps(result(request, {'content': []}))}\n\n".encode()

    def answer(request: Request) -> bytes | AsyncIterator[bytes]:
        if request.message.get("method") == "tools/call" and not calls:
            calls.append(request)
            return ask(request)
        return outcome(request.message) if request.message and "method" not in request.message else mcp(request)

    return answer


async def test_two_questions_with_the_same_id_are_both_answered_over_a_connection_that_goes_on() -> None:
    both, outcomes = anyio.Event(), list[Object]()

    def outcome(message: Object) -> bytes:
        outcomes.append(message)
        if len(outcomes) == 2:
            both.set()
        return response("", "", "202 Accepted")

    questions = [{"jsonrpc": "2.0", "id": "q", "method": "ping"}] * 2
    answer = asking_during_a_call(questions, until=both, outcome=outcome)
    async with peer_of(answer) as peer, server_of(server_at(peer.port, **ASKING["options"])) as server:
        await call(server, "echo", HERS)
        await anyio.wait_all_tasks_blocked()
        await call(server, "echo", HERS)
        assert outcomes == [{"jsonrpc": "2.0", "id": "q", "result": {}}] * 2
        assert len(peer.sent("initialize")) == 1


async def test_a_server_that_takes_no_answers_to_its_questions_cannot_take_all_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "_MAX_QUESTIONS", 3)
    ended = anyio.Event()

    def outcome(_: Object) -> bytes:
        ended.set()
        return HANG

    questions = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in range(20)]
    answer = asking_during_a_call(questions, until=ended, outcome=outcome)
    async with peer_of(answer) as peer, server_of(server_at(peer.port, **ASKING["options"])) as server:
        await call(server, "echo", HERS)
        await call(server, "echo", HERS)
        assert len([one for one in peer.requests if "result" in one.message]) <= 3
        assert caplog.messages == ["web asks more than 3 questions at once; further ones are not answered"]


class Silent(SessionClient):
    """A client of 2026-07-28 that wants nothing but the results of its requests."""

    is_modern = True
    wants_progress = can_elicit = False
    capabilities: Object = {}  # noqa: RUF012 - it has the same for all
    declared: Object = {}  # noqa: RUF012 - likewise

    def can_ask(self, method: str) -> bool:
        raise AssertionError(f"whether it can be asked {method} does not matter")

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        raise AssertionError(f"it was sent progress: {message}")

    async def elicit(self, params: Object) -> Object:
        raise AssertionError(f"its person was asked: {params}")

    async def sample(self, params: Object) -> Object:
        raise AssertionError(f"its model was asked: {params}")

    async def list_roots(self) -> Object:
        raise AssertionError("it was asked for roots")

    async def notify(self, method: str, params: Object) -> None:
        raise AssertionError(f"it was sent {method}: {params}")


async def test_what_a_newer_server_sends_to_a_client_that_wants_only_the_result_reaches_it_in_no_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = anyio.Event()

    def answer(request: Request) -> bytes:
        if request.message.get("id") == "why":
            answered.set()
        if request.message.get("method") != "tools/call":
            return mcp_modern(request)
        log = {"method": "notifications/message", "params": {"level": "warning", "data": "the disk is full"}}
        question = {"id": "why", **ELICIT}
        done = result(request, text_result("done"))
        return events(*({"jsonrpc": "2.0", **one} for one in (log, question)), done)

    async with peer_of(answer) as peer, server_of(server_at(peer.port)) as server:
        logged = list[Object]()
        assert isinstance(server, UpstreamServer)
        server.subscribe_notifications(lambda _, method, params: logged.append({method: params}))
        assert (await call(server, "echo", replace(CTX, client=Silent()))).content[0]["text"] == "done"
        with anyio.fail_after(5):
            await answered.wait()
        [posted] = [one.message for one in peer.requests if one.message.get("id") == "why"]
        assert posted["result"] == {"action": "cancel"}
    assert not logged
    assert "the disk is full" in caplog.text
