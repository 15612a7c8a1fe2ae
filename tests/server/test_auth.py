"""Authenticators with a challenge and routes of their own, such as OAuth protected resource metadata."""

from collections.abc import Mapping, Sequence

import anyio
import httpx2
import pytest
from mcp.server.auth.routes import create_protected_resource_routes
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp
from tests.server.conftest import JSON, Crib, crib

from toolcrib.errors import InvalidRequest, NotAuthenticated
from toolcrib.server.http.app import HttpApp
from toolcrib.server.http.endpoint import http_app
from toolcrib.server.options import HttpOptions, Token
from toolcrib.types import LOCAL, Caller

pytestmark = pytest.mark.anyio

METADATA = "/.well-known/oauth-protected-resource/mcp"
CHALLENGE = f'Bearer error="invalid_token", resource_metadata="https://tools.example{METADATA}"'
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}


class Plain:
    """Accepts one token."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        if headers.get("authorization") != "Bearer good":
            raise NotAuthenticated("The access token is not valid.", hint="Log in again.")
        return Caller(id="ann")


class OAuth(Plain):
    """The same, as an OAuth 2.0 protected resource (RFC 9728)."""

    def challenge(self, error: NotAuthenticated) -> str:
        return CHALLENGE

    def routes(self) -> Sequence[BaseRoute]:
        return create_protected_resource_routes(
            resource_url=AnyHttpUrl("https://tools.example/mcp"),
            authorization_servers=[AnyHttpUrl("https://login.example")],
            scopes_supported=["tools"],
        )


def protected(served: Crib, authenticator: Plain, *, anywhere: bool = False) -> HttpApp:
    options = HttpOptions(host="0.0.0.0", allowed_hosts=("tools.example",))
    return http_app(served.engine, options, ready=lambda: (True, {}), authenticator=authenticator, anywhere=anywhere)


def client_of(app: ASGIApp) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://tools.example")


async def test_oauth_metadata_is_served_without_a_token_and_the_challenge_points_to_it() -> None:
    with anyio.fail_after(5):
        async with crib() as served:
            app = protected(served, OAuth())
            async with app.running(), client_of(app) as http:
                metadata = (await http.get(METADATA)).json()
                assert metadata["authorization_servers"] == ["https://login.example/"]
                assert metadata["scopes_supported"] == ["tools"]
                rejected = await http.post("/mcp", headers=JSON, json=INITIALIZE)
                assert (rejected.status_code, rejected.headers["www-authenticate"]) == (401, CHALLENGE)
                assert rejected.json()["error"]["message"] == "The access token is not valid. Log in again."
                accepted = await http.post("/mcp", headers={**JSON, "authorization": "Bearer good"}, json=INITIALIZE)
                assert accepted.json()["result"]["serverInfo"]["name"] == "toolcrib"


async def test_routes_of_an_authenticator_are_served_below_a_mount() -> None:
    with anyio.fail_after(5):
        async with crib() as served:
            app = protected(served, OAuth(), anywhere=True)
            host = Starlette(routes=[Mount("/tools", app=app)])
            async with app.running(), client_of(host) as http:
                assert (await http.get(f"/tools{METADATA}")).json()["resource"] == "https://tools.example/mcp"
                assert (await http.get("/tools/.well-known/oauth-authorization-server")).status_code == 404
                assert (await http.post("/tools/", headers=JSON, json=INITIALIZE)).status_code == 401


async def test_routes_of_an_authenticator_are_behind_the_host_check() -> None:
    with anyio.fail_after(5):
        async with crib() as served:
            app = protected(served, OAuth())
            async with app.running(), client_of(app) as http:
                assert (await http.get(METADATA, headers={"host": "evil.example"})).status_code == 421


class Named(Plain):
    """Takes the bearer token for the caller's id."""

    def __init__(self, tenant: str | None = None) -> None:
        self._tenant = tenant

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        return Caller(id=headers["authorization"].removeprefix("Bearer "), tenant=self._tenant)


class Trusting(Plain):
    """Takes everyone for the caller at this machine."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        return LOCAL


@pytest.mark.parametrize(
    ("authenticator", "status"),
    [(Named(), 401), (Named("acme"), 200), (Trusting(), 200)],
    ids=["id", "tenant", "LOCAL"],
)
async def test_no_credential_makes_a_caller_the_one_at_this_machine(authenticator: Plain, status: int) -> None:
    with anyio.fail_after(5):
        async with crib() as served:
            app = protected(served, authenticator)
            async with app.running(), client_of(app) as http:
                answer = await http.post("/mcp", headers={**JSON, "authorization": "Bearer local"}, json=INITIALIZE)
                assert answer.status_code == status
                assert status == 200 or "caller at this machine" in answer.text


def test_a_token_cannot_be_that_of_the_caller_at_this_machine() -> None:
    with pytest.raises(InvalidRequest, match="caller at this machine"):
        Token(secret="s", caller="local")
    assert Token(secret="s", caller="local", tenant="acme").tenant == "acme"


@pytest.mark.parametrize("secret", ["", " ", "abc ", "\tabc"])
def test_a_token_needs_a_secret_that_a_header_can_carry(secret: str) -> None:
    with pytest.raises(InvalidRequest, match="secret must not"):
        Token(secret=secret, caller="ann")


async def test_a_bearer_header_without_a_token_is_no_credential() -> None:
    with anyio.fail_after(5):
        async with crib() as served:
            tokens = (Token(secret="a-token", caller="ann"),)
            options = HttpOptions(host="0.0.0.0", allowed_hosts=("tools.example",), tokens=tokens)
            app = http_app(served.engine, options, ready=lambda: (True, {}))
            async with app.running(), client_of(app) as http:
                answer = await http.post("/mcp", headers={**JSON, "authorization": "Bearer "}, json=INITIALIZE)
    assert answer.status_code == 401
    assert "No bearer token." in answer.text


async def test_a_plain_authenticator_has_the_usual_challenge_and_no_routes() -> None:
    with anyio.fail_after(5):
        async with crib() as served:
            app = protected(served, Plain())
            async with app.running(), client_of(app) as http:
                assert (await http.get(METADATA)).status_code == 404
                rejected = await http.post("/mcp", headers=JSON, json=INITIALIZE)
                assert rejected.headers["www-authenticate"] == 'Bearer realm="toolcrib"'
