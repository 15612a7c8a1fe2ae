"""Server entries as MCP clients write them: Claude, VS Code, Cursor and others.

A problem of one entry disables that server alone: it is kept with the reason in `problem`, and listed as failed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field

from toolcrib.errors import InvalidName
from toolcrib.names import MAX_NAMESPACE, check_namespace
from toolcrib.ranges import Natural, Seconds
from toolcrib.settings import env
from toolcrib.settings.document import FieldPath, Problems, dotted
from toolcrib.settings.env import VariableExpander, VariableSource
from toolcrib.settings.validation import (
    NonEmpty,
    Place,
    Table,
    closest,
    display,
    kind,
    known_keys,
    snake,
    validate,
)
from toolcrib.upstream.options import ServerOptions, TransportName

FORMS: Final[tuple[FieldPath, ...]] = (
    ("mcpServers",),
    ("mcp_servers",),
    ("servers",),
    ("mcp", "servers"),
    ("mcp", "mcpServers"),
)
"""Where a file may hold its servers."""
_TRANSPORTS: Final[Mapping[str, TransportName]] = {
    "stdio": "stdio",
    "http": "http",
    "streamablehttp": "http",
    "sse": "sse",
}
_URL_KEYS: Final = ("url", "server_url", "http_url")
_RESTRICTIONS: Final = frozenset({"disabled_tools", "exclude_tools", "enabled_tools", "include_tools"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"\$\{(?:env:)?([^}:]+)")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OWN_TIMEOUTS: Final = 'write "timeouts": {"start": 60, "list": 30, "call": 60}, in seconds'


class ServerTimeouts(Table):
    """Deadlines of one server."""

    start_s: Seconds | None = None
    list_s: Seconds | None = None
    call_s: Seconds | None = None
    find_s: Seconds | None = None


class ServerEntry(Table):
    """One server as a client's file has it. Keys of other clients are allowed, and warned of.

    Keys of the other transport are ignored silently: clients write an empty `env` for remote servers.
    """

    model_config = ConfigDict(extra="allow")

    type: Any = None
    transport: Any = None
    command: NonEmpty | None = None
    args: tuple[str, ...] = ()
    env: dict[str, Any] = Field(default_factory=dict)
    env_file: NonEmpty | None = None
    cwd: NonEmpty | None = None
    url: NonEmpty | None = None
    server_url: NonEmpty | None = None
    http_url: NonEmpty | None = None
    headers: dict[str, Any] = Field(default_factory=dict)
    allowed_tools: tuple[str, ...] | None = None
    required: bool = False
    disabled: bool = False
    enabled: bool = True
    timeouts: ServerTimeouts = Field(default_factory=ServerTimeouts)
    namespace: NonEmpty | None = None
    asks: bool = False
    prompts: bool = True
    resources: bool = True
    show_all: bool = False
    delegate_search: bool = False
    retries: Natural | None = None
    retry_interval_s: Seconds | None = None

    def url_key(self) -> str | None:
        """The key of the url; clients differ."""
        return next((key for key in _URL_KEYS if getattr(self, key) is not None), None)


def server_tables(value: Mapping[str, Any], problems: Problems) -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
    """The tables of the file that hold servers by name, each with its place."""
    for form in FORMS:
        found: Any = value
        for part in form:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, dict):
            yield form, found
        elif found is not None:
            problems.add(form, f"must be an object with an entry for each server, not {kind(found)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReader:
    """Reads the entries of one file."""

    problems: Problems
    variables: VariableSource
    defaults: ServerOptions
    """Deadlines and sizes of an entry that sets none of its own."""

    def read(self, value: Mapping[str, Any]) -> tuple[ServerOptions, ...]:
        """Every server that is not disabled, by name."""
        servers: dict[str, ServerOptions] = {}
        keys: dict[str, FieldPath] = {}
        for form, table in server_tables(value, self.problems):
            for key, entry in table.items():
                at = (*form, key)
                server = self._read_entry(entry, at)
                name = self._name(key, at)
                if name in keys:
                    other = f'"{keys[name][-1]}" of {self.problems.document.where(keys[name])}'
                    self.problems.add(at, f'has the same namespace "{name}" as {other}; rename one of them')
                keys.setdefault(name, at)
                if server is not None:
                    servers[name] = replace(server, name=name)
        return tuple(servers[name] for name in sorted(servers))

    def _name(self, key: str, at: FieldPath) -> str:
        name = namespace_of(key)
        if name != key:
            self.problems.warn(at, f'is named "{name}" here, as a namespace cannot have colons or control characters')
        return name

    def _read_entry(self, value: Any, at: FieldPath) -> ServerOptions | None:
        own = Problems(self.problems.document)
        if not isinstance(value, dict):
            own.add(at, f"must be an object with command or url, not {kind(value)}")
            return replace(self.defaults, problem=own.summary())
        star = _allows_all(value)
        place = validate(ServerEntry, value if star is None else {**value, star: None}, at, own)
        entry = _EntryReader(place=place, variables=self.variables, defaults=self.defaults)
        if value.get("disabled") is True or value.get("enabled") is False:
            self.problems.warn(at, "is disabled and left out")
            return None
        server = entry.read() if not own.found else _as_far_as_known(value, self.defaults)
        self.problems.warnings += own.warnings
        if starts_toolcrib(server):
            self.problems.warn(at, "starts toolcrib itself and is left out; give it a file of its own with --config")
            return None
        return replace(server, problem="; ".join(filter(None, (own.summary(), server.problem))))


def _allows_all(value: Mapping[str, Any]) -> str | None:
    """The key of `allowedTools`, if it allows every tool; written `"*"`, or as a list with it."""
    keys = [key for key in value if snake(key) == "allowed_tools"]
    star = [key for key in keys if value[key] == "*" or (isinstance(value[key], list) and "*" in value[key])]
    return star[0] if len(keys) == 1 and star else None


def _as_far_as_known(value: Mapping[str, Any], defaults: ServerOptions) -> ServerOptions:
    """What an entry that does not fit says about its server, to be shown beside the problem."""
    texts = {key: item for key, item in value.items() if isinstance(item, str)}
    required = value.get("required") is True
    if "command" in texts or "url" not in texts:
        return replace(defaults, transport="stdio", command=texts.get("command", ""), required=required)
    return replace(defaults, transport="http", url=texts["url"], required=required)


@dataclass(slots=True, kw_only=True)
class _EntryReader:
    """Reads one entry whose fields have the right types."""

    place: Place[ServerEntry]
    variables: VariableSource
    defaults: ServerOptions
    expander: VariableExpander = field(init=False)

    def __post_init__(self) -> None:
        self.expander = VariableExpander(self.variables)

    @property
    def entry(self) -> ServerEntry:
        return self.place.table

    def read(self) -> ServerOptions:
        """The server, with what is missing in its environment as its `problem`."""
        entry = self.entry
        reach = self._local() if self._transport() == "stdio" else self._remote()
        if entry.show_all and entry.delegate_search:
            self.place.add("has both show_all, which lists all its tools here, and delegate_search; keep one")
        timeouts = {f"{key.removesuffix('_s')}_timeout_s": value for key, value in entry.timeouts.given().items()}
        flags = (
            "required",
            "asks",
            "prompts",
            "resources",
            "show_all",
            "delegate_search",
            "retries",
            "retry_interval_s",
        )
        misspelt = self._warn_of_unknown_keys()
        return replace(
            reach,
            allowed_tools=entry.allowed_tools,
            namespace=self._namespace(),
            problem="; ".join(dict.fromkeys((*self.expander.missing, *misspelt))),
            **entry.given(*flags),
            **timeouts,
        )

    def _namespace(self) -> str | None:
        """The namespace that the entry states, which is never changed silently."""
        stated = self.entry.namespace
        if stated is not None and namespace_of(stated) != stated:
            message = f"must not contain colons or control characters: {display(stated)}"
            self.place.add(message, "namespace")
        return stated

    def _transport(self) -> TransportName:
        """What the type says; else what the entry has: a command or a url."""
        entry = self.entry
        has_url = entry.url_key() is not None
        if entry.type is not None and entry.transport is not None:
            self.place.add("duplicates type; keep one of them", "transport")
        key = "type" if entry.type is not None else "transport"
        said = getattr(entry, key)
        if said is None:
            if entry.command is not None and has_url:
                self.place.add('has both a command and a url; add "type": "stdio" or "http", or drop one')
            return "http" if has_url and entry.command is None else "stdio"
        transport = _TRANSPORTS.get(said.lower().replace("-", "").replace("_", "")) if isinstance(said, str) else None
        if transport is None:
            must = "must be stdio, http (also written streamable-http) or sse"
            self.place.add(f"{must}, not {display(said)}", key)
        return transport or ("http" if has_url else "stdio")

    def _local(self) -> ServerOptions:
        entry, fill = self.entry, self.expander.fill
        if entry.command is None:
            self._needs("command", "a command, or a url if it is remote")
        command = fill(entry.command or "", "command")
        if entry.command is not None and not command.strip() and not self.expander.missing:
            names = dict.fromkeys(_VARIABLE.findall(entry.command))
            self.expander.missing += [f"environment variable {name} is empty (command)" for name in names]
        return replace(
            self.defaults,
            transport="stdio",
            command=self._in_home(command),
            args=tuple(fill(text, f"args[{position}]") for position, text in enumerate(entry.args)),
            env=self._env(),
            cwd=self._folder(fill(entry.cwd, "cwd")) if entry.cwd else None,
        )

    def _remote(self) -> ServerOptions:
        key = self.entry.url_key()
        url = str(getattr(self.entry, key)) if key else ""
        if key is None:
            self._needs("url", "a url")
        older = self._transport() == "sse" or self._looks_like_sse(url)
        filled = self._checked_url(key, url) if key else ""
        return replace(self.defaults, transport="sse" if older else "http", url=filled, headers=self._headers())

    def _needs(self, key: str, what: str) -> None:
        misspelt = [other for other, near in self._unknown_keys() if near == key]
        hint = f' (is "{misspelt[0]}" meant to be {key}?)' if misspelt else ""
        self.place.add(f"needs {what}{hint}")

    def _looks_like_sse(self, url: str) -> bool:
        """A url without a type whose path ends with `/sse`: by convention the older transport."""
        typed = self.entry.type is not None or self.entry.transport is not None
        if typed or not url.partition("?")[0].endswith("/sse"):
            return False
        self.place.warn('is treated as an SSE server because of its url; add "type": "http" if it is not one')
        return True

    def _checked_url(self, key: str, url: str) -> str:
        """The url with its variables filled in."""
        before = len(self.expander.missing)
        filled = self.expander.fill(url, "url").strip()
        wrong = "" if len(self.expander.missing) > before else url_problem(filled)
        if wrong and filled == url.strip():
            self.place.add(wrong, key)
        elif wrong:
            self.expander.missing.append(f"url {wrong}, once its variables are filled in")
        return filled

    def _env(self) -> dict[str, str]:
        env_file = self.entry.env_file
        from_file = self._env_file(self.expander.fill(env_file, "envFile")) if env_file else {}
        return {**from_file, **self._mapping("env")}

    def _env_file(self, name: str) -> Mapping[str, str]:
        try:
            return env.parse_dotenv(self._folder(name).read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be read"
            self.expander.missing.append(f"the file {name} {why} (envFile)")
            return {}

    def _headers(self) -> dict[str, str]:
        headers = self._mapping("headers")
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                self.place.add("is not a header name", "headers", name)
            elif _CONTROL.search(value):
                self.expander.missing.append(f"headers.{name} holds a line break or another control character")
        return headers

    def _mapping(self, key: str) -> dict[str, str]:
        """A table of strings. Numbers become strings, since some clients write ports so; null leaves one out."""
        filled: dict[str, str] = {}
        for name, value in getattr(self.entry, key).items():
            if isinstance(value, str):
                filled[name] = self.expander.fill(value, dotted((key, name)))
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                filled[name] = str(value)
            elif value is not None:
                self.place.add(f"must be a string, not {kind(value)}", key, name)
        return filled

    def _folder(self, name: str) -> Path:
        return self.variables.workspace / self._in_home(name)

    def _in_home(self, name: str) -> str:
        return str(self.variables.home / name[2:]) if name.startswith("~/") else name

    def _unknown_keys(self) -> list[tuple[str, str]]:
        """Keys that toolcrib does not know, as the file spells them, each with the closest known key or ""."""
        known = known_keys(ServerEntry)
        extra = self.entry.model_extra or {}
        return [(str(self.place.path(key)[-1]), closest(key, known)) for key in extra]

    def _warn_of_unknown_keys(self) -> list[str]:
        """Warn of other clients' keys and of likely misspellings.

        Returns the problem of a misspelt allow-list: ignored, it would offer every tool.
        """
        place = self.place
        ignored: list[str] = []
        problems: list[str] = []
        for key, near in self._unknown_keys():
            if key == "timeout":
                place.warn("is ignored, as clients disagree on its unit; " + _OWN_TIMEOUTS, key)
            elif snake(key) in _RESTRICTIONS:
                place.warn("is not applied; name the tools to keep in allowedTools", snake(key))
            elif near == "allowed_tools":
                problems.append(f'"{key}" is not a setting; did you mean "allowedTools"?')
            elif near:
                place.warn(f'is ignored; did you mean "{near}"?', snake(key))
            else:
                ignored.append(key)
        if ignored:
            place.warn(f"has settings of another client that are ignored: {', '.join(ignored)}")
        return problems


def namespace_of(key: str) -> str:
    """The key itself if it can be a namespace, else the most similar name that can.

    >>> namespace_of("My Server"), namespace_of("io.github:files"), namespace_of(" notes ")
    ('My Server', 'io.github-files', 'notes')
    """
    try:
        check_namespace(key)
    except InvalidName:
        legal = "".join(char if char.isprintable() and char != ":" else "-" for char in key.strip())
        return legal[:MAX_NAMESPACE].strip() or "server"
    return key


def url_problem(url: str) -> str:
    """What is wrong with a url, or an empty string."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is not a url"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    return "" if parts.hostname else "must name a host"


def starts_toolcrib(server: ServerOptions) -> bool:
    """Whether the entry would start a toolcrib that reads the same file, and so itself, without end."""
    programs = {Path(word).name for word in (server.command or "", *server.args)}
    own_file = any(word == "-c" or word.startswith("--config") for word in server.args)
    return bool(programs & {"toolcrib", "toolcrib.exe"}) and "serve" in server.args and not own_file
