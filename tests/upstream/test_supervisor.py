"""States, back-off and recovery."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.upstream.support import CTX, FAST, READY, call, call_json, names, raw, server_of, until

from toolcrib.errors import ConnectionLost, ServerUnavailable
from toolcrib.types import ServerState
from toolcrib.upstream import supervisor
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.remote_server import RemoteServer

NEVER_AGAIN = replace(FAST, backoff_first_s=1000, backoff_max_s=2000)


def record(server: RemoteServer) -> list[tuple[str, bool]]:
    """Collects each new state, and whether the tools are stale."""
    seen: list[tuple[str, bool]] = []

    def note() -> None:
        entry = (server.status.state.value, server.status.stale)
        if not seen or seen[-1] != entry:
            seen.append(entry)

    server.subscribe(note)
    return seen


async def test_the_states_of_a_first_connection() -> None:
    with anyio.fail_after(20):
        async with Fleet(FAST) as fleet:
            await fleet.apply([raw()])
            server = fleet.server("raw")
            assert server.status.state is ServerState.CONFIGURED
            seen = record(server)
            await fleet.settled()
            assert seen == [("connecting", False), ("ready", False)]


async def test_a_lost_server_is_degraded_with_stale_tools_and_comes_back_by_itself() -> None:
    async with server_of(raw()) as server:
        seen = record(server)
        (pid,) = await call_json(server, "pids")
        os.kill(pid, signal.SIGKILL)
        await until(server, lambda: len(seen) == 2)
        assert seen == [("degraded", True), ("ready", False)]
        assert await call_json(server, "pids") != [pid]


async def test_a_lost_server_keeps_its_tools_while_it_is_away() -> None:
    async with server_of(raw(), NEVER_AGAIN) as server:
        before = server.tools
        with pytest.raises(ConnectionLost):
            await call(server, "die")
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        status = server.status
        assert (status.stale, status.tools, status.reason) == (
            True,
            len(before),
            "exited with code 3: Fatal error: the disk is on fire",
        )
        assert status.retry_at is not None
        assert await server.list_tools(CTX) is before


async def test_a_server_that_failed_is_tried_again_until_it_is_there(tmp_path: Path) -> None:
    async with server_of(raw(twice=str(tmp_path / "tried"))) as server:
        await until(server, lambda: server.status.state is READY)
        assert (server.status.reason, server.status.retry_at, server.status.stale) == ("", None, False)


async def test_a_server_that_cannot_be_started_at_all_is_not_tried() -> None:
    problem = "env.TOKEN: the variable GITHUB_TOKEN is not set"
    async with server_of(ServerOptions(name="s", command="true", problem=problem)) as server:
        status = server.status
        assert (status.state, status.reason, status.retry_at) == (ServerState.FAILED, problem, None)
        with pytest.raises(ServerUnavailable, match="GITHUB_TOKEN is not set") as caught:
            await call(server, "echo")
        assert caught.value.hint == "Nothing was run. Fix its configuration to have it tried again."


async def test_a_call_brings_a_lost_server_back_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longest:
        def uniform(self, least: float, most: float) -> float:
            return most

    monkeypatch.setattr(supervisor, "_RANDOM", Longest())
    # The pauses add up to 12.75 s; calls cut each down to the first step.
    options = replace(FAST, backoff_first_s=0.05, backoff_max_s=1000, stable_s=1000)
    async with server_of(raw(), options, limit_s=10) as server:
        for _ in range(8):
            with pytest.raises(ConnectionLost):
                await call(server, "die")
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_call_to_a_failed_server_does_not_wait_but_has_it_tried_soon(tmp_path: Path) -> None:
    options = replace(FAST, backoff_first_s=0.05, backoff_max_s=0.05)
    async with server_of(raw(twice=str(tmp_path / "tried")), options) as server:
        with pytest.raises(ServerUnavailable, match="exited with code 1"):
            await call(server, "echo")
        await until(server, lambda: server.status.state is READY)


async def test_pauses_grow_to_their_limit_and_are_at_least_half_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []
    enough = anyio.Event()

    class Noting:
        def uniform(self, least: float, most: float) -> float:
            asked.append((least, most))
            if len(asked) >= 4:
                enough.set()
            return 0.001

    monkeypatch.setattr(supervisor, "_RANDOM", Noting())
    options = replace(FAST, backoff_first_s=0.01, backoff_max_s=0.03)
    async with server_of(raw(exit=1, say="no"), options):
        await enough.wait()

    assert asked[:4] == [(0.005, 0.01), (0.01, 0.02), (0.015, 0.03), (0.015, 0.03)]


async def test_calls_under_way_when_the_fleet_stops_end_with_a_clear_error() -> None:
    caught: list[ConnectionLost] = []

    async def ask(server: RemoteServer) -> None:
        try:
            await call(server, "hang")
        except ConnectionLost as error:
            caught.append(error)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            async with Fleet(FAST) as fleet:
                await fleet.apply([raw()])
                await fleet.settled()
                server = fleet.server("raw")
                group.start_soon(ask, server)
                while "tools/call" not in (await call_json(server, "seen"))[:-1]:
                    await anyio.lowlevel.checkpoint()
    assert [type(error) for error in caught] == [ConnectionLost]
    assert names(server)[:1] == ["echo"]
    with pytest.raises(ServerUnavailable, match="stopped"):
        await call(server, "echo")


async def test_a_server_is_given_up_after_as_many_retries_as_its_options_say() -> None:
    given = replace(raw(exit=1), retries=2, retry_interval_s=0.01)
    async with server_of(given) as server:
        await until(server, lambda: "given up" in server.status.reason)
        status = server.status
        assert (status.state, status.retry_at) == (ServerState.FAILED, None)
        assert status.reason == "exited with code 1; given up after 3 attempts"
        with pytest.raises(ServerUnavailable) as caught:
            await call(server, "echo")
        assert caught.value.hint == (
            "Nothing was run. It is not tried again until the settings are reloaded or the gateway is restarted."
        )
        assert server.status is status


async def test_a_server_without_retries_is_given_up_when_it_is_lost() -> None:
    async with server_of(replace(raw(), retries=0)) as server:
        before = server.tools
        with pytest.raises(ConnectionLost):
            await call(server, "die")
        await until(server, lambda: server.status.state is ServerState.FAILED)
        assert server.status.reason.endswith("the disk is on fire; not tried again")
        assert (server.status.stale, server.tools) == (True, before)


async def test_a_server_that_comes_back_in_time_has_all_its_retries_again() -> None:
    async with server_of(replace(raw(), retries=1)) as server:
        seen = set()
        for _ in range(3):
            (pid,) = await call_json(server, "pids")
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
            await until(server, lambda: server.status.stale)
            await until(server, lambda: server.status.state is READY)
        assert len(seen) == 3


async def test_a_server_may_set_its_own_first_pause(tmp_path: Path) -> None:
    given = replace(raw(twice=str(tmp_path / "tried")), retry_interval_s=0.01)
    async with server_of(given, replace(NEVER_AGAIN, backoff_max_s=5000)) as server:
        await until(server, lambda: server.status.state is READY)
        assert (tmp_path / "tried").exists()


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        ({"pages": [{"tools": []}]}, {}, "connected, but it offers no tools"),
        (
            {"pages": [{"tools": [{"name": "bad", "inputSchema": "none"}]}]},
            {},
            "connected, but all of its tools were set aside",
        ),
        ({}, {"allowed_tools": ()}, "connected, but none of its tools is allowed by its settings"),
        ({"pages": [{"tools": []}], "capabilities": {"prompts": {}}}, {}, ""),
    ],
)
async def test_a_connected_server_that_offers_nothing_says_why(
    spec: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    async with server_of(raw(options=options, **spec)) as server:
        assert (server.status.state, server.status.reason) == (READY, reason)
