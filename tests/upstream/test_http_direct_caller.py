"""Tool calls that bypass the session: every form of response."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from toolcrib.upstream.transports.http_transport import AuthTransport

from toolcrib.protocol.failures import ExchangeError, FailureKind
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import AutoResetEvent, CloseEvent, Exchange, FastPathUnavailable
from toolcrib.upstream.transports.http import DirectCaller

pytestmark = pytest.mark.anyio

URL = "http://server.example/mcp"
OPTIONS = ServerOptions(name="s", transport="http", url=URL, headers={"x-key": "k"})
EVENTS = {"content-type": "text/event-stream"}

Answer = Callable[[dict[str, Any]], httpx2.Response]


class Peer:
    """A server with scripted responses, which records its requests."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.got: list[dict[str, Any]] = []
        self.headers: list[httpx2.Headers] = []
        self.noted = anyio.Event()
        self.changed = 0
        self.posts = DirectCaller(OPTIONS, self._count)

    def _count(self) -> None:
        self.changed += 1

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        message = json.loads(request.content)
        self.got.append(message)
        self.headers.append(request.headers)
        if message.get("method") == "tools/call":
            return self.answer(message)
        self.noted.set()
        return httpx2.Response(202)

    async def call(self, *, modern: bool = True, exchange: Exchange | None = None) -> dict[str, Any]:
        with anyio.fail_after(5):
            headers = {"mcp-name": "t"}
            return await self.posts.call("tools/call", {"name": "t"}, headers, modern=modern, exchange=exchange)


class Listener:
    """The request's side of an exchange: keeps what arrives, and answers every question with its number."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    async def progress(self, *notice: Any) -> None:
        self.got.append(notice)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.got.append((method, dict(params)))

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "roots/list":
            raise MCPError(-1, "no roots", data=[1])
        self.got.append((method, dict(params)))
        return {"n": len(self.got)}


@contextlib.asynccontextmanager
async def peer_of(answer: Answer, kind: type[Peer] = Peer) -> AsyncIterator[Peer]:
    peer = kind(answer)
    redact = Redactor(OPTIONS)
    gate = AuthTransport(
        httpx2.MockTransport(peer.handle), OPTIONS, FleetOptions(), redact, CloseEvent(), AutoResetEvent()
    )
    peer.posts.open(gate, URL)
    try:
        yield peer
    finally:
        peer.posts.close()
        await gate.aclose()


def result(message: dict[str, Any], **value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": value}


def stream(*messages: Any) -> httpx2.Response:
    text = "".join(f"event: message\ndata: {json.dumps(message)}\n\n" for message in messages)
    return httpx2.Response(200, headers=EVENTS, text=text)


async def test_a_plain_response_is_the_result() -> None:
    async with peer_of(lambda message: httpx2.Response(200, json=result(message, content=[]))) as peer:
        assert await peer.call() == {"content": []}
    assert peer.headers[0]["x-key"] == "k"
    assert peer.headers[0]["mcp-name"] == "t"


async def test_an_error_keeps_its_code_and_data() -> None:
    error = {"code": -32602, "message": "no such tool", "data": {"a": 1}}
    async with peer_of(
        lambda message: httpx2.Response(200, json={**result(message), "result": None, "error": error})
    ) as peer:
        with pytest.raises(MCPError, match="no such tool") as failed:
            await peer.call()
    assert (failed.value.code, failed.value.error.data) == (-32602, {"a": 1})


async def test_a_stream_is_read_to_its_response_and_earlier_messages_are_handled() -> None:
    def answer(message: dict[str, Any]) -> httpx2.Response:
        token = message["params"]["_meta"]["progressToken"]
        done = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        return stream(
            "not a message",
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": done},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "other", "progress": 9}},
            {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
            {"jsonrpc": "2.0", "id": 7, "method": "ping"},
            {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}},
            {"jsonrpc": "2.0", "id": 8, "method": "tasks/get"},
            result(message, content=[1]),
            {"jsonrpc": "2.0", "id": 9, "method": "ping"},
        )

    listener = Listener()
    async with peer_of(answer) as peer:
        assert await peer.call(exchange=listener) == {"content": [1]}
    assert listener.got == [(1, 2, "half"), ("notifications/message", {"level": "info", "data": 1})]
    assert peer.changed == 1


async def test_questions_on_the_stream_are_answered_while_the_call_waits() -> None:
    answers: list[Any] = []
    all_answered = anyio.Event()

    class Asking(Peer):
        async def handle(self, request: httpx2.Request) -> httpx2.Response:
            message = json.loads(request.content)
            if "method" in message:
                return httpx2.Response(200, headers=EVENTS, content=self.events(message))
            answers.append({key: value for key, value in message.items() if key != "jsonrpc"})
            if len(answers) == 4:
                all_answered.set()
            return httpx2.Response(202)

        async def events(self, message: dict[str, Any]) -> AsyncIterator[bytes]:
            for number, method in enumerate(("elicitation/create", "roots/list", "ping", "tasks/get")):
                question = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"q": number}}
                yield f"data: {json.dumps(question)}\n\n".encode()
            await all_answered.wait()
            yield f"data: {json.dumps(result(message, content=[2]))}\n\n".encode()

    async with peer_of(lambda _: httpx2.Response(500), Asking) as peer:
        assert await peer.call(exchange=Listener()) == {"content": [2]}
    assert sorted(answers, key=lambda answer: answer["id"]) == [
        {"id": 0, "result": {"n": 1}},
        {"id": 1, "error": {"code": -1, "message": "no roots", "data": [1]}},
        {"id": 2, "result": {}},
        {"id": 3, "error": {"code": -32601, "message": "Method not found"}},
    ]


class Interrupted(Peer):
    """A server that ends its streams early; it sends the rest when asked for what comes after the last event."""

    rests: tuple[str, ...] = ()
    asked_for: tuple[str, ...] = ()

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            self.asked_for += (request.headers["last-event-id"],)
            rest, self.rests = self.rests[0], self.rests[1:]
            return httpx2.Response(200, headers=EVENTS, text=rest)
        return await super().handle(request)


FIRST = httpx2.Response(200, headers=EVENTS, text="id: e1\nretry: 1\ndata: \n\n")


async def test_the_rest_of_an_interrupted_stream_of_an_older_server_is_asked_for_until_it_has_the_response() -> None:
    rest = f"id: e3\ndata: {json.dumps({'jsonrpc': '2.0', 'id': 'call-1', 'result': {'content': [3]}})}\n\n"
    async with peer_of(lambda _: FIRST, Interrupted) as peer:
        assert isinstance(peer, Interrupted)
        peer.rests = ("id: e2\ndata: \n\n", rest)
        assert await peer.call(modern=False) == {"content": [3]}
        assert peer.asked_for == ("e1", "e2")


async def test_a_stream_without_event_ids_or_of_a_newer_server_is_lost_when_it_breaks_off() -> None:
    responses = [FIRST, stream()]
    async with peer_of(lambda _: responses.pop(0), Interrupted) as peer:
        for modern in (True, False):
            with pytest.raises(ExchangeError, match="broke off"):
                await peer.call(modern=modern)
        assert isinstance(peer, Interrupted)
        assert peer.asked_for == ()


async def test_a_server_that_sends_nothing_new_is_asked_for_the_rest_a_few_times_only() -> None:
    async with peer_of(lambda _: FIRST, Interrupted) as peer:
        assert isinstance(peer, Interrupted)
        peer.rests = ("", "", "", "")
        with pytest.raises(ExchangeError, match="broke off"):
            await peer.call(modern=False)
        assert peer.asked_for == ("e1",) * 3


@pytest.mark.parametrize(
    ("response", "kind", "reason"),
    [
        (stream({"jsonrpc": "2.0", "method": "notifications/message"}), FailureKind.LOST, "broke off"),
        (httpx2.Response(200, headers=EVENTS, text="data: {nope\n\n"), FailureKind.LOST, "not a JSON-RPC message"),
        (httpx2.Response(200, json=[1]), FailureKind.ANSWER, "does not answer"),
        (httpx2.Response(200, text="hello"), FailureKind.ANSWER, "Unexpected content type: text/plain"),
        (httpx2.Response(202), FailureKind.ANSWER, "Unexpected content type: none"),
        (
            httpx2.Response(200, headers={"content-type": "application/json"}, text="{"),
            FailureKind.ANSWER,
            "not a JSON-RPC",
        ),
    ],
)
async def test_an_invalid_response_fails_that_call_with_a_reason(
    response: httpx2.Response, kind: FailureKind, reason: str
) -> None:
    async with peer_of(lambda _: response) as peer:
        with pytest.raises(ExchangeError, match=reason) as failed:
            await peer.call()
    assert failed.value.kind is kind


async def test_a_redirect_is_left_to_the_session_from_then_on() -> None:
    async with peer_of(lambda _: httpx2.Response(307, headers={"location": "/other"})) as peer:
        assert peer.posts.is_usable
        with pytest.raises(FastPathUnavailable):
            await peer.call()
        assert not peer.posts.is_usable


@pytest.mark.parametrize("modern", [True, False])
async def test_only_an_older_server_gets_a_cancel_notification(modern: bool) -> None:
    under_way = anyio.Event()

    class Hanging(Peer):
        async def handle(self, request: httpx2.Request) -> httpx2.Response:
            if json.loads(request.content).get("method") == "tools/call":
                under_way.set()
                await anyio.sleep_forever()
            return await super().handle(request)

    peer = Hanging(lambda _: httpx2.Response(200))
    gate = AuthTransport(
        httpx2.MockTransport(peer.handle), OPTIONS, FleetOptions(), Redactor(OPTIONS), CloseEvent(), AutoResetEvent()
    )
    peer.posts.open(gate, URL)
    async with anyio.create_task_group() as group:

        async def call() -> None:
            await peer.call(modern=modern)

        group.start_soon(call)
        await under_way.wait()
        group.cancel_scope.cancel()
    assert [message["method"] for message in peer.got] == ([] if modern else ["notifications/cancelled"])


async def test_a_call_that_is_cancelled_after_its_connection_was_closed_stays_cancelled() -> None:
    under_way = anyio.Event()
    raised: list[BaseException] = []

    class Hanging(Peer):
        async def handle(self, request: httpx2.Request) -> httpx2.Response:
            under_way.set()
            await anyio.sleep_forever()
            raise AssertionError

    async with peer_of(lambda _: httpx2.Response(200), Hanging) as peer, anyio.create_task_group() as group:

        async def call() -> None:
            try:
                await peer.call(modern=False)
            except BaseException as error:
                raised.append(error)
                raise

        group.start_soon(call)
        await under_way.wait()
        peer.posts.close()
        group.cancel_scope.cancel()
    assert [type(error) for error in raised] == [anyio.get_cancelled_exc_class()]


async def test_a_question_whose_answer_cannot_be_sent_any_more_fails_the_call() -> None:
    question = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": {}}

    class Waiting(Peer):
        async def handle(self, request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, headers=EVENTS, content=self.events())

        async def events(self) -> AsyncIterator[bytes]:
            yield f"data: {json.dumps(question)}\n\n".encode()
            await anyio.sleep_forever()

    async with peer_of(lambda _: httpx2.Response(200), Waiting) as peer:

        class Closing(Listener):
            async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
                peer.posts.close()
                return {}

        with pytest.raises(ExchangeError, match="closed"):
            await peer.call(exchange=Closing())


async def test_a_closed_transport_is_reported() -> None:
    async with peer_of(lambda _: httpx2.Response(200)) as peer:
        pass
    assert not peer.posts.is_usable
    with pytest.raises(ExchangeError, match="closed"):
        await peer.call()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_unpaired_surrogate_does_not_lose_the_response(kind: str) -> None:
    def answer(message: dict[str, Any]) -> httpx2.Response:
        text = json.dumps(result(message, content=["\ud83d", "\U0001f980"]))
        return httpx2.Response(
            200, headers={"content-type": kind}, text=text if kind.endswith("json") else f"data: {text}\n\n"
        )

    async with peer_of(answer) as peer:
        assert await peer.call() == {"content": ["\ufffd", "\U0001f980"]}


async def test_repeated_reports_of_a_changed_list_on_a_stream_are_passed_on_once_a_chunk() -> None:
    changed = b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'
    other = b'data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}\n\n'
    chunks = (changed * 100 + other + changed * 100 + changed[:30], changed[30:] + other)

    class Chunks(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

    def respond(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=EVENTS, stream=Chunks())

    gate = AuthTransport(
        httpx2.MockTransport(respond), OPTIONS, FleetOptions(), Redactor(OPTIONS), CloseEvent(), AutoResetEvent()
    )
    async with httpx2.AsyncClient(transport=gate) as client:
        body = await (await client.get(URL)).aread()

    assert body == other + changed + changed + other
