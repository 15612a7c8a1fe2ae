"""The fleet: what `apply` starts, stops and leaves alone."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.upstream.support import CTX, FAST, READY, alive, call_json, fleet_of, names, raw, sdk, until

from toolcrib.errors import AlreadyStarted, BackendNotFound, NameCollision, NotStarted
from toolcrib.providers.base import Provider, ProviderFeature, ProviderSource
from toolcrib.types import ServerState
from toolcrib.upstream import supervisor
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.transport_choice import open_transport
from toolcrib.upstream.transports.base import Transport


def running(fleet: Fleet) -> list[str]:
    """Names of the members."""
    return [server.name for server in fleet.providers()]


async def test_a_fleet_and_its_servers_are_what_the_gateway_takes() -> None:
    async with fleet_of(raw()) as fleet:
        source: ProviderSource = fleet
        (server,) = source.providers()
        assert isinstance(server, Provider)
        assert server.features == ProviderFeature.CHANGES | ProviderFeature.STATUS | ProviderFeature.DOCUMENTS
        assert list(fleet.statuses()) == list(server.statuses())
        assert (await server.list_tools(CTX))[0].id == "raw:echo"


async def test_apply_does_not_wait_for_connections() -> None:
    with anyio.fail_after(20):
        async with Fleet(FAST) as fleet:
            await fleet.apply([raw("b"), raw("a")])
            assert [status.state for status in fleet.statuses()] == [ServerState.CONFIGURED] * 2
            assert running(fleet) == ["a", "b"]
            await fleet.settled()
            assert [status.state for status in fleet.statuses()] == [READY] * 2


async def test_apply_starts_stops_and_restarts_only_what_changed() -> None:
    async with fleet_of(raw("same"), raw("gone"), raw("changed")) as fleet:
        same, changed = fleet.server("same"), fleet.server("changed")
        pids = {server.name: (await call_json(server, "pids"))[0] for server in fleet.providers()}
        await fleet.apply([raw("new"), raw("changed", version="2024-11-05"), raw("same")])
        assert running(fleet) == ["changed", "new", "same"]
        assert fleet.server("same") is same
        assert fleet.server("changed") is not changed
        await fleet.settled()
        assert (await call_json(same, "pids"))[0] == pids["same"]
        assert fleet.server("changed").status.protocol == "2024-11-05"
        assert not alive(pids["changed"])
        while alive(pids["gone"]):  # noqa: ASYNC110 - no event for a removed server
            await anyio.sleep(0.01)
        with pytest.raises(BackendNotFound, match='no server "gone"'):
            fleet.server("gone")


async def test_a_changed_server_starts_only_when_its_old_self_is_gone() -> None:
    async with fleet_of(raw("s", stubborn=True)) as fleet:
        (old,) = await call_json(fleet.server("s"), "pids")
        await fleet.apply([raw("s", version="2024-11-05")])
        await anyio.lowlevel.checkpoint()
        await fleet.apply([raw("s")])
        await until(fleet, lambda: fleet.server("s").status.state is ServerState.CONNECTING)
        assert not alive(old)


async def test_applying_the_same_options_again_changes_and_notifies_nothing() -> None:
    async with fleet_of(raw("a"), raw("b")) as fleet:
        notified: list[int] = []
        fleet.subscribe(lambda: notified.append(1))
        before = fleet.providers()
        await fleet.apply([raw("b"), raw("a")])
        assert fleet.providers() == before
        assert notified == []


async def test_two_servers_of_one_name_are_refused_and_nothing_changes() -> None:
    async with fleet_of(raw("a")) as fleet:
        with pytest.raises(NameCollision, match='Two servers are called "b"'):
            await fleet.apply([raw("b"), raw("b")])
        assert running(fleet) == ["a"]


async def test_changes_of_members_tools_and_statuses_notify_until_unsubscribed() -> None:
    async with fleet_of(raw("a")) as fleet:
        notified: list[list[str]] = []
        unsubscribe = fleet.subscribe(lambda: notified.append(running(fleet)))
        await fleet.apply([raw("a"), raw("b")])
        assert notified == [["a", "b"]]
        await fleet.settled()
        count = len(notified)
        assert count > 1
        await fleet.server("a").call_tool(CTX, "grow", {"name": "new"})
        await until(fleet, lambda: "new" in names(fleet.server("a")))
        assert len(notified) > count
        unsubscribe()
        unsubscribe()
        count = len(notified)
        await fleet.apply([])
        assert len(notified) == count


async def test_a_listener_that_raises_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    def raising() -> None:
        raise RuntimeError("not my day")

    with anyio.fail_after(20):
        async with Fleet(FAST) as fleet:
            fleet.subscribe(raising)
            await fleet.apply([raw("a")])
            await fleet.settled()
            assert fleet.server("a").status.state is READY
    assert "a listener of a server raised" in caplog.text


async def test_a_bad_server_delays_neither_start_nor_others() -> None:
    bad = [
        ServerOptions(name="missing", command="no-such-command-here"),
        ServerOptions(name="closed", transport="http", url="http://127.0.0.1:9/mcp"),
        ServerOptions(name="broken", transport="http", url="no url at all"),
        raw("exits", exit=1),
        raw("mute", discover="ignore"),
    ]
    async with fleet_of(*bad, raw("good"), sdk()) as fleet:
        states = {status.name: status.state for status in fleet.statuses()}
        assert states == {
            "broken": ServerState.FAILED,
            "closed": ServerState.FAILED,
            "exits": ServerState.FAILED,
            "good": READY,
            "missing": ServerState.FAILED,
            "mute": READY,
            "sdk": READY,
        }
        assert all(status.reason for status in fleet.statuses() if status.state is ServerState.FAILED)


async def test_a_bug_of_ours_ends_one_servers_task_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_for_bad(options: ServerOptions, *rest: Any, is_shared: bool) -> Transport:
        if options.name == "bad":
            raise ZeroDivisionError
        return open_transport(options, *rest, is_shared=is_shared)

    monkeypatch.setattr(supervisor, "open_transport", fail_for_bad)
    async with fleet_of(raw("bad"), raw("good")) as fleet:
        assert fleet.server("good").status.state is READY
        assert fleet.server("bad").status.state is ServerState.FAILED
    assert "the task of the server bad failed" in caplog.text


async def test_apply_may_be_called_from_many_tasks_at_once() -> None:
    sets: Sequence[Sequence[ServerOptions]] = [
        [raw("a")],
        [raw("a"), raw("b")],
        [raw("b"), raw("c")],
        [],
        [raw("a", version="2024-11-05"), raw("c")],
    ]
    with anyio.fail_after(20):
        async with Fleet(FAST) as fleet:
            async with anyio.create_task_group() as group:
                for servers in (*sets, *sets):
                    group.start_soon(fleet.apply, servers)
            assert running(fleet) == ["a", "c"]
            await fleet.settled()
            assert [status.state for status in fleet.statuses()] == [READY, READY]


async def test_a_fleet_that_is_not_running_accepts_no_servers() -> None:
    fleet = Fleet(FAST)
    with pytest.raises(NotStarted):
        await fleet.apply([raw()])
    with anyio.fail_after(20):
        async with fleet:
            await fleet.apply([raw()])
    with pytest.raises(NotStarted):
        await fleet.apply([raw("other")])
    assert running(fleet) == ["raw"]
    with pytest.raises(AlreadyStarted):
        await fleet.__aenter__()


async def test_apply_during_the_stop_is_refused_and_starts_nothing() -> None:
    refused: list[NotStarted] = []

    async def meddle(fleet: Fleet) -> None:
        await until(fleet, lambda: fleet.server("s").status.reason == "stopped")
        try:
            await fleet.apply([raw("late")])
        except NotStarted as error:
            refused.append(error)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            async with Fleet(FAST) as fleet:
                await fleet.apply([raw("s", stubborn=True)])
                await fleet.settled()
                group.start_soon(meddle, fleet)
                await anyio.lowlevel.checkpoint()
    assert len(refused) == 1


async def test_an_error_inside_a_fleet_is_raised_unchanged() -> None:
    async def use_one_badly() -> None:
        async with Fleet(FAST) as fleet:
            await fleet.apply([raw()])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use_one_badly()


def test_options_show_no_secrets() -> None:
    options = ServerOptions(
        name="s",
        url="https://h/mcp?key=tiger",
        env={"K": "tiger"},
        headers={"Authorization": "Bearer tiger"},
        args=("--token", "tiger"),
    )
    assert "tiger" not in repr(options)
    assert options == replace(options)


def test_the_mcp_client_and_http_are_imported_only_for_servers_that_need_them() -> None:
    program = (
        "import sys, toolcrib.upstream.fleet\n"
        "print([name for name in ('mcp', 'httpx2', 'mcp_types') if name in sys.modules])\n"
        "import toolcrib.upstream.server\n"
        "print([name for name in ('httpx2', 'toolcrib.upstream.transports.http') if name in sys.modules])\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["[]", "[]"]
