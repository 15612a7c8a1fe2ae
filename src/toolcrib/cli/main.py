"""The `toolcrib` command and its verbs. Imports nothing heavy, so that `--help` responds at once."""

from typing import Annotated

import typer

from toolcrib._version import VERSION
from toolcrib.cli import commands, exits
from toolcrib.settings.env import CONFIG_VARIABLE, PROJECT_FILES, USER_FILES

_USER_FILE_LINES = "\n".join(f"  ~/.config/toolcrib/{name}  (or below $XDG_CONFIG_HOME)" for name in USER_FILES)
_PROJECT_FILE_LINES = "\n".join(f"  ./{name}" for name in PROJECT_FILES)
# The mark \b keeps the lines of a paragraph apart.
EPILOG = f"""\b
Without --config, the first of these is used:
  the file named by ${CONFIG_VARIABLE}
{_PROJECT_FILE_LINES}
{_USER_FILE_LINES}

\b
Exit codes:
{exits.exit_code_table()}

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


app.command("serve", cls=commands.ServeCommand)(commands.serve)
app.command("servers")(commands.servers)
app.command("tools")(commands.tools)
app.command("search")(commands.search)
app.command("describe")(commands.describe)
app.command("call")(commands.call)
app.command("run")(commands.run)
app.command("eval")(commands.evaluate)
app.command("doctor")(commands.doctor)
app.command("demo")(commands.demo)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
