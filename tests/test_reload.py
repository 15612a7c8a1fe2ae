"""Settings that change while an app runs: what applies at once, what waits for a restart, and what is refused."""

import json
import logging
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import mcp
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream
from tests.server.conftest import at_address, client_at, token
from tests.test_app import notes
from tests.upstream.support import FAST

from toolcrib.app import App
from toolcrib.errors import BackendNotFound, ServerUnavailable, SettingsError, ToolNotFound
from toolcrib.server.options import Token
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.settings.reload import SettingsWatcher, compare
from toolcrib.state.options import StateOptions
from toolcrib.types import Tool
from toolcrib.upstream.options import ServerOptions

pytestmark = pytest.mark.anyio

Loading = Callable[..., Settings]
ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
HIDE_ALL = {"default": "hide"}


@pytest.fixture
def loading(tmp_path: Path) -> Loading:
    """Writes a settings file, and loads it: its own section, and the servers as given."""

    def load(section: dict[str, Any] | None = None, *servers: ServerOptions) -> Settings:
        file = tmp_path / "toolcrib.json"
        file.write_text(json.dumps({"toolcrib": section or {}, "mcpServers": {}}))
        return replace(load_settings(file, environ={}), servers=servers, fleet=FAST, state=StateOptions())

    return load


def with_ping(settings: Settings) -> App:
    """An app with one function."""
    app = App(settings)
    app.register(Tool(name="ping"), lambda: "pong")
    return app


async def text(app: App, tool: str, **arguments: Any) -> str:
    return (await app.call(tool, arguments)).text


async def test_only_servers_that_changed_are_started_or_stopped(loading: Loading) -> None:
    with anyio.fail_after(40):
        async with App(loading({}, notes("kept"), notes("gone"), notes("changed"))) as app:
            app.add_server(notes("own"))
            await app.settled()
            await text(app, "kept:add_note", text="a")
            await text(app, "changed:add_note", text="a")
            change = await app.reload(loading({}, notes("kept"), notes("new"), notes("changed", retries=3)))
            assert str(change) == "added new; removed gone; restarted changed"
            await app.settled()
            assert sorted(app.servers.names()) == ["changed", "kept", "new", "own"]
            assert await text(app, "kept:list_notes") == "a"
            assert await text(app, "changed:list_notes") == ""
            assert await text(app, "own:list_notes") == ""
            with pytest.raises(ToolNotFound):
                await app.call("gone:list_notes", {})


@pytest.mark.parametrize("way", ["reload", "retry_server"])
async def test_a_server_that_was_given_up_can_be_tried_again(loading: Loading, tmp_path: Path, way: str) -> None:
    program = tmp_path / "late"
    late = replace(notes("late"), command=str(program), args=(), retries=0)
    with anyio.fail_after(40):
        async with App(loading({}, late)) as app:
            await app.settled()
            with pytest.raises(ServerUnavailable, match="not tried again"):
                await app.call("late:list_notes", {})
            started = notes("late")
            program.write_text("#!/bin/sh\nexec " + shlex.join([started.command, *started.args]))
            program.chmod(0o755)
            if way == "reload":
                change = await app.reload(loading({}, late))
                assert str(change) == "tried again late"
            else:
                assert await app.retry_server("late") is True
            await app.settled()
            await text(app, "late:add_note", text="a")
            assert await text(app, "late:list_notes") == "a"
            assert await app.retry_server("late") is False
            with pytest.raises(BackendNotFound):
                await app.retry_server("other")


async def test_a_running_call_finishes_on_a_server_that_is_removed(loading: Loading) -> None:
    with anyio.fail_after(40):
        async with App(loading({}, notes())) as app:
            await app.settled()
            async with waiting(app) as answers:
                await app.reload(loading({}))
                with pytest.raises(ToolNotFound):
                    await app.call("notes:list_notes", {})
                assert answers == []
            assert answers == ["waited"]


async def test_a_changed_policy_applies_to_the_next_request(loading: Loading) -> None:
    app = with_ping(loading({"surfaces": ["direct"]}))
    with anyio.fail_after(30):
        async with app:
            assert "ping" in {tool.name for tool in await app.tools()}
            change = await app.reload(loading({"surfaces": ["direct"], "policy": HIDE_ALL}))
            assert (change.policy, change.needs_restart) == (True, ())
            assert await app.tools() == ()
            with pytest.raises(ToolNotFound):
                await app.call("ping", {})
            await app.reload(loading({"surfaces": ["direct"]}))
            assert (await app.call("ping", {})).text == "pong"


def with_tokens(settings: Settings, *secrets: str) -> Settings:
    tokens = tuple(Token(secret=secret, caller=secret.partition("-")[0]) for secret in secrets)
    return replace(settings, http=replace(settings.http, tokens=tokens))


async def test_a_revoked_token_is_refused_and_a_new_one_accepted_at_the_next_request(loading: Loading) -> None:
    with anyio.fail_after(40):
        async with with_ping(with_tokens(loading(), ANN)) as app, at_address(app.asgi(port=0)) as url:
            async with client_at(f"{url}/mcp", headers=token(ANN)) as client:
                assert (await client.list_tools()).tools
            assert (await app.reload(with_tokens(loading(), BOB))).tokens
            async with httpx2.AsyncClient(headers=token(ANN)) as http:
                assert (await http.post(f"{url}/mcp", json={})).status_code == 401
            async with client_at(f"{url}/mcp", headers=token(BOB)) as client:
                assert (await client.list_tools()).tools
            await app.reload(with_tokens(loading()))
            async with httpx2.AsyncClient(headers=token(BOB)) as http:
                assert (await http.post(f"{url}/mcp", json={})).status_code == 401


@pytest.mark.parametrize("sse", [False, True], ids=["session", "sse"])
async def test_a_stream_ends_with_its_token(loading: Loading, sse: bool) -> None:
    addresses, bound, stop = list[str](), anyio.Event(), anyio.Event()

    def started(address: str) -> None:
        addresses.append(address)
        bound.set()

    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    with anyio.fail_after(20):
        async with with_ping(with_tokens(loading(), ANN)) as app, anyio.create_task_group() as group:
            group.start_soon(lambda: app.serve_http(port=0, sse=sse, stop=stop, started=started))
            await bound.wait()
            async with httpx2.AsyncClient(headers={**headers, **token(ANN)}) as http:
                if not sse:
                    http.headers["mcp-session-id"] = (await http.post(addresses[0], json=initialize)).headers[
                        "mcp-session-id"
                    ]
                for left in ((ANN, BOB), (BOB,)):  # the second stream is the one that a client opens again
                    async with http.stream("GET", addresses[0]) as stream:
                        assert stream.status_code == 200
                        await app.reload(with_tokens(loading(), *left))
                        async for _ in stream.aiter_bytes():
                            pass
                assert (await http.get(addresses[0])).status_code == 401
            stop.set()


async def test_tokens_for_a_server_that_is_open_to_anyone_need_a_restart_and_change_nothing(loading: Loading) -> None:
    with anyio.fail_after(40):
        async with with_ping(loading()) as app, at_address(app.asgi(port=0)) as url:
            with pytest.raises(SettingsError, match="Restart toolcrib to require tokens"):
                await app.reload(with_tokens(loading({}, notes()), ANN))
            assert app.servers.names() == ()
            async with mcp.Client(f"{url}/mcp") as client:
                assert (await client.list_tools()).tools


async def test_a_missing_secret_keeps_the_tokens_of_before(loading: Loading) -> None:
    with anyio.fail_after(40):
        async with with_ping(with_tokens(loading(), ANN)) as app, at_address(app.asgi(port=0)) as url:
            missing = loading({"http": {"tokens": [{"env": "NOT_SET", "caller": "bob"}]}})
            with pytest.raises(SettingsError, match="NOT_SET is not set"):
                await app.reload(missing)
            async with client_at(f"{url}/mcp", headers=token(ANN)) as client:
                assert (await client.list_tools()).tools


def test_settings_that_need_a_restart_are_named_until_they_are_as_they_were(loading: Loading) -> None:
    first = loading({"http": {"port": 8000}, "surfaces": ["search"]})
    http = {"port": 9000, "host": "127.0.0.1", "tokens-file": "tokens.json"}
    second = loading({"http": http, "surfaces": ["direct"], "policy": HIDE_ALL})
    change = compare(first, second)
    assert change.needs_restart == ("http.port", "http.host", "surfaces")
    assert compare(second, first, started_with=first).needs_restart == ()
    assert str(compare(first, first)) == "nothing changed"


async def test_a_change_of_any_file_that_the_settings_name_is_applied_once(tmp_path: Path) -> None:
    file, tokens = tmp_path / "toolcrib.json", tmp_path / "tokens.json"
    file.write_text(json.dumps({"toolcrib": {"http": {"tokens_file": "tokens.json"}}, "mcpServers": {}}))
    tokens.write_text(json.dumps({"tokens": [{"token": ANN, "caller": "ann"}]}))
    settings = load_settings(file, environ={})
    assert settings.files == (file, tokens)
    applied: list[tuple[str, ...]] = []
    arrived = anyio.Event()

    async def apply(new: Settings) -> str:
        applied.append(tuple(one.caller for one in new.http.tokens))
        arrived.set()
        return ""

    watcher = SettingsWatcher(settings, lambda: load_settings(file, environ={}), apply)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run, 0.01)
            tokens.write_text(json.dumps({"tokens": [{"token": BOB, "caller": "bob"}]}))
            await arrived.wait()
            group.cancel_scope.cancel()
    assert applied == [("bob",)]


async def test_the_reports_of_the_system_apply_a_change_without_polling(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles", reason="needs watchfiles")
    file, tokens = tmp_path / "toolcrib.json", tmp_path / "more" / "tokens.json"
    tokens.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {}}))
    tokens.write_text(json.dumps({"tokens": [{"token": ANN, "caller": "ann"}]}))
    send, receive = anyio.create_memory_object_stream[tuple[str, ...]](10)

    async def apply(new: Settings) -> str:
        send.send_nowait(tuple(one.caller for one in new.http.tokens))
        return ""

    watcher = SettingsWatcher(load_settings(file, environ={}), lambda: load_settings(file, environ={}), apply)
    with anyio.fail_after(30), send, receive:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(watcher.run, 3_600, at_once=True))
            section = {"http": {"tokens_file": "more/tokens.json"}}
            await touch_until(receive, lambda n: file.write_text(json.dumps({"toolcrib": section}) + " " * n))
            renamed = tokens.with_name("new.json")
            applied = await touch_until(receive, lambda n: replace_file(renamed, tokens, n))
            group.cancel_scope.cancel()
    assert applied == ("bob",)


def replace_file(new: Path, old: Path, number: int) -> None:
    new.write_text(json.dumps({"tokens": [{"token": BOB, "caller": "bob"}]}) + " " * number)
    new.replace(old)


async def touch_until(receive: MemoryObjectReceiveStream[tuple[str, ...]], write: Callable[[int], Any]) -> Any:
    """Write again until it is noticed: the first write may come before the system watches."""
    for number in range(30):
        write(number)
        with anyio.move_on_after(1):
            return await receive.receive()
    raise AssertionError("the change was not noticed")


async def test_an_invalid_file_changes_nothing_and_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "toolcrib.json"
    file.write_text('{"mcpServers": {}}')
    applied: list[Settings] = []

    async def apply(new: Settings) -> None:
        applied.append(new)

    noted: list[str] = []
    watcher = SettingsWatcher(
        load_settings(file, environ={}), lambda: load_settings(file, environ={}), apply, note=noted.append
    )
    file.write_text('{"mcpServers": {')
    with caplog.at_level(logging.INFO, "toolcrib"), anyio.fail_after(10):
        await watcher.reload()
        await watcher.reload()
        assert applied == []
        assert "toolcrib.json:1:" in watcher.problem
        assert [record.message for record in caplog.records if "nothing was changed" in record.message] == [
            f"the changed settings cannot be used, so nothing was changed: {watcher.problem}"
        ]
        file.write_text('{"mcpServers": {}}')
        await watcher.reload()
    assert (len(applied), watcher.problem) == (1, "")
    assert [bool(problem) for problem in noted] == [True, False]


async def test_a_file_that_is_made_after_the_settings_name_it_is_taken_over(tmp_path: Path) -> None:
    file, tokens = tmp_path / "toolcrib.json", tmp_path / "tokens.json"
    file.write_text(json.dumps({"mcpServers": {}}))
    arrived = anyio.Event()

    async def apply(new: Settings) -> str:
        if new.http_problem:
            raise SettingsError(new.http_problem)
        arrived.set()
        return ""

    watcher = SettingsWatcher(load_settings(file, environ={}), lambda: load_settings(file, environ={}), apply)
    file.write_text(json.dumps({"toolcrib": {"http": {"tokens_file": "tokens.json"}}, "mcpServers": {}}))
    with anyio.fail_after(20):
        await watcher.reload()
        assert "tokens.json does not exist" in watcher.problem
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.run, 0.01)
            tokens.write_text(json.dumps({"tokens": [{"token": BOB, "caller": "bob"}]}))
            await arrived.wait()
            group.cancel_scope.cancel()
    assert watcher.problem == ""


@asynccontextmanager
async def waiting(app: App) -> AsyncIterator[list[str]]:
    """Have a call of `notes:wait` run meanwhile; yields the list that gets its answer at the end."""
    answers: list[str] = []

    async def wait() -> None:
        answers.append(await text(app, "notes:wait", seconds=0.5))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        while "waiting" not in await text(app, "notes:list_notes"):
            await anyio.lowlevel.checkpoint()
        yield answers


async def test_a_server_that_is_removed_and_added_again_starts_when_its_old_self_is_gone(loading: Loading) -> None:
    with anyio.fail_after(40):
        async with App(loading({}, notes())) as app:
            await app.settled()
            async with waiting(app) as answers:
                await app.reload(loading({}))
                await app.reload(loading({}, notes()))
                assert await text(app, "notes:list_notes") == ""
                assert answers == ["waited"]


async def test_a_call_that_waits_for_a_server_ends_when_the_server_is_removed_before_its_start(
    loading: Loading,
) -> None:
    with anyio.fail_after(20):
        async with App(loading({}, notes())) as app:
            await app.settled()
            async with waiting(app):
                await app.reload(loading({}, notes(retries=2)))
                successor = app.fleet.server("notes")
                async with anyio.create_task_group() as group:

                    async def call() -> None:
                        with pytest.raises(ServerUnavailable, match="stopped"):
                            await successor.call_tool(app.local_context(), "list_notes", {})

                    group.start_soon(call)
                    await anyio.lowlevel.checkpoint()
                    await app.reload(loading({}))
            assert successor.status.reason == "stopped"
