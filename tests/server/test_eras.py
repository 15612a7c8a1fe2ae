"""Clients of each protocol era in front of servers of each era: the table in docs/reference/protocol-eras.md."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp
import mcp_types as types
import pytest
from mcp_types import LOG_LEVEL_META_KEY
from tests.fixtures.servers.asking import QUESTIONS, AskingServer
from tests.server.conftest import at_address, until
from tests.server.shop import FAST
from tests.upstream.support import serving

from toolcrib.app import App
from toolcrib.cli.demo import find_uvx
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions
from toolcrib.settings.options import Settings
from toolcrib.upstream.options import ServerOptions

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:.*is deprecated as of 2026-07-28")]

PROGRAM = Path(__file__).parent.parent / "fixtures" / "servers" / "asking.py"
OLDER: dict[str, Any] = {"protocol": "2025-11-25", "asks": True}
NEWER: dict[str, Any] = {"protocol": "2026-07-28"}
BOTH: dict[str, Any] = {}
ANSWERS = {
    "ask_form": {"action": "accept", "content": {"sure": True}},
    "ask_url": {"action": "accept"},
    "ask_model": {"content": {"text": "saw", "type": "text"}, "model": "m", "role": "assistant"},
    "ask_roots": {"roots": [{"uri": "file:///a"}]},
}


class Person:
    """The callbacks of a client that answers everything, and what it received."""

    def __init__(self) -> None:
        self.logged: list[Any] = []
        self.steps: list[tuple[float, float | None, str | None]] = []
        self.roots = ["file:///a"]

    async def elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"sure": True} if params.mode == "form" else None)

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        word = types.TextContent(type="text", text="saw")
        return types.CreateMessageResult(role="assistant", content=word, model="m")

    async def list_roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": uri}) for uri in self.roots])

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logged.append(params.data)

    async def progress(self, done: float, total: float | None, message: str | None) -> None:
        self.steps.append((done, total, message))

    def client(self, target: Any, mode: Any) -> mcp.Client:
        return mcp.Client(
            target,
            mode=mode,
            elicitation_callback=self.elicit,
            sampling_callback=self.sample,
            list_roots_callback=self.list_roots,
            logging_callback=self.log,
        )


@asynccontextmanager
async def gateway(over: str, options: dict[str, Any], *arguments: str) -> AsyncIterator[App]:
    """A gateway in front of the asking server, reached in memory, over stdio or over HTTP."""
    server = AskingServer(by_session="session" in arguments).server
    if over == "memory":
        async with running(ServerOptions(name="s", target=server, **options)) as app:
            yield app
    elif over == "stdio":
        entry = ServerOptions(name="s", command=sys.executable, args=(str(PROGRAM), *arguments), **options)
        async with running(entry) as app:
            yield app
    else:
        async with serving(server.streamable_http_app()) as url:
            async with running(ServerOptions(name="s", url=f"{url}/mcp", **options)) as app:
                yield app


@asynccontextmanager
async def running(server: ServerOptions, limit_s: float = 30) -> AsyncIterator[App]:
    with anyio.fail_after(limit_s):
        async with App(Settings(servers=(server,), fleet=FAST)) as app:
            await app.settled()
            yield app


@asynccontextmanager
async def reachable(app: App, over: str) -> AsyncIterator[Any]:
    """Where clients connect: in memory, as over stdio, or at an address."""
    if over != "http":
        yield app.server
        return
    async with at_address(http_app(app.engine, HttpOptions(), ready=lambda: (True, {}))) as url:
        yield f"{url}/mcp"


async def call(client: mcp.Client, tool: str, **more: Any) -> str:
    result = await client.call_tool("execute_tool", {"name": f"s:{tool}", "arguments": {"n": 1}}, **more)
    text = "".join(block.text for block in result.content if isinstance(block, types.TextContent))
    assert not result.is_error, text
    return text


@pytest.mark.parametrize("over", ["memory", pytest.param("stdio", marks=pytest.mark.slow), "http"])
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("options", "eras"),
    [
        (OLDER, {"legacy": "2025-11-25", "2026-07-28": "2025-11-25"}),
        (NEWER, {"legacy": "2026-07-28", "2026-07-28": "2026-07-28"}),
        (BOTH, {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}),
    ],
    ids=["older", "newer", "both"],
)
async def test_every_server_can_ask_every_client_and_send_it_logs_and_progress(
    over: str, mode: Any, options: dict[str, Any], eras: dict[str, str]
) -> None:
    person = Person()
    async with gateway(over, options) as app, reachable(app, over) as there, person.client(there, mode) as client:
        assert await call(client, "era") == eras[mode]
        assert {tool: json.loads(await call(client, tool)) for tool in QUESTIONS} == ANSWERS
        await call(client, "log", meta={LOG_LEVEL_META_KEY: "info"} if mode != "legacy" else None)
        await call(client, "report", progress_callback=person.progress)
        await until(lambda: bool(person.logged) and len(person.steps) == 2)
    assert person.logged == [{"n": 1}]
    assert person.steps == [(1, 2, "step 1"), (2, 2, "step 2")]


@pytest.mark.network
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_server_on_the_sdk_before_2_0_can_ask_every_client_and_keep_state_for_it(mode: Any) -> None:
    arguments = ("--with", "mcp<2", "python", str(PROGRAM.with_name("older.py")))
    passed_on = {key: value for key, value in os.environ.items() if key.startswith(("UV_", "SSL_CERT_"))}
    entry = ServerOptions(name="s", command=str(find_uvx()), args=arguments, env=passed_on, asks=True)
    person = Person()
    async with running(entry, limit_s=200) as app, reachable(app, "http") as there:
        assert app.statuses()[0].protocol == "2025-11-25"
        async with person.client(there, mode) as client:
            assert {tool: json.loads(await call(client, tool)) for tool in QUESTIONS} == ANSWERS
            await call(client, "log", meta={LOG_LEVEL_META_KEY: "info"} if mode != "legacy" else None)
            await call(client, "report", progress_callback=person.progress)
            await until(lambda: bool(person.logged) and len(person.steps) == 2)
            assert [await call(client, "count") for _ in range(2)] == ["1", "2"]
        async with person.client(there, "legacy") as other:
            assert await call(other, "count") == "1"
    assert person.logged == ["n is 1"]


@pytest.mark.parametrize("over", [pytest.param("stdio", marks=pytest.mark.slow), "http"])
@pytest.mark.parametrize("options", [{"sessions": "client", "protocol": "2025-11-25"}, BOTH], ids=["client", "both"])
async def test_each_session_of_an_older_client_has_its_own_state(over: str, options: dict[str, Any]) -> None:
    async with gateway(over, options) as app, reachable(app, "http") as there:
        async with mcp.Client(there, mode="legacy") as one, mcp.Client(there, mode="legacy") as two:
            counts = [await call(client, "count") for client in (one, two, one, two)]
    assert counts == ["1", "1", "2", "2"]


@pytest.mark.parametrize("over", ["memory", pytest.param("stdio", marks=pytest.mark.slow), "http"])
@pytest.mark.parametrize("options", [OLDER, BOTH, {**OLDER, "sessions": "shared"}], ids=["older", "both", "shared"])
async def test_a_server_asks_for_the_roots_of_an_older_client_again_when_they_changed(
    over: str, options: dict[str, Any]
) -> None:
    person = Person()
    async with gateway(over, options) as app, reachable(app, over) as there, person.client(there, "legacy") as client:
        assert await call(client, "roots") == "0"
        person.roots.append("file:///b")
        await client.send_roots_list_changed()
        while await call(client, "roots") != "2":
            await anyio.lowlevel.checkpoint()


async def test_a_change_of_roots_reaches_no_connection_of_another_session() -> None:
    one, two = Person(), Person()
    async with gateway("http", BOTH) as app, reachable(app, "http") as there:
        async with one.client(there, "legacy") as first, two.client(there, "legacy") as second:
            assert [await call(client, "roots") for client in (first, second)] == ["0", "0"]
            await first.send_roots_list_changed()
            while await call(first, "roots") != "1":
                await anyio.lowlevel.checkpoint()
            assert await call(second, "roots") == "0"


async def test_clients_in_memory_have_a_session_each() -> None:
    options = {"sessions": "client", "protocol": "2025-11-25"}
    async with gateway("http", options) as app:
        async with mcp.Client(app.server, mode="legacy") as one, mcp.Client(app.server, mode="2026-07-28") as two:
            async with mcp.Client(app.server, mode="legacy") as three, mcp.Client(app.server) as four:
                clients = (one, two, three, four) * 2
                assert [await call(client, "count") for client in clients] == ["1"] * 4 + ["2"] * 4


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_server_that_asks_by_session_alone_asks_clients_of_every_version(mode: Any) -> None:
    person, options = Person(), BOTH if mode == "legacy" else OLDER
    async with gateway("http", options, "session") as app, person.client(app.server, mode) as client:
        assert json.loads(await call(client, "ask_form")) == ANSWERS["ask_form"]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_cannot_be_asked_is_not_asked(mode: Any) -> None:
    async with gateway("http", OLDER) as app, mcp.Client(app.server, mode=mode) as client:
        result = await client.call_tool("execute_tool", {"name": "s:ask_model", "arguments": {}})
        assert result.is_error


async def test_concurrent_callers_get_their_own_log_messages_over_a_shared_connection() -> None:
    one, two = Person(), Person()
    meta: Any = {LOG_LEVEL_META_KEY: "info"}

    async def log(client: mcp.Client, number: int) -> None:
        for _ in range(3):
            await client.call_tool("execute_tool", {"name": "s:log", "arguments": {"n": number}}, meta=meta)

    async with (
        gateway("http", BOTH) as app,
        reachable(app, "http") as there,
        one.client(there, "2026-07-28") as first,
        two.client(there, "2026-07-28") as second,
        anyio.create_task_group() as group,
    ):
        group.start_soon(log, first, 1)
        group.start_soon(log, second, 2)
    assert (one.logged, two.logged) == ([{"n": 1}] * 3, [{"n": 2}] * 3)
