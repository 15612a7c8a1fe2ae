"""The verbs that find, show, call and run over tools: their options and help texts.

The work is done in the other modules of this package, which are imported inside the verbs.
"""
# ruff: noqa: ARG001 - `debug` is read by `report_errors`

import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import click

from toolcrib.cli import output
from toolcrib.cli.completion import complete_parameter, complete_server, complete_tool
from toolcrib.cli.options import ServerSource, reports, takes_servers
from toolcrib.cli.output import ExitCode, UsageError

Scorer = Literal["hybrid", "tiers", "bm25", "points"]


@click.command()
@takes_servers(gateway=True, on_demand=True)
@reports()
def servers(source: ServerSource, *, as_json: bool, debug: bool) -> None:
    """Show the state of each server, and how many tools it offers."""
    from toolcrib.cli.render import print_servers
    from toolcrib.cli.source import view_of

    view_of(source).servers(partial(print_servers, as_json=as_json))


_namespace_option = click.option(
    "--namespace", "-n", metavar="NAME", shell_complete=complete_server, help="Only the tools of this server."
)


@click.command()
@_namespace_option
@takes_servers(gateway=True, on_demand=True)
@reports()
def tools(source: ServerSource, *, namespace: str | None, as_json: bool, debug: bool) -> None:
    """List every tool by id."""
    from toolcrib.cli.render import print_tools
    from toolcrib.cli.source import view_of

    view_of(source).tools(namespace, partial(print_tools, as_json=as_json))


_scorer_option = click.option(
    "--scorer",
    type=click.Choice(get_args(Scorer)),
    metavar="NAME",
    help="How to rank tools, this once: hybrid, tiers, bm25 or points; by default as the settings say.",
)


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option(
    "--or", "phrasings", multiple=True, metavar="QUERY", help="The same need in other words; the best counts."
)
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
    phrasings: tuple[str, ...],
    limit: int | None,
    namespace: str | None,
    tools: Path | None,
    scorer: Scorer | None,
    explain: bool,
    as_json: bool,
    debug: bool,
) -> None:
    """Find matching tools, best first, with scores from 0 to 1.

    QUERY says what the tool should do: verb, object and, if known, service. --explain shows how each score is
    computed; --json always includes it.
    """
    from toolcrib.types import Filters, SearchRequest

    if limit is not None and limit < 1:
        raise UsageError("--limit must be at least 1.")
    filters = Filters(namespaces=frozenset({namespace} if namespace is not None else ()))
    asked = (" ".join(query), *phrasings)
    request = SearchRequest.of(asked, limit=limit, filters=filters, explain=explain or as_json)
    if tools is not None:
        from toolcrib.cli.files import search_file

        search_file(tools, request, scorer, as_json=as_json)
        return
    from toolcrib.cli.render import print_search
    from toolcrib.cli.source import view_of

    show = partial(print_search, as_json=as_json, explain=explain, limited=limit is not None)
    view_of(source).search(request, scorer, show)


_tool_argument = click.argument("name", shell_complete=complete_tool)


@click.command()
@_tool_argument
@takes_servers(gateway=True, on_demand=True)
@reports()
def describe(source: ServerSource, *, name: str, as_json: bool, debug: bool) -> None:
    """Show how to call a tool: its parameters, and an example call.

    NAME is the tool's id, or any unambiguous spelling of it.
    """
    from toolcrib.cli.render import print_description
    from toolcrib.cli.source import view_of

    view_of(source).describe(name, partial(print_description, as_json=as_json))


# -- calls -------------------------------------------------------------------------------------------------------------


_approve_option = click.option("--yes", "-y", is_flag=True, help="Approve calls in advance that need approval.")


@click.command()
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
    from toolcrib.cli.render import print_outcome
    from toolcrib.cli.source import view_of

    arguments = CallArguments.read(args, words)
    if view_of(source).call(name, arguments, partial(print_outcome, as_json=as_json), approved=yes):
        raise click.exceptions.Exit(ExitCode.TOOL)


@click.command()
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
    from toolcrib.cli import session
    from toolcrib.cli.arguments import read_arguments
    from toolcrib.cli.source import load_source
    from toolcrib.scripting.files import language_of

    text = _read_script(file)
    chosen = language or language_of(Path(file))
    arguments = None if args is None else read_arguments(args)
    settings = load_source(source)
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


@click.command("eval")
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
def eval_verb(
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


@click.command(short_help="Print a large result of an earlier call.")
@click.argument("handle")
@click.option("--path", metavar="JSONPATH", help="Only what this query selects, such as '$.items[*].name'.")
@click.option("--grep", metavar="REGEX", help="Only the lines, or the values of JSON, that match.")
@click.option("--range", "items", metavar="A-B", help="Only these items or lines, counted from 1.")
@click.option("--page", type=int, metavar="N", help="The result in pages, as an agent reads it.")
@click.option("--caller", metavar="ID", default="local", help="Whose result it is; by default, your own.")
@click.option("--tenant", metavar="NAME", help="The caller's tenant.")
@click.option("--issuer", metavar="URL", help="The authorization server that vouches for the caller, if one does.")
@click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file that says where state is kept.",
)
@reports()
def result(
    *,
    handle: str,
    caller: str,
    tenant: str | None,
    issuer: str | None,
    config: Path | None,
    as_json: bool,
    debug: bool,
    **wanted: Any,
) -> None:
    """Print a large result of an earlier call, or a part of it.

    HANDLE is what the reply to the call named. Without an option, the whole result is printed. The state file has it,
    so no server is started.
    """
    from toolcrib.cli.state import print_result

    print_result(handle, (caller, tenant, issuer), config, wanted, as_json=as_json)
