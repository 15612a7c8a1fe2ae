"""`toolcrib`: the command and its verbs. Importing this loads nothing heavy, so that `--help` answers at once."""

from typing import Annotated

import typer

from toolcrib._version import VERSION
from toolcrib.cli import exits
from toolcrib.cli.call import call
from toolcrib.cli.demo import demo
from toolcrib.cli.describe import describe
from toolcrib.cli.doctor import doctor
from toolcrib.cli.eval import eval  # noqa: A004 - the verb's name
from toolcrib.cli.run import run
from toolcrib.cli.search import search
from toolcrib.cli.serve import Serve, serve
from toolcrib.cli.servers import servers
from toolcrib.cli.tools import tools
from toolcrib.settings.places import NEARBY, OF_THE_USER, VARIABLE

_USERS = "\n".join(f"  ~/.config/toolcrib/{name}  (or below $XDG_CONFIG_HOME)" for name in OF_THE_USER)
_NEARBY = "\n".join(f"  ./{name}" for name in NEARBY)

# The mark \b keeps the lines of a paragraph apart.
EPILOG = f"""\b
Without --config, the first of these is used:
  the file named by ${VARIABLE}
{_NEARBY}
{_USERS}

\b
Exit codes:
{exits.table()}

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


app.command(cls=Serve)(serve)
for verb in (servers, tools, search, describe, call, run, eval, doctor, demo):
    app.command()(verb)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
