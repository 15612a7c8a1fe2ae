"""Make toolcrib the server of another client, and undo it.

To connect means: the client's servers move to toolcrib's own file, and the client's file gets one entry, which starts
toolcrib. What the file held before is kept with the user's state, so that disconnecting restores it byte for byte, or,
if the client has changed its file since, entry by entry.
"""

import base64
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from toolcrib.errors import SettingsError
from toolcrib.private_files import make_private_folder, replacing
from toolcrib.settings import document
from toolcrib.settings.clients import ARGS, ARGV, CLIENTS, COMMAND, ClientApp, ClientFile, Places, is_server, value_at
from toolcrib.settings.document import FieldPath, Syntax
from toolcrib.settings.edits import add_entry, new_text, remove_entry
from toolcrib.settings.entries import FORMS, MIXED_FORMS, is_bare_map
from toolcrib.settings.imports import write_atomically
from toolcrib.state.options import default_state_file

NAME: Final = "toolcrib"
"""The name of our entry in a client's file."""
_UVX_FOLDERS: Final = frozenset({"archive-v0", "builds-v0", "environments-v2"})
"""The folders of uv's cache that hold the environments of uvx."""
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedClient:
    """A client's file that toolcrib has changed, and what it held before."""

    client: str
    path: Path
    existed: bool
    original: bytes = field(repr=False)
    written: str
    """Digest of the file as toolcrib wrote it."""
    table: FieldPath
    moved: tuple[str, ...]
    """The names of the entries that were taken out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A change of one file, which has not been made yet."""

    path: Path
    before: bytes | None = field(repr=False)
    """None if there is no file."""
    after: bytes | None = field(repr=False)
    """None if the file is to be removed."""
    moved: tuple[str, ...] = ()
    table: FieldPath = ()

    def make(self) -> None:
        """Write or remove the file. Raises `SettingsError` if it has changed since the change was planned."""
        now = self.path.read_bytes() if self.path.exists() else None
        if now != self.before:
            raise SettingsError(f"{self.path} has just been changed by another program", hint="Try again.")
        if self.after is None:
            self.path.resolve().unlink(missing_ok=True)  # a link that was there before stays
        else:
            write_atomically(self.path, self.after, mode=0o644)


def client_file(client: ClientApp, places: Places, *, project: bool = False) -> tuple[ClientFile, Path]:
    """The file of a client to change: the first that exists, or else the first of the table. Raises `SettingsError`."""
    found = [(file, Path(path)) for file, path in places.paths(client, "project" if project else "user")]
    if not found:
        other = "without --project" if project else "with --project"
        raise SettingsError(f"{client.title} has no such file", hint=f"Try it {other}.")
    file, path = next(((file, path) for file, path in found if path.is_file()), found[0])
    return file, inside_project(path, Path(places.project)) if project else path


def inside_project(path: Path, project: Path) -> Path:
    """The path, unless links lead from it out of the project: its author would choose what is changed then.

    A user's own files may be links, as those of a collection of dotfiles are. Raises `SettingsError`.
    """
    place = path.resolve()
    if not place.is_relative_to(project.resolve()):
        raise SettingsError(
            f"{path} is a link that leads out of the project, to {place}, and is not followed",
            hint="Put a file in its place, or leave out --project.",
        )
    return path


def program() -> tuple[str, ...]:
    """The command that starts toolcrib, as a client must write it: clients do not have the PATH of a shell."""
    uvx = _uvx()
    if uvx:
        return uvx
    started = Path(sys.argv[0]).absolute()
    if started.stem == NAME and started.is_file():
        return (str(started),)
    return (sys.executable, "-m", NAME)


def _uvx() -> tuple[str, ...]:
    """The command for a toolcrib that uvx runs. uv may delete the folder that it is in at any time."""
    uv = os.environ.get("UV", "")
    if not uv or not _UVX_FOLDERS.intersection(Path(sys.prefix).parts):
        return ()
    uvx = Path(uv).with_name("uvx" + Path(uv).suffix)
    start = (str(uvx),) if uvx.is_file() else (uv, "tool", "run")
    origin = _origin()
    return (*start, "--from", origin, NAME) if origin else (*start, NAME)


def _origin() -> str:
    """Where this toolcrib was installed from, if not from a package registry, as pip takes it. Source: PEP 610."""
    text = metadata.distribution(NAME).read_text("direct_url.json")
    record = json.loads(text) if text else {}
    url, vcs = str(record.get("url", "")), record.get("vcs_info")
    return f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url


def plan_connect(
    client: ClientApp, file: ClientFile, path: Path, argv: Sequence[str], moved: Sequence[str]
) -> FileChange:
    """The client's file with toolcrib's entry, and without those of these names. Raises `SettingsError`."""
    before = path.read_bytes() if path.exists() else None
    text = document.read_text(path, str(path)) if before is not None else new_text(file.syntax, client.servers)
    syntax = document.syntax_of(text, path) if before is not None and text.strip() else file.syntax
    if not text.strip():
        text = new_text(syntax, client.servers)
    value = document.parse(text, syntax, ()).value
    table = _table_of(client, value)
    servers = value_at(value, table)
    names = _names(servers)
    taken = [name for name in moved if name != NAME and name in names]
    if NAME in names:
        text = _without(text, syntax, table, NAME)
    as_list = isinstance(servers, list) or (client.as_list and servers is None)
    text = add_entry(text, syntax, table, None if as_list else NAME, _own_entry(client, argv))
    for name in taken:
        text = _without(text, syntax, table, name)
    bom = _BOM if before is not None and before.startswith(_BOM) else b""
    return FileChange(path=path, before=before, after=bom + text.encode(), moved=tuple(taken), table=table)


def _table_of(client: ClientApp, value: Any) -> FieldPath:
    """Where this file holds its servers, or would."""
    if isinstance(value, dict) and is_bare_map(value):
        return ()
    forms = [form for form in (*FORMS, *MIXED_FORMS) if isinstance(value_at(value, form), dict)]
    if value_at(value, client.servers) is not None or not forms:
        return client.servers
    return forms[0]


def _names(table: Any) -> list[str]:
    if isinstance(table, list):
        return [str(entry.get("name", "")) if isinstance(entry, dict) else "" for entry in table]
    return [key for key, entry in table.items() if is_server(entry)] if isinstance(table, dict) else []


def _without(text: str, syntax: Syntax, table: FieldPath, name: str) -> str:
    found = value_at(document.parse(text, syntax, table).value, table)
    return remove_entry(text, syntax, (*table, _names(found).index(name) if isinstance(found, list) else name))


def _own_entry(client: ClientApp, argv: Sequence[str]) -> dict[str, Any]:
    """The entry of the client's row, with the command in its place."""
    values = {COMMAND: argv[0], ARGS: list(argv[1:]), ARGV: list(argv)}
    return {key: values.get(item, item) if isinstance(item, str) else item for key, item in client.entry.items()}


# -- undo --------------------------------------------------------------------------------------------------------------


def plan_disconnect(connection: ConnectedClient) -> FileChange:
    """The client's file as it was before; with the client's own changes since, if it made any.

    Raises `SettingsError` for a file that cannot be read any more. A missing or empty one is restored as a whole.
    """
    path = connection.path
    now = path.read_bytes() if path.exists() else None
    original = connection.original if connection.existed else None
    if now is None or not now.removeprefix(_BOM).strip() or sha256(now).hexdigest() == connection.written:
        return FileChange(path=path, before=now, after=original, moved=connection.moved, table=connection.table)
    text = document.read_text(path, str(path))
    syntax, table = document.syntax_of(text, path), connection.table
    try:
        current = value_at(document.parse(text, syntax, table).value, table)
    except document.TextError as error:
        raise SettingsError(
            f"{path}:{error.line}:{error.column}: {error.message}",
            hint="Repair the file, or move it away: then the file as it was before is restored.",
        ) from error
    before = _original_entries(connection, syntax)
    kept = _names(current)
    for name in connection.moved:
        if name not in kept:
            text = add_entry(text, syntax, table, None if isinstance(current, list) else name, before[name])
    if NAME in kept and NAME not in before:
        text = _without(text, syntax, table, NAME)
    bom = _BOM if now.startswith(_BOM) else b""
    return FileChange(path=path, before=now, after=bom + text.encode(), moved=connection.moved, table=table)


def _original_entries(connection: ConnectedClient, syntax: Syntax) -> dict[str, Any]:
    if not connection.existed:
        return {}
    value = document.parse(connection.original.decode("utf-8-sig"), syntax).value
    table = value_at(value, connection.table)
    entries = table if isinstance(table, list) else list(table.values()) if isinstance(table, dict) else []
    names = _names(table) if isinstance(table, list) else list(table or {})
    return dict(zip(names, entries, strict=True))


@dataclass(frozen=True, slots=True)
class ConnectionStore:
    """The connections of this user, each in a file that only its owner can read."""

    folder: Path

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> "ConnectionStore":
        """The store beside the user's other state. Raises `SettingsError` for a user without a home."""
        state = default_state_file(environ)
        if state is None:
            raise SettingsError("This user has no home folder.", hint="Set HOME or XDG_STATE_HOME.")
        return cls(state.parent / "clients")

    def find(self, client: ClientApp | None = None) -> tuple[ConnectedClient, ...]:
        """The connections of a client, or of all."""
        known = {one.id for one in CLIENTS} if client is None else {client.id}
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        return tuple(one for one in map(_read_connection, files) if one.client in known)

    def save(self, client: ClientApp, change: FileChange) -> None:
        """Remember what a file held before the change."""
        record = {
            "client": client.id,
            "path": str(change.path),
            "existed": change.before is not None,
            "original": base64.b64encode(change.before or b"").decode(),
            "written": sha256(change.after or b"").hexdigest(),
            "table": list(change.table),
            "moved": list(change.moved),
        }
        file = self._file(client.id, change.path)
        try:
            make_private_folder(self.folder)
            with replacing(file) as opened:
                opened.write(json.dumps(record, indent=1).encode())
        except OSError as error:
            raise SettingsError(
                f"{file}, which would remember what {change.path} held, cannot be written: {error.strerror}"
            ) from error

    def forget(self, connection: ConnectedClient) -> None:
        """Drop what is no longer needed, once the file is as it was."""
        self._file(connection.client, connection.path).unlink(missing_ok=True)

    def _file(self, client: str, path: Path) -> Path:
        return self.folder / f"{client}-{sha256(str(path).encode()).hexdigest()[:12]}.json"


def _read_connection(file: Path) -> ConnectedClient:
    try:
        record = json.loads(file.read_bytes())
        return ConnectedClient(
            client=record["client"],
            path=Path(record["path"]),
            existed=record["existed"],
            original=base64.b64decode(record["original"]),
            written=record["written"],
            table=tuple(record["table"]),
            moved=tuple(record["moved"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{file} is damaged: it says what a client's file held before", hint="Inspect it by hand."
        ) from error
