"""`toolcrib lint`: what in the definitions of tools misleads a model."""
# ruff: noqa: ARG001, PLC0415 - as in `main`

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import click

from toolcrib.cli.options import ServerSource, reports, takes_servers
from toolcrib.cli.output import ExitCode, echo, echo_json, pluralize
from toolcrib.trust.lint import Finding, lint_tools
from toolcrib.types import Tool


@click.command(short_help="Look for texts in tools that mislead a model.")
@click.option(
    "--tools",
    "-t",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Check the tools of this file (- is standard input) instead.",
)
@click.option("--hard", is_flag=True, help="Show only findings that have hardly any honest explanation.")
@takes_servers()
@reports()
def lint(source: ServerSource, *, tools: Path | None, hard: bool, as_json: bool, debug: bool) -> None:
    """Look for texts in the definitions of tools that mislead a model, and for what people cannot see in them.

    A hard finding has hardly any honest explanation; a soft one is worth a look. The exit code is 7 if there is a
    hard finding. No model and no network service takes part.
    """
    found = [one for one in lint_tools(_read(source, tools)) if not hard or one.severity == "hard"]
    if as_json:
        echo_json([one.payload() for one in found])
    else:
        _show(found)
    if any(one.severity == "hard" for one in found):
        raise click.exceptions.Exit(ExitCode.REFUSED)


def _read(source: ServerSource, file: Path | None) -> Sequence[Tool]:
    if file is not None:
        from toolcrib.cli.files import read_tools

        return read_tools(file).tools
    from toolcrib.cli.session import inspect

    settings = source.load()
    return inspect(settings, lambda app: app.gateway.tools(app.local_context()))


def _show(found: Sequence[Finding]) -> None:
    for tool, group in groupby(sorted(found, key=lambda one: (one.severity, one.tool)), key=lambda one: one.tool):
        echo(tool)
        for one in group:
            echo(f"  {one.severity}  {one.rule}: it {one.why}.")
            echo(f"        {one.where}: {one.excerpt}")
            echo(f"        {one.advice}")
    severe = sum(one.severity == "hard" for one in found)
    echo(f"{pluralize(len(found), 'finding')}, {severe} of them hard." if found else "Nothing was found.")
