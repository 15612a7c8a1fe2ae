"""Methods that no version of the protocol defines, between a client and the servers that declare their extension."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.server.shop import FAST
from tests.server.test_stdio import Peer
from tests.upstream.support import serving

from toolcrib.app import App
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.server.stdio import serve_pipes
from toolcrib.settings.options import Settings
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
OLDER, MODERN = "2025-11-25", "2026-07-28"
SKILLS: Final = "io.modelcontextprotocol/skills"
DIRECTORIES: Final = "io.modelcontextprotocol/directories"
PREFIX: Final = "io.modelcontextprotocol/"


class Server:
    """A server of one version that declares extensions, and answers some of their methods."""

    def __init__(self, version: str, extensions: Mapping[str, Json], answers: Mapping[str, Json]) -> None:
        self._version, self._extensions, self._answers = version, extensions, answers
        self.asked: list[Json] = []
        self.app = Starlette(routes=[Route("/mcp", self._respond, methods=["GET", "POST", "DELETE"])])

    async def _respond(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        if "id" not in message:
            return Response(status_code=202)
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], **self._outcome(message)})

    def _outcome(self, message: Json) -> Json:
        method, about = message["method"], {"capabilities": {"tools": {}, "extensions": self._extensions}}
        if method == "initialize" and self._version == OLDER:
            return {"result": {"protocolVersion": OLDER, "serverInfo": {"name": "s", "version": "1"}, **about}}
        if method == "server/discover" and self._version == MODERN:
            return {"result": {"supportedVersions": [MODERN], "resultType": "complete", **about}}
        if method == "tools/list":
            return {"result": {"tools": [{"name": "use", "inputSchema": {"type": "object"}}]}}
        if method in self._answers:
            self.asked.append(message)
            return {"result": self._answers[method]}
        return {"error": {"code": -32601, "message": "Method not found"}}


class Client:
    """A client over stdio that declares extensions."""

    def __init__(self, peer: Peer, version: str, extensions: Mapping[str, Json]) -> None:
        self._peer, self._version = peer, version
        self.capabilities: Json = {"extensions": dict(extensions)}

    async def ask(self, method: str, **params: Any) -> Json:
        """The whole response to a request."""
        if self._version == MODERN:
            about = {"protocolVersion": MODERN, "clientCapabilities": self.capabilities}
            params = {**params, "_meta": {PREFIX + key: value for key, value in about.items()}}
        self._peer.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        response: Json = await self._peer.receive()
        return response

    async def declared(self) -> Json:
        """What the gateway declares of extensions; opens the session of an older version."""
        if self._version == MODERN:
            answer = await self.ask("server/discover")
        else:
            who = {"clientInfo": {"name": "t", "version": "0"}, "capabilities": self.capabilities}
            answer = await self.ask("initialize", protocolVersion=OLDER, **who)
            self._peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        found: Json = answer["result"]["capabilities"].get("extensions", {})
        return found


@contextlib.asynccontextmanager
async def gateway(*servers: Server, version: str, policy: Any = None, **extensions: Json) -> AsyncIterator[Client]:
    """A client that declares extensions, of a gateway in front of servers that are called a, b, and so on."""
    read_fd, write_fd = os.pipe()
    reader = asyncio.StreamReader()
    peer = Peer(reader, read_fd)
    declared = {PREFIX + name: about for name, about in extensions.items()}
    try:
        with anyio.fail_after(15):
            async with contextlib.AsyncExitStack() as stack:
                urls = [await stack.enter_async_context(serving(server.app)) for server in servers]
                options = [ServerOptions(name=name, url=f"{url}/mcp") for name, url in zip("abc", urls, strict=False)]
                surfaces = SurfaceOptions(surfaces=("direct",), prefix=False)
                settings = Settings(servers=tuple(options), surfaces=surfaces, fleet=FAST)
                app = await stack.enter_async_context(App(settings, policy=policy))
                await app.settled()
                group = await stack.enter_async_context(anyio.create_task_group())
                group.start_soon(lambda: serve_pipes(app.engine, reader, write_fd, drain_s=1, stop=peer.stop))
                yield Client(peer, version, declared)
                peer.stop.set()
    finally:
        os.close(write_fd)
        os.close(read_fd)


FOUND: Final[Json] = {"skills": [{"name": "pdf", "vendor": {"a": None}}], "cursor": "2"}
ANSWER: Final[Json] = {"skills/list": FOUND}


@pytest.mark.parametrize("theirs", [OLDER, MODERN])
@pytest.mark.parametrize("ours", [OLDER, MODERN])
async def test_a_method_of_an_extension_that_both_sides_declare_passes_unread(ours: str, theirs: str) -> None:
    server = Server(theirs, {SKILLS: {"lists": True}}, ANSWER)
    async with gateway(server, version=ours, skills={}) as client:
        assert await client.declared() == {SKILLS: {"lists": True}}
        result = (await client.ask("skills/list", tags=["x"], deep={"n": [None]}))["result"]
        assert {key: result[key] for key in FOUND} == FOUND
        assert result.keys() - FOUND.keys() <= {"resultType", "_meta"}
        asked = server.asked[-1]["params"]
        assert (asked["tags"], asked["deep"]) == (["x"], {"n": [None]})


async def test_a_modern_server_learns_which_extensions_the_client_declares() -> None:
    server = Server(MODERN, {SKILLS: {}}, ANSWER)
    async with gateway(server, version=MODERN, skills={"max": 3}) as client:
        await client.declared()
        await client.ask("skills/list")
        capabilities = server.asked[-1]["params"]["_meta"][PREFIX + "clientCapabilities"]
        assert capabilities["extensions"] == {SKILLS: {"max": 3}}


@pytest.mark.parametrize(("theirs", "ours"), [("skills", "directories"), ("skills", ""), ("", "skills")])
async def test_a_method_is_unknown_unless_both_sides_declare_the_same_extension(theirs: str, ours: str) -> None:
    server = Server(OLDER, {PREFIX + theirs: {}} if theirs else {}, ANSWER)
    async with gateway(server, version=OLDER, **({ours: {}} if ours else {})) as client:
        await client.declared()
        assert (await client.ask("skills/list"))["error"] == {
            "code": -32601,
            "message": "Method not found",
            "data": "skills/list",
        }
        assert not server.asked


async def test_of_several_servers_the_first_one_that_knows_the_method_answers() -> None:
    kinds: list[tuple[str, Mapping[str, Json]]] = [(SKILLS, {}), (DIRECTORIES, ANSWER), (SKILLS, ANSWER)]
    servers = [Server(OLDER, {extension: {}}, answers) for extension, answers in kinds]
    async with gateway(*servers, version=OLDER, skills={}) as client:
        assert (await client.declared()).keys() == {SKILLS, DIRECTORIES}
        assert (await client.ask("skills/list"))["result"] == FOUND
        assert [len(server.asked) for server in servers] == [0, 0, 1]


@pytest.mark.parametrize("version", [OLDER, MODERN])
async def test_a_server_that_may_not_be_asked_costs_only_itself(version: str) -> None:
    servers = [Server(OLDER, {SKILLS: {}}, answers) for answers in (ANSWER, {"skills/get": {"name": "own"}}, ANSWER)]
    rules = ByScopes([Rule(tools=("a:*",), effect="approve")])
    async with gateway(*servers, version=version, policy=rules, skills={}) as client:
        await client.declared()
        assert (await client.ask("skills/list"))["result"]["skills"] == FOUND["skills"]
        assert [len(server.asked) for server in servers] == [0, 0, 1]
        refused = await client.ask("skills/find")
        assert refused["error"]["data"]["code"] == "approval_required"


async def test_a_method_that_needs_approval_asks_a_client_that_can_be_asked() -> None:
    server = Server(MODERN, {SKILLS: {}}, ANSWER)
    rules = ByScopes([Rule(tools=("a:*",), effect="approve")])
    async with gateway(server, version=MODERN, policy=rules, skills={}) as client:
        client.capabilities["elicitation"] = {"form": {}}
        asked = (await client.ask("skills/list"))["result"]
        assert asked["resultType"] == "input_required"
        answers = {key: {"action": "accept", "content": {"approve": True}} for key in asked["inputRequests"]}
        answered = await client.ask("skills/list", inputResponses=answers, requestState=asked["requestState"])
        assert answered["result"]["skills"] == FOUND["skills"]


async def test_params_of_an_extension_may_have_any_value_under_names_that_calls_use_too() -> None:
    server = Server(OLDER, {SKILLS: {}}, ANSWER)
    params = {"requestState": {"a": 1}, "inputResponses": [1]}
    async with gateway(server, version=OLDER, skills={}) as client:
        await client.declared()
        assert (await client.ask("skills/list", **params))["result"] == FOUND
        assert [one["params"] for one in server.asked] == [params]


@pytest.mark.parametrize("meta", [None, 5])
async def test_a_result_of_an_extension_without_valid_meta_reaches_a_modern_client(meta: object) -> None:
    server = Server(MODERN, {SKILLS: {}}, {"skills/list": {**FOUND, "_meta": meta}})
    async with gateway(server, version=MODERN, skills={}) as client:
        assert (await client.ask("skills/list"))["result"]["skills"] == FOUND["skills"]


async def test_a_policy_hides_methods_of_extensions_and_what_they_list() -> None:
    listed = {"resources": [{"uri": "file:///open/a"}, {"uri": "file:///secret/b"}, {"name": "no uri"}]}
    server = Server(OLDER, {DIRECTORIES: {}}, {"resources/directory/read": listed, "resources/directory/wipe": {}})
    rules = [Rule(tools=("a:file:///secret/*",), effect="hide"), Rule(tools=("a:*wipe",), effect="hide")]
    async with gateway(server, version=OLDER, policy=ByScopes(rules), directories={}) as client:
        await client.declared()
        found = await client.ask("resources/directory/read", uri="file:///open")
        assert found["result"] == {"resources": [{"uri": "file:///open/a"}, {"name": "no uri"}]}
        for hidden in (("resources/directory/read", "file:///secret/b"), ("resources/directory/wipe", "file:///open")):
            assert (await client.ask(hidden[0], uri=hidden[1]))["error"]["code"] == -32601
        assert len(server.asked) == 1


async def test_the_extension_of_tasks_is_not_declared_because_it_changes_the_answers_to_calls() -> None:
    server = Server(MODERN, {PREFIX + "tasks": {}, SKILLS: {}}, ANSWER)
    async with gateway(server, version=MODERN, tasks={}) as client:
        assert (await client.declared()).keys() == {SKILLS}
        assert (await client.ask("skills/list"))["error"]["code"] == -32601
