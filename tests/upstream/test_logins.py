"""Servers behind OAuth: logins, their tokens, and what callers see while a login is missing."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import pytest
from tests.fixtures.servers.authorization import Issuer, ProtectedServer
from tests.upstream.support import FAST, call, serving, until

from toolcrib.errors import LoginRequired
from toolcrib.state.memory import MemoryStore
from toolcrib.types import LOCAL, Context, ServerState
from toolcrib.upstream.fleet import Fleet, RemoteServer
from toolcrib.upstream.logins import LoginService
from toolcrib.upstream.options import FleetOptions, OAuthClientOptions, ServerOptions

HERE = Context(caller=LOCAL)


@dataclass
class World:
    """A protected server, its authorization server, and a fleet in front of them."""

    issuer: Issuer
    protected: ProtectedServer
    store: Any = field(default_factory=MemoryStore)
    options: FleetOptions = FAST
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def server_options(self, **auth: Any) -> ServerOptions:
        return ServerOptions(name="guarded", url=self.protected.url, auth=OAuthClientOptions(**auth))

    @asynccontextmanager
    async def fleet(self, **auth: Any) -> AsyncIterator[tuple[Fleet, LoginService]]:
        """A fleet of the one server, settled."""
        service = LoginService(self.store, self.options.logins)
        async with Fleet(self.options, make_logins=lambda: service) as fleet:
            await fleet.apply([self.server_options(**auth)])
            await fleet.settled()
            yield fleet, service


async def browse(url: str) -> httpx2.Response:
    """Do what a person's browser does: open the login page, and follow it back."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        return await browser.get(url)


@asynccontextmanager
async def world(limit_s: float = 20, **issuer: Any) -> AsyncIterator[World]:
    made = Issuer(**issuer)
    protected = ProtectedServer(made)
    with anyio.fail_after(limit_s):
        async with serving(made.app) as address, serving(protected.app) as origin:
            made.issuer, protected.url = address, f"{origin}/mcp"
            yield World(made, protected)


async def log_in(server: RemoteServer, ctx: Context = HERE) -> None:
    """Call a tool, log in at the address in the error, and wait until the server is connected."""
    with pytest.raises(LoginRequired) as refused:
        await server.call_tool(ctx, "whoami", {})
    page = await browse(refused.value.data["url"])
    assert page.status_code == 200, page.text
    await until(server, lambda: server.status.state is ServerState.READY)


async def test_a_server_that_needs_a_login_says_so_and_is_connected_after_it() -> None:
    async with world() as it, it.fleet() as (fleet, _):
        server = fleet.server("guarded")
        assert server.status.state is ServerState.NEEDS_LOGIN
        await log_in(server)
        result = await call(server, "whoami", HERE)
        assert result.text == "ann"
