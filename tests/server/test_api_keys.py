"""API keys: made and revoked while a gateway runs, also by another process."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import httpx2
import pytest
from tests.server.conftest import JSON, at_address, token, until

from toolcrib import App, Caller, Context, Settings
from toolcrib.errors import NotFound
from toolcrib.options import AuthOptions, HttpOptions, StateOptions, Token
from toolcrib.sanitize import mask_secrets
from toolcrib.server.auth.api_keys import ApiKeys, ApiKeyTable
from toolcrib.state.memory import MemoryStore
from toolcrib.state.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

ANN = Caller(id="ann", tenant="acme", scopes=frozenset({"read"}), roles=frozenset({"editor"}))
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}


@contextlib.asynccontextmanager
async def gateway(path: Path, *, api_keys: bool = True) -> AsyncIterator[tuple[App, httpx2.AsyncClient]]:
    """A gateway that keeps its state in a file, and a client of it."""
    settings = Settings(
        state=StateOptions(path=path),
        auth=AuthOptions(api_keys=api_keys),
        http=HttpOptions(tokens=(Token(secret="a static token", caller="robot"),)),
    )
    app = App(settings)

    @app.tool
    def whoami(ctx: Context) -> str:
        """Say who calls."""
        caller = ctx.caller
        return f"{caller.id} {caller.tenant} {sorted(caller.scopes)} {sorted(caller.roles)}"

    async with app, at_address(app.asgi()) as address, httpx2.AsyncClient(base_url=address) as http:
        yield app, http


async def status(http: httpx2.AsyncClient, secret: str) -> int:
    return (await http.post("/mcp", headers={**JSON, **token(secret)}, json=INITIALIZE)).status_code


async def test_a_key_that_another_process_made_opens_a_running_gateway_as_its_caller(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with gateway(tmp_path / "state") as (_, http), SqliteStore(tmp_path / "state") as other:
            _, secret = await ApiKeyTable(other).create(ANN, lasts_s=60)
            opened = await http.post("/mcp", headers={**JSON, **token(secret)}, json=INITIALIZE)
            session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            call = {"name": "execute_tool", "arguments": {"name": "whoami"}}
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
            answer = await http.post("/mcp", headers={**JSON, **token(secret), **session}, json=body)
            assert "ann acme ['read'] ['editor']" in answer.text


async def test_a_revoked_key_stops_with_the_next_request_and_its_open_stream_ends(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with gateway(tmp_path / "state") as (_, http), SqliteStore(tmp_path / "state") as other:
            keys = ApiKeyTable(other)
            key, secret = await keys.create(ANN, lasts_s=None)
            opened = await http.post("/mcp", headers={**JSON, **token(secret)}, json=INITIALIZE)
            session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            async with http.stream("GET", "/mcp", headers={**JSON, **token(secret), **session}) as stream:
                assert stream.status_code == 200
                await keys.revoke(key.id)
                assert await status(http, secret) == 401
                assert [line async for line in stream.aiter_lines() if line.startswith("data: {")] == []
            assert await status(http, "a static token") == 200


async def test_a_key_works_until_it_expires_and_only_with_its_own_secret() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    keys = ApiKeyTable(store, clock=lambda: now[0])
    key, secret = await keys.create(ANN, lasts_s=60)
    other, _ = await keys.create(Caller(id="bob"), lasts_s=600)
    accepts = ApiKeys(store, clock=lambda: now[0])
    assert (await accepts.identity(secret)).caller == ANN
    assert (await accepts.identity(secret)).expires == 1060
    for wrong in (f"{secret}x", secret.replace(key.id, other.id), f"tcrib_{key.id}_", "tcrib_", secret[:-1]):
        with pytest.raises(Exception, match="API key is not valid"):
            await accepts.identity(wrong)
    now[0] = 1061.0
    with pytest.raises(Exception, match="API key is not valid"):
        await accepts.identity(secret)


async def test_keys_are_refused_where_the_settings_do_not_accept_them(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with gateway(tmp_path / "state", api_keys=False) as (app, http):
            _, secret = await ApiKeyTable(app.gateway.state).create(ANN, lasts_s=60)
            assert await status(http, secret) == 401


async def test_accepting_keys_needs_no_restart(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with gateway(tmp_path / "state", api_keys=False) as (app, http):
            _, secret = await ApiKeyTable(app.gateway.state).create(ANN, lasts_s=60)
            await app.reload(Settings(http=app.settings.http, auth=AuthOptions(api_keys=True)))
            assert await status(http, secret) == 200


def test_the_store_has_no_secret_and_the_list_shows_none(tmp_path: Path) -> None:
    async def make() -> str:
        async with SqliteStore(tmp_path / "state") as store:
            keys = ApiKeyTable(store)
            _, secret = await keys.create(ANN, lasts_s=60)
            (listed,) = await keys.all()
            assert secret.split("_", 2)[2] not in repr(listed)
            assert listed.digest not in repr(listed)
            return secret

    secret = anyio.run(make)
    rest = secret.split("_", 2)[2]
    assert not any(rest.encode() in file.read_bytes() for file in tmp_path.iterdir())
    assert rest not in mask_secrets(f"the key {secret} was refused")


async def test_revoking_what_does_not_exist_names_what_does() -> None:
    keys = ApiKeyTable(MemoryStore())
    key, _ = await keys.create(ANN, lasts_s=60)
    with pytest.raises(NotFound) as missing:
        await keys.revoke(f"{key.id[:-1]}x")
    assert missing.value.suggestions == (key.id,)


async def test_the_watcher_notices_a_revocation_once() -> None:
    store = MemoryStore()
    keys = ApiKeyTable(store)
    key, _ = await keys.create(ANN, lasts_s=60)
    ends: list[int] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            await group.start(partial(ApiKeys(store).watch, lambda: ends.append(1), every_s=0.01))
            await keys.revoke(key.id)
            await until(lambda: bool(ends))
            group.cancel_scope.cancel()
    assert ends == [1]


async def test_what_opens_the_gateway_itself_is_not_passed_on_as_a_token_of_its_caller(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with gateway(tmp_path / "state") as (app, http):
            seen = []

            @app.tool
            def look(ctx: Context) -> str:
                """Look at the request."""
                seen.append(ctx.token)
                return "looked"

            _, secret = await ApiKeyTable(app.gateway.state).create(ANN, lasts_s=60)
            for credential in (secret, "a static token"):
                headers = {**JSON, **token(credential)}
                opened = await http.post("/mcp", headers=headers, json=INITIALIZE)
                headers |= {
                    "mcp-session-id": opened.headers["mcp-session-id"],
                    "mcp-protocol-version": "2025-11-25",
                }
                call = {"name": "execute_tool", "arguments": {"name": "look"}}
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
                assert "looked" in (await http.post("/mcp", headers=headers, json=body)).text
            assert seen == ["", ""]
