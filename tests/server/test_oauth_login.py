"""The SDK's OAuth client logs in at a real authorization server and uses the gateway; hostile servers get nothing."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import mcp
import pytest
from authlib.oauth2.rfc6749 import OAuth2Request
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.fixtures.servers.authorization import Issuer
from tests.server.conftest import at_address
from tests.server.issuer import FakeIssuer
from tests.upstream.support import serving

from toolcrib import Action, App, ByScopes, Context, Rule, Settings
from toolcrib.errors import ServerUnavailable
from toolcrib.options import AuthOptions, IssuerOptions
from toolcrib.server.auth.issuers import IssuerFetch

pytestmark = pytest.mark.anyio


class JwtIssuer(Issuer):
    """The authorization server, with JWTs as its access tokens."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.signer = FakeIssuer()

    def save_token(self, token: Mapping[str, Any], request: OAuth2Request) -> None:
        super().save_token(token, request)
        saved = self.tokens[token["access_token"]].family
        claims = {"iss": self.issuer, "sub": saved.user, "aud": saved.resource, "scope": saved.scope}
        assert isinstance(token, dict)
        token["access_token"] = self.signer.token(claims=claims)

    @property
    def app(self) -> Starlette:
        app = super().app

        async def keys(request: Request) -> Response:
            return JSONResponse({"keys": self.signer.keys})

        app.router.routes.insert(0, Route("/keys", keys))  # before the mount of everything else
        return app


class Storage:
    """What a client keeps, in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Person:
    """Agrees to every login, in a browser."""

    def __init__(self) -> None:
        self.logins: list[dict[str, list[str]]] = []
        self._answer: dict[str, list[str]] = {}

    async def visit(self, url: str) -> None:
        self.logins.append(parse_qs(urlsplit(url).query))
        async with httpx2.AsyncClient(trust_env=False) as browser:
            answer = await browser.get(url)
        self._answer = parse_qs(urlsplit(answer.headers["location"]).query)

    async def come_back(self) -> AuthorizationCodeResult:
        answer = {name: values[0] for name, values in self._answer.items()}
        return AuthorizationCodeResult(code=answer["code"], state=answer.get("state"), iss=answer.get("iss"))


@contextlib.asynccontextmanager
async def client_of(url: str, person: Person, mode: Any = "auto") -> AsyncIterator[mcp.Client]:
    """The SDK's client, which logs in when it is asked to."""
    metadata = OAuthClientMetadata(redirect_uris=["http://127.0.0.1:9/callback"], client_name="test")  # type: ignore[list-item]  # pydantic makes it an address
    auth = OAuthClientProvider(url, metadata, Storage(), person.visit, person.come_back)
    async with httpx2.AsyncClient(auth=auth, trust_env=False) as http:
        async with mcp.Client(streamable_http_client(url, http_client=http), mode=mode) as connected:
            yield connected


@contextlib.asynccontextmanager
async def gateway(issuer: str, policy: ByScopes | None = None, **auth: Any) -> AsyncIterator[str]:
    """A gateway that accepts the issuer's tokens, at a port of this machine."""
    options = AuthOptions(issuers=(IssuerOptions(issuer=issuer),), private_hosts=("127.0.0.1",), **auth)
    app = App(Settings(auth=options), policy=policy)

    @app.tool
    def whoami(ctx: Context) -> str:
        """Say who calls."""
        return f"{ctx.caller.id} with {' '.join(sorted(ctx.caller.scopes))}"

    async with app, at_address(app.asgi()) as address:
        yield f"{address}/mcp"


async def text_of(call: Awaitable[Any]) -> str:
    return str((await call).content[0].text)


WHOAMI = {"name": "whoami"}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdks_client_logs_in_and_calls(mode: str) -> None:
    issuer, person = JwtIssuer(), Person()
    with anyio.fail_after(30):
        async with serving(issuer.app) as login:
            issuer.issuer = login
            issuer.metadata = {"jwks_uri": f"{login}/keys"}
            async with gateway(login, scopes=("read",)) as url, client_of(url, person, mode) as client:
                assert await text_of(client.call_tool("execute_tool", WHOAMI)) == "ann with read"
                (asked,) = person.logins
                assert (asked["resource"], asked["scope"]) == ([url], ["read"])


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_sdks_client_asks_for_the_scope_that_a_call_lacks(mode: str) -> None:
    issuer, person = JwtIssuer(), Person()
    policy = ByScopes([Rule(action=Action.SEE), Rule(tools=("whoami",), action=Action.CALL, scopes=("run",))])
    with anyio.fail_after(30):
        async with serving(issuer.app) as login:
            issuer.issuer = login
            issuer.metadata = {"jwks_uri": f"{login}/keys"}
            async with gateway(login, policy, scopes=("read",), step_up=True) as url:
                async with client_of(url, person, mode) as client:
                    await client.list_tools()  # the client handles one challenge for each request
                    assert await text_of(client.call_tool("execute_tool", WHOAMI)) == "ann with read run"
                    assert [login["scope"] for login in person.logins] == [["read"], ["read run"]]


@pytest.mark.parametrize(
    ("rule", "step_up"),
    [
        ({"action": Action.CALL, "scopes": ("run",)}, False),
        ({"scopes": ("run",)}, True),
        ({"action": Action.CALL, "scopes": ("run",), "tenants": ("other",)}, True),
    ],
)
async def test_without_step_up_or_for_a_hidden_tool_a_call_is_one_of_a_missing_tool(
    rule: dict[str, Any], step_up: bool
) -> None:
    issuer, person = JwtIssuer(), Person()
    with anyio.fail_after(30):
        async with serving(issuer.app) as login:
            issuer.issuer = login
            issuer.metadata = {"jwks_uri": f"{login}/keys"}
            policy = ByScopes([Rule(tools=("whoami",), **rule), Rule(action=Action.SEE)])
            async with gateway(login, policy, scopes=("read",), step_up=step_up) as url:
                async with client_of(url, person) as client:
                    answer = await text_of(client.call_tool("execute_tool", WHOAMI))
                    assert "tool_not_found" in answer or "No tool" in answer
                    assert "run" not in answer.replace("nothing was run", "")
                    assert len(person.logins) == 1


# -- issuers that do harm ----------------------------------------------------------------------------------------------


async def redirecting(request: Request) -> Response:
    return RedirectResponse("http://169.254.169.254/latest/meta-data")


async def huge(request: Request) -> Response:
    return Response(b'{"keys": [' + b" " * 400_000 + b"]}", media_type="application/json")


async def endless(request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 10_000

    return StreamingResponse(parts(), media_type="application/json")


async def compressed(request: Request) -> Response:
    return Response(b"\x1f\x8b\x08" + b"\0" * 20, headers={"content-encoding": "gzip"})


async def slow(request: Request) -> Response:
    await anyio.sleep_forever()
    raise AssertionError("never gets here")


async def not_json(request: Request) -> Response:
    return Response(b"<html>")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (redirecting, "answered HTTP 307"),
        (huge, "larger than"),
        (endless, "larger than"),
        (compressed, "cannot be decoded"),
        (slow, "did not answer in time"),
        (not_json, "not JSON"),
    ],
)
async def test_an_answer_that_does_harm_is_refused(
    answer: Callable[[Request], Awaitable[Response]], reason: str
) -> None:
    with anyio.fail_after(20):
        async with serving(Starlette(routes=[Route("/keys", answer)])) as address:
            fetch = IssuerFetch(("127.0.0.1",), timeout_s=1)
            with pytest.raises(ServerUnavailable, match=reason):
                await fetch(f"{address}/keys")


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/keys",
        "https://localhost/keys",
        "https://127.1/keys",
        "https://2130706433/keys",
        "https://[::1]/keys",
        "https://[::ffff:127.0.0.1]/keys",
        "https://[64:ff9b::10.0.0.1]/keys",
        "https://[::169.254.169.254]/latest/meta-data",
        "https://[fec0::1]/keys",
        "https://169.254.169.254/latest/meta-data",
        "https://168.63.129.16/machine",
        "https://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/keys",
        "https://10.0.0.1/keys",
        "https://0.0.0.0/keys",
    ],
)
async def test_private_addresses_are_refused_however_they_are_written(url: str) -> None:
    with anyio.fail_after(20):
        with pytest.raises(ServerUnavailable, match=r"private address|Invalid host"):
            await IssuerFetch()(url)


async def test_addresses_without_tls_are_refused() -> None:
    with pytest.raises(ServerUnavailable, match="without TLS"):
        await IssuerFetch()("http://login.example/keys")


async def test_a_name_that_leads_to_a_private_address_is_refused_unless_it_is_named() -> None:
    async def keys(request: Request) -> Response:
        return JSONResponse({"keys": []})

    with anyio.fail_after(20):
        async with serving(Starlette(routes=[Route("/keys", keys)])) as address:
            url = f"{address.replace('127.0.0.1', 'localhost')}/keys"
            assert await IssuerFetch(("localhost",))(url) == {"keys": []}
            with pytest.raises(ServerUnavailable, match="private address"):
                await IssuerFetch(("other",))(url.replace("http://", "https://"))
