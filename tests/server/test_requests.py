"""Requests of 2026-07-28 over HTTP, whichever way they come, get answers with the status that the SDK would give."""

import asyncio
import contextlib
import itertools
import json
import random
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.server.conftest import TOKENS, Crib, PerTenant, crib, native
from tests.server.wire import Wire

from toolcrib.errors import ExecutionFailed, NotAuthenticated, RateLimited, ToolNotFound
from toolcrib.server.asgi import AsgiApp
from toolcrib.server.auth.authentication import CALLER_KEY, StaticTokens
from toolcrib.server.engine import Engine
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions, Token
from toolcrib.server.processes.process import InFlightRequests
from toolcrib.server.sdk import SdkServer
from toolcrib.surfaces.builtin import make_facade
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.types import Caller, Context, Object, Tool, ToolResult, Visibility

pytestmark = pytest.mark.anyio

VERSION = "2026-07-28"
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png", "annotations": {"priority": 1.0}}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a", "unknown": 1}
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
}


def text(value: str, **more: Any) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": value},), **more)


RESULTS: dict[str, ToolResult | Exception] = {
    "plain": text("héllo \u2028 \x00"),
    "empty": ToolResult(),
    "blocks": ToolResult(content=(IMAGE, LINK, {"type": "text", "text": "a", "annotations": {"audience": ["user"]}})),
    "unknown_block": ToolResult(content=({"type": "hologram", "data": [1]}, {"type": "text", "text": "b"})),
    "surrogate": text("half \ud83d", structured={"half": "\ud83d"}),
    "structured": text("s", structured={"a": None, "b": [1, 2.5, True], "é": {}}),
    "list": text("s", structured=[1, None]),
    "scalar": text("s", structured=0),
    "not_finite": text("s", structured={"n": float("nan"), "i": float("inf")}),
    "failed": text("it failed", is_error=True),
    "meta": text("m", meta={"k": "v", "toolcrib/x": [1]}),
    "long": text("x" * 5_000),
    "large": text("é" * 40_000, structured={"rows": [[number] for number in range(9_000)]}),
    "many": ToolResult(content=tuple({"type": "text", "text": f"{number}"} for number in range(700))),
    "asks": ToolResult(kind="input_required", input_requests={"q": QUESTION}, request_state="s"),
    "raises": ExecutionFailed("It cannot run.", hint="Try later."),
    "gone": ToolNotFound("There is none."),
    "bug": ValueError("a secret of ours"),
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
MARKED = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}


async def run(ctx: Context, name: str, arguments: Object) -> ToolResult:
    if name == "caller":
        return text(json.dumps([ctx.caller.id, ctx.session, ctx.show_all, dict(ctx.meta)]))
    if name in ("checked", "marked", "hidden"):
        return text(json.dumps(dict(arguments)))
    found = RESULTS[name]
    if isinstance(found, Exception):
        raise found
    return found


TOOLS = (
    *(native(name) for name in [*RESULTS, "caller"]),
    Tool(name="checked", input_schema=SCHEMA, visibility=Visibility.NATIVE),
    Tool(name="marked", input_schema=MARKED, visibility=Visibility.NATIVE),
    native("hidden", "bits"),
)


@dataclass
class Exchange:
    """A request, as its sender may write it."""

    method: str = "tools/call"
    params: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str | None] = field(default_factory=dict)
    envelope: dict[str, Any] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    twice: tuple[str, str] | None = None
    verb: str = "POST"

    def head(self) -> list[tuple[bytes, bytes]]:
        headers = {
            "host": "127.0.0.1",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {TOKENS[0].secret}",
            "mcp-protocol-version": VERSION,
            "mcp-method": self.method,
            **({"mcp-name": str(self.params["name"])} if "name" in self.params else {}),
            **self.headers,
        }
        pairs = [*((name, value) for name, value in headers.items() if value is not None)]
        pairs += [self.twice] if self.twice is not None else []
        return [(name.encode(), value.encode("latin-1", "replace")) for name, value in pairs]

    def content(self) -> bytes:
        if self.body is not None:
            return self.body
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
            **self.envelope,
        }
        params = {**self.params, "_meta": {key: value for key, value in meta.items() if value is not ...}}
        message = {"jsonrpc": "2.0", "id": 7, "method": self.method, "params": params, **self.message}
        return json.dumps({key: value for key, value in message.items() if value is not ...}).encode()


def call(name: str, arguments: Any = ..., **more: Any) -> Exchange:
    return Exchange(params={"name": name, **({} if arguments is ... else {"arguments": arguments})}, **more)


def listing(**more: Any) -> Exchange:
    return Exchange(method="tools/list", **more)


VALID = [
    *(call(name) for name in RESULTS),
    *(call(name, {}) for name in RESULTS),
    call("caller", envelope={"traceparent": "00-1-1-00", "k": {"n": 1}, "toolcrib/show-all": True}),
    call("caller", headers={"mcp-session-id": "mine", "x-mcp-show-all": "true"}),
    call("caller", headers={"authorization": f"Bearer {TOKENS[1].secret}"}),
    call("hidden", headers={"authorization": f"Bearer {TOKENS[1].secret}"}),
    call("checked", {"text": "x"}),
    call("marked", {"r": "eu"}, headers={"mcp-param-region": "eu"}),
    listing(),
    listing(headers={"authorization": f"Bearer {TOKENS[1].secret}"}),
]
"""What is answered directly."""
INVALID = [
    call("hidden"),
    call("nothing"),
    call("checked", {"text": 1}),
    call("checked", {}),
    call("plain", []),
    call("plain", None),
    call("plain", headers={"mcp-name": "empty"}),
    call("plain", headers={"mcp-name": "=?base64?cGxhaW4=?="}),
    call("=?base64?cGxhaW4=?="),
    call("plain", headers={"authorization": None}),
    call("plain", headers={"authorization": "Bearer wrong"}),
    call("marked", {"r": "eu"}),
    call("marked", {"r": "eu"}, headers={"mcp-param-region": "us"}),
    listing(params={"cursor": "none"}),
    listing(params={"cursor": 5}),
    listing(params={"other": 5}),
    *(Exchange(method=method, params={"name": "plain"}) for method in ("tools/none", "ping", "server/discover")),
    *(call("plain", verb=verb) for verb in ("GET", "DELETE", "PUT")),
]
HEADERS = ("content-type", "accept", "mcp-protocol-version", "mcp-method", "mcp-name", "host", "authorization")
VALUES: list[str | None] = [
    None,
    "",
    "x",
    "application/json",
    "application/json; charset=utf-8",
    "APPLICATION/JSON",
    "text/*",
    "*/*",
    "tools/call",
    "plain",
    "2025-06-18",
    "2099-01-01",
]
ODD: tuple[Any, ...] = (
    ...,
    None,
    1,
    "2025-06-18",
    "info",
    {},
    {"elicitation": {"form": {}}, "roots": {}},
    {"name": "c"},
    [],
)
ENVELOPES: list[dict[str, Any]] = [
    *(
        {f"io.modelcontextprotocol/{key}": value}
        for key in ("protocolVersion", "clientInfo", "clientCapabilities", "logLevel", "other")
        for value in ODD
    ),
    *({key: value} for key in ("progressToken", "progress_token") for value in ODD),
]
MESSAGES: list[dict[str, Any]] = [
    {key: value} for key in ("jsonrpc", "id", "method", "params", "more") for value in (*ODD, 1.5, True, "2.0", 2**70)
]
BODIES = [b"", b"{", b"[]", b"null", b"1", b"\xff", b'{"id":' * 2_000, b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]']


def unusual_texts() -> Iterator[bytes]:
    """Requests that are well formed but for how they are encoded, and values that only some parsers take for JSON."""
    plain = call("checked", {"text": "0"}).content()
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"):
        yield plain.decode().encode(encoding)
    yield plain.replace(b'"0"', '"é"'.encode("latin-1"))
    for value in (
        b"NaN",
        b"-Infinity",
        b"1e400",
        b'"\\ud83d"',
        b'"\\uD83D x"',
        b'"\\ud83e\\udd80"',
        b"9" * 5_000,
        b"0" * 3,
        b"'0'",
    ):
        yield plain.replace(b'"0"', value)
    yield plain.replace(b'"text": "0"', b'"text": "0", "text": "1"')
    yield plain.replace(b'"text": "0"', b'"text": "0", "a": NaN')
    yield plain.replace(b'"text": "0"', b'"text": "0", "a": 1e400')
    yield plain.replace(b'"text": "0"', b'"text": "0", "a": "\\udead"')
    yield plain.replace(b'"0"', b'"a\tb"')
    yield b"\n\t " + plain + b"\r\n"


def generated() -> Iterator[Exchange]:
    """Requests of which one part or two are unusual."""
    yield from VALID
    yield from INVALID
    for name, value in itertools.product(HEADERS, VALUES):
        yield call("structured", {}, headers={name: value})
    for envelope in ENVELOPES:
        yield call("plain", {"a": 1}, envelope=envelope)
        yield listing(envelope=envelope, headers={"accept": "application/json"})
    for message in MESSAGES:
        yield call("failed", message=message)
    for body in [*BODIES, *unusual_texts()]:
        yield call("checked", body=body)
    for name in ("mcp-name", "mcp-method", "mcp-protocol-version", "accept", "content-type"):
        yield call("plain", twice=(name, "plain"))
    chance = random.Random(17)  # noqa: S311 - the same requests each time
    for _ in range(250):
        one = chance.choice([*VALID, *INVALID])
        yield Exchange(
            method=one.method,
            params=one.params,
            verb=one.verb,
            headers={
                **one.headers,
                **({chance.choice(HEADERS): chance.choice(VALUES)} if chance.random() < 0.4 else {}),
            },
            envelope={**one.envelope, **(chance.choice(ENVELOPES) if chance.random() < 0.4 else {})},
            message=chance.choice(MESSAGES) if chance.random() < 0.3 else {},
        )


def scope_of(exchange: Exchange) -> dict[str, Any]:
    """The scope of a request as the server of the process makes it."""
    return {
        "type": "http",
        "method": exchange.verb,
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "root_path": "",
        "headers": [*exchange.head(), (b"content-length", b"%d" % len(exchange.content()))],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "state": {},
    }


def request_bytes(exchange: Exchange) -> bytes:
    """A request as a client sends it."""
    lines = b"".join(b"%b: %b\r\n" % pair for pair in exchange.head())
    body = exchange.content()
    return b"%b /mcp HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (exchange.verb.encode(), lines, len(body), body)


Answered = tuple[int, list[tuple[bytes, bytes]], bytes]
"""The status, the headers and the body of a response."""


@dataclass
class Served:
    """A server, and the ways to send it a request."""

    crib: Crib
    app: AsgiApp
    sdk: ASGIApp
    """The same server on the SDK's own transport."""

    def connected(self, requests: InFlightRequests | None = None) -> Wire:
        """A connection to the app as the server of the process serves it."""
        return Wire(requests or InFlightRequests(self.app), self.app.options)

    async def ask(self, exchange: Exchange, through: InFlightRequests | None = None) -> Answered:
        """The status, headers and body of the response to a request that is read from a connection."""
        wire = self.connected(through)
        wire.protocol.data_received(request_bytes(exchange))
        with anyio.fail_after(10):
            status, headers, body = await wire.answer()
        wire.protocol.connection_lost(None)
        return status, sorted(headers), body

    async def ask_mounted(self, exchange: Exchange) -> Answered:
        """The same of the app as another app may mount it."""
        return await ask(self.app, exchange)

    async def ask_sdk(self, exchange: Exchange) -> Answered:
        """The same of the SDK's transport."""
        return await ask(self.sdk, exchange)


async def ask(app: ASGIApp, exchange: Exchange) -> Answered:
    """The status, headers and body of the response of an ASGI app."""
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": exchange.content(), "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    with anyio.fail_after(10):
        await app(scope_of(exchange), receive, send)
    return sent[0]["status"], sorted(sent[0]["headers"]), b"".join(message.get("body", b"") for message in sent[1:])


ANY_HOST = TransportSecuritySettings(enable_dns_rebinding_protection=False)


def sdk_app(engine: Engine) -> Starlette:
    """A server on the SDK's own transport."""
    return SdkServer(engine).streamable_http_app(json_response=True, transport_security=ANY_HOST)


def as_caller(app: ASGIApp) -> ASGIApp:
    """An app whose requests come from the callers of the tokens."""
    callers = {f"Bearer {one.secret}".encode(): Caller(id=one.caller, tenant=one.tenant) for one in TOKENS}

    async def with_caller(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        await app({**scope, CALLER_KEY: callers.get(given)}, receive, send)

    return with_caller


@contextlib.asynccontextmanager
async def both() -> AsyncIterator[Served]:
    async with crib(*TOOLS, handler=run, policy=PerTenant(), surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        sdk = sdk_app(served.engine)
        async with app.running(), sdk.router.lifespan_context(sdk):
            yield Served(served, app, as_caller(sdk))


class OnlyFromTheOffice(StaticTokens):
    """Tokens that are good in one place only."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        if headers.get("x-place") != "office":
            raise NotAuthenticated("Come to the office.")
        return await super().authenticate(headers)


async def test_what_an_authenticator_checks_beside_the_token_is_checked_of_every_request() -> None:
    async with crib(*TOOLS, handler=run, surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), authenticator=OnlyFromTheOffice(TOKENS))
        async with app.running():
            both = Served(served, app, app)
            assert (await both.ask(call("plain", headers={"x-place": "office"})))[0] == 200
            assert (await both.ask(call("plain")))[0] == 401


@pytest.mark.parametrize("tokens", [TOKENS, ()])
async def test_a_shutdown_ends_a_call_with_an_answer(tokens: tuple[Token, ...]) -> None:
    begun = anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError("it was not cancelled")

    async with crib(native("slow"), handler=wait, surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=tokens), ready=lambda: (True, {}))
        requests, found = InFlightRequests(app), Served(served, app, app)
        async with app.running(), anyio.create_task_group() as group:
            answers: list[Answered] = []

            async def ask() -> None:
                answers.append(await found.ask(call("slow"), through=requests))

            group.start_soon(ask)
            with anyio.fail_after(5):
                await begun.wait()
                requests.cancel_all()
                await requests.wait_idle()
        assert answers[0][0] == 503
        assert b"shutting down" in answers[0][2]


def summary(answer: Answered) -> Any:
    """The status, whether there is a result, and the code of an error; None where the body is no JSON."""
    try:
        body = json.loads(answer[2])
    except ValueError:
        return answer[0], None
    return answer[0], ("result" in body, body.get("error", {}).get("code"))


def is_utf_8(body: bytes) -> bool:
    """Whether this is the encoding that MCP asks for; the SDK guesses others too."""
    return b"\0" not in body


async def test_a_request_gets_the_same_answer_from_its_bytes_as_over_asgi() -> None:
    async with both() as served:
        for exchange in generated():
            answer = await served.ask(exchange)
            if [name for name, _ in exchange.head()].count(b"host") == 1:
                assert answer == await served.ask_mounted(exchange), exchange
            else:
                assert answer[0] == 400, exchange  # such a head is not HTTP/1.1, and reaches no app


async def test_every_request_gets_the_status_and_the_code_that_the_sdk_gives() -> None:
    count = 0
    async with both() as served:
        for exchange in generated():
            (status, kind), (by_sdk, kind_by_sdk) = [
                summary(await ask(exchange)) for ask in (served.ask_mounted, served.ask_sdk)
            ]
            if status in (401, 421) or not is_utf_8(exchange.content()):
                continue  # it is the app that knows the tokens and the hosts
            if exchange.method == "tools/none" and "progressToken" in exchange.envelope:
                continue  # what is wrong with the request is found before its method is
            count += 1
            assert status == by_sdk, exchange
            if exchange.headers.get("mcp-protocol-version", VERSION) == VERSION and kind_by_sdk is not None:
                assert kind == kind_by_sdk, exchange
    assert count > 400


async def test_every_valid_request_gets_the_result_that_the_sdk_gives() -> None:
    async with both() as served:
        for exchange in VALID:
            (answer, by_sdk) = [json.loads((await ask(exchange))[2]) for ask in (served.ask, served.ask_sdk)]
            if "result" in by_sdk:
                assert {**answer["result"], "content": ...} == {**by_sdk["result"], "content": ...}, exchange


async def test_a_method_that_a_program_has_replaced_answers() -> None:
    async def mine(exchange: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "mine"}]}

    async with both() as served:
        served.crib.engine.methods["tools/call"] = mine
        assert b'"mine"' in (await served.ask(call("plain")))[2]


async def test_requests_are_observed_whichever_way_they_come() -> None:
    seen: list[tuple[str, str]] = []
    async with crib(*TOOLS, handler=run, surfaces=["direct"]) as served:
        facade = make_facade(served.gateway, SurfaceOptions(surfaces=("direct",)))
        engine = Engine(facade, observe=lambda method, outcome, _: seen.append((method, outcome)))
        app = http_app(engine, HttpOptions(tokens=TOKENS), ready=lambda: (True, {}))
        found = Served(served, app, app)
        async with app.running():
            for exchange in (call("plain"), call("failed"), call("nothing"), call("bug"), listing()):
                await found.ask(exchange)
                await found.ask_mounted(exchange)
    assert seen[::2] == seen[1::2]
    assert seen[::2] == [
        ("tools/call", "ok"),
        ("tools/call", "tool_error"),
        ("tools/call", "-32602"),
        ("tools/call", "tool_error"),
        ("tools/list", "ok"),
    ]


async def test_errors_of_the_program_stay_in_its_log() -> None:
    async with both() as served:
        status, _, body = await served.ask(call("bug"))
        assert status == 200
        assert b"Traceback" not in body


async def test_clients_that_say_much_of_themselves_take_no_memory() -> None:
    async with both() as served:
        tracemalloc.start()
        try:
            for number in range(20):
                info = {"name": f"c{number}", "version": "x" * 500_000}
                exchange = call("plain", envelope={"io.modelcontextprotocol/clientInfo": info})
                assert (await served.ask(exchange))[0] == 200
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 5_000_000


@pytest.mark.parametrize("mounted", [False, True])
async def test_a_call_ends_when_its_client_disconnects(*, mounted: bool) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def wait(ctx: Context, name: str, arguments: Object) -> ToolResult:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError("it was not cancelled")

    async with crib(native("slow"), handler=wait, surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
        async with app.running(), anyio.create_task_group() as group:
            exchange = call("slow", headers={"authorization": None})
            parts: list[Mapping[str, Any]] = [{"type": "http.request", "body": exchange.content()}]

            async def receive() -> Any:
                if parts:
                    return parts.pop()
                await begun.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                raise AssertionError("the client has left")

            group.start_soon(app if mounted else InFlightRequests(app), scope_of(exchange), receive, send)
            with anyio.fail_after(5):
                await ended.wait()
        assert ended.is_set()


async def test_a_stream_that_begins_while_the_tokens_change_is_for_those_who_still_have_one() -> None:
    class Changing:
        """Accepts anyone at first, which takes for ever, and no one after that."""

        def __init__(self) -> None:
            self.asked = anyio.Event()

        async def authenticate(self, headers: Mapping[str, str]) -> Caller:
            if self.asked.is_set():
                raise NotAuthenticated("The token is valid no longer.")
            self.asked.set()
            await anyio.sleep_forever()
            raise AssertionError("the request goes on with the credentials of before")

    changing = Changing()
    async with crib(surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), authenticator=changing)
        sent: list[Any] = []

        async def receive() -> Any:
            await anyio.sleep_forever()

        async def send(message: Any) -> None:
            sent.append(message)

        async with app.running(), anyio.create_task_group() as group:
            group.start_soon(app, {**scope_of(call("plain")), "method": "GET"}, receive, send)
            with anyio.fail_after(5):
                await changing.asked.wait()
                app.end_session_streams()
                while not sent:
                    await anyio.lowlevel.checkpoint()
        assert sent[0]["status"] == 401


@pytest.mark.parametrize("tokens", [TOKENS, ()])
async def test_nothing_is_run_for_a_client_that_has_left_before_its_request_was_looked_at(
    tokens: tuple[Token, ...],
) -> None:
    called: list[str] = []

    async def note(ctx: Context, name: str, arguments: Object) -> ToolResult:
        called.append(name)
        return text(name)

    async with crib(native("note"), handler=note, surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(tokens=tokens), ready=lambda: (True, {}))
        requests, found = InFlightRequests(app), Served(served, app, app)
        async with app.running():
            wire = found.connected(requests)
            wire.protocol.data_received(request_bytes(call("note")))
            wire.protocol.connection_lost(None)
            with anyio.fail_after(5):
                await anyio.lowlevel.checkpoint()
                await requests.wait_idle()
            assert not called
            assert (await found.ask(call("note"), through=requests))[0] == 200
        assert called == ["note"]


async def test_a_session_of_a_caller_that_the_app_around_names_is_open_to_that_caller_alone() -> None:
    async with crib(*TOOLS, handler=run, surfaces=["direct"]) as served:
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}))
        around = as_caller(app)
        async with app.running():
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            headers: dict[str, str | None] = {"mcp-protocol-version": None, "mcp-method": None}
            status, lines, _ = await ask(around, Exchange(method="initialize", params=params, headers=headers))
            assert status == 200
            headers |= {"mcp-session-id": dict(lines)[b"mcp-session-id"].decode(), "mcp-name": None}
            assert (await ask(around, call("plain", headers=headers)))[0] == 200
            other = {**headers, "authorization": f"Bearer {TOKENS[1].secret}"}
            assert (await ask(around, call("plain", headers=other)))[0] == 404


class Failing:
    """An authenticator that fails."""

    def __init__(self, failure: BaseException) -> None:
        self._failure = failure

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        raise self._failure


async def test_an_authenticator_may_refuse_a_request_as_one_too_many() -> None:
    async with crib(*TOOLS, handler=run, surfaces=["direct"]) as served:
        slow = Failing(RateLimited("Slow down."))
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), authenticator=slow)
        async with app.running():
            status, _, body = await Served(served, app, app).ask(call("plain"))
            assert status == 429
            assert b"Slow down." in body


@pytest.mark.parametrize("way", ["direct", "mounted"])
async def test_a_request_whose_authenticator_fails_is_refused_without_the_reason(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with crib(*TOOLS, handler=run, surfaces=["direct"]) as served:
        failing = Failing(ValueError("no column hunter2"))
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), authenticator=failing)
        async with app.running():
            whole = Served(served, app, app)
            status, _, body = await (whole.ask if way == "direct" else whole.ask_mounted)(call("plain"))
            assert status == 500
            assert b"could not find out who" in body
            assert b"hunter2" not in body
    assert "no column hunter2" in caplog.text


async def test_a_request_that_an_authenticator_cancels_ends_its_connection() -> None:
    async with crib(*TOOLS, handler=run, surfaces=["direct"]) as served:
        failing = Failing(asyncio.CancelledError())
        app = http_app(served.engine, HttpOptions(), ready=lambda: (True, {}), authenticator=failing)
        async with app.running():
            wire = Served(served, app, app).connected()
            wire.protocol.data_received(request_bytes(call("plain")))
            with anyio.fail_after(5):
                await wire.arrived.wait()
            assert wire.closed
