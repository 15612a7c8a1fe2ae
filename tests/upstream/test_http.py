"""Servers over streamable HTTP."""

import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio.abc import TaskStatus
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse, RedirectResponse, Response
from tests.fixtures.servers.web import Web
from tests.upstream.support import (
    CTX,
    FAST,
    READY,
    call,
    call_each,
    call_json,
    fleet_of,
    free_port,
    names,
    server_of,
    serving,
    until,
)
from tests.upstream.test_server import Watcher

from toolcrib.errors import CallTimeout, ConnectionLost, ServerUnavailable, UpstreamError
from toolcrib.types import ServerState, ToolResult
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.transports.base import NO_MESSAGE

SLOW_RETRY = replace(FAST, backoff_first_s=100, backoff_max_s=200)


def http(url: str, /, **options: Any) -> ServerOptions:
    """A server at this address."""
    return ServerOptions(name="web", transport="http", url=url, **options)


@asynccontextmanager
async def web_of(web: Web, options: FleetOptions = FAST, /, **given: Any) -> AsyncIterator[RemoteServer]:
    """The hand-written server, and ours in front of it."""
    async with serving(web.app) as origin, server_of(http(f"{origin}/mcp", **given), options) as server:
        yield server


class Sdk:
    """A server on the official SDK."""

    def __init__(self) -> None:
        self.tools = ["echo", "routed", "hang"]
        self.hanging, self.cancelled = anyio.Event(), anyio.Event()
        self.headers: list[dict[str, str]] = []
        self.bus = InMemorySubscriptionBus()
        self.server: SdkServer[Any] = SdkServer(
            "sdk",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_subscriptions_listen=ListenHandler(self.bus),
        )

    async def list_tools(self, ctx: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        routed = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
        schema = {"type": "object"}
        return ListToolsResult(
            tools=[Tool(name=name, input_schema=routed if name == "routed" else schema) for name in self.tools]
        )

    async def call_tool(self, ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        self.headers.append(dict(ctx.request.headers))
        if params.name == "hang":
            await self._hang()
        return CallToolResult(content=[TextContent(type="text", text='{"ok": true}')], structured_content={"ok": True})

    async def _hang(self) -> None:
        self.hanging.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()


@pytest.mark.parametrize("json_response", [True, False])
async def test_the_official_sdk_negotiates_the_newest_version(*, json_response: bool) -> None:
    sdk = Sdk()
    app = sdk.server.streamable_http_app(json_response=json_response)
    async with serving(app) as origin, server_of(http(f"{origin}/mcp")) as server:
        assert (server.status.state, server.status.protocol, names(server)) == (READY, "2026-07-28", sdk.tools)
        assert (await call(server, "routed", region="north", other=1)).structured == {"ok": True}
        sent = sdk.headers[-1]
        assert (sent["mcp-method"], sent["mcp-name"], sent["mcp-param-region"]) == ("tools/call", "routed", "north")


async def test_a_newer_server_reports_changed_tools_by_subscription() -> None:
    sdk = Sdk()
    async with serving(sdk.server.streamable_http_app()) as origin, server_of(http(f"{origin}/mcp")) as server:
        sdk.tools.append("new")
        while "new" not in names(server):
            await sdk.bus.publish(ToolsListChanged())
            await anyio.sleep(0.02)
        assert server.status.state is READY


async def test_a_newer_server_that_restarts_is_subscribed_to_again() -> None:
    port = free_port()
    leave, left = anyio.Event(), anyio.Event()

    async def first_life(*, task_status: TaskStatus[None]) -> None:
        async with serving(Sdk().server.streamable_http_app(), port):
            task_status.started()
            await leave.wait()
        left.set()

    async with anyio.create_task_group() as group:
        await group.start(first_life)
        async with server_of(http(f"http://127.0.0.1:{port}/mcp")) as server:
            leave.set()
            await left.wait()
            sdk = Sdk()
            async with serving(sdk.server.streamable_http_app(), port):
                sdk.tools.append("new")
                await until(server, lambda: "new" in names(server))
                sdk.tools.append("newer")
                while "newer" not in names(server):
                    await sdk.bus.publish(ToolsListChanged())
                    await anyio.sleep(0.02)
                assert server.status.state is READY


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_older_server_gets_the_handshake_and_a_session(*, streaming: bool) -> None:
    web = Web(streaming=streaming)
    async with web_of(web) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2025-06-18")
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert (web.methods["initialize"], web.methods["tools/list"]) == (1, 1)
        if not streaming:
            assert web.requests[-1][2]["mcp-session-id"] == "s1"
            assert web.requests[-1][2]["mcp-protocol-version"] == "2025-06-18"


@pytest.mark.parametrize("status", [400, 401, 404, 405, 500])
async def test_an_error_status_to_the_probe_only_means_an_older_server(status: int) -> None:
    web = Web()
    web.undiscovered = Response("", status)
    async with web_of(web) as server:
        assert (server.status.state, server.status.protocol) == (READY, "2025-06-18")
        for _ in range(20):
            await call(server, "echo")
        assert web.methods["tools/list"] == 1


async def test_secrets_stay_at_their_origin() -> None:
    web, other = Web(), Web()
    async with serving(web.app) as origin, serving(other.app) as elsewhere:
        web.farewell = RedirectResponse(f"{elsewhere}/mcp", 307)
        async with server_of(http(f"{origin}/mcp?key=tiger", headers={"X-Key": "bear"})):
            pass
    assert web.sessions == set()
    assert other.requests == []


async def test_a_session_is_deleted_at_the_end() -> None:
    web = Web()
    async with serving(web.app) as origin:
        async with server_of(http(f"{origin}/mcp", headers={"X-Key": "k"})):
            assert web.sessions == {"s1"}
        assert web.sessions == set()
        method, _, headers = web.requests[-1]
        assert (method, headers["x-key"], headers["mcp-protocol-version"]) == ("DELETE", "k", "2025-06-18")


async def test_a_notification_on_the_servers_own_stream_triggers_a_refresh() -> None:
    web = Web()
    web.notices.append({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    async with web_of(web):
        while web.methods["tools/list"] < 2:  # noqa: ASYNC110 - no event for this
            await anyio.sleep(0.01)
    assert web.methods["tools/list"] >= 2


UNKNOWN_SESSION = {"code": -32000, "message": "Bad Request: No valid session ID provided"}


@pytest.mark.parametrize(
    "lost",
    [
        {"code": -32001, "message": "Session not found"},
        Response("Not Found", status_code=404),
        JSONResponse({"jsonrpc": "2.0", "id": None, "error": UNKNOWN_SESSION}, status_code=400),
    ],
)
async def test_a_lost_session_is_opened_again_at_once_and_the_call_runs_once(lost: Any) -> None:
    web = Web()
    web.lost = lost
    async with web_of(web, replace(SLOW_RETRY, backoff_first_s=0.0)) as server:
        web.sessions.clear()
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert web.ran == [{"a": 1}]
        assert (web.methods["initialize"], web.sessions) == (2, {"s2"})
        await until(server, lambda: server.status.state is READY)


async def test_a_session_that_is_lost_between_calls_is_noticed_by_its_stream() -> None:
    web = Web()
    async with web_of(web, replace(SLOW_RETRY, backoff_first_s=0.0)) as server:
        await web.listening.wait()
        web.sessions.clear()
        web.closing.set()
        await until(server, lambda: web.methods["initialize"] == 2 and server.status.state is READY)
        assert web.ran == []


async def test_a_forgotten_session_does_not_count_as_a_failed_attempt() -> None:
    web = Web()
    async with web_of(web, replace(SLOW_RETRY, backoff_first_s=0.0), retries=0) as server:
        web.sessions.clear()
        assert await call_json(server, "echo", a=1) == {"a": 1}
        assert web.methods["initialize"] == 2


async def test_calls_that_lose_a_session_together_open_one_new_one() -> None:
    web = Web()
    async with web_of(web, replace(SLOW_RETRY, backoff_first_s=0.0)) as server:
        web.sessions.clear()
        await call_each(server, range(16))
        assert sorted(arguments["n"] for arguments in web.ran) == list(range(16))
        assert web.methods["initialize"] == 2


@asynccontextmanager
async def gone(port: int, app: Starlette, options: FleetOptions) -> AsyncIterator[RemoteServer]:
    """Ours, which was ready, in front of a server that has just left its port."""
    leave, left = anyio.Event(), anyio.Event()

    async def live(*, task_status: TaskStatus[None]) -> None:
        async with serving(app, port):
            task_status.started()
            await leave.wait()
        left.set()

    async with anyio.create_task_group() as group:
        await group.start(live)
        async with server_of(http(f"http://127.0.0.1:{port}/mcp"), options) as server:
            assert server.status.state is READY
            leave.set()
            await left.wait()
            yield server


def older() -> Starlette:
    return Web().app


def newer() -> Starlette:
    return Sdk().server.streamable_http_app()


@pytest.mark.parametrize("make", [older, newer])
async def test_a_call_outlives_a_restart_of_its_server(make: Callable[[], Starlette]) -> None:
    port, results, answered = free_port(), list[ToolResult](), anyio.Event()

    async with gone(port, make(), replace(FAST, resend_s=5)) as server, anyio.create_task_group() as group:

        async def call_meanwhile() -> None:
            results.append(await call(server, "echo"))
            answered.set()

        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        group.start_soon(call_meanwhile)
        await anyio.wait_all_tasks_blocked()
        assert results == []
        async with serving(make(), port):
            await answered.wait()
    assert not results[0].is_error


async def test_a_call_that_could_not_be_sent_updates_the_status_at_once() -> None:
    lazy = replace(FAST, debounce_s=1000, listen_retry_s=1000)
    async with gone(free_port(), newer(), lazy) as server:
        assert server.status.state is READY
        with pytest.raises(
            ServerUnavailable,
            match=r'^The server "web" is not available: connection refused \(degraded for 0 s\)\. Nothing',
        ):
            await call(server, "echo")
        status = server.status
        assert (status.state, status.reason, status.stale) == (ServerState.DEGRADED, "connection refused", True)


async def test_a_session_that_is_lost_again_and_again_fails_the_call_and_ends_there() -> None:
    web = Web()
    async with web_of(web, replace(SLOW_RETRY, backoff_first_s=0.0, connect_wait_s=0.5)) as server:
        web.forgetful = True
        web.sessions.clear()
        with pytest.raises(ServerUnavailable, match=r"not available: it(s session has ended| does not know)"):
            await call(server, "echo", a=1)
        assert web.ran == []
        assert web.methods["initialize"] <= 3


async def test_a_server_that_is_not_there_yet_is_connected_when_it_comes() -> None:
    port = free_port()
    web = Web()
    async with server_of(http(f"http://127.0.0.1:{port}/mcp")) as server:
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, "connection refused")
        async with serving(web.app, port):
            await until(server, lambda: server.status.state is READY)
            assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_server_that_goes_away_and_comes_back_is_noticed_both_times() -> None:
    port = free_port()
    leave = anyio.Event()

    async def first_life(*, task_status: TaskStatus[None]) -> None:
        async with serving(Web().app, port):
            task_status.started()
            await leave.wait()

    async with anyio.create_task_group() as group:
        await group.start(first_life)
        async with server_of(http(f"http://127.0.0.1:{port}/mcp")) as server:
            before = server.tools
            leave.set()
            await until(server, lambda: server.status.state is ServerState.DEGRADED)
            assert (server.status.stale, server.status.reason) == (True, "connection refused")
            with pytest.raises(ServerUnavailable, match="connection refused"):
                await call(server, "echo")
            async with serving(Web().app, port):
                await until(server, lambda: server.status.state is READY)
                assert await call_json(server, "echo", a=1) == {"a": 1}
                assert all(old is new for old, new in zip(before, server.tools, strict=True))


NO_ENDPOINT = 'there is no MCP endpoint at this path; check the url, or set type "sse" for an older server'
NOT_TAKEN = 'this path does not accept MCP requests; check the url, or set type "sse" for an older server'
ELSEWHERE = "http://elsewhere.example/mcp"
NOT_FOLLOWED = f"Redirect to {ELSEWHERE} not followed; use that URL as the endpoint if it is the intended server"
EXPIRED = {"error": "invalid_token", "error_description": "The token expired"}
REFUSED = "its credentials are missing or were rejected; check the headers"
NO_TOKEN = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "No bearer token."}}
NOT_TODAY = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "not today"}}


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (JSONResponse(EXPIRED, 401), f'HTTP 401 Unauthorized: {REFUSED} (its message: "The token expired")'),
        (JSONResponse(NO_TOKEN, 401), f'HTTP 401 Unauthorized: {REFUSED} (its message: "No bearer token.")'),
        (Response("", 403), "HTTP 403 Forbidden: these credentials do not give access to it; check the headers"),
        (Response("<html>", 404, media_type="text/html"), f"HTTP 404 Not Found: {NO_ENDPOINT}"),
        (Response("", 405), f"HTTP 405 Method Not Allowed: {NOT_TAKEN}"),
        (Response("", 503, {"retry-after": "9"}), "HTTP 503 Service Unavailable, retry after 9"),
        *(
            (Response("", 503, {"retry-after": after}), f"HTTP 503 Service Unavailable, retry after {after}")
            for after in (f"1 Jan 1{'0' * 20} 00:00:00 GMT", f"1 Jan 2026 00:00:00 +{'9' * 20}", "31 Dec 0000")
        ),
        (Response("", 500), "HTTP 500 Internal Server Error"),
        (Response("", 599), "HTTP 599"),
        (
            Response("<html><title>Sign in</title>", media_type="text/html"),
            'a web page ("Sign in") came back, not an MCP message; check the url',
        ),
        (
            Response("<html>", 501, media_type="text/html"),
            "HTTP 501 Not Implemented: a web page came back, not an MCP message; check the url",
        ),
        (Response("{bad", media_type="application/json"), NO_MESSAGE),
        (JSONResponse([]), NO_MESSAGE),
        (JSONResponse({"hello": "world"}), NO_MESSAGE),
        (RedirectResponse(f"{ELSEWHERE}?key=tiger"), NOT_FOLLOWED),
        (JSONResponse(NOT_TODAY, 400), "not today"),
    ],
)
async def test_each_refusal_has_its_own_reason(refusal: Response, reason: str) -> None:
    web = Web()
    web.refusal = refusal
    async with web_of(web, SLOW_RETRY, headers={"Authorization": "Bearer tiger"}) as server:
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, reason)


async def test_a_redirect_to_another_origin_is_logged_once_and_not_at_each_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    web = Web()
    web.refusal = RedirectResponse(f"{ELSEWHERE}?key=tiger")
    attempts: set[float | None] = set()
    async with web_of(web) as server:

        def has_tried_often() -> bool:
            attempts.add(server.status.retry_at)
            return len(attempts) > 3

        await until(server, has_tried_often)
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert logged == [f"web has failed: {NOT_FOLLOWED}"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:9/mcp", "connection refused"),
        ("http://no-such-host.invalid/mcp", "its host name is unknown; check the url"),
        ("ftp://127.0.0.1/mcp", "the url must begin with http:// or https://"),
        ("127.0.0.1:80/mcp", "the url must begin with http:// or https://"),
        ("http://127.0.0.1:notaport/mcp", "its url is not valid: Invalid port: 'notaport'"),
    ],
)
async def test_each_unreachable_address_has_its_own_reason(url: str, reason: str) -> None:
    async with server_of(http(url), SLOW_RETRY) as server:
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, reason)


async def test_a_header_that_cannot_be_sent_is_named_without_its_value(caplog: pytest.LogCaptureFixture) -> None:
    async with server_of(http("http://127.0.0.1:9/mcp", headers={"X-Key": "b\xe4r"}), SLOW_RETRY) as server:
        reason = 'the header "X-Key" holds a character that no header can have'
        assert (server.status.state, server.status.reason) == (ServerState.FAILED, reason)
    assert "b\xe4r" not in caplog.text


async def test_https_to_a_plain_http_server_is_explained() -> None:
    async with serving(Web().app) as origin:
        async with server_of(http(origin.replace("http:", "https:") + "/mcp"), SLOW_RETRY) as server:
            assert server.status.reason == "no TLS connection; check that the url begins with the right scheme"


async def test_credentials_that_expire_degrade_the_server_and_fail_the_call_with_the_reason() -> None:
    web = Web()
    async with web_of(web, SLOW_RETRY) as server:
        web.refusal = Response(status_code=401)
        with pytest.raises(UpstreamError, match=r'"web" answered with an error: HTTP 401 Unauthorized'):
            await call(server, "echo")
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        assert "401" in server.status.reason
        web.refusal = None
        await call(server, "echo")
        assert web.ran == [{}]


async def test_a_server_that_recovers_is_ready_again_after_the_next_good_call_and_has_a_new_session() -> None:
    web = Web()
    async with web_of(web, replace(FAST, backoff_first_s=0.01, backoff_max_s=1000)) as server:
        web.refusal = Response(status_code=503)
        for _ in range(5):
            with pytest.raises(UpstreamError):
                await call(server, "echo")
        await until(server, lambda: server.status.state is ServerState.DEGRADED)
        web.refusal = None
        await call(server, "echo")
        await until(server, lambda: web.methods["initialize"] == 2 and server.status.state is READY)
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_secrets_reach_only_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    web = Web()
    async with serving(web.app) as origin:
        url = origin.replace("//", "//user:lion%20@") + "/mcp?key=tiger"
        given = http(url, headers={"X-Api-Key": "bear", "Accept": "nonsense"})
        async with server_of(given) as server:
            await call(server, "echo", a=1)
            web.refusal = JSONResponse({"message": "bear and tiger and lion are known here"}, status_code=403)
            with pytest.raises(UpstreamError) as caught:
                await call(server, "echo")
            assert '(its message: "*** and *** and lion are known here")' in caught.value.message
    for _, sent_url, headers in web.requests:
        assert sent_url == f"{origin}/mcp?key=tiger"
        assert headers["x-api-key"] == "bear"
        assert headers["authorization"] == httpx2.BasicAuth("user", "lion ")._auth_header
        assert headers.get("accept") != "nonsense"
    assert "tiger" not in caplog.text
    assert "bear" not in caplog.text
    assert "lion%20" not in caplog.text


async def test_a_redirect_within_the_origin_keeps_secrets_and_logs_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    web = Web(path="/mcp/")
    async with serving(web.app) as origin:
        async with server_of(http(f"{origin}/mcp?key=tiger", headers={"X-Api-Key": "bear"})) as server:
            assert await call_json(server, "echo", a=1) == {"a": 1}
    assert {url for _, url, _ in web.requests} == {f"{origin}/mcp/?key=tiger"}
    assert {headers["x-api-key"] for _, _, headers in web.requests} == {"bear"}
    assert web.sessions == set()
    assert "tiger" not in caplog.text


async def test_an_oversized_response_fails_its_own_call() -> None:
    for streaming in (False, True):
        async with web_of(Web(streaming=streaming), max_message_bytes=100_000) as server:
            assert len((await call(server, "huge", size=90_000)).content[0]["text"]) == 90_000
            with pytest.raises(UpstreamError, match=r"larger than|exceed|limit|size"):
                await call(server, "huge", size=3_000_000)
            assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_an_event_of_several_megabytes_arrives_whole() -> None:
    async with web_of(Web(streaming=True)) as server:
        assert len((await call(server, "huge", size=3_000_000)).content[0]["text"]) == 3_000_000


@pytest.mark.parametrize(
    ("tool", "error", "message"),
    [
        ("page", UpstreamError, "a web page came back, not an MCP message; check the url"),
        ("garbage", UpstreamError, "is not a JSON-RPC message; check the url"),
        ("cut", ConnectionLost, "was lost during the call"),
    ],
)
async def test_a_bad_response_fails_only_its_own_call(tool: str, error: type[Exception], message: str) -> None:
    async with web_of(Web()) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: call(server, "echo", a=1))
            with pytest.raises(error, match=message):
                await call(server, tool)
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_compressed_response_is_limited_by_its_unpacked_size() -> None:
    web = Web()
    web.app.add_middleware(GZipMiddleware, minimum_size=10)
    async with web_of(web, max_message_bytes=100_000) as server:
        assert len((await call(server, "huge", size=90_000)).content[0]["text"]) == 90_000
        with pytest.raises(UpstreamError, match="larger than 100,000 bytes and was dropped"):
            await call(server, "huge", size=3_000_000)


async def test_many_calls_at_once_share_one_session() -> None:
    web = Web()
    async with web_of(web) as server:
        await call_each(server, range(64))
        assert sorted(arguments["n"] for arguments in web.ran) == list(range(64))
        assert web.methods["initialize"] == 1


async def test_progress_reaches_the_client() -> None:
    watcher = Watcher()
    async with web_of(Web()) as server:
        await call(server, "report", replace(CTX, client=watcher))
        assert [report[0] for report in watcher.reports] == [1.0, 2.0]


async def test_a_call_that_hangs_times_out_and_is_cancelled_on_an_older_server() -> None:
    web = Web()
    async with web_of(web, call_timeout_s=0.3) as server:
        with pytest.raises(CallTimeout):
            await call(server, "hang")
        await web.cancelled.wait()


async def test_a_server_that_ignores_a_notification_delays_other_messages_only_briefly() -> None:
    web = Web()
    web.not_cancelled = anyio.Event()
    async with web_of(web, replace(FAST, http_notice_timeout_s=0.2)) as server:
        with anyio.move_on_after(0.1):
            await call(server, "hang")
        assert await call_json(server, "echo", a=1) == {"a": 1}


async def test_a_cancelled_call_closes_the_request_to_a_newer_server() -> None:
    sdk = Sdk()
    async with serving(sdk.server.streamable_http_app()) as origin, server_of(http(f"{origin}/mcp")) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(call, server, "hang")
            await sdk.hanging.wait()
            group.cancel_scope.cancel()
        await sdk.cancelled.wait()
        assert server.status.state is READY


async def test_the_proxy_of_the_environment_is_used_unless_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()
    monkeypatch.setenv("NO_PROXY", "")
    proxy = f"127.0.0.1:{free_port()}"
    for named, reason in (
        (f"http://{proxy}", f"the proxy http://{proxy} refused the connection"),
        (proxy, f"the proxy http://{proxy} refused the connection"),
        (f"gopher://{proxy}", "the proxy in the environment is not supported"),
    ):
        monkeypatch.setenv("HTTP_PROXY", named)
        async with web_of(web, SLOW_RETRY) as server:
            assert (server.status.state, server.status.reason) == (ServerState.FAILED, reason)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with web_of(web) as server:
        assert server.status.state is READY


async def test_all_servers_share_one_tls_context_until_the_certificates_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[ssl.SSLContext] = []

    def make_and_note() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[-1]

    certificates = tmp_path / "ca.pem"
    certificates.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates))
    monkeypatch.setattr(httpx2, "create_ssl_context", make_and_note)
    one = http(f"https://127.0.0.1:{free_port()}/mcp")
    async with fleet_of(one, replace(one, name="two")):
        assert len(made) == 1
    os.utime(certificates, (1, 1))
    async with fleet_of(one):
        assert len(made) == 2
