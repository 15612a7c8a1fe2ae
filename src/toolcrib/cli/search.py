"""`toolcrib search`: the tools that fit some words, out of the configured servers or out of a file."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from pathlib import Path
from typing import Annotated, Literal

import typer

from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import AsJson, Config, Debug

Query = Annotated[list[str], typer.Argument(metavar="QUERY...", help="What the tool should do, in plain words.")]
Limit = Annotated[
    int | None, typer.Option("--limit", "-l", min=1, help="How many to show, at most.", show_default="10")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Only the tools of this server.")
]
Tools = Annotated[
    Path | None,
    typer.Option("--tools", "-t", metavar="FILE", help="Search the tools of this file (- is standard input) instead."),
]
Scorer = Annotated[
    Literal["hybrid", "tiers", "bm25", "points"] | None,
    typer.Option("--scorer", help="How tools are ranked, this once.", show_default="the settings', else hybrid"),
]
Explain = Annotated[bool, typer.Option("--explain", help="Show the arithmetic of each hit.")]


@guarded
def search(
    query: Query,
    limit: Limit = None,
    namespace: Namespace = None,
    *,
    tools: Tools = None,
    scorer: Scorer = None,
    explain: Explain = False,
    config: Config = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find the tools that fit, best first, with their scores from 0 to 1.

    --explain shows what each score is made of; --json carries it in any case.
    """
    from toolcrib.cli.output import say_json
    from toolcrib.cli.shapes import reply_json
    from toolcrib.cli.texts import own_id, say_reply
    from toolcrib.model import Filters, SearchRequest

    filters = Filters(namespaces=frozenset({namespace} if namespace is not None else ()))
    request = SearchRequest(queries=(" ".join(query),), limit=limit, filters=filters, explain=explain or as_json)
    if tools is not None:
        from toolcrib.cli.offline import look_up

        reply, named = look_up(tools, request, scorer)
    else:
        from toolcrib.cli.online import ask

        reply, named = ask(config, request, scorer), own_id
    if as_json:
        say_json(reply_json(reply, named))
        return
    say_reply(reply, named)
    if explain:
        from toolcrib.cli.explain import say_parts

        say_parts(reply.hits, named)
