"""What a server of an older version asks during a call."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from tests.upstream.raw_http import HANG, Request, mcp, peer_of, response, result, server_at
from tests.upstream.support import CTX, call, call_json, raw, server_of
from tests.upstream.test_server import Watcher

from toolcrib.types import Caller, Object
from toolcrib.upstream import connection

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
