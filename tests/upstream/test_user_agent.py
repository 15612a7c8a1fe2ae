"""Each request that leaves says who sends it: firewalls block what does not, even where the handshake came through."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.cli.conftest import Ran, command
from tests.upstream.raw_http import (
    Answer,
    Peer,
    Request,
    mcp,
    mcp_modern,
    peer_of,
    response,
    server_at,
    threaded_peer,
)
from tests.upstream.support import FAST

from toolcrib import App
from toolcrib._version import VERSION
from toolcrib.server.auth.issuers import IssuerFetch
from toolcrib.settings.options import Settings
from toolcrib.types import ServerState
from toolcrib.upstream.options import OAuthClientOptions, ServerOptions

__all__ = ["command"]

OURS = f"toolcrib/{VERSION}"
EVENTS = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def agents(peer: Peer) -> set[tuple[str, str]]:
    """What each kind of request was sent with: its JSON-RPC method, or else its HTTP method and path."""
    return {
        (one.message.get("method") or f"{one.method} {one.path}", one.headers.get("user-agent", ""))
        for one in peer.requests
    }


async def use(options: ServerOptions) -> None:
    """List the tools of a server, and call one twice: over a new connection, and over one that is open."""
    with anyio.fail_after(20):
        async with App(Settings(servers=(options,), fleet=FAST)) as app:
            await app.settled()
            if app.statuses()[0].state is ServerState.READY:
                await app.call("web:echo", {})
                await app.call("web:echo", {})


def with_session(request: Request) -> bytes:
    """An older server with a session and a stream of messages, which it closes at once."""
    if request.method == "GET":
        return response("", "text/event-stream", connection="close")
    if request.method == "DELETE":
        return response("", "", "204 No Content")
    return mcp(request, session="s1")


def forgetful(request: Request) -> bytes:
    """One that says in its answer to a call that it has no such session, but knows it when asked."""
    if request.message.get("method") == "tools/call":
        error = {"code": -32000, "message": "no session of the browser is open"}
        return response(json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "error": error}))
    return mcp(request, session="s1")


@pytest.mark.parametrize(
    ("answer", "kinds"),
    [
        (mcp, {"server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call"}),
        (mcp_modern, {"server/discover", "tools/list", "tools/call"}),
        (with_session, {"GET /mcp", "DELETE /mcp", "tools/call"}),
    ],
    ids=["older", "newer", "session"],
)
@pytest.mark.parametrize(("headers", "agent"), [({}, OURS), ({"User-Agent": "mine/1"}, "mine/1")], ids=["ours", "set"])
async def test_every_request_to_a_server_has_a_user_agent_and_the_settings_may_say_which(
    answer: Answer, kinds: set[str], headers: dict[str, str], agent: str
) -> None:
    async with peer_of(answer) as peer:
        await use(server_at(peer.port, headers=headers))
        found = agents(peer)
        assert {sent for _, sent in found} == {agent}
        assert kinds <= {kind for kind, _ in found}


async def test_the_question_whether_a_session_still_exists_has_one_too() -> None:
    async with peer_of(forgetful) as peer:
        with pytest.raises(Exception, match="no session of the browser"):
            await use(server_at(peer.port))
        assert ("ping", OURS) in agents(peer)
        assert {sent for _, sent in agents(peer)} == {OURS}


async def test_so_do_the_requests_to_a_server_of_the_older_transport() -> None:
    def answer(request: Request) -> bytes:
        if request.method == "GET":
            return f"{EVENTS}event: endpoint\ndata: /messages\n\n".encode()
        return response("", "", "404 Not Found")

    async with peer_of(answer) as peer:
        await use(server_at(peer.port, transport="sse"))
        assert {("GET /sse", OURS), ("initialize", OURS)} <= agents(peer)
        assert {sent for _, sent in agents(peer)} == {OURS}


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_so_does_what_a_proxy_is_asked(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with peer_of(lambda _: response("", "", "502 Bad Gateway")) as proxy:
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "")
        await use(server_at(443, scheme=scheme, host="example.org"))
        assert proxy.requests[0].method == ("CONNECT" if scheme == "https" else "POST")
        assert {sent for _, sent in agents(proxy)} == {OURS}


def authorization_server(request: Request) -> bytes:
    """A server behind OAuth, and its authorization server at the same address."""
    origin = f"http://{request.headers['host']}"
    if request.path.startswith("/.well-known/oauth-protected-resource"):
        return response(json.dumps({"resource": f"{origin}/mcp", "authorization_servers": [origin]}))
    if request.path.startswith("/.well-known/"):
        endpoints = {name: f"{origin}/{name}" for name in ("authorize", "token", "register")}
        found = {"issuer": origin, "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
        methods = ["client_secret_post"]
        return response(
            json.dumps(
                {
                    **found,
                    "authorization_endpoint": endpoints["authorize"],
                    "token_endpoint": endpoints["token"],
                    "registration_endpoint": endpoints["register"],
                    "grant_types_supported": ["authorization_code", "client_credentials"],
                    "token_endpoint_auth_methods_supported": methods,
                }
            )
        )
    if request.path == "/token":
        return response(json.dumps({"access_token": "t1", "token_type": "Bearer", "expires_in": 3600}))
    if request.path == "/register":
        return response(json.dumps({"error": "access_denied"}), status="400 Bad Request")
    if request.headers.get("authorization") == "Bearer t1":
        return mcp(request)
    return response("", "", "401 Unauthorized", www_authenticate="Bearer")


async def test_so_do_the_requests_for_an_access_token() -> None:
    async with peer_of(authorization_server) as peer:
        origin = f"http://127.0.0.1:{peer.port}"
        auth = OAuthClientOptions(grant="client_credentials", client_id="me", client_secret="hush", issuer=origin)
        await use(server_at(peer.port, auth=auth))
        kinds = {kind for kind, _ in agents(peer)}
        assert {"POST /token", "tools/call"} <= kinds
        assert any("well-known" in kind for kind in kinds)
        assert {sent for _, sent in agents(peer)} == {OURS}


def test_so_do_the_requests_of_a_login(tmp_path: Path, command: Callable[..., Ran]) -> None:
    with threaded_peer(authorization_server) as peer:
        file = tmp_path / "mcp.json"
        entry = {"type": "http", "url": f"http://127.0.0.1:{peer.port}/mcp", "auth": "oauth"}
        file.write_text(json.dumps({"mcpServers": {"web": entry}}))
        assert command("login", "web", "--no-browser", "--config", file).code == 6
        found = agents(peer)
        assert ("POST /register", OURS) in found
        assert {sent for _, sent in found} == {OURS}


def test_so_do_the_verbs_that_ask_another_gateway(command: Callable[..., Ran]) -> None:
    with threaded_peer(mcp) as peer:
        command("tools", "--gateway", f"http://127.0.0.1:{peer.port}/mcp")
        assert ("tools/list", OURS) in agents(peer)
        assert {sent for _, sent in agents(peer)} == {OURS}


async def test_so_does_the_request_for_the_keys_of_an_issuer() -> None:
    async with peer_of(lambda _: response("{}")) as peer:
        fetch: Any = IssuerFetch(private_hosts=("127.0.0.1",))
        await fetch(f"http://127.0.0.1:{peer.port}/keys")
        assert agents(peer) == {("GET /keys", OURS)}
