"""Several processes that share one login: it is refreshed by one of them at a time, and survives their end."""

import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.fixtures.servers.authorization import Issuer
from tests.fixtures.servers.refresher import KEY, NAME, state_of
from tests.redis_server import NEEDS_REDIS, running_redis
from tests.upstream.support import serving
from tests.upstream.test_logins import browse

from toolcrib.state.stores import make_store
from toolcrib.upstream.logins.oauth import StoredLogin
from toolcrib.upstream.logins.service import LoginService
from toolcrib.upstream.options import LoginOptions, OAuthClientOptions, ServerOptions

REFRESHER = Path(__file__).parents[1] / "fixtures" / "servers" / "refresher.py"


class Race:
    """Processes that refresh one login, of which some are killed at any moment."""

    def __init__(self, issuer: Issuer, state: str, refreshes: int) -> None:
        self.issuer = issuer
        self.state = state
        self.refreshes = refreshes
        self.url = ""
        self.said: dict[str, int] = {}
        self.kills = 0
        self.killed = 0
        self.logins_lost = 0
        self.random = random.Random(7)  # noqa: S311 - chooses when to kill

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/mcp/check", self._check),
                Route("/.well-known/oauth-protected-resource/mcp", self._metadata),
            ]
        )

    @property
    def is_done(self) -> bool:
        return self.issuer.refreshed >= self.refreshes

    async def _check(self, request: Request) -> Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        known = self.issuer.check(token, self.url)
        return Response(status_code=200 if known else 401, headers={"x-done": "1"} if self.is_done else {})

    async def _metadata(self, request: Request) -> Response:
        return Response(f'{{"resource": "{self.url}", "authorization_servers": ["{self.issuer.issuer}"]}}')

    async def log_in(self) -> None:
        async with make_store(state_of(self.state)) as store, anyio.create_task_group() as group:
            service = LoginService(store, LoginOptions(key=KEY))
            service.start_soon = group.start_soon
            options = ServerOptions(name=NAME, url=self.url, auth=OAuthClientOptions())
            login = service.credentials(options)
            assert isinstance(login, StoredLogin)
            pending = await service.begin(login)
            await browse(pending.url)
            await pending.done.wait()
            assert not pending.failure

    async def run(self, processes: int, *, kill_every: int, kills: int) -> None:
        self.kills = kills
        async with anyio.create_task_group() as group:
            for _ in range(processes):
                group.start_soon(self._keep_running, kill_every)

    async def _keep_running(self, kill_every: int) -> None:
        """Run a process; after about so many refreshes of its own, kill it and run another."""
        while not self.is_done and not self.logins_lost:
            process = await anyio.open_process([sys.executable, str(REFRESHER), self.state, self.url])
            await self._follow(process, self.random.randint(1, 2 * kill_every))
            code = await process.wait()
            self.logins_lost += code == 1

    async def _follow(self, process: Process, lines: int) -> None:
        assert process.stdout is not None
        rest = b""
        async for part in process.stdout:
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                word = line.decode().partition(" ")[0]
                self.said[word] = self.said.get(word, 0) + 1
                lines -= 1
            if lines <= 0 and not self.is_done and self.killed < self.kills:
                # Somewhere in the middle of the next refresh.
                await anyio.sleep(self.random.random() / 100)
                self.killed += 1
                with suppress(ProcessLookupError):
                    process.kill()
                return


async def race(state: str, refreshes: int, *, kill_every: int, kills: int) -> Race:
    """Three processes, of which so many are killed."""
    issuer = Issuer()
    it = Race(issuer, state, refreshes)
    async with serving(issuer.app) as address, serving(it.app) as origin:
        issuer.issuer, it.url = address, f"{origin}/mcp"
        await it.log_in()
        await it.run(3, kill_every=kill_every, kills=kills)
    return it


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=NEEDS_REDIS)])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the processes keep the login."""
    if request.param == "sqlite":
        yield str(tmp_path / "state.sqlite")
        return
    with running_redis(tmp_path) as server:
        yield server.url


@pytest.mark.slow
async def test_three_processes_refresh_one_login_and_none_is_lost_when_they_are_killed(state: str) -> None:
    with anyio.fail_after(240):
        it = await race(state, 60, kill_every=10, kills=3)
    assert it.killed >= 2
    assert it.said["ok"] > 0
    assert it.logins_lost == 0
    assert it.issuer.reused == 0
    assert it.issuer.count("/authorize") == 1
