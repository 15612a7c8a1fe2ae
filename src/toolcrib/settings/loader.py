"""Load `Settings` from a file and the environment, and the file of keywords that it names.

In the file of keywords, a tool is named by its id, `"git:log" = [...]`, or below its server: `git.log = [...]`. An
entry that cannot be used is left out, and a warning says why.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from toolcrib.checks import checked
from toolcrib.errors import SettingsError, ToolcribError
from toolcrib.gateway.keywords import MAX_PHRASE_CHARS, MAX_PHRASES
from toolcrib.gateway.options import GatewayOptions
from toolcrib.names import check_name, nearest
from toolcrib.sandbox.limits import ScriptOptions
from toolcrib.schema import Schema
from toolcrib.server.options import HttpOptions
from toolcrib.settings import document
from toolcrib.settings.clients import ANY_CLIENT, identify, project_folder, value_at
from toolcrib.settings.document import FieldPath, Problems, SettingsFile, read_file
from toolcrib.settings.entries import FORMS, MIXED_FORMS, ServerReader, is_bare_map
from toolcrib.settings.env import CONFIG_VARIABLE, VariableSource, display_path, read_dotenv, search_paths
from toolcrib.settings.logins import VAULT_KEY_VARIABLE
from toolcrib.settings.models import ToolcribTable, check_combinations
from toolcrib.settings.options import Settings
from toolcrib.settings.secrets import SecretReader
from toolcrib.settings.validation import Place, kind, options_of, validate
from toolcrib.state.options import default_state_file
from toolcrib.types import Tool
from toolcrib.upstream.options import LoginOptions, ServerOptions, group_problem

EXAMPLE: Final = (
    '{"mcpServers": {"time": {"command": "uvx", "args": ["--with", "mcp==2.3.0", "mcp-server-time==2026.10.19"]}}}'
)
"""The smallest useful settings file."""
_VAULT_KEY: Final = "the key of stored logins"
_TOP: Final = ("toolcrib", "mcpServers", "mcp_servers", "servers")
_KEYWORDS_EXAMPLE: Final = '"git:log" = ["what changed", "history of a file"]'
KeywordsByTool = Mapping[str, tuple[str, ...]]
"""Phrases by the id of a tool."""


@checked
def load_settings(
    path: Path | str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> Settings:
    """The settings of the file, or of the first place that has one; raises `SettingsError`.

    Relative paths in the file are meant from its own folder, or from the folder above `.vscode` and `.cursor`.
    """
    here = cwd or Path.cwd()
    chosen = here / Path(path).expanduser() if path else find_settings_file(environ, here)
    read = document.read_file(chosen, str(path) if path else display_path(chosen, here))
    return _settings(read, environ, here)


def default_settings() -> Settings:
    """The settings without a file: the defaults, and what the environment sets; raises `SettingsError`."""
    here = Path.cwd()
    empty = SettingsFile(path=here / "toolcrib.json", shown="the environment", value={"toolcrib": {}})
    return replace(_settings(empty, os.environ, here), source=None, files=())


def find_settings_file(environ: Mapping[str, str], cwd: Path) -> Path:
    """The file that is used when none is named; raises `SettingsError` when there is none."""
    searched = search_paths(environ, cwd)
    for place in searched:
        if place.is_file():
            return place
    if environ.get(CONFIG_VARIABLE):
        raise SettingsError(f"There is no file {searched[0]}.", hint=f"It is named by the variable {CONFIG_VARIABLE}.")
    listed = "\n".join(f"  {display_path(place, cwd)}" for place in searched)
    raise SettingsError(
        f"No settings file was found. Searched, in this order:\n{listed}",
        hint=f"Name one with --config, or begin with this in .mcp.json:\n  {EXAMPLE}",
        data={"searched": [str(place) for place in searched]},
    )


def _settings(read: SettingsFile, environ: Mapping[str, str], cwd: Path) -> Settings:
    problems = Problems(read)
    value = _top(read, problems)
    path = read.path.absolute()
    section = validate(ToolcribTable, value.get("toolcrib") or {}, ("toolcrib",), problems)
    environ, env_file = {**_env_file(section, path.parent), **environ}, section.table.env_file
    variables = VariableSource(
        environ=environ,
        workspace=project_folder(path),
        inputs=_input_defaults(value),
        secret_options=section.table.secrets,
    )
    if env_file is not None:
        variables.files.append(path.parent / Path(env_file).expanduser())
    secrets = SecretReader(variables=variables, folder=path.parent)
    own = _own_settings(section, secrets)
    servers = ServerReader(
        problems=problems,
        variables=variables,
        defaults=section.table.server_defaults(),
        client=identify(path, value, read.syntax) or ANY_CLIENT,
        project=cwd,
    ).read(value)
    problems.raise_any()
    servers = tuple(_with_group_problem(server, servers) for server in servers)
    return replace(
        own,
        servers=servers,
        gateway=_with_longest_find_timeout(own.gateway, servers),
        http_problem="; ".join(secrets.missing),
        source=read.path,
        files=tuple(dict.fromkeys((path, *variables.files, *own.files))),
        section=value.get("toolcrib") or {},
        warnings=tuple(problems.warnings),
        secrets=tuple(variables.secrets.references),
    )


def _with_group_problem(server: ServerOptions, servers: Sequence[ServerOptions]) -> ServerOptions:
    problem = group_problem(server, servers)
    return replace(server, problem="; ".join(filter(None, (server.problem, problem)))) if problem else server


def _env_file(place: Place[ToolcribTable], folder: Path) -> Mapping[str, str]:
    """The variables of the section's own file, which those of the environment override."""
    name = place.table.env_file
    if name is None:
        return {}
    path = folder / Path(name).expanduser()
    try:
        found = read_dotenv(path)
        if os.name == "posix" and path.stat().st_mode & 0o077:
            place.warn(f"can be read by other users of this machine; run: chmod 600 {path}", "env_file")
    except OSError as error:
        place.warn(f"cannot be read: {path} {error.strerror or error}", "env_file")
        return {}
    return found


def _own_settings(place: Place[ToolcribTable], secrets: SecretReader) -> Settings:
    """What the section `toolcrib` sets."""
    table, folder = place.table, secrets.folder
    check_combinations(place)
    tokens, key = secrets.tokens(place), secrets.approval_key(place)
    listed, keywords_file = _keywords_of(place, table.search.keywords, folder)
    gateway = replace(table.gateway(folder), keywords=listed)
    calls = replace(gateway.calls, approval_key=key, audit_file=table.audit_file(folder, secrets.audit_key(place)))
    state = secrets.state(place, table.state_options(folder, default_state_file(secrets.variables.environ)))
    logins = table.logins.options(secrets.variables.environ, state.path)
    _note_vault_key(secrets, logins)
    return Settings(
        fleet=replace(table.fleet(), logins=logins),
        gateway=replace(gateway, calls=calls),
        surfaces=table.surface_options(),
        local=table.local,
        policy=table.access_policy(),
        scripts=options_of(ScriptOptions, table.scripts),
        limits=table.scripts.limits,
        sandbox=table.scripts.sandbox,
        script_folder=_script_folder(place, folder),
        http=options_of(HttpOptions, table.http, tokens=tokens),
        auth=secrets.auth(place),
        files=() if keywords_file is None else (keywords_file,),
        state=state,
        telemetry=table.telemetry,
        console=table.console,
        watch_s=table.watch_s,
        watch_at_once=table.watch_at_once,
    )


def _note_vault_key(secrets: SecretReader, logins: LoginOptions) -> None:
    """Note where the key of stored logins is, if it is known without asking the keyring."""
    if logins.key:
        secrets.variables.secrets.note(_VAULT_KEY, f"the variable {VAULT_KEY_VARIABLE}")
    elif logins.key_file is not None and logins.key_file.is_file():
        secrets.variables.secrets.note(_VAULT_KEY, f"the file: {logins.key_file}")


def _script_folder(place: Place[ToolcribTable], base: Path) -> Path | None:
    """The folder of stored scripts, which must exist. Warn of a script in it that cannot be used."""
    name = place.table.scripts.folder
    if name is None:
        return None
    folder = base / Path(name).expanduser()
    if not folder.is_dir():
        place.add(f"names a folder that does not exist: {folder}; create it or remove the setting", "scripts", "folder")
        return None
    try:
        from toolcrib.scripting.files import script_files  # noqa: PLC0415 - it knows the languages; few settings name a folder

        paths = script_files(folder)
    except OSError as error:
        place.add(f"cannot be read: {folder}: {error.strerror or error}", "scripts", "folder")
        return None
    for path in paths:
        if problem := _script_problem(path):
            place.warn(f"contains a script that cannot be used: {problem}", "scripts", "folder")
    return folder


def _script_problem(path: Path) -> str:
    """Why a script will not become a tool; empty if it will."""
    try:
        from toolcrib.scripting.files import read_script  # noqa: PLC0415 - as above

        script = read_script(path)
        check_name(script.name)
        Schema(script.parameters, script.name)
    except ToolcribError as error:
        message = str(error)
        return message if path.name in message else f"{path.name}: {message}"
    return ""


def _with_longest_find_timeout(options: GatewayOptions, found: Sequence[ServerOptions]) -> GatewayOptions:
    """The gateway waits for its finders as long as the most patient server that searches by itself is given."""
    longest = max((server.find_timeout_s for server in found if server.delegate_search), default=0.0)
    return replace(options, find_timeout_s=max(options.find_timeout_s, longest))


def _input_defaults(value: Mapping[str, Any]) -> dict[str, str | None]:
    """The inputs that VS Code would ask for, by id, with what it would suggest."""
    inputs = value.get("inputs")
    found = [item for item in inputs if isinstance(item, dict)] if isinstance(inputs, list) else []
    return {str(item.get("id")): item["default"] if isinstance(item.get("default"), str) else None for item in found}


def _top(read: SettingsFile, problems: Problems) -> Mapping[str, Any]:
    """The top of the file, once it is sure that something in it is meant for us."""
    if not isinstance(read.value, dict):
        raise SettingsError(f"{read.shown}: must hold an object, not {kind(read.value)}", hint=f"Such as {EXAMPLE}")
    for key in read.value:
        same = [name for name in _TOP if name.casefold() == key.casefold()]
        near = same or get_close_matches(key, _TOP, n=1, cutoff=0.8)
        if near and near[0] != key:
            problems.warn((key,), f'is ignored; did you mean "{near[0]}"?')
    if "toolcrib" not in read.value and not _holds_servers(read.value):
        stray = f" {problems.warnings[0]}" if problems.warnings else ""
        raise SettingsError(f'{read.shown} has no section "mcpServers".{stray}', hint=f"It should look like {EXAMPLE}")
    return read.value


def _holds_servers(value: Mapping[str, Any]) -> bool:
    if is_bare_map(value) or isinstance(value.get("projects"), dict):
        return True
    return any(value_at(value, form) is not None for form in (*FORMS, *MIXED_FORMS))


# -- keywords ----------------------------------------------------------------------------------------------------------


def read_keywords(path: Path, shown: str) -> tuple[KeywordsByTool, list[str]]:
    """The phrases of each tool in the file, by id, and a warning for each entry that is left out.

    Raises `SettingsError` for a file that cannot be read at all.
    """
    read = read_file(path, shown)
    if not isinstance(read.value, dict):
        raise SettingsError(
            f"{shown}: must hold an object, not {kind(read.value)}", hint=f"Such as {_KEYWORDS_EXAMPLE}"
        )
    problems = Problems(read)
    found: dict[str, tuple[str, ...]] = {}
    for at, id_, value in _keyword_entries(read.value, problems):
        problem = _phrases_problem(value)
        if problem:
            problems.warn(at, f"is left out: it {problem}")
        else:
            phrases = [value] if isinstance(value, str) else value
            found[id_] = tuple(" ".join(phrase.split()) for phrase in phrases)
    return found, problems.warnings


def _keyword_entries(value: Mapping[str, Any], problems: Problems) -> Iterator[tuple[FieldPath, str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from (((key, name), f"{key}:{name}", phrases) for name, phrases in item.items())
        elif ":" in key:
            yield (key,), key, item
        else:
            problems.warn((key,), f'is left out: it must name a tool as "server:tool", such as {_KEYWORDS_EXAMPLE}')


def _phrases_problem(value: Any) -> str:
    """Why the phrases of a tool cannot be used; empty if they can."""
    phrases = [value] if isinstance(value, str) else value
    if not isinstance(phrases, list):
        return f"must be a list of phrases, not {kind(value)}"
    if len(phrases) > MAX_PHRASES:
        return f"has {len(phrases)} phrases; at most {MAX_PHRASES} are used"
    for phrase in phrases:
        if not isinstance(phrase, str):
            return f"must be a list of phrases, but has {kind(phrase)} in it"
        if not phrase.strip():
            return "has an empty phrase"
        if len(phrase) > MAX_PHRASE_CHARS:
            return f"has a phrase of {len(phrase)} characters; at most {MAX_PHRASE_CHARS} are used"
    return ""


def _keywords_of(place: Place[Any], name: str | None, folder: Path) -> tuple[KeywordsByTool, Path | None]:
    """The keywords of the file that a setting names, and its path. Warn of what cannot be used."""
    if name is None:
        return {}, None
    path = folder / Path(name).expanduser()
    try:
        found, warnings = read_keywords(path, name)
    except SettingsError as error:
        place.warn(f"cannot be used, so no keywords are added: {error.message}", "search", "keywords")
        return {}, path
    place.problems.warnings.extend(warnings)
    return found, path


def unknown_tools(listed: KeywordsByTool, tools: tuple[Tool, ...]) -> Iterator[str]:
    """A note for each tool that the file names and that does not exist."""
    known = [tool.id for tool in tools]
    for id_ in sorted(listed.keys() - {*known}):
        near = nearest(id_, known, limit=1)
        yield f"toolcrib.search.keywords: {id_} is not a current tool{f'; did you mean {near[0]}?' if near else ''}"
