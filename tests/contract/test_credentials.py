"""Logins and API keys on every store: what one process keeps, the others use, and nothing is used twice."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.redis_server import NEEDS_REDIS, RedisServer, running_redis

from toolcrib.errors import NotAuthenticated, NotFound
from toolcrib.server.auth.api_keys import ApiKeys, ApiKeyTable
from toolcrib.state.base import StateStore
from toolcrib.state.memory import MemoryStore
from toolcrib.state.redis import RedisStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.types import Caller, Object
from toolcrib.upstream.logins.vault import Login, LoginPage, LoginRejected, LoginVault, VaultKeyError
from toolcrib.upstream.options import LoginOptions

pytestmark = pytest.mark.anyio

ANN = Caller(id="ann", tenant="acme", scopes=frozenset({"read"}), roles=frozenset({"editor"}))
OPTIONS = LoginOptions(key="k" * 32)
PLACE = "a-place"
LOGIN = Login(
    server="guarded",
    url="https://mcp.example/mcp",
    issuer="https://login.example",
    tokens={"access_token": "access-0", "refresh_token": "refresh-0"},
    generation="first",
)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=[NEEDS_REDIS, pytest.mark.slow])])
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[StateStore, StateStore]]:
    """The same state as two processes see it; there is only one process that has it in memory."""
    if request.param == "memory":
        store = MemoryStore()
        yield store, store
    elif request.param == "sqlite":
        async with SqliteStore(tmp_path / "state") as one, SqliteStore(tmp_path / "state") as other:
            yield one, other
    else:
        server: RedisServer = request.getfixturevalue("redis")
        prefix = f"test-{time.monotonic_ns()}"
        open_store = partial(RedisStore, server.url, prefix=prefix, timeout_s=10)
        async with open_store() as one, open_store() as other:
            yield one, other


Processes = tuple[StateStore, StateStore]


def vaults(processes: Processes) -> tuple[LoginVault, LoginVault]:
    one, other = (LoginVault(store, OPTIONS) for store in processes)
    return one, other


# -- logins ------------------------------------------------------------------------------------------------------------


@dataclass
class RotatingIssuer:
    """Gives new tokens for the newest refresh token only, each of which is good for one use."""

    current: str = "refresh-0"
    refreshed: int = 0
    refused: list[str] = field(default_factory=list)

    async def __call__(self, login: Login) -> Object:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        if login.refresh_token != self.current:
            self.refused.append(login.refresh_token)
            raise LoginRejected("it was used before")
        self.refreshed += 1
        self.current = f"refresh-{self.refreshed}"
        return {"access_token": f"access-{self.refreshed}", "refresh_token": self.current, "expires_in": 3600}


async def test_a_login_of_one_process_is_that_of_all(processes: Processes) -> None:
    one, other = vaults(processes)
    await one.save(PLACE, LOGIN)
    assert await other.load(PLACE) == LOGIN
    assert await other.all() == {PLACE: LOGIN}
    await other.mark(PLACE, LOGIN, problem="it has ended")
    marked = await one.load(PLACE)
    assert marked is not None
    assert marked.problem == "it has ended"
    await one.mark(PLACE, replace(LOGIN, generation="an older one"), problem="another problem")
    assert (await one.load(PLACE)) == marked
    assert await one.delete(PLACE)
    assert not await other.delete(PLACE)
    assert await other.load(PLACE) is None


async def test_a_login_is_refreshed_by_one_at_a_time_and_no_refresh_token_is_used_twice(processes: Processes) -> None:
    issuer, found = RotatingIssuer(), list[str]()

    async def refresh(vault: LoginVault, known: Login) -> None:
        fresh = await vault.refresh(PLACE, known, issuer)
        assert fresh is not None
        found.append(fresh.access_token)

    with anyio.fail_after(60):
        both = vaults(processes)
        await both[0].save(PLACE, LOGIN)
        for turn in range(1, 6):
            known = await both[turn % 2].load(PLACE)
            assert known is not None
            async with anyio.create_task_group() as group:
                for vault in both * 4:
                    group.start_soon(refresh, vault, known)
            assert (issuer.refreshed, issuer.refused) == (turn, [])
            assert set(found[-8:]) == {f"access-{turn}"}


async def test_a_refresh_that_is_cut_off_leaves_the_login_as_it_was(processes: Processes) -> None:
    one, other = vaults(processes)
    await one.save(PLACE, LOGIN)
    began = anyio.Event()

    async def hang(_: Login) -> Object:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError("never gets here")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(one.refresh, PLACE, LOGIN, hang)
            await began.wait()
            group.cancel_scope.cancel()
        assert await other.load(PLACE) == LOGIN
        fresh = await other.refresh(PLACE, LOGIN, RotatingIssuer())
        assert fresh is not None
        assert fresh.access_token == "access-1"


async def test_a_login_that_ends_while_it_is_refreshed_stays_ended(processes: Processes) -> None:
    one, other = vaults(processes)
    await one.save(PLACE, LOGIN)

    async def fetch(_: Login) -> Object:
        await other.delete(PLACE)
        return {"access_token": "late", "refresh_token": "late"}

    assert await one.refresh(PLACE, LOGIN, fetch) is None
    assert await other.load(PLACE) is None


async def test_a_login_is_sealed_for_its_key_and_its_place(processes: Processes) -> None:
    one, other = processes
    await LoginVault(one, OPTIONS).save(PLACE, LOGIN)
    with pytest.raises(VaultKeyError):
        await LoginVault(other, LoginOptions(key="x" * 32)).load(PLACE)
    table: Any = other.table("logins", None, durable=True, keep=True)  # type: ignore[arg-type]  # the same as before
    sealed = await table.get(PLACE)
    assert "refresh-0" not in sealed
    await table.set("another-place", sealed)
    with pytest.raises(VaultKeyError):
        await LoginVault(other, OPTIONS).load("another-place")


async def test_an_answer_reaches_the_process_that_waits_once_and_from_one_browser(processes: Processes) -> None:
    one, other = vaults(processes)
    page = LoginPage(server="guarded", principal='[null,"acme","ann"]', url="https://login.example/a", state="s")
    await one.expect_answer("s", 60, confirmed=True)
    await one.offer_page("ticket", page, 60)
    assert await other.page("ticket") == page
    assert await other.page("another") is None
    answer = {"code": "c", "state": "s"}
    assert not await other.give_answer("s", answer, "not confirmed yet")
    assert await other.confirm(page, "cookie", 60)
    for browser in ("", "another"):
        assert not await one.give_answer("s", answer, browser)
    assert await one.take_answer("s") is None
    assert await other.give_answer("s", answer, "cookie")
    assert not await other.give_answer("s", {"code": "another"}, "cookie")
    assert not await other.confirm(page, "late", 60)
    assert await one.take_answer("s") == answer
    assert await one.take_answer("s") is None
    assert not await other.give_answer("s", answer, "cookie")
    assert not await other.give_answer("never-expected", answer)


# -- API keys ----------------------------------------------------------------------------------------------------------


async def refused(check: Callable[[], Awaitable[Any]]) -> None:
    with pytest.raises(NotAuthenticated, match="API key is not valid"):
        await check()


async def test_a_key_that_one_process_makes_works_and_ends_in_all(processes: Processes) -> None:
    one, other = processes
    key, secret = await ApiKeyTable(one).create(ANN, lasts_s=60, note="laptop")
    accepts = ApiKeys(other)
    found = await accepts.identity(secret)
    assert (found.caller, found.expires, found.is_own) == (ANN, key.expires, True)
    assert [listed.note for listed in await ApiKeyTable(other).all()] == ["laptop"]
    await refused(lambda: accepts.identity(f"{secret}x"))
    assert await ApiKeyTable(one).revocations() == 0
    await ApiKeyTable(one).revoke(key.id)
    await refused(lambda: accepts.identity(secret))
    assert await ApiKeyTable(other).revocations() == 1
    with pytest.raises(NotFound):
        await ApiKeyTable(other).revoke(key.id)


async def test_a_key_ends_with_its_time(processes: Processes) -> None:
    one, other = processes
    now = time.time()
    _, secret = await ApiKeyTable(one, clock=lambda: now).create(ANN, lasts_s=60)
    await refused(lambda: ApiKeys(other, clock=lambda: now + 61).identity(secret))
    _, lasting = await ApiKeyTable(one).create(ANN, lasts_s=None)
    assert (await ApiKeys(other, clock=lambda: now + 1e9).identity(lasting)).expires is None
