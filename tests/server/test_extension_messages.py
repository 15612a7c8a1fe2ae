"""Messages that no version of the protocol defines, on every way from clients and every way to servers.

The server is `tests/fixtures/servers/skills.py`, which declares one extension. The clients speak plain JSON.
"""

import asyncio
import contextlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import httpx2
import pytest
from mcp.client.sse import sse_client
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.fixtures.servers import skills
from tests.fixtures.servers.skills import DEEP, FOUND, HEARD, MODERN, NOTED, OLDER, SKILLS, Skills
from tests.server.conftest import JSON, at_address
from tests.server.shop import FAST
from tests.server.test_stdio import Peer
from tests.upstream.support import serving

from toolcrib.app import App
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.server.http.sse import sse_app
from toolcrib.server.options import HttpOptions
from toolcrib.server.stdio import serve_pipes
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.upstream import server
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
VERSIONS: Final = (OLDER, MODERN)
PREFIX: Final = "io.modelcontextprotocol/"
DECLARED: Final[Json] = {SKILLS: {"max": 3}}


class Client(ABC):
    """A client of one version, whose notifications are kept as they come."""

    def __init__(self, version: str, extensions: Json) -> None:
        self._version = version
        self._capabilities = {"extensions": extensions}
        self._ids = 0
        self.notified: list[tuple[str, Json]] = []
        self._arrived = anyio.Event()

    async def open(self) -> None:
        """Begin, as the version has it."""
        if self._version == MODERN:
            await self.ask("server/discover")
        else:
            who = {"clientInfo": {"name": "t", "version": "0"}, "capabilities": self._capabilities}
            await self.ask("initialize", protocolVersion=OLDER, **who)
            await self.notify("notifications/initialized")

    async def ask(self, method: str, **params: Any) -> Json:
        """The result of a request, or its error."""
        self._ids += 1
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": self._whole(params)}
        answer = await self._exchange(message)
        found: Json = answer["result"] if "result" in answer else answer["error"]
        return found

    async def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        await self._send({"jsonrpc": "2.0", "method": method, "params": self._whole(params)})

    def _whole(self, params: Json) -> Json:
        if self._version == OLDER:
            return params
        about = {"protocolVersion": MODERN, "clientCapabilities": self._capabilities}
        return {**params, "_meta": {PREFIX + key: value for key, value in about.items()}}

    def _take(self, message: Json) -> None:
        self.notified.append((message["method"], message.get("params", {})))
        self._arrived.set()
        self._arrived = anyio.Event()

    async def wait_notified(self, method: str) -> Json:
        """The params of the first notification of this method."""
        while True:
            for name, params in self.notified:
                if name == method:
                    return params
            await self._wait()

    async def _wait(self) -> None:
        await self._arrived.wait()

    @abstractmethod
    async def _exchange(self, message: Json) -> Json: ...

    @abstractmethod
    async def _send(self, message: Json) -> None: ...


class StreamClient(Client):
    """A client over a connection in both directions."""

    def __init__(self, version: str, extensions: Json, write: Callable[[Json], Any], read: Callable[[], Any]) -> None:
        super().__init__(version, extensions)
        self._write, self._read = write, read

    async def _send(self, message: Json) -> None:
        await self._write(message)

    async def _exchange(self, message: Json) -> Json:
        await self._write(message)
        while (answer := await self._read()).get("id") != message["id"]:
            self._take(answer)
        return dict(answer)

    async def _wait(self) -> None:
        self._take(await self._read())


class HttpClient(Client):
    """A client over streamable HTTP, which listens to the stream of its session."""

    def __init__(self, version: str, extensions: Json, http: httpx2.AsyncClient, url: str) -> None:
        super().__init__(version, extensions)
        self._http, self._url = http, url

    async def _send(self, message: Json) -> None:
        await self._post(message)

    async def _exchange(self, message: Json) -> Json:
        response = await self._post(message)
        if "mcp-session-id" in response.headers:
            self._http.headers["mcp-session-id"] = response.headers["mcp-session-id"]
            self._http.headers["mcp-protocol-version"] = self._version
        if not response.headers["content-type"].startswith("text/event-stream"):
            answer: Json = response.json()
            return answer
        lines = [line.removeprefix("data:") for line in response.text.splitlines() if line.startswith("data:")]
        *before, answer = [json.loads(line) for line in lines if line.strip()]
        for one in before:
            self._take(one)
        return answer

    async def _post(self, message: Json) -> httpx2.Response:
        modern = {"mcp-protocol-version": MODERN, "mcp-method": message["method"]} if self._version == MODERN else {}
        return await self._http.post(self._url, json=message, headers=modern)

    async def listen(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Take what comes on the stream of the session."""
        async with self._http.stream("GET", self._url, headers={"accept": "text/event-stream"}) as response:
            task_status.started()
            async for line in response.aiter_lines():
                if line.startswith("data:") and line.removeprefix("data:").strip():
                    self._take(json.loads(line.removeprefix("data:")))


# -- ways in -----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def over_stdio(app: App, version: str, extensions: Json) -> AsyncIterator[Client]:
    read_fd, write_fd = os.pipe()
    reader = asyncio.StreamReader()
    peer = Peer(reader, read_fd)

    async def write(message: Json) -> None:
        peer.send(message)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: serve_pipes(app.engine, reader, write_fd, drain_s=1, stop=peer.stop))
            yield StreamClient(version, extensions, write, peer.receive)
            peer.stop.set()
    finally:
        os.close(write_fd)
        os.close(read_fd)


@contextlib.asynccontextmanager
async def over_http(app: App, version: str, extensions: Json) -> AsyncIterator[Client]:
    async with at_address(app.asgi()) as address, httpx2.AsyncClient(headers=JSON, timeout=20) as http:
        async with anyio.create_task_group() as group:
            client = HttpClient(version, extensions, http, f"{address}/mcp")
            if version == OLDER:
                await client.open()
                await group.start(client.listen)
            yield client
            group.cancel_scope.cancel()


def over_streams(read: Any, write: Any, version: str, extensions: Json) -> Client:
    """A client over the streams of the SDK."""

    async def send(message: Json) -> None:
        await write.send(SessionMessage(jsonrpc_message_adapter.validate_python(message)))

    async def receive() -> Json:
        found = await read.receive()
        assert isinstance(found, SessionMessage)
        return found.message.model_dump(by_alias=True, exclude_unset=True)

    return StreamClient(version, extensions, send, receive)


@contextlib.asynccontextmanager
async def in_memory(app: App, version: str, extensions: Json) -> AsyncIterator[Client]:
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as group:
        server = app.server
        group.start_soon(lambda: server.run(*theirs, server.create_initialization_options()))
        yield over_streams(*ours, version, extensions)
        group.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def over_sse(app: App, version: str, extensions: Json) -> AsyncIterator[Client]:
    served = sse_app(app.engine, HttpOptions(), ready=lambda: (True, {}))
    async with at_address(served) as address, sse_client(f"{address}/sse") as streams:
        yield over_streams(streams[0], streams[1], version, extensions)


WAYS_IN: Final = {"stdio": over_stdio, "HTTP": over_http, "memory": in_memory, "SSE": over_sse}


# -- ways out ----------------------------------------------------------------------------------------------------------


class HttpSkills:
    """The server over streamable HTTP."""

    def __init__(self, version: str) -> None:
        self._skills = Skills(version)
        self._streams: list[asyncio.Queue[Json]] = []
        routes = [Route("/sse", self._open), Route("/messages", self._take, methods=["POST"])]
        self.app = Starlette(
            routes=[Route("/mcp", self._respond, methods=["GET", "POST", "DELETE"]), *routes],
        )

    async def _open(self, _: Request) -> Response:
        queue = asyncio.Queue[Json]()
        self._streams.append(queue)
        endpoint = f"event: endpoint\ndata: /messages?stream={len(self._streams) - 1}\n\n"
        return StreamingResponse(self._listen(queue, endpoint), media_type="text/event-stream")

    async def _take(self, request: Request) -> Response:
        for one in self._skills.answer(await request.json()):
            self._streams[int(request.query_params["stream"])].put_nowait(one)
        return Response(status_code=202)

    async def _respond(self, request: Request) -> Response:
        if request.method == "GET" and self._skills.version == OLDER:
            queue = asyncio.Queue[Json]()
            self._streams.append(queue)
            return StreamingResponse(self._listen(queue), media_type="text/event-stream")
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        answers = self._skills.answer(message)
        headers = {"mcp-session-id": "s"} if message["method"] == "initialize" else {}
        if "id" not in message:
            for queue in self._streams:
                for one in answers:
                    queue.put_nowait(one)
            return Response(status_code=202)
        if len(answers) == 1:
            return JSONResponse(answers[0], headers=headers)
        events = "".join(f"data: {json.dumps(one)}\n\n" for one in answers)
        return Response(events, media_type="text/event-stream")

    @staticmethod
    async def _listen(queue: asyncio.Queue[Json], first: str = ": open\n\n") -> AsyncIterator[str]:
        yield first
        while True:
            yield f"event: message\ndata: {json.dumps(await queue.get())}\n\n"


@contextlib.asynccontextmanager
async def server_over(way: str, version: str) -> AsyncIterator[ServerOptions]:
    if way == "stdio":
        yield ServerOptions(name="a", command=sys.executable, args=(str(Path(skills.__file__)), version))
        return
    async with serving(HttpSkills(version).app) as url:
        if way == "SSE":
            yield ServerOptions(name="a", url=f"{url}/sse", transport="sse")
        else:
            yield ServerOptions(name="a", url=f"{url}/mcp")


@contextlib.asynccontextmanager
async def client_of(
    way_in: str, ours: str, way_out: str, theirs: str, *, extensions: Json = DECLARED, policy: Any = None
) -> AsyncIterator[Client]:
    """A client, by its way and version, of a gateway in front of a server, by its way and version."""
    surfaces = SurfaceOptions(surfaces=("direct",), prefix=False)
    with anyio.fail_after(20):
        async with server_over(way_out, theirs) as options:
            async with App(Settings(servers=(options,), surfaces=surfaces, fleet=FAST), policy=policy) as app:
                await app.settled()
                async with WAYS_IN[way_in](app, ours, extensions) as client:
                    if not isinstance(client, HttpClient):
                        await client.open()
                    yield client


WAYS: Final = [
    (way_in, ours, way_out, theirs)
    for way_in in sorted(WAYS_IN)
    for ours in VERSIONS
    for way_out in ("HTTP", "SSE", "stdio")
    for theirs in VERSIONS
    if (way_in, ours) != ("SSE", MODERN) and (way_out, theirs) != ("SSE", MODERN)
]
"""HTTP+SSE is of older versions only."""


async def list_once_noted(client: Client) -> Json:
    """The answer of the server once a notification has reached it."""
    while not (answer := await client.ask("skills/list"))["noted"]:
        pass
    return answer


@pytest.mark.parametrize(("way_in", "ours", "way_out", "theirs"), WAYS)
async def test_messages_of_an_extension_pass_unread_in_both_directions(
    way_in: str, ours: str, way_out: str, theirs: str
) -> None:
    async with client_of(way_in, ours, way_out, theirs) as client:
        await client.notify(NOTED, **DEEP)
        answer = await list_once_noted(client)
        assert answer["noted"] == [DEEP]
        assert await client.wait_notified(FOUND) == DEEP
        # A program of an older version learns once what its client declares, and here no session says who that is.
        is_known = not (way_in == "HTTP" and ours == MODERN and way_out == "stdio" and theirs == OLDER)
        assert answer["declared"] == (DECLARED if is_known else {})
        if ours == theirs == OLDER:
            assert await client.wait_notified(HEARD) == DEEP


async def test_a_notification_waits_for_a_program_that_is_opened_again_for_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_NOTIFY_TIMEOUT_S", 0.0)
    async with client_of("stdio", OLDER, "stdio", OLDER) as client:
        await client.notify(NOTED, **DEEP)
        assert (await list_once_noted(client))["noted"] == [DEEP]


@pytest.mark.parametrize(("way_in", "ours", "way_out", "theirs"), WAYS)
async def test_a_client_without_the_extension_exchanges_none_of_its_messages(
    way_in: str, ours: str, way_out: str, theirs: str
) -> None:
    async with client_of(way_in, ours, way_out, theirs, extensions={"com.example/other": {}}) as client:
        await client.notify(NOTED, **DEEP)
        assert (await client.ask("skills/list"))["code"] == -32601
        assert await client.ask("tools/list")
        assert [method for method, _ in client.notified if method in (FOUND, HEARD)] == []


@pytest.mark.parametrize(
    ("method", "ours", "theirs"),
    [*((FOUND, ours, theirs) for ours in VERSIONS for theirs in VERSIONS), (HEARD, OLDER, OLDER)],
)
@pytest.mark.parametrize("effect", ["allow", "hide"])
async def test_a_notification_of_a_server_passes_in_and_out_of_a_request_unless_the_policy_hides_it(
    method: str, ours: str, theirs: str, effect: Any
) -> None:
    allowed = Rule(tools=("a:skills/list", f"a:{NOTED}"), effect="allow")
    policy = ByScopes([Rule(tools=(f"a:{method}",), effect=effect), allowed])
    async with client_of("stdio", ours, "stdio", theirs, policy=policy) as client:
        await client.notify(NOTED, **DEEP)
        await list_once_noted(client)
        if effect == "allow":
            assert await client.wait_notified(method) == DEEP
        await client.ask("skills/list")
        assert {name for name, _ in client.notified} == ({method} if effect == "allow" else set())


@pytest.mark.parametrize("effect", ["hide", "approve"])
@pytest.mark.parametrize("ours", VERSIONS)
async def test_a_notification_that_the_policy_does_not_allow_is_not_sent(ours: str, effect: Any) -> None:
    policy = ByScopes([Rule(tools=(f"a:{NOTED}",), effect=effect)])
    async with client_of("stdio", ours, "stdio", MODERN, policy=policy) as client:
        await client.notify(NOTED, **DEEP)
        assert (await client.ask("skills/list"))["noted"] == []
