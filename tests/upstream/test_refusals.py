"""Servers that refuse for a while, or lead elsewhere: they are left alone as long as they ask, and get no secrets."""

import time
from collections.abc import Callable

import anyio
import pytest
from tests.upstream.raw_http import Request, mcp, peer_of, response, server_at
from tests.upstream.support import FAST, until

from toolcrib import App
from toolcrib.errors import ServerUnavailable, UpstreamError
from toolcrib.settings.options import Settings
from toolcrib.types import ServerState
from toolcrib.upstream.options import ServerOptions

BUSY = ("429 Too Many Requests", "503 Service Unavailable")


def app_of(options: ServerOptions) -> App:
    return App(Settings(servers=(options,), fleet=FAST))


@pytest.mark.parametrize("status", BUSY)
@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_server_that_asks_to_wait_is_not_tried_before(status: str, transport: str, method: str) -> None:
    def answer(request: Request) -> bytes:
        if request.message.get("method") == method or transport == "sse":
            return response("", "", status, retry_after="50")
        return mcp(request)

    begun = time.time()
    with anyio.fail_after(20):
        async with peer_of(answer) as peer, app_of(server_at(peer.port, transport=transport)) as app:
            await app.settled()
            web = app.fleet.server("web")
            await until(web, lambda: web.status.retry_at is not None)
            assert f"HTTP {status}, retry after 50" in web.status.reason
            assert web.status.retry_at is not None
            assert web.status.retry_at >= begun + 50
            tried = len(peer.requests)
            with pytest.raises(ServerUnavailable):
                await app.call("web:echo", {})
            assert len(peer.requests) == tried


@pytest.mark.parametrize("status", BUSY)
async def test_a_call_that_is_refused_says_how_long_to_wait_and_is_not_repeated(status: str) -> None:
    def answer(request: Request) -> bytes:
        busy = request.message.get("method") == "tools/call"
        return response("slow down", "text/plain", status, retry_after="7") if busy else mcp(request)

    with anyio.fail_after(20):
        async with peer_of(answer) as peer, app_of(server_at(peer.port)) as app:
            await app.settled()
            with pytest.raises(UpstreamError, match=r'retry after 7 \(its message: "slow down"\)') as raised:
                await app.call("web:echo", {})
            assert raised.value.data["retry_after_s"] == 7
            assert len(peer.sent("tools/call")) == 1


Moved = Callable[[Request], bool]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call"])
async def test_a_redirect_to_another_host_is_not_followed_and_gets_nothing(status: str, method: str) -> None:
    async with peer_of(mcp) as other:

        def answer(request: Request) -> bytes:
            moved = request.message.get("method") == method
            target = f"http://localhost:{other.port}/mcp"
            return response("", "", status, location=target) if moved else mcp(request)

        headers = {"Authorization": "Bearer s3cret-token"}
        with anyio.fail_after(20):
            async with peer_of(answer) as peer, app_of(server_at(peer.port, headers=headers)) as app:
                await app.settled()
                reason = f"Redirect to http://localhost:{other.port}/mcp not followed"
                if method == "tools/call":
                    with pytest.raises(UpstreamError, match=reason):
                        await app.call("web:echo", {})
                    assert len(peer.sent("tools/call")) == 1
                else:
                    assert app.statuses()[0].state is ServerState.FAILED
                    assert reason in app.statuses()[0].reason
        assert other.requests == []
