"""The verbs that find, show and call tools: their options and help texts.

Where the tools are is not known here: a `ToolView` finds them.
"""

from functools import partial
from pathlib import Path
from typing import get_args

import click

from toolcrib.cli.arguments import CallArguments
from toolcrib.cli.completion import complete_parameter, complete_server, complete_tool
from toolcrib.cli.options import ServerSource, approve_option, path_option, reports, takes_servers
from toolcrib.cli.output import ExitCode, UsageError
from toolcrib.cli.render import print_description, print_outcome, print_search, print_servers, print_tools
from toolcrib.cli.source import ToolView, load_source
from toolcrib.search.options import Scorer
from toolcrib.types import Filters, SearchRequest

scorer_option = click.option(
    "--scorer",
    type=click.Choice(get_args(Scorer)),
    metavar="NAME",
    help="How to rank tools, this once: hybrid, tiers, bm25 or points; by default as the settings say.",
)


def _view(source: ServerSource) -> ToolView:
    """Load the settings of the source. Raises `SettingsError` or `UsageError`."""
    settings = load_source(source)
    if source.gateway is not None:
        from toolcrib.cli.remote import GatewayView

        return GatewayView(settings)
    if source.on_demand and not source.commands and not source.urls:
        from toolcrib.cli.cached import CachedView

        return CachedView(settings)
    from toolcrib.cli.session import StartedView

    return StartedView(settings)


@click.command()
@takes_servers(gateway=True, on_demand=True)
@reports()
def servers(source: ServerSource, *, as_json: bool) -> None:
    """Show the state of each server, and how many tools it offers."""
    _view(source).servers(partial(print_servers, as_json=as_json))


_namespace_option = click.option(
    "--namespace", "-n", metavar="NAME", shell_complete=complete_server, help="Only the tools of this server."
)


@click.command()
@_namespace_option
@takes_servers(gateway=True, on_demand=True)
@reports()
def tools(source: ServerSource, *, namespace: str | None, as_json: bool) -> None:
    """List every tool by id."""
    _view(source).tools(namespace, partial(print_tools, as_json=as_json))


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option(
    "--or", "phrasings", multiple=True, metavar="QUERY", help="The same need in other words; the best counts."
)
@click.option("--limit", "-l", type=int, metavar="N", help="How many to show, at most; 10 by default.")
@_namespace_option
@path_option("--tools", "-t", about="Search the tools of this file (- is standard input) instead.")
@scorer_option
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
) -> None:
    """Find matching tools, best first, with scores from 0 to 1.

    QUERY says what the tool should do: verb, object and, if known, service. --explain shows how each score is
    computed; --json always includes it.
    """
    if limit is not None and limit < 1:
        raise UsageError("--limit must be at least 1.")
    filters = Filters(namespaces=frozenset({namespace} if namespace is not None else ()))
    asked = (" ".join(query), *phrasings)
    request = SearchRequest.of(asked, limit=limit, filters=filters, explain=explain or as_json)
    if tools is not None:
        from toolcrib.cli.files import search_file

        search_file(tools, request, scorer, as_json=as_json)
        return
    show = partial(print_search, as_json=as_json, explain=explain, limited=limit is not None)
    _view(source).search(request, scorer, show)


_tool_argument = click.argument("name", shell_complete=complete_tool)


@click.command()
@_tool_argument
@takes_servers(gateway=True, on_demand=True)
@reports()
def describe(source: ServerSource, *, name: str, as_json: bool) -> None:
    """Show how to call a tool: its parameters, and an example call.

    NAME is the tool's id, or any unambiguous spelling of it.
    """
    _view(source).describe(name, partial(print_description, as_json=as_json))


# -- calls -------------------------------------------------------------------------------------------------------------


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
@approve_option
@takes_servers(gateway=True, on_demand=True)
@reports()
def call(source: ServerSource, *, name: str, words: tuple[str, ...], args: str, yes: bool, as_json: bool) -> None:
    """Call a tool and print its result.

    NAME is the tool's id, or any unambiguous spelling of it. KEY=VALUE gives an argument the type that the tool's
    schema says, KEY:=JSON any JSON value, and a KEY given several times makes a list.

    If the tool returns an error, the exit code is 5 and its text goes to standard error; --json prints the whole
    result in both cases, as MCP defines it. If the settings require approval for the call, you are asked; without
    approval the exit code is 7.
    """
    arguments = CallArguments.read(args, words)
    if _view(source).call(name, arguments, partial(print_outcome, as_json=as_json), approved=yes):
        raise click.exceptions.Exit(ExitCode.TOOL)
