"""Change settings files: add and remove servers, take over those of other clients, and make toolcrib a client's server.

Comments and order of a file stay as they are. What is planned is shown first, without any secret.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import click

from toolcrib.cli.completion import complete_client, complete_server
from toolcrib.cli.options import config_option, reports
from toolcrib.cli.output import ExitCode, UsageError, echo, echo_json, pluralize, print_columns
from toolcrib.cli.source import parse_header
from toolcrib.errors import SettingsError, ToolcribError
from toolcrib.names import nearest_names, nearest_namespace
from toolcrib.settings import document
from toolcrib.settings.clients import ANY_CLIENT, CLIENTS, ClientApp, Places, Platform, client_named, existing_files
from toolcrib.settings.connections import (
    ConnectedClient,
    ConnectionStore,
    FileChange,
    client_file,
    inside_project,
    plan_connect,
    plan_disconnect,
    program,
)
from toolcrib.settings.document import FieldPath, SettingsFile, dotted, read_text
from toolcrib.settings.edits import Change, changed_text, server_places, shown_path
from toolcrib.settings.env import user_folder
from toolcrib.settings.imports import (
    TABLE,
    FoundServer,
    ImportPlan,
    PlannedServer,
    plan_import,
    read_servers,
    write_atomically,
)
from toolcrib.settings.loader import find_settings_file
from toolcrib.settings.validation import url_problem

_PROJECT_FILE: Final = "toolcrib.json"
_own_file_option = config_option("The file to add servers to, instead of ~/.config/toolcrib/config.json.")
_changed_file_option = config_option("The settings file to change, instead of the one that is used by default.")
_keyring_option = click.option("--keyring", is_flag=True, help="Move secrets to the system's keyring, not to a file.")
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
_yes_option = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")


@click.command()
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARG]...]")
@click.option("--url", metavar="URL", help="The address of a remote server, instead of a command.")
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="A variable for the command.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header for --url.")
@_changed_file_option
@_keyring_option
@_dry_run_option
@reports()
def add(
    *,
    name: str,
    words: tuple[str, ...],
    config: Path | None,
    url: str | None,
    variables: Sequence[str],
    headers: Sequence[str],
    keyring: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add a server to the settings file: toolcrib add time -- uvx mcp-server-time

    A gateway that runs with the file starts it at once. Literal secrets move to ~/.config/toolcrib/secrets.env.
    """
    if bool(words) == (url is not None):
        raise UsageError(
            "A server needs either a command or --url.",
            hint=f"Such as: toolcrib add {name} -- uvx mcp-server-time, or: toolcrib add {name} --url https://...",
        )
    if nearest_namespace(name) != name or not name.strip():
        raise UsageError(f'"{name}" cannot be the name of a server.', hint="Leave out colons and control characters.")
    if url is not None and "${" not in url and (problem := url_problem(url)):
        raise UsageError(f"--url {problem}.", hint="Such as --url https://example.com/mcp.")
    file = _file(config)
    read = document.read_file(file, shown_path(file)) if file.exists() else None
    if read is not None and any(place.name == name for place in server_places(read)):
        raise SettingsError(f"{shown_path(file)} has a server {name} already", hint=f"First: toolcrib remove {name}")
    entry: dict[str, Any] = {"url": url} if url is not None else {"command": words[0], "args": list(words[1:])}
    entry |= {"env": dict(map(_variable, variables))} if variables else {}
    entry |= {"headers": dict(map(parse_header, headers))} if headers else {}
    found = FoundServer(client=ANY_CLIENT, path=file, at=(), key=name, name=name, entry=entry)
    plan = plan_import([found], file, os.environ, keyring=keyring, table=_table(read))
    if not dry_run:
        plan.write()
    if as_json:
        echo_json({"name": name, "file": str(file), "secrets": list(plan.secrets), "written": not dry_run})
        return
    echo(f"{'Would add' if dry_run else 'Added'} {name} to {shown_path(file)}.")
    if plan.secrets:
        where = "the keyring" if keyring else shown_path(plan.env_file)
        echo(f"{'Would move' if dry_run else 'Moved'} {pluralize(len(plan.secrets), 'secret')} to {where}.")


def _change_verb(change: Change, done: str, about: str) -> click.Command:
    """A verb that changes the entry of one server."""

    @click.command(change, help=about)
    @click.argument("name", shell_complete=complete_server)
    @_changed_file_option
    @_dry_run_option
    @reports()
    def verb(*, name: str, config: Path | None, dry_run: bool, as_json: bool) -> None:
        file = config.expanduser() if config is not None else find_settings_file(os.environ, Path.cwd())
        before, after = changed_text(file, name, change)
        changed = before != after
        if changed and not dry_run:
            write_atomically(file, after.encode())
        if as_json:
            echo_json({"file": str(file), "changed": changed, "written": changed and not dry_run})
        elif not changed:
            echo(f"{name} is {done.lower()} already.")
        elif dry_run:
            echo("\n".join(unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")))
        else:
            echo(f"{done} {name} in {shown_path(file)}.")

    return verb


remove = _change_verb(
    "remove",
    "Removed",
    "Remove a server from the settings file. A gateway that runs with it stops the server once its calls are done.",
)
enable = _change_verb("enable", "Enabled", "Enable a server that is disabled in the settings file.")
disable = _change_verb("disable", "Disabled", "Disable a server in the settings file, and keep its entry.")


def _variable(given: str) -> tuple[str, str]:
    """The entry for `NAME=VALUE`; without a value, the server gets the variable of toolcrib's own environment."""
    name, equals, value = given.partition("=")
    return name, value if equals else f"${{{name}}}"


def _file(config: Path | None) -> Path:
    """The settings file that is used without an option, or our own if there is none."""
    if config is not None:
        return config.expanduser()
    try:
        return find_settings_file(os.environ, Path.cwd())
    except SettingsError as error:
        if "searched" not in error.data:
            raise
        return own_file(None)


def _table(read: SettingsFile | None) -> FieldPath:
    """Where the file holds its servers."""
    places = [] if read is None else server_places(read)
    return next((place.at[:-1] for place in places if isinstance(place.at[-1], str)), TABLE)


# -- other clients -----------------------------------------------------------------------------------------------------


@click.command("import")
@click.argument("names", nargs=-1, metavar="[CLIENT|FILE]...", shell_complete=complete_client)
@_own_file_option
@_keyring_option
@_dry_run_option
@_yes_option
@reports()
def import_verb(
    *, names: tuple[str, ...], config: Path | None, keyring: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Add the servers of other MCP clients to toolcrib's own file.

    Without a name, all clients are looked for. You see what would be added, and are asked. Literal secrets move to
    ~/.config/toolcrib/secrets.env, which only you can read. The clients' files are not changed.
    """
    target = own_file(config)
    found: list[FoundServer] = []
    problems: list[str] = []
    for path in _files(names):
        if path.resolve() == target.resolve():
            continue
        try:
            found += read_servers(path, os.environ)
        except ToolcribError as error:
            problems.append(error.message)
    plan = plan_import(found, target, os.environ, keyring=keyring)
    if not as_json:
        _print_plan(plan, problems)
    written = bool(plan.added) and _agreed(dry_run=dry_run, yes=yes, as_json=as_json)
    if written:
        plan.write()
    if as_json:
        echo_json({**_plan_json(plan), "problems": problems, "written": written})
    elif written:
        echo(f"Added {pluralize(len(plan.added), 'server')} to {shown_path(target)}.")


@click.command()
@click.argument("client", metavar="CLIENT", shell_complete=complete_client)
@_own_file_option
@click.option("--project", is_flag=True, help="Change the client's file of the current folder.")
@_keyring_option
@_dry_run_option
@_yes_option
@reports()
def connect(
    *, client: str, config: Path | None, project: bool, keyring: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Make toolcrib the only server of a client, such as cursor, and move its servers to toolcrib's file.

    What the client's file held is kept, and `toolcrib disconnect` restores it.
    """
    app, target = _client(client), own_file(config, project=project)
    file, path = client_file(app, _places(), project=project)
    store = ConnectionStore.of_user(os.environ)
    if any(one.path == path for one in store.find(app)):
        raise SettingsError(
            f"{app.title} is already connected: {shown_path(path)}",
            hint=f"To undo it: toolcrib disconnect {app.id}",
        )
    is_filled = path.exists() and bool(read_text(path, str(path)).strip())
    found = [one for one in read_servers(path, os.environ) if one.at[0] != "projects"] if is_filled else []
    plan = plan_import(found, target, os.environ, keyring=keyring)
    moved = [one.found.key for one in plan.servers if one.action != "skip"]
    argv = (*program(), "serve", "--config", str(target.absolute()))
    change = plan_connect(app, file, path, argv, moved)
    if not as_json:
        _print_plan(plan, ())
        echo(f"toolcrib becomes the server of {app.title}: {shown_path(path)}")
    written = _agreed(dry_run=dry_run, yes=yes, as_json=as_json)
    if written:
        plan.write()
        _make(store, app, change)
    if as_json:
        echo_json({**_plan_json(plan), **_change_json(app, change), "written": written})
    elif written:
        echo(f"Connected. Restart {app.title}; to undo it: toolcrib disconnect {app.id}")


def _make(store: ConnectionStore, client: ClientApp, change: FileChange) -> None:
    """Remember first, so that what is changed can always be undone."""
    store.save(client, change)
    try:
        change.make()
    except BaseException:
        now = change.path.read_bytes() if change.path.exists() else None
        for one in store.find(client):
            if one.path == change.path and sha256(now or b"").hexdigest() != one.written:
                store.forget(one)
        raise


@click.command()
@click.argument("client", metavar="CLIENT", shell_complete=complete_client)
@_dry_run_option
@_yes_option
@reports()
def disconnect(*, client: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Restore the file of a client as it was before `toolcrib connect`."""
    app = _client(client)
    store = ConnectionStore.of_user(os.environ)
    connections = store.find(app)
    if not connections:
        raise SettingsError(f"{app.title} is not connected to toolcrib", hint=_connected_hint(store.find()))
    changes = [plan_disconnect(one) for one in connections]
    if not as_json:
        for change in changes:
            done = "is removed again" if change.after is None else "is restored"
            back = f", with {', '.join(change.moved)}" if change.moved else ""
            echo(f"{shown_path(change.path)} {done}{back}")
    written = _agreed(dry_run=dry_run, yes=yes, as_json=as_json)
    if written:
        for connection, change in zip(connections, changes, strict=True):
            change.make()
            store.forget(connection)
    if as_json:
        echo_json({"files": [_change_json(app, change) for change in changes], "written": written})
    elif written:
        echo(f"Disconnected. Restart {app.title}. The servers stay in toolcrib's file too.")


def _connected_hint(connections: Iterable[ConnectedClient]) -> str:
    names = sorted({one.client for one in connections})
    return f"Connected clients: {', '.join(names)}." if names else "No client is connected."


# -- where -------------------------------------------------------------------------------------------------------------


def _places() -> Places:
    platform: Platform = "darwin" if sys.platform == "darwin" else "win32" if sys.platform == "win32" else "linux"
    home = Path(os.environ.get("HOME") or os.environ.get("USERPROFILE") or Path.home())
    return Places(platform=platform, home=home, project=Path.cwd(), environ=os.environ)


def _client(name: str) -> ClientApp:
    client = client_named(name)
    if client is None:
        known = [one.id for one in CLIENTS]
        raise UsageError(
            f'There is no client "{name}".',
            hint=f"Clients: {', '.join(known)}.",
            suggestions=nearest_names(name, known),
        )
    return client


def _files(names: Sequence[str]) -> list[Path]:
    """The files of these clients, or the files that are named; without names, those of all clients."""
    places, found = _places(), list[Path]()
    for name in names:
        if client_named(name) is None and Path(name).expanduser().is_file():
            found.append(Path(name).expanduser())
        else:
            client = _client(name)
            files = [path for one, _, path in existing_files(places) if one is client]
            if not files:
                raise SettingsError(f"{client.title} has no configuration file here")
            found += files
    return found if names else [path for _, _, path in existing_files(places)]


def own_file(config: Path | None, *, project: bool = False) -> Path:
    """Our own file to write: the one that is named, or that of the project or of the user."""
    if config is not None:
        return config.expanduser()
    if project:
        return inside_project(Path.cwd() / _PROJECT_FILE, Path.cwd())
    folder = user_folder(os.environ)
    toml = folder / "config.toml"
    return toml if toml.is_file() else folder / "config.json"


def _agreed(*, dry_run: bool, yes: bool, as_json: bool) -> bool:
    """Whether to go on. Asks at a terminal; anywhere else, only `--yes` agrees."""
    if dry_run:
        return False
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        raise UsageError(
            "Nothing was written: confirmation needs a terminal.",
            hint="Pass --yes to confirm in advance, or --dry-run to see the changes.",
        )
    if click.confirm("Write this?", err=True):
        return True
    echo("Nothing was written.")
    raise click.exceptions.Exit(ExitCode.REFUSED)


# -- preview -----------------------------------------------------------------------------------------------------------

_WORDS: Final = {"add": "add", "same": "has it", "skip": "leave out"}


def _print_plan(plan: ImportPlan, problems: Sequence[str]) -> None:
    rows = [
        (_WORDS[one.action], one.name, one.endpoint, _note(one), shown_path(one.found.path)) for one in plan.servers
    ]
    print_columns(rows, head=("", "SERVER", "STARTS", "NOTE", "FROM"))
    for problem in problems:
        echo(f"cannot be read: {problem}")
    if not rows:
        echo("No servers of other clients were found.")
    elif not plan.added:
        echo(f"\n{shown_path(plan.file)} has all of them." if any(one.action == "same" for one in plan.servers) else "")
    else:
        echo(f"\n{pluralize(len(plan.added), 'server')} to add to {shown_path(plan.file)}.")
        if plan.secrets:
            where = "the keyring" if plan.keyring else f"{shown_path(plan.env_file)}, which only you can read"
            echo(f"{pluralize(len(plan.secrets), 'secret')} to move to {where}.")


def _note(server: PlannedServer) -> str:
    if server.action == "skip":
        return server.reason
    renamed = "" if server.name == server.found.key else f'called "{server.found.key}" there'
    moved = pluralize(len(server.secrets), "secret") if server.secrets and server.action == "add" else ""
    return "; ".join(filter(None, (renamed, moved)))


def _plan_json(plan: ImportPlan) -> dict[str, Any]:
    return {
        "config": str(plan.file),
        "secrets": "keyring" if plan.keyring else str(plan.env_file),
        "servers": [
            {
                "name": one.name,
                "action": one.action,
                "reason": one.reason,
                "client": one.found.client.id,
                "file": str(one.found.path),
                "field": dotted(one.found.at),
                "secrets": list(one.secrets),
            }
            for one in plan.servers
        ],
    }


def _change_json(client: ClientApp, change: FileChange) -> dict[str, Any]:
    return {"client": client.id, "file": str(change.path), "moved": list(change.moved)}
