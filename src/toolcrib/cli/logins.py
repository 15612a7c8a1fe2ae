"""`toolcrib login`, `logout` and `logins`: logins of people at servers behind OAuth. Tokens are never printed."""

import asyncio
import contextlib
import os
import sys
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.to_thread
import click

from toolcrib.cli.completion import complete_server
from toolcrib.cli.options import config_option, reports
from toolcrib.cli.output import UsageError, echo, echo_error, echo_json, iso_time, print_columns
from toolcrib.errors import BackendNotFound, LoginRequired, NotFound, SettingsError
from toolcrib.names import nearest_names
from toolcrib.protocol.failures import ExchangeError
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.state.stores import make_store
from toolcrib.types import Caller
from toolcrib.upstream.logins.oauth import StoredLogin, first_challenge
from toolcrib.upstream.logins.service import LoginService
from toolcrib.upstream.logins.vault import Login, caller_of
from toolcrib.upstream.options import ServerOptions

_MAX_PASTED: Final = 8192

_config = config_option()
_server = click.argument("server", shell_complete=complete_server)
_caller = click.option("--caller", metavar="ID", help="The caller whose login it is, for a server with per_caller.")
_tenant = click.option("--tenant", metavar="NAME", help="The tenant of the caller.")
_issuer = click.option(
    "--issuer", metavar="URL", help="The authorization server that vouches for the caller, if one does."
)


@click.command()
@_server
@_caller
@_tenant
@_issuer
@click.option("--no-browser", is_flag=True, help="Only print the address; for machines without a browser.")
@_config
@reports()
def login(
    *,
    server: str,
    caller: str | None,
    tenant: str | None,
    issuer: str | None,
    no_browser: bool,
    config: Path | None,
    as_json: bool,
) -> None:
    """Log in to a server behind OAuth, in a browser.

    The login is kept sealed with the state, and refreshed by every gateway that uses it; one that runs takes it up by
    itself. If the browser is on another machine, paste the address at which it ends here.
    """
    settings = load_settings(config)
    stored = anyio.run(_log_in, settings, server, _as_caller(caller, tenant, issuer), not (no_browser or as_json))
    if as_json:
        echo_json(_as_json(stored))
    else:
        echo(f"Logged in to {server}." if stored is not None else f"{server} needs no login: toolcrib has its own.")


@click.command()
@_server
@_caller
@_tenant
@_issuer
@_config
@reports()
def logout(
    *,
    server: str,
    caller: str | None,
    tenant: str | None,
    issuer: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Delete a stored login, and have the authorization server revoke it if it can."""
    settings = load_settings(config)
    revoked = anyio.run(_log_out, settings, server, _as_caller(caller, tenant, issuer))
    if as_json:
        echo_json({"server": server, "revoked": revoked})
    else:
        echo(f"Logged out of {server}{'' if revoked else '; its tokens were not revoked'}.")


@click.command()
@_config
@reports()
def logins(*, config: Path | None, as_json: bool) -> None:
    """List the stored logins: whose they are, and how long their tokens last. Tokens are never shown."""
    settings = load_settings(config)
    found = anyio.run(_list, settings)
    if as_json:
        echo_json({"logins": [_as_json(one) for one in found]})
    elif not found:
        echo("No logins are stored.")
    else:
        print_columns(map(_row, found), head=("SERVER", "FOR", "ISSUER", "STATE", "SCOPES"))


def _as_caller(caller: str | None, tenant: str | None, issuer: str | None) -> Caller | None:
    if caller is None and (tenant is not None or issuer is not None):
        raise UsageError(f"{'--tenant' if tenant is not None else '--issuer'} needs --caller.")
    return None if caller is None else Caller(id=caller, tenant=tenant, issuer=issuer)


@asynccontextmanager
async def _service(settings: Settings) -> AsyncIterator[LoginService]:
    """The logins in the state of the settings. Raises `SettingsError` if they are not kept anywhere."""
    if settings.fleet.logins.key_file is None and not settings.fleet.logins.key:
        raise SettingsError("State is kept in memory only, so a login would end with this command.", hint="Set state.")
    store = make_store(settings.state, must_open=True)
    service = LoginService(store, settings.fleet.logins)  # before the store is opened: it fails before a person logs in
    async with store, anyio.create_task_group() as group:
        service.start_soon = group.start_soon
        try:
            yield service
        finally:
            service.close()


def _options_of(settings: Settings, name: str, caller: Caller | None) -> ServerOptions:
    """The options of a server that can have such a login."""
    known = {server.name: server for server in settings.servers}
    if name not in known:
        raise BackendNotFound(f'There is no server "{name}".', suggestions=nearest_names(name, known))
    options = known[name]
    if options.problem:
        raise SettingsError(f'The server "{name}" cannot be used: {options.problem}.')
    if options.auth is None:
        raise UsageError(f'The entry of "{name}" says nothing of a login.', hint='Add "auth": "oauth" to it.')
    if caller is not None and not options.auth.per_caller:
        raise UsageError(
            f'All callers share one login at "{name}".', hint="Set per_caller in its auth, or drop --caller."
        )
    return options


async def _log_in(settings: Settings, name: str, caller: Caller | None, browse: bool) -> Login | None:  # noqa: FBT001 - anyio.run
    options = _options_of(settings, name, caller)
    async with _service(settings) as service:
        credentials = service.credentials(options, caller)
        with _reachable(name):
            challenge = await first_challenge(options)
            if not isinstance(credentials, StoredLogin):
                if credentials is not None:
                    await credentials.answer(challenge, None)
                return None
        credentials.challenge = challenge
        pending = await service.begin(credentials)
        if pending.url:
            echo_error(f"Open this address in a browser to log in to {name}:\n\n{pending.url}\n")
            if browse:
                await anyio.to_thread.run_sync(webbrowser.open, pending.url, abandon_on_cancel=True)
            async with anyio.create_task_group() as group:
                group.start_soon(_read_pasted, service, pending.url)
                await pending.done.wait()
                group.cancel_scope.cancel()
        if pending.failure:
            raise LoginRequired(f"The login at {name} failed: {pending.failure}.")
        return await credentials.current()


@contextmanager
def _reachable(name: str) -> Iterator[None]:
    """Say why a server, or where its tokens come from, could not be asked."""
    try:
        yield
    except ExchangeError as error:
        raise LoginRequired(f"The login at {name} failed: {error.reason}.") from error


async def _read_pasted(service: LoginService, url: str) -> None:
    """Take the address at which a browser ended on another machine, from standard input."""
    state = dict(parse_qsl(urlsplit(url).query)).get("state", "")
    if sys.stdin.isatty():
        echo_error("If the browser is on another machine, paste the address at which it ends here:")
    async for line in _lines_of_stdin():
        parameters = dict(parse_qsl(urlsplit(line.strip()).query))
        if parameters.get("state") == state and await service.deliver(parameters):
            return
        echo_error("That is not the address at which this login ends.")


async def _lines_of_stdin() -> AsyncIterator[str]:
    """Read lines in a thread that does not keep the process from ending while nothing is typed."""
    loop, chunks = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            while chunk := os.read(sys.stdin.fileno(), _MAX_PASTED):
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            loop.call_soon_threadsafe(chunks.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        *lines, rest = (rest + chunk)[-_MAX_PASTED:].split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


async def _log_out(settings: Settings, name: str, caller: Caller | None) -> bool:
    options = _options_of(settings, name, caller)
    async with _service(settings) as service:
        stored = service.credentials(options, caller)
        if not isinstance(stored, StoredLogin) or await stored.reload() is None:
            raise NotFound(f"No login at {name} is stored.", hint="`toolcrib logins` lists them.")
        return await stored.log_out()


async def _list(settings: Settings) -> list[Login | None]:
    async with _service(settings) as service:
        found = (await service.vault.all()).values()
        return sorted(found, key=lambda one: ("", "") if one is None else (one.server, one.principal))


def _row(login: Login | None) -> tuple[str, ...]:
    if login is None:
        return ("?", "?", "?", "sealed with another key", "")
    return (login.server, _whose(login), login.issuer, _state(login), login.scope)


def _whose(login: Login) -> str:
    caller = caller_of(login.principal)
    if caller is None:
        return "all callers"
    name = f"{caller.tenant}/{caller.id}" if caller.tenant and caller.tenant != caller.issuer else str(caller.id)
    return f"{name} of {caller.issuer}" if caller.issuer else name


def _state(login: Login) -> str:
    if login.problem:
        return "needs a new login"
    if login.refused_at:
        return f"refused {iso_time(login.refused_at)}"
    if login.refresh_token or login.expires_at is None:
        return "ready"
    return "expired" if not login.is_valid(time.time()) else f"until {iso_time(login.expires_at)}"


def _as_json(login: Login | None) -> dict[str, Any] | None:
    if login is None:
        return None
    return {
        "server": login.server,
        "for": _whose(login),
        "issuer": login.issuer,
        "scopes": login.scope.split(),
        "logged_in": iso_time(login.logged_in_at),
        "expires": None if login.expires_at is None else iso_time(login.expires_at),
        "expired": not login.is_valid(time.time()),
        "refreshes": bool(login.refresh_token),
        "problem": login.problem,
        "refused": iso_time(login.refused_at) if login.refused_at else None,
    }
