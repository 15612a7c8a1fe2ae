"""`toolcrib login`, `logout` and `logins`: logins of people at servers behind OAuth. Tokens are never printed."""
# ruff: noqa: ARG001 - `debug` is read by `report_errors`

import contextlib
import os
import sys
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import click

from toolcrib.cli.completion import complete_server
from toolcrib.cli.options import reports
from toolcrib.cli.output import UsageError, echo, echo_error, echo_json, iso_time, print_columns
from toolcrib.errors import BackendNotFound, LoginRequired, NotFound, SettingsError

_MAX_PASTED: Final = 8192

_config = click.option("--config", "-c", type=click.Path(path_type=Path), metavar="FILE", help="The settings file.")
_server = click.argument("server", shell_complete=complete_server)
_caller = click.option("--caller", metavar="ID", help="The caller whose login it is, for a server with per_caller.")
_tenant = click.option("--tenant", metavar="NAME", help="The tenant of the caller.")
_issuer = click.option(
    "--issuer", metavar="URL", help="The authorization server that vouches for the caller, if one does."
)


@click.command(short_help="Log in to a server behind OAuth.")
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
    debug: bool,
) -> None:
    """Log in to a server behind OAuth, in a browser.

    The login is kept sealed with the state, and refreshed by every gateway that uses it; one that runs takes it up by
    itself. If the browser is on another machine, paste the address at which it ends here.
    """
    import anyio

    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    stored = anyio.run(_log_in, settings, server, _as_caller(caller, tenant, issuer), not (no_browser or as_json))
    if as_json:
        echo_json(_as_json(stored))
    else:
        echo(f"Logged in to {server}." if stored is not None else f"{server} needs no login: toolcrib has its own.")


@click.command(short_help="Delete a stored login.")
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
    debug: bool,
) -> None:
    """Delete a stored login, and have the authorization server revoke it if it can."""
    import anyio

    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    revoked = anyio.run(_log_out, settings, server, _as_caller(caller, tenant, issuer))
    if as_json:
        echo_json({"server": server, "revoked": revoked})
    else:
        echo(f"Logged out of {server}{'' if revoked else '; its tokens were not revoked'}.")


@click.command(short_help="List the stored logins.")
@_config
@reports()
def logins(*, config: Path | None, as_json: bool, debug: bool) -> None:
    """List the stored logins: whose they are, and how long their tokens last. Tokens are never shown."""
    import anyio

    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    found = anyio.run(_list, settings)
    if as_json:
        echo_json({"logins": [_as_json(one) for one in found]})
    elif not found:
        echo("No logins are stored.")
    else:
        print_columns(map(_row, found), head=("SERVER", "FOR", "ISSUER", "STATE", "SCOPES"))


def _as_caller(caller: str | None, tenant: str | None, issuer: str | None) -> Any:
    from toolcrib.types import Caller

    if caller is None and (tenant is not None or issuer is not None):
        raise UsageError(f"{'--tenant' if tenant is not None else '--issuer'} needs --caller.")
    return None if caller is None else Caller(id=caller, tenant=tenant, issuer=issuer)


@asynccontextmanager
async def _service(settings: Any) -> AsyncIterator[Any]:
    """The logins in the state of the settings. Raises `SettingsError` if they are not kept anywhere."""
    import anyio

    from toolcrib.state.stores import make_store
    from toolcrib.upstream.logins.service import LoginService

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


def _options_of(settings: Any, name: str, caller: Any) -> Any:
    """The options of a server that can have such a login."""
    from toolcrib.names import nearest_names

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


async def _log_in(settings: Any, name: str, caller: Any, browse: bool) -> Any:  # noqa: FBT001 - anyio.run
    import anyio
    import anyio.to_thread

    from toolcrib.upstream.logins.oauth import first_challenge

    options = _options_of(settings, name, caller)
    async with _service(settings) as service:
        stored = service.credentials(options, caller)
        with _reachable(name):
            challenge = await first_challenge(options)
            if options.auth.grant != "authorization_code":
                await stored.answer(challenge, None)
                return None
        stored.challenge = challenge
        pending = await service.begin(stored)
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
        return await stored.current()


@contextmanager
def _reachable(name: str) -> Iterator[None]:
    """Say why a server, or where its tokens come from, could not be asked."""
    from toolcrib.protocol.failures import ExchangeError

    try:
        yield
    except ExchangeError as error:
        raise LoginRequired(f"The login at {name} failed: {error.reason}.") from error


async def _read_pasted(service: Any, url: str) -> None:
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
    import asyncio

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


async def _log_out(settings: Any, name: str, caller: Any) -> bool:
    options = _options_of(settings, name, caller)
    async with _service(settings) as service:
        stored = service.credentials(options, caller)
        if options.auth.grant != "authorization_code" or await stored.reload() is None:
            raise NotFound(f"No login at {name} is stored.", hint="`toolcrib logins` lists them.")
        revoked: bool = await stored.log_out()
        return revoked


async def _list(settings: Any) -> list[Any]:
    async with _service(settings) as service:
        found: Mapping[str, Any] = await service.vault.all()
        return sorted(found.values(), key=lambda one: ("", "") if one is None else (one.server, one.principal))


def _row(login: Any) -> tuple[str, ...]:
    if login is None:
        return ("?", "?", "?", "sealed with another key", "")
    return (login.server, _whose(login), login.issuer, _state(login), login.scope)


def _whose(login: Any) -> str:
    from toolcrib.upstream.logins.vault import caller_of

    caller = caller_of(login.principal)
    if caller is None:
        return "all callers"
    name = f"{caller.tenant}/{caller.id}" if caller.tenant and caller.tenant != caller.issuer else str(caller.id)
    return f"{name} of {caller.issuer}" if caller.issuer else name


def _state(login: Any) -> str:
    if login.problem:
        return "needs a new login"
    if login.refused_at:
        return f"refused {iso_time(login.refused_at)}"
    if login.refresh_token or login.expires_at is None:
        return "ready"
    return "expired" if not login.is_valid(time.time()) else f"until {iso_time(login.expires_at)}"


def _as_json(login: Any) -> dict[str, Any] | None:
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
