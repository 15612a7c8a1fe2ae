"""Server entries as MCP clients write them: Claude, VS Code, Cursor and others."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from toolcrib.errors import InvalidName
from toolcrib.names import MAX_NAMESPACE, check_namespace
from toolcrib.settings import env
from toolcrib.settings.document import FieldPath, Problems, dotted
from toolcrib.settings.env import VariableExpander, VariableSource
from toolcrib.settings.section import Section, kind, snake
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


_KEYS: Final = frozenset(
    {"type", "transport", "command", "args", "env", "env_file", "cwd", "url", "server_url", "http_url", "headers"}
    | {"allowed_tools", "required", "disabled", "enabled", "timeouts"}
    | {"namespace", "asks", "prompts", "resources", "show_all", "delegate_search", "retries", "retry_interval"}
)
"""All keys of an entry. Those of the other transport are passed over in silence: clients write an empty `env`."""


_RESTRICTIONS: Final = frozenset({"disabled_tools", "exclude_tools", "enabled_tools", "include_tools"})


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


_VARIABLE = re.compile(r"\$\{(?:env:)?([^}:]+)")


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def server_tables(value: Mapping[str, Any], problems: Problems) -> Iterator[Section]:
    """The tables of the file that hold servers by name."""
    for form in FORMS:
        found: Any = value
        for part in form:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, dict):
            yield Section(found, form, problems)
        elif found is not None:
            problems.add(form, f"must be an object with an entry for each server, not {kind(found)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReader:
    """Reads the entries of one file."""

    problems: Problems
    surroundings: VariableSource
    defaults: ServerOptions
    """Deadlines and sizes of an entry that sets none of its own."""

    def read(self, found: Iterator[Section]) -> tuple[ServerOptions, ...]:
        """Every server that is not disabled, by name."""
        servers: dict[str, ServerOptions] = {}
        keys: dict[str, FieldPath] = {}
        for table in found:
            for key in table.table:
                at = (*table.at, key)
                server = self._entry(table.table[key], at)
                name = self._name(key, at)
                if name in keys:
                    other = f'"{keys[name][-1]}" of {self.problems.document.where(keys[name])}'
                    self.problems.add(at, f'would be called "{name}", as {other} is; rename one of them')
                keys.setdefault(name, at)
                if server is not None:
                    servers[name] = replace(server, name=name)
        return tuple(servers[name] for name in sorted(servers))

    def _name(self, key: str, at: FieldPath) -> str:
        name = namespace_of(key)
        if name != key:
            self.problems.warn(at, f'is called "{name}" here: a namespace has no such characters')
        return name

    def _entry(self, value: Any, at: FieldPath) -> ServerOptions | None:
        if not isinstance(value, dict):
            self.problems.add(at, f"must be an object with command or url, not {kind(value)}")
            return None
        entry = Section(value, at, self.problems, set(_KEYS))
        server = self._server(entry)
        off = entry.flag("disabled") is True or entry.flag("enabled") is False
        misspelt = self._odd_keys(entry)
        if misspelt:
            server = replace(server, problem="; ".join(filter(None, (server.problem, misspelt))))
        if off:
            self.problems.warn(at, "is disabled and left out")
        elif starts_toolcrib(server):
            self.problems.warn(at, "starts toolcrib itself and is left out; give it a file of its own with --config")
        else:
            return server
        return None

    def _server(self, entry: Section) -> ServerOptions:
        fill = VariableExpander(self.surroundings)
        reach = self._local(entry, fill) if self._transport(entry) == "stdio" else self._remote(entry, fill)
        timeouts = entry.section("timeouts") or Section({}, entry.at, self.problems)
        server = replace(
            reach,
            allowed_tools=allowed_tools(entry),
            required=entry.flag("required") or False,
            namespace=explicit_namespace(entry),
            retries=entry.count("retries", low=0),
            retry_interval_s=entry.seconds("retry_interval"),
            asks=entry.flag("asks") or False,
            prompts=entry.flag("prompts") is not False,
            resources=entry.flag("resources") is not False,
            show_all=entry.flag("show_all") or False,
            delegate_search=entry.flag("delegate_search") or False,
            start_timeout_s=timeouts.seconds("start") or self.defaults.start_timeout_s,
            list_timeout_s=timeouts.seconds("list") or self.defaults.list_timeout_s,
            call_timeout_s=timeouts.seconds("call") or self.defaults.call_timeout_s,
            find_timeout_s=timeouts.seconds("find") or self.defaults.find_timeout_s,
            problem="; ".join(dict.fromkeys(fill.missing)),
        )
        timeouts.refuse_unknown()
        if server.show_all and server.delegate_search:
            self.problems.add(
                entry.at, "has both show_all, which lists all its tools here, and delegate_search; keep one"
            )
        return server

    def _transport(self, entry: Section) -> TransportName:
        """What the type says; else what the entry has: a command or a url."""
        type_key = entry.spelling("type") or entry.spelling("transport")
        has_url = _url_key(entry) is not None
        if entry.spelling("type") and entry.spelling("transport"):
            entry.wrong("transport", "says the same as type; keep one of them", None)
        if type_key is None:
            if entry.spelling("command") and has_url:
                entry.problems.add(entry.at, 'has both a command and a url; add "type": "stdio" or "http", or drop one')
            return "http" if has_url and not entry.spelling("command") else "stdio"
        said = entry.table[type_key]
        transport = _TRANSPORTS.get(said.lower().replace("-", "").replace("_", "")) if isinstance(said, str) else None
        if transport is None:
            entry.wrong(type_key, "must be stdio, http (also written streamable-http) or sse", said)
        return transport or ("http" if has_url else "stdio")

    def _local(self, entry: Section, fill: VariableExpander) -> ServerOptions:
        command = entry.text("command")
        if command is None and entry.spelling("command") is None:
            self._needs(entry, "command", "a command, or a url if it is remote")
        filled = fill.fill(command or "", "command")
        if command is not None and not filled.strip() and not fill.missing:
            names = dict.fromkeys(_VARIABLE.findall(command))
            fill.missing += [f"environment variable {name} is empty (command)" for name in names]
        cwd = entry.text("cwd")
        args = entry.texts("args") or ()
        return replace(
            self.defaults,
            transport="stdio",
            command=self._in_home(filled),
            args=tuple(fill.fill(text, f"args[{position}]") for position, text in enumerate(args)),
            env=self._env(entry, fill),
            cwd=self._folder(fill.fill(cwd, "cwd")) if cwd else None,
        )

    def _remote(self, entry: Section, fill: VariableExpander) -> ServerOptions:
        spelling = _url_key(entry)
        url = entry.text(spelling, secret=True) if spelling else None
        if spelling is None:
            self._needs(entry, "url", "a url")
        older = self._transport(entry) == "sse" or self._looks_like_sse(entry, url)
        filled = self._checked_url(entry, spelling, url, fill) if spelling and url else ""
        return replace(
            self.defaults, transport="sse" if older else "http", url=filled, headers=self._headers(entry, fill)
        )

    def _needs(self, entry: Section, key: str, what: str) -> None:
        strangers = [other for other, near in entry.unknown() if near == key]
        hint = f' (is "{strangers[0]}" meant to be {key}?)' if strangers else ""
        self.problems.add(entry.at, f"needs {what}{hint}")

    def _looks_like_sse(self, entry: Section, url: str | None) -> bool:
        """A url without a type whose path ends with `/sse`: by convention the older transport."""
        if entry.spelling("type") or entry.spelling("transport") or not (url or "").partition("?")[0].endswith("/sse"):
            return False
        self.problems.warn(entry.at, 'is taken for an SSE server by its url; add "type": "http" if it is none')
        return True

    def _checked_url(self, entry: Section, key: str, url: str, fill: VariableExpander) -> str:
        """The url with its variables filled in; a wrong one that came from variables only fails the server."""
        before = len(fill.missing)
        filled = fill.fill(url, "url").strip()
        wrong = "" if len(fill.missing) > before else url_problem(filled)
        if wrong and filled == url.strip():
            entry.wrong(str(entry.spelling(key)), wrong, None)
        elif wrong:
            fill.missing.append(f"url {wrong}, once its variables are filled in")
        return filled

    def _env(self, entry: Section, fill: VariableExpander) -> dict[str, str]:
        env_file = entry.text("env_file")
        from_file = self._env_file(fill.fill(env_file, "envFile"), fill) if env_file else {}
        return {**from_file, **self._mapping(entry, "env", fill)}

    def _env_file(self, name: str, fill: VariableExpander) -> Mapping[str, str]:
        try:
            return env.parse_dotenv(self._folder(name).read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be read"
            fill.missing.append(f"the file {name} {why} (envFile)")
            return {}

    def _headers(self, entry: Section, fill: VariableExpander) -> dict[str, str]:
        headers = self._mapping(entry, "headers", fill)
        for name, value in headers.items():
            at = (*entry.at, "headers", name)
            if not _HEADER_NAME.fullmatch(name):
                self.problems.add(at, "is not a header name")
            elif _CONTROL.search(value):
                fill.missing.append(f"headers.{name} holds a line break or another control character")
        return headers

    def _mapping(self, entry: Section, key: str, fill: VariableExpander) -> dict[str, str]:
        """A table of texts. Numbers are taken as texts, since some clients write ports so; null leaves one out."""
        table = entry.section(key)
        filled: dict[str, str] = {}
        for name, value in (table.table if table else {}).items():
            if isinstance(value, str):
                filled[name] = fill.fill(value, dotted((key, name)))
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                filled[name] = str(value)
            elif value is not None and table:
                table.wrong(name, "must be a string", value, secret=True)
        return filled

    def _folder(self, name: str) -> Path:
        return self.surroundings.workspace / self._in_home(name)

    def _in_home(self, name: str) -> str:
        return str(self.surroundings.home / name[2:]) if name.startswith("~/") else name

    def _odd_keys(self, entry: Section) -> str:
        """Warn of keys that other clients know and toolcrib does not, and of likely typing errors.

        A misspelt allow-list is a problem of its server, which is returned: ignored, it would offer every tool.
        """
        ignored: list[str] = []
        problem = ""
        for key, near in entry.unknown():
            if key == "timeout":
                entry.problems.warn((*entry.at, key), "is ignored, as clients disagree on its unit; " + _OWN_TIMEOUTS)
            elif snake(key) in _RESTRICTIONS:
                entry.problems.warn((*entry.at, key), "is not applied; name the tools to keep in allowedTools")
            elif near and snake(near) == "allowed_tools":
                problem = f'"{key}" is not a setting; did you mean "allowedTools"?'
            elif near:
                entry.problems.warn((*entry.at, key), f'is ignored; did you mean "{near}"?')
            else:
                ignored.append(key)
        if ignored:
            entry.problems.warn(entry.at, f"has settings of another client that are ignored: {', '.join(ignored)}")
        return problem


_OWN_TIMEOUTS = 'write "timeouts": {"start": 60, "list": 30, "call": 60}, in seconds'


def _url_key(entry: Section) -> str | None:
    """The key under which the entry has its url; clients differ."""
    found = [key for key in _URL_KEYS if entry.spelling(key)]
    return found[0] if found else None


def allowed_tools(entry: Section) -> tuple[str, ...] | None:
    """The tools that the server may offer; None for all of them, also written "*"."""
    spelling = entry.spelling("allowed_tools")
    if spelling is None or entry.table[spelling] == "*":
        return None
    names = entry.texts("allowed_tools")
    return None if names is None or "*" in names else names


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


def namespace_of(key: str) -> str:
    """The key itself where it can be a namespace, else the closest readable one; a function of the key alone.

    >>> namespace_of("My Server"), namespace_of("io.github:files"), namespace_of(" notes ")
    ('My Server', 'io.github-files', 'notes')
    """
    try:
        check_namespace(key)
    except InvalidName:
        legal = "".join(char if char.isprintable() and char != ":" else "-" for char in key.strip())
        return legal[:MAX_NAMESPACE].strip() or "server"
    return key


def explicit_namespace(entry: Section) -> str | None:
    """What the entry itself says; one that cannot be a namespace is noted, and never changed in silence."""
    said, spelling = entry.text("namespace"), entry.spelling("namespace")
    if said is None or namespace_of(said) == said:
        return said
    entry.wrong(str(spelling), "cannot be a namespace, which has no colon or control character", said)
    return None
