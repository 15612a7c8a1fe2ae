"""Take over servers from the files of other clients, in toolcrib's own form and without literal secrets.

Reading changes nothing: it gives a plan, which says what would be added and under which name. `ImportPlan.write`
carries it out.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from toolcrib.errors import SettingsError, missing_extra
from toolcrib.names import nearest_namespace
from toolcrib.private_files import make_folders, replacing
from toolcrib.settings import document
from toolcrib.settings.clients import ANY_CLIENT, ClientApp, excluded_by, identify, project_folder, switched
from toolcrib.settings.document import FieldPath, Problems, SettingsFile, dotted
from toolcrib.settings.edits import add_entry, new_text
from toolcrib.settings.entries import EntryReader, ServerEntry, aliases_of, common_form, server_entries
from toolcrib.settings.env import (
    KEYRING_SERVICE,
    VariableSource,
    input_variable,
    keyring_secret,
    parse_dotenv,
    read_dotenv,
    user_folder,
)
from toolcrib.settings.validation import kind, validate
from toolcrib.upstream.options import ServerOptions

Action = Literal["add", "same", "skip"]
TABLE: Final = ("mcpServers",)
"""Where a settings file of our own holds the servers."""
_SECRET_NAME: Final = re.compile(
    r"key|token|secret|passw|pwd|auth|credential|cookie|session|(?:^|[_-])(?:pat|pass|dsn)(?:$|[_-])", re.IGNORECASE
)
_SECRET_FORM: Final = re.compile(
    r"(?:sk|pk|rk|ghp|gho|ghs|ghu|github_pat|glpat|xox[a-z]|hf|npm|pat|shpat|dop_v1|AKIA|AIza|SG\.|eyJ)[-_A-Za-z0-9.]{12,}"
    r"|(?=[^0-9]*[0-9][^0-9]*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_-]{24,}"
)
_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token) +", re.IGNORECASE)
_OPTION: Final = re.compile(r"(--?[A-Za-z][\w-]*)=(.*)", re.DOTALL)
_FILE_OPTION: Final = re.compile(r"(?:file|path|dir|cert|url|env)$", re.IGNORECASE)
_VARIABLE: Final = re.compile(r"(([A-Za-z_]\w*)=)(.*)", re.DOTALL)
_HEADER: Final = re.compile(r"(([A-Za-z][\w-]*): *)(.*)", re.DOTALL)
_HEADER_OPTIONS: Final = frozenset({"header", "H"})
_REFERENCE: Final = "${"
_ENV_FORM: Final = re.compile(r"\$\{env:(\w+)\}|\{env:(\w+)\}|\$\{\{\s*(?:secrets\.)?(\w+)\s*\}\}")
_INPUT: Final = re.compile(r"\$\{input:([^}]+)\}")
_PLAIN: Final = re.compile(r"\$([A-Za-z_]\w*)")
_OWN_NAMES: Final = {
    "show_all": "showAll",
    "delegate_search": "delegateSearch",
    "retry_interval_s": "retryInterval",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer:
    """One server of a client's file."""

    client: ClientApp
    path: Path
    at: FieldPath
    """Where its entry is in the file."""
    key: str
    """What the file calls it."""
    name: str
    entry: Mapping[str, Any] = field(repr=False)
    """In our own form; it may have literal secrets."""
    problem: str = ""
    """Why it cannot be taken over."""


def read_servers(path: Path, environ: Mapping[str, str]) -> tuple[FoundServer, ...]:
    """Every server of a client's file. Raises `SettingsError` for a file that cannot be read."""
    read = document.read_file(path, str(path))
    if not isinstance(read.value, dict):
        raise SettingsError(f"{path}: must hold an object, not {kind(read.value)}")
    reader = _FileReader(read=read, client=identify(path, read.value, read.syntax) or ANY_CLIENT, environ=environ)
    problems = Problems(read)
    entries = [*server_entries(read.value, Path(), problems), *_project_entries(read.value)]
    return tuple(reader.server(at, key, entry) for at, key, entry in entries)


def _project_entries(value: Mapping[str, Any]) -> Iterator[tuple[FieldPath, str, Any]]:
    """The servers that Claude Code keeps for each project."""
    projects = value.get("projects")
    for folder, project in projects.items() if isinstance(projects, dict) else ():
        servers = project.get("mcpServers") if isinstance(project, dict) else None
        for key, entry in servers.items() if isinstance(servers, dict) else ():
            yield ("projects", folder, "mcpServers", key), key, entry


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileReader:
    """Reads the entries of one client's file."""

    read: SettingsFile
    client: ClientApp
    environ: Mapping[str, str]

    def server(self, at: FieldPath, key: str, value: Any) -> FoundServer:
        name = nearest_namespace(key)
        found = FoundServer(client=self.client, path=self.read.path, at=at, key=key, name=name, entry={})
        if not isinstance(value, dict):
            return replace(found, problem=f"{dotted(at)} is not the entry of a server")
        if value.get("disabled") is True or value.get("enabled") is False or value.get("isActive") is False:
            return replace(found, problem="it is disabled")
        own = Problems(self.read)
        place = validate(ServerEntry, common_form(value), at, own, aliases_of(value))
        reader = EntryReader(
            place=place, variables=self._variables(), defaults=ServerOptions(name=""), client=self.client
        )
        server = reader.read() if not own.found else ServerOptions(name="")
        problem = own.summary() or "; ".join(reader.narrowing) or self._exclusion(at, key, value, server)
        if problem:
            return replace(found, problem=problem)
        return replace(found, entry=self._own_form(reader, switched(self.client, self.read.value, key, server)))

    def _exclusion(self, at: FieldPath, key: str, value: Mapping[str, Any], server: ServerOptions) -> str:
        """Why a server that is written well is left out; empty if it is not."""
        if server.runs_toolcrib():
            return "it is toolcrib itself"
        project = str(at[1]) if at[0] == "projects" else ""
        if where := excluded_by(self.client, self.read.value, key, project):
            return f"{where} leaves it out"
        unknown = self.client.placeholders and "{{" in json.dumps(value)
        return f"it needs values that only {self.client.title} knows" if unknown else ""

    def _variables(self) -> VariableSource:
        return VariableSource(environ=self.environ, workspace=project_folder(self.read.path))

    def _own_form(self, reader: EntryReader, server: ServerOptions) -> dict[str, Any]:
        """The entry with the keys and variables that a file of our own has."""
        entry = reader.entry
        form: dict[str, Any] = {}
        if server.transport == "stdio":
            form |= {"command": self._text(entry.command or ""), "args": [self._text(word) for word in entry.args]}
            form["env"] = self._table(entry.env) | {name: f"${{{name}}}" for name in entry.env_keys}
            form["env_vars"] = list(entry.env_vars)
            form["envFile"] = self._path(entry.env_file)
            form["cwd"] = self._path(entry.cwd)
        else:
            key = reader.entry.url_key() or "url"
            form["type"] = "sse" if server.transport == "sse" else None
            form |= {"url": self._text(getattr(entry, key) or ""), "headers": self._headers(entry)}
        form["allowedTools"] = list(server.allowed_tools) if server.allowed_tools is not None else None
        form["deniedTools"] = list(server.denied_tools)
        form["timeouts"] = {name.removesuffix("_timeout_s"): value for name, value in reader.timeouts().items()}
        form["namespace"] = entry.namespace
        form |= {_OWN_NAMES.get(name, name): value for name, value in entry.flags().items()}
        return {key: value for key, value in form.items() if value is not None and value not in ({}, [], "")} | (
            {"allowedTools": []} if server.allowed_tools == () else {}
        )

    def _headers(self, entry: ServerEntry) -> dict[str, str]:
        options = entry.request_options
        more = options.get("headers") if isinstance(options, dict) else None
        headers = self._table(entry.headers) | self._table(more if isinstance(more, dict) else {})
        if entry.bearer_token_env_var:
            headers["Authorization"] = f"Bearer ${{{entry.bearer_token_env_var}}}"
        return headers | {header: f"${{{name}}}" for header, name in entry.env_http_headers.items()}

    def _table(self, table: Mapping[str, Any]) -> dict[str, str]:
        return {name: self._text(str(value)) for name, value in table.items() if value is not None}

    def _path(self, path: str | None) -> str | None:
        if path is None or path.startswith(("~", _REFERENCE)):
            return self._text(path) if path else None
        return str(project_folder(self.read.path) / path)

    def _text(self, text: str) -> str:
        """The text with variables as a file of our own writes them."""
        text = _ENV_FORM.sub(lambda match: f"${{{match[1] or match[2] or match[3]}}}", text)
        if self.client.plain_variables:
            text = _PLAIN.sub(r"${\1}", text)
        text = _INPUT.sub(lambda match: f"${{{input_variable(match[1])}}}", text)
        folder = project_folder(self.read.path)
        return text.replace("${workspaceFolder}", str(folder)).replace("${workspaceFolderBasename}", folder.name)


# -- secrets -----------------------------------------------------------------------------------------------------------


def move_secrets(
    name: str, entry: Mapping[str, Any], *, keyring: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """The entry with references instead of literal secrets, and the secrets by the names of their variables.

    >>> entry, secrets = move_secrets("mail", {"url": "https://a/mcp", "headers": {"Authorization": "Bearer abc"}})
    >>> entry["headers"], secrets
    ({'Authorization': 'Bearer ${TOOLCRIB_MAIL_AUTHORIZATION}'}, {'TOOLCRIB_MAIL_AUTHORIZATION': 'abc'})
    """
    secrets: dict[str, str] = {}

    def reference(value: str, what: str) -> str:
        variable = re.sub(r"[^A-Z0-9]+", "_", f"TOOLCRIB_{name}_{what}".upper()).strip("_")
        number = 2
        base = variable
        while secrets.get(variable, value) != value:
            variable, number = f"{base}_{number}", number + 1
        if parse_dotenv(_dotenv_line(variable, value)) != {variable: value}:
            return value  # it has line breaks, which such a file cannot hold
        secrets[variable] = value
        return f"${{keyring:{variable}}}" if keyring else f"${{{variable}}}"

    moved = dict(entry)
    for key in ("env", "headers"):
        if key in entry:
            moved[key] = {item: _without_secret(value, item, reference) for item, value in entry[key].items()}
    if "args" in entry:
        moved["args"] = list(_args_without_secrets(entry["args"], reference))
    if "url" in entry:
        moved["url"] = _url_without_secrets(entry["url"], reference)
    return moved, secrets


def _without_secret(value: str, name: str, reference: Callable[[str, str], str]) -> str:
    if not value or _REFERENCE in value:
        return value
    if not (_SECRET_NAME.search(name) or _is_secret(value)):
        return _url_without_secrets(value, reference) if "://" in value else value
    scheme = _SCHEME.match(value)
    start = scheme.end() if scheme else 0
    return value[:start] + reference(value[start:], name)


def _is_secret(value: str) -> bool:
    """Whether a value looks like a secret whatever it is called: a known prefix, a long key, a URL with a password."""
    if "://" in value:
        try:
            return bool(urlsplit(value).password)
        except ValueError:
            return False
    return _SECRET_FORM.fullmatch(value) is not None


def _args_without_secrets(args: Sequence[str], reference: Callable[[str, str], str]) -> Iterator[str]:
    option = ""
    for arg in args:
        match = _OPTION.fullmatch(arg)
        if match:
            yield f"{match[1]}={_arg_without_secret(match[2], match[1].strip('-'), reference)}"
        elif arg.startswith("-"):
            yield arg
        else:
            yield _arg_without_secret(arg, option, reference)
        option = arg.strip("-") if arg.startswith("-") and not match else ""


def _arg_without_secret(value: str, option: str, reference: Callable[[str, str], str]) -> str:
    """The value of an option, or an argument on its own: also `NAME=value`, and `Name: value` for a header."""
    name = "" if _FILE_OPTION.search(option) else option
    pair = (_HEADER if option in _HEADER_OPTIONS else _VARIABLE).fullmatch(value)
    if not pair or _SECRET_NAME.search(name):
        return _without_secret(value, name, reference)
    named = "" if _FILE_OPTION.search(pair[2]) else pair[2]
    return pair[1] + _without_secret(pair[3], named, reference)


def _url_without_secrets(url: str, reference: Callable[[str, str], str]) -> str:
    try:
        parts = urlsplit(url)
        found = [(parts.password or "", "password")]
    except ValueError:
        return url
    query = [item.partition("=") for item in parts.query.split("&")]  # as written: not decoded
    found += [(value, key) for key, _, value in query if _SECRET_NAME.search(key) or _is_secret(value)]
    found += [(part, "url") for part in parts.path.split("/") if _is_secret(part)]
    for value, key in found:
        if value and _REFERENCE not in value and value in url:
            url = url.replace(value, reference(value, key))
    return url


def _dotenv_line(name: str, value: str) -> str:
    quote = '"' if "'" in value else "'"
    return f"{name}={quote}{value}{quote}\n"


# -- the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedServer:
    """What an import does with one server. Has no secret."""

    found: FoundServer = field(repr=False)
    name: str
    """Its name in our file; the same as in the client's, unless another server has it."""
    action: Action
    entry: Mapping[str, Any] = field(repr=False)
    reason: str = ""
    """Why it is left out."""
    secrets: tuple[str, ...] = ()
    """The variables that its secrets move to."""

    @property
    def endpoint(self) -> str:
        """The program of the server, or the host of its url."""
        if "url" in self.entry:
            return urlsplit(str(self.entry["url"])).hostname or ""
        return Path(str(self.entry.get("command", ""))).name


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPlan:
    """What an import would do to a settings file."""

    file: Path
    servers: tuple[PlannedServer, ...]
    secrets: Mapping[str, str] = field(repr=False)
    """By variable."""
    keyring: bool = False
    env_file: Path
    """Where the secrets go, unless to the keyring."""
    table: FieldPath = TABLE
    """Where the file holds its servers."""

    @property
    def added(self) -> tuple[PlannedServer, ...]:
        """The servers that the file does not have yet."""
        return tuple(server for server in self.servers if server.action == "add")

    def write(self) -> None:
        """Store the secrets, then add the servers to the file, which is made if need be."""
        if not self.added and self.file.exists():
            return
        exists = self.file.exists()
        text = document.read_text(self.file, str(self.file)) if exists else new_text("json", self.table)
        syntax = document.syntax_of(text, self.file)
        for server in self.added:
            text = add_entry(text, syntax, self.table, server.name, dict(server.entry))
        if self.secrets and not self.keyring and not _names_env_file(document.parse(text, syntax).value):
            text = add_entry(text, syntax, ("toolcrib",), "env_file", _from_home(self.env_file))
        if self.secrets and self.keyring:
            _fill_keyring(self.secrets)
        elif self.secrets:
            _fill_env_file(self.env_file, self.secrets)
        write_atomically(self.file, text.encode())


def _names_env_file(value: Any) -> bool:
    section = value.get("toolcrib")
    return isinstance(section, dict) and ("env_file" in section or "envFile" in section)


def _from_home(path: Path) -> str:
    """The path as a file can name it on any machine of the user."""
    return f"~/{path.relative_to(Path.home()).as_posix()}" if path.is_relative_to(Path.home()) else str(path)


def plan_import(
    found: Iterable[FoundServer],
    file: Path,
    environ: Mapping[str, str],
    *,
    keyring: bool = False,
    table: FieldPath = TABLE,
) -> ImportPlan:
    """Decide what to do with each server. Raises `SettingsError` if the file cannot be read."""
    existing, env_file = _existing(file, environ)
    if keyring:
        _keyring()
    planned: list[PlannedServer] = []
    secrets: dict[str, str] = {}
    known = {} if keyring or not env_file.exists() else read_dotenv(env_file)

    def secret(variable: str) -> str | None:
        return secrets.get(variable) or (keyring_secret(variable) if keyring else {**known, **environ}.get(variable))

    for server in found:
        if server.problem:
            planned.append(
                PlannedServer(found=server, name=server.name, action="skip", entry={}, reason=server.problem)
            )
            continue
        one, moved = _planned(server, existing, secret, keyring=keyring)
        planned.append(one)
        if one.action == "add":
            existing[one.name] = one.entry
            secrets |= moved
    return ImportPlan(
        file=file, servers=tuple(planned), secrets=secrets, keyring=keyring, env_file=env_file, table=table
    )


def _planned(
    server: FoundServer, existing: Mapping[str, Any], known: Callable[[str], str | None], *, keyring: bool
) -> tuple[PlannedServer, dict[str, str]]:
    """What to do with a server, and its secrets. One with the same entry but another account gets another name."""
    names = [server.name, f"{server.name}-{server.client.id or 'other'}"]
    names += [f"{names[1]}-{number}" for number in range(2, len(existing) + 3)]
    for name in names:
        entry, secrets = move_secrets(name, server.entry, keyring=keyring)
        same = existing.get(name) == entry and all(known(variable) == value for variable, value in secrets.items())
        if name not in existing or same:
            action: Action = "same" if same else "add"
            return PlannedServer(found=server, name=name, action=action, entry=entry, secrets=tuple(secrets)), secrets
    raise AssertionError("one of the names is free")


def _existing(file: Path, environ: Mapping[str, str]) -> tuple[dict[str, Any], Path]:
    """The entries that our file has already, and its file of secrets."""
    env_file = user_folder(environ) / "secrets.env"
    if not file.exists():
        return {}, env_file
    read = document.read_file(file, str(file))
    value = read.value if isinstance(read.value, dict) else {}
    table = value.get(TABLE[0])
    section = value.get("toolcrib")
    if isinstance(section, dict) and isinstance(named := section.get("env_file") or section.get("envFile"), str):
        env_file = file.parent / Path(named).expanduser()
    return dict(table) if isinstance(table, dict) else {}, env_file


def _fill_env_file(path: Path, secrets: Mapping[str, str]) -> None:
    """Add secrets to a file that only its owner can read."""
    before = document.read_text(path, str(path)) if path.exists() else ""
    known = read_dotenv(path) if path.exists() else {}
    gap = "" if not before or before.endswith("\n") else "\n"
    new = "".join(_dotenv_line(name, value) for name, value in secrets.items() if known.get(name) != value)
    write_atomically(path, (before + gap + new).encode(), keep=False)


def _keyring() -> ModuleType:
    try:
        import keyring
    except ModuleNotFoundError as error:
        raise missing_extra("keyring", "toolcrib[keyring]", needed_by="Moving secrets to the keyring") from error
    return keyring


def _fill_keyring(secrets: Mapping[str, str]) -> None:
    keyring = _keyring()
    try:
        for name, value in secrets.items():
            keyring.set_password(KEYRING_SERVICE, name, value)
    except keyring.errors.KeyringError as error:
        raise SettingsError(
            f"the keyring cannot be used: {type(error).__name__}", hint="Import again without --keyring."
        ) from None


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, keep: bool = True) -> None:
    """Replace a file in one step. `mode` is that of a new file, or of any if the permissions are not to be kept.

    A link stays a link: the file that it points to is replaced. Raises `SettingsError`.
    """
    try:
        _replace(path.resolve(), data, mode, keep=keep)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror or error}") from error


def _replace(path: Path, data: bytes, mode: int, *, keep: bool) -> None:
    make_folders(path.parent, 0o755 if mode & 0o044 else 0o700)
    before = path.stat() if path.exists() else None
    with replacing(path, before.st_mode & 0o777 if keep and before is not None else mode) as file:
        if before is not None and os.name == "posix" and os.geteuid() == 0:
            os.fchown(file.fileno(), before.st_uid, before.st_gid)  # or its owner could no longer write it
        file.write(data)
