"""Authorization servers that mean harm, or are broken: what they say leads nowhere, and ends no process."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.client.auth import AuthorizationCodeResult
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from tests.upstream.support import call, until
from tests.upstream.test_logins import ANN, HERE, MAIN, browse, failure_of, log_in, page_of, refusal_of, world

from toolcrib.errors import ServerUnavailable, UpstreamError
from toolcrib.types import ServerState
from toolcrib.upstream.logins.flows import Challenge, LoginFailed, OAuthClient, PersonFlow
from toolcrib.upstream.options import IdentityProviderOptions, OAuthClientOptions

pytestmark = pytest.mark.anyio

JSON = "application/json"
METADATA = "/.well-known/oauth-authorization-server"
CALLBACK = "http://127.0.0.1/oauth/callback"
TOKENS = {"access_token": "at-1", "token_type": "Bearer", "expires_in": 3600}


async def forever() -> AsyncIterator[bytes]:
    """A body that does not end before its reader has hung up."""
    for _ in range(1000):
        await anyio.lowlevel.checkpoint()
        yield b" " * 65536


REASONS = (
    "was dropped",
    "sent something that cannot be read",
    "was found",
    *(f"failed: HTTP {status}" for status in (307, 500, 503)),
)
BROKEN: dict[str, Callable[[], Response]] = {
    "an endless body": lambda: StreamingResponse(forever(), media_type=JSON),
    "a body of many levels": lambda: Response("[" * 100_000, media_type=JSON),
    "a page": lambda: HTMLResponse("<p>Sign in to the hotel's network"),
    "a list": lambda: JSONResponse([1]),
    "nothing": Response,
    "bytes that are no text": lambda: Response(b"\xff\xfe{", media_type=JSON),
    "a redirect to an address inside": lambda: RedirectResponse("http://169.254.169.254/latest"),
    "a redirect that is none": lambda: Response(status_code=307, headers={"location": "http://[::1"}),
    "an error": lambda: Response(status_code=503),
    "a page with an error": lambda: HTMLResponse("<p>main-secret", 500),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", [METADATA, "/register", "/token"])
async def test_an_answer_that_cannot_be_used_ends_the_login_with_a_reason_and_the_next_one_succeeds(
    path: str, answer: Callable[[], Response]
) -> None:
    async with world() as it, it.connected() as (server, service):
        page = await page_of(server) if path == "/token" else ""
        it.issuer.instead[path] = answer
        failure = await failure_of(server, service, page) if page else str(await refusal_of(server, HERE))
        assert failure.endswith(REASONS) or failure.endswith(tuple(f"{reason}." for reason in REASONS))
        del it.issuer.instead[path]
        await log_in(server, service)


@pytest.mark.parametrize(
    "change",
    [
        {"expires_in": "soon"},
        {"access_token": ""},
        {"access_token": "at\r\nx-evil: 1"},
        {"access_token": "\u2028"},
        {"access_token": "\ud800"},
        {"access_token": ["at"]},
        {"token_type": "mac"},
        {"refresh_token": 5},
        {"scope": ["a", "b"]},
        {"error": "invalid_grant"},
    ],
    ids=str,
)
@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials", "refresh"])
async def test_tokens_that_cannot_be_used_are_not_kept(grant: str, change: dict[str, Any]) -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        body = json.dumps({**TOKENS, **change})
        auth = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        own = grant == "client_credentials"
        async with it.connected(**auth, grant=grant if own else "authorization_code") as (server, service):
            if grant == "refresh":
                await log_in(server, service)
            page = "" if own or grant == "refresh" else await page_of(server)
            it.issuer.instead["/token"] = lambda: Response(body, media_type=JSON)
            it.issuer.expire_all()
            kept = {login and login.access_token for login in (await service.vault.all()).values()}
            if page:
                assert await failure_of(server, service, page)
            else:
                with pytest.raises(ServerUnavailable, match=r"no access token|login"):
                    await server.call_tool(HERE, "whoami", {})
            assert {login and login.access_token for login in (await service.vault.all()).values()} == kept


async def test_a_lifetime_that_no_clock_reaches_is_a_long_one() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        body = json.dumps({**TOKENS, "expires_in": 10**400})
        it.issuer.instead["/token"] = lambda: Response(body, media_type=JSON)
        it.issuer.accept("at-1", it.protected.url)
        auth = {"client_id": "main", "client_secret": "main-secret"}
        async with it.connected(**auth, grant="client_credentials") as (server, _):
            assert not (await call(server, "whoami", HERE)).is_error
        async with it.connected(**auth) as (server, service):
            await log_in(server, service)
            assert not (await call(server, "whoami", HERE)).is_error


async def test_a_secret_that_came_with_a_registration_is_shown_to_no_one() -> None:
    async with world() as it, it.connected() as (server, service):
        given = {
            "client_id": "new",
            "client_secret": "secret-of-new",
            "token_endpoint_auth_method": "client_secret_post",
        }
        it.issuer.instead["/register"] = lambda: JSONResponse(given, 201)
        it.issuer.clients["new"] = replace(MAIN, client_id="new", client_secret="secret-of-new")
        page = await page_of(server)
        said = {"error": "invalid_client", "error_description": "secret-of-new is wrong"}
        it.issuer.instead["/token"] = lambda: JSONResponse(said, 401)
        assert await failure_of(server, service, page) == "Token exchange failed: invalid_client: *** is wrong"


async def test_a_registration_that_has_expired_is_not_used_again() -> None:
    async with world() as it:
        async with it.connected() as (server, service):
            await log_in(server, service)
            (key, login), *_ = (await service.vault.all()).items()
            assert login is not None
            client = {**login.client, "client_secret": "old", "client_secret_expires_at": 1, "redirect_uris": []}
            await service.vault.save(
                key, replace(login, client=client, problem="its authorization server has ended it")
            )
        async with it.connected() as (server, service):
            await log_in(server, service)
        assert it.issuer.count("/register") == 2


@pytest.mark.parametrize("status", [404, 405, 410])
async def test_a_login_survives_that_its_authorization_server_moves_its_token_endpoint(status: int) -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        it.issuer.expire_all()
        it.issuer.instead["/token"] = lambda: Response(status_code=status)
        with pytest.raises(ServerUnavailable, match=f"HTTP {status}"):
            await server.call_tool(HERE, "whoami", {})
        it.issuer.metadata = {"token_endpoint": f"{it.issuer.issuer}/moved"}
        it.issuer.instead["/moved"] = lambda: JSONResponse(TOKENS)
        it.issuer.accept("at-1", it.protected.url)
        assert not (await call(server, "whoami", HERE)).is_error
        assert it.issuer.count("/authorize") == 1


@pytest.mark.parametrize("where", ["address", "scopes"])
async def test_no_one_gets_an_endless_address_to_read(where: str) -> None:
    async with world(scopes=("x" * 9000,) if where == "scopes" else ()) as it:
        if where == "address":
            it.issuer.metadata = {"authorization_endpoint": f"{it.issuer.issuer}/{'x' * 9000}"}
        async with it.connected() as (server, _):
            refused = await refusal_of(server, HERE)
        assert "longer than 8,192 characters" in str(refused)
        assert "url" not in refused.data


async def test_a_server_cannot_have_ever_more_scopes_asked_for() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        auth = {"grant": "client_credentials", "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(**auth) as (server, _):
            for number in range(4):
                it.protected.needed = {"echo": f"{number}{'x' * 1500}"}
                with suppress(ServerUnavailable, UpstreamError):
                    await server.call_tool(HERE, "echo", {})
        asked = [len(form["scope"]) for _, form in it.issuer.requests if "scope" in form]
        assert asked
        assert max(asked) < 4096


@pytest.mark.parametrize(("status", "arrives"), [(307, True), (308, True), (302, False)])
async def test_a_redirect_is_followed_within_a_server_if_it_keeps_the_request(status: int, arrives: bool) -> None:
    async with world() as it, it.connected() as (server, service):
        page = await page_of(server)
        it.issuer.instead["/token"] = lambda: RedirectResponse("/elsewhere", status)
        it.issuer.instead["/elsewhere"] = lambda: JSONResponse(TOKENS)
        it.issuer.accept("at-1", it.protected.url)
        if arrives:
            await browse(page)
            await service.wait_ended(HERE, server.options, 10)
            await until(server, lambda: server.status.state is ServerState.READY)
        else:
            assert await failure_of(server, service, page) == f"Token exchange failed: HTTP {status}"


async def test_a_redirect_takes_no_code_to_another_server() -> None:
    async with world() as it, world() as other, it.connected() as (server, service):
        page = await page_of(server)
        it.issuer.instead["/token"] = lambda: RedirectResponse(f"{other.issuer.issuer}/token", 307)
        assert await failure_of(server, service, page) == "Token exchange failed: HTTP 307"
        assert other.issuer.requests == []


@pytest.mark.parametrize("grant", ["token_exchange", "identity_assertion"])
async def test_a_callers_token_goes_to_no_other_host_than_that_of_the_settings(grant: str) -> None:
    async with world() as it, world() as other:
        it.issuer.clients["main"] = replace(MAIN)
        auth: dict[str, Any] = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        if grant == "identity_assertion":
            vouching = IdentityProviderOptions(issuer=it.issuer.issuer, client_id="gateway", client_secret="s" * 8)
            auth["identity_provider"] = vouching
        async with it.connected(**auth, grant=grant) as (server, _):
            it.issuer.metadata = {"token_endpoint": f"{other.issuer.issuer}/token"}
            with pytest.raises(ServerUnavailable, match="not on the origin of the configured issuer"):
                await server.call_tool(replace(ANN, token="token-of-ann"), "whoami", {})
        assert not [form for _, form in other.issuer.requests if "token-of-ann" in form.values()]


@pytest.mark.parametrize("status", [500, 429])
async def test_a_server_that_cannot_say_who_gives_its_tokens_does_not_pass_for_one_of_2025_03_26(status: int) -> None:
    async with world() as it:
        it.protected.instead = lambda: Response(status_code=status)
        async with it.connected() as (server, _):
            assert f"Protected resource metadata request failed: HTTP {status}" in str(await refusal_of(server, HERE))


async def test_redirects_that_lead_in_a_circle_end() -> None:
    async with world() as it, it.connected() as (server, service):
        page = await page_of(server)
        it.issuer.instead["/token"] = lambda: RedirectResponse("/token", 307)
        assert await failure_of(server, service, page) == "Token exchange failed: HTTP 307"


@pytest.mark.parametrize("address", ["http://169.254.169.254/latest", "https://10.0.0.1/x", "file:///etc/passwd", "x"])
async def test_a_challenge_cannot_lead_requests_into_the_private_network(address: str) -> None:
    async with world() as it:
        challenge = Challenge(401, f'Bearer resource_metadata="{address}"')
        with pytest.raises(LoginFailed, match="cannot be used"):
            await PersonFlow(OAuthClient(it.server(), OAuthClientOptions())).log_in(challenge, CALLBACK, no_one)
        assert it.issuer.requests == []


async def no_one(page: str) -> AuthorizationCodeResult:
    raise AssertionError(page)
