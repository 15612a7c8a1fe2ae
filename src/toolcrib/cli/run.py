"""`toolcrib run`: run a script over all tools."""

# Imports stand inside the verb to keep `toolcrib --help` fast; `debug` is read by the guard.
# ruff: noqa: ARG001, PLC0415

from pathlib import Path
from typing import Annotated

import typer

from toolcrib.cli.exits import Exit
from toolcrib.cli.guard import UsageError, guarded
from toolcrib.cli.parameters import AsJson, Config, Debug

File = Annotated[str, typer.Argument(metavar="FILE", help="The script; - reads it from standard input.")]
Language = Annotated[
    str | None,
    typer.Option("--language", "-l", metavar="NAME", help="lua or python; by default what the file's name says."),
]
Args = Annotated[
    str | None,
    typer.Option("--args", "-a", metavar="JSON", help="What the script has as `args`: a JSON object, or @FILE."),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Let the script see only tools that change nothing.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check the script, and list the calls seen in it.")]
Test = Annotated[bool, typer.Option("--test", help="Run the tests that stand in the file.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree to its calls beforehand, where a person must agree.")]


@guarded
def run(
    file: File,
    *,
    language: Language = None,
    args: Args = None,
    read_only: ReadOnly = False,
    dry_run: DryRun = False,
    test: Test = False,
    yes: Yes = False,
    config: Config = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a script that calls tools, and print what it gives.

    The script runs in a sandbox: it can call the tools of the configured servers, and nothing else. One that fails, or
    does not pass its tests, ends with exit code 5, and why goes to standard error; --json prints the whole result.
    """
    from dataclasses import replace

    from toolcrib.app import App
    from toolcrib.cli.arguments import read_arguments
    from toolcrib.cli.asking import Terminal
    from toolcrib.cli.output import say_json
    from toolcrib.cli.session import with_gateway
    from toolcrib.cli.shapes import result_json
    from toolcrib.cli.texts import say_result

    source = _read(file)
    chosen = language or ("python" if file.endswith(".py") else "lua")
    arguments = None if args is None else read_arguments(args)

    async def show(app: App) -> bool:
        ctx = replace(app.local_context(), client=Terminal(agreed=yes))
        if test:
            return await _tested(app, file, chosen, as_json=as_json)
        if dry_run:
            result = await app.scripts.check(ctx, source, language=chosen, read_only=read_only)
        else:
            result = await app.run_script(source, language=chosen, arguments=arguments, read_only=read_only, ctx=ctx)
        if as_json:
            say_json(result_json(result))
        else:
            say_result(result)
        return result.is_error

    if with_gateway(config, show):
        raise typer.Exit(Exit.TOOL)


async def _tested(app: object, file: str, language: str, *, as_json: bool) -> bool:
    """Run the file's tests and say how each went; whether one did not pass."""
    from toolcrib.app import App
    from toolcrib.cli.output import say, say_json
    from toolcrib.gateway.storage import read_file
    from toolcrib.gateway.stored import rehearsed

    assert isinstance(app, App)  # noqa: S101 - imported late, so that the annotation cannot say it
    if file == "-":
        raise UsageError("--test needs a file.")
    script = read_file(Path(file), language)
    if not script.tests:
        raise UsageError(f"{file} has no tests.", hint="They stand in front of the script, as [[tests]].")
    went = [await rehearsed(app.scripts, app.local_context(), script, one) for one in script.tests]
    if as_json:
        say_json([{"test": one.test, "passed": one.passed, "reason": one.reason} for one in went])
    else:
        for one in went:
            say(f"{'passed' if one.passed else 'FAILED'}  {one.test}{f': {one.reason}' if one.reason else ''}")
    return not all(one.passed for one in went)


def _read(file: str) -> str:
    import sys

    try:
        return sys.stdin.read().removeprefix("\ufeff") if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
