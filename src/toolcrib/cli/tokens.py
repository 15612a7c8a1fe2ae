"""`toolcrib tokens`: API keys of callers, which gateways that run with the same state accept."""
# ruff: noqa: ARG001, PLC0415 - as in `main`

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from toolcrib.cli.options import reports
from toolcrib.cli.output import UsageError, echo, echo_error, echo_json, iso_time, print_columns

_T = TypeVar("_T")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_config_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file that says where state is kept.",
)


@click.group(short_help="Create, list and revoke API keys of callers.")
def tokens() -> None:
    """Create, list and revoke API keys, with which callers connect over HTTP.

    A gateway accepts them if its settings say `api_keys = true` in [toolcrib.auth]. Keys are kept in the state file or
    in Redis, as hashes. Creating and revoking needs no restart.
    """


@tokens.command(short_help="Create an API key, and show it once.")
@click.option("--caller", required=True, metavar="ID", help="Who uses the key.")
@click.option("--tenant", metavar="NAME", help="The caller's tenant.")
@click.option("--scope", "scopes", multiple=True, metavar="NAME", help="A scope of the caller; repeat for more.")
@click.option("--role", "roles", multiple=True, metavar="NAME", help="A role, for policies.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group, for policies.")
@click.option("--expires", default="90d", metavar="TIME", help="How long it lasts: 12h, 90d (the default) or never.")
@click.option("--note", default="", metavar="TEXT", help="What it is for, shown by list.")
@_config_option
@reports()
def create(
    *,
    caller: str,
    tenant: str | None,
    scopes: tuple[str, ...],
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    expires: str,
    note: str,
    config: Path | None,
    as_json: bool,
    debug: bool,
) -> None:
    """Create an API key, and show it once: toolcrib tokens create --caller ann --scope read

    Only its hash is kept, so it cannot be shown again.
    """
    from toolcrib.server.options import caller_problem
    from toolcrib.types import Caller

    if not caller.strip():
        raise UsageError("--caller must not be empty.")
    if problem := caller_problem(caller, tenant):
        raise UsageError(f"--caller {problem}.")
    owner = Caller(id=caller, tenant=tenant, scopes=frozenset(scopes), roles=frozenset(roles), groups=frozenset(groups))
    lasts_s = seconds_of(expires)
    key, secret = _with_keys(config, lambda keys: keys.create(owner, lasts_s=lasts_s, note=note))
    if as_json:
        echo_json({**_shown(key), "token": secret})
        return
    echo(secret)
    until = "does not expire" if key.expires is None else f"expires {iso_time(key.expires)}"
    echo_error(f"The API key {key.id} of {caller} {until}. It is not shown again.")
    if not _accepted(config):
        echo_error("No gateway accepts it yet: set api_keys = true in [toolcrib.auth].")


@tokens.command("list", short_help="List the API keys, without their secrets.")
@_config_option
@reports()
def list_keys(*, config: Path | None, as_json: bool, debug: bool) -> None:
    """List the API keys that are valid, without their secrets."""
    found = _with_keys(config, lambda keys: keys.all())
    if as_json:
        echo_json([_shown(key) for key in found])
        return
    if not found:
        echo("There are no API keys.")
    rows = [
        (
            key.id,
            key.caller,
            key.tenant or "",
            " ".join(sorted(key.scopes)),
            _day(key.created),
            _day(key.expires),
            key.note,
        )
        for key in found
    ]
    print_columns(rows, head=("ID", "CALLER", "TENANT", "SCOPES", "CREATED", "EXPIRES", "NOTE"))


@tokens.command(short_help="Revoke an API key at once.")
@click.argument("key_id", metavar="ID")
@_config_option
@reports()
def revoke(*, key_id: str, config: Path | None, as_json: bool, debug: bool) -> None:
    """Revoke an API key at once, by the id that list shows or by the key itself.

    Running gateways refuse it from the next request on, and end its open streams.
    """
    from toolcrib.server.api_keys import PREFIX

    bare = key_id.removeprefix(PREFIX).partition("_")[0]
    key = _with_keys(config, lambda keys: keys.revoke(bare))
    echo_json({"revoked": key.id}) if as_json else echo(f"Revoked the API key {key.id} of {key.caller}.")


def seconds_of(text: str) -> float | None:
    """A duration of the command line in seconds; None for `never`.

    >>> seconds_of("12h"), seconds_of("90d"), seconds_of("never")
    (43200.0, 7776000.0, None)
    """
    if text == "never":
        return None
    match = re.fullmatch(r"(\d{1,5})([mhd])", text)
    if match is None or not int(match[1]):
        raise UsageError(f"{text} is not a time.", hint="Write 30m, 12h, 90d or never.")
    return float(int(match[1]) * _UNITS[match[2]])


def _with_keys(config: Path | None, use: Callable[[Any], Awaitable[_T]]) -> _T:
    import anyio

    from toolcrib.cli.state import state_options
    from toolcrib.errors import SettingsError
    from toolcrib.server.api_keys import ApiKeyTable
    from toolcrib.state.options import make_store

    options = state_options(config)
    if options.path is None and options.url is None:
        raise SettingsError(
            "State is kept in memory only, so no gateway would know the key.",
            hint="Remove `memory` from [toolcrib.state], or name tokens in http.tokens.",
        )

    async def run() -> _T:
        async with make_store(options) as store:
            return await use(ApiKeyTable(store))

    return anyio.run(run)


def _accepted(config: Path | None) -> bool:
    """Whether the settings have a gateway accept API keys."""
    from toolcrib.errors import SettingsError
    from toolcrib.settings.loader import load_settings

    try:
        return load_settings(config).auth.api_keys
    except SettingsError:
        return False


def _shown(key: Any) -> dict[str, Any]:
    return {
        "id": key.id,
        "caller": key.caller,
        "tenant": key.tenant,
        **{name: sorted(getattr(key, name)) for name in ("scopes", "roles", "groups")},
        "note": key.note,
        "created": iso_time(key.created),
        "expires": None if key.expires is None else iso_time(key.expires),
    }


def _day(moment: float | None) -> str:
    return "never" if moment is None else datetime.fromtimestamp(moment, UTC).date().isoformat()
