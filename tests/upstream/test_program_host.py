"""Programs that run once for several workers, each with a fleet of its own."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import pytest
from tests.upstream.support import CTX, FAST, READY, alive, call, call_json, names, raw, until
from tests.upstream.test_session_connections import Peer

from toolcrib.errors import ConnectionLost, UpstreamError
from toolcrib.types import Caller, Context, ServerState
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.transports.program_host import ProgramHost, write_spec

pytestmark = pytest.mark.anyio

MODERN = {"discover": "serve", "supports": ["2026-07-28"]}


class Listener(Peer):
    """A client that notes the progress of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[float] = []

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.reported.append(done)


@asynccontextmanager
async def workers(
    path: Path, server: ServerOptions, count: int = 2, credential: str = "secret", *, limit_s: float = 30
) -> AsyncIterator[list[RemoteServer]]:
    """The same server as several workers have it, which share its program."""

    async def find() -> tuple[str, str]:
        return str(path / "host"), credential

    fleets = [Fleet(replace(FAST, find_programs=find)) for _ in range(count)]
    with anyio.fail_after(limit_s):
        async with anyio.create_task_group() as group:
            await group.start(ProgramHost("secret").serve, path / "host")
            async with anyio.create_task_group() as running:
                done = anyio.Event()
                ready = [anyio.Event() for _ in fleets]

                async def run(fleet: Fleet, settled: anyio.Event) -> None:
                    async with fleet:
                        await fleet.apply([server])
                        await fleet.settled()
                        settled.set()
                        await done.wait()

                for fleet, settled in zip(fleets, ready, strict=True):
                    running.start_soon(run, fleet, settled)
                for settled in ready:
                    await settled.wait()
                try:
                    yield [fleet.server(server.name) for fleet in fleets]
                finally:
                    done.set()
            group.cancel_scope.cancel()


def has_tool(server: RemoteServer, name: str) -> bool:
    return name in names(server)


def is_ready_again(server: RemoteServer, since: float) -> bool:
    return server.status.state is READY and server.status.since != since


@pytest.mark.parametrize("spec", [{}, MODERN])
async def test_a_program_runs_once_for_all_workers_and_each_gets_its_own_answers(
    tmp_path: Path, spec: dict[str, Any]
) -> None:
    async with workers(tmp_path, raw(**spec), 3) as servers:
        pids = [await call_json(server, "pids") for server in servers]
        assert pids[0] == pids[1] == pids[2]
        answers: list[tuple[int, int]] = []

        async def ask(worker: int, number: int) -> None:
            echoed = await call_json(servers[worker], "echo", worker=worker, number=number)
            assert echoed == {"worker": worker, "number": number}
            answers.append((worker, number))

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(ask, number % 3, number)
        assert len(answers) == 30
    assert not alive(pids[0][0])


async def test_progress_reaches_the_caller_who_waits_for_it(tmp_path: Path) -> None:
    async with workers(tmp_path, raw()) as servers:
        peers = [Listener(), Listener()]
        for server, peer in zip(servers, peers, strict=True):
            await call(server, "report", Context(caller=Caller(id="ann"), client=peer))
        assert [peer.reported for peer in peers] == [[1.0, 2.0, 3.0]] * 2


async def test_a_changed_list_reaches_every_worker(tmp_path: Path) -> None:
    async with workers(tmp_path, raw()) as servers:
        await call(servers[0], "grow", name="new")
        for server in servers:
            await until(server, partial(has_tool, server, "new"))
        assert [await call_json(server, "echo", a=1) for server in servers] == [{"a": 1}] * 2


async def test_a_changed_resource_reaches_every_worker_that_watches_it_and_is_subscribed_to_once(
    tmp_path: Path,
) -> None:
    server = raw(capabilities={"resources": {"subscribe": True}})
    async with workers(tmp_path, server) as servers:
        heard: list[list[str]] = [[], []]
        both = anyio.Event()

        def note(place: int, uri: str) -> None:
            heard[place].append(uri)
            if all(heard):
                both.set()

        for place, one in enumerate(servers):
            await one.watch_resource(CTX, "memo://x", partial(note, place))
        notice = {"method": "notifications/resources/updated", "params": {"uri": "memo://x"}}
        await call(servers[0], "tell", notices=[notice])
        await both.wait()
        assert heard == [["memo://x"], ["memo://x"]]
        assert (await call_json(servers[0], "watched")).count("resources/subscribe memo://x") == 1


async def test_a_call_that_is_given_up_is_cancelled_at_the_program(tmp_path: Path) -> None:
    async with workers(tmp_path, raw()) as servers:
        with anyio.move_on_after(0.2):
            await call(servers[0], "hang")
        while not (seen := await call_json(servers[1], "seen")).count("notifications/cancelled"):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        assert seen.count("notifications/cancelled") == 1


async def test_a_question_of_a_program_that_several_workers_use_reaches_none_of_them(tmp_path: Path) -> None:
    async with workers(tmp_path, raw(options={"asks": True, "sessions": "shared"})) as servers:
        question = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": {}}}
        peer = Peer()
        ctx = Context(caller=Caller(id="ann"), client=peer, session="one")
        for server in servers:
            await call(server, "echo", ctx)
        assert await call_json(servers[0], "ask_back", ctx, **question) == {"action": "cancel"}


async def test_a_program_that_ends_fails_its_calls_with_its_last_words_and_is_started_again(tmp_path: Path) -> None:
    async with workers(tmp_path, raw()) as servers:
        before = await call_json(servers[0], "pids")
        ready_since = [server.status.since for server in servers]
        with pytest.raises(ConnectionLost, match="exited with code 3: Fatal error: the disk is on fire"):
            await call(servers[0], "die")
        for server, since in zip(servers, ready_since, strict=True):
            await until(server, partial(is_ready_again, server, since))
        after = await call_json(servers[1], "pids")
        assert after != before
        assert await call_json(servers[0], "pids") == after


async def test_a_program_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    async with workers(tmp_path, ServerOptions(name="lost", command=str(tmp_path / "missing"))) as servers:
        for server in servers:
            assert server.status.state is ServerState.FAILED
            assert "was not found" in server.status.reason


async def test_a_worker_with_another_credential_is_refused(tmp_path: Path) -> None:
    async with workers(tmp_path, raw(), credential="guess") as servers:
        assert [server.status.state for server in servers] == [ServerState.FAILED] * 2


async def test_an_error_of_a_program_keeps_its_code(tmp_path: Path) -> None:
    async with workers(tmp_path, raw()) as servers:
        with pytest.raises(UpstreamError) as raised:
            await call(servers[1], "reject")
        assert raised.value.data["rpc_code"] == -32602


@pytest.mark.parametrize("gives_up", ["by a crash", "by a timeout"])
async def test_a_worker_that_goes_away_during_the_start_of_a_program_does_not_keep_others_from_using_it(
    tmp_path: Path, gives_up: str
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    hello = {"credential": "secret", "program": write_spec(raw(gate=str(gate)))}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "w", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params}
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}

    async def join(stream: anyio.abc.SocketStream, *messages: dict[str, Any]) -> None:
        await stream.send(json.dumps(hello).encode() + b"\n")
        assert b"running" in await stream.receive()
        for message in messages:
            await stream.send(json.dumps(message).encode() + b"\n")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            host = ProgramHost("secret")
            await group.start(host.serve, tmp_path / "host")
            first = await anyio.connect_unix(tmp_path / "host")
            await join(first, initialize, *([cancelled] if gives_up == "by a timeout" else []))
            await anyio.wait_all_tasks_blocked()
            async with await anyio.connect_unix(tmp_path / "host") as second:
                await join(second, initialize)
                await anyio.wait_all_tasks_blocked()
                await first.aclose()
                await anyio.wait_all_tasks_blocked()
                await anyio.to_thread.run_sync(gate.write_text, "")
                answer = json.loads(await second.receive())
                assert answer["id"] == 7
                assert answer["result"]["serverInfo"]["name"] == "raw"
                group.cancel_scope.cancel()
