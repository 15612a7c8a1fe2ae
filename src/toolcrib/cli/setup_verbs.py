"""The verbs that set up, change and check a gateway: their options and help texts.

The work is done in the other modules of this package, which are imported inside the verbs.
"""
# ruff: noqa: ARG001 - `debug` is read by `report_errors`

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from toolcrib.cli.completion import complete_client, complete_server
from toolcrib.cli.options import ServerSource, config_option, reports, takes_servers
from toolcrib.cli.output import ExitCode, UsageError


@click.command()
@takes_servers()
@reports()
def doctor(source: ServerSource, *, as_json: bool, debug: bool) -> None:
    """Check the settings and every server, and suggest fixes.

    The exit code is 6 if anything fails, and 7 if the changed definition of a tool waits until you trust it.
    """
    from toolcrib.cli.doctor import examine
    from toolcrib.cli.source import load_source

    if code := examine(load_source(source), as_json=as_json):
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


@click.command(short_help="Check whether the audit log was changed.")
@click.argument("action", type=click.Choice(("verify", "digest")), metavar="verify|digest")
@click.argument("what", required=False, metavar="[FILE|JSON]")
@click.option("--holds", metavar="HASH", help="With verify: a hash noted earlier, which the log must still have.")
@config_option
@reports()
def audit(*, action: str, what: str | None, holds: str | None, config: Path | None, as_json: bool, debug: bool) -> None:
    """Check the audit log: that no record was changed, left out or added.

    verify checks FILE, or the log that the settings name, with the older files beside it. The exit code is 6 if the
    log is not whole. digest prints the digest that the log has for these arguments of a call, a JSON object or @FILE;
    both need the key of the log, from the settings, if it has one.
    """
    from toolcrib.cli.state import check_audit, print_digest

    if action == "digest":
        print_digest(what, config, as_json=as_json)
    elif not check_audit(what, config, holds, as_json=as_json):
        raise click.exceptions.Exit(ExitCode.SERVER)


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
    from toolcrib.cli.edit import import_servers

    import_servers(names, **options)


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
    from toolcrib.cli.edit import connect_client

    connect_client(client, **options)


@click.command(short_help="Restore the file of a client.")
@click.argument("client", shell_complete=complete_client)
@_dry_run_option
@_yes_option
@reports()
def disconnect(*, client: str, debug: bool, **options: Any) -> None:
    """Restore the file of a client as it was before `toolcrib connect`."""
    from toolcrib.cli.edit import disconnect_client

    disconnect_client(client, **options)


_state_file_option = click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The settings file that says where state is kept.",
)


@click.group(short_help="Create, list and revoke API keys of callers.")
def tokens() -> None:
    """Create, list and revoke API keys, with which callers connect over HTTP.

    A gateway accepts them if its settings say `api_keys = true` in [toolcrib.auth]. Keys are kept in the state file or
    in Redis, as hashes. Creating and revoking needs no restart.
    """


@tokens.command(short_help="Create an API key, and show it once.")
@click.option("--caller", required=True, metavar="ID", help="Who uses the key.")
@click.option("--tenant", metavar="NAME", help="The caller's tenant.")
@click.option("--scope", "scopes", multiple=True, metavar="NAME", help="A scope of the caller; repeat for more.")
@click.option("--role", "roles", multiple=True, metavar="NAME", help="A role, for policies.")
@click.option("--group", "groups", multiple=True, metavar="NAME", help="A group, for policies.")
@click.option("--expires", default="90d", metavar="TIME", help="How long it lasts: 12h, 90d (the default) or never.")
@click.option("--note", default="", metavar="TEXT", help="What it is for, shown by list.")
@_state_file_option
@reports()
def create(
    *,
    caller: str,
    expires: str,
    note: str,
    config: Path | None,
    as_json: bool,
    debug: bool,
    **claims: Any,
) -> None:
    """Create an API key, and show it once: toolcrib tokens create --caller ann --scope read

    Only its hash is kept, so it cannot be shown again.
    """
    from toolcrib.cli.access import create_key

    create_key(caller, claims, expires, note, config, as_json=as_json)


@tokens.command("list", short_help="List the API keys, without their secrets.")
@_state_file_option
@reports()
def list_keys(*, config: Path | None, as_json: bool, debug: bool) -> None:
    """List the API keys that are valid, without their secrets."""
    from toolcrib.cli.access import print_keys

    print_keys(config, as_json=as_json)


@tokens.command(short_help="Revoke an API key at once.")
@click.argument("key_id", metavar="ID")
@_state_file_option
@reports()
def revoke(*, key_id: str, config: Path | None, as_json: bool, debug: bool) -> None:
    """Revoke an API key at once, by the id that list shows or by the key itself.

    Running gateways refuse it from the next request on, and end its open streams.
    """
    from toolcrib.cli.access import revoke_key

    revoke_key(key_id, config, as_json=as_json)


def _claims_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The options that describe a caller."""
    for option in reversed(
        (
            click.option("--tenant", metavar="NAME", help="The caller's tenant."),
            click.option("--issuer", metavar="URL", help="The authorization server that vouches for the caller."),
            click.option("--scope", "scopes", multiple=True, metavar="NAME", help="A scope; repeat for more."),
            click.option("--role", "roles", multiple=True, metavar="NAME", help="A role of the caller."),
            click.option("--group", "groups", multiple=True, metavar="NAME", help="A group of the caller."),
        )
    ):
        verb = option(verb)
    return verb


@click.command(short_help="Show whether a caller may call a tool, and why.")
@click.argument("caller")
@click.argument("tool", metavar="TOOL")
@_claims_options
@config_option
@reports()
def can(*, caller: str, tool: str, config: Path | None, as_json: bool, debug: bool, **claims: Any) -> None:
    """Show whether a caller may see and call a tool, and which policy rule decides.

    CALLER is the caller of a token in the settings or of an API key, or any other one that the options describe. TOOL
    is an id, such as github:delete_repo. No server is started: tags are those that the server listed last. The exit
    code is 7 if the caller may not call the tool.
    """
    from toolcrib.cli.access import print_decisions

    if not print_decisions(caller, tool, config, claims, as_json=as_json):
        raise click.exceptions.Exit(ExitCode.REFUSED)


@click.group(short_help="Show what callers may do with all tools.")
def policy() -> None:
    """Show what the policy of the settings lets callers do.

    toolcrib can says why for one caller and one tool.
    """


@policy.command("check", short_help="Show what each caller may see and call, and what no rule covers.")
@click.argument("caller", required=False)
@_claims_options
@config_option
@reports()
def check_policy(*, caller: str | None, config: Path | None, as_json: bool, debug: bool, **claims: Any) -> None:
    """Show what each caller may see and call, by which rule, and which tools no rule covers.

    Without CALLER, these are the caller of this machine and those of the tokens and API keys. Callers of authorization
    servers are not known: describe one with CALLER and the options. Tools are those that the servers listed last; a
    server is started only if that is not known. The exit code is 7 if a tool is hidden only because the file sets no
    default.
    """
    from toolcrib.cli.access import check_policy

    if caller is None and any(claims.values()):
        raise UsageError("The options describe a caller.", hint="Name it: toolcrib policy check ann --scope read")
    if not check_policy(config, caller, claims, as_json=as_json):
        raise click.exceptions.Exit(ExitCode.REFUSED)


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
