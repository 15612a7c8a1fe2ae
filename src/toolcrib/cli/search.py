"""`toolcrib search`: the tools that fit some words."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from typing import Annotated

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


@guarded
def search(
    query: Query,
    limit: Limit = None,
    namespace: Namespace = None,
    *,
    config: Config = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Find the tools that fit, best first, with their scores from 0 to 1."""
    from toolcrib.app import App
    from toolcrib.cli.output import say_json
    from toolcrib.cli.session import with_gateway
    from toolcrib.cli.shapes import check_server, reply_json
    from toolcrib.cli.texts import say_reply
    from toolcrib.model import Filters, SearchRequest

    async def show(app: App) -> None:
        ctx = app.local_context()
        if namespace is not None:
            check_server(namespace, await app.gateway.servers(ctx))
        filters = Filters(namespaces=frozenset({namespace} if namespace else ()))
        request = SearchRequest(queries=(" ".join(query),), limit=limit, filters=filters, explain=True)
        reply = await app.gateway.search(ctx, request)
        if as_json:
            say_json(reply_json(reply))
        else:
            say_reply(reply)

    with_gateway(config, show)
