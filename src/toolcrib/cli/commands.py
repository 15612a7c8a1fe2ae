"""The verbs of the command line: their options, help texts and what they print.

The work is done in the other modules of this package, which are imported inside the verbs: `--help`, and a
settings file that cannot be read, need none of them.
"""
# ruff: noqa: ARG001, PLC0415
# ruff: noqa: PLC0415

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from typer.core import TyperCommand

from toolcrib.cli.exits import ExitCode, UsageError, report_errors

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The settings file, instead of the first place that has one."),
]


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


DebugOption = Annotated[
    bool,
    typer.Option("--debug", envvar="TOOLCRIB_DEBUG", show_envvar=False, help="Show logs, and where an error arose."),
]


HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[HOST:PORT]",
        help="Serve over HTTP at this address, by default that of the settings, instead of stdin and stdout.",
    ),
]


SseOption = Annotated[
    bool, typer.Option("--sse", help="With --http: the older HTTP with server-sent events, at /sse, instead of /mcp.")
]


_CONFIGURED_ADDRESS: Final = ":"
"""An address both of whose halves are what the settings say."""


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


@report_errors
@_exit_on_sigterm()
def serve(
    *, http: HttpOption = None, sse: SseOption = False, config: ConfigOption = None, debug: DebugOption = False
) -> None:
    """Serve all tools over MCP: on stdin and stdout, or over HTTP.

    Standard output carries the protocol and nothing else; what there is to tell goes to standard error. An address
    that others can reach needs a token, in the settings (toolcrib.http.tokens) or in TOOLCRIB_TOKEN.
    """
    from toolcrib.cli.exits import UsageError
    from toolcrib.cli.serve import serve_http, serve_stdio
    from toolcrib.settings.loader import load_settings

    if sse and http is None:
        raise UsageError("--sse is a way of HTTP: it needs --http.", hint="Such as --http --sse.")
    settings = load_settings(config)
    if http is None:
        serve_stdio(settings, debug=debug)
    else:
        serve_http(settings, http, sse=sse, debug=debug)


@report_errors
def servers(*, config: ConfigOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show each server's state, why, and how many tools it offers."""
    from toolcrib.app import App
    from toolcrib.cli.output import echo, echo_json, print_columns
    from toolcrib.cli.render import server_json, server_row
    from toolcrib.cli.session import inspect
    from toolcrib.settings.loader import load_settings

    async def show(app: App) -> None:
        statuses = await app.gateway.servers(app.local_context())
        if as_json:
            echo_json({"servers": [server_json(status) for status in statuses]})
        elif statuses:
            print_columns(map(server_row, statuses), head=("NAME", "STATE", "TOOLS", "REACHED BY", "SINCE", "REASON"))
        else:
            echo("No servers are configured.")

    inspect(load_settings(config), show)


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
    """List every tool, by id."""
    from toolcrib.app import App
    from toolcrib.cli.output import echo_json, first_line, print_columns
    from toolcrib.cli.render import check_server, server_json, tool_json
    from toolcrib.cli.session import with_gateway
    from toolcrib.types import ServerState

    async def show(app: App) -> None:
        ctx = app.local_context()
        statuses = await app.gateway.servers(ctx)
        if namespace is not None:
            check_server(namespace, statuses)
        found = [tool for tool in await app.gateway.tools(ctx) if namespace in (None, tool.namespace)]
        if as_json:
            failing = [server_json(status) for status in statuses if status.state is not ServerState.READY]
            echo_json({"tools": [tool_json(tool) for tool in found], "servers": failing})
        else:
            print_columns((tool.id, first_line(tool.description or tool.title or "")) for tool in found)

    with_gateway(config, show)


QueryArgument = Annotated[
    list[str], typer.Argument(metavar="QUERY...", help="What the tool should do, in plain words.")
]


LimitOption = Annotated[
    int | None, typer.Option("--limit", "-l", min=1, help="How many to show, at most.", show_default="10")
]


SearchFileOption = Annotated[
    Path | None,
    typer.Option("--tools", "-t", metavar="FILE", help="Search the tools of this file (- is standard input) instead."),
]


ScorerOption = Annotated[
    Literal["hybrid", "tiers", "bm25", "points"] | None,
    typer.Option("--scorer", help="How tools are ranked, this once.", show_default="the settings', else hybrid"),
]


ExplainOption = Annotated[bool, typer.Option("--explain", help="Show the arithmetic of each hit.")]


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
    """Find the tools that fit, best first, with their scores from 0 to 1.

    --explain shows what each score is made of; --json carries it in any case.
    """
    from toolcrib.cli.output import echo_json
    from toolcrib.cli.render import print_reply, reply_json, tool_id
    from toolcrib.types import Filters, SearchRequest

    filters = Filters(namespaces=frozenset({namespace} if namespace is not None else ()))
    request = SearchRequest(queries=(" ".join(query),), limit=limit, filters=filters, explain=explain or as_json)
    if tools is not None:
        from toolcrib.cli.files import search_file

        reply, named = search_file(tools, request, scorer)
    else:
        from toolcrib.cli.session import search_servers

        reply, named = search_servers(config, request, scorer), tool_id
    if as_json:
        echo_json(reply_json(reply, named))
        return
    print_reply(reply, named)
    if explain:
        from toolcrib.cli.explain import print_parts

        print_parts(reply.hits, named)


ToolArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The tool: its id, or any spelling that is only its own.")
]


@report_errors
def describe(
    name: ToolArgument,
    *,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how a tool is called: its parameters, and a call that is ready to send."""
    from toolcrib.app import App
    from toolcrib.cli.output import echo_json
    from toolcrib.cli.render import description_json, print_description
    from toolcrib.cli.session import with_tool

    async def show(app: App) -> None:
        described = await app.gateway.describe(app.local_context(), name)
        if as_json:
            echo_json(description_json(described))
        else:
            print_description(described)

    with_tool(config, name, show)


CallArgsOption = Annotated[
    str,
    typer.Option("--args", "-a", metavar="JSON", help="The arguments: a JSON object, @FILE, or - for standard input."),
]


ApproveCallOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Agree to the call beforehand, where a person must agree.")
]


@report_errors
def call(
    name: ToolArgument,
    args: CallArgsOption = "{}",
    *,
    yes: ApproveCallOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Call a tool and print what it answers.

    A tool that answers with an error ends with exit code 5, and its text goes to standard error; with --json the
    whole result is printed in either case, as MCP has it. Where the settings say that a person must agree to the
    call, you are asked; a call that nobody agreed to ends with exit code 7.
    """
    from dataclasses import replace

    from toolcrib.app import App
    from toolcrib.cli.calling import TerminalClient, add_approval_hint, read_arguments
    from toolcrib.cli.output import echo_json
    from toolcrib.cli.render import print_result, result_json
    from toolcrib.cli.session import with_tool
    from toolcrib.errors import ApprovalRequired

    arguments = read_arguments(args)

    async def show(app: App) -> bool:
        ctx = replace(app.local_context(), client=TerminalClient(agreed=yes))
        try:
            result = await app.gateway.call(ctx, name, arguments)
        except ApprovalRequired as error:
            add_approval_hint(error)
            raise
        if as_json:
            echo_json(result_json(result))
        else:
            print_result(result)
        return result.is_error or result.kind != "complete"

    if with_tool(config, name, show):
        raise typer.Exit(ExitCode.TOOL)


ScriptArgument = Annotated[str, typer.Argument(metavar="FILE", help="The script; - reads it from standard input.")]


LanguageOption = Annotated[
    str | None,
    typer.Option("--language", "-l", metavar="NAME", help="lua or python; by default what the file's name says."),
]


ScriptArgsOption = Annotated[
    str | None,
    typer.Option("--args", "-a", metavar="JSON", help="What the script has as `args`: a JSON object, or @FILE."),
]


ReadOnlyOption = Annotated[bool, typer.Option("--read-only", help="Let the script see only tools that change nothing.")]


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only check the script, and list the calls seen in it.")]


TestOption = Annotated[bool, typer.Option("--test", help="Run the tests that stand in the file.")]


ApproveScriptOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Agree to its calls beforehand, where a person must agree.")
]


@report_errors
def run(
    file: ScriptArgument,
    *,
    language: LanguageOption = None,
    args: ScriptArgsOption = None,
    read_only: ReadOnlyOption = False,
    dry_run: DryRunOption = False,
    test: TestOption = False,
    yes: ApproveScriptOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a script that calls tools, and print what it gives.

    The script runs in a sandbox: it can call the tools of the configured servers, and nothing else. One that fails, or
    does not pass its tests, ends with exit code 5, and why goes to standard error; --json prints the whole result.
    """
    from dataclasses import replace

    from toolcrib.app import App
    from toolcrib.cli.calling import TerminalClient, read_arguments
    from toolcrib.cli.output import echo_json
    from toolcrib.cli.render import print_result, result_json
    from toolcrib.cli.session import with_gateway
    from toolcrib.scripting.stored import language_of

    source = _read_script(file)
    chosen = language or language_of(Path(file))
    arguments = None if args is None else read_arguments(args)

    async def show(app: App) -> bool:
        ctx = replace(app.local_context(), client=TerminalClient(agreed=yes))
        if test:
            return await _run_script_tests(app, file, chosen, as_json=as_json)
        if dry_run:
            result = await app.scripts.check(ctx, source, language=chosen, read_only=read_only)
        else:
            result = await app.run_script(source, language=chosen, arguments=arguments, read_only=read_only, ctx=ctx)
        if as_json:
            echo_json(result_json(result))
        else:
            print_result(result)
        return result.is_error

    if with_gateway(config, show):
        raise typer.Exit(ExitCode.TOOL)


async def _run_script_tests(app: object, file: str, language: str, *, as_json: bool) -> bool:
    """Run the file's tests and say how each went; whether one did not pass."""
    from toolcrib.app import App
    from toolcrib.cli.output import echo, echo_json
    from toolcrib.scripting.stored import read_script, run_script_test

    assert isinstance(app, App)  # noqa: S101 - imported late, so that the annotation cannot say it
    if file == "-":
        raise UsageError("--test needs a file.")
    script = read_script(Path(file), language)
    if not script.tests:
        raise UsageError(f"{file} has no tests.", hint="They stand in front of the script, as [[tests]].")
    went = [await run_script_test(app.scripts, app.local_context(), script, one) for one in script.tests]
    if as_json:
        echo_json([{"test": one.test, "passed": one.passed, "reason": one.reason} for one in went])
    else:
        for one in went:
            echo(f"{'passed' if one.passed else 'FAILED'}  {one.test}{f': {one.reason}' if one.reason else ''}")
    return not all(one.passed for one in went)


def _read_script(file: str) -> str:
    import sys

    try:
        return sys.stdin.read().removeprefix("\ufeff") if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None


EvalToolsOption = Annotated[
    Path, typer.Option("--tools", "-t", metavar="FILE", help="The tools that are searched (- is standard input).")
]


EvalQueriesOption = Annotated[
    Path, typer.Option("--queries", "-q", metavar="FILE", help="What is asked, and which tools are right.")
]


UnanswerableOption = Annotated[
    Path | None,
    typer.Option("--unanswerable", "-u", metavar="FILE", help="More queries, which none of the tools answers."),
]


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
    """Measure the search: how well it ranks, what it answers that it should not, and how long it takes.

    Every figure but the times is a share, from 0 to 1.
    """
    from toolcrib.cli.eval import print_figures, run_evaluation
    from toolcrib.cli.files import STDIN
    from toolcrib.cli.output import echo_json

    if [tools, queries, unanswerable].count(STDIN) > 1:
        raise UsageError("Only one of the files can be standard input.")
    figures = run_evaluation(tools, queries, unanswerable, scorer)
    if as_json:
        echo_json(figures)
    else:
        print_figures(figures)


@report_errors
def doctor(*, config: ConfigOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Check the settings and every server, and say what to do about what fails.

    Ends with exit code 6 when something fails.
    """
    from toolcrib.app import App
    from toolcrib.cli.doctor import check_all, print_report
    from toolcrib.cli.output import echo_json
    from toolcrib.cli.session import inspect
    from toolcrib.settings.loader import load_settings

    settings = load_settings(config)

    async def show(app: App) -> bool:
        checkup = await check_all(app, settings)
        if as_json:
            echo_json(checkup.as_json())
        else:
            print_report(checkup)
        return checkup.ok

    if not inspect(settings, show):
        raise typer.Exit(ExitCode.SERVER)


@report_errors
def demo(*, debug: DebugOption = False) -> None:
    """Show the main job on real MCP servers from PyPI, which uvx fetches; needs a network the first time.

    Starts a gateway in front of five servers, each in an environment of its own, and plays an agent that finds and
    calls their tools. Nothing outside a temporary folder is written, save for uv's own cache.
    """
    from toolcrib.cli.demo import demo_workspace, run_tour

    with demo_workspace() as scene:
        run_tour(scene)
