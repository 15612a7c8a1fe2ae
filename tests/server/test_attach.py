"""A registry attached to a server that has its own authentication: each user is a separate caller."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx2
import mcp
import mcp_types
import pytest
from fastmcp import FastMCP
from fastmcp.server.auth import MultiAuth
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import Request
from pydantic import AnyHttpUrl, RootModel
from starlette.applications import Starlette
from starlette.authentication import SimpleUser, UnauthenticatedUser
from tests.server.conftest import JSON, token
from tests.server.test_http import EXECUTE, MODERN

from toolcrib import App, Context, Tool
from toolcrib.gateway.options import GatewayOptions
from toolcrib.middleware.options import CacheOptions, CallOptions
from toolcrib.registry import ToolRegistry
from toolcrib.server.auth.authentication import caller_of_user
from toolcrib.settings.options import Settings
from toolcrib.testing import text_of
from toolcrib.types import LOCAL, Caller

pytestmark = pytest.mark.anyio

USERS: dict[str, dict[str, Any]] = {
    "s3cret-a": {"client_id": "desk", "sub": "alice", "scopes": ["read"]},
    "s3cret-b": {"client_id": "desk", "sub": "bob", "scopes": ["read"]},
    "s3cret-c": {"client_id": "robot", "scopes": ["read"]},
}


RESOURCE = "http://localhost/mcp"


class Verifier:
    """An SDK token verifier that knows a few tokens."""

    async def verify_token(self, token: str) -> AccessToken | None:
        if token not in USERS:
            return None
        user = USERS[token]
        return AccessToken(
            token=token,
            client_id=user["client_id"],
            scopes=user["scopes"],
            subject=user.get("sub"),
            resource=RESOURCE,
        )


def sdk_server() -> tuple[Any, Callable[[], Starlette]]:
    auth = AuthSettings(
        issuer_url=AnyHttpUrl("http://localhost"),
        resource_server_url=AnyHttpUrl(RESOURCE),
        required_scopes=["read"],
        validate_token_resource=True,
    )
    server: MCPServer[Any] = MCPServer("own", token_verifier=Verifier(), auth=auth)
    return server, lambda: server.streamable_http_app(json_response=True, stateless_http=True)


def fast_mcp() -> tuple[Any, Callable[[], Starlette]]:
    server: FastMCP = FastMCP("own", auth=StaticTokenVerifier(tokens=USERS))
    return server, lambda: server.http_app(json_response=True, stateless_http=True)


def fast_mcp_with_several() -> tuple[Any, Callable[[], Starlette]]:
    server: FastMCP = FastMCP("own", auth=MultiAuth(verifiers=[StaticTokenVerifier(tokens=USERS)]))
    return server, lambda: server.http_app(json_response=True, stateless_http=True)


def asking_who(seen: list[Context]) -> ToolRegistry:
    """A registry that caches results, with a tool that returns its caller."""

    def whoami(ctx: Context) -> str:
        seen.append(ctx)
        return ctx.caller.id

    registry = ToolRegistry(Settings(gateway=GatewayOptions(calls=CallOptions(cache=CacheOptions()))))
    registry.register_tool(Tool(name="echo", namespace="x", annotations={"readOnlyHint": True}), whoami)
    return registry


@pytest.mark.parametrize("headers", [MODERN, {"mcp-protocol-version": "2025-11-25"}], ids=["modern", "legacy"])
@pytest.mark.parametrize("make", [sdk_server, fast_mcp, fast_mcp_with_several])
async def test_each_authenticated_user_gets_their_own_results(make: Callable[[], Any], headers: dict[str, str]) -> None:
    seen: list[Context] = []
    server, http_app = make()
    asking_who(seen).attach(server)
    app = http_app()
    with anyio.fail_after(10):
        async with app.router.lifespan_context(app), _http_of(app) as http:
            answers: dict[str, str] = {}
            for secret in (*USERS, *USERS):
                answer = await http.post("/mcp", json=EXECUTE, headers={**JSON, **headers, **token(secret)})
                assert answer.status_code == 200, answer.text
                text = answer.json()["result"]["content"][0]["text"]
                assert answers.setdefault(secret, text) == text
            assert (await http.post("/mcp", json=EXECUTE, headers={**JSON, **headers})).status_code == 401
    assert ["alice" in answers["s3cret-a"], "bob" in answers["s3cret-b"], "robot" in answers["s3cret-c"]] == [True] * 3
    assert len(seen) == len({ctx.caller for ctx in seen}) == len(USERS), "the second round came from the cache"
    assert {ctx.caller.scopes for ctx in seen} == {frozenset({"read"})}


@pytest.mark.parametrize("headers", [MODERN, {"mcp-protocol-version": "2025-11-25"}], ids=["modern", "legacy"])
async def test_without_authentication_no_result_is_reused(headers: dict[str, str]) -> None:
    seen: list[Context] = []
    server: FastMCP = FastMCP("own")
    asking_who(seen).attach(server)
    app = server.http_app(json_response=True, stateless_http=True)
    with anyio.fail_after(10):
        async with app.router.lifespan_context(app), _http_of(app) as http:
            for _ in range(2):
                assert (await http.post("/mcp", json=EXECUTE, headers={**JSON, **headers})).status_code == 200
    assert [ctx.caller for ctx in seen] == [LOCAL, LOCAL]


async def test_in_memory_results_are_reused() -> None:
    seen: list[Context] = []
    registry = asking_who(seen)
    server: FastMCP = FastMCP("own")
    registry.attach(server)
    with anyio.fail_after(10):
        async with mcp.Client(server._mcp_server) as client:
            for _ in range(2):
                assert text_of(await client.call_tool("execute_tool", {"name": "x:echo"})) == "local"
    assert len(seen) == 1


async def test_an_in_memory_request_during_a_users_request_is_made_as_that_user() -> None:
    seen: list[Context] = []
    server: FastMCP = FastMCP("own")
    asking_who(seen).attach(server)
    with anyio.fail_after(10):
        async with mcp.Client(server._mcp_server) as client:
            for who in ("alice", "bob"):
                mine = auth_context_var.set(AuthenticatedUser(AccessToken(token="", client_id=who, scopes=[])))
                try:
                    assert text_of(await client.call_tool("execute_tool", {"name": "x:echo"})) == who
                finally:
                    auth_context_var.reset(mine)


# -- the caller of a token ---------------------------------------------------------------------------------------------


def user(client_id: str, subject: str | None = None, issuer: str | None = None, *scopes: str) -> AuthenticatedUser:
    claims = {"iss": issuer} if issuer else None
    return AuthenticatedUser(
        AccessToken(token="t", client_id=client_id, subject=subject, scopes=[*scopes], claims=claims)
    )


@pytest.mark.parametrize(
    ("who", "caller"),
    [
        (user("robot", None, None, "read"), Caller(id="robot", scopes=frozenset({"read"}))),
        (user("alice", "alice"), Caller(id="alice")),
        (user("desk", "alice"), Caller(id="desk/alice")),
        (
            user("desk", "alice", "https://a.example"),
            Caller(id="alice", tenant="https://a.example", issuer="https://a.example"),
        ),
        (user("", "alice"), Caller(id="/alice")),
        (user("https://app.example/me"), Caller(id="https:%2F%2Fapp.example%2Fme")),
        (user(""), None),
        (SimpleUser("alice"), None),
        (UnauthenticatedUser(), None),
        (None, None),
        ("alice", None),
    ],
)
def test_a_token_identifies_its_subject_or_else_its_client(who: object, caller: Caller | None) -> None:
    assert caller_of_user(who) == caller


def test_different_users_are_never_one_caller() -> None:
    users = [
        user("a", "b/c"),
        user("a/b", "c"),
        user("a/b/c"),
        user("a%2Fb", "c"),
        user("desk", "alice", "https://a.example"),
        user("desk", "alice", "https://b.example"),
        user("desk", "alice"),
        user("till", "alice"),
    ]
    assert len({caller_of_user(one) for one in users}) == len(users)


def _http_of(app: Starlette) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost:8000")


async def test_a_method_of_a_program_answers_clients_in_memory_of_both_eras() -> None:
    async def weather(exchange: Any) -> dict[str, Any]:
        return {"sun": exchange.params["place"] == "Ulm"}

    app = App()
    app.engine.methods["acme/weather"] = weather
    wanted = Request[dict[str, Any], str](method="acme/weather", params={"place": "Ulm"})
    for mode in ("legacy", "2026-07-28"):
        async with app, mcp.Client(app.server, mode=mode) as client:
            answer = await client.session.send_request(wanted, RootModel[dict[str, Any]])
            assert answer.root["sun"] is True


async def test_what_is_added_to_the_sdk_server_is_reported_when_the_app_is_served_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()
    app.asgi()
    app.server.add_request_handler("acme/weather", mcp_types.RequestParams, weather_of_the_sdk)
    assert "app.engine.methods" not in caplog.text
    app.asgi()
    assert "app.engine.methods" in caplog.text


async def weather_of_the_sdk(ctx: Any, params: Any) -> dict[str, Any]:
    return {}


def shared_lifespan() -> Any:
    state: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[dict[str, Any]]:
        yield state

    return lifespan


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("own", [True, False])
async def test_clients_in_memory_have_sessions_of_their_own_if_the_server_can_distinguish_them(
    mode: Any, own: bool
) -> None:
    seen: list[Context] = []
    server: Server[Any] = Server("own", **({} if own else {"lifespan": shared_lifespan()}))
    registry = ToolRegistry()

    def note(ctx: Context) -> str:
        seen.append(ctx)
        return ""

    registry.register_tool(Tool(name="note", namespace="x"), note)
    registry.attach(server)
    with anyio.fail_after(10):
        async with mcp.Client(server, mode=mode) as one, mcp.Client(server, mode=mode) as two:
            for client in (one, two, one):
                await client.call_tool("execute_tool", {"name": "x:note"})
    first, second, again = (ctx.session for ctx in seen)
    if own:
        assert first == again != second
    else:
        assert (second, again) == (None, None)
