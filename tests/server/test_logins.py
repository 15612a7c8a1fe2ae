"""How clients of each protocol version are asked to log in to a server, and where browsers come back to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx2
import mcp
import mcp_types
import pytest
from tests.upstream.support import until
from tests.upstream.test_logins import PUBLIC, World, browse, world

from toolcrib import App, Settings
from toolcrib.options import SurfaceOptions
from toolcrib.types import ServerState
from toolcrib.upstream.logins.oauth import StoredLogin
from toolcrib.upstream.logins.service import LoginService


@asynccontextmanager
async def app_of(it: World, **auth: Any) -> AsyncIterator[App]:
    """An app in front of the protected server, whose login has ended after its tools were listed."""
    surfaces = SurfaceOptions(surfaces=("direct",), prefix=False)
    settings = Settings(servers=(it.server(**auth),), fleet=it.options, surfaces=surfaces)
    async with App(settings) as app:
        await app.settled()
        server, service = app.fleet.server("guarded"), app.servers.logins
        assert isinstance(service, LoginService)
        login = service.credentials(server.options)
        assert isinstance(login, StoredLogin)
        pending = await service.begin(login)
        await browse(pending.url)
        await until(server, lambda: server.status.state is ServerState.READY)
        await app.settled()
        it.issuer.families[0].revoked = True
        yield app


class Person:
    """Opens the pages that a client is asked to open, and agrees or not."""

    def __init__(self, *, agrees: bool = True) -> None:
        self.agrees = agrees
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: mcp_types.ElicitRequestParams) -> mcp_types.ElicitResult:
        assert isinstance(params, mcp_types.ElicitRequestURLParams)
        self.asked.append(params.message)
        if not self.agrees:
            return mcp_types.ElicitResult(action="decline")
        await browse(params.url)
        return mcp_types.ElicitResult(action="accept")


def text_of(result: mcp_types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, mcp_types.TextContent))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_the_same_call_continues_after_the_login(mode: Any) -> None:
    person = Person()
    async with world() as it, app_of(it) as app:
        async with mcp.Client(app.server, mode=mode, elicitation_callback=person) as client:
            result = await client.call_tool("whoami", {})
        assert text_of(result) == "ann"
        assert not result.is_error
        assert person.asked == ['The server "guarded" needs a login.']
        assert it.issuer.count("/authorize") == 2


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_login_that_is_declined_runs_nothing(mode: Any) -> None:
    async with world() as it, app_of(it) as app:
        async with mcp.Client(app.server, mode=mode, elicitation_callback=Person(agrees=False)) as client:
            result = await client.call_tool("whoami", {})
        assert result.is_error
        assert it.issuer.count("/authorize") == 1


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_opens_no_pages_gets_the_address_in_an_error(mode: Any) -> None:
    async with world() as it, app_of(it) as app, mcp.Client(app.server, mode=mode) as client:
        result = await client.call_tool("whoami", {})
        assert result.is_error
        assert f"{it.issuer.issuer}/authorize?" in text_of(result)
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "whoami"]


async def test_browsers_come_back_to_the_public_url_without_a_token() -> None:
    async with world() as it:
        it.options = replace(it.options, logins=PUBLIC)
        async with App(Settings(servers=(it.server(),), fleet=it.options)) as app:
            await app.settled()
            service, server = app.servers.logins, app.fleet.server("guarded")
            assert isinstance(service, LoginService)
            login = service.credentials(server.options)
            assert isinstance(login, StoredLogin)
            pending = await service.begin(login)
            mount = app.asgi()
            transport = httpx2.ASGITransport(app=mount)
            async with (
                httpx2.AsyncClient(trust_env=False) as browser,
                httpx2.AsyncClient(transport=transport, base_url="http://localhost") as gateway,
                mount.running(),
            ):
                answer = urlsplit((await browser.get(pending.url)).headers["location"])
                wrong = await gateway.get(f"{answer.path}?code=x&state=y")
                right = await gateway.get(f"{answer.path}?{answer.query}")
            assert (wrong.status_code, right.status_code) == (404, 200)
            assert dict(parse_qsl(answer.query))["code"] not in right.text
            with anyio.fail_after(10):
                await until(server, lambda: server.status.state is ServerState.READY)
