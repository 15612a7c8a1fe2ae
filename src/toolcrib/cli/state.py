"""`toolcrib state`, `result` and `audit`: what is kept in the state file or in Redis, large results, and the audit log.

`state` shows and clears what is kept, and never prints values; `result` prints a large result; `audit` checks the log.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import click

from toolcrib.cli.arguments import read_arguments
from toolcrib.cli.options import config_option, reports, state_config_option
from toolcrib.cli.output import ExitCode, UsageError, echo, echo_json, iso_time, pluralize, print_columns, printable
from toolcrib.errors import NotFound, SettingsError
from toolcrib.gateway.past import forget_saved, saved_table
from toolcrib.gateway.sessions import forget_used
from toolcrib.middleware.audit import digest_key
from toolcrib.middleware.audit_file import AuditReport, verify_audit
from toolcrib.middleware.fingerprint import canonical_json, digest
from toolcrib.names import nearest
from toolcrib.results.reading import parse_read
from toolcrib.results.store import ResultStore
from toolcrib.settings.loader import load_settings
from toolcrib.settings.options import Settings
from toolcrib.state.base import StateCodec, StateStore, TableOverview
from toolcrib.state.options import StateOptions, default_state_file
from toolcrib.state.stores import has_store, make_listed_store, make_store
from toolcrib.types import Caller
from toolcrib.usage.zero_hits import forget_zero_hits, zero_hits_table

CATALOGS: Final = "catalogs"
"""The table of the servers' last good catalogs."""
TABLES: Final = frozenset(
    {
        *("api_keys", "api_keys_revoked", "asked requests", "breakers", CATALOGS, "catalog_secret"),
        *("console approvals", "console history", "console sessions", "console sign-ins", "ended sessions"),
        *(
            "large results",
            "large results of callers",
            "login_answers",
            "login_leases",
            "login_leases tokens",
            "login_pages",
            "logins",
        ),
        *("past requests", "pins", "processes", "rates", "replicas", "result generations", "result shapes", "results"),
        *("session keys", "session owners", "session owners tokens", "session uris", "sessions", "spent approvals"),
        *(
            "subscriptions",
            "tasks",
            "tool descriptions",
            "trusted definitions",
            "usage",
            "used tools",
            "versions of definitions",
            "zero hits",
        ),
    }
)
"""The tables there can be: to clear one that is empty or does not exist yet is no error."""
_IN_MEMORY: Final = "State is kept in memory only."
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
_PLAIN: Final[StateCodec[Any]] = StateCodec(lambda value: value, lambda value: value)


@dataclass(frozen=True, slots=True)
class SavedCatalog:
    """A catalog in the file, without what is in it."""

    server: str
    tools: int
    saved: float
    """In seconds since the epoch."""


def settings_or_defaults(config: Path | None) -> Settings:
    """The settings, or without a settings file the defaults, with the default state file."""
    try:
        return load_settings(config)
    except SettingsError as error:
        if "searched" not in error.data:
            raise
        return Settings(state=StateOptions(path=default_state_file()))


def state_options(config: Path | None) -> StateOptions:
    """Where the settings keep state; without a settings file, the default state file."""
    return settings_or_defaults(config).state


@click.command()
@click.argument("action", type=click.Choice(("show", "clear", "forget")), default="show", metavar="[show|clear|forget]")
@click.argument("name", required=False, metavar="[TABLE|SERVER|TOOL]")
@click.option("--tenant", metavar="NAME", help="The tenant to forget, instead of callers without one.")
@click.option("--caller", metavar="ID", help="Forget only which tools this caller used.")
@config_option()
@reports()
def state(
    *, action: str, name: str | None, tenant: str | None, caller: str | None, config: Path | None, as_json: bool
) -> None:
    """Show what is kept across restarts, or clear it: all of it, one table, or the catalogs of one server.

    forget deletes what was learned from callers, about all tools or one: which tools they used, and the words of past
    requests. Without a settings file, the default state file is used. No server is started, and values are never shown.
    """
    if name is not None and action == "show":
        raise UsageError("show takes no name.", hint=f"To clear it: toolcrib state clear {name}")
    if (tenant is not None or caller is not None) and action != "forget":
        raise UsageError("Only forget takes --tenant and --caller.")
    options = state_options(config)
    if action == "show":
        _show(options, as_json=as_json)
    elif action == "forget":
        _forget(options, name, tenant, caller, as_json=as_json)
    else:
        _clear(options, name, as_json=as_json)


def _show(options: StateOptions, *, as_json: bool) -> None:
    """Print where state is kept, how large it is, and what there is of each server."""
    if options.path is None and options.url is None:
        echo_json({"path": None}) if as_json else echo(_IN_MEMORY)
        return
    tables, catalogs = anyio.run(_contents, options) if _has_values(options) else ((), [])
    is_file = options.url is None and options.path is not None
    size = _file_size(options.path) if is_file and options.path else sum(table.bytes for table in tables)
    place = str(options.path) if is_file else f"Redis, under {options.prefix}"
    if as_json:
        shown = [
            {**asdict(table), "oldest": _iso_time(table.oldest), "newest": _iso_time(table.newest)} for table in tables
        ]
        saved = [{**asdict(one), "saved": iso_time(one.saved)} for one in catalogs]
        where = {"path": place, "bytes": size, "max_bytes": options.max_bytes}
        if not is_file:
            where = {"path": None, "redis": options.prefix, "bytes": size}
        echo_json({**where, "tables": shown, "catalogs": saved})
        return
    echo(f"{place}: {_megabytes(size)}" + (f" of at most {_megabytes(options.max_bytes)}" if is_file else ""))
    if tables:
        echo()
        rows = [
            (one.name, str(one.entries), _megabytes(one.bytes), _age(one.oldest), _age(one.newest)) for one in tables
        ]
        print_columns(rows, head=("TABLE", "ENTRIES", "SIZE", "OLDEST", "NEWEST"))
    if catalogs:
        echo()
        print_columns(
            [(one.server, str(one.tools), _age(one.saved)) for one in catalogs], head=("SERVER", "TOOLS", "LISTED")
        )


def _clear(options: StateOptions, name: str | None, *, as_json: bool) -> None:
    """Delete a table, the catalogs of a server, or everything. Raises `NotFound` for another name."""
    in_memory = options.path is None and options.url is None
    if _has_values(options):
        deleted = anyio.run(_cleared, options, name)
    elif name is None or in_memory or name in TABLES:
        deleted = 0
    else:
        raise _unknown(name, ())
    if as_json:
        echo_json({"deleted": deleted})
    else:
        echo(_IN_MEMORY if in_memory else f"Deleted {pluralize(deleted, 'value')}.")


def _forget(options: StateOptions, tool: str | None, tenant: str | None, caller: str | None, *, as_json: bool) -> None:
    """Forget what was learned from a tenant, or from one caller, or about one tool. Raises `NotFound` for no such tool.

    That is which tools they used, and except for a single caller past requests and searches without hits.
    """
    found = anyio.run(_forgotten, options, tenant, tool, caller) if _has_values(options) else (0, 0, 0)
    tools, groups, callers = found
    if not any(found) and tool is not None:
        raise NotFound(
            f"Nothing was learned about {tool}.",
            hint="Give a tool by its id, such as git:log, and with --tenant its tenant; "
            "`toolcrib search --explain` shows what the past adds.",
        )
    if as_json:
        echo_json({"forgotten": tools, "zero_hits": groups, "callers": callers})
    elif options.path is None and options.url is None:
        echo(_IN_MEMORY)
    else:
        more = f", and {pluralize(groups, 'group')} of searches without hits" if groups else ""
        used = f", which tools {pluralize(callers, 'caller')} used" if callers else ""
        echo(f"Forgot the past requests of {pluralize(tools, 'tool')}{used}{more}.")


def _has_values(options: StateOptions) -> bool:
    """Whether there is a store outside this process, without creating a file for it."""
    return has_store(options) and (options.url is not None or options.path is None or _file_size(options.path) > 0)


async def _forgotten(
    options: StateOptions, tenant: str | None, tool: str | None, caller: str | None
) -> tuple[int, int, int]:
    async with make_store(options, must_open=True) as store:
        callers = await forget_used(store, tenant, caller=caller, tool_id=tool)
        if caller is not None:
            return 0, 0, callers
        tools = await forget_saved(saved_table(store), tenant, tool)
        groups = await forget_zero_hits(zero_hits_table(store), tenant, tool)
        return tools, groups, callers


async def _contents(options: StateOptions) -> tuple[Sequence[TableOverview], list[SavedCatalog]]:
    async with make_listed_store(options) as store:
        found = (await _catalogs(store)).values()
        return await store.tables(), sorted(found, key=lambda one: one.server)


async def _catalogs(store: StateStore) -> dict[str, SavedCatalog]:
    """The saved catalogs, by key."""
    saved = await store.table(CATALOGS, _PLAIN, durable=True).items()
    return {key: _catalog(value) for key, value in saved.items()}


def _catalog(saved: Any) -> SavedCatalog:
    """What an entry of the table holds; one that another version wrote may lack any of it."""
    catalog = saved.get("catalog") if isinstance(saved, dict) else None
    fields = catalog if isinstance(catalog, dict) else {}
    tools, read_at = fields.get("tools"), fields.get("read_at")
    return SavedCatalog(
        server=str(fields.get("server") or "?"),
        tools=len(tools) if isinstance(tools, list) else 0,
        saved=min(read_at, time.time()) if isinstance(read_at, float) and read_at >= 0 else 0.0,
    )


async def _cleared(options: StateOptions, name: str | None) -> int:
    async with make_listed_store(options) as store:
        tables = {table.name for table in await store.tables()}
        if name is None or name in tables:
            return await store.clear(name)
        catalogs = await _catalogs(store)
        deleted = await forget_catalogs(store, name)
        if not deleted and name not in TABLES:
            raise _unknown(name, {*tables, *(one.server for one in catalogs.values())})
        return deleted


async def forget_catalogs(store: StateStore, server: str) -> int:
    """Delete what a server listed last, so that it is asked again, and return how many lists there were."""
    keys = [key for key, catalog in (await _catalogs(store)).items() if catalog.server == server]
    for key in keys:
        await store.table(CATALOGS, _PLAIN, durable=True).delete(key)
    return len(keys)


def _unknown(name: str, known: Iterable[str]) -> NotFound:
    return NotFound(
        f'Nothing is kept under the name "{name}".',
        hint="Give the name of a table or a server that `toolcrib state` shows, or none to delete everything.",
        suggestions=nearest(name, known),
    )


def _file_size(path: Path) -> int:
    """The size of the file and its log; 0 if there is no file."""
    return sum(one.stat().st_size for one in (path, path.with_name(f"{path.name}-wal")) if one.is_file())


def _megabytes(size: int) -> str:
    return f"{size / 1024:.0f} kB" if size < 1024 * 1024 else f"{size / 1024 / 1024:.1f} MB"


def _iso_time(moment: float | None) -> str | None:
    return None if moment is None else iso_time(moment)


def _age(moment: float | None) -> str:
    if moment is None:
        return "-"
    passed = max(0.0, time.time() - moment)
    for seconds, unit in _UNITS:
        if passed >= seconds:
            return f"{pluralize(int(passed // seconds), unit)} ago"
    return "just now"


# -- large results -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("handle")
@click.option("--path", metavar="JSONPATH", help="Only what this query selects, such as '$.items[*].name'.")
@click.option("--grep", metavar="REGEX", help="Only the lines, or the values of JSON, that match.")
@click.option("--range", "items", metavar="A-B", help="Only these items or lines, counted from 1.")
@click.option("--page", type=int, metavar="N", help="The result in pages, as an agent reads it.")
@click.option("--caller", metavar="ID", default="local", help="Whose result it is; by default, your own.")
@click.option("--tenant", metavar="NAME", help="The caller's tenant.")
@click.option("--issuer", metavar="URL", help="The authorization server that vouches for the caller, if one does.")
@state_config_option()
@reports()
def result(
    *,
    handle: str,
    caller: str,
    tenant: str | None,
    issuer: str | None,
    config: Path | None,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Print a large result of an earlier call, or a part of it.

    HANDLE is what the reply to the call named. Without an option, the whole result is printed. The state file has it,
    so no server is started.
    """
    text = anyio.run(_read_result, handle, Caller(id=caller, tenant=tenant, issuer=issuer), config, wanted)
    echo_json({"handle": handle, "text": text}) if as_json else echo(text)


async def _read_result(handle: str, owner: Caller, config: Path | None, wanted: Mapping[str, Any]) -> str:
    _, request = parse_read(
        {"handle": handle, **{"range" if name == "items" else name: value for name, value in wanted.items()}}
    )
    async with make_store(state_options(config), must_open=True) as store:
        results = ResultStore(store)
        if not any(wanted.values()):
            return await results.text(owner, handle)
        return await results.read(owner, handle, request, results.options.tokens)


# -- the audit log -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("action", type=click.Choice(("verify", "digest")), metavar="verify|digest")
@click.argument("what", required=False, metavar="[FILE|JSON]")
@click.option("--holds", metavar="HASH", help="With verify: a hash noted earlier, which the log must still have.")
@config_option()
@reports()
def audit(*, action: str, what: str | None, holds: str | None, config: Path | None, as_json: bool) -> None:
    """Check the audit log: that no record was changed, left out or added.

    verify checks FILE, or the log that the settings name, with the older files beside it. The exit code is 6 if the
    log is not whole. digest prints the digest that the log has for these arguments of a call, a JSON object or @FILE;
    both need the key of the log, from the settings, if it has one.
    """
    if action == "digest":
        _print_digest(what, config, as_json=as_json)
        return
    options = None if what is not None and config is None else load_settings(config).gateway.calls.audit_file
    path = Path(what) if what is not None else None if options is None else options.path
    if path is None:
        raise UsageError("The settings name no audit file.", hint="Give a file, or set calls.audit_file.path.")
    report = verify_audit(path, key=None if options is None else options.key, holds=holds)
    if as_json:
        echo_json({"whole": report.is_whole, **asdict(report)})
    else:
        _print_report(report)
    if not report.is_whole:
        raise click.exceptions.Exit(ExitCode.SERVER)


def _print_digest(text: str | None, config: Path | None, *, as_json: bool) -> None:
    """Print the digest that the audit log of the settings has for these arguments of a call. Raises `UsageError`."""
    options = load_settings(config).gateway.calls.audit_file
    if options is None or options.key is None:
        raise UsageError(
            "This audit log has no key, so its digests cannot be recomputed.",
            hint="Set calls.audit_file.key, as ${NAME}.",
        )
    if text is None:
        raise UsageError("digest needs the arguments of the call, such as '{\"id\": 3}'.")
    found = digest(canonical_json(read_arguments(text)) or "", digest_key(options.key))
    echo_json({"arguments": found}) if as_json else echo(found)


def _print_report(report: AuditReport) -> None:
    for problem in report.problems:
        echo(problem)
    count = f"{pluralize(report.records, 'record')} in {pluralize(len(report.files), 'file')}"
    if report.records:
        count += f", numbers {report.first} to {report.last}"
    echo(f"{'Broken' if report.problems else 'Incomplete' if report.lost else 'Whole'}: {count}.")
    if report.first is not None and report.first > 1:
        echo(f"Records before number {report.first} are in files that are not here.")
    if report.cut_lines:
        echo(f"{pluralize(report.cut_lines, 'line')} cut short when a process ended.")
    if report.lost:
        echo(f"{pluralize(report.lost, 'call')} not recorded while the file could not be written:")
    for gap in report.gaps:
        when = f" from {iso_time(gap.first)} to {iso_time(gap.last)}" if gap.first else ""
        why = f": {printable(gap.reason)}" if gap.reason else ""
        echo(f"  {pluralize(gap.events, 'call')}{when}, before record {gap.record}{why}")
    for one in report.unended:
        echo(
            f"The process {one.process}, which began with record {one.record} at {iso_time(one.since)}, has not ended: "
            "if it no longer runs, its last calls may be missing."
        )
    if report.held is not None:
        echo("The hash is in the log." if report.held else "The hash is not in the log.")
    if report.last_hash:
        echo(f"Last hash: {report.last_hash}")
