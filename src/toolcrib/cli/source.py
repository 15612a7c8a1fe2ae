"""Where a verb finds its servers: in a settings file, on the command line, or behind a gateway that already runs.

Their tools are a `ToolView`, wherever they are.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from toolcrib.cli.arguments import CallArguments
from toolcrib.cli.options import GATEWAY_NAME, ServerSource
from toolcrib.cli.output import UsageError
from toolcrib.search.options import Scorer
from toolcrib.settings.loader import default_settings, load_settings
from toolcrib.settings.options import Settings
from toolcrib.settings.secrets import AUTH_VARIABLE
from toolcrib.types import Object, SearchReply, SearchRequest, ServerStatus, Tool, ToolResult
from toolcrib.upstream.options import ServerOptions

_LAUNCHERS: Final = frozenset(
    {"uvx", "uv", "npx", "bunx", "pnpm", "python", "python3", "node", "deno", "docker", "pipx"}
)
_LAUNCHER_WORDS: Final = frozenset({"run", "tool", "exec", "dlx", "x"})
_VALUE_OPTIONS: Final = frozenset({"--with", "--from", "--python", "--index", "--package", "-p", "-e", "--env"})
"""Options of launchers that are followed by a value."""
_DECORATION: Final = re.compile(r"^(?:mcp-server-|server-|mcp-)|(?:-mcp-server|-mcp|-server)$")
_HOST_PREFIXES: Final = frozenset({"www", "api", "mcp", "app"})
_REFERENCE: Final = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFindings:
    """What a search of a verb found."""

    reply: SearchReply
    has_tools: bool = True
    """Whether there was any tool to find."""
    has_policy: bool = False
    """Whether a policy may have hidden tools."""
    explained: bool = True
    """Whether the parts of the scores are known."""


class ToolView(Protocol):
    """The servers of a verb, and their tools.

    What is found is passed to `show` as soon as it is there: servers may take a while to stop.
    """

    def servers(self, show: Callable[[Sequence[ServerStatus]], None]) -> None:
        """Find the state of each server."""

    def tools(self, namespace: str | None, show: Callable[[Sequence[Tool], Sequence[ServerStatus]], None]) -> None:
        """Find every tool, or those of one namespace. Raises `BackendNotFound` for one that no server has."""

    def search(self, request: SearchRequest, scorer: Scorer | None, show: Callable[[SearchFindings], None]) -> None:
        """Search, with this scorer instead of the configured one. Raises `BackendNotFound` as `tools` does."""

    def describe(self, name: str, show: Callable[[Tool, Object], None]) -> None:
        """Find a tool, and an example of its arguments. Raises `ToolNotFound` or `AmbiguousName`."""

    def call(self, name: str, arguments: CallArguments, show: Callable[[ToolResult], bool], *, approved: bool) -> bool:
        """Call a tool, and return what `show` returns. Raises `ToolNotFound`, `AmbiguousName` or `ApprovalRequired`."""


def load_source(source: ServerSource) -> Settings:
    """Load the settings, or make them of the servers on the command line. Raises `SettingsError` or `UsageError`."""
    _check(source)
    if source.gateway is not None:
        return _settings([_gateway_server(source, source.gateway)])
    if source.commands or source.urls:
        return _settings(_with_distinct_names(list(_servers(source))))
    settings = load_settings(source.config)
    if source.on_demand:
        return replace(settings, fleet=replace(settings.fleet, connect="on_demand"))
    return settings


def _check(source: ServerSource) -> None:
    one_off = [*(["--command"] if source.commands else []), *(["--url"] if source.urls else [])]
    given = [*(["--config"] if source.config else []), *one_off[:1], *(["--gateway"] if source.gateway else [])]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined.", hint="Each says where the servers are.")
    if source.variables and not source.commands:
        raise UsageError("--env needs --command.", hint="Servers of a settings file have their own env.")
    if source.headers and not (source.urls or source.gateway):
        raise UsageError("--header needs --url or --gateway.")


def _servers(source: ServerSource) -> Iterator[ServerOptions]:
    variables, headers = dict(map(_variable, source.variables)), _headers(source)
    for command in source.commands:
        words = _words(command)
        yield ServerOptions(name=command_name(words), command=words[0], args=tuple(words[1:]), env=variables)
    for url in source.urls:
        yield ServerOptions(name=url_name(url), transport="http", url=_checked_url(url), headers=headers)


def _gateway_server(source: ServerSource, url: str) -> ServerOptions:
    headers = _headers(source)
    token = os.environ.get(AUTH_VARIABLE)
    if token and not any(name.lower() == "authorization" for name in headers):
        headers["Authorization"] = f"Bearer {token}"
    return ServerOptions(name=GATEWAY_NAME, transport="http", url=_checked_url(url), headers=headers)


def _settings(servers: Sequence[ServerOptions]) -> Settings:
    return replace(default_settings(), servers=tuple(servers))


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--command cannot be read: {error}.", hint="Quote it as for a shell.") from None
    if not words:
        raise UsageError("--command is empty.", hint='Such as --command "uvx mcp-server-time".')
    return words


def _variable(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals and name not in os.environ:
        raise UsageError(f"--env {name}: environment variable {name} is not set.", hint="--env NAME=VALUE sets it.")
    return name, value if equals else os.environ[name]


def parse_header(given: str) -> tuple[str, str]:
    """The name and the value of `NAME:VALUE`. Raises `UsageError`."""
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise UsageError("--header must be NAME:VALUE.", hint="Such as --header 'Authorization: Bearer ${TOKEN}'.")
    return name.strip(), value.strip()


def _headers(source: ServerSource) -> dict[str, str]:
    """The headers, with the values of environment variables."""
    given = map(parse_header, source.headers)
    return {name: _REFERENCE.sub(_environment_value, value) for name, value in given}


def _environment_value(reference: re.Match[str]) -> str:
    value = os.environ.get(reference[1])
    if value is None:
        raise UsageError(f"--header: environment variable {reference[1]} is not set.")
    return value


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{url} is not an http or https address.", hint="Such as https://example.com/mcp.")
    return url


def command_name(words: Sequence[str]) -> str:
    """A short name for the server that a command starts.

    >>> command_name(["uvx", "--with", "mcp==2.3.0", "mcp-server-time==1.0"]), command_name(["npx", "-y", "@a/b-mcp@2"])
    ('time', 'b')
    >>> command_name(["python", "-m", "my_server"]), command_name(["./weather.py"]), command_name(["uvx"])
    ('my_server', 'weather', 'uvx')
    """
    rest = list(words)
    while rest and (Path(rest[0]).name in _LAUNCHERS or rest[0].startswith("-") or rest[0] in _LAUNCHER_WORDS):
        del rest[: 2 if rest[0] in _VALUE_OPTIONS else 1]
    word = Path((rest or words)[0]).name
    bare = re.split(r"==|@|\[", word)[0].removesuffix(".py").removesuffix(".js")
    return _DECORATION.sub("", bare) or bare or "server"


def url_name(url: str) -> str:
    """A short name for the server at an address.

    >>> url_name("https://mcp.deepwiki.com/mcp"), url_name("http://localhost:8000/mcp"), url_name("http://127.0.0.1/mcp")
    ('deepwiki', 'localhost', '127.0.0.1')
    """
    host = urlsplit(url).hostname or "server"
    if host.replace(".", "").isdigit() or ":" in host:
        return host.replace(":", "-")
    labels = [label for label in host.split(".") if label not in _HOST_PREFIXES]
    return labels[0] if labels else host


def _with_distinct_names(servers: Sequence[ServerOptions]) -> list[ServerOptions]:
    """The servers, with a number after a name that another one has already."""
    seen: dict[str, int] = {}
    distinct = []
    for server in servers:
        seen[server.name] = seen.get(server.name, 0) + 1
        number = seen[server.name]
        distinct.append(server if number == 1 else replace(server, name=f"{server.name}-{number}"))
    return distinct
