"""`toolcrib serve`: the gateway as an MCP server."""

# Imports stand inside the verb to keep `toolcrib --help` fast.
# ruff: noqa: PLC0415

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand

from toolcrib.cli.exits import Exit
from toolcrib.cli.guard import guarded
from toolcrib.cli.parameters import Config, Debug

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="[HOST:PORT]",
        help="Serve over HTTP at this address, by default that of the settings, instead of stdin and stdout.",
    ),
]
Sse = Annotated[
    bool, typer.Option("--sse", help="With --http: the older HTTP with server-sent events, at /sse, instead of /mcp.")
]

_AS_SET: Final = ":"
"""An address both of whose halves are what the settings say."""


class Serve(TyperCommand):
    """The verb, whose `--http` may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write out the address that is left out; none begins with a dash."""
        following = [*args, "-"][1:]
        written = [
            [word, _AS_SET] if word == "--http" and after.startswith("-") else [word]
            for word, after in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, [word for words in written for word in words])


@contextmanager
def _leaving_on_sigterm() -> Iterator[None]:
    """Loading the rest takes a second, in which nothing is started yet that would have to be ended."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(Exit.OK)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@guarded
@_leaving_on_sigterm()
def serve(*, http: Http = None, sse: Sse = False, config: Config = None, debug: Debug = False) -> None:
    """Serve all tools over MCP: on stdin and stdout, or over HTTP.

    Standard output carries the protocol and nothing else; what there is to tell goes to standard error. An address
    that others can reach needs a token, in the settings (toolcrib.http.tokens) or in TOOLCRIB_TOKEN.
    """
    from toolcrib.cli.guard import UsageError
    from toolcrib.cli.serving import serve_http, serve_stdio
    from toolcrib.settings.loader import load

    if sse and http is None:
        raise UsageError("--sse is a way of HTTP: it needs --http.", hint="Such as --http --sse.")
    settings = load(config)
    if http is None:
        serve_stdio(settings, debug=debug)
    else:
        serve_http(settings, http, sse=sse, debug=debug)
