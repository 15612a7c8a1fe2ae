"""The MCP clients whose configuration files toolcrib reads and edits: one row of `clients.toml` for each.

A row says where a client's files are on each system, where in them the servers are, and how its entries differ from
the common form. Most clients need nothing but the places: keys such as `serverUrl` or `disabledTools` mean the same
wherever they occur, and are known to `entries`.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Final, Literal

from toolcrib.settings.document import FieldPath, Syntax, dotted
from toolcrib.upstream.options import ServerOptions

Platform = Literal["linux", "darwin", "win32"]
PLATFORMS: Final[tuple[Platform, ...]] = ("linux", "darwin", "win32")
Scope = Literal["user", "profile", "project"]
TimeoutKind = Literal["start", "list", "call"]
COMMAND: Final = "{command}"
"""In an entry: the program that starts toolcrib."""
ARGS: Final = "{args}"
"""In an entry: the list of its arguments."""
ARGV: Final = "{argv}"
"""In an entry: the list of the program and its arguments."""


@dataclass(frozen=True, slots=True)
class ClientFile:
    """One place of a client's configuration.

    The path may begin with `~`, `{config}` (the folder for applications' settings on that system), `{xdg}` (the same,
    but `~/.config` on macOS too), or a variable of the environment with a default, as in `{CODEX_HOME:~/.codex}`.
    A project's file is relative. A `*` matches any name.
    """

    path: str
    scope: Scope = "user"
    platforms: tuple[Platform, ...] = PLATFORMS
    syntax: Syntax = "json"
    """How a new file is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientApp:
    """A client, its files, and what its entries mean where clients differ."""

    id: str
    title: str
    files: tuple[ClientFile, ...]
    """In the order in which `connect` tries them."""
    servers: FieldPath = ("mcpServers",)
    """Where its files hold the servers."""
    as_list: bool = False
    """Whether the servers are a list whose items have a `name`."""
    timeout: tuple[TimeoutKind, float] | None = None
    """What the key `timeout` limits, and its unit in seconds; None where the client's documents do not say."""
    url_means_sse: bool = False
    """Whether a `url` without a type is an SSE endpoint."""
    plain_variables: bool = False
    """Whether `$NAME` is a variable, as `${NAME}` is everywhere."""
    placeholders: bool = False
    """Whether `{{NAME}}` is a value that only the client knows."""
    allowed_servers: FieldPath = ()
    """Where the file lists the only servers to use."""
    excluded_servers: FieldPath = ()
    """Where the file lists servers not to use; `*` is the current project."""
    tool_switches: FieldPath = ()
    """Where the file turns tools on and off, by patterns of `SERVER_TOOL`."""
    tool_references: FieldPath = ()
    """Where the file lists the only tools to use, as `@SERVER` and `@SERVER/TOOL`."""
    entry: Mapping[str, Any] = field(default_factory=lambda: {"command": COMMAND, "args": ARGS})
    """How `connect` writes toolcrib's own entry."""
    note: str = ""
    """What the documentation says beside the table."""


ANY_CLIENT: Final = ClientApp(id="", title="", files=())
"""The client of a file that any could have written."""
MILLISECONDS: Final = 0.001
_VARIABLE: Final = re.compile(r"\{([A-Z_]+):([^}]*)\}")


def _read_table() -> Iterator[ClientApp]:
    """The rows of the table, each list in them as a tuple."""
    table = tomllib.loads(Path(__file__).with_name("clients.toml").read_text("utf-8"))
    for name, row in table.items():
        files = tuple(ClientFile(**_with_tuples(file)) for file in row.pop("files"))
        yield ClientApp(id=name, files=files, **_with_tuples(row))


def _with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


CLIENTS: Final = tuple(_read_table())


def client_named(name: str) -> ClientApp | None:
    """The client with this id."""
    return next((client for client in CLIENTS if client.id == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a user's files are on one system; `platform` can be another than the one this runs on."""

    platform: Platform
    home: PurePath
    project: PurePath
    environ: Mapping[str, str] = field(default_factory=dict)

    def paths(self, client: ClientApp, *scopes: Scope) -> tuple[tuple[ClientFile, PurePath], ...]:
        """The places of a client on this system, of all scopes or of those named; a `*` stays as it is."""
        return tuple(
            (file, self.path(file))
            for file in client.files
            if self.platform in file.platforms and (not scopes or file.scope in scopes)
        )

    def path(self, file: ClientFile) -> PurePath:
        """The place of a file."""
        text = _VARIABLE.sub(lambda match: self.environ.get(match[1]) or match[2], file.path)
        text = text.replace("{config}", self._config()).replace("{xdg}", self._xdg())
        kind = PureWindowsPath if self.platform == "win32" else PurePosixPath
        if text == "~" or text.startswith("~/"):
            return kind(self.home) / text[2:]
        return kind(text) if kind(text).is_absolute() else kind(self.project) / text

    def _config(self) -> str:
        match self.platform:
            case "darwin":
                return "~/Library/Application Support"
            case "win32":
                return self.environ.get("APPDATA") or "~/AppData/Roaming"
            case _:
                return self._xdg()

    def _xdg(self) -> str:
        return self.environ.get("XDG_CONFIG_HOME") or "~/.config"


def existing_files(places: Places) -> Iterator[tuple[ClientApp, ClientFile, Path]]:
    """Every configuration file that is there, in the order of the table."""
    for client in CLIENTS:
        for file, place in places.paths(client):
            for path in _matching(Path(place)):
                if path.is_file():
                    yield client, file, path


def _matching(path: Path) -> list[Path]:
    """The path itself, or the paths that it matches if it has a `*`."""
    star = next((position for position, part in enumerate(path.parts) if "*" in part), None)
    if star is None:
        return [path]
    base = Path(*path.parts[:star])
    return sorted(base.glob(str(Path(*path.parts[star:]))))


def identify(path: Path, value: Any, syntax: Syntax) -> ClientApp | None:
    """The client whose file this is: by its place, or else by how it holds servers."""
    _, client, _ = max(_placed(path), key=lambda found: len(found[0]), default=((), None, None))
    return client or next((client for client in CLIENTS if _holds_servers_of(client, value, syntax)), None)


def project_folder(path: Path) -> Path:
    """The folder that relative paths of a file are meant from: that of the project, if it is a project's file."""
    found = [tail for tail, _, file in _placed(path) if file.scope == "project"]
    return path.parents[len(max(found, key=len)) - 1] if found else path.parent


def value_at(value: Any, path: FieldPath) -> Any:
    """The value at a path of keys; None if there is none."""
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value


def is_server(entry: Any) -> bool:
    """Whether a value looks like the entry of a server, and not like a setting or an extension of the client's own."""
    return isinstance(entry, dict) and any(entry.get(key) for key in _SERVER_KEYS)


_SERVER_KEYS: Final = ("command", "cmd", "url", "uri", "serverUrl", "httpUrl")


def _placed(path: Path) -> Iterator[tuple[tuple[str, ...], ClientApp, ClientFile]]:
    """The files of clients that are named like this one, each with the parts of the path that say so."""
    for client in CLIENTS:
        for file in client.files:
            parts = _VARIABLE.sub(lambda match: match[2], file.path).split("/")
            tail = tuple(part for part in parts if part != "~" and not part.startswith("{"))
            last = path.parts[-len(tail) :]
            if len(last) == len(tail) and all(map(fnmatchcase, last, tail)):
                yield tail, client, file


def _holds_servers_of(client: ClientApp, value: Any, syntax: Syntax) -> bool:
    found, same_syntax = value_at(value, client.servers), client.files[0].syntax == syntax
    if client.as_list:
        return isinstance(found, list) and same_syntax
    if not isinstance(found, dict):
        return False
    return (
        any(map(is_server, found.values())) if client.servers != ("mcpServers",) else same_syntax and syntax != "json"
    )


# -- what a file says about its servers elsewhere ----------------------------------------------------------------------


def excluded_by(client: ClientApp, value: Mapping[str, Any], key: str, project: str = "") -> str:
    """The list of servers in the client's file that leaves this one out; empty if none does."""
    allowed = value_at(value, client.allowed_servers) if client.allowed_servers else None
    if isinstance(allowed, list) and key not in allowed:
        return dotted(client.allowed_servers)
    path = tuple(project if part == "*" else part for part in client.excluded_servers)
    excluded = value_at(value, path) if path else None
    return dotted(path) if isinstance(excluded, list) and key in excluded else ""


def switched(client: ClientApp, value: Mapping[str, Any], key: str, server: ServerOptions) -> ServerOptions:
    """The server without the tools that other parts of the client's file turn off."""
    references = value_at(value, client.tool_references) if client.tool_references else None
    if isinstance(references, list) and not {"*", f"@{key}"} & {str(one) for one in references}:
        named = [str(one).removeprefix(f"@{key}/") for one in references if str(one).startswith(f"@{key}/")]
        server = replace(server, allowed_tools=tuple(name for name in named if server.offers(name)))
    switches = value_at(value, client.tool_switches) if client.tool_switches else None
    off = [name for name, on in switches.items() if on is False] if isinstance(switches, dict) else []
    if any(fnmatchcase(key, pattern) or pattern == f"{key}_*" for pattern in off):
        return replace(server, allowed_tools=())
    denied = [pattern for switch in off if (pattern := _tool_pattern(switch, f"{key}_"))]
    return replace(server, denied_tools=(*server.denied_tools, *denied))


def _tool_pattern(switch: str, prefix: str) -> str:
    """The tools of a server that a pattern of `SERVER_TOOL` turns off, and perhaps a few more; empty if there is none.

    >>> _tool_pattern("git_push", "git_"), _tool_pattern("*_push", "git_"), _tool_pattern("mail_*", "git_")
    ('push', '*push', '')
    """
    if switch.startswith(prefix):
        return switch.removeprefix(prefix)
    literal = re.split(r"[*?\[]", switch, maxsplit=1)[0]
    is_pattern = literal != switch and prefix.startswith(literal)
    return "*" + switch[len(literal) :].lstrip("*?_") if is_pattern else ""
