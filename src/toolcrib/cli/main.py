"""The `toolcrib` command: its verbs by section, and `serve`.

Each verb is in the module that does its work, except `serve`: only a verb that is used is imported, so that `--help`
and completion need none of them.
"""

import gc
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Final, NoReturn

import click
from click.shell_completion import CompletionItem

from toolcrib._version import VERSION
from toolcrib.cli import output
from toolcrib.cli.completion import completion_options
from toolcrib.cli.options import ServerSource, reports, takes_servers
from toolcrib.cli.output import ExitCode, UsageError
from toolcrib.settings.env import CONFIG_VARIABLE, PROJECT_FILES, USER_FILES

_USER_FILE_LINES = "\n".join(f"  ~/.config/toolcrib/{name}  (or below $XDG_CONFIG_HOME)" for name in USER_FILES)
_PROJECT_FILE_LINES = "\n".join(f"  ./{name}" for name in PROJECT_FILES)
# The mark \b keeps the lines of a paragraph apart.
EPILOG: Final = f"""\b
Without --config, the first of these is used:
  the file named by ${CONFIG_VARIABLE}
{_PROJECT_FILE_LINES}
{_USER_FILE_LINES}
No file is needed with --command, --url or --gateway.

\b
Exit codes:
{output.exit_code_table()}

\b
Other variables: TOOLCRIB_TOKEN (a bearer token: the one that serve --http requires, and that --gateway sends),
TOOLCRIB_DEBUG=1 (as --debug).
"""
_SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Serve and use tools": {
        "serve": ("main", "Serve all tools over MCP: on stdin and stdout, or over HTTP."),
        "servers": ("tool_verbs", "Show the state of each server, and how many tools it offers."),
        "tools": ("tool_verbs", "List every tool by id."),
        "search": ("tool_verbs", "Find matching tools, best first, with scores from 0 to 1."),
        "describe": ("tool_verbs", "Show how to call a tool: its parameters, and an example call."),
        "call": ("tool_verbs", "Call a tool and print its result."),
        "run": ("run", "Run a script that calls tools, and print its result."),
        "result": ("state", "Print a large result of an earlier call."),
    },
    "Servers and clients": {
        "add": ("edit", "Add a server to the settings file."),
        "remove": ("edit", "Remove a server from the settings file."),
        "enable": ("edit", "Enable a server that is disabled in the settings file."),
        "disable": ("edit", "Disable a server in the settings file, and keep its entry."),
        "import": ("edit", "Add the servers of other MCP clients to toolcrib's own file."),
        "connect": ("edit", "Make toolcrib the only server of a client."),
        "disconnect": ("edit", "Restore the file of a client."),
        "login": ("logins", "Log in to a server behind OAuth."),
        "logout": ("logins", "Delete a stored login."),
        "logins": ("logins", "List the stored logins."),
    },
    "Check and operate": {
        "doctor": ("doctor", "Check the settings and every server, and suggest fixes."),
        "lint": ("trust", "Look for texts in tools that mislead a model."),
        "trust": ("trust", "Accept the changed definitions of a server."),
        "diff": ("trust", "Show what changed in the definitions of a server."),
        "state": ("state", "Show or clear what is kept across restarts."),
        "stats": ("stats", "Show what the gateway was used for, and how many tokens it saved."),
        "service": ("service", "Run the gateway as a service of this user."),
        "audit": ("state", "Check whether the audit log was changed."),
        "tokens": ("access", "Create, list and revoke API keys of callers."),
        "can": ("access", "Show whether a caller may call a tool, and why."),
        "policy": ("access", "Show what callers may do with all tools."),
        "eval": ("evaluate", "Measure the search: ranking quality, false answers, and time."),
        "demo": ("demo", "Demonstrate the gateway with real MCP servers from PyPI."),
    },
}
"""The verbs as the help lists them, each with the module of this package that has it, and its line of the help."""
_VERBS: Final = {verb: about for verbs in _SECTIONS.values() for verb, about in verbs.items()}
_GC_THRESHOLD: Final = 500_000
_CONFIGURED_ADDRESS: Final = ":"
"""An address both of whose halves are what the settings say."""
_CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _module(name: str) -> ModuleType:
    """Import a module of this package."""
    match name:
        case "access":
            import toolcrib.cli.access
        case "demo":
            import toolcrib.cli.demo
        case "doctor":
            import toolcrib.cli.doctor
        case "edit":
            import toolcrib.cli.edit
        case "evaluate":
            import toolcrib.cli.evaluate
        case "logins":
            import toolcrib.cli.logins
        case "run":
            import toolcrib.cli.run
        case "service":
            import toolcrib.cli.service
        case "state":
            import toolcrib.cli.state
        case "stats":
            import toolcrib.cli.stats
        case "tool_verbs":
            import toolcrib.cli.tool_verbs
        case _:
            import toolcrib.cli.trust
    module: ModuleType = getattr(toolcrib.cli, name)
    return module


class LazyGroup(click.Group):
    """The verbs; the module of each is imported when it is used.

    A verb that cannot be called by its own name in Python, such as `import`, is `import_verb` there.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of all verbs, in the order of the help."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of this name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in _VERBS:
            return own
        module = _module(_VERBS[cmd_name][0])
        verb: click.Command = getattr(module, f"{cmd_name}_verb", None) or getattr(module, cmd_name)
        return verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that the words name; an unknown one is an error with the nearest verbs."""
        verbs = self.list_commands(ctx)
        if args[0] not in verbs and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], verbs, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f'There is no command "{args[0]}".{hint}')
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the verbs by section, without importing their modules."""
        widest = max(map(len, _VERBS))
        for section, verbs in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(verb.ljust(widest), about) for verb, (_, about) in verbs.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs that begin so, also without their modules, and the options of the command itself."""
        verbs = [CompletionItem(verb, help=about) for verb, (_, about) in _VERBS.items() if verb.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group("toolcrib", cls=LazyGroup, epilog=EPILOG, context_settings=_CONTEXT)
@click.version_option(VERSION, message="toolcrib %(version)s", help="Print the version.")
@completion_options
def app() -> None:
    """Find and call the tools of all your MCP servers, or serve them to an agent as one."""


# -- serve -------------------------------------------------------------------------------------------------------------


class ServeCommand(click.Command):
    """The verb, whose `--http` and `--console` may come without an address."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write out the address that is left out; none begins with a dash."""
        following = [*args, "-"][1:]
        written = [
            [word, _CONFIGURED_ADDRESS] if word in ("--http", "--console") and after.startswith("-") else [word]
            for word, after in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, [word for words in written for word in words])


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Loading the rest takes a second, in which nothing is started yet that would have to be ended."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(ExitCode.OK)

    before = signal.signal(signal.SIGTERM, leave)
    if hasattr(signal, "SIGHUP") and not sys.stderr.isatty():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until what it asks for, new settings, can be applied
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command(cls=ServeCommand)
@click.option(
    "--http",
    metavar="[HOST:PORT]",
    help="Serve over HTTP instead of stdin and stdout; the default address is that of the settings.",
)
@click.option(
    "--console",
    metavar="[HOST:PORT]",
    help="Serve pages that show what the gateway does; by default at 127.0.0.1:8321, for this machine alone.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="N",
    help="With --http: how many processes serve the address. More than processor cores gain nothing.",
)
@click.option("--sse", is_flag=True, help="With --http: serve the older HTTP+SSE transport at /sse instead of /mcp.")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    metavar="LEVEL",
    default="info",
    help="The least important messages to log: debug, info (the default), warning or error.",
)
@click.option(
    "--log-format",
    type=click.Choice(("text", "json")),
    metavar="FORMAT",
    help="How to log to standard error: text (the default), or json, an object per line.",
)
@takes_servers()
@reports(as_json=False)
@_exit_on_sigterm()
def serve(
    source: ServerSource,
    *,
    http: str | None,
    console: str | None,
    workers: int | None,
    sse: bool,
    log_level: str,
    log_format: str | None,
) -> None:
    """Serve all tools over MCP: on stdin and stdout, or over HTTP.

    Standard output carries the protocol alone; messages go to standard error. An address that other machines can
    reach needs a token, in the settings (toolcrib.http.tokens) or in TOOLCRIB_TOKEN.
    """
    if sse and http is None:
        raise UsageError("--sse needs --http.", hint="Such as --http --sse.")
    if workers is not None and http is None:
        raise UsageError("--workers needs --http.", hint="Such as --http --workers 2.")
    from toolcrib.cli.source import load_source

    settings = load_source(source)
    if settings.source is not None:  # from now on, this file: another one may come first when it is gone for a moment
        source = replace(source, config=settings.source)
    from toolcrib.cli.serve import LogOptions, serve_http, serve_stdio, with_console

    workers = workers or settings.http.workers
    if sse and workers > 1:
        raise UsageError(
            "--sse is served by one process.", hint="A connection of that transport belongs to one; use --workers 1."
        )

    settings = with_console(settings, console)
    as_json = (log_format or settings.telemetry.log_format) == "json"
    is_debug = click.get_current_context().params["debug"]
    log = LogOptions(level="debug" if is_debug else log_level, as_json=as_json)
    if http is None:
        serve_stdio(settings, log, partial(load_source, source))
    else:
        serve_http(settings, http, log, partial(load_source, source), sse=sse, workers=workers)


def main() -> None:
    """Run the command line."""
    # Imports make many objects that live on: looking through them takes a tenth of the time of a short verb.
    gc.set_threshold(_GC_THRESHOLD)
    try:
        app()
    finally:
        gc.freeze()  # nor at the end, where the interpreter would do it once more


if __name__ == "__main__":
    main()
