"""Signing in to the console at an authorization server, and attempts to get in without one."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import httpx2
import pytest
from authlib.oauth2.rfc6749 import OAuth2Request
from starlette.responses import Response
from tests.console.support import ADDRESS, TOKENS, Browser, console_app
from tests.fixtures.servers.authorization import Client
from tests.server.issuer import FakeIssuer, FakeNet
from tests.server.test_oauth_login import JwtIssuer
from tests.upstream.support import serving

from toolcrib.console.sign_in import OidcSignIn
from toolcrib.errors import NotAuthenticated, ServerUnavailable
from toolcrib.options import AuthOptions, HttpOptions, IssuerOptions
from toolcrib.server.auth.oauth import ExternalAddress
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Caller

pytestmark = pytest.mark.anyio

CALLBACK = f"http://{ADDRESS}/sign-in/callback"


class OidcIssuer(JwtIssuer):
    """The authorization server, with ID tokens; `claims` are added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, Any] = {"roles": ["console"]}
        secret = "secret-of-the-console"
        self.clients["console"] = Client(
            client_id="console", client_secret=secret, redirect_uris=[CALLBACK], method="client_secret_basic"
        )

    def save_token(self, token: Mapping[str, Any], request: OAuth2Request) -> None:
        super().save_token(token, request)
        nonce = next(asked["nonce"] for path, asked in reversed(self.requests) if path == "/authorize")
        claims = {"iss": self.issuer, "sub": "ann", "aud": "console", "nonce": nonce, **self.claims}
        assert isinstance(token, dict)
        token["id_token"] = self.signer.token(claims=claims)


@contextlib.asynccontextmanager
async def at_sign_in(
    next_page: str = "/usage", *, names_itself: bool = True
) -> AsyncIterator[tuple[OidcIssuer, Browser, str]]:
    """The issuer, a browser, and the address to which the console sent it to sign in."""
    issuer = OidcIssuer()
    async with serving(issuer.app) as login:
        issuer.issuer = login
        named = {"authorization_response_iss_parameter_supported": names_itself}
        issuer.metadata = {"jwks_uri": f"{login}/keys", **named}
        options = IssuerOptions(
            issuer=login, client_id="console", client_secret="secret-of-the-console", sign_in=True, tenant="acme"
        )
        auth = AuthOptions(issuers=(options,), resource="https://tools.example/mcp", private_hosts=("127.0.0.1",))
        async with Browser(console_app(tokens=TOKENS, settings={"auth": auth})) as browser:
            page = (await browser.get("/sign-in")).text
            assert "Sign in at 127.0.0.1" in page
            sent = await browser.get(f"/sign-in/at?{urlencode({'issuer': login, 'next': next_page})}")
            assert sent.status_code == 303
            yield issuer, browser, sent.headers["location"]


async def consent(url: str) -> str:
    """Agree at the issuer; the path on the console that it leads back to."""
    async with httpx2.AsyncClient(trust_env=False) as person:
        back = (await person.get(url)).headers["location"]
    assert back.startswith(CALLBACK)
    return str(back.removeprefix(f"http://{ADDRESS}"))


async def test_a_person_with_the_role_signs_in_and_comes_to_the_page_they_wanted() -> None:
    with anyio.fail_after(20):
        async with at_sign_in() as (_, browser, url):
            asked = parse_qs(urlsplit(url).query)
            assert (asked["code_challenge_method"], asked["scope"]) == (["S256"], ["openid"])
            signed_in = await browser.get(await consent(url))
            assert (signed_in.status_code, signed_in.headers["refresh"]) == (200, "0; url=/usage")
            assert "samesite=strict" in signed_in.headers["set-cookie"].casefold()
            assert "ann" in await browser.load("/")


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "/\r\nset-cookie: x", "/\t/evil.example"]
)
async def test_it_never_leads_to_another_site(target: str) -> None:
    with anyio.fail_after(20):
        async with at_sign_in(target) as (_, browser, url):
            signed_in = await browser.get(await consent(url))
            assert "evil" not in signed_in.headers["refresh"]
            assert 'href="/">Continue' in signed_in.text
            assert "\n" not in signed_in.headers["refresh"]


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"roles": []}, "may not use the console"),
        ({"nonce": "another"}, "Signing in failed"),
        ({"aud": "another"}, "Signing in failed"),
        ({"aud": ["console", "another"], "azp": "another"}, "Signing in failed"),
        ({"iss": "https://evil.example"}, "not valid"),
        ({"exp": 1}, "has expired"),
    ],
)
async def test_an_id_token_that_does_not_fit_opens_nothing(claims: dict[str, Any], reason: str) -> None:
    with anyio.fail_after(20):
        async with at_sign_in() as (issuer, browser, url):
            issuer.claims |= claims
            refused = await browser.get(await consent(url))
            assert refused.status_code == 401
            assert reason in refused.text
            assert (await browser.get("/")).status_code == 303


async def test_an_attempt_belongs_to_its_browser_and_can_be_used_once() -> None:
    with anyio.fail_after(20):
        async with at_sign_in() as (_, browser, url):
            back = await consent(url)
            state = browser.cookies.pop("toolcrib_sign_in")
            assert "not started in this browser" in (await browser.get(back)).text
            browser.cookies["toolcrib_sign_in"] = state
            assert (await browser.get(back)).status_code == 200
            browser.cookies.clear()
            browser.cookies["toolcrib_sign_in"] = state
            assert "has expired" in (await browser.get(back)).text


async def test_an_answer_of_another_issuer_is_refused() -> None:
    with anyio.fail_after(20):
        async with at_sign_in() as (_, browser, url):
            back = await consent(url)
            mixed = f"{back.partition('&iss=')[0]}&iss=https%3A%2F%2Fevil.example"
            assert (await browser.get(mixed)).status_code == 401


@pytest.mark.parametrize("cookie", ["", "nonsense", "e30=", "W10=", "eyJpc3N1ZXIiOiAxfQ==", "bnVsbA==", "%ff", "é"])
async def test_a_cookie_that_is_no_attempt_opens_nothing(cookie: str) -> None:
    with anyio.fail_after(20):
        async with at_sign_in() as (_, browser, url):
            back = await consent(url)
            browser.cookies.clear()
            refused = await browser.get(back, headers={b"cookie": f"toolcrib_sign_in={cookie}".encode()})
            assert (refused.status_code, "not started in this browser" in refused.text) == (401, True)


class SignIns:
    """Signing in at an issuer in memory, which counts what it is asked."""

    def __init__(self) -> None:
        self.login = FakeIssuer()
        self.net = FakeNet(self.login)
        self.answer: dict[str, Any] = {}
        options = IssuerOptions(issuer=self.login.url, client_id="console", sign_in=True, tenant="acme")
        self.oidc = OidcSignIn(AuthOptions(issuers=(options,)), MemoryStore(), fetch=self)

    async def __call__(self, url: str, form: Mapping[str, str] | None = None, auth: Any = None) -> Any:
        if url == f"{self.login.url}/token" and not self.login.is_down:
            self.net.asked.append(url)
            return self.answer
        found = await self.net(url, form, auth)
        if "issuer" in found:
            return {
                **found,
                "authorization_endpoint": "https://login.example/a",
                "token_endpoint": f"{self.login.url}/token",
            }
        return found


async def test_a_flood_of_attempts_asks_the_issuer_once_and_stores_nothing() -> None:
    it = SignIns()
    for _ in range(200):
        await it.oidc.begin(it.login.url, CALLBACK, "/")
    assert len(it.net.asked) == 1


async def test_an_issuer_that_is_away_is_not_asked_at_every_attempt() -> None:
    it = SignIns()
    it.login.is_down = True
    for _ in range(20):
        with pytest.raises(ServerUnavailable):
            await it.oidc.begin(it.login.url, CALLBACK, "/")
    assert len(it.net.asked) == 2  # both addresses of the metadata, once


async def test_an_address_that_makes_up_codes_may_soon_try_no_more() -> None:
    with anyio.fail_after(20):
        async with at_sign_in() as (issuer, browser, url):
            back = await consent(url)
            made_up = back.replace("code=", "code=x")
            for _ in range(10):
                assert "Signing in failed" in (await browser.get(made_up)).text
            assert (await browser.get(back)).status_code == 429
            assert issuer.count("/token") == 10


async def test_behind_a_trusted_proxy_each_client_has_attempts_of_its_own() -> None:
    scope = {"type": "http", "client": ("10.0.0.7", 1), "headers": [(b"x-forwarded-for", b"6.6.6.6, 192.0.2.1")]}
    assert ExternalAddress(HttpOptions(trusted_proxies=("10.0.0.0/8",))).client(scope) == "192.0.2.1"
    assert ExternalAddress(HttpOptions()).client(scope) == "10.0.0.7"
    assert ExternalAddress(HttpOptions()).client({**scope, "client": None}) == ""


async def test_an_issuer_that_says_it_names_itself_must_do_so() -> None:
    with anyio.fail_after(20):
        async with at_sign_in() as (issuer, browser, url):
            back = (await consent(url)).partition("&iss=")[0]
            assert "Signing in failed" in (await browser.get(back)).text
            assert issuer.count("/token") == 0
    with anyio.fail_after(20):
        async with at_sign_in(names_itself=False) as (issuer, browser, url):
            back = (await consent(url)).partition("&iss=")[0]
            assert (await browser.get(back)).status_code == 200


ANN = Caller(id="ann", tenant="acme", issuer="https://login.example/acme", roles=frozenset({"console"}))


async def test_a_renewal_takes_over_what_the_issuer_says_now() -> None:
    it = SignIns()
    it.answer = {"id_token": it.login.token(aud="console", roles=["admin"]), "refresh_token": "second"}
    person = await it.oidc.renew(ANN, "first")
    assert (person.caller.key, person.caller.roles, person.refresh_token) == (ANN.key, frozenset({"admin"}), "second")
    it.answer = {"access_token": "opaque", "expires_in": 60}
    person = await it.oidc.renew(ANN, "first")
    assert (person.caller, person.refresh_token) == (ANN, "first")


@pytest.mark.parametrize(
    "claims",
    [{"sub": "eve"}, {"aud": "another"}, {"iss": "https://evil.example"}, {"exp": 1}, {"azp": "x", "aud": "console"}],
)
async def test_a_renewal_that_is_for_someone_or_something_else_is_refused(claims: dict[str, Any]) -> None:
    it = SignIns()
    it.answer = {"id_token": it.login.token(**{"aud": "console", **claims})}
    with pytest.raises(NotAuthenticated):
        await it.oidc.renew(ANN, "first")


async def test_a_refresh_token_that_the_issuer_refuses_ends_the_session_and_one_that_is_away_does_not() -> None:
    issuer = OidcIssuer()
    with anyio.fail_after(20):
        async with serving(issuer.app) as login:
            issuer.issuer = login
            issuer.metadata = {"jwks_uri": f"{login}/keys"}
            options = IssuerOptions(
                issuer=login, client_id="console", client_secret="secret-of-the-console", sign_in=True
            )
            auth = AuthOptions(issuers=(options,), private_hosts=("127.0.0.1",))
            oidc = OidcSignIn(auth, MemoryStore())
            url, cookie = await oidc.begin(login, CALLBACK, "/")
            answer = {name: values[0] for name, values in parse_qs(urlsplit(await consent(url)).query).items()}
            person, _ = await oidc.finish(answer, cookie)
            assert person.refresh_token
            person = await oidc.renew(person.caller, person.refresh_token)
            issuer.before_token = lambda _: Response(status_code=503)
            with pytest.raises(ServerUnavailable):
                await oidc.renew(person.caller, person.refresh_token)
            issuer.before_token = lambda _: None
            issuer.families[0].revoked = True
            with pytest.raises(NotAuthenticated):
                await oidc.renew(person.caller, person.refresh_token)


async def test_no_one_is_sent_to_an_issuer_that_the_settings_do_not_name() -> None:
    async with Browser(console_app(tokens=TOKENS)) as browser:
        refused = await browser.get("/sign-in/at?issuer=https%3A%2F%2Fevil.example")
        assert refused.status_code == 401
        assert "location" not in refused.headers
