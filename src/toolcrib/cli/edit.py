"""Add, remove, enable and disable servers of a settings file; comments and order of the rest stay as they are."""

import os
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from toolcrib.cli.clients import own_file
from toolcrib.cli.output import UsageError, echo, echo_json, pluralize
from toolcrib.errors import SettingsError
from toolcrib.names import nearest_namespace
from toolcrib.settings import document
from toolcrib.settings.clients import ANY_CLIENT
from toolcrib.settings.document import FieldPath, SettingsFile
from toolcrib.settings.imports import TABLE, FoundServer, plan_import, write_atomically
from toolcrib.settings.loader import find_settings_file
from toolcrib.settings.servers import changed_text, server_places, shown_path


def add_server(
    name: str,
    words: Sequence[str],
    config: Path | None,
    *,
    url: str | None,
    variables: Sequence[str],
    headers: Sequence[str],
    keyring: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add a server to the settings file, which is made if need be. Literal secrets move to a file of their own."""
    if bool(words) == (url is not None):
        raise UsageError(
            "A server needs either a command or --url.",
            hint=f"Such as: toolcrib add {name} -- uvx mcp-server-time, or: toolcrib add {name} --url https://...",
        )
    if nearest_namespace(name) != name or not name.strip():
        raise UsageError(f'"{name}" cannot be the name of a server.', hint="Leave out colons and control characters.")
    file = _file(config)
    read = document.read_file(file, shown_path(file)) if file.exists() else None
    if read is not None and any(place.name == name for place in server_places(read)):
        raise SettingsError(f"{shown_path(file)} has a server {name} already", hint=f"First: toolcrib remove {name}")
    entry: dict[str, Any] = {"url": url} if url is not None else {"command": words[0], "args": list(words[1:])}
    entry |= {"env": dict(map(_variable, variables))} if variables else {}
    entry |= {"headers": dict(map(_header, headers))} if headers else {}
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


def remove_server(name: str, config: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Remove a server's entry from the settings file."""
    file = _existing_file(config)
    _write(file, *changed_text(file, name, "remove"), "Removed", name, dry_run=dry_run, as_json=as_json)


def switch_server(name: str, config: Path | None, *, on: bool, dry_run: bool, as_json: bool) -> None:
    """Enable or disable a server in the settings file."""
    file = _existing_file(config)
    before, after = changed_text(file, name, "enable" if on else "disable")
    _write(file, before, after, "Enabled" if on else "Disabled", name, dry_run=dry_run, as_json=as_json)


def _variable(given: str) -> tuple[str, str]:
    """The entry for `NAME=VALUE`; without a value, the server gets the variable of toolcrib's own environment."""
    name, equals, value = given.partition("=")
    return name, value if equals else f"${{{name}}}"


def _header(given: str) -> tuple[str, str]:
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise UsageError("--header must be NAME:VALUE.", hint="Such as --header 'Authorization: Bearer ${TOKEN}'.")
    return name.strip(), value.strip()


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


def _existing_file(config: Path | None) -> Path:
    return config.expanduser() if config is not None else find_settings_file(os.environ, Path.cwd())


def _table(read: SettingsFile | None) -> FieldPath:
    """Where the file holds its servers."""
    places = [] if read is None else server_places(read)
    return next((place.at[:-1] for place in places if isinstance(place.at[-1], str)), TABLE)


def _write(file: Path, before: str, after: str, done: str, name: str, *, dry_run: bool, as_json: bool) -> None:
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
