"""The `toolcrib` command and its verbs: their options and help texts.

The work is done in the other modules of this package, which are imported inside the verbs: `--help`, and an error in
a settings file, need none of them.
"""
# ruff: noqa: ARG001, PLC0415 - `debug` is read by `report_errors`

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, get_args

import click

from toolcrib._version import VERSION
from toolcrib.cli import output
from toolcrib.cli.completion import (
    complete_client,
    complete_parameter,
    complete_server,
    complete_tool,
    completion_options,
)
from toolcrib.cli.options import ServerSource, reports, takes_servers
from toolcrib.cli.output import ExitCode, UsageError
from toolcrib.errors import SettingsError
from toolcrib.settings.env import CONFIG_VARIABLE, PROJECT_FILES, USER_FILES

_USER_FILE_LINES = "\n".join(f"  ~/.config/toolcrib/{name}  (or below $XDG_CONFIG_HOME)" for name in USER_FILES)
_PROJECT_FILE_LINES = "\n".join(f"  ./{name}" for name in PROJECT_FILES)
# The mark \b keeps the lines of a paragraph apart.
EPILOG: Final = f"""\b
Without --config, the first of these is used:
  the file named by ${CONFIG_VARIABLE}
{_PROJECT_FILE_LINES}
{_USER_FILE_LINES}
No file is needed with --command, --url or --gateway.

\b
Exit codes:
{output.exit_code_table()}

\b
Other variables: TOOLCRIB_TOKEN (a bearer token: the one that serve --http requires, and that --gateway sends),
TOOLCRIB_DEBUG=1 (as --debug).
"""
Scorer = Literal["hybrid", "tiers", "bm25", "points"]
_GC_THRESHOLD: Final = 100_000
_CONFIGURED_ADDRESS: Final = ":"
"""An address both of whose halves are what the settings say."""
_CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group("toolcrib", epilog=EPILOG, context_settings=_CONTEXT)
@click.version_option(VERSION, message="toolcrib %(version)s", help="Print the version.")
@completion_options
def app() -> None:
    """Find and call the tools of all your MCP servers, or serve them to an agent as one."""


# -- serve -------------------------------------------------------------------------------------------------------------


class ServeCommand(click.Command):
    """The verb, whose `--http` may stand without an address."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write out the address that is left out; none begins with a dash."""
        following = [*args, "-"][1:]
        written = [
            [word, _CONFIGURED_ADDRESS] if word == "--http" and after.startswith("-") else [word]
            for word, after in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, [word for words in written for word in words])


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Loading the rest takes a second, in which nothing is started yet that would have to be ended."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(ExitCode.OK)

    before = signal.signal(signal.SIGTERM, leave)
    if hasattr(signal, "SIGHUP") and not sys.stderr.isatty():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until what it asks for, new settings, can be applied
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command(cls=ServeCommand)
@click.option(
    "--http",
    metavar="[HOST:PORT]",
    help="Serve over HTTP instead of stdin and stdout; the default address is that of the settings.",
)
@click.option("--sse", is_flag=True, help="With --http: serve the older HTTP+SSE transport at /sse instead of /mcp.")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    metavar="LEVEL",
    default="info",
    help="The least important messages to log: debug, info (the default), warning or error.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    metavar="FORMAT",
    default="text",
    help="How to log to standard error: text (the default), or json, an object per line.",
)
@takes_servers()
@reports(as_json=False)
@_exit_on_sigterm()
def serve(source: ServerSource, *, http: str | None, sse: bool, log_level: str, log_format: str, debug: bool) -> None:
    """Serve all tools over MCP: on stdin and stdout, or over HTTP.

    Standard output carries the protocol alone; messages go to standard error. An address that other machines can
    reach needs a token, in the settings (toolcrib.http.tokens) or in TOOLCRIB_TOKEN.
    """
    if sse and http is None:
        raise UsageError("--sse needs --http.", hint="Such as --http --sse.")
    settings = _load(source)
    from toolcrib.cli.serve import LogOptions, serve_http, serve_stdio

    log = LogOptions(level="debug" if debug else log_level, as_json=log_format == "json")
    if http is None:
        serve_stdio(settings, log, partial(_load, source))
    else:
        serve_http(settings, http, log, partial(_load, source), sse=sse)


# -- servers and tools -------------------------------------------------------------------------------------------------


def _verbs(source: ServerSource) -> Any:
    """The module that has the verbs for this source."""
    if source.gateway is not None:
        return import_module("toolcrib.cli.remote")
    from_file = not source.commands and not source.urls
    return import_module("toolcrib.cli.cached" if source.on_demand and from_file else "toolcrib.cli.session")


def _load(source: ServerSource) -> Any:
    from toolcrib.cli.source import load_source

    return load_source(source)


@app.command()
@takes_servers(gateway=True, on_demand=True)
@reports()
def servers(source: ServerSource, *, as_json: bool, debug: bool) -> None:
    """Show the state of each server, and how many tools it offers."""
    settings = _load(source)
    _verbs(source).list_servers(settings, as_json=as_json)


_namespace_option = click.option(
    "--namespace", "-n", metavar="NAME", shell_complete=complete_server, help="Only the tools of this server."
)


@app.command()
@_namespace_option
@takes_servers(gateway=True, on_demand=True)
@reports()
def tools(source: ServerSource, *, namespace: str | None, as_json: bool, debug: bool) -> None:
    """List every tool by id."""
    settings = _load(source)
    _verbs(source).list_tools(settings, namespace, as_json=as_json)


_scorer_option = click.option(
    "--scorer",
    type=click.Choice(get_args(Scorer)),
    metavar="NAME",
    help="How to rank tools, this once: hybrid, tiers, bm25 or points; by default as the settings say.",
)


@app.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--limit", "-l", type=int, metavar="N", help="How many to show, at most; 10 by default.")
@_namespace_option
@click.option(
    "--tools",
    "-t",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Search the tools of this file (- is standard input) instead.",
)
@_scorer_option
@click.option("--explain", is_flag=True, help="Show how each score is computed.")
@takes_servers(gateway=True, on_demand=True)
@reports()
def search(
    source: ServerSource,
    *,
    query: tuple[str, ...],
    limit: int | None,
    namespace: str | None,
    tools: Path | None,
    scorer: Scorer | None,
    explain: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """Find matching tools, best first, with scores from 0 to 1.

    QUERY says in plain words what the tool should do. --explain shows how each score is computed; --json always
    includes it.
    """
    from toolcrib.types import Filters, SearchRequest

    if limit is not None and limit < 1:
        raise UsageError("--limit must be at least 1.")
    filters = Filters(namespaces=frozenset({namespace} if namespace is not None else ()))
    request = SearchRequest(queries=(" ".join(query),), limit=limit, filters=filters, explain=explain or as_json)
    if tools is not None:
        from toolcrib.cli.files import search_file

        search_file(tools, request, scorer, as_json=as_json)
        return
    settings = _load(source)
    _verbs(source).search(settings, request, scorer, as_json=as_json)


_tool_argument = click.argument("name", shell_complete=complete_tool)


@app.command()
@_tool_argument
@takes_servers(gateway=True, on_demand=True)
@reports()
def describe(source: ServerSource, *, name: str, as_json: bool, debug: bool) -> None:
    """Show how to call a tool: its parameters, and an example call.

    NAME is the tool's id, or any unambiguous spelling of it.
    """
    settings = _load(source)
    _verbs(source).describe_tool(settings, name, as_json=as_json)


# -- calls -------------------------------------------------------------------------------------------------------------


_approve_option = click.option("--yes", "-y", is_flag=True, help="Approve calls in advance that need approval.")


@app.command()
@_tool_argument
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete_parameter)
@click.option(
    "--args",
    "-a",
    metavar="JSON",
    default="{}",
    help="The arguments: a JSON object, @FILE, or - for standard input; KEY=VALUE comes on top.",
)
@_approve_option
@takes_servers(gateway=True, on_demand=True)
@reports()
def call(
    source: ServerSource, *, name: str, words: tuple[str, ...], args: str, yes: bool, as_json: bool, debug: bool
) -> None:
    """Call a tool and print its result.

    NAME is the tool's id, or any unambiguous spelling of it. KEY=VALUE gives an argument the type that the tool's
    schema says, KEY:=JSON any JSON value, and a KEY given several times makes a list.

    If the tool returns an error, the exit code is 5 and its text goes to standard error; --json prints the whole
    result in both cases, as MCP defines it. If the settings require approval for the call, you are asked; without
    approval the exit code is 7.
    """
    from toolcrib.cli.arguments import CallArguments

    arguments = CallArguments.read(args, words)
    settings = _load(source)
    if _verbs(source).call_tool(settings, name, arguments, approved=yes, as_json=as_json):
        raise click.exceptions.Exit(ExitCode.TOOL)


@app.command()
@click.argument("file")
@click.option(
    "--language", "-l", metavar="NAME", help="The language of the script; by default, what the end of its name says."
)
@click.option("--args", "-a", metavar="JSON", help="The script's `args`: a JSON object, or @FILE.")
@click.option("--read-only", is_flag=True, help="Offer the script only tools that change nothing.")
@click.option("--dry-run", is_flag=True, help="Only check the script, and list the calls it contains.")
@click.option("--test", is_flag=True, help="Run the tests in the file.")
@_approve_option
@takes_servers()
@reports()
def run(
    source: ServerSource,
    *,
    file: str,
    language: str | None,
    args: str | None,
    read_only: bool,
    dry_run: bool,
    test: bool,
    yes: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """Run a script that calls tools, and print its result.

    FILE is the script; - reads standard input. It runs in a sandbox, where it can call the tools of the configured
    servers and nothing else. If the script or its tests fail, the exit code is 5 and the reason goes to standard
    error; --json prints the whole result.
    """
    from toolcrib.cli.arguments import read_arguments
    from toolcrib.scripting.files import language_of

    text = _read_script(file)
    chosen = language or language_of(Path(file))
    arguments = None if args is None else read_arguments(args)
    settings = _load(source)
    from toolcrib.cli import session

    if test:
        failed = session.run_script_tests(settings, file, chosen, as_json=as_json)
    else:
        script = session.ScriptCall(text, chosen, arguments, read_only=read_only, approved=yes)
        failed = session.run_script(settings, script, dry_run=dry_run, as_json=as_json)
    if failed:
        raise click.exceptions.Exit(ExitCode.TOOL)


def _read_script(file: str) -> str:
    try:
        return sys.stdin.read().removeprefix("\ufeff") if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None


# -- checks and the demo -----------------------------------------------------------------------------------------------


@app.command("eval")
@click.option(
    "--tools",
    "-t",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The tools to search (- is standard input).",
)
@click.option(
    "--queries",
    "-q",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The queries, each with its relevant tools.",
)
@click.option(
    "--unanswerable",
    "-u",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Queries that none of the tools can answer.",
)
@_scorer_option
@click.option(
    "--embedder", metavar="NAME", help="Search with this embedder, as in search.embedder: minilm, for example."
)
@click.option(
    "--keywords", type=click.Path(path_type=Path), metavar="FILE", help="Add these keywords, as in search.keywords."
)
@click.option("--describe", metavar="NAME", help="Add what this function gives for each tool, as in search.describe.")
@click.option("--past", metavar="FILE|half", help="Queries that were asked before, or every second query.")
@click.option("--compare", is_flag=True, help="Measure without and with these four, and show what changed.")
@reports()
def evaluate(
    *,
    tools: Path,
    queries: Path,
    unanswerable: Path | None,
    scorer: Scorer | None,
    compare: bool,
    as_json: bool,
    debug: bool,
    **more: Any,
) -> None:
    """Measure the search: ranking quality, false answers, and time.

    All figures but the times are shares, from 0 to 1.
    """
    from toolcrib.cli.evaluate import Extras, print_figures, run_evaluation
    from toolcrib.cli.files import STDIN

    extras = Extras(**more)
    if compare and not extras:
        raise UsageError("--compare needs --keywords, --describe, --past or --embedder: what is to be compared.")
    if [tools, queries, unanswerable].count(STDIN) > 1:
        raise UsageError("Only one of the files can be standard input.")
    figures = run_evaluation(tools, queries, unanswerable, scorer, extras, compare=compare)
    if as_json:
        output.echo_json(figures)
    else:
        print_figures(figures)


@app.command()
@takes_servers()
@reports()
def doctor(source: ServerSource, *, as_json: bool, debug: bool) -> None:
    """Check the settings and every server, and suggest fixes.

    The exit code is 6 if anything fails.
    """
    settings = _load(source)
    from toolcrib.cli.doctor import examine

    if not examine(settings, as_json=as_json):
        raise click.exceptions.Exit(ExitCode.SERVER)


@app.command()
@click.argument("action", type=click.Choice(("show", "clear", "forget")), default="show", metavar="[show|clear|forget]")
@click.argument("name", required=False, metavar="[TABLE|SERVER|TOOL]")
@click.option("--tenant", metavar="NAME", help="The tenant whose requests to forget, instead of callers without one.")
@click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file that says where.",
)
@reports()
def state(
    *, action: str, name: str | None, tenant: str | None, config: Path | None, as_json: bool, debug: bool
) -> None:
    """Show what is kept across restarts, or clear it: all of it, one table, or the catalogs of one server.

    forget deletes the words of past requests, of all tools or of one. Without a settings file, the default state file
    is used. No server is started, and values are never shown.
    """
    from toolcrib.cli.state import clear_state, forget_requests, show_state
    from toolcrib.settings.loader import load_settings
    from toolcrib.state.options import StateOptions, default_state_file

    if name is not None and action == "show":
        raise UsageError("show takes no name.", hint=f"To clear it: toolcrib state clear {name}")
    if tenant is not None and action != "forget":
        raise UsageError("Only forget takes --tenant.")
    try:
        options = load_settings(config).state
    except SettingsError as error:
        if "searched" not in error.data:
            raise
        options = StateOptions(path=default_state_file())
    if action == "show":
        show_state(options, as_json=as_json)
    elif action == "forget":
        forget_requests(options, name, tenant, as_json=as_json)
    else:
        clear_state(options, name, as_json=as_json)


_own_file_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to add servers to, instead of ~/.config/toolcrib/config.json.",
)
_keyring_option = click.option("--keyring", is_flag=True, help="Move secrets to the system's keyring, not to a file.")
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
_yes_option = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")
_project_option = click.option("--project", is_flag=True, help="Change the client's file of the current folder.")


_changed_file_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file to change, instead of the one that is used by default.",
)


@app.command()
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARG]...]")
@click.option("--url", metavar="URL", help="The address of a remote server, instead of a command.")
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="A variable for the command.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header for --url.")
@_changed_file_option
@_keyring_option
@_dry_run_option
@reports()
def add(*, name: str, words: tuple[str, ...], config: Path | None, debug: bool, **options: Any) -> None:
    """Add a server to the settings file: toolcrib add time -- uvx mcp-server-time

    A gateway that runs with the file starts it at once. Literal secrets move to ~/.config/toolcrib/secrets.env.
    """
    from toolcrib.cli.edit import add_server

    add_server(name, words, config, **options)


@app.command()
@click.argument("name", shell_complete=complete_server)
@_changed_file_option
@_dry_run_option
@reports()
def remove(*, name: str, config: Path | None, debug: bool, **options: Any) -> None:
    """Remove a server from the settings file. A gateway that runs with it stops the server once its calls are done."""
    from toolcrib.cli.edit import remove_server

    remove_server(name, config, **options)


@app.command()
@click.argument("name", shell_complete=complete_server)
@_changed_file_option
@_dry_run_option
@reports()
def enable(*, name: str, config: Path | None, debug: bool, **options: Any) -> None:
    """Enable a server that is disabled in the settings file."""
    from toolcrib.cli.edit import switch_server

    switch_server(name, config, on=True, **options)


@app.command()
@click.argument("name", shell_complete=complete_server)
@_changed_file_option
@_dry_run_option
@reports()
def disable(*, name: str, config: Path | None, debug: bool, **options: Any) -> None:
    """Disable a server in the settings file, and keep its entry."""
    from toolcrib.cli.edit import switch_server

    switch_server(name, config, on=False, **options)


@app.command("import")
@click.argument("names", nargs=-1, metavar="[CLIENT|FILE]...", shell_complete=complete_client)
@_own_file_option
@_keyring_option
@_dry_run_option
@_yes_option
@reports()
def import_servers(*, names: tuple[str, ...], debug: bool, **options: Any) -> None:
    """Add the servers of other MCP clients to toolcrib's own file.

    Without a name, all clients are looked for. You see what would be added, and are asked. Literal secrets move to
    ~/.config/toolcrib/secrets.env, which only you can read. The clients' files are not changed.
    """
    from toolcrib.cli import clients

    clients.import_servers(names, **options)


@app.command()
@click.argument("client", shell_complete=complete_client)
@_own_file_option
@_project_option
@_keyring_option
@_dry_run_option
@_yes_option
@reports()
def connect(*, client: str, debug: bool, **options: Any) -> None:
    """Make toolcrib the only server of a client, such as cursor, and move its servers to toolcrib's file.

    What the client's file held is kept, and `toolcrib disconnect` restores it.
    """
    from toolcrib.cli import clients

    clients.connect_client(client, **options)


@app.command()
@click.argument("client", shell_complete=complete_client)
@_dry_run_option
@_yes_option
@reports()
def disconnect(*, client: str, debug: bool, **options: Any) -> None:
    """Restore the file of a client as it was before `toolcrib connect`."""
    from toolcrib.cli import clients

    clients.disconnect_client(client, **options)


@app.command()
@reports(as_json=False)
def demo(*, debug: bool) -> None:
    """Demonstrate the gateway with real MCP servers from PyPI.

    Starts a gateway in front of five servers, which uvx installs in environments of their own, and plays an agent that
    finds and calls their tools. Needs a network the first time. Writes to a temporary folder and uv's cache, and
    leaves a settings file for the servers beside the state file.
    """
    from toolcrib.cli.demo import demo_workspace, run_tour

    with demo_workspace() as scene:
        run_tour(scene)


def main() -> None:
    """Run the command line."""
    # Imports make many objects that live on: looking through them takes a tenth of the time of a short verb.
    gc.set_threshold(_GC_THRESHOLD)
    app()


if __name__ == "__main__":
    main()
