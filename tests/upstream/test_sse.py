"""Servers over the older HTTP+SSE transport."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.servers.web import OldWeb
from tests.upstream.support import FAST, READY, call, call_each, call_json, free_port, server_of, serving, until

from toolcrib.errors import CallTimeout, ConnectionLost, UpstreamError
from toolcrib.types import ServerState
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import RemoteServer

SLOW_RETRY = replace(FAST, backoff_first_s=100, backoff_max_s=200)


def sse(url: str, /, **options: Any) -> ServerOptions:
    """A server at this address."""
    return ServerOptions(name="old", transport="sse", url=url, **options)


@asynccontextmanager
async def old_of(web: OldWeb, options: FleetOptions = FAST, /, **given: Any) -> AsyncIterator[RemoteServer]:
    """The hand-written server, and ours in front of it."""
    async with serving(web.app) as origin, server_of(sse(f"{origin}/sse", **given), options) as server:
        yield server


async def test_tools_are_listed_and_called() -> None:
    web = OldWeb()
    async with old_of(web) as server:
        assert (server.status.state, server.status.transport, server.status.protocol) == (READY, "sse", "2025-06-18")
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert list(web.methods) == [
            "server/discover",
            "initialize",
            "notifications/initialized",
            "tools/list",
            "tools/call",
        ]


async def test_secrets_go_with_the_stream_and_with_each_message() -> None:
    web = OldWeb()
    async with serving(web.app) as origin:
        async with server_of(sse(f"{origin}/sse?key=tiger", headers={"X-Key": "bear"})) as server:
            await call(server, "echo")
    assert [headers["x-key"] for _, _, headers in web.requests] == ["bear"] * len(web.requests)
    assert web.requests[0][1] == f"{origin}/sse?key=tiger"
    assert {url for method, url, _ in web.requests if method == "POST"} == {f"{origin}/messages?session=1"}


async def test_an_event_over_one_megabyte_arrives_whole() -> None:
    async with old_of(OldWeb()) as server:
        assert len((await call(server, "huge", size=3_000_000)).content[0]["text"]) == 3_000_000


async def test_many_calls_at_once_share_the_stream() -> None:
    web = OldWeb()
    async with old_of(web) as server:
        await call_each(server, range(64))
        assert (web.methods["tools/call"], web.methods["initialize"]) == (64, 1)


async def test_a_rejected_message_fails_its_own_call_at_once() -> None:
    web = OldWeb()
    async with old_of(web) as server:
        web.post_status = 429
        with pytest.raises(UpstreamError, match=r'HTTP 429 Too Many Requests \(its message: "too much"\)'):
            await call(server, "echo")
        web.post_status = 202
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert web.methods["initialize"] == 1


async def test_a_stream_that_ends_fails_pending_calls_and_is_reopened() -> None:
    web = OldWeb()
    async with old_of(web) as server:
        with pytest.raises(ConnectionLost, match="it closed its event stream"):
            await call(server, "cut")
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert web.methods["initialize"] == 2


async def test_a_call_that_hangs_times_out_and_is_cancelled_on_the_server() -> None:
    web = OldWeb()
    async with old_of(web, call_timeout_s=0.2) as server:
        with pytest.raises(CallTimeout):
            await call(server, "hang")
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert web.methods["notifications/cancelled"] == 1


@pytest.mark.parametrize("endpoint", ["http://elsewhere.example/messages", "//elsewhere.example/messages"])
async def test_credentials_are_never_sent_to_another_origin(endpoint: str) -> None:
    async with old_of(OldWeb(endpoint), SLOW_RETRY) as server:
        assert server.status.state is ServerState.FAILED
        assert server.status.reason == ("its event stream cannot be used: its message endpoint is on another origin")


NO_STREAM = 'there is no event stream of an older server at this path; check the url, or set type "http"'


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "HTTP 401 Unauthorized: its credentials are missing or were rejected; check the headers"),
        (404, f"HTTP 404 Not Found: {NO_STREAM}"),
        (405, f"HTTP 405 Method Not Allowed: {NO_STREAM}"),
        (500, "HTTP 500 Internal Server Error"),
    ],
)
async def test_each_refusal_of_the_stream_has_its_own_reason(status: int, reason: str) -> None:
    web = OldWeb()
    web.stream_status = status
    async with old_of(web, SLOW_RETRY) as server:
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, reason)


async def test_a_server_that_is_not_there_yet_is_connected_when_it_comes() -> None:
    port = free_port()
    async with server_of(sse(f"http://127.0.0.1:{port}/sse")) as server:
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, "connection refused")
        async with serving(OldWeb().app, port):
            await until(server, lambda: server.status.state is READY)
            assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_stream_that_never_names_its_endpoint_fails_in_time() -> None:
    web = OldWeb("")
    web.silent = True
    async with old_of(web, SLOW_RETRY, start_timeout_s=0.3) as server:
        assert (server.status.state, server.status.reason) == (
            ServerState.FAILED,
            "no answer to the handshake within 0.3 s",
        )
