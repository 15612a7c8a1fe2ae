"""The gateway as a protected resource over HTTP: metadata, challenges, addresses, and streams that end in time."""

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp
from tests.server.conftest import JSON, at_address, token
from tests.server.issuer import RESOURCE, FakeIssuer, FakeNet

from toolcrib import App, Caller, Context, Settings
from toolcrib.errors import NotAuthenticated, SettingsError
from toolcrib.options import AuthOptions, HttpOptions, IssuerOptions, Token
from toolcrib.server.auth.oauth import OAuthResource

pytestmark = pytest.mark.anyio

METADATA = "/.well-known/oauth-protected-resource"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}
HOSTS = ("tools.example", "tools.example:*")


def protected(login: FakeIssuer, http: HttpOptions | None = None, **auth: Any) -> App:
    """An app that accepts the issuer's tokens."""
    http = http or HttpOptions(host="0.0.0.0", allowed_hosts=HOSTS)
    options = {"resource": RESOURCE, "issuers": (IssuerOptions(issuer=login.url),), **auth}
    oauth = OAuthResource(AuthOptions(**options), http, fetch=FakeNet(login))
    app = App(Settings(http=http), authenticator=oauth)

    @app.tool
    def whoami(ctx: Context) -> str:
        """Say who calls."""
        return f"{ctx.caller.id} of {ctx.caller.tenant}"

    return app


def client_of(app: ASGIApp, base: str = "https://tools.example", peer: str = "198.51.100.7") -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, client=(peer, 1)), base_url=base)


@contextlib.asynccontextmanager
async def served(app: App, base: str = "https://tools.example") -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an app that runs."""
    asgi = app.asgi()
    async with asgi.running(), client_of(asgi, base) as http:
        yield http


async def test_a_token_opens_the_gateway_and_says_who_calls() -> None:
    login = FakeIssuer()
    with anyio.fail_after(10):
        async with protected(login) as app:
            async with served(app) as http:
                call = {"name": "execute_tool", "arguments": {"name": "whoami"}}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
                opened = await http.post("/mcp", headers={**JSON, **token(login.token())}, json=INITIALIZE)
                session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
                answer = await http.post("/mcp", headers={**JSON, **token(login.token()), **session}, json=body)
                assert f"ann of {login.url}" in answer.text


async def test_a_session_of_one_issuer_is_not_open_to_the_same_name_of_another() -> None:
    ours, theirs = FakeIssuer("https://login.example/ours"), FakeIssuer("https://login.example/theirs")
    issuers = (IssuerOptions(issuer=ours.url), IssuerOptions(issuer=theirs.url))
    http_options = HttpOptions(host="0.0.0.0", allowed_hosts=HOSTS)
    auth = AuthOptions(resource=RESOURCE, issuers=issuers)
    app = App(Settings(http=http_options), authenticator=OAuthResource(auth, http_options, fetch=FakeNet(ours, theirs)))
    with anyio.fail_after(10):
        async with app:
            async with served(app) as http:
                opened = await http.post("/mcp", headers={**JSON, **token(ours.token())}, json=INITIALIZE)
                session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
                ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
                mine = await http.post("/mcp", headers={**JSON, **session, **token(ours.token())}, json=ping)
                other = await http.post("/mcp", headers={**JSON, **session, **token(theirs.token())}, json=ping)
                assert (mine.status_code, other.status_code) == (200, 404)


async def test_without_a_token_a_client_is_led_to_the_metadata_and_no_error_is_named() -> None:
    with anyio.fail_after(10):
        async with protected(FakeIssuer(), scopes=("tools",)) as app:
            async with served(app) as http:
                refused = await http.post("/mcp", headers=JSON, json=INITIALIZE)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == (
                    f'Bearer resource_metadata="https://tools.example{METADATA}/mcp", scope="tools"'
                )


async def test_with_an_invalid_token_the_challenge_says_so() -> None:
    login = FakeIssuer()
    with anyio.fail_after(10):
        async with protected(login) as app:
            async with served(app) as http:
                expired = login.token(exp=int(time.time()) - 90)
                refused = await http.post("/mcp", headers={**JSON, **token(expired)}, json=INITIALIZE)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == (
                    'Bearer error="invalid_token", error_description="The access token has expired.", '
                    f'resource_metadata="https://tools.example{METADATA}/mcp"'
                )
                assert "https://" not in refused.json()["error"]["message"]


async def test_a_token_without_a_scope_that_all_need_gets_403_with_every_scope() -> None:
    login = FakeIssuer()
    with anyio.fail_after(10):
        async with protected(login, scopes=("tools", "read")) as app:
            async with served(app) as http:
                given = token(login.token(scope="read offline_access"))
                refused = await http.post("/mcp", headers={**JSON, **given}, json=INITIALIZE)
                assert refused.status_code == 403
                challenge = refused.headers["www-authenticate"]
                assert 'error="insufficient_scope"' in challenge
                assert 'scope="offline_access read tools"' in challenge
                assert "resource_metadata=" in challenge


async def test_an_issuer_that_is_down_gives_503_and_not_401() -> None:
    login = FakeIssuer()
    login.is_down = True
    with anyio.fail_after(10):
        async with protected(login) as app:
            async with served(app) as http:
                refused = await http.post("/mcp", headers={**JSON, **token(login.token())}, json=INITIALIZE)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")


# -- addresses ---------------------------------------------------------------------------------------------------------

PROXY = {"x-forwarded-host": "tools.example", "x-forwarded-proto": "https"}
ADDRESSES: Mapping[str, tuple[dict[str, Any], dict[str, str], str, str, str]] = {
    # options of http and auth; headers; the path asked for; the resource's address; the path of its metadata
    "as the settings say": ({"resource": RESOURCE}, {}, "/mcp", RESOURCE, "/mcp"),
    "with a slash at the end": ({"resource": RESOURCE}, {}, "/mcp/", f"{RESOURCE}/", "/mcp/"),
    "settings with a slash": ({"resource": f"{RESOURCE}/"}, {}, "/mcp", RESOURCE, "/mcp"),
    "a request to another host": ({"resource": RESOURCE}, {"host": "tools.example:81"}, "/mcp", RESOURCE, "/mcp"),
    "as requests say": ({}, {}, "/mcp", "http://tools.example/mcp", "/mcp"),
    "as requests say, with a slash": ({}, {}, "/mcp/", "http://tools.example/mcp/", "/mcp/"),
    "with a port": ({}, {"host": "tools.example:8443"}, "/mcp", "http://tools.example:8443/mcp", "/mcp"),
    "with the usual port": ({}, {"host": "tools.example:80"}, "/mcp", "http://tools.example/mcp", "/mcp"),
    "in other letters": ({}, {"host": "Tools.Example"}, "/mcp", "http://tools.example/mcp", "/mcp"),
    "another path": ({"path": "/tools"}, {}, "/tools", "http://tools.example/tools", "/tools"),
    "behind a proxy": ({"trusted_proxies": ("198.51.100.0/24",)}, PROXY, "/mcp", RESOURCE, "/mcp"),
    "a proxy that removes a prefix": (
        {"trusted_proxies": ("198.51.100.7",)},
        {**PROXY, "x-forwarded-prefix": "/team/a"},
        "/mcp",
        "https://tools.example/team/a/mcp",
        "/team/a/mcp",
    ),
    "a client in front of the proxy that lies": (
        {"trusted_proxies": ("198.51.100.7",)},
        {**PROXY, "x-forwarded-proto": "gopher, https"},
        "/mcp",
        RESOURCE,
        "/mcp",
    ),
    "a proxy that is not trusted": ({}, PROXY, "/mcp", "http://tools.example/mcp", "/mcp"),
    "a proxy beside the trusted ones": (
        {"trusted_proxies": ("203.0.113.0/24",)},
        PROXY,
        "/mcp",
        "http://tools.example/mcp",
        "/mcp",
    ),
    "a trusted proxy that passes on a lie": (
        {"trusted_proxies": ("198.51.100.7",)},
        {"x-forwarded-host": "evil.example"},
        "/mcp",
        "http://tools.example/mcp",
        "/mcp",
    ),
}


@pytest.mark.parametrize("name", ADDRESSES)
async def test_challenge_and_metadata_have_the_address_that_the_client_used(name: str) -> None:
    options, headers, path, resource, well_known = ADDRESSES[name]
    names = {"resource"}
    auth = {"resource": "", **{key: value for key, value in options.items() if key in names}}
    more = {key: value for key, value in options.items() if key not in names}
    login = FakeIssuer()
    http_options = HttpOptions(host="0.0.0.0", allowed_hosts=HOSTS, **more)
    with anyio.fail_after(10):
        async with protected(login, http_options, **auth) as app:
            async with served(app, "http://tools.example") as http:
                refused = await http.post(path, headers={**JSON, **headers}, json=INITIALIZE)
                challenge = refused.headers["www-authenticate"]
                origin = resource.removesuffix(well_known)
                assert challenge == f'Bearer resource_metadata="{origin}{METADATA}{well_known}"'
                metadata = await http.get(f"{METADATA}{well_known}", headers=headers)
                assert (metadata.status_code, metadata.json()["resource"]) == (200, resource)
                assert metadata.json()["authorization_servers"] == [login.url]
                for audience, status in ((resource, 200), (f"{origin}/other", 401)):
                    sent = {**JSON, **headers, **token(login.token(aud=audience))}
                    assert (await http.post(path, headers=sent, json=INITIALIZE)).status_code == status


@pytest.mark.parametrize("path", ["", "/", "/other", "/mcp/more", "/MCP"])
@pytest.mark.parametrize("resource", [RESOURCE, ""])
async def test_metadata_is_at_its_exact_path_only(resource: str, path: str) -> None:
    with anyio.fail_after(10):
        async with protected(FakeIssuer(), resource=resource) as app:
            async with served(app) as http:
                assert (await http.get(f"{METADATA}{path}")).status_code == 404
                assert (await http.get("/.well-known/oauth-authorization-server/mcp")).status_code == 404


@pytest.mark.parametrize("resource", ["https://tools.example/crib", ""])
async def test_a_mounted_app_gives_its_metadata_to_the_app_around_it(resource: str) -> None:
    login = FakeIssuer()
    http_options = HttpOptions(host="0.0.0.0", allowed_hosts=HOSTS)
    issuers = (IssuerOptions(issuer=login.url),)
    oauth = OAuthResource(AuthOptions(resource=resource, issuers=issuers), http_options, fetch=FakeNet(login))
    app = App(Settings(http=http_options), authenticator=oauth)
    outer = Starlette(routes=[*oauth.routes("/crib"), Mount("/crib", app=app.asgi_mount())])
    with anyio.fail_after(10):
        async with app:
            async with client_of(outer) as http:
                refused = await http.post("/crib/", headers=JSON, json=INITIALIZE)
                link = refused.headers["www-authenticate"].removeprefix('Bearer resource_metadata="').removesuffix('"')
                assert link == f"https://tools.example{METADATA}/crib/"
                metadata = (await http.get(link)).json()
                assert metadata["resource"] == "https://tools.example/crib/"
                accepted = token(login.token(aud="https://tools.example/crib"))
                assert (await http.post("/crib/", headers={**JSON, **accepted}, json=INITIALIZE)).status_code == 200
                elsewhere = token(login.token(aud="https://tools.example/other"))
                assert (await http.post("/crib/", headers={**JSON, **elsewhere}, json=INITIALIZE)).status_code == 401


async def test_the_settings_of_a_mounted_app_give_the_same_routes() -> None:
    auth = AuthOptions(issuers=(IssuerOptions(issuer="https://login.example"),))
    app = App(Settings(http=HttpOptions(host="0.0.0.0", allowed_hosts=HOSTS), auth=auth))
    outer = Starlette(routes=[*app.auth_routes("/crib"), Mount("/crib", app=app.asgi_mount())])
    async with client_of(outer) as http:
        metadata = (await http.get(f"{METADATA}/crib")).json()
        assert metadata["resource"] == "https://tools.example/crib"
    assert App().auth_routes() == ()


async def test_each_path_has_issuers_and_tokens_of_its_own() -> None:
    ours, theirs = FakeIssuer("https://login.example/ours"), FakeIssuer("https://login.example/theirs")
    issuers = (IssuerOptions(issuer=ours.url, path="/ours"), IssuerOptions(issuer=theirs.url, path="/theirs"))
    http_options = HttpOptions(host="0.0.0.0", allowed_hosts=HOSTS)
    oauth = OAuthResource(AuthOptions(resource=RESOURCE, issuers=issuers), http_options, fetch=FakeNet(ours, theirs))
    app = App(Settings(http=http_options), authenticator=oauth)
    with anyio.fail_after(10):
        async with app:
            async with served(app) as http:
                metadata = (await http.get(f"{METADATA}/ours")).json()
                assert metadata["resource"] == "https://tools.example/ours"
                assert metadata["authorization_servers"] == [ours.url]
                mine = {**JSON, **token(ours.token(aud="https://tools.example/ours"))}
                both = {**JSON, **token(ours.token(aud=["https://tools.example/ours", "https://tools.example/theirs"]))}
                assert (await http.post("/ours", headers=mine, json=INITIALIZE)).status_code == 200
                assert (await http.post("/theirs", headers=mine, json=INITIALIZE)).status_code == 401
                assert (await http.post("/theirs", headers=both, json=INITIALIZE)).status_code == 401
                assert (await http.post("/mcp", headers=mine, json=INITIALIZE)).status_code == 401
                assert (await http.get(f"{METADATA}/mcp")).status_code == 404


def test_a_server_for_any_host_must_know_its_own_address() -> None:
    issuer = IssuerOptions(issuer="https://login.example")
    everywhere = HttpOptions(host="0.0.0.0")
    with pytest.raises(SettingsError, match=r"auth\.resource"):
        App(Settings(http=everywhere, auth=AuthOptions(issuers=(issuer,)))).asgi()
    assert App(Settings(http=everywhere, auth=AuthOptions(issuers=(issuer,), resource=RESOURCE))).asgi().path == "/mcp"
    named = IssuerOptions(issuer="https://login.example", audience=("api://tools",))
    assert App(Settings(http=everywhere, auth=AuthOptions(issuers=(named,)))).asgi().path == "/mcp"


async def test_on_this_machine_the_port_belongs_to_the_address() -> None:
    login = FakeIssuer()
    oauth = OAuthResource(AuthOptions(issuers=(IssuerOptions(issuer=login.url),)), fetch=FakeNet(login))
    with anyio.fail_after(10):
        async with App(authenticator=oauth) as app:
            async with at_address(app.asgi()) as address, httpx2.AsyncClient(base_url=address) as http:
                mine = {**JSON, **token(login.token(aud=f"{address}/mcp"))}
                assert (await http.post("/mcp", headers=mine, json=INITIALIZE)).status_code == 200
                other = {**JSON, **token(login.token(aud="http://127.0.0.1:9/mcp")), "host": "127.0.0.1:9"}
                assert (await http.post("/mcp", headers=other, json=INITIALIZE)).status_code == 401


# -- beside other credentials, and inside other authenticators ---------------------------------------------------------


async def test_static_tokens_work_beside_issuers() -> None:
    auth = AuthOptions(issuers=(IssuerOptions(issuer="https://login.example"),), resource=RESOURCE)
    static = Token(secret="a static token", caller="robot")
    app = App(Settings(http=HttpOptions(host="0.0.0.0", tokens=(static,)), auth=auth))
    with anyio.fail_after(10):
        async with app:
            async with served(app) as http:
                known = {**JSON, **token("a static token")}
                assert (await http.post("/mcp", headers=known, json=INITIALIZE)).status_code == 200
                refused = await http.post("/mcp", headers={**JSON, **token("nonsense")}, json=INITIALIZE)
                assert refused.status_code == 401
                assert "resource_metadata" in refused.headers["www-authenticate"]


async def test_your_own_authenticator_can_use_it() -> None:
    login = FakeIssuer()
    oauth = OAuthResource(
        AuthOptions(resource=RESOURCE, issuers=(IssuerOptions(issuer=login.url),)), fetch=FakeNet(login)
    )

    class Mine:
        async def authenticate(self, headers: Mapping[str, str]) -> Caller:
            if headers.get("x-robot") == "yes":
                return Caller(id="robot")
            return await oauth.authenticate(headers)

        def challenge(self, error: NotAuthenticated) -> str:
            return oauth.challenge(error)

    with anyio.fail_after(10):
        async with App(Settings(http=HttpOptions(host="0.0.0.0")), authenticator=Mine()) as app:
            async with served(app) as http:
                for headers, status in (({"x-robot": "yes"}, 200), (token(login.token()), 200), ({}, 401)):
                    answer = await http.post("/mcp", headers={**JSON, **headers}, json=INITIALIZE)
                    assert answer.status_code == status
                assert METADATA in answer.headers["www-authenticate"]


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_a_stream_ends_with_its_token() -> None:
    login = FakeIssuer()
    oauth = OAuthResource(AuthOptions(issuers=(IssuerOptions(issuer=login.url),), leeway_s=0), fetch=FakeNet(login))
    with anyio.fail_after(20):
        async with App(authenticator=oauth) as app:
            async with at_address(app.asgi()) as address, httpx2.AsyncClient(base_url=address) as http:
                short = token(login.token(aud=f"{address}/mcp", exp=int(time.time()) + 2))
                opened = await http.post("/mcp", headers={**JSON, **short}, json=INITIALIZE)
                session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
                headers = {**short, **session, "accept": "text/event-stream"}
                async with http.stream("GET", "/mcp", headers=headers) as stream:
                    assert stream.status_code == 200
                    assert [line async for line in stream.aiter_lines() if line.startswith("data: {")] == []
                assert time.time() >= int(time.time())
                again = await http.post("/mcp", headers={**JSON, **short, **session}, json={"jsonrpc": "2.0", "id": 2})
                assert again.status_code == 401


@pytest.mark.parametrize("step_up", [False, True])
async def test_a_subscription_ends_with_its_token(step_up: bool) -> None:
    login = FakeIssuer()
    auth = AuthOptions(issuers=(IssuerOptions(issuer=login.url),), leeway_s=0, step_up=step_up)
    version = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    listen = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "subscriptions/listen",
        "params": {"notifications": {"toolsListChanged": True}, "_meta": meta},
    }
    with anyio.fail_after(20):
        async with App(authenticator=OAuthResource(auth, fetch=FakeNet(login))) as app:
            async with at_address(app.asgi()) as address, httpx2.AsyncClient(base_url=address) as http:
                short = token(login.token(aud=f"{address}/mcp", exp=int(time.time()) + 2))
                headers = {**JSON, **short, "mcp-protocol-version": version, "mcp-method": "subscriptions/listen"}
                async with http.stream("POST", "/mcp", headers=headers, json=listen) as stream:
                    assert stream.status_code == 200
                    async for _ in stream.aiter_lines():
                        pass


async def test_other_issuers_apply_without_a_restart_and_end_open_streams() -> None:
    before, after = FakeIssuer("https://a.example"), FakeIssuer("https://b.example")

    def settings(login: FakeIssuer) -> Settings:
        auth = AuthOptions(resource=RESOURCE, issuers=(IssuerOptions(issuer=login.url, audience=("here",)),))
        return Settings(auth=auth)

    with anyio.fail_after(20):
        async with App(settings(before)) as app:
            async with at_address(app.asgi()) as address, httpx2.AsyncClient(base_url=address) as http:
                app._credentials._oauth._realms[""].issuers[before.url]._keys._fetch = FakeNet(before)
                old = {**JSON, **token(before.token(aud="here"))}
                opened = await http.post("/mcp", headers=old, json=INITIALIZE)
                session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
                async with http.stream("GET", "/mcp", headers={**old, **session}) as stream:
                    assert stream.status_code == 200
                    change = await app.reload(settings(after))
                    assert change.tokens
                    assert [line async for line in stream.aiter_lines() if line.startswith("data: {")] == []
                assert (await http.post("/mcp", headers=old, json=INITIALIZE)).status_code == 401
                app._credentials._oauth._realms[""].issuers[after.url]._keys._fetch = FakeNet(after)
                new = {**JSON, **token(after.token(aud="here"))}
                assert (await http.post("/mcp", headers=new, json=INITIALIZE)).status_code == 200
