"""`toolcrib run`: run, check or test a script that calls tools of the configured servers."""

import sys
from pathlib import Path
from typing import Any

import click

from toolcrib.app import App
from toolcrib.cli.arguments import read_arguments
from toolcrib.cli.options import ServerSource, approve_option, reports, takes_servers
from toolcrib.cli.output import ExitCode, UsageError, echo, echo_json
from toolcrib.cli.render import print_outcome
from toolcrib.cli.session import terminal_context, with_gateway
from toolcrib.cli.source import load_source
from toolcrib.scripting.files import language_of, read_script
from toolcrib.scripting.stored import run_script_test
from toolcrib.settings.options import Settings


@click.command()
@click.argument("file")
@click.option(
    "--language", "-l", metavar="NAME", help="The language of the script; by default, what the end of its name says."
)
@click.option("--args", "-a", metavar="JSON", help="The script's `args`: a JSON object, or @FILE.")
@click.option("--read-only", is_flag=True, help="Offer the script only tools that change nothing.")
@click.option("--dry-run", is_flag=True, help="Only check the script, and list the calls it contains.")
@click.option("--test", is_flag=True, help="Run the tests in the file.")
@approve_option
@takes_servers()
@reports()
def run(
    source: ServerSource,
    *,
    file: str,
    language: str | None,
    args: str | None,
    test: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a script that calls tools, and print its result.

    FILE is the script; - reads standard input. It runs in a sandbox, where it can call the tools of the configured
    servers and nothing else. If the script or its tests fail, the exit code is 5 and the reason goes to standard
    error; --json prints the whole result.
    """
    text = _read_script(file)
    chosen = language or language_of(Path(file))
    arguments = None if args is None else read_arguments(args)
    settings = load_source(source)
    if test:
        failed = _run_tests(settings, file, chosen, as_json=as_json)
    else:
        failed = _run_script(settings, text, chosen, arguments, as_json=as_json, **options)
    if failed:
        raise click.exceptions.Exit(ExitCode.TOOL)


def _read_script(file: str) -> str:
    try:
        return sys.stdin.read().removeprefix("\ufeff") if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None


def _run_script(
    settings: Settings,
    source: str,
    language: str,
    arguments: dict[str, Any] | None,
    *,
    read_only: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> bool:
    """Run or check a script, and print its result; whether it failed."""

    async def show(app: App) -> bool:
        ctx = terminal_context(app, approved=yes)
        if dry_run:
            result = await app.scripts.check(ctx, source, language=language, read_only=read_only)
        else:
            result = await app.run_script(source, language=language, arguments=arguments, read_only=read_only, ctx=ctx)
        return print_outcome(result, as_json=as_json)

    return with_gateway(settings, show)


def _run_tests(settings: Settings, file: str, language: str, *, as_json: bool) -> bool:
    """Run the tests of a script file, and print their outcomes; whether one failed."""
    if file == "-":
        raise UsageError("--test needs a file.")
    script = read_script(Path(file), language)
    if not script.tests:
        raise UsageError(f"{file} has no tests.", hint="Write them in front of the script, as [[tests]].")

    async def show(app: App) -> bool:
        ctx = app.local_context()
        results = [await run_script_test(app.scripts, ctx, script, test) for test in script.tests]
        if as_json:
            echo_json([{"test": one.test, "passed": one.passed, "reason": one.reason} for one in results])
        else:
            for one in results:
                reason = f": {one.reason}" if one.reason else ""
                echo(f"{'passed' if one.passed else 'FAILED'}  {one.test}{reason}")
        return not all(one.passed for one in results)

    return with_gateway(settings, show)
