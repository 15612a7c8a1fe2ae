"""Servers behind OAuth: logins, their tokens, and what callers see while a login is missing."""

import asyncio
import base64
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt import decode
from starlette.responses import JSONResponse, Response
from tests.fixtures.servers.authorization import Client, Issuer, ProtectedServer
from tests.upstream.support import FAST, call, serving, until

from toolcrib.errors import InvalidRequest, LoginRequired, ServerUnavailable, SettingsError, UpstreamError
from toolcrib.protocol.failures import ExchangeError
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.types import LOCAL, Caller, Context, ServerState
from toolcrib.upstream.fleet import Fleet
from toolcrib.upstream.guarded_fetch import GuardedFetch, TrustedHosts
from toolcrib.upstream.logins.flows import Challenge
from toolcrib.upstream.logins.oauth import StoredLogin
from toolcrib.upstream.logins.service import PAGE_PATH, LoginService
from toolcrib.upstream.logins.vault import LoginVault, Sealer, VaultKeyError, find_sealer
from toolcrib.upstream.options import FleetOptions, LoginOptions, OAuthClientOptions, ServerOptions
from toolcrib.upstream.remote_server import RemoteServer
from toolcrib.upstream.transports.http_requests import LoginNeeded

HERE = Context(caller=LOCAL)
ANN = Context(caller=Caller(id="ann", tenant="acme"))
BOB = Context(caller=Caller(id="bob", tenant="acme"))
KEY = "k" * 32
PUBLIC = LoginOptions(key=KEY, public_url="http://127.0.0.1:1")
MAIN = Client(client_id="main", client_secret="main-secret", method="client_secret_basic")


@dataclass
class World:
    """A protected server, its authorization server, and what toolcrib keeps of both."""

    issuer: Issuer
    protected: ProtectedServer
    store: StateStore = field(default_factory=MemoryStore)
    options: FleetOptions = field(default_factory=lambda: replace(FAST, logins=LoginOptions(key=KEY)))

    def server(self, **auth: Any) -> ServerOptions:
        return ServerOptions(name="guarded", url=self.protected.url, auth=OAuthClientOptions(**auth))

    @asynccontextmanager
    async def connected(self, **auth: Any) -> AsyncIterator[tuple[RemoteServer, LoginService]]:
        """The server in a fleet, settled."""
        service = LoginService(self.store, self.options.logins)
        async with Fleet(self.options, make_logins=lambda: service) as fleet:
            await fleet.apply([self.server(**auth)])
            await fleet.settled()
            yield fleet.server("guarded"), service

    def stored(self, ctx: Context = HERE, **auth: Any) -> StoredLogin:
        """The login as another process sees it."""
        found = LoginService(self.store, self.options.logins).credentials(self.server(**auth), ctx.caller)
        assert isinstance(found, StoredLogin)
        return found


@asynccontextmanager
async def world(limit_s: float = 60, **issuer: Any) -> AsyncIterator[World]:
    made = Issuer(**issuer)
    protected = ProtectedServer(made)
    with anyio.fail_after(limit_s):
        async with serving(made.app) as address, serving(protected.app) as origin:
            made.issuer, protected.url = address, f"{origin}/mcp"
            yield World(made, protected)


async def browse(url: str) -> httpx2.Response:
    """Do what a person's browser does: open the login page, and follow it back."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        return await browser.get(url)


async def page_of(server: RemoteServer, ctx: Context = HERE) -> str:
    """The address of the login page that a call is refused with."""
    return str((await refusal_of(server, ctx)).data["url"])


async def refusal_of(server: RemoteServer, ctx: Context) -> LoginRequired:
    """The error of a call that needs a login."""
    with pytest.raises(LoginRequired) as refused:
        await server.call_tool(ctx, "whoami", {})
    return refused.value


async def log_in(server: RemoteServer, service: LoginService) -> None:
    """Log in at the address in the error, and wait until the server is connected."""
    page = await browse(await page_of(server))
    assert page.status_code == 200, page.text
    await service.wait_ended(HERE, server.options, 10)
    await until(server, lambda: server.status.state is ServerState.READY)


async def failure_of(server: RemoteServer, service: LoginService, url: str) -> str:
    """Why a login fails whose page is opened."""
    pending = next(iter(service._pending.values()))
    await browse(url)
    await pending.done.wait()
    assert server.status.state is ServerState.NEEDS_LOGIN
    return pending.failure


# -- logging in --------------------------------------------------------------------------------------------------------


async def test_a_server_that_needs_a_login_says_so_and_is_connected_after_it() -> None:
    async with world() as it, it.connected() as (server, service):
        assert server.status.state is ServerState.NEEDS_LOGIN
        await log_in(server, service)
        assert (await call(server, "whoami", HERE)).text == "ann"


async def test_a_login_lasts_longer_than_the_process(tmp_path: Path) -> None:
    async with world() as it:
        for expected in (ServerState.NEEDS_LOGIN, ServerState.READY):
            async with SqliteStore(tmp_path / "state.sqlite") as it.store, it.connected() as (server, service):
                assert server.status.state is expected
                if expected is ServerState.NEEDS_LOGIN:
                    await log_in(server, service)
        assert it.issuer.count("/authorize") == 1


async def test_a_login_of_another_process_is_taken_up() -> None:
    async with world() as it, it.connected() as (server, _), it.connected() as (other, service):
        await log_in(other, service)
        await until(server, lambda: server.status.state is ServerState.READY)
        assert (await call(server, "whoami", HERE)).text == "ann"


async def test_neither_tokens_nor_secrets_are_in_the_state_file_or_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "state.sqlite"
    async with world() as it:
        async with SqliteStore(path) as it.store, it.connected() as (server, service):
            await log_in(server, service)
            await call(server, "whoami", HERE)
            it.issuer.expire_all()
            await call(server, "whoami", HERE)
        tokens = [*it.issuer.tokens, *(token.refresh_token for token in it.issuer.tokens.values())]
    kept = b"".join([file.read_bytes() for file in sorted(tmp_path.glob("*"))])  # noqa: ASYNC240 - a test
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("authlib")]
    assert len(tokens) >= 4
    assert [token for token in tokens if token.encode() in kept or token in str(logged)] == []


async def test_a_server_that_repeats_its_token_has_it_shown_to_no_one(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        it.protected.repeats = True
        with caplog.at_level(logging.DEBUG, "toolcrib"), pytest.raises(UpstreamError) as refused:
            await server.call_tool(HERE, "whoami", {})
        assert "no room for ***" in str(refused.value)
        shown = f"{refused.value} {refused.value.data} {caplog.text}"
        assert not [token for token in it.issuer.tokens if token in shown]


async def test_an_authorization_server_that_repeats_secrets_has_them_shown_to_no_one() -> None:
    def repeat(form: Mapping[str, str]) -> Response:
        said = f"cannot use {form['code']}, {form['code_verifier']} of main-secret"
        return JSONResponse({"error": "invalid_grant", "error_description": said}, 400)

    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        auth = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(**auth) as (server, service):
            it.issuer.before_token = repeat
            failure = await failure_of(server, service, await page_of(server))
    assert failure.endswith("invalid_grant: cannot use ***, *** of ***")


async def test_the_tools_of_a_login_that_ended_stay_listed_and_the_next_login_continues() -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        it.issuer.families[0].revoked = True
        url = await page_of(server)
        await until(server, lambda: server.status.state is ServerState.NEEDS_LOGIN)
        assert [tool.name for tool in server.tools] == ["whoami", "echo"]
        assert server.status.stale
        await browse(url)
        await service.wait_ended(HERE, server.options, 10)
        await until(server, lambda: server.status.state is ServerState.READY)
        assert (await call(server, "whoami", HERE)).text == "ann"


async def test_a_login_that_ends_is_revoked() -> None:
    async with world() as it:
        async with it.connected() as (server, service):
            await log_in(server, service)
        assert await it.stored().log_out()
        assert it.issuer.families[0].revoked
        assert await it.stored().current() is None


async def test_more_rights_are_asked_for_when_a_tool_needs_them() -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        it.protected.needed = {"echo": "write"}
        assert (await call(server, "whoami", HERE)).text == "ann"
        with pytest.raises(LoginRequired, match="more rights: write") as refused:
            await server.call_tool(HERE, "echo", {})
        await browse(refused.value.data["url"])
        await service.wait_ended(HERE, server.options, 10)
        assert (await call(server, "echo", HERE)).text == "ann"
        assert server.status.state is ServerState.READY


async def test_a_server_that_is_never_satisfied_asks_for_a_login_once() -> None:
    async with world() as it, it.connected(scopes=("read",)) as (server, service):
        await log_in(server, service)
        it.protected.needed = {"echo": "write"}
        it.protected.grants = "read"
        with pytest.raises(LoginRequired) as refused:
            await server.call_tool(HERE, "echo", {})
        await browse(refused.value.data["url"])
        await service.wait_ended(HERE, server.options, 10)
        with pytest.raises(Exception, match="403"):
            await server.call_tool(HERE, "echo", {})


async def test_a_registered_client_signs_in_with_its_secret() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        async with it.connected(client_id="main", client_secret="main-secret", scopes=("read",)) as (server, service):
            await log_in(server, service)
            it.issuer.expire_all()
            assert (await call(server, "whoami", HERE)).text == "ann"
        assert it.issuer.count("/register") == 0
        assert it.issuer.families[0].scope == "read"


# -- who may log in ----------------------------------------------------------------------------------------------------


async def test_only_a_caller_of_this_machine_may_log_in_for_all() -> None:
    async with world() as it, it.connected() as (server, service):
        with pytest.raises(LoginRequired, match="`toolcrib login guarded`") as refused:
            await server.call_tool(ANN, "whoami", {})
        assert "url" not in refused.value.data
        assert not service._pending


async def test_callers_with_their_own_logins_work_with_their_own_tokens() -> None:
    async with world() as it:
        it.options = replace(it.options, logins=PUBLIC)
        async with it.connected(per_caller=True) as (server, service):
            it.issuer.user = "operator"
            assert "toolcrib login guarded`" in (await refusal_of(server, BOB)).hint
            url = await page_of(server)
            await deliver(service, url)
            await until(server, lambda: server.status.state is ServerState.READY)
            for ctx in (ANN, BOB):
                it.issuer.user = ctx.caller.id
                await deliver(service, await page_of(server, ctx))
                await service.wait_ended(ctx, server.options, 10)
                assert (await call(server, "whoami", ctx)).text == ctx.caller.id
            assert (await call(server, "whoami", HERE)).text == "operator"
            assert len({login.principal for login in (await service.vault.all()).values() if login}) == 3
            assert await it.stored(per_caller=True).log_out()
            it.issuer.families[0].revoked = True
            assert (await call(server, "whoami", ANN)).text == "ann"


async def deliver(service: LoginService, url: str) -> None:
    """Log in with a browser that comes back to the public address, which leads here."""
    if f"{PAGE_PATH}/" in url:
        shown = await service.vault.page(url.rpartition("/")[2])
        assert shown is not None
        url = await service.confirm(shown, "cookie")
    async with httpx2.AsyncClient(trust_env=False) as browser:
        location = (await browser.get(url)).headers["location"]
    assert location.startswith(f"{service.options.public_url}/oauth/callback?")
    assert await service.deliver(dict(parse_qsl(urlsplit(location).query)), "cookie")


async def test_a_browser_may_come_back_to_any_process(tmp_path: Path) -> None:
    async with world() as it:
        it.options = replace(it.options, logins=PUBLIC)
        async with (
            SqliteStore(tmp_path / "state.sqlite") as it.store,
            SqliteStore(tmp_path / "state.sqlite") as elsewhere,
            it.connected() as (server, _),
        ):
            await deliver(LoginService(elsewhere, PUBLIC), await page_of(server))
            await until(server, lambda: server.status.state is ServerState.READY)
            assert (await call(server, "whoami", HERE)).is_error is False


async def test_an_authorization_server_that_takes_no_resource_is_not_sent_one() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        own: dict[str, Any] = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        own["resource"] = False
        async with it.connected(**own) as (server, service):
            await browse(await page_of(server))
            await service.wait_ended(HERE, server.options, 10)
            login = await it.stored(**own).current()
            assert login is not None
            await LoginVault(it.store, it.options.logins).refresh(it.stored().key, login, it.stored(**own)._fetch)
        for caller in (None, ANN.caller):
            exchange = it.server(grant="token_exchange", **own)
            tokens: Any = service.credentials(exchange, caller)
            tokens.present("token-of-ann", None)
            with suppress(ExchangeError):  # this one wants to know the resource for an exchange
                assert await tokens.answer(Challenge(), None) or await tokens.token()
        asked = [form for path, form in it.issuer.requests if path in ("/authorize", "/token")]
        grants = {form.get("grant_type", "").rpartition(":")[2] for form in asked}
        assert {"", "authorization_code", "refresh_token", "client_credentials", "token-exchange"} <= grants
        assert not [form for form in asked if "resource" in form]


# -- tokens without a person -------------------------------------------------------------------------------------------


async def test_toolcrib_uses_its_own_credentials() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        own = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(grant="client_credentials", **own) as (server, _):
            assert server.status.state is ServerState.READY
            it.issuer.expire_all()
            await call(server, "whoami", HERE)
            assert it.issuer.count("/token") == 2
        assert await LoginVault(it.store, it.options.logins).all() == {}


@pytest.mark.parametrize(("settings", "asked"), [((), "read write"), (("read",), "read")])
async def test_the_scopes_of_the_settings_are_asked_for_else_those_that_the_server_names(
    settings: tuple[str, ...], asked: str
) -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        it.protected.prm = {"scopes_supported": ["read", "write"]}
        own = {"client_id": "main", "client_secret": "main-secret", "scopes": settings}
        async with it.connected(grant="client_credentials", **own) as (server, _):
            assert server.status.state is ServerState.READY
        for _ in range(2):  # also when they log in again
            async with it.connected(**own) as (server, service):
                if server.status.state is ServerState.READY:
                    it.issuer.families[-1].revoked = True
                await log_in(server, service)
    assert {form["scope"] for path, form in it.issuer.requests if "scope" in form} == {asked}


async def test_a_private_key_signs_in_to_the_authorization_server_alone() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    async with world() as it:
        it.issuer.accept("at", it.protected.url)
        forms = list[Mapping[str, str]]()

        def take(form: Mapping[str, str]) -> Response:
            forms.append(form)
            return JSONResponse({"access_token": "at", "token_type": "Bearer"})

        it.issuer.before_token = take
        own = {"grant": "client_credentials", "client_id": "main", "private_key": pem}
        async with it.connected(**own) as (server, _):
            assert server.status.state is ServerState.READY
        (form,) = forms
        claims = decode(form["client_assertion"], key.public_key(), ["RS256"], audience=it.issuer.issuer)
        assert (claims["iss"], claims["sub"]) == ("main", "main")
        assert form["resource"] == it.protected.url


async def test_an_authorization_server_that_registers_no_clients_is_named_as_such() -> None:
    async with world() as it:
        it.issuer.metadata = {"registration_endpoint": None}
        async with it.connected() as (server, _):
            assert "registers no clients; register one there" in str(await refusal_of(server, HERE))
        async with it.connected(client_metadata_url="https://gateway.test") as (server, _):
            assert "client_metadata_url must be an https address with a path" in str(await refusal_of(server, HERE))


async def test_without_an_issuer_its_own_credentials_go_to_the_first_one_that_the_server_names() -> None:
    async with world() as it, world() as other:
        it.issuer.clients["main"] = other.issuer.clients["main"] = replace(MAIN)
        auth = {"grant": "client_credentials", "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(**auth) as (server, _):
            assert (await call(server, "whoami", HERE)).is_error is False
            it.protected.prm = {"authorization_servers": [other.issuer.issuer]}
            it.issuer.tokens.clear()
            with pytest.raises(ServerUnavailable, match="names another authorization server"):
                await server.call_tool(HERE, "whoami", {})
        assert other.issuer.count("/token") == 0


async def test_a_callers_token_is_exchanged_and_never_sent() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        own = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(grant="token_exchange", **own) as (server, _):
            first = replace(ANN, token="token-of-ann")
            for ctx in (first, first, replace(ANN, caller=Caller(id="bob"), token="token-of-bob")):
                assert (await call(server, "whoami", ctx)).text == ctx.token
            with pytest.raises(ServerUnavailable, match="has no token"):
                await server.call_tool(replace(ANN, caller=Caller(id="cid")), "whoami", {})
            named = replace(first, caller=replace(first.caller, issuer="https://login.test"))
            for ctx in (named, replace(named, token="")):
                assert (await call(server, "whoami", ctx)).text == "token-of-ann"
            impostor = replace(first, caller=replace(first.caller, issuer="https://evil.test"), token="")
            with pytest.raises(ServerUnavailable, match="has no token"):
                await server.call_tool(impostor, "whoami", {})
            with pytest.raises(ServerUnavailable, match="has no token"):
                await server.call_tool(replace(first, token=""), "whoami", {})
            local = await call(server, "whoami", replace(HERE, token="token-of-anyone"))
            assert local.text == "ann"
        assert not {"token-of-ann", "token-of-bob", "token-of-anyone"} & set(it.protected.seen)
        exchanged = [form for path, form in it.issuer.requests if "subject_token" in form]
        assert [form["subject_token"] for form in exchanged] == ["token-of-ann", "token-of-bob", "token-of-ann"]


async def test_a_call_never_uses_the_token_of_another_call_that_may_do_more() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        own = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        scopes = {"may-read": frozenset({"read"}), "may-write": frozenset({"read", "write"})}
        callers = [replace(ANN, caller=replace(ANN.caller, scopes=scopes[token]), token=token) for token in scopes]
        used = list[tuple[str, str]]()

        async def use(ctx: Context) -> None:
            used.append((ctx.token, (await call(server, "whoami", ctx)).text))

        async with it.connected(grant="token_exchange", **own) as (server, _):
            async with anyio.create_task_group() as group:
                for ctx in callers * 4:
                    group.start_soon(use, ctx)
        assert sorted(used) == [(token, token) for token in scopes for _ in range(4)]


async def test_where_tokens_are_exchanged_local_calls_use_the_gateways_own_credentials() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        own = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(grant="token_exchange", **own) as (server, _):
            assert not (await call(server, "whoami", HERE)).is_error
        assert not [form for path, form in it.issuer.requests if "subject_token" in form]


async def test_what_was_exchanged_for_an_earlier_token_does_not_stand_in_for_one_that_is_refused() -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        own = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(grant="token_exchange", **own) as (server, _):
            assert (await call(server, "whoami", replace(ANN, token="first"))).text == "first"
            it.issuer.clients.clear()
            for _ in range(2):
                with pytest.raises(ServerUnavailable, match="no access token"):
                    await server.call_tool(replace(ANN, token="second"), "whoami", {})


def jwt(**claims: Any) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join([*parts, "signature"])


async def test_a_callers_token_is_forwarded_only_if_it_was_issued_for_both() -> None:
    async with world() as it:
        both = ("https://gateway.test/mcp", it.protected.url)
        good = jwt(aud=list(both), sub="ann")
        it.issuer.accept(good, it.protected.url)
        it.issuer.accept("list", it.protected.url)
        options = replace(it.server(grant="forward", audience=both), headers={"Authorization": "Bearer list"})
        async with Fleet(it.options) as fleet:
            await fleet.apply([options])
            await fleet.settled()
            server = fleet.server("guarded")
            assert (await call(server, "whoami", replace(ANN, token=good))).text == "ann"
            refused = (jwt(aud=both[0]), jwt(aud=both[1]), jwt(sub="ann"), "opaque", "a.b.c")
            for number, token in enumerate(refused):
                with pytest.raises(ServerUnavailable, match="audience"):
                    await server.call_tool(Context(caller=Caller(id=str(number)), token=token), "whoami", {})
        assert set(it.protected.seen) == {"list", good}


# -- refreshing --------------------------------------------------------------------------------------------------------


async def test_a_token_is_refreshed_before_it_expires() -> None:
    async with world() as it:
        async with it.connected() as (server, service):
            await log_in(server, service)
        now, stored = time.time(), it.stored()
        login = await stored.current()
        assert login is not None
        vault = LoginVault(it.store, it.options.logins)
        await vault.save(stored.key, replace(login, issued_at=now - 1000, expires_at=now + 30))
        async with it.connected() as (server, _):
            await call(server, "whoami", HERE)
        assert (it.issuer.refreshed, it.issuer.reused) == (1, 0)
        assert set(it.protected.seen) == {"", *it.issuer.tokens}


async def test_an_expired_token_is_refreshed_once_for_all_calls() -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        it.issuer.expire_all()
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(call, server, "whoami", HERE)
        assert (it.issuer.refreshed, it.issuer.reused) == (1, 0)


@pytest.mark.parametrize(
    "answer",
    [
        Response(status_code=503),
        Response(status_code=200, content="no json"),
        JSONResponse({"error": "slow_down"}, 400),
    ],
)
async def test_a_refresh_that_fails_for_now_ends_no_login(answer: Response) -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        it.issuer.expire_all()
        it.issuer.before_token = lambda _: answer
        with pytest.raises(ServerUnavailable, match="could not be refreshed") as refused:
            await server.call_tool(HERE, "whoami", {})
        assert not isinstance(refused.value, LoginRequired)
        it.issuer.before_token = lambda _: None
        assert (await call(server, "whoami", HERE)).text == "ann"
        assert it.issuer.count("/authorize") == 1


async def test_a_refresh_whose_answer_is_lost_is_repeated_with_the_same_token() -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        lost = iter([True, False])

        def lose(form: Mapping[str, str]) -> Response | None:
            if form["grant_type"] != "refresh_token" or not next(lost, False):
                return None
            it.issuer.refresh(form["refresh_token"])
            return Response(status_code=504)

        it.issuer.expire_all()
        it.issuer.before_token = lose
        assert (await call(server, "whoami", HERE)).text == "ann"
        assert (it.issuer.refreshed, it.issuer.reused) == (2, 0)
        assert it.issuer.count("/authorize") == 1


# -- the negative table ------------------------------------------------------------------------------------------------


async def test_a_server_for_another_resource_gets_no_login() -> None:
    async with world() as it:
        it.protected.prm = {"resource": "https://other.test/mcp"}
        async with it.connected() as (server, _):
            with pytest.raises(LoginRequired, match="does not match"):
                await server.call_tool(HERE, "whoami", {})
        assert it.issuer.requests == []


async def test_metadata_of_another_issuer_is_refused() -> None:
    async with world() as it:
        it.issuer.metadata = {"issuer": "https://other.test"}
        async with it.connected() as (server, _):
            with pytest.raises(LoginRequired, match="names another issuer"):
                await server.call_tool(HERE, "whoami", {})
        assert it.issuer.count("/register") == 0


@pytest.mark.parametrize(("named", "itself"), [("/", ""), ("", "/")], ids=["named with a slash", "without"])
@pytest.mark.parametrize("pinned", [None, "", "/"], ids=["by the server", "pinned", "pinned with a slash"])
async def test_an_authorization_server_that_is_an_origin_is_the_same_with_and_without_a_slash(
    named: str, itself: str, pinned: str | None
) -> None:
    async with world() as it:
        origin = it.issuer.issuer
        it.protected.prm = {"authorization_servers": [f"{origin}{named}"]}
        it.issuer.metadata = {"issuer": f"{origin}{itself}"}
        it.issuer.change_redirect = lambda url: (
            f"{url.rpartition('&iss=')[0]}&{urlencode({'iss': f'{origin}{itself}'})}"
        )
        async with it.connected(**({} if pinned is None else {"issuer": f"{origin}{pinned}"})) as (server, service):
            await log_in(server, service)
        it.issuer.clients["main"] = replace(MAIN)
        auth: dict[str, Any] = {"grant": "client_credentials", "client_id": "main", "client_secret": "main-secret"}
        if pinned is not None:
            auth["issuer"] = f"{origin}{pinned}"
        async with it.connected(**auth) as (server, _):
            assert server.status.state is ServerState.READY


ENDPOINTS = {"authorization": "authorize", "token": "token"}


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials", "token_exchange"])
@pytest.mark.parametrize(("named", "itself"), [("", ""), ("/", ""), ("", "/"), ("/", "/")])
async def test_every_flow_compares_issuers_alike(grant: str, named: str, itself: str) -> None:
    async with world() as it:
        it.issuer.clients["main"] = replace(MAIN)
        origin = it.issuer.issuer
        it.issuer.issuer = f"{origin}{itself}"
        it.issuer.metadata = {f"{name}_endpoint": f"{origin}/{path}" for name, path in ENDPOINTS.items()}
        auth = {"grant": grant, "issuer": f"{origin}{named}", "client_id": "main", "client_secret": "main-secret"}
        async with it.connected(**auth) as (server, service):
            if grant == "authorization_code":
                await log_in(server, service)
            ctx = replace(ANN, token="token-of-ann") if grant == "token_exchange" else HERE
            assert not (await call(server, "whoami", ctx)).is_error


async def test_an_authorization_server_with_a_path_is_another_one_with_a_slash() -> None:
    async with world() as it:
        it.protected.prm = {"authorization_servers": [f"{it.issuer.issuer}/"]}
        it.issuer.metadata = {"issuer": f"{it.issuer.issuer}/realm"}
        async with it.connected() as (server, _):
            with pytest.raises(LoginRequired, match="names another issuer"):
                await server.call_tool(HERE, "whoami", {})


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        (lambda url: url.rpartition("&iss=")[0] + "&iss=https%3A%2F%2Fother.test", "iss mismatch"),
        (lambda url: url.rpartition("&iss=")[0], "missing iss"),
        (lambda url: url.partition("?")[0] + "?error=access_denied&" + url.partition("&")[2], "was declined"),
        (lambda url: url.replace("code=", "code=x"), "Token exchange failed"),
    ],
)
async def test_an_answer_that_is_not_in_order_ends_the_login(change: Any, failure: str) -> None:
    async with world() as it, it.connected() as (server, service):
        url = await page_of(server)
        it.issuer.change_redirect = change
        assert failure in await failure_of(server, service, url)
        assert it.issuer.tokens == {}


async def test_the_answer_to_a_login_counts_once_and_only_for_its_own_state() -> None:
    async with world() as it, it.connected() as (server, service):
        url = await page_of(server)
        async with httpx2.AsyncClient(trust_env=False) as browser:
            location = (await browser.get(url)).headers["location"]
            foreign = location.replace("state=", "state=x")
            assert (await browser.get(foreign)).status_code == 404
            assert (await browser.get(location.partition("?")[0])).status_code == 404
            assert (await browser.get(location)).status_code == 200
        await service.wait_ended(HERE, server.options, 10)
        assert not await service.deliver(dict(parse_qsl(urlsplit(location).query)))
        await until(server, lambda: server.status.state is ServerState.READY)
        assert it.issuer.count("/token") == 1


async def test_the_page_after_a_login_leads_nowhere_and_repeats_nothing() -> None:
    async with world() as it, it.connected() as (server, _):
        async with httpx2.AsyncClient(trust_env=False) as browser:
            location = (await browser.get(await page_of(server))).headers["location"]
            page = await browser.get(f"{location}&next=https%3A%2F%2Fevil.test&x=%3Cscript%3E")
        assert page.status_code == 200
        assert "location" not in page.headers
        assert "evil" not in page.text
        assert "script" not in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'")


async def test_a_secret_goes_only_to_the_issuer_in_the_settings() -> None:
    async with world() as it, world() as other:
        it.issuer.clients["main"] = replace(MAIN)
        auth = {"issuer": it.issuer.issuer, "client_id": "main", "client_secret": "main-secret"}
        it.protected.prm = {"authorization_servers": [other.issuer.issuer]}
        async with it.connected(**auth) as (server, _):
            with pytest.raises(LoginRequired, match="names another authorization server"):
                await server.call_tool(HERE, "whoami", {})
        async with it.connected(grant="client_credentials", **auth) as (server, _):
            assert server.status.state is ServerState.FAILED
        assert other.issuer.count("/token") == 0


async def test_without_an_issuer_the_first_login_decides_who_gets_the_secret() -> None:
    async with world() as it, world() as other:
        it.issuer.clients["main"] = other.issuer.clients["main"] = replace(MAIN)
        async with it.connected(client_id="main", client_secret="main-secret") as (server, service):
            await log_in(server, service)
            it.protected.prm = {"authorization_servers": [other.issuer.issuer]}
            it.issuer.families[0].revoked = True
            with pytest.raises(LoginRequired, match="names another authorization server"):
                await server.call_tool(HERE, "whoami", {})
        assert other.issuer.requests == []


async def test_a_server_that_moves_to_another_issuer_gets_a_new_registration_there() -> None:
    async with world() as it, world() as other, it.connected() as (server, service):
        await log_in(server, service)
        it.protected.prm = {"authorization_servers": [other.issuer.issuer]}
        it.protected.issuer = other.issuer
        it.issuer.families[0].revoked = True
        await browse(await page_of(server))
        await service.wait_ended(HERE, server.options, 10)
        await until(server, lambda: server.status.state is ServerState.READY)
        assert other.issuer.count("/register") == 1
        sent = json.dumps(other.issuer.requests)
        assert not [token for token in it.issuer.tokens.values() if token.refresh_token in sent]


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest",
        "https://10.1.2.3/as",
        "https://[::ffff:10.0.0.1]/as",
        "https://[64:ff9b::10.0.0.1]/as",
        "https://[::169.254.169.254]/as",
        "https://[fec0::1]/as",
        "https://168.63.129.16/as",
        "https://2130706433/as",
        "https://user:pw@auth.test/as",
        "http://auth.test/as",
        "file:///etc/passwd",
    ],
)
async def test_a_server_cannot_lead_requests_into_the_private_network(address: str) -> None:
    async with world() as it:
        it.protected.prm = {"authorization_servers": [address]}
        async with it.connected() as (server, _):
            with pytest.raises(LoginRequired, match=r"private address|without TLS|holds a user|cannot be") as refused:
                await server.call_tool(HERE, "whoami", {})
        assert "url" not in refused.value.data


async def test_metadata_cannot_lead_requests_into_the_private_network_either() -> None:
    async with world() as it:
        it.issuer.metadata = {"registration_endpoint": "https://[::ffff:10.0.0.1]/register"}
        async with it.connected() as (server, _):
            with pytest.raises(LoginRequired, match="private address"):
                await server.call_tool(HERE, "whoami", {})


async def test_metadata_is_not_read_where_a_redirect_leads_and_without_it_there_is_no_login() -> None:
    async with world() as it, world() as other:
        it.issuer.redirect_metadata = f"{other.issuer.issuer}/.well-known/oauth-authorization-server"
        async with it.connected(client_id="main") as (server, _):
            assert "No metadata" in str(await refusal_of(server, HERE))
        assert other.issuer.requests == []


async def test_the_address_that_is_checked_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["93.184.216.34", "10.0.0.1"])
    asked = list[str]()

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    connected = list[str]()

    async def connect(_: object, sock: socket.socket, address: tuple[str, int]) -> None:
        connected.append(address[0])
        raise OSError("not in a test")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(type(asyncio.get_running_loop()), "sock_connect", connect)
    with anyio.fail_after(10):
        for reason in ("cannot be reached", "private address"):
            with pytest.raises(ExchangeError, match=reason):
                await GuardedFetch(TrustedHosts(()))("GET", "https://rebound.test/as")
    assert asked == ["rebound.test"] * 2
    assert connected == ["93.184.216.34"]


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://login.test/authorize", "without TLS"),
        ("https://10.0.0.1/authorize", "private address"),
        ("https://ann:pw@login.test/authorize", "holds a user"),
        ("javascript:alert(1)", "cannot be"),
    ],
)
async def test_no_one_is_sent_to_a_login_page_that_could_do_harm(endpoint: str, reason: str) -> None:
    async with world() as it:
        it.issuer.metadata = {"authorization_endpoint": endpoint}
        async with it.connected() as (server, _):
            refused = await refusal_of(server, HERE)
        assert reason in str(refused)
        assert "url" not in refused.data


async def test_the_address_of_a_login_page_keeps_its_own_query() -> None:
    async with world() as it:
        it.issuer.metadata = {"authorization_endpoint": f"{it.issuer.issuer}/authorize?policy=sign-in"}
        async with it.connected() as (server, service):
            await log_in(server, service)
        (asked,) = [form for path, form in it.issuer.requests if path == "/authorize"]
        assert (asked["policy"], asked["response_type"]) == ("sign-in", "code")


@pytest.mark.parametrize("methods", [None, ["plain"]])
async def test_an_authorization_server_without_pkce_gets_no_login(methods: list[str] | None) -> None:
    async with world() as it:
        it.issuer.metadata = {"code_challenge_methods_supported": methods}
        async with it.connected() as (server, _):
            assert "PKCE" in str(await refusal_of(server, HERE))
        async with it.connected(issuer=it.issuer.issuer) as (server, service):
            if methods is None:  # the settings vouch for it
                await log_in(server, service)
            else:
                assert "PKCE" in str(await refusal_of(server, HERE))
        assert it.issuer.count("/authorize") == (methods is None)


async def test_settings_that_cannot_work_are_refused() -> None:
    secret = {"client_id": "c", "client_secret": "s"}
    for wrong, reason in (
        ({"client_secret": "s"}, "needs client_id"),
        ({"grant": "client_credentials", "client_id": "c"}, "needs client_id, and client_secret or private_key"),
        ({"grant": "token_exchange", "issuer": "https://a.test", "client_id": "c"}, "needs issuer, client_id and"),
        ({"grant": "forward", "audience": ("one",)}, "needs audience"),
        ({"parameters": {"state": "x"}}, "cannot set state"),
        ({"grant": "client_credentials", "per_caller": True, "issuer": "https://a.test", **secret}, "logins of people"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            OAuthClientOptions(**wrong)


# -- the vault ---------------------------------------------------------------------------------------------------------


async def test_a_login_sealed_with_another_key_is_named_as_such() -> None:
    async with world() as it:
        async with it.connected() as (server, service):
            await log_in(server, service)
        it.options = replace(it.options, logins=LoginOptions(key="other" * 8))
        async with it.connected() as (server, _):
            assert "sealed with a key that this process does not have" in server.status.reason


async def test_a_keyring_that_does_not_answer_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr("toolcrib.upstream.logins.vault._KEYRING_TIMEOUT_S", 0.01)
    monkeypatch.setattr("toolcrib.upstream.logins.vault.find_sealer", lambda _: released.wait(10))
    with anyio.fail_after(10), pytest.raises(SettingsError, match="keyring"):
        await LoginVault(MemoryStore(), LoginOptions()).give_answer("state", {})
    released.set()


def test_a_key_is_replaced_without_a_new_login() -> None:
    sealed = Sealer(KEY).seal("login", "place")
    assert Sealer("n" * 32, KEY).open(sealed, "place") == "login"
    with pytest.raises(VaultKeyError):
        Sealer("n" * 32).open(sealed, "place")
    with pytest.raises(VaultKeyError):
        Sealer(KEY).open(sealed, "another place")
    with pytest.raises(SettingsError, match="too short"):
        Sealer("short")


def test_a_key_file_is_made_once_and_for_its_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolcrib.upstream.logins.vault._keyring_key", lambda: None)
    options = LoginOptions(key_file=tmp_path / "state" / "logins.key")
    sealed = find_sealer(options).seal("login", "place")
    assert find_sealer(options).open(sealed, "place") == "login"
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["logins.key"]
    assert (tmp_path / "state" / "logins.key").stat().st_mode & 0o777 == 0o600
    assert caplog.text.count("which only your user can read") == 1


async def test_a_login_that_was_made_before_the_server_began_to_wait_for_it_is_used() -> None:
    async with world() as it, it.connected() as (server, service):
        await log_in(server, service)
        login = service.credentials(server.options)
        assert isinstance(login, StoredLogin)
        it.issuer.families[0].revoked = True
        with pytest.raises(LoginNeeded):
            await login.answer(Challenge(), (await login.token()))
        await browse(await page_of(server))
        await service.wait_ended(HERE, server.options, 10)
        with anyio.fail_after(5):
            await service.wait_login(server.options)
        assert login.logged_in_at != login.refused
