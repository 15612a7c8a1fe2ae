"""Check the settings and every server, and suggest fixes (`toolcrib doctor`). Changes nothing."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

import anyio.to_thread
import click

from toolcrib.app import App
from toolcrib.cli.access import cover_hint, some_names
from toolcrib.cli.options import ServerSource, reports, takes_servers
from toolcrib.cli.output import ExitCode, echo, echo_json, pluralize
from toolcrib.cli.render import server_json
from toolcrib.cli.session import describe_status, inspect, inspected_servers
from toolcrib.cli.source import load_source
from toolcrib.embedders.models import load
from toolcrib.errors import AmbiguousName, NameCollision, SettingsError, ToolcribError, ToolNotFound
from toolcrib.gateway.gateway import Gateway
from toolcrib.gateway.keywords import load_hook
from toolcrib.gateway.policy import ByScopes, Patterns
from toolcrib.private_files import problem_with
from toolcrib.scripting.engines import NO_ENGINE
from toolcrib.search.options import BUILT_IN_EMBEDDER
from toolcrib.settings.env import search_paths
from toolcrib.settings.loader import unknown_tools
from toolcrib.settings.options import Settings
from toolcrib.surfaces.builtin import make_facade
from toolcrib.types import Policy, ServerState, ServerStatus, Tool
from toolcrib.upstream.options import ServerOptions
from toolcrib.upstream.redact import Redactor

_AdviceTable = tuple[tuple[str, str], ...]
_CREDENTIALS: Final = 'Put its credentials into "headers", such as "Authorization": "Bearer ${{TOKEN}}".'
_LONGER_START: Final = 'Give it longer: "timeouts": {{"start": 120}}, or see what holds it up.'
_LONGER_LIST: Final = 'Give it longer: "timeouts": {{"list": 120}}, or see what holds it up.'
_SETTINGS: Final[_AdviceTable] = (
    (
        r"environment variable (\S+) is not set",
        "Set {0} where toolcrib is started, or give it a default: ${{{0}:-...}}.",
    ),
    (r"environment variable (\S+) is empty", "Set {0} where toolcrib is started."),
    (r"known to the editor", "Write ${{env:NAME}} instead and set that variable."),
    (r"the file .+ does not exist", "Create the file, or correct its path."),
    (r'"([^"]+)" is not a setting; did you mean "([^"]+)"', "Write {1} in place of {0}."),
    (r'is not a setting; did you mean "([^"]+)"', 'Write "{0}" instead.'),
    (r"", "Fix its entry in the settings file."),
)
"""For a server that is not started because of its entry in the settings."""
_COMMAND: Final[_AdviceTable] = (
    (r"^its working directory", 'Create that folder, or correct "cwd".'),
    (
        r"^the command .+ not found",
        'Install the program, or give its full path in "command"; arguments belong in "args".',
    ),
    (
        r"^the command .+ (?:may not be executed|could not be started)",
        "Make its command executable, or start it with an interpreter.",
    ),
    (r"certificate|\bSSL", "Set SSL_CERT_FILE in its env."),
    (r"^no tool list within", _LONGER_LIST),
    (r"^no answer .*within", _LONGER_START),
    (r"", "Run its command by hand to see what it says; its environment holds only what env gives it."),
)
_URL: Final[_AdviceTable] = (
    (r"^the proxy .* requires credentials", "Put the proxy's credentials into its address, where toolcrib is started."),
    (r"^the proxy ", "Correct HTTP_PROXY or HTTPS_PROXY where toolcrib is started, or name its host in NO_PROXY."),
    (
        r"^the message endpoint ",
        "Correct its url, or what it says of itself: behind a proxy with a prefix, it may not know it.",
    ),
    (r"as a firewall sends", "Ask the operators of the firewall before it, or give the headers that it expects."),
    (r"if this port speaks TLS", 'Write "https://" in its url, if it speaks TLS; otherwise see its own log.'),
    (r"\bHTTP 40[13]\b", _CREDENTIALS),
    (r"\bHTTP 407\b", "Put the proxy's credentials into the proxy's address, where toolcrib is started."),
    (r"\bHTTP 40[45]\b", 'Correct its url, or its "type": "http" or "sse".'),
    (r"\ba web page\b", "Correct its url: it leads to a page for people, not to an MCP endpoint."),
    (r"\bHTTP \d+", "See its own log; it is tried again by itself."),
    (r"\bRedirect to", "Write the address that it names into url, if that is the server you mean."),
    (r"certificate", "Set SSL_CERT_FILE where toolcrib is started, if that certificate is to be trusted."),
    (r"no TLS connection", 'Write "http://" in its url, if it speaks no TLS; otherwise correct the port.'),
    (r"^no tool list within", _LONGER_LIST),
    (r"^no answer .*within|\bin time$", _LONGER_START),
    (
        r"refused|cannot be reached|host name is unknown|closed without an answer|broke off",
        "Check that it is running and that its url is right.",
    ),
    (r"", "Check that its url is that of an MCP endpoint, and see its own log."),
)
_TOKEN: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+-]{20,}")
"""A word that may be a key, whatever it is called."""
_QUOTED: Final = re.compile(r' \(its message: ".*"\)|; its last output: .*', re.DOTALL)
"""Quotations of the server within a reason, which say nothing about the kind of failure."""
_REQUEST: Final = "Find the file that was changed last and send it to the team."
"""A request of usual length, to time the embedder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The results of all checks."""

    settings: Settings
    unused: tuple[Path, ...]
    """Other settings files that exist, and are not used."""
    statuses: tuple[ServerStatus, ...]
    problems: tuple[str, ...]
    """Problems other than those of the servers."""
    options: Mapping[str, ServerOptions] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What may be a mistake or intended."""

    @property
    def ok(self) -> bool:
        return not self.problems and all(status.state is ServerState.READY for status in self.statuses)

    @property
    def held(self) -> int:
        """Definitions that wait until a person trusts them."""
        return sum(one.held for status in self.statuses for one in status.rejected)

    @property
    def rejected(self) -> int:
        """Definitions that cannot be used."""
        return sum(not one.held for status in self.statuses for one in status.rejected)

    @property
    def exit_code(self) -> ExitCode:
        """SERVER if anything fails, REFUSED if a definition waits for a person."""
        return ExitCode.OK if self.ok and not self.held else ExitCode.REFUSED if self.ok else ExitCode.SERVER

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.exit_code is ExitCode.OK,
            "held": self.held,
            "rejected": self.rejected,
            "source": str(self.settings.source or "the command line"),
            "unused": [str(path) for path in self.unused],
            "servers": [
                {
                    **server_json(status),
                    "reached_by": describe_endpoint(self.options[status.name]),
                    "ran": describe_command(self.options[status.name]),
                    "advice": advice(status, self.options[status.name]),
                }
                for status in self.statuses
            ],
            "problems": list(self.problems),
            "notes": list(self.notes),
            "warnings": list(self.settings.warnings),
            "secrets": [asdict(secret) for secret in self.settings.secrets],
        }


@click.command()
@takes_servers()
@reports()
def doctor(source: ServerSource, *, as_json: bool) -> None:
    """Check the settings and every server, and suggest fixes.

    The exit code is 6 if anything fails, and 7 if the changed definition of a tool waits until you trust it.
    """
    settings = load_source(source)

    async def show(app: App) -> ExitCode:
        report = await check_all(app, settings)
        if as_json:
            echo_json(report.as_json())
        else:
            print_report(report)
        return report.exit_code

    if code := inspect(settings, show):
        raise click.exceptions.Exit(code)


async def check_all(app: App, settings: Settings) -> DoctorReport:
    """Check everything, once every server is ready or failed.

    The app has no policy, to see every tool, and no embedder; both are checked separately.
    """
    ctx, policy = app.local_context(), settings.policy
    await app.stored.check()
    tools = await app.gateway.tools(ctx)
    embedder, described = await _check_embedder(settings)
    refusals = [
        *_check_http(app),
        *_check_pages(settings),
        *embedder,
        *_check_engine(settings, policy),
        *await _check_hook(settings),
        *await _check_names(app, policy),
    ]
    problems = [*refusals, *_check_files(settings), *_check_allowed_tools(settings, app, tools)]
    for spelling in settings.surfaces.always_visible:
        try:
            await app.gateway.describe(ctx, spelling)
        except (ToolNotFound, AmbiguousName) as error:
            problems.append(f"toolcrib.always_visible: {error}")
    problems += [f"skipped a stored script: {problem}" for problem in app.stored.problems]
    options = {server.name: server for server in settings.servers}
    statuses = tuple(status for status in await inspected_servers(app) if status.name in options)
    complete = all(status.state is ServerState.READY for status in statuses)
    strange = unknown_tools(settings.gateway.keywords, tools)
    unsure = (
        (
            *strange,
            *_unmatched_patterns(settings, policy, tools),
            *_uncovered_tools(policy, tools),
            *await app.stored.unknown_calls(ctx),
        )
        if complete
        else ()
    )
    return DoctorReport(
        settings=settings,
        unused=tuple(
            place for place in search_paths(os.environ, Path.cwd()) if place.is_file() and place != settings.source
        ),
        statuses=statuses,
        problems=tuple(problems),
        options=options,
        notes=(*described, *unsure, *_missing_engines(settings, app)),
    )


def _missing_engines(settings: Settings, app: App) -> Iterator[str]:
    """What a surface lacks because no script engine is installed."""
    if "progressive" in settings.surfaces.surfaces and not app.scripts.languages:
        yield NO_ENGINE


def _check_http(app: App) -> Iterator[str]:
    """Why HTTP would not be served."""
    try:
        app.asgi()
    except ToolcribError as error:
        yield f"serve --http would refuse to start: {error}"


def _check_pages(settings: Settings) -> Iterator[str]:
    """Why the console or the metrics would not be served, as far as that can be said without serving them."""
    try:
        App(Settings(console=settings.console, telemetry=settings.telemetry, http=settings.http, auth=settings.auth))
    except ToolcribError as error:
        yield f"serve would refuse to start: {error}"


def _check_files(settings: Settings) -> Iterator[str]:
    """Files that a gateway would write, and cannot."""
    audit, state = settings.gateway.calls.audit_file, settings.state.path
    if audit is not None and (problem := problem_with(audit.path)):
        effect = "every call is refused" if audit.required else "no call is recorded"
        yield f"toolcrib.calls.audit_file: {effect}, because {audit.path} cannot be written: {problem}"
    if state is not None and (problem := problem_with(state)):
        yield f"toolcrib.state: what should last is not saved, because {state} cannot be written: {problem}"


async def _check_embedder(settings: Settings) -> tuple[list[str], list[str]]:
    """Why the embedder cannot be loaded, or what it does for a search and how long it takes."""
    try:
        embedder = await anyio.to_thread.run_sync(load, settings.gateway.embedder)
        if settings.gateway.embedder.strip() == BUILT_IN_EMBEDDER:
            return [], []
        begun = perf_counter()
        await anyio.to_thread.run_sync(embedder.embed, [_REQUEST])
    except ToolcribError as error:
        return [f"serve would refuse to start: toolcrib.search.embedder: {error}"], []
    except Exception as error:  # noqa: BLE001 - a model of the operator's may raise anything
        return [f"toolcrib.search.embedder: the model fails with {type(error).__name__}, so searches do without it"], []
    took_ms = (perf_counter() - begun) * 1000
    return [], [f"search.embedder {settings.gateway.embedder} works and adds {took_ms:.0f} ms to a search."]


def _check_engine(settings: Settings, policy: Policy | None) -> Iterator[str]:
    """Why tools cannot be searched on disk. The index is not opened: a gateway that runs may have it."""
    if settings.gateway.engine == "memory":
        return
    try:
        Gateway((), options=settings.gateway, policy=policy)
    except ToolcribError as error:
        yield f"serve would refuse to start: {error}"


async def _check_hook(settings: Settings) -> list[str]:
    """Why the function that describes tools cannot be loaded. It is not run, since that may cost something."""
    try:
        if settings.gateway.describe:
            await anyio.to_thread.run_sync(load_hook, settings.gateway.describe)
    except SettingsError as error:
        return [f"serve would refuse to start: {error}"]
    return []


async def _check_names(app: App, policy: Policy | None) -> list[str]:
    """Names that collide, as far as the policy lets callers see both."""
    facade = app.facade
    if policy is not None:
        behind = Gateway([app.local, app.shared, app.servers], policy=policy, options=app.settings.gateway)
        facade = make_facade(behind, app.settings.surfaces, app.scripts)
    try:
        await facade.check_names(app.local_context())
    except NameCollision as error:
        return [f"serve would refuse to start: {error}"]
    return []


def _check_allowed_tools(settings: Settings, app: App, tools: tuple[Tool, ...]) -> Iterator[str]:
    """Names in allowedTools that a ready server does not offer."""
    ready = {status.name for status in app.fleet.statuses() if status.state is ServerState.READY}
    for server in settings.servers:
        offered = {tool.name for tool in tools if tool.namespace == (server.namespace or server.name)}
        missing = [name for name in server.allowed_tools or () if not any(fnmatchcase(tool, name) for tool in offered)]
        if server.name in ready and missing:
            yield f"{server.name}: allowedTools names {', '.join(missing)}, which the server does not offer"


def _unmatched_patterns(settings: Settings, policy: Policy | None, tools: tuple[Tool, ...]) -> Iterator[str]:
    """Patterns that match no tool; if one is misspelt, it does not protect anything."""
    calls = settings.gateway.calls
    listed: list[tuple[str, Sequence[str]]] = [
        ("calls.approved", calls.approved),
        ("calls.tool_rates", [pattern for pattern, _ in calls.tool_rates]),
    ]
    listed += [("calls.cache.tools", calls.cache.tools)] if calls.cache else []
    if isinstance(policy, ByScopes):
        listed += [(f"policy.rules[{place}].tools", rule.tools) for place, rule in enumerate(policy.rules)]
    for where, texts in listed:
        for text in texts:
            fits = Patterns((text,))
            if not any(fits.matches(tool.id) for tool in tools):
                yield f"toolcrib.{where}: {text} matches no current tool"


def _uncovered_tools(policy: Policy | None, tools: tuple[Tool, ...]) -> Iterator[str]:
    """How many tools no rule of the policy covers, and what becomes of them."""
    if not isinstance(policy, ByScopes) or not policy.rules:
        return
    uncovered = [tool.id for tool in tools if not policy.covers(tool)]
    if uncovered:
        fate = {
            "hide": "hidden from every caller",
            "allow": "open to every caller",
            "approve": "run only if a person agrees",
        }
        yield (
            f"toolcrib.policy: no rule says who may see {len(uncovered)} of {pluralize(len(tools), 'tool')}, which "
            f"{'is' if len(uncovered) == 1 else 'are'} {fate[policy.default]}: {some_names(uncovered)}. "
            f"{cover_hint(policy)} See: toolcrib policy check"
        )


def describe_endpoint(server: ServerOptions) -> str:
    """The program of a server, or the host of its url, neither of which can contain a secret; empty without either.

    >>> describe_endpoint(ServerOptions(name="a", transport="http", url="https://me:pw@example.com/key?token=1"))
    'http: https://example.com'
    """
    if server.transport == "stdio":
        return f"stdio: {server.command}" if server.command else ""
    parts = urlsplit(server.url)
    port = f":{parts.port}" if parts.port else ""
    return f"{server.transport}: {parts.scheme}://{parts.hostname or ''}{port}"


def describe_command(server: ServerOptions) -> str:
    """The command line that starts a server, without what may be a secret; empty for a server at a url.

    >>> describe_command(ServerOptions(name="a", command="uvx", args=("db-server", "--token", "abc", "a b")))
    "uvx db-server --token *** 'a b'"
    """
    if server.transport != "stdio" or not server.command:
        return ""
    words = ("***" if _TOKEN.fullmatch(word) else word for word in (server.command, *server.args))
    return Redactor(server)(shlex.join(words)).replace("'***'", "***")


def print_report(checkup: DoctorReport) -> None:
    """Print the report for people."""
    echo(f"Settings: {checkup.settings.source or 'the command line'}")
    for path in checkup.unused:
        echo(f"  also found, not used: {path}")
    for warning in checkup.settings.warnings:
        echo(f"  warning: {warning}")
    echo("\nServers:" if checkup.statuses else "\nNo servers are configured.")
    for status in checkup.statuses:
        _print_server(status, checkup.options[status.name])
    if checkup.settings.secrets:
        echo("\nSecrets:")
    for secret in checkup.settings.secrets:
        echo(f"  {'BAD' if secret.problem else 'ok '} {secret.where}: {secret.problem or secret.source}")
    for note in checkup.notes:
        echo(f"\nNote: {note}")
    for problem in checkup.problems:
        echo(f"\nProblem: {problem}")
    failing = [status.name for status in checkup.statuses if status.state is not ServerState.READY]
    tools = sum(status.tools for status in checkup.statuses)
    if checkup.ok:
        found = f"{pluralize(len(checkup.statuses), 'server')}, {pluralize(tools, 'tool')}"
        above = [
            *([pluralize(warnings, "warning")] if (warnings := len(checkup.settings.warnings)) else []),
            *([f"{pluralize(checkup.rejected, 'tool')} rejected"] if checkup.rejected else []),
            *([f"{pluralize(checkup.held, 'tool')} held until you trust the definition"] if checkup.held else []),
        ]
        verb = "is" if above[:1] and above[0].startswith("1 ") else "are"
        well = f"Nothing fails, but there {verb} {' and '.join(above)} above" if above else "No problems"
        echo(f"\n{well}: {found}.")
    elif failing:
        servers = pluralize(len(checkup.statuses), "server")
        echo(f"\n{len(failing)} of {servers} {'is' if len(failing) == 1 else 'are'} not ready: {', '.join(failing)}")


def _print_server(status: ServerStatus, options: ServerOptions) -> None:
    mark = "ok " if status.state is ServerState.READY else "BAD"
    what = pluralize(status.tools, "tool") if status.state is ServerState.READY else describe_status(status)
    version = f", {status.info.name} {status.info.version}".rstrip() if status.info.name else ""
    endpoint = describe_endpoint(options)
    echo(f"  {mark} {status.name}: {what}" + (f"  ({endpoint}{version})" if endpoint else ""))
    if status.state is not ServerState.READY:
        if command := describe_command(options):
            echo(f"      ran: {command}")
        echo(f"      do: {advice(status, options)}")
    if connections := describe_sessions(status):
        echo(f"      connections: {connections}")
    for one in (*status.rejected, *status.marked):
        echo(f"      {one.state}: {one.tool}: {one.text}")


def describe_sessions(status: ServerStatus) -> str:
    """Which sessions have a connection of their own, and why; empty if all share one by default.

    >>> ready = ServerStatus(name="a", state=ServerState.READY, since=0, sessions="client", sessions_why="set")
    >>> describe_sessions(ready)
    'one for each client session (set)'
    """
    texts = {
        "client": "one for each client session",
        "older": "one for each session of an older client",
        "asking": "one for each session of a client that can be asked something",
    }
    text = texts.get(status.sessions, "one for all clients" if status.sessions_why else "")
    return f"{text} ({status.sessions_why})" if status.sessions_why else text


def advice(status: ServerStatus, server: ServerOptions) -> str:
    """A suggestion for a server that is not ready; empty for one that is.

    >>> lacking = ServerOptions(name="x", problem="environment variable KEY is not set")
    >>> advice(ServerStatus(name="x", state=ServerState.FAILED, since=0, reason=lacking.problem), lacking)
    'Set KEY where toolcrib is started, or give it a default: ${KEY:-...}.'
    """
    if status.state is ServerState.READY:
        return ""
    reason = _QUOTED.sub("", status.reason)
    found = ((re.search(pattern, reason, re.IGNORECASE), words) for pattern, words in _advice_table(server))
    return next(words.format(*match.groups()) for match, words in found if match is not None)


def _advice_table(server: ServerOptions) -> _AdviceTable:
    if server.problem:
        return _SETTINGS
    return _URL if server.url else _COMMAND
