"""`toolcrib eval`: how good the search is, on tools and queries of one's own."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from pathlib import Path
from typing import Annotated

import typer

from toolcrib.cli.guard import UsageError, guarded
from toolcrib.cli.parameters import AsJson, Debug
from toolcrib.cli.search import Scorer

Tools = Annotated[
    Path, typer.Option("--tools", "-t", metavar="FILE", help="The tools that are searched (- is standard input).")
]
Queries = Annotated[
    Path, typer.Option("--queries", "-q", metavar="FILE", help="What is asked, and which tools are right.")
]
Unanswerable = Annotated[
    Path | None,
    typer.Option("--unanswerable", "-u", metavar="FILE", help="More queries, which none of the tools answers."),
]


@guarded
def eval(  # noqa: A001 - the verb's name
    *,
    tools: Tools,
    queries: Queries,
    scorer: Scorer = None,
    unanswerable: Unanswerable = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure the search: how well it ranks, what it answers that it should not, and how long it takes.

    Every figure but the times is a share, from 0 to 1.
    """
    from toolcrib.cli.files import STDIN
    from toolcrib.cli.output import say_json
    from toolcrib.cli.trial import measured, say_figures

    if [tools, queries, unanswerable].count(STDIN) > 1:
        raise UsageError("Only one of the files can be standard input.")
    figures = measured(tools, queries, unanswerable, scorer)
    if as_json:
        say_json(figures)
    else:
        say_figures(figures)
