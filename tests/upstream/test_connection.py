"""Version negotiation with every kind of server met in the wild."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.upstream.support import FAST, READY, call_json, raw, sdk, server_of, until

from toolcrib.types import ServerState
from toolcrib.upstream.options import ServerOptions

NEVER_AGAIN = replace(FAST, backoff_first_s=1000, backoff_max_s=2000)


@pytest.mark.parametrize("discover", ["refuse", "invalid", "ignore"])
async def test_a_server_that_does_not_know_discover_gets_the_handshake(discover: str) -> None:
    async with server_of(raw(discover=discover), limit_s=5) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2025-06-18")
        assert await call_json(server, "seen") == [
            "server/discover",
            "initialize",
            "notifications/initialized",
            "tools/list",
            "tools/call",
        ]


async def test_a_server_that_serves_discover_gets_no_handshake() -> None:
    async with server_of(raw(discover="serve")) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2026-07-28")
        assert await call_json(server, "seen") == ["server/discover", "tools/list", "tools/call"]


@pytest.mark.parametrize("supports", [["2025-06-18"], [], "2026-07-28", [7]])
async def test_a_discovery_without_a_version_that_needs_no_handshake_leads_to_one(supports: object) -> None:
    async with server_of(raw(discover="serve", supports=supports)) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2025-06-18")


async def test_a_server_that_rejects_both_ways_fails_with_its_own_message() -> None:
    async with server_of(raw(version="refuse"), replace(FAST, backoff_first_s=100, backoff_max_s=200)) as server:
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, "no handshake today")


async def test_a_server_that_exits_on_the_probe_gets_the_handshake_after_a_restart() -> None:
    async with server_of(raw(discover="exit", options={"retries": 0}), NEVER_AGAIN) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2025-06-18")
        assert await call_json(server, "seen") == [
            "initialize",
            "notifications/initialized",
            "tools/list",
            "tools/call",
        ]


async def test_a_server_that_exits_by_itself_is_started_only_once_more(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    program = f"import pathlib; pathlib.Path({str(lives)!r}).open('a').write('x')"
    given = ServerOptions(name="short", command=sys.executable, args=("-c", program), retries=2)
    async with server_of(given) as server:
        await until(server, lambda: "given up after 3 attempts" in server.status.reason)
    assert lives.read_text() == "xxxx"


async def test_a_probe_that_was_answered_too_late_is_repeated() -> None:
    async with server_of(raw(discover="late"), replace(FAST, probe_timeout_s=0.01)) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2026-07-28")
        seen = ["server/discover", "initialize", "server/discover", "tools/list", "tools/call"]
        assert await call_json(server, "seen") == seen


@pytest.mark.parametrize("version", ["echo", "2026-07-28", "2099-01-01", "nonsense", 7, None])
async def test_a_handshake_always_means_an_older_version(version: object) -> None:
    async with server_of(raw(version=version)) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2025-11-25")
        assert "_meta" not in await call_json(server, "params")


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_each_older_version_is_accepted(version: str) -> None:
    async with server_of(raw(version=version)) as server:
        assert (server.status.state, server.status.protocol) == (READY, version)


async def test_the_official_sdk_negotiates_the_newest_version() -> None:
    async with server_of(sdk()) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2026-07-28")
        assert (server.status.info.name, server.status.info.version) == ("sdk", "1.0")


async def test_the_status_has_what_the_server_says_about_itself() -> None:
    async with server_of(raw()) as server:
        info = server.status.info
        assert (info.name, info.version, info.instructions) == ("raw", "1", "Be careful.")
