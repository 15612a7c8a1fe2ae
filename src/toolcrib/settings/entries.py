"""Server entries as MCP clients write them, read into `ServerOptions`.

Keys that mean the same under other names are aliases here; what depends on the client is in its row of `clients`. A
problem of one entry disables that server alone: it is kept with the reason in `problem`, and listed as failed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import ConfigDict, Field

from toolcrib.errors import ToolcribError
from toolcrib.file_values import Text
from toolcrib.names import nearest_namespace
from toolcrib.settings.clients import (
    ANY_CLIENT,
    MILLISECONDS,
    ClientApp,
    TimeoutKind,
    excluded_by,
    is_server,
    switched,
    value_at,
)
from toolcrib.settings.document import FieldPath, Problems, dotted, snake
from toolcrib.settings.env import VariableExpander, VariableSource, read_dotenv
from toolcrib.settings.logins import read_auth
from toolcrib.settings.models import ServerTimeouts, ToolOverrideTable
from toolcrib.settings.validation import (
    Place,
    Table,
    closest,
    display,
    kind,
    known_keys,
    options_of,
    url_problem,
    validate,
)
from toolcrib.upstream.options import (
    ProtocolName,
    ServerOptions,
    ToolOverride,
    TransportName,
    TrustMode,
)

FORMS: Final[tuple[FieldPath, ...]] = (
    ("mcpServers",),
    ("mcp_servers",),
    ("servers",),
    ("mcp", "servers"),
    ("mcp", "mcpServers"),
    ("mcp.servers",),
    ("mcpClients",),
)
"""Where a file may hold its servers."""
MIXED_FORMS: Final[tuple[FieldPath, ...]] = (("mcp",), ("extensions",), ("context_servers",))
"""Where a file may hold servers among other things, which are left alone."""
ALIASES: Final[Mapping[str, str]] = {
    "cmd": "command",
    "uri": "url",
    "envs": "env",
    "environment": "env",
    "working_dir": "cwd",
    "working_directory": "cwd",
    "http_headers": "headers",
    "transport_type": "transport",
    "enabled_tools": "allowed_tools",
    "include_tools": "allowed_tools",
    "available_tools": "allowed_tools",
    "disabled_tools": "denied_tools",
    "exclude_tools": "denied_tools",
}
"""Other names of keys, which mean the same in every client that has them."""
TIMEOUTS: Final[Mapping[str, tuple[TimeoutKind, float]]] = {
    "startup_timeout_sec": ("start", 1),
    "startup_timeout_ms": ("start", MILLISECONDS),
    "tool_timeout_sec": ("call", 1),
    "tool_timeout_ms": ("call", MILLISECONDS),
    "init_timeout": ("start", MILLISECONDS),
    "connection_timeout": ("start", MILLISECONDS),
    "request_timeout": ("call", MILLISECONDS),
    "request_timeout_ms": ("call", MILLISECONDS),
}
"""Clients' keys for timeouts: what each limits, and its unit in seconds."""
_FLAGS: Final = {
    name: name
    for name in (
        *("required", "protocol", "sessions", "lint", "asks", "prompts", "resources", "show_all"),
        *("delegate_search", "retries", "retry_interval_s", "group", "account"),
    )
}
"""Our own keys that are options of the server under the same name."""
_TRANSPORTS: Final[Mapping[str, TransportName]] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "remote": "http",
    "streamablehttp": "http",
    "sse": "sse",
}
_URL_KEYS: Final = ("http_url", "server_url", "url")
_NARROWING: Final = re.compile(
    r"(allow|deny|denied|block|permit|include|exclude|enable|disable|avail|hid|white|black|filter)\w*tool"
    r"|tool\w*(allow|deny|denied|block|filter|include|exclude|enable|disable|hid|white|black)"
)
_DENYING: Final = re.compile(r"den|block|exclude|disable|hid|black")
_APPROVING: Final = re.compile(r"auto_?(approve|allow)|always_allow|approval|confirm")
_OUR_LISTS: Final = {"allowed_tools": "allowedTools", "denied_tools": "deniedTools"}
_SILENT: Final = frozenset(
    {"name", "title", "description", "display_name", "icon", "icon_path", "source", "bundled", "gallery", "version"}
)
"""Keys of clients that say nothing about how a server is used."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"\$\{(?:env:)?([^}:]+)")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OWN_TIMEOUTS: Final = 'write "timeouts": {"start": 60, "list": 30, "call": 60}, in seconds'


class ServerEntry(Table, sets=ServerOptions, keys=_FLAGS):
    """One server as a client's file has it, after `ALIASES`. Other keys are allowed, and warned of.

    Keys of the other transport are ignored silently: clients write an empty `env` for remote servers.
    """

    model_config = ConfigDict(extra="allow")

    type: Any = None
    transport: Any = None
    command: Text | None = None
    args: tuple[str, ...] = ()
    env: dict[str, Any] = Field(default_factory=dict)
    env_file: Text | None = None
    cwd: Text | None = None
    url: Text | None = None
    server_url: Text | None = None
    http_url: Text | None = None
    headers: dict[str, Any] = Field(default_factory=dict)
    bearer_token_env_var: Text | None = None
    auth: Any = None
    env_http_headers: dict[str, str] = Field(default_factory=dict)
    env_vars: tuple[Any, ...] = ()
    env_keys: tuple[str, ...] = ()
    request_options: Any = None
    allowed_tools: tuple[str, ...] | None = None
    denied_tools: tuple[str, ...] = ()
    tools: Any = None
    is_active: bool = True
    disabled: bool = False
    enabled: bool = True
    timeouts: ServerTimeouts = Field(default_factory=ServerTimeouts.model_construct)
    namespace: Text | None = None
    trust: TrustMode | bool = "warn"

    def flags(self) -> dict[str, Any]:
        """The fields that are options as they are. Gemini CLI has a `trust` of its own, which is true or false."""
        return self.given() | ({} if isinstance(self.trust, bool) else self.given("trust"))

    def url_key(self) -> str | None:
        """The key of the url; clients differ."""
        return next((key for key in _URL_KEYS if getattr(self, key) is not None), None)


def aliases_of(value: Any) -> Mapping[str, str]:
    """Other names of the keys of an entry. `protocol` is the transport in some clients, and else the version of MCP."""
    protocol = value.get("protocol") if isinstance(value, dict) else None
    is_version = protocol in get_args(ProtocolName)
    return ALIASES if is_version else {**ALIASES, "protocol": "transport"}


def server_entries(value: Mapping[str, Any], project: Path, problems: Problems) -> Iterator[tuple[FieldPath, str, Any]]:
    """Every entry of the file, with its place and its name. The entries of the current project come first."""
    local = ("projects", str(project), "mcpServers")
    for form in (local, *FORMS, *MIXED_FORMS):
        found = value_at(value, form)
        if found is None:
            continue
        if isinstance(found, dict):
            mixed = form in MIXED_FORMS
            yield from (((*form, key), key, entry) for key, entry in found.items() if not mixed or is_server(entry))
        elif isinstance(found, list) and form == ("mcpServers",):
            yield from (((*form, place), _listed_name(entry, place), entry) for place, entry in enumerate(found))
        elif form not in MIXED_FORMS:
            problems.add(form, f"must be an object with an entry for each server, not {kind(found)}")
    if is_bare_map(value):
        yield from (((key,), key, entry) for key, entry in value.items() if is_server(entry))


def _listed_name(entry: Any, place: int) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) and name.strip() else f"server-{place + 1}"


def is_bare_map(value: Mapping[str, Any]) -> bool:
    """Whether the file is nothing but servers by name, as some clients write a project's file."""
    entries = [entry for key, entry in value.items() if not key.startswith("$")]
    return bool(entries) and all(map(is_server, entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReader:
    """Reads the entries of one file."""

    problems: Problems
    variables: VariableSource
    defaults: ServerOptions
    """Deadlines and sizes of an entry that sets none of its own."""
    client: ClientApp = ANY_CLIENT
    project: Path = Path()

    def read(self, value: Mapping[str, Any]) -> tuple[ServerOptions, ...]:
        """Every server that is not disabled, by name."""
        servers: dict[str, ServerOptions] = {}
        keys: dict[str, FieldPath] = {}
        for at, key, entry in server_entries(value, self.project, self.problems):
            name = self._name(key, at)
            if name in keys:
                other = f"{dotted(keys[name])} of {self.problems.document.where(keys[name])}"
                self.problems.warn(at, f"is left out: it has the same name as {other}; rename one of them")
                continue
            server = self._read_entry(entry, at)
            keys[name] = at
            if where := excluded_by(self.client, value, key, str(self.project)):
                self.problems.warn(at, f"is left out, as {where} says")
            elif server is not None:
                servers[name] = switched(self.client, value, key, replace(server, name=name))
        return tuple(servers[name] for name in sorted(servers))

    def _name(self, key: str, at: FieldPath) -> str:
        name = nearest_namespace(key)
        if name != key:
            self.problems.warn(at, f'is named "{name}" here, as a namespace cannot have colons or control characters')
        return name

    def _read_entry(self, value: Any, at: FieldPath) -> ServerOptions | None:
        own = Problems(self.problems.document)
        if not isinstance(value, dict):
            own.add(at, f"must be an object with command or url, not {kind(value)}")
            return replace(self.defaults, problem=own.summary())
        place = validate(ServerEntry, common_form(value), at, own, aliases_of(value))
        entry = EntryReader(place=place, variables=self.variables, defaults=self.defaults, client=self.client)
        if value.get("disabled") is True or value.get("enabled") is False or value.get("isActive") is False:
            self.problems.warn(at, "is disabled and left out")
            return None
        server = entry.read() if not own.found else _as_far_as_known(value, self.defaults)
        self.problems.warnings += own.warnings
        if server.starts_itself():
            self.problems.warn(at, "starts toolcrib itself and is left out; give it a file of its own with --config")
            return None
        return replace(server, problem="; ".join(filter(None, (own.summary(), server.problem))))


def common_form(value: Mapping[str, Any]) -> dict[str, Any]:
    """An entry whose values have the form that most clients write: the command apart from its arguments, for one."""
    entry = dict(value)
    for key, item in value.items():
        match snake(key):
            case "command" if isinstance(item, list) and item and all(isinstance(word, str) for word in item):
                entry[key] = item[0]
                more = value.get("args")
                entry["args"] = [*item[1:], *(more if isinstance(more, list) else [])]
            case "command" if isinstance(item, dict):
                entry.pop(key)
                entry = {"command": item.get("path"), "args": item.get("args"), "env": item.get("env"), **entry}
            case "env" if isinstance(item, list) and all(isinstance(line, str) for line in item):
                entry[key] = dict(_assignment(line) for line in item)
            case "allowed_tools" | "tools" if item == "*" or (isinstance(item, list) and "*" in item):
                entry[key] = None
    return entry


def _assignment(line: str) -> tuple[str, str]:
    """A variable of a list such as `["DEBUG=1", "PATH"]`; without a value, it is that of the environment."""
    name, equals, text = line.partition("=")
    return name, text if equals else f"${{{name}:-}}"


def _as_far_as_known(value: Mapping[str, Any], defaults: ServerOptions) -> ServerOptions:
    """What an entry that does not fit says about its server, to be shown beside the problem."""
    texts = {key: item for key, item in value.items() if isinstance(item, str)}
    required = value.get("required") is True
    if "command" in texts or "url" not in texts:
        return replace(defaults, transport="stdio", command=texts.get("command", ""), required=required)
    return replace(defaults, transport="http", url=texts["url"], required=required)


@dataclass(slots=True, kw_only=True)
class EntryReader:
    """Reads one entry whose fields have the right types."""

    place: Place[ServerEntry]
    variables: VariableSource
    defaults: ServerOptions
    client: ClientApp
    expander: VariableExpander = field(init=False)
    narrowing: list[str] = field(default_factory=list)
    """Problems of keys that limit the tools and cannot be applied."""

    def __post_init__(self) -> None:
        client = self.client
        title = client.title if client.placeholders else ""
        self.expander = VariableExpander(
            self.variables, owner=str(self.place.at[-1]), plain=client.plain_variables, placeholders_of=title
        )

    @property
    def entry(self) -> ServerEntry:
        return self.place.table

    def read(self) -> ServerOptions:
        """The server, with what is missing in its environment as its `problem`."""
        entry = self.entry
        reach = self._local() if self._transport() == "stdio" else self._remote()
        flags = entry.flags()
        if flags.get("show_all") and flags.get("delegate_search"):
            self.place.add("has both show_all, which lists all its tools here, and delegate_search; keep one")
        self.narrowing = self._check_unknown_keys()
        return replace(
            reach,
            allowed_tools=self._allowed_tools(),
            denied_tools=self._denied_tools(),
            overrides=self._overrides(),
            namespace=self._namespace(),
            problem="; ".join(dict.fromkeys((*self.expander.missing, *self.narrowing))),
            **flags,
            **self.timeouts(),
        )

    def _allowed_tools(self) -> tuple[str, ...] | None:
        """The list of `allowedTools`, or of `tools`, which some clients write instead."""
        listed = self.entry.tools
        if not isinstance(listed, list):
            return self.entry.allowed_tools
        if not all(isinstance(name, str) for name in listed):
            self.place.add("must be a list of strings", "tools")
        if self.entry.allowed_tools is not None:
            self.place.add("duplicates allowedTools; keep one of them", "tools")
        return tuple(map(str, listed))

    def _denied_tools(self) -> tuple[str, ...]:
        """The list of `deniedTools`, and the tools that `tools` turns off."""
        switches = self.entry.tools
        if switches is None or isinstance(switches, list):
            return self.entry.denied_tools
        if not isinstance(switches, dict) or not all(isinstance(on, (bool, dict)) for on in switches.values()):
            self.place.add("limits the tools in a way that toolcrib does not know; use allowedTools", "tools")
            return ()
        off = (name for name, on in switches.items() if on is False or on in ({"enabled": False}, {"disabled": True}))
        return (*self.entry.denied_tools, *off)

    def _overrides(self) -> dict[str, ToolOverride]:
        """The tables of `tools` that change a tool; others are switches of clients."""
        tables = self.entry.tools if isinstance(self.entry.tools, dict) else {}
        found: dict[str, ToolOverride] = {}
        for name, value in tables.items():
            if not isinstance(value, dict) or not known_keys(ToolOverrideTable) & value.keys():
                continue
            try:
                place = validate(ToolOverrideTable, value, (*self.place.at, "tools", name), self.place.problems)
                found[name] = options_of(ToolOverride, place.table)
            except ToolcribError as error:
                self.place.add(f"cannot be used: {error.message}", "tools", name)
        return found

    def timeouts(self) -> dict[str, Any]:
        """Our own timeouts, and for those that they leave out the client's."""
        known = {**TIMEOUTS, **({"timeout": self.client.timeout} if self.client.timeout else {})}
        found: dict[str, float] = {}
        extra = self.entry.model_extra or {}
        for key, (option, unit) in known.items():
            value = extra.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                self.place.add(f"must be a number above 0, not {display(value)}", key)
            elif value > 0:
                found.setdefault(option, value * unit)
        return {f"{key}_timeout_s": value for key, value in found.items()} | self.entry.timeouts.given()

    def _namespace(self) -> str | None:
        """The namespace that the entry states, which is never changed silently."""
        stated = self.entry.namespace
        if stated is not None and nearest_namespace(stated) != stated:
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
        reach = replace(self.defaults, transport="sse" if older else "http", url=filled, headers=self._headers())
        return replace(reach, auth=read_auth(self.entry.auth, self.place, self.expander))

    def _needs(self, key: str, what: str) -> None:
        misspelt = [other for other, near in self._unknown_keys() if near == key]
        hint = f' (is "{misspelt[0]}" meant to be {key}?)' if misspelt else ""
        self.place.add(f"needs {what}{hint}")

    def _looks_like_sse(self, url: str) -> bool:
        """A url without a type that is SSE in this client, or whose path ends with `/sse`, as is the convention."""
        if self.entry.type is not None or self.entry.transport is not None or self.entry.http_url is not None:
            return False
        if self.client.url_means_sse:
            return True
        if not url.partition("?")[0].endswith("/sse"):
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
        return {**from_file, **self._passed_on(), **self._mapping("env")}

    def _passed_on(self) -> dict[str, str]:
        """Variables that the entry only names: those of `env_vars` if they are set, and all of `env_keys`."""
        environ = self.variables.environ
        named = [item.get("name") if isinstance(item, dict) else item for item in self.entry.env_vars]
        found = {name: environ[name] for name in named if isinstance(name, str) and name in environ}
        return found | {name: self._variable(name, "env_keys") for name in self.entry.env_keys}

    def _variable(self, name: str, where: str) -> str:
        return self.expander.fill(f"${{{name}}}", where)

    def _env_file(self, name: str) -> Mapping[str, str]:
        path = self._folder(name)
        self.variables.files.append(path)
        try:
            return read_dotenv(path)
        except OSError as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else error.strerror or error
            self.expander.missing.append(f"the file {name} {why} (envFile)")
            return {}

    def _headers(self) -> dict[str, str]:
        headers = self._mapping("headers", self.expander.fill_secret) | self._option_headers()
        if name := self.entry.bearer_token_env_var:
            headers["Authorization"] = f"Bearer {self.expander.fill_secret(f'${{{name}}}', 'bearer_token_env_var')}"
        for header, name in self.entry.env_http_headers.items():
            headers[header] = self.expander.fill_secret(f"${{{name}}}", dotted(("env_http_headers", header)))
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                self.place.add("is not a header name", "headers", name)
            elif _CONTROL.search(value) or not value.isascii():
                self.expander.missing.append(f"headers.{name} holds a character that no header can have")
        return headers

    def _option_headers(self) -> dict[str, str]:
        """The headers that some clients keep in `requestOptions`."""
        options = self.entry.request_options
        headers = options.get("headers") if isinstance(options, dict) else None
        if not isinstance(headers, dict):
            return {}
        where = ("requestOptions", "headers")
        return {str(name): self.expander.fill(str(value), dotted((*where, name))) for name, value in headers.items()}

    def _mapping(self, key: str, fill: Callable[[str, str], str] | None = None) -> dict[str, str]:
        """A table of strings. Numbers become strings, since some clients write ports so; null leaves one out."""
        filled: dict[str, str] = {}
        fill = fill or self.expander.fill
        for name, value in getattr(self.entry, key).items():
            if isinstance(value, str):
                filled[name] = fill(value, dotted((key, name)))
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

    def _check_unknown_keys(self) -> list[str]:
        """Warn of other clients' keys and of likely misspellings.

        Returns the problem of each key that would limit the tools, and cannot be applied: ignored, it would offer
        tools that the user turned off.
        """
        ignored: list[str] = []
        problems: list[str] = []
        for key, near in self._unknown_keys():
            name = snake(key)
            narrows = near in _OUR_LISTS or _NARROWING.search(name)
            if name in TIMEOUTS or (name == "timeout" and self.client.timeout) or name in _SILENT:
                continue
            if name == "timeout":
                self.place.warn("is ignored, as clients disagree on its unit; " + _OWN_TIMEOUTS, key)
            elif narrows and not _APPROVING.search(name) and not self._denies_nothing(name):
                meant = get_close_matches(name, _OUR_LISTS, n=1, cutoff=0.85)
                advice = f'did you mean "{_OUR_LISTS[meant[0]]}"?' if meant else "use allowedTools or deniedTools"
                problems.append(f'"{key}" is not a setting; {advice}')
            elif near and not _APPROVING.search(name):
                self.place.warn(f'is ignored; did you mean "{near}"?', name)
            else:
                ignored.append(key)
        if ignored:
            self.place.warn(f"has settings of another client that are ignored: {', '.join(ignored)}")
        return problems

    def _denies_nothing(self, name: str) -> bool:
        """Whether a key only takes tools away, and names none."""
        return bool(_DENYING.search(name)) and not (self.entry.model_extra or {})[name]
