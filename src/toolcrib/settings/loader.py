"""Load `Settings` from a file and the environment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from toolcrib.errors import SettingsError
from toolcrib.gateway.options import GatewayOptions
from toolcrib.settings import clients, document, toolcrib_section
from toolcrib.settings.document import Problems, SettingsFile
from toolcrib.settings.env import CONFIG_VARIABLE, VariableSource, display_path, search_paths
from toolcrib.settings.options import Settings
from toolcrib.settings.section import kind
from toolcrib.settings.toolcrib_section import CallsTable, TokenReader
from toolcrib.upstream.options import ServerOptions

EXAMPLE: Final = (
    '{"mcpServers": {"time": {"command": "uvx", "args": ["--with", "mcp==2.3.0", "mcp-server-time==2026.10.19"]}}}'
)
"""The smallest useful settings file."""


_EDITOR_FOLDERS = frozenset({".vscode", ".cursor"})


_TOP: Final = ("toolcrib", "mcpServers", "mcp_servers", "servers")


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
    return _settings(read, environ)


def find_settings_file(environ: Mapping[str, str], cwd: Path) -> Path:
    """The file that is used when none is named; raises `SettingsError` when there is none."""
    searched = search_paths(environ, cwd)
    for place in searched:
        if place.is_file():
            return place
    if environ.get(CONFIG_VARIABLE):
        raise SettingsError(f"there is no file {searched[0]}", hint=f"It is named by the variable {CONFIG_VARIABLE}.")
    listed = "\n".join(f"  {display_path(place, cwd)}" for place in searched)
    raise SettingsError(
        f"no settings file was found. Searched, in this order:\n{listed}",
        hint=f"Name one with --config, or begin with this in .mcp.json:\n  {EXAMPLE}",
        data={"searched": [str(place) for place in searched]},
    )


def _settings(read: SettingsFile, environ: Mapping[str, str]) -> Settings:
    problems = Problems(read)
    value = _top(read, problems)
    folder = read.path.absolute().parent
    tokens = TokenReader(environ, folder)
    surroundings = VariableSource(environ=environ, workspace=_workspace(folder))
    calls = CallsTable(surroundings)
    ours = toolcrib_section.read_toolcrib_section(value.get("toolcrib") or {}, problems, tokens, calls)
    reader = clients.ServerReader(problems=problems, surroundings=surroundings, defaults=ours.defaults)
    found = reader.read(clients.server_tables(value, problems))
    problems.raise_any()
    return Settings(
        servers=found,
        fleet=ours.fleet,
        gateway=_with_longest_find_timeout(ours.gateway, found),
        surfaces=ours.surfaces,
        local=ours.local,
        policy=ours.policy,
        scripts=ours.scripts.options,
        limits=ours.scripts.limits,
        sandbox=ours.scripts.sandbox,
        script_folder=ours.scripts.folder,
        http=ours.http,
        http_problem="; ".join((*tokens.missing, *calls.missing)),
        source=read.path,
        warnings=tuple(problems.warnings),
    )


def _with_longest_find_timeout(options: GatewayOptions, found: Sequence[ServerOptions]) -> GatewayOptions:
    """The gateway waits for its finders as long as the most patient server that searches by itself is given."""
    longest = max((server.find_timeout_s for server in found if server.delegate_search), default=0.0)
    return replace(options, find_timeout_s=max(options.find_timeout_s, longest))


def _workspace(folder: Path) -> Path:
    return folder.parent if folder.name in _EDITOR_FOLDERS else folder


def _top(read: SettingsFile, problems: Problems) -> Mapping[str, Any]:
    """The top of the file, once it is sure that something in it is meant for us."""
    if not isinstance(read.value, dict):
        raise SettingsError(f"{read.shown}: must hold an object, not {kind(read.value)}", hint=f"Such as {EXAMPLE}")
    for key in read.value:
        near = get_close_matches(key, _TOP, n=1, cutoff=0.8)
        if near and near[0] != key:
            problems.warn((key,), f'is ignored; did you mean "{near[0]}"?')
    if "toolcrib" not in read.value and not any(_holds(read.value, form) for form in clients.FORMS):
        stray = f" {problems.warnings[0]}" if problems.warnings else ""
        raise SettingsError(f'{read.shown} has no section "mcpServers".{stray}', hint=f"It should look like {EXAMPLE}")
    return read.value


def _holds(value: Any, form: tuple[str | int, ...]) -> bool:
    for part in form:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True
