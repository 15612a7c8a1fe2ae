"""The `toolcrib` command and its verbs: their options and help texts.

The work is done in the other modules of this package, which are imported inside the verbs: `--help`, and an error in
a settings file, need none of them.
"""
# ruff: noqa: ARG001, PLC0415 - `debug` is read by `report_errors`

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from typer.core import TyperCommand

from toolcrib._version import VERSION
from toolcrib.cli import output
from toolcrib.cli.output import ExitCode, UsageError, report_errors
from toolcrib.errors import SettingsError
from toolcrib.settings.env import CONFIG_VARIABLE, PROJECT_FILES, USER_FILES

_USER_FILE_LINES = "\n".join(f"  ~/.config/toolcrib/{name}  (or below $XDG_CONFIG_HOME)" for name in USER_FILES)


_PROJECT_FILE_LINES = "\n".join(f"  ./{name}" for name in PROJECT_FILES)


# The mark \b keeps the lines of a paragraph apart.
EPILOG = f"""\b
Without --config, the first of these is used:
  the file named by ${CONFIG_VARIABLE}
{_PROJECT_FILE_LINES}
{_USER_FILE_LINES}

\b
Exit codes:
{output.exit_code_table()}

\b
Other variables: TOOLCRIB_TOKEN (a bearer token for serve --http), TOOLCRIB_DEBUG=1 (as --debug).
"""


app = typer.Typer(
    name="toolcrib",
    help="One place that knows all your MCP servers' tools, finds the few that fit, and calls them.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's shape of a callback
    if value:
        typer.echo(f"toolcrib {VERSION}")
        raise typer.Exit


@app.callback()
def toolcrib(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Only holds the options that come before a verb."""


# -- serve -------------------------------------------------------------------------------------------------------------


class ServeCommand(TyperCommand):
    """The verb, whose `--http` may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
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
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[HOST:PORT]",
        help="Serve over HTTP instead of stdin and stdout; the default address is that of the settings.",
    ),
]


SseOption = Annotated[
    bool, typer.Option("--sse", help="With --http: serve the older HTTP+SSE transport at /sse instead of /mcp.")
]


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The settings file, instead of the default locations."),
]


DebugOption = Annotated[
    bool,
    typer.Option("--debug", envvar="TOOLCRIB_DEBUG", show_envvar=False, help="Show logs and tracebacks."),
]


@report_errors
@_exit_on_sigterm()
def serve(
    *, http: HttpOption = None, sse: SseOption = False, config: ConfigOption = None, debug: DebugOption = False
) -> None:
    """Serve all tools over MCP: on stdin and stdout, or over HTTP.

    Standard output carries the protocol alone; messages go to standard error. An address that other machines can
    reach needs a token, in the settings (toolcrib.http.tokens) or in TOOLCRIB_TOKEN.
    """
    from toolcrib.settings.loader import load_settings

    if sse and http is None:
        raise UsageError("--sse needs --http.", hint="Such as --http --sse.")
    settings = load_settings(config)
    from toolcrib.cli.serve import serve_http, serve_stdio

    if http is None:
        serve_stdio(settings, debug=debug)
    else:
        serve_http(settings, http, sse=sse, debug=debug)


app.command("serve", cls=ServeCommand)(serve)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


# -- servers and tools -------------------------------------------------------------------------------------------------


@report_errors
def servers(*, config: ConfigOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the state of each server, and how many tools it offers."""
    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    from toolcrib.cli import session

    session.list_servers(settings, as_json=as_json)


app.command("servers")(servers)


NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Only the tools of this server.")
]


@report_errors
def tools(
    *,
    namespace: NamespaceOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List every tool by id."""
    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    from toolcrib.cli import session

    session.list_tools(settings, namespace, as_json=as_json)


app.command("tools")(tools)


QueryArgument = Annotated[list[str], typer.Argument(metavar="QUERY...", help="What the tool should do.")]


LimitOption = Annotated[
    int | None, typer.Option("--limit", "-l", min=1, help="How many to show, at most.", show_default="10")
]


SearchFileOption = Annotated[
    Path | None,
    typer.Option("--tools", "-t", metavar="FILE", help="Search the tools of this file (- is standard input) instead."),
]


ScorerOption = Annotated[
    Literal["hybrid", "tiers", "bm25", "points"] | None,
    typer.Option("--scorer", help="How to rank tools, this once.", show_default="the settings', else hybrid"),
]


ExplainOption = Annotated[bool, typer.Option("--explain", help="Show how each score is computed.")]


@report_errors
def search(
    query: QueryArgument,
    limit: LimitOption = None,
    namespace: NamespaceOption = None,
    *,
    tools: SearchFileOption = None,
    scorer: ScorerOption = None,
    explain: ExplainOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find matching tools, best first, with scores from 0 to 1.

    --explain shows how each score is computed; --json always includes it.
    """
    from toolcrib.types import Filters, SearchRequest

    filters = Filters(namespaces=frozenset({namespace} if namespace is not None else ()))
    request = SearchRequest(queries=(" ".join(query),), limit=limit, filters=filters, explain=explain or as_json)
    if tools is not None:
        from toolcrib.cli.files import search_file

        reply, named = search_file(tools, request, scorer)
    else:
        from toolcrib.settings.loader import load_settings

        settings = load_settings(config)
        from toolcrib.cli.render import tool_id
        from toolcrib.cli.session import search_servers

        reply, named = search_servers(settings, request, scorer), tool_id
    from toolcrib.cli.output import echo_json
    from toolcrib.cli.render import print_reply, reply_json

    if as_json:
        echo_json(reply_json(reply, named))
        return
    print_reply(reply, named)
    if explain:
        from toolcrib.cli.render import print_parts

        print_parts(reply.hits, named)


app.command("search")(search)


ToolArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The tool: its id, or any unambiguous spelling of it.")
]


@report_errors
def describe(
    name: ToolArgument,
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how to call a tool: its parameters, and an example call."""
    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    from toolcrib.cli import session

    session.describe_tool(settings, name, as_json=as_json)


app.command("describe")(describe)


CallArgsOption = Annotated[
    str,
    typer.Option("--args", "-a", metavar="JSON", help="The arguments: a JSON object, @FILE, or - for standard input."),
]


ApproveOption = Annotated[bool, typer.Option("--yes", "-y", help="Approve calls in advance that need approval.")]


# -- calls -------------------------------------------------------------------------------------------------------------


@report_errors
def call(
    name: ToolArgument,
    args: CallArgsOption = "{}",
    *,
    yes: ApproveOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Call a tool and print its result.

    If the tool returns an error, the exit code is 5 and its text goes to standard error; --json prints the
    whole result in both cases, as MCP defines it. If the settings require approval for the call, you are asked; without
    approval the exit code is 7.
    """
    from toolcrib.cli.session import read_arguments
    from toolcrib.settings.loader import load_settings

    arguments = read_arguments(args)
    settings = load_settings(config)
    from toolcrib.cli import session

    if session.call_tool(settings, name, arguments, approved=yes, as_json=as_json):
        raise typer.Exit(ExitCode.TOOL)


app.command("call")(call)


ScriptArgument = Annotated[str, typer.Argument(metavar="FILE", help="The script; - reads standard input.")]


LanguageOption = Annotated[
    str | None,
    typer.Option(
        "--language", "-l", metavar="NAME", help="The script's language; the default depends on the file name."
    ),
]


ScriptArgsOption = Annotated[
    str | None,
    typer.Option("--args", "-a", metavar="JSON", help="The script's `args`: a JSON object, or @FILE."),
]


ReadOnlyOption = Annotated[bool, typer.Option("--read-only", help="Offer the script only tools that change nothing.")]


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only check the script, and list the calls it contains.")]


TestOption = Annotated[bool, typer.Option("--test", help="Run the tests in the file.")]


@report_errors
def run(
    file: ScriptArgument,
    *,
    language: LanguageOption = None,
    args: ScriptArgsOption = None,
    read_only: ReadOnlyOption = False,
    dry_run: DryRunOption = False,
    test: TestOption = False,
    yes: ApproveOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a script that calls tools, and print its result.

    The script runs in a sandbox, where it can call the tools of the configured servers and nothing else. If the script
    or its tests fail, the exit code is 5 and the reason goes to standard error; --json prints the whole result.
    """
    from toolcrib.cli.session import read_arguments
    from toolcrib.scripting.files import language_of
    from toolcrib.settings.loader import load_settings

    source = _read_script(file)
    chosen = language or language_of(Path(file))
    arguments = None if args is None else read_arguments(args)
    settings = load_settings(config)
    from toolcrib.cli import session

    if test:
        failed = session.run_script_tests(settings, file, chosen, as_json=as_json)
    else:
        script = session.ScriptCall(source, chosen, arguments, read_only=read_only, approved=yes)
        failed = session.run_script(settings, script, dry_run=dry_run, as_json=as_json)
    if failed:
        raise typer.Exit(ExitCode.TOOL)


def _read_script(file: str) -> str:
    try:
        return sys.stdin.read().removeprefix("\ufeff") if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None


app.command("run")(run)


EvalToolsOption = Annotated[
    Path, typer.Option("--tools", "-t", metavar="FILE", help="The tools to search (- is standard input).")
]


EvalQueriesOption = Annotated[
    Path, typer.Option("--queries", "-q", metavar="FILE", help="The queries, each with its relevant tools.")
]


UnanswerableOption = Annotated[
    Path | None,
    typer.Option("--unanswerable", "-u", metavar="FILE", help="Queries that none of the tools can answer."),
]


# -- checks and the demo -----------------------------------------------------------------------------------------------


@report_errors
def evaluate(
    *,
    tools: EvalToolsOption,
    queries: EvalQueriesOption,
    scorer: ScorerOption = None,
    unanswerable: UnanswerableOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure the search: ranking quality, false answers, and time.

    All figures but the times are shares, from 0 to 1.
    """
    from toolcrib.cli.files import STDIN, print_figures, run_evaluation
    from toolcrib.cli.output import echo_json

    if [tools, queries, unanswerable].count(STDIN) > 1:
        raise UsageError("Only one of the files can be standard input.")
    figures = run_evaluation(tools, queries, unanswerable, scorer)
    if as_json:
        echo_json(figures)
    else:
        print_figures(figures)


app.command("eval")(evaluate)


@report_errors
def doctor(*, config: ConfigOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Check the settings and every server, and suggest fixes.

    The exit code is 6 if anything fails.
    """
    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)
    from toolcrib.cli.doctor import examine

    if not examine(settings, as_json=as_json):
        raise typer.Exit(ExitCode.SERVER)


app.command("doctor")(doctor)


StateActionArgument = Annotated[
    Literal["show", "clear"], typer.Argument(metavar="[show|clear]", help="What to do; show is the default.")
]


StateNameArgument = Annotated[
    str | None, typer.Argument(metavar="[TABLE|SERVER]", help="What to clear, instead of everything.")
]


@report_errors
def state(
    action: StateActionArgument = "show",
    name: StateNameArgument = None,
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show what is kept across restarts, or clear it: all of it, one table, or the catalogs of one server.

    Without a settings file, the default state file is used. No server is started, and values are never shown.
    """
    from toolcrib.cli.state import clear_state, show_state
    from toolcrib.settings.loader import load_settings
    from toolcrib.state.options import StateOptions, default_state_file

    if name is not None and action == "show":
        raise UsageError("show takes no name.", hint=f"To clear it: toolcrib state clear {name}")
    try:
        options = load_settings(config).state
    except SettingsError as error:
        if "searched" not in error.data:
            raise
        options = StateOptions(path=default_state_file())
    if action == "show":
        show_state(options, as_json=as_json)
    else:
        clear_state(options, name, as_json=as_json)


app.command("state")(state)


@report_errors
def demo(*, debug: DebugOption = False) -> None:
    """Demonstrate the gateway with real MCP servers from PyPI.

    Starts a gateway in front of five servers, which uvx installs in environments of their own, and plays an agent that
    finds and calls their tools. Needs a network the first time. Writes only to a temporary folder and uv's cache.
    """
    from toolcrib.cli.demo import demo_workspace, run_tour

    with demo_workspace() as scene:
        run_tour(scene)


app.command("demo")(demo)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()


_CONFIGURED_ADDRESS: Final = ":"
"""An address both of whose halves are what the settings say."""
