"""`toolcrib serve`: the gateway as an MCP server."""

# Imports stand inside the verb to keep `toolcrib --help` fast.
# ruff: noqa: PLC0415

from typing import Annotated

import typer

from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import Config, Debug

Http = Annotated[
    str | None,
    typer.Option("--http", metavar="HOST:PORT", help="Serve over HTTP at this address instead of stdin and stdout."),
]


@guarded
def serve(*, http: Http = None, config: Config = None, debug: Debug = False) -> None:
    """Serve all tools over MCP: on stdin and stdout, or over HTTP.

    Standard output carries the protocol and nothing else; what there is to tell goes to standard error. An address
    that others can reach needs a token, in the settings (toolcrib.http.tokens) or in TOOLCRIB_TOKEN.
    """
    from toolcrib.cli.serving import serve_http, serve_stdio
    from toolcrib.settings.loader import load

    settings = load(config)
    if http is None:
        serve_stdio(settings, debug=debug)
    else:
        serve_http(settings, http, debug=debug)
