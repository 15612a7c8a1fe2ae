"""The verbs that set up, change and check a gateway: their options and help texts.

The work is done in the other modules of this package, which are imported inside the verbs.
"""
# ruff: noqa: ARG001, PLC0415 - `debug` is read by `report_errors`

from pathlib import Path
from typing import Any

import click

from toolcrib.cli.completion import complete_client, complete_server
from toolcrib.cli.options import ServerSource, config_option, reports, takes_servers
from toolcrib.cli.output import UsageError


@click.command()
@takes_servers()
@reports()
def doctor(source: ServerSource, *, as_json: bool, debug: bool) -> None:
    """Check the settings and every server, and suggest fixes.

    The exit code is 6 if anything fails, and 7 if the changed definition of a tool waits until you trust it.
    """
    settings = source.load()
    from toolcrib.cli.doctor import examine

    if code := examine(settings, as_json=as_json):
        raise click.exceptions.Exit(code)


@click.command(short_help="Show or clear what is kept across restarts.")
@click.argument("action", type=click.Choice(("show", "clear", "forget")), default="show", metavar="[show|clear|forget]")
@click.argument("name", required=False, metavar="[TABLE|SERVER|TOOL]")
@click.option("--tenant", metavar="NAME", help="The tenant to forget, instead of callers without one.")
@click.option("--caller", metavar="ID", help="Forget only which tools this caller used.")
@config_option
@reports()
def state(
    *,
    action: str,
    name: str | None,
    tenant: str | None,
    caller: str | None,
    config: Path | None,
    as_json: bool,
    debug: bool,
) -> None:
    """Show what is kept across restarts, or clear it: all of it, one table, or the catalogs of one server.

    forget deletes what was learned from callers, about all tools or one: which tools they used, and the words of past
    requests. Without a settings file, the default state file is used. No server is started, and values are never shown.
    """
    from toolcrib.cli.state import clear_state, forget_learned, show_state, state_options

    if name is not None and action == "show":
        raise UsageError("show takes no name.", hint=f"To clear it: toolcrib state clear {name}")
    if (tenant is not None or caller is not None) and action != "forget":
        raise UsageError("Only forget takes --tenant and --caller.")
    options = state_options(config)
    if action == "show":
        show_state(options, as_json=as_json)
    elif action == "forget":
        forget_learned(options, name, tenant, caller, as_json=as_json)
    else:
        clear_state(options, name, as_json=as_json)


@click.command(short_help="Show what the gateway was used for, and how many tokens it saved.")
@click.option("--days", type=click.IntRange(1, 90), default=30, metavar="N", help="How many days; 30 by default.")
@click.option("--tools", is_flag=True, help="Show each tool that was called, instead of each server.")
@click.option("--zero-hits", is_flag=True, help="Show the searches that found nothing, or only weak hits.")
@click.option(
    "--propose",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="With --zero-hits: write proposed keywords there, with queries and tools to evaluate them.",
)
@click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file, instead of the default locations.",
)
@reports()
def stats(
    *, days: int, tools: bool, zero_hits: bool, propose: Path | None, config: Path | None, as_json: bool, debug: bool
) -> None:
    """Show calls and tokens by server, tools that were not called, and searches that found nothing.

    Reads the state file, which a running gateway writes every few seconds; no server is started. Tokens at rest are
    what an agent would carry in each request if all tools were listed; tokens served are what clients were shown of
    them; tokens saved are the difference for each list that a client asked for.
    """
    from toolcrib.cli.state import settings_or_defaults
    from toolcrib.cli.stats import StatsOptions, show_stats

    if propose is not None and not zero_hits:
        raise UsageError("--propose needs --zero-hits.")
    settings = settings_or_defaults(config)
    options = StatsOptions(days=days, by_tool=tools, zero_hits=zero_hits, propose=propose)
    show_stats(settings, options, as_json=as_json)


_own_file_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to add servers to, instead of ~/.config/toolcrib/config.json.",
)
_keyring_option = click.option("--keyring", is_flag=True, help="Move secrets to the system's keyring, not to a file.")
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
_yes_option = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")
_project_option = click.option("--project", is_flag=True, help="Change the client's file of the current folder.")


_changed_file_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file to change, instead of the one that is used by default.",
)


@click.command(short_help="Add a server to the settings file.")
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARG]...]")
@click.option("--url", metavar="URL", help="The address of a remote server, instead of a command.")
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="A variable for the command.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header for --url.")
@_changed_file_option
@_keyring_option
@_dry_run_option
@reports()
def add(*, name: str, words: tuple[str, ...], config: Path | None, debug: bool, **options: Any) -> None:
    """Add a server to the settings file: toolcrib add time -- uvx mcp-server-time

    A gateway that runs with the file starts it at once. Literal secrets move to ~/.config/toolcrib/secrets.env.
    """
    from toolcrib.cli.edit import add_server

    add_server(name, words, config, **options)


@click.command(short_help="Remove a server from the settings file.")
@click.argument("name", shell_complete=complete_server)
@_changed_file_option
@_dry_run_option
@reports()
def remove(*, name: str, config: Path | None, debug: bool, **options: Any) -> None:
    """Remove a server from the settings file. A gateway that runs with it stops the server once its calls are done."""
    from toolcrib.cli.edit import remove_server

    remove_server(name, config, **options)


@click.command()
@click.argument("name", shell_complete=complete_server)
@_changed_file_option
@_dry_run_option
@reports()
def enable(*, name: str, config: Path | None, debug: bool, **options: Any) -> None:
    """Enable a server that is disabled in the settings file."""
    from toolcrib.cli.edit import switch_server

    switch_server(name, config, on=True, **options)


@click.command()
@click.argument("name", shell_complete=complete_server)
@_changed_file_option
@_dry_run_option
@reports()
def disable(*, name: str, config: Path | None, debug: bool, **options: Any) -> None:
    """Disable a server in the settings file, and keep its entry."""
    from toolcrib.cli.edit import switch_server

    switch_server(name, config, on=False, **options)


@click.command("import")
@click.argument("names", nargs=-1, metavar="[CLIENT|FILE]...", shell_complete=complete_client)
@_own_file_option
@_keyring_option
@_dry_run_option
@_yes_option
@reports()
def import_verb(*, names: tuple[str, ...], debug: bool, **options: Any) -> None:
    """Add the servers of other MCP clients to toolcrib's own file.

    Without a name, all clients are looked for. You see what would be added, and are asked. Literal secrets move to
    ~/.config/toolcrib/secrets.env, which only you can read. The clients' files are not changed.
    """
    from toolcrib.cli import clients

    clients.import_servers(names, **options)


@click.command(short_help="Make toolcrib the only server of a client.")
@click.argument("client", shell_complete=complete_client)
@_own_file_option
@_project_option
@_keyring_option
@_dry_run_option
@_yes_option
@reports()
def connect(*, client: str, debug: bool, **options: Any) -> None:
    """Make toolcrib the only server of a client, such as cursor, and move its servers to toolcrib's file.

    What the client's file held is kept, and `toolcrib disconnect` restores it.
    """
    from toolcrib.cli import clients

    clients.connect_client(client, **options)


@click.command(short_help="Restore the file of a client.")
@click.argument("client", shell_complete=complete_client)
@_dry_run_option
@_yes_option
@reports()
def disconnect(*, client: str, debug: bool, **options: Any) -> None:
    """Restore the file of a client as it was before `toolcrib connect`."""
    from toolcrib.cli import clients

    clients.disconnect_client(client, **options)


@click.command()
@reports(as_json=False)
def demo(*, debug: bool) -> None:
    """Demonstrate the gateway with real MCP servers from PyPI.

    Starts a gateway in front of five servers, which uvx installs in environments of their own, and plays an agent that
    finds and calls their tools. Needs a network the first time. Writes to a temporary folder and uv's cache, and
    leaves a settings file for the servers beside the state file.
    """
    from toolcrib.cli.demo import demo_workspace, run_tour

    with demo_workspace() as scene:
        run_tour(scene)
