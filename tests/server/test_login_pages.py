"""A login of a caller is confirmed by the person who logs in, in the browser that comes back."""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.fixtures.servers.authorization import Client
from tests.upstream.support import call, until
from tests.upstream.test_logins import ANN, BOB, HERE, KEY, World, deliver, refusal_of, world

from toolcrib import App, Settings
from toolcrib.errors import LoginRequired
from toolcrib.types import Caller, ServerState
from toolcrib.upstream.logins.service import LoginService
from toolcrib.upstream.options import LoginOptions
from toolcrib.upstream.remote_server import RemoteServer

pytestmark = pytest.mark.anyio

GATEWAY = "http://localhost"
DOCUMENT = "https://tools.example/crib/oauth/client.json"
PUBLIC = LoginOptions(key=KEY, public_url=GATEWAY)


@asynccontextmanager
async def public(it: World, options: LoginOptions = PUBLIC) -> AsyncIterator[tuple[App, RemoteServer]]:
    """A gateway with a public URL, in front of a server where each caller logs in."""
    it.options = replace(it.options, logins=options)
    async with App(Settings(servers=(it.server(per_caller=True),), fleet=it.options)) as app:
        await app.settled()
        server = app.fleet.server("guarded")
        mount = app.asgi()
        async with mount.running():
            service = app.servers.logins
            assert isinstance(service, LoginService)
            await deliver(service, await page_of(server, HERE))  # the operator, for the list of tools
            await until(server, lambda: server.status.state is ServerState.READY)
            it.issuer.requests.clear()
            yield app, server


class Browser(httpx2.AsyncClient):
    """A person's browser: requests to the gateway stay in this process."""

    def __init__(self, app: App) -> None:
        mounts = {GATEWAY: httpx2.ASGITransport(app=app.asgi())}
        super().__init__(mounts=mounts, trust_env=False)

    async def confirmed(self, page: str) -> str:
        """Agree on the page of the gateway; the address of the login page."""
        shown = await self.get(page)
        assert shown.status_code == 200, shown.text
        link = re.search(r"href='([^']+)'", shown.text)
        assert link is not None
        answer = await self.get(GATEWAY + link[1].replace("&amp;", "&"))
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    async def log_in(self, url: str) -> httpx2.Response:
        """Log in at the authorization server, and follow it back to the gateway."""
        return await self.get((await self.get(url)).headers["location"])


async def page_of(server: RemoteServer, ctx: Any = ANN) -> str:
    return str((await refusal_of(server, ctx)).data["url"])


async def ended(app: App, server: RemoteServer, ctx: Any = ANN) -> None:
    service = app.servers.logins
    assert isinstance(service, LoginService)
    await service.wait_ended(ctx, server.options, 10)


async def test_a_person_confirms_that_a_login_is_theirs_and_the_caller_has_it() -> None:
    async with world() as it, public(it) as (app, server), Browser(app) as browser:
        page = await page_of(server)
        assert page.startswith(f"{GATEWAY}/oauth/login/")
        text = (await browser.get(page)).text
        assert "<strong>ann</strong> of <strong>acme</strong>" in text
        assert "Log in to guarded" in text
        assert not it.issuer.count("/authorize")
        assert (await browser.log_in(await browser.confirmed(page))).status_code == 200
        await ended(app, server)
        assert (await call(server, "whoami", ANN)).text == "ann"


async def test_the_address_of_a_login_page_is_of_no_use_in_another_browser() -> None:
    """The caller who asked has opened the page, and sends the address behind it to someone else."""
    async with world() as it, public(it) as (app, server):
        async with Browser(app) as attacker, Browser(app) as victim:
            sent = await attacker.confirmed(await page_of(server))
            assert (await victim.log_in(sent)).status_code == 404
            await victim.get(await page_of(server))  # even with a cookie of the gateway
            assert (await victim.log_in(sent)).status_code == 404
            with pytest.raises(LoginRequired):
                await server.call_tool(ANN, "whoami", {})


async def test_no_other_site_can_confirm_a_login() -> None:
    async with world() as it, public(it) as (app, server), Browser(app) as attacker, Browser(app) as victim:
        page = await page_of(server)
        link = re.search(r"href='([^']+)'", (await attacker.get(page)).text)
        assert link is not None
        await victim.get(page)
        forged = await victim.get(GATEWAY + link[1])
        assert forged.status_code == 200  # the question again
        assert "location" not in forged.headers
        assert not it.issuer.count("/authorize")


async def test_a_login_that_was_confirmed_in_one_browser_can_be_taken_to_another() -> None:
    async with world() as it, public(it) as (app, server), Browser(app) as phone, Browser(app) as laptop:
        page = await page_of(server)
        abandoned = await phone.confirmed(page)
        assert (await laptop.log_in(await laptop.confirmed(page))).status_code == 200
        await ended(app, server)
        assert (await phone.log_in(abandoned)).status_code == 404


@pytest.mark.parametrize("ticket", ["nonsense", "x" * 500, "%00", "..%2f..", "%ff"])
async def test_a_page_that_was_not_offered_is_none(ticket: str) -> None:
    async with world() as it, public(it) as (app, _), Browser(app) as browser:
        assert (await browser.get(f"{GATEWAY}/oauth/login/{ticket}")).status_code == 404


async def test_a_page_ends_with_its_login() -> None:
    async with world() as it, public(it) as (app, server), Browser(app) as browser:
        page = await page_of(server)
        await browser.log_in(await browser.confirmed(page))
        await ended(app, server)
        link = re.search(r"href='([^']+)'", (await browser.get(page)).text)
        assert link is None or (await browser.get(GATEWAY + link[1])).status_code == 404


async def test_the_names_on_a_page_are_text() -> None:
    mallory = replace(ANN, caller=Caller(id="<script>alert(1)</script>", tenant="'><b>"))
    async with world() as it, public(it) as (app, server), Browser(app) as browser:
        shown = await browser.get(await page_of(server, mallory))
        assert "&lt;script&gt;" in shown.text
        assert "<script>" not in shown.text
        assert "<b>" not in shown.text
        assert "default-src 'none'" in shown.headers["content-security-policy"]


async def test_each_caller_has_a_page_of_their_own() -> None:
    async with world() as it, public(it) as (_, server):
        assert await page_of(server, ANN) != await page_of(server, BOB)
        vouched = replace(ANN, caller=replace(ANN.caller, issuer="https://login.example"))
        assert await page_of(server, vouched) != await page_of(server, ANN)


# -- the document that says who the gateway is ------------------------------------------------------------------------


def taking_documents(it: World, options: LoginOptions) -> AbstractAsyncContextManager[tuple[App, RemoteServer]]:
    """The same with an authorization server that takes the address of a document as a client's id."""
    it.issuer.metadata = {"client_id_metadata_document_supported": True}
    it.issuer.clients[DOCUMENT] = Client(
        client_id=DOCUMENT, redirect_uris=["https://tools.example/crib/oauth/callback"]
    )
    return public(it, options)


async def test_a_gateway_with_a_public_url_introduces_itself_by_a_document() -> None:
    secure = LoginOptions(key=KEY, public_url="https://tools.example/crib")
    async with world() as it, taking_documents(it, secure) as (app, server), Browser(app) as browser:
        document = (await browser.get(f"{GATEWAY}/oauth/client.json")).json()
        assert (document["client_id"], document["token_endpoint_auth_method"]) == (DOCUMENT, "none")
        assert document["redirect_uris"] == ["https://tools.example/crib/oauth/callback"]
        page = await page_of(server)
        ticket = urlsplit(page).path.rpartition("/")[2]
        service = app.servers.logins
        assert isinstance(service, LoginService)
        shown = await service.vault.page(ticket)
        assert shown is not None
        assert httpx2.URL(shown.url).params["client_id"] == DOCUMENT
        assert not it.issuer.count("/register")


@pytest.mark.parametrize(
    "options",
    [PUBLIC, LoginOptions(key=KEY, public_url="https://tools.example", client_metadata=False)],
    ids=["http", "off"],
)
async def test_without_a_safe_address_or_if_it_is_turned_off_there_is_no_document(options: LoginOptions) -> None:
    async with world() as it, taking_documents(it, options) as (app, server), Browser(app) as browser:
        assert (await browser.get(f"{GATEWAY}/oauth/client.json")).status_code == 404
        await page_of(server)
        assert it.issuer.count("/register") == 1
